"""Visits of clients at brokers, from logs or from a trace.

Visits have the format of the simulator's lists, so a model learned from one can be tested in the other:
client, broker, attach_s, leave_s, in seconds; no leave_s where a client stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from roamcast.errors import InputError
from roamcast.pipeline import audit_sql as sql
from roamcast.pipeline.audit_sql import LEFT
from roamcast.pipeline.spark_engine import usable

SCHEMA = "client string, broker string, attach_s double, leave_s double"
HEADER = "client,broker,attach_s,leave_s"
ROWS_PER_BATCH = 10_000
Rows = Iterable[tuple[Any, ...]]
EVENT = ("run", "client", "broker", "time", "reason")


def is_handoff() -> Column:
    """Return whether a `moved` row says that the client came from another broker."""
    reason = fn.col("reason")
    return (fn.col("kind") == "moved") & (reason != LEFT) & (reason != fn.col("broker"))


def visits(moved: DataFrame, turn: str = "sequence") -> DataFrame:
    """Return one row for each visit (see `audit_sql.visits`), from the `moved` rows."""
    # A client's own rows are in the order of their sequence.
    return moved.sparkSession.sql(sql.visits("{moved}", turn), moved=moved)


def visits_of_log(rows: DataFrame) -> DataFrame:
    """Return the visits by run and client.

    Moves recorded by clients are used if there are any (`moved`); for other clients, such as plain MQTT
    clients, what brokers recorded (`attached`, `detached`).
    """
    told = usable(rows, "moved")
    seen = usable(rows, "attached", "detached").where("node = broker")
    seen = seen.join(told.select("run", "client").distinct(), ["run", "client"], "left_anti")
    events = told.select(*EVENT, fn.col("sequence").alias("turn")).unionByName(_seen_by_brokers(seen))
    return visits(events, "turn").select(
        "run", "client", "broker", fn.col("attached_at").alias("attach_s"), fn.col("until").alias("leave_s")
    )


def _seen_by_brokers(seen: DataFrame) -> DataFrame:
    """Return the same data in the form of `moved` rows, without the end of visits that another visit has
    ended.
    """
    is_end = fn.col("kind") == "detached"
    # Sequences of two brokers do not compare: at equal times an end comes last, because it may be late.
    steps = Window.partitionBy("run", "client").orderBy("time", "turn")
    before = steps.rowsBetween(Window.unboundedPreceding, -1)
    here = fn.last(fn.when(~is_end, fn.col("broker")), ignorenulls=True).over(before)
    return (
        seen.withColumn("turn", is_end.cast("long"))
        .withColumn("is_late", fn.coalesce(is_end & (here != fn.col("broker")), fn.lit(False)))
        .where(~fn.col("is_late"))
        .withColumn("reason", fn.when(is_end, LEFT))
        .select(*EVENT, "turn")
    )


def check_trace(file: Path) -> None:
    """Refuse a file that does not begin like a trace of visits."""
    try:
        with file.open(encoding="utf-8") as lines:
            header = lines.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise InputError(f"trace {file}: {reason.lower()}") from None
    if header != HEADER:
        raise InputError(f"trace {file} line 1: columns are {header[:80]!r}; expected {HEADER!r}")


def read_visits(spark: SparkSession, file: Path) -> DataFrame:
    """Read a trace in the format of the importers and the generator; its run is the file's name."""
    check_trace(file)
    rows = spark.read.schema(SCHEMA).csv(str(file.absolute()), header=True)
    wrong = rows.where("client is null or broker is null or attach_s is null or leave_s <= attach_s").first()
    if wrong is not None:
        raise InputError(f"trace {file}: {tuple(wrong)} is no visit; expected {HEADER} with a later leave_s")
    visits = rows.select(fn.lit(file.stem).alias("run"), "*")
    if visits.isEmpty():
        raise InputError(f"trace {file}: there are no visits in it")
    return visits


def moves(visits: DataFrame) -> DataFrame:
    """Return, for each move, the previous, present and next brokers, and the time between the last two.

    Attaching again at the same broker is no move.
    """
    order = Window.partitionBy("run", "client").orderBy("attach_s")
    arrived = visits.select(
        "*",
        fn.lag("broker").over(order).alias("_before"),
        fn.lag("leave_s").over(order).alias("left_s"),
    ).where("_before is null or _before != broker")
    return arrived.select(
        "run",
        "client",
        fn.lag("_before", 2).over(order).alias("earlier"),
        fn.lag("_before").over(order).alias("previous"),
        fn.col("_before").alias("here"),
        fn.col("broker").alias("next"),
        fn.coalesce("left_s", "attach_s").alias("left_s"),
        fn.col("attach_s").alias("at_s"),
    ).where("here is not null")


# --- rules that look at one client's rows in order ---


def map_groups(frame: DataFrame, order: list[str], rule: Callable[[Rows], Rows], schema: str) -> DataFrame:
    """Apply a rule to the rows of each value of the first column, sorted by the columns of `order`.

    Rows are tuples, and so are the results of the rule, with the columns of `schema`. Spark's own method
    creates a data frame for each group, which for clients with few rows takes longer than the rules do.
    """
    key = frame.columns[0]
    arrow_schema = to_arrow_schema(cast(StructType, StructType.fromDDL(schema)))

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = groupby(_rows(batches), key=lambda row: row[0])
        results = (result for _, group in groups for result in rule(group))
        while some := list(islice(results, ROWS_PER_BATCH)):
            columns = zip(*some, strict=True)
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, arrow_schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

    sorted_rows = frame.repartition(key).sortWithinPartitions(key, *order)
    return sorted_rows.mapInArrow(of_partition, schema)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
