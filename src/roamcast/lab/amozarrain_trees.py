"""Trees of the election: plain, stable and balanced (Amozarrain 4.6 and 5.2). Claim R6.

In the thesis a broker's parent is the neighbour whose heartbeat of a round arrives first. Most brokers then
end up in one branch, and the thesis names balancing as future work. Three rules are compared: `plain` is that
of the thesis, `stable` keeps a parent as long as its heartbeats arrive, and `balanced` also prefers parents
with few children. Runs over the air are the short ones of the radio experiment. In runs over links, 32
brokers have a loss-free link to each broker in reach; half of them have a subscriber, and the first one has a
publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from roamcast.lab.amozarrain_radio import (
    DURATION_QUICK_S,
    MFT,
    PUBLISHING_QUICK_S,
    differences,
    figures_of,
    is_above,
    shown,
)  # fmt: skip
from roamcast.lab.charts import Chart, Panel, bars
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST
from roamcast.lab.rows import Row, distinct, mean_of, values_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility.moving.election import TreeRule, settings_of
from roamcast.protocol.effects import AttachTo, Input, PublishThis, SubscribeTo
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.faults import Cut, Heal
from roamcast.simulator.links import Delay
from roamcast.simulator.mobile_network import MobileNetwork
from roamcast.simulator.mobile_run import MobileChecker
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.radio.movement import RandomWaypoint
from roamcast.simulator.radio.scenario import RadioScenario
from roamcast.simulator.radio.workload import Publishing
from roamcast.simulator.topology import from_edges
from roamcast.simulator.tree_shape import TreeWatch

R6 = claim("R6")

RULES: tuple[TreeRule, ...] = ("plain", "stable", "balanced")
AIR, LINKS = "over the air", "over links"
SIZES = (8, 16, 32)
SEEDS, SEEDS_QUICK = 4, 3
SPEEDS_AIR, SPEEDS_LINKS = (2.0, 8.0), (0.0, 2.0)
BROKERS_LINKED = 32
SIDE_M, REACH_M = 80.0, 25.0
MOVING_S = 40.0
LINK_DELAY = Delay(0.001, 0.033)
"""Makes a round of the election last about a second, as over the air."""

EVENTS_MAX = 2_000_000
"""Plain trees never come to rest, so a run is ended by this limit."""


@dataclass(frozen=True)
class TreeJob(Job):
    where: str
    rule: TreeRule
    brokers: int
    speed: float
    seed: int

    @property
    def cost(self) -> float:
        return self.brokers**2


def jobs(quick: bool) -> list[TreeJob]:
    each = seeds(SEEDS_QUICK if quick else SEEDS)
    sizes, speeds = ((16,), (8.0,)) if quick else (SIZES, SPEEDS_AIR)
    air, links = partial(TreeJob, AIR), partial(TreeJob, LINKS, brokers=BROKERS_LINKED)
    over_air = grid(air, rule=RULES, brokers=sizes, speed=speeds, seed=each)
    return over_air + grid(links, rule=RULES, speed=SPEEDS_LINKS, seed=each)


def measure(job: TreeJob) -> Row:
    figures = _over_the_air(job) if job.where == AIR else _over_links(job)
    minutes = figures["duration_s"] / 60.0
    return {
        **asdict(job),
        "case": f"{job.where}, C{job.brokers}, {job.speed:g} m/s",
        "changes": figures["migrations"] / job.brokers / minutes,
        **{key: figures[key] for key in MEASURED if key != "changes"},
    }


MEASURED = {
    "changes": "changes of parent per broker and minute",
    "tree_hops": "hops to the leader, mean",
    "tree_depth": "hops to the leader, maximum",
    "tree_children_most": "children of a broker, maximum",
    "tree_branch_largest": "brokers in the largest branch, share",
    "delivery_rate": "delivered of what was owed",
    "delivered": "notifications delivered",
    "messages": "messages",
}


def _over_the_air(job: TreeJob) -> Row:
    return figures_of(
        RadioScenario(
            job.brokers,
            job.speed,
            MFT,
            job.seed,
            duration_s=DURATION_QUICK_S,
            publishing=Publishing(until_s=PUBLISHING_QUICK_S),
            election=settings_of(job.rule, 1.0, 0.25),
        )
    )


# --- over links ---


def _over_links(job: TreeJob) -> Row:
    """Run the election over links, as a story does: reach changes once a second, and all links work."""
    names = [f"b{number:02}" for number in range(job.brokers)]
    faults, pairs = _movements(job, names)
    topology = from_edges("chain", names, pairwise(names))
    settings = NetworkSettings(
        protocol=MFT, link_delay=LINK_DELAY, reach=tuple(pairs), tree=job.rule, seed=job.seed
    )
    network = MobileNetwork(topology, settings)
    checker = MobileChecker(network)
    watch = TreeWatch(lambda: {name: one.parent for name, one in network.elections.items()})
    at_end = _watch_until(network, watch, MOVING_S)
    network.run([*faults, *_doings(names)], EVENTS_MAX)
    result = checker.finish()
    if network.is_restless:
        raise RuntimeError(f"{job.name}: more than {EVENTS_MAX} events")
    return {
        "duration_s": MOVING_S,
        **at_end,
        **watch.figures(),
        "delivered": result.delivered,
        "delivery_rate": 1.0 - result.lost / result.expected,
    }


def _movements(job: TreeJob, names: Sequence[str]) -> tuple[list[Action], dict[tuple[str, str], None]]:
    """Return when each pair of brokers comes into reach of each other or loses it, and all pairs that are
    ever in reach."""
    movement = RandomWaypoint(job.brokers, SIDE_M, job.speed, np.random.default_rng([job.seed, 2]))
    every = list(combinations(range(job.brokers), 2))
    chain = [(number, number + 1) for number in range(job.brokers - 1)]
    in_reach = {pair: pair in chain for pair in every}
    pairs: dict[tuple[str, str], None] = {}
    faults: list[Action] = []
    for second in range(int(MOVING_S)):
        for one, other in every:
            apart_m = float(np.hypot(*(movement.positions_m[one] - movement.positions_m[other])))
            is_near = apart_m <= REACH_M
            if is_near and (one, other) not in chain:
                pairs[names[one], names[other]] = None
            if is_near != in_reach[one, other]:
                fault = Heal(names[other]) if is_near else Cut(names[other])
                faults.append((float(second), names[one], fault))
                in_reach[one, other] = is_near
        movement.advance(1.0)
    # What comes into reach later only is out of it at first.
    begins = {(who, fault.peer): at for at, who, fault in reversed(faults) if isinstance(fault, Heal)}
    late = [(0.0, one, Cut(other)) for one, other in pairs if begins.get((one, other), 0.0) > 0.0]
    return [*late, *faults], pairs


def _doings(names: Sequence[str]) -> list[Action]:
    actions: list[Action] = [(0.0, "p", AttachTo(names[0], 0))]
    for number, name in enumerate(names[::2]):
        actions += [(0.0, f"s{number:02}", AttachTo(name, 0)), (1.0, f"s{number:02}", SubscribeTo("x = 1"))]
    event = PublishThis(encode_attributes({"x": 1}))
    return actions + [(at + 0.5, "p", event) for at in range(5, int(MOVING_S))]


def _watch_until(network: MobileNetwork, watch: TreeWatch, until_s: float) -> dict[str, int]:
    """Sample once a second, and keep the counts of the moment at which everyone stopped moving."""
    at_end: dict[str, int] = {}
    check: Callable[[str, Sequence[Input]], None] | None = network.on_step

    def on_step(broker: str, inputs: Sequence[Input]) -> None:
        if check is not None:
            check(broker, inputs)
        if network.now <= until_s:
            at_end["migrations"], at_end["messages"] = network.migrations, network.traffic.messages
            if network.now >= len(watch.shapes) + 1 and network.elections:
                watch.look()

    network.on_step = on_step
    return at_end


# --- the findings ---


@checks("amozarrain-trees", "Trees of the election: plain, stable, balanced", R6)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    cases = distinct(rows, "case")
    table = [
        {
            "case": case, "rule": rule,
            **{key: shown(values_of(where(rows, case=case, rule=rule), key), 3) for key in MEASURED},
        }
        for case in cases
        for rule in RULES
    ]  # fmt: skip
    return Findings([judge_r6(rows)], {"runs": list(rows), "trees": table}, {"trees": chart(table)})


DRAWN = ("changes", "tree_hops", "tree_children_most", "tree_branch_largest", "delivery_rate", "messages")


def chart(table: Sequence[Row]) -> Chart:
    cases = sorted(distinct(table, "case"), key=lambda case: (case.split(", C")[0], len(case), case))

    def draw(axes: Axes, key: str) -> None:
        found = {(row["case"], row["rule"]): row[key] for row in table}
        # A single run has no interval, and stands for itself.
        series: dict[str, list[Any]] = {
            rule: [(*one, *one * 2)[:3] if (one := found[case, rule]) else 0.0 for case in cases]
            for rule in RULES
        }
        bars(series, (LOST, ARRIVED, "#2e7d4f"), across=True)(axes)
        axes.set_yticks(range(len(cases)), cases)
        axes.locator_params(axis="x", nbins=6)

    upside_down = {"xlim": (0, None), "ylim": (len(cases) - 0.5, -0.5)}
    panels = [
        Panel(partial(draw, key=key), {"xlabel": MEASURED[key], **upside_down}, grid="x") for key in DRAWN
    ]
    return Chart(
        "Trees of the election: plain, stable, balanced", "means over seeds with 95 % intervals", panels,
        columns=3, size=(14, 8.2), share="all", has_key=True,
    )  # fmt: skip


def judge_r6(rows: Sequence[Row]) -> Outcome:
    compared = {
        "balanced trees do not have fewer children at most": ("balanced", "stable", "tree_children_most"),
        "balanced trees do not change less than plain ones": ("balanced", "plain", "changes"),
        "stable trees do not change less than balanced ones": ("stable", "balanced", "changes"),
    }
    less = {
        f"{place}: {text}": differences(where(rows, where=place), key, {"rule": than}, {"rule": of})
        for place in (AIR, LINKS)
        for text, (of, than, key) in compared.items()
    }
    figures = {
        **{f"{text} (difference: mean, low, high)": shown(values, 3) for text, values in less.items()},
        **{
            MEASURED[key]: {
                f"{case}, {rule}": mean
                for case in distinct(rows, "case")
                for rule in RULES
                if (mean := mean_of(where(rows, case=case, rule=rule), key, 3)) is not None
            }
            for key in MEASURED
        },
    }
    return R6.judge({text: is_above(values) for text, values in less.items()}, figures)
