"""The messages of the base: routing, relaying, locating and the access link.

A mobility protocol adds its own beside them, in its own file, as further
subclasses of `Message`; the codec finds them by their tag.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from roamcast.filters.filter import Filter, Value
from roamcast.protocol.notification import Area, count_of
from roamcast.protocol.notification import Burst as Burst
from roamcast.protocol.notification import Cause as Cause
from roamcast.protocol.notification import ClientMessage as ClientMessage
from roamcast.protocol.notification import Command as Command
from roamcast.protocol.notification import Fleeting as Fleeting
from roamcast.protocol.notification import Message as Message
from roamcast.protocol.session import Session
from roamcast.protocol.whereabouts import Whereabouts

# --- between neighbouring brokers: routing --------------------------------------------------------

Entry = tuple[Filter, str]
"""A filter and its subscriber, which is "" where the strategy forgets identities."""


class Update(Message, frozen=True):
    """Changes to what the sender wants to receive (or, of advertisements, may send).

    Additions act before removals, so that replacing a filter by another opens no gap. `settle` asks for a
    `Settled` with the same number once every broker behind the receiver that must know of this and all
    earlier updates does; With `flush` that question travels to every broker, so all earlier messages have
    arrived before the answer.
    """

    area: ClassVar[Area] = "subscriptions"
    subscribe: tuple[Entry, ...] = ()
    unsubscribe: tuple[Entry, ...] = ()
    advertise: tuple[Filter, ...] = ()
    unadvertise: tuple[Filter, ...] = ()
    settle: int = 0
    flush: bool = False
    cause: Cause = "subscribe"
    whereabouts: tuple[Whereabouts, ...] = ()
    """Positions and state of clients that the sender's entries depend on."""
    strict: bool = False
    """True if the answer also waits for brokers whose links are down."""

    @property
    def weight(self) -> int:
        changes = len(self.subscribe) + len(self.unsubscribe) + len(self.advertise) + len(self.unadvertise)
        return changes + len(self.whereabouts) or 1

    @property
    def is_news(self) -> bool:
        """True if the update changes anything at the receiver."""
        return bool(
            self.subscribe or self.unsubscribe or self.advertise or self.unadvertise or self.whereabouts
        )


class Settled(Message, frozen=True):
    """The answer to `Update.settle`."""

    area: ClassVar[Area] = "subscriptions"
    number: int
    cause: Cause = "subscribe"


class Wrapper(Message, frozen=True, tag=False):
    """A message that carries another one, in its last field `message`, and is what that one is."""

    @property
    def cause(self) -> Cause:
        return cause_of(self.message)  # type: ignore[attr-defined]

    @property
    def weight(self) -> int:
        return self.message.weight  # type: ignore[attr-defined, no-any-return]

    @property
    def is_fleeting(self) -> bool:  # type: ignore[override]
        return self.message.is_fleeting  # type: ignore[attr-defined, no-any-return]

    @property
    def needs(self) -> int:
        return self.message.needs  # type: ignore[attr-defined, no-any-return]


class Relayed(Wrapper, frozen=True, tag="Relayed"):
    """A message for a broker that is not a neighbour, on its way along the overlay."""

    source: str
    destination: str
    message: Message


class About(Wrapper, frozen=True, tag="About"):
    """A message about a client, with the sender's knowledge of the client's state."""

    whereabouts: Whereabouts
    message: Message


class Probe(Message, frozen=True):
    """Measures the round trip of a link: the neighbour returns it at once."""

    area: ClassVar[Area] = "subscriptions"
    sent_at: float
    is_echo: bool = False
    cause: ClassVar[Cause] = "subscribe"


ATTACHED_AGAIN = "attached again"
ATTACHED_ELSEWHERE = "attached elsewhere"
NOT_THE_OWNER = "not the owner"
READ_IN_VAIN = "the copy was old"
"""Reason for closing a connection."""


# --- between brokers: locating a session and moving it --------------------------------------------


class AttachRequest(Message, frozen=True):
    """`broker` has the client attached and asks the holder for its session.

    With the broker, `connection` identifies the attach, so that a request that reaches the holder on two ways
    is served once. `moves` is the client's own count of attaches, or -1 if it keeps none: a request with a
    lower count than the session's is stale. `detours` counts how often the request was forwarded to another
    broker than the one that the client named. `deferred` says that its broker asked everyone, found no
    holder, and gave way to the receiver, which was asking, too.
    """

    client: str
    broker: str
    connection: int
    moves: int
    received: dict[str, int]
    detours: int = 0
    deferred: bool = False
    owner: str = ""
    """Authenticated owner of the client; a session is given only to its owner."""
    cause: ClassVar[Cause] = "handoff"


class Locate(Message, frozen=True):
    """An attach request on its way to every broker, because the holder is unknown.

    A broker may have to ask again for the same attach; `round` distinguishes the answers.
    """

    request: AttachRequest
    round: int
    may_leave_out: bool = False
    """True if brokers that are down may be skipped when no session is known there."""
    told: int = 0
    """Number of reports sent by the asking broker (see `broker.directory`)."""
    cause: ClassVar[Cause] = "handoff"


class Located(Message, frozen=True):
    """Answer to `Locate`: whether a broker behind the sender took the request; if not, the lowest broker that
    also asks, and the minimum incarnation of a new session."""

    client: str
    broker: str
    connection: int
    round: int
    found: bool
    claim: str = ""
    incarnation: int = 0
    left_out: tuple[str, ...] = ()
    """Brokers that could not be asked, and hold no session as far as known."""
    is_brief: bool = False
    """True if one of `left_out` may hold a session that ends with its client's connection."""
    may_hold: tuple[str, ...] = ()
    """Brokers that may hold the session, according to the brokers behind the sender."""
    cause: ClassVar[Cause] = "handoff"


class HolderUnknown(Message, frozen=True):
    """The broker that the client named as its last does not hold the session."""

    client: str
    connection: int
    cause: ClassVar[Cause] = "handoff"


class AttachRefused(Message, frozen=True):
    """The request was stale, because the client is attached elsewhere by now; or from another owner."""

    client: str
    connection: int
    reason: str = ATTACHED_ELSEWHERE
    cause: ClassVar[Cause] = "handoff"


class Grant(Message, frozen=True):
    """The session moves to the receiver, with the attach number in it.

    It travels along the overlay behind everything its sender has forwarded for
    the client, so it is also the marker that keeps a roaming publisher's order.
    """

    session: Session

    @property
    def cause(self) -> Cause:
        return "transfer" if self.session.owed else "handoff"

    @property
    def weight(self) -> int:
        return count_of(self.session.owed) or 1


class GrantReceived(Message, frozen=True):
    """The session has arrived; its former holder may forget its destination."""

    client: str
    number: int
    told: int = 0
    """Number of reports sent by the sender (see `broker.directory`)."""
    cause: ClassVar[Cause] = "handoff"


class GrantSought(Message, frozen=True):
    """Follows a session sent to a broker that is gone: `broker` asks where the session stopped.

    The broker at the end of the way answers with `GrantReceived`, whether the session is there or lost.
    """

    client: str
    number: int
    broker: str
    cause: ClassVar[Cause] = "handoff"


# --- commands of a broker to itself -----------------------------------------------------------------


class TakenBack(Command, frozen=True):
    """A session has come back, for the requests that wait for it."""

    client: str


class PeersExpected(Command, frozen=True):
    """Questions about sessions wait for these configured peers that were never met."""

    peers: tuple[str, ...] = ()


class TellHeld(Command, frozen=True):
    """Write records of the subscriptions of all sessions here, because possibly no log has them."""


class InPlaceOf(Command, frozen=True):
    """An answer of the border on behalf of a peer that is not asked."""

    peer: str
    message: Message


class Drain(Command, frozen=True):
    """Discard what is queued for a session that ends."""

    client: str


class LeftOut(Command, frozen=True):
    """The front did not send a notification to a client, as MQTT requires."""

    client: str
    burst: Burst
    reason: str


# --- on the access link, client to broker ---------------------------------------------------------


class Hello(ClientMessage, frozen=True):
    """First message of a client on a new connection.

    `received` says per stream the highest sequence that arrived. `last_broker` is the last broker of the
    client, or the one that this broker told the client to name instead; "" if the client does not know it.
    `fresh` is set by a client that never attached anywhere before, so that nobody needs to be asked. `clean`
    ends the session that is found, before a new one begins. `window` is the client's limit of unacknowledged
    notifications; 0 leaves it to the broker. `owner` is the authenticated owner.
    """

    client: str
    moves: int = -1
    received: dict[str, int] = msgspec.field(default_factory=dict)
    last_broker: str = ""
    fresh: bool = False
    clean: bool = False
    window: int = 0
    owner: str = ""


class ClientPublish(ClientMessage, frozen=True, gc=False):
    """Notifications, one for each body.

    The client numbers its requests, and repeats those that were not accepted. Each body counts as one
    request, from `request` on. With `request` 0 the notifications are QoS 0: they go only to attached
    subscribers (see `Fleeting`).
    """

    request: int
    attributes: bytes
    bodies: tuple[bytes, ...] = (b"",)
    marks: bytes = b""
    varied: tuple[bytes, ...] = ()
    """See `Burst.varied`."""

    @property
    def weight(self) -> int:
        return len(self.bodies)


ChangeKind = Literal["Subscribe", "Unsubscribe", "Advertise", "Unadvertise", "Move"]
"""The change that a request makes. Sessions carry these words between brokers (`deferred`), so they never
change."""


class ClientSubscribe(ClientMessage, frozen=True):
    request: int
    filter: Filter
    kind: ClassVar[ChangeKind] = "Subscribe"


class ClientUnsubscribe(ClientMessage, frozen=True):
    request: int
    filter: Filter
    kind: ClassVar[ChangeKind] = "Unsubscribe"


class Advertise(ClientMessage, frozen=True):
    request: int
    filter: Filter
    kind: ClassVar[ChangeKind] = "Advertise"


class Unadvertise(ClientMessage, frozen=True):
    request: int
    filter: Filter
    kind: ClassVar[ChangeKind] = "Unadvertise"


class Move(ClientMessage, frozen=True):
    """The client's own state has changed: the new values of variables such as `location`.

    `late`: it changed while the client was away, perhaps long ago and more than once.
    """

    request: int
    values: dict[str, Value]
    late: bool = False
    kind: ClassVar[ChangeKind] = "Move"


Request = ClientPublish | ClientSubscribe | ClientUnsubscribe | Advertise | Unadvertise | Move
"""Messages that a client numbers, and repeats until accepted."""


class Acknowledge(ClientMessage, frozen=True, gc=False):
    """Everything of `stream` up to `sequence` has arrived."""

    stream: str
    sequence: int


class Leave(ClientMessage, frozen=True):
    """The client announces where it goes (a proclaimed move)."""

    destination: str
    received: dict[str, int] = msgspec.field(default_factory=dict)


# --- on the access link, broker to client ---------------------------------------------------------


class Welcome(ClientMessage, frozen=True):
    """The session is here. Requests up to `accepted` need not be repeated.

    `named_next` is the broker that the client names as its last when it attaches next.
    """

    number: int
    accepted: int
    named_next: str = ""
    copied: int = 0
    """See `Session.copied`."""


class Deliver(ClientMessage, frozen=True, gc=False):
    """A burst for the client; its notifications have the sequences from `sequence` on."""

    stream: str
    sequence: int
    burst: Burst

    @property
    def weight(self) -> int:
        return self.burst.count


class Accepted(ClientMessage, frozen=True):
    """The broker has accepted every request up to this number."""

    request: int


class RequestRefused(ClientMessage, frozen=True):
    """An accepted request cannot be carried out, for this reason."""

    request: int
    reason: str


class SubscriptionSettled(ClientMessage, frozen=True):
    """A subscription, unsubscription, advertisement or move is known to all brokers that need it."""

    request: int


def cause_of(message: Message) -> Cause:
    cause: Cause = message.cause  # type: ignore[attr-defined]
    return cause


def told(message: Message) -> str:
    """Return the message's type and content, for errors."""
    inner = message
    while isinstance(inner, Relayed | About):
        inner = inner.message
    burst = getattr(inner, "burst", None)
    return type(inner).__name__ + (f" with a {type(burst).__name__}" if burst is not None else "")


def client_of(message: Message) -> str:
    """Return the client that a message between brokers is about; "" if none."""
    session = getattr(message, "session", None)
    client: str = getattr(message, "client", "") or getattr(message, "subscriber", "")
    return session.client if isinstance(session, Session) else client
