"""What sites of both families do alike: take what clients send, collect what is to be written, tell peers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol
from zlib import crc32

import msgspec

from roamcast.broker.contract import AnyLinks
from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    MachineEffects,
    StateChecked,
)
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.broker.wills import PublishThat
from roamcast.errors import InputError
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.protocol.effects import CommandGiven
from roamcast.state import State

PACKETS_MIN = 20
"""What one client may always send in one turn."""
CHECK_EVERY = 4096
"""After this many turns that were journalled the state is checked once more."""
SESSIONS_CHECKED = 256
"""Sessions that one check looks at; the next check goes on behind them, so that no turn takes long."""


class StateDiverged(InputError):
    """A replay came to another state than the broker that wrote the journal."""


class Answering(Protocol):
    answers: list[IsHere]


class MachineBase:
    id: str
    settings: MachineSettings
    endpoint: Endpoint
    links: AnyLinks
    seeking: Answering
    _out: MachineEffects

    __state__ = State(
        "machine-base",
        saved=("settings", "id", "starts", "endpoint", "_sessions_checked"),
        unhashed=("_turns_unchecked",),
        derived=("_expected", "_out"),
    )

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.id = settings.id
        self.starts = 0
        """How often a process has begun to drive this site."""
        self._turns_unchecked = 0
        self._sessions_checked = 0
        """How many sessions were looked at since all of them were."""

    def _restore(self) -> None:
        self._out = MachineEffects()
        self._expected: StateChecked | None = None
        """What the journal says of the state at the end of the turn that is replayed."""

    def journalled(self, over: Collection[str] = ()) -> None:
        """Everything that this site has received is in the journal: its peers may be told.

        `over` are those for whom too much is kept; while there are any, the others are told nothing.
        """
        for peer, end in self.links.ends.items():
            if not over or (peer in over and len(over) == 1):
                end.acknowledge()

    def _read(self, of_clients: Sequence[ClientFrames | ConnectionLost | ClientConnected]) -> None:
        """What came from clients, in order."""
        endpoint, durable = self.endpoint, self._out.durable
        if endpoint.packets_per_turn and of_clients:
            endpoint.packets_max = max(PACKETS_MIN, endpoint.packets_per_turn // len(of_clients))
        for item in of_clients:
            if type(item) is ClientFrames:
                data = endpoint.read(item.connection, item.data)
                if data:
                    durable.append(item if data is item.data else ClientFrames(item.connection, data))
            elif type(item) is ClientConnected:
                durable.append(item)
                endpoint.connected(item.connection, item.connect, item.identity)
            elif item.connection in endpoint.unread:
                self._out.deferred.append(item)  # Its last words are still to be read.
            elif item.connection in endpoint.connections:
                durable.append(item)
                endpoint.closed(item.connection)

    def _collect(self) -> None:
        """The turn is over: what is to be written, closed, noted and answered."""
        out, endpoint, seeking = self._out, self.endpoint, self.seeking
        writes, touched = out.writes, endpoint.touched
        # Those who get something come before those who said something, who can wait for their answer.
        for id, connection in reversed(touched.items()):
            if connection.out:
                writes[id], connection.out = connection.out, []
        touched.clear()
        if endpoint.encoder.written:
            endpoint.encoder.forget()
        traffic = endpoint.traffic
        if traffic.notes:
            out.notes, traffic.notes = traffic.notes, []
        if endpoint.unread:
            out.unread = list(endpoint.unread)
            endpoint.unread.clear()
        if seeking.answers:
            out.answers, seeking.answers = seeking.answers, []
        if endpoint.closes:
            out.closes = list(endpoint.closes)
            endpoint.closes.clear()

    def _check_state(self) -> None:
        """The turn is over: compare the state with what the journal says of it, or say it now and then."""
        expected, self._expected = self._expected, None
        durable = self._out.durable
        if expected is None:
            self._turns_unchecked += bool(durable)
            if self._turns_unchecked < CHECK_EVERY:
                return
        sums = self._sums()
        differ = [name for name in sums if expected is not None and expected.sums.get(name) != sums[name]]
        if differ:
            raise StateDiverged(
                f"the replayed state differs from the one that was journalled in: {', '.join(differ)}"
            )
        durable.append(StateChecked(sums))
        self._turns_unchecked = 0
        self._sessions_checked += SESSIONS_CHECKED
        if self._sessions_checked >= len(self.endpoint.sessions):
            self._sessions_checked = 0

    def _sums(self) -> dict[str, int]:
        """Checksums of counters and positions: cheap, and wrong soon after anything else is."""
        sessions = islice(self.endpoint.sessions.values(), self._sessions_checked, None)
        looked_at = list(islice(sessions, SESSIONS_CHECKED))
        ends = self.links.ends.values()
        return {
            "links": _sum((end.peer, end.incarnation, end.sent, end.received) for end in ends),
            "sessions": _sum(
                (one.client, one.connection, list(one.subscriptions), *one.in_flight.position())
                for one in looked_at
            ),
            "queues": _sum(self._queue_position(one.client) for one in looked_at),
            "counters": _sum((self.starts, len(self.endpoint.sessions), *self._counters())),
        }

    def _queue_position(self, client: str) -> tuple[int, ...]:
        """How far the queue of a client is."""
        raise NotImplementedError

    def _counters(self) -> tuple[int, ...]:
        """What counts the changes of this site's other parts."""
        raise NotImplementedError

    def _check_start(self, settings: MachineSettings) -> None:
        """A state goes on only as what it was."""
        if (settings.id, settings.protocol) != (self.id, self.settings.protocol):
            raise InputError(
                f"this state is that of broker {self.id!r} with {self.settings.protocol}: it cannot become "
                f"{settings.id!r} with {settings.protocol}"
            )

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        """A will (see mqtt.endpoint.Keeper)."""
        self.endpoint.inputs.append(CommandGiven(PublishThat(topic, marks, body)))


def _sum(values: Iterable[object]) -> int:
    return crc32(msgspec.msgpack.encode(list(values)))
