"""The control packets of MQTT 3.1.1 and 5.0 as values.

A field that a packet does not carry has its default: None where absent and
present differ, otherwise the value that the standard gives to absence. Fields
unknown to 3.1.1 are always absent there.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from roamcast.mqtt.codec.reasons import Reason

Version = Literal[4, 5]
UserProperties = tuple[tuple[str, str], ...]

RECEIVE_MAXIMUM_DEFAULT = 65_535


class PublishProperties(Struct, frozen=True, gc=False):
    """Properties of a PUBLISH or a will of MQTT 5.0."""

    payload_format: int | None = None
    message_expiry: int | None = None
    """Expiry in seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    topic_alias: int | None = None
    user_properties: UserProperties = ()


class Will(Struct, frozen=True, gc=False):
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay: int = 0
    """Delay in seconds."""
    properties: PublishProperties | None = None


class Connect(Struct, frozen=True, gc=False):
    version: int
    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    """Keep-alive in seconds; 0 means no limit."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    session_expiry: int | None = None
    """Session expiry in seconds; 0xFFFFFFFF means no limit."""
    receive_maximum: int = RECEIVE_MAXIMUM_DEFAULT
    maximum_packet_size: int | None = None
    topic_alias_maximum: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    user_properties: UserProperties = ()
    authentication_method: str | None = None
    authentication_data: bytes | None = None


class Connack(Struct, frozen=True, gc=False):
    session_present: bool = False
    reason: Reason = Reason.SUCCESS
    session_expiry: int | None = None
    receive_maximum: int = RECEIVE_MAXIMUM_DEFAULT
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_size: int | None = None
    assigned_client_id: str | None = None
    topic_alias_maximum: int = 0
    reason_string: str | None = None
    user_properties: UserProperties = ()
    wildcard_subscription_available: bool = True
    subscription_identifiers_available: bool = True
    shared_subscription_available: bool = True
    server_keep_alive: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None


class Publish(Struct, frozen=True, gc=False):
    topic: str
    """Empty only if a topic alias replaces it."""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    """0 with QoS 0."""
    properties: PublishProperties | None = None


class AcknowledgementProperties(Struct, frozen=True, gc=False):
    reason_string: str | None = None
    user_properties: UserProperties = ()


class _Acknowledgement(Struct, frozen=True, gc=False):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    properties: AcknowledgementProperties | None = None


class Puback(_Acknowledgement, frozen=True, gc=False):
    pass


class Pubrec(_Acknowledgement, frozen=True, gc=False):
    pass


class Pubrel(_Acknowledgement, frozen=True, gc=False):
    pass


class Pubcomp(_Acknowledgement, frozen=True, gc=False):
    pass


class SubscriptionEntry(Struct, frozen=True, gc=False):
    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """0: retained messages are sent; 1: only for a new subscription; 2: never."""


class Subscribe(Struct, frozen=True, gc=False):
    packet_id: int
    entries: tuple[SubscriptionEntry, ...]
    subscription_identifier: int | None = None
    user_properties: UserProperties = ()


class Suback(Struct, frozen=True, gc=False):
    packet_id: int
    reasons: tuple[Reason, ...]
    """Reason codes, one for each entry of the SUBSCRIBE."""
    properties: AcknowledgementProperties | None = None


class Unsubscribe(Struct, frozen=True, gc=False):
    packet_id: int
    filters: tuple[str, ...]
    user_properties: UserProperties = ()


class Unsuback(Struct, frozen=True, gc=False):
    packet_id: int
    reasons: tuple[Reason, ...] = ()
    """Reason codes, one for each filter of the UNSUBSCRIBE; none in 3.1.1."""
    properties: AcknowledgementProperties | None = None


class Pingreq(Struct, frozen=True, gc=False):
    pass


class Pingresp(Struct, frozen=True, gc=False):
    pass


class Disconnect(Struct, frozen=True, gc=False):
    """Sent by a server only in 5.0: in 3.1.1 a server just closes the connection."""

    reason: Reason = Reason.NORMAL_DISCONNECTION
    session_expiry: int | None = None
    reason_string: str | None = None
    server_reference: str | None = None
    user_properties: UserProperties = ()


class Auth(Struct, frozen=True, gc=False):
    reason: Reason = Reason.SUCCESS
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    reason_string: str | None = None
    user_properties: UserProperties = ()


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
