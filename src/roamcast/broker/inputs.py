"""Inputs and effects of a site. The journal holds inputs."""

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
"""Version of the machine's behaviour. It rises whenever a replay of the same entries may give another state:
when the behaviour or the meaning of an input changes. Only code with the same number replays a journal's
entries."""


class MachineInput(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An input of the machine."""


class Started(MachineInput, frozen=True):
    """A process has begun, maybe with an older state: no former connection exists any more."""

    settings: MachineSettings
    start: int = 0
    """A random number for this start; 0 where histories are not compared."""


class RulesChanged(MachineInput, frozen=True):
    """New access rules."""

    rules: AccessRules


class AccessRevoked(MachineInput, frozen=True):
    """Users were removed, or the proof behind some connections is no longer valid."""

    owners: tuple[str, ...]
    """Users whose connections and sessions end."""
    connections: tuple[int, ...]
    """Connections that end, while their sessions stay."""
    why: str
    by_operator: bool = False
    """True if an operator ends them; the operator may admit them again."""


class ClientConnected(MachineInput, frozen=True):
    """A client has sent CONNECT and authenticated. The input contains no secrets."""

    connection: int
    """Number of the connection, never reused, not even after a restart."""
    connect: Connect
    identity: Identity
    """Identity of the client; with an assigned client id if it had none."""


class ClientFrames(MachineInput, frozen=True):
    """Bytes of a connection; in the journal, whole packets."""

    connection: int
    data: bytes


class ClientSlowed(MachineInput, frozen=True):
    """A client has stopped reading its output, or reads again."""

    connection: int
    is_slow: bool


class ConnectionLost(MachineInput, frozen=True):
    """A connection has ended without DISCONNECT."""

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
    """Existing links of this broker, which need no joining. For simulated networks."""

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
    """Progress of a peer's history. The machine adds this input itself."""

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
    """A status message of the daemon for clients attached here ($SYS)."""

    topic: str
    payload: bytes


class NewsGiven(MachineInput, frozen=True):
    """News of the daemon for one other broker, or for all ("") (see news.py)."""

    to: str
    body: bytes


class QueuesOverLimit(MachineInput, frozen=True):
    """Limit of all queues together."""

    bytes_max: int
    in_flight_bytes_max: int = 0
    """Limit of bytes in flight per client until settings change; 0: unchanged."""


class BrokerForgotten(MachineInput, frozen=True):
    """A broker is gone for good."""

    broker: str


class SettingsChanged(MachineInput, frozen=True):
    """New limits; existing clients and links stay."""

    settings: MachineSettings


class SessionSought(MachineInput, frozen=True):
    """An operator asks where a client's session is."""

    client: str
    number: int


class DrainOrdered(MachineInput, frozen=True):
    """Refuse clients until the next start, and hand all sessions to another broker."""

    destination: str
    reference: str
    """Address that clients are referred to; "" if unknown."""


class Tick(MachineInput, frozen=True):
    """The time named by `deadline()` has come."""

    clients: tuple[str, ...] | None = None
    """Clients whose recalls of retained messages continue. None: the machine chooses, and journals its
    choice."""
    peers: tuple[str, ...] = ()
    """Peers that are told more of the retained messages."""


class StateChecked(MachineInput, frozen=True):
    """Checksums of the state at the end of this turn. The machine adds this input now and then, and refuses a
    replay with different checksums."""

    sums: dict[str, int]
    """A checksum of each part of the state that was checked."""


# --- for brokers that move; all but the inputs above follow from these, so that no election is replayed ---


class Elapsed(MachineInput, frozen=True):
    """A deadline set for clients has passed (a `Tick` without the election's part)."""


class ParentTaken(MachineInput, frozen=True):
    """The election chose a parent; `old` was the last one, if the link to it is gone."""

    old: str | None
    new: str


class LinkLeft(MachineInput, frozen=True):
    """The election no longer needs the link of the tree to this peer."""

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
    """Place of a broker that moves in the tree of those in reach."""

    leader: str
    parent: str
    """"" for the leader, and while there is no parent."""
    children: tuple[str, ...] = ()
    hops: int = 0
    """Hops to the leader."""


NO_WRITES: Mapping[int, list[bytes]] = MappingProxyType({})


class MachineEffects(Effects):
    """Effects of a step of a machine. Messages of the core to peers were given to the links, too.

    Messages of the core to clients are here only with the plain front; the MQTT front turns them into
    `writes`.
    """

    writes: Mapping[int, list[bytes]] = NO_WRITES
    closes: Sequence[int] = ()
    """Connections to close when their output is written."""
    link_closes: Sequence[tuple[str, str]] = ()
    """Links to be closed, with the reason."""
    notes: Sequence[Note] = ()
    """Connects and disconnects, for the log."""
    answers: Sequence[IsHere] = ()
    news: Sequence[tuple[str, News]] = ()
    """News of other brokers' daemons, with the peers they came from."""
    auths: Sequence[tuple[int, Auth]] = ()
    """Packets of clients that re-authenticate: (connection, packet)."""
    tree: Tree | None = None
    """The new place in the tree, if changed."""
    unread: Sequence[int] = ()
    """Connections with more input than one turn may take: the next turn continues with an empty
    `ClientFrames`."""
    deferred: Sequence[MachineInput] = ()
    """Inputs to repeat after those."""
    durable: list[MachineInput | Input] = []  # noqa: RUF012
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
