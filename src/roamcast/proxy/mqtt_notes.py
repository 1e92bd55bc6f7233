"""MQTT-specific data of subscriptions and messages, and how it travels with a session.

Handlers and buffers store a note with each filter and carried data with each message; only the endpoint reads
these. So options of subscriptions and properties of messages follow a client from site to site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

import msgspec

from roamcast.client import Notification
from roamcast.mqtt.codec.packets import PublishProperties, SubscriptionEntry, UserProperties
from roamcast.mqtt.codec.properties import PUBLISH, encode, publish_properties
from roamcast.mqtt.codec.topics import matches, split_shared
from roamcast.proxy.adapter import IDENTITY_HEADER, ForeignMessage
from roamcast.proxy.base import without_identity


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    """Options of a client's subscription."""

    qos: int
    identifier: int = 0
    """Subscription identifier; 0 for none."""
    no_local: bool = False
    retain_as_published: bool = False

    @classmethod
    def of(cls, entry: SubscriptionEntry, qos: int, identifier: int | None) -> Subscription:
        return cls(qos, identifier or 0, entry.no_local, entry.retain_as_published)

    @property
    def note(self) -> str:
        return msgspec.json.encode(self).decode()


def subscriptions_of(notes: Mapping[str, str]) -> dict[str, Subscription]:
    return {filter: msgspec.json.decode(note, type=Subscription) for filter, note in notes.items()}


def is_wanted_by(filter: str, topic: str) -> bool:
    shared = split_shared(filter)
    return matches(shared[1] if shared is not None else filter, topic)


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """MQTT data of a message beside its topic, body and user properties."""

    is_retained: bool = False
    """True if it was published with the retain flag."""
    is_recalled: bool = False
    """True if it was stored before the subscription was made."""
    expires: float = 0.0
    """Expiry of the message; 0 for never."""
    properties: bytes = b""
    """Other properties of the PUBLISH."""


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Carried)
PLAIN = Carried()


def foreign_message(notification: Notification, now: float, is_recalled: bool = False) -> ForeignMessage:
    """Convert a notification of the broker, with its MQTT-specific data."""
    message = without_identity(notification.topic, notification.payload, notification.properties)
    user = tuple(pair for pair in notification.user_properties if pair[0] != IDENTITY_HEADER)
    described = PublishProperties(
        payload_format=notification.payload_format,
        content_type=notification.content_type,
        response_topic=notification.response_topic,
        correlation_data=notification.correlation_data,
        user_properties=user if len(dict(user)) < len(user) else (),
    )
    expiry_s = notification.message_expiry
    carried = Carried(
        notification.retain, is_recalled, now + expiry_s if expiry_s is not None else 0.0,
        encode(described, PUBLISH),
    )  # fmt: skip
    # Most messages have only user properties with different names; these are the headers.
    return message if carried == PLAIN else msgspec.structs.replace(message, carried=_encode(carried))


def carried_of(message: ForeignMessage) -> Carried:
    return _decoder.decode(message.carried) if message.carried else PLAIN


def properties_of(
    message: ForeignMessage, carried: Carried, found: Iterable[Subscription], now: float
) -> PublishProperties:
    """Return the properties for the client that has these subscriptions."""
    described = publish_properties(carried.properties) or PublishProperties()
    user: UserProperties = described.user_properties or tuple(message.headers.items())
    return msgspec.structs.replace(
        described,
        user_properties=user,
        message_expiry=max(1, ceil(carried.expires - now)) if carried.expires else None,
        subscription_identifiers=tuple(one.identifier for one in found if one.identifier),
    )


def publisher_of(message: ForeignMessage) -> str:
    """Return the client of an endpoint that published the message, if one did: see `MqttEndpoint.publish`."""
    return message.identity.rsplit("/", 2)[0] if message.identity.count("/") >= 2 else ""
