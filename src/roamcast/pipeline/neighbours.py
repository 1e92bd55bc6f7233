"""Where clients go next, learned from where they went: the neighbour graph (Gaddah 3.3) and its hits."""

from __future__ import annotations

from pyspark.sql import DataFrame, GroupedData, Window
from pyspark.sql import functions as fn

from roamcast.models.next_broker import Edge
from roamcast.pipeline.per_client import Rows, map_groups


def first_order(moves: DataFrame) -> DataFrame:
    """Where now, where next: how often, how probable, and when last."""
    return _with_probability(moves.groupBy("here", "next"), ["here"])


def second_order(moves: DataFrame) -> DataFrame:
    """Where from, where now, where next."""
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
    """What is learned from: nothing of what comes later."""
    return moves.where(fn.col("at_s") < at_s)


def hit_rates(moves: DataFrame, at_s: float, k_max: int) -> list[dict[str, object]]:
    """How often the next broker was among the first k that were predicted, for moves from `at_s` on.

    `first` and `second` know what happened before, and nothing of what they are tried on; `second`
    falls back to `first` where it has not seen that way. `lru` learns on: for each broker, the last k
    destinations that were used. `busiest` are the brokers that were moved to most, wherever one is.
    """
    moves = moves.cache()
    learned = before(moves, at_s)
    first = _ranks(first_order(learned), ["here"], "first")
    second = _ranks(second_order(learned), ["previous", "here"], "second")
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


def _ranks(graph: DataFrame, given: list[str], name: str) -> DataFrame:
    order = Window.partitionBy(*given).orderBy(fn.desc("moves"), "next")
    return graph.select(*given, "next", fn.row_number().over(order).alias(name))


def _lru_ranks(moves: DataFrame) -> DataFrame:
    """With each move, at which place its broker's list of last used destinations had the next one."""
    needed = moves.select("here", "previous", "next", "at_s")
    schema = "here string, previous string, next string, at_s double, lru int"
    return map_groups(needed, ["at_s", "next"], lru_of_broker, schema)


def lru_of_broker(rows: Rows) -> Rows:
    """The moves from one broker, in order, each with the place of its destination in the list before it."""
    recent: list[str] = []
    for here, previous, target, at_s in rows:
        place = recent.index(target) + 1 if target in recent else None
        if place is not None:
            del recent[place - 1]
        recent.insert(0, target)
        yield here, previous, target, at_s, place
