"""The figures of a log: every measure by run, and over the runs of a group with a confidence interval.

The runs of one mobility protocol are a group. Percentiles are those of all its samples; the 95 % interval is
that of the mean over its runs, because the samples of one run depend on each other and runs do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from roamcast.models.intervals import mean_interval
from roamcast.pipeline.audit import audit, protocol_of
from roamcast.pipeline.audit_sql import CLIENT
from roamcast.pipeline.measures import Measure, all_measures, handoffs
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

PERCENTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
ACCURACY = 10_000
"""Percentiles of a million samples are off by at most a hundred positions; percentiles of fewer samples are
exact.
"""
SHARES = {
    "delivery_rate": ("share", "of what was owed, what came"),
    "loss": ("share", "of what was owed, what never came"),
    "duplication": ("share", "of what came, what had come before"),
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
