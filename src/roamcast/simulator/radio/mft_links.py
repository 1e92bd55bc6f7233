"""Links over the air for MFT-PubSub: what is sent, how large it is, and what is returned if it fails.

The protocol needs links that are FIFO and that return unacknowledged messages when they are given up. Here a
link has one message on the air at a time, and is given up when a message was not acknowledged after all
retries of the medium access.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec

from roamcast.mobility.moving.election import Heartbeat
from roamcast.mobility.moving.mft import Bmig, Bquery, Bsub
from roamcast.mobility.moving.mobile import Filters, Mig, Rep, Sub, Uns
from roamcast.mobility.moving.recursive_migration import BmigOfLocals, Btab
from roamcast.protocol.messages import Burst, Message
from roamcast.simulator.radio.network import Station

GROUP_MAX = 8
"""Our choice: maximum number of stored events in one REP; longer ones would fail too often."""
RETRY_S = 0.01
"""Pause before a retry when the queue of the antenna is full."""
TRY_AGAIN_S = 0.1
"""Pause between two tries of a message: shorter than a heartbeat period, longer than a burst of
other frames.
"""


@dataclass(frozen=True)
class LinkSettings:
    """Settings of links that the thesis leaves open or does not have."""

    refused: bool = True
    """True if a message over a link that its receiver has given up stays unacknowledged, so that it
    returns to its sender. Otherwise the receiver accepts it."""
    relinks: bool = True
    """True if a broker asks a neighbour that it could not reach to connect again."""
    clients_follow: bool = False
    """True if a client changes, in each round of heartbeats, to the broker whose heartbeat arrives first, as
    a broker without patience does. Otherwise it keeps its broker until it no longer hears it.
    """
    clients_beat: bool = False
    """True if clients broadcast heartbeats, too; nobody needs them, but they are sent."""
    tries: int = 1
    """Number of times that a message is handed to the medium access, which has its own retries, before the
    link is given up.
    """
    clients_prefer_slow: bool = False
    """True if a client chooses the slowest broker that it hears instead of the one nearest to the leader."""
    grouped: bool = False
    """True if messages that wait for the same neighbour are sent together, as many as fit in one frame."""


LINKS = LinkSettings()


class Relink(msgspec.Struct, frozen=True):
    """A broker tells a station that it is no longer connected, whatever the station believes, and must
    connect again.
    """


class Presence(NamedTuple):
    """The heartbeat of a client."""


class Wire(NamedTuple):
    """A message over one link."""

    link: int
    """Number of the link between the two stations, counted by the one that connects. Messages of other links
    are refused.
    """
    message: Message | Relink
    hops: int
    """Hops of its events since they were published or replayed, including this link."""


class Group(NamedTuple):
    """Several messages over one link, sent as one."""

    wires: tuple[Wire, ...]


KINDS: dict[type, str] = {Burst: "PUB"}


def kind_of(message: Message | Relink | Heartbeat | Group) -> str:
    return KINDS.get(type(message)) or type(message).__name__.upper()


def wires_of(message: Wire | Group) -> tuple[Wire, ...]:
    return message.wires if isinstance(message, Group) else (message,)


HEARTBEAT_BYTES = 12
"""Size of a heartbeat: kind 1, leader 2, incarnation and round 5, hops 1, parent 2, children 1."""


def bytes_of(message: Message | Relink, content_bytes: int) -> int:
    """Return the size of a message. Our choice, as for a small device: names and timestamps 2, hops 1,
    filters 4.
    """
    match message:
        case Burst():
            return event_bytes(message, content_bytes)
        case Rep():
            return 3 + sum(event_bytes(burst, content_bytes) for burst in message.bursts)
        case Sub() | Uns():
            return 12
        case Mig():
            return 10
        case Bmig():
            return 4 + 5 * (len(message.children) + len(message.others))
        case Bquery():
            return 6
        case Bsub():
            return 9 + 4 * len(message.filters)
        case Filters():
            return 3 + 4 * len(message.filters)
        case BmigOfLocals():
            return 4 + 2 * len(message.subscribers)
        case Btab():
            return 3 + 6 * len(message.table)
        case _:
            return 1


def event_bytes(burst: Burst, content_bytes: int) -> int:
    """Return the size of events, each with kind 1, publisher 2, number 4, hops 1 and its content."""
    return burst.count * (8 + content_bytes)


def name_of(station: int) -> str:
    return f"{station:04d}"


class Outbox:
    """Messages that one station has to send over each of its links, and those that are on the air."""

    def __init__(self, station: Station, content_bytes: int, settings: LinkSettings = LINKS) -> None:
        self.links: dict[int, int] = {}
        """By neighbour or client: the number of the link to it."""
        self._station = station
        self._content_bytes = content_bytes
        self._settings = settings
        self._tries: Counter[int] = Counter()
        """By destination: how often its present message was tried."""
        self._waiting: dict[int, deque[Wire]] = {}
        self._connected = 0
        self._on_air: dict[int, Wire | Group] = {}
        """By destination: what the antenna is sending and has not reported on."""

    def connect(self, destination: int) -> None:
        """Begin a new link to a station; its first message must say so."""
        self._connected += 1
        self.links[destination] = self._connected

    def is_current(self, sender: int, message: Wire | Group) -> bool:
        """Return whether a message, or all of a group, belongs to the present link."""
        return self.links.get(sender) == wires_of(message)[0].link

    def send(self, destination: int, message: Message | Relink, hops: int = 1) -> None:
        waiting = self._waiting.setdefault(destination, deque())
        for part in _parts(message):
            waiting.append(Wire(self.links.get(destination, 0), part, hops))
            if len(waiting) == 1:
                self._begin(destination)

    def _retry(self, destination: int) -> None:
        """Try again, because there may be room now."""
        if self._waiting.get(destination) and destination not in self._on_air:
            self._begin(destination)

    def _begin(self, destination: int) -> None:
        message = self._next(destination)
        wires = wires_of(message)
        size = sum(bytes_of(wire.message, self._content_bytes) for wire in wires)
        kind = kind_of(message if isinstance(message, Group) else message.message)
        if self._station.unicast(destination, kind, message, size):
            self._on_air[destination] = message
        else:
            self._station.set_timer(self._station.now + RETRY_S, self._retry, destination)

    def _next(self, destination: int) -> Wire | Group:
        """Return the next message, and those after it that fit into the same frame."""
        waiting = self._waiting[destination]
        if not self._settings.grouped or len(waiting) == 1:
            return waiting[0]
        room, count = self._station.payload_bytes_max, 0
        for wire in waiting:
            room -= bytes_of(wire.message, self._content_bytes)
            if room < 0 or wire.link != waiting[0].link or isinstance(wire.message, Relink):
                break
            count += 1
        return Group(tuple(islice(waiting, count))) if count > 1 else waiting[0]

    def sent(self, destination: int, message: Wire | Group) -> None:
        """Remove an acknowledged message."""
        if self._on_air.get(destination) is message:
            del self._on_air[destination]
            self._tries.pop(destination, None)
            waiting = self._waiting[destination]
            for _ in wires_of(message):
                waiting.popleft()
            if waiting:
                self._begin(destination)

    def failed(self, destination: int, message: Wire | Group) -> bool:
        """Return whether the link must be given up: not if the message was on an earlier link."""
        if self._on_air.get(destination) is not message:
            return False
        self._tries[destination] += 1
        if self._tries[destination] >= self._settings.tries:
            return True
        del self._on_air[destination]
        self._station.set_timer(self._station.now + TRY_AGAIN_S, self._retry, destination)
        return False

    def give_up(self, destination: int) -> list[Message]:
        """End the link; return its unacknowledged messages in order."""
        self._on_air.pop(destination, None)
        self._tries.pop(destination, None)
        self.links.pop(destination, None)
        left: Sequence[Wire] = self._waiting.pop(destination, ())
        return [wire.message for wire in left if isinstance(wire.message, Message)]


def _parts(message: Message | Relink) -> list[Message | Relink]:
    if not isinstance(message, Rep) or len(message.bursts) <= GROUP_MAX:
        return [message]
    starts = range(0, len(message.bursts), GROUP_MAX)
    return [Rep(message.subscriber, message.bursts[start : start + GROUP_MAX]) for start in starts]
