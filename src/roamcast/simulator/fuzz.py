"""Drawing networks and stories from seeds, to find the one that breaks a promise.

A seed decides everything: the brokers, the links, who subscribes to what, who
publishes, and when everyone moves. Moves are drawn on the scale of the delays,
so that clients often leave again in the middle of a handoff. Faults that are
asked for are drawn on top: the rest of the story is the same without them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from roamcast.filters.filter import Value
from roamcast.filters.selector import parse
from roamcast.mobility import MOBILE_PROTOCOLS, find_protocol
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    Input,
    LeaveFor,
    PublishThis,
    SubscribeTo,
    UnsubscribeFrom,
)
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.faults import Crash, Cut, Heal, Restart, Snapshot
from roamcast.simulator.links import Delay
from roamcast.simulator.location_fuzz import draw_location_story
from roamcast.simulator.mobile_fuzz import MobileDraw, draw_mobile_settings, with_mobile_faults
from roamcast.simulator.mqtt_draw import draw_mqtt_story
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import (
    Story,
    format_story,
    kinds_of,
    parse_story,
    shrink,
    verdict,
    violations_of,
)
from roamcast.simulator.topology import Topology, parse_topology

TOPOLOGIES = (
    "line:2", "line:3", "line:5", "star:4", "tree:2:2", "random:4", "random:6", "random:9", "grid:3",
)  # fmt: skip

FILTERS = (
    "TRUE", "x = 1", "x >= 2", "x < 3", "x IN (0, 2)", "x BETWEEN 1 AND 2", "kind = 'a'",
    "kind = 'a' AND x > 1", "kind = 'b' OR x = 0", "kind LIKE 'a%'", "x <> 2", "missing IS NULL AND x = 3",
)  # fmt: skip

START_S = 10.0
"""When everyone has attached and subscribed, and the story begins."""

LONG_S = 60.0
"""A leave that the broker does not notice before the client is elsewhere."""


def draw_story(protocol: str, seed: int, faults: Sequence[str] = ()) -> Story:
    """The story of a seed, with faults of these kinds."""
    rng = random.Random(f"fuzz/{seed}")
    topology = parse_topology(rng.choice(TOPOLOGIES), rng)
    if protocol in MOBILE_PROTOCOLS:
        return _draw_mobile_story(protocol, seed, topology, faults, rng)
    settings = _draw_settings(protocol, seed, rng)
    story = Story(topology, settings, tuple(_draw_actions(topology, settings, rng)))
    return with_faults(story, faults, random.Random(f"fuzz/{seed}/faults")) if faults else story


def _draw_mobile_story(
    protocol: str, seed: int, topology: Topology, faults: Sequence[str], rng: random.Random
) -> Story:
    """In half of them the brokers elect a leader, in the others the story says how the tree changes."""
    settings = draw_mobile_settings(protocol, seed, topology, seed % 2 == 1, rng)
    story = Story(topology, settings, tuple(_draw_actions(topology, settings, rng)))
    draw = MobileDraw(_draw_outage, _attached_at, _with_actions)
    return with_mobile_faults(story, faults, draw, random.Random(f"fuzz/{seed}/faults"))


def _draw_settings(protocol: str, seed: int, rng: random.Random) -> NetworkSettings:
    promise = find_protocol(protocol).promise
    routing = rng.choice(find_protocol(protocol).strategies)
    advertisements = rng.random() < 0.25
    link = rng.choice((Delay(0.010, 0.010), Delay(0.001, 0.030), Delay(0.0, 0.100)))
    access = rng.choice((Delay(0.020, 0.020), Delay(0.001, 0.040)))
    notice = rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.200), Delay(0.0, LONG_S)))
    # What waits for a slow client is neither on its way nor published while it is away, so
    # those who lose only that are not asked about slow clients.
    window = rng.choice((1, 2, 256)) if "away" not in promise.lost else 256
    return NetworkSettings(
        protocol=protocol,
        routing=routing,
        advertisements=advertisements and routing != "flooding" and find_protocol(protocol).advertisements,
        link_delay=link,
        access_delay=access,
        notice_delay=notice,
        window=window,
        names_last_broker=rng.random() < 0.7,
        seed=seed,
    )


def _draw_actions(topology: Topology, settings: NetworkSettings, rng: random.Random) -> list[Action]:
    clients = [f"c{number}" for number in range(rng.randint(2, 6))]
    # From far below one link's delay to far above the whole network's.
    scale_s = max(settings.link_delay.high_s, 0.005) * rng.choice((0.5, 2.0, 10.0, 40.0))
    duration_s = scale_s * rng.choice((10, 20, 40))
    start_s = START_S
    actions: list[Action] = []
    for client in clients:
        actions += _opening(client, topology, settings, rng)
        mobile = rng.random() < 0.75
        if mobile:
            actions += _moves(client, topology, start_s, duration_s, scale_s, rng)
        if rng.random() < 0.7 or client == clients[0]:
            actions += _publishes(client, start_s, duration_s, scale_s, rng)
        if rng.random() < 0.4:
            actions += _changes(client, start_s, duration_s, rng)
    # Sorted by time alone: equal times keep the order in which they were drawn.
    return sorted(actions, key=lambda action: action[0])


def _opening(client: str, topology: Topology, settings: NetworkSettings, rng: random.Random) -> list[Action]:
    """Attach, advertise, subscribe: all settled long before the rest begins."""
    doings: list[Input] = [AttachTo(rng.choice(topology.brokers), 0)]
    if settings.advertisements:
        doings.append(AdvertiseThat("TRUE"))
    doings += [SubscribeTo(parse(text).text) for text in rng.sample(FILTERS, rng.choice((0, 1, 1, 2, 3)))]
    return [(0.01 * rng.random(), client, doings[0]), *((1.0, client, doing) for doing in doings[1:])]


def _moves(
    client: str, topology: Topology, start_s: float, duration_s: float, scale_s: float, rng: random.Random
) -> list[Action]:
    actions: list[Action] = []
    now_s = start_s
    while True:
        now_s += rng.expovariate(1 / scale_s)
        if now_s > start_s + duration_s:
            return actions
        broker = rng.choice(topology.brokers)
        proclaimed = broker if rng.random() < 0.2 else ""
        actions.append((now_s, client, LeaveFor(proclaimed)))
        now_s += rng.expovariate(2 / scale_s)
        # Some who proclaim a move change their minds.
        if rng.random() < 0.1:
            broker = rng.choice(topology.brokers)
        actions.append((now_s, client, AttachTo(broker, 0)))


def _publishes(
    client: str, start_s: float, duration_s: float, scale_s: float, rng: random.Random
) -> list[Action]:
    actions: list[Action] = []
    now_s = start_s
    every_s = scale_s * rng.choice((0.1, 0.3, 1.0))
    while now_s < start_s + duration_s:
        now_s += rng.expovariate(1 / every_s)
        attributes: dict[str, Value] = {"x": rng.randrange(4), "kind": rng.choice(("a", "ab", "b"))}
        # Mostly one at a time; several at once travel as one burst, which may have to be cut.
        count = rng.choice((1, 1, 1, 2, 5))
        actions.append((now_s, client, PublishThis(encode_attributes(attributes), (b"",) * count)))
    return actions


def _changes(client: str, start_s: float, duration_s: float, rng: random.Random) -> list[Action]:
    """Subscribe and unsubscribe at any moment, also while away."""
    actions: list[Action] = []
    for _ in range(rng.randint(1, 6)):
        filter = parse(rng.choice(FILTERS)).text
        doing = SubscribeTo(filter) if rng.random() < 0.5 else UnsubscribeFrom(filter)
        actions.append((start_s + duration_s * rng.random(), client, doing))
    return actions


# --- faults -----------------------------------------------------------------------------------------

LOSSES = (0.05, 0.2, 0.5)


def with_faults(story: Story, faults: Sequence[str], rng: random.Random) -> Story:
    """The same story with faults of these kinds; of several kinds not always all."""
    chosen = [kind for kind in faults if rng.random() < 0.75] if len(faults) > 1 else []
    for kind in chosen or faults:
        story = _DRAW_FAULT[kind](story, rng)
    if find_protocol(story.settings.protocol).has_heartbeats and rng.random() < 0.5:
        story = with_heartbeats(story, rng)
    return story


def _with_crashes(story: Story, rng: random.Random) -> Story:
    """Brokers that are down for a while; some of their clients go elsewhere, the others wait."""
    faults: list[Action] = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        broker = rng.choice(story.topology.brokers)
        start_s, end_s = _draw_outage(story, rng)
        faults.append((start_s, broker, Crash(unsent=rng.random() < 0.5)))
        for client in _attached_at(story, broker, start_s):
            if rng.random() < 0.4:
                elsewhere = AttachTo(rng.choice(story.topology.brokers), 0)
                faults.append((rng.uniform(start_s, end_s), client, elsewhere))
        faults.append((end_s, broker, Restart()))
    for crash_s, broker, _ in [one for one in faults if isinstance(one[2], Crash)]:
        if rng.random() < 0.5:
            faults.append((rng.uniform(START_S / 2, crash_s), broker, Snapshot()))
    return _with_actions(story, faults)


def _with_partitions(story: Story, rng: random.Random) -> Story:
    """Links that are down for a while, by ones and twos."""
    faults: list[Action] = []
    for _ in range(rng.choice((1, 2, 3))):
        start_s, end_s = _draw_outage(story, rng)
        several = min(rng.choice((1, 1, 2)), len(story.topology.overlay))
        for broker, peer in rng.sample(story.topology.overlay, several):
            faults += [(start_s, broker, Cut(peer)), (end_s, broker, Heal(peer))]
    return _with_actions(story, faults)


def _with_loss(story: Story, rng: random.Random) -> Story:
    return replace(story, settings=replace(story.settings, loss=rng.choice(LOSSES)))


_DRAW_FAULT: dict[str, Callable[[Story, random.Random], Story]] = {
    "crash": _with_crashes,
    "partition": _with_partitions,
    "loss": _with_loss,
}


def with_heartbeats(story: Story, rng: random.Random) -> Story:
    """Brokers that watch each other, and are often wrong: their patience is that of a few links."""
    brokers, delay_s = story.topology.brokers, max(story.settings.link_delay.high_s, 0.005)
    everyone = {one: {other: {"probability": 0.5} for other in brokers if other != one} for one in brokers}
    mobility = msgspec.structs.replace(
        story.settings.mobility,
        heartbeat_period_s=delay_s * rng.choice((0.2, 1.0, 3.0, 10.0)),
        heartbeats_missed_max=rng.choice((1, 1, 2)),
        context_timeout_s=delay_s * rng.choice((0.5, 3.0, 20.0, 1000.0)),
        neighbour_graph=json.dumps({"brokers": everyone}) if rng.random() < 0.6 else "",
        neighbours_max=rng.choice((1, 8, None)),
    )
    return replace(story, settings=replace(story.settings, mobility=mobility))


def _draw_outage(story: Story, rng: random.Random) -> tuple[float, float]:
    """From when to when: from far below one link's delay up to the whole length of the story."""
    duration_s = story.actions[-1][0] - START_S
    start_s = START_S + duration_s * rng.random()
    length_s = rng.choice((story.settings.link_delay.high_s, duration_s / 20, duration_s / 4))
    return start_s, start_s + rng.expovariate(1 / max(length_s, 0.005))


def _attached_at(story: Story, broker: str, time_s: float) -> list[str]:
    """The clients that the story has at a broker at this time."""
    at: dict[str, str] = {}
    for _, client, item in [action for action in story.actions if action[0] <= time_s]:
        if isinstance(item, AttachTo):
            at[client] = item.broker
        elif isinstance(item, LeaveFor):
            at.pop(client, None)
    return [client for client, place in at.items() if place == broker]


def _with_actions(story: Story, more: list[Action]) -> Story:
    # Sorted by time alone: equal times keep their order.
    return replace(story, actions=tuple(sorted([*story.actions, *more], key=lambda action: action[0])))


# --- running seeds ----------------------------------------------------------------------------------


@dataclass
class Failure:
    seed: int
    violations: list[str]
    story: str


@dataclass
class FuzzReport:
    """What a series of seeds showed."""

    protocol: str
    seeds: int = 0
    handoffs: int = 0
    notifications: int = 0
    deliveries: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    crashes: int = 0
    links_down: int = 0
    located: int = 0
    blacked_out: int = 0
    excused: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    failures: list[Failure] = field(default_factory=list)


def fuzz(
    protocol: str,
    seeds: Iterable[int],
    progress: Callable[[int], None] | None = None,
    failures_max: int = 5,
    faults: Sequence[str] = (),
    feature: str = "",
    front: str = "plain",
) -> FuzzReport:
    """Run the seeds; stop after so many failures, each shrunk to a short story."""
    report = FuzzReport(protocol)
    for seed in seeds:
        if feature == "location":
            story = draw_location_story(protocol, seed)
        elif front == "mqtt":
            topology, settings, actions = draw_mqtt_story(protocol, seed, faults)
            story = Story(topology, settings, tuple(actions))
        else:
            story = draw_story(protocol, seed, faults)
        result = verdict(story)
        report.seeds += 1
        report.handoffs += result.handoffs
        report.notifications += result.published
        report.deliveries += result.delivered
        report.lost += result.lost
        report.duplicates += result.duplicates
        report.out_of_order += result.out_of_order
        report.crashes += result.crashes
        report.links_down += result.links_down
        report.located += result.located
        report.blacked_out += result.blacked_out
        for name, count in result.excused.items():
            report.excused[name] = report.excused.get(name, 0) + count
        if result.violations:
            report.violations += result.violations_total
            report.failures.append(shrunk_failure(seed, story, [str(one) for one in result.violations]))
            if len(report.failures) >= failures_max:
                break
        if progress is not None:
            progress(report.seeds)
    return report


def shrunk_failure(seed: int, story: Story, violations: list[str]) -> Failure:
    kinds = kinds_of(violations[:1])

    def fails(candidate: Story) -> bool:
        return bool(kinds & kinds_of(violations_of(candidate)))

    # Begin with what the text can say, so that the story fails when it is read again.
    told = parse_story(format_story(story))
    short = shrink(told if fails(told) else story, fails)
    return Failure(seed, violations_of(short), format_story(short))
