"""A broker is gone for good while a session is on its way to it: the session stays, with all it is owed."""

from __future__ import annotations

import random

import pytest
from tests.broker.broker_network import Roamer
from tests.broker.linked_network import LinkedNetwork

from roamcast.broker.links.links import LinkTurn
from roamcast.filters.selector import parse
from roamcast.protocol.effects import Effects, Submitted
from roamcast.protocol.messages import Acknowledge, ClientPublish, ClientSubscribe, Deliver, Request
from roamcast.protocol.notification import encode_attributes

LINE = (("a", "b"), ("b", "c"), ("c", "x"))
ALIVE = "abc"
BRANCHED = (("a", "b"), ("b", "c"), ("b", "x"), ("x", "y"))


class Network(LinkedNetwork):
    """Brokers can die here. The client acknowledges what it gets, and knows by its sequence what it had."""

    def __init__(self, names: tuple[str, ...], protocol: str) -> None:
        super().__init__(names, protocol)
        self.numbers: list[int] = []
        """Of the notifications that the client got."""
        self.sequence = 0
        self.unacknowledged: list[tuple[str, int, Acknowledge]] = []
        self.dead: set[str] = set()

    def perform(self, broker: str, effects: Effects) -> None:
        for client, connection, message in effects.to_clients:
            if isinstance(message, Deliver) and connection == self.roamers[client].connection:
                burst = message.burst
                last = message.sequence + burst.count - 1
                new = burst.tail(max(0, self.sequence + 1 - message.sequence))
                self.numbers += range(new.number, new.number + new.count)
                self.sequence = max(self.sequence, last)
                self.unacknowledged.append((client, connection, Acknowledge(message.stream, last)))
        super().perform(broker, effects)

    def follow(self, broker: str, turn: LinkTurn) -> None:
        turn.closes.clear()
        super().follow(broker, turn)

    def busy(self) -> list[tuple[str, str]]:
        return [way for way in super().busy() if way[1] not in self.dead]

    def kill(self, broker: str, *, and_what_it_said: bool) -> None:
        self.dead.add(broker)
        for way in self.wires:
            if way[1] == broker or (way[0] == broker and and_what_it_said):
                self.wires[way].clear()

    def forget(self, at: str, broker: str) -> None:
        self.follow(at, self.ends[at].forget(broker))

    def submit(self, client: str, message: Request | Acknowledge) -> None:
        roamer = self.roamers[client]
        if roamer.broker:
            self.step(roamer.broker, Submitted(client, roamer.connection, message))

    def settle(self, rng: random.Random) -> None:
        self.rest(rng)
        while self.unacknowledged:
            client, connection, message = self.unacknowledged.pop(0)
            if self.roamers[client].connection == connection:
                self.submit(client, message)
            self.rest(rng)


def network_of(edges: tuple[tuple[str, str], ...], protocol: str, rng: random.Random) -> Network:
    network = Network(tuple(sorted({end for edge in edges for end in edge})), protocol)
    for edge in edges:
        network.connect(*edge)
        network.rest(rng)
    subscribe(network, rng.choice("abc"), rng.choice("abc"), rng)
    return network


def subscribe(network: Network, first: str, publisher: str, rng: random.Random) -> None:
    """The client k has subscribed at the first broker; p, which publishes, is at the other one."""
    for client, broker in (("k", first), ("p", publisher)):
        network.roamers[client] = Roamer(client, counts=False)
        network.attach(client, broker)
        network.rest(rng)
    network.submit("k", ClientSubscribe(1, parse("n > 0")))
    network.settle(rng)


class Publisher:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.count = 0

    def publish(self, many: int) -> None:
        for _ in range(many):
            self.count += 1
            self.network.submit("p", ClientPublish(self.count, encode_attributes({"n": 1}), (b"",)))


def story(
    edges: tuple[tuple[str, str], ...], protocol: str, rng: random.Random
) -> tuple[Network, Publisher, bool]:
    """The client moves to where everyone dies, and comes back; whether its session had arrived there."""
    network = network_of(edges, protocol, rng)
    publisher = Publisher(network)
    if rng.random() < 0.5:
        network.detach("k")
    publisher.publish(rng.randrange(25))
    for _ in range(rng.randrange(10)):
        network.arrive(rng)
    beyond = [name for name in network.brokers if name not in ALIVE]
    network.attach("k", rng.choice(beyond))
    for _ in range(rng.randrange(14)):
        if rng.random() < 0.3:
            publisher.publish(1)
        network.arrive(rng)
    for name in beyond:
        network.kill(name, and_what_it_said=rng.random() < 0.5)
    dead = [network.brokers[name] for name in beyond]
    had_it = any("k" in one.sessions or getattr(one.protocol, "passes", ()) for one in dead)
    for name in beyond:
        for _ in range(rng.randrange(6)):
            publisher.publish(rng.randrange(2))
            network.arrive(rng)
        network.forget(rng.choice(ALIVE), name)
        for _ in range(rng.randrange(6)):
            network.arrive(rng)
    if rng.random() < 0.5:
        # It asks while not everyone has heard of it.
        network.attach("k", rng.choice(ALIVE))
    publisher.publish(rng.randrange(4))
    network.settle(rng)
    network.attach("k", rng.choice(ALIVE))
    network.settle(rng)
    publisher.publish(2)
    network.settle(rng)
    return network, publisher, had_it


@pytest.mark.parametrize("edges", [LINE, BRANCHED], ids=["line", "branched"])
@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "home_broker", "none"])
@pytest.mark.parametrize("seed", range(40))
def test_a_session_on_its_way_stays_with_all_it_is_owed(
    seed: int, protocol: str, edges: tuple[tuple[str, str], ...]
) -> None:
    network, publisher, had_it = story(edges, protocol, random.Random(seed))
    assert [name for name in ALIVE if "k" in network.brokers[name].sessions] == [network.roamers["k"].broker]
    if protocol == "multi_hop_handoff" and not had_it:
        assert network.numbers == list(range(1, publisher.count + 1))
    assert [one for name in ALIVE for one in network.brokers[name].unfinished()] == []


def story_of_a_departure(protocol: str, rng: random.Random) -> tuple[Network, Publisher, bool]:
    """The client leaves the broker that dies, and may move on; whether its session had left by then."""
    network = Network(("a", "b", "c", "x"), protocol)
    for edge in LINE:
        network.connect(*edge)
        network.rest(rng)
    subscribe(network, "x", rng.choice(ALIVE), rng)
    network.detach("k")
    publisher = Publisher(network)
    publisher.publish(rng.randrange(4))
    network.rest(rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        network.attach("k", rng.choice(ALIVE))
        for _ in range(rng.randrange(20)):
            if rng.random() < 0.2:
                publisher.publish(1)
            network.arrive(rng)
    alive = [network.brokers[name] for name in ALIVE]
    known = [one.clients.here["k"] for one in alive if "k" in one.clients.here]
    had_left = any(here.session or here.departed for here in known)
    network.kill("x", and_what_it_said=False)
    for _ in range(rng.randrange(6)):
        network.arrive(rng)
    network.forget(rng.choice(ALIVE), "x")
    for _ in range(rng.randrange(12)):
        network.arrive(rng)
    if rng.random() < 0.5:
        network.attach("k", rng.choice(ALIVE))
    network.settle(rng)
    return network, publisher, had_left


@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "reactive:merged", "proactive", "relocation"])
@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_has_left_a_broker_which_is_gone_is_served_on(seed: int, protocol: str) -> None:
    network, publisher, had_left = story_of_a_departure(protocol, random.Random(seed))
    for broker in ALIVE:
        network.attach("k", broker)
        network.settle(random.Random(seed))
        publisher.publish(2)
        network.settle(random.Random(seed))
        assert [name for name in network.holders("k") if name in ALIVE] == [broker]
        if had_left:
            assert network.numbers[-2:] == [publisher.count - 1, publisher.count]
    assert network.numbers == sorted(set(network.numbers))


@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "phoenix", "reactive"])
def test_a_client_does_not_wait_for_what_was_stored_at_a_broker_that_is_gone(protocol: str) -> None:
    network = Network(("a", "b", "c", "x"), protocol)
    for edge in LINE:
        network.connect(*edge)
        network.rest()
    for client, broker in (("k", "x"), ("p", "a")):
        network.roamers[client] = Roamer(client, counts=False)
        network.attach(client, broker)
        network.rest()
    network.submit("k", ClientSubscribe(1, parse("n > 0")))
    network.settle(random.Random(0))
    network.detach("k")
    publisher = Publisher(network)
    publisher.publish(3)
    network.rest()
    network.attach("k", "a")
    while "k" not in network.brokers["a"].sessions:
        assert network.arrive(random.Random(0))
    network.kill("x", and_what_it_said=True)
    network.settle(random.Random(0))
    network.forget("c", "x")
    network.settle(random.Random(0))
    publisher.publish(2)
    network.settle(random.Random(0))
    assert network.numbers[-2:] == [4, 5]
    assert [one for name in ALIVE for one in network.brokers[name].unfinished()] == []
