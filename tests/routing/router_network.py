"""Routers on a tree, joined by FIFO links whose messages arrive in any order that keeps FIFO."""

from __future__ import annotations

import random
from collections import Counter, deque
from functools import partial

from roamcast.protocol.messages import Message, Settled, Update
from roamcast.protocol.notification import Burst
from roamcast.routing.router import Owner, Router, Token


class RouterNetwork:
    def __init__(self, edges: list[tuple[int, int]], strategy: str, advertisements: bool = False) -> None:
        names = sorted({f"b{end}" for edge in edges for end in edge}) or ["b0"]
        self.links: dict[tuple[str, str], deque[Message]] = {}
        self.routers: dict[str, Router] = {}
        self.tokens: Counter[Token] = Counter()
        self.entries_sent = 0
        """Filters said to peers, in updates: the control traffic."""
        self.deliveries: list[tuple[int, Owner]] = []
        """Number of the notification, and the owner it reached."""
        for name in names:
            self.routers[name] = Router(strategy, partial(self._send, name), self._on_settled, advertisements)
        for a, b in edges:
            for one, other in ((f"b{a}", f"b{b}"), (f"b{b}", f"b{a}")):
                self.links[one, other] = deque()
        for one, other in self.links:
            self.routers[one].add_peer(other)

    def _on_settled(self, token: Token) -> None:
        self.tokens[token] += 1

    def _send(self, broker: str, peer: str, message: Message) -> None:
        if isinstance(message, Update):
            changes = (message.subscribe, message.unsubscribe, message.advertise, message.unadvertise)
            self.entries_sent += sum(map(len, changes))
        self.links[broker, peer].append(message)

    def publish(self, broker: str, number: int, attributes: bytes) -> None:
        self._route(broker, "", Burst("p", 0, number, attributes))

    def _route(self, broker: str, source: str, burst: Burst) -> None:
        peers, owners, _ = self.routers[broker].route(burst.attributes)
        for peer in peers:
            if peer != source:
                self.links[broker, peer].append(burst)
        self.deliveries += [(burst.number, owner) for owner in owners]

    def busy(self) -> list[tuple[str, str]]:
        return [link for link, waiting in self.links.items() if waiting]

    def arrive(self, rng: random.Random) -> bool:
        """The first message of some link arrives; False if there is none."""
        busy = self.busy()
        if not busy:
            return False
        sender, receiver = link = rng.choice(busy)
        message = self.links[link].popleft()
        match message:
            case Update():
                self.routers[receiver].on_update(sender, message)
            case Settled():
                self.routers[receiver].on_settled(sender, message)
            case Burst():
                self._route(receiver, sender, message)
        return True

    def rest(self, rng: random.Random) -> None:
        """Until nothing is under way."""
        while self.arrive(rng):
            pass

    def table_entries(self) -> int:
        return sum(router.size for router in self.routers.values())


def random_tree(rng: random.Random, brokers: int) -> list[tuple[int, int]]:
    return [(rng.randrange(number), number) for number in range(1, brokers)]
