"""What sites of both families do alike: take what clients send, collect what is to be written, tell peers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from roamcast.broker.contract import AnyLinks
from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, MachineEffects
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.broker.wills import PublishThat
from roamcast.errors import InputError
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.protocol.effects import CommandGiven

PACKETS_MIN = 20
"""What one client may always send in one turn."""


class Answering(Protocol):
    answers: list[IsHere]


class MachineBase:
    id: str
    settings: MachineSettings
    endpoint: Endpoint
    links: AnyLinks
    seeking: Answering
    _out: MachineEffects

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
