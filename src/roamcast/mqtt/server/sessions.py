"""What the MQTT side keeps for a client: subscriptions with their options, packet ids, expiry.

It lives where the session lives, and travels as the session's capsule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import names_of
from roamcast.filters.filter import Attributes, Filter
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.mqtt.codec.bursts import FrameWriter
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import Will
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.in_flight import InFlight, PackedInFlight
from roamcast.mqtt.server.marks import QOS, TOPIC
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

NEVER = 0xFFFF_FFFF
"""The session expiry that means: keep it for ever."""

OPTIONS_KEPT_MAX = 1024
OPTION_BYTES_KEPT_MAX = 512
"""Options for longer topics are not remembered."""

PROVISIONAL = "\0provisional/"
"""Begins the name of a session that stands for one which cannot be reached; no client id has a null in it."""


def client_of(name: str) -> str:
    """The client whose session has this name, be it a stand-in."""
    return name.removeprefix(PROVISIONAL)


def public_name(name: str) -> str:
    """The name of a session for clients and logs. As a publisher, a stand-in is not its client: both count
    what they publish."""
    return f"{client_of(name)} (stand-in)" if name.startswith(PROVISIONAL) else name


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a SUBSCRIBE."""

    name: str
    """The topic filter as the client wrote it: its key."""
    filter: str
    """The filter of the core, as text."""
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int | None
    group: str = ""
    """Of a shared subscription."""
    identity: bool = False
    """Whether the client wants to know whose each notification is, and which."""


SUBSCRIPTION_BYTES = 4096
LEVEL_BYTES = 320
CHARACTER_BYTES = 60
"""Memory of a subscription, at all its places, and of each level and each character of its filter."""


def subscription_bytes(subscription: Subscription) -> int:
    """Memory that a subscription takes."""
    text = subscription.filter
    return SUBSCRIPTION_BYTES + LEVEL_BYTES * text.count("/") + CHARACTER_BYTES * len(text)


class Plan(NamedTuple):
    """How bursts of one kind are sent to a client: nothing about them is looked at one by one."""

    qos: int
    options: Options
    writer: FrameWriter


class Options(NamedTuple):
    """How a notification is to be sent to one client."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]
    identity: bool = False
    """Say whose it is, and which: each notification then has properties of its own."""


class Recall(msgspec.Struct, frozen=True, array_like=True):
    """What is left of sending the retained messages that a new subscription asked for."""

    name: str
    """Of the subscription, and …"""
    filter: str
    qos: int
    identifier: int | None
    no_local: bool
    clock: tuple[float, int] = (0.0, 0)
    """Messages that were stamped later come without a recall, …"""
    since: int = 0
    """… and so do those that came to this broker after this change."""
    onward: str = ""
    """Where in the order of topics it goes on."""


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
    """When the client went; 0 if it was there until its session was called away."""
    will: Will | None = None
    will_at: float = 0.0
    hides_own: bool = False
    leaving: dict[str, str] = {}
    silent: dict[str, int] = {}
    identity: Identity | None = None
    recalls: list[Recall] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Capsule).decode


def _lift_1(fields: dict[str, Any]) -> None:
    fields["hides_own"], fields["leaving"], fields["silent"] = False, {}, {}


def _lift_2(fields: dict[str, Any]) -> None:
    fields["identity"], fields["owner"] = None, ""


class MqttSession:
    __state__ = State(
        "mqtt-session",
        3,
        derived=("_filters", "_identities", "_options", "plans", "subscriptions_bytes"),
        lifts={1: _lift_1, 2: _lift_2},
    )
    __slots__ = (
        "_filters", "_identities", "_options",
        "client", "connection", "expiry_s", "hides_own", "identity", "in_flight",
        "leaving", "owner", "plans", "received", "silent", "since", "stream", "subscriptions",
        "subscriptions_bytes", "timer", "will", "will_at", "will_timer",
    )  # fmt: skip

    def __init__(self, client: str, capsule: Capsule | None = None, owner: str = "") -> None:
        self.client = client
        self.owner = owner
        self.identity: Identity | None = None
        """Who was connected last; rules are applied to what is done in the absence of that client."""
        self.connection = 0
        """The connection on which the client is; 0 while it is away."""
        self.since = 0.0
        """When it came or went."""
        self.timer = 0
        """Which timer ends the session; an older one has no effect."""
        self.will_timer = 0
        self.will: Will | None = None
        """What came with the session to be published, if its client does not come back before …"""
        self.will_at = 0.0
        self.expiry_s = 0
        self.hides_own = False
        """Whether some subscription was ever not for what the client publishes itself. What the
        subscription left queued is not, either, when it has ended."""
        self.leaving: dict[str, str] = {}
        """Topic filters whose UNSUBSCRIBE has not been answered, and the core's filters for them."""
        self.silent: dict[str, int] = {}
        """The core's filters that the client knows to be withdrawn before every broker does, and the requests
        to withdraw them. Nothing is sent because of them."""
        self.subscriptions: dict[str, Subscription] = {}
        self.in_flight = InFlight(capsule.in_flight if capsule is not None else None)
        self.received: dict[int, None] = {}
        self.stream = ""
        """The stream of the core's access link that is being delivered."""
        if capsule is not None:
            self.expiry_s = capsule.expiry_s
            self.subscriptions = {one.name: one for one in capsule.subscriptions}
            self.received = dict.fromkeys(capsule.received)
            self.since, self.will, self.will_at = capsule.since, capsule.will, capsule.will_at
            self.hides_own, self.leaving = capsule.hides_own, dict(capsule.leaving)
            self.silent, self.identity = dict(capsule.silent), capsule.identity
        self._restore()

    def _restore(self) -> None:
        self.subscriptions_bytes = 0
        """Memory of what is subscribed to."""
        self._identities = 0
        """Subscriptions for which identities are told."""
        self._filters: dict[str, int] = {}
        """What is asked of the core, and by how many subscriptions."""
        for subscription in self.subscriptions.values():
            self._count(subscription, +1)
        self.plans: dict[tuple[bytes, bytes, bool], Plan] = {}
        """By attributes, marks, and whether the client published it itself, for the connection there is."""
        self._options: dict[tuple[bytes, bool, bool], Options | None] = {}

    def pack(
        self, will: Will | None = None, will_at: float = 0.0, recalls: list[Recall] | None = None
    ) -> bytes:
        """As it travels, with what is to be published unless its client comes, and what it has to get."""
        subscriptions, received = list(self.subscriptions.values()), list(self.received)
        since = 0.0 if self.connection else self.since
        capsule = Capsule(
            self.expiry_s, subscriptions, self.in_flight.pack(), received, since, will, will_at,
            self.hides_own, self.leaving, self.silent, self.identity, recalls or [],
        )  # fmt: skip
        return _encode(capsule)

    @classmethod
    def unpack(cls, client: str, capsule: bytes, owner: str = "") -> tuple[MqttSession, list[Recall]]:
        try:
            unpacked = _decode(capsule)
            return cls(client, unpacked, owner), unpacked.recalls
        except msgspec.MsgspecError as error:
            raise InputError(f"the session of {client!r} came with a malformed capsule: {error}") from None

    @classmethod
    def is_readable(cls, client: str, capsule: bytes) -> bool:
        """Whether a capsule can be unpacked: it may come from a broker that is not to be trusted."""
        try:
            cls.unpack(client, capsule, "")
        except (InputError, PacketError, ValueError, IndexError, KeyError, TypeError):
            return False
        return True

    @property
    def is_idle(self) -> bool:
        """True if the client is away, and has never got anything that it may miss."""
        used = self.subscriptions or self.leaving or self.received or self.stream or self.in_flight.resend
        return not used and not self.connection

    # --- subscriptions ---

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace."""
        former = self.subscriptions.get(subscription.name)
        self.subscriptions[subscription.name] = subscription
        self.hides_own = self.hides_own or subscription.no_local
        self.leaving.pop(subscription.name, None)
        self.silent.pop(subscription.filter, None)
        self._count(former, -1)
        self._count(subscription, +1)
        self.forget_plans()

    def unsubscribe(self, name: str) -> Subscription | None:
        """Remove; what was removed."""
        subscription = self.subscriptions.pop(name, None)
        self._count(subscription, -1)
        self.forget_plans()
        return subscription

    def silence(self, filters: Mapping[str, int]) -> None:
        """The client has been told that these are withdrawn, and the core has not settled that yet."""
        self.silent.update(filters)
        self.forget_plans()

    def settled(self, request: int) -> None:
        """The core has carried a request out."""
        if self.silent:
            self.silent = {filter: one for filter, one in self.silent.items() if one != request}
            self.forget_plans()

    def _count(self, subscription: Subscription | None, change: int) -> None:
        if subscription is None:
            return
        self.subscriptions_bytes += change * subscription_bytes(subscription)
        self._identities += change * subscription.identity
        if not subscription.group:
            count = self._filters.get(subscription.filter, 0) + change
            if count:
                self._filters[subscription.filter] = count
            else:
                del self._filters[subscription.filter]

    def forget_plans(self) -> None:
        """Decide anew how to send: subscriptions, rules or the connection are others now."""
        self._options.clear()
        self.plans.clear()

    def holds(self, filter: str) -> bool:
        """Whether some subscription still needs this filter of the core."""
        return filter in self._filters

    # --- how to send ---

    def options(self, attributes: bytes, own: bool, shared: bool = False) -> Options | None:
        """For a burst with these attributes; None if it depends on what is in the bodies.

        What comes by shared subscriptions comes by them alone, and the other way round.
        """
        key = (attributes, own, shared)
        try:
            return self._options[key]
        except KeyError:
            options = self._common_options(own, shared)
            if options is None and not self._needs_contents():
                options = self.options_of(decode_attributes(attributes), own, shared)
            if len(attributes) <= OPTION_BYTES_KEPT_MAX:
                if len(self._options) >= OPTIONS_KEPT_MAX:
                    self._options.clear()
                self._options[key] = options
            return options

    def options_of(self, attributes: Attributes, own: bool, shared: bool = False) -> Options:
        """For one notification whose attributes are all known."""
        wanting = [
            one
            for one in self._by_way(shared)
            if not (own and one.no_local) and _may_want(parse(one.filter), attributes)
        ]
        if not wanting:
            # Its subscription has gone since. QoS -1: it is one's own, or the client knows that it has gone.
            is_hidden = own and self._hides_own()
            if not shared:
                is_hidden = is_hidden or any(_may_want(parse(text), attributes) for text in self.silent)
            return Options(-1 if is_hidden else 2, False, (), self.wants_identity)
        return Options(
            max(one.qos for one in wanting),
            any(one.retain_as_published for one in wanting),
            tuple(one.identifier for one in wanting if one.identifier is not None),
            self.wants_identity,
        )

    def gives_back(self, burst: Burst, attributes: Attributes) -> Subscription | None:
        """If one notification is owed by a group, and another member may get it: by which subscription.

        Section 4.8.2 of MQTT 5.0: never with QoS 2, and never what this client has answered.
        """
        wanting = [one for one in self._by_way(True) if _may_want(parse(one.filter), attributes)]
        if len(wanting) != 1 or min(burst.marks[0] & QOS, wanting[0].qos) != 1:
            return None
        identity = (burst.publisher, burst.incarnation, burst.number)
        return wanting[0] if self.in_flight.may_go_elsewhere(identity) else None

    def _by_way(self, shared: bool) -> Iterable[Subscription]:
        return (one for one in self.subscriptions.values() if bool(one.group) is shared)

    def _common_options(self, own: bool, shared: bool) -> Options | None:
        """What all subscriptions ask for alike; then it does not matter which of them it was for."""
        common: tuple[int, bool] | None = None
        if (own and self._hides_own()) or self.silent:
            return None
        for one in self.subscriptions.values():
            if bool(one.group) is not shared:
                continue
            asked = (one.qos, one.retain_as_published)
            # How many matched would show in the identifiers.
            if (common or asked) != asked or one.identifier is not None:
                return None
            common = asked
        return None if common is None else Options(*common, (), self.wants_identity)

    def _hides_own(self) -> bool:
        return self.hides_own or any(one.no_local for one in self.subscriptions.values())

    @property
    def wants_identity(self) -> bool:
        return self._identities > 0

    def _needs_contents(self) -> bool:
        filters = (*(one.filter for one in self.subscriptions.values()), *self.silent)
        return any(_asks_more(parse(filter)) for filter in filters)


def _asks_more(filter: Filter) -> bool:
    return not names_of(filter.expression) <= {TOPIC}


def _may_want(filter: Filter, attributes: Attributes) -> bool:
    """Where the client is, the core knows; a condition on that has been looked at there."""
    return (widest(filter) if filter.own else filter).matches(attributes)
