"""The common part of the protocols for brokers that move: their messages, routing tables, queues and
registry.

In these protocols a broker knows its neighbours and nothing of the network behind them. For each subscriber
it has the subscriptions and the way: the neighbour towards it. A subscriber speaks the same language as a
broker, and its messages carry a timestamp, which the subscriber increments itself. Links are FIFO for as long
as they last. Unacknowledged messages of a link that is given up come back (`link_down`, `detach`); their
events are queued for the subscribers.

`MobileProtocol` is one broker's machine. It has no clock, no socket and no source of randomness; every call
returns an `Outcome`. A device may be broker, subscriber and publisher at once: its client roles are
connected to its own broker like any others, and may bear the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes, Filter
from roamcast.mobility.stored import Stored
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.protocol.queues import QueueLimits
from roamcast.state import State

LOCAL = ""
"""The way to a subscriber that is, or was last, connected to this broker itself."""


# --- messages (tables 2.1, 2.4, 3.1 and 4.1) ---------------------------------------------------------
#
# A published event, PUB, is a `Burst`. `since` is the timestamp of the subscriber's last change of its
# subscriptions before this message: a broker that missed that change must not accept this message.


class Sub(Message, frozen=True):
    filter: Filter
    subscriber: str
    timestamp: int = 0
    hops: int = 0
    since: int = 0
    cause: ClassVar[Cause] = "subscribe"


class Uns(Message, frozen=True):
    filter: Filter
    subscriber: str
    timestamp: int = 0
    hops: int = 0
    since: int = 0
    cause: ClassVar[Cause] = "subscribe"


class Mig(Message, frozen=True):
    """The subscriber, formerly connected to `broker`, is here now; "": formerly nowhere, or unknown."""

    subscriber: str
    broker: str = ""
    timestamp: int = 0
    hops: int = 0
    since: int = 0
    had: tuple[tuple[str, int, int], ...] = ()
    """Last events that the subscriber has received; sent only to its own broker."""
    cause: ClassVar[Cause] = "handoff"


class Rep(Message, frozen=True):
    """Stored events for a subscriber, grouped."""

    subscriber: str
    bursts: tuple[Burst, ...]
    cause: ClassVar[Cause] = "transfer"


class Filters(Message, frozen=True):
    """Tells a subscriber which of its subscriptions are known here, so that it can correct them."""

    filters: tuple[Filter, ...]
    since: int = -1
    """Last change of the subscriptions that is known here; -1: not counted."""
    cause: ClassVar[Cause] = "handoff"


# --- a broker's machine ------------------------------------------------------------------------------


class MobileSettings(msgspec.Struct, frozen=True):
    """Settings of a broker that moves."""

    queue: QueueLimits | None = None
    """Limits of what is stored for one subscriber that cannot be reached."""
    seen_max: int = 1024
    """Deliveries to each subscriber that a broker remembers, to suppress duplicates."""
    departed_max: int = 10_000
    """Former subscribers whose timestamp is remembered, so that old messages do not bring them back."""


class Outcome(msgspec.Struct):
    """Actions that a call requests; each list is in order."""

    sends: list[tuple[str, Message]] = []
    """Messages to neighbours."""
    to_subscribers: list[tuple[str, Message]] = []
    """Messages to subscribers that are connected here: `Burst` and `Filters`."""
    duplicates: int = 0
    """Notifications left out because the subscriber has received them."""
    dropped: list[tuple[str, Burst]] = []
    """Notifications that a full queue dropped, with their subscriber."""


class Known(msgspec.Struct):
    """A broker's knowledge of one subscriber: its rows of the routing table, and T of chapter 4."""

    way: str | None
    """The neighbour towards the subscriber, or `LOCAL`; None if unknown."""
    timestamp: int = 0
    hops: int = 0
    since: int = 0
    """Timestamp of the last change of its subscriptions that is known here."""
    filters: dict[str, Filter] = {}


Identity = tuple[str, int, int]

MATCHED_KEPT_MAX = 4096
"""Kinds of events for which the matching subscribers are cached until subscriptions change."""


class MobileProtocol:
    """The state that all protocols share, and how events reach subscribers."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    keeps_promises: ClassVar[bool] = True
    """True if all that is owed arrives in the end, whatever moved, crashed or was partitioned meanwhile."""

    __state__ = State(
        "mobile-protocol",
        saved=(
            "id", "settings", "peers", "attached", "known", "queues", "_returned", "_seen", "changes",
            "_left",
        ),
        derived=("_handlers", "_looked_for", "_matched", "_out", "contents", "taken_bytes"),
    )  # fmt: skip

    def __init__(self, id: str, settings: MobileSettings | None = None) -> None:
        self.id = id
        self.settings = settings or MobileSettings()
        self.peers: dict[str, None] = {}
        """N: the neighbours in the tree. A child becomes one with its first message of migration."""
        self.attached: dict[str, None] = {}
        """Subscribers that are connected now."""
        self.known: dict[str, Known] = {}
        """By subscriber: its subscriptions and the way to it (R and T of the document)."""
        self.queues: dict[str, Stored] = {}
        """Q: events that could not be forwarded, by subscriber."""
        self._returned: dict[str, str] = {}
        """Subscriber to the neighbour that is both the way to it and the sender of its stored events. The
        events wait for the next message about the subscriber, which is under way: that neighbour knows
        another way."""
        self._seen: dict[str, dict[Identity, None]] = {}
        self.changes = 0
        """Number of changes of subscriptions so far."""
        self._left: dict[str, dict[str, None]] = {}
        """Neighbour to the subscribers that were behind it before: bursts it has not acknowledged may be for
        them."""
        self._restore()

    def _restore(self) -> None:
        self.taken_bytes = 0
        """Bytes ever added to queues."""
        self._matched: dict[bytes, list[str]] = {}
        self._looked_for: dict[str, None] = {}
        """Subscribers whose stored events may have a way now."""
        self._out = Outcome()
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Burst: self._on_pub,
            Rep: self._on_rep,
            Sub: self._on_sub,
            Uns: self._on_uns,
            Mig: self._on_mig,
        }
        self.contents: Callable[[Burst], Attributes | None] | None = None
        """Returns the attributes of a single event, including those in its body; None if nothing asks for
        attributes in bodies."""

    # --- entry points ---

    def receive(self, sender: str, message: Message, *, is_subscriber: bool = False) -> Outcome:
        """Handle a message from a neighbour, or from a subscriber or publisher that is connected here."""
        self._out = Outcome()
        subscriber: str | None = getattr(message, "subscriber", None)
        if subscriber is not None:
            self._looked_for[subscriber] = None
        peers = len(self.peers)
        self._handle(LOCAL if is_subscriber else sender, sender, message)
        if len(self.peers) != peers:
            self._look_for_all()
        self._flush()
        return self._out

    def migrate(self, old: str | None, new: str) -> Outcome:
        """Handle a new parent in the tree, or the same parent over a new link."""
        self._out = Outcome()
        if old is not None:
            self.peers.pop(old, None)
        self.peers[new] = None
        self._migrate(old, new)
        self._look_for_all()
        self._flush()
        return self._out

    def link_down(self, peer: str, unacknowledged: Sequence[Message] = ()) -> Outcome:
        """Handle the loss of a link, with the messages that the peer has not acknowledged."""
        self._out = Outcome()
        self.peers.pop(peer, None)
        left = self._left.pop(peer, {})
        for message in unacknowledged:
            if isinstance(message, Burst):
                for subscriber in self.matching(message):
                    if self.known[subscriber].way == peer or subscriber in left:
                        self._enqueue(subscriber, message)
            elif isinstance(message, Rep):
                for burst in message.bursts:
                    self._enqueue(message.subscriber, burst)
        self._flush()
        return self._out

    def detach(self, subscriber: str, unacknowledged: Sequence[Message] = ()) -> Outcome:
        """Disconnect a subscriber; unacknowledged events are stored until it returns."""
        self._out = Outcome()
        self.attached.pop(subscriber, None)
        again = [message for message in unacknowledged if isinstance(message, Burst)]
        seen = self._seen.get(subscriber, {})
        for burst in again:
            for identity in identities(burst):
                seen.pop(identity, None)
        if again:
            self.queues.setdefault(subscriber, Stored()).add_in_front(again)
            self._looked_for[subscriber] = None
        self._flush()
        return self._out

    # --- message handlers of the protocols ---

    def _handle(self, way: str, sender: str, message: Message) -> None:
        """Handle a message; `way` is the neighbour that sent it, or `LOCAL` for a client connected here."""
        handler = self._handlers.get(type(message))
        if handler is None:
            what = type(message).__name__
            raise InputError(f"{self.name} got {what} from {sender}, which it does not use")
        handler(way, message)

    def _migrate(self, old: str | None, new: str) -> None:
        raise NotImplementedError

    def _on_sub(self, way: str, message: Sub) -> None:
        raise NotImplementedError

    def _on_uns(self, way: str, message: Uns) -> None:
        raise NotImplementedError

    def _on_mig(self, way: str, message: Mig) -> None:
        raise NotImplementedError

    def _attach(self, message: Mig) -> None:
        """Connect a subscriber, and note which events it reports as received."""
        self.attached[message.subscriber] = None
        if message.had:
            self._seen.setdefault(message.subscriber, {}).update(dict.fromkeys(message.had))

    # --- events ---

    def _on_pub(self, way: str, burst: Burst) -> None:
        """Send the event once to every neighbour with an interested subscriber behind it; store what cannot
        be sent."""
        peers: dict[str, None] = {}
        for subscriber in self.matching(burst):
            towards = self.known[subscriber].way
            if towards == LOCAL:
                self._deliver(subscriber, burst)
            elif towards is None or towards not in self.peers:
                self._enqueue(subscriber, burst)
            elif towards != way:
                peers[towards] = None
        self._out.sends += [(peer, burst) for peer in peers]

    def _on_rep(self, way: str, message: Rep) -> None:
        """Send stored events along the current way to the subscriber."""
        subscriber = message.subscriber
        for burst in message.bursts:
            self._enqueue(subscriber, burst)
        if self.known[subscriber].way == way:
            self._returned[subscriber] = way

    def matching(self, burst: Burst) -> list[str]:
        inside = self.contents(burst) if self.contents is not None else None
        if inside is not None:
            return self._who_wants(inside)
        matched = self._matched.get(burst.attributes)
        if matched is None:
            if len(self._matched) >= MATCHED_KEPT_MAX:
                self._matched.clear()
            matched = self._matched[burst.attributes] = self._who_wants(decode_attributes(burst.attributes))
        return matched

    def _who_wants(self, attributes: Attributes) -> list[str]:
        return [
            subscriber
            for subscriber, known in self.known.items()
            if any(filter.matches(attributes) for filter in known.filters.values())
        ]

    def attributes_of(self, burst: Burst) -> Attributes:
        inside = self.contents(burst) if self.contents is not None else None
        return inside if inside is not None else decode_attributes(burst.attributes)

    def _deliver(self, subscriber: str, burst: Burst) -> None:
        """Deliver to a connected subscriber, except events that it has received."""
        if subscriber not in self.attached:
            self._enqueue(subscriber, burst)
            return
        seen = self._seen.setdefault(subscriber, {})
        for position, identity in enumerate(identities(burst)):
            if identity in seen:
                self._out.duplicates += 1
            else:
                seen[identity] = None
                self._out.to_subscribers.append((subscriber, burst.part(position, position + 1)))
        while len(seen) > self.settings.seen_max:
            del seen[next(iter(seen))]

    def _enqueue(self, subscriber: str, burst: Burst) -> None:
        known = self.known.setdefault(subscriber, Known(None))
        if known.timestamp and not known.filters:
            return  # The subscriber has left the network.
        self._looked_for[subscriber] = None
        self.taken_bytes += burst.held
        given_up = self.queues.setdefault(subscriber, Stored()).add(burst, self.settings.queue)
        self._out.dropped += [(subscriber, one) for one in given_up]

    def _flush(self) -> None:
        """sendQueuedMessages for every subscriber that can be reached; runs after all other effects of a
        message."""
        looked_for, self._looked_for = self._looked_for, {}
        for subscriber in [one for one in self._in_order(looked_for) if one in self.queues]:
            way = self.known[subscriber].way
            if way == LOCAL and subscriber in self.attached:
                for burst in self.queues.pop(subscriber):
                    self._deliver(subscriber, burst)
            elif way and way in self.peers and self._returned.get(subscriber) != way:
                self._out.sends.append((way, Rep(subscriber, tuple(self.queues.pop(subscriber)))))

    def _look_for_all(self) -> None:
        """Look for ways to all stored events after a neighbour was added."""
        self._looked_for.update(dict.fromkeys(self.queues))

    def _in_order(self, subscribers: dict[str, None]) -> Iterable[str]:
        """Return the subscribers in the order of their queues; usually one of many is asked for."""
        return [one for one in self.queues if one in subscribers] if len(subscribers) > 1 else subscribers

    # --- ways ---

    def _point(self, subscriber: str, way: str | None) -> None:
        """Set the way to the subscriber."""
        known = self.known[subscriber]
        if known.way and known.way != way:
            self._left.setdefault(known.way, {})[subscriber] = None
        known.way = way
        self._looked_for[subscriber] = None
        self._returned.pop(subscriber, None)

    def _set_filters(self, subscriber: str, filters: Iterable[Filter]) -> None:
        known = self.known[subscriber]
        known.filters = {filter.text: filter for filter in filters}
        self._filters_changed()
        if not known.filters:
            self.queues.pop(subscriber, None)
            self._forget_departed()

    def _filters_changed(self) -> None:
        self.changes += 1
        self._matched.clear()

    def _forget_departed(self) -> None:
        departed = [subscriber for subscriber, known in self.known.items() if not known.filters]
        for subscriber in departed[: -self.settings.departed_max or None]:
            del self.known[subscriber]
            self._filters_changed()
            self._returned.pop(subscriber, None)
            self._seen.pop(subscriber, None)

    def _send_others(self, way: str, message: Message) -> None:
        """Send to every neighbour except the sender."""
        self._out.sends += [(peer, message) for peer in self.peers if peer != way]

    # --- for observers ---

    def routes(self) -> dict[str, tuple[str | None, tuple[str, ...]]]:
        """Return, by subscriber, its way and subscriptions, for all that have subscriptions."""
        return {
            subscriber: (known.way, tuple(sorted(known.filters)))
            for subscriber, known in self.known.items()
            if known.filters
        }


def identities(burst: Burst) -> Iterable[Identity]:
    return ((burst.publisher, burst.incarnation, number) for number in range(burst.number, burst.last + 1))


# --- the registry ------------------------------------------------------------------------------------

MOBILE_PROTOCOLS: dict[str, type[MobileProtocol]] = {}
"""Registered protocols of brokers that move, by name."""


def register_mobile(protocol: type[MobileProtocol]) -> type[MobileProtocol]:
    MOBILE_PROTOCOLS[protocol.name] = protocol
    return protocol


def find_mobile_protocol(name: str) -> type[MobileProtocol]:
    try:
        return MOBILE_PROTOCOLS[name]
    except KeyError:
        valid = ", ".join(sorted(MOBILE_PROTOCOLS))
        raise InputError(f"protocol {name!r} of brokers that move: valid are {valid}") from None
