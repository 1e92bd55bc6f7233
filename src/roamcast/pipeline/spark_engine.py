"""Spark as the engine of a job's SQL, and the evaluation of filters on its frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, BooleanType, StructField, StructType

from roamcast.errors import InputError
from roamcast.pipeline.audit import audit
from roamcast.pipeline.dialects import SPARK
from roamcast.pipeline.log_files import find_log_files
from roamcast.pipeline.matching import Asked, FilterTable, decoder, pairs_sql
from roamcast.pipeline.output import replace_parts, unfinished
from roamcast.pipeline.places import Place, Store
from roamcast.pipeline.schema import spark_schema

KEPT = ".kept"
"""Within the folder of unfinished results; names with a dot are no part of them."""


class SparkEngine:
    dialect = SPARK

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        """`folder`, which every executor can write to, is for what is kept."""
        self.spark = spark
        self._folder = folder
        self._names: dict[str, None] = {}

    def define(self, name: str, query: str) -> None:
        self.name(name, self.spark.sql(query))

    def keep(self, name: str, query: str) -> None:
        # Not persist(): Spark does not recognise what it holds if Python is part of the plan, and works it
        # out at each use. A file also keeps plans short, and planning is most of what a small log takes.
        self.define(name, query)
        self.write(name, self._folder / name)

    def name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._names[name] = None

    def register(self, name: str, table: pa.Table) -> None:
        self.name(name, self.spark.createDataFrame(table))

    def fetch(self, query: str) -> pa.Table:
        return self.spark.sql(query).toArrow()

    def write(self, name: str, folder: Path) -> None:
        table = self.spark.table(name)
        table.write.parquet(str(folder))
        self.name(name, self.spark.read.schema(table.schema).parquet(str(folder)))

    def define_values(self, name: str, query: str, names: Sequence[Asked]) -> None:
        self._observed = Observation()
        count = fn.count(fn.when(~fn.col("readable"), 1)).alias("rows")
        self.name(name, with_values(self.spark.sql(query), names).observe(self._observed, count))

    def unreadable(self) -> int:
        rows: int = self._observed.get["rows"]
        return rows

    def counters(self) -> dict[str, float]:
        """Of all tasks so far, as Spark's own book says; Python's workers are not in `core_s`."""
        context: Any = self.spark.sparkContext
        java = context._gateway
        nothing = java.jvm.java.util.ArrayList()
        no_quantiles = java.new_array(java.jvm.double, 0)
        stages = context._jsc.sc().statusStore().stageList(nothing, False, False, no_quantiles, nothing)
        found = [stages.apply(number) for number in range(stages.size())]
        return {
            "core_s": sum(stage.executorCpuTime() for stage in found) / 1e9,
            "shuffle_mb": sum(stage.shuffleWriteBytes() for stage in found) / 2**20,
            "spill_mb": sum(stage.diskBytesSpilled() for stage in found) / 2**20,
        }

    def close(self) -> None:
        for name in self._names:
            self.spark.catalog.dropTempView(name)


@contextmanager
def spark_engine(log: DataFrame, folder: Path) -> Iterator[SparkEngine]:
    """Spark with these rows as the table `log`, and a folder for what is kept while it works."""
    engine = SparkEngine(log.sparkSession, folder)
    engine.name("log", log)
    try:
        yield engine
    finally:
        engine.close()


def read_log(spark: SparkSession, folder: Place) -> DataFrame:
    """Every row below the folder as it was written; columns that an older schema lacks are null."""
    if isinstance(folder, Store):
        check_file_system(spark, folder.url)
        read = spark.read.schema(spark_schema()).option("recursiveFileLookup", "true")
        return read.option("pathGlobFilter", "*.parquet").parquet(folder.url)
    files = [str(file.absolute()) for file in find_log_files(folder)]
    # Without the option, a bracket or a star in a name would be taken for a pattern.
    return spark.read.schema(spark_schema()).option("__globPaths__", "false").parquet(*files)


def check_file_system(spark: SparkSession, url: str) -> None:
    """Say in one line what Spark lacks to reach a store: Hadoop's connectors do not come with PySpark."""
    context: Any = spark.sparkContext
    try:
        context._jvm.org.apache.hadoop.fs.Path(url).getFileSystem(context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        reason = str(error.java_exception).partition("\n")[0]
        raise InputError(
            f"{url}: Spark has no file system for it ({reason}); give the connector's jars with"
            " --conf spark.jars=..., or use --engine duckdb"
        ) from None


def audit_on_spark(
    spark: SparkSession, log: Place, out: Path, *, clock_error_s: float = 0.0
) -> dict[str, Any]:
    """Audit a log; the tables go to `out`, the figures come back and are in `out/audit.json`."""
    with unfinished(out) as made, spark_engine(read_log(spark, log), made / KEPT) as engine:
        figures = audit(engine, made, clock_error_s)
        replace_parts(made, out)
    return figures


def with_values(published: DataFrame, names: Sequence[Asked]) -> DataFrame:
    """Adds the sortable bytes of the named attributes (`value0`, …), and whether they could be read."""
    added = [StructField(f"value{slot}", BinaryType()) for slot in range(len(names))]
    fields = [*published.schema.fields, *added, StructField("readable", BooleanType())]
    return published.mapInArrow(decoder(tuple(names)), StructType(fields))


def matching_pairs(
    spark: SparkSession, notifications: DataFrame, subscriptions: DataFrame, table: FilterTable
) -> DataFrame:
    """Every notification with every subscription of its run whose filter it matches (see `pairs_sql`)."""
    kept = [name for name in notifications.columns if not name.startswith("value")]
    others = [name for name in subscriptions.columns if name != "run"]
    query = pairs_sql(table, SPARK, kept, others, "{notifications}", "{held}", "{boxes}")
    boxes = spark.createDataFrame(table.boxes)
    return spark.sql(query, notifications=notifications, held=subscriptions, boxes=boxes)
