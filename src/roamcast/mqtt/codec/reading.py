"""Bytes to packets: frames are cut from a stream, checked against the standards, and made into values.

Whatever the bytes, the only exception is PacketError, with the reason code that a server of MQTT 5.0
answers with (in 3.1.1 it closes the connection). The tests in tests/mqtt name the statements of the
standards behind each check.
"""

from collections.abc import Callable, Mapping, Sized
from functools import partial
from typing import Any, NamedTuple

from roamcast.mqtt.codec import properties, reasons
from roamcast.mqtt.codec.errors import PacketError, malformed, protocol_error
from roamcast.mqtt.codec.fields import read_binary, read_byte, read_packet_id, read_string, read_two
from roamcast.mqtt.codec.packets import (
    AcknowledgementProperties,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionEntry,
    Unsuback,
    Unsubscribe,
    Will,
)
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.topics import check_subscription, check_topic

# Types of control packets: the upper half of the first byte.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(1, 8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)


class Limits(NamedTuple):
    """Limits for parts of a packet that take much longer to read than to send."""

    user_properties_max: int = properties.UNLIMITED
    entries_max: int = properties.UNLIMITED
    """Entries of a SUBSCRIBE or UNSUBSCRIBE."""


NO_LIMITS = Limits()

# The lower half of the first byte, where it is fixed and not 0.
FLAGS = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}


def cut(data: bytes, start: int, packet_max: int) -> tuple[int, int, int] | None:
    """Return (first byte, body start, body end) of the frame at `start`; None if it is incomplete.

    `packet_max` limits whole frames, including their fixed header. An oversized or malformed frame is refused
    as soon as its length has arrived.
    """
    size = len(data)
    at = start + 1
    if at >= size:
        return None
    length = data[at]
    at += 1
    if length >= 0x80:
        length &= 0x7F
        for shift in (7, 14, 21):
            if at >= size:
                return None
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0:
                    raise malformed("the remaining length is longer than it needs to be")
                break
        else:
            raise malformed("the remaining length has more than four bytes")
    end = at + length
    if end - start > packet_max:
        raise PacketError(
            Reason.PACKET_TOO_LARGE, f"a packet of {end - start} bytes: at most {packet_max} are accepted"
        )
    return (data[start], at, end) if end <= size else None


def needed(rest: bytes) -> int:
    """Return how many bytes complete the packet that begins here."""
    length = 0
    for place, byte in enumerate(rest[1:5]):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return 2 + place + length
    return len(rest) + 1


def parse(
    first: int, body: bytes, version: int, from_client: bool = True, limits: Limits = NO_LIMITS
) -> Packet:
    """Parse and check the packet of a frame. `from_client` tells which side sent it."""
    kind = first >> 4
    if kind != PUBLISH and first & 0x0F != FLAGS.get(kind, 0):
        raise malformed(f"reserved flags of the fixed header are set: first byte 0x{first:02X}")
    known = (_FROM_CLIENT if from_client else _FROM_SERVER).get(kind)
    if known is not None:
        return known(first, body, version, limits)
    if kind == 0:
        raise malformed("packets of type 0 do not exist")
    raise protocol_error(f"a packet of type {kind} came from a {'client' if from_client else 'server'}")


# --- CONNECT and CONNACK -------------------------------------------------------------------------------


def parse_connect(body: bytes, limits: Limits = NO_LIMITS) -> Connect:
    """Parse a CONNECT, the only packet that names its version. An error names the version to answer in."""
    end = len(body)
    name, at = read_string(body, 0, end)
    version, at = read_byte(body, at, end)
    if name != "MQTT" or version not in (4, 5):
        raise PacketError(
            Reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {name[:20]!a} level {version}: supported are MQTT 3.1.1 (4) and 5.0 (5)",
            version,
        )
    try:
        return _connect(body, at, version, limits.user_properties_max)
    except PacketError as error:
        raise PacketError(error.reason, f"CONNECT: {error.text}", version) from None


def _connect(body: bytes, at: int, version: int, user_properties_max: int) -> Connect:
    end = len(body)
    flags, at = read_byte(body, at, end)
    _check_connect_flags(flags, version)
    keep_alive, at = read_two(body, at, end)
    found: dict[str, Any] = {}
    if version == 5:
        found, at = properties.read(body, at, end, properties.CONNECT, user_properties_max)
        if "authentication_data" in found and "authentication_method" not in found:
            raise protocol_error("authentication data without an authentication method")
    client_id, at = read_string(body, at, end)
    clean_start = bool(flags & 0x02)
    if version == 4 and not client_id and not clean_start:
        raise PacketError(
            Reason.CLIENT_IDENTIFIER_NOT_VALID, "an empty client identifier needs a clean session"
        )
    will = username = password = None
    if flags & 0x04:
        will, at = _will(body, at, flags, version, user_properties_max)
    if flags & 0x80:
        username, at = read_string(body, at, end)
    if flags & 0x40:
        password, at = read_binary(body, at, end)
    _check_ended(at, end)
    return Connect(version, client_id, clean_start, keep_alive, username, password, will, **found)


def _check_connect_flags(flags: int, version: int) -> None:
    if flags & 0x01:
        raise malformed("the reserved connect flag is set")
    if flags & 0x04:
        if flags & 0x18 == 0x18:
            raise malformed("a will QoS of 3")
    elif flags & 0x38:
        raise protocol_error("will QoS or will retain without a will")
    if version == 4 and flags & 0xC0 == 0x40:
        raise protocol_error("a password without a user name")


def _will(body: bytes, at: int, flags: int, version: int, user_properties_max: int) -> tuple[Will, int]:
    end = len(body)
    found: dict[str, Any] = {}
    if version == 5:
        found, at = properties.read(body, at, end, properties.WILL_WITH_DELAY, user_properties_max)
    topic, at = read_string(body, at, end)
    check_topic(topic)
    payload, at = read_binary(body, at, end)
    delay = found.pop("delay", 0)
    described = PublishProperties(**found) if found else None
    return Will(topic, payload, flags >> 3 & 3, bool(flags & 0x20), delay, described), at


def _connack(first: int, body: bytes, version: int, limits: Limits) -> Connack:
    end = len(body)
    flags, at = read_byte(body, 0, end)
    code, at = read_byte(body, at, end)
    if flags > 1:
        raise malformed("reserved flags of a CONNACK are set")
    reason = reasons.IN_CONNACK.get(code) if version == 5 else reasons.from_connack_3_1_1(code)
    if reason is None:
        raise protocol_error(f"CONNACK: there is no code 0x{code:02X}")
    if flags and reason:
        raise protocol_error("a CONNACK refuses the connection and says that a session is present")
    found: dict[str, Any] = {}
    if version == 5:
        found, at = properties.read(body, at, end, properties.CONNACK)
    _check_ended(at, end)
    return Connack(bool(flags), reason, **found)


# --- PUBLISH and its acknowledgements ------------------------------------------------------------------


def _publish(from_client: bool, first: int, body: bytes, version: int, limits: Limits) -> Publish:
    qos = first >> 1 & 3
    if qos == 3:
        raise malformed("a QoS of 3")
    if first & 0x08 and qos == 0:
        raise malformed("a PUBLISH of QoS 0 is marked as a duplicate")
    topic, _ = read_string(body, 0, len(body))
    _, packet_id, start, stop, payload = properties.split_publish(body, qos, version)
    described = properties.publish_properties(body[start:stop], from_client, limits.user_properties_max)
    if topic or described is None or described.topic_alias is None:
        check_topic(topic)
    return Publish(topic, body[payload:], qos, bool(first & 1), bool(first & 8), packet_id, described)


_Acknowledgement = type[Puback] | type[Pubrec] | type[Pubrel] | type[Pubcomp]

_ACKNOWLEDGEMENTS: dict[int, tuple[_Acknowledgement, Mapping[int, Reason]]] = {
    PUBACK: (Puback, reasons.IN_PUBACK_AND_PUBREC),
    PUBREC: (Pubrec, reasons.IN_PUBACK_AND_PUBREC),
    PUBREL: (Pubrel, reasons.IN_PUBREL_AND_PUBCOMP),
    PUBCOMP: (Pubcomp, reasons.IN_PUBREL_AND_PUBCOMP),
}


def _acknowledgement(
    first: int, body: bytes, version: int, limits: Limits
) -> Puback | Pubrec | Pubrel | Pubcomp:
    made, allowed = _ACKNOWLEDGEMENTS[first >> 4]
    end = len(body)
    packet_id, at = read_packet_id(body, 0, end)
    if end == 2:
        return made(packet_id)
    if version == 4:
        raise _too_long(at, end)
    reason = _reason(body[2], allowed, made.__name__)
    described = None
    if end > 3:
        described, at = _described(body, 3, limits)
        _check_ended(at, end)
    return made(packet_id, reason, described)


def _described(body: bytes, at: int, limits: Limits) -> tuple[AcknowledgementProperties | None, int]:
    end, most = len(body), limits.user_properties_max
    found, at = properties.read(body, at, end, properties.ACKNOWLEDGEMENT, most)
    return AcknowledgementProperties(**found) if found else None, at


def _reason(code: int, allowed: Mapping[int, Reason], name: str) -> Reason:
    reason = allowed.get(code)
    if reason is None:
        raise protocol_error(f"{name.upper()}: the reason code 0x{code:02X} is not allowed there")
    return reason


# --- SUBSCRIBE, UNSUBSCRIBE and their acknowledgements -------------------------------------------------


def _subscribe(first: int, body: bytes, version: int, limits: Limits) -> Subscribe:
    end = len(body)
    packet_id, at = read_packet_id(body, 0, end)
    found: dict[str, Any] = {}
    if version == 5:
        found, at = properties.read(body, at, end, properties.SUBSCRIBE, limits.user_properties_max)
    entries: list[SubscriptionEntry] = []
    while at < end:
        text, at = read_string(body, at, end)
        options, at = read_byte(body, at, end)
        entries.append(_entry(text, options, version))
        _check_count(entries, limits)
    if not entries:
        raise protocol_error("a SUBSCRIBE without a topic filter")
    return Subscribe(packet_id, tuple(entries), **found)


def _check_count(entries: Sized, limits: Limits) -> None:
    if len(entries) > limits.entries_max:
        text = f"more than {limits.entries_max} topic filters in one packet"
        raise PacketError(Reason.QUOTA_EXCEEDED, text)


def _entry(text: str, options: int, version: int) -> SubscriptionEntry:
    if options & (0xC0 if version == 5 else 0xFC):
        raise malformed(f"reserved subscription options are set: 0x{options:02X}")
    if options & 0x03 == 3:
        raise protocol_error("a subscription asks for QoS 3") if version == 5 else malformed("a QoS of 3")
    if options & 0x30 == 0x30:
        raise protocol_error("a retain handling of 3")
    no_local = bool(options & 0x04)
    if check_subscription(text, version) and no_local:
        raise protocol_error("no local is not allowed on a shared subscription")
    return SubscriptionEntry(text, options & 0x03, no_local, bool(options & 0x08), options >> 4)


def _unsubscribe(first: int, body: bytes, version: int, limits: Limits) -> Unsubscribe:
    end = len(body)
    packet_id, at = read_packet_id(body, 0, end)
    found: dict[str, Any] = {}
    if version == 5:
        found, at = properties.read(body, at, end, properties.UNSUBSCRIBE, limits.user_properties_max)
    filters: list[str] = []
    while at < end:
        text, at = read_string(body, at, end)
        check_subscription(text, version)
        filters.append(text)
        _check_count(filters, limits)
    if not filters:
        raise protocol_error("an UNSUBSCRIBE without a topic filter")
    return Unsubscribe(packet_id, tuple(filters), **found)


_IN_SUBACK_3_1_1 = {code: Reason(code) for code in (0x00, 0x01, 0x02, 0x80)}


def _suback(first: int, body: bytes, version: int, limits: Limits) -> Suback:
    packet_id, at = read_packet_id(body, 0, len(body))
    if version == 4:
        described, allowed = None, _IN_SUBACK_3_1_1
    else:
        (described, at), allowed = _described(body, at, limits), reasons.IN_SUBACK
    return Suback(packet_id, _reasons_of("SUBACK", body[at:], allowed), described)


def _unsuback(first: int, body: bytes, version: int, limits: Limits) -> Unsuback:
    packet_id, at = read_packet_id(body, 0, len(body))
    if version == 4:
        _check_ended(at, len(body))
        return Unsuback(packet_id)
    described, at = _described(body, at, limits)
    return Unsuback(packet_id, _reasons_of("UNSUBACK", body[at:], reasons.IN_UNSUBACK), described)


def _reasons_of(name: str, codes: bytes, allowed: Mapping[int, Reason]) -> tuple[Reason, ...]:
    if not codes:
        raise protocol_error(f"{name} without a reason code")
    return tuple(_reason(code, allowed, name) for code in codes)


# --- DISCONNECT and AUTH -------------------------------------------------------------------------------


def _ping(
    made: type[Pingreq] | type[Pingresp], first: int, body: bytes, version: int, limits: Limits
) -> Packet:
    _check_ended(0, len(body))
    return made()


def _disconnect_from_client(first: int, body: bytes, version: int, limits: Limits) -> Disconnect:
    if version == 4:
        _check_ended(0, len(body))
    packet = _disconnect(body, reasons.IN_CLIENT_DISCONNECT, limits)
    if packet.server_reference is not None:
        raise protocol_error("a server reference in a DISCONNECT from a client")
    return packet


def _disconnect_from_server(first: int, body: bytes, version: int, limits: Limits) -> Disconnect:
    if version == 4:
        raise protocol_error("a DISCONNECT from a server of MQTT 3.1.1")
    packet = _disconnect(body, reasons.IN_SERVER_DISCONNECT, limits)
    if packet.session_expiry is not None:
        raise protocol_error("a session expiry interval in a DISCONNECT from a server")
    return packet


def _disconnect(body: bytes, allowed: Mapping[int, Reason], limits: Limits) -> Disconnect:
    if not body:
        return Disconnect()
    reason = _reason(body[0], allowed, "DISCONNECT")
    if len(body) == 1:
        return Disconnect(reason)
    most = limits.user_properties_max
    found, at = properties.read(body, 1, len(body), properties.DISCONNECT, most)
    _check_ended(at, len(body))
    return Disconnect(reason, **found)


def _auth(allowed: Mapping[int, Reason], first: int, body: bytes, version: int, limits: Limits) -> Auth:
    if version == 4:
        raise malformed("AUTH does not exist in MQTT 3.1.1")
    reason = _reason(body[0] if body else 0, allowed, "AUTH")
    if not body:
        return Auth()  # Section 3.15.2.1: success without properties needs no bytes.
    found, at = properties.read(body, 1, len(body), properties.AUTH, limits.user_properties_max)
    _check_ended(at, len(body))
    if "authentication_method" not in found:
        raise protocol_error("an AUTH without an authentication method")
    return Auth(reason, **found)


def _check_ended(at: int, end: int) -> None:
    if at != end:
        raise _too_long(at, end)


def _too_long(at: int, end: int) -> PacketError:
    return malformed(f"{end - at} bytes are left over at the end of the packet")


_Parser = Callable[[int, bytes, int, Limits], Packet]

_FROM_BOTH: dict[int, _Parser] = dict.fromkeys(_ACKNOWLEDGEMENTS, _acknowledgement)
_FROM_CLIENT: dict[int, _Parser] = {
    **_FROM_BOTH,
    CONNECT: lambda first, body, version, limits: parse_connect(body, limits),
    PUBLISH: partial(_publish, True),
    SUBSCRIBE: _subscribe,
    UNSUBSCRIBE: _unsubscribe,
    PINGREQ: partial(_ping, Pingreq),
    DISCONNECT: _disconnect_from_client,
    AUTH: partial(_auth, reasons.IN_CLIENT_AUTH),
}
_FROM_SERVER: dict[int, _Parser] = {
    **_FROM_BOTH,
    CONNACK: _connack,
    PUBLISH: partial(_publish, False),
    SUBACK: _suback,
    UNSUBACK: _unsuback,
    PINGRESP: partial(_ping, Pingresp),
    DISCONNECT: _disconnect_from_server,
    AUTH: partial(_auth, reasons.IN_SERVER_AUTH),
}
