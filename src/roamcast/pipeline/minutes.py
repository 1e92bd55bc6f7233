"""Counts owed, delivered, duplicate and lost notifications, and handoff delays, by the minute.

Rows of a running network arrive in pieces, and out of order. They wait until the watermark has passed their
minute (no row more than `late` older than the newest is expected any more), and are then judged once: a
publish opens a balance for each subscriber, and its delivery settles the balance. A delivery after its minute
was closed corrects that minute: a subscriber may be away for hours, and what it receives then was not lost.

Only clients with their own records are judged: the deliveries of others are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from roamcast.pipeline.audit_sql import MUST, standing, subscriptions
from roamcast.pipeline.engines import SPARK
from roamcast.pipeline.matching import filter_table, problem_of_filter
from roamcast.pipeline.metrics import delays
from roamcast.pipeline.places import spark_schema
from roamcast.pipeline.spark_engine import (
    OWN_WORD,
    matching_pairs,
    one_by_one,
    usable,
    with_values,
    without_repetitions,
)
from roamcast.pipeline.visits import is_handoff

MINUTE_S = 60
KINDS = (
    "published", "delivered", "moved", "attached", "subscribed", "unsubscribed",
    "handoff_started", "handoff_finished",
)  # fmt: skip
"""Kinds of rows that the minutes are computed from."""
CHANGES = ("subscribed", "unsubscribed")
STEPS = ("moved", "attached", "handoff_started", "handoff_finished")

CLIENT = ["run", "client"]
NOTIFICATION = [*CLIENT, "publisher", "incarnation", "number"]
OF_CLIENT, OF_BROKER = ("run", "node"), ("run", "node", "client")
"""Keys of rows that follow each other: those of a client, and those of a broker about one client."""
COUNTS = ("expected", "delivered", "served", "duplicates", "unexpected")
DELAYS = ("handoff_delay", "transfer")

BALANCES = (
    "run string, client string, publisher string, incarnation bigint, number bigint, minute bigint,"
    " standing int, deliveries bigint"
)
MINUTES = "run string, minute bigint, " + ", ".join(f"{name} bigint" for name in COUNTS)
SAMPLES = "run string, minute bigint, measure string, value double"
FIGURES = {"count": "bigint", "mean_s": "double", "p95_s": "double", "max_s": "double"}
SHOWN = (
    "run string, minute timestamp, expected bigint, delivered bigint, lost bigint, duplicates bigint,"
    " unexpected bigint, "
    + ", ".join(f"{name}_{figure} {kind}" for name in DELAYS for figure, kind in FIGURES.items())
)
SEEN = "run string, node string, block bigint, bits bigint, newest double"
BLOCK = ["run", "node", "block"]


@dataclass(frozen=True)
class MinutesState:
    """State passed from one batch to the next."""

    open: DataFrame
    """Rows of minutes that are not closed."""
    changes: DataFrame
    """Rows about subscriptions, and about which clients keep records."""
    steps: DataFrame
    """The last step of each client and of each handoff, which later rows may complete."""
    balances: DataFrame
    """Notifications that a client must or may receive, and how often it did."""
    minutes: DataFrame
    samples: DataFrame
    """Durations of handoffs."""
    frozen: DataFrame
    """Minutes so old that nothing can correct them, as they are shown."""
    seen: DataFrame
    """Rows already seen: one bit each for every 64 rows of a node, and the time of the newest."""


NAMES = tuple(field.name for field in fields(MinutesState))


def empty_state(spark: SparkSession) -> MinutesState:
    schemas = [spark_schema()] * 3 + [BALANCES, MINUTES, SAMPLES, SHOWN, SEEN]
    return MinutesState(*(spark.createDataFrame([], schema) for schema in schemas))


def minute_of(time: Column) -> Column:
    return (fn.floor(time / MINUTE_S) * MINUTE_S).cast("long")


def close(
    spark: SparkSession,
    state: MinutesState,
    rows: DataFrame,
    until_s: int,
    *,
    forget_s: float,
    clock_error_s: float,
) -> tuple[MinutesState, list[DataFrame]]:
    """Judge all rows before `until_s` that were not judged yet, and keep the others.

    Returns the new state, and the data to keep until that is written.
    """
    fresh = _fresh(rows, state.seen).persist()
    rows = state.open.unionByName(fresh)
    ripe = rows.where(fn.col("time") < until_s)
    changes = without_repetitions(_kept_changes(state.changes.unionByName(ripe)))
    told = changes.where(OWN_WORD).select(*CLIENT).distinct()
    owed = _owed(spark, ripe, changes, clock_error_s).join(told, CLIENT, "leftsemi")
    came = _came(ripe)
    judged = _judged(state.balances, owed, came).persist()
    steps = state.steps.unionByName(ripe.where(fn.col("kind").isin(*STEPS, "delivered")))
    oldest_s = int(until_s - forget_s) // MINUTE_S * MINUTE_S
    is_kept = fn.col("minute") >= oldest_s
    minutes = _open_minutes(state.frozen, _summed(state.minutes, judged))
    samples = _open_minutes(state.frozen, state.samples.unionByName(_delays(steps)))
    after = MinutesState(
        open=rows.where(fn.col("time") >= until_s),
        changes=_needed(spark, changes, oldest_s),
        steps=_last_steps(steps),
        balances=_balances(judged).where(is_kept),
        minutes=minutes.where(is_kept),
        samples=samples.where(is_kept),
        frozen=state.frozen.unionByName(_figures(minutes.where(~is_kept), samples.where(~is_kept))),
        seen=_seen(state.seen, fresh).where(fn.coalesce("newest", fn.lit(oldest_s)) >= oldest_s),
    )
    return after, [fresh, judged]


def _open_minutes(frozen: DataFrame, of_minutes: DataFrame) -> DataFrame:
    """Return open minutes, without rows that would correct frozen minutes: those of the run up to its last
    one.
    """
    last = frozen.groupBy("run").agg(fn.max(fn.unix_seconds("minute")).alias("frozen_until"))
    return (
        of_minutes.join(last, "run", "left")
        .where("minute > coalesce(frozen_until, minute - 1)")
        .drop("frozen_until")
    )


# --- rows that come again ---


def _bit() -> Column:
    return fn.expr("shiftleft(1L, cast(pmod(sequence, 64) as int))")


def _fresh(rows: DataFrame, seen: DataFrame) -> DataFrame:
    """Return new rows, each once."""
    told_apart = without_repetitions(usable(rows, *KINDS)).withColumn("block", fn.shiftright("sequence", 6))
    known = told_apart.join(seen, BLOCK, "left")
    is_new = fn.col("bits").isNull() | (fn.col("bits").bitwiseAND(_bit()) == 0)
    return known.where(is_new).select(*spark_schema().names)


def _seen(seen: DataFrame, fresh: DataFrame) -> DataFrame:
    block = fn.shiftright("sequence", 6).alias("block")
    new = fresh.select("run", "node", block, _bit().alias("bits"), fn.col("time").alias("newest"))
    bits, newest = fn.bit_or("bits").alias("bits"), fn.max("newest").alias("newest")
    return seen.unionByName(new).groupBy(*BLOCK).agg(bits, newest)


# --- what is owed and what came ---


def _kept_changes(rows: DataFrame) -> DataFrame:
    """Return subscriptions, and one row of each client that keeps records."""
    changes = rows.where(fn.col("kind").isin(*CHANGES))
    own = rows.where(f"{OWN_WORD} and kind in ('moved', 'attached', 'delivered')")
    return changes.unionByName(_first(own, CLIENT, "time", "sequence"))


def _held(spark: SparkSession, changes: DataFrame) -> DataFrame:
    return spark.sql(subscriptions(SPARK, "{changes}"), changes=changes.where(fn.col("kind").isin(*CHANGES)))


def _needed(spark: SparkSession, changes: DataFrame, oldest_s: int) -> DataFrame:
    """Drop subscriptions that ended so long ago that no minute can be corrected for them."""
    gone = _held(spark, changes).where(fn.col("ended_time") < oldest_s).alias("gone")
    # What was subscribed to again at that very moment belongs to what follows.
    over = fn.expr(
        "time >= issued_time AND (time < ended_time OR time = ended_time AND kind = 'unsubscribed')"
    )
    same = [changes[name] == gone[name] for name in (*CLIENT, "filter")]
    return changes.join(gone, reduce(Column.__and__, same, over), "left_anti")


def _first(rows: DataFrame, key: Sequence[str], *order: str | Column) -> DataFrame:
    """Return the first row of each key."""
    in_order = Window.partitionBy(*key).orderBy(*order)
    return rows.withColumn("place", fn.row_number().over(in_order)).where("place = 1").drop("place")


def _owed(spark: SparkSession, ripe: DataFrame, changes: DataFrame, clock_error_s: float) -> DataFrame:
    """Return each notification that a client must or may get, once."""
    held = _held(spark, changes)
    texts = [row.filter for row in held.select("filter").distinct().collect()]
    table = filter_table(text for text in texts if not problem_of_filter(text))
    # Nothing that was not numbered was promised.
    published = ripe.where("kind = 'published' and number > 0").select(
        "run", "node", "sequence", "time", "publisher", "incarnation", "number", "notifications", "attributes"
    )
    valued = with_values(published, table.values).drop("attributes").where("readable")
    pairs = matching_pairs(spark, valued, held, table)
    pairs = pairs.withColumn("standing", fn.expr(standing(clock_error_s, "false")))
    each = one_by_one(pairs.where("standing is not null"))
    minute = fn.min(minute_of(fn.col("time"))).alias("minute")
    return each.groupBy(*NOTIFICATION).agg(minute, fn.max("standing").alias("standing"))


def _came(ripe: DataFrame) -> DataFrame:
    """Return how often each notification reached a client, by the client's own records."""
    delivered = ripe.where(f"kind = 'delivered' and {OWN_WORD} and number > 0")
    minute = fn.min(minute_of(fn.col("time"))).alias("came_in")
    return one_by_one(delivered).groupBy(*NOTIFICATION).agg(fn.count("*").alias("came"), minute)


def _judged(balances: DataFrame, owed: DataFrame, came: DataFrame) -> DataFrame:
    """Combine old and new balances with arrivals; arrivals without a balance have no standing."""
    opened = owed.select(*NOTIFICATION, "minute", "standing", fn.lit(0).cast("long").alias("deliveries"))
    # The same rows may be published twice: in a file that came late, after its minute was judged.
    is_new = fn.lit(True).alias("is_new")
    known = balances.select("*", (~is_new).alias("is_new")).unionByName(opened.select("*", is_new))
    once = _first(known, NOTIFICATION, "is_new")
    return once.join(came, NOTIFICATION, "full").na.fill(0, ["came", "deliveries"])


def _balances(judged: DataFrame) -> DataFrame:
    settled = judged.where("standing is not null")
    return settled.select(
        *NOTIFICATION, "minute", "standing", (fn.col("deliveries") + fn.col("came")).alias("deliveries")
    )


def _summed(minutes: DataFrame, judged: DataFrame) -> DataFrame:
    """Add the new counts to the minutes; an owed notification counts for the minute in which it was
    published."""
    is_owed, is_must = fn.col("standing").isNotNull(), fn.col("standing") == MUST
    had, got = fn.col("deliveries"), fn.col("came")
    again = fn.greatest(had + got - 1, fn.lit(0)) - fn.greatest(had - 1, fn.lit(0))
    new = judged.select(
        "run",
        fn.coalesce("minute", "came_in").alias("minute"),
        fn.when(is_must & fn.col("is_new"), 1).otherwise(0).alias("expected"),
        got.alias("delivered"),
        fn.when(is_must & (had == 0) & (got > 0), 1).otherwise(0).alias("served"),
        fn.when(is_owed, again).otherwise(0).alias("duplicates"),
        fn.when(is_owed, 0).otherwise(got).alias("unexpected"),
    ).where(" or ".join(f"{name} > 0" for name in COUNTS))
    sums = [fn.sum(name).alias(name) for name in COUNTS]
    return minutes.unionByName(new).groupBy("run", "minute").agg(*sums)


# --- how long handoffs took ---


def _handoff_steps(steps: DataFrame) -> DataFrame:
    """Return moves and arrivals that clients recorded."""
    return steps.where(f"{OWN_WORD} and kind in ('moved', 'delivered')")


def _transfer_steps(steps: DataFrame) -> DataFrame:
    """Return the steps of session transfers that brokers recorded."""
    return steps.where("kind in ('handoff_started', 'handoff_finished')")


def _delays(steps: DataFrame) -> DataFrame:
    """Return samples: `handoff_delay` is the time from attaching elsewhere to the first notification that
    waited; `transfer` the time in which the new broker fetched the session.
    """
    kind = fn.col("kind")
    told, moved = _handoff_steps(steps), _transfer_steps(steps)
    first = delays(told, is_handoff(), kind == "delivered", OF_CLIENT, "sequence")
    waited = first.where("coalesce(published_at, begun_at) <= begun_at")
    begins, ends = kind == "handoff_started", kind == "handoff_finished"
    fetched = delays(moved, begins, ends, OF_BROKER, "sequence")
    parts = [
        part.select(
            "run",
            minute_of(fn.col("begun_at")).alias("minute"),
            fn.lit(name).alias("measure"),
            (fn.col("time") - fn.col("begun_at")).alias("value"),
        )
        for name, part in zip(DELAYS, (waited, fetched), strict=True)
    ]
    return reduce(DataFrame.unionByName, parts)


def _last_steps(steps: DataFrame) -> DataFrame:
    """Return handoffs that have begun and not ended, for the next batch."""
    last = [
        _first(part, key, fn.desc("sequence"))
        for part, key in ((_handoff_steps(steps), OF_CLIENT), (_transfer_steps(steps), OF_BROKER))
    ]
    return reduce(DataFrame.unionByName, last).where("kind in ('moved', 'handoff_started')")


# --- what is shown ---


def shown(state: MinutesState) -> DataFrame:
    """Return all minutes for people, with losses and delays."""
    return state.frozen.unionByName(_figures(state.minutes, state.samples))


def _figures(minutes: DataFrame, samples: DataFrame) -> DataFrame:
    columns = [fn.when(fn.col("measure") == name, fn.col("value")).alias(name) for name in DELAYS]
    delays = (
        samples.select("run", "minute", *columns)
        .groupBy("run", "minute")
        .agg(
            *(fn.count(name).alias(f"{name}_count") for name in DELAYS),
            *(fn.avg(name).alias(f"{name}_mean_s") for name in DELAYS),
            *(fn.percentile(name, 0.95).alias(f"{name}_p95_s") for name in DELAYS),
            *(fn.max(name).alias(f"{name}_max_s") for name in DELAYS),
        )
    )
    both = minutes.join(delays, ["run", "minute"], "full")
    both = both.na.fill(0, [*COUNTS, *(f"{name}_count" for name in DELAYS)])
    return both.select(
        "run",
        fn.timestamp_seconds("minute").alias("minute"),
        "expected",
        "delivered",
        (fn.col("expected") - fn.col("served")).alias("lost"),
        "duplicates",
        "unexpected",
        *(f"{name}_{figure}" for name in DELAYS for figure in FIGURES),
    )
