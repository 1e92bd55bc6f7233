"""All links of several brokers: trees join, connections are cut, brokers crash and replay their journals."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import combinations
from typing import Any

import networkx
import pytest

from roamcast.broker.links.end import TAKE_BYTES, LinkError
from roamcast.broker.links.frames import FrameCutter
from roamcast.broker.links.links import Links, LinkTurn, Offer
from roamcast.protocol.codec import Codec
from roamcast.protocol.effects import BrokersJoined, LinkChanged, OverlayChanged, Received, SendFailed
from roamcast.protocol.messages import Fleeting, Settled
from roamcast.protocol.snapshot import freeze, thaw

CODEC = Codec()


def taken(links: Links, peer: str, bytes_max: int = TAKE_BYTES) -> bytes:
    """What is to be written to the connection with a peer; nothing if the link was given up."""
    return links.ends[peer].take(bytes_max) if peer in links.ends else b""


class Station:
    """A broker with a journal, as far as its links concern it. It counts up to each of its peers."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.journal: list[tuple[str, tuple[Any, ...]]] = []
        self.snapshot: bytes = b""
        self.memory: tuple[dict[str, int], dict[str, list[int]]] = ({}, {})
        self.unjournalled: list[tuple[str, tuple[Any, ...]]] = []
        self.reset()

    def reset(self) -> None:
        self.links = Links(self.id, CODEC)
        self.counts: dict[str, int] = {}
        """What was sent last to each peer."""
        self.heard: dict[str, list[int]] = {}
        self.peers: list[str] = []
        self.closes: list[str] = []
        if self.snapshot:
            self.links = thaw(self.snapshot)
            for end in self.links.ends.values():
                end.down()
            self.counts, self.heard = (
                dict(self.memory[0]),
                {one: list(two) for one, two in self.memory[1].items()},
            )
            self.peers = list(self.links.reach.peers)

    def do(self, name: str, *arguments: Any) -> None:
        """Something that is journalled as it is."""
        self.unjournalled.append((name, arguments))
        self.apply(name, arguments)

    def apply(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "count":
            peer = arguments[0]
            self.counts[peer] = self.counts.get(peer, -1) + 1
            self.links.send([(peer, Settled(self.counts[peer]))])
        else:
            self.take(getattr(self.links, name)(*arguments))

    def receive(self, peer: str, frames: bytes) -> None:
        turn = self.links.receive(peer, frames)
        if turn.durable:
            self.unjournalled.append(("receive", (peer, turn.durable)))
        self.take(turn)

    def take(self, turn: LinkTurn) -> None:
        for item in turn.inputs:
            if isinstance(item, Received):
                assert item.peer in self.peers, "the broker has heard of the peer before it hears from it"
                assert isinstance(item.message, Settled)
                self.heard.setdefault(item.peer, []).append(item.message.number)
            elif isinstance(item, OverlayChanged):
                self.peers = list(item.peers)
        self.closes += [peer for peer, _ in turn.closes]

    def sync(self) -> None:
        self.journal += self.unjournalled
        self.unjournalled = []
        for end in self.links.ends.values():
            end.acknowledge()

    def freeze(self) -> None:
        self.sync()
        self.snapshot = freeze(self.links)
        self.memory = deepcopy((self.counts, self.heard))
        self.journal = []

    def crash(self) -> None:
        self.unjournalled = []
        self.reset()
        for name, arguments in self.journal:
            self.apply(name, arguments)
        for end in self.links.ends.values():
            end.down()
        self.closes = []


class World:
    def __init__(self, rng: random.Random, names: list[str]) -> None:
        self.rng = rng
        self.stations = {name: Station(name) for name in names}
        self.wires: dict[tuple[str, str], tuple[FrameCutter, bytes]] = {}
        """What is on its way, by from and to, of every connection that is there."""
        self.incarnations = 0
        self.crash_chance = 0.2

    def connect(self, a: str, b: str) -> str:
        self.cut(a, b)
        sides = ((a, b), (b, a))
        offers = {here: self.stations[here].links.offer(there) for here, there in sides}
        for here, there in sides:
            why = self.stations[here].links.refusal(there, offers[there])
            if why:
                for one, other in sides:
                    self.stations[one].do("refused", other, why)
                    self.close_given_up(one)
                return why
        for here, there in sides:
            self.wires[here, there] = (FrameCutter(), b"")
        for here, there in sides:
            links, offer = self.stations[here].links, offers[there]
            self.incarnations += 1
            anew = links.begins_anew(there, offer)
            self.stations[here].do("connected", there, offer, self.incarnations if anew else 0)
            self.close_given_up(here)
            if self.rng.random() < self.crash_chance:
                self.crash(here)  # Before it has written anything down.
                break
        return ""

    def close_given_up(self, name: str) -> None:
        station = self.stations[name]
        while station.closes:
            self.cut(name, station.closes.pop())

    def cut(self, a: str, b: str) -> None:
        for here, there in ((a, b), (b, a)):
            if self.wires.pop((here, there), None):
                self.stations[here].do("disconnected", there)

    def crash(self, name: str) -> None:
        for here, there in list(self.wires):
            if here == name:
                self.cut(here, there)
        self.stations[name].crash()

    def write(self, here: str, there: str) -> None:
        if (here, there) in self.wires:
            self.stations[here].sync()
            cutter, data = self.wires[here, there]
            self.wires[here, there] = (cutter, data + taken(self.stations[here].links, there, 2000))

    def carry(self, here: str, there: str, size: int) -> None:
        if (here, there) not in self.wires:
            return
        cutter, data = self.wires[here, there]
        cutter.feed(data[:size])
        self.wires[here, there] = (cutter, data[size:])
        frames = cutter.take_all()
        if not frames:
            return
        try:
            self.stations[there].receive(here, frames)
        except LinkError:
            # Only of links that never joined: one side has begun anew and the other does not know it.
            assert here not in self.stations[there].links.reach.peers
            self.cut(here, there)
        self.close_given_up(there)

    def check(self) -> None:
        graph = networkx.Graph()
        graph.add_nodes_from(self.stations)
        for name, station in self.stations.items():
            graph.add_edges_from((name, peer) for peer in station.links.reach.peers)
            for peer, heard in station.heard.items():
                assert heard == list(range(len(heard))), "each once and in order"
                assert len(heard) <= self.stations[peer].counts.get(name, -1) + 1
        assert not networkx.cycle_basis(graph)
        self.trees = sorted(map(sorted, networkx.connected_components(graph)))

    def settle(self, pairs: list[tuple[str, str]]) -> None:
        self.crash_chance = 0.0
        ways = [way for a, b in pairs for way in ((a, b), (b, a))]
        for _ in range(8):
            for a, b in pairs:
                if (a, b) not in self.wires or (b, a) not in self.wires:
                    self.connect(a, b)
            for _ in range(60):
                for way in ways:
                    self.write(*way)
                    self.carry(*way, 100_000)
        self.check()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_cut_and_whoever_crashes_trees_join_and_messages_arrive_once(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"b{index}" for index in range(rng.randrange(2, 6))]
    pairs = [pair for pair in combinations(names, 2) if rng.random() < 0.7] or [("b0", "b1")]
    world = World(rng, names)
    for _ in range(300):
        a, b = rng.sample(rng.choice(pairs), 2)
        what = rng.random()
        if what < 0.08:
            world.connect(a, b)
        elif what < 0.3 and b in world.stations[a].peers:
            world.stations[a].do("count", b)
        elif what < 0.6:
            world.write(a, b)
        elif what < 0.95:
            world.carry(a, b, rng.choice((5, 40, 100, 10_000)))
        elif what < 0.96:
            world.stations[a].freeze()
        elif what < 0.98:
            world.cut(a, b)
        else:
            world.crash(a)
        world.check()
    world.settle(pairs)
    possible = networkx.Graph(pairs)
    possible.add_nodes_from(names)
    assert world.trees == sorted(map(sorted, networkx.connected_components(possible)))
    for name, station in world.stations.items():
        for peer in station.peers:
            heard = world.stations[peer].heard.get(name, [])
            assert heard == list(range(station.counts.get(peer, -1) + 1)), "everything arrived"
            assert station.links.ends[peer].sent == world.stations[peer].links.ends[name].received


# --- single steps ---


def connected(a: Links, b: Links) -> None:
    offers = a.offer(b.id), b.offer(a.id)
    a.connected(b.id, offers[1], 11 if a.begins_anew(b.id, offers[1]) else 0)
    b.connected(a.id, offers[0], 22 if b.begins_anew(a.id, offers[0]) else 0)


def exchange(a: Links, b: Links) -> list[LinkTurn]:
    turns = []
    while any(end.has_more for end in (*a.ends.values(), *b.ends.values())):
        turns.append(b.receive(a.id, taken(a, b.id)))
        turns.append(a.receive(b.id, taken(b, a.id)))
    return turns


def test_the_broker_is_told_in_order_and_what_is_fleeting_comes_apart() -> None:
    a, b = Links("a", CODEC), Links("b", CODEC)
    connected(a, b)
    exchange(a, b)
    burst = Fleeting("p", 0, 0, b"\x80")
    a.send([("b", Settled(1)), ("b", burst), ("nobody", Settled(2))])
    turn = b.receive("a", taken(a, "b"))
    assert turn.inputs == [Received("a", Settled(1))]
    assert turn.fleeting == [Received("a", burst)]


def test_joining_configures_the_broker_on_both_sides() -> None:
    a, b = Links("a", CODEC), Links("b", CODEC)
    assert a.connected("b", b.offer("a"), 11).inputs == [LinkChanged("b", True)]
    b.connected("a", Offer(brokers=("a",)), 22)
    told = [item for turn in exchange(a, b) for item in turn.inputs]
    assert told == [
        *(OverlayChanged(["b"], {"b": "b"}), BrokersJoined(["b"])),
        *(OverlayChanged(["a"], {"a": "a"}), BrokersJoined(["a"])),
    ]
    assert a.disconnected("b").inputs == [LinkChanged("b", False)]
    assert a.disconnected("b").inputs == []


def test_forgetting_a_broker_gives_back_what_it_did_not_take() -> None:
    a, b = Links("a", CODEC), Links("b", CODEC)
    connected(a, b)
    exchange(a, b)
    a.disconnected("b")
    a.send([("b", Settled(1))])
    turn = a.forget("b")
    assert turn.inputs == [SendFailed("b", [Settled(1)]), OverlayChanged([], {})]
    assert turn.closes == [("b", "b was forgotten")]
    assert a.receive("b", b.ends["a"].heartbeat()) == LinkTurn()
    assert not a.ends


def test_a_link_that_was_given_up_on_one_side_is_refused_until_it_is_on_the_other() -> None:
    a, b = Links("a", CODEC), Links("b", CODEC)
    connected(a, b)
    exchange(a, b)
    b.forget("a")
    assert "a resumes an earlier link" not in b.refusal("a", a.offer("b"))
    assert "b has restarted this link" in a.refusal("b", b.offer("a"))
    a.forget("b")
    assert a.refusal("b", b.offer("a")) == b.refusal("a", a.offer("b")) == ""
    connected(a, b)
    exchange(a, b)
    assert (a.reach.peers, b.reach.peers) == (["b"], ["a"])
