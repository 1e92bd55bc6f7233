"""`roamcast bench broker`: Roamcast, Mosquitto and amqtt under the same load, in turn, on one core.

Every figure is the median of short runs that alternate between the brokers, so that other load on the machine
affects all of them alike. Besides messages per second, the messages per second of the broker's CPU time are
given: these do not depend on other load.
"""

from __future__ import annotations

import os
import platform
import resource
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from roamcast.bench.broker_cases import CASES, Case, content
from roamcast.bench.contestants import OTHERS, ROAMCAST, Kind, before
from roamcast.bench.field_shapes import SHAPES, Shape
from roamcast.bench.mqtt_load import Figure, idle_connections
from roamcast.bench.processes import BenchFailed, Process, running_on, two_cores, wait_until
from roamcast.bench.report import Report, silent

IDLE_CONNECTIONS = 10_000
IDLE_BYTES_MAX = 400_000_000
SETTLE_S = 30.0

Row = dict[str, Any]


def run(
    *,
    against: Sequence[str],
    earlier: Path | None = None,
    seconds: float = 1.0,
    rounds: int = 5,
    idle: int = IDLE_CONNECTIONS,
    progress: Report = silent,
) -> dict[str, Any]:
    """Measure this Roamcast, the brokers in `against`, and the Roamcast in the source tree `earlier`."""
    skipped = {name: reason for name in against if (reason := OTHERS[name].missing()) is not None}
    broker_core, load_core = two_cores()
    with tempfile.TemporaryDirectory(prefix="roamcast-bench-") as folder, ExitStack() as stack:
        stack.enter_context(running_on(load_core))
        field = Field(Path(folder), broker_core, stack)
        for sync, kind in ROAMCAST.items():
            field.enter(f"roamcast {sync}", kind)
            if earlier is not None:
                field.enter(f"before {sync}", before(earlier, sync))
        for name in against:
            if name not in skipped:
                try:
                    field.enter(name, OTHERS[name])
                except BenchFailed as error:
                    skipped[name] = str(error)
        total = len(SHAPES) + len(CASES) + 1
        shapes, rows = [], []
        descriptors_max()
        for number, shape in enumerate(SHAPES):
            progress(number, total)
            shapes += field.measure_shape(shape, seconds, rounds)
        for number, case in enumerate(CASES):
            progress(len(SHAPES) + number, total)
            rows += field.measure(case, seconds, rounds)
        progress(total - 1, total)
        memory = field.measure_idle(idle)
        progress(total, total)
    return {
        "machine": machine(pinned=bool(broker_core)),
        "settings": {name: kind.settings for name, (kind, _) in field.contestants.items()},
        "load": "one process on the other core, raw sockets, 64- to 100-byte payloads, every message checked",
        "rounds": rounds,
        "seconds": seconds,
        "content_filters_matching": content().matching,
        "skipped": skipped,
        "failures": field.failures,
        "shapes": shapes,
        "cases": rows,
        "idle": memory,
    }


def machine(*, pinned: bool) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "pinned": pinned,
    }


class Field:
    """The running brokers, and how they are measured."""

    def __init__(self, folder: Path, core: frozenset[int], stack: ExitStack) -> None:
        self.contestants: dict[str, tuple[Kind, Process]] = {}
        self.failures: list[str] = []
        """Runs without a figure, and the reason."""
        self._folder = folder
        self._core = core
        self._stack = stack

    def enter(self, name: str, kind: Kind) -> None:
        process = kind.start(self._folder / name.replace(" ", "-"), self._core)
        self._stack.callback(process.stop)
        self.contestants[name] = kind, process

    def names_for(self, syncs: Sequence[str], against_others: bool) -> list[str]:
        own = [f"{tree} {sync}" for sync in syncs for tree in ("roamcast", "before")]
        own = [name for name in own if name in self.contestants]
        return own + [name for name in self.contestants if against_others and name in OTHERS]

    def in_turn(
        self, what: str, names: Sequence[str], rounds: int, one: Callable[[Process], Any]
    ) -> dict[str, list[Any]]:
        """Return the figures of each broker, round by round; a broker that fails once is excluded from this
        case.
        """
        results: dict[str, list[Any]] = {name: [] for name in names}
        failed: set[str] = set()
        for turn in range(rounds):
            for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                if name in failed:
                    continue
                try:
                    results[name].append(one(self.contestants[name][1]))
                except (BenchFailed, OSError) as error:
                    failed.add(name)
                    self.failures.append(f"{what}: {name}: {error}")
        return {name: found for name, found in results.items() if name not in failed}

    # --- throughput ---

    def measure(self, case: Case, seconds: float, rounds: int) -> list[Row]:
        def one(process: Process) -> Figure:
            return case.run(process, seconds)

        names = self.names_for(list(case.targets), case.against_others)
        found = self.in_turn(f"{case.name}, QoS {case.qos}", names, rounds, one)
        summaries = {name: summary(runs) for name, runs in found.items()}
        return [
            self._row(case, sync, target, summaries)
            for sync, target in case.targets.items()
            if f"roamcast {sync}" in summaries
        ]

    def _row(self, case: Case, sync: str, target: float, summaries: dict[str, Row]) -> Row:
        own = summaries[f"roamcast {sync}"]
        row: Row = {
            "case": case.name,
            "qos": case.qos,
            "journal": f"sync = {sync}" if case.qos else "not touched by QoS 0",
            "records": "counters",
            **own,
            "against": {},
        }
        if case.at_least_per_s is not None:
            row["target_per_s"] = case.at_least_per_s
            row["holds"] = own["messages_per_s"] >= case.at_least_per_s
            row["holds_per_core_s"] = own["messages_per_core_s"] >= case.at_least_per_s
        if f"before {sync}" in summaries:
            row["times_before"] = ratios(own, summaries[f"before {sync}"])
        for name, other in summaries.items():
            if name in OTHERS:
                row["against"][name] = compared(
                    own, other, target if name == "mosquitto" else OTHERS[name].target
                )
        return row

    # --- shapes of the field, and memory ---

    def measure_shape(self, shape: Shape, seconds: float, rounds: int) -> list[Row]:
        """Measure a field shape; return one row for each broker: CPU time per delivery or connection, and
        latency.
        """
        names = self.names_for(shape.syncs, against_others=True)
        found = self.in_turn(
            f"{shape.name}, QoS {shape.qos}", names, rounds, lambda broker: shape.run(broker, seconds)
        )
        figures = {name: shape_figures(runs) for name, runs in found.items()}
        rows: list[Row] = []
        for name, own in figures.items():
            row: Row = {"shape": shape.name, "qos": shape.qos, "broker": name, **own}
            other = figures.get("mosquitto")
            if name.startswith("roamcast") and (older := figures.get(name.replace("roamcast", "before"))):
                row["times_before"] = ratios(own, older)
            if other is not None and name.startswith("roamcast"):
                row["times_mosquitto"] = ratios(own, other)
                if name == "roamcast process":
                    row["limits"] = shape.limits
                    row["holds"] = all(
                        row["times_mosquitto"][part] <= most for part, most in shape.limits.items()
                    )
            rows.append(row)
        return rows

    def measure_idle(self, count: int) -> list[Row]:
        count = min(count, descriptors_max() - 200)
        rows: list[Row] = []
        for name in self.names_for(["process"], True):
            try:
                row: Row = {"broker": name, **self._idle(name, count)}
            except (BenchFailed, OSError) as error:
                self.failures.append(f"idle connections: {name}: {error}")
                continue
            if name.startswith("roamcast"):
                row |= {"target_bytes": IDLE_BYTES_MAX, "holds": row["resident_bytes"] < IDLE_BYTES_MAX}
            rows.append(row)
        return rows

    def _idle(self, name: str, count: int) -> Row:
        """Measure a freshly started broker, because memory left by earlier runs would be counted."""
        process = self.contestants[name][0].start(self._folder / f"idle-{name.replace(' ', '-')}", self._core)
        try:
            before = process.resident_bytes()
            after = idle_connections(process.port, count, lambda: settled(process))
        finally:
            process.stop()
        return {"connections": count, "resident_bytes": after, "before_bytes": before}


def settled(process: Process) -> int:
    """Return the memory of a process once it has stopped changing."""
    last = -1

    def is_steady() -> bool:
        nonlocal last
        before, last = last, process.resident_bytes()
        return last == before

    wait_until(is_steady, SETTLE_S)
    return process.resident_bytes()


def descriptors_max() -> int:
    """Return how many files this process and its children may open, after raising the limit as far as
    allowed.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def at_rank(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def summary(runs: Sequence[Figure]) -> Row:
    return {
        "messages_per_s": median(figure.messages_per_s for figure in runs),
        "messages_per_s_best": max(figure.messages_per_s for figure in runs),
        "messages_per_core_s": median(figure.messages_per_core_s for figure in runs),
        "deliveries_per_s": median(figure.deliveries / figure.seconds for figure in runs),
        "load_share_of_core": median(figure.load_cpu_s / figure.seconds for figure in runs),
    }


def shape_figures(runs: Sequence[Figure]) -> Row:
    return {
        "cpu_us": median(1e6 * figure.broker_cpu_s / figure.deliveries for figure in runs),
        "p50_ms": median(1e3 * at_rank(figure.latencies_s, 0.5) for figure in runs),
        "p99_ms": median(1e3 * at_rank(figure.latencies_s, 0.99) for figure in runs),
        "p999_ms": median(1e3 * at_rank(figure.latencies_s, 0.999) for figure in runs),
    }


def ratios(own: Row, other: Row) -> Row:
    return {part: own[part] / max(other[part], 1e-9) for part in own}


def compared(own: Row, other: Row, target: float) -> Row:
    ratio = own["messages_per_s"] / other["messages_per_s"]
    per_core_s = own["messages_per_core_s"] / other["messages_per_core_s"]
    return {
        "messages_per_s": other["messages_per_s"],
        "messages_per_core_s": other["messages_per_core_s"],
        "ratio": ratio,
        "ratio_per_core_s": per_core_s,
        "target": target,
        "holds": ratio >= target,
        "holds_per_core_s": per_core_s >= target,
    }
