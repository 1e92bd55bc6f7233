"""Wang et al. 2007, section 5: multi-hop handoff beside sub-unsub and home broker. Claims W1 to W7.

Where the paper leaves something open, one choice is made for all three protocols:

- The minimum spanning tree is not unique: the seed draws one, the same for every protocol, so the
  intervals over seeds are over trees, workloads and moves together.
- Duration: counting begins after a warm-up of two periods (connection and disconnection together), when
  nearly everyone has left the place where it started, and lasts 40 minutes, or two periods if that is longer.
  So even with connections of 10,000 s the 200 mobile clients of the paper's setting make about 400 handoffs
  in each run.
- sub-unsub waits for twice the longest delay between two brokers, which is the true bound. The paper waits
  for that delay once, and loses notifications (see `mobility.sub_unsub`).
- Overhead is the hops of everything caused by mobility: moving subscriptions and sessions, transferring
  what is stored, and the triangle over the home broker.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel, Pen, curves, runs_of
from roamcast.lab.curves import Curve, Curves, means_of, plane, power
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.measure import ScenarioJob, measure
from roamcast.lab.rows import Row, distinct, rounded, sums_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility import PROTOCOLS
from roamcast.mobility.multi_hop_handoff import MultiHopHandoff, Reference
from roamcast.protocol import records
from roamcast.protocol.effects import AttachTo, LeaveFor, PublishThis, SubscribeTo
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.network import Action, Network, NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.story import parse_story
from roamcast.simulator.topology import Topology, parse_topology
from roamcast.simulator.workload import make_workload

W1, W2, W3, W4, W5, W6, W7 = map(claim, ("W1", "W2", "W3", "W4", "W5", "W6", "W7"))

MHH, SUB_UNSUB, HOME = "multi_hop_handoff", "sub_unsub", "home_broker"
LABELS = {MHH: "MHH", SUB_UNSUB: "sub-unsub", HOME: "home broker"}
COMPARED = (MHH, SUB_UNSUB, HOME)
PENS = {
    MHH: Pen("multi-hop handoff", ARRIVED, "o"),
    HOME: Pen("home broker", LOST, "s"),
    SUB_UNSUB: Pen("sub-unsub", "#2e7d4f", "^"),
}

CLIENTS_PER_BROKER = 10
MOBILE = 0.2
PUBLISH_EVERY_S = 300.0
SELECTIVITY = 0.0625
DISCONNECT_S = 300.0
EDGE_S = 100.0
"""Connection period below which the paper sees sub-unsub climb, and above which it sees home broker climb."""

WARM_UP_CYCLES = 2
WINDOW_CYCLES = 2
WINDOW_MIN_S = 2400.0


def job(
    side: int, protocol: str, connect_s: float, seed: int, *, routing: str = "", workload: str = "groups"
) -> ScenarioJob:
    """Return one run in the setting of section 5.1."""
    cycle_s = connect_s + DISCONNECT_S
    warm_up_s = WARM_UP_CYCLES * cycle_s
    scenario = Scenario(
        topology=f"grid:{side}",
        clients=CLIENTS_PER_BROKER * side * side,
        mobile=MOBILE,
        connect_s=connect_s,
        disconnect_s=DISCONNECT_S,
        workload=workload,
        selectivity=SELECTIVITY,
        publish_every_s=PUBLISH_EVERY_S,
        duration_s=warm_up_s + max(WINDOW_MIN_S, WINDOW_CYCLES * cycle_s),
        network=NetworkSettings(protocol=protocol, routing=routing, seed=seed),
    )
    case = " ".join(filter(None, (protocol, routing, workload if workload != "groups" else "")))
    labels = (("case", case), ("protocol", protocol), ("connect_s", connect_s), ("side", side))
    return ScenarioJob(labels, scenario, warm_up_s)


def compared() -> list[str]:
    return [name for name in COMPARED if name in PROTOCOLS]


def missing(curves: Mapping[str, Curve], needed: Sequence[str]) -> str:
    """Say which protocols have no runs; "" if none is missing."""
    absent = [name for name in needed if name not in curves]
    return f"no runs of {', '.join(absent)}" if absent else ""


# --- figure 5: the length of connection periods ---


CLIMB_MIN = 1.25
"""A climb is at least a quarter, several times the scatter between seeds."""
LINEAR_POWERS = (0.9, 1.1)
"""Exponents that count as linear, of the overhead in addition to that at the shortest period: 0.5 is a root,
2 a square.
"""
LOW_MAX = 1.25
"""Multi-hop handoff is low if it costs at most a quarter more than the cheaper of the other two, and …"""
LOW_SPREAD_MAX = 1.5
"""… if its costliest period costs at most half more than its cheapest one; the others at least double."""
FAR_MIN = 2.0
"""Far above: at least twice the delay, at every point."""
NEAR_MAX = 1.2
"""Nearly equal: within a fifth, at every point."""
FLAT_MAX = 1.25
"""Flat over four decades of the period: the slowest point is at most a quarter above the fastest."""

PERIODS_S = (1.0, 4.64, 21.5, 100.0, 464.0, 2154.0, 10_000.0)
"""Connection periods, evenly spaced on the paper's logarithmic axis."""
PERIODS_QUICK_S = (1.0, 10.0, 100.0, 1000.0, 3000.0)


def fig5_jobs(quick: bool) -> list[ScenarioJob]:
    side, periods_s = (5, PERIODS_QUICK_S) if quick else (10, PERIODS_S)
    return grid(partial(job, side), protocol=compared(), connect_s=periods_s, seed=seeds(2))


@checks("wang-fig5", "Wang et al., figure 5: connection periods", W1, W2)
def fig5(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(measure, fig5_jobs(quick))
    overhead = Curves(rows, "case", "connect_s", "overhead_per_handoff_hops")
    delay = Curves(rows, "case", "connect_s", "delay_mean_s")
    across = {"xscale": "log", "xlabel": "mean connection period, s"}
    hops = {**across, "ylabel": "overhead per handoff, hops"}
    drawn = curves(overhead, PENS)
    return Findings(
        [judge_w1(overhead), judge_w2(delay)],
        {"fig5_runs": rows, "fig5a_overhead": overhead.table(), "fig5b_delay": delay.table()},
        {
            # As in the paper, and beside it with a logarithmic axis, on which the lower curves can be read.
            "fig5a_overhead": Chart(
                "Message overhead per handoff against the connection period", about(overhead),
                [
                    Panel(drawn, {**hops, "ylim": (0, None)}, "as in figure 5(a)", legend={}),
                    Panel(drawn, {**hops, "yscale": "log"}, "the same, overhead on a logarithmic axis"),
                ],
            ),
            "fig5b_delay": Chart(
                "Handoff delay against the connection period, figure 5(b)", about(delay),
                [delay_panel(delay, across)],
            ),
        },
    )  # fmt: skip


def about(measured: Mapping[str, Curve]) -> str:
    return f"{runs_of(measured)}; setting of Wang et al. 2007, section 5.1"


def delay_panel(delay: Curves, across: Mapping[str, str], rows: Sequence[Row] = ()) -> Panel:
    """Draw the delays, and beside them the time of a round trip over the distances in these rows."""

    def draw(axes: Axes) -> None:
        curves(delay, PENS, scale=1000)(axes)
        if not rows:
            return
        distances = {"mean distance": ("mean_distance_hops", ":"),
                     "longest distance (diameter)": ("diameter_hops", "-.")}  # fmt: skip
        for label, (column, line) in distances.items():
            (curve,) = Curves([{**row, "all": ""} for row in rows], "all", "brokers", column).values()
            times_ms = [20 * hops for hops in curve.means]
            axes.plot(curve.xs, times_ms, color=QUIET, linestyle=line, label=f"{label}, there and back")

    said = {**across, "ylabel": "attach to first notification, ms"}
    return Panel(draw, said, legend={"ncols": 2 if rows else 3, "fontsize": 9}, room=1.45)


def judge_w1(curves: Mapping[str, Curve]) -> Outcome:
    if note := missing(curves, COMPARED):
        return W1.open(note)
    mhh, sub_unsub, home = (curves[name] for name in COMPARED)
    shortest_s, longest_s = mhh.xs[0], mhh.xs[-1]
    added = [(x, home.at(x) - home.at(shortest_s)) for x in home.xs if x > EDGE_S]
    low, high = LINEAR_POWERS
    figures = {
        "sub-unsub, shortest period / 100 s": sub_unsub.at(shortest_s) / sub_unsub.at(EDGE_S),
        "home broker, longest period / 100 s": home.at(longest_s) / home.at(EDGE_S),
        "home broker, exponent of its growth above 100 s": power(*map(list, zip(*added, strict=True))),
        "MHH, costliest / cheapest period": mhh.spread,
        "MHH / cheaper of the others, maximum": max(
            mhh.at(x) / min(sub_unsub.at(x), home.at(x)) for x in mhh.xs
        ),
    }
    climbs, rises, linear, spread, above = figures.values()
    parts = {
        f"sub-unsub does not climb by {CLIMB_MIN}": climbs >= CLIMB_MIN,
        f"home broker does not climb by {CLIMB_MIN}": rises >= CLIMB_MIN,
        "home broker is not linear": low <= linear <= high,
        "MHH varies with the period": spread <= LOW_SPREAD_MAX,
        "MHH is not the lowest or near it": above <= LOW_MAX,
    }
    hops = means_of(curves, 1)
    return W1.judge(parts, {"periods_s": mhh.xs, "hops_per_handoff": hops, **figures})


def judge_w2(curves: Mapping[str, Curve]) -> Outcome:
    if note := missing(curves, COMPARED):
        return W2.open(note)
    mhh, sub_unsub, home = (curves[name] for name in COMPARED)
    between = [home.at(x) / mhh.at(x) for x in mhh.xs]
    figures = {
        "sub-unsub / slower of the others, minimum": min(
            sub_unsub.at(x) / max(mhh.at(x), home.at(x)) for x in mhh.xs
        ),
        "home broker / MHH, maximum": max(between),
        "home broker / MHH, minimum": min(between),
        "MHH, slowest / fastest period": mhh.spread,
        "home broker, slowest / fastest period": home.spread,
    }
    far, most, least, mhh_flat, home_flat = figures.values()
    parts = {
        f"sub-unsub is not {FAR_MIN:g} times slower": far >= FAR_MIN,
        "home broker and MHH differ by more than a fifth": most <= NEAR_MAX and least >= 1 / NEAR_MAX,
        "MHH is not flat": mhh_flat <= FLAT_MAX,
        "home broker is not flat": home_flat <= FLAT_MAX,
    }
    return W2.judge(parts, {"periods_s": mhh.xs, "delay_s": means_of(curves, 4), **figures})


# --- figure 6: the size of the network ---


CONNECT_S = 300.0
PLAIN, COVERING = f"{SUB_UNSUB} identity nested", f"{SUB_UNSUB} covering nested"
PENS_NESTED = {
    PLAIN: Pen("sub-unsub, nested filters, identity routing", "#8a6d1d", "v", "--"),
    COVERING: Pen("sub-unsub, nested filters, covering routing", "#7a4fa3", "D", "--"),
}

FOLLOWS_MIN_S = 0.010
"""Minimum slope of a delay that follows a distance: it crosses each additional hop once, which
takes 10 ms.
"""
FOLLOWS_NOT_MAX_S = 0.003
"""Maximum slope of a delay that does not follow it: less than a third of a crossing per additional hop."""


def fig6_jobs(quick: bool) -> list[ScenarioJob]:
    sides, count = ((4, 5, 6), 4) if quick else ((5, 7, 10, 12, 14), 5)
    of_network = partial(job, connect_s=CONNECT_S)
    jobs = grid(of_network, protocol=compared(), side=sides, seed=seeds(count))
    # Nested filters, because equal ones leave covering nothing to do. The tables are large where every
    # client's filter is another one: fewer sizes and seeds.
    fewer, count = ((4, 5), 1) if quick else ((5, 7, 10), 3)
    nested = partial(of_network, protocol=SUB_UNSUB, workload="nested")
    return jobs + grid(nested, routing=("identity", "covering"), side=fewer, seed=seeds(count))


@checks("wang-fig6", "Wang et al., figure 6: network sizes", W3, W4)
def fig6(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(measure, fig6_jobs(quick))
    overhead, signalling, delay = (
        Curves(rows, "case", "brokers", y)
        for y in ("overhead_per_handoff_hops", "signalling_per_handoff_hops", "delay_mean_s")
    )
    pens = PENS | PENS_NESTED
    signalled = {name: pen for name, pen in pens.items() if name != HOME}
    across = {"xlabel": "brokers"}
    from_0 = {**across, "ylim": (0, None)}
    return Findings(
        [judge_w3(overhead, signalling), judge_w4(rows, delay)],
        {
            "fig6_runs": rows, "fig6a_overhead": overhead.table(), "fig6a_signalling": signalling.table(),
            "fig6b_delay": delay.table(),
        },
        {
            "fig6a_overhead": Chart(
                "Message overhead per handoff against the size of the network", about(overhead),
                [
                    Panel(curves(overhead, pens), {**from_0, "ylabel": "overhead per handoff, hops"},
                          "as in figure 6(a)", legend={"fontsize": 8.5}),
                    Panel(curves(signalling, signalled), {**from_0, "ylabel": "per handoff, hops"},
                          "of it, signalling (without transferred notifications)"),
                ],
            ),
            "fig6b_delay": Chart(
                "Handoff delay against the size of the network, figure 6(b)", about(delay),
                [delay_panel(delay, across, rows)],
            ),
        },
    )  # fmt: skip


def judge_w3(curves: Mapping[str, Curve], signalling: Mapping[str, Curve]) -> Outcome:
    if note := missing(curves, (*COMPARED, PLAIN, COVERING)):
        return W3.open(note)
    growth = {name: curve.growth for name, curve in curves.items()}
    parts = {
        "not all grow at every step": all(
            before < after for curve in curves.values() for before, after in itertools.pairwise(curve.means)
        ),
        "home broker does not grow fastest": growth[HOME] > max(growth[MHH], growth[SUB_UNSUB]),
        "covering does not slow sub-unsub's growth": growth[COVERING] < growth[PLAIN],
    }
    figures: dict[str, object] = {
        "brokers": curves[MHH].xs,
        "hops_per_handoff": means_of(curves, 1),
        "growth_hops": {name: round(value, 1) for name, value in growth.items()},
        "power of the number of brokers": {
            name: round(power(curve.xs, curve.means), 3) for name, curve in curves.items()
        },
        "signalling_hops_per_handoff": {
            name: rounded(signalling[name].means) for name in (PLAIN, COVERING, SUB_UNSUB)
        },
    }
    return W3.judge(parts, figures)


def judge_w4(rows: Sequence[Row], curves: Mapping[str, Curve]) -> Outcome:
    """Judge W4 by how much one more hop of mean distance, and of diameter, adds to the delay.

    Both distances grow with the network, but at different rates from tree to tree; least squares over all
    runs separates them.
    """
    if note := missing(curves, COMPARED):
        return W4.open(note)
    names = ("mean_distance_hops", "diameter_hops")
    added_s = {case: plane(where(rows, case=case), "delay_mean_s", names) for case in COMPARED}
    mean, longest = ({case: added_s[case][name].value for case in COMPARED} for name in names)
    parts = {f"{LABELS[case]} does not follow the mean distance": mean[case] >= FOLLOWS_MIN_S
             for case in (MHH, HOME)}  # fmt: skip
    parts |= {f"{LABELS[case]} follows the diameter": longest[case] <= FOLLOWS_NOT_MAX_S
              for case in (MHH, HOME)}  # fmt: skip
    parts["sub-unsub does not follow the diameter"] = longest[SUB_UNSUB] >= FOLLOWS_MIN_S
    # Below zero is no following, but it is no zero either: who reads the claim more strictly sees it here.
    strict = all(parts.values()) and all(abs(longest[case]) <= FOLLOWS_NOT_MAX_S for case in (MHH, HOME))
    figures: dict[str, object] = {
        "brokers": curves[MHH].xs,
        "delay_s": means_of(curves, 4),
        "s per hop: slope, 95 % low, high": {
            f"{case}, {name.removesuffix('_hops').replace('_', ' ')}": rounded(slope, 5)
            for case, slopes in added_s.items()
            for name, slope in slopes.items()
        },
        "holds if slopes below zero count as following, too": strict,
    }
    return W4.judge(parts, figures)


# --- nothing lost, nothing twice, nothing out of order ---


RELIABLE = (MHH, SUB_UNSUB)


@checks("wang-delivery", "Wang et al.: deliveries of figures 5 and 6", W5)
def reliability(quick: bool, sweep: Sweep) -> Findings:
    failures_before = len(sweep.failures)
    rows = sweep.run(measure, [*fig5_jobs(quick), *fig6_jobs(quick)])
    return Findings([judge_w5(rows, len(sweep.failures) - failures_before)], {"reliability_runs": rows})


def judge_w5(rows: Sequence[Row], crashed: int) -> Outcome:
    counts = ("expected", "delivered", "lost", "duplicates", "out_of_order", "unexpected", "violations")
    sums = {protocol: sums_of(where(rows, protocol=protocol), counts) for protocol in COMPARED}
    figures: dict[str, object] = {"runs": len(rows), "runs that crashed": crashed}
    for protocol, found in sums.items():
        figures[protocol] = {"runs": len(where(rows, protocol=protocol)), **found}
    wrong = ("duplicates", "out_of_order", "unexpected", "violations")
    parts: dict[str, bool | None] = {
        f"{protocol}: {found[name]} {name.replace('_', ' ')}": found[name] == 0
        for protocol, found in sums.items()
        for name in (("lost", *wrong) if protocol in RELIABLE else wrong)
    }
    parts[f"{crashed} runs crashed"] = crashed == 0
    if absent := [protocol for protocol in COMPARED if protocol not in distinct(rows, "protocol")]:
        parts[f"no runs of {', '.join(absent)}"] = None
    return W5.judge(parts, figures, notes=list(filter(None, distinct(rows, "first_violation")))[:1])


# --- 4.3: the PQlist ---

PQ_LISTS = tuple(W6.paper.split(", then "))
PQ_NAMES = {
    ("bo", "in"): "PQ1", ("bn", "own"): "PQ2", ("bn", "in"): "PQ3", ("b2", "own"): "PQ4", ("b2", "in"): "PQ5",
}  # fmt: skip
"""PQ1 is the old broker's queue; new brokers have PQ2 and PQ4 for what arrives, PQ3 and PQ5 for what
immigrates.
"""

# The client acknowledges one by one, so that it can leave before everything has immigrated.
FREQUENT_MOVES = """
brokers bo-bm bm-bn bn-b2
protocol multi_hop_handoff
window 1
at 0.0 c1 attach bo
at 0.0 p attach bm
at 1.0 c1 subscribe TRUE
at 2.0 c1 leave
""" + "".join(f"at {3 + number * 0.001:.3f} p publish {{}}\n" for number in range(200))
ONE_STAY = "at 10.0 c1 attach bn\nat 10.2 p publish {}\nat 10.4 c1 leave\n"
TWO_STAYS = ONE_STAY + "at 20.0 c1 attach b2\nat 20.08 c1 leave\nat 20.2 p publish {}\n"


def pq_list(network: Network, client: str) -> list[tuple[str, str]]:
    """Return the queues of a client in reading order, as (broker, in or own)."""
    protocols = {id: broker.protocol for id, broker in network.brokers.items()}

    def expand(references: Sequence[Reference]) -> Iterator[tuple[str, str]]:
        for broker, stay, kind in references:
            yield broker, kind
            protocol = protocols[broker]
            if isinstance(protocol, MultiHopHandoff):
                yield from expand(protocol.segments[client, stay, kind].segments)

    for id, protocol in protocols.items():
        if isinstance(protocol, MultiHopHandoff) and client in protocol.holds:
            hold = protocol.holds[client]
            own = [(id, "own")] if hold.own is not None else []
            return [(id, "in"), *expand(hold.segments), *own]
    return []


def pq_list_after(moves: str) -> str:
    """The PQlist of the paper's client after these moves, in the paper's names."""
    story = parse_story(FREQUENT_MOVES + moves)
    network = Network(story.topology, story.settings, lambda rows: None)
    network.run(story.actions)
    return "→".join(PQ_NAMES.get(queue, "?") for queue in pq_list(network, "c1"))


@checks("wang-pqlist", "Wang et al., section 4.3: frequent moving", W6)
def pq_lists(quick: bool, sweep: Sweep) -> Findings:
    lists = (pq_list_after(ONE_STAY), pq_list_after(TWO_STAYS))
    # Afterwards the client comes home, and whatever the lists name has to arrive, once and in order.
    result = parse_story(FREQUENT_MOVES + TWO_STAYS).run().result
    figures = {
        "after one interrupted handoff": lists[0],
        "after two": lists[1],
        "then delivered": result.delivered,
        "of": result.expected,
        "violations": result.violations_total,
    }
    holds = lists == PQ_LISTS and not result.violations
    return Findings([W6.outcome(holds, figures)])


# --- clients that move at once ---


FIXED_PER_BROKER = 2
MOVERS_PER_BROKER = 2
MOVES_EVERY_S = (0.15, 0.6, 2.5)
"""Durations of the movers' stays, in turn: some long enough for a handoff, some not."""
AWAY_S = 0.3
SETTLED_S = 5.0
TOGETHER_S = 40.0


@dataclass(frozen=True)
class TogetherJob(Job):
    """The same network run twice: once all movers leave and attach at the same moments, once nobody moves."""

    protocol: str
    routing: str
    workload: str
    side: int
    seed: int

    @property
    def cost(self) -> float:
        return float(self.side**4)


def move_together(job: TogetherJob) -> Row:
    """Compare, delivery by delivery, what the clients that do not move receive."""
    topology = parse_topology(f"grid:{job.side}", random.Random(f"{job.seed}/topology"))
    deliveries: list[dict[str, list[tuple[float, str, int]]]] = []
    for moving in (False, True):
        seen: dict[str, list[tuple[float, str, int]]] = {}

        def observe(rows: list[records.Row], seen: dict[str, list[tuple[float, str, int]]] = seen) -> None:
            for row in rows:
                if row.kind == "delivered" and row.client is not None and row.client.startswith("fixed"):
                    numbers = range(row.number or 0, (row.number or 0) + (row.notifications or 1))
                    heard = ((row.time, row.publisher or "", number) for number in numbers)
                    seen.setdefault(row.client, []).extend(heard)

        settings = NetworkSettings(protocol=job.protocol, routing=job.routing, seed=job.seed)
        run = run_checked(topology, settings, together_actions(job, topology, moving), observe)
        deliveries.append(seen)
    still, moved = deliveries
    return {
        "protocol": job.protocol,
        "routing": job.routing,
        "workload": job.workload,
        "seed": job.seed,
        "handoffs": run.result.handoffs,
        "fixed_clients": len(still),
        "deliveries": sum(map(len, still.values())),
        "clients_changed": sum(still.get(name) != moved.get(name) for name in {**still, **moved}),
        "lost": run.result.lost,
        "duplicates": run.result.duplicates,
        "out_of_order": run.result.out_of_order,
        "violations": run.result.violations_total,
    }


def together_actions(job: TogetherJob, topology: Topology, moving: bool) -> list[Action]:
    """Yield the actions: fixed clients publish and subscribe; movers subscribe to the same filters or to
    parts of them.
    """
    rng = random.Random(f"{job.seed}/together")
    fixed = [f"fixed{n:03}" for n in range(FIXED_PER_BROKER * len(topology.brokers))]
    movers = [f"mover{n:03}" for n in range(MOVERS_PER_BROKER * len(topology.brokers))]
    workload = make_workload(job.workload, [*fixed, *movers], 0.125, rng)
    actions: list[Action] = []
    for index, client in enumerate([*fixed, *movers]):
        actions.append((0.0, client, AttachTo(topology.brokers[index % len(topology.brokers)], 0)))
        actions += [(0.0, client, SubscribeTo(filter.text)) for filter in workload.filters[client]]
    for client in fixed:
        at_s = SETTLED_S
        while (at_s := at_s + rng.expovariate(1.0)) < SETTLED_S + TOGETHER_S:
            actions.append((at_s, client, PublishThis(encode_attributes(workload.draw(rng)))))
    if moving:
        actions += moves_at_once(movers, topology, rng)
    return sorted(actions, key=lambda action: action[0])


def moves_at_once(movers: Sequence[str], topology: Topology, rng: random.Random) -> Iterator[Action]:
    at_s = SETTLED_S + 1.0
    for stay_s in itertools.cycle(MOVES_EVERY_S):
        if at_s > SETTLED_S + TOGETHER_S:
            return
        for client in movers:
            yield (at_s, client, LeaveFor())
            yield (at_s + AWAY_S, client, AttachTo(rng.choice(topology.brokers), 0))
        at_s += AWAY_S + stay_s


@checks("wang-together", "Wang et al., section 2: concurrent moving", W7)
def together(quick: bool, sweep: Sweep) -> Findings:
    side, count = (3, 2) if quick else (5, 5)
    strategies, workloads = ("simple", "identity", "covering", "merging"), ("groups", "nested")
    one = partial(TogetherJob, MHH, side=side)
    rows = sweep.run(move_together, grid(one, routing=strategies, workload=workloads, seed=seeds(count)))
    return Findings([judge_w7(rows)], {"together_runs": rows})


def judge_w7(rows: Sequence[Row]) -> Outcome:
    sums = sums_of(rows, ("handoffs", "fixed_clients", "deliveries"))
    wrong = sums_of(rows, ("clients_changed", "lost", "duplicates", "out_of_order", "violations"))
    parts = {f"{count} {name.replace('_', ' ')}": count == 0 for name, count in wrong.items()}
    return W7.judge(parts if rows else {}, {"runs": len(rows), **sums, **wrong})
