"""Packets written by hand, right or wrong, independently of the code under test."""

from __future__ import annotations

from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return len(raw).to_bytes(2, "big") + raw


def frame(first: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    length, digits = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes((first,)) + bytes(digits) + body


def block(*properties: bytes) -> bytes:
    body = b"".join(properties)
    assert len(body) < 128
    return bytes((len(body),)) + body


def connect(
    *payload: bytes,
    version: int = 5,
    flags: int = 0x02,
    name: str | bytes = "MQTT",
    properties: bytes = b"\0",
    first: int = 0x10,
) -> bytes:
    start = (text(name), bytes((version, flags)), b"\0\x3c")
    return frame(first, *start, properties if version == 5 else b"", *(payload or (text("id"),)))


def publish(
    topic: str | bytes = "a", properties: bytes = b"\0", first: int = 0x30, packet_id: bytes = b""
) -> bytes:
    return frame(first, text(topic), packet_id, properties, b"payload")


def subscribe(*entries: bytes, properties: bytes = b"\0", packet_id: bytes = b"\0\1") -> bytes:
    return frame(0x82, packet_id, properties, *(entries or (text("a") + b"\0",)))


def read(data: bytes, version: int = 5, from_client: bool = True) -> Packet:
    (packet,) = read_all(data, version, from_client)
    return packet


def read_all(data: bytes, version: int = 5, from_client: bool = False) -> list[Packet]:
    found: list[Packet] = []
    while data:
        whole = cut(data, 0, 1 << 28)
        assert whole is not None, "the frame is not whole"
        first, start, end = whole
        found.append(parse(first, data[start:end], version, from_client))
        data = data[end:]
    return found
