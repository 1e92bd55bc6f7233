"""From the files of a log to rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from roamcast.pipeline.log_files import find_log_files
from roamcast.pipeline.schema import spark_schema


def read_log(spark: SparkSession, folder: Path) -> DataFrame:
    """Every row below the folder as it was written; columns that an older schema lacks are null."""
    files = [str(file.absolute()) for file in find_log_files(folder)]
    # Without the option, a bracket or a star in a name would be taken for a pattern.
    return spark.read.schema(spark_schema()).option("__globPaths__", "false").parquet(*files)
