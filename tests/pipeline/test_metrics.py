"""The measures: against a plain reckoning of the same rows, and on moves made by hand."""

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import WriteLog

from roamcast.lab.demo import DemoSettings
from roamcast.lab.measure import Window
from roamcast.models.intervals import mean_interval
from roamcast.pipeline.metrics import f_neg, f_pos, handoff_delay, metrics, move_out_delay, table_size
from roamcast.pipeline.spark_engine import read_log
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.run import Run

pytestmark = pytest.mark.xdist_group("spark")

SCENARIO = DemoSettings(
    topology="grid:2", clients=10, mobile=0.5, connect_s=4.0, disconnect_s=2.0, duration_s=25.0
)
SEEDS = (1, 2)
RUNS = [f"{protocol}-{seed}" for protocol in ("none", "sub_unsub") for seed in SEEDS]


@dataclass
class Measured:
    figures: dict[str, Any]
    by_run: dict[str, dict[str, float]]
    out: Path
    runs: dict[str, tuple[Run, list[Row]]]


@pytest.fixture(scope="module")
def measured(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder, runs = tmp_path_factory.mktemp("metrics"), {}
    for name in RUNS:
        rows: list[Row] = []
        protocol, _, seed = name.partition("-")
        runs[name] = replace(SCENARIO, seed=int(seed)).scenario(protocol).run(rows.extend), rows
        with LogWriter(folder / "log" / name, name) as log:
            log.write(rows)
    figures = metrics(spark, folder / "log", folder / "out")
    by_run: dict[str, dict[str, float]] = defaultdict(dict)
    for row in pq.read_table(folder / "out" / "by_run.parquet").to_pylist():
        by_run[row["run"]][row["measure"]] = row["mean"]
    return Measured(figures, by_run, folder / "out", runs)


def reckoned(run: Run, rows: list[Row]) -> dict[str, float]:
    """The same measures, one row after the other."""
    duration_s = max(row.time for row in rows) - min(row.time for row in rows)
    window = Window(float("-inf"), float("inf"))
    window.observe(rows)
    delivered = [row for row in rows if row.kind == "delivered"]
    sent = [row for row in rows if row.kind in ("forwarded", "control")]
    published = sum(row.notifications or 0 for row in rows if row.kind == "published")
    by_broker: dict[str | None, int] = defaultdict(int)
    for row in delivered:
        by_broker[row.broker] += row.notifications or 0
    result = run.result
    return {
        "overhead_per_handoff": run.traffic.overhead_hops / result.handoffs,
        # Where nothing is kept for those who are away, nothing waits for them.
        **({"handoff_delay": fmean(window.delays_s)} if window.delays_s else {}),
        "move_in_delay": fmean(move_ins(rows)),
        "move_out_delay": 0.0,
        "latency": fmean(row.time - (row.published_at or 0) for row in delivered),
        "processing": 0.0,
        "hop_time": SCENARIO.scenario("none").network.link_delay.low_s,
        "hops": sum(row.hops or 0 for row in rows if row.kind == "forwarded") / published,
        "subscriber_throughput": result.delivered / duration_s,
        "broker_throughput": fmean(by_broker.values()) / duration_s,
        "messages": len(sent) / duration_s / len({row.node for row in sent}),
        "delivery_rate": 1 - result.lost / result.expected,
        "loss": result.lost / result.expected,
        "duplication": result.duplicates / result.delivered,
    }


def move_ins(rows: list[Row]) -> list[float]:
    begun: dict[str | None, float] = {}
    delays = []
    for row in rows:
        if row.kind == "moved":
            begun.pop(row.client, None)
            if row.reason not in (None, "left", row.broker):
                begun[row.client] = row.time
        elif row.kind == "attached" and row.node == row.client and row.client in begun:
            delays.append(row.time - begun.pop(row.client))
    return delays


@pytest.mark.parametrize("run", RUNS)
def test_every_measure_of_a_run_is_what_its_rows_say(measured: Measured, run: str) -> None:
    expected = reckoned(*measured.runs[run])
    found = {name: measured.by_run[run][name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-9)
    assert {"table_size", "f_neg", "f_pos"} | set(expected) == set(measured.by_run[run])


def test_a_group_has_the_mean_over_its_runs_and_how_sure_that_is(measured: Measured) -> None:
    assert list(measured.figures["groups"]) == ["none", "sub_unsub"]
    latency = measured.figures["groups"]["sub_unsub"]["latency"]
    means = [measured.by_run[f"sub_unsub-{seed}"]["latency"] for seed in SEEDS]
    assert latency["mean"] == pytest.approx(fmean(means))
    assert (latency["low"], latency["high"]) == pytest.approx(mean_interval(means))
    runs = [measured.runs[f"sub_unsub-{seed}"] for seed in SEEDS]
    samples = sorted(
        row.time - (row.published_at or 0) for _, rows in runs for row in rows if row.kind == "delivered"
    )
    assert (latency["runs"], latency["samples"]) == (len(SEEDS), len(samples))
    assert (latency["least"], latency["most"]) == pytest.approx((samples[0], samples[-1]))
    assert latency["p50"] == pytest.approx(samples[(len(samples) + 1) // 2 - 1])
    assert measured.figures["handoffs"] == sum(run.result.handoffs for run, _ in measured.runs.values())
    assert json.loads((measured.out / "metrics.json").read_text()) == measured.figures


def test_traces_tell_departure_and_arrival_of_those_who_moved(measured: Measured) -> None:
    traces = pq.read_table(measured.out / "traces").to_pylist()
    moved = {
        (name, row.client)
        for name, (_, rows) in measured.runs.items()
        for row in rows
        if row.kind == "moved" and row.reason not in (None, "left", row.broker)
    }
    assert {(row["run"], row["client"]) for row in traces} == moved
    assert all(row["arrived_at"] is None or row["arrived_at"] > row["published_at"] for row in traces)
    never = sum(row["arrived_at"] is None for row in traces if row["run"].startswith("none"))
    assert 0 < never <= sum(measured.runs[f"none-{seed}"][0].result.lost for seed in SEEDS)
    assert all(row["arrived_at"] for row in traces if row["run"].startswith("sub_unsub"))


# --- rows made by hand ---


def moves(*steps: tuple[float, str, str | None]) -> list[Row]:
    """Of one client: when, to which broker, and where it was before (or that it left)."""
    return [
        Row(number, time, "c", "moved", client="c", broker=broker, reason=reason)
        for number, (time, broker, reason) in enumerate(steps, start=1)
    ]


def values(samples: Any) -> list[float]:
    return sorted(row.value for row in samples.collect())


def test_the_neighbour_graph_that_moves_would_have_built(spark: SparkSession, write_log: WriteLog) -> None:
    steps = [(0.0, "a", None), (10.0, "b", "a"), (20.0, "a", "b"), (500.0, "b", "a"), (510.0, "c", "b")]
    end = Row(9, 700.0, "a", "started")
    rows = read_log(spark, write_log([*moves(*steps), end]))
    # Edge a-b is new at 10, known at 20, forgotten at 120 and new again at 500; b-c is new at 510.
    assert values(f_neg(100.0)(rows)) == pytest.approx([3 / 4])
    # It stood from 10 to 120 (of which 100 s for nothing), from 500 to 600 and, b-c, from 510 to 610.
    assert values(f_pos(100.0)(rows)) == pytest.approx([300 / 310])


def test_what_came_later_says_nothing_about_a_handoff(spark: SparkSession, write_log: WriteLog) -> None:
    def delivered(sequence: int, time: float, published_at: float) -> Row:
        return Row(sequence, time, "c", "delivered", client="c", broker="b", publisher="p", incarnation=1,
                   number=sequence, notifications=1, published_at=published_at)  # fmt: skip

    rows = [
        *moves((0.0, "a", None), (1.0, "a", "left"), (5.0, "b", "a")),
        delivered(4, 5.5, 3.0),
        delivered(5, 5.6, 4.0),
        *(row._replace(sequence=row.sequence + 5) for row in moves((6.0, "b", "left"), (7.0, "a", "b"))),
        delivered(8, 9.0, 8.0),
        *(row._replace(sequence=row.sequence + 8) for row in moves((10.0, "a", "left"), (11.0, "a", "a"))),
        delivered(11, 11.5, 10.5),
    ]
    assert values(handoff_delay(read_log(spark, write_log(rows)))) == [0.5]


def test_the_broker_knows_late_or_never(spark: SparkSession, write_log: WriteLog) -> None:
    rows = [
        *moves((0.0, "a", None), (1.0, "a", "left"), (5.0, "b", "a"), (6.0, "b", "left"), (7.0, "a", "b")),
        Row(1, 1.25, "a", "detached", client="c", broker="a", reason="silent"),
        Row(2, 30.0, "a", "detached", client="d", broker="a", reason="silent"),
    ]
    assert values(move_out_delay(read_log(spark, write_log(rows)))) == [0.25]


def test_subscriptions_at_a_broker(spark: SparkSession, write_log: WriteLog) -> None:
    def subscribed(sequence: int, client: str) -> Row:
        return Row(sequence, 0.5, "a", "subscribed", client=client, broker="a", filter=f"x = {sequence}",
                   reason="issued")  # fmt: skip

    of_d = [row._replace(node="d", client="d") for row in moves((0.1, "a", None), (3.0, "a", "left"))]
    rows = [
        *moves((0.0, "a", None), (1.0, "a", "left"), (5.0, "b", "a")),
        *of_d,
        *(subscribed(number, client) for number, client in enumerate("ccd", start=1)),
    ]
    assert values(table_size(read_log(spark, write_log(rows)))) == [2.0, 3.0]
