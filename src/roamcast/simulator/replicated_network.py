"""A simulated network in which some brokers are a leader and its followers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roamcast.broker.inputs import MachineEffects, MachineInput, OverlayGiven, decode_entry
from roamcast.broker.machine import BrokerMachine
from roamcast.protocol.effects import Input
from roamcast.protocol.snapshot import thaw
from roamcast.simulator.access import Access
from roamcast.simulator.faults import Cut, Detour, Fault, Heal
from roamcast.simulator.network import Network
from roamcast.simulator.replicas import Disk, Node
from roamcast.simulator.replicated_site import Site

REPAIR_LEASES_MAX = 100
"""Leases after which a complete site must have a leader and all replicas in sync."""


class ReplicatedNetwork(Network):
    """A network in which some brokers are a leader and its followers."""

    def _make_access(self) -> Access:
        self.sites: dict[str, Site] = {}
        for broker, followers in self.settings.replicas:
            self._positions[broker] = 0
            self.sites[broker] = Site(self, broker, followers, self.settings.lease_s)
        return super()._make_access()

    def replayed_disk(self, broker: str, disk: Disk) -> BrokerMachine:
        machine = self.new_machine(broker) if disk.snapshot is None else thaw(disk.snapshot)
        assert isinstance(machine, BrokerMachine)
        for place, data in enumerate(disk.entries, disk.first - 1):
            entry = decode_entry(data)
            disk.rows[place] = machine.step(entry.now, entry.inputs).records
        return machine

    def new_machine(self, broker: str) -> BrokerMachine:
        return self._make_machine(broker)

    def start_of(self, machine: BrokerMachine) -> MachineInput:
        return self._start(machine)

    # --- turns ---

    def step(self, broker: str, inputs: Sequence[MachineInput | Input]) -> None:
        site = self.sites.get(broker)
        if site is None:
            super().step(broker, inputs)
            return
        leader = site.leader
        if leader is None or broker in self._down:
            return
        site.wake()
        site.deliver(leader, self._step_site, site, leader, inputs)

    def _step_site(self, site: Site, node: Node, inputs: Sequence[MachineInput | Input]) -> None:
        if node.replica.role == "leader":
            site.step(node, inputs)
            if isinstance(inputs[-1], OverlayGiven):
                site.share_beginning(node)

    def let_out(self, broker: str, machine: BrokerMachine, effects: MachineEffects, position: int) -> None:
        """Publish the effects of an entry that the replicas of a site have."""
        self._positions[broker] = machine.history.promised = position
        machine.journalled()
        self._send_frames(broker, machine, (), effects)
        if effects.to_clients or effects.writes or effects.client_closes or effects.closes:
            self.access.take(broker, effects)
        if effects.records:
            self.observe(effects.records)

    def goes_on(self, site: Site) -> bool:
        """Return whether replicas must renew leases and ask etcd. At rest that would change nothing."""
        if site.is_at_rest:
            return False
        if not site.is_repaired:
            return True
        return self.now < site.busy_at + REPAIR_LEASES_MAX * site.timing.lease_s

    def tick_replica(self, who: tuple[Site, Node], at: float) -> None:
        site, node = who
        site.tick(node, at)

    # --- sites stop and start ---

    def site_stopped(self, broker: str) -> None:
        if broker not in self._down:
            self._crash(broker)

    def site_started(self, broker: str, machine: BrokerMachine) -> None:
        if broker not in self._down:
            return
        self.machines[broker] = machine
        del self._down[broker]
        self._witness("started", broker)
        for peer in self.topology.peers(broker):
            self._told_down[broker, peer] = None
        for peer in self.topology.peers(broker):
            self._bring_up(broker, peer, broker)
        if broker not in self._down:
            self.access.broker_started(broker)

    def _shake_hands(self, one: str, other: str) -> None:
        """Shake hands, or retry later if an end is suspended and cannot answer."""
        sites = [self.sites[id] for id in (one, other) if id in self.sites]
        halted = [site for site in sites if site.leader is not None and site.leader.is_halted]
        if halted:
            self.push(self.now + halted[0].timing.lease_s / 10, self._shake_hands, one, other)
        else:
            super()._shake_hands(one, other)

    def _happen(self, broker: str, fault: Fault) -> None:
        site = self.sites.get(broker)
        if site is None or isinstance(fault, Cut | Heal | Detour):
            super()._happen(broker, fault)
        else:
            site.happen(fault)

    def wrongs(self) -> Iterator[tuple[str, str]]:
        for site in self.sites.values():
            yield from site.final_wrongs()
        yield from super().wrongs()
