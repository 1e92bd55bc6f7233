"""When each subscription was issued, settled, taken back and gone, from its rows alone."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

EDGES = ("issued", "settled", "ending", "ended")
"""What happens to a subscription, in order; each has a time, a node and a sequence, or none."""
PLACE = ("time", "node", "sequence")

MUST, MAY = 2, 1
"""How a notification stands to a subscription that it matches; the higher is the stronger."""


def subscriptions(changes: DataFrame) -> DataFrame:
    """Every subscription of every client, once for each time that it was issued.

    `changes` are the rows `subscribed` and `unsubscribed`, each once. The columns are the client's, the
    filter's, and a column for each edge and part of its place, such as `settled_time`.
    """
    key = ("run", "client", "filter")
    conditions = {
        "issued": _is("subscribed", "issued"),
        "settled": _is("subscribed", "settled"),
        "ending": _is("unsubscribed", "issued"),
        "ended": _is("unsubscribed", "settled"),
    }
    in_order = Window.partitionBy(*key).orderBy(*PLACE)
    edges = [fn.min(fn.when(conditions[edge], fn.struct(*PLACE))).alias(edge) for edge in EDGES]
    return (
        changes.withColumn("round", fn.sum(conditions["issued"].cast("int")).over(in_order))
        # What comes before the first was issued belongs to one that the log does not know.
        .where("round > 0")
        .groupBy(*key, "round")
        .agg(*edges)
        .select(*key, *(fn.col(f"{edge}.{part}").alias(f"{edge}_{part}") for edge in EDGES for part in PLACE))
    )


def _is(kind: str, reason: str) -> Column:
    return (fn.col("kind") == kind) & (fn.col("reason") == reason)


def standing(clock_error_s: float) -> Column:
    """MUST, MAY or null: whether the subscription of a pair entitles its client to the notification.

    Between two rows of one node their sequence tells which was first; between nodes their times do,
    as far as clocks can be trusted. What is not certainly before or after may be either.
    """
    owed = _is_after("settled", clock_error_s) & (
        fn.col("ending_time").isNull() | _is_before("ending", clock_error_s)
    )
    possible = ~_is_before("issued", clock_error_s) & (
        fn.col("ended_time").isNull() | ~_is_after("ended", clock_error_s)
    )
    return fn.when(fn.coalesce(owed, fn.lit(False)), MUST).when(possible, MAY)


def _is_after(edge: str, clock_error_s: float) -> Column:
    """Whether the notification was published after that."""
    by_sequence = fn.col("sequence") > fn.col(f"{edge}_sequence")
    by_time = fn.col("time") > fn.col(f"{edge}_time") + clock_error_s
    return fn.when(_is_same_node(edge), by_sequence).otherwise(by_time)


def _is_before(edge: str, clock_error_s: float) -> Column:
    by_sequence = fn.col("sequence") < fn.col(f"{edge}_sequence")
    by_time = fn.col("time") < fn.col(f"{edge}_time") - clock_error_s
    return fn.when(_is_same_node(edge), by_sequence).otherwise(by_time)


def _is_same_node(edge: str) -> Column:
    return fn.col("node") == fn.col(f"{edge}_node")
