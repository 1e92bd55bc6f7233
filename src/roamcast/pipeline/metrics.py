"""The figures of a log: every measure by run, and over the runs of a group with a confidence interval.

The runs of one mobility protocol are a group. Percentiles are those of all its
samples; the 95 % interval is that of the mean over its runs, because the samples of
one run depend on each other and runs do not.

A measure is a function from the rows of a log to the columns `run` and `value`, with an exact description of
what it times or counts. Frequent rows (`forwarded`, `control`, `sent`) are in a log only if its run kept
them; without them the measures that need them have no samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from roamcast.models.intervals import mean_interval
from roamcast.pipeline.audit import audit, protocol_of
from roamcast.pipeline.audit_sql import CLIENT, LEFT
from roamcast.pipeline.output import results
from roamcast.pipeline.places import Place, rows_in
from roamcast.pipeline.spark_engine import (
    files_of,
    one_by_one,
    read_log,
    spark_engine,
    usable,
    without_repetitions,
)
from roamcast.pipeline.visits import is_handoff, visits

OVERHEAD = ("handoff", "transfer")
"""Causes of messages that mobility alone makes necessary."""
NOTIFICATION = ("run", "publisher", "incarnation", "number")


@dataclass(frozen=True)
class Measure:
    name: str
    unit: str
    what: str
    samples: Callable[[DataFrame], DataFrame]


def _named(value: Column) -> list[Column]:
    return [fn.col("run"), value.cast("double").alias("value")]


def _per_run(table: DataFrame, value: Column) -> DataFrame:
    return table.groupBy("run").agg(value.cast("double").alias("value"))


def durations(rows: DataFrame) -> DataFrame:
    """Duration of each run, from its first row to its last, in seconds."""
    return rows.groupBy("run").agg((fn.max("time") - fn.min("time")).alias("duration_s"))


def _per_second(counted: DataFrame, rows: DataFrame) -> DataFrame:
    """Divide counts (`run`, `value`) by the duration of their run."""
    lasted = durations(rows).where("duration_s > 0")
    return counted.join(lasted, "run").select(*_named(fn.col("value") / fn.col("duration_s")))


# --- handoffs ---


def handoffs(rows: DataFrame) -> DataFrame:
    return visits(usable(rows, "moved")).where("is_handoff")


def overhead_hops(rows: DataFrame) -> DataFrame:
    """Hops caused by mobility, per handoff, in runs in which clients moved."""
    moves = handoffs(rows).groupBy("run").agg(fn.count("*").alias("moves"))
    caused = usable(rows, "control").where(fn.col("cause").isin(*OVERHEAD))
    hops = caused.groupBy("run").agg(fn.sum("hops").alias("hops"))
    # A run without one message of any cause did not keep these rows.
    kept = usable(rows, "control").select("run").distinct()
    known = moves.join(kept, "run").join(hops, "run", "left").na.fill(0)
    return known.select(*_named(fn.col("hops") / fn.col("moves")))


def delays(rows: DataFrame, begins: Column, ends: Column, key: tuple[str, ...], *order: str) -> DataFrame:
    """Time from each starting row to the next row in order, if that is an ending row."""
    in_order = Window.partitionBy(*key).orderBy(*order)
    begun_at = fn.lag(fn.when(begins, fn.col("time"))).over(in_order)
    return rows.select("*", begun_at.alias("begun_at")).where(ends & fn.col("begun_at").isNotNull())


def handoff_delay(rows: DataFrame) -> DataFrame:
    """From attaching at another broker to the first notification, if that was published before.

    If it was published only afterwards, nothing waited (or what waited was lost), and the time says
    nothing about the handoff.
    """
    # A client's own rows are in the order of their sequence.
    told = usable(rows, "moved", "delivered").where("node = client")
    first = delays(told, is_handoff(), fn.col("kind") == "delivered", ("run", "node"), "sequence")
    return first.where("published_at <= begun_at").select(*_named(fn.col("time") - fn.col("begun_at")))


def move_in_delay(rows: DataFrame) -> DataFrame:
    """Time from attaching at another broker until the client's session is there."""
    told = usable(rows, "moved", "attached").where("node = client")
    heard = delays(told, is_handoff(), fn.col("kind") == "attached", ("run", "node"), "sequence")
    return heard.select(*_named(fn.col("time") - fn.col("begun_at")))


def move_out_delay(rows: DataFrame) -> DataFrame:
    """Time from leaving until the old broker knows."""
    is_left = (fn.col("kind") == "moved") & (fn.col("reason") == LEFT)
    events = usable(rows, "moved", "detached").where(is_left | (fn.col("kind") == "detached"))
    ordered = events.withColumn("is_end", fn.col("kind") == "detached")
    known = delays(ordered, is_left, fn.col("is_end"), ("run", "client", "broker"), "time", "is_end")
    return known.select(*_named(fn.col("time") - fn.col("begun_at")))


# --- notifications ---


def latency(rows: DataFrame) -> DataFrame:
    """Time from publishing to delivery, including the time that a subscriber was away."""
    came = usable(rows, "delivered").where("published_at is not null")
    return one_by_one(came).select(*_named(fn.col("time") - fn.col("published_at")))


def processing(rows: DataFrame) -> DataFrame:
    """Time from publishing until the first broker has forwarded it."""
    sent = usable(rows, "forwarded").select(
        *NOTIFICATION, "notifications", "node", fn.col("time").alias("sent_at")
    )
    first = one_by_one(sent).groupBy(*NOTIFICATION, "node").agg(fn.min("sent_at").alias("sent_at"))
    published = one_by_one(usable(rows, "published")).select(*NOTIFICATION, "node", "time")
    return published.join(first, [*NOTIFICATION, "node"]).select(*_named(fn.col("sent_at") - fn.col("time")))


def hop_time(rows: DataFrame) -> DataFrame:
    """Time from one broker's forwarding to the next one's: a link and the work at its end."""
    crossed = one_by_one(usable(rows, "forwarded")).select(*NOTIFICATION, "node", "peer", "time")
    onward = crossed.groupBy(*NOTIFICATION, fn.col("node").alias("peer")).agg(
        fn.min("time").alias("onward_at")
    )
    both = crossed.join(onward, [*NOTIFICATION, "peer"]).where("onward_at >= time")
    return both.select(*_named(fn.col("onward_at") - fn.col("time")))


def hops(rows: DataFrame) -> DataFrame:
    """Links that a notification went over, to all of its subscribers together."""
    crossed = usable(rows, "forwarded").select(*NOTIFICATION, "notifications")
    links = one_by_one(crossed).groupBy(*NOTIFICATION).agg(fn.count("*").alias("links"))
    published = one_by_one(usable(rows, "published")).select(*NOTIFICATION)
    kept = usable(rows, "forwarded").select("run").distinct()
    each = published.join(kept, "run").join(links, list(NOTIFICATION), "left").na.fill(0)
    return each.select(*_named(fn.col("links")))


# --- traffic ---


def subscriber_throughput(rows: DataFrame) -> DataFrame:
    """Notifications that all subscribers together received, by second (Gaddah 4.4.2)."""
    return _per_second(_per_run(usable(rows, "delivered"), fn.sum("notifications")), rows)


def broker_throughput(rows: DataFrame) -> DataFrame:
    """Notifications that subscribers received from one broker, by second; a sample for each broker."""
    counted = usable(rows, "delivered").where("broker is not null").groupBy("run", "broker")
    return _per_second(counted.agg(fn.sum("notifications").alias("value")), rows)


def messages(rows: DataFrame) -> DataFrame:
    """Messages that one broker sent over its links, by second; a sample for each broker."""
    counted = usable(rows, "forwarded", "control").groupBy("run", "node")
    return _per_second(counted.agg(fn.count("*").alias("value")), rows)


def table_size(rows: DataFrame) -> DataFrame:
    """Largest number of subscriptions of the clients at one broker; a sample for each broker."""
    changes = usable(rows, "subscribed", "unsubscribed").where("reason = 'issued' and broker is not null")
    begun = changes.where("kind = 'subscribed'").groupBy("run", "client").agg(fn.count("*").alias("held"))
    places = visits(usable(rows, "moved")).select("run", "client", "broker", "attached_at", "until")
    stays = places.join(begun, ["run", "client"])
    steps = stays.select("run", "broker", fn.col("attached_at").alias("time"), "held").unionByName(
        stays.where("until is not null").select(
            "run", "broker", fn.col("until").alias("time"), (-fn.col("held")).alias("held")
        )
    )
    so_far = Window.partitionBy("run", "broker").orderBy("time", "held")
    there = steps.withColumn("there", fn.sum("held").over(so_far))
    return there.groupBy("run", "broker").agg(fn.max("there").alias("most")).select(*_named(fn.col("most")))


# --- the neighbour graph that the moves would have built (Gaddah 3.3.2, equations 3.5 and 3.6) ---


def _edges(rows: DataFrame, timeout_s: float) -> DataFrame:
    """Every handoff with its edge, whether it had to be inserted, and when it fell out of use."""
    moved = handoffs(rows).select(
        "run",
        fn.sort_array(fn.array("came_from", "broker")).alias("edge"),
        fn.col("attached_at").alias("time"),
    )
    along = Window.partitionBy("run", "edge").orderBy("time")
    return moved.select(
        "run", "edge", "time",
        (fn.col("time") - fn.lag("time").over(along)).alias("since_s"),
        (fn.lead("time").over(along) - fn.col("time")).alias("until_next_s"),
    ).withColumns({
        "is_inserted": fn.col("since_s").isNull() | (fn.col("since_s") > timeout_s),
        "is_unused": fn.col("until_next_s") > timeout_s,
    })  # fmt: skip


def f_neg(timeout_s: float) -> Callable[[DataFrame], DataFrame]:
    """Share of handoffs over an edge that the neighbour graph did not have."""

    def samples(rows: DataFrame) -> DataFrame:
        return _per_run(_edges(rows, timeout_s), fn.avg(fn.col("is_inserted").cast("int")))

    return samples


def f_pos(timeout_s: float) -> Callable[[DataFrame], DataFrame]:
    """Share of the time of all edges that edges spent unused before their removal."""

    def samples(rows: DataFrame) -> DataFrame:
        ends = rows.groupBy("run").agg(fn.max("time").alias("end_s"))
        used = _edges(rows, timeout_s).join(ends, "run")
        to_the_end = fn.col("end_s") - fn.col("time")
        is_unused = fn.coalesce("is_unused", to_the_end > timeout_s)
        stood_s = fn.when(is_unused, timeout_s).otherwise(fn.coalesce("until_next_s", to_the_end))
        wasted_s = fn.sum(fn.when(is_unused, timeout_s).otherwise(0.0))
        shares = used.groupBy("run").agg(wasted_s.alias("wasted_s"), fn.sum(stood_s).alias("stood_s"))
        return shares.where("stood_s > 0").select(*_named(fn.col("wasted_s") / fn.col("stood_s")))

    return samples


def all_measures(neighbour_timeout_s: float) -> list[Measure]:
    """Return all measures in the order in which they are shown."""
    return [
        Measure("overhead_per_handoff", "hops", "hops caused by mobility, for each handoff", overhead_hops),
        Measure("handoff_delay", "s", "from attaching to the first notification that waited", handoff_delay),
        Measure("move_in_delay", "s", "from attaching until the session is there", move_in_delay),
        Measure("move_out_delay", "s", "from leaving until the broker knows", move_out_delay),
        Measure("latency", "s", "from published to delivered", latency),
        Measure("processing", "s", "from published to sent on by the first broker", processing),
        Measure("hop_time", "s", "over a link and through the broker behind it", hop_time),
        Measure("hops", "links", "links that a notification crossed", hops),
        Measure("subscriber_throughput", "1/s", "notifications that all received", subscriber_throughput),
        Measure("broker_throughput", "1/s", "notifications delivered by one broker", broker_throughput),
        Measure("messages", "1/s", "messages that one broker sent to peers", messages),
        Measure("table_size", "subscriptions", "subscriptions at one broker, at most", table_size),
        Measure("f_neg", "share", "handoffs over unknown edges", f_neg(neighbour_timeout_s)),
        Measure("f_pos", "share", "time of edges that served nobody", f_pos(neighbour_timeout_s)),
    ]


PERCENTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
ACCURACY = 10_000
"""Accuracy of percentiles: with a million samples they are wrong by at most a hundred positions; with few
samples they are exact.
"""
SHARES = {
    "delivery_rate": ("share", "share of owed deliveries that were made"),
    "loss": ("share", "share of owed deliveries that were never made"),
    "duplication": ("share", "share of deliveries that were duplicates"),
}
"""Measures that follow from the audit of a run."""


def metrics(
    spark: SparkSession,
    log: Place,
    out: Place,
    *,
    neighbour_timeout_s: float = 3600.0,
    clock_error_s: float = 0.0,
) -> dict[str, Any]:
    """Measure a log; write tables to `out`, and return the figures, which are also in `out/metrics.json`."""
    files = files_of(spark, log, out)
    rows, count = read_log(spark, log), rows_in(log, files)
    with results(out, files) as output:
        made = output.folder
        with spark_engine(rows, output, count) as engine:
            audited = audit(engine, made / "audit", clock_error_s)
        rows = without_repetitions(rows) if audited["repeated_rows"] else rows
        measures = all_measures(neighbour_timeout_s)
        about = {one.name: (one.unit, one.what) for one in measures} | SHARES
        pooled, by_run = _summaries(spark, _samples(rows, measures), made / "audit")
        figures = {
            **{name: audited[name] for name in ("runs", "records", "clients", "handoffs")},
            "groups": _groups(pooled, by_run, about),
        }
        pq.write_table(by_run, made / "by_run.parquet")
        _traces(spark, rows, made / "audit" / "findings").write.parquet(output.url("traces"))
        (made / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


def _samples(rows: DataFrame, measures: Iterable[Measure]) -> DataFrame:
    """Return all samples of all measures: `run`, `measure` and `value`."""
    samples = (one.samples(rows).withColumn("measure", fn.lit(one.name)) for one in measures)
    return reduce(DataFrame.unionByName, samples)


def _summaries(spark: SparkSession, samples: DataFrame, audit: Path) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the samples of each group together, and the mean of each run."""
    runs = pq.read_table(audit / "nodes.parquet", columns=["run"]).column("run").unique().to_pylist()
    named = [(run, protocol_of(run)) for run in runs if run is not None]
    groups = fn.broadcast(spark.createDataFrame(named, "run string, group string"))
    shares = spark.createDataFrame(_shares(audit))
    samples = samples.unionByName(shares).where("value is not null").persist(StorageLevel.DISK_ONLY)
    try:
        count = fn.count("*").alias("samples")
        means = samples.groupBy("run", "measure").agg(count, fn.avg("value").alias("mean"))
        by_run = means.orderBy("run", "measure").toArrow()
        percentiles = fn.percentile_approx("value", list(PERCENTILES), ACCURACY).alias("percentiles")
        ends = (fn.min("value").alias("least"), fn.max("value").alias("most"))
        pooled = samples.join(groups, "run").groupBy("group", "measure").agg(count, percentiles, *ends)
        return pooled.toArrow().to_pylist(), by_run
    finally:
        samples.unpersist()


def _shares(audit: Path) -> pa.Table:
    """Return the measures that follow from the audit of each run, as samples."""
    clients = pq.read_table(audit / "clients.parquet")
    counts = ("expected", "delivered", "lost", "duplicates")
    totals = clients.group_by("run").aggregate([(name, "sum") for name in counts]).to_pylist()
    rows = []
    for total in totals:
        expected, delivered, lost, duplicates = (total[f"{name}_sum"] for name in counts)
        if expected:
            rows.append((total["run"], "delivery_rate", (expected - lost) / expected))
            rows.append((total["run"], "loss", lost / expected))
        if delivered:
            rows.append((total["run"], "duplication", duplicates / delivered))
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    types = (pa.string(), pa.string(), pa.float64())
    return pa.table([*map(pa.array, columns, types)], names=["run", "measure", "value"])


def _groups(
    pooled: list[dict[str, Any]], by_run: pa.Table, about: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by group and measure, its figures, in the order of the measures."""
    means: dict[tuple[str, str], list[float]] = {}
    for row in by_run.to_pylist():
        means.setdefault((protocol_of(row["run"]), row["measure"]), []).append(row["mean"])
    found = {(row["group"], row["measure"]): row for row in pooled}
    return {
        group: {
            name: _figures(found[group, name], means[group, name], *about[name])
            for name in about
            if (group, name) in found
        }
        for group in sorted({group for group, _ in found})
    }


def _figures(pooled: Mapping[str, Any], means: list[float], unit: str, what: str) -> dict[str, Any]:
    low, high = mean_interval(means) if len(means) > 1 else (None, None)
    percentiles = zip(PERCENTILES, pooled["percentiles"], strict=True)
    return {
        "what": what,
        "unit": unit,
        "runs": len(means),
        "samples": pooled["samples"],
        "mean": fmean(means),
        "low": low,
        "high": high,
        "least": pooled["least"],
        **{f"p{round(100 * share):02d}": value for share, value in percentiles},
        "most": pooled["most"],
    }


def _traces(spark: SparkSession, rows: DataFrame, findings: Path) -> DataFrame:
    """Return publish and arrival times of every notification for a client that moved; no arrival if it was
    lost."""
    roaming = handoffs(rows).select(*CLIENT).distinct()
    identity = [*CLIENT, "publisher", "incarnation", "number"]
    came = one_by_one(usable(rows, "delivered")).select(
        *identity, "published_at", fn.col("time").alias("arrived_at"), "broker"
    )
    lost = spark.createDataFrame(pq.read_table(findings, filters=[("kind", "=", "lost")]))
    never = lost.select(
        *identity,
        "published_at",
        fn.lit(None).cast("double").alias("arrived_at"),
        fn.lit(None).cast("string").alias("broker"),
    )
    return came.unionByName(never).join(roaming, list(CLIENT), "leftsemi")
