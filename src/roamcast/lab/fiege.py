"""Fiege et al. 2003 (REBECA), physical mobility: section 4, figure 5 and appendix A. Claims F1, F2, F7, F8.

Figure 5 is a network of eight brokers. Consumer C subscribed at B6 and comes back at B1. B4 is the junction,
where the route from B1 meets the old one; the first producer is at B7, beside B4. With several producers
there is another one at B8, beside B5. F8 is ours: the paper names the routing strategies of REBECA (section
2) and assumes that they differ only in cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import fmean

from roamcast.filters.selector import parse
from roamcast.lab.charts import Chart, Panel, bars, named
from roamcast.lab.experiment import Claim, Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, QUIET
from roamcast.lab.rows import Row, distinct, grouped, sums_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility import Settings
from roamcast.mobility.relocation import Relocation, Replay, Resubscribe
from roamcast.protocol import records
from roamcast.protocol.messages import AttachRequest, Locate, Message, Relayed, Settled, Update
from roamcast.routing.router import Interface
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.network import Network, NetworkSettings
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.story import Story, parse_story

F1, F2, F7, F8, R20 = map(claim, ("F1", "F2", "F7", "F8", "R20"))

# --- figure 5 (section 4.1) ---


FILTER = "x > 1"
ONE_PRODUCER = f"""
brokers B1-B2 B2-B3 B3-B4 B4-B5 B5-B6 B4-B7 B5-B8
protocol relocation
advertisements True
at 0.0 C attach B6
at 0.0 P attach B7
at 0.1 P advertise x >= 0
at 1.0 C subscribe {FILTER}
at 2.0 C leave
at 2.1 P publish {{"x": 2}}
at 2.2 P publish {{"x": 3}}
at 3.0 C attach B1
at 3.05 P publish {{"x": 4}}
at 4.0 P publish {{"x": 5}}
"""
SEVERAL_PRODUCERS = (
    ONE_PRODUCER
    + """
at 0.0 Q attach B8
at 0.1 Q advertise x >= 0
at 2.15 Q publish {"x": 6}
at 3.08 Q publish {"x": 7}
at 4.1 Q publish {"x": 8}
"""
)
PLACED = "B1→C B2→B1 B3→B2 B4→B3 B7→B4"
"""Final routing entries for the filter of C, as broker→interface."""
TABLES = {ONE_PRODUCER: PLACED, SEVERAL_PRODUCERS: "B1→C B2→B1 B3→B2 B4→B3 B5→B4 B7→B4 B8→B5"}
FOUND = "B1→B2, B2→B3, B3→B4, B4→B5, B5→B6"
"""Hops of the attach request: towards the producer to the junction, and from there along the
entries to B6.
"""
WAY = (
    "B1→B2 Resubscribe, B2→B3 Resubscribe, B3→B4 Resubscribe, B4→B5 Fetch, B5→B6 Fetch, "
    "B6→B5 Replay, B5→B4 Replay, B4→B3 Replay, B3→B2 Replay, B2→B1 Replay"
)
"""Hops of the subscription to the junction, of the fetch from there to B6, and of the replay back."""


@dataclass
class Witness:
    """Records the protocol's messages, and what clients received or missed, in order."""

    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Hops of the messages that look for a session."""
    delivered: dict[str, list[str]] = field(default_factory=dict)
    dropped: dict[str, list[str]] = field(default_factory=dict)

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Resubscribe | Replay):
            self.messages.append(f"{sender}→{receiver} {type(message).__name__}")
        inner = message.message if isinstance(message, Relayed) else message
        if isinstance(inner, AttachRequest | Locate):
            self.requests.append(f"{sender}→{receiver}")

    def on_rows(self, rows: list[records.Row]) -> None:
        for row in rows:
            if row.kind == "delivered":
                self.delivered.setdefault(row.client or "", []).extend(names_of(row))
            elif row.kind == "dropped":
                self.dropped.setdefault(row.reason or "", []).extend(names_of(row))


def names_of(row: records.Row) -> Iterator[str]:
    first = row.number or 0
    return (f"{row.publisher}/{number}" for number in range(first, first + (row.notifications or 1)))


def play(story: Story) -> tuple[Run, Witness]:
    witness = Witness()
    return story.run(witness.on_rows, witness.on_message), witness


def entries_of(network: Network, text: str) -> str:
    """Return the routing entries for a filter: the broker, and the peer or client that each points to."""
    wanted = parse(text)
    return " ".join(
        f"{id}→{name_of(interface)}"
        for id, broker in sorted(network.brokers.items())
        for filter, interface in broker.router.table.entries()
        if filter == wanted
    )


def name_of(interface: Interface) -> str:
    return interface if isinstance(interface, str) else str(interface[0])


def left_over(network: Network) -> list[str]:
    """Return what brokers still hold for clients whose session is elsewhere, as `client at broker`."""
    found = []
    for id, broker in network.brokers.items():
        protocol = broker.protocol
        assert isinstance(protocol, Relocation)
        clients = [client for client, _ in (*protocol.caches, *protocol.left)]
        clients += [*protocol.replays_due, *protocol.current]
        found += [f"{client} at {id}" for client in clients if client not in broker.sessions]
        # One cache for each session, and not a second one from an earlier stay.
        found += [f"{client} at {id}" for client, times in Counter(clients).items() if times > 2]
    return found


def judge_figure_5(claim: Claim, text: str) -> Outcome:
    run, witness = play(parse_story(text))
    result, messages, requests = run.result, ", ".join(witness.messages), ", ".join(witness.requests)
    entries, left = entries_of(run.network, FILTER), left_over(run.network)
    parts = {
        "the entries differ": entries == TABLES[text],
        "the old broker is found on another path": requests == FOUND,
        "messages take another path": messages == WAY,
        f"brokers still hold: {', '.join(left)}": not left,
        "not all notifications were delivered once and in order": result.violations_total == result.lost == 0,
    }
    figures = {
        "final entries (C, F)": entries,
        "told": TABLES[text],
        "hops that find the old broker": f"{len(witness.requests)}: {requests}",
        "messages": messages,
        "left over at brokers without the session": len(left),
        "delivered to C": " ".join(witness.delivered.get("C", [])),
        "lost": result.lost,
        "violations": result.violations_total,
    }
    return claim.judge(parts, figures)


@checks("fiege-fig5", "Fiege et al., figure 5: a client relocates", F1, F2)
def figure_5(quick: bool, sweep: Sweep) -> Findings:
    outcomes = [judge_figure_5(F1, ONE_PRODUCER), judge_figure_5(F2, SEVERAL_PRODUCERS)]
    rows = [{"claim": one.claim, "holds": one.holds, **one.figures} for one in outcomes]
    return Findings(outcomes, {"figure_5": rows})


# --- F7: the promise, and what a cache cannot hold (sections 4.1 and A.2) ---


AWAY_FROM_S, EVERY_S, BACK_S = 2.0, 0.5, 8.0
PUBLISHED_AWAY = 10
LIMITS: tuple[tuple[int | None, float | None], ...] = (
    (None, None), (1, None), (2, None), (5, None), (9, None), (10, None), (11, None),
    (None, 0.7), (None, 2.2), (None, 3.2), (None, 5.7), (3, 3.2), (5, 0.7), (8, 2.2),
)  # fmt: skip
"""Cache limits: number of notifications, and time to live in seconds."""


def cache_story(here: str, ring: int | None, ttl_s: float | None) -> Story:
    """Return a story: a client leaves broker a, ten notifications are published, and it comes back
    at `here`.
    """
    publishes = "".join(
        f"at {3.0 + EVERY_S * number:.2f} p publish {{}}\n" for number in range(PUBLISHED_AWAY)
    )
    story = parse_story(
        f"""brokers a-b b-c
        protocol relocation
        at 0 c attach a
        at 0 p attach b
        at 1 c subscribe TRUE
        at {AWAY_FROM_S} c leave
        {publishes}
        at {BACK_S} c attach {here}
        at {BACK_S + 1} p publish {{}}"""
    )
    mobility = Settings(cache_notifications=ring, cache_ttl_s=ttl_s)
    return replace(story, settings=replace(story.settings, mobility=mobility))


def expected_missing(ring: int | None, ttl_s: float | None) -> int:
    """Return the number of missing notifications by arithmetic: the oldest ones that exceed the ring or the
    time to live.
    """
    past_ring = max(PUBLISHED_AWAY - ring, 0) if ring is not None else 0
    if ttl_s is None:
        return past_ring
    # Ages are far enough from the times to live that the few links on the way do not matter.
    too_old = sum(BACK_S - (3.0 + EVERY_S * number) > ttl_s for number in range(PUBLISHED_AWAY))
    return max(past_ring, too_old)


@dataclass(frozen=True)
class RelocationJob(Job):
    """A story of the fuzzer."""

    seed: int
    limited: bool
    """True if caches have limits in number and age, beyond which they drop notifications."""

    @property
    def repetition(self) -> int:
        """All stories count as the same repetition."""
        return 1


def relocate(job: RelocationJob) -> Row:
    story = draw_story("relocation", job.seed)
    if job.limited:
        ttl_s = (story.actions[-1][0] - 10) / 50
        mobility = Settings(cache_notifications=job.seed % 5 + 1, cache_ttl_s=ttl_s)
        story = replace(story, settings=replace(story.settings, mobility=mobility))
    run = story.run()
    result = run.result
    names = ("published", "expected", "delivered", "lost", "duplicates", "out_of_order", "handoffs")
    return {
        "caches": "limited" if job.limited else "roomy",
        "seed": job.seed,
        **{name: getattr(result, name) for name in names},
        "given_up_by_caches": sum(result.excused.values()),
        "violations": result.violations_total,
        "left_over": len(left_over(run.network)),
    }


def caches() -> list[Row]:
    """Run every limit with every place to come back to."""
    rows = []
    for ring, ttl_s in LIMITS:
        for here in ("a", "b", "c"):
            run, witness = play(cache_story(here, ring, ttl_s))
            missing = expected_missing(ring, ttl_s)
            wanted = [f"p/{number}" for number in range(missing + 1, PUBLISHED_AWAY + 2)]
            rows.append(
                {
                    "ring": ring,
                    "ttl_s": ttl_s,
                    "back_at": here,
                    "expected_missing": missing,
                    "missing": PUBLISHED_AWAY + 1 - len(witness.delivered.get("c", [])),
                    "exactly": witness.delivered.get("c", []) == wanted and not run.result.violations,
                }
            )
    return rows


@checks("fiege-relocation", "Fiege et al., section 4: promise and caches", F7)
def relocation(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(relocate, grid(RelocationJob, limited=(False, True), seed=range(40 if quick else 1000)))
    tried = caches()
    return Findings([judge_f7(rows, tried)], {"relocation_runs": rows, "relocation_caches": tried})


def judge_f7(rows: Sequence[Row], tried: Sequence[Row]) -> Outcome:
    wrong = ("duplicates", "out_of_order", "violations", "left_over")
    counts = ("handoffs", "expected", "lost", *wrong)
    roomy, limited = (sums_of(where(rows, caches=kind), counts) for kind in ("roomy", "limited"))
    given_up = sum(row["given_up_by_caches"] for row in where(rows, caches="limited"))
    inexact = where(tried, exactly=False)
    parts: dict[str, bool | None] = {
        f"roomy caches: {roomy[name]} {name}": roomy[name] == 0 for name in ("lost", *wrong)
    }
    parts |= {f"limited caches: {limited[name]} {name}": limited[name] == 0 for name in wrong}
    parts["limited caches lose notifications that they did not drop"] = limited["lost"] == given_up
    parts[f"{len(inexact)} caches miss other notifications than expected"] = not inexact
    if not (roomy["handoffs"] and limited["lost"] and tried):
        return F7.open("too few runs: no client moved, or no cache dropped anything")
    figures = {
        "runs": len(rows),
        "caches large enough": roomy,
        "caches limited in size and age": {**limited, "dropped by caches": given_up},
        "limits and places tried": len(tried),
        "of them exactly as expected": len(tried) - len(inexact),
    }
    return F7.judge(parts, figures)


# --- F8: routing strategies ---


STRATEGIES = ("simple", "identity", "covering", "merging")
WORKLOADS = ("nested", "ranges", "groups")
PROTOCOL = "sub_unsub"
"""This protocol works with all four strategies, and its handoffs are subscriptions and unsubscriptions:
tables change all the time, and brokers tell their neighbours of each change.
"""
MEASURES = {
    "table_entries": "routing entries, all brokers together",
    "control_hops": "hops of subscribing and unsubscribing",
}
DESCRIBED = {"nested": "ranges within ranges", "ranges": "they overlap", "groups": "equal or apart"}


@dataclass(frozen=True)
class RoutingJob(Job):
    """One scenario, run under each strategy."""

    workload: str
    seed: int
    side: int
    protocol: str = PROTOCOL
    strategies: tuple[str, ...] = STRATEGIES
    duration_s: float = 120.0

    @property
    def cost(self) -> float:
        return (1.0 + (self.workload != "groups")) * self.side**4 * self.duration_s / 120.0

    def scenario(self, routing: str) -> Scenario:
        return Scenario(
            topology=f"grid:{self.side}",
            clients=8 * self.side**2,
            mobile=0.25,
            connect_s=15.0,
            disconnect_s=10.0,
            workload=self.workload,
            selectivity=0.125,
            publish_every_s=10.0,
            duration_s=self.duration_s,
            network=NetworkSettings(protocol=self.protocol, routing=routing, seed=self.seed),
        )


class ControlTraffic:
    """Counts hops of messages between routers. Locating and moving sessions costs the same under all
    strategies.
    """

    def __init__(self) -> None:
        self.hops: Counter[str] = Counter()

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Update | Settled):
            self.hops[message.cause] += message.weight


def route(job: RoutingJob) -> Row:
    """Run all strategies, and compare the deliveries of each client."""
    delivered: dict[str, dict[str, list[str]]] = {}
    figures: dict[str, Row] = {}
    for strategy in job.strategies:
        scenario = job.scenario(strategy)
        topology = scenario.make_topology()
        witness, traffic = Witness(), ControlTraffic()
        actions = scenario.actions(topology)
        run = run_checked(topology, scenario.network, actions, witness.on_rows, trace=traffic.on_message)
        delivered[strategy] = {client: sorted(names) for client, names in witness.delivered.items()}
        figures[strategy] = {
            "table_entries": sum(broker.router.size for broker in run.network.brokers.values()),
            "control_hops": traffic.hops.total(),
            "subscribe_hops": traffic.hops["subscribe"],
            "handoff_hops": traffic.hops["handoff"],
            "publish_hops": run.traffic.hops["publish"],
            "violations": run.result.violations_total,
        }
    first = delivered[job.strategies[0]]
    clients = {client for heard in delivered.values() for client in heard}
    return {
        "workload": job.workload,
        "protocol": job.protocol,
        "seed": job.seed,
        "handoffs": run.result.handoffs,
        "clients": len(clients),
        "deliveries": sum(map(len, first.values())),
        "clients_changed": sum(
            any(heard.get(client) != first.get(client) for heard in delivered.values()) for client in clients
        ),
        "strategies": figures,
    }


@checks("fiege-routing", "Routing strategies side by side", F8)
def routing(quick: bool, sweep: Sweep) -> Findings:
    side, count = (3, 1) if quick else (5, 3)
    jobs = grid(partial(RoutingJob, side=side), workload=WORKLOADS, seed=seeds(count))
    # That all strategies deliver the same must not depend on how handoffs are made.
    jobs += [RoutingJob(workload, 1, 3, "multi_hop_handoff") for workload in WORKLOADS]
    rows = sweep.run(route, jobs)
    means = mean_sizes(where(rows, protocol=PROTOCOL))
    return Findings(
        [judge_f8(rows, means)],
        {"routing_runs": rows, "routing": means},
        {"routing": chart(means)},
    )


# --- R20: what decides the last step of F8 ---


LAZY = ("covering", "merging", "lazy_merging")


@checks("fiege-lazy", "Merged filters that are said anew later", R20)
def lazy(quick: bool, sweep: Sweep) -> Findings:
    count, duration_s = (1, 600.0) if quick else (3, 1800.0)
    one = partial(RoutingJob, side=3, strategies=LAZY, duration_s=duration_s)
    rows = sweep.run(route, grid(one, workload=WORKLOADS, seed=seeds(count)))
    return Findings([judge_r20(rows)], {"lazy_runs": rows}, {})


def judge_r20(rows: Sequence[Row]) -> Outcome:
    changed = sum(row["clients_changed"] for row in rows)
    violations = sum(one["violations"] for row in rows for one in row["strategies"].values())
    figures: dict[str, object] = {"runs": len(LAZY) * len(rows), "violations": violations}
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    parts[f"{changed} clients received other notifications"] = changed == 0
    parts[f"{violations} violations"] = violations == 0
    for (workload,), group in grouped(rows, "workload").items():
        means = {
            name: {one: fmean(row["strategies"][one][name] for row in group) for one in LAZY}
            for name in ("control_hops", "table_entries", "publish_hops")
        }
        for name, found in means.items():
            figures[f"{name.replace('_', ' ')}, {workload}"] = [round(found[one]) for one in LAZY]
        control, publish = means["control_hops"], means["publish_hops"]
        for other in LAZY[:-1]:
            ratio = control["lazy_merging"] / control[other]
            parts[f"control hops, {workload}: lazy merging has {ratio:.3f} of {other}"] = ratio < 1
        more = publish["lazy_merging"] / publish["merging"]
        parts[f"hops of notifications, {workload}: lazy merging has {more:.3f} of merging"] = more > 1
    return R20.judge(parts, figures)


def chart(means: Sequence[Row]) -> Chart:
    """Draw table sizes and control traffic, one bar for each strategy and workload."""
    workloads = distinct(means, "workload")
    panels = [
        Panel(
            bars({one: [row[name] for row in where(means, strategy=one)] for one in STRATEGIES},
                 (QUIET, "#9cc3e4", ARRIVED, "#2e7d4f"), counted=True),
            {"xlabel": "workload", "ylabel": label}, "",
            named([f"{name}\n({DESCRIBED[name]})" for name in workloads]),
            {"ncols": 4, "fontsize": 9} if name == "table_entries" else None, 1.15, "y",
        )
        for name, label in MEASURES.items()
    ]  # fmt: skip
    runs = max((row["runs"] for row in means), default=0)
    about = f"means of {runs} runs; a quarter of the clients roam, under sub_unsub"
    return Chart("Table size and control traffic under each routing strategy", about, panels)


def mean_sizes(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each workload and strategy, with means over seeds."""
    names = (*MEASURES, "subscribe_hops", "handoff_hops")
    return [
        {
            "workload": workload,
            "strategy": strategy,
            "runs": len(group),
            **{name: fmean(row["strategies"][strategy][name] for row in group) for name in names},
        }
        for (workload,), group in grouped(rows, "workload").items()
        for strategy in STRATEGIES
    ]


def judge_f8(rows: Sequence[Row], means: Sequence[Row]) -> Outcome:
    """Judge whether the figures fall: they rise in no workload, and fall in some. Two strategies may cost the
    same where the filters give the better one no advantage.
    """
    counts = sums_of(rows, ("deliveries", "handoffs", "clients_changed"))
    violations = sum(one["violations"] for row in rows for one in row["strategies"].values())
    figures: dict[str, object] = {"runs": 4 * len(rows), **counts, "violations": violations}
    parts: dict[str, bool | None] = {} if means else {"there are no runs": None}
    parts |= {
        f"{counts['clients_changed']} clients received other notifications": counts["clients_changed"] == 0,
        f"{violations} violations": violations == 0,
    }
    why = ""
    for measure in MEASURES:
        name = measure.replace("_", " ")
        sizes = {workload: {row["strategy"]: row[measure] for row in of_it}
                 for (workload,), of_it in grouped(means, "workload").items()}  # fmt: skip
        for workload, found in sizes.items():
            figures[f"{name}, {workload}"] = [round(found[strategy]) for strategy in STRATEGIES]
        for worse, better in pairwise(STRATEGIES):
            ratios = {workload: found[better] / found[worse] for workload, found in sizes.items()}
            for workload, ratio in ratios.items():
                parts[f"{name}, {workload}: {better} is {ratio:.3f} of {worse}"] = ratio <= 1
            parts[f"{name}: {better} is never below {worse}"] = any(one < 1 for one in ratios.values())
            if (measure, better) == ("control_hops", "merging") and max(ratios.values(), default=0) > 1:
                why = F8.why
    return F8.judge(parts, figures, why=why)
