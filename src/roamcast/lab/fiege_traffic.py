"""Fiege et al. 2003, appendix B.2 and figure 9: how many messages logical mobility costs. Claims F4, F5.

The network is a tree of brokers with three children each and five levels below the root. The lowest level
holds the local brokers of ten producers each, behind slow links. The local broker of the only consumer is
attached to the root, by a slow link, too. Each step multiplies the locations in reach by four: this is the
paper's assumption, which no movement graph fulfils (a client may stay, so two steps reach 1 + 3 + 9
locations).

The formulas count every notification on every link whose filter lets it through, wherever it was published.
Reverse-path forwarding sends it only towards the consumer. So three things are measured: the hops of the
algorithm as it is; what each link would carry if it were offered everything (the formulas count that); and
the hops if brokers send what matches to all their neighbours.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor

from matplotlib.axes import Axes

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.filters.own import Possible, Values
from roamcast.lab.charts import Chart, Panel
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.rows import Row, rounded
from roamcast.lab.sweep import Job, Sweep
from roamcast.protocol import records
from roamcast.protocol.effects import AttachTo, MoveTo, PublishThis, SubscribeTo
from roamcast.protocol.messages import Message, Update
from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.routing.location.ploc import Rule
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.matching import Route
from roamcast.routing.router import Router
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.topology import Topology, from_edges

F4, F5 = map(claim, ("F4", "F5"))


DEGREE, LEVELS, PRODUCERS_PER_BROKER = 3, 5, 10
FAST_S, SLOW_S = 0.010, 0.600
LOCATIONS, FACTOR, RATE_PER_S = 100, 4, 1.0
STAYS_S = (10.0, 1.0)
PUBLISHED = Rule("one_way", "up")

LOCAL_BROKERS = int(DEGREE**LEVELS)
BROKERS = sum(int(DEGREE**level) for level in range(LEVELS + 1))
LINKS = BROKERS - 1
PRODUCERS = LOCAL_BROKERS * PRODUCERS_PER_BROKER


# --- the formulas ---


def flooding_messages(time_s: float) -> float:
    return PRODUCERS * RATE_PER_S * LINKS * time_s


def steps_at(level: int, stay_s: float, rule: Rule) -> float:
    """Return the steps of the filter on the link above this level (1 to 5); the consumer is one slow link
    away.
    """
    distance_s = SLOW_S + FAST_S * level if level < LEVELS else 2 * SLOW_S + FAST_S * (LEVELS - 1)
    return rule.steps(2 * distance_s, stay_s)


def share_at(level: int, stay_s: float, rule: Rule) -> float:
    """Return the share of all notifications that a link on this level lets through."""
    reach: float = FACTOR ** steps_at(level, stay_s, rule)
    return min(reach / LOCATIONS, 1.0)


def notification_messages(time_s: float, stay_s: float, rule: Rule) -> float:
    """Return the notification messages: every notification on every link whose filter lets it through."""
    shares = sum(float(DEGREE) ** level * share_at(level, stay_s, rule) for level in range(1, LEVELS + 1))
    return PRODUCERS * RATE_PER_S * time_s * shares


def control_messages(time_s: float, stay_s: float, per_move: int = LINKS) -> float:
    """Return the control messages: one over every link at each move."""
    return per_move * floor(time_s / stay_s)


def formula(time_s: float, stay_s: float, rule: Rule = PUBLISHED) -> float:
    return notification_messages(time_s, stay_s, rule) + control_messages(time_s, stay_s)


def judge_f4() -> Outcome:
    """Compare the formulas, computed from the tree and its levels, with the printed formulas."""
    values = {
        "flooding, per second": (flooding_messages(1), 2430 * 363.0),
        "stays of 10 s, notifications per second": (
            notification_messages(1, 10, PUBLISHED), 2430 * 363 * 4 / 100,
        ),
        "stays of 10 s, control per move": (control_messages(10, 10), 363.0),
        "stays of 10 s, 100 s": (formula(100, 10), 35_283.6 * 100 + 363 * 10),
        "stays of 1 s, notifications per second": (
            notification_messages(1, 1, PUBLISHED), 2430 * (243 * 16 / 100 + 120 * 4 / 100),
        ),
        "stays of 1 s, per second, brokers counted for control as printed": (
            notification_messages(1, 1, PUBLISHED) + control_messages(1, 1, BROKERS), 106_506.4,
        ),
    }  # fmt: skip
    parts = {f"{name}: {found:,.1f}": abs(found - due) < 0.05 for name, (found, due) in values.items()}
    levels = range(1, LEVELS + 1)
    figures = {
        "brokers, local brokers, links, producers": [BROKERS, LOCAL_BROKERS, LINKS, PRODUCERS],
        **{name: round(found, 1) for name, (found, _) in values.items()},
        "stays of 1 s, per second, links counted as for 10 s": round(formula(1, 1), 1),
        "steps by level, stays of 10 s": [steps_at(level, 10, PUBLISHED) for level in levels],
        "steps by level, stays of 1 s": [steps_at(level, 1, PUBLISHED) for level in levels],
        "the same, round trips": [steps_at(level, 1, Rule()) for level in levels],
        "stays of 1 s, per second, round trips": round(formula(1, 1, Rule()), 1),
    }
    return F4.judge(parts, figures, notes=[F4.why])


# --- the simulation ---


class Surroundings:
    """Locations on a ring; each step multiplies those in reach: 4, 16, 64, then all."""

    is_metric = False

    def validate(self) -> None:
        pass

    def check(self, value: Value) -> None:
        if value not in range(LOCATIONS):
            raise InputError(f"location {value!r}: valid are 0 to {LOCATIONS - 1}")

    def is_step(self, start: Value, end: Value) -> bool:
        return end in self.reach(int(start), 1)

    def reach(self, start: int, steps: float) -> list[int]:
        size = int(min(FACTOR ** min(steps, 10), LOCATIONS))
        first = start - (size - 1) // 2
        return sorted((first + offset) % LOCATIONS for offset in range(size))

    def near(self, values: tuple[Value, ...], steps: float, within: float) -> Possible:
        found = dict.fromkeys(one for value in values for one in self.reach(int(value), steps))
        return Values(tuple(sorted(found)), is_exact=steps == 0 and len(values) == 1)


def topology() -> Topology:
    """Return the brokers by level and position; `home` is the consumer's local broker."""
    edges = [("home", "n0-0")] + [
        (f"n{level - 1}-{place // DEGREE}", f"n{level}-{place}")
        for level in range(1, LEVELS + 1)
        for place in range(DEGREE**level)
    ]
    return from_edges("figure 14", tuple(sorted({end for edge in edges for end in edge})), edges)


def parent_of(broker: str) -> str:
    level, place = map(int, broker[1:].split("-"))
    return f"n{level - 1}-{place // DEGREE}" if level else "home"


@dataclass(frozen=True)
class TrafficJob(Job):
    """One run: how notifications are routed, how long the consumer stays at a location, and the duration."""

    mode: str
    """`reverse path`, `broadcast` or `flooding`."""
    stay_s: float
    duration_s: float
    rule: Rule = PUBLISHED

    @property
    def cost(self) -> float:
        hops = {"flooding": 882_090, "broadcast": 40_000, "reverse path": 3_000}[self.mode]
        return self.duration_s * hops


START_S = 60.0
"""Time at which subscriptions have settled."""


def actions(job: TrafficJob) -> Iterator[Action]:
    """Yield the actions. Each producer publishes once a second, at a moment of its own. Locations are drawn
    like cards from a deck, so that each occurs equally often.
    """
    rng = random.Random("fiege-traffic")
    yield 0.0, "C", AttachTo("home", 0)
    producers = [f"p{number}" for number in range(PRODUCERS)]
    for number, producer in enumerate(producers):
        yield 0.0, producer, AttachTo(f"n{LEVELS}-{number // PRODUCERS_PER_BROKER}", 0)
    yield 1.0, "C", SubscribeTo("location IN myloc")
    yield 5.0, "C", MoveTo({"location": 0})
    doings: list[Action] = []
    for number in range(floor(job.duration_s / job.stay_s)):
        # In the middle of each stay of the measured time, so that as many moves are told as it lasts.
        there = MoveTo({"location": (number + 1) % LOCATIONS})
        doings.append((START_S + job.stay_s * (number + 0.5), "C", there))
    pack: list[int] = []
    for second in range(ceil(job.duration_s)):
        share = min(job.duration_s - second, 1.0)
        for producer in rng.sample(producers, round(share * RATE_PER_S * len(producers))):
            if not pack:
                pack = rng.sample(range(LOCATIONS), LOCATIONS)
            attributes = encode_attributes({"location": pack.pop()})
            doings.append((START_S + second + share * rng.random(), producer, PublishThis(attributes)))
    yield from sorted(doings, key=lambda action: action[0])


@dataclass
class Meter:
    """Counts messages over links of the tree; the consumer's own link is counted apart."""

    job: TrafficJob
    links: list[tuple[Router, str]] = field(default_factory=list)
    """Links that are offered everything: the router at the lower end, and the name of the upper end."""
    hops: Counter[str] = field(default_factory=Counter)
    offered: int = 0

    def prepare(self, network: Network) -> None:
        if self.job.mode == "reverse path" and self.job.rule == PUBLISHED:
            self.links = [
                (broker.router, parent_of(name))
                for name, broker in network.brokers.items()
                if name not in ("home", "n0-0")
            ]
        if self.job.mode == "broadcast":
            for broker in network.brokers.values():
                broadcast(broker.router)

    def on_message(self, now: float, broker: str, peer: str, message: Message) -> None:
        if now < START_S:
            return
        kind = "notifications" if isinstance(message, Burst) else "control"
        if kind == "control" and not (isinstance(message, Update) and message.whereabouts):
            return
        if "home" in (broker, peer):
            kind += " on the consumer's link"
        self.hops[kind] += 1

    def on_rows(self, rows: list[records.Row]) -> None:
        """Offer each notification to every link of the tree, with the filters that were valid when it was
        published."""
        for row in rows:
            if row.kind == "published" and row.attributes is not None:
                self.offered += sum(up in router.route(row.attributes)[0] for router, up in self.links)


def broadcast(router: Router) -> None:
    """Make the broker send what matches to all its neighbours."""
    route = router.route

    def to_all(attributes: bytes) -> Route:
        peers, owners, groups = route(attributes)
        return (tuple(router.peers) if peers or owners else ()), owners, groups

    router.route = to_all  # type: ignore[method-assign]


def measure(job: TrafficJob) -> Row:
    links = [("home", "n0-0")] + [
        (parent_of(f"n{LEVELS}-{place}"), f"n{LEVELS}-{place}") for place in range(LOCAL_BROKERS)
    ]
    slow = Delay(SLOW_S, SLOW_S)
    settings = NetworkSettings(
        protocol="none",
        routing="flooding" if job.mode == "flooding" else "simple",
        link_delay=Delay(FAST_S, FAST_S),
        link_delays=tuple((*link, slow) for link in links),
        access_delay=Delay(0.0, 0.0),
        location=LocationSettings(
            {"location": Surroundings()}, stay_s=job.stay_s, rule=job.rule, measure_every_s=1e9
        ),
    )
    meter = Meter(job)
    run = run_checked(
        topology(), settings, actions(job), meter.on_rows, trace=meter.on_message, prepare=meter.prepare
    )
    return {
        "mode": job.mode,
        "stay_s": job.stay_s,
        "rule": f"{job.rule.distance}, {job.rule.rounding}",
        "duration_s": job.duration_s,
        "published": run.result.published,
        "delivered": run.result.delivered,
        "notification_hops": meter.hops["notifications"],
        "control_hops": meter.hops["control"],
        "offered": meter.offered,
        "violations": run.result.violations_total,
    }


@checks("fiege-traffic", "Fiege et al., appendix B.2 and figure 9: messages", F4, F5)
def traffic(quick: bool, sweep: Sweep) -> Findings:
    duration_s = 10.0 if quick else 60.0
    modes = ("reverse path", "broadcast")
    jobs = [TrafficJob(mode, stay_s, duration_s) for mode in modes for stay_s in STAYS_S]
    jobs += [TrafficJob("reverse path", stay_s, duration_s, Rule()) for stay_s in STAYS_S]
    # Every notification crosses every link: how long that is watched changes nothing.
    jobs.append(TrafficJob("flooding", STAYS_S[0], 0.25 if quick else 2.0))
    rows = sweep.run(measure, jobs)
    return Findings(
        [judge_f4(), judge_f5(rows)],
        {"traffic": rows, "figure_9": figure_9()},
        {"figure_9": chart(rows)},
    )


def chart(rows: Sequence[Row]) -> Chart:
    """Draw figure 9: total messages over time by formula, and the measured messages per second beside it."""
    formulas, bars = figure_9(), rates_of(rows)

    def draw_total(axes: Axes) -> None:
        for name, colour, label in (
            ("flooding", QUIET, "flooding"),
            ("stay_1", LOST, "stays of 1 s"),
            ("stay_10", ARRIVED, "stays of 10 s"),
        ):
            totals = [row[name] for row in formulas]
            axes.plot([row["time_s"] for row in formulas], totals, color=colour, label=label, linewidth=1.8)

    def draw_rates(axes: Axes) -> None:
        labels, values, colours = zip(*bars, strict=True)
        drawn = axes.barh(labels, values, color=colours, height=0.7)
        axes.bar_label(drawn, labels=[f"{value:,.0f}" for value in values], padding=3, fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
        axes.invert_yaxis()

    total = {"yscale": "log", "xlabel": "time in s", "ylabel": "messages in total, by the formulas"}
    rates = {"xscale": "log", "xlim": (100, 1e7)}
    return Chart(
        "Messages for one moving consumer among 2,430 producers (figure 9)",
        "364 brokers, 100 locations; links to the clients' brokers take 600 ms, the others 10 ms",
        [
            Panel(draw_total, total, legend={"fontsize": 9, "loc": "lower right"}),
            Panel(draw_rates, {**rates, "xlabel": "hops over the links of the tree per second, measured"}),
        ],
    )


def rates_of(rows: Sequence[Row]) -> list[tuple[str, float, str]]:
    """Return label, hops per second and colour of each bar."""
    bars = []
    for row in rows:
        colour, stays = {10.0: ARRIVED, 1.0: LOST}[row["stay_s"]], f"stays of {row['stay_s']:g} s"
        hops = per_second(row, "notification_hops", "control_hops")
        if row["mode"] == "flooding":
            bars.append(("flooding", hops, QUIET))
            continue
        rule = ", round trips" if row["rule"].startswith("round") else ""
        bars.append((f"{row['mode']},\n{stays}{rule}", hops, colour))
        if row["offered"] and not rule:
            offered = per_second(row, "offered", "control_hops")
            bars.append((f"let through by links,\n{stays}", offered, colour))
    return sorted(bars, key=lambda bar: -bar[1])


def figure_9() -> list[Row]:
    return [
        {
            "time_s": time_s,
            "flooding": flooding_messages(time_s),
            **{f"stay_{stay_s:g}": formula(time_s, stay_s) for stay_s in STAYS_S},
        }
        for time_s in range(1, 101)
    ]


def per_second(row: Row, *names: str) -> float:
    return sum(float(row[name]) for name in names) / float(row["duration_s"])


def judge_f5(rows: Sequence[Row]) -> Outcome:
    found = {(row["mode"], row["stay_s"], row["rule"]): row for row in rows}
    published, safe = (f"{rule.distance}, {rule.rounding}" for rule in (PUBLISHED, Rule()))
    wanted = [("reverse path", stay_s, rule) for stay_s in STAYS_S for rule in (published, safe)]
    wanted += [("broadcast", stay_s, published) for stay_s in STAYS_S]
    wanted.append(("flooding", STAYS_S[0], published))
    if not all(key in found for key in wanted):
        return F5.open("runs are missing")

    def hops(mode: str, rule: str = published) -> list[float]:
        """Return the hops per second, slow movement first."""
        return [
            per_second(found[mode, stay_s, rule], "notification_hops", "control_hops") for stay_s in STAYS_S
        ]

    let_through = [
        per_second(found["reverse path", stay_s, published], "offered", "control_hops") for stay_s in STAYS_S
    ]
    duration_s = found["reverse path", STAYS_S[0], published]["duration_s"]
    due = [formula(duration_s, stay_s) / duration_s for stay_s in STAYS_S]
    off = [one / expected - 1 for one, expected in zip(let_through, due, strict=True)]
    flooded = per_second(found["flooding", STAYS_S[0], published], "notification_hops")
    measured, corrected = hops("reverse path"), hops("reverse path", safe)
    parts = {
        "not below flooding": max(*measured, *corrected) < flooded,
        "slower movement does not save more": measured[0] < measured[1] and corrected[0] < corrected[1],
        "flooding is not as the formula says": abs(flooded / flooding_messages(1) - 1) < 0.02,
        f"what the links let through is {off[0]:+.1%} and {off[1]:+.1%} off": max(map(abs, off)) <= 0.02,
        "violations": not any(row["violations"] for row in rows),
    }
    figures = {
        "flooding, hops/s": round(flooded),
        "formula, stays of 10 s and 1 s": rounded(due),
        "what the links let through": rounded(let_through),
        "off the formula": [f"{one:+.2%}" for one in off],
        "broadcasting what matches": rounded(hops("broadcast")),
        "reverse path": rounded(measured),
        "reverse path, round trips": rounded(corrected),
    }
    return F5.judge(parts, figures, notes=[F5.why] if all(parts.values()) else [])
