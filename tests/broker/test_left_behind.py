"""Brokers are gone for good at which a client was, and moved on in haste: nobody waits for them."""

from __future__ import annotations

import random

import pytest
from tests.broker.linked_network import LinkedNetwork
from tests.broker.test_returns import ALIVE, Network, Publisher, subscribe

from roamcast.broker.links.links import LinkTurn
from roamcast.mobility.multi_hop_handoff import MultiHopHandoff
from roamcast.protocol.effects import Effects
from roamcast.protocol.messages import Acknowledge, Deliver

LINE = (("a", "b"), ("b", "c"), ("c", "x"), ("x", "y"))


class Journey(Network):
    """What is journalled is acknowledged; the client knows by its numbers what it has had, as with MQTT."""

    def follow(self, broker: str, turn: LinkTurn) -> None:
        for end in self.ends[broker].ends.values():
            end.acknowledge()
        super().follow(broker, turn)

    def perform(self, broker: str, effects: Effects) -> None:
        for client, connection, message in effects.to_clients:
            if isinstance(message, Deliver) and connection == self.roamers[client].connection:
                burst = message.burst
                numbers = range(burst.number, burst.number + burst.count)
                self.numbers += [number for number in numbers if number not in self.numbers]
                last = Acknowledge(message.stream, message.sequence + burst.count - 1)
                self.unacknowledged.append((client, connection, last))
        LinkedNetwork.perform(self, broker, effects)

    def acknowledge_one(self) -> None:
        if self.unacknowledged:
            client, connection, message = self.unacknowledged.pop(0)
            if self.roamers[client].connection == connection:
                self.submit(client, message)

    def rest_but_for(self, sender: str, receiver: str) -> None:
        """Until nothing is on its way except over this link in this direction."""
        while ways := [way for way in self.busy() if way != (sender, receiver)]:
            self.arrive_on(*ways[0])

    def protocol(self, broker: str) -> MultiHopHandoff:
        protocol = self.brokers[broker].protocol
        assert isinstance(protocol, MultiHopHandoff)
        return protocol


def journey(
    first: str, publisher: str, rng: random.Random, protocol: str = "multi_hop_handoff"
) -> tuple[Journey, Publisher]:
    """A client has subscribed, and is away."""
    network = Journey(("a", "b", "c", "x", "y"), protocol)
    for edge in LINE:
        network.connect(*edge)
        network.rest(rng)
    subscribe(network, first, publisher, rng)
    network.detach("k")
    return network, Publisher(network)


def has_its_subscription(network: Journey) -> bool:
    """Whether the session is the same that it was: not one that was made because that was lost."""
    sessions = [network.brokers[name].sessions.get("k") for name in ALIVE]
    return any(session is not None and session.subscriptions for session in sessions)


def test_a_pull_on_the_readers_behalf_is_lost_with_a_broker_that_is_gone() -> None:
    rng = random.Random(0)
    network, publisher = journey("a", "a", rng)
    publisher.publish(5)
    network.rest()
    network.attach("k", "b")
    while "k" not in network.brokers["b"].sessions:
        network.arrive(rng)
    publisher.publish(3)  # They wait at b, because what was stored at a comes before them.
    while len(network.protocol("b").holds["k"].own or ()) < 3:
        network.arrive_on("a", "b")
    network.attach("k", "y")
    network.rest()
    waiting = [("b", 2, "own")]
    assert network.protocol("y").holds["k"].segments == waiting
    network.attach("k", "c")
    network.rest_but_for("x", "c")
    holds = network.protocol("c").holds
    while "k" not in holds or holds["k"].segments != waiting:
        network.arrive_on("x", "c")
        network.rest_but_for("x", "c")
    assert (holds["k"].granted, holds["k"].asked_by) == (3, "y"), "y asks b for more on behalf of c"
    for name in ("x", "y"):
        network.kill(name, and_what_it_said=True)
    network.forget("c", "x")
    network.settle(rng)
    publisher.publish(2)
    network.settle(rng)
    assert network.numbers == list(range(1, 11))
    assert [one for name in ALIVE for one in network.brokers[name].unfinished()] == []


def story(rng: random.Random, protocol: str) -> tuple[Journey, Publisher]:
    """The client goes to and fro, here and beyond c; then everyone beyond c is gone."""
    network, publisher = journey(rng.choice("abcxy"), rng.choice("abc"), rng, protocol)
    publisher.publish(rng.randrange(40))
    network.rest(rng)
    for _ in range(rng.randrange(1, 6)):
        network.attach("k", rng.choice("abcxxyy"))
        for _ in range(rng.randrange(30)):
            if rng.random() < 0.2:
                publisher.publish(1)
            if rng.random() < 0.3:
                network.acknowledge_one()
            network.arrive(rng)
    network.attach("k", rng.choice(ALIVE))
    for _ in range(rng.randrange(40)):
        network.arrive(rng)
    for name in ("x", "y"):
        network.kill(name, and_what_it_said=True)
    for _ in range(rng.randrange(10)):
        network.arrive(rng)
    network.forget(rng.choice(ALIVE), "x")
    network.settle(rng)
    return network, publisher


def check(seed: int, protocol: str) -> None:
    network, publisher = story(random.Random(seed), protocol)
    for broker in ALIVE:
        network.attach("k", broker)
        network.settle(random.Random(seed))
        publisher.publish(2)
        network.settle(random.Random(seed))
        assert [name for name in network.holders("k") if name in ALIVE] == [broker]
        if has_its_subscription(network):
            assert network.numbers[-2:] == [publisher.count - 1, publisher.count]
    assert network.numbers == sorted(network.numbers)
    left = [one for name in ALIVE for one in network.brokers[name].unfinished()]
    assert [one for one in left if not one.startswith("timers")] == []


@pytest.mark.parametrize("seed", [*range(10), 30, 104, 300, 375, 753, 1154, 1314])
def test_a_client_that_came_from_there_in_haste_is_served_on(seed: int) -> None:
    check(seed, "multi_hop_handoff")


OTHERS = {
    "relocation": (1, 14, 52, 56, 120, 275),
    "proactive": (1, 4, 13, 141, 297, 2554),
    "reactive:merged": (1, 30, 52, 120, 275),
}
"""With seeds that showed something."""


@pytest.mark.parametrize("protocol", OTHERS)
def test_it_is_served_on_with_other_protocols(protocol: str) -> None:
    for seed in OTHERS[protocol]:
        check(seed, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["multi_hop_handoff", *OTHERS])
@pytest.mark.parametrize("start", range(2000, 4000, 500))
def test_clients_are_served_on_over_many_seeds(start: int, protocol: str) -> None:
    for seed in range(start, start + 500):
        check(seed, protocol)
