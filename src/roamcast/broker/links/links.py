"""All links of one broker: their ends, who is behind them, and what their handshakes agree on.

It turns frames into inputs of the broker, and what the broker sends into frames;
messages about the overlay itself stay here. What is to be written to a connection
a driver takes from the link's end (`LinkEnd.take`).

What is journalled: the calls of `connected`, `disconnected`, `refused`, `drop` and
`forget` with their arguments, and of `receive` the frames that it names as
durable. Nothing else; `send` follows from the broker's own inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from roamcast.broker.history import ToldHistory
from roamcast.broker.links.end import (
    FLEETING_BYTES_MAX,
    KEPT_BYTES_MAX,
    LinkEnd,
    Resume,
)
from roamcast.broker.links.reach import Outcome, Reach
from roamcast.protocol.codec import VERSION_MAX, Codec
from roamcast.protocol.effects import BrokersJoined, Input, LinkChanged, OverlayChanged, Received, SendFailed
from roamcast.protocol.notification import Burst, Fleeting, Message
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.links.border import Border


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What both ends tell each other after authentication."""

    resume: Resume = Resume()
    brokers: tuple[str, ...] = ()
    """Whom the receiver reaches, or would reach, through the sender."""
    history: ToldHistory = ToldHistory()
    """How far the sender's history has come."""
    guests: tuple[str, ...] = ()
    """Those of them that are of another organisation than the sender."""


class GivenLink(msgspec.Struct, frozen=True, array_like=True):
    """One link of a network that has existed for long."""

    peer: str
    incarnation: int
    peer_incarnation: int
    behind: tuple[str, ...]
    """The brokers that are reached through the peer, itself among them."""
    history: ToldHistory = ToldHistory()
    """History of the peer at that time."""
    guests: tuple[str, ...] = ()
    """Those of them that are of another organisation."""


class LinkTurn(msgspec.Struct):
    """Result of one call."""

    inputs: list[Input] = []
    """Inputs for the broker, in order, before anything else."""
    fleeting: list[Input] = []
    """Inputs for the broker that are not journalled."""
    durable: bytes = b""
    """Received frames to journal."""
    closes: list[tuple[str, str]] = []
    """Connections to be closed, because their links were given up: (peer, why)."""
    forgotten: list[str] = []
    """Brokers that are gone for good."""
    position: int = 0
    """How far the history of the peer has come, as it says itself."""


class Links:
    """The ends of all links of one broker, by peer."""

    __state__ = State("links", saved=("id", "reach", "ends", "_codec", "_limits"), derived=("border",))

    def __init__(
        self,
        id: str,
        codec: Codec | None,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        fleeting_bytes_max: int = FLEETING_BYTES_MAX,
    ) -> None:
        """Without a codec messages stay as they are, no bytes are made of them (see `LinkEnd`)."""
        self.id = id
        self.reach = Reach(id)
        self.ends: dict[str, LinkEnd] = {}
        self._codec = codec
        self._limits = (kept_bytes_max, fleeting_bytes_max)
        self._restore()

    def _restore(self) -> None:
        self.border: Border | None = None
        """Checks messages of peers; None lets all pass."""

    # --- the handshake: nothing of this changes anything ---

    def offer(self, peer: str) -> Offer:
        end = self.ends.get(peer)
        brokers, guests = self.reach.offer(peer), dict.fromkeys(self.reach.guests)
        told = tuple(one for one in brokers if one in guests)
        return Offer(Resume() if end is None else end.resume(), brokers, guests=told)

    def refusal(self, peer: str, offer: Offer) -> str:
        """Why there must be no link with this peer, as one line; "" if there may be one."""
        if peer in self.reach.peers:
            return self.ends[peer].objection(offer.resume)
        if self.begins_anew(peer, offer):
            return self.reach.objection(peer, offer.brokers)
        return ""

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """Whether the link is new, or has never carried anything and does not fit that of the peer."""
        end = self.ends.get(peer)
        return end is None or (peer not in self.reach.peers and bool(end.objection(offer.resume)))

    # --- connections ---

    def connected(
        self, peer: str, offer: Offer, incarnation: int = 0, version: int = VERSION_MAX
    ) -> LinkTurn:
        """Neither end refuses, and both speak this version of the link protocol.

        An `incarnation` begins the link anew (see `begins_anew`, `LinkEnd`).
        """
        turn = LinkTurn([LinkChanged(peer, True)])
        if incarnation:
            self._perform(turn, self.reach.abandon(peer, "begun anew"))
            turn.closes.clear()
            end = self.ends[peer] = LinkEnd(peer, incarnation, self._codec, *self._limits)
            end.up(Resume(), version)
        else:
            self.ends[peer].up(offer.resume, version)
        own = tuple(one for one in offer.brokers if one not in offer.guests)
        self._perform(turn, self.reach.join(peer, own))
        return turn

    def set_guests(self, peers: Iterable[str]) -> LinkTurn:
        """These peers are of another organisation."""
        return self._performed(self.reach.set_guests(list(peers)))

    def establish(self, links: Iterable[GivenLink]) -> LinkTurn:
        """The links of a network that has existed for long: all are up, and everyone is known."""
        turn = LinkTurn()
        guests = [broker for link in links for broker in link.guests]
        self.reach.establish({link.peer: link.behind for link in links}, guests)
        for link in links:
            end = self.ends[link.peer] = LinkEnd(link.peer, link.incarnation, self._codec, *self._limits)
            end.peer_incarnation = link.peer_incarnation
            end.up(Resume(link.peer_incarnation))
        turn.inputs.append(self._overlay())
        return turn

    def _overlay(self) -> OverlayChanged:
        reach = self.reach
        return OverlayChanged(reach.peers, dict(reach.next_hops), tuple(reach.guests))

    def disconnected(self, peer: str) -> LinkTurn:
        end = self.ends.get(peer)
        if end is None or not end.is_up:
            return LinkTurn()
        end.down()
        return LinkTurn([LinkChanged(peer, False)])

    def refused(self, peer: str, why: str) -> LinkTurn:
        """One of the ends refused the link; if it was about to join, it is given up."""
        return self._performed(self.reach.abandon(peer, why))

    def drop(self, peer: str, why: str) -> LinkTurn:
        """Give a link up for good."""
        return self._performed(self.reach.drop(peer, why))

    def forget(self, broker: str) -> LinkTurn:
        """A broker is gone for good, and everyone is to know it."""
        return self._performed(self.reach.forget(broker))

    # --- frames ---

    def receive(self, peer: str, frames: bytes) -> LinkTurn:
        """Whole frames came over the connection to the peer, or out of the journal."""
        if peer not in self.ends:
            return LinkTurn()  # The link was given up, and its connection is about to be closed.
        arrivals = self.ends[peer].receive(frames)
        turn = LinkTurn(durable=arrivals.durable, position=arrivals.position)
        border = self.border
        for message in arrivals.numbered:
            if peer not in self.ends:
                break  # The link was given up because of what came before.
            if type(message) in self.reach.messages:
                admitted = message if border is None else border.admit_overlay(peer, message)
                if admitted is not None:
                    self._perform(turn, self.reach.receive(peer, admitted))
            else:
                turn.inputs.append(Received(peer, message))
        if arrivals.fleeting:
            turn.fleeting = [Received(peer, message) for message in arrivals.fleeting]
        return turn

    def send(self, sends: Iterable[tuple[str, Message]]) -> None:
        """What the broker sends to its peers. A message for several of them is encoded once."""
        encoded: bytes = b""
        last: Message | None = None
        is_fleeting, needs = False, 0
        border = self.border if self.border is not None and self.border.is_on else None
        looked_at = {peer for peer in self.ends if border is not None and border.looks_at(peer)}
        for peer, message in sends:
            end = self.ends.get(peer)
            if end is None:
                continue  # The link was given up in this very turn.
            if border is not None and peer in looked_at:
                released = border.release(peer, message)
                if released is None:
                    continue
                message = released
            if message is not last:
                encoded, last = self._codec.encode(message), message  # type: ignore[union-attr]
                is_fleeting, needs = type(message) is Fleeting, 0
                if not isinstance(message, Burst):  # Nearly all are bursts.
                    is_fleeting, needs = message.is_fleeting, message.needs
            if needs > end.version:
                continue  # The peer is older, and does well without it.
            if is_fleeting:
                end.send_fleeting_encoded(encoded, message.weight)
            else:
                end.send_encoded(encoded)

    # --- what follows from changes of the overlay ---

    def _performed(self, outcome: Outcome) -> LinkTurn:
        turn = LinkTurn()
        self._perform(turn, outcome)
        return turn

    def _perform(self, turn: LinkTurn, outcome: Outcome) -> None:
        for peer, message in outcome.sends:
            self.ends[peer].send(message)
        turn.forgotten += outcome.forgotten
        failed: list[Input] = []
        for peer, why in outcome.closes:
            messages = self.ends.pop(peer).give_up()
            lost = [message for message in messages if type(message) not in self.reach.messages]
            if lost:
                failed.append(SendFailed(peer, lost))
            turn.closes.append((peer, why))
        # What did not arrive comes first: while the routes still stand, nothing is missed.
        turn.inputs += failed
        if outcome.is_changed:
            turn.inputs.append(self._overlay())
        guests = dict.fromkeys(self.reach.guests) if outcome.joined else {}
        joined = [broker for broker in outcome.joined if broker not in guests]
        if joined:
            turn.inputs.append(BrokersJoined(joined))
