"""Merges the files of any number of runs and nodes into one clean log.

The result is a log again: the columns of the contract, in one folder for each day and broker. Rows that
cannot be used go to a quarantine, with the reason. New rows are read together with what was ingested into
their folders before, and each row is kept once; so late files are added, and repeated files and repeated runs
change nothing.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructType

from roamcast.pipeline.audit_sql import NODE, ROW
from roamcast.pipeline.matching import problem_of_filter
from roamcast.pipeline.output import results
from roamcast.pipeline.places import Files, Place, Store, rows_in, spark_schema, url_of
from roamcast.pipeline.spark_engine import files_of, problem, read_log, with_values
from roamcast.protocol.records import COLUMNS

RECORDS, QUARANTINE = "records", "quarantine"
LAYOUT = {
    "date": "date_format(timestamp_seconds(CASE WHEN abs(time) < 1e11 THEN time ELSE 0 END), 'yyyy-MM-dd')",
    "at_broker": "coalesce(broker, node, 'none')",
}
"""Folders of a clean log, so that a day, and within it a broker, can be read alone. Rows of clients are with
the broker that they name.
"""
TAKEN = "another row of the node has this sequence"
UNREADABLE_ATTRIBUTES = "attributes cannot be read"


def quarantine_schema() -> StructType:
    return spark_schema().add("problem", StringType())


def ingest(spark: SparkSession, log: Place, out: Place) -> dict[str, Any]:
    """Ingest a log into `out`; return how many rows were read, and how many were kept and set aside in
    their folders."""
    files = files_of(spark, log, out)
    new = read_log(spark, log)
    runs = [row.run for row in new.select("run").distinct().collect()]
    folders = _folders_of(new)
    checked = _checked(new)
    known = {part: _known(spark, out, part, folders, files) for part in (RECORDS, QUARANTINE)}
    good = checked.where("problem is null").drop("problem").unionByName(known[RECORDS])
    once, conflicts = _once(_readable(good))
    bad = checked.where("problem is not null").unionByName(conflicts)
    with results(out, files) as output:
        kept = _written(once, output.url(RECORDS))
        aside = _written(bad.unionByName(known[QUARANTINE]).distinct(), output.url(QUARANTINE))
        reasons = {row.problem: row["count"] for row in aside.groupBy("problem").count().collect()}
        figures = {
            "runs": len(runs),
            "rows_read": rows_in(log, files),
            "rows_kept": kept.count(),
            "quarantined": sum(reasons.values()),
            "reasons": reasons,
        }
        text = json.dumps(figures, indent=2) + "\n"
        (output.folder / "ingest.json").write_text(text, encoding="utf-8")
    return figures


def _checked(rows: DataFrame) -> DataFrame:
    """Add why a row cannot be used; the driver reads each filter text once."""
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
    """Mark publishes whose attributes cannot be read."""
    others = rows.where(fn.col("kind") != "published").withColumn("problem", fn.lit(None).cast("string"))
    published = with_values(rows.where(fn.col("kind") == "published"), ())
    unreadable = fn.when(~fn.col("readable"), fn.lit(UNREADABLE_ATTRIBUTES))
    return published.withColumn("problem", unreadable).drop("readable").unionByName(others)


def _once(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return each row once, and the rows set aside: two rows of a node cannot have one sequence."""
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


def _folders_of(rows: DataFrame) -> set[tuple[str, ...]]:
    """Return the folders for these rows."""
    columns = [fn.expr(text).alias(name) for name, text in LAYOUT.items()]
    return {tuple(row) for row in rows.select(*columns).distinct().collect()}


def _known(
    spark: SparkSession, out: Place, part: str, folders: set[tuple[str, ...]], files: Files | None
) -> DataFrame:
    """Return the rows ingested earlier into these folders."""
    schema = spark_schema() if part == RECORDS else quarantine_schema()
    if isinstance(out, Store):
        names = files.listed(out / part) if files is not None else []
    else:
        names = [file.relative_to(out / part).as_posix() for file in (out / part).rglob("*.parquet")]
    there = {name.rpartition("/")[0] for name in names}
    touched = [name for name in sorted(there) if _values_of(name) in folders]
    if not touched:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("__globPaths__", "false")
    return reader.parquet(*(f"{url_of(out / part)}/{name}" for name in touched))


def _values_of(folder: str) -> tuple[str, ...]:
    """Return the values in the names of nested folders, such as date=2026-11-18/at_broker=a."""
    return tuple(unquote(level.partition("=")[2]) for level in folder.split("/"))


def _written(rows: DataFrame, url: str) -> DataFrame:
    """Return the rows as they are stored."""
    columns = {name: fn.expr(text) for name, text in LAYOUT.items()}
    rows.withColumns(columns).write.partitionBy(*LAYOUT).parquet(url)
    return rows.sparkSession.read.schema(rows.schema).parquet(url)
