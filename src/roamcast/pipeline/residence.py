"""Residence times, hot spots, and the counts that a Markov chain needs."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from roamcast.models.residence import ExponentialTest, Stays, exponential_test

QUANTILES = [share / 200 for share in range(1, 200)] + [0.999]


def within(visits: DataFrame, from_s: float, until_s: float) -> DataFrame:
    """Return the part of the visits within a period; a visit that continues past its end stays open."""
    inside = visits.where((fn.col("attach_s") < until_s) & ~(fn.col("leave_s") <= from_s).eqNullSafe(True))
    return inside.select(
        "run", "client", "broker",
        fn.greatest("attach_s", fn.lit(from_s)).alias("attach_s"),
        fn.when(fn.col("leave_s") < until_s, fn.col("leave_s")).alias("leave_s"),
        fn.least(fn.coalesce("leave_s", fn.lit(until_s)), fn.lit(until_s)).alias("end_s"),
    )  # fmt: skip


def counted_stays(visits: DataFrame, from_s: float, until_s: float, handoff_s: float) -> dict[str, Stays]:
    """Return, for each broker, the time in each state of the chain, and the next states (figure 6.1).

    A client that attaches to another broker within `handoff_s` hands off; otherwise it is disconnected.
    """
    inside = within(visits, from_s, until_s)
    order = Window.partitionBy("run", "client").orderBy("attach_s")
    ended = inside.select(
        "*", fn.lead("broker").over(order).alias("next"), fn.lead("attach_s").over(order).alias("next_s")
    )
    gap = fn.greatest(fn.col("next_s") - fn.col("leave_s"), fn.lit(0.0))
    is_handoff = (fn.col("next") != fn.col("broker")) & (gap <= handoff_s)
    away = fn.when(fn.col("next").isNull() | fn.col("leave_s").isNull(), None).when(gap == 0, "connect")
    rows = (
        ended.select(
            "broker", "next", (fn.col("end_s") - fn.col("attach_s")).alias("stay_s"), gap.alias("gap_s"),
            away.when(is_handoff, "handoff").otherwise("disconnect").alias("away"),
        )
        .groupBy("broker", "away", "next")
        .agg(fn.sum("stay_s").alias("stay_s"), fn.sum("gap_s").alias("gap_s"), fn.count("*").alias("times"))
        .orderBy("broker", "away", "next")
        .collect()
    )  # fmt: skip
    stays: dict[str, Stays] = {}
    for row in rows:
        stay = stays.setdefault(row.broker, Stays())
        stay.total_s["connect"] += row.stay_s
        if row.away == "connect":
            stay.count("connect", "connect", row.next, row.times)
        elif row.away is not None:
            stay.total_s[row.away] += row.gap_s
            stay.count("connect", row.away, row.broker, row.times)
            stay.count(row.away, "connect", row.next, row.times)
    return stays


def presence_shares(visits: DataFrame, from_s: float, until_s: float) -> dict[str, float]:
    """Share of clients' attached time at each broker, by period."""
    inside = within(visits, from_s, until_s)
    spent = inside.groupBy("broker").agg(fn.sum(fn.col("end_s") - fn.col("attach_s")).alias("spent_s"))
    rows = {row.broker: row.spent_s for row in spent.orderBy("broker").collect()}
    total = sum(rows.values())
    return {broker: spent_s / total for broker, spent_s in rows.items()} if total else {}


# --- are the times exponential? ---


def residence_times(visits: DataFrame) -> DataFrame:
    """Return the durations of completed visits, by broker."""
    return visits.where("leave_s is not null").select(
        "broker", (fn.col("leave_s") - fn.col("attach_s")).alias("stay_s")
    )


def exponential_tests(times: DataFrame, samples_min: int) -> dict[str, ExponentialTest]:
    """Test each broker with enough visits; Spark computes Kolmogorov's distance."""
    by_broker = Window.partitionBy("broker")
    ranked = times.select(
        "broker", "stay_s",
        fn.count("*").over(by_broker).alias("samples"),
        fn.avg("stay_s").over(by_broker).alias("mean_s"),
        # Equal times make one step of the distribution: where it begins and where it ends.
        (fn.rank().over(by_broker.orderBy("stay_s")) - 1).alias("below"),
    ).withColumn("equal", fn.count("*").over(Window.partitionBy("broker", "stay_s")))  # fmt: skip
    fitted = 1 - fn.exp(-fn.col("stay_s") / fn.col("mean_s"))
    low, high = fn.col("below") / fn.col("samples"), (fn.col("below") + fn.col("equal")) / fn.col("samples")
    distance = fn.greatest(fn.abs(fitted - low), fn.abs(fitted - high))
    rows = (
        ranked.where(fn.col("samples") >= samples_min)
        .groupBy("broker", "samples")
        .agg(fn.max(distance).alias("distance"))
        .orderBy("broker")
        .collect()
    )
    return {row.broker: exponential_test(row.distance, row.samples) for row in rows}


def residence_summary(times: DataFrame) -> dict[str, object]:
    """Return a summary of all residence times; for an exponential distribution the variation is 1."""
    row = times.agg(
        fn.count("*").alias("visits"),
        fn.avg("stay_s").alias("mean_s"),
        fn.stddev("stay_s").alias("deviation_s"),
        fn.percentile_approx("stay_s", QUANTILES, 10_000).alias("quantiles_s"),
    ).collect()[0]
    if not row.visits:
        return {"visits": 0}
    quantiles = dict(zip(QUANTILES, row.quantiles_s, strict=True))
    return {
        "visits": row.visits,
        "mean_s": row.mean_s,
        "p50_s": quantiles[0.5],
        "p95_s": quantiles[0.95],
        "variation": (row.deviation_s or 0.0) / row.mean_s,
        "quantiles_s": [[share, value] for share, value in quantiles.items()],
    }


# --- hot spots ---


def hot_spots(visits: DataFrame, from_s: float, until_s: float) -> DataFrame:
    """Return brokers by the total time of clients there, with the maximum number of concurrent clients."""
    inside = within(visits, from_s, until_s)
    spent = inside.groupBy("broker").agg(
        fn.count("*").alias("visits"),
        fn.countDistinct("run", "client").alias("clients"),
        fn.sum(fn.col("end_s") - fn.col("attach_s")).alias("attached_s"),
    )
    return (
        spent.join(_most_at_once(inside), "broker")
        .withColumn("share", fn.col("attached_s") / fn.sum("attached_s").over(Window.partitionBy()))
        .orderBy(fn.desc("attached_s"), "broker")
    )


def _most_at_once(inside: DataFrame) -> DataFrame:
    changes = inside.select("run", "broker", fn.col("attach_s").alias("at_s"), fn.lit(1).alias("change"))
    changes = changes.unionByName(
        inside.select("run", "broker", fn.col("end_s").alias("at_s"), fn.lit(-1).alias("change"))
    )
    # Whoever leaves at a moment leaves before somebody else comes.
    order = Window.partitionBy("run", "broker").orderBy("at_s", "change")
    running = changes.select("broker", fn.sum("change").over(order).alias("at_once"))
    return running.groupBy("broker").agg(fn.max("at_once").alias("most_at_once"))
