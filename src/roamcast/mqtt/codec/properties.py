"""Property blocks of MQTT 5.0 (section 2.2.2).

Properties are named like the fields of the packets: a packet may carry the properties that are
among its fields, and a decoded block supplies the values of these fields.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from roamcast.mqtt.codec import fields, packets
from roamcast.mqtt.codec.errors import PacketError, malformed, protocol_error
from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import check_topic

Reader = Callable[[bytes, int, int], tuple[Any, int]]
Writer = Callable[[Any], bytes]


class Property(NamedTuple):
    field: str
    read: Reader
    write: Writer
    default: Any
    repeated: bool


Table = Mapping[int, Property]


def _nonzero(read: Reader, what: str, reason: Reason = Reason.PROTOCOL_ERROR) -> Reader:
    def checked(data: bytes, at: int, end: int) -> tuple[int, int]:
        value, at = read(data, at, end)
        if value == 0:
            raise PacketError(reason, f"a {what} of 0 is not allowed")
        return value, at

    return checked


def _zero_or_one(data: bytes, at: int, end: int) -> tuple[int, int]:
    value, at = fields.read_byte(data, at, end)
    if value > 1:
        raise protocol_error(f"a property that is 0 or 1 has the value {value}")
    return value, at


def _yes_or_no(data: bytes, at: int, end: int) -> tuple[bool, int]:
    value, at = _zero_or_one(data, at, end)
    return value == 1, at


def _response_topic(data: bytes, at: int, end: int) -> tuple[str, int]:
    topic, at = fields.read_string(data, at, end)
    try:
        check_topic(topic)
    except PacketError as error:
        raise protocol_error(f"response topic: {error.text}") from None
    return topic, at


_STRING = (fields.read_string, fields.write_string)
_BINARY = (fields.read_binary, fields.write_binary)
_YES_OR_NO = (_yes_or_no, fields.write_byte)
_TWO = (fields.read_two, fields.write_two)
_FOUR = (fields.read_four, fields.write_four)
_SUBSCRIPTION_IDENTIFIER = (
    _nonzero(fields.read_variable, "subscription identifier"),
    fields.write_variable,
)
_TOPIC_ALIAS = (_nonzero(fields.read_two, "topic alias", Reason.TOPIC_ALIAS_INVALID), fields.write_two)

# Table 2-4 of the standard, with the values that its chapter 3 forbids.
_PROPERTIES: dict[str, tuple[int, Reader, Writer]] = {
    # Only 0 and 1 have a meaning; other values are not forbidden and are forwarded unaltered [MQTT-3.3.2-4].
    "payload_format": (0x01, fields.read_byte, fields.write_byte),
    "message_expiry": (0x02, *_FOUR),
    "content_type": (0x03, *_STRING),
    "response_topic": (0x08, _response_topic, fields.write_string),
    "correlation_data": (0x09, *_BINARY),
    "subscription_identifier": (0x0B, *_SUBSCRIPTION_IDENTIFIER),
    "subscription_identifiers": (0x0B, *_SUBSCRIPTION_IDENTIFIER),
    "session_expiry": (0x11, *_FOUR),
    "assigned_client_id": (0x12, *_STRING),
    "server_keep_alive": (0x13, *_TWO),
    "authentication_method": (0x15, *_STRING),
    "authentication_data": (0x16, *_BINARY),
    "request_problem_information": (0x17, *_YES_OR_NO),
    "delay": (0x18, *_FOUR),
    "request_response_information": (0x19, *_YES_OR_NO),
    "response_information": (0x1A, *_STRING),
    "server_reference": (0x1C, *_STRING),
    "reason_string": (0x1F, *_STRING),
    "receive_maximum": (0x21, _nonzero(fields.read_two, "receive maximum"), fields.write_two),
    "topic_alias_maximum": (0x22, *_TWO),
    "topic_alias": (0x23, *_TOPIC_ALIAS),
    "maximum_qos": (0x24, _zero_or_one, fields.write_byte),
    "retain_available": (0x25, *_YES_OR_NO),
    "user_properties": (0x26, fields.read_pair, fields.write_pair),
    "maximum_packet_size": (0x27, _nonzero(fields.read_four, "maximum packet size"), fields.write_four),
    "wildcard_subscription_available": (0x28, *_YES_OR_NO),
    "subscription_identifiers_available": (0x29, *_YES_OR_NO),
    "shared_subscription_available": (0x2A, *_YES_OR_NO),
}

UNLIMITED = 1 << 30

_REPEATED = ("user_properties", "subscription_identifiers")


def _table(kind: type[msgspec.Struct], without: tuple[str, ...] = ()) -> Table:
    """Return the properties that are fields of a packet, in the order of their identifiers."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return {
        identifier: Property(name, read, write, defaults[name], name in _REPEATED)
        for name, (identifier, read, write) in _PROPERTIES.items()
        if name in defaults and name not in without
    }


CONNECT = _table(packets.Connect)
CONNACK = _table(packets.Connack)
WILL = _table(PublishProperties, without=("subscription_identifiers", "topic_alias"))
WILL_DELAY = _table(packets.Will)
WILL_WITH_DELAY = {**WILL, **WILL_DELAY}
PUBLISH = {**WILL, **_table(PublishProperties)}
ACKNOWLEDGEMENT = _table(packets.AcknowledgementProperties)
SUBSCRIBE = _table(packets.Subscribe)
UNSUBSCRIBE = _table(packets.Unsubscribe)
DISCONNECT = _table(packets.Disconnect)
AUTH = _table(packets.Auth)


def decode(
    data: bytes, at: int, end: int, table: Table, user_properties_max: int = UNLIMITED
) -> dict[str, Any]:
    """Return the properties between `at` and `end`, without their length field.

    Reading stops at the limit, so that an oversized packet is refused cheaply.
    """
    found: dict[str, Any] = {}
    while at < end:
        # Identifiers are variable byte integers, but all that exist have one byte.
        known = table.get(data[at])
        if known is None:
            raise malformed(f"the property 0x{data[at]:02X} is not allowed in this packet")
        value, at = known.read(data, at + 1, end)
        if known.repeated:
            values = found.setdefault(known.field, [])
            if len(values) >= user_properties_max:
                text = f"more than {user_properties_max} user properties in one packet"
                raise PacketError(Reason.QUOTA_EXCEEDED, text)
            values.append(value)
        elif known.field in found:
            raise protocol_error(f"the property {known.field.replace('_', ' ')} occurs twice")
        else:
            found[known.field] = value
    for name in _REPEATED:
        if name in found:
            found[name] = tuple(found[name])
    return found


def block_bounds(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return start and end of the properties whose length is at `at`."""
    if at < end and data[at] < 0x80:
        start = at + 1
        stop = start + data[at]
    else:
        length, start = fields.read_variable(data, at, end)
        stop = start + length
    if stop > end:
        raise malformed(f"properties of {stop - start} bytes, but only {end - start} are left")
    return start, stop


def read(
    data: bytes, at: int, end: int, table: Table, user_properties_max: int = UNLIMITED
) -> tuple[dict[str, Any], int]:
    """Return the properties whose length is at `at`, and where they end."""
    start, stop = block_bounds(data, at, end)
    return decode(data, start, stop, table, user_properties_max), stop


def encode(values: msgspec.Struct | None, table: Table) -> bytes:
    """Encode the non-default properties of a packet, without their length."""
    if values is None:
        return b""
    parts: list[bytes] = []
    for identifier, known in table.items():
        value: Any = getattr(values, known.field)
        if value == known.default:
            continue
        mark = bytes((identifier,))
        if known.repeated:
            parts += (mark + known.write(one) for one in value)
        else:
            parts.append(mark + known.write(value))
    return b"".join(parts)


def write(values: msgspec.Struct | None, table: Table) -> bytes:
    """Encode the properties of a packet, preceded by their length."""
    block = encode(values, table)
    return fields.write_variable(len(block)) + block


def publish_properties(
    block: bytes, from_client: bool = True, user_properties_max: int = UNLIMITED
) -> PublishProperties | None:
    """The properties of a PUBLISH, given without their length; None if there are none."""
    if not block:
        return None
    found = decode(block, 0, len(block), PUBLISH, user_properties_max)
    if from_client and "subscription_identifiers" in found:
        raise protocol_error("a PUBLISH to a server must not contain a subscription identifier")
    return PublishProperties(**found)


def split_publish(body: bytes, qos: int, version: int) -> tuple[bytes, int, int, int, int]:
    """Split a PUBLISH without making objects: (topic, packet id, property start and end, payload start).

    The topic is raw and unchecked (see topics.decode_topic); so are the properties.
    In 3.1.1 the property block is empty, and the packet id is 0 with QoS 0.
    """
    size = len(body)
    at = size if size < 2 else (body[0] << 8 | body[1]) + 2
    topic = body[2:at]
    packet_id = 0
    if qos:
        at += 2
        if at <= size:
            packet_id = body[at - 2] << 8 | body[at - 1]
            if packet_id == 0:
                raise protocol_error("the packet identifier is 0")
    if at > size or size < 2:
        raise malformed("a PUBLISH ends before its payload")
    if version == 4:
        return topic, packet_id, at, at, at
    if at < size and body[at] == 0:
        at += 1
        return topic, packet_id, at, at, at
    start, stop = block_bounds(body, at, size)
    return topic, packet_id, start, stop, stop
