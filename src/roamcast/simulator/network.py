"""A simulated network: the machine that ships, driven in virtual time. One seed decides everything.

It is a driver like the daemon: it turns events into inputs, feeds them to the machines of the brokers
(`broker.machine`) and performs their effects. Links are the machine's own: messages are numbered, kept until
the peer has them, and resumed after an outage; the simulator only adds delay. Where brokers may crash, each
has a journal of encoded entries and snapshots like that of a broker on disk, and recovers from them.

All clients of a network are of one kind (`access`). This module does not depend on any protocol.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify
from typing import Any

import msgspec

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.history import Start, ToldHistory
from roamcast.broker.inputs import (
    LinkDown,
    LinkFrames,
    LinkRefused,
    LinkUp,
    MachineEffects,
    MachineInput,
    OverlayGiven,
    Started,
    Tick,
    decode_entry,
    encode_entry,
)
from roamcast.broker.links.frames import batch as batch_frame
from roamcast.broker.links.frames import position as position_frame
from roamcast.broker.links.links import GivenLink
from roamcast.broker.links.rules import PeerRules
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mobility import Settings
from roamcast.mobility.moving.election import TreeRule
from roamcast.protocol.codec import VERSION_MAX
from roamcast.protocol.effects import Input, Received
from roamcast.protocol.messages import Message, cause_of
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Level, Row
from roamcast.protocol.snapshot import CannotFreeze, freeze, state_hash, thaw
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.access import CONTROL_BYTES, Access, PlainAccess
from roamcast.simulator.engine import Engine, lane_for
from roamcast.simulator.faults import (
    Backup,
    Crash,
    Cut,
    Detour,
    Fault,
    Heal,
    Impostor,
    Lie,
    Restart,
    Snapshot,
)
from roamcast.simulator.hostile import MEMBERS, HostileBroker, border_of
from roamcast.simulator.links import Delay, Link, LossyLink, longest_s
from roamcast.simulator.mqtt_story import MqttSettings
from roamcast.simulator.topology import Topology

Action = tuple[float, str, Input]
"""Time, client and action; for a fault: time, broker and fault."""

LINK_DELAY = Delay(0.010, 0.010)
ACCESS_DELAY = Delay(0.020, 0.020)
NO_DELAY = Delay(0.0, 0.0)
GAPS, GAP_S_MAX = 0.3, 0.5
"""Share of the connections that break in the middle of what is sent, and the time until their end is noticed
after that."""


@dataclass(frozen=True)
class NetworkSettings:
    """All settings of a simulated network except its topology and its clients' actions."""

    protocol: str = "sub_unsub"
    routing: str = ""
    advertisements: bool = False
    link_delay: Delay = LINK_DELAY
    link_delays: tuple[tuple[str, str, Delay], ...] = ()
    """Delays of individual links, in both directions."""
    access_delay: Delay = ACCESS_DELAY
    access_bits_per_s: float | None = None
    access_shared: bool = False
    """True if all clients of a broker share the downlink bandwidth."""
    notice_delay: Delay = NO_DELAY
    """Time after a silent leave until the broker notices it."""
    service_s: float = 0.0
    """Processing time of one message at a broker."""
    buffer_bytes: int | None = None
    window: int = 256
    names_last_broker: bool = True
    loss: float = 0.0
    """Share of transmissions over links that are lost. They are repeated, so loss appears as delay."""
    reach: tuple[tuple[str, str], ...] = ()
    """For brokers that move: additional possible links. With these the brokers elect a leader, and the links
    follow; without, links change only by the story.
    """
    tree: TreeRule = "stable"
    """Rule by which brokers that move choose their parents."""
    records: Level = "counters"
    mqtt: MqttSettings | None = None
    """Settings of the MQTT endpoints; None: clients use the plain protocol of the lab."""
    mobility: Settings = field(default_factory=Settings)
    """Settings of the protocol; the bound on the delay is filled in."""
    # Its mapping has no hash, and jobs of a sweep, which hold these settings, need one.
    location: LocationSettings = field(default_factory=LocationSettings, hash=False)
    hostile: str = ""
    """The broker that sends made-up messages."""
    replicas: tuple[tuple[str, int], ...] = ()
    """Number of replicas of each broker that has followers."""
    lease_s: float = 1.0
    """Duration of the leader's lease in a site with replicas."""
    seed: int = 0

    @property
    def border(self) -> dict[str, PeerRules] | None:
        """Return rules for peers. Clients of the lab have none unless there is a hostile peer: sweeps are
        faster without."""
        if self.hostile:
            return border_of(self.hostile, self.seed)
        return None if self.mqtt is None else {"": MEMBERS}

    def delay_between(self, one: str, other: str) -> Delay:
        """Return the delay of the link between two neighbours."""
        for first, second, delay in self.link_delays:
            if {first, second} == {one, other}:
                return delay
        return self.link_delay

    def mobility_settings(self, topology: Topology) -> Settings:
        return msgspec.structs.replace(self.mobility, delay_bound_s=self.delay_bound_s(topology))

    def delay_bound_s(self, topology: Topology) -> float:
        """Bound on the delay of a message between any two brokers without queues, while no link is down."""
        delays = (self.link_delay, *(one[2] for one in self.link_delays))
        link_s = max(longest_s(delay, self.loss) for delay in delays)
        return topology.diameter * (link_s + self.service_s) + self.service_s


@dataclass
class Traffic:
    """Hops over the links between brokers and over access links, by cause."""

    hops: Counter[str] = field(default_factory=Counter)
    """Hops by cause; a message with several notifications counts once for each."""
    access_hops: int = 0
    messages: int = 0
    """Messages over links between brokers, each counted once."""

    @property
    def total_hops(self) -> int:
        return self.hops.total()

    @property
    def overhead_hops(self) -> int:
        """Hops caused by mobility."""
        return self.hops["handoff"] + self.hops["transfer"]


CUT, DETOUR = "a cut", "another way"
"""Reasons why a link is down, besides crashed ends."""

WITNESS = "network"
"""The node that writes the rows of crashes and restarts: a broker cannot say that it is down."""


class Journal:
    """The disk of one broker: a snapshot, and the encoded entries after it."""

    def __init__(self) -> None:
        self.snapshot: bytes | None = None
        self.entries: list[bytes] = []

    def copy(self) -> Journal:
        copy = Journal()
        copy.snapshot, copy.entries = self.snapshot, list(self.entries)
        return copy


class NetworkBase(Engine):
    """Common base of all simulated networks."""

    arrive: Callable[[str, Sequence[Any]], None]
    """Pass inputs to a broker."""

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None],
        trace: Callable[[float, str, str, Message], None] | None,
    ) -> None:
        super().__init__()
        self.topology = topology
        self.settings = settings
        self.traffic = Traffic()
        self.observe = observe
        self._trace = trace
        self._hostile: HostileBroker | None = None
        """Machine of the hostile broker."""
        self._witnessed = 0

    def is_down(self, broker: str) -> bool:
        raise NotImplementedError

    def submit(self, broker: str, items: Sequence[Any], are_plain: bool) -> None:
        """Pass inputs of its clients to a broker; plain ones are messages of those that are attached."""
        self.arrive(broker, items)

    def rng_for(self, *names: str) -> random.Random:
        """Return a separate random source for each purpose, so that one purpose does not change another's
        draws."""
        return random.Random(f"{self.settings.seed}/{'/'.join(names)}")

    def _link_with(self, delay: Delay, *names: str) -> Link:
        rng, loss = self.rng_for(*names), self.settings.loss
        return LossyLink(delay, rng, loss) if loss else Link(delay, rng)

    def _count(self, broker: str, sends: Sequence[tuple[str, Message]]) -> None:
        if self._trace is not None:
            for peer, message in sends:
                self._trace(self.now, broker, peer, message)
        if self._hostile is not None:
            self._hostile.heard.extend(message for _, message in sends)
        traffic = self.traffic
        traffic.messages += len(sends)
        hops, notifications = traffic.hops, 0
        for _, message in sends:
            if type(message) is Burst:
                notifications += message.count
            else:
                hops[cause_of(message)] += message.weight
        if notifications:
            hops["publish"] += notifications

    def _witness(self, kind: str, broker: str, reason: str | None = None) -> None:
        self._witnessed += 1
        self.observe([Row(self._witnessed, self.now, WITNESS, kind, broker=broker, reason=reason)])


class Network(NetworkBase):
    """Brokers, their links and clients. What one step sends arrives together, as one event."""

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None],
        trace: Callable[[float, str, str, Message], None] | None = None,
        faults: bool = False,
    ) -> None:
        """With `faults` brokers keep journals, and each row is handed on once, when the run is over."""
        super().__init__(topology, settings, self._note if faults else observe, trace)
        self._report = observe
        is_plain = not (settings.loss or settings.link_delays or faults)
        self._lane = lane_for(settings.link_delay) if is_plain else None
        self._is_prompt = not settings.service_s
        self._is_direct = self._is_prompt and not faults
        """True if inputs of brokers are not encoded, and wait for nothing."""
        self._effects = MachineEffects()
        """The effects of such inputs, empty between them."""
        self.arrive = self.step if self._is_prompt else self._wait_for_service
        self._busy_until: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self._links = {
            id: {peer: self._make_link(id, peer) for peer in topology.peers(id)} for id in topology.brokers
        }
        self._has_faults = faults
        self._journals: dict[str, Journal] = {id: Journal() for id in topology.brokers}
        self._rows: dict[tuple[str, int], Row] = {}
        self._rows_differing: list[str] = []
        self._broken: list[str] = []
        """Links that the two ends could not resume."""
        self._down: dict[str, None] = {}
        self._doomed: dict[str, Crash] = {}
        """Brokers that crash in their next step."""
        self._hashes: dict[str, str] = {}
        """Hash of the state of each crashed broker; "" if it was ahead of its journal."""
        self._starts: Counter[str] = Counter()
        """Number of process starts of each broker, impostors included."""
        self._positions: dict[str, int] = {}
        """Position of each broker's history in its journal."""
        self._backups: dict[str, Journal] = {}
        self._heard: dict[str, list[str]] = {}
        """For brokers that are down: the peers that received their last message."""
        self.impostors: Counter[str] = Counter()
        """Number of impostors that were refused, and that were accepted."""
        self._unsent: dict[str, Sequence[tuple[str, Message]]] = {}
        """Messages that a crash held back: the links send them after the restart."""
        self._outages: dict[frozenset[str], dict[str, None]] = {
            frozenset(ends): {} for ends in topology.overlay
        }
        """Why each link is down; nothing if it is up."""
        self._connections = {frozenset(ends): 0 for ends in topology.overlay}
        """Number of each link's present connection; none from an outage until the next handshake. Data
        written to a connection that breaks never arrives.
        """
        self._connections_made = 0
        self._told_down: dict[tuple[str, str], None] = {}
        """Brokers, and the peers that they know to be unreachable."""
        self._gaps = self.rng_for("gaps")
        self._torn: dict[tuple[str, str], str] = {}
        """The error of brokers whose connection to a peer broke in the middle of what was sent last."""
        self.machines = {id: self._make_machine(id) for id in topology.brokers}
        hostile = self.machines.get(settings.hostile)
        self._hostile = hostile if isinstance(hostile, HostileBroker) else None
        self._has_snapshots = faults and self._can_freeze()
        self.access: Access = self._make_access()
        for id in topology.brokers:
            self.step(id, (self._start(self.machines[id]), self._given(id)))

    def _can_freeze(self) -> bool:
        """Return whether all brokers declare their state; an experimental protocol may not do so yet."""
        try:
            state_hash(next(iter(self.machines.values())))
        except CannotFreeze:
            return False
        return True

    def _make_access(self) -> Access:
        return PlainAccess(self)

    def _make_machine(self, id: str) -> BrokerMachine:
        settings = self._settings_of(id)
        return HostileBroker(settings) if id == self.settings.hostile else BrokerMachine(settings)

    def _settings_of(self, id: str) -> MachineSettings:
        settings = self.settings
        return MachineSettings(
            id,
            settings.protocol,
            front="plain",
            encodes=self._has_faults,
            border=settings.border,
            broker=CoreSettings(
                routing=settings.routing,
                advertisements=settings.advertisements,
                window=settings.window,
                buffer_bytes=settings.buffer_bytes,
                records=settings.records,
                protocol=settings.mobility_settings(self.topology),
                location=settings.location,
            ),
        )

    def _given(self, id: str) -> OverlayGiven:
        """Return the links of a broker, which existed long before the story begins."""
        hops = self.topology.next_hops(id)
        links = []
        for peer in self.topology.peers(id):
            behind = tuple(broker for broker, hop in hops.items() if hop == peer)
            guests = tuple(broker for broker in behind if broker == self.settings.hostile)
            ends = self._incarnation(id, peer), self._incarnation(peer, id)
            history = ToldHistory(self._start_id(peer, 1), 1, (Start(self._start_id(peer, 1), 0),))
            links.append(GivenLink(peer, *ends, behind, history, guests))
        return OverlayGiven(tuple(links))

    def _incarnation(self, broker: str, peer: str) -> int:
        return self.rng_for("incarnation", broker, peer).getrandbits(62) + 1

    def _start_id(self, broker: str, number: int) -> int:
        """Identity of one start; unused without faults."""
        if not self._has_faults:
            return 0
        return self.rng_for("start", broker, str(number)).getrandbits(62) + 1

    def _start(self, machine: BrokerMachine) -> Started:
        self._starts[machine.id] += 1
        return Started(machine.settings, self._start_id(machine.id, self._starts[machine.id]))

    def _make_link(self, broker: str, peer: str) -> Link:
        return self._link_with(self.settings.delay_between(broker, peer), broker, peer)

    @property
    def brokers(self) -> dict[str, BrokerCore]:
        """The cores of the machines, for observers."""
        return {id: one.broker for id, one in self.machines.items() if one is not self._hostile}

    @property
    def clients(self) -> Mapping[str, Any]:
        return self.access.clients  # type: ignore[attr-defined, no-any-return]

    def is_attached(self, client: str) -> bool:
        return self.access.is_attached(client)

    def is_down(self, broker: str) -> bool:
        return broker in self._down

    # --- running ---

    def run(
        self,
        actions: Iterable[Action] = (),
        progress: Callable[[float], None] | None = None,
        until_s: float = float("inf"),
    ) -> None:
        """Perform the actions, which are in order of time, and continue until nothing is left to do."""
        self._push_action(iter(actions))
        self.go(progress, until_s)
        if self._has_faults:
            self._report(sorted(self._rows.values(), key=lambda row: row.time))
            self._rows.clear()

    def _push_action(self, script: Iterator[Action]) -> None:
        action = next(script, None)
        if action is not None:
            self.push(max(action[0], self.now), self._act, action, script)

    def _act(self, action: Action, script: Iterator[Action]) -> None:
        _, node, item = action
        if isinstance(item, Fault):
            self._happen(node, item)
        else:
            self.access.act(node, item)
        self._push_action(script)

    # --- brokers ---

    def _wait_for_service(self, broker: str, inputs: Sequence[MachineInput | Input]) -> None:
        """Queue an input of a broker, which processes one message at a time."""
        if broker in self._down:
            return
        done_s = max(self.now, self._busy_until.get(broker, 0.0)) + self._service_s(broker, inputs)
        self._busy_until[broker] = done_s
        self.push(done_s, self.step, broker, inputs)

    def _service_s(self, broker: str, inputs: Sequence[MachineInput | Input]) -> float:
        """Return the processing time of an input."""
        return self.settings.service_s

    def step(self, broker: str, inputs: Sequence[MachineInput | Input]) -> None:
        """Let a broker process inputs."""
        if broker in self._down:
            return  # Only the news that a client has left: it will be told that of all its clients.
        machine = self.machines[broker]
        effects = machine.step(self.now, inputs)
        if self._has_faults:
            if self._crashes(broker, effects):
                return
            self._send_frames(broker, machine, inputs, effects)
        elif effects.sends:
            self._send_in_process(broker, machine, effects.sends)
        if effects.to_clients or effects.writes or effects.client_closes or effects.closes:
            self.access.take(broker, effects)
        if effects.records:
            self.observe(effects.records)
        self._note_deadline(broker, machine)

    def _perform(self, broker: str, machine: BrokerMachine, effects: MachineEffects) -> None:
        """Perform the effects of an input in process, which are of few kinds, and take them out."""
        if effects.sends:
            self._send_in_process(broker, machine, effects.sends)
            effects.sends.clear()
        if effects.to_clients or effects.client_closes:
            self.access.take(broker, effects)
            effects.to_clients = []
            if effects.client_closes:
                effects.client_closes = []
        if effects.records:
            records, effects.records = effects.records, []
            self.observe(records)
        if machine.broker.timers:  # No other deadline follows from such an input.
            self._note_deadline(broker, machine)

    def _note_deadline(self, broker: str, machine: BrokerMachine) -> None:
        deadline = machine.deadline()
        if deadline is not None and self._deadlines.get(broker) != deadline:
            self._deadlines[broker] = deadline
            self.push(max(deadline, self.now), self._on_deadline, broker, deadline)

    def _on_deadline(self, broker: str, deadline: float) -> None:
        if self._deadlines.get(broker) == deadline:
            del self._deadlines[broker]
            self.step(broker, (Tick(),))

    # --- links ---

    def _send_in_process(
        self, broker: str, machine: BrokerMachine, sends: Sequence[tuple[str, Message]]
    ) -> None:
        """Send the core's messages in order without encoding them, if no faults are possible."""
        self._count(broker, sends)
        items, lane = machine.links.send_in_process(sends), self._lane
        if lane is not None:
            at = self.now + self.settings.link_delay.low_s
            self.push_lane(lane, at, self._arrive_together, broker, items)
            return
        for one in items:
            at = self._links[broker][one[0]].arrival_s(self.now, CONTROL_BYTES)
            self.push(at, self._arrive_together, broker, (one,))

    def _arrive_together(self, broker: str, items: Sequence[tuple[str, Message, int]]) -> None:
        now, effects = self.now, self._effects
        for peer, message, number in items:
            machine = self.machines[peer]
            if self._is_prompt:
                machine.receive_in_process(now, broker, message, number, effects)
                self._perform(peer, machine, effects)
            else:
                machine.links.ends[broker].receive_in_process(number)
                self.arrive(peer, (Received(broker, message),))

    def submit(self, broker: str, items: Sequence[Any], are_plain: bool) -> None:
        if are_plain and self._is_direct:
            machine, effects = self.machines[broker], self._effects
            machine.submit_in_process(self.now, items, effects)
            self._perform(broker, machine, effects)
        else:
            self.arrive(broker, items)

    def _send_frames(
        self,
        broker: str,
        machine: BrokerMachine,
        inputs: Sequence[MachineInput | Input],
        effects: MachineEffects,
    ) -> None:
        """Send the core's messages and pending output of the links: news of the overlay, acknowledgements,
        retransmissions. Each message has its own frame."""
        ends = machine.links.ends
        for peer, why in effects.link_closes:
            if peer != self.settings.hostile and why != self._torn.get((broker, peer)):
                self._broken.append(f"{broker} closes the link to {peer}: {why}")
        for item in inputs:
            if type(item) is LinkFrames and item.peer in ends:
                ends[item.peer].acknowledge()
        if effects.sends:
            self._count(broker, effects.sends)
            for peer, _ in effects.sends:
                if peer in ends:
                    self._send_frame(broker, peer, ends[peer].take(1, apart=True))
        for peer, end in ends.items():
            while end.has_more:
                self._send_frame(broker, peer, end.take(1, apart=True))

    def _send_frame(self, broker: str, peer: str, frame: bytes) -> None:
        connection = self._connections.get(frozenset((broker, peer)))
        if frame and connection is not None:  # Otherwise the link is down, whether the broker knows or not.
            at = self._links[broker][peer].arrival_s(self.now, CONTROL_BYTES)
            self.push(at, self._arrive_over, (broker, peer, connection), frame)

    def _arrive_over(self, way: tuple[str, str, int], frame: bytes) -> None:
        broker, peer, connection = way
        if connection == self._connections.get(frozenset((broker, peer))):
            self.arrive(peer, (LinkFrames(broker, frame),))

    # --- faults ---

    def _happen(self, broker: str, fault: Fault) -> None:
        match fault:
            case Crash(unsent):
                if broker in self._down:
                    return
                if unsent:
                    self._doomed[broker] = fault
                else:
                    self._crash(broker)
            case Restart():
                self._restart(broker)
            case Cut(peer):
                self._take_down(broker, peer, CUT)
            case Heal(peer):
                self._bring_up(broker, peer, CUT)
            case Detour(peer, factor):
                self._change_way(broker, peer, factor)
            case Snapshot():
                if broker not in self._down:
                    self._take_snapshot(broker)
            case Backup():
                self._backups[broker] = self._journals[broker].copy()
            case Impostor(is_empty):
                self._try_impostor(broker, Journal() if is_empty else self._backups.get(broker))
            case Lie(number):
                self._lie(broker, number)

    def _lie(self, broker: str, number: int) -> None:
        hostile = self._hostile
        if hostile is not None and broker == hostile.id:
            (neighbour,) = self.topology.peers(broker)
            # Whoever knows the name of a broker that has never joined can keep it out (docs/security.md).
            known = self.machines[neighbour].links.reach.members
            hostile.lie(random.Random(number), list(self.clients), known)
            self._send_frames(broker, hostile, (), MachineEffects())

    def _take_snapshot(self, broker: str) -> None:
        if self._has_snapshots:
            journal = self._journals[broker]
            journal.snapshot, journal.entries = freeze(self.machines[broker]), []

    def _crashes(self, broker: str, effects: MachineEffects) -> bool:
        """Journal what a step declares durable; return whether the broker crashes before its effects are
        sent.
        """
        fate = self._doomed.pop(broker, None)
        if effects.durable:
            self._journals[broker].entries.append(encode_entry(self.now, effects.durable))
            self._positions[broker] = self.machines[broker].history.position
        if fate is None:
            return False
        self._unsent[broker] = effects.sends
        self._crash(broker, "unsent")
        return True

    def _note(self, rows: list[Row]) -> None:
        """Keep rows, each once; a replay that writes other rows is an error."""
        for row in rows:
            known = self._rows.setdefault((row.node, row.sequence), row)
            if known is not row and known != row:
                self._rows_differing.append(f"{row} was {known}")

    def _crash(self, broker: str, reason: str | None = None) -> None:
        self._witness("crashed", broker, reason)
        self._doomed.pop(broker, None)
        self._down[broker] = None
        self._hashes[broker] = state_hash(self.machines[broker]) if self._has_snapshots else ""
        # Whoever hears it may crash because of it, and must not find this one still there.
        self._heard[broker] = self._tell_position(broker)
        self._deadlines.pop(broker, None)
        self._busy_until.pop(broker, None)
        # What waited for it while it was busy is gone. In place: the loop that called this has the same heap.
        self._heap[:] = [event for event in self._heap if event[2:4] != (self.step, broker)]
        heapify(self._heap)
        self.access.broker_crashed(broker)
        for peer in self.topology.peers(broker):
            self._take_down(broker, peer, broker)

    def _restart(self, broker: str) -> None:
        self._doomed.pop(broker, None)
        if broker not in self._down:
            return
        machine = self.machines[broker] = self._recover(broker)
        del self._down[broker]
        self._witness("started", broker)
        self._count(broker, self._unsent.pop(broker, ()))
        for peer in self.topology.peers(broker):
            self._told_down[broker, peer] = None
        self.step(broker, (self._start(machine),))
        for peer in self.topology.peers(broker):
            self._bring_up(broker, peer, broker)
        if broker not in self._down:
            self.access.broker_started(broker)

    # --- brokers that are not what they were ---

    def _tell_position(self, broker: str) -> list[str]:
        """Send a broker's position, its last sign of life; return the peers that receive it."""
        reach = self._peers_in_reach(broker)
        linked = [peer for peer in reach if frozenset((broker, peer)) in self._connections]
        # A broker may crash while its link comes up, and a peer that has not done so hears nothing over it.
        peers = [peer for peer in linked if self._is_up_at(peer, broker)]
        for peer in peers:
            self.step(peer, (LinkFrames(broker, position_frame(self._positions[broker])),))
        return peers

    def _is_up_at(self, broker: str, peer: str) -> bool:
        end = self.machines[broker].links.ends.get(peer)
        return end is not None and end.is_up

    def _peers_in_reach(self, broker: str) -> list[str]:
        """Return the peers that a process with the broker's id could connect to now."""
        edges = {peer: self._outages[frozenset((broker, peer))] for peer in self.topology.peers(broker)}
        return [peer for peer, whys in edges.items() if peer not in self._down and not whys.keys() - {broker}]

    def _try_impostor(self, broker: str, journal: Journal | None) -> None:
        """Start a process with the broker's id on another disk.

        Nobody knows what a broker did after its last sign of life, so the process is started only if a peer
        within reach has received that sign.
        """
        is_clone = broker not in self._down
        heard = self._peers_in_reach(broker) if is_clone else self._heard[broker]
        if journal is None or not any(peer in heard for peer in self._peers_in_reach(broker)):
            return
        machine = self._replayed(broker, journal, note=lambda rows: None)
        machine.step(self.now, (self._start(machine),))
        for peer in self._peers_in_reach(broker):
            other, offer = self.machines[peer], machine.offer(peer)
            is_linked = is_clone and not self._outages[frozenset((broker, peer))]
            doubt = other.doubt(broker, offer, is_linked)
            if doubt or other.refusal(broker, offer):
                self.impostors["refused"] += 1
                machine.step(self.now, (LinkRefused(peer, doubt, is_fence=bool(doubt)),))
                if doubt and not machine.history.refusal:
                    self._broken.append(f"{broker} is refused by {peer} and serves: {doubt}")
                return
        self.impostors["taken"] += 1
        if is_clone:
            self._crash(broker)
        self._journals[broker], self._hashes[broker] = journal.copy(), ""
        self._restart(broker)

    def _replayed(self, broker: str, journal: Journal, note: Callable[[list[Row]], None]) -> BrokerMachine:
        machine = self._make_machine(broker) if journal.snapshot is None else thaw(journal.snapshot)
        assert isinstance(machine, BrokerMachine)
        for data in journal.entries:
            entry = decode_entry(data)
            note(machine.step(entry.now, entry.inputs).records)
        return machine

    def _recover(self, broker: str) -> BrokerMachine:
        """Return a machine recovered from the journal."""
        machine = self._replayed(broker, self._journals[broker], self._note)
        if self._hashes[broker] and state_hash(machine) != self._hashes[broker]:
            self._rows_differing.append(f"{broker} has another state than when it crashed")
        return machine

    # --- links go down and come up again ---

    def _take_down(self, broker: str, peer: str, why: str) -> None:
        edge = frozenset((broker, peer))
        outages = self._outages[edge]
        was_up = not outages
        outages[why] = None
        if was_up:
            self._connections.pop(edge, None)
            # In events of their own, because either may crash when it hears of it.
            self.push(self.now, self._tell_down, broker, peer)
            self.push(self.now, self._tell_down, peer, broker)

    def _change_way(self, broker: str, peer: str, factor: float) -> None:
        """Replace the present connection of a link, if it has one, by another one."""
        direct = self.settings.delay_between(broker, peer)
        delay = Delay(direct.low_s * factor, direct.high_s * factor)
        for one, other in ((broker, peer), (peer, broker)):
            self._links[one][other] = self._link_with(delay, one, other, f"{self._connections_made}")
        self._take_down(broker, peer, DETOUR)
        self._bring_up(broker, peer, DETOUR)

    def _tell_down(self, broker: str, peer: str) -> None:
        is_up = not self._outages[frozenset((broker, peer))]
        if is_up or broker in self._down or (broker, peer) in self._told_down:
            return
        self._told_down[broker, peer] = None
        end = self.machines[broker].links.ends.get(peer)
        if end is not None and end.is_up and self._gaps.random() < GAPS:
            # Of what was sent last only the end arrives, and the broker closes the connection itself.
            gap = batch_frame(end.peer_incarnation, 0, end.received + 2, b"")
            why = f"{peer} sent message {end.received + 2} after {end.received}: some are missing"
            self._torn[broker, peer] = why
            self.step(broker, (LinkFrames(peer, gap),))
            self.push(self.now + self._gaps.uniform(0, GAP_S_MAX), self._tell_late, broker, peer)
        else:
            self.step(broker, (LinkDown(peer),))

    def _tell_late(self, broker: str, peer: str) -> None:
        if broker not in self._down and frozenset((broker, peer)) not in self._connections:
            self.step(broker, (LinkDown(peer),))

    def _bring_up(self, broker: str, peer: str, why: str) -> None:
        outages = self._outages[frozenset((broker, peer))]
        if why not in outages:
            return
        del outages[why]
        if not outages:
            self.push(self.now, self._shake_hands, broker, peer)

    def _shake_hands(self, one: str, other: str) -> None:
        """Let both ends exchange what they have received, and resume after that."""
        if self._outages[frozenset((one, other))] or {one, other} & self._down.keys():
            return
        for end, peer in ((one, other), (other, one)):
            self._tell_down_first(end, peer)
        if {one, other} & self._down.keys() or self._outages[frozenset((one, other))]:
            return
        ends = {id: self.machines[id] for id in (one, other)}
        offers = {one: ends[other].offer(one), other: ends[one].offer(other)}
        for end, peer in ((one, other), (other, one)):
            refusal = ends[end].doubt(peer, offers[end]) or ends[end].refusal(peer, offers[end])
            if refusal:
                if self.settings.hostile not in (end, peer):
                    self._broken.append(f"{end} refuses the link to {peer}: {refusal}")
                return
        anew = {end: ends[end].begins_anew(peer, offers[end]) for end, peer in ((one, other), (other, one))}
        self._connections_made += 1
        self._connections[frozenset((one, other))] = self._connections_made
        for end, peer in ((one, other), (other, one)):
            self._told_down.pop((end, peer), None)
            if peer not in self._down:
                incarnation = self._incarnation(end, peer) if anew[end] else 0
                self.step(end, (LinkUp(peer, offers[end], incarnation, VERSION_MAX),))

    def _tell_down_first(self, broker: str, peer: str) -> None:
        """Let an end that has not noticed the outage notice it when the other end connects again."""
        if (broker, peer) not in self._told_down:
            self._told_down[broker, peer] = None
            self.step(broker, (LinkDown(peer),))

    # --- for those who look on ---

    def asked(self) -> Mapping[str, int]:
        return self.access.asked()

    def wrongs(self) -> Iterator[tuple[str, str]]:
        """Return kind and text of each violation by the network itself."""
        yield from self.access.wrongs()
        for text in self._rows_differing:
            yield "replay differs", text
        for text in self._broken:
            yield "link broken", text
        yield from self._wrongs_at_rest()

    def _wrongs_at_rest(self) -> Iterator[tuple[str, str]]:
        for id, machine in self.machines.items():
            for peer, end in machine.links.ends.items() if machine is not self._hostile else ():
                received = self.machines[peer].links.ends[id].received
                if received != end.sent:
                    yield "in flight at the end", f"{end.sent - received} messages from {id} to {peer}"
