"""The interface of a mobility protocol, and the plain behaviour that protocols change.

A protocol is one class in one file. It is called through a handful of `on_…` methods
and acts through its `Host`, the broker it lives in. It has no clock, no socket and no
source of randomness. What every protocol may rely on is done by the host before it
calls: the session has been located and has arrived, stale attaches have been refused,
a client's own subscriptions are settled before its session departs, and messages
travel along the overlay without overtaking.

The base class is reverse-path routing that stores nothing for clients that are away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import ClassVar, NamedTuple, Protocol

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility.moving.mobile import MOBILE_PROTOCOLS
from roamcast.protocol.messages import Cause, Hello, Message, Update
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import Buffer, DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import STRATEGIES, Owner, Token
from roamcast.state import State

STREAM = "session"
"""Name of the sequence numbers that all brokers share: at the next broker they continue after the last one
used."""

ASSUMPTIONS = {
    "bounded_delay": "a bound on the overlay's delay",
    "honest_peers": "every broker following the protocol",
}
"""Conditions that a protocol may require beyond what every driver provides; some faults break them."""


class Promise(msgspec.Struct, frozen=True):
    """Which failures a protocol may show, and the excuse for each; a failure without excuse is a violation.

    lost: `away` (published while the client was away, or within one propagation delay of either edge),
    `remainder` (still stored at a broker where the client is not), `overflow` (a full buffer or cache gave it
    up), `expired` (it grew too old in a cache), `in_transit` (a broker gave it up for a client that was not
    attached there, at most a round trip after noticing that), `move_in` (published within one propagation
    delay of a move-in, before or after), or any other reason for which brokers say that they dropped it.
    duplicate, reordered, stale: `another_broker` (the earlier or newer one, or the unsubscription, went
    through another broker), for duplicates also `move_in`, and for reordered ones `replayed` (published
    before the last move-in was known everywhere). A notification is stale if it was published after the
    unsubscription had settled.
    """

    lost: frozenset[str] = frozenset()
    duplicate: frozenset[str] = frozenset()
    reordered: frozenset[str] = frozenset()
    stale: frozenset[str] = frozenset()
    remainder: bool = False
    """True if notifications may stay stored for a client that is attached elsewhere."""


class Settings(msgspec.Struct, frozen=True):
    """Settings of mobility protocols; each protocol reads those that concern it."""

    delay_bound_s: float | None = None
    """Upper bound, in seconds, of the time that a message takes between any two brokers."""
    cache_notifications: int | None = None
    """Maximum of notifications in the cache of one client; beyond it the oldest is overwritten."""
    cache_ttl_s: float | None = None
    """Maximum age of a cached notification, in seconds; "none": unlimited."""
    neighbour_graph: str = ""
    """Where clients go next, as JSON: {"brokers": {"a": {"b": {"probability": 0.4}}}}; "": not known yet."""
    neighbours_max: int | None = 8
    """Maximum of neighbours of one broker; beyond it the least recently used one is evicted."""
    neighbours_mass: float = 1.0
    """Limit a client's neighbours to those that make up this probability, if a model gives probabilities."""
    neighbours_online: bool = True
    """True if observed moves change the graph; otherwise it stays as given."""
    neighbours_directed: bool = False
    """True if a move from here to there says nothing about moves in the other direction."""
    neighbour_timeout_s: float | None = 3600.0
    """Seconds without a move to a neighbour after which the neighbour is forgotten; "none": never."""
    context_timeout_s: float | None = 600.0
    """Seconds that neighbours store for an absent client; after that only its last broker does."""
    heartbeat_period_s: float | None = None
    """Seconds between heartbeats of neighbours that store for each other's clients; "none": no heartbeats."""
    heartbeats_missed_max: int = 3
    """Periods without any message after which a neighbour counts as failed."""
    copies_max: int = 6
    """Maximum of brokers with a copy of one client's queue: those where it is likely to appear."""
    copies_after_s: float | None = None
    """Seconds that a client stays before its copies begin; "none": when it leaves."""
    copies_for_s: float | None = 14_400.0
    """Seconds that copies are kept for an absent client; "none": as long as its session."""
    copy_bytes_max: int = 1 << 20
    """Maximum size of one copy, in bytes; it holds the head of the queue."""
    fetch_max: int = 64
    """Notifications fetched at a time for a client that reads without pause; at least 64."""


class OwnToken(NamedTuple):
    """Token made by the protocol itself: its settlement is reported to `on_settled`."""

    token: Token


class Host(Protocol):
    """Functions that a broker provides to its protocol."""

    @property
    def id(self) -> str: ...
    @property
    def now(self) -> float: ...
    @property
    def buffer(self) -> Buffer: ...

    def send(self, broker: str, message: Message) -> None:
        """Send to any broker, relayed along the overlay, in order with all other traffic."""

    def subscribe(
        self,
        owner: Owner,
        filter: Filter,
        issued_at: float,
        cause: Cause = "handoff",
        token: Token | None = None,
    ) -> None:
        """Route matching notifications to this owner; an owner's first element is the client."""

    def unsubscribe(
        self, owner: Owner, filter: Filter, cause: Cause = "handoff", token: Token | None = None
    ) -> None: ...

    def relocate(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        source: str | Owner,
        target: str | Owner,
        update: Update | None = None,
    ) -> Update | None:
        """Move a client's subscriptions (text to time of issue) over one link; see `Router.relocate`."""

    def end_relocation(self, subscriptions: Mapping[str, float], client: str, peer: str) -> None:
        """End the relocation after the broker that the peer relocated from is gone; see
        `Router.end_relocation`."""

    def direction(
        self, subscriptions: Mapping[str, float], client: str, subscriber: str
    ) -> str | Owner | None:
        """The peer or local owner to which entries of the subscriber point; None if there are none.

        The client is the subscriber, unless its protocol has another name for it (`subscriber_of`).
        """

    def way_to(self, client: str, client_named: Callable[[str], str]) -> str | Owner | None:
        """Return where entries of the client lead; see `Router.way_to`."""

    def divert(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        subscriber: str,
        target: str | Owner,
        onward: str | None,
        update: Update | None = None,
    ) -> Update | None:
        """Send what the client wants to another place, and nowhere else; see `Router.divert`."""

    def withdraw(
        self,
        subscriptions: Mapping[str, float],
        client: str,
        subscriber: str,
        source: str | Owner,
        onward: str | None,
        update: Update | None = None,
        last: bool = True,
    ) -> Update | None:
        """Withdraw the entries that the client left behind; see `Router.withdraw`."""

    def listen(self, owner: Owner, filter: Filter, issued_at: float) -> None:
        """Receive matching notifications that pass through this broker, without telling any peer."""

    def unlisten(self, owner: Owner, filter: Filter) -> None: ...

    def next_hop(self, broker: str) -> str:
        """Return the peer towards another broker; this broker's id if the broker is gone and its path ended
        here."""

    def is_reachable(self, broker: str) -> bool:
        """True if the broker is this one, or is not gone."""

    def is_attached(self, client: str) -> bool:
        """True if the client is connected to this broker and its session is here."""

    def settled(self, token: Token) -> None:
        """Report that the subject of the token needs no more settling."""

    def hand_over(self, session: Session, destination: str) -> None:
        """Send the session to the broker that asked for it."""

    def release(self, session: Session, destination: str) -> None:
        """Release the session to the protocol, which carries it to the destination itself."""

    def adopt(self, session: Session, reads_on: bool = False) -> None:
        """Take over a session that the protocol carried here; calls `on_attach`. With `reads_on`, the
        session's queue is the one that the client already reads, or has read, ahead of its session."""

    def send_home(self, client: str, number: int) -> None:
        """Send the session to the broker where its client will ask for it (`named_next`), unless a client
        attached or a broker asked for it since this attach number."""

    @property
    def own_members(self) -> list[str]:
        """Return every reachable broker of this organisation, including this one."""

    def capsule_for(self, session: Session, brokers: Collection[str]) -> bytes:
        """Return the data that the access side of these brokers needs to serve the client from a copy; empty
        if a copy must not serve it."""

    def read_ahead(self, client: str, queue: DeliveryQueue, holder: str = "", capsule: bytes = b"") -> bool:
        """Let an attached client read from a copy, if permitted, until its session arrives.

        Without a capsule, this is permitted only if the client reports what it has
        received.
        """

    def ask_too(self, client: str, broker: str) -> None:
        """Ask this broker, too, for the session of a client, if the session is being sought."""

    def take_back(self, session: Session) -> None:
        """Adopt a session that cannot reach the broker that asked for it."""

    def handoff_finished(self, client: str) -> None:
        """Report that the client's subscriptions and undelivered notifications now live here."""

    def deliver_from(self, client: str, queue: DeliveryQueue) -> None:
        """Deliver from this queue to the attached client until it detaches."""

    def is_read(self, client: str, queue: DeliveryQueue) -> bool:
        """True if the client is attached and reads from this queue, with or without its session here."""

    def pump(self, client: str) -> None:
        """Deliver what was added to the queue that the client reads from."""

    def pass_to(self, client: str, queue: DeliveryQueue, burst: Burst) -> None:
        """Add a burst to a queue; send it at once if the client reads from this queue."""

    def set_timer(self, at: float, token: Token) -> None:
        """Call `on_deadline(token)` at that time, or soon after."""

    def dropped(self, client: str, burst: Burst, reason: str) -> None:
        """Log that notifications for the client are dropped here."""


class MobilityProtocol:
    """Plain reverse-path routing: subscribed while attached, forgotten when away."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    is_as_published: ClassVar[bool] = False
    """True if the protocol keeps a rule of its document that breaks the document's own promise; for
    comparison."""
    promise: ClassVar[Promise] = Promise(lost=frozenset({"away", "overflow"}))
    strategies: ClassVar[tuple[str, ...]] = ("identity", "simple", "covering", "merging", "flooding")
    """Routing strategies the protocol works with; the first is its default."""
    locates: ClassVar[bool] = False
    """True if the protocol must know whose subscription an entry is, which most strategies forget: routing
    then keeps a location table beside the matching table."""
    advertisements: ClassVar[bool] = True
    """True if the protocol works where subscriptions travel only towards advertisements."""
    assumes: ClassVar[frozenset[str]] = frozenset()
    """Members of `ASSUMPTIONS` that the protocol's promise needs."""
    has_heartbeats: ClassVar[bool] = False
    """True if the protocol's brokers can watch each other with heartbeats; the fuzzer then draws that setting
    with faults."""
    draws_copies: ClassVar[bool] = False
    """True if copies depend on the settings `copies_…`; the fuzzer then draws those settings."""
    takes_back: ClassVar[bool] = False
    """True if a session on its way to a broker that is gone can continue at another broker."""
    follows_routes: ClassVar[bool] = False
    """True if a session is sought along its trail first, instead of at the broker that the client names."""
    keeps_sessions: ClassVar[bool] = True
    """True if the protocol keeps the session of a client that is away; otherwise only the client's name, and
    the broker stores the session as bytes."""
    luggage_type: ClassVar[object] = None
    """Type of the luggage of a session that comes from another broker; None if sessions have none."""
    own_state: ClassVar[bool] = True
    """True if the protocol works with filters on the client's own state: except during a handoff, the broker
    that holds the session must be the one that matches notifications for the client."""

    __state__ = State("mobility-protocol", saved=("host", "settings", "queues", "taken_back"))

    def __init__(self, host: Host, settings: Settings) -> None:
        self.host = host
        self.settings = settings
        self.queues: dict[str, DeliveryQueue] = {}
        self.taken_back: dict[Owner, None] = {}
        """Local owners that were elsewhere when bursts now coming back were sent: these bursts are owed to
        them."""

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Refuse settings that this protocol cannot work with."""

    def configure(self, settings: Settings) -> None:
        """Apply settings at a start, or the model of where clients go at a reload."""
        before, self.settings = self.settings, settings
        if settings != before:
            self.take_settings(settings)
        if settings.neighbour_graph != before.neighbour_graph:
            self.take_model(settings.neighbour_graph)

    def take_settings(self, settings: Settings) -> None:
        """Apply settings that are not read from `self.settings` when they are needed."""

    def take_model(self, model: str) -> None:
        """Use this model from now on, together with observed moves; "" is none."""

    # --- the hooks ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        """Take the client's session: new (""), unchanged (this broker's id), or from another broker."""
        client, host = session.client, self.host
        self.queues[client] = DeliveryQueue(host.id, received.get(host.id, 0), host.buffer)
        self.subscribe_all((client,), session.subscriptions)
        host.deliver_from(client, self.queues[client])
        host.handoff_finished(client)

    def on_detach(self, session: Session) -> None:
        """The client's connection has ended."""
        self.give_up(session.client, self.queues.pop(session.client).drain(), "away")
        self.unsubscribe_all((session.client,), session.subscriptions)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        """The client is attached at another broker, which asks for the session, and not attached here."""
        self.host.hand_over(session, destination)

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        """Let a copy serve a client that is attached here while its session is elsewhere.

        This is the only hook that runs before the session arrives. Returns what the request for the
        session will report as received; with `is_asked`, a request for an earlier attach here is
        already on its way.
        """
        return hello.received

    def holder_of(self, client: str) -> str:
        """Return the last known holder of a session that is not here, according to a copy; "" if unknown."""
        return ""

    def end_copies(self, session: Session) -> None:
        """Withdraw all copies of a session that is about to end, whichever stay they belong to."""

    def on_end(self, session: Session) -> None:
        """The session has ended, with nothing owed to it and no handoff under way."""
        owner = self.owner_of(session)
        if owner is not None:
            self.unsubscribe_all(owner, session.subscriptions, "subscribe")
        self.queues.pop(session.client, None)

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        """A notification for a local owner, from a peer or from a client of this broker."""
        queue = self.queues.get(owner[0])
        if queue is not None:
            self.host.pass_to(owner[0], queue, burst)

    def on_subscribe(self, session: Session, filter: Filter, token: Token) -> None:
        """The client asked for a subscription; return the token when it has settled."""
        owner = self.owner_of(session)
        if owner is not None:
            self.host.subscribe(owner, filter, self.host.now, "subscribe", token)
        else:
            # The session has left since the client asked; nothing is routed here for it.
            self.host.settled(token)

    def on_unsubscribe(self, session: Session, filter: Filter, token: Token) -> None:
        owner = self.owner_of(session)
        if owner is not None:
            self.host.unsubscribe(owner, filter, "subscribe", token)
        else:
            self.host.settled(token)

    def on_acknowledged(self, client: str) -> None:
        """The attached client has acknowledged something, so its queue has room for more."""

    def awaits_acknowledgement(self, client: str) -> bool:
        """True if more is fetched for the client as soon as it has acknowledged something."""
        return False

    def on_message(self, sender: str, message: Message) -> None:
        """One of the protocol's own messages; `sender` may be any broker.

        The method named after the message handles it: `on_deliver_tq` handles
        `DeliverTQ`.
        """
        handler = getattr(self, _handler_of(type(message)), None)
        if handler is None:
            raise InputError(f"{self.name} got {type(message).__name__} from {sender}, which it does not use")
        handler(sender, message)

    def has_handler(self, kind: type[Message]) -> bool:
        """Whether messages of this type are among the protocol's own."""
        return hasattr(self, _handler_of(kind))

    def can_unpack(self, session: Session) -> bool:
        """True if the luggage of a session that comes from another broker can be read."""
        try:
            if self.luggage_type is not None:
                msgspec.msgpack.decode(session.luggage, type=self.luggage_type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return True

    def expects(self, sender: str, message: Message) -> bool:
        """True if one of the protocol's own messages is plausible, given what is known here.

        The border calls this for messages of peers; a refused message never reaches
        `on_message`.
        """
        return True

    def on_undeliverable(self, message: Message) -> bool:
        """Handle a message whose destination is gone for good; returns whether something was saved.

        Messages come in the order in which they were sent. A `Grant` does not come here: see
        `takes_back`.
        """
        return False

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        """These brokers, some of them peers, are gone for good: nothing more comes from them."""

    def on_drain(self) -> None:
        """An operator drains some broker: fetch the notifications that wait elsewhere for sessions that are
        here.

        Without this hook, a protocol that fetches while the client reads leaves notifications behind while
        the client is away.
        """

    def on_settled(self, token: Token) -> None:
        """A subscription or unsubscription that the protocol gave an `OwnToken` has settled."""
        raise InputError(f"{self.name} gave no token {token!r}")

    def on_deadline(self, token: Token) -> None:
        """A timer set by this protocol."""
        raise InputError(f"{self.name} set no timer {token!r}")

    # --- for protocols and observers ---

    def owner_of(self, session: Session) -> Owner | None:
        """The local owner to whom the client's notifications are routed, if there is one."""
        return (session.client,) if session.client in self.queues else None

    def keeps_for(self, session: Session) -> bool:
        """True if notifications for the client are stored here already; False while its session is ahead of
        them."""
        return True

    def named_next(self, session: Session) -> str:
        """Return the broker that the client is to name when it attaches next."""
        return self.host.id

    def trail_of(self, client: str) -> str:
        """Return where a session that is not here may be; "" if unknown."""
        return ""

    def subscriber_of(self, owner: Owner) -> str:
        """Return the name under which other brokers know the entries of a local owner."""
        client: str = owner[0]
        return client

    def subscribe_all(self, owner: Owner, subscriptions: Mapping[str, float]) -> None:
        for text, issued_at in subscriptions.items():
            self.host.subscribe(owner, parse(text), issued_at)

    def unsubscribe_all(self, owner: Owner, filters: Iterable[str], cause: Cause = "handoff") -> None:
        for text in filters:
            self.host.unsubscribe(owner, parse(text), cause)

    def give_up(self, client: str, bursts: Iterable[Burst], reason: str) -> None:
        for burst in bursts:
            self.host.dropped(client, burst, reason)

    def begin_delivery(self, client: str, queue: DeliveryQueue, received: int) -> None:
        """End the handoff: deliver from this queue what the client has not received."""
        queue.rewind(received)
        self.host.deliver_from(client, queue)
        self.host.handoff_finished(client)

    def likely_next(self, session: Session) -> list[str]:
        """Return where the client is expected next, most likely first; for operators and steering."""
        return []

    def keep(self, queue: DeliveryQueue, client: str, burst: Burst) -> None:
        """Queue a burst; notifications that a full queue or broker buffer gives up are dropped."""
        for evicted_from, evicted in queue.append(burst):
            whose = client if evicted_from is queue else self.client_of(evicted_from) or client
            self.host.dropped(whose, evicted, "overflow")

    def client_of(self, queue: DeliveryQueue) -> str | None:
        return next((client for client, held in self.stored() if held is queue), None)

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        """Return every queue at this broker and its client."""
        yield from self.queues.items()


def newer_part(burst: Burst, last: tuple[int, int] | None) -> Burst | None:
    """Return the part of a burst after its publisher's last notification (incarnation and number).

    Bursts that were picked for the client are returned whole, because they come in no order.
    """
    if burst.is_picked or last is None or (burst.incarnation, burst.number) > last:
        return burst
    return burst.tail(last[1] - burst.number + 1) if (burst.incarnation, burst.last) > last else None


def last_numbers(bursts: Iterable[Burst]) -> dict[str, tuple[int, int]]:
    """Return, by publisher, incarnation and number of its last routed notification."""
    return {burst.publisher: (burst.incarnation, burst.last) for burst in bursts if not burst.is_picked}


def queue_of(bursts: Iterable[Burst]) -> DeliveryQueue:
    """Wrap bursts in a queue, for observers."""
    queue = DeliveryQueue(STREAM)
    queue.extend(bursts)
    return queue


@cache
def _handler_of(message: type[Message]) -> str:
    return "on_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", message.__name__).lower()


PROTOCOLS: dict[str, type[MobilityProtocol]] = {}
"""Registered protocols by name."""


def register(protocol: type[MobilityProtocol]) -> type[MobilityProtocol]:
    """Make a protocol known under its name."""
    PROTOCOLS[protocol.name] = protocol
    return protocol


def find_protocol(name: str) -> type[MobilityProtocol]:
    try:
        return PROTOCOLS[name]
    except KeyError:
        why = " is for brokers that move, which this is not for" if name in MOBILE_PROTOCOLS else ""
        valid = ", ".join(sorted(PROTOCOLS))
        raise InputError(f"mobility protocol {name!r}{why}: valid are {valid}") from None


def check_combination(protocol: type[MobilityProtocol], strategy: str, advertisements: bool = False) -> None:
    """Refuse a routing strategy that the protocol does not declare."""
    if advertisements and not protocol.advertisements:
        raise InputError(f"protocol {protocol.name} does not work with advertisements: leave them off")
    if strategy not in STRATEGIES:
        raise InputError(f"routing strategy {strategy!r}: valid are {', '.join(STRATEGIES)}")
    # Entries forwarded on behalf of no subscriber do no harm, unless the protocol turns entries round.
    works_as = "merging" if strategy == "lazy_merging" and not protocol.locates else strategy
    if works_as not in protocol.strategies:
        raise InputError(
            f"protocol {protocol.name} does not work with {strategy} routing: "
            f"valid are {', '.join(protocol.strategies)}"
        )
