"""The machines of brokers that move, without a network: messages are handed over as soon as they are sent."""

from __future__ import annotations

from collections import deque

import pytest

from roamcast.filters.selector import parse
from roamcast.mobility.moving.mobile import (
    MOBILE_PROTOCOLS,
    Mig,
    MobileProtocol,
    Outcome,
    find_mobile_protocol,
)
from roamcast.mobility.moving.mobile_subscriber import MobileSubscriber
from roamcast.protocol.messages import Message


class Tree:
    """Brokers and their subscribers; links hand over in order, and at once."""

    def __init__(self, protocol: str, parents: dict[str, str]) -> None:
        names = dict.fromkeys([*parents.values(), *parents])
        self.brokers = {name: find_mobile_protocol(protocol)(name) for name in names}
        self.clients: dict[str, MobileSubscriber] = {}
        self.got: dict[str, list[Message]] = {}
        self.sent: list[tuple[str, str, Message]] = []
        self._waiting: deque[tuple[str, str, Message]] = deque()
        for child, parent in parents.items():
            self.migrate(child, None, parent)

    def perform(self, broker: str, outcome: Outcome) -> None:
        for peer, message in outcome.sends:
            self.sent.append((broker, peer, message))
            self._waiting.append((broker, peer, message))
        for name, message in outcome.to_subscribers:
            self.got.setdefault(name, []).append(message)
            self.say(name, self.clients[name].receive(message))

    def settle(self) -> None:
        while self._waiting:
            sender, receiver, message = self._waiting.popleft()
            self.perform(receiver, self.brokers[receiver].receive(sender, message))

    def say(self, client: str, messages: list[Message]) -> None:
        broker = self.clients[client].broker
        for message in messages:
            self.perform(broker, self.brokers[broker].receive(client, message, is_subscriber=True))

    def attach(self, client: str, broker: str) -> None:
        one = self.clients.setdefault(client, MobileSubscriber(client))
        if one.broker:
            self.perform(one.broker, self.brokers[one.broker].detach(client))
        self.say(client, one.connect(broker))
        self.settle()

    def subscribe(self, client: str, text: str) -> None:
        self.say(client, self.clients[client].subscribe(parse(text)))
        self.settle()

    def cut(self, one: str, other: str) -> None:
        self.perform(one, self.brokers[one].link_down(other))
        self.perform(other, self.brokers[other].link_down(one))
        self.settle()

    def migrate(self, child: str, old: str | None, new: str) -> None:
        self.perform(child, self.brokers[child].migrate(old, new))
        self.settle()

    def ways(self, client: str) -> dict[str, str | None]:
        return {
            name: broker.routes()[client][0]
            for name, broker in self.brokers.items()
            if client in broker.routes()
        }


@pytest.mark.parametrize("protocol", sorted(MOBILE_PROTOCOLS))
def test_after_a_migration_every_way_leads_to_the_subscriber(protocol: str) -> None:
    tree = Tree(protocol, {"b": "a", "c": "a", "d": "c"})
    tree.attach("s", "d")
    tree.subscribe("s", "x = 1")
    assert tree.ways("s") == {"a": "c", "b": "a", "c": "d", "d": ""}
    tree.cut("a", "c")
    tree.migrate("c", "a", "b")
    assert tree.ways("s") == {"a": "b", "b": "c", "c": "d", "d": ""}


def test_a_message_of_another_protocol_is_refused() -> None:
    machine: MobileProtocol = find_mobile_protocol("mft")("a")
    with pytest.raises(Exception, match="which it does not use"):
        machine.receive("b", Message())
    assert machine.receive("s", Mig("s", "", 1), is_subscriber=True).to_subscribers
