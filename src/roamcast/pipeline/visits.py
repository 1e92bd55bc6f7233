"""Where clients were: every visit of a client to a broker, by the client's own word."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

LEFT = "left"
"""The reason of a `moved` row that says: it went away."""


def visits(moved: DataFrame) -> DataFrame:
    """One row for each visit: `run`, `client`, `broker`, `came_from`, and when; from the `moved` rows.

    `left_at` is when the client left the broker before (null at the first), `attached_at` when it went
    to this one, `until` when it left that (null: it is there still). `handoff` counts the client's
    visits that began with a handoff, one that came from another broker; `is_handoff` tells which do.
    """
    steps = Window.partitionBy("run", "client").orderBy("time", "sequence")
    before = steps.rowsBetween(Window.unboundedPreceding, -1)
    is_left = fn.col("reason") == LEFT
    came_from = fn.when(fn.col("reason") != LEFT, fn.col("reason"))
    is_handoff = came_from.isNotNull() & (came_from != fn.col("broker"))
    return (
        moved.select(
            "run",
            "client",
            "broker",
            "node",
            "sequence",
            came_from.alias("came_from"),
            fn.max(fn.when(is_left, fn.col("time"))).over(before).alias("left_at"),
            fn.col("time").alias("attached_at"),
            fn.lead("time").over(steps).alias("until"),
            is_handoff.alias("is_handoff"),
            fn.sum(is_handoff.cast("int")).over(steps).alias("handoff"),
            fn.coalesce(is_left, fn.lit(False)).alias("is_left"),
        )
        .where(~fn.col("is_left"))
        .drop("is_left")
    )
