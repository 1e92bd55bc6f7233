"""The table of a session's life is complete: everything in it happens, and nothing else does."""

from __future__ import annotations

import random
from collections import Counter
from enum import Enum

import pytest
from tests.broker.broker_network import Roamer
from tests.broker.linked_network import LinkedNetwork

from roamcast.broker.links.links import LinkTurn
from roamcast.broker.session import MOVES, TABLE, ClientHere, Event, Holding, IllegalTransition
from roamcast.filters.selector import parse
from roamcast.protocol.effects import Attached, SessionOver, Submitted
from roamcast.protocol.messages import (
    Acknowledge,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    Hello,
    Leave,
    Request,
)
from roamcast.protocol.notification import encode_attributes

FIRST, SECOND = ("a", "b", "c"), ("x", "y", "z")
INSIDE = (("a", "b"), ("b", "c"), ("x", "y"), ("y", "z"))

Transition = tuple[str, Enum, Event]

RARE: dict[Event, str] = {
    Event.MET: "takes three sessions of one client that meet within a few messages while two trees join",
}
"""Events that few stories below bring about, and why."""


class Wild(LinkedNetwork):
    """Two trees that join, and clients that do whatever a client can do, at any moment."""

    def __init__(self, protocol: str, seed: int) -> None:
        super().__init__((*FIRST, *SECOND), protocol)
        self.rng = random.Random(seed)
        self.requests: Counter[str] = Counter()
        self.dead = ""
        for pair in INSIDE:
            self.connect(*pair)
            self.rest(self.rng)

    def follow(self, broker: str, turn: LinkTurn) -> None:
        turn.closes.clear()
        super().follow(broker, turn)

    def arrive_on(self, sender: str, receiver: str) -> None:
        super().arrive_on(sender, receiver)
        self.ends[receiver].ends[sender].acknowledge()
        self.write(receiver)

    def busy(self) -> list[tuple[str, str]]:
        return [way for way in super().busy() if way[1] != self.dead]

    def alive(self) -> list[str]:
        return [name for name in self.brokers if name != self.dead]

    def come(self, client: str) -> None:
        """Attach, as a client that counts its moves, or knows where it was, or wants a new session."""
        rng = self.rng
        roamer = self.roamers.setdefault(client, Roamer(client))
        self.connections += 1
        last, roamer.broker = roamer.broker, rng.choice(self.alive())
        roamer.connection, roamer.moves = self.connections, roamer.moves + 1
        moves = roamer.moves - rng.choice((0, 0, 0, 1)) if client == "k" else -1
        last_broker = last if rng.random() < 0.4 else ""
        hello = Hello(client, moves, {}, last_broker, clean=rng.random() < 0.15)
        self.step(roamer.broker, Attached(client, self.connections, hello))

    def say(self, client: str, message: Request | Acknowledge | Leave) -> None:
        roamer = self.roamers[client]
        self.step(roamer.broker, Submitted(client, roamer.connection, message))

    def ask(self, client: str) -> None:
        self.requests[client] += 1
        number, kind = self.requests[client], self.rng.choice((ClientSubscribe, ClientUnsubscribe, None))
        if kind is None:
            self.say(client, ClientPublish(number, encode_attributes({"n": 1}), (b"",)))
        else:
            self.say(client, kind(number, parse(self.rng.choice(("n > 0", "n = 1")))))

    def act(self) -> None:
        rng, client = self.rng, self.rng.choice("kl")
        roamer, what = self.roamers.get(client), self.rng.random()
        if roamer is None or not roamer.broker or roamer.broker == self.dead or what < 0.35:
            self.come(client)
        elif what < 0.45:
            self.detach(client)
        elif what < 0.5:
            self.say(client, Leave(rng.choice(self.alive())))
            roamer.broker = ""
        elif what < 0.6:
            self.step(rng.choice(self.alive()), SessionOver(client))
        else:
            self.ask(client)
        for _ in range(rng.choice((0, 0, 1, 5, 30))):
            self.arrive(rng)

    def lose_a_broker(self) -> None:
        """One at the edge dies, and an operator says so."""
        self.dead = "z"
        for way in self.wires:
            if self.dead in way:
                self.wires[way].clear()
        self.follow("y", self.ends["y"].forget(self.dead))

    def run(self) -> None:
        for moment in range(36):
            if moment == 12:
                self.connect(self.rng.choice(FIRST), self.rng.choice(SECOND))
            elif moment == 24 and self.rng.random() < 0.5:
                self.lose_a_broker()
            self.act()
        self.rest(self.rng)


@pytest.fixture(scope="module")
def taken() -> Counter[Transition]:
    """How often each transition was taken in many stories."""
    found: Counter[Transition] = Counter()
    move = ClientHere.on

    def count(self: ClientHere, event: Event) -> None:
        before = [(machine, getattr(self, machine), event) for machine, _ in MOVES[event]]
        move(self, event)
        found.update(before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientHere, "on", count)
        # Copies serve few of these clients, because most do not count their moves.
        for protocol, seeds in (("none", 60), ("relocation", 60), ("reactive", 60), ("roam", 600)):
            for seed in range(seeds):
                Wild(protocol, seed).run()
    return found


@pytest.mark.slow
def test_every_transition_of_the_table_is_taken(taken: Counter[Transition]) -> None:
    table = {
        (machine, state, event)
        for machine, states in TABLE.items()
        for state, events in states.items()
        for event in events
    }
    assert {one for one in table if not taken[one] and one[2] not in RARE} == set()


@pytest.mark.slow
def test_every_state_is_in_the_table_and_is_reached(taken: Counter[Transition]) -> None:
    for machine, states in TABLE.items():
        kind: type[Enum] = type(next(iter(states)))
        assert list(states) == list(kind), machine
        assert {state for name, state, _ in taken if name == machine} == set(kind)


def test_every_event_moves_something() -> None:
    assert [event for event in Event if not MOVES[event]] == []


def test_what_the_table_does_not_list_stops_the_process() -> None:
    here = ClientHere("c", Holding.HELD)
    with pytest.raises(IllegalTransition, match="'asked one' cannot happen while holding is 'held'"):
        here.on(Event.ASKED_ONE)
