"""Fronts: the access side of a broker, to which clients connect. Each machine has one.

`MqttFront` is what ships: the MQTT endpoint, fed with the bytes of connections. `PlainFront` is for the
lab: its clients (`broker.plain_client`) send the core's own messages, so that large sweeps save the cost
of MQTT. Everything behind a front is the same for both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol

from roamcast.broker.front import Front
from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, MachineEffects
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.access import AccessRules
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.mqtt.server.timers import Timers
from roamcast.protocol.effects import Attached, Detached, Effects, Input, SessionOver, Submitted
from roamcast.protocol.messages import ClientPublish
from roamcast.state import State

PACKETS_MIN = 8
"""Packets that one client may always send per turn."""


class ClientFront(Protocol):
    """The front, as the machine uses it."""

    inputs: list[Input]
    """Inputs for the core that were not taken yet."""
    now: float
    sessions: Any
    """The front's part of each session."""

    @property
    def timers(self) -> Timers | None: ...

    @property
    def kinds(self) -> frozenset[Any]:
        """Types of inputs that come from clients."""

    @property
    def of_core(self) -> Front | None:
        """The front as the core uses it, if the front keeps more for a client than the core knows."""

    def take(self, items: Sequence[Any], out: MachineEffects) -> None:
        """Handle inputs of clients, in order; appends those to be journalled to `out.durable`."""

    def perform(self, effects: Effects) -> None:
        """Perform the core's effects for clients."""

    def position(self, client: str) -> tuple[Any, ...]:
        """Return figures that change with the stored state of a client, to compare replays."""

    def on_deadline(self) -> None: ...
    def apply(self, settings: MachineSettings) -> None: ...
    def restart(self) -> None:
        """Forget all connections: a new process drives this machine."""

    def set_access(self, rules: AccessRules) -> None: ...
    def revoke(
        self, owners: Collection[str], connections: Collection[int], why: str, by_operator: bool = False
    ) -> None: ...
    def set_slow(self, id: int, is_slow: bool) -> None: ...
    def is_slow(self, id: int) -> bool: ...
    def send_away(self, reference: str, count_max: int) -> bool:
        """Close `count_max` connections and refuse new ones; True if connections are left."""

    def refuse_all(self, why: str) -> None:
        """Refuse all clients for this reason; "" serves again."""

    def is_connected(self, client: str) -> bool: ...
    def group_settled(self, client: str, group: tuple[str, str]) -> None: ...
    def join_all_groups(self) -> None: ...


FromClient = ClientFrames | ConnectionLost | ClientConnected


class MqttFront(Endpoint):
    kinds: ClassVar[frozenset[Any]] = frozenset({ClientFrames, ConnectionLost, ClientConnected})

    __state__ = State("mqtt-front")
    __slots__ = ()

    @property
    def of_core(self) -> Front:
        return self

    def take(self, items: Sequence[FromClient], out: MachineEffects) -> None:
        durable = out.durable
        if self.packets_per_turn:
            self.packets_max = max(PACKETS_MIN, self.packets_per_turn // len(items))
        for item in items:
            if type(item) is ClientFrames:
                data = self.read(item.connection, item.data)
                if data is not None:
                    durable.append(item if data is item.data else ClientFrames(item.connection, data))
            elif type(item) is ClientConnected:
                durable.append(item)
                self.connected(item.connection, item.connect, item.identity)
            elif item.connection in self.unread:
                # Packets received before the end of the connection are still unread.
                out.deferred = [*out.deferred, item]
            elif item.connection in self.connections:
                durable.append(item)
                self.closed(item.connection)

    def collect(self, out: MachineEffects) -> None:
        touched = self.touched
        writes: dict[int, list[bytes]] = {}
        # Receivers come before senders, who can wait for their answer.
        for id, connection in reversed(touched.items()):
            if connection.out:
                writes[id], connection.out = connection.out, []
        out.writes = writes
        touched.clear()
        if self.sessions.resting:
            self.sessions.rest(self.now)
        if self.encoder.written:
            self.encoder.forget()
        traffic = self.traffic
        if traffic.notes:
            out.notes, traffic.notes = traffic.notes, []
        if self.auths:
            out.auths, self.auths = self.auths, []
        if self.unread:
            out.unread = list(self.unread)
            self.unread.clear()
        if self.closes:
            out.closes = list(self.closes)
            self.closes.clear()

    def position(self, client: str) -> tuple[Any, ...]:
        session = self.sessions.get(client)
        if session is None:
            return ()
        return session.connection, list(session.subscriptions), *session.in_flight.position()

    def apply(self, settings: MachineSettings) -> None:
        self.configure(settings.endpoint)
        for connection in self.connections.values():
            # The topics on which clients report their location may have changed.
            connection.topics.clear()
            connection.guarded.clear()

    def restart(self) -> None:
        self.serve_again()
        for id in list(self.connections):
            self.closed(id)
        self.traffic.reset()


class PlainFront:
    """Passes messages of clients through, and keeps only the open connections."""

    kinds: ClassVar[frozenset[Any]] = frozenset({Attached, Detached, Submitted, SessionOver})
    timers: ClassVar[None] = None

    __state__ = State(
        "plain-front", saved=("inputs", "sessions", "connections", "_is_journalled"), unhashed=("now",)
    )

    def __init__(self, is_journalled: bool = True) -> None:
        self.inputs: list[Input] = []
        self.now = 0.0
        self._is_journalled = is_journalled
        self.sessions: dict[str, Any] = {}
        self.connections: dict[int, str] = {}
        """Connection to client. Emptied by a restart."""

    @property
    def of_core(self) -> None:
        return None

    def take(self, items: Sequence[Any], out: MachineEffects) -> None:
        self.inputs += items
        for item in items:
            if type(item) is not Submitted:
                self._note(item)
        if self._is_journalled:
            out.durable += [item for item in items if not _promises_nothing(item)]

    def _note(self, item: Attached | Detached | SessionOver) -> None:
        if type(item) is Attached:
            self.connections[item.connection] = item.client
        elif type(item) is Detached:
            self.connections.pop(item.connection, None)

    def perform(self, effects: Effects) -> None:
        for _, connection, _ in effects.client_closes:
            self.connections.pop(connection, None)

    def position(self, client: str) -> tuple[Any, ...]:
        return ()

    def on_deadline(self) -> None:
        pass

    def apply(self, settings: MachineSettings) -> None:
        pass

    def restart(self) -> None:
        self.inputs += [Detached(client, id) for id, client in self.connections.items()]
        self.connections.clear()

    def set_access(self, rules: AccessRules) -> None:
        pass

    def revoke(
        self, owners: Collection[str], connections: Collection[int], why: str, by_operator: bool = False
    ) -> None:
        pass

    def set_slow(self, id: int, is_slow: bool) -> None:
        pass

    def is_slow(self, id: int) -> bool:
        return False

    def send_away(self, reference: str, count_max: int) -> bool:
        return False

    def refuse_all(self, why: str) -> None:
        pass

    def is_connected(self, client: str) -> bool:
        return client in self.connections.values()

    def group_settled(self, client: str, group: tuple[str, str]) -> None:
        pass

    def join_all_groups(self) -> None:
        pass


def _promises_nothing(item: object) -> bool:
    return type(item) is Submitted and type(item.message) is ClientPublish and not item.message.request
