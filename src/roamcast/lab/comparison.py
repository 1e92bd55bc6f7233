"""Every protocol in the same two scenarios, side by side: what `docs/protocols.md` shows. Claim P1 is ours.

The same clients publish the same and make the same moves under each protocol. Two ways of moving, because
a protocol that expects clients at neighbours depends on it: to any broker (`uniform`), and to a broker
next to the last one (`NBR`, Gaddah's neighbouring mobility, with his forks between a short handoff and a
long disconnection).

What is lost, duplicate or out of order is counted over the whole run. All else is counted after a warm-up
of two periods, when nearly everyone has left the place where it started. Stored is what the queues of a
broker hold, whoever they are for, looked at once in a simulated second; that includes what is on the air
and not acknowledged yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, register
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET
from roamcast.lab.measure import Window
from roamcast.lab.rows import Row, grouped, mean_of, sums_of, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility import PROTOCOLS, Promise, find_protocol
from roamcast.protocol import records
from roamcast.protocol.messages import Message, Relayed, cause_of
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.scenario import Scenario

P1 = Claim(
    "P1", "exact",
    "(ours) the same scenario under every protocol: whatever is lost, duplicate or out of order is what its "
    "promise excuses, and nothing at all where it excuses only full buffers",
    "every protocol keeps its promise",
)  # fmt: skip

ORDER = (
    "none", "durable", "reactive", "proactive", "home_broker", "sub_unsub", "multi_hop_handoff",
    "relocation", "phoenix",
)  # fmt: skip
"""Of the documents; what is registered later comes behind."""
MOVEMENTS = ("uniform", "NBR")
SAMPLE_EVERY_S = 1.0
WARM_UP_S = 120.0
COUNTS = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "violations")


def compared() -> list[str]:
    """Every registered protocol but the rules that are kept for comparison."""
    names = [name for name in PROTOCOLS if ":" not in name]
    return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


@dataclass(frozen=True)
class ComparisonJob(Job):
    protocol: str
    movement: str
    seed: int
    quick: bool

    @property
    def cost(self) -> float:
        return 2.0 if self.protocol == "proactive" else 1.0

    def scenario(self) -> Scenario:
        side, clients, duration_s = (4, 96, 240.0) if self.quick else (5, 250, 600.0)
        return Scenario(
            topology=f"grid:{side}",
            clients=clients,
            mobile=0.2,
            movement=self.movement,
            connect_s=30.0,
            disconnect_s=30.0,
            publish_every_s=20.0,
            selectivity=0.0625,
            duration_s=duration_s,
            network=NetworkSettings(protocol=self.protocol, seed=self.seed),
        )


# --- one run ---


class Sampler:
    """Looks at the queues of all brokers while a run goes on; times are the simulator's, in seconds."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self.next_s = from_s
        self.until_s = until_s
        self.stored: list[int] = []
        """Notifications, for each broker and sample."""
        self._network: Network | None = None

    def prepare(self, network: Network) -> None:
        self._network = network

    def along(self, actions: Iterable[Action]) -> Iterator[Action]:
        """The actions, which the network asks for as it comes to them."""
        for action in actions:
            if self._network is not None and self.next_s <= self._network.now < self.until_s:
                self.next_s = self._network.now + SAMPLE_EVERY_S
                for broker in self._network.brokers.values():
                    self.stored.append(sum(len(queue) for _, queue in broker.protocol.stored()))
            yield action


class Watch(Window):
    """Counts also messages, by cause, and what was published. A message that is relayed counts once."""

    def __init__(self, from_s: float, until_s: float) -> None:
        super().__init__(from_s, until_s)
        self.messages: Counter[str] = Counter()
        self.published = 0

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        super().on_message(now, sender, receiver, message)
        is_new = not isinstance(message, Relayed) or message.source == sender
        if is_new and self.from_s <= now < self.until_s:
            self.messages[cause_of(message)] += 1

    def observe(self, rows: list[records.Row]) -> None:
        super().observe(rows)
        for row in rows:
            if row.kind == "published" and self.from_s <= row.time < self.until_s:
                self.published += row.notifications or 1

    def figures(self) -> Row:
        per_handoff, per_notification = max(self.handoffs, 1), max(self.published, 1)
        return {
            **super().figures(),
            "handoffs_with_delay": len(self.delays_s),
            "transfer_per_handoff_hops": self.hops["transfer"] / per_handoff,
            "control_per_handoff_messages": self.messages["handoff"] / per_handoff,
            "publish_hops_per_notification": self.hops["publish"] / per_notification,
            "hops_per_notification": self.hops.total() / per_notification,
        }


def compare(job: ComparisonJob) -> Row:
    """Run the scenario under one protocol, check every delivery, and give its figures."""
    scenario = job.scenario()
    topology = scenario.make_topology()
    watch, sampler = Watch(WARM_UP_S, scenario.duration_s), Sampler(WARM_UP_S, scenario.duration_s)
    actions = sampler.along(scenario.actions(topology))
    run = run_checked(
        topology, scenario.network, actions, watch.observe, trace=watch.on_message, prepare=sampler.prepare
    )
    return {
        "protocol": job.protocol,
        "movement": job.movement,
        "seed": job.seed,
        **watch.figures(),
        "stored_per_broker_mean": fmean(sampler.stored),
        "stored_per_broker_max": max(sampler.stored),
        **counts_of(run),
    }


def counts_of(run: Run) -> Row:
    result = run.result
    return {
        **{name: getattr(result, name) for name in COUNTS[:-1]},
        "violations": result.violations_total,
        "first_violation": str(result.violations[0]) if result.violations else "",
    }


# --- all of them ---

SUMMED = ("handoffs", "handoffs_with_delay", *COUNTS)
AVERAGED = (
    "signalling_per_handoff_hops", "transfer_per_handoff_hops", "overhead_per_handoff_hops",
    "control_per_handoff_messages", "delay_mean_s", "delay_p50_s", "delay_p95_s",
    "stored_per_broker_mean", "publish_hops_per_notification", "hops_per_notification",
)  # fmt: skip


def jobs(quick: bool) -> list[ComparisonJob]:
    return [
        ComparisonJob(protocol, movement, seed, quick)
        for movement in MOVEMENTS
        for protocol in compared()
        for seed in range(1, 2 if quick else 4)
    ]


def comparison(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(compare, jobs(quick))
    summary = summarise(rows)
    return Findings(
        [judge_p1(rows)],
        {"comparison": summary, "comparison_runs": rows},
        {
            f"comparison_{movement}": chart(where(summary, movement=movement), PLACES[movement])
            for movement in MOVEMENTS
        },
    )


PLACES = {"uniform": "clients move to any broker", "NBR": "clients move to a broker next to the last one"}


def summarise(rows: Sequence[Row]) -> list[Row]:
    """One row for each protocol and way of moving: sums of counts, means over seeds of what is a rate."""
    return [
        {
            "movement": movement,
            "protocol": protocol,
            "runs": len(group),
            **sums_of(group, SUMMED),
            **{name: mean_of(group, name, 4) for name in AVERAGED},
            "stored_per_broker_max": max(row["stored_per_broker_max"] for row in group),
        }
        for (movement, protocol), group in grouped(rows, "movement", "protocol").items()
    ]


def chart(rows: Sequence[Row], setting: str) -> Chart:
    """Four panels, one bar for each protocol in each, the first on top."""
    names, places = [row["protocol"] for row in rows], list(range(len(rows)))[::-1]
    wrongs = ("lost", "duplicates")
    percent = [{**row, **{name: 100 * row[name] / row["expected"] for name in wrongs}} for row in rows]

    def panel(said: Mapping[str, object], *parts: tuple[str, str, str], mark: tuple[str, str] | None = None,
              scale: float = 1.0) -> Panel:  # fmt: skip
        """Bars of these columns, one behind the end of the other, and a mark for another column."""

        def draw(axes: Axes) -> None:
            ends = [0.0] * len(rows)
            for column, label, colour in parts:
                values = [scale * (row[column] or 0) for row in percent]
                axes.barh(places, values, left=ends, color=colour, label=label)
                ends = [end + value for end, value in zip(ends, values, strict=True)]
            if mark is not None:
                column, label = mark
                axes.plot(
                    [math.nan if row[column] is None else scale * row[column] for row in rows], places,
                    linestyle="none", marker="|", markersize=11, markeredgewidth=2, color=INK, label=label,
                )  # fmt: skip
            axes.set_yticks(places, names)

        legend = {"fontsize": 8.5, "ncols": 2, "loc": "lower left", "bbox_to_anchor": (0, 0.98)}
        return Panel(draw, {"ylabel": "mobility protocol", **said}, legend=legend, grid="x")

    runs = rows[0]["runs"] if rows else 0
    return Chart(
        "The protocols side by side", f"{setting}; {runs} run{'s' * (runs != 1)} each",
        [
            panel(
                {"xlabel": "overhead per handoff, hops by cause"},
                ("signalling_per_handoff_hops", "handoff", ARRIVED),
                ("transfer_per_handoff_hops", "transfer", "#9cc3e4"),
            ),
            panel(
                {"xlabel": "attach to first waiting notification, ms"}, ("delay_mean_s", "mean", ARRIVED),
                mark=("delay_p95_s", "95th percentile"), scale=1000,
            ),
            panel(
                {"xlabel": "notifications stored at one broker, logarithmic", "xscale": "log",
                 "xlim": (0.1, None)},
                ("stored_per_broker_mean", "mean over brokers and time", ARRIVED),
                mark=("stored_per_broker_max", "largest seen"),
            ),
            panel(
                {"xlabel": "lost and duplicate, % of what is owed"},
                ("lost", "lost", LOST), ("duplicates", "duplicate", QUIET),
            ),
        ],
        columns=2, size=(11, 7.2),
    )  # fmt: skip


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


register(Experiment("comparison", "Every protocol in the same scenario", (P1,), comparison))
