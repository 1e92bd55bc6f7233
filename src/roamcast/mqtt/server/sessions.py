"""MQTT state of a client: subscriptions with their options, packet ids, expiry.

The state is at the broker of the session, and travels as the session's capsule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Attributes
from roamcast.mqtt.codec.bursts import FrameWriter
from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.choosing import Chooser, asks_more, may_want
from roamcast.mqtt.server.in_flight import InFlight, PackedInFlight
from roamcast.mqtt.server.marks import QOS
from roamcast.mqtt.server.plausible import check_capsule
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

NEVER = 0xFFFF_FFFF
"""Session expiry without limit."""

PROVISIONAL = "\0provisional/"
"""Prefix of the name of a stand-in session, for one that cannot be reached; client ids contain no null."""


def client_of(name: str) -> str:
    """Return the client whose session, or stand-in session, has this name."""
    return name.removeprefix(PROVISIONAL)


def public_name(name: str) -> str:
    """Return the name of a session for clients and logs. As publishers, a stand-in and its client differ:
    both number their publishes."""
    return f"{client_of(name)} (stand-in)" if name.startswith(PROVISIONAL) else name


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a SUBSCRIBE."""

    name: str
    """Topic filter as the client wrote it; the key of the subscription."""
    filter: str
    """The filter of the core, as text."""
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    group: str = ""
    """Group of a shared subscription."""
    identity: bool = False
    """True if the client requests publisher and number of each notification."""


SUBSCRIPTION_BYTES = 2048
LEVEL_BYTES = 160
CHARACTER_BYTES = 3
"""Memory of a subscription, in all its places, and of each level and each character of its topic filter."""

CONDITION_BYTES = 150
"""Memory of each character of its conditions: they are kept parsed, and in the index."""

TOPIC_WORDS = len("topic MATCHES ''")
"""Length of a filter without conditions, apart from the topic filter."""


LEAVING_BYTES, LEAVING_BYTES_MAX = 200, 1 << 20
"""Memory of a filter that is being withdrawn, besides its text, and the limit for all those of a session."""


def subscription_bytes(subscription: Subscription) -> int:
    """Return the memory of a subscription."""
    name = subscription.name
    conditions = max(0, len(subscription.filter) - len(name) - TOPIC_WORDS)
    of_topic = LEVEL_BYTES * name.count("/") + CHARACTER_BYTES * len(name)
    return SUBSCRIPTION_BYTES + of_topic + CONDITION_BYTES * conditions


class Plan(NamedTuple):
    """How bursts of one kind are sent to a client, without examining each."""

    qos: int
    options: Options
    writer: FrameWriter


class Options(NamedTuple):
    """How a notification is to be sent to one client."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    identity: bool = False
    """True to add publisher and number: each notification then has its own properties."""


Plans = dict[tuple[bytes, bytes, bool], Plan]
"""Plans by attributes, marks, and whether the client published the burst itself."""
NO_PLANS: Plans = {}
"""Shared by all sessions without plans, and never filled."""


class Recall(msgspec.Struct, frozen=True, array_like=True):
    """The remaining part of a recall of retained messages for a new subscription."""

    name: str
    """Name of the subscription."""
    filter: str
    qos: int
    identifier: int | None
    no_local: bool
    clock: tuple[float, int] = (0.0, 0)
    """Messages stamped later are delivered without the recall."""
    since: int = 0
    """Messages that came to this broker after this change are delivered without the recall."""
    onward: str = ""
    """Key in the order of topics at which the recall continues."""


def recall_of(subscription: Subscription) -> Recall:
    one = subscription
    return Recall(one.name, one.filter, one.qos, one.identifier, one.no_local)


class Capsule(msgspec.Struct, frozen=True, array_like=True):
    expiry_s: int
    subscriptions: list[Subscription]
    in_flight: PackedInFlight
    received: list[int]
    """Packet ids of QoS 2 publishes that the client has not released."""
    since: float = 0.0
    """Time when the client left; 0 if it was connected until its session was called away."""
    will: Will | None = None
    will_at: float = 0.0
    hides_own: bool = False
    leaving: dict[str, list[str]] = {}
    silent: dict[str, int] = {}
    identity: Identity | None = None
    recalls: list[Recall] = []


class NamedCapsule(Capsule, frozen=True, array_like=True):
    """Capsule of a client that reports in CONNECT what it has received; other capsules omit the field, as
    before."""

    told: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(NamedCapsule).decode


def _lift_1(fields: dict[str, Any]) -> None:
    fields["hides_own"], fields["leaving"], fields["silent"] = False, {}, {}


def _lift_2(fields: dict[str, Any]) -> None:
    fields["identity"], fields["owner"] = None, ""


def _lift_3(fields: dict[str, Any]) -> None:
    fields["copied_from"], fields["again_to"] = b"", 0


def _lift_4(fields: dict[str, Any]) -> None:
    fields["told"] = ""


class MqttSession:
    __state__ = State(
        "mqtt-session",
        5,
        derived=("_chooser", "_filters", "_identities", "_leaving_bytes", "plans", "subscriptions_bytes"),
        lifts={1: _lift_1, 2: _lift_2, 3: _lift_3, 4: _lift_4},
    )
    __slots__ = (
        "_chooser", "_filters", "_identities", "_leaving_bytes",
        "again_to", "client", "connection", "copied_from", "expiry_s", "hides_own", "identity", "in_flight",
        "leaving", "owner", "plans", "received", "silent", "since", "stream", "subscriptions",
        "subscriptions_bytes", "timer", "told", "will", "will_at", "will_timer",
    )  # fmt: skip

    def __init__(self, client: str, capsule: NamedCapsule | None = None, owner: str = "") -> None:
        self.client = client
        self.owner = owner
        self.identity: Identity | None = None
        """Identity of the last connection; access rules apply to it while the client is absent."""
        self.connection = 0
        """Current connection of the client; 0 while it is absent."""
        self.since = 0.0
        """Time when the client came or left."""
        self.timer = 0
        """Number of the timer that ends the session; an older timer has no effect."""
        self.will_timer = 0
        self.will: Will | None = None
        """Will that came with the session, published unless the client returns in time."""
        self.will_at = 0.0
        self.expiry_s = 0
        self.copied_from = b""
        """Capsule of the copy that serves the client, while it reads ahead of its session."""
        self.again_to = 0
        """Sequence up to which a copy may have sent messages before: they are marked as duplicates."""
        self.told = ""
        """Name of the connection in the last CONNACK, for a client that reports what it has received."""
        self.hides_own = False
        """True if some subscription ever excluded the client's own publishes; applies to its queued
        notifications even after it ended."""
        self.leaving: dict[str, list[str]] = {}
        """Topic filter to the core's filters being withdrawn, because the subscription ended or was replaced;
        kept until the client is answered."""
        self.silent: dict[str, int] = {}
        """Core's filters whose withdrawal the client was told of before all brokers know, with the requests
        to withdraw them. Nothing is sent because of them."""
        self.subscriptions: dict[str, Subscription] = {}
        self.in_flight = InFlight(capsule.in_flight if capsule is not None else None)
        self.received: dict[int, None] = {}
        self.stream = ""
        """The stream of the core's access link being delivered."""
        if capsule is not None:
            self.expiry_s = capsule.expiry_s
            self.subscriptions = {one.name: one for one in capsule.subscriptions}
            self.received = dict.fromkeys(capsule.received)
            self.since, self.will, self.will_at = capsule.since, capsule.will, capsule.will_at
            self.hides_own, self.leaving = capsule.hides_own, capsule.leaving
            self.silent, self.identity = dict(capsule.silent), capsule.identity
            self.told = capsule.told
        self._restore()

    def _restore(self) -> None:
        self.subscriptions_bytes = 0
        """Memory of the subscriptions."""
        self._identities = 0
        """Number of subscriptions that request identities."""
        self._filters: dict[str, int] = {}
        """Filters subscribed at the core, with the number of subscriptions that need each."""
        for subscription in self.subscriptions.values():
            self._count(subscription, +1)
        self._leaving_bytes = 0
        for filters in self.leaving.values():
            self._leaving_bytes += sum(LEAVING_BYTES + len(filter) for filter in filters)
        self.plans: Plans = NO_PLANS
        """Plans by attributes, marks, and whether the client published the burst itself, for the current
        connection."""
        self._chooser: Chooser | None = None
        """Made on demand, and dropped when the client leaves."""

    def pack(
        self, will: Will | None = None, will_at: float = 0.0, recalls: list[Recall] | None = None
    ) -> bytes:
        """Pack the session for travel, with its pending will and remaining recalls."""
        return _encode(self.packed(list(self.subscriptions.values()), will, will_at, recalls))

    def packed(
        self,
        subscriptions: list[Subscription],
        will: Will | None = None,
        will_at: float = 0.0,
        recalls: list[Recall] | None = None,
    ) -> Capsule:
        received = list(self.received)
        since = 0.0 if self.connection else self.since
        kind, more = (NamedCapsule, (self.told,)) if self.told else (Capsule, ())
        return kind(
            self.expiry_s, subscriptions, self.in_flight.pack(), received, since, will, will_at,
            self.hides_own, self.leaving, self.silent, self.identity, recalls or [], *more,
        )  # fmt: skip

    @classmethod
    def unpack(cls, client: str, capsule: bytes, owner: str = "") -> tuple[MqttSession, list[Recall]]:
        try:
            unpacked = _decode(capsule)
            check_capsule(unpacked)
            return cls(client, unpacked, owner), unpacked.recalls
        except (InputError, msgspec.MsgspecError) as error:
            raise InputError(f"the session of {client!r} came with a malformed capsule: {error}") from None

    @property
    def is_unused(self) -> bool:
        """True if the client never requested anything nor received anything that it may miss."""
        used = self.subscriptions or self.leaving or self.received or self.stream or self.in_flight.resend
        return not used

    @property
    def is_idle(self) -> bool:
        """True if the client is absent, and would miss nothing of the session."""
        return self.is_unused and not self.connection

    # --- copies ---

    @property
    def may_be_copied(self) -> bool:
        """True if an outdated copy of this session may serve its client: duplicates are possible (unless the
        client reports what it has received), and the client's answers cannot change the session."""
        has_group = any(one.group for one in self.subscriptions.values())
        is_in_doubt = self.leaving or self.silent or (self.has_qos_2 and not self.told)
        return not (has_group or is_in_doubt or self.connection) and self.expiry_s > 0

    @property
    def has_qos_2(self) -> bool:
        """True if a QoS 2 exchange is unfinished, in either direction."""
        return bool(self.received) or self.in_flight.has_qos_2

    def is_copied_from(self, capsule: bytes) -> bool:
        """True if the arrived session is the copied one, unchanged."""
        came, copied = (
            msgspec.structs.replace(_decode(one), will=None, will_at=0.0, recalls=[])
            for one in (capsule, self.copied_from)
        )
        return came == copied

    def is_over(self, now: float) -> bool:
        """True if the client has been absent for longer than its session lasts."""
        return self.expiry_s != NEVER and self.since + self.expiry_s <= now

    # --- subscriptions ---

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace."""
        former = self.subscriptions.get(subscription.name)
        self.subscriptions[subscription.name] = subscription
        self.hides_own = self.hides_own or subscription.no_local
        self.silent.pop(subscription.filter, None)
        self._changed(former, subscription)
        self._withdraw(former)
        self.has_left(subscription.name, subscription.filter)

    def unsubscribe(self, name: str) -> Subscription | None:
        """Remove and return a subscription."""
        subscription = self.subscriptions.pop(name, None)
        self._changed(subscription, None)
        self._withdraw(subscription)
        return subscription

    def _withdraw(self, former: Subscription | None) -> None:
        if former is not None and not former.group and not self.holds(former.filter):
            self.has_left(former.name, former.filter)
            self.leaving.setdefault(former.name, []).append(former.filter)
            self._leaving_bytes += LEAVING_BYTES + len(former.filter)
            while self._leaving_bytes > LEAVING_BYTES_MAX:
                # The oldest has most likely settled; if not, an answer may come a little early.
                name = next(iter(self.leaving))
                self.has_left(name, self.leaving[name][0])

    def has_left(self, name: str, filter: str) -> None:
        """Forget that a filter of the core was being withdrawn for a topic filter."""
        filters = self.leaving.get(name, [])
        if filter in filters:
            filters.remove(filter)
            self._leaving_bytes -= LEAVING_BYTES + len(filter)
            if not filters:
                del self.leaving[name]

    def silence(self, filters: Mapping[str, int]) -> None:
        """Suppress filters that the client was told are withdrawn, until the core has settled that."""
        self.silent.update(filters)
        self.forget_plans()

    def settled(self, request: int) -> None:
        """Handle that the core has finished a request."""
        if self.silent:
            self.silent = {filter: one for filter, one in self.silent.items() if one != request}
            self.forget_plans()

    def _changed(self, former: Subscription | None, subscription: Subscription | None) -> None:
        if former is not None:
            self._count(former, -1)
        if subscription is not None:
            self._count(subscription, +1)
        if self._chooser is not None:
            self._chooser.change(former, subscription)
        self.forget_plans()

    def _count(self, subscription: Subscription, change: int) -> None:
        self.subscriptions_bytes += change * subscription_bytes(subscription)
        self._identities += change * subscription.identity
        if not subscription.group:
            count = self._filters.get(subscription.filter, 0) + change
            if count:
                self._filters[subscription.filter] = count
            else:
                del self._filters[subscription.filter]

    def forget_plans(self) -> None:
        """Clear the cached plans after subscriptions, rules or the connection changed."""
        self.plans = NO_PLANS  # Other sessions may share the former dict.

    def forget_deliveries(self) -> None:
        """Drop what only deliveries need, after the client has left."""
        self.plans = NO_PLANS
        self._chooser = None

    def holds(self, filter: str) -> bool:
        """True if some subscription still needs this filter of the core."""
        return filter in self._filters

    # --- how to send ---

    @property
    def chooser(self) -> Chooser:
        if self._chooser is None:
            self._chooser = Chooser(self.subscriptions)
        return self._chooser

    def common_options(self) -> Options | None:
        """Options if all of the client's own subscriptions use the same ones, whoever published; otherwise
        None."""
        chooser = self.chooser
        if self.silent or self.hides_own or chooser.hides_own or self.wants_identity:
            return None
        common = chooser.common(False)
        return Options(*common, ()) if common is not None else None

    def options(self, attributes: bytes, own: bool, shared: bool = False) -> Options | None:
        """Return the options for a burst with these attributes; None if they depend on the bodies.

        Deliveries by shared subscriptions are separate from those by other subscriptions.
        """
        chooser = self.chooser
        if not self.silent and not (own and (self.hides_own or chooser.hides_own)):
            common = chooser.common(shared)
            if common is not None:
                return Options(*common, (), self.wants_identity)
        if chooser.asks_contents or any(map(asks_more, self.silent)):
            return None
        return self.options_of(decode_attributes(attributes), own, shared)

    def options_of(self, attributes: Attributes, own: bool, shared: bool = False) -> Options:
        """Return the options for one notification whose attributes are all known."""
        wanting = [one for one in self.chooser.wanting(attributes, shared) if not (own and one.no_local)]
        if not wanting:
            # Its subscription has ended since. QoS -1: the notification is the client's own, or the client
            # knows of the end.
            is_hidden = own and (self.hides_own or self.chooser.hides_own)
            if not shared:
                is_hidden = is_hidden or any(may_want(text, attributes) for text in self.silent)
            return Options(-1 if is_hidden else 2, False, (), self.wants_identity)
        return Options(
            max(one.qos for one in wanting),
            any(one.retain_as_published for one in wanting),
            tuple(sorted(one.identifier for one in wanting if one.identifier is not None)),
            self.wants_identity,
        )

    def gives_back(self, burst: Burst, attributes: Attributes) -> Subscription | None:
        """Return the shared subscription of a notification that another member of the group may get; None
        otherwise.

        Section 4.8.2 of MQTT 5.0: never with QoS 2, and never after this client's answer.
        """
        wanting = self.chooser.wanting(attributes, True)
        if len(wanting) != 1 or min(burst.marks[0] & QOS, wanting[0].qos) != 1:
            return None
        return wanting[0] if self.in_flight.may_go_elsewhere(burst) else None

    @property
    def wants_identity(self) -> bool:
        return self._identities > 0
