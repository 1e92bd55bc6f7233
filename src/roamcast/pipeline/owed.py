"""What each client was owed: Spark's own evaluation of every filter on every notification."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as fn

from roamcast.pipeline.deliveries import place, stream
from roamcast.pipeline.matching import filter_table, matching_pairs, with_values
from roamcast.pipeline.names import Names
from roamcast.pipeline.subscriptions import standing


def owed(
    spark: SparkSession, published: DataFrame, names: Names, clock_error_s: float, unreadable: Observation
) -> DataFrame:
    """`stream`, `place` and `notifications` of what a client must or may get, and its `standing`.

    `unreadable` gets the count of notifications whose attributes cannot be read.
    """
    table = filter_table(names.subscriptions.column("filter").unique().to_pylist())
    numbered = names.with_publisher(spark, published).select(
        "run", "node", "sequence", "time", "publisher_id", "incarnation_rank", "number", "notifications",
        "attributes",
    )  # fmt: skip
    # Nothing that was not numbered was promised.
    valued = with_values(numbered.where(fn.col("number") > 0), table.names).drop("attributes")
    valued = valued.observe(unreadable, fn.count(fn.when(~fn.col("readable"), 1)).alias("rows"))
    held = spark.createDataFrame(names.subscriptions)
    pairs = matching_pairs(spark, valued.where("readable"), held, table)
    return pairs.select(
        stream().alias("stream"), place().alias("place"), "notifications",
        standing(clock_error_s).alias("standing"),
    ).where(fn.col("standing").isNotNull())  # fmt: skip
