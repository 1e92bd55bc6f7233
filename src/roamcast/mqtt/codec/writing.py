"""Packets to bytes, one at a time (see bursts.py for frequent packets).

Values that cannot be written (a string of more than 65,535 bytes, a number that does not fit
its field) are the caller's mistake, and raise InputError.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from roamcast.errors import InputError
from roamcast.mqtt.codec import packets, properties
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import (
    write_binary,
    write_byte,
    write_packet_id,
    write_string,
    write_two,
    write_variable,
)
from roamcast.mqtt.codec.packets import Connack, Packet, SubscriptionEntry
from roamcast.mqtt.codec.reasons import Reason, connack_3_1_1

CONNACKS_KEPT_MAX = 64


def write(packet: Packet, version: int) -> bytes:
    """The frame of a packet."""
    first, body = _WRITERS[type(packet)](packet, version)
    return bytes((first,)) + write_variable(len(body)) + body


def _qos(qos: int) -> int:
    if not 0 <= qos <= 2:
        raise InputError(f"a QoS of {qos}: 0, 1 and 2 are valid")
    return qos


def _connect(packet: packets.Connect, version: int) -> tuple[int, bytes]:
    if packet.version != version:
        raise InputError(f"a CONNECT of level {packet.version} cannot be written as level {version}")
    if version == 4 and packet.password is not None and packet.username is None:
        raise InputError("MQTT 3.1.1 allows no password without a user name")
    will = packet.will
    flags = packet.clean_start << 1
    if will is not None:
        flags |= 0x04 | _qos(will.qos) << 3 | will.retain << 5
    flags |= (packet.password is not None) << 6 | (packet.username is not None) << 7
    parts = [b"\0\4MQTT", bytes((version, flags)), write_two(packet.keep_alive)]
    if version == 5:
        parts.append(properties.write(packet, properties.CONNECT))
    parts.append(write_string(packet.client_id))
    if will is not None:
        if version == 5:
            block = properties.encode(will, properties.WILL_DELAY)
            block += properties.encode(will.properties, properties.WILL)
            parts += (write_variable(len(block)), block)
        parts += (write_string(will.topic), write_binary(will.payload))
    if packet.username is not None:
        parts.append(write_string(packet.username))
    if packet.password is not None:
        parts.append(write_binary(packet.password))
    return 0x10, b"".join(parts)


def _connack(packet: Connack, version: int) -> tuple[int, bytes]:
    if version == 4:
        return 0x20, bytes((packet.session_present, connack_3_1_1(packet.reason)))
    start = bytes((packet.session_present, packet.reason))
    return 0x20, start + properties.write(packet, properties.CONNACK)


@lru_cache(maxsize=CONNACKS_KEPT_MAX)
def connack(packet: Connack, version: int) -> bytes:
    """Return the frame of a CONNACK that many clients receive identically."""
    return write(packet, version)


def refusal(error: PacketError) -> bytes:
    """Return the CONNACK for a refused CONNECT; empty if the connection is just to be closed.

    MQTT 3.1.1 has return codes for a few causes only, and closes silently for the others. A level above 5 is
    answered as 5.0 would be, a level below 4 as 3.1.1 would be.
    """
    if error.version is None:
        return b""
    told = error.reason in (Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID)
    if error.version < 5 and not told:
        return b""
    return write(Connack(reason=error.reason), 5 if error.version >= 5 else 4)


def _publish(packet: packets.Publish, version: int) -> tuple[int, bytes]:
    first = 0x30 | packet.dup << 3 | _qos(packet.qos) << 1 | packet.retain
    parts = [write_string(packet.topic)]
    if packet.qos:
        parts.append(write_packet_id(packet.packet_id))
    if version == 5:
        parts.append(properties.write(packet.properties, properties.PUBLISH))
    parts.append(packet.payload)
    return first, b"".join(parts)


def _acknowledgement(first: int) -> Callable[[Any, int], tuple[int, bytes]]:
    def written(packet: packets.Puback, version: int) -> tuple[int, bytes]:
        body = write_packet_id(packet.packet_id)
        if version == 5 and (packet.reason or packet.properties is not None):
            body += write_byte(packet.reason)
            if packet.properties is not None:
                body += properties.write(packet.properties, properties.ACKNOWLEDGEMENT)
        return first, body

    return written


def _subscribe(packet: packets.Subscribe, version: int) -> tuple[int, bytes]:
    if not packet.entries:
        raise InputError("a SUBSCRIBE needs at least one topic filter")
    parts = [write_packet_id(packet.packet_id)]
    if version == 5:
        parts.append(properties.write(packet, properties.SUBSCRIBE))
    for entry in packet.entries:
        parts += (write_string(entry.filter), write_byte(_options(entry, version)))
    return 0x82, b"".join(parts)


def _options(entry: SubscriptionEntry, version: int) -> int:
    qos = _qos(entry.qos)
    if version == 4:
        return qos
    if not 0 <= entry.retain_handling <= 2:
        raise InputError(f"a retain handling of {entry.retain_handling}: 0, 1 and 2 are valid")
    return qos | entry.no_local << 2 | entry.retain_as_published << 3 | entry.retain_handling << 4


def _suback(packet: packets.Suback, version: int) -> tuple[int, bytes]:
    packet_id = write_packet_id(packet.packet_id)
    if version == 4:
        return 0x90, packet_id + bytes(min(reason, Reason.UNSPECIFIED_ERROR) for reason in packet.reasons)
    described = properties.write(packet.properties, properties.ACKNOWLEDGEMENT)
    return 0x90, packet_id + described + bytes(packet.reasons)


def _unsubscribe(packet: packets.Unsubscribe, version: int) -> tuple[int, bytes]:
    if not packet.filters:
        raise InputError("an UNSUBSCRIBE needs at least one topic filter")
    parts = [write_packet_id(packet.packet_id)]
    if version == 5:
        parts.append(properties.write(packet, properties.UNSUBSCRIBE))
    parts += map(write_string, packet.filters)
    return 0xA2, b"".join(parts)


def _unsuback(packet: packets.Unsuback, version: int) -> tuple[int, bytes]:
    packet_id = write_packet_id(packet.packet_id)
    if version == 4:
        return 0xB0, packet_id
    described = properties.write(packet.properties, properties.ACKNOWLEDGEMENT)
    return 0xB0, packet_id + described + bytes(packet.reasons)


def _disconnect(packet: packets.Disconnect, version: int) -> tuple[int, bytes]:
    if version == 4:
        return 0xE0, b""
    block = properties.write(packet, properties.DISCONNECT)
    if block != b"\0":
        return 0xE0, write_byte(packet.reason) + block
    return 0xE0, write_byte(packet.reason) if packet.reason else b""


def _auth(packet: packets.Auth, version: int) -> tuple[int, bytes]:
    if version == 4:
        raise InputError("MQTT 3.1.1 has no AUTH")
    block = properties.write(packet, properties.AUTH)
    return 0xF0, write_byte(packet.reason) + block if packet.reason or block != b"\0" else b""


_WRITERS: dict[type, Callable[[Any, int], tuple[int, bytes]]] = {
    packets.Connect: _connect,
    packets.Connack: _connack,
    packets.Publish: _publish,
    packets.Puback: _acknowledgement(0x40),
    packets.Pubrec: _acknowledgement(0x50),
    packets.Pubrel: _acknowledgement(0x62),
    packets.Pubcomp: _acknowledgement(0x70),
    packets.Subscribe: _subscribe,
    packets.Suback: _suback,
    packets.Unsubscribe: _unsubscribe,
    packets.Unsuback: _unsuback,
    packets.Pingreq: lambda packet, version: (0xC0, b""),
    packets.Pingresp: lambda packet, version: (0xD0, b""),
    packets.Disconnect: _disconnect,
    packets.Auth: _auth,
}
