"""What the MQTT side keeps for a client: subscriptions with their options, packet ids, expiry.

It lives where the session lives, and travels as the session's capsule.
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
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

NEVER = 0xFFFF_FFFF
"""The session expiry that means: keep it for ever."""

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
    """Group of a shared subscription."""
    identity: bool = False
    """Whether the client wants to know whose each notification is, and which."""


SUBSCRIPTION_BYTES = 2048
LEVEL_BYTES = 160
CHARACTER_BYTES = 3
"""Memory of a subscription, at all its places, and of each level and each character of its topic filter."""

CONDITION_BYTES = 150
"""Memory of each character of its conditions: they are kept as they were read, and in the index."""

TOPIC_WORDS = len("topic MATCHES ''")
"""What a filter says beside the topic filter, if that is all."""


LEAVING_BYTES, LEAVING_BYTES_MAX = 200, 1 << 20
"""Memory of a filter that is being withdrawn, beside its text, and of all those of a session."""


def subscription_bytes(subscription: Subscription) -> int:
    """Memory that a subscription takes."""
    name = subscription.name
    conditions = max(0, len(subscription.filter) - len(name) - TOPIC_WORDS)
    of_topic = LEVEL_BYTES * name.count("/") + CHARACTER_BYTES * len(name)
    return SUBSCRIPTION_BYTES + of_topic + CONDITION_BYTES * conditions


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


Plans = dict[tuple[bytes, bytes, bool], Plan]
"""By attributes, marks, and whether it is the client's own."""


class Recall(msgspec.Struct, frozen=True, array_like=True):
    """What is left of sending the retained messages that a new subscription asked for."""

    name: str
    """Name of the subscription, and …"""
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
    leaving: dict[str, list[str]] = {}
    silent: dict[str, int] = {}
    identity: Identity | None = None
    recalls: list[Recall] = []


class NamedCapsule(Capsule, frozen=True, array_like=True):
    """Of a client that says in CONNECT what it has; of all others the field is left out, as it was before."""

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
        self.copied_from = b""
        """While the client reads ahead of its session: the capsule of the copy that serves it."""
        self.again_to = 0
        """Up to this sequence a copy may have sent everything before, so it is marked as sent again."""
        self.told = ""
        """How the last CONNACK named its connection, if the client says in CONNECT what it has."""
        self.hides_own = False
        """Whether some subscription was ever not for what the client publishes itself. What the
        subscription left queued is not, either, when it has ended."""
        self.leaving: dict[str, list[str]] = {}
        """By topic filter: the core's filters that are being withdrawn, because the subscription has ended or
        another one has replaced it. They are here until the client has been answered."""
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
            self.hides_own, self.leaving = capsule.hides_own, capsule.leaving
            self.silent, self.identity = dict(capsule.silent), capsule.identity
            self.told = capsule.told
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
        self._leaving_bytes = 0
        for filters in self.leaving.values():
            self._leaving_bytes += sum(LEAVING_BYTES + len(filter) for filter in filters)
        self.plans: Plans = {}
        """By attributes, marks, and whether the client published it itself, for the connection there is."""
        self._chooser: Chooser | None = None
        """Made when it is asked for, and dropped when the client goes."""

    def pack(
        self, will: Will | None = None, will_at: float = 0.0, recalls: list[Recall] | None = None
    ) -> bytes:
        """As it travels, with what is to be published unless its client comes, and what it has to get."""
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
            return cls(client, unpacked, owner), unpacked.recalls
        except msgspec.MsgspecError as error:
            raise InputError(f"the session of {client!r} came with a malformed capsule: {error}") from None

    @property
    def is_unused(self) -> bool:
        """True if the client has never asked for anything nor got anything that it may miss."""
        used = self.subscriptions or self.leaving or self.received or self.stream or self.in_flight.resend
        return not used

    @property
    def is_idle(self) -> bool:
        """True if the client is away, and would miss nothing of the session."""
        return self.is_unused and not self.connection

    # --- copies ---

    @property
    def may_be_copied(self) -> bool:
        """True if nothing goes wrong when an old copy of this session serves its client: that is sent again
        what it may have acknowledged elsewhere (unless it says what it has), and nothing of the session can
        be changed by its answers."""
        has_group = any(one.group for one in self.subscriptions.values())
        is_in_doubt = self.leaving or self.silent or (self.has_qos_2 and not self.told)
        return not (has_group or is_in_doubt or self.connection) and self.expiry_s > 0

    @property
    def has_qos_2(self) -> bool:
        """Whether QoS 2 is unfinished, in either direction."""
        return bool(self.received) or self.in_flight.has_qos_2

    def is_copied_from(self, capsule: bytes) -> bool:
        """Whether the session that has come is the one that was copied: nobody had it in between."""
        came, copied = (
            msgspec.structs.replace(_decode(one), will=None, will_at=0.0, recalls=[])
            for one in (capsule, self.copied_from)
        )
        return came == copied

    def is_over(self, now: float) -> bool:
        """Whether the client has been away for longer than its session is kept."""
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
        """Remove; what was removed."""
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
        """The client has been told that these are withdrawn, and the core has not settled that yet."""
        self.silent.update(filters)
        self.forget_plans()

    def settled(self, request: int) -> None:
        """The core has carried a request out."""
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
        """Decide anew how to send: subscriptions, rules or the connection are others now."""
        self.plans = {}  # Other sessions may have those of before, too.

    def forget_deliveries(self) -> None:
        """The client has gone: keep nothing that only deliveries need."""
        self.plans = {}
        self._chooser = None

    def holds(self, filter: str) -> bool:
        """Whether some subscription still needs this filter of the core."""
        return filter in self._filters

    # --- how to send ---

    @property
    def chooser(self) -> Chooser:
        if self._chooser is None:
            self._chooser = Chooser(self.subscriptions)
        return self._chooser

    def common_options(self) -> Options | None:
        """If everything that its own subscriptions bring is sent in one way, whoever published it."""
        chooser = self.chooser
        if self.silent or self.hides_own or chooser.hides_own or self.wants_identity:
            return None
        common = chooser.common(False)
        return Options(*common, ()) if common is not None else None

    def options(self, attributes: bytes, own: bool, shared: bool = False) -> Options | None:
        """For a burst with these attributes; None if it depends on what is in the bodies.

        What comes by shared subscriptions comes by them alone, and the other way round.
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
        """For one notification whose attributes are all known."""
        wanting = [one for one in self.chooser.wanting(attributes, shared) if not (own and one.no_local)]
        if not wanting:
            # Its subscription has gone since. QoS -1: it is one's own, or the client knows that it has gone.
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
        """If one notification is owed by a group, and another member may get it: by which subscription.

        Section 4.8.2 of MQTT 5.0: never with QoS 2, and never what this client has answered.
        """
        wanting = self.chooser.wanting(attributes, True)
        if len(wanting) != 1 or min(burst.marks[0] & QOS, wanting[0].qos) != 1:
            return None
        return wanting[0] if self.in_flight.may_go_elsewhere(burst) else None

    @property
    def wants_identity(self) -> bool:
        return self._identities > 0
