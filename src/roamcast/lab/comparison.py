"""Every protocol in the same scenarios, side by side: see `docs/protocols.md`. Claims P1 and P2 are ours.

Under each protocol the same clients publish the same notifications and make the same moves. There are two
ways of moving, because they matter to protocols that expect clients at neighbours: to any broker (`uniform`),
and to a broker next to the last one (`NBR`, Gaddah's neighbouring mobility, in which a move is a short
handoff or a long disconnection). With a trace, the clients of the trace move as they did; protocols that
predict moves have a model learned from everything before the part that is replayed.

What is lost, duplicate or out of order is counted over the whole run. All else is counted after a warm-up,
when nearly every client has left its first broker. `stored` is the number of notifications in all queues of a
broker, sampled once per simulated second; it includes those that are sent and not acknowledged yet. A round
trip is from the new broker to the old one and back.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import fmean

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET
from roamcast.lab.measure import GivenTrace, Window, visits_before
from roamcast.lab.rows import Row, grouped, mean_of, sums_of, values_of
from roamcast.lab.summary import percentile
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility import PROTOCOLS, Promise, Settings, find_protocol
from roamcast.models.intervals import mean_interval
from roamcast.models.next_broker import learned_document
from roamcast.protocol import records
from roamcast.protocol.effects import PublishThis
from roamcast.protocol.messages import Message, Relayed, cause_of
from roamcast.simulator.movement import from_file, part_of
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.topology import Topology, parse_topology

P1, P2 = map(claim, ("P1", "P2"))


ORDER = (
    "none", "durable", "reactive", "proactive", "home_broker", "sub_unsub", "multi_hop_handoff",
    "relocation", "phoenix", "roam",
)  # fmt: skip
"""Protocols in the order of the documents; those registered later follow."""
MOVEMENTS = ("uniform", "NBR")
SAMPLE_EVERY_S = 1.0
WARM_UP_S = 120.0
TRACE_WARM_UP_S = 60.0
TRACE_SPAN_S = 3600.0
"""Maximum length of the replayed part of a trace, around the busiest time of its last third."""
TRACE_CLIENTS_MAX = 300
SELECTIVITY = 0.0625
RECEIVED_PER_S = 0.2
"""Notifications per second for each client of a trace: enough that some wait although clients are away for
only a second."""
COUNTS = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "violations")


def compared() -> list[str]:
    """Return every registered protocol except the published rules that are kept for comparison."""
    names = [name for name in PROTOCOLS if ":" not in name]
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


@cache
def model_before(trace: GivenTrace) -> str:
    """Return a model file learned from the part of a trace that is not replayed."""
    return json.dumps(learned_document(visits_before(trace.file, trace.from_s), trace.from_s))


@dataclass(frozen=True)
class ComparisonJob(Job):
    protocol: str
    movement: str
    seed: int
    quick: bool
    trace: GivenTrace | None = None

    @property
    def cost(self) -> float:
        return 2.0 if self.protocol == "proactive" else 1.0

    @property
    def warm_up_s(self) -> float:
        return WARM_UP_S if self.trace is None else TRACE_WARM_UP_S

    def scenario(self) -> Scenario:
        if self.trace is not None:
            mobility = Settings(neighbour_graph=model_before(self.trace))
            network = NetworkSettings(protocol=self.protocol, seed=self.seed, mobility=mobility)
            return replace(self.trace.scenario(), network=network)
        side, clients, duration_s = (4, 96, 240.0) if self.quick else (5, 250, 600.0)
        return Scenario(
            topology=f"grid:{side}",
            clients=clients,
            mobile=0.2,
            movement=self.movement,
            connect_s=30.0,
            disconnect_s=30.0,
            publish_every_s=20.0,
            selectivity=SELECTIVITY,
            duration_s=duration_s,
            network=NetworkSettings(protocol=self.protocol, seed=self.seed),
        )


# --- one run ---


class Sampler:
    """Samples the queues of all brokers during a run; times are the simulator's, in seconds."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.next_s = from_s
        self.until_s = until_s
        self.stored: list[int] = []
        """Stored notifications, one value for each broker and sample."""
        self._network: Network | None = None

    def prepare(self, network: Network) -> None:
        self._network = network

    def along(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield the actions as the network asks for them, sampling on the way."""
        for action in actions:
            if self._network is not None and self.next_s <= self._network.now < self.until_s:
                self.next_s = self._network.now + SAMPLE_EVERY_S
                for broker in self._network.brokers.values():
                    self.stored.append(sum(len(queue) for _, queue in broker.protocol.stored()))
            yield action


class Watch(Window):
    """Counts messages by cause, publications, round trips, and the delays of roaming publishers. A relayed
    message counts once. The delay of a roaming publisher is measured for notifications that it published
    while away and sent after attaching elsewhere: from that attach to each delivery. Some subscribers are
    away at that time, so only the median describes the handoff.
    """

    def __init__(
        self,
        from_s: float,
        until_s: float,
        topology: Topology | None = None,
        settings: NetworkSettings | None = None,
    ) -> None:
        super().__init__(from_s, until_s)
        self.messages: Counter[str] = Counter()
        self.published = 0
        self.round_trips: list[float] = []
        self.publisher_delays_s: list[float] = []
        self._topology, self._settings = topology, settings or NetworkSettings()
        self._way_hops: dict[str, int] = {}
        """By client: the distance from its last broker to the present one."""
        self._issued: Counter[str] = Counter()
        self._away: set[str] = set()
        self._issued_away: dict[str, list[int]] = {}
        """By client: the numbers of the notifications that it published while away."""
        self._sent_at: dict[tuple[str, int], float] = {}

    def along(self, actions: Iterable[Action]) -> Iterator[Action]:
        """Yield the actions, and note which clients publish while away."""
        for action in actions:
            _, client, item = action
            if isinstance(item, PublishThis):
                self._issued[client] += 1
                if client in self._away:
                    self._issued_away.setdefault(client, []).append(self._issued[client])
            yield action

    def _on_moved(self, row: records.Row) -> None:
        super()._on_moved(row)
        client = row.client or ""
        if row.reason == "left":
            self._away.add(client)
            return
        self._away.discard(client)
        numbers = self._issued_away.pop(client, [])
        if row.reason and row.reason != row.broker and self.from_s <= row.time < self.until_s:
            self._sent_at.update({(client, number): row.time for number in numbers})
            if self._topology is not None:
                self._way_hops[client] = self._topology.distance(row.reason, row.broker or "")

    def _on_delivered(self, row: records.Row) -> None:
        count = len(self.delays_s)
        super()._on_delivered(row)
        hops = self._way_hops.get(row.client or "", 0)
        if len(self.delays_s) > count and hops:
            air_s = self._settings.access_delay.low_s + self._settings.access_delay.high_s
            round_trip_s = hops * (self._settings.link_delay.low_s + self._settings.link_delay.high_s)
            self.round_trips.append(max(0.0, self.delays_s[-1] - air_s) / round_trip_s)

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        super().on_message(now, sender, receiver, message)
        is_new = not isinstance(message, Relayed) or message.source == sender
        if is_new and self.from_s <= now < self.until_s:
            self.messages[cause_of(message)] += 1

    def observe(self, rows: list[records.Row]) -> None:
        super().observe(rows)
        for row in rows:
            if row.kind == "delivered" and self._sent_at:
                for number in range(row.number or 0, (row.number or 0) + (row.notifications or 1)):
                    sent_at = self._sent_at.get((row.publisher or "", number))
                    if sent_at is not None:
                        self.publisher_delays_s.append(row.time - sent_at)
            if row.kind == "published" and self.from_s <= row.time < self.until_s:
                self.published += row.notifications or 1

    def figures(self) -> Row:
        per_handoff, per_notification = max(self.handoffs, 1), max(self.published, 1)
        return {
            **super().figures(),
            "handoffs_with_delay": len(self.delays_s),
            "delay_round_trips": fmean(self.round_trips) if self.round_trips else None,
            "publisher_delay_p50_s": percentile(sorted(self.publisher_delays_s), 0.5),
            "transfer_per_handoff_hops": self.hops["transfer"] / per_handoff,
            "control_per_handoff_messages": self.messages["handoff"] / per_handoff,
            "publish_hops_per_notification": self.hops["publish"] / per_notification,
            "hops_per_notification": self.hops.total() / per_notification,
        }


def compare(job: ComparisonJob) -> Row:
    """Run the scenario under one protocol, check every delivery, and return its figures."""
    scenario = job.scenario()
    topology = scenario.make_topology()
    watch = Watch(job.warm_up_s, scenario.duration_s, topology, scenario.network)
    sampler = Sampler(job.warm_up_s, scenario.duration_s)
    actions = sampler.along(watch.along(scenario.actions(topology)))
    run = run_checked(
        topology, scenario.network, actions, watch.observe, trace=watch.on_message, prepare=sampler.prepare
    )
    figures, result = Counter[str](), run.result
    for broker in run.network.brokers.values():
        figures.update(getattr(broker.protocol, "figures", {}))
    return {
        "protocol": job.protocol,
        "movement": job.movement,
        "seed": job.seed,
        **watch.figures(),
        "copies_per_handoff": figures["copies"] / max(result.handoffs, 1),
        "stored_per_broker_mean": fmean(sampler.stored),
        "stored_per_broker_max": max(sampler.stored),
        **{name: getattr(result, name) for name in COUNTS[:-1]},
        "violations": result.violations_total,
        "first_violation": str(result.violations[0]) if result.violations else "",
    }


# --- all of them ---

SUMMED = ("handoffs", "handoffs_with_delay", *COUNTS)
AVERAGED = (
    "signalling_per_handoff_hops", "transfer_per_handoff_hops", "overhead_per_handoff_hops",
    "control_per_handoff_messages", "delay_mean_s", "delay_p50_s", "delay_p95_s",
    "stored_per_broker_mean", "publish_hops_per_notification", "hops_per_notification", "delay_round_trips",
    "publisher_delay_p50_s", "copies_per_handoff",
)  # fmt: skip


WITH_INTERVAL = ("delay_p50_s", "delay_p95_s", "overhead_per_handoff_hops")


def jobs(quick: bool) -> list[ComparisonJob]:
    one = partial(ComparisonJob, quick=quick)
    return grid(one, movement=MOVEMENTS, protocol=compared(), seed=seeds(1 if quick else 3))


def comparison_on(sweep: Sweep, trace: Path, overlay: Path) -> Findings:
    one = partial(ComparisonJob, movement=trace.stem, quick=False, trace=replayed_trace(trace, overlay))
    return findings_of(sweep.run(compare, grid(one, protocol=compared(), seed=seeds(3))))


@checks("comparison", "Every protocol in the same scenario", P1, P2, on_trace=comparison_on)
def comparison(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(compare, jobs(quick)))


def replayed_trace(file: Path, overlay: Path) -> GivenTrace:
    """Return the hour of the trace's last third in which most visits begin."""
    visits = from_file(file, parse_topology(f"file:{overlay}", Random(0)))
    begins = sorted(one.attach_s for of_client in visits.values() for one in of_client)
    ends_s = max(one.leave_s or one.attach_s for of_client in visits.values() for one in of_client)
    starts_s = [TRACE_SPAN_S * hour for hour in range(int(ends_s // TRACE_SPAN_S) + 1)]
    later = [start_s for start_s in starts_s if start_s >= 2 / 3 * ends_s] or [0.0]
    from_s = max(later, key=lambda start_s: sum(start_s <= at_s < start_s + TRACE_SPAN_S for at_s in begins))
    until_s = from_s + TRACE_SPAN_S
    present = sum(bool(part_of(of_client, from_s, until_s)) for of_client in visits.values())
    clients = min(present, TRACE_CLIENTS_MAX)
    return GivenTrace(
        str(file.absolute()), str(overlay.absolute()), from_s, TRACE_SPAN_S, clients, SELECTIVITY,
        SELECTIVITY * clients / RECEIVED_PER_S,
    )  # fmt: skip


def findings_of(rows: Sequence[Row]) -> Findings:
    summary = summarise(rows)
    return Findings(
        [judge_p1(rows), judge_p2(rows)],
        {"comparison": summary, "comparison_runs": list(rows)},
        {f"comparison_{question}": draw(summary) for question, draw in QUESTIONS.items()},
    )


PLACES = {"uniform": "to any broker", "NBR": "to a broker next to the last one"}
"""Descriptions of ways of moving; other names are those of traces."""


def interval(rows: Sequence[Row], column: str) -> float | None:
    """Return half the width of the 95 % interval of a mean over runs; None with fewer than two runs."""
    values = values_of(rows, column)
    return fmean(values) - mean_interval(values).low if len(values) > 1 else None


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each protocol and way of moving: sums of counts, means of rates over seeds."""
    return [
        {
            "movement": movement,
            "protocol": protocol,
            "runs": len(group),
            **sums_of(group, SUMMED),
            **{name: mean_of(group, name, 4) for name in AVERAGED},
            **{f"{name}_interval": interval(group, name) for name in WITH_INTERVAL},
            "stored_per_broker_max": max(row["stored_per_broker_max"] for row in group),
            **{
                f"{name}_percent": 100
                * sum(row[name] for row in group)
                / max(sum(row["expected"] for row in group), 1)
                for name in ("lost", "duplicates")
            },
        }
        for (movement, protocol), group in grouped(rows, "movement", "protocol").items()
    ]


Bars = Sequence[tuple[str, str, str]]
"""For each column: its name, label and colour."""


def bars(
    title: str, label: str, parts: Bars, mark: tuple[str, str] | None = None, scale: float = 1.0,
    whiskers: str = "", **said: object,
) -> Callable[[Sequence[Row]], Chart]:  # fmt: skip
    """Draw a panel for each way of moving, with a bar for each protocol from top to bottom. Columns are
    stacked.
    """

    def panel(rows: Sequence[Row], setting: str) -> Panel:
        names, places = [row["protocol"] for row in rows], list(range(len(rows)))[::-1]

        def draw(axes: Axes) -> None:
            ends = [0.0] * len(rows)
            for column, name, colour in parts:
                values = [scale * (row[column] or 0) for row in rows]
                axes.barh(places, values, left=ends, color=colour, label=name)
                ends = [end + value for end, value in zip(ends, values, strict=True)]
            if whiskers:
                spans = [math.nan if row[whiskers] is None else scale * row[whiskers] for row in rows]
                axes.errorbar(
                    ends, places, xerr=spans, linestyle="none", color=QUIET, capsize=3, label="95 % interval"
                )
            if mark is not None:
                column, name = mark
                axes.plot(
                    [math.nan if row[column] is None else scale * row[column] for row in rows], places,
                    linestyle="none", marker="|", markersize=11, markeredgewidth=2, color=INK, label=name,
                )  # fmt: skip
            axes.set_yticks(places, names)

        limits = {"xlabel": label, "ylabel": "mobility protocol", "xlim": (0.0, None), **said}
        return Panel(draw, limits, setting, grid="x")

    def chart(rows: Sequence[Row]) -> Chart:
        panels = [
            panel(group, f"clients move {PLACES[movement]}" if movement in PLACES else f"trace {movement}")
            for (movement,), group in grouped(rows, "movement").items()
        ]
        columns = min(2, len(panels))
        size = (5.6 * columns + 0.4, 3.5 * math.ceil(len(panels) / 2) + 1.0)
        return Chart(title, "the same clients, publications and moves", panels, columns, size, has_key=True)

    return chart


QUESTIONS: Mapping[str, Callable[[Sequence[Row]], Chart]] = {
    "delay": bars(
        "How long does a client wait?", "attach to first waiting notification, ms",
        [("delay_p50_s", "median", ARRIVED)], ("delay_p95_s", "95th percentile"), 1000,
        "delay_p50_s_interval",
    ),
    "hops": bars(
        "What does a handoff cost?", "overhead per handoff, hops by cause",
        [
            ("signalling_per_handoff_hops", "handoff", ARRIVED),
            ("transfer_per_handoff_hops", "transfer", "#9cc3e4"),
        ],
        whiskers="overhead_per_handoff_hops_interval",
    ),
    "stored": bars(
        "What do brokers store?", "notifications stored at one broker, logarithmic",
        [("stored_per_broker_mean", "mean over brokers and time", ARRIVED)],
        ("stored_per_broker_max", "largest seen"), xscale="log", xlim=(0.1, None),
    ),
    "promise": bars(
        "What is lost or repeated?", "lost and duplicate, % of what is owed",
        [("lost_percent", "lost", LOST), ("duplicates_percent", "duplicate", QUIET)],
    ),
}  # fmt: skip


def excuses_only_full_buffers(promise: Promise) -> bool:
    return not (promise.lost - {"overflow", "expired"} or promise.duplicate or promise.reordered)


def judge_p1(rows: Sequence[Row]) -> Outcome:
    wrong = {f"{row['protocol']}: {row['first_violation']}" for row in rows if row["violations"]}
    for row in rows:
        if excuses_only_full_buffers(find_protocol(row["protocol"]).promise):
            wrong |= {
                f"{row['protocol']}: {row[name]} {name.replace('_', ' ')}"
                for name in ("lost", "duplicates", "out_of_order", "unexpected")
                if row[name]
            }
    figures = {
        f"{row['protocol']}, {row['movement']}": {
            name: row[name] for name in ("expected", "lost", "duplicates", "out_of_order", "violations")
        }
        for row in summarise(rows)
    }
    note = "; ".join(sorted(wrong))
    return P1.outcome(not wrong if rows else None, {"runs": len(rows), **figures}, note)


def judge_p2(rows: Sequence[Row]) -> Outcome:
    """Judge P2 for all ways of moving except `uniform`, in which no broker can be expected."""
    parts: dict[str, bool] = {}
    figures: dict[str, object] = {}
    for movement, group in grouped(summarise(rows), "movement").items():
        by_name = {row["protocol"]: row for row in group}
        roam, multi_hop, proactive = (
            by_name.get(name) for name in ("roam", "multi_hop_handoff", "proactive")
        )
        if movement == ("uniform",) or roam is None or multi_hop is None or proactive is None:
            continue
        exact = [row for row in group if excuses_only_full_buffers(find_protocol(row["protocol"]).promise)]
        where_ = f"{movement[0]}: "
        is_trace = movement[0] not in MOVEMENTS
        parts[where_ + "another protocol has a lower median delay"] = roam["delay_p50_s"] <= min(
            row["delay_p50_s"] for row in exact
        )
        if is_trace:
            parts[where_ + "the median is more than half of multi_hop_handoff's"] = (
                roam["delay_p50_s"] <= multi_hop["delay_p50_s"] / 2
            )
        parts[where_ + "the 95th percentile is above multi_hop_handoff's"] = (
            roam["delay_p95_s"] <= multi_hop["delay_p95_s"]
        )
        hops = "overhead_per_handoff_hops"
        parts[where_ + "more than twice the hops of multi_hop_handoff"] = roam[hops] <= 2 * multi_hop[hops]
        # Of all causes: what neighbours store under proactive comes to them by routing.
        all_hops = "hops_per_notification"
        parts[where_ + "more hops than proactive"] = roam[all_hops] < proactive[all_hops]
        copies = "copies_per_handoff"
        parts[where_ + "more copies than proactive"] = roam[copies] < proactive[copies]
        for row in (multi_hop, proactive, roam):
            shown = ("delay_p50_s", "delay_p95_s", hops, all_hops, copies)
            figures[f"{where_}{row['protocol']}"] = {name: row[name] for name in shown}
    return P2.judge(parts, figures) if parts else P2.open("no runs of the three protocols")
