"""What happens to a site, and what it wants done. Inputs are what the journal holds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from roamcast.broker.links.links import Offer
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import SiteSettings
from roamcast.mqtt.codec.packets import Connect
from roamcast.mqtt.server.access import AccessRules, Identity
from roamcast.mqtt.server.traffic import Note
from roamcast.protocol.records import Row


class SiteInput(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """One thing that happened."""


class Started(SiteInput, frozen=True):
    """The process has begun, with a state that may be older: no connection of before exists any more."""

    settings: SiteSettings


class Ruled(SiteInput, frozen=True):
    """Who may do what, from now on."""

    rules: AccessRules


class Connected(SiteInput, frozen=True):
    """A client said CONNECT and has proved who it is. Secrets are not in it."""

    connection: int
    """A number that is never used again, not even after a restart."""
    connect: Connect
    identity: Identity
    """Who it is; its client id is one that was assigned if it came without."""


class Frames(SiteInput, frozen=True):
    """Bytes of a connection. In the journal these are whole packets."""

    connection: int
    data: bytes


class Slow(SiteInput, frozen=True):
    """A client does not read what is sent to it, or does so again."""

    connection: int
    is_slow: bool


class Gone(SiteInput, frozen=True):
    """A connection has ended, without a word."""

    connection: int


class LinkUp(SiteInput, frozen=True):
    """A peer is connected, and neither end refuses."""

    peer: str
    offer: Offer
    incarnation: int
    """A random number for this end if the link begins anew, else 0."""


class LinkRefused(SiteInput, frozen=True):
    """One of the ends refused the link."""

    peer: str
    why: str


class LinkDown(SiteInput, frozen=True):
    peer: str


class LinkFrames(SiteInput, frozen=True):
    """Whole frames of a link."""

    peer: str
    data: bytes


class Announced(SiteInput, frozen=True):
    """Something the daemon itself publishes, for whoever is attached here ($SYS)."""

    topic: str
    payload: bytes


class Full(SiteInput, frozen=True):
    """All queues together may hold no more than this."""

    bytes_max: int


class Forgotten(SiteInput, frozen=True):
    """A broker is gone for good."""

    broker: str


class Tuned(SiteInput, frozen=True):
    """Other limits from now on; whoever is there stays."""

    settings: SiteSettings


class Asked(SiteInput, frozen=True):
    """An operator wants to know where a client's session is."""

    client: str
    number: int


class Drained(SiteInput, frozen=True):
    """Serve nobody until the next start, and hand all sessions to another broker."""

    destination: str
    reference: str
    """Where clients are told to go; "" if that is not known."""


class Tick(SiteInput, frozen=True):
    """The time that `deadline()` named has come."""


# --- of brokers that move; all but the inputs above follow from these, so that no election is replayed ---


class Elapsed(SiteInput, frozen=True):
    """Of a `Tick`, what is not the election's: a time has come that was set for clients."""


class ParentTaken(SiteInput, frozen=True):
    """The election has a parent for this broker; `old` was the last one, if the link to it is gone."""

    old: str | None
    new: str


class LinkLeft(SiteInput, frozen=True):
    """The election has no use for the link of the tree to this peer any more."""

    peer: str


class Confirmed(SiteInput, frozen=True):
    """The peer has journalled everything up to this number."""

    peer: str
    number: int


AnyInput = (
    Started
    | Ruled
    | Connected
    | Frames
    | Slow
    | Gone
    | LinkUp
    | LinkRefused
    | LinkDown
    | LinkFrames
    | Announced
    | Forgotten
    | Full
    | Tuned
    | Asked
    | Drained
    | Tick
    | Elapsed
    | ParentTaken
    | LinkLeft
    | Confirmed
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One turn, as the journal holds it."""

    now: float
    inputs: list[AnyInput]


class Tree(msgspec.Struct, frozen=True):
    """Where a broker that moves stands in the tree of those in reach."""

    leader: str
    parent: str
    """"" for the leader, and while there is none."""
    children: tuple[str, ...] = ()
    hops: int = 0
    """To the leader."""


class SiteEffects(msgspec.Struct):
    writes: dict[int, list[bytes]] = {}
    closes: Sequence[int] = ()
    """To be closed when everything has been written."""
    link_closes: list[tuple[str, str]] = []
    """Links to be closed, and why."""
    records: list[Row] = []
    notes: Sequence[Note] = ()
    """Who has come and gone, for the log."""
    answers: Sequence[IsHere] = ()
    tree: Tree | None = None
    """If it is another than before."""
    unread: Sequence[int] = ()
    """Connections that sent more than one turn may take: the next one goes on with an empty `Frames`."""
    deferred: list[SiteInput] = []
    """What is to come behind that, once more."""
    durable: list[SiteInput] = []
    """What must be in the journal before any of the rest goes out."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode_entry(now: float, inputs: list[SiteInput]) -> bytes:
    return _encoder.encode((now, inputs))


def decode_entry(data: bytes) -> Entry:
    return _decoder.decode(data)
