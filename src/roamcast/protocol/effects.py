"""Inputs and effects of `step`: both are plain data.

A driver turns what happens into inputs and performs the effects; it decides
nothing. Within one list of an `Effects` the order matters, between the lists it
does not, because every destination reads only one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from roamcast.filters.filter import Value
from roamcast.protocol.messages import Acknowledge, Hello, Leave, Request
from roamcast.protocol.notification import Burst, ClientMessage, Command, Message
from roamcast.protocol.records import Row

Said = Message | ClientMessage
"""A message on an access link: where brokers move, clients use the brokers' own protocol."""

# --- inputs of a broker ---------------------------------------------------------------------------


class Input(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Something that happened to a node."""


class OverlayChanged(Input, frozen=True):
    """The overlay as this broker sees it: its peers, and the peer towards every other broker."""

    peers: Sequence[str]
    next_hops: Mapping[str, str]
    guests: Sequence[str] = ()
    """Brokers of other organisations."""


class BrokersJoined(Input, frozen=True):
    """Follows `OverlayChanged`: brokers that were in another tree until now, with their own sessions."""

    brokers: Sequence[str]


class Attached(Input, frozen=True):
    """A client opened a connection and sent Hello."""

    client: str
    connection: int
    hello: Hello


class Detached(Input, frozen=True):
    """A connection ended without Leave."""

    client: str
    connection: int


class SessionOver(Input, frozen=True):
    """The session of an absent client has expired."""

    client: str


class SessionsMerged(Input, frozen=True):
    """The content of an unused session moves to another session; then it ends."""

    source: str
    target: str


class Submitted(Input, frozen=True):
    """A client sent a message over its connection."""

    client: str
    connection: int
    message: Request | Acknowledge | Leave | Burst


class Received(Input, frozen=True):
    """A peer's message arrived."""

    peer: str
    message: Message


class CommandGiven(Input, frozen=True):
    """A command that neither a client nor a peer can give."""

    command: Command


class TrimQueues(Input, frozen=True):
    """Limit of all queues together: the longest drop first."""

    bytes_max: int


class LinkChanged(Input, frozen=True):
    peer: str
    up: bool


class SendFailed(Input, frozen=True):
    """The overlay gave a link up for good; the peer did not acknowledge these messages."""

    peer: str
    messages: Sequence[Message]


class Migrated(Input, frozen=True):
    """In a tree that moves: the parent is another, or the same over a new link."""

    old: str | None
    new: str


class Deadline(Input, frozen=True):
    """The time that `deadline()` named has come."""


# --- inputs of a client: messages of its broker, and requests of its application ------------------


class Told(Input, frozen=True):
    """A message of the broker arrived."""

    broker: str
    message: Said


class AttachTo(Input, frozen=True):
    broker: str
    connection: int


class LeaveFor(Input, frozen=True):
    """Leave; with a destination, announce it first (a proclaimed move)."""

    destination: str = ""


class PublishThis(Input, frozen=True):
    """One notification for each body, all with these attributes."""

    attributes: bytes
    bodies: tuple[bytes, ...] = (b"",)


class SubscribeTo(Input, frozen=True):
    filter: str


class UnsubscribeFrom(Input, frozen=True):
    filter: str


class AdvertiseThat(Input, frozen=True):
    filter: str


class UnadvertiseThat(Input, frozen=True):
    filter: str


class MoveTo(Input, frozen=True):
    """The client's location or other state has changed."""

    values: Mapping[str, Value]


# --- effects --------------------------------------------------------------------------------------


class Effects(msgspec.Struct):
    """Effects of a step of a broker."""

    sends: list[tuple[str, Message]] = []
    """Messages to peers, in order: (peer, message)."""
    to_clients: list[tuple[str, int, Said]] = []
    """Messages to attached clients, in order: (client, connection, message)."""
    client_closes: list[tuple[str, int, str]] = []
    """Connections of clients to close: (client, connection, reason)."""
    records: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self.sends or self.to_clients or self.client_closes or self.records)


class ClientEffects(msgspec.Struct):
    """Effects of a step of a client."""

    sends: list[tuple[str, Said]] = []
    """Messages to its broker, in order: (broker, message)."""
    records: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self.sends or self.records)
