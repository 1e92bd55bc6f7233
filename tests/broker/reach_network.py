"""Brokers that know only whom they reach, and links between them that behave as real ones do.

A link keeps what was sent while it is down. Each of its ends may exist or not:
after a handshake one side may have begun and the other not (it crashed before it
wrote anything down), and a link may have been given up on one side only.
"""

from __future__ import annotations

import random

import networkx

from roamcast.broker.links.reach import Outcome, Reach
from roamcast.protocol.notification import Message
from roamcast.protocol.snapshot import freeze, thaw

Way = tuple[str, str]
"""From a broker to its peer."""


class Network:
    def __init__(self, brokers: list[str], rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.reaches = {broker: Reach(broker) for broker in brokers}
        self.sent: dict[Way, list[Message]] = {}
        """What is kept at each end that exists, because the peer does not have it yet."""
        self.down: set[frozenset[str]] = set()
        self.dead: set[str] = set()
        self.closed: list[tuple[str, str, str]] = []

    # --- links ---

    def shake_hands(self, a: str, b: str, only: str = "") -> str:
        """A connection is made; with `only`, just that side lives to see it. Says why it is refused."""
        if self.dead & {a, b}:
            return "dead"
        self.down.discard(frozenset((a, b)))
        offers = {a: self.reaches[a].offer(b), b: self.reaches[b].offer(a)}
        ends = [way for way in ((a, b), (b, a)) if way in self.sent]
        if len(ends) == 1:
            (here, there) = ends[0]
            if there in self.reaches[here].peers:  # Only an operator can decide that.
                self.perform(here, self.reaches[here].drop(there, "begun anew"))
                return "begun anew"
            self.perform(here, self.reaches[here].abandon(there, "begun anew"))
        if len(ends) < 2:
            why = self.reaches[a].objection(b, offers[b]) or self.reaches[b].objection(a, offers[a])
            if why:
                return why
        for here, there in ((a, b), (b, a)):
            if only in ("", here):
                self.sent.setdefault((here, there), [])
                self.perform(here, self.reaches[here].join(there, offers[there]))
        return ""

    def perform(self, broker: str, outcome: Outcome) -> None:
        for peer, message in outcome.sends:
            self.sent[broker, peer].append(message)
        for peer, why in outcome.closes:
            self.closed.append((broker, peer, why))
            self.sent.pop((broker, peer))
        self.check_acyclic()

    def can_deliver(self, way: Way) -> bool:
        here, there = way
        is_up = frozenset(way) not in self.down and not self.dead & {here, there}
        return is_up and bool(self.sent.get(way)) and (there, here) in self.sent

    def deliver(self, way: Way) -> None:
        here, there = way
        message = self.sent[way].pop(0)
        self.perform(there, self.reaches[there].receive(here, message))

    def deliver_some(self, count: int) -> None:
        for _ in range(count):
            ways = [way for way in self.sent if self.can_deliver(way)]
            if not ways:
                return
            self.deliver(self.rng.choice(ways))

    def deliver_all(self) -> None:
        self.deliver_some(100_000)
        assert not any(map(self.can_deliver, self.sent)), "it does not come to rest"

    # --- brokers ---

    def restart(self, broker: str) -> None:
        """From a snapshot that went through bytes."""
        self.reaches[broker] = thaw(freeze(self.reaches[broker]))

    def forget(self, at: str, broker: str) -> None:
        self.perform(at, self.reaches[at].forget(broker))

    # --- what must hold ---

    def graph(self) -> networkx.Graph:
        """Every link over which at least one end would send notifications."""
        graph = networkx.Graph()
        graph.add_nodes_from(broker for broker in self.reaches if broker not in self.dead)
        for broker, reach in self.reaches.items():
            if broker not in self.dead:
                graph.add_edges_from((broker, peer) for peer in reach.peers)
        return graph

    def check_acyclic(self) -> None:
        graph = self.graph()
        assert not networkx.cycle_basis(graph), f"cycle: {networkx.cycle_basis(graph)}"

    def check_routes(self) -> None:
        """At rest, everyone knows everyone in its tree, and the next hops lead there."""
        graph = self.graph()
        for tree in networkx.connected_components(graph):
            for broker in tree - self.dead:
                reach = self.reaches[broker]
                paths = networkx.single_source_shortest_path(graph, broker)
                assert reach.next_hops == {to: path[1] for to, path in paths.items() if to != broker}
                assert reach.unfinished() == []
