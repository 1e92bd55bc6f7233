"""What goes into `step` and what comes out of it: both are plain data.

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
"""What goes over an access link: where brokers move, clients take part in the brokers' own protocol."""

# --- inputs of a broker ---------------------------------------------------------------------------


class Input(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """One thing that happened to a node."""


class OverlayChanged(Input, frozen=True):
    """The overlay as this broker sees it: its peers, and the peer towards every other broker."""

    peers: Sequence[str]
    next_hops: Mapping[str, str]
    guests: Sequence[str] = ()
    """Brokers of other organisations."""


class BrokersJoined(Input, frozen=True):
    """After `OverlayChanged`: these brokers were in another tree until now, with sessions of their own."""

    brokers: Sequence[str]


class Attached(Input, frozen=True):
    """A client opened a connection and said hello."""

    client: str
    connection: int
    hello: Hello


class Detached(Input, frozen=True):
    """A connection is gone; the client said nothing."""

    client: str
    connection: int


class SessionOver(Input, frozen=True):
    """The session of a client that is away is not to be kept any longer."""

    client: str


class SessionsMerged(Input, frozen=True):
    """What is in one session, which nobody uses any more, goes over to another; then it ends."""

    source: str
    target: str


class Submitted(Input, frozen=True):
    """A client sent something over its connection."""

    client: str
    connection: int
    message: Request | Acknowledge | Leave | Burst


class Received(Input, frozen=True):
    """A peer's message arrived."""

    peer: str
    message: Message


class ReceivedInProcess(Received, frozen=True):
    """A peer's message, with its number, over a link whose ends are in one process: no bytes were made."""

    incarnation: int
    acknowledged: int
    number: int


class CommandGiven(Input, frozen=True):
    """Something for the broker to do that neither a client nor a peer can ask for."""

    command: Command


class TrimQueues(Input, frozen=True):
    """All queues together may hold no more than this: the longest give up first."""

    bytes_max: int


class LinkChanged(Input, frozen=True):
    peer: str
    up: bool


class SendFailed(Input, frozen=True):
    """The overlay gave a link up for good; these messages were not acknowledged by the peer."""

    peer: str
    messages: Sequence[Message]


class Migrated(Input, frozen=True):
    """Where the overlay is a tree that moves: the parent is another, or the same over a new link."""

    old: str | None
    new: str


class Deadline(Input, frozen=True):
    """The time that `deadline()` named has come."""


# --- inputs of a client: what its broker says, and what its application asks for ------------------


class Told(Input, frozen=True):
    """The broker's message arrived."""

    broker: str
    message: Said


class AttachTo(Input, frozen=True):
    broker: str
    connection: int


class LeaveFor(Input, frozen=True):
    """Go away; with a destination, say so first (a proclaimed move)."""

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
    """The client is somewhere else now, or something else of its own state has changed."""

    values: Mapping[str, Value]


# --- effects --------------------------------------------------------------------------------------


class Effects(msgspec.Struct):
    """What a step of a broker wants done."""

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
    """What a step of a client wants done."""

    sends: list[tuple[str, Said]] = []
    """Messages to its broker, in order: (broker, message)."""
    records: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self.sends or self.records)
