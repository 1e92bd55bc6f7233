"""Draws networks and stories from seeds, to find one that breaks a promise.

A seed determines everything: brokers, links, subscriptions, publications and moves. Moves are drawn on the
time scale of the delays, so that clients often leave again in the middle of a handoff. Requested faults are
added to the story, and the rest of it stays the same.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from roamcast.filters.filter import Value
from roamcast.filters.selector import parse
from roamcast.mobility import MOBILE_PROTOCOLS, find_protocol
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    Input,
    PublishThis,
    SubscribeTo,
    UnsubscribeFrom,
)
from roamcast.protocol.notification import encode_attributes
from roamcast.simulator.checkers import Result
from roamcast.simulator.drawing import (
    Span,
    draw_copies,
    draw_delays,
    draw_moves,
    draw_publishes,
    in_order,
    with_faults,
    with_hostile,
)
from roamcast.simulator.location_fuzz import draw_location_story
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
"""Time at which all clients have attached and subscribed, and the story begins."""

LONG_S = 60.0
"""Duration after which a broker notices that a client left, longer than the client needs to reach another
one."""


def draw_story(protocol: str, seed: int, faults: Sequence[str] = ()) -> Story:
    """Draw the story of a seed, with faults of these kinds."""
    rng = random.Random(f"fuzz/{seed}")
    topology = parse_topology(rng.choice(TOPOLOGIES), rng)
    if protocol in MOBILE_PROTOCOLS:
        settings = _draw_mobile_settings(protocol, seed, topology, rng)
    else:
        settings = _draw_settings(protocol, seed, rng)
    story = Story(topology, settings, in_order(_draw_actions(topology, settings, rng)))
    return with_faults(story, faults, START_S, random.Random(f"fuzz/{seed}/faults")) if faults else story


def _draw_settings(protocol: str, seed: int, rng: random.Random) -> NetworkSettings:
    promise = find_protocol(protocol).promise
    routing = rng.choice(find_protocol(protocol).strategies)
    advertisements = rng.random() < 0.25
    link, access, notice = draw_delays(LONG_S, rng)
    # Messages waiting for a slow client are neither in transit nor published during an absence, so protocols
    # that lose only those are not tested with slow clients.
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
        mobility=draw_copies(protocol, seed),
        seed=seed,
    )


def _draw_mobile_settings(
    protocol: str, seed: int, topology: Topology, rng: random.Random
) -> NetworkSettings:
    """Let brokers elect a leader for every other seed; otherwise the story says how the tree changes."""
    link, access, notice = draw_delays(2.0, rng)
    settings = NetworkSettings(
        protocol=protocol, link_delay=link, access_delay=access, notice_delay=notice, seed=seed
    )
    if seed % 2 == 0 or len(topology.brokers) < 3:
        return settings
    more = [tuple(sorted(rng.sample(topology.brokers, 2))) for _ in range(rng.choice((1, 2, 4)))]
    known = {frozenset(edge) for edge in topology.overlay}
    edges = dict.fromkeys((one, other) for one, other in more if frozenset((one, other)) not in known)
    return replace(settings, reach=tuple(edges))


def _draw_actions(topology: Topology, settings: NetworkSettings, rng: random.Random) -> list[Action]:
    clients = [f"c{number}" for number in range(rng.randint(2, 6))]
    # From far below one link's delay to far above the whole network's.
    scale_s = max(settings.link_delay.high_s, 0.005) * rng.choice((0.5, 2.0, 10.0, 40.0))
    span = Span(START_S, scale_s * rng.choice((10, 20, 40)))
    actions: list[Action] = []
    for client in clients:
        actions += _opening(client, topology, settings, rng)
        if rng.random() < 0.75:
            actions += draw_moves(client, topology.brokers, span, scale_s, rng)
        if rng.random() < 0.7 or client == clients[0]:
            every_s = scale_s * rng.choice((0.1, 0.3, 1.0))
            actions += draw_publishes(client, span, every_s, lambda _: _draw_publish(rng), rng)
        if rng.random() < 0.4:
            actions += _changes(client, span, rng)
    return actions


def _opening(client: str, topology: Topology, settings: NetworkSettings, rng: random.Random) -> list[Action]:
    """Draw attaches, advertisements and subscriptions; all are settled long before the story begins."""
    doings: list[Input] = [AttachTo(rng.choice(topology.brokers), 0)]
    if settings.advertisements:
        doings.append(AdvertiseThat("TRUE"))
    doings += [SubscribeTo(parse(text).text) for text in rng.sample(FILTERS, rng.choice((0, 1, 1, 2, 3)))]
    return [(0.01 * rng.random(), client, doings[0]), *((1.0, client, doing) for doing in doings[1:])]


def _draw_publish(rng: random.Random) -> PublishThis:
    attributes: dict[str, Value] = {"x": rng.randrange(4), "kind": rng.choice(("a", "ab", "b"))}
    # Mostly one at a time; several at once travel as one burst, which may have to be cut.
    count = rng.choice((1, 1, 1, 2, 5))
    return PublishThis(encode_attributes(attributes), (b"",) * count)


def _changes(client: str, span: Span, rng: random.Random) -> list[Action]:
    """Draw subscriptions and unsubscriptions at any time, also while clients are away."""
    actions: list[Action] = []
    for _ in range(rng.randint(1, 6)):
        filter = parse(rng.choice(FILTERS)).text
        doing = SubscribeTo(filter) if rng.random() < 0.5 else UnsubscribeFrom(filter)
        actions.append((span.moment(rng), client, doing))
    return actions


# --- running seeds ----------------------------------------------------------------------------------


@dataclass
class Failure:
    seed: int
    violations: list[str]
    story: str


@dataclass
class FuzzReport:
    """Results of a series of seeds."""

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

    @classmethod
    def of(cls, protocol: str, result: Result) -> FuzzReport:
        """Return the result of one seed."""
        same = {one.name for one in fields(cls)} & {one.name for one in fields(result)}
        figures = {name: getattr(result, name) for name in same - {"violations"}}
        return cls(
            protocol,
            seeds=1,
            notifications=result.published,
            deliveries=result.delivered,
            violations=result.violations_total,
            **figures,
        )

    def add(self, other: FuzzReport) -> None:
        """Add the result of other seeds of the same protocol."""
        for one in fields(self):
            if one.name not in ("protocol", "excused"):
                setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.excused = dict(Counter(self.excused) + Counter(other.excused))


class Kind(NamedTuple):
    """What stories are drawn with."""

    faults: tuple[str, ...] = ()
    feature: str = ""
    front: str = "plain"
    routing: str = ""
    """The strategy of every story; "" if its seed draws one."""

    def draw(self, protocol: str, seed: int) -> Story:
        if self.feature == "location":
            story = draw_location_story(protocol, seed)
        elif self.front == "mqtt":
            story = Story(*draw_mqtt_story(protocol, seed, self.faults))
            if "hostile" in self.faults:
                story = with_hostile(story, START_S, random.Random(f"mqtt/{seed}/hostile"))
        else:
            story = draw_story(protocol, seed, self.faults)
        if not self.routing:
            return story
        advertisements = story.settings.advertisements and self.routing != "flooding"
        settings = replace(story.settings, routing=self.routing, advertisements=advertisements)
        return replace(story, settings=settings)


def fuzz_seed(protocol: str, seed: int, kind: Kind) -> FuzzReport:
    """Run one seed; a failure is shrunk to a short story."""
    story = kind.draw(protocol, seed)
    result = verdict(story)
    report = FuzzReport.of(protocol, result)
    if result.violations:
        report.failures = [shrunk_failure(seed, story, [str(one) for one in result.violations])]
    return report


def collect(
    protocol: str,
    by_seed: Iterable[FuzzReport],
    failures_max: int,
    on_seed: Callable[[], None] = lambda: None,
) -> FuzzReport:
    """Add up reports of single seeds, in the order of the seeds, until enough have failed."""
    report = FuzzReport(protocol)
    for one in by_seed:
        report.add(one)
        on_seed()
        if len(report.failures) >= failures_max:
            break
    return report


def fuzz(
    protocol: str,
    seeds: Iterable[int],
    failures_max: int = 5,
    faults: Sequence[str] = (),
    feature: str = "",
    front: str = "plain",
    routing: str = "",
) -> FuzzReport:
    """Run the seeds; stop after `failures_max` failures."""
    kind = Kind(tuple(faults), feature, front, routing)
    return collect(protocol, (fuzz_seed(protocol, seed, kind) for seed in seeds), failures_max)


def shrunk_failure(seed: int, story: Story, violations: list[str]) -> Failure:
    first, all_kinds = kinds_of(violations[:1]), kinds_of(violations)

    def fails(candidate: Story) -> bool:
        """Return true if the story still shows the violation, and no other one caused by the
        removed lines.
        """
        found = kinds_of(violations_of(candidate))
        return first <= found <= all_kinds

    # Begin with what the text can say, so that the story fails when it is read again.
    told = parse_story(format_story(story))
    short = shrink(told if fails(told) else story, fails)
    return Failure(seed, violations_of(short), format_story(short))
