"""Speed of the simulator: message hops per second, its growth with the network, and SimPy for comparison.

A message hop is one message over one link, between brokers or to a client. All work of `roamcast sim run` is
included: creating the topology and the clients' actions, attaching all clients, the checkers, and with full
logs writing rows as Parquet. For SimPy the same work is included, as far as its model has it. Seconds are CPU
seconds of the process, which depend less on other load; wall-clock seconds are shown as well. Each
measurement has its own process, and the cases alternate, so that other load affects all of them.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Literal

from roamcast.bench.report import Report, silent
from roamcast.protocol.records import Level, Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.network import Action, NetworkSettings, Traffic
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.scenario import Scenario

CLIENTS_PER_BROKER = 10
MOBILE = 0.2
SET_UP_S = 1e-6
"""A duration too short for publishes and moves."""
SIMPY_MISSING = "simpy is not installed: pip install simpy, or roamcast[dev]"

Engine = Literal["roamcast", "simpy stores", "simpy callbacks"]


@dataclass(frozen=True)
class Case:
    """A network, and the simulator to use."""

    side: int
    protocol: str
    records: Level
    mobile: float
    duration_s: float
    seed: int
    engine: Engine = "roamcast"

    @property
    def scenario(self) -> Scenario:
        return Scenario(
            topology=f"grid:{self.side}",
            clients=CLIENTS_PER_BROKER * self.side**2,
            mobile=self.mobile,
            workload="groups",
            selectivity=0.0625,
            duration_s=self.duration_s,
            network=NetworkSettings(protocol=self.protocol, records=self.records, seed=self.seed),
        )


@dataclass(frozen=True)
class Measurement:
    """Result of one run of a case."""

    core_s: float
    wall_s: float
    link_hops: int
    access_hops: int
    delivered: int
    rows: int = 0
    set_up_s: float = 0.0
    set_up_hops: int = 0
    """Number of hops until all clients were attached and all subscriptions settled."""

    @property
    def hops(self) -> int:
        return self.link_hops + self.access_hops

    @property
    def hops_per_s(self) -> float:
        return self.hops / self.core_s

    @property
    def steady_hops_per_s(self) -> float:
        """Return the hops per second without the set-up of the network."""
        return (self.hops - self.set_up_hops) / (self.core_s - self.set_up_s)


class Stopwatch:
    """CPU seconds of this process and wall-clock seconds since it was created."""

    def __init__(self) -> None:
        self._started = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        return time.process_time() - self._started[0], time.perf_counter() - self._started[1]


def run(
    sizes: Sequence[int] = (5, 14),
    duration_s: float = 600.0,
    repeat: int = 3,
    seed: int = 7,
    progress: Report = silent,
) -> dict[str, object]:
    """Measure grids of these sides; the first one runs for the full duration, larger ones for less.

    The work per second of virtual time grows with the square of the number of brokers, so with equal
    durations the largest grid would dominate.
    """
    cases = _cases(sizes, duration_s, seed)
    measured: dict[Case, list[Measurement]] = {case: [] for case in cases}
    for done in range(repeat * len(cases)):
        case = cases[done % len(cases)]
        progress(done, repeat * len(cases))
        measured[case].append(_in_new_process(case))
    return {
        "growth": _growth(measured),
        "simpy": _comparison(measured),
        "cases": [_figures(case, runs) for case, runs in measured.items()],
        "set_up": "included, except in figures that are called steady",
        "seed": seed,
        "repeat": repeat,
        "python": sys.version.split()[0],
    }


def _cases(sizes: Sequence[int], duration_s: float, seed: int) -> list[Case]:
    first = sizes[0]
    cases = [
        Case(first, "none", "counters", MOBILE, duration_s, seed),
        Case(first, "sub_unsub", "full", MOBILE, duration_s / 2, seed),
    ]
    cases += [
        Case(side, "sub_unsub", "counters", MOBILE, duration_s * (first / side) ** 3, seed) for side in sizes
    ]
    engines: list[Engine] = ["roamcast"]
    if importlib.util.find_spec("simpy") is not None:
        engines += ["simpy stores", "simpy callbacks"]
    cases += [Case(first, "sub_unsub", "counters", 0.0, duration_s, seed, engine) for engine in engines]
    return cases


def _in_new_process(case: Case) -> Measurement:
    # Spawned, not forked: a copy of this process would share memory that must be copied when touched.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, case).result()


# --- measuring one case ---------------------------------------------------------------------------


def measure(case: Case) -> Measurement:
    """Run a case once, in this process."""
    gc.collect()
    if case.engine == "roamcast":
        return _measure_simulator(case)
    return _measure_simpy(case, "stores" if case.engine == "simpy stores" else "callbacks")


def _measure_simulator(case: Case) -> Measurement:
    set_up_hops = _hops(replace(case.scenario, duration_s=SET_UP_S).run().traffic)
    gc.collect()
    rows = 0
    with tempfile.TemporaryDirectory() as folder:
        lap = Lap()
        if case.records == "full":
            with LogWriter(Path(folder), "bench") as log:
                run = _run(case.scenario, lap, log.write)
            rows = log.rows
        else:
            run = _run(case.scenario, lap)
        core_s, wall_s = lap.clock.read()
    if run.result.violations:
        raise RuntimeError(f"{case}: {run.result.violations[0]}")
    traffic, delivered = run.traffic, run.result.delivered
    return Measurement(
        core_s, wall_s, traffic.messages, traffic.access_hops, delivered, rows, lap.core_s, set_up_hops
    )


class Lap:
    """A stopwatch that notes when the network has been set up."""

    def __init__(self) -> None:
        self.clock = Stopwatch()
        self.core_s = 0.0

    def watch(self, actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            yield action
            # The network asks for the next when it has carried out this one: the first that is not
            # at time 0 comes after everything has settled.
            if action[0] > 0.0 and not self.core_s:
                self.core_s, _ = self.clock.read()


def _run(scenario: Scenario, lap: Lap, observe: Callable[[list[Row]], None] | None = None) -> Run:
    """Run a scenario as `Scenario.run` does, and take times."""
    scenario.check()
    topology = scenario.make_topology()
    return run_checked(topology, scenario.network, lap.watch(scenario.actions(topology)), observe)


def _hops(traffic: Traffic) -> int:
    return traffic.messages + traffic.access_hops


def _measure_simpy(case: Case, style: Literal["stores", "callbacks"]) -> Measurement:
    from roamcast.bench.simpy_model import Model, Plan

    scenario = case.scenario
    # The simulator does without the collector while it runs; so may SimPy.
    gc.disable()
    clock = Stopwatch()
    topology = scenario.make_topology()
    model = Model(Plan.read(topology, scenario.actions(topology)), scenario.network, style)
    model.run()
    core_s, wall_s = clock.read()
    gc.enable()
    return Measurement(core_s, wall_s, model.link_hops, model.access_hops, model.delivered)


# --- what it comes to -----------------------------------------------------------------------------


def _growth(measured: Mapping[Case, list[Measurement]]) -> dict[str, object]:
    """Return how much more a hop costs in the largest network than in the smallest, with equal settings.

    One figure excludes the set-up, whose share is larger in a large network with a short duration; the other
    includes it.
    """
    alike = [
        case
        for case in measured
        if case.mobile and case.protocol == "sub_unsub" and case.records == "counters"
    ]
    smallest, largest = min(alike, key=_brokers), max(alike, key=_brokers)
    small, large = measured[smallest], measured[largest]
    return {
        "brokers": [_brokers(smallest), _brokers(largest)],
        **{
            f"{name}_{word}": choose(map(speed, small)) / choose(map(speed, large))
            for name, speed in (("steady", _steady), ("with_set_up", _speed))
            for word, choose in CHOICES.items()
        },
    }


def _comparison(measured: Mapping[Case, list[Measurement]]) -> dict[str, object]:
    """Compare the simulator with SimPy in networks without moves: above 1, the simulator is faster."""
    alike = {case.engine: runs for case, runs in measured.items() if not case.mobile}
    if len(alike) == 1:
        return {"missing": SIMPY_MISSING}
    ours = alike["roamcast"]
    if any(theirs[0].delivered != ours[0].delivered for theirs in alike.values()):
        raise RuntimeError("SimPy and the simulator delivered different numbers of notifications")
    return {
        **{
            f"ratio_to_{style}_{word}": choose(map(_speed, ours)) / choose(map(_speed, theirs))
            for style, theirs in (("stores", alike["simpy stores"]), ("callbacks", alike["simpy callbacks"]))
            for word, choose in CHOICES.items()
        },
        "delivered_by_each": ours[0].delivered,
    }


def _figures(case: Case, runs: list[Measurement]) -> dict[str, object]:
    first, median = runs[0], statistics.median(map(_speed, runs))
    simulator = case.engine == "roamcast"
    return {
        "engine": case.engine,
        "brokers": _brokers(case),
        "clients": case.scenario.clients,
        "mobile": case.mobile,
        "protocol": case.protocol if simulator else None,
        "records": case.records if simulator else None,
        "checkers": simulator,
        "duration_s": case.duration_s,
        "hops": first.hops,
        "link_hops": first.link_hops,
        "access_hops": first.access_hops,
        "delivered": first.delivered,
        "rows": first.rows,
        "core_s_median": statistics.median(one.core_s for one in runs),
        "wall_s_median": statistics.median(one.wall_s for one in runs),
        "hops_per_s_median": median,
        "hops_per_s_best": max(map(_speed, runs)),
        "steady_hops_per_s_median": statistics.median(map(_steady, runs)),
        "link_hops_per_s_median": median * first.link_hops / first.hops,
        "access_hops_per_s_median": median * first.access_hops / first.hops,
    }


def _brokers(case: Case) -> int:
    return case.side**2


_speed, _steady = attrgetter("hops_per_s"), attrgetter("steady_hops_per_s")
CHOICES: dict[str, Callable[[Iterable[float]], float]] = {"median": statistics.median, "best": max}
"""Which of several runs of a case counts."""
