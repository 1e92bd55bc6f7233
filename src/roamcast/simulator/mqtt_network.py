"""A simulated network whose clients speak MQTT, and whose operators change brokers while they serve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from roamcast.broker.core import CoreSettings
from roamcast.broker.inputs import (
    BrokerForgotten,
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    DrainOrdered,
    LinkFrames,
    MachineEffects,
    MachineInput,
    OverlayGiven,
    RulesChanged,
    SettingsChanged,
    Tick,
)
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.access import AccessRules
from roamcast.mqtt.server.settings import EndpointSettings
from roamcast.protocol.effects import Input
from roamcast.protocol.messages import Message
from roamcast.protocol.queues import QueueLimits
from roamcast.protocol.records import Row
from roamcast.routing.location.movement_graph import MovementGraph, format_movement_graph
from roamcast.simulator.faults import Crash, Fault
from roamcast.simulator.hostile import is_of_hostile
from roamcast.simulator.mqtt_access import MqttAccess
from roamcast.simulator.mqtt_ledger import Ledger
from roamcast.simulator.mqtt_story import PLACE, Drain, Forget, Join, MqttSettings, SetLimit, SetRules
from roamcast.simulator.network import Network, NetworkSettings
from roamcast.simulator.topology import Topology

OF_OTHERS = (ClientConnected, ClientFrames, ConnectionLost, LinkFrames, Tick)
"""Inputs that may be lost with a journal entry, because their senders repeat them."""
NOT_JOINED = "not joined"
"""Why a link is down that the story has not created yet."""
UNLIMITED = 100_000


class MqttNetwork(Network):
    access: MqttAccess

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None],
        ledger: Ledger,
        drains: Mapping[str, list[tuple[float, str]]],
        joins: Iterable[frozenset[str]] = (),
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> None:
        """`joins` are links that do not exist before the story creates them; see `MqttAccess` for
        `drains`.
        """
        self._ledger = ledger
        self._drains = drains
        self._joins = dict.fromkeys(joins)
        self._gone: dict[str, None] = {}
        """Brokers that have stopped for good."""
        self._limits = {id: settings.mqtt or MqttSettings() for id in topology.brokers}
        self._rules = {id: AccessRules() for id in topology.brokers}
        self._refused: set[str] = set()
        super().__init__(topology, settings, observe, trace, faults=True)
        for edge in self._joins:
            one, other = edge
            self._outages[edge][NOT_JOINED] = self._told_down[one, other] = self._told_down[other, one] = None
            del self._connections[edge]

    def _make_access(self) -> MqttAccess:
        return MqttAccess(self, self._ledger, self._drains)

    def _settings_of(self, id: str) -> MachineSettings:
        return self._machine_settings(id, self.settings.mqtt or MqttSettings())

    def _machine_settings(self, id: str, limits: MqttSettings) -> MachineSettings:
        settings = self.settings
        graph = settings.location.variables.get(PLACE)
        assert graph is None or isinstance(graph, MovementGraph)
        return MachineSettings(
            id,
            settings.protocol,
            broker=CoreSettings(
                routing=settings.routing,
                queue=None if limits.queue_max is None else QueueLimits(limits.queue_max, 1 << 30),
                clock_error_s=None,
                records=settings.records,
                protocol=settings.mobility_settings(self.topology),
            ),
            endpoint=EndpointSettings(
                sessions_max=UNLIMITED if limits.sessions_max is None else limits.sessions_max,
                serves_unreachable=limits.unreachable == "serve",
                settle_timeout_s=limits.settle_timeout_s,
                locate_timeout_s=limits.locate_timeout_s,
            ),
            peers=tuple(peer for peer in self.topology.peers(id) if frozenset((id, peer)) not in self._joins),
            border=settings.border,
            movement_graph="" if graph is None else format_movement_graph(graph),
            stay_s=settings.location.stay_s,
            stay_first_s=settings.location.stay_first_s,
            retained_messages_max=UNLIMITED if limits.retained_max is None else limits.retained_max,
        )

    def _given(self, id: str) -> OverlayGiven:
        """Return the topology without links that are created later, and without the brokers behind them."""
        given = super()._given(id)
        links = [link for link in given.links if frozenset((id, link.peer)) not in self._joins]
        return OverlayGiven(
            tuple(msgspec.structs.replace(link, behind=tuple(self._behind(link.peer, id))) for link in links)
        )

    def _behind(self, broker: str, source: str) -> Iterator[str]:
        yield broker
        for peer in self.topology.peers(broker):
            if peer != source and frozenset((broker, peer)) not in self._joins:
                yield from self._behind(peer, broker)

    def is_gone(self, broker: str) -> bool:
        return broker in self._gone

    # --- running ---

    def _send_frames(
        self,
        broker: str,
        machine: BrokerMachine,
        inputs: Sequence[MachineInput | Input],
        effects: MachineEffects,
    ) -> None:
        self.access.look(broker, effects)
        effects.link_closes = [close for close in effects.link_closes if close[0] not in self._gone]
        super()._send_frames(broker, machine, inputs, effects)
        going_on = [ClientFrames(connection, b"") for connection in effects.unread]
        for item in (*going_on, *effects.deferred):
            self.push(self.now, self.step, broker, (item,))

    # --- what happens to brokers ---

    def _happen(self, broker: str, fault: Fault) -> None:
        if broker in self._gone:
            return
        match fault:
            case Crash(torn=True):
                if broker not in self._down:
                    self._doomed[broker] = fault
            case Join(peer):
                self._bring_up(broker, peer, NOT_JOINED)
            case Drain(destination):
                if broker not in self._down and destination in self.machines[broker].links.reach.next_hops:
                    self.step(broker, (DrainOrdered(destination, destination),))
            case Forget(gone):
                self._forget(broker, gone)
            case SetRules(rules):
                self._rules[broker] = rules
                self.step(broker, (RulesChanged(rules),))
            case SetLimit(name, value):
                self._limits[broker] = msgspec.structs.replace(self._limits[broker], **{name: value})
                self._configure(broker)
            case _:
                super()._happen(broker, fault)

    def _configure(self, broker: str) -> None:
        self.step(broker, (SettingsChanged(self._machine_settings(broker, self._limits[broker])),))

    def _restart(self, broker: str) -> None:
        """Restart a broker with the present configuration, which may have changed since it stopped."""
        was_down = broker in self._down
        super()._restart(broker)
        if was_down:
            self._configure(broker)
            self.step(broker, (RulesChanged(self._rules[broker]),))

    def _crashes(self, broker: str, effects: MachineEffects) -> bool:
        fate = self._doomed.get(broker)
        if fate is None or not fate.torn or not all(isinstance(one, OF_OTHERS) for one in effects.durable):
            return super()._crashes(broker, effects)
        self._crash(broker, "torn")
        self._hashes[broker] = ""
        return True

    def _forget(self, broker: str, gone: str) -> None:
        """Tell all brokers that one of them has stopped for good."""
        if gone in self._gone or broker in self._down:
            return
        if gone not in self._down:
            self._crash(gone)
        self._gone[gone] = None
        self.step(broker, (BrokerForgotten(gone),))
        self.access.broker_started(gone)  # Whoever waits for it goes elsewhere now.

    def _crash(self, broker: str, reason: str | None = None) -> None:
        self._refused.update(self._refusals(broker))
        super()._crash(broker, reason)

    def _refusals(self, broker: str) -> Iterator[str]:
        """What this broker refused of its peers."""
        for peer, reasons in self.machines[broker].border.refused.items():
            yield from (f"{broker} refused {peer}: {reason}" for reason in reasons)

    # --- for those who look on ---

    def _wrongs_at_rest(self) -> Iterator[tuple[str, str]]:
        for broker in self.machines:
            self._refused.update(self._refusals(broker))
        if not self.settings.hostile:
            for text in sorted(self._refused):
                yield "honest peer refused", text
        left_out = {*self._gone, self.settings.hostile}
        for one, other in self.topology.overlay:
            if not left_out & {one, other}:
                yield from self._wrongs_of_link(one, other)
        for id, machine in self.machines.items():
            if id not in left_out:
                yield from _wrongs_of_broker(machine, self.settings.hostile)

    def _wrongs_of_link(self, one: str, other: str) -> Iterator[tuple[str, str]]:
        here, there = self.machines[one].links.ends.get(other), self.machines[other].links.ends.get(one)
        if here is None or there is None or not (here.is_up and there.is_up):
            yield "link down at the end", f"between {one} and {other}"
        elif (here.sent, there.sent) != (there.received, here.received):
            yield "in flight at the end", f"messages between {one} and {other}"


def _wrongs_of_broker(machine: BrokerMachine, hostile: str) -> Iterator[tuple[str, str]]:
    core = machine.broker
    for reason in core.unfinished():
        # Timers may reach far beyond the end.
        if not reason.startswith("timers") and not is_of_hostile(reason, hostile):
            yield "in flight at the end", reason
    for client, queue in core.protocol.stored():
        if queue and client in core.attachments and not (hostile and client.startswith(hostile)):
            yield "never drained", f"{len(queue)} notifications for {client} at {core.id}"
