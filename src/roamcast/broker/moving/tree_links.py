"""Connections to all brokers in reach, and the links of the tree that some of them carry.

A connection begins with `LinkUp` and ends with `LinkDown`. It numbers its messages and acknowledges what
the receiver has journalled; no state survives it. A link of the tree lasts from when a child takes a parent
until one end gives it up, and a connection may carry several, one after the other. Before the first message
of a link comes `OnLink`, so both ends know the link of all following messages, and recognise late ones. The
number of a link is one more than the last known to its opener; of two links opened at once, that of the
higher broker stays.

Acknowledgements are not journalled, but decide which messages come back when a link is given up. So an
acknowledgement counts only once it has arrived as `Confirmed`, which is journalled before its consequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import ClassVar

from roamcast.broker.inputs import Confirmed
from roamcast.broker.links.end import FLEETING_BYTES_MAX as FLEETING_MAX
from roamcast.broker.links.end import KEPT_BYTES_MAX, LinkEnd, Resume
from roamcast.broker.links.links import Offer
from roamcast.broker.seeking import IsHere, WhereIs
from roamcast.mobility.moving.election import Heartbeat, Round
from roamcast.protocol.codec import VERSION_MAX, Codec
from roamcast.protocol.messages import Cause, Message
from roamcast.state import State

LinkId = tuple[int, str]
"""Number of a link, and the child that opened it."""


class OnLink(Message, frozen=True):
    """Following messages on this connection belong to this link of the tree."""

    number: int
    child: str
    cause: ClassVar[Cause] = "handoff"


class OffLink(Message, frozen=True):
    """The sender has given up this link of the tree."""

    number: int
    child: str
    cause: ClassVar[Cause] = "handoff"


class Beat(Message, frozen=True):
    """A heartbeat of the election, to every broker in reach."""

    leader: str
    round: Round
    hops: int
    parent: str
    children: int
    cause: ClassVar[Cause] = "handoff"
    is_fleeting: ClassVar[bool] = True

    @classmethod
    def of(cls, heartbeat: Heartbeat) -> Beat:
        one = heartbeat
        return cls(one.leader, one.round, one.hops, one.parent, one.children)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.leader, self.round, self.hops, self.parent, self.children)


class TreeLinkEnd(LinkEnd):
    unnumbered = (WhereIs, IsHere)

    __state__ = State("tree-link-end")


class Neighbour:
    """A broker in reach: the connection to it, and the link of the tree over it, if any."""

    __state__ = State("neighbour", saved=("peer", "end", "link", "newest", "sent", "outgoing", "incoming"))

    def __init__(self, peer: str, end: LinkEnd) -> None:
        self.peer = peer
        self.end = end
        self.link: LinkId | None = None
        self.newest: LinkId = (0, "")
        """Newest of all links opened over this connection."""
        self.sent: deque[tuple[int, Message]] = deque()
        """Messages sent on the current link and not confirmed."""
        self.outgoing: LinkId | None = None
        """Link last announced to the peer with `OnLink`."""
        self.incoming: LinkId | None = None
        """Link last announced by the peer with `OnLink`."""

    @property
    def is_child(self) -> bool:
        """True if the peer opened the link."""
        return self.link is not None and self.link[1] == self.peer


class TreeLinks:
    """All that one broker exchanges with its peers below the protocol."""

    __state__ = State("tree-links", saved=("id", "ends", "neighbours", "_codec"))

    def __init__(self, id: str, codec: Codec) -> None:
        self.id = id
        self.ends: dict[str, LinkEnd] = {}
        self.neighbours: dict[str, Neighbour] = {}
        self._codec = codec

    # --- the handshake: all brokers may connect, and no link is resumed ---

    def offer(self, peer: str) -> Offer:
        return Offer()

    def refusal(self, peer: str, offer: Offer) -> str:
        return ""

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        return True

    # --- connections ---

    def connect(self, peer: str, incarnation: int, version: int = VERSION_MAX) -> None:
        # Acknowledged immediately when journalled, so that little comes back when a link is lost.
        end = TreeLinkEnd(peer, incarnation, self._codec, KEPT_BYTES_MAX, FLEETING_MAX, 1)
        end.up(Resume(), version)
        self.ends[peer] = end
        self.neighbours[peer] = Neighbour(peer, end)

    def disconnect(self, peer: str) -> None:
        del self.ends[peer], self.neighbours[peer]

    def confirmations(self) -> Iterator[Confirmed]:
        """Return acknowledgements of peers that this end has not counted yet."""
        for peer, one in self.neighbours.items():
            if one.sent and one.end.settled >= one.sent[0][0]:
                yield Confirmed(peer, one.end.settled)

    def confirm(self, peer: str, number: int) -> None:
        one = self.neighbours[peer]
        while one.sent and one.sent[0][0] <= number:
            one.sent.popleft()

    # --- links of the tree ---

    def open(self, peer: str) -> None:
        """Become a child of the peer."""
        one = self.neighbours[peer]
        one.link = one.newest = (one.newest[0] + 1, self.id)

    def has_link(self, peer: str) -> bool:
        one = self.neighbours.get(peer)
        return one is not None and one.link is not None

    def close(self, peer: str, tell: bool) -> list[Message]:
        """Give the link up; unconfirmed messages come back."""
        one = self.neighbours[peer]
        unconfirmed = [message for _, message in one.sent]
        if tell and one.link is not None:
            one.end.send(OffLink(*one.link))
        one.sent.clear()
        one.link = None
        return unconfirmed

    def hears(self, peer: str, message: OnLink) -> bool:
        """True if this is a new link, which replaces the current one."""
        one = self.neighbours[peer]
        one.incoming = (message.number, message.child)
        if message.child != peer or one.incoming <= one.newest:
            return False
        one.newest = one.incoming
        return True

    def adopt(self, peer: str) -> None:
        """Accept the peer as a child of this broker."""
        one = self.neighbours[peer]
        one.link = one.incoming

    def is_current(self, peer: str, link: LinkId | None = None) -> bool:
        """True if the link, or else what the peer sends now, is the current link."""
        one = self.neighbours.get(peer)
        return one is not None and one.link is not None and one.link == (link or one.incoming)

    # --- sending ---

    def send(self, peer: str, message: Message) -> None:
        one = self.neighbours.get(peer)
        if one is None or one.link is None:
            return  # The link was given up in this turn; the protocol is informed, or about to be.
        if one.outgoing != one.link:
            one.end.send(OnLink(*one.link))
            one.outgoing = one.link
        before = one.end.sent
        one.end.send(message)
        if one.end.sent > before:
            one.sent.append((one.end.sent, message))

    def send_fleeting(self, peer: str, message: Message) -> None:
        """Send a QoS 0 message over a link of the tree."""
        if self.has_link(peer):
            self.ends[peer].send_fleeting(message)

    def broadcast(self, heartbeat: Heartbeat) -> None:
        beat = Beat.of(heartbeat)
        for end in self.ends.values():
            end.send_fleeting(beat)
