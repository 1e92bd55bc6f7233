"""Draws shared by all kinds of stories: delays, moves, publishes, and faults.

Each function takes its caller's random source and draws in a fixed order, so a seed always gives the same
story. `fuzz`, `location_fuzz` and `mqtt_draw` add draws of their own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from roamcast.mobility import MOBILE_PROTOCOLS, Settings, find_protocol
from roamcast.protocol.effects import AttachTo, Input, LeaveFor
from roamcast.simulator.faults import (
    Backup,
    Clone,
    Crash,
    Cut,
    Detour,
    Fault,
    Halt,
    Heal,
    Impostor,
    Kill,
    Lie,
    Mend,
    Part,
    Proceed,
    Promote,
    Relink,
    Restart,
    Revive,
    Snapshot,
)
from roamcast.simulator.links import Delay
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import Story
from roamcast.simulator.topology import from_edges

HOSTILE = "evil"
"""The broker that sends made-up messages."""

LOSSES = (0.05, 0.2, 0.5)


@dataclass(frozen=True)
class Span:
    """The part of a story in which clients move and publish."""

    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    def moment(self, rng: random.Random) -> float:
        return self.start_s + self.duration_s * rng.random()


def draw_delays(notice_max_s: float, rng: random.Random) -> tuple[Delay, Delay, Delay]:
    """Draw delays of links and access links, and the time until a broker notices that a client is gone."""
    link = rng.choice((Delay(0.010, 0.010), Delay(0.001, 0.030), Delay(0.0, 0.100)))
    access = rng.choice((Delay(0.020, 0.020), Delay(0.001, 0.040)))
    notice = rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.200), Delay(0.0, notice_max_s)))
    return link, access, notice


def draw_moves(
    client: str,
    brokers: Sequence[str],
    span: Span,
    scale_s: float,
    rng: random.Random,
    *,
    returns_per_scale: float = 2,
    changes_mind: float = 0.1,
) -> list[Action]:
    """Draw a client's moves from broker to broker, on average one per `scale_s`; some are proclaimed.

    `returns_per_scale` is how many absences fit into `scale_s`.
    """
    actions: list[Action] = []
    now_s = span.start_s
    while True:
        now_s += rng.expovariate(1 / scale_s)
        if now_s > span.end_s:
            return actions
        broker = rng.choice(brokers)
        actions.append((now_s, client, LeaveFor(broker if rng.random() < 0.2 else "")))
        now_s += rng.expovariate(returns_per_scale / scale_s)
        # Some clients that proclaim a move go elsewhere.
        if changes_mind and rng.random() < changes_mind:
            broker = rng.choice(brokers)
        actions.append((now_s, client, AttachTo(broker, 0)))


def draw_publishes(
    client: str,
    span: Span,
    every_s: float,
    draw: Callable[[float], Input],
    rng: random.Random,
    count_max: float = float("inf"),
) -> list[Action]:
    """Draw publishes of a client with the content that `draw` returns for each time."""
    actions: list[Action] = []
    now_s = span.start_s
    while now_s < span.end_s and len(actions) < count_max:
        now_s += rng.expovariate(1 / every_s)
        actions.append((now_s, client, draw(now_s)))
    return actions


def in_order(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Sort by time alone: actions at equal times keep the order in which they were drawn."""
    return tuple(sorted(actions, key=lambda action: action[0]))


# --- faults -----------------------------------------------------------------------------------------


def with_faults(story: Story, faults: Sequence[str], span_start_s: float, rng: random.Random) -> Story:
    """Add faults of these kinds to the story."""
    is_mobile = story.settings.protocol in MOBILE_PROTOCOLS
    topology = story.topology
    for kind in draw_kinds(faults, rng):
        if kind == "hostile":
            continue
        if kind == "replication":
            story = story if is_mobile else _with_replicas(story, span_start_s, rng)
        elif kind == "loss":
            story = replace(story, settings=replace(story.settings, loss=rng.choice(LOSSES)))
        else:
            if is_mobile:  # There are no histories to mix up, and no detours.
                drawn = _MOBILE_FAULTS[kind](story, span_start_s, rng) if kind in _MOBILE_FAULTS else []
            elif kind == "crash":
                drawn = _draw_crashes(story, span_start_s, rng)
            else:
                span = _span_of(story, span_start_s)
                ground = Ground(topology.brokers, topology.overlay, story.settings, span, rng)
                drawn = DRAW_FAULTS[kind](ground)
            story = replace(story, actions=in_order([*story.actions, *drawn]))
    if "hostile" in faults and not is_mobile:
        story = with_hostile(story, span_start_s, rng)
    if is_mobile or not find_protocol(story.settings.protocol).has_heartbeats:
        return story
    return with_heartbeats(story, rng) if rng.random() < 0.5 else story


def _with_replicas(story: Story, start_s: float, rng: random.Random) -> Story:
    """Give one or two brokers followers, with every kind of replica fault."""
    brokers, span = story.topology.brokers, _span_of(story, start_s)
    chosen = sorted(rng.sample(brokers, min(len(brokers), rng.choice((1, 1, 2)))))
    lease_s = max(span.duration_s / rng.choice((5, 15, 40)), 0.02)
    replicas = tuple((broker, rng.choice((1, 1, 2))) for broker in chosen)
    faults: list[Action] = []
    for broker, followers in replicas:
        names = [f"r{number}" for number in range(followers + 1)]
        for _ in range(rng.choice((1, 2, 4, 8))):
            faults += [
                (time_s, broker, fault) for time_s, fault in _draw_replica_fault(names, lease_s, span, rng)
            ]
    settings = replace(story.settings, replicas=replicas, lease_s=lease_s)
    return Story(story.topology, settings, in_order([*story.actions, *faults]))


def _draw_replica_fault(
    names: Sequence[str], lease_s: float, span: Span, rng: random.Random
) -> list[tuple[float, Fault]]:
    """Draw one fault of a replicated site and its end: its length is from far below a lease to several
    leases."""
    began_s = span.moment(rng)
    ended_s = began_s + rng.expovariate(1 / (lease_s * rng.choice((0.1, 0.5, 2.0, 6.0))))
    name = rng.choice((*names, "leader", "leader"))
    kinds = ("kill", "kill", "kill", "halt", "halt", "part", "part", "clone", "promote", "snapshot")
    match rng.choice(kinds):
        case "kill":
            entries = rng.choice((0, 1, 2, 5)) if name == "leader" else 0
            return [(began_s, Kill(name, entries, rng.random() < 0.4)), (ended_s, Revive(name))]
        case "halt":
            return [(began_s, Halt(name)), (ended_s, Proceed(name))]
        case "part":
            ends = rng.sample((*names, "etcd", "leader"), rng.choice((2, 2, 3)))
            parts = [Part(ends[0], other) for other in ends[1:]]
            return [*((began_s, part) for part in parts), (ended_s, Mend())]
        case "clone":
            return [(began_s, Clone(rng.choice(names)))]
        case "promote":
            return [(began_s, Promote(rng.choice(names)))]
    return [(began_s, Snapshot())]


def with_hostile(story: Story, start_s: float, rng: random.Random) -> Story:
    """Add a hostile broker, linked with one of the others, and its messages."""
    topology, span = story.topology, Span(start_s / 2, _span_of(story, 0.0).duration_s)
    edges = [*topology.overlay, (rng.choice(topology.brokers), HOSTILE)]
    lies = [(span.moment(rng), HOSTILE, Lie(rng.getrandbits(30))) for _ in range(rng.choice((5, 20, 60)))]
    grown = from_edges("hostile", [*topology.brokers, HOSTILE], edges)
    return Story(grown, replace(story.settings, hostile=HOSTILE), in_order([*story.actions, *lies]))


def draw_kinds(faults: Sequence[str], rng: random.Random) -> Sequence[str]:
    """Choose some of several kinds of faults."""
    chosen = [kind for kind in faults if rng.random() < 0.75] if len(faults) > 1 else []
    return chosen or faults


def _draw_crashes(story: Story, start_s: float, rng: random.Random) -> list[Action]:
    """Draw crashes of brokers that do not move; half of them wrote a snapshot before."""
    faults = _draw_outages_of_brokers(story, start_s, lambda unsent: Crash(unsent=unsent), rng)
    for crash_s, broker, _ in [one for one in faults if isinstance(one[2], Crash)]:
        if rng.random() < 0.5:
            faults.append((rng.uniform(start_s / 2, crash_s), broker, Snapshot()))
    return faults


def _draw_mobile_crashes(story: Story, start_s: float, rng: random.Random) -> list[Action]:
    """Draw crashes of brokers that move, with and without a journal."""
    return _draw_outages_of_brokers(story, start_s, lambda amnesia: Crash(amnesia=amnesia), rng)


def _draw_outages_of_brokers(
    story: Story, start_s: float, crash: Callable[[bool], Crash], rng: random.Random
) -> list[Action]:
    """Draw outages of brokers; some of their clients go elsewhere, the others wait."""
    brokers, span = story.topology.brokers, _span_of(story, start_s)
    faults: list[Action] = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        broker = rng.choice(brokers)
        down_s, up_s = draw_outage(story.settings, span, rng)
        faults.append((down_s, broker, crash(rng.random() < 0.5)))
        for client in attached_at(story.actions, broker, down_s):
            if rng.random() < 0.4:
                elsewhere = AttachTo(rng.choice(brokers), 0)
                faults.append((rng.uniform(down_s, up_s), client, elsewhere))
        faults.append((up_s, broker, Restart()))
    return faults


@dataclass(frozen=True)
class Ground:
    """What may fail in a story, and when."""

    brokers: Sequence[str]
    links: Sequence[tuple[str, str]]
    settings: NetworkSettings
    span: Span
    rng: random.Random


def draw_cuts(ground: Ground) -> list[Action]:
    """Draw outages of one or two links at a time."""
    links, rng = ground.links, ground.rng
    faults: list[Action] = []
    for _ in range(rng.choice((1, 2, 3)) if links else 0):
        down_s, up_s = draw_outage(ground.settings, ground.span, rng)
        for broker, peer in rng.sample(links, min(rng.choice((1, 1, 2)), len(links))):
            faults += [(down_s, broker, Cut(peer)), (up_s, broker, Heal(peer))]
    return faults


def draw_detours(ground: Ground) -> list[Action]:
    """Draw changes of links between paths of different lengths; the direct path has the factor 1."""
    links, span, rng = ground.links, ground.span, ground.rng
    faults: list[Action] = []
    for _ in range(rng.choice((1, 2, 4, 8)) if links else 0):
        broker, peer = rng.choice(links)
        faults.append((span.moment(rng), broker, Detour(peer, rng.choice((1.0, 1.0, 0.5, 2.0, 5.0)))))
    return faults


def _draw_partings(story: Story, start_s: float, rng: random.Random) -> list[Action]:
    """Draw changes of links between brokers that move: some links are replaced, some return between other
    brokers.
    """
    brokers, reach = story.topology.brokers, story.settings.reach
    faults: list[Action] = []
    edges, span = [*story.topology.overlay, *reach], _span_of(story, start_s)
    if not edges:
        return []
    for _ in range(rng.choice((1, 2, 4, 8))):
        down_s, up_s = draw_outage(story.settings, span, rng)
        one, other = rng.choice(edges)
        if rng.random() < 0.5:
            one, other = other, one
        others = [broker for broker in brokers if broker not in (one, other)]
        if rng.random() < 0.4 and others and not reach:
            faults.append((down_s, one, Relink(other, rng.choice(others))))
            continue
        faults.append((down_s, one, Cut(other)))
        again = rng.choice(others) if others and rng.random() < 0.3 else other
        faults.append((up_s, one, Heal(again if not reach else other)))
    return faults


def draw_impostors(ground: Ground) -> list[Action]:
    """Draw brokers that are cloned, or whose disk is replaced by an empty one or an old backup for a
    while."""
    span, rng = ground.span, ground.rng
    faults: list[Action] = []
    for _ in range(rng.choice((1, 2, 3))):
        broker = rng.choice(ground.brokers)
        down_s, up_s = draw_outage(ground.settings, span, rng)
        back_s = rng.expovariate(1 / max(span.duration_s / rng.choice((4, 40)), 0.005))
        faults.append((max(0.0, down_s - back_s), broker, Backup()))
        is_clone = rng.random() < 0.3
        if not is_clone:
            faults += [(down_s, broker, Crash()), (up_s, broker, Restart())]
        faults.append((rng.uniform(down_s, up_s), broker, Impostor(is_empty=rng.random() < 0.3)))
    return faults


DRAW_FAULTS = {"partition": draw_cuts, "detour": draw_detours, "history": draw_impostors}
"""Faults that are drawn alike whatever clients speak."""
_MOBILE_FAULTS = {"crash": _draw_mobile_crashes, "partition": _draw_partings}


def draw_copies(protocol: str, seed: int) -> Settings:
    """Draw the number and size of copies, and when they begin: when a client leaves, or while it
    is attached.
    """
    if not find_protocol(protocol).draws_copies:
        return Settings()
    rng = random.Random(f"copies/{seed}")
    return Settings(
        copies_max=rng.choice((1, 3, 8)),
        copies_for_s=rng.choice((1.0, 14_400.0)),
        copies_after_s=rng.choice((None, None, 0.0, 0.05, 1.0)),
        copy_bytes_max=rng.choice((100, 1 << 20, 1 << 20)),
    )


def everyone_next(brokers: Sequence[str]) -> str:
    """Return a model in which clients go from every broker to every other one with equal probability."""
    everyone = {one: {other: {"probability": 0.5} for other in brokers if other != one} for one in brokers}
    return json.dumps({"brokers": everyone})


def back_or_everywhere(brokers: Sequence[str]) -> str:
    """Return a model in which clients go back to the broker they came from: the predicted broker depends on
    the client.
    """
    contexts = {
        one: [{"after": [other], "next": {other: 20}} for other in brokers if other != one] for one in brokers
    }
    return json.dumps({**json.loads(everyone_next(brokers)), "contexts": contexts})


def with_heartbeats(story: Story, rng: random.Random) -> Story:
    """Draw settings with which brokers monitor each other, with timeouts so short that they often suspect
    each other wrongly.
    """
    brokers, delay_s = story.topology.brokers, max(story.settings.link_delay.high_s, 0.005)
    mobility = msgspec.structs.replace(
        story.settings.mobility,
        heartbeat_period_s=delay_s * rng.choice((0.2, 1.0, 3.0, 10.0)),
        heartbeats_missed_max=rng.choice((1, 1, 2)),
        context_timeout_s=delay_s * rng.choice((0.5, 3.0, 20.0, 1000.0)),
        neighbour_graph=everyone_next(brokers) if rng.random() < 0.6 else "",
        neighbours_max=rng.choice((1, 8, None)),
    )
    if mobility.neighbour_graph and mobility.neighbours_max == 1:
        mobility = msgspec.structs.replace(mobility, neighbour_graph=back_or_everywhere(brokers))
    return replace(story, settings=replace(story.settings, mobility=mobility))


def _span_of(story: Story, start_s: float) -> Span:
    return Span(start_s, story.actions[-1][0] - start_s)


def draw_outage(settings: NetworkSettings, span: Span, rng: random.Random) -> tuple[float, float]:
    """Draw start and end of an outage: from far below one link's delay up to a large part of the story."""
    down_s = span.moment(rng)
    length_s = rng.choice((settings.link_delay.high_s, span.duration_s / 20, span.duration_s / 4))
    return down_s, down_s + rng.expovariate(1 / max(length_s, 0.005))


def attached_at(actions: Iterable[Action], broker: str, time_s: float) -> list[str]:
    """Return the clients attached at the broker at this time."""
    at: dict[str, str] = {}
    for _, client, item in in_order(action for action in actions if action[0] <= time_s):
        if isinstance(item, AttachTo):
            at[client] = item.broker
        elif isinstance(item, LeaveFor):
            at.pop(client, None)
    return [client for client, place in at.items() if place == broker]
