"""Negotiation of a CONNECT: session expiry, keep-alive, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import RECEIVE_MAXIMUM_DEFAULT, Connack, Connect, Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import HAS, NETWORK
from roamcast.mqtt.codec.writing import write
from roamcast.protocol.sizes import text_bytes

WILL_BYTES = 500
"""Memory of a will beside its topic, payload and properties."""

if TYPE_CHECKING:
    from roamcast.mqtt.server.connection import MqttConnection
    from roamcast.mqtt.server.settings import EndpointSettings


def check_topic_size(
    topic: str, settings: EndpointSettings, reason: Reason = Reason.TOPIC_NAME_INVALID
) -> None:
    """Refuse topics and topic filters that are too long or too deep."""
    longest, deepest = settings.topic_bytes_max, settings.topic_levels_max
    if len(topic.encode()) > longest:
        raise PacketError(reason, f"a topic of more than {longest} bytes")
    if topic.count("/") >= deepest:
        raise PacketError(reason, f"a topic of more than {deepest} levels")


def will_bytes(will: Will | None) -> int:
    """Return the memory of a will."""
    if will is None:
        return 0
    described = will.properties
    size = WILL_BYTES + text_bytes(will.topic) + len(will.payload)
    if described is not None:
        texts = [described.content_type or "", described.response_topic or ""]
        texts += [text for pair in described.user_properties for text in pair]
        size += len(described.correlation_data or b"") + sum(map(text_bytes, texts))
    return size


def check_will(connect: Connect, settings: EndpointSettings, wills_bytes: int) -> None:
    """Raise PacketError if the will is not supported: the client is refused, not only its will."""
    will = connect.will
    if will is None:
        return
    check_topic_size(will.topic, settings)
    if wills_bytes > settings.wills_bytes_max:
        raise PacketError(Reason.QUOTA_EXCEEDED, "there is no room for further wills")
    if will.qos > settings.qos_max:
        raise PacketError(Reason.QOS_NOT_SUPPORTED, f"a will of QoS {will.qos}: at most {settings.qos_max}")
    if will.retain and not settings.retain:
        raise PacketError(Reason.RETAIN_NOT_SUPPORTED, "retained messages are switched off")


def session_expiry_of(connect: Connect, settings: EndpointSettings) -> int:
    """Return how many seconds the session outlives its connection."""
    if connect.version == 4:
        return 0 if connect.clean_start else settings.session_expiry_v3_s
    return min(connect.session_expiry or 0, settings.session_expiry_max_s)


def keep_alive_of(connect: Connect, longest_s: int) -> int:
    """Return the keep-alive in seconds; a client of MQTT 3.1.1 cannot be given another one than its own."""
    asked = connect.keep_alive
    is_too_long = longest_s and (asked == 0 or asked > longest_s)
    return longest_s if is_too_long and connect.version == 5 else asked


def refused(connect: Connect, reason: Reason, text: str, reference: str = "") -> bytes:
    """Return a refusing CONNACK: without the text if that is too large for the client; empty if still too
    large."""
    size_max = connect.maximum_packet_size
    for told in (text, None):
        where = reference or None
        answer = write(Connack(reason=reason, reason_string=told, server_reference=where), connect.version)
        if size_max is None or len(answer) <= size_max:
            return answer
    return b""


def acceptance(
    connection: MqttConnection, present: bool, settings: EndpointSettings, told: str = ""
) -> Connack:
    """Return an accepting CONNACK; `told` names the connection, for clients that report what they have
    received."""
    connect = connection.connect
    expiry_s = session_expiry_of(connect, settings)
    keep_alive_s = keep_alive_of(connect, settings.keep_alive_max_s)
    asks_network = bool(settings.network) and NETWORK in dict(connect.user_properties)
    properties = ((NETWORK, settings.network),) if asks_network else ()
    answer = Connack(
        user_properties=(*properties, (HAS, told)) if told else properties,
        session_present=present,
        session_expiry=expiry_s if expiry_s != (connect.session_expiry or 0) else None,
        receive_maximum=settings.receive_maximum,
        maximum_qos=connection.qos_max,
        shared_subscription_available=settings.shared,
        retain_available=settings.retain,
        maximum_packet_size=settings.packet_max,
        assigned_client_id=None if connect.client_id else connection.client,
        topic_alias_maximum=settings.topic_alias_maximum,
        server_keep_alive=keep_alive_s if keep_alive_s != connect.keep_alive else None,
        authentication_method=connect.authentication_method,
        authentication_data=connect.authentication_data,
    )
    if connection.takes(answer):
        return answer
    # Limits that a client need not know unless it exceeds them are left out.
    return replace(
        answer,
        user_properties=(),
        receive_maximum=RECEIVE_MAXIMUM_DEFAULT,
        maximum_packet_size=None,
        topic_alias_maximum=0,
    )
