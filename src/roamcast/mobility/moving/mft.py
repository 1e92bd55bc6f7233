"""MFT-PubSub: brokers and clients move, crash, part and meet again (Amozarrain chapter 4).

For every subscriber s, every broker knows the subscriptions, the way to s, and T(s): the timestamp of the
last known message of s, and the distance of s in hops. When the parent of a broker in the tree changes, the
broker sends BMIG to the new parent: it lists the subscribers behind the broker (C) and the other known
subscribers (O). The new parent compares. It asks for the state of subscribers where the broker's state is
newer (BQUERY), and sends its own state where that is newer (BSUB, which is forwarded to everyone, like SUB).
For subscribers with equal state BMIG turns the ways round, neighbour by neighbour, along the way on which a
PUB for s would go, until it ends where the old link was. Events that met a dead end are stored there, and
follow (REP).

Why nothing gets lost: at any time all ways to s in one part of the network end at the same place: at the
broker of s, or where a link was lost. A message that turns a way round travels behind everything that was
sent that way before, and a broker that has turned its way sends nothing the old way any more. So an event in
transit arrives either at s, or at the old end, where the turning message arrives after it.

| document | here |
| --- | --- |
| 4.1, lines 1 to 12: SUB, UNS | `_on_sub`, `_on_uns`, guarded by `_accept` |
| 4.1, lines 13 to 26: MIG | `_on_mig` |
| 4.2: migrate(b_o, b_n) | `_migrate` |
| 4.3, lines 3 to 18: the children that BMIG claims | `_is_believed` |
| 4.3, lines 19 to 23: the others | `_compare` |
| 4.3, lines 24 to 35: who is unknown there, turning, going on | `_on_bmig` |
| 4.4, lines 1 to 9: BSUB | `_on_bsub` |
| 4.4, lines 10 to 16: BQUERY, sendSubscriptions | `_on_bquery`, `_send_subscriptions` |
| sendQueuedMessages | `MobileProtocol._flush`, after all else that a message leads to |

Where the algorithms and the text leave something open, or fail (`mft_published.py` has them to the letter):

- 4.1, line 1: h is stored with one hop more than it is compared with, so that what was heard before seems
  newer. Here a message of a subscriber is newer if its timestamp is higher.
- 4.1: a broker that knows more than SUB, UNS or MIG answers with BSUB. Otherwise, if a subscriber returns
  while its MIG from elsewhere is under way, its events would be sent to that other place forever: MIG comes
  too late.
- 4.2, line 4, and 4.3, line 25, go through all timestamps and not through the routing table, or a subscriber
  that has left would be forgotten, and come back from another part of the network.
- 4.3, line 12, compares the hops that are claimed for s, as the text says, and not those of BMIG. But any
  claim may be wrong, even one with few hops. If a broker in the middle rejects the claim, that may be wrong,
  too, and the other brokers do not learn of it. So a claim with the same timestamp is believed, unless s is
  connected to this broker, which then announces that to everyone. In the example of 4.4 that is the same.
- 4.3, line 7: nothing is turned round for a subscriber of whom the sender knows more. BSUB does that.
- 4.4, line 1: BSUB with the same timestamp is a claim like the one in BMIG, if it does not come from the
  broker of s. A broker that knows more answers, as in 4.3.
- If each end of a new link believes that a subscriber is behind the other end, both delete its way until they
  learn where it is.
- A change of subscriptions says which change came before it (`since`). A broker that missed that change asks
  for all subscriptions; a subscriber is asked with FILTERS, and sends them all as one BSUB.
- A broker that crashed and comes back empty is a new one that migrates in; links are new ones after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from roamcast.filters.filter import Filter
from roamcast.mobility.moving.mobile import (
    LOCAL,
    Filters,
    Known,
    Mig,
    MobileProtocol,
    MobileSettings,
    Outcome,
    Rep,
    Sub,
    Uns,
    register_mobile,
)
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst
from roamcast.state import State


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """T of one subscriber: (s, t, h) in the document."""

    subscriber: str
    timestamp: int
    hops: int


class Bmig(Message, frozen=True):
    """The sender, or a broker behind it, has migrated."""

    children: tuple[Stamp, ...]
    others: tuple[Stamp, ...] = ()
    hops: int = 0
    """Number of hops that the message has travelled."""
    heard: int = 0
    """Number of messages about subscribers that the sender has received from the receiver over this link."""
    cause: ClassVar[Cause] = "handoff"


class Bquery(Message, frozen=True):
    """Asks for a subscriber's state if the receiver knows more than this."""

    subscriber: str
    timestamp: int
    hops: int
    cause: ClassVar[Cause] = "handoff"


class Bsub(Message, frozen=True):
    """All subscriptions of a subscriber, with T of the first sender. No subscriptions: it has left the
    network."""

    subscriber: str
    filters: tuple[Filter, ...]
    timestamp: int
    hops: int
    distance: int = 0
    """Number of hops that the message has travelled."""
    since: int = -1
    """Timestamp of the last change; -1: this message's own."""
    nowhere: bool = False
    """True if the sender does not know where the subscriber is."""
    heard: int = 0
    """See `Bmig.heard`."""
    cause: ClassVar[Cause] = "handoff"


class Talk:
    """Messages about subscribers exchanged over one link."""

    __state__ = State("mft-talk", saved=("sent", "heard", "claims"))

    def __init__(self) -> None:
        self.sent = 0
        self.heard = 0
        self.claims: dict[str, int] = {}
        """Subscriber to the number of the last message sent that claimed the subscriber is this way."""


@register_mobile
class Mft(MobileProtocol):
    name = "mft"
    summary = "timestamps and hops tell who knows more of a subscriber; ways are turned round, queues follow"

    __state__ = State("mft", saved=("_asked", "_talks"))

    def __init__(self, id: str, settings: MobileSettings | None = None) -> None:
        super().__init__(id, settings)
        self._asked: dict[str, tuple[str, list[Burst]]] = {}
        """Subscribers of which a neighbour knows more: the neighbour asked, and the events since then. Those
        events may match the unknown subscriptions, and their senders could not know that this broker lacks
        them."""

        self._talks: dict[str, Talk] = {}

    def _restore(self) -> None:
        super()._restore()
        self._handlers |= {Bmig: self._on_bmig, Bsub: self._on_bsub, Bquery: self._on_bquery}

    def _handle(self, way: str, sender: str, message: Message) -> None:
        if isinstance(message, Bmig) and message.hops == 0:
            self._talks[way] = Talk()
        if way != LOCAL and not isinstance(message, Burst | Rep | Bquery):
            self._talks.setdefault(way, Talk()).heard += 1
        super()._handle(way, sender, message)

    def _flush(self) -> None:
        super()._flush()
        self._out.sends = [(peer, self._said(peer, message)) for peer, message in self._out.sends]

    def _said(self, peer: str, message: Message) -> Message:
        """Count a message sent to a peer, and add how many of the peer's messages were received."""
        if isinstance(message, Burst | Rep | Bquery):
            return message
        talk = self._talks.setdefault(peer, Talk())
        talk.sent += 1
        if isinstance(message, Bmig):
            talk.claims.update({stamp.subscriber: talk.sent for stamp in message.children})
            return msgspec.structs.replace(message, heard=talk.heard)
        if isinstance(message, Bsub):
            if not message.nowhere:
                talk.claims[message.subscriber] = talk.sent
            return msgspec.structs.replace(message, heard=talk.heard)
        return message

    def _has_crossed(self, way: str, subscriber: str, heard: int) -> bool:
        """True if both ends of a link claimed the subscriber at once; the claim of the lower id then counts.

        If each end believed the other, each would look for the subscriber behind the other forever.
        """
        return self._talks[way].claims.get(subscriber, 0) > heard and self.id < way

    def _on_pub(self, way: str, burst: Burst) -> None:
        for _, bursts in self._asked.values():
            bursts.append(burst)
        super()._on_pub(way, burst)

    def _settle_question(self, subscriber: str) -> None:
        filters = self.known[subscriber].filters.values()
        for burst in self._asked.pop(subscriber, ("", []))[1]:
            attributes = self.attributes_of(burst)
            if any(filter.matches(attributes) for filter in filters):
                self._enqueue(subscriber, burst)

    def link_down(self, peer: str, unacknowledged: Sequence[Message] = ()) -> Outcome:
        self._asked = {one: asked for one, asked in self._asked.items() if asked[0] != peer}
        self._talks.pop(peer, None)
        return super().link_down(peer, unacknowledged)

    def _of(self, subscriber: str) -> Known:
        """Return T of the subscriber; unknown subscribers have timestamp 0."""
        return self.known.setdefault(subscriber, Known(None))

    # --- algorithm 4.1: what subscribers say ---

    def _on_sub(self, way: str, message: Sub) -> None:
        if self._accept(way, message):
            known = self.known[message.subscriber]
            self._set_filters(message.subscriber, [*known.filters.values(), message.filter])
            known.since = message.timestamp
            self._send_others(way, msgspec.structs.replace(message, hops=message.hops + 1))

    def _on_uns(self, way: str, message: Uns) -> None:
        if self._accept(way, message):
            known = self.known[message.subscriber]
            kept = [filter for filter in known.filters.values() if filter != message.filter]
            self._set_filters(message.subscriber, kept)
            known.since = message.timestamp
            self._send_others(way, msgspec.structs.replace(message, hops=message.hops + 1))

    def _on_mig(self, way: str, message: Mig) -> None:
        subscriber = message.subscriber
        known = self._of(subscriber)
        old = known.way
        if way == LOCAL:
            self._attach(message)
            self._send_filters(subscriber)
        if self._accept(way, message) and old and old != way and old in self.peers:
            self._out.sends.append((old, msgspec.structs.replace(message, hops=message.hops + 1, had=())))

    def _accept(self, way: str, message: Sub | Uns | Mig) -> bool:
        """True if the message is newer than what is known, and no change before it was missed."""
        subscriber = message.subscriber
        known = self._of(subscriber)
        if message.timestamp <= known.timestamp:
            if message.timestamp < known.timestamp and way != LOCAL:
                self._send_subscriptions(subscriber, way)
            return False
        if message.since != known.since:
            if way == LOCAL:  # The subscriber answers with all its subscriptions.
                self._send_filters(subscriber)
            else:
                self._ask(way, subscriber)
            return False
        known.timestamp, known.hops = message.timestamp, message.hops + 1
        self._point(subscriber, way)
        return True

    def _send_filters(self, subscriber: str) -> None:
        known = self.known[subscriber]
        filters = Filters(tuple(known.filters.values()), known.since)
        self._out.to_subscribers.append((subscriber, filters))

    # --- algorithm 4.2: this broker migrates ---

    def _migrate(self, old: str | None, new: str) -> None:
        children, others = [], []
        self._talks[new] = Talk()
        for subscriber, known in self.known.items():
            stamp = Stamp(subscriber, known.timestamp, known.hops)
            if known.way is None or (known.way and known.way in (old, new)):
                self._point(subscriber, new)
                others.append(stamp)
            else:
                children.append(stamp)
        self._out.sends.append((new, Bmig(tuple(children), tuple(others))))

    # --- algorithm 4.3: another broker has migrated ---

    def _on_bmig(self, way: str, message: Bmig) -> None:
        if message.hops == 0:
            self.peers[way] = None
        believed = [stamp for stamp in message.children if self._is_believed(way, stamp, message.heard)]
        for stamp in message.others:
            self._compare(way, stamp)
        if message.hops == 0:
            named = {stamp.subscriber for stamp in (*message.children, *message.others)}
            for subscriber in [one for one in self.known if one not in named]:
                self._send_subscriptions(subscriber, way)
        old_ways: dict[str, None] = {}
        for stamp in believed:
            known = self.known[stamp.subscriber]
            if known.way and known.way != way and known.way in self.peers:
                old_ways[known.way] = None
            known.hops = message.hops + stamp.hops + 1
            self._point(stamp.subscriber, way)
        onward = Bmig(tuple(believed), (), message.hops + 1)
        self._out.sends += [(old_way, onward) for old_way in old_ways]

    def _is_believed(self, way: str, stamp: Stamp, heard: int) -> bool:
        """True if the sender's claim that the subscriber is behind it is believed."""
        known = self._of(stamp.subscriber)
        if stamp.timestamp > known.timestamp:
            self._ask(way, stamp.subscriber)
            return False
        if stamp.timestamp < known.timestamp or known.way == LOCAL:
            self._send_subscriptions(stamp.subscriber, way)
            return False
        return not self._has_crossed(way, stamp.subscriber, heard)

    def _compare(self, way: str, stamp: Stamp) -> None:
        """Compare state with a sender that believes the subscriber is this way, or does not know where."""
        known = self._of(stamp.subscriber)
        self._not_behind(way, stamp.subscriber)
        if stamp.timestamp > known.timestamp:
            self._ask(way, stamp.subscriber)
        elif stamp.timestamp < known.timestamp:
            self._send_subscriptions(stamp.subscriber, way)

    def _not_behind(self, way: str, subscriber: str) -> None:
        if self.known[subscriber].way == way:
            self._point(subscriber, None)

    # --- algorithm 4.4: repairing what differs ---

    def _on_bsub(self, way: str, message: Bsub) -> None:
        known = self._of(message.subscriber)
        if message.timestamp < known.timestamp:
            self._answer(way, message)
        elif message.timestamp > known.timestamp:
            known.timestamp = message.timestamp
            known.since = message.since if message.since >= 0 else message.timestamp
            self._set_filters(message.subscriber, message.filters)
            self._learn_way(way, message)
            self._send_others(way, self._onward(message))
            self._settle_question(message.subscriber)
        elif known.way == LOCAL:
            self._answer(way, message)
        elif message.hops <= 1:
            self._learn_way(way, message)
            self._send_others(way, self._onward(message))
        elif message.nowhere:
            if known.way is None and self.id > way:  # One of the two has to be the end of the ways.
                self._learn_way(way, message)
            elif known.way != way:
                self._send_subscriptions(message.subscriber, way, nowhere=False)
        elif not self._has_crossed(way, message.subscriber, message.heard):
            old = known.way
            self._learn_way(way, message)
            if old and old != way and old in self.peers:
                self._out.sends.append((old, self._onward(message)))

    def _answer(self, way: str, message: Bsub) -> None:
        """Correct the sender; a subscriber is never wrong, but may have sent something newer meanwhile."""
        if way != LOCAL:
            self._send_subscriptions(message.subscriber, way)

    def _learn_way(self, way: str, message: Bsub) -> None:
        self.known[message.subscriber].hops = message.hops + message.distance + 1
        self._point(message.subscriber, way)

    def _onward(self, message: Bsub) -> Bsub:
        if message.hops == 0:  # Sent by the subscriber itself; its broker is one hop away from it.
            return msgspec.structs.replace(message, hops=1)
        return msgspec.structs.replace(message, distance=message.distance + 1, nowhere=False)

    def _ask(self, way: str, subscriber: str) -> None:
        known = self.known[subscriber]
        self._asked.setdefault(subscriber, (way, []))
        self._out.sends.append((way, Bquery(subscriber, known.timestamp, known.hops)))

    def _on_bquery(self, way: str, message: Bquery) -> None:
        known = self._of(message.subscriber)
        if (message.timestamp, -message.hops) < (known.timestamp, -known.hops):
            self._send_subscriptions(message.subscriber, way)

    def _send_subscriptions(self, subscriber: str, way: str, nowhere: bool = True) -> None:
        self._not_behind(way, subscriber)
        known = self.known[subscriber]
        since = -1 if known.since == known.timestamp else known.since
        filters, nowhere = tuple(known.filters.values()), nowhere and known.way is None
        message = Bsub(
            subscriber, filters, known.timestamp, max(known.hops, 2 * (known.way != LOCAL)), 0, since, nowhere
        )
        self._out.sends.append((way, message))
