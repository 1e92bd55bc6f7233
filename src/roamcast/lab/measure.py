"""One run of a scenario, and the figures of its steady part.

A scenario begins with every client at its first broker, which is not typical of later: for instance, a client
at home costs a home broker nothing. So what happens before `warm_up_s` is checked like the rest, but not
counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from roamcast.lab.rows import Row
from roamcast.lab.summary import percentile, summarise
from roamcast.protocol import records
from roamcast.protocol.messages import Message, cause_of
from roamcast.records.parquet import LogWriter
from roamcast.simulator.movement import from_file
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario

Label = str | int | float


@dataclass(frozen=True)
class GivenTrace:
    """The part of a user's trace that is replayed, over an overlay of its brokers."""

    file: str
    overlay: str
    from_s: float
    span_s: float
    clients: int
    selectivity: float
    publish_every_s: float

    def scenario(self) -> Scenario:
        return Scenario(
            topology=f"file:{self.overlay}",
            clients=self.clients,
            movement=f"trace:{self.file}",
            trace_from_s=self.from_s,
            duration_s=self.span_s,
            selectivity=self.selectivity,
            publish_every_s=self.publish_every_s,
        )


def visits_before(file: Path | str, until_s: float) -> Iterator[list[tuple[str, float]]]:
    """Yield, for each client of a trace, the brokers that it visited before this time, and when it came."""
    for visits in from_file(file).values():
        yield [(one.broker, one.attach_s) for one in visits if one.attach_s < until_s]


@dataclass(frozen=True)
class ScenarioJob:
    """A scenario, and the labels by which its row is found."""

    labels: tuple[tuple[str, Label], ...]
    scenario: Scenario
    warm_up_s: float = 0.0
    log: str = ""
    """Folder for the event log; no log is written if it is empty."""

    @property
    def name(self) -> str:
        labels = " ".join(f"{name}={value}" for name, value in self.labels)
        return f"{labels} seed={self.scenario.network.seed}"

    @property
    def repetition(self) -> int:
        return self.scenario.network.seed

    @property
    def cost(self) -> float:
        # Each notification goes over a share of the links, of which there are more with more clients.
        return self.scenario.clients**2 * self.scenario.duration_s / self.scenario.publish_every_s


def measure(job: ScenarioJob) -> Row:
    """Run the scenario, check every delivery, and return the figures of its steady part."""
    scenario = job.scenario
    if job.log:
        scenario = replace(scenario, network=replace(scenario.network, records="full"))
    topology = scenario.make_topology()
    window = Window(job.warm_up_s, scenario.duration_s)
    started, cpu_started = time.perf_counter(), time.process_time()
    with _open_log(job) as writer:

        def observe(rows: list[records.Row]) -> None:
            window.observe(rows)
            if writer is not None:
                writer.write(rows)

        run = run_checked(
            topology, scenario.network, scenario.actions(topology), observe, trace=window.on_message
        )
    summary = summarise(scenario, run, time.perf_counter() - started, writer.rows if writer else 0)
    return {
        **dict(job.labels),
        "seed": scenario.network.seed,
        "brokers": len(topology.brokers),
        "mean_distance_hops": topology.mean_distance,
        "diameter_hops": topology.diameter,
        **window.figures(),
        **{name: summary[name] for name in COUNTED},
        "violations": run.result.violations_total,
        "first_violation": next(iter(summary["violations"]), ""),
        **{name: summary[name] for name in ("hops", "records", "wall_s", "hops_per_wall_s")},
        "cpu_s": round(time.process_time() - cpu_started, 3),
    }


COUNTED = ("published", "expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected")
"""Figures counted over the whole run."""


def _open_log(job: ScenarioJob) -> AbstractContextManager[LogWriter | None]:
    if not job.log:
        return nullcontext()
    for left_by_a_failed_attempt in Path(job.log).glob("part-*.parquet"):
        left_by_a_failed_attempt.unlink()
    return LogWriter(Path(job.log), job.name)


class Window:
    """Counts what happens within a part of a run; times are the simulator's, in seconds.

    The delay is the time from an attach at another broker to the first notification, if that one had been
    waiting. A first notification that was published later says nothing about the handoff: nothing waited, or
    what waited was lost.
    """

    def __init__(self, from_s: float, until_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.hops: Counter[str] = Counter()
        self.handoffs = 0
        self.delays_s: list[float] = []
        self.interrupted = 0
        self.nothing_waiting = 0
        self._attached_at: dict[str, float] = {}

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        """Count a message that goes over a link between brokers."""
        if self.from_s <= now < self.until_s:
            self.hops[cause_of(message)] += message.weight

    def observe(self, rows: list[records.Row]) -> None:
        for row in rows:
            if row[3] == "delivered":
                if self._attached_at:
                    self._on_delivered(row)
            elif row[3] == "moved":
                self._on_moved(row)

    def _on_moved(self, row: records.Row) -> None:
        client = row.client or ""
        if row.reason == "left":
            self.interrupted += self._attached_at.pop(client, None) is not None
        elif row.reason and row.reason != row.broker and self.from_s <= row.time < self.until_s:
            self.handoffs += 1
            self._attached_at[client] = row.time

    def _on_delivered(self, row: records.Row) -> None:
        attached_at = self._attached_at.pop(row.client or "", None)
        if attached_at is None:
            return
        if row.published_at is not None and row.published_at <= attached_at:
            self.delays_s.append(row.time - attached_at)
        else:
            self.nothing_waiting += 1

    def figures(self) -> Row:
        delays_s = sorted(self.delays_s)
        return {
            "window_s": self.until_s - self.from_s,
            "handoffs": self.handoffs,
            "handoffs_interrupted": self.interrupted,
            "handoffs_nothing_waiting": self.nothing_waiting,
            "handoff_hops": self.hops["handoff"],
            "transfer_hops": self.hops["transfer"],
            "publish_hops": self.hops["publish"],
            "overhead_per_handoff_hops": _per(self.hops["handoff"] + self.hops["transfer"], self.handoffs),
            "signalling_per_handoff_hops": _per(self.hops["handoff"], self.handoffs),
            "delay_mean_s": fmean(delays_s) if delays_s else None,
            "delay_p50_s": percentile(delays_s, 0.50),
            "delay_p95_s": percentile(delays_s, 0.95),
        }


def _per(hops: int, handoffs: int) -> float | None:
    return hops / handoffs if handoffs else None
