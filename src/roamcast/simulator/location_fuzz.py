"""Draws stories of clients whose filters depend on where they are.

In most stories every client stays at one broker and walks: then flooding shows what is owed, and the timing
what is missed. A third of these clients are faster than brokers assume. In the other stories clients change
broker, too; they are never too fast, and nothing may be missing. Some jump to places where no edge leads, and
some are brisk: they stand still while they change broker, and walk on as soon as they are attached. In a
third of the stories locations are positions on the earth, also at a pole and across the date line. In some
stories clients report their location in what they publish, or never report it and take their broker's place.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from roamcast.filters.expression import Value
from roamcast.filters.selector import parse
from roamcast.mobility import PROTOCOLS, find_protocol
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    Input,
    LeaveFor,
    MoveTo,
    PublishThis,
    SubscribeTo,
    UnsubscribeFrom,
)
from roamcast.protocol.notification import encode_attributes
from roamcast.routing.location.movement_graph import MovementGraph, grid
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.variables import NumberSteps
from roamcast.simulator.drawing import Span, draw_copies, draw_moves, draw_publishes, in_order
from roamcast.simulator.links import Delay
from roamcast.simulator.location_earth import Earth, draw_earth
from roamcast.simulator.location_oracle import PLACE, delivers_once, said_by
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.story import Story
from roamcast.simulator.topology import Topology, parse_topology

TOPOLOGIES = ("line:2", "line:3", "line:5", "star:4", "tree:2:2", "random:4", "random:6", "random:8")

FILTERS = (
    "location IN myloc", "location WITHIN 1 OF myloc", "location WITHIN 2 OF myloc",
    "service = 'parking' AND location IN myloc", "service = 'parking' AND location IN myloc AND cost < 2",
    "location IN myloc OR cost = 0", "location NOT IN myloc AND service = 'news'",
    "location NOT WITHIN 1 OF myloc AND cost > 1", "cost <= my.budget",
    "location IN myloc AND cost < my.budget",
)  # fmt: skip

PLAIN_FILTERS = ("service = 'news'", "cost < 2", "location IN ('a', 'b')", "location IS NOT NULL", "TRUE")

ANY = "any"
"""Any protocol: each seed draws its own."""

START_S = 30.0
BUDGET = NumberSteps(fall=1, rise=1, lowest=0, highest=4)


def protocols() -> list[str]:
    """Protocols that promise exactly once; names with a colon are published rules, except one."""
    return [
        name
        for name, protocol in sorted(PROTOCOLS.items())
        if delivers_once(protocol.promise) and protocol.own_state and not protocol.is_as_published
    ]


@dataclass(frozen=True)
class Setting:
    """Settings that the parts of a story share."""

    rng: random.Random
    topology: Topology
    graph: MovementGraph
    settings: NetworkSettings
    stay_s: float
    span: Span
    is_fast: bool
    is_brisk: bool
    filters: tuple[str, ...] = FILTERS
    plain_filters: tuple[str, ...] = PLAIN_FILTERS
    earth: Earth | None = None
    """Positions on the earth, if locations are positions; the graph then joins positions one step apart."""

    def first_filter(self, client: str) -> list[str]:
        return [self.filters[0]] if client == "c0" else []

    def about(self, location: Value) -> Value:
        """Return a location for a notification; if locations are positions, one nearby."""
        return location if self.earth is None else self.earth.beside(str(location), self.rng)


def draw_location_story(protocol: str, seed: int) -> Story:
    """Draw the story of a seed, for one protocol or for any of them."""
    rng = random.Random(f"fuzz/location/{seed}")
    topology = parse_topology(rng.choice(TOPOLOGIES), rng)
    names = protocols()
    is_brisk = seed % 8 == 3
    drawn = rng.choice(names)
    if is_brisk and seed % 16 == 3:
        # Only here a handoff is over before those beyond the old broker can have heard of it.
        drawn = "multi_hop_handoff"
    name = drawn if protocol == ANY else find_protocol(protocol).name
    roams = is_brisk or rng.random() < 0.4
    is_fast = not roams and rng.random() < 0.35
    # On a small graph one is everywhere at once, however fast.
    kind = 1 if is_brisk else rng.choice((1, 4)) if is_fast else rng.randrange(7)
    graph = _draw_graph(rng, kind)
    earth = draw_earth(random.Random(f"fuzz/location/{seed}/earth")) if seed % 3 == 1 else None
    if earth is not None:
        graph, is_fast = earth.graph, False
    delays = [0.001 * rng.randint(1, 100) for _ in topology.overlay]
    if is_brisk or seed % 8 in (0, 5):
        # Where all links are alike, a client may be as far away as before, and yet somewhere else.
        delays = [max(delays)] * len(delays)
    # From far below the delay of one link to far above that of the whole network.
    stays = rng.uniform(2.1, 3.9) if is_brisk else rng.choice((0.3, 1.0, 3.0, 20.0))
    stay_s = round(stays * max(delays, default=0.01), 4)
    learnt = not roams and rng.random() < 0.4
    variables = {"location": graph if earth is None else earth.variable, "budget": BUDGET}
    location = LocationSettings(variables, stay_s=None if learnt else stay_s, stay_first_s=stay_s)
    settings = _draw_settings(name, seed, rng, topology, delays, location)
    if is_brisk:
        settings = replace(settings, notice_delay=Delay(0.0, 0.0), names_last_broker=True)
    span = Span(START_S, stay_s * rng.randint(8, 30))
    setting = Setting(rng, topology, graph, settings, stay_s, span, is_fast, is_brisk)
    if earth is not None:
        filters = earth.filters(rng)
        setting = replace(setting, filters=filters, plain_filters=earth.plain_filters(rng), earth=earth)
    # Rounded as a story tells them.
    actions = in_order((round(at, 6), client, item) for at, client, item in _draw_actions(setting, roams))
    chance = random.Random(f"fuzz/location/{seed}/jumps")
    if chance.random() < 0.2:
        actions = tuple(_perhaps_jump(action, graph, chance) for action in actions)
    if is_brisk:
        return Story(topology, settings, actions)
    chance = random.Random(f"fuzz/location/{seed}/told")
    story = Story(topology, settings, actions)
    if chance.random() < 0.3:
        story = _tell(story, ("lat", "lon") if earth is not None else ("at",), chance)
    return _lend(story, graph, chance) if chance.random() < 0.2 else story


def _tell(story: Story, names: tuple[str, ...], chance: random.Random) -> Story:
    """Let some clients report their location in notifications, with these attributes, when they walk."""
    told = dict.fromkeys(client for client in _clients(story) if chance.random() < 0.6)

    def tell(action: Action) -> Action:
        at, client, item = action
        if client not in told or at < START_S or not isinstance(item, MoveTo) or set(item.values) != {PLACE}:
            return action
        place = item.values[PLACE]
        parts: list[Value] = [place] if len(names) == 1 else list(map(float, str(place).split(",")))
        attributes = {PLACE: place, "service": "track", **dict(zip(names, parts, strict=True))}
        return at, client, PublishThis(encode_attributes(attributes))

    return _with(story, (tell(action) for action in story.actions), told_in=names)


def _lend(story: Story, graph: MovementGraph, chance: random.Random) -> Story:
    """Give brokers places; some clients never report their location."""
    lent = {broker: chance.choice(graph.locations) for broker in story.topology.brokers}
    silent = dict.fromkeys(client for client in _clients(story) if chance.random() < 0.6)
    told = story.settings.location.told_in

    def hush(action: Action) -> Iterator[Action]:
        at, client, item = action
        if client not in silent or not said_by(item, told):
            yield action
        elif isinstance(item, MoveTo) and len(item.values) > 1:
            yield at, client, MoveTo({name: one for name, one in item.values.items() if name != PLACE})

    return _with(story, (one for action in story.actions for one in hush(action)), lent=lent)


def _clients(story: Story) -> Iterable[str]:
    return dict.fromkeys(client for _, client, _ in story.actions)


def _with(story: Story, actions: Iterable[Action], **changed: object) -> Story:
    location = msgspec.structs.replace(story.settings.location, **changed)
    return replace(story, settings=replace(story.settings, location=location), actions=tuple(actions))


def _perhaps_jump(action: Action, graph: MovementGraph, chance: random.Random) -> Action:
    """Sometimes let a step lead to any location; the next step then mostly leads back."""
    at, client, item = action
    if at < START_S or not isinstance(item, MoveTo) or "location" not in item.values or chance.random() > 0.1:
        return action
    return at, client, MoveTo({"location": chance.choice(graph.locations)})


def _draw_graph(rng: random.Random, kind: int) -> MovementGraph:
    letters = "abcdefghijkl"[: rng.randint(2, 12)]
    if kind == 0:  # Figure 7.
        return MovementGraph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    if kind == 1:  # A long road, two ways or one.
        places = [f"{letter}{number}" for letter in "ab" for number in range(rng.randint(5, 30))]
        return MovementGraph([*pairwise(places), (places[-1], places[0])], one_way=rng.random() < 0.5)
    if kind == 2:
        return MovementGraph(pairwise(letters))
    if kind == 3:  # Rooms on a corridor.
        return MovementGraph([("a", room) for room in letters[1:]])
    if kind in (4, 5):
        return grid(rng.randint(2, 12), rng.randint(1, 12))
    edges = [(rng.choice(letters), rng.choice(letters)) for _ in range(2 * len(letters))]
    return MovementGraph(edges, letters, one_way=rng.random() < 0.5)


def _draw_settings(
    name: str,
    seed: int,
    rng: random.Random,
    topology: Topology,
    delays: list[float],
    location: LocationSettings,
) -> NetworkSettings:
    protocol = find_protocol(name)
    routing = rng.choice(protocol.strategies)
    advertisements = rng.random() < 0.3
    return NetworkSettings(
        protocol=name,
        routing=routing,
        advertisements=advertisements and routing != "flooding" and protocol.advertisements,
        link_delays=tuple(
            (one, other, Delay(delay, delay))
            for (one, other), delay in zip(topology.overlay, delays, strict=True)
        ),
        access_delay=Delay(0.005, 0.005),
        notice_delay=rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.2))),
        names_last_broker=rng.random() < 0.7,
        location=location,
        mobility=draw_copies(name, seed),
        seed=seed,
    )


def _draw_actions(setting: Setting, roams: bool) -> list[Action]:
    rng = setting.rng
    clients = [f"c{number}" for number in range(rng.randint(2, 5))]
    actions: list[Action] = []
    walks: list[list[Action]] = []
    for client in clients:
        filters = _draw_filters(setting) if not setting.is_brisk else setting.first_filter(client)
        start, budget = rng.choice(setting.graph.locations), rng.randint(0, 4)
        broker = rng.choice(setting.topology.brokers)
        first = MoveTo({"location": start, "budget": budget})
        actions += _opening(client, setting, broker, filters, first)
        if setting.is_brisk:
            # The others stay and publish all the time, and nobody else wants what they publish.
            walks.append(_hop(client, setting, start, broker) if client == "c0" else [])
        else:
            walks.append(_walk(client, setting, start) if rng.random() < 0.8 else [])
        actions += walks[-1]
        if rng.random() < 0.3:
            actions += _spend(client, setting, budget)
        if roams and not setting.is_brisk and rng.random() < 0.7:
            scale_s = setting.stay_s * rng.choice((0.5, 2.0, 6.0))
            brokers = setting.topology.brokers
            actions += draw_moves(
                client, brokers, setting.span, scale_s, rng, returns_per_scale=3, changes_mind=0
            )
        if roams and filters and rng.random() < 0.3:
            actions += _changes(client, setting, filters)
    for client in clients:
        if rng.random() < 0.7 or client == clients[0]:
            actions += _publishes(client, setting, walks)
    return actions


def _draw_filters(setting: Setting) -> list[str]:
    rng = setting.rng
    filters = rng.sample(setting.filters, rng.choice((1, 1, 2))) if rng.random() < 0.7 else []
    return filters + rng.sample(setting.plain_filters, rng.choice((0, 0, 0, 1)))


def _opening(client: str, setting: Setting, broker: str, filters: list[str], start: MoveTo) -> list[Action]:
    """Draw attach, advertisement, first location and subscription, in any order, and settled in time."""
    rng = setting.rng
    doings: list[Input] = [SubscribeTo(parse(text).text) for text in filters]
    doings.append(start)
    rng.shuffle(doings)
    if setting.settings.advertisements:
        doings.insert(0, AdvertiseThat(rng.choice(("TRUE", "location IS NOT NULL"))))
    return [
        (0.01 * rng.random(), client, AttachTo(broker, 0)),
        *((1.0 + 2 * place, client, doing) for place, doing in enumerate(doings)),
    ]


def _walk(client: str, setting: Setting, start: Value) -> list[Action]:
    """Draw steps along the graph; some clients avoid going straight back."""
    rng = setting.rng
    actions: list[Action] = []
    here, before, now_s = start, start, START_S + setting.stay_s * rng.random()
    is_fast = setting.is_fast and rng.random() < 0.8
    turns = not is_fast and rng.random() < 0.5
    while now_s < setting.span.end_s:
        ends = setting.graph.neighbours(here)
        onward = ends if turns else [end for end in ends if end != before] or ends
        if onward:
            here, before = rng.choice(onward), here
            actions.append((now_s, client, MoveTo({"location": here})))
        now_s += setting.stay_s * (rng.uniform(0.05, 0.8) if is_fast else _slow_stay(rng))
    return actions


def _slow_stay(rng: random.Random) -> float:
    """Return a stay a little longer than brokers assume, because times are rounded."""
    return 1.001 + rng.choice((0.0, rng.expovariate(2)))


def _spend(client: str, setting: Setting, budget: int) -> list[Action]:
    """Draw steps of a number variable."""
    rng = setting.rng
    actions: list[Action] = []
    now_s = START_S + setting.stay_s * rng.random()
    for _ in range(rng.randint(1, 8)):
        budget = min(max(budget + rng.choice((-1, 1)), 0), 4)
        actions.append((now_s, client, MoveTo({"budget": budget})))
        now_s += setting.stay_s * _slow_stay(rng)
    return actions


def _publishes(client: str, setting: Setting, walks: list[list[Action]]) -> list[Action]:
    """Draw publishes, mostly for a location where some client is, was shortly before or will soon be."""
    rng = setting.rng
    moves = [(at, item) for walk in walks for at, _, item in walk]
    steps = [(at, item.values["location"]) for at, item in moves if isinstance(item, MoveTo)]

    def draw(now_s: float) -> PublishThis:
        near = [location for at, location in steps if abs(at - now_s) < 3 * setting.stay_s]
        anywhere = not near or rng.random() < 0.2
        attributes: dict[str, Value] = {
            "location": setting.about(rng.choice(setting.graph.locations if anywhere else near)),
            "service": rng.choice(("parking", "news")),
            "cost": rng.randrange(4),
        }
        return PublishThis(encode_attributes(attributes))

    every_s = setting.stay_s * rng.choice((0.05, 0.2, 0.5))
    return draw_publishes(client, setting.span, every_s, draw, rng, count_max=200)


def _hop(client: str, setting: Setting, start: Value, broker: str) -> list[Action]:
    """Move to another broker, then walk a few steps as soon as the handoff is over or all brokers
    know of it.
    """
    rng, topology = setting.rng, setting.topology
    link_s = setting.settings.link_delays[0][2].low_s
    actions: list[Action] = []
    here, before, now_s = start, start, START_S
    while now_s < setting.span.end_s:
        old, broker = broker, rng.choice(topology.brokers)
        actions.append((now_s, client, LeaveFor("")))
        actions.append((now_s + 0.0001, client, AttachTo(broker, 0)))
        links = 2 * topology.distance(old, broker) + 2
        pause = rng.uniform(0, rng.choice((1, 3 * topology.diameter)))
        now_s += 0.011 + (links + pause) * link_s
        for _ in range(rng.randint(2, 5)):
            ends = setting.graph.neighbours(here)
            here, before = rng.choice([end for end in ends if end != before] or ends), here
            actions.append((now_s, client, MoveTo({"location": here})))
            now_s += 1.001 * setting.stay_s
    return actions


def _changes(client: str, setting: Setting, filters: list[str]) -> list[Action]:
    """Draw subscriptions and unsubscriptions at any moment, also while clients are away."""
    rng = setting.rng
    actions: list[Action] = []
    for _ in range(rng.randint(1, 4)):
        at = setting.span.moment(rng)
        if rng.random() < 0.5:
            actions.append((at, client, UnsubscribeFrom(parse(rng.choice(filters)).text)))
        else:
            actions.append((at, client, SubscribeTo(parse(rng.choice(setting.filters)).text)))
    return actions
