"""Caporuscio, Carzaniga and Wolf 2003, section 4: the mobility service over real brokers. Claims C1 to C6.

The paper's systems are no longer available. Mosquitto with bridges stands for those that flood every message;
NATS with leaf nodes, a network of ActiveMQ brokers and our own overlay stand for those that propagate
subscriptions. All of them are real processes on loopback, so times depend on this machine, and a wired move
is much faster than in 2003. A system that is not installed is skipped, and the result names it.

Mosquitto and ActiveMQ deliver a message once for each of the subscriptions that it matches. With many
subscriptions that exceeds the capacity of the slow link; such trips are skipped, and the result lists them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from roamcast.bench.foreign_brokers import foreign_network, missing
from roamcast.bench.processes import BenchFailed
from roamcast.lab import caporuscio_figures as pictures
from roamcast.lab import caporuscio_judges as judges
from roamcast.lab.caporuscio_runs import (
    AT_ONCE,
    LEFT_OUT_COUNT,
    Trip,
    batches,
    discover_and_exclude,
    measure,
)
from roamcast.lab.caporuscio_size import sizes
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.rows import Row, grouped, mean_of, sums_of, where
from roamcast.lab.sweep import Failure, Job, Sweep, grid, seeds
from roamcast.models.intervals import bounds_of
from roamcast.proxy.client import SyncOption
from roamcast.slow_link.channel import HEADER_BYTES, PROFILES

C1, C2, C3, C4, C5, C6, R10 = map(claim, ("C1", "C2", "C3", "C4", "C5", "C6", "R10"))


MAIN = ("mosquitto", "nats", "activemq")
"""The three foreign systems; the fourth, our own broker, is used for the traces only."""
OPTIONS: tuple[SyncOption, ...] = ("none", "basic", "delay", "ping")

FULL_S, FULL_P = (1, 2, 5, 10, 20, 50, 100), (1.0, 2.0, 5.0, 10.0)
TRACE_TIMES, TIMES = 1, 5
"""Repetitions of each trip in the full setting: `TRACE_TIMES` where trips of all kinds are counted together,
`TIMES` where each kind has its own interval.
"""
PING_RUNS = {True: 4, False: 200}
PING_AT_ONCE = 12
GPRS_RATE_BPS = PROFILES["gprs"].down.slot_bps * 2
"""Mean rate of the slow link."""
GPRS_SHARE = 0.75
"""Share of the slow link's rate that may be used, so that the client can keep up."""
COPY_BYTES = {"mosquitto": 36, "nats": 46, "activemq": 330, "roamcast": 60}
"""Approximate bytes on the wire for one copy of a publication."""
DENSE_P, DENSE_S = 100.0, (1, 10, 50)
"""A publishing rate above the paper's, at which a move on loopback lasts long enough to show duplicates."""


def short(trip: Trip) -> Trip:
    """Return the trip with shorter waits around its moves."""
    return replace(trip, before_s=1.0, away_s=2.0, after_s=1.0)


def installed(systems: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the systems that can run here, and the reasons why the others cannot."""
    reasons = {system: missing(system) for system in systems}
    return [system for system, reason in reasons.items() if reason is None], [
        reason for reason in reasons.values() if reason is not None
    ]


def fits(trip: Trip) -> bool:
    """Return whether the client's link can carry what is delivered to the client."""
    if trip.link != "gprs":
        return True
    # Copies of one publication leave together, and so share packets.
    bits = 8 * trip.per_s * (trip.copies * COPY_BYTES[trip.system] + HEADER_BYTES)
    return bits <= GPRS_SHARE * GPRS_RATE_BPS


Group = tuple[Sequence[Trip], int]
"""Trips, and the number of them that run at the same time."""


def travel(sweep: Sweep, *groups: Group) -> list[Row]:
    """A row for each trip, in their order, one group after the other.

    The servers of each system are started once, and run as long as there are trips. The rows of a batch are
    stored when it is over; a failed trip is repeated in the next sweep.
    """
    fitting = [
        ([trip for trip in trips if fits(trip) and sweep.takes(trip)], at_once) for trips, at_once in groups
    ]
    wanted = [trip for trips, _ in fitting for trip in trips]
    by_name = {trip.name: trip for trip in wanted}
    found = {trip.name: row for trip in wanted if (row := sweep.recall(travelled, trip)) is not None}

    def on_batch(batch: Row) -> None:
        for row in batch["trips"]:
            found[row["trip"]] = row
            if not row["failed"]:
                sweep.keep(travelled, by_name[row["trip"]], row)

    left = [([trip for trip in trips if trip.name not in found], at_once) for trips, at_once in fitting]
    if sweep.only_kept:
        sweep.absent += sum(len(trips) for trips, _ in left)
        left = []
    with TemporaryDirectory(prefix="roamcast-trips-") as folder, ExitStack() as stack:
        systems = [trip.system for trips, _ in left for trip in trips]
        ports = start_servers(sweep, systems, Path(folder), stack)
        for number, (trips, at_once) in enumerate(left):
            place = Path(folder, f"group-{number}")
            place.mkdir()
            these = batches([trip for trip in trips if trip.system in ports], ports, place, at_once)
            sweep.failures += sweep.run_here(measure, these, on_batch)
    rows = [found[trip.name] for trip in wanted if trip.name in found]
    sweep.failures += [Failure(row["trip"], row["failed"]) for row in rows if row["failed"]]
    return [row for row in rows if not row["failed"]]


def travelled(trip: Trip) -> Row:
    """Names the rows of trips in `KeptRuns`. Trips are made in batches, so calling this is an error."""
    raise RuntimeError(f"{trip.name}: made in a batch")


def start_servers(
    sweep: Sweep, systems: Iterable[str], folder: Path, stack: ExitStack
) -> dict[str, dict[str, int]]:
    """Start the servers; return their ports by system and site. They stop with the stack. A system that fails
    to start is listed in `sweep.failures`.
    """
    ports: dict[str, dict[str, int]] = {}
    for system in dict.fromkeys(systems):
        try:
            ports[system] = stack.enter_context(foreign_network(system, folder / system)).ports
        except BenchFailed as error:
            sweep.failures.append(Failure(f"all trips over {system}", str(error)))
    return ports


def table_of(rows: Iterable[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "trace"} for row in rows]


def left_out(trips: Iterable[Trip]) -> list[str]:
    """Name the trips that the slow link cannot carry."""
    found = dict.fromkeys(
        f"{trip.system} s={trip.subscriptions} p={trip.per_s:g}" for trip in trips if not fits(trip)
    )
    return [f"more than the slow link carries: {', '.join(found)}"] if found else []


# --- C1 and C2: figures 8, 9 and 11 ---


def trace_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    if quick:
        points = [("wired", 10, 5.0), ("gprs", 1, 2.0)]
        return [
            short(Trip(system, option, s, p, link))
            for system in systems for option in OPTIONS for link, s, p in points
        ]  # fmt: skip
    return grid(Trip, system=systems, option=OPTIONS, link=("wired", "gprs"), subscriptions=FULL_S,
                per_s=FULL_P, number=seeds(TRACE_TIMES))  # fmt: skip


@checks("caporuscio-traces", "Figures 8, 9 and 11: moves over real brokers", C1, C2)
def run_traces(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN if quick else (*MAIN, "roamcast"))
    trips = trace_trips(quick, systems)
    rows = travel(sweep, (trips, AT_ONCE))
    reasons += left_out(trips)
    return Findings(
        [judges.judge_none(C1, rows, reasons), judges.judge_basic(C2, rows, reasons)],
        {"trips": table_of(rows)},
        {
            "fig-8": pictures.slow_traces(rows),
            "fig-9": pictures.traces(rows, "wired", ("none", "basic", "ping")),
            "fig-11": pictures.traces(rows, "gprs", ("none", "basic")),
        },
    )


# --- C3: many trips with ping ---


def ping_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    """Return trips of alternating kinds, with short waits, because only moves matter."""
    kinds = [(1, 10.0), (10, 10.0), (10, 50.0), (50, 10.0), (1, 100.0)]
    trips = []
    for system in systems:
        for number in range(PING_RUNS[quick]):
            s, p = kinds[number % len(kinds)]
            trips.append(short(Trip(system, "ping", s, p, number=number)))
    return trips


@checks("caporuscio-ping", "Many moves with ping: nothing is lost", C3)
def run_ping(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    rows = travel(sweep, (ping_trips(quick, systems), PING_AT_ONCE))
    figures: dict[str, object] = {}
    parts: dict[str, bool | None] = {}
    for system in systems:
        found = where(rows, system=system)
        sums = sums_of(found, ("published", "lost", "lost_copies", "duplicates"))
        lost, copies = sums["lost"], sums["lost_copies"]
        figures[system] = {
            "trips": len(found), "published": sums["published"], "lost": lost, "lost copies": copies,
            "duplicates": sums["duplicates"],
        }  # fmt: skip
        parts[f"{system}: {len(found)} of {PING_RUNS[quick]} trips"] = len(found) == PING_RUNS[quick]
        parts[f"{system}: {lost} lost, {copies} copies"] = lost == copies == 0
    return Findings([C3.judge(parts, figures, notes=reasons)], {"trips": table_of(rows)})


# --- C4: figure 10 ---


PAPER_AT_ONCE, DENSE_AT_ONCE, NARROW_AT_ONCE = 24, 2, 8
"""Trips at the same time. A dense trip occupies a core: with more of them, the measurement would show the
load.
"""
SYNCHRONISED: tuple[SyncOption, ...] = ("basic", "ping")
NARROW_P, NARROW_S = 20.0, (10, 50)


def duplicate_trips(quick: bool, systems: Sequence[str]) -> tuple[list[Trip], list[Trip]]:
    """Return the trips of the paper (none if quick) and the dense trips."""
    axes: dict[str, Any] = {"system": systems, "option": SYNCHRONISED}
    s, times = ((1, 10), 2) if quick else (DENSE_S, TIMES + 1)
    dense = grid(partial(Trip, per_s=DENSE_P), **axes, subscriptions=s, number=seeds(times))
    paper = grid(Trip, **axes, subscriptions=FULL_S, per_s=FULL_P, number=seeds(TIMES))
    return [] if quick else paper, [short(trip) for trip in dense]


def narrow_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    """Return trips over the narrow link, with and without waiting for confirmations."""
    kinds = [("mosquitto", False), ("nats", False), ("nats", True)]
    return [
        replace(short(Trip(system, option, s, NARROW_P, "narrow", number)), is_hasty=is_hasty)
        for system, is_hasty in kinds if system in systems
        for option in SYNCHRONISED for s in (NARROW_S[1:] if quick else NARROW_S)
        for number in range(1, 4 if quick else TIMES + 1)
    ]  # fmt: skip


@checks("caporuscio-duplicates", "Figure 10: duplicates by subscriptions and rate", C4)
def run_duplicates(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    paper, dense = duplicate_trips(quick, systems)
    narrow = narrow_trips(quick, systems)
    found = travel(sweep, (paper, PAPER_AT_ONCE), (dense, DENSE_AT_ONCE), (narrow, NARROW_AT_ONCE))
    rows, narrowed = ([row for row in found if (row["link"] == "narrow") is one] for one in (False, True))
    figures, parts = judges.judge_duplicates(rows)
    why, explanation = judges.explain_duplicates(narrowed)
    figures |= {f"narrow way: {name}": value for name, value in why.items()}
    return Findings(
        [C4.judge(parts, figures, notes=[explanation, *reasons])],
        {"trips": table_of(rows), "narrow": table_of(narrowed)},
        {"fig-10": pictures.duplicates(rows), "fig-10-why": pictures.causes(narrowed)},
    )


# --- C5: table 3 ---

SLOW_S = {"activemq": (1, 2, 3), "mosquitto": (1, 10, 20)}
"""Numbers of subscriptions: as many as the link can carry for systems that deliver a copy for each; the
table's for others.
"""
TABLE_S = (10, 50, 100)


def slow_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    trips = [
        Trip(system, option, s, 2.0, "gprs", number)
        for system in systems for option in SYNCHRONISED
        for s in SLOW_S.get(system, (1, 10, 30) if quick else TABLE_S)
        for number in range(1, 2 if quick else TIMES + 1)
    ]  # fmt: skip
    return [short(trip) for trip in trips] if quick else trips


@checks("caporuscio-gprs", "Table 3: moves over a GPRS link", C5)
def run_slow(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    rows = travel(sweep, (slow_trips(quick, systems), AT_ONCE))
    for system in systems:
        if system in SLOW_S:
            many = ", ".join(map(str, SLOW_S[system]))
            reasons.append(f"{system} sends a copy for each subscription, so s = {many}")
    table = table3(rows)
    parts = judges.judge_slow(rows)
    figures = {f"{row.pop('system')} s={row.pop('s')}": row for row in map(dict, table)}
    outcome = C5.judge(parts, figures | {"each subscription adds to a move-in": list(parts)}, notes=reasons)
    return Findings(
        [outcome], {"table-3": table, "trips": table_of(rows)}, {"table-3": pictures.delays(rows)}
    )


def table3(rows: Sequence[Row]) -> list[Row]:
    """Return delay, losses and duplicates after reattach, in the columns of the paper's table."""
    table: list[Row] = []
    for (system, s), trips in grouped(rows, "system", "s").items():
        line: Row = {"system": system, "s": s, "trips": len(trips)}
        for option in SYNCHRONISED:
            delays_s = [row["move_in_s"] for row in where(trips, option=option)]
            line[f"delay {option} ms"] = round(1000 * fmean(delays_s))
            line[f"delay {option} ms, from to"] = [round(1000 * bound) for bound in bounds_of(delays_s)]
        for name, column in (("losses", "lost"), ("duplicates", "duplicates")):
            for option in SYNCHRONISED:
                line[f"{name} {option}"] = mean_of(where(trips, option=option), column, 1)
        table.append(line)
    return table


# --- C6: table 4 ---


TABLE_4 = {"core": 639, "Elvin": 797, "FioranoMQ": 936, "Siena": 755}


@checks("caporuscio-size", "Table 4: size of the core and the adapters", C6)
def run_size(quick: bool, sweep: Sweep) -> Findings:
    found = sizes()
    adapters = found.adapters
    parts = {f"{module} of the core imports {name}": False for module, name in found.leaks}
    parts["no adapter was found"] = len(adapters) >= len(MAIN)
    largest = max(adapters.values(), default=0)
    figures = {
        "core, lines": found.core, "lines of the client and server around the core": found.around, **adapters,
        "modules looked at for imports": found.looked_at,
        "largest adapter / core, here and in the paper": [
            round(largest / found.core, 2), round(max(list(TABLE_4.values())[1:]) / TABLE_4["core"], 2)
        ],
    }  # fmt: skip
    rows = [{"whose": "paper", "part": name, "lines": lines} for name, lines in TABLE_4.items()]
    here = {"core": found.core, "around": found.around, **adapters}
    rows += [{"whose": "here", "part": name, "lines": lines} for name, lines in here.items()]
    return Findings([C6.judge(parts, figures, notes=[C6.why])], {"table-4": rows})


# --- section 3.1 and 5: discovery, and subscriptions that are left out ---


@dataclass(frozen=True)
class OptionsJob(Job):
    system: str


def try_options(job: OptionsJob) -> Row:
    with (
        TemporaryDirectory(prefix="roamcast-options-") as folder,
        foreign_network(job.system, Path(folder, "servers")) as network,
    ):
        return asyncio.run(discover_and_exclude(network, Path(folder)))


@checks("caporuscio-options", "Discovery of proxies, excluded subscriptions", R10)
def run_options(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN[:1] if quick else MAIN)
    rows = sweep.run(try_options, [OptionsJob(system) for system in systems])
    return Findings([judge_r10(rows, reasons)], {"options": rows})


def judge_r10(rows: Sequence[Row], reasons: Sequence[str] = ()) -> Outcome:
    parts: dict[str, bool] = {}
    for row in rows:
        system, kept, excluded = row["system"], row["away kept"], row["away excluded"]
        parts[f"{system}: the nearest proxy is {row['nearest']}"] = row["nearest"] == "a"
        parts[f"{system}: {kept} of {LEFT_OUT_COUNT} kept"] = kept == LEFT_OUT_COUNT
        parts[f"{system}: {excluded} excluded messages arrived"] = excluded == 0
        parts[f"{system}: not both subscriptions work afterwards"] = bool(
            row["after kept"] and row["after excluded"]
        )
    return R10.judge(parts, {row["system"]: row for row in rows}, notes=reasons)
