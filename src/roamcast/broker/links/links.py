"""All links of one broker: their ends, the brokers behind them, and their handshakes.

Frames become inputs of the broker, and its messages become frames; messages about the overlay
itself are handled here. A driver takes the output of a connection from the link's end
(`LinkEnd.take`).

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
    """Handshake data that both ends exchange after authentication."""

    resume: Resume = Resume()
    brokers: tuple[str, ...] = ()
    """Brokers that the receiver reaches, or would reach, through the sender."""
    history: ToldHistory = ToldHistory()
    """Progress of the sender's history."""
    guests: tuple[str, ...] = ()
    """Members of `brokers` that are of another organisation than the sender."""


class GivenLink(msgspec.Struct, frozen=True, array_like=True):
    """One link of a network that exists already."""

    peer: str
    incarnation: int
    peer_incarnation: int
    behind: tuple[str, ...]
    """Brokers reached through the peer, including the peer."""
    history: ToldHistory = ToldHistory()
    """History of the peer at that time."""
    guests: tuple[str, ...] = ()
    """Members of `behind` that are of another organisation."""


class LinkTurn(msgspec.Struct):
    """Result of one call."""

    inputs: list[Input] = []
    """Inputs for the broker, in order, before anything else."""
    fleeting: list[Input] = []
    """Inputs for the broker that are not journalled."""
    durable: bytes = b""
    """Received frames to journal."""
    closes: list[tuple[str, str]] = []
    """Connections to close, because their links were given up: (peer, reason)."""
    forgotten: list[str] = []
    """Brokers that are gone for good."""
    position: int = 0
    """Progress of the peer's history, as the peer reports it."""


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
        """Without a codec messages are not encoded (see `LinkEnd`)."""
        self.id = id
        self.reach = Reach(id)
        self.ends: dict[str, LinkEnd] = {}
        self._codec = codec
        self._limits = (kept_bytes_max, fleeting_bytes_max)
        self._restore()

    def _restore(self) -> None:
        self.border: Border | None = None
        """Checks messages of peers; None lets all pass."""

    # --- the handshake: these methods change no state ---

    def offer(self, peer: str) -> Offer:
        end = self.ends.get(peer)
        brokers, guests = self.reach.offer(peer), dict.fromkeys(self.reach.guests)
        told = tuple(one for one in brokers if one in guests)
        return Offer(Resume() if end is None else end.resume(), brokers, guests=told)

    def refusal(self, peer: str, offer: Offer) -> str:
        """Return why there must be no link with this peer, as one line; "" if accepted."""
        if peer in self.reach.peers:
            return self.ends[peer].objection(offer.resume)
        if self.begins_anew(peer, offer):
            return self.reach.objection(peer, offer.brokers)
        return ""

    def begins_anew(self, peer: str, offer: Offer) -> bool:
        """True if the link is new, or has carried nothing and does not fit the peer's end."""
        end = self.ends.get(peer)
        return end is None or (peer not in self.reach.peers and bool(end.objection(offer.resume)))

    # --- connections ---

    def connected(
        self, peer: str, offer: Offer, incarnation: int = 0, version: int = VERSION_MAX
    ) -> LinkTurn:
        """Open the link: neither end refuses, and both use this version of the link protocol.

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
        """Set the peers of other organisations."""
        return self._performed(self.reach.set_guests(list(peers)))

    def establish(self, links: Iterable[GivenLink]) -> LinkTurn:
        """Set the links of a network that exists already: all are up, and all brokers are known."""
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
        """Handle a link that one end refused; a link about to join is given up."""
        return self._performed(self.reach.abandon(peer, why))

    def drop(self, peer: str, why: str) -> LinkTurn:
        """Give a link up for good."""
        return self._performed(self.reach.drop(peer, why))

    def forget(self, broker: str) -> LinkTurn:
        """Forget a broker that is gone for good, and tell all others."""
        return self._performed(self.reach.forget(broker))

    # --- frames ---

    def receive(self, peer: str, frames: bytes) -> LinkTurn:
        """Handle whole frames from the connection to the peer, or from the journal."""
        if peer not in self.ends:
            return LinkTurn()  # The link was given up, and its connection is about to be closed.
        arrivals = self.ends[peer].receive(frames)
        turn = LinkTurn(durable=arrivals.durable, position=arrivals.position)
        border = self.border
        for message in arrivals.numbered:
            if peer not in self.ends:
                break  # The link was given up because of an earlier frame.
            if type(message) in self.reach.messages:
                admitted = message if border is None else border.admit_overlay(peer, message)
                if admitted is not None:
                    self._perform(turn, self.reach.receive(peer, admitted))
            else:
                turn.inputs.append(Received(peer, message))
        if arrivals.fleeting:
            turn.fleeting = [Received(peer, message) for message in arrivals.fleeting]
        return turn

    def send_in_process(self, sends: Iterable[tuple[str, Message]]) -> list[tuple[str, Message, int]]:
        """Number messages for peers in the same process, which get them without encoding."""
        ends, numbered = self.ends, []
        for peer, message in sends:
            end = ends[peer]
            end.sent = number = end.sent + 1
            numbered.append((peer, message, number))
        return numbered

    def send(self, sends: Iterable[tuple[str, Message]]) -> None:
        """Send the broker's messages to its peers. A message for several peers is encoded once."""
        encoded: bytes = b""
        last: Message | None = None
        is_fleeting, needs = False, 0
        border = self.border if self.border is not None and self.border.is_on else None
        looked_at = {peer for peer in self.ends if border is not None and border.looks_at(peer)}
        for peer, message in sends:
            end = self.ends.get(peer)
            if end is None:
                continue  # The link was given up in this turn.
            if border is not None and peer in looked_at:
                released = border.release(peer, message)
                if released is None:
                    continue
                message = released
            if message is not last:
                encoded, last = self._codec.encode(message), message  # type: ignore[union-attr]
                is_fleeting, needs = type(message) is Fleeting, 0
                if not isinstance(message, Burst):  # Nearly all messages are bursts.
                    is_fleeting, needs = message.is_fleeting, message.needs
            if needs > end.version:
                continue  # The peer has an older version, and does not need this message.
            if is_fleeting:
                end.send_fleeting_encoded(encoded, message.weight)
            else:
                end.send_encoded(encoded)

    # --- consequences of overlay changes ---

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
        # Undelivered messages come first: while the routes still exist, nothing is missed.
        turn.inputs += failed
        if outcome.is_changed:
            turn.inputs.append(self._overlay())
        guests = dict.fromkeys(self.reach.guests) if outcome.joined else {}
        joined = [broker for broker in outcome.joined if broker not in guests]
        if joined:
            turn.inputs.append(BrokersJoined(joined))
