"""Brokers on a tree, joined by FIFO links whose messages arrive in any order that keeps FIFO.

No time passes here: the interleaving is what is drawn, so that races come out
every way they can.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from roamcast.broker.core import BrokerCore
from roamcast.mobility import find_protocol
from roamcast.protocol.effects import Attached, Detached, Effects, Input, OverlayChanged, Received
from roamcast.protocol.messages import Hello, Message, Welcome
from roamcast.simulator.topology import from_edges


@dataclass
class Roamer:
    """A client as far as attaching goes."""

    id: str
    counts: bool = True
    """Whether it counts its attaches; a standard client does not."""
    moves: int = -1
    broker: str = ""
    connection: int = 0
    welcome: Welcome | None = None
    closed: bool = False
    """Whether a broker ended its connection."""


class BrokerNetwork:
    def __init__(self, edges: list[tuple[str, str]], protocol: str = "none") -> None:
        names = tuple(sorted({end for edge in edges for end in edge}))
        self.brokers = {name: BrokerCore(name, find_protocol(protocol)) for name in names}
        self.links: dict[tuple[str, str], deque[Message]] = {}
        self.roamers: dict[str, Roamer] = {}
        self.connections = 0
        self.said: list[tuple[str, str, Message]] = []
        """Every message between brokers: from, to, what."""
        self.lay(edges)

    def lay(self, edges: list[tuple[str, str]]) -> None:
        """Links, known to everyone from the beginning."""
        topology = from_edges("test", tuple(self.brokers), edges)
        for one, other in edges:
            self.links[one, other], self.links[other, one] = deque(), deque()
        for name in self.brokers:
            self.step(name, OverlayChanged(topology.peers(name), topology.next_hops(name)))

    def step(self, broker: str, item: Input) -> None:
        self.perform(broker, self.brokers[broker].step(0.0, [item]))

    def perform(self, broker: str, effects: Effects) -> None:
        for peer, message in effects.sends:
            self.said.append((broker, peer, message))
            self.links[broker, peer].append(message)
        for client, connection, told in effects.to_clients:
            roamer = self.roamers[client]
            if connection == roamer.connection and isinstance(told, Welcome):
                roamer.welcome = told
        for client, connection, _ in effects.client_closes:
            roamer = self.roamers[client]
            roamer.closed = roamer.closed or (connection == roamer.connection and bool(roamer.broker))

    def attach(
        self, client: str, broker: str, last_broker: str = "", *, heard: bool = True, clean: bool = False
    ) -> Roamer:
        """The client comes to a broker; if it is not heard, its hello is lost on the air."""
        roamer = self.roamers.setdefault(client, Roamer(client))
        self.connections += 1
        fresh = roamer.moves < 0
        roamer.moves += 1
        roamer.broker, roamer.connection, roamer.welcome, roamer.closed = (
            broker,
            self.connections,
            None,
            False,
        )
        moves = roamer.moves if roamer.counts else -1
        hello = Hello(client, moves, {}, last_broker, fresh=fresh and roamer.counts, clean=clean)
        if heard:
            self.step(broker, Attached(client, self.connections, hello))
        return roamer

    def detach(self, client: str) -> None:
        """The client goes, and its broker notices."""
        roamer = self.roamers[client]
        broker, roamer.broker = roamer.broker, ""
        self.step(broker, Detached(client, roamer.connection))

    def arrive(self, rng: random.Random) -> bool:
        busy = self.busy()
        if not busy:
            return False
        self.arrive_on(*rng.choice(busy))
        return True

    def busy(self) -> list[tuple[str, str]]:
        return [link for link, waiting in self.links.items() if waiting]

    def arrive_on(self, sender: str, receiver: str) -> None:
        self.step(receiver, Received(sender, self.links[sender, receiver].popleft()))

    def rest(self, rng: random.Random | None = None) -> None:
        rng = rng or random.Random(0)
        while self.arrive(rng):
            pass

    def lose(self, broker: str) -> None:
        """A broker is gone for good, and everyone hears of it. It is the end of a branch."""
        del self.brokers[broker]
        self.links = {link: waiting for link, waiting in self.links.items() if broker not in link}
        edges = [link for link in self.links if link[0] < link[1]]
        topology = from_edges("test", tuple(self.brokers), edges)
        for name in self.brokers:
            self.step(name, OverlayChanged(topology.peers(name), topology.next_hops(name)))

    def holders(self, client: str) -> list[str]:
        return [name for name, broker in self.brokers.items() if client in broker.sessions]

    def unfinished(self) -> list[str]:
        return [reason for broker in self.brokers.values() for reason in broker.unfinished()]

    def kinds_said(self) -> list[str]:
        return [type(getattr(message, "message", message)).__name__ for _, _, message in self.said]
