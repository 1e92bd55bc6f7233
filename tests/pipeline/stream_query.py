"""A streaming query in a process of its own, to be killed: from brokers to Parquet files, for ever."""

import json
import sys
from pathlib import Path

from pyspark.sql import functions as fn

from roamcast.pipeline.session import start_spark

SMALL = {"spark.executor.memory": "600m"}
READER = {"filter": "road/#", "qos": "1", "maxPerBatch": "150", "partitions": "2"}


def main(master: str, folder: Path, options: dict[str, str]) -> None:
    spark = start_spark(master, memory_mb=512, small=True, quiet=True, settings=SMALL)
    stream = spark.readStream.format("roamcast").options(**READER, **options).load()
    texts = stream.select("topic", fn.col("payload").cast("string").alias("text"), "publisher", "number")
    query = texts.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(processingTime="300 milliseconds").start(str(folder / "out")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
