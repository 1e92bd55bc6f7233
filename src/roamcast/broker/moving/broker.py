"""The core of a broker that moves, for clients that speak the protocol themselves (`client.MobileClient`).

The core is the one that ships. Here it has no endpoint and no election: the driver sets its parent, and its
clients count their own timestamps and know their subscriptions. The lab needs this to play the stories of
the papers message by message.
"""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.broker.moving.core import MobileCore, Visit
from roamcast.errors import InputError
from roamcast.mobility.moving.mobile import Mig, MobileProtocol
from roamcast.protocol.effects import (
    Detached,
    Effects,
    Input,
    Migrated,
    Received,
    Said,
    SendFailed,
    Submitted,
)
from roamcast.protocol.messages import Accepted, Acknowledge, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Level


class MobileBroker(MobileCore):
    """One broker. `step` is the only way in, its result the only way out."""

    def __init__(self, id: str, protocol: type[MobileProtocol], records: Level = "counters") -> None:
        super().__init__(id, protocol(id), self, None)
        self.configure(None, records, attributes=True)

    def step(self, now: float, inputs: Iterable[Input]) -> Effects:
        self.now = now
        for item in inputs:
            match item:
                case Received(peer, message):
                    self.receive(peer, message)
                case Submitted(client, connection, message):
                    self._on_submitted(client, connection, message)
                case Detached(client, connection):
                    self._detach(client, connection)
                case Migrated(old, new):
                    self.migrate(old, new)
                case SendFailed(peer, messages):
                    self.link_down(peer, messages)
                case _:
                    raise InputError(f"a broker that moves does not know {type(item).__name__}")
        return self.take_effects()

    def _on_submitted(self, client: str, connection: int, message: Said) -> None:
        visit = self.visits.get(client)
        if isinstance(message, Mig):
            if visit is not None and visit.connection >= connection:
                return  # A late report; the client has attached again since.
            if visit is not None:
                self.leave(client)
            self.visits[client] = Visit(connection)
        elif visit is None or visit.connection != connection:
            return
        elif isinstance(message, Acknowledge):
            self.acknowledge(client, visit, message)
            return
        assert isinstance(message, Message), (
            "clients of brokers that move must send messages of the brokers' own protocol"
        )
        if isinstance(message, Burst):
            self.tell(client, Accepted(message.last))
            self.take_burst(client, message)
        else:
            self.say(client, message)

    def _detach(self, client: str, connection: int) -> None:
        visit = self.visits.get(client)
        if visit is not None and visit.connection == connection:
            self.leave(client)

    # --- the links of the core: the driver performs what is sent ---

    def send(self, peer: str, message: Message) -> None:
        self._out.sends.append((peer, message))

    def send_fleeting(self, peer: str, message: Message) -> None:
        raise InputError("fleeting messages need an access front; here clients speak the protocol themselves")
