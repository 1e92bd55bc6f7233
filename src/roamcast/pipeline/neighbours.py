"""Learns where clients go next from their moves: the neighbour graph (Gaddah 3.3), and its hit rates."""

from __future__ import annotations

from pyspark.sql import DataFrame, GroupedData, Window
from pyspark.sql import functions as fn

from roamcast.models.next_broker import Edge
from roamcast.pipeline.visits import Rows, map_groups

PRIOR_MOVES = 5
"""Weight of the first order in the second, in moves."""


def first_order(moves: DataFrame) -> DataFrame:
    """Count moves by present and next broker: number, probability, and time of the last one."""
    return _with_probability(moves.groupBy("here", "next"), ["here"])


def second_order(moves: DataFrame) -> DataFrame:
    """Count moves by previous, present and next broker."""
    known = moves.where("previous is not null")
    return _with_probability(known.groupBy("previous", "here", "next"), ["previous", "here"])


def _with_probability(groups: GroupedData, given: list[str]) -> DataFrame:
    counted = groups.agg(fn.count("*").alias("moves"), fn.max("at_s").alias("last_s"))
    total = fn.sum("moves").over(Window.partitionBy(*given))
    return counted.select("*", (fn.col("moves") / total).alias("probability"))


def edges(graph: DataFrame) -> list[Edge]:
    return [
        Edge(row.here, row.next, row.moves, row.last_s)
        for row in graph.select("here", "next", "moves", "last_s").orderBy("here", "next").collect()
    ]


# --- prediction ---


def before(moves: DataFrame, at_s: float) -> DataFrame:
    """Return the moves to learn from, which precede this time."""
    return moves.where(fn.col("at_s") < at_s)


def hit_rates(moves: DataFrame, at_s: float, k_max: int) -> list[dict[str, object]]:
    """Return how often the next broker was among the first k predictions, for moves from `at_s` on.

    `first` and `second` are learned from earlier moves only; `second` uses `first` where it has few moves
    with the same previous broker. `lru` continues to learn: it predicts each broker's last k used
    destinations. `busiest` predicts the brokers that were moved to most, from anywhere.
    """
    moves = moves.cache()
    learned = before(moves, at_s)
    first = _ranks(first_order(learned), ["here"], "first")
    second = _ranks(_smoothed(learned), ["previous", "here"], "second", by="score")
    known_ways = learned.where("previous is not null").select("previous", "here").distinct()
    busiest = _ranks(
        learned.groupBy("next").agg(fn.count("*").alias("moves")).withColumn("one", fn.lit(1)), ["one"],
        "busiest",
    ).drop("one")  # fmt: skip
    judged = (
        _lru_ranks(moves)
        .where(fn.col("at_s") >= at_s)
        .join(first, ["here", "next"], "left")
        .join(second, ["previous", "here", "next"], "left")
        .join(known_ways.withColumn("known", fn.lit(True)), ["previous", "here"], "left")
        .join(busiest, ["next"], "left")
        .withColumn("second", fn.when(fn.col("known"), fn.col("second")).otherwise(fn.col("first")))
    )
    models = ("first", "second", "lru", "busiest")
    shares = [
        fn.avg(fn.when(fn.col(model) <= k, 1.0).otherwise(0.0)).alias(f"{model}_{k}")
        for model in models
        for k in range(1, k_max + 1)
    ]
    row = judged.agg(fn.count("*").alias("moves"), *shares).collect()[0]
    moves.unpersist()
    if not row["moves"]:
        return []
    return [
        {"k": k, "moves": row["moves"], **{model: row[f"{model}_{k}"] for model in models}}
        for k in range(1, k_max + 1)
    ]


def _smoothed(learned: DataFrame) -> DataFrame:
    """Combine second and first order: as if each pair of brokers had begun with a few moves of the first
    order.
    """
    first = first_order(learned).select("here", "next", "probability")
    counted = second_order(learned).select("previous", "here", "next", "moves")
    ways = counted.groupBy("previous", "here").agg(fn.sum("moves").alias("total"))
    score = (fn.coalesce("moves", fn.lit(0)) + PRIOR_MOVES * fn.col("probability")) / (
        fn.col("total") + PRIOR_MOVES
    )
    return (
        ways.join(first, "here")
        .join(counted, ["previous", "here", "next"], "left")
        .select("previous", "here", "next", score.alias("score"))
    )


def _ranks(graph: DataFrame, given: list[str], name: str, by: str = "moves") -> DataFrame:
    order = Window.partitionBy(*given).orderBy(fn.desc(by), "next")
    return graph.select(*given, "next", fn.row_number().over(order).alias(name))


def _lru_ranks(moves: DataFrame) -> DataFrame:
    """Add, to each move, the position of the next broker in its broker's list of last used destinations."""
    # In a trace of snapshots many move at once. In which order must not depend on where they go.
    tie = fn.xxhash64("client").alias("tie")
    needed = moves.select("here", "previous", "next", "at_s", tie)
    schema = "here string, previous string, next string, at_s double, lru int"
    return map_groups(needed, ["at_s", "tie"], lru_of_broker, schema)


def lru_of_broker(rows: Rows) -> Rows:
    """Return the moves from one broker in order, each with the position of its destination in the list before
    it.
    """
    recent: list[str] = []
    for here, previous, target, at_s, _ in rows:
        place = recent.index(target) + 1 if target in recent else None
        if place is not None:
            del recent[place - 1]
        recent.insert(0, target)
        yield here, previous, target, at_s, place
