"""Builds packets from an application's arguments, checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from roamcast.errors import InputError
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import VARIABLE_MAX
from roamcast.mqtt.codec.packets import (
    Publish,
    PublishProperties,
    Subscribe,
    SubscriptionEntry,
    UserProperties,
)
from roamcast.mqtt.codec.topics import check_subscription, check_topic, split_shared, subscription_filter
from roamcast.mqtt.codec.user_properties import IDENTITY, WHERE

Payload = bytes | bytearray | memoryview | str
Properties = Mapping[str, str | int | float | bool] | Iterable[tuple[str, str | int | float | bool]]
"""User properties: by name, or in order, where a name may come again. Numbers and booleans are written as
JSON writes them, which is how content filters read them."""


def user_properties(given: Properties) -> UserProperties:
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((name, value if isinstance(value, str) else json.dumps(value)) for name, value in pairs)


class Description(TypedDict, total=False):
    """Properties of a publish."""

    content_type: str | None
    message_expiry: int | None
    response_topic: str | None
    correlation_data: bytes | None
    payload_format: int | None


class PublishOptions(Description, total=False):
    """Options of a publish."""

    qos: int
    retain: bool
    properties: Properties
    """User properties: attributes for content filters."""


def make_publish(
    version: int,
    topic: str,
    payload: Payload,
    qos: int = 0,
    retain: bool = False,
    properties: Properties = (),
    **description: Unpack[Description],
) -> Publish:
    check_qos(qos)
    try:
        check_topic(topic)
    except PacketError as error:
        raise InputError(error.text) from None
    described = PublishProperties(user_properties=user_properties(properties), **description)
    if described == NO_PROPERTIES:
        return Publish(topic, to_bytes(payload), qos, retain)
    if version == 4:
        raise InputError("MQTT 3.1.1 has no properties: leave them out, or use version 5")
    return Publish(topic, to_bytes(payload), qos, retain, properties=described)


NO_PROPERTIES = PublishProperties()
PAYLOAD_MAX = VARIABLE_MAX - 2 * 65_535
"""A packet is a little larger: it has the topic and properties too."""


def to_bytes(payload: Payload) -> bytes:
    if type(payload) is bytes and len(payload) < PAYLOAD_MAX:
        return payload
    if not isinstance(payload, str | bytes | bytearray | memoryview):
        # bytes(57) would be 57 zero bytes, which nobody means.
        raise InputError(f"a payload is bytes or text, not {type(payload).__name__}: try json.dumps")
    encoded = payload.encode() if isinstance(payload, str) else bytes(payload)
    if len(encoded) >= PAYLOAD_MAX:
        raise InputError(f"a payload of {len(encoded):,} bytes: MQTT carries less than {PAYLOAD_MAX:,}")
    return encoded


class SubscribeOptions(TypedDict, total=False):
    """Options of a subscription."""

    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


def make_subscribe(
    version: int,
    filter: str,
    where: str | None,
    wants_identity: bool,
    identifier: int | None,
    properties: Properties,
    **options: Unpack[SubscribeOptions],
) -> Subscribe:
    entry = SubscriptionEntry(filter, **options)
    check_qos(entry.qos)
    if version == 4 and (
        entry != SubscriptionEntry(filter, entry.qos) or where is not None or identifier or properties
    ):
        raise InputError("MQTT 3.1.1 has no options of subscriptions but QoS: use version 5")
    try:
        check_subscription(filter, version)
        shared = split_shared(filter) if version == 5 else None
    except PacketError as error:
        raise InputError(error.text) from None
    if "?" in filter or where is not None:
        subscription_filter(filter if shared is None else shared[1], where)
    asked = list(user_properties(properties))
    if where is not None:
        asked.append((WHERE, where))
    if wants_identity and version == 5:
        asked.append((IDENTITY, "1"))
    return Subscribe(0, (entry,), identifier, tuple(asked))


def check_qos(qos: int) -> None:
    if qos not in (0, 1, 2):
        raise InputError(f"QoS {qos}: valid are 0, 1 and 2")
