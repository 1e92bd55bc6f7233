"""A scenario: a network, and clients that publish, subscribe and move at given rates."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from roamcast.errors import InputError
from roamcast.protocol.effects import AdvertiseThat, AttachTo, LeaveFor, PublishThis, SubscribeTo
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.records import Row
from roamcast.simulator.movement import Visit, from_file, part_of, plan
from roamcast.simulator.network import Action, NetworkSettings
from roamcast.simulator.run import Run, run_checked
from roamcast.simulator.topology import Topology, parse_topology
from roamcast.simulator.workload import make_workload, publish_times

HOME_AFTER_S = 1.0
"""Time after the end at which absent clients return, so that owed notifications can be delivered."""


@dataclass(frozen=True)
class Scenario:
    """User settings of a run; times in seconds."""

    topology: str = "grid:5"
    clients: int = 250
    mobile: float = 0.2
    movement: str = "uniform"
    """A pattern of `movement.plan`; `file:PATH`, with the visits of each client; or `trace:PATH`, with the
    visits of any number of clients, which are then the clients of the run.
    """
    trace_from_s: float = 0.0
    """Start of the replayed part of a trace."""
    connect_s: float = 30.0
    disconnect_s: float = 30.0
    handoff_s: float = 3.0
    proclaimed: float = 0.0
    workload: str = "groups"
    selectivity: float = 0.0625
    publish_every_s: float = 20.0
    payload_bytes: int = 0
    duration_s: float = 600.0
    network: NetworkSettings = field(default_factory=NetworkSettings)

    def check(self) -> None:
        if self.clients < 1 or self.clients > 1_000_000:
            raise InputError(f"clients {self.clients}: valid is 1 to 1000000")
        if not 0 <= self.mobile <= 1:
            raise InputError(f"mobile {self.mobile}: valid is a number from 0 to 1")
        if not 0 < self.duration_s < float("inf"):
            raise InputError(f"duration {self.duration_s}: valid is a time above 0, in seconds")
        if not 0 <= self.trace_from_s < float("inf"):
            raise InputError(f"trace from {self.trace_from_s}: valid is a time of 0 or more, in seconds")
        if not 0 <= self.payload_bytes <= 1_000_000:
            raise InputError(f"payload {self.payload_bytes}: valid is 0 to 1000000 bytes")

    def make_topology(self) -> Topology:
        return parse_topology(self.topology, self._rng("topology"))

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self.network.seed}/{purpose}")

    # --- what clients do ---

    def actions(self, topology: Topology) -> Iterator[Action]:
        """Return all actions of clients, in order of time."""
        trace = self._trace(topology)
        digits = len(str(max(self.clients - 1, 1)))
        clients = sorted(trace) or [f"c{number:0{digits}d}" for number in range(self.clients)]
        homes = {client: topology.brokers[i % len(topology.brokers)] for i, client in enumerate(clients)}
        workload = make_workload(self.workload, clients, self.selectivity, self._rng("workload"))
        # All clients are attached and all subscriptions settled before anything is published.
        start_s = 1.0 + 6 * (self.network.delay_bound_s(topology) + self.network.access_delay.high_s)
        visits = trace or self._visits(topology, clients, homes)
        for client in clients:
            first = visits[client][0].broker if client in visits else homes[client]
            yield (0.0, client, AttachTo(first, 0))
            if self.network.advertisements:
                yield (0.0, client, AdvertiseThat("TRUE"))
            for filter in workload.filters[client]:
                yield (0.0, client, SubscribeTo(filter.text))
        attributes = [encode_attributes(one) for one in workload.universe]
        streams = [self._publishes(client, attributes, start_s) for client in clients]
        streams += [self._moves(client, visits[client], start_s) for client in visits]
        yield from heapq.merge(*streams, key=lambda action: action[0])

    def _trace(self, topology: Topology) -> dict[str, list[Visit]]:
        """Return the visits of a trace's clients from the start of the replay; nothing without a trace."""
        if not self.movement.startswith("trace:"):
            return {}
        whole = from_file(Path(self.movement.removeprefix("trace:")), topology)
        until_s = self.trace_from_s + self.duration_s
        parts = ((client, part_of(visits, self.trace_from_s, until_s)) for client, visits in whole.items())
        present = sorted((client, visits) for client, visits in parts if visits)
        if not present:
            raise InputError(f"movement {self.movement}: no client is attached in the replayed part")
        return dict(present[: self.clients])

    def _visits(
        self, topology: Topology, clients: list[str], homes: dict[str, str]
    ) -> dict[str, list[Visit]]:
        if self.movement.startswith("file:"):
            visits = from_file(Path(self.movement.removeprefix("file:")), topology)
            strangers = [client for client in visits if client not in homes]
            if strangers:
                valid = f"{clients[0]} … {clients[-1]}"
                raise InputError(f"movement {self.movement}: client {strangers[0]!r} is not one of {valid}")
            return visits
        rng = self._rng("movement")
        mobile = sorted(rng.sample(clients, round(self.mobile * len(clients))))
        return {
            client: plan(
                self.movement, topology, homes[client], self.duration_s, self._rng(f"movement/{client}"),
                self.connect_s, self.disconnect_s, self.handoff_s, self.proclaimed,
            )
            for client in mobile
        }  # fmt: skip

    def _publishes(self, client: str, attributes: list[bytes], start_s: float) -> Iterator[Action]:
        rng = self._rng(f"publish/{client}")
        bodies = (bytes(self.payload_bytes),)
        for time_s in publish_times(self.publish_every_s, self.duration_s, rng):
            yield (start_s + time_s, client, PublishThis(rng.choice(attributes), bodies))

    def _moves(self, client: str, visits: list[Visit], start_s: float) -> Iterator[Action]:
        end_s = start_s + self.duration_s
        for index, visit in enumerate(visits):
            if index:
                yield (start_s + visit.attach_s, client, AttachTo(visit.broker, 0))
            if visit.leave_s is not None and visit.leave_s < self.duration_s:
                later = visits[index + 1 : index + 2]
                destination = later[0].broker if visit.proclaimed and later else ""
                yield (start_s + visit.leave_s, client, LeaveFor(destination))
                if not later:
                    yield (end_s + HOME_AFTER_S, client, AttachTo(visit.broker, 0))

    # --- running ---

    def run(
        self,
        observe: Callable[[list[Row]], None] | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Run:
        self.check()
        topology = self.make_topology()
        return run_checked(topology, self.network, self.actions(topology), observe, progress)
