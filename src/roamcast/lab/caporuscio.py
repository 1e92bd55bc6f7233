"""Caporuscio, Carzaniga and Wolf 2003, section 4: the mobility service over real brokers. Claims C1 to C6.

The paper's systems are no longer to be had. Mosquitto with bridges stands for those that send every message
everywhere; NATS with leaf nodes, a network of ActiveMQ brokers and our own overlay stand for those that
propagate subscriptions. Everything is real and on loopback, so times are those of this machine, and a
wired move is over much sooner than in 2003. A system that is not installed is left out, and named.

Mosquitto and ActiveMQ deliver a message once for each of the subscriptions that it matches. On the slow
link that is more than it can carry for many subscriptions; such trips are left out, and listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from roamcast.bench.foreign_brokers import missing
from roamcast.lab import caporuscio_figures as pictures
from roamcast.lab.caporuscio_runs import COPIES, Trip, batches, measure
from roamcast.lab.caporuscio_size import sizes
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, failed, register
from roamcast.lab.sweep import Failure, Row, Sweep
from roamcast.link.channel import HEADER_BYTES, PROFILES
from roamcast.proxy.client import SyncOption

C1 = Claim("C1", "order", "without the service, everything published while away is lost (fig. 8, 9a)")
C2 = Claim(
    "C2", "order",
    "with the basic service nearly all arrives: systems that flood lose nothing, systems that propagate "
    "subscriptions may lose a few at move-in (fig. 9b, table 3)",
)  # fmt: skip
C3 = Claim("C3", "exact", "with ping, nothing is lost on any system without cycles (table 3)")
C4 = Claim(
    "C4", "shape",
    "wired: duplicates grow with s times p; ping adds few on flooding systems, more (45 % at worst) on "
    "propagating ones (fig. 10)",
)  # fmt: skip
C5 = Claim("C5", "shape", "move-in over the slow link takes longer with more subscriptions (table 3)")
C6 = Claim(
    "C6", "order",
    "the core is shared, an adapter is small and alone knows its broker (table 4: 639 lines of core, 755 to "
    "936 for each system)",
)  # fmt: skip

FLOODING = ("mosquitto",)
PROPAGATING = ("nats", "activemq", "roamcast")
MAIN = ("mosquitto", "nats", "activemq")
"""The three real systems; the fourth is our own broker, for the traces."""
OPTIONS: tuple[SyncOption, ...] = ("none", "basic", "delay", "ping")

FULL_S, FULL_P = (1, 10, 50, 100), (1.0, 2.0, 10.0)
NEARLY_ALL = 0.95
"""The share of what was published while away that has to arrive for C2."""
PING_RUNS = {True: 4, False: 200}
GPRS_RATE_BPS = PROFILES["gprs"].down.slot_bps * 2
"""What the slow link carries on average."""
GPRS_SHARE = 0.75
"""The most of it that may be used, so that the client can keep up."""
COPY_BYTES = {"mosquitto": 36, "nats": 46, "activemq": 330, "roamcast": 60}
"""What one copy of a publication takes on the wire, about."""
DENSE_P, DENSE_S = 100.0, (1, 10, 50)
"""A rate that the paper does not have, at which a move on loopback is long enough to see duplicates."""


def short(trip: Trip) -> Trip:
    """The same with less waiting around the moves."""
    return replace(trip, before_s=1.0, away_s=2.0, after_s=1.0)


def installed(systems: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those that can be run here, and why the others cannot."""
    reasons = {system: missing(system) for system in systems}
    return [system for system, reason in reasons.items() if reason is None], [
        reason for reason in reasons.values() if reason is not None
    ]


def fits(trip: Trip) -> bool:
    """Whether the client's link carries what is delivered to it."""
    if trip.link == "wired":
        return True
    copies = trip.subscriptions if trip.system in COPIES else 1
    # Copies of one publication leave together, and so share packets.
    bits = 8 * trip.per_s * (copies * COPY_BYTES[trip.system] + HEADER_BYTES)
    return bits <= GPRS_SHARE * GPRS_RATE_BPS


def travel(sweep: Sweep, trips: Sequence[Trip], at_once: int = 24) -> list[Row]:
    """A row for each trip."""
    found = sweep.run(measure, batches([trip for trip in trips if fits(trip)], at_once))
    rows = [row for batch in found for row in batch["trips"]]
    sweep.failures += [Failure(trip_name(row), row["failed"]) for row in rows if row["failed"]]
    return [row for row in rows if not row["failed"]]


def trip_name(row: Row) -> str:
    return " ".join(f"{name}={row[name]}" for name in ("system", "option", "link", "s", "p", "number"))


def table_of(rows: Iterable[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "trace"} for row in rows]


def left_out(trips: Iterable[Trip]) -> list[str]:
    """What the slow link cannot carry, in words."""
    found = dict.fromkeys(
        f"{trip.system} s={trip.subscriptions} p={trip.per_s:g}" for trip in trips if not fits(trip)
    )
    return [f"more than the slow link carries: {', '.join(found)}"] if found else []


def note_of(parts: dict[str, bool], *reasons: str) -> str:
    return "; ".join(text for text in (failed(parts), *reasons) if text)


def of(rows: Iterable[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


# --- C1 and C2: figures 8, 9 and 11 ---


def trace_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    if quick:
        points = [("wired", 10, 5.0), ("gprs", 1, 2.0)]
        return [
            short(Trip(system, option, s, p, link))
            for system in systems for option in OPTIONS for link, s, p in points
        ]  # fmt: skip
    return [
        Trip(system, option, s, p, link)
        for system in systems for option in OPTIONS for link in ("wired", "gprs")
        for s in FULL_S for p in FULL_P
    ]  # fmt: skip


def run_traces(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN if quick else (*MAIN, "roamcast"))
    trips = trace_trips(quick, systems)
    rows = travel(sweep, trips)
    reasons += left_out(trips)
    return Findings(
        [judge_none(rows, reasons), judge_basic(rows, reasons)],
        {"trips": table_of(rows)},
        {
            "fig-8": partial(pictures.draw_fig8, rows=rows),
            **{
                f"fig-{number}": partial(pictures.draw_systems, rows=rows, link=link, options=options)
                for number, link, options in (
                    ("9", "wired", ("none", "basic", "ping")), ("11", "gprs", ("none", "basic")),
                )
            },
        },
    )  # fmt: skip


def judge_none(rows: Sequence[Row], reasons: Sequence[str]) -> Outcome:
    figures: dict[str, object] = {}
    parts: dict[str, bool] = {}
    for system in dict.fromkeys(row["system"] for row in rows):
        found = of(rows, system=system, option="none")
        away, lost = (sum(row[name] for row in found) for name in ("away", "lost_away"))
        figures[system] = {"published while away": away, "of these lost": lost, "trips": len(found)}
        parts[f"{system}: {away - lost} published while away arrived"] = away == lost
    return C1.outcome(
        all(parts.values()) if parts else None, paper="everything is lost while away", figures=figures,
        note=note_of(parts, *reasons),
    )  # fmt: skip


def judge_basic(rows: Sequence[Row], reasons: Sequence[str]) -> Outcome:
    figures: dict[str, object] = {}
    parts: dict[str, bool] = {}
    for system in dict.fromkeys(row["system"] for row in rows):
        found = of(rows, system=system, option="basic")
        away, lost = sum(row["away"] for row in found), sum(row["lost"] for row in found)
        figures[system] = {
            "published while away": away, "lost": lost, "lost in one trip at most":
            max((row["lost"] for row in found), default=0), "trips": len(found),
        }  # fmt: skip
        if system in FLOODING:
            parts[f"{system} floods and lost {lost}"] = lost == 0
        else:
            parts[f"{system} lost {lost} of {away}"] = lost <= (1 - NEARLY_ALL) * away
    figures["share that has to arrive"] = NEARLY_ALL
    return C2.outcome(
        all(parts.values()) if parts else None, figures=figures, note=note_of(parts, *reasons),
        paper="flooding systems lose 0; Siena 0, 2, 10 with s = 10, 50, 100",
    )  # fmt: skip


register(
    Experiment("caporuscio-traces", "Figures 8, 9 and 11: moves over real brokers", (C1, C2), run_traces)
)


# --- C3: many trips with ping ---


def ping_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    """Trips of different kinds in turn; short ones, as it is the moves that count."""
    kinds = [(1, 10.0), (10, 10.0), (10, 50.0), (50, 10.0), (1, 100.0)]
    trips = []
    for system in systems:
        for number in range(PING_RUNS[quick]):
            s, p = kinds[number % len(kinds)]
            trips.append(short(Trip(system, "ping", s, p, number=number)))
    return trips


def run_ping(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    rows = travel(sweep, ping_trips(quick, systems), at_once=12)
    figures: dict[str, object] = {}
    parts: dict[str, bool] = {}
    for system in systems:
        found = of(rows, system=system)
        lost, copies = (sum(row[name] for row in found) for name in ("lost", "lost_copies"))
        figures[system] = {
            "trips": len(found), "published": sum(row["published"] for row in found), "lost": lost,
            "lost copies": copies, "duplicates": sum(row["duplicates"] for row in found),
        }  # fmt: skip
        parts[f"{system}: {len(found)} of {PING_RUNS[quick]} trips"] = len(found) == PING_RUNS[quick]
        parts[f"{system}: {lost} lost, {copies} copies"] = lost == copies == 0
    holds = all(parts.values()) if parts else None
    outcome = C3.outcome(holds, paper="0 lost with ping", figures=figures, note=note_of(parts, *reasons))
    return Findings([outcome], {"trips": table_of(rows)})


register(Experiment("caporuscio-ping", "Many moves with ping: nothing is lost", (C3,), run_ping))


# --- C4: figure 10 ---


PAPER_AT_ONCE, DENSE_AT_ONCE = 8, 2
"""Dense trips keep a core busy each: beside more of them, or beside others, load would be measured."""


def duplicate_trips(quick: bool, systems: Sequence[str]) -> tuple[list[Trip], list[Trip]]:
    """Those of the paper, none if it has to be quick, and the dense ones."""
    options: tuple[SyncOption, ...] = ("basic", "ping")
    numbers = (1, 2) if quick else (1, 2, 3)
    dense = [
        short(Trip(system, option, s, DENSE_P, number=number))
        for system in systems for option in options for s in ((1, 10) if quick else DENSE_S)
        for number in numbers
    ]  # fmt: skip
    paper = [
        Trip(system, option, s, p, number=number)
        for system in systems for option in options for s in FULL_S for p in FULL_P for number in numbers
    ]  # fmt: skip
    return [] if quick else paper, dense


def run_duplicates(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    paper, dense = duplicate_trips(quick, systems)
    rows = travel(sweep, paper, PAPER_AT_ONCE) + travel(sweep, dense, DENSE_AT_ONCE)
    return Findings(
        [judge_duplicates(rows, reasons)],
        {"trips": table_of(rows)},
        {"fig-10": partial(pictures.draw_fig10, rows=rows)},
    )


def judge_duplicates(rows: Sequence[Row], reasons: Sequence[str]) -> Outcome:
    """They grow from the fewest subscriptions to the most, at the highest rate of each kind of trip; and ping
    adds something on every system that propagates, and a smaller share on those that flood."""
    figures: dict[str, object] = {}
    parts: dict[str, bool] = {}
    added: dict[str, float] = {}
    for system in dict.fromkeys(row["system"] for row in rows):
        means = {
            option: mean_duplicates(of(rows, system=system, option=option)) for option in ("basic", "ping")
        }
        for option, points in means.items():
            for rate in (max(FULL_P), DENSE_P):
                values = [mean for (_, p), mean in points.items() if p == rate]
                if values:
                    text = f"{system} {option} p={rate:g}: from {values[0]:.3g} to {values[-1]:.3g}"
                    parts[text] = values[-1] > values[0]
        basic, ping = (sum(means[option].values()) for option in ("basic", "ping"))
        added[system] = ping / basic - 1 if basic else 0.0
        figures[system] = {
            option: {f"s={s} p={p:g}": round(mean, 2) for (s, p), mean in points.items()}
            for option, points in means.items()
        } | {"ping adds, share": round(added[system], 2)}
    others = [share for system, share in added.items() if system not in FLOODING]
    for system in set(FLOODING) & set(added) if others else ():
        text = f"ping adds {added[system]:.0%} on {system}, {min(others):.0%} on one that propagates"
        parts[text] = added[system] < min(others) and min(others) > 0
    return C4.outcome(
        all(parts.values()) if parts else None, figures=figures, note=note_of(parts, *reasons),
        paper="proportional to s and p; ping adds up to 45 % on Siena",
    )  # fmt: skip


def mean_duplicates(rows: Iterable[Row]) -> dict[tuple[int, float], float]:
    """By s and p, in their order."""
    found: dict[tuple[int, float], list[int]] = {}
    for row in rows:
        found.setdefault((row["s"], row["p"]), []).append(row["duplicates"])
    return {point: fmean(found[point]) for point in sorted(found, key=lambda one: (one[1], one[0]))}


register(
    Experiment(
        "caporuscio-duplicates", "Figure 10: duplicates by subscriptions and rate", (C4,), run_duplicates
    )
)


# --- C5: table 3 ---

SLOW_S = {"activemq": (1, 2, 3), "mosquitto": (1, 10, 20)}
"""As many subscriptions as the link can carry where each has its own copy; elsewhere the table's."""
TABLE_S = (10, 50, 100)


def slow_trips(quick: bool, systems: Sequence[str]) -> list[Trip]:
    options: tuple[SyncOption, ...] = ("basic", "ping")
    numbers = (1,) if quick else (1, 2, 3)
    trips = [
        Trip(system, option, s, 2.0, "gprs", number)
        for system in systems for option in options
        for s in SLOW_S.get(system, (1, 10, 30) if quick else TABLE_S) for number in numbers
    ]  # fmt: skip
    return [short(trip) for trip in trips] if quick else trips


def run_slow(quick: bool, sweep: Sweep) -> Findings:
    systems, reasons = installed(MAIN)
    rows = travel(sweep, slow_trips(quick, systems))
    for system in systems:
        if system in SLOW_S:
            many = ", ".join(map(str, SLOW_S[system]))
            reasons.append(f"{system} sends a copy for each subscription, so s = {many}")
    table = table3(rows)
    parts: dict[str, bool] = {}
    for system in systems:
        for option in ("basic", "ping"):
            delays = [row[f"delay {option} ms"] for row in table if row["system"] == system]
            parts[f"{system} {option}: {delays[0]} ms, then {delays[-1]} ms"] = delays[-1] > 1.2 * delays[0]
    figures = {f"{row['system']} s={row['s']}": row for row in table}
    outcome = C5.outcome(
        all(parts.values()) if parts else None, figures=figures, note=note_of(parts, *reasons),
        paper="13.6, 48.6, 95.0 s on Elvin; 13.9, 40.5, 74.8 s on FioranoMQ; Siena 8.3, 11.0, 10.8 s (basic)",
    )  # fmt: skip
    return Findings(
        [outcome],
        {"table-3": table, "trips": table_of(rows)},
        {"table-3": partial(pictures.draw_delays, rows=rows)},
    )


def table3(rows: Sequence[Row]) -> list[Row]:
    """Delay, losses and duplicates upon reattach, as the paper's table has them."""
    points = dict.fromkeys((row["system"], row["s"]) for row in rows)
    table: list[Row] = []
    for system, s in points:
        line: Row = {"system": system, "s": s}
        for name, key in (("delay", "move_in_s"), ("losses", "lost"), ("duplicates", "duplicates")):
            for option in ("basic", "ping"):
                mean = fmean(row[key] for row in of(rows, system=system, s=s, option=option))
                if name == "delay":
                    line[f"delay {option} ms"] = round(1000 * mean)
                else:
                    line[f"{name} {option}"] = round(mean, 1)
        table.append(line)
    return table


register(Experiment("caporuscio-gprs", "Table 3: moves over a GPRS link", (C5,), run_slow))


# --- C6: table 4 ---


def run_size(quick: bool, sweep: Sweep) -> Findings:
    found = sizes()
    adapters = found.adapters
    parts = {
        f"{name} has {lines} lines, the core {found.core}": lines < found.core
        for name, lines in adapters.items()
    } | {f"{module} of the core imports {name}": False for module, name in found.leaks}
    outcome = C6.outcome(
        all(parts.values()), paper="639 lines of core; 797, 936 and 755 for each system", note=failed(parts),
        figures={"core, lines": found.core, "client and server around it, lines": found.around, **adapters},
    )  # fmt: skip
    rows = [{"part": "core", "lines": found.core}, {"part": "around", "lines": found.around}]
    return Findings([outcome], {"table-4": rows + [{"part": n, "lines": c} for n, c in adapters.items()]})


register(Experiment("caporuscio-size", "Table 4: how large the core and the adapters are", (C6,), run_size))
