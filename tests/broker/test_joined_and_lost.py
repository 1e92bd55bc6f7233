"""Two trees join, sessions end, and a broker is gone for good in the midst of it: the others serve on."""

from __future__ import annotations

import random

import pytest
from tests.broker.broker_network import Roamer
from tests.broker.test_returns import Network
from tests.broker.test_reunion import FIRST, INSIDE, PROTOCOLS, SECOND

from roamcast.filters.selector import parse
from roamcast.protocol.effects import SessionOver
from roamcast.protocol.messages import ClientPublish, ClientSubscribe, ClientUnsubscribe, Request
from roamcast.protocol.notification import encode_attributes

FILTER = parse("n > 1")


class Life:
    """What clients do at random, as standard clients that know nothing of where they were."""

    def __init__(self, protocol: str, rng: random.Random) -> None:
        self.rng = rng
        self.network = Network((*FIRST, *SECOND), protocol)
        self.alive = [*FIRST, *SECOND]
        for edge in INSIDE:
            self.network.connect(*edge)
            self.network.rest(rng)

    def attach(self, client: str, broker: str, *, clean: bool = False) -> None:
        self.network.roamers.setdefault(client, Roamer(client, counts=False))
        self.network.attach(client, broker, clean=clean)

    def ask(self, client: str, what: float) -> None:
        network, broker = self.network, self.network.roamers[client].broker
        session = network.brokers[broker].sessions.get(client)
        number = session.accepted + 1 if session is not None else 1
        publish = ClientPublish(number, encode_attributes({"n": self.rng.randrange(5)}), (b"",))
        change: Request = (ClientSubscribe if what < 0.9 else ClientUnsubscribe)(number, FILTER)
        network.submit(client, publish if what < 0.75 else change)

    def act(self, times: int) -> None:
        for _ in range(times):
            self.act_once(self.rng.choice("kl"), self.rng.random())
            for _ in range(self.rng.choice((0, 1, 5, 30))):
                self.network.arrive(self.rng)

    def act_once(self, client: str, what: float) -> None:
        network, roamer = self.network, self.network.roamers.get(client)
        holders = [one for one in network.holders(client) if one in self.alive]
        if roamer is None or what < 0.4:
            self.attach(client, self.rng.choice(self.alive), clean=self.rng.random() < 0.3)
        elif what < 0.5 and roamer.broker:
            network.detach(client)
        elif what < 0.6 and holders:
            network.step(self.rng.choice(holders), SessionOver(client))
        elif roamer.broker:
            self.ask(client, what)

    def lose_a_leaf(self, joint: tuple[str, str]) -> None:
        """The last broker of a branch stops; some time later the others are told that it is gone."""
        ends = [end for edge in (*INSIDE, joint) for end in edge]
        leaf = self.rng.choice([one for one in self.alive if ends.count(one) == 1])
        self.alive.remove(leaf)
        self.network.kill(leaf, and_what_it_said=self.rng.random() < 0.5)
        for roamer in self.network.roamers.values():
            if roamer.broker == leaf:
                roamer.broker, roamer.connection = "", -1
        self.act(self.rng.choice((0, 1, 5, 12)))
        knowing = [one for one in self.alive if leaf in self.network.ends[one].reach.next_hops]
        self.network.forget(self.rng.choice(knowing), leaf)


def check(protocol: str, seed: int) -> None:
    rng = random.Random(seed)
    life = Life(protocol, rng)
    life.act(16)
    joint = (rng.choice(FIRST), rng.choice(SECOND))
    life.network.connect(*joint)
    life.act(rng.choice((0, 4, 12)))
    life.lose_a_leaf(joint)
    life.act(rng.choice((0, 4, 12)))
    life.network.settle(rng)
    life.network.numbers.clear()
    life.network.sequence = 0
    for client, broker in (("m", life.alive[0]), ("p", life.alive[-1])):
        life.attach(client, broker)
        life.network.settle(rng)
    life.network.submit("m", ClientSubscribe(1, FILTER))
    life.network.settle(rng)
    life.network.submit("p", ClientPublish(1, encode_attributes({"n": 4}), (b"",)))
    life.network.settle(rng)
    assert 1 in life.network.numbers, f"seed {seed}: m gets what p published"
    for client in "kl":
        life.attach(client, rng.choice(life.alive))
        life.network.settle(rng)
        assert client in life.network.brokers[life.network.roamers[client].broker].sessions, f"seed {seed}"
    for broker in life.alive:
        unfinished = life.network.brokers[broker].unfinished()
        assert [one for one in unfinished if not one.startswith("timers")] == [], f"seed {seed}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_brokers_serve_on_whatever_was_under_way_when_one_of_them_was_lost(protocol: str) -> None:
    for seed in range(20):
        check(protocol, seed)


@pytest.mark.parametrize("seed", [195, 280, 286, 334, 335, 360, 473])
def test_a_subscriber_of_phoenix_moves_away_from_a_broker_that_is_lost(seed: int) -> None:
    check("phoenix", seed)


@pytest.mark.parametrize("seed", [392, 1262])
def test_two_sessions_that_go_on_with_higher_numbers_are_told_apart(seed: int) -> None:
    check("multi_hop_handoff", seed)


@pytest.mark.parametrize(
    ("protocol", "seed"),
    [("multi_hop_handoff", 55), ("multi_hop_handoff", 496), ("proactive", 80), ("none", 104)],
)
def test_nobody_waits_for_a_rival_that_was_lost(protocol: str, seed: int) -> None:
    check(protocol, seed)


def test_a_session_that_nobody_comes_for_rests_at_a_foreign_broker() -> None:
    """It was taken back from a broker that is lost, while its twin had already arrived."""
    check("home_broker", 344)
