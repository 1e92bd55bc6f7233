"""Brokers with their links: the overlay forms itself, and everything travels as frames."""

from __future__ import annotations

from collections import deque

from tests.broker.broker_network import BrokerNetwork

from roamcast.broker.links.links import Links, LinkTurn
from roamcast.protocol.codec import Codec
from roamcast.protocol.effects import Effects, Input

CODEC = Codec()


class LinkedNetwork(BrokerNetwork):
    """As `BrokerNetwork`, but brokers learn of each other from their links. A message is a frame here."""

    def __init__(self, names: tuple[str, ...], protocol: str) -> None:
        super().__init__([(name, name) for name in names], protocol)
        self.ends = {name: Links(name, CODEC) for name in names}
        self.wires: dict[tuple[str, str], deque[bytes]] = {}
        self.now = 0.0

    def lay(self, edges: list[tuple[str, str]]) -> None:
        """None yet."""

    def connect(self, one: str, other: str) -> None:
        sides = ((one, other), (other, one))
        offers = {here: self.ends[here].offer(there) for here, there in sides}
        assert not any(self.ends[here].refusal(there, offers[there]) for here, there in sides)
        for here, there in sides:
            self.wires[here, there] = deque()
            self.follow(here, self.ends[here].connected(there, offers[there], 1 + len(self.wires)))

    def follow(self, broker: str, turn: LinkTurn) -> None:
        assert not turn.closes
        for item in turn.inputs:
            self.step(broker, item)
        self.write(broker)

    def step(self, broker: str, item: Input) -> None:
        self.now += 1.0
        self.perform(broker, self.brokers[broker].step(self.now, [item]))

    def perform(self, broker: str, effects: Effects) -> None:
        self.ends[broker].send(effects.sends)
        self.said += [(broker, peer, message) for peer, message in effects.sends]
        effects.sends = []
        super().perform(broker, effects)
        self.write(broker)

    def write(self, broker: str) -> None:
        """One frame for what one step said to one peer."""
        for peer, end in self.ends[broker].ends.items():
            if end.has_more:
                self.wires[broker, peer].append(end.take())

    def busy(self) -> list[tuple[str, str]]:
        return [way for way, waiting in self.wires.items() if waiting]

    def arrive_on(self, sender: str, receiver: str) -> None:
        self.follow(receiver, self.ends[receiver].receive(sender, self.wires[sender, receiver].popleft()))
