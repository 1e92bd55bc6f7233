"""What was owed beside what came: every notification of every client, judged once.

Both sides meet in one place for each client and publisher, which is also where
order can be seen, so everything travels once. What travels is numbers: the names
of client and publisher are one (`stream`), incarnation and number of a
notification another (`place`), counted down, so that the later comes first.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from roamcast.core.records import NUMBER_BITS
from roamcast.pipeline.subscriptions import MUST

CLIENT_BITS = 32


def stream() -> Column:
    """What one client gets of one publisher: within it there is an order."""
    return fn.shiftleft(fn.col("client_id").cast("long"), CLIENT_BITS) + fn.col("publisher_id")


def place() -> Column:
    """The place of a notification in its publisher's order, the latest first."""
    return -(fn.shiftleft(fn.col("incarnation_rank").cast("long"), NUMBER_BITS) + fn.col("number"))


def client_id() -> Column:
    return fn.shiftright("stream", CLIENT_BITS).cast("int")


def publisher_id() -> Column:
    return fn.col("stream").bitwiseAND((1 << CLIENT_BITS) - 1).cast("int")


def _one_by_one(bursts: DataFrame) -> DataFrame:
    """One row for each notification of a burst."""
    first, last = fn.col("place") - fn.col("notifications") + 1, fn.col("place")
    return bursts.withColumn("place", fn.explode(fn.sequence(first, last)))


def judged(owed: DataFrame, delivered: DataFrame, *, has_bursts: bool) -> DataFrame:
    """One row for each notification that a client was entitled to or got.

    Both sides have `stream`, `place` and `notifications`; `owed` also a `standing`, and it may say the
    same several times; `delivered` the `sequence` of its row. The result says how the notification
    stands, how many `deliveries` there were, the sequence of the `first`, and whether it was
    `overtaken`: a later one was delivered before it.
    """
    nothing = fn.lit(None)
    sides = owed.select(
        "stream", "place", "notifications", "standing", nothing.cast("long").alias("sequence")
    ).unionByName(
        delivered.select(
            "stream", "place", "notifications", nothing.cast("int").alias("standing"), "sequence"
        )
    )
    sides = _one_by_one(sides.repartition("stream")) if has_bursts else sides.repartition("stream")
    met = sides.groupBy("stream", "place").agg(
        fn.max("standing").alias("standing"),
        fn.count("sequence").cast("int").alias("deliveries"),
        fn.min("sequence").alias("first"),
    )
    later = Window.partitionBy("stream").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    # What a client was not entitled to has no place in the order.
    first_of_later = fn.min(fn.when(fn.col("standing").isNotNull(), fn.col("first"))).over(later)
    overtaken = fn.col("standing").isNotNull() & (first_of_later < fn.col("first"))
    return met.withColumn("overtaken", fn.coalesce(overtaken, fn.lit(False)))


def is_lost() -> Column:
    return (fn.col("standing") == MUST) & (fn.col("deliveries") == 0)


def is_suspect() -> Column:
    """Whether there is anything to say about a judged notification."""
    return is_lost() | fn.col("standing").isNull() | (fn.col("deliveries") > 1) | fn.col("overtaken")
