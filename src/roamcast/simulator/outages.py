"""The engine with outages: brokers crash and restart from a journal, links go down and up again.

It is the same driver with what makes a real one durable, in virtual time. A
broker's journal is the sequence of its steps, `(now, inputs)`. A link numbers what
it carries and keeps it until the receiver has journalled it. After a crash a fresh
broker is fed the journal, and what it says then is known already: rows by node and
sequence, messages to peers by their number on the link. A number that the link has
not seen belongs to a message that the crash kept from being sent; it goes out now.
What was meant for clients is lost with their connections.

Networks without outages do none of this: see `Network`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify
from itertools import islice

from roamcast.broker.core import BrokerCore
from roamcast.protocol.effects import Detached, Input, LeaveFor, LinkChanged, PublishThis, Received
from roamcast.protocol.messages import Message
from roamcast.protocol.records import Row
from roamcast.simulator.faults import Crash, Cut, Fault, Heal, Restart
from roamcast.simulator.links import Link
from roamcast.simulator.network import CONTROL_BYTES, AccessConnection, Action, Network, NetworkSettings
from roamcast.simulator.topology import Topology

JournalEntry = tuple[float, tuple[Input, ...]]

CUT = "a cut"
"""Why a link is down, beside the names of those of its ends that have crashed."""

WITNESS = "network"
"""The node that writes the rows of crashes and restarts: a broker cannot say that it is down."""


class Wire:
    """One direction of a link that survives."""

    def __init__(self, sender: str, receiver: str, link: Link) -> None:
        self.sender = sender
        self.receiver = receiver
        self.link = link
        self.sent = 0
        """How many messages it was ever given."""
        self.kept: deque[Message] = deque()
        """Those that the receiver has not journalled, in order."""
        self.arrived = 0
        """How many of these are there already, and wait because the receiver is busy."""
        self.downs = 0
        """How often the link went down; what was under way then arrives only when it is sent again."""


class FaultyNetwork(Network):
    """A network in which brokers crash and links are cut.

    Rows are handed on when the run is over, in order of time and each once: a
    replay writes them again, and some for the first time.
    """

    def __init__(
        self,
        topology: Topology,
        settings: NetworkSettings,
        observe: Callable[[list[Row]], None],
        trace: Callable[[float, str, str, Message], None] | None = None,
    ) -> None:
        self.resent = 0
        """Messages that a crash had kept from being sent, and that went out after the restart."""
        self._asked: Counter[str] = Counter()
        self._report = observe
        self._rows: dict[tuple[str, int], Row] = {}
        self._rows_differing: list[str] = []
        self._witnessed = 0
        self._journals: dict[str, list[JournalEntry]] = {id: [] for id in topology.brokers}
        self._down: dict[str, None] = {}
        self._doomed: dict[str, None] = {}
        """Brokers that crash within their next step."""
        self._wires: dict[tuple[str, str], Wire] = {}
        self._outages: dict[frozenset[str], dict[str, None]] = {
            frozenset(ends): {} for ends in topology.overlay
        }
        """Why each link is down; nothing if it is up."""
        self._told_down: dict[tuple[str, str], None] = {}
        """Brokers, and the peers that they know to be out of reach."""
        self._at: dict[str, list[AccessConnection]] = {id: [] for id in topology.brokers}
        self._waiting: dict[str, str] = {}
        """Clients that try to attach to a broker that is down."""
        super().__init__(topology, settings, self._note, trace)

    # --- running ---

    def run(self, actions: Iterable[Action] = (), progress: Callable[[float], None] | None = None) -> None:
        super().run(actions, progress)
        self._report(sorted(self._rows.values(), key=lambda row: row.time))
        self._rows.clear()

    def _act(self, action: Action, script: Iterator[Action]) -> None:
        _, node, item = action
        if isinstance(item, Fault):
            self._happen(node, item)
            self._push_action(script)
            return
        if isinstance(item, PublishThis):
            self._asked[node] += len(item.bodies)
        super()._act(action, script)

    def _happen(self, broker: str, fault: Fault) -> None:
        match fault:
            case Crash(unsent):
                if broker in self._down:
                    return
                if unsent:
                    self._doomed[broker] = None
                else:
                    self._crash(broker)
            case Restart():
                self._restart(broker)
            case Cut(peer):
                self._take_down(broker, peer, CUT)
            case Heal(peer):
                self._bring_up(broker, peer, CUT)

    def _note(self, rows: list[Row]) -> None:
        """Keep rows, each once; one that a replay writes otherwise is a mistake."""
        for row in rows:
            known = self._rows.setdefault((row.node, row.sequence), row)
            if known is not row and known != row:
                self._rows_differing.append(f"{row} was {known}")

    def _witness(self, kind: str, broker: str, reason: str | None = None) -> None:
        self._witnessed += 1
        self._note([Row(self._witnessed, self.now, WITNESS, kind, broker=broker, reason=reason)])

    def asked(self) -> Mapping[str, int]:
        """Of those clients whose every request was taken."""
        return {id: count for id, count in self._asked.items() if not self.clients[id].unaccepted}

    def wrongs(self) -> Iterator[tuple[str, str]]:
        yield from super().wrongs()
        for text in self._rows_differing:
            yield "replay differs", text
        for wire in self._wires.values():
            if wire.kept:
                what = f"{len(wire.kept)} messages from {wire.sender} to {wire.receiver}"
                yield "in flight at the end", what
        for client, broker in self._waiting.items():
            yield "in flight at the end", f"the attach of {client} to {broker}, which is down"

    # --- steps, which are journalled ---

    def _step_broker(self, broker: str, inputs: tuple[Input, ...]) -> None:
        if broker in self._down:
            return  # Only the news that a client has left: it will be told that of all its clients.
        self._journal(broker, inputs)
        if broker in self._doomed:
            self._crash(broker, "unsent")
        else:
            super()._step_broker(broker, inputs)

    def _journal(self, broker: str, inputs: tuple[Input, ...]) -> None:
        """Write down what happens; what came over a link need not be kept there any longer."""
        self._journals[broker].append((self.now, inputs))
        for item in inputs:
            if type(item) is Received:
                wire = self._wires[item.peer, broker]
                wire.kept.popleft()
                wire.arrived -= 1

    # --- crashes ---

    def _crash(self, broker: str, reason: str | None = None) -> None:
        self._witness("crashed", broker, reason)
        self._doomed.pop(broker, None)
        self._down[broker] = None
        self._deadlines.pop(broker, None)
        self._busy_until.pop(broker, None)
        # What waited for it while it was busy is gone. In place: the loop that called this has the same heap.
        self._heap[:] = [event for event in self._heap if event[2:4] != (self._step_broker, broker)]
        heapify(self._heap)
        for connection in self._at[broker]:
            self._break(connection)
        self._at[broker].clear()
        for peer in self.topology.peers(broker):
            self._take_down(broker, peer, broker)

    def _break(self, connection: AccessConnection) -> None:
        """A connection ends with its broker. The client notices, and tries again until it is back."""
        client = connection.client.id
        if not connection.is_open:
            return
        connection.close()
        if self._connections.get(client) is connection:
            self._step_client(client, LeaveFor())
            self._waiting[client] = connection.broker

    def _restart(self, broker: str) -> None:
        self._doomed.pop(broker, None)
        if broker not in self._down:
            return
        node, unsent = self._recover(broker)
        self.brokers[broker] = node
        del self._down[broker]
        self._witness("started", broker)
        self.resent += len(unsent)
        self._send_peers(broker, unsent)
        self._step_broker(broker, tuple(Detached(*one) for one in node.connections()))
        for peer in self.topology.peers(broker):
            self._tell_link(broker, peer)
            self._bring_up(broker, peer, broker)
        for client in [client for client, wanted in self._waiting.items() if wanted == broker]:
            self._attach(client, broker)

    def _recover(self, broker: str) -> tuple[BrokerCore, list[tuple[str, Message]]]:
        """A fresh broker that has been fed the journal, and those of its messages that were never sent."""
        node = self._make_broker(broker)
        made: Counter[str] = Counter()
        unsent: list[tuple[str, Message]] = []
        for now, inputs in self._journals[broker]:
            effects = node.step(now, inputs)
            self._note(effects.records)
            for peer, message in effects.sends:
                made[peer] += 1
                if made[peer] > self._wire(broker, peer).sent:
                    unsent.append((peer, message))
        return node, unsent

    # --- links ---

    def _wire(self, sender: str, receiver: str) -> Wire:
        wire = self._wires.get((sender, receiver))
        if wire is None:
            wire = Wire(sender, receiver, self._links[sender][receiver])
            self._wires[sender, receiver] = wire
        return wire

    def _send_peers(self, broker: str, sends: list[tuple[str, Message]]) -> None:
        self._count(broker, sends)
        for peer, message in sends:
            wire = self._wire(broker, peer)
            wire.sent += 1
            wire.kept.append(message)
            if not self._outages[frozenset((broker, peer))]:
                self._transmit(wire)

    def _transmit(self, wire: Wire) -> None:
        self._push(wire.link.arrival_s(self.now, CONTROL_BYTES), self._arrive_over, wire, wire.downs)

    def _arrive_over(self, wire: Wire, downs: int) -> None:
        if downs == wire.downs:
            message = wire.kept[wire.arrived]
            wire.arrived += 1
            self._arrive(wire.receiver, (Received(wire.sender, message),))

    def _take_down(self, broker: str, peer: str, why: str) -> None:
        outages = self._outages[frozenset((broker, peer))]
        was_up = not outages
        outages[why] = None
        for wire in (self._wire(broker, peer), self._wire(peer, broker)):
            wire.downs += was_up
            if wire.receiver == why:
                wire.arrived = 0  # They waited at a broker that has crashed, and were not journalled.
        if was_up:
            self._tell_both(broker, peer)

    def _bring_up(self, broker: str, peer: str, why: str) -> None:
        outages = self._outages[frozenset((broker, peer))]
        if why not in outages:
            return
        del outages[why]
        if outages:
            return
        for wire in (self._wire(broker, peer), self._wire(peer, broker)):
            for _ in islice(wire.kept, wire.arrived, None):
                self._transmit(wire)
        self._tell_both(broker, peer)

    def _tell_both(self, broker: str, peer: str) -> None:
        # In events of their own, because either may crash when it hears of it.
        self._push(self.now, self._tell_link, broker, peer)
        self._push(self.now, self._tell_link, peer, broker)

    def _tell_link(self, broker: str, peer: str) -> None:
        """Tell a broker how the link is now, if it does not know that yet."""
        is_up = not self._outages[frozenset((broker, peer))]
        if broker in self._down or is_up != ((broker, peer) in self._told_down):
            return
        if is_up:
            del self._told_down[broker, peer]
        else:
            self._told_down[broker, peer] = None
        self._step_broker(broker, (LinkChanged(peer, is_up),))

    # --- clients ---

    def _attach(self, client: str, broker: str) -> None:
        if broker in self._down:
            self._leave(client, "")
            self._waiting[client] = broker
            return
        super()._attach(client, broker)
        self._at[broker].append(self._connections[client])

    def _leave(self, client: str, destination: str) -> None:
        self._waiting.pop(client, None)
        super()._leave(client, destination)
