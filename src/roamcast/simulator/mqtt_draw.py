"""Draws stories of MQTT clients from seeds: every feature of the product, and faults on top.

Each seed uses some of the features, so that most stories stay small. Moves are drawn on the time scale of the
delays, so that clients often leave again in the middle of a handoff.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import msgspec

from roamcast.mobility import PROTOCOLS, find_protocol
from roamcast.mqtt.codec.packets import Version, Will
from roamcast.mqtt.codec.topics import split_shared
from roamcast.mqtt.server.access import AccessRules, Rule
from roamcast.protocol.effects import Input, LeaveFor, MoveTo
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.drawing import (
    DRAW_FAULTS,
    LOSSES,
    Ground,
    Span,
    attached_at,
    draw_copies,
    draw_kinds,
    draw_outage,
    draw_publishes,
    everyone_next,
    in_order,
)
from roamcast.simulator.faults import Crash, Cut, Heal, Restart, Snapshot
from roamcast.simulator.links import Delay
from roamcast.simulator.mqtt_story import (
    PLACE,
    Connect,
    Disconnect,
    Drain,
    Forget,
    Join,
    Limit,
    MqttSettings,
    PublishMessage,
    SetLimit,
    SetRules,
    SubscribeFilter,
    UnsubscribeFilter,
)
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.topology import Topology, parse_topology

TOPOLOGIES = ("line:1", "line:2", "line:2", "line:3", "line:3", "star:4", "line:4", "random:5")
TOPICS = ("a/1", "a/1", "a/2", "b/1", "job/1")
FILTERS = ("a/#", "a/1", "+/1", "b/#", "a/+?x>1", "a/2", "job/#")
SHARED = ("$share/g/job/#", "$share/g/job/#", "$share/h/a/#")
WHERE = ("", "", "", "x > 1", "x <> 2 OR x IS NULL")
PLACES = ("a", "b", "c", "d")
START_S = 10.0
"""Time at which all clients have attached and subscribed, and the story begins."""


@dataclass(frozen=True)
class Scale(Span):
    """Time scale of a story."""

    step_s: float


@dataclass(frozen=True)
class Player:
    """A client while its part of the story is drawn."""

    id: str
    version: Version
    brokers: tuple[str, ...]
    """Brokers that the client visits."""
    identifier: int


@dataclass(frozen=True)
class Plot:
    """Parts of a story drawn before its clients."""

    topology: Topology
    settings: NetworkSettings
    scale: Scale
    rng: random.Random
    late: tuple[str, str] | None = None
    """A broker that joins later, and its peer."""

    def ground(self) -> Ground:
        """Everything may fail except the broker that joins later."""
        late = self.late[0] if self.late is not None else ""
        brokers = [broker for broker in self.topology.brokers if broker != late]
        links = [edge for edge in self.topology.overlay if late not in edge]
        return Ground(brokers, links, self.settings, self.scale, self.rng)


def protocols() -> list[str]:
    """Return the protocols that promise exactly once with honest brokers and links, including some variants
    (with a colon).
    """
    excuses = frozenset({"overflow", "expired"})
    return [
        name
        for name, protocol in sorted(PROTOCOLS.items())
        if protocol.promise.lost <= excuses
        and not (protocol.promise.duplicate or protocol.promise.reordered)
        and protocol.assumes <= {"honest_peers"}
        and not protocol.is_as_published
    ]


def draw_mqtt_story(
    protocol: str, seed: int, faults: Sequence[str] = ()
) -> tuple[Topology, NetworkSettings, tuple[Action, ...]]:
    """Draw the story of a seed, with faults of these kinds."""
    rng = random.Random(f"mqtt/{seed}")
    topology = parse_topology(rng.choice(TOPOLOGIES), rng)
    if find_protocol(protocol).draws_copies and len(topology.brokers) < 3:
        topology = parse_topology(rng.choice(("line:3", "star:4")), rng)
    settings = _draw_settings(protocol, seed, rng)
    step_s = max(settings.link_delay.high_s, 0.02) * rng.choice((0.5, 2.0, 10.0, 40.0))
    scale = Scale(START_S, step_s * rng.choice((5, 10, 20)), step_s)
    plot = Plot(topology, settings, scale, rng, _draw_late(topology, rng))
    if find_protocol(protocol).draws_copies and seed % 2:
        scale = Scale(START_S, rng.choice((5.0, 20.0, 40.0)), step_s)
        plot = replace(plot, late=None, scale=scale, rng=random.Random(f"mqtt/{seed}/copies"))
        settings, actions = _draw_expected(plot)
    else:
        settings, actions = _draw_usual(plot, seed)
    plot = replace(plot, settings=settings)
    if faults:
        fault_rng = random.Random(f"mqtt/{seed}/faults")
        settings = _draw_faults(replace(plot, rng=fault_rng), faults, actions)
        if plot.late is None and {"crash", "partition"} & set(faults):
            actions += _draw_newcomers(plot, random.Random(f"mqtt/{seed}/newcomers"))
        if find_protocol(protocol).draws_copies and plot.late is None:
            actions += _draw_old_copies(plot, actions, random.Random(f"mqtt/{seed}/old copies"))
    return topology, settings, in_order(actions)


def _draw_usual(plot: Plot, seed: int) -> tuple[NetworkSettings, list[Action]]:
    settings, scale = plot.settings, plot.scale
    actions = _draw_clients(plot)
    actions += _draw_operators(plot, actions)
    if plot.late is not None:
        actions.append((scale.moment(plot.rng), plot.late[0], Join(plot.late[1])))
    location = _draw_more(plot, actions, random.Random(f"mqtt/{seed}/more"))
    settings = replace(settings, location=location)
    if find_protocol(settings.protocol).draws_copies:
        rng = random.Random(f"mqtt/{seed}/copies")
        settings = _draw_repeatable(plot.topology, settings, actions, rng)
    return settings, actions


def _draw_settings(protocol: str, seed: int, rng: random.Random) -> NetworkSettings:
    mqtt = MqttSettings(
        queue_max=rng.choice((1, 2, 5)) if rng.random() < 0.1 else None,
        retained_max=rng.choice((1, 2)) if rng.random() < 0.1 else None,
        unreachable="serve" if protocol == "multi_hop_handoff" and rng.random() < 0.1 else "refuse",
        settle_timeout_s=1000.0 if rng.random() < 0.7 else 5.0,
        locate_timeout_s=rng.choice((0.5, 10.0, 10.0)),
    )
    return NetworkSettings(
        protocol=protocol,
        routing=rng.choice(find_protocol(protocol).strategies),
        link_delay=rng.choice((Delay(0.010, 0.010), Delay(0.001, 0.030), Delay(0.0, 0.100))),
        access_delay=rng.choice((Delay(0.020, 0.020), Delay(0.001, 0.040), Delay(0.0, 0.005))),
        notice_delay=rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.200), Delay(0.0, 5.0))),
        mqtt=mqtt,
        mobility=draw_copies(protocol, seed),
        seed=seed,
    )


def _draw_late(topology: Topology, rng: random.Random) -> tuple[str, str] | None:
    leaves = [id for id in topology.brokers if len(topology.peers(id)) == 1]
    if len(topology.brokers) < 2 or rng.random() >= 0.12:
        return None
    late = rng.choice(leaves)
    return late, topology.peers(late)[0]


# --- clients ----------------------------------------------------------------------------------------


def _draw_clients(plot: Plot) -> list[Action]:
    rng, actions = plot.rng, []
    has_shared = rng.random() < 0.35
    early = tuple(id for id in plot.topology.brokers if plot.late is None or id != plot.late[0])
    for number in range(rng.randint(2, 5)):
        # A client of a broker that is still alone stays there: elsewhere it would be somebody else.
        brokers = (plot.late[0],) if plot.late is not None and number == 1 else early
        player = Player(f"c{number}", rng.choice((4, 5, 5)), brokers, 100 * (number + 1))
        actions += _opening(player, plot, has_shared and (number != 0))
        if rng.random() < 0.7:
            actions += _moves(player, plot)
        if rng.random() < 0.7 or number == 0:
            actions += _publishes(player, plot)
        if rng.random() < 0.5:
            actions += _changes(player, plot)
    return actions


def _draw_connect(player: Player, plot: Plot, clean: bool = False) -> Connect:
    rng = plot.rng
    will = None
    if rng.random() < 0.25:
        delay = rng.choice((0, 0, 1, 3)) if player.version == 5 else 0
        will = Will(rng.choice(TOPICS), b"", rng.choice((0, 1, 2)), retain=rng.random() < 0.3, delay=delay)
    return Connect(rng.choice(player.brokers), 0, clean=clean, will=will)


def _opening(player: Player, plot: Plot, has_shared: bool) -> list[Action]:
    rng = plot.rng
    connect = msgspec.structs.replace(
        _draw_connect(player, plot),
        version=player.version,
        expiry_s=rng.choice((None, None, None, 0, 1, 4)) if player.version == 5 else None,
        window=rng.choice((None, 1, 2)) if player.version == 5 else None,
        keep_alive_s=1 if rng.random() < 0.05 else None,
    )
    actions: list[Action] = [(0.01 * rng.random(), player.id, connect)]
    names = rng.sample(FILTERS, rng.choice((0, 1, 1, 2, 3)))
    actions += [(1.0, player.id, _draw_subscribe(name, player, plot)) for name in names]
    if has_shared and player.version == 5 and rng.random() < 0.8:
        actions.append((1.0, player.id, _draw_subscribe(rng.choice(SHARED), player, plot)))
    return actions


def _draw_subscribe(name: str, player: Player, plot: Plot) -> SubscribeFilter:
    rng = plot.rng
    qos = rng.choice((0, 1, 1, 2, 2))
    if player.version == 4:
        return SubscribeFilter(name.partition("?")[0], qos)
    if name.startswith("$share"):
        # The identifier tells what comes by a group from the rest.
        return SubscribeFilter(name, qos, identifier=player.identifier + SHARED.index(name))
    identifier = player.identifier + 10 + FILTERS.index(name) if rng.random() < 0.3 else None
    return SubscribeFilter(
        name,
        qos,
        no_local=rng.random() < 0.15,
        retain_handling=rng.choice((0, 0, 1, 2)),
        identifier=identifier,
        where=rng.choice(WHERE) if rng.random() < 0.3 else "",
    )


def _moves(player: Player, plot: Plot) -> list[Action]:
    rng, scale = plot.rng, plot.scale
    actions: list[Action] = []
    now_s = START_S
    while True:
        now_s += rng.expovariate(1 / scale.step_s)
        if now_s > scale.end_s:
            return actions
        clean = rng.random() < 0.08
        connect = _draw_connect(player, plot, clean)
        actions.append((now_s, player.id, _draw_leave(player, plot, connect.broker)))
        now_s += rng.expovariate(2 / scale.step_s)
        if rng.random() < 0.08:
            now_s += rng.choice((1.5, 4.5))  # Perhaps too late for its session, or for its will.
        actions.append((now_s, player.id, connect))


def _draw_leave(player: Player, plot: Plot, destination: str) -> Input:
    rng, choice = plot.rng, plot.rng.random()
    if choice < 0.6:
        return LeaveFor()
    if choice < 0.75 and player.version == 5:
        # Some who proclaim a move change their minds.
        return Disconnect(destination if rng.random() < 0.9 else rng.choice(player.brokers))
    if choice < 0.85 and player.version == 5:
        return Disconnect(with_will=True)
    if choice < 0.88 and player.version == 5:
        return Disconnect(expiry_s=0)
    return Disconnect()


def _publishes(player: Player, plot: Plot) -> list[Action]:
    every_s = plot.scale.step_s * plot.rng.choice((0.3, 1.0))
    return draw_publishes(player.id, plot.scale, every_s, lambda _: _draw_publish(player, plot.rng), plot.rng)


def _draw_publish(player: Player, rng: random.Random) -> PublishMessage:
    retain = rng.random() < 0.15
    return PublishMessage(
        rng.choice(TOPICS),
        qos=rng.choice((0, 1, 1, 2, 2)),
        retain=retain,
        is_clear=retain and rng.random() < 0.2,
        times=rng.choice((1, 1, 1, 2, 5)),
        size=rng.choice((0, 0, 0, 300, 20_000)) if rng.random() < 0.2 else 0,
        expiry_s=rng.choice((1, 2)) if player.version == 5 and rng.random() < 0.1 else None,
        properties=(("x", str(rng.randrange(4))),) if player.version == 5 else (),
    )


def _changes(player: Player, plot: Plot) -> list[Action]:
    """Draw subscriptions and unsubscriptions at any moment, also while clients are away."""
    rng = plot.rng
    actions: list[Action] = []
    names = [*FILTERS, SHARED[0]] if player.version == 5 else [name for name in FILTERS if "?" not in name]
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(names)
        is_new = rng.random() < 0.6
        item = _draw_subscribe(name, player, plot) if is_new else UnsubscribeFilter(name)
        actions.append((plot.scale.moment(rng), player.id, item))
    return actions


# --- what came later, with draws of its own: the rest of a story is as it was -------------------------


def _draw_more(plot: Plot, actions: list[Action], rng: random.Random) -> LocationSettings:
    """Let some subscribers see RETAIN as published; in some stories clients report their place."""
    if rng.random() < 0.3:
        for position, (at, client, item) in enumerate(actions):
            if isinstance(item, SubscribeFilter) and rng.random() < 0.5:
                seeing = msgspec.structs.replace(item, retain_as_published=True)
                actions[position] = (at, client, seeing)
    protocol, mqtt = find_protocol(plot.settings.protocol), plot.settings.mqtt
    serves = mqtt is not None and mqtt.unreachable == "serve"
    if not protocol.own_state or serves or rng.random() >= 0.25:
        return LocationSettings()
    return _draw_places(plot, actions, rng)


def _draw_repeatable(
    topology: Topology, settings: NetworkSettings, actions: list[Action], rng: random.Random
) -> NetworkSettings:
    """Draw stories that copies serve: mostly QoS 1, no wills, and clients expected everywhere."""
    if rng.random() < 0.3:
        return settings
    ours = {client for client in sorted({one[1] for one in actions}) if rng.random() < 0.4}
    for position, (at, client, item) in enumerate(actions):
        if isinstance(item, SubscribeFilter) and (client not in ours or rng.random() < 0.5):
            actions[position] = (at, client, msgspec.structs.replace(item, qos=1))
        elif isinstance(item, Connect):
            will = item.will if rng.random() < 0.2 else None
            says = 1 if item.version and client in ours else None
            actions[position] = (at, client, msgspec.structs.replace(item, will=will, says=says))
    if rng.random() < 0.2:
        return settings
    mobility = msgspec.structs.replace(settings.mobility, neighbour_graph=everyone_next(topology.brokers))
    if rng.random() < 0.7:
        mobility = msgspec.structs.replace(mobility, copies_max=8, copies_for_s=14_400.0)
    return replace(settings, mobility=mobility)


# --- stories of clients that are expected everywhere, and hurry from copy to copy ---------------------


def _draw_expected(plot: Plot) -> tuple[NetworkSettings, list[Action]]:
    """Draw clients that mostly leave before their session can arrive, and another client that publishes for
    them.
    """
    rng, mobility = plot.rng, plot.settings.mobility
    settings = replace(
        plot.settings,
        link_delay=rng.choice((Delay(0.050, 0.050), Delay(0.0, 0.100))),
        access_delay=Delay(0.0, 0.005),
        notice_delay=rng.choice((Delay(0.0, 0.0), Delay(0.0, 0.0), Delay(0.0, 0.200))),
        mobility=msgspec.structs.replace(
            mobility,
            neighbour_graph=everyone_next(plot.topology.brokers),
            copies_max=8,
            copies_for_s=rng.choice((1.0, 14_400.0, 14_400.0)),
        ),
    )
    plot = replace(plot, settings=settings)
    actions: list[Action] = [(0.0, "c0", Connect(rng.choice(plot.topology.brokers), 0, version=5))]
    for number in range(1, rng.choice((3, 4))):
        actions += _draw_hurries(f"c{number}", plot)
    for _ in range(rng.choice((30, 100, 200))):
        publish = PublishMessage(rng.choice(("a/1", "a/1", "b/1")), rng.choice((0, 1, 1, 2, 2)))
        actions.append((plot.scale.moment(rng), "c0", publish))
    return settings, actions


def _draw_hurries(client: str, plot: Plot) -> list[Action]:
    rng, brokers = plot.rng, plot.topology.brokers
    version: Version = rng.choice((4, 5, 5, 5))
    is_ours = version == 5 and rng.random() < 0.5
    connect = Connect(rng.choice(brokers), 0, version=version, says=1 if is_ours else None)
    drawn: list[Action] = [(0.01 * rng.random(), client, connect)]
    mostly = 2 if is_ours and rng.random() < 0.7 else 1
    for topic, qos in (("a/1", mostly), ("b/1", rng.choice((0, 1, 1, 2)))):
        drawn.append((1.0, client, SubscribeFilter(topic, qos)))
    link_s, now_s = plot.settings.link_delay.high_s, START_S
    while now_s < plot.scale.end_s:
        expiry_s, new_s = (rng.choice((None, None, None, 1)) if version == 5 else None for _ in range(2))
        is_silent = expiry_s is None and rng.random() < 0.5
        drawn.append((now_s, client, LeaveFor() if is_silent else Disconnect(expiry_s=expiry_s)))
        # Often at once, often when a copy has just come, and often when the session is about to end.
        now_s += rng.choice((0.1, 3.0, 3.0, 8.0)) * rng.random() * link_s
        if expiry_s is not None and rng.random() < 0.5:
            now_s += expiry_s - rng.choice((1.0, 3.0)) * rng.random() * link_s
        connect = Connect(rng.choice(brokers), 0, clean=rng.random() < 0.03, expiry_s=new_s)
        drawn.append((now_s, client, connect))
        now_s += rng.choice((1.0, 4.0, 4.0, 20.0, 60.0)) * rng.random() * link_s
    return drawn


def _draw_old_copies(plot: Plot, actions: list[Action], rng: random.Random) -> list[Action]:
    """Let a client be elsewhere while a broker with a copy of its session is down, and then connect to that
    broker.
    """
    drawn: list[Action] = []
    clients = sorted({client for _, client, item in actions if isinstance(item, Connect)})
    for start_s, broker, item in actions:
        others = [one for one in plot.topology.brokers if one != broker]
        if not isinstance(item, Crash) or not others or rng.random() < 0.3:
            continue
        end_s = min(
            at for at, who, one in actions if who == broker and isinstance(one, Restart) and at > start_s
        )
        client, first_s = rng.choice(clients), rng.uniform(start_s, end_s)
        drawn.append((start_s - rng.uniform(0.05, 0.5), client, Disconnect()))
        drawn.append((first_s, client, Connect(rng.choice(others), 0, clean=rng.random() < 0.3)))
        if rng.random() < 0.3:
            drawn.append((rng.uniform(first_s, end_s), client, PublishMessage(rng.choice(TOPICS), qos=2)))
        drawn.append((rng.uniform(first_s, end_s), client, Connect(broker, 0)))
    return drawn


def _draw_newcomers(plot: Plot, rng: random.Random) -> list[Action]:
    """Cut a link for long; a client that is new, or that moved just before, connects on both sides."""
    links, plot = plot.topology.overlay, replace(plot, rng=rng)
    if not links or rng.random() < 0.5:
        return []
    broker, peer = rng.choice(links)
    start_s, length_s = plot.scale.moment(rng), rng.choice((0.5, 3.0, 8.0))
    player = Player("n0", rng.choice((4, 5, 5)), plot.topology.brokers, 10_000)
    visits = sorted(rng.uniform(0.0, length_s) for _ in range(rng.choice((1, 2, 3))))
    if rng.random() < 0.5:
        visits.insert(0, -rng.choice((0.05, 0.3, 2.0)))
    drawn: list[Action] = [(start_s, broker, Cut(peer)), (start_s + length_s, broker, Heal(peer))]
    for number, visit_s in enumerate((*visits, length_s + rng.uniform(0.0, 3.0))):
        at = start_s + visit_s
        connect = _draw_connect(player, plot)
        if number:
            drawn.append((at - 0.01, player.id, _draw_leave(player, plot, connect.broker)))
        drawn.append((at, player.id, msgspec.structs.replace(connect, version=player.version)))
        if rng.random() < 0.7:
            drawn.append((at + 0.02, player.id, _draw_subscribe(rng.choice(FILTERS[:4]), player, plot)))
        if rng.random() < 0.5:
            drawn.append((at + 0.03, player.id, _draw_publish(player, rng)))
    return [(max(at, 0.0), node, item) for at, node, item in drawn]


def _draw_places(plot: Plot, actions: list[Action], rng: random.Random) -> LocationSettings:
    """Give publications a place, and let some subscribers want those of the place where they are."""
    walkers = [client for _, client, item in actions if isinstance(item, Connect) and item.version == 5]
    for position, (at, client, item) in enumerate(actions):
        if isinstance(item, PublishMessage) and client in walkers and rng.random() < 0.7:
            properties = (*item.properties, (PLACE, rng.choice(PLACES)))
            actions[position] = (at, client, msgspec.structs.replace(item, properties=properties))
        elif (
            isinstance(item, SubscribeFilter)
            and client in walkers
            and not (split_shared(item.filter) or "?" in item.filter)
            and rng.random() < 0.5
        ):
            actions[position] = (at, client, msgspec.structs.replace(item, where=f"{PLACE} IN myloc"))
    for walker in walkers:
        place = rng.randrange(len(PLACES))
        actions.append((0.5, walker, MoveTo({PLACE: PLACES[place]})))
        for _ in range(rng.choice((0, 1, 3, 6))):
            # Mostly a step along the graph, now and then a jump.
            steps = (place - 1, place + 1) if rng.random() < 0.8 else range(len(PLACES))
            place = rng.choice([one for one in steps if 0 <= one < len(PLACES)])
            actions.append((plot.scale.moment(rng), walker, MoveTo({PLACE: PLACES[place]})))
    stay_s = plot.scale.step_s * rng.choice((0.0, 0.1, 1.0))
    return LocationSettings({PLACE: MovementGraph(pairwise(PLACES))}, stay_s=stay_s)


# --- operators --------------------------------------------------------------------------------------


def _draw_operators(plot: Plot, actions: list[Action]) -> list[Action]:
    rng, drawn = plot.rng, []
    if rng.random() < 0.12:
        drawn += _draw_drain(plot)
    if rng.random() < 0.15:
        drawn += _draw_rules(plot)
    if rng.random() < 0.1:
        drawn += _draw_limits(plot)
    for _ in range(rng.choice((0, 0, 1, 3))):
        drawn.append((plot.scale.moment(rng), rng.choice(plot.topology.brokers), Snapshot()))
    return drawn


def _draw_drain(plot: Plot) -> list[Action]:
    """Drain brokers; some restart afterwards, and some leaves of the tree are forgotten for good."""
    rng, brokers = plot.rng, plot.topology.brokers
    if len(brokers) < 2 or plot.late is not None:
        return []
    broker = rng.choice(brokers)
    destination = rng.choice([id for id in brokers if id != broker])
    start_s = plot.scale.moment(rng)
    end_s = start_s + rng.expovariate(1 / plot.scale.step_s)
    drained: list[Action] = [(start_s, broker, Drain(destination))]
    if len(plot.topology.peers(broker)) == 1 and rng.random() < 0.4:
        peer = plot.topology.peers(broker)[0]
        return [*drained, (max(end_s, plot.scale.end_s) + 5.0, peer, Forget(broker))]
    return [*drained, (end_s, broker, Crash()), (end_s + 0.1, broker, Restart())]


def _draw_rules(plot: Plot) -> list[Action]:
    """Withdraw a right, at one broker or at all, and perhaps grant it again."""
    rng, brokers = plot.rng, plot.topology.brokers
    client, topic = f"c{rng.randrange(3)}", rng.choice(("a/#", "a/1", "#"))
    action: Literal["publish", "subscribe"] = "subscribe" if rng.random() < 0.5 else "publish"
    rules = AccessRules((Rule("deny", topic=topic, action=action, client=client),))
    start_s, end_s = sorted((plot.scale.moment(rng), plot.scale.moment(rng)))
    where = brokers if rng.random() < 0.6 else (rng.choice(brokers),)
    drawn: list[Action] = [(start_s, broker, SetRules(rules)) for broker in where]
    if rng.random() < 0.6:
        drawn += [(end_s, broker, SetRules(AccessRules())) for broker in where]
    return drawn


def _draw_limits(plot: Plot) -> list[Action]:
    """Set a limit and lift it again."""
    rng = plot.rng
    broker = rng.choice(plot.topology.brokers)
    name: Limit = rng.choice(("queue_max", "sessions_max", "retained_max"))
    start_s, end_s = sorted((plot.scale.moment(rng), plot.scale.moment(rng)))
    return [(start_s, broker, SetLimit(name, rng.choice((1, 2)))), (end_s, broker, SetLimit(name, None))]


# --- faults -----------------------------------------------------------------------------------------


def _draw_faults(plot: Plot, faults: Sequence[str], actions: list[Action]) -> NetworkSettings:
    """Add faults of these kinds to the actions."""
    rng, settings = plot.rng, plot.settings
    for kind in draw_kinds(faults, rng):
        if kind == "hostile":
            continue  # Added to the finished story.
        if kind == "loss":
            settings = replace(settings, loss=rng.choice(LOSSES))
        elif kind == "crash":
            actions += _draw_crashes(plot, actions)
        else:
            actions += DRAW_FAULTS[kind](plot.ground())
    return settings


def _draw_crashes(plot: Plot, actions: list[Action]) -> list[Action]:
    """Draw brokers that are down for a while; some of their clients go elsewhere, the others wait."""
    rng = plot.rng
    drawn: list[Action] = []
    for _ in range(rng.choice((1, 1, 2, 4))):
        broker = rng.choice(plot.topology.brokers)
        start_s, end_s = draw_outage(plot.settings, plot.scale, rng)
        how = rng.choice(("", "unsent", "torn"))
        drawn.append((start_s, broker, Crash(unsent=how == "unsent", torn=how == "torn")))
        for client in attached_at(actions, broker, start_s):
            if rng.random() < 0.4 and plot.late is None:
                elsewhere = Connect(rng.choice(plot.topology.brokers), 0)
                drawn.append((rng.uniform(start_s, end_s), client, elsewhere))
        if rng.random() < 0.4:
            drawn.append((start_s - rng.expovariate(1 / plot.scale.step_s), broker, Snapshot()))
        drawn.append((end_s, broker, Restart()))
    return [(max(at, 0.0), node, item) for at, node, item in drawn]
