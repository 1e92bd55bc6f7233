"""A broker that moves, behind the same contract as any other: `step`, inputs and effects.

What `Broker` does for its protocols (locating sessions, moving them, settling subscriptions) rests on a tree
that lasts. Here nothing does, so the machine of the protocol (`mobility.mobile`) is nearly all there is. This
class turns inputs into its calls. It also keeps what a client has not acknowledged, to give it back to the
machine when the client's connection is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from roamcast.errors import InputError
from roamcast.mobility.moving.mobile import Mig, MobileProtocol, MobileSettings, Outcome
from roamcast.protocol.effects import (
    Detached,
    Effects,
    Input,
    LinkChanged,
    Migrated,
    Received,
    Said,
    SendFailed,
    Submitted,
)
from roamcast.protocol.messages import Accepted, Acknowledge, Deliver, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Row


class Connected:
    """One connection of a client, and what it has not acknowledged."""

    def __init__(self, connection: int) -> None:
        self.connection = connection
        self.sent = 0
        self.in_flight: deque[tuple[int, Burst]] = deque()

    def acknowledge(self, sequence: int) -> None:
        while self.in_flight and self.in_flight[0][0] <= sequence:
            self.in_flight.popleft()

    def unacknowledged(self) -> list[Burst]:
        return [burst for _, burst in self.in_flight]


class MobileBroker:
    """One broker. `step` is the only way in, its result the only way out."""

    def __init__(
        self, id: str, protocol: type[MobileProtocol], settings: MobileSettings | None = None
    ) -> None:
        self.id = id
        self.machine = protocol(id, settings)
        self.clients: dict[str, Connected] = {}
        self.duplicates = 0
        """Notifications that clients would have got again."""
        self._now = 0.0
        self._sequence = 0
        self._out = Effects()

    def step(self, now: float, inputs: Iterable[Input]) -> Effects:
        self._now, self._out = now, Effects()
        for item in inputs:
            match item:
                case Received(peer, message):
                    self._perform(self.machine.receive(peer, message))
                case Submitted(client, connection, message):
                    self._on_submitted(client, connection, message)
                case Detached(client, connection):
                    self._detach(client, connection)
                case Migrated(old, new):
                    self._perform(self.machine.migrate(old, new))
                case SendFailed(peer, messages):
                    self._perform(self.machine.link_down(peer, messages))
                case LinkChanged(peer, up):
                    self._record("link_up" if up else "link_down", peer=peer)
                case _:
                    raise InputError(f"a broker that moves does not know {type(item).__name__}")
        return self._out

    def deadline(self) -> float | None:
        """The protocols of brokers that move set no timers; the election does."""
        return None

    # --- clients ---

    def _on_submitted(self, client: str, connection: int, message: Said) -> None:
        connected = self.clients.get(client)
        if isinstance(message, Mig):
            if connected is not None and connected.connection >= connection:
                return  # A late one; it has come again since.
            if connected is not None:
                self._detach(client, connected.connection)
            self.clients[client] = Connected(connection)
        elif connected is None or connected.connection != connection:
            return
        if isinstance(message, Acknowledge):
            self.clients[client].acknowledge(message.sequence)
            return
        if isinstance(message, Burst):
            self._record(
                "published", client=client, broker=self.id, publisher=message.publisher,
                incarnation=message.incarnation, number=message.number, notifications=message.count,
                attributes=message.attributes, published_at=message.published_at,
            )  # fmt: skip
            self._out.to_clients.append((client, connection, Accepted(message.last)))
        assert isinstance(message, Message), "clients of brokers that move say what the brokers understand"
        self._perform(self.machine.receive(client, message, is_subscriber=True))

    def _detach(self, client: str, connection: int) -> None:
        connected = self.clients.get(client)
        if connected is not None and connected.connection == connection:
            del self.clients[client]
            self._perform(self.machine.detach(client, connected.unacknowledged()))

    # --- effects ---

    def _perform(self, outcome: Outcome) -> None:
        self._out.sends += outcome.sends
        self.duplicates += outcome.duplicates
        for client, message in outcome.to_subscribers:
            connected = self.clients[client]
            told: Said = message
            if isinstance(message, Burst):
                connected.sent += 1
                connected.in_flight.append((connected.sent, message))
                told = Deliver("", connected.sent, message)
            self._out.to_clients.append((client, connected.connection, told))
        for client, burst in outcome.dropped:
            self._record(
                "dropped", client=client, broker=self.id, publisher=burst.publisher,
                incarnation=burst.incarnation, number=burst.number, notifications=burst.count,
                reason="overflow",
            )  # fmt: skip

    def _record(self, kind: str, **fields: object) -> None:
        self._sequence += 1
        self._out.records.append(Row(self._sequence, self._now, self.id, kind, **fields))  # type: ignore[arg-type]
