"""A small world of sites whose brokers move: who is in reach of whom changes, and an election finds the tree.

As in `world`, one seed draws everything, and a site that crashes is rebuilt from what it named as durable.
Time is virtual: when nothing is under way, it jumps to the next deadline of a site.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.broker.world import Client, World

from roamcast.broker.inputs import LinkDown, LinkUp, MachineInput, Tick, decode_entry, encode_entry
from roamcast.broker.making import make_machine
from roamcast.broker.moving.machine import MovingMachine
from roamcast.broker.moving.noted_filters import subscriptions_in
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec.packets import Packet
from roamcast.protocol.snapshot import state_hash

REST_S = 10.0
"""So long a network is left alone until it is at rest: a few rounds, and the time a leader is missed."""
CALM_S = 1.2
"""The same if nothing has changed of who is in reach of whom."""


class MobileWorld(World):
    sites: dict[str, MovingMachine]

    def __init__(self, seed: int, brokers: int, links: list[tuple[int, int]]) -> None:
        self.told: dict[str, list[tuple[Any, ...]]] = {}
        """What each turn that is in the journal let out, by broker."""
        self.duplicates = 0
        self.heard: dict[str, list[Packet]] = defaultdict(list)
        """All that each client has got."""
        self.is_calm = False
        self.answers: dict[str, list[IsHere]] = defaultdict(list)
        """What each broker has heard for its operators."""
        self.clocks: dict[str, float] = {}
        """How far the clock of a broker is ahead."""
        super().__init__(seed, brokers, links)

    # --- brokers ---

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id, protocol="mft")

    def start(self, id: str) -> None:
        self.told.setdefault(id, [])
        super().start(id)

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        site = self.sites[id]
        self.now += 0.001
        now = self.now + self.clocks.get(id, 0.0)
        effects = site.step(now, inputs)
        if effects.durable:
            self.journals[id].append(encode_entry(now, effects.durable))
            self.told[id].append(seen_of(effects))
            if self.crashes and self.rng.random() < 0.002:
                self.crash(id)
                return
            site.journalled()
        assert not effects.link_closes, effects.link_closes
        self.answers[id] += effects.answers
        self.let_out(id, effects)

    def let_out(self, id: str, effects: Any) -> None:
        for connection, parts in effects.writes.items():
            self.back[connection] += parts
        for connection in effects.closes:
            self.back[connection].append(b"")
        for peer, end in self.sites[id].links.ends.items():
            data = end.take()
            if data:
                self.wires[id, peer].append(data)

    def crash(self, id: str, amnesia: bool = False) -> None:
        """Kill it: nobody tells it anything any more, and it comes back with its journal, or without."""
        peers = [other if id == one else one for one, other in self.links if id in (one, other)]
        peers = [peer for peer in peers if self._is_up(id, peer)]
        for peer in peers:
            self.part(id, peer)
            self.step(peer, [LinkDown(id)])
        for connection, (client, broker) in list(self.owner.items()):
            if broker == id:
                self.drop(connection, client, tell=False)
        if amnesia:
            self.journals[id].clear()
            self.told[id].clear()
            self.is_ahead[id] = None
        self.start(id)
        for peer in peers:
            self.connect_link(id, peer)

    # --- reach ---

    def part(self, one: str, other: str) -> None:
        self.is_calm = False
        for pair in ((one, other), (other, one)):
            self.up.pop(pair, None)
            self.wires[pair] = []

    def connect_link(self, one: str, other: str) -> None:
        if self._is_up(one, other):
            return
        self.up[one, other], self.is_calm = True, False
        for id, peer in ((one, other), (other, one)):
            if self._is_up(one, other):
                offer = self.sites[peer].links.offer(id)
                self.step(id, [LinkUp(peer, offer, self.rng.getrandbits(62) + 1)])

    def cut_link(self, one: str, other: str) -> None:
        self.part(one, other)
        for id, peer in ((one, other), (other, one)):
            if peer in self.sites[id].links.ends:
                self.step(id, [LinkDown(peer)])

    # --- clients ---

    def _on_packet(self, client: Client, packet: Packet) -> None:
        self.heard[client.id].append(packet)
        super()._on_packet(client, packet)

    def say(self, name: str, *packets: Packet) -> list[Packet]:
        """A client says this; gives what it hears until all is at rest."""
        self.heard[name].clear()
        for packet in packets:
            self._send(self.clients[name], packet)
        self.settle()
        return list(self.heard[name])

    # --- time ---

    def run_for(self, seconds: float) -> None:
        """Let everything happen that happens within this time."""
        end = self.now + seconds
        while self.now < end:
            found = self.moves()
            if found:
                self.rng.choice(found)()
                continue
            times = {id: self.sites[id].deadline() for id in self.ids}
            at, id = min((at - self.clocks.get(id, 0.0), id) for id, at in times.items() if at is not None)
            self.now = min(end, max(self.now, at))
            if self.now < end:
                self.step(id, [Tick()])

    def settle(self) -> None:
        crashes, self.crashes = self.crashes, False
        for one, other in self.links:
            self.connect_link(one, other)
        self.run_for(CALM_S if self.is_calm else REST_S)
        self.crashes, self.is_calm = crashes, True

    def leaders(self) -> list[str]:
        elections = {id: site.election for id, site in self.sites.items()}
        return [id for id, election in elections.items() if election is not None and election.is_leader]

    # --- what everyone knows ---

    def check_knowledge(self) -> None:
        """Every broker knows exactly what the clients are subscribed to, and the way to each of them."""
        wanted = {}
        for name, client in self.clients.items():
            session = self.sites[client.broker].endpoint.sessions[name]
            wanted[name] = session.subscriptions
            assert set(session.subscriptions) == set(client.subscriptions), name
        for id in self.ids:
            machine = self.sites[id].core.machine
            known = {name: subscriptions_in(one.filters.values()) for name, one in machine.known.items()}
            assert {name: found for name, found in known.items() if found} == wanted, id
            for name in known:
                assert self.end_of_way(id, name) == self.clients[name].broker, (id, name)
            assert not machine.queues, (id, machine.queues)

    def end_of_way(self, broker: str, name: str) -> str:
        seen = [broker]
        while way := self.sites[seen[-1]].core.machine.known[name].way:
            assert way not in seen, f"the way to {name} runs in a circle: {seen}"
            seen.append(way)
        return seen[-1]

    # --- replay ---

    def check_replay(self, id: str) -> None:
        """What is in the journal leads to the same effects again, without an election."""
        site = make_machine(self.settings(id))
        for data, told in zip(self.journals[id], self.told[id], strict=True):
            entry = decode_entry(data)
            assert seen_of(site.step(entry.now, entry.inputs)) == told, (id, entry)
        assert isinstance(site, MovingMachine)
        assert state_hash(site) == state_hash(self.sites[id])
        assert state_of(site) == state_of(self.sites[id])


def seen_of(effects: Any) -> tuple[Any, ...]:
    """What of the effects of a turn anybody but peers can see."""
    return effects.writes, effects.closes, effects.records, effects.answers


def state_of(site: MovingMachine) -> tuple[Any, ...]:
    machine = site.core.machine
    return (
        machine.known,
        machine.peers,
        {client: list(queue) for client, queue in machine.queues.items()},
        {client: visit.unacknowledged() for client, visit in site.core.visits.items()},
        {client: session.subscriptions for client, session in site.endpoint.sessions.items()},
        {peer: [one.link, one.newest, list(one.sent)] for peer, one in site.links.neighbours.items()},
    )
