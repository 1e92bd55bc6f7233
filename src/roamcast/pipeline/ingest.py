"""From the files of any number of runs and nodes to one clean log.

What is ingested is a log again: the columns of the contract, one folder for each
run. Rows that cannot be used go to a quarantine, with the reason. A run is read
together with what was ingested of it before, and each row is kept once; so late
files are added, files that come again change nothing, and so does running again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructType

from roamcast.pipeline.audit_sql import NODE, ROW
from roamcast.pipeline.log_files import find_log_files, has_files
from roamcast.pipeline.matching import problem_of_filter
from roamcast.pipeline.output import replace_part, replace_parts, unfinished
from roamcast.pipeline.rows import problem
from roamcast.pipeline.schema import spark_schema
from roamcast.pipeline.spark_engine import read_log, with_values
from roamcast.protocol.records import COLUMNS

RECORDS, QUARANTINE = "records", "quarantine"
OF_RUN = "of_run"
"""The column by which folders are named; `run` itself stays in the files, as the contract has it."""
TAKEN = "another row of the node has this sequence"
UNREADABLE_ATTRIBUTES = "attributes cannot be read"


def quarantine_schema() -> StructType:
    return spark_schema().add("problem", StringType())


def ingest(spark: SparkSession, log: Path, out: Path) -> dict[str, Any]:
    """Ingest a log into `out`, and say how many rows were read, kept and put aside."""
    new = read_log(spark, log)
    runs = [row.run for row in new.select("run").distinct().collect()]
    checked = _checked(new)
    good = checked.where("problem is null").drop("problem").unionByName(_known(spark, out / RECORDS, runs))
    once, conflicts = _once(_readable(good))
    bad = checked.where("problem is not null").unionByName(conflicts)
    with unfinished(out) as made:
        kept = _written(once, made / RECORDS)
        aside = _written(bad.unionByName(_known(spark, out / QUARANTINE, runs)).distinct(), made / QUARANTINE)
        reasons = {row.problem: row["count"] for row in aside.groupBy("problem").count().collect()}
        figures = {
            "runs": len(runs),
            "rows_read": sum(find_log_files(log).values()),
            "rows_kept": kept.count(),
            "quarantined": sum(reasons.values()),
            "reasons": reasons,
        }
        (made / "ingest.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        for part in (RECORDS, QUARANTINE):
            replace_parts(made / part, out / part)
        replace_part(made / "ingest.json", out / "ingest.json")
    return figures


def _checked(rows: DataFrame) -> DataFrame:
    """Adds why a row cannot be used; its filter is read by the driver, which meets each text once."""
    texts = [row.filter for row in rows.select("filter").distinct().collect() if row.filter is not None]
    whys = {text: why for text in texts if (why := problem_of_filter(text))}
    unreadable = [(text, f"filter cannot be read: {why}") for text, why in whys.items()]
    checked = rows.withColumn("problem", problem())
    if not unreadable:
        return checked
    reasons = rows.sparkSession.createDataFrame(unreadable, "filter string, reason_of_filter string")
    joined = checked.join(fn.broadcast(reasons), "filter", "left")
    either = fn.coalesce("problem", "reason_of_filter")
    return joined.withColumn("problem", either).select(*COLUMNS, "problem")


def _readable(rows: DataFrame) -> DataFrame:
    """Adds a problem to what was published with attributes that nobody can read."""
    others = rows.where(fn.col("kind") != "published").withColumn("problem", fn.lit(None).cast("string"))
    published = with_values(rows.where(fn.col("kind") == "published"), ())
    unreadable = fn.when(~fn.col("readable"), fn.lit(UNREADABLE_ATTRIBUTES))
    return published.withColumn("problem", unreadable).drop("readable").unionByName(others)


def _once(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Each row once, and those that are put aside: two rows of a node cannot have one sequence."""
    content = fn.xxhash64(*COLUMNS)
    copies = Window.partitionBy(*ROW).orderBy("content")
    # By node, because the rows of a node are written side by side, and a node's rows fit one place.
    told_apart = (
        rows.withColumn("content", content)
        .repartition(*NODE)
        .withColumns({"copy": fn.row_number().over(copies), "first": fn.first("content").over(copies)})
    )
    conflict = fn.when(fn.col("content") != fn.col("first"), fn.lit(TAKEN))
    told_apart = told_apart.withColumn("problem", fn.coalesce("problem", conflict)).drop("content", "first")
    kept = told_apart.where("copy = 1 and problem is null").drop("copy", "problem")
    return kept, told_apart.where("problem is not null").drop("copy")


def _known(spark: SparkSession, folder: Path, runs: list[str | None]) -> DataFrame:
    """What was ingested before of these runs."""
    schema = spark_schema() if folder.name == RECORDS else quarantine_schema()
    if not has_files(folder):
        return spark.createDataFrame([], schema)
    known = spark.read.schema(schema.add(OF_RUN, "string")).parquet(str(folder.absolute()))
    named = fn.col(OF_RUN).isin([run for run in runs if run is not None])
    return known.where(named | (fn.col(OF_RUN).isNull() & fn.lit(None in runs))).drop(OF_RUN)


def _written(rows: DataFrame, folder: Path) -> DataFrame:
    """The rows as they were written, a folder for each run."""
    rows.withColumn(OF_RUN, fn.col("run")).write.partitionBy(OF_RUN).parquet(str(folder))
    return rows.sparkSession.read.schema(rows.schema).parquet(str(folder))
