"""Everything that can be learned from visits, in one document: graph, predictions, chain, hot spots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, GroupedData, Window
from pyspark.sql import functions as fn

from roamcast.errors import InputError
from roamcast.models.ctmc import Forks, MeanTimes, neighbouring_chain, presence
from roamcast.models.mobility import Visit, evaluate
from roamcast.models.next_broker import Edge, bounded_graph, check_bounds, contexts_of, graph_document
from roamcast.models.residence import KINDS, Stays, fitted_chain, presence_error
from roamcast.pipeline.residence import (
    counted_stays,
    exponential_tests,
    hot_spots,
    presence_shares,
    residence_summary,
    residence_times,
)
from roamcast.pipeline.visits import Rows, map_groups, moves

HOT_SPOTS_MAX = 20
SHARES = tuple(part / 20 for part in range(1, 20))
"""Shares of stays; a model file holds the time within which each share of them ends."""
STAYS_ACCURACY = 1_000
EVALUATED_MAX = 1_000_000
SAMPLES_MIN = 30
"""Minimum visits of a broker for a test; with fewer it would hardly ever reject anything."""


@dataclass(frozen=True)
class ModelSettings:
    learn_share: float = 0.7
    """Share of the time to learn from; predictions are tested on the rest."""
    degree: int | None = 8
    """Maximum number of neighbours of a broker."""
    mass: float = 1.0
    """Total probability of the kept neighbours."""
    k_max: int = 8
    handoff_s: float = 60.0
    """Longest time between two brokers that counts as a handoff; longer ones count as disconnections."""
    evaluates: bool = False
    """Also judge models of higher order, by client and time of day, in this process."""

    def check(self) -> None:
        check_bounds(self.degree, self.mass)
        if not 0.0 < self.learn_share <= 1.0:
            raise InputError(f"--learn-share {self.learn_share}: valid is a number above 0, at most 1")
        if not 1 <= self.k_max <= 100:
            raise InputError(f"--k {self.k_max}: valid is 1 to 100")
        if not 0.0 <= self.handoff_s < float("inf"):
            raise InputError(f"--handoff {self.handoff_s}: valid is 0 seconds or more")


def learn(visits: DataFrame, settings: ModelSettings) -> dict[str, Any]:
    """Learn a model: `brokers` is what `proactive` loads, `about` describes its quality.

    The graph is learned from the first part of the time alone, so that the rest is unseen; with a share of 1
    it is learned from everything, and nothing is left for a test.
    """
    settings.check()
    visits = visits.cache()
    from_s, until_s = _span(visits)
    at_s = from_s + settings.learn_share * (until_s - from_s)
    all_moves = moves(visits)
    learned = before(all_moves, at_s if settings.learn_share < 1 else float("inf")).cache()
    first = edges(first_order(learned))
    if not first:
        raise InputError("no client moves from one broker to another in the training part of the data")
    graph = bounded_graph(first, at_s, settings.degree, settings.mass)
    about = {
        "from_s": from_s,
        "learned_until_s": at_s,
        "until_s": until_s,
        **_counts(visits),
        "moves_learned": sum(edge.moves for edge in first),
        "edges_learned": len(first),
        "edges_kept": sum(map(len, graph.values())),
        "hit_rates": hit_rates(all_moves, at_s, settings.k_max) if settings.learn_share < 1 else [],
        "residence": _residence(visits),
        "chain": fit_chain(visits, from_s, at_s, until_s, settings.handoff_s),
        "hot_spots": [
            row.asDict() for row in hot_spots(visits, from_s, until_s).limit(HOT_SPOTS_MAX).collect()
        ],
        **({"evaluation": _evaluation(visits, settings.learn_share)} if settings.evaluates else {}),
    }
    document = graph_document(graph, about, contexts=contexts(learned), stays=_stays(visits, at_s))
    learned.unpersist()
    visits.unpersist()
    return document


def _evaluation(visits: DataFrame, learn_share: float) -> dict[str, Any]:
    """Return the quality of models of higher order on the same visits; visits of different runs are kept
    apart.
    """
    rows = visits.select(fn.concat_ws("/", "run", "client"), "broker", "attach_s", "leave_s")
    if rows.count() > EVALUATED_MAX:
        raise InputError(f"--evaluate: more than {EVALUATED_MAX:,} visits; learn from a part of them")
    return evaluate([Visit(*row) for row in rows.collect()], learn_share)


def _span(visits: DataFrame) -> tuple[float, float]:
    row = visits.agg(
        fn.min("attach_s").alias("first"), fn.max(fn.coalesce("leave_s", "attach_s")).alias("last")
    ).collect()[0]
    if row.first is None:
        raise InputError("no client was attached anywhere: there is nothing to learn from")
    return row.first, row.last


def _counts(visits: DataFrame) -> dict[str, int]:
    clients, brokers = fn.countDistinct("run", "client"), fn.countDistinct("broker")
    row = visits.agg(fn.count("*"), clients, brokers).collect()[0]
    return dict(zip(("visits", "clients", "brokers"), row, strict=True))


def contexts(learned: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return where clients go that came from the same previous brokers."""
    rows = learned.groupBy("earlier", "previous", "here", "next").count().collect()
    return contexts_of({tuple(one for one in row[:4] if one is not None): row["count"] for row in rows})


def _stays(visits: DataFrame, at_s: float) -> dict[str, list[tuple[float, float]]]:
    """Return, for each broker, the times within which given shares of its completed stays ended."""
    times = residence_times(visits.where(fn.col("leave_s") < at_s))
    within = fn.percentile_approx("stay_s", list(SHARES), STAYS_ACCURACY).alias("within")
    rows = times.groupBy("broker").agg(within).orderBy("broker").collect()
    return {row.broker: list(zip(row.within, SHARES, strict=True)) for row in rows}


def _residence(visits: DataFrame) -> dict[str, Any]:
    times = residence_times(visits).cache()
    tests = exponential_tests(times, SAMPLES_MIN)
    together = exponential_tests(times.withColumn("broker", fn.lit("all")), SAMPLES_MIN)
    summary = residence_summary(times)
    times.unpersist()
    return {
        **summary,
        "exponential": together["all"]._asdict() if together else None,
        "brokers_tested": len(tests),
        "brokers_rejected": sum(test.rejected for test in tests.values()),
        "variation_exponential": 1.0,
    }


# --- the chain ---


def fit_chain(
    visits: DataFrame, from_s: float, at_s: float, until_s: float, handoff_s: float
) -> dict[str, Any]:
    """Compare the fitted chain and Gaddah's with the positions of clients in the later period."""
    stays = counted_stays(visits, from_s, at_s, handoff_s)
    later = presence_shares(visits, at_s, until_s) or presence_shares(visits, from_s, until_s)
    report: dict[str, Any] = {"brokers": {}, "error": {}}
    expected: dict[str, Mapping[str, float]] = {
        "learned time": presence_shares(visits, from_s, at_s),
    }
    for name, make in (("fitted chain", fitted_chain), ("even chain", even_chain)):
        try:
            expected[name] = presence(make(stays)).connect
        except InputError as error:
            report["note"] = f"{name}: {error}"
    report["mean_times_s"], report["forks"] = _means(stays)
    report["error"] = {name: presence_error(share, later) for name, share in expected.items()}
    report["brokers"] = {
        broker: {
            "measured": share,
            **{name: _normal(shares).get(broker, 0.0) for name, shares in expected.items()},
        }
        for broker, share in later.items()
    }
    return report


def _normal(shares: Mapping[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    return {broker: share / total for broker, share in shares.items()}


def _means(stays: Mapping[str, Stays]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return the mean time in each state, and how often a handoff follows."""
    left = {kind: _left(stays, kind) for kind in KINDS}
    mean = {
        kind: sum(stay.total_s[kind] for stay in stays.values()) / left[kind] if left[kind] else None
        for kind in KINDS
    }
    handoffs = sum(
        times for stay in stays.values() for key, times in stay.left.items()
        if key[0] == "connect" and key[1] != "disconnect"
    )  # fmt: skip
    elsewhere = sum(
        times for broker, stay in stays.items() for key, times in stay.left.items()
        if key[0] == "disconnect" and key[2] != broker
    )  # fmt: skip
    return mean, {
        "connect_to_handoff": handoffs / left["connect"] if left["connect"] else None,
        "disconnect_to_handoff": elsewhere / left["disconnect"] if left["disconnect"] else None,
    }


def _left(stays: Mapping[str, Stays], kind: str) -> int:
    return sum(times for stay in stays.values() for key, times in stay.left.items() if key[0] == kind)


def even_chain(stays: Mapping[str, Stays]) -> Any:
    """Return Gaddah's own chain (section 6.4): the same means and forks everywhere, next brokers equally
    likely.
    """
    mean, forks = _means(stays)
    kept = {state.broker for state in fitted_chain(stays).states if state.broker is not None}
    graph: dict[str, list[str]] = {broker: [] for broker in stays if broker in kept}
    for broker in graph:
        for _, _, target in stays[broker].left:
            if target in graph and target != broker and target not in graph[broker]:
                graph[broker].append(target)
    times = MeanTimes(mean["connect"] or 1.0, mean["disconnect"] or 1.0, mean["handoff"] or 1e-3)
    return neighbouring_chain(
        graph, times, Forks(forks["connect_to_handoff"] or 0.0, forks["disconnect_to_handoff"] or 0.0)
    )


# --- the neighbour graph (Gaddah 3.3), and its hit rates ---

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

    `first` and `second` are learned from earlier moves alone; `second` is mixed with `first` where it has
    seen few moves of a way. `lru` predicts the last k destinations used from each broker, and continues to
    learn. `busiest` predicts the most frequent destinations of all moves, whatever the present broker.
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
    """Mix the second order with the first, as if each way had begun with a few moves of the first order: so
    the second order counts where it has seen enough moves."""
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
    """Add to each move the position of its destination in its broker's list of last used destinations."""
    # In a trace of snapshots many move at once. In which order must not depend on where they go.
    tie = fn.xxhash64("client").alias("tie")
    needed = moves.select("here", "previous", "next", "at_s", tie)
    schema = "here string, previous string, next string, at_s double, lru int"
    return map_groups(needed, ["at_s", "tie"], lru_of_broker, schema)


def lru_of_broker(rows: Rows) -> Rows:
    """Return the moves from one broker in order, each with the position of its destination in the list before
    that move."""
    recent: list[str] = []
    for here, previous, target, at_s, _ in rows:
        place = recent.index(target) + 1 if target in recent else None
        if place is not None:
            del recent[place - 1]
        recent.insert(0, target)
        yield here, previous, target, at_s, place
