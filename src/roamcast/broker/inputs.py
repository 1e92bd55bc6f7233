"""What happens to a site, and what it wants done. Inputs are what the journal holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from roamcast.broker.history import Seen
from roamcast.broker.links.links import GivenLink, Offer
from roamcast.broker.news import News
from roamcast.broker.seeking import IsHere
from roamcast.broker.settings import MachineSettings
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.codec.packets import Auth, Connect
from roamcast.mqtt.server.access import AccessRules, Identity
from roamcast.mqtt.server.traffic import Note
from roamcast.protocol.effects import Attached, Detached, Effects, Input, SessionOver, Submitted
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.variables import NumberSteps, Variable

REPLAY = 2
"""Rises whenever replaying the same entries may give another state than before: when the machine's behaviour
or the meaning of an input changes. Only code with the same number replays a journal's entries."""


class MachineInput(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An input of the machine."""


class Started(MachineInput, frozen=True):
    """The process has begun, with a state that may be older: no connection of before exists any more."""

    settings: MachineSettings
    start: int = 0
    """A random number for this start; 0 where histories are not compared."""


class RulesChanged(MachineInput, frozen=True):
    """New access rules."""

    rules: AccessRules


class AccessRevoked(MachineInput, frozen=True):
    """Users were removed, or what some connections proved does not hold any more."""

    owners: tuple[str, ...]
    """Their connections and sessions end."""
    connections: tuple[int, ...]
    """These end, and their sessions stay."""
    why: str
    by_operator: bool = False
    """Whether an operator ends them, who may let them come again."""


class ClientConnected(MachineInput, frozen=True):
    """A client said CONNECT and has proved who it is. Secrets are not in it."""

    connection: int
    """A number that is never used again, not even after a restart."""
    connect: Connect
    identity: Identity
    """Who it is; its client id is one that was assigned if it came without."""


class ClientFrames(MachineInput, frozen=True):
    """Bytes of a connection. In the journal these are whole packets."""

    connection: int
    data: bytes


class ClientSlowed(MachineInput, frozen=True):
    """A client does not read what is sent to it, or does so again."""

    connection: int
    is_slow: bool


class ConnectionLost(MachineInput, frozen=True):
    """A connection has ended, without a word."""

    connection: int


class LinkUp(MachineInput, frozen=True):
    """A peer is connected, and neither end refuses."""

    peer: str
    offer: Offer
    incarnation: int
    """A random number for this end if the link begins anew, else 0."""
    version: int = 1
    """Negotiated version of the link protocol."""


class OverlayGiven(MachineInput, frozen=True):
    """The links of this broker were made long ago: nobody has to join. For networks that are simulated."""

    links: tuple[GivenLink, ...]


class LinkRefused(MachineInput, frozen=True):
    """One of the ends refused the link."""

    peer: str
    why: str
    is_fence: bool = False
    """True if the peer refuses this broker's history."""


class HistoryAccepted(MachineInput, frozen=True):
    """An operator accepts a history that was refused: of a peer, or of this broker itself."""

    broker: str
    seen: Seen | None = None
    """The history with which the peer connected."""
    begins_anew: bool = False
    """True if the link to the peer must be made anew, because its numbers do not fit."""


class PeerProgress(MachineInput, frozen=True):
    """A peer says how far its history has come. The machine adds it by itself when it hears of that."""

    peer: str
    position: int


class LinkDown(MachineInput, frozen=True):
    peer: str


class LinkSlowed(MachineInput, frozen=True):
    """The buffer for a peer passed its limit, or shrank below it again."""

    peer: str
    is_slow: bool


class LinkFrames(MachineInput, frozen=True):
    """Whole frames of a link."""

    peer: str
    data: bytes


class StatusAnnounced(MachineInput, frozen=True):
    """Something the daemon itself publishes, for whoever is attached here ($SYS)."""

    topic: str
    payload: bytes


class NewsGiven(MachineInput, frozen=True):
    """What the daemon tells the daemons of other brokers (see news.py): one of them, or all ("")."""

    to: str
    body: bytes


class QueuesOverLimit(MachineInput, frozen=True):
    """All queues together may hold no more than this."""

    bytes_max: int
    in_flight_bytes_max: int = 0
    """What each client may have in flight until there are other settings; 0: as much as before."""


class BrokerForgotten(MachineInput, frozen=True):
    """A broker is gone for good."""

    broker: str


class SettingsChanged(MachineInput, frozen=True):
    """Other limits from now on; whoever is there stays."""

    settings: MachineSettings


class SessionSought(MachineInput, frozen=True):
    """An operator wants to know where a client's session is."""

    client: str
    number: int


class DrainOrdered(MachineInput, frozen=True):
    """Serve nobody until the next start, and hand all sessions to another broker."""

    destination: str
    reference: str
    """Address that clients are referred to; "" if unknown."""


class Tick(MachineInput, frozen=True):
    """The time that `deadline()` named has come."""

    clients: tuple[str, ...] | None = None
    """The clients whose recalls of retained messages go on. None asks the machine, which names them in the
    journal, …"""
    peers: tuple[str, ...] = ()
    """… as it does the peers that are told more of what is retained."""


class StateChecked(MachineInput, frozen=True):
    """What the state amounts to at the end of this turn. The machine adds it now and then by itself, and a
    replay that comes to something else is refused."""

    sums: dict[str, int]
    """A checksum of each part of the state that was looked at."""


# --- of brokers that move; all but the inputs above follow from these, so that no election is replayed ---


class Elapsed(MachineInput, frozen=True):
    """A deadline set for clients has passed (a `Tick` without the election's part)."""


class ParentTaken(MachineInput, frozen=True):
    """The election has a parent for this broker; `old` was the last one, if the link to it is gone."""

    old: str | None
    new: str


class LinkLeft(MachineInput, frozen=True):
    """The election has no use for the link of the tree to this peer any more."""

    peer: str


class Confirmed(MachineInput, frozen=True):
    """The peer has journalled everything up to this number."""

    peer: str
    number: int


AnyInput = (
    Started
    | RulesChanged
    | AccessRevoked
    | ClientConnected
    | ClientFrames
    | ClientSlowed
    | ConnectionLost
    | LinkUp
    | OverlayGiven
    | LinkRefused
    | HistoryAccepted
    | PeerProgress
    | LinkDown
    | LinkSlowed
    | LinkFrames
    | StatusAnnounced
    | NewsGiven
    | BrokerForgotten
    | QueuesOverLimit
    | SettingsChanged
    | SessionSought
    | DrainOrdered
    | Tick
    | StateChecked
    | Elapsed
    | ParentTaken
    | LinkLeft
    | Confirmed
    | Attached
    | Detached
    | Submitted
    | SessionOver
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One turn in the journal."""

    now: float
    inputs: list[AnyInput]


class Tree(msgspec.Struct, frozen=True):
    """Where a broker that moves stands in the tree of those in reach."""

    leader: str
    parent: str
    """"" for the leader, and while there is none."""
    children: tuple[str, ...] = ()
    hops: int = 0
    """Hops to the leader."""


NO_WRITES: Mapping[int, list[bytes]] = MappingProxyType({})


class MachineEffects(Effects):
    """What a step of a machine wants done. What the core sends to peers has been given to the links too.

    What the core says to clients is here only with the plain front; the MQTT front makes `writes` of it.
    """

    writes: Mapping[int, list[bytes]] = NO_WRITES
    closes: Sequence[int] = ()
    """Connections to close when their output is written."""
    link_closes: Sequence[tuple[str, str]] = ()
    """Links to be closed, and why."""
    notes: Sequence[Note] = ()
    """Connects and disconnects, for the log."""
    answers: Sequence[IsHere] = ()
    news: Sequence[tuple[str, News]] = ()
    """What daemons of other brokers say, and the peers it came from."""
    auths: Sequence[tuple[int, Auth]] = ()
    """What clients say that prove anew who they are: (connection, packet)."""
    tree: Tree | None = None
    """If it is another than before."""
    unread: Sequence[int] = ()
    """Connections that sent more than one turn may take: the next goes on with an empty `ClientFrames`."""
    deferred: Sequence[MachineInput] = ()
    """What is to come behind that, once more."""
    durable: list[MachineInput | Input] = msgspec.field(default_factory=list)
    """Inputs to journal before any other effect is performed."""


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Filter):
        return value.text
    if isinstance(value, MovementGraph):
        return [[start, value.neighbours(start)] for start in value.locations]
    raise TypeError(f"a {type(value).__name__} cannot be journalled")


def _decode_hook(wanted: type, value: Any) -> Any:
    if wanted is Filter:
        return parse(value)
    if wanted is Variable and isinstance(value, dict):
        return Earth(**value) if "step_m" in value else NumberSteps(**value)
    if wanted is Variable:
        edges = [(start, end) for start, ends in value for end in ends]
        return MovementGraph(edges, [start for start, _ in value], one_way=True)
    raise TypeError(f"a {wanted.__name__} cannot be read from a journal")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_decoder = msgspec.msgpack.Decoder(Entry, dec_hook=_decode_hook)


def encode_entry(now: float, inputs: Sequence[MachineInput | Input]) -> bytes:
    return _encoder.encode((now, inputs))


def decode_entry(data: bytes) -> Entry:
    return _decoder.decode(data)
