"""Packets of a connection in words: one log line for each, for debugging."""

from __future__ import annotations

import logging

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.fields import VARIABLE_MAX
from roamcast.mqtt.codec.reading import cut, parse

FRAME_MAX = VARIABLE_MAX + 5


class Trace:
    """Logs the packets of one connection at level DEBUG; ignores malformed ones, which other code reports."""

    def __init__(self, log: logging.Logger, version: int) -> None:
        self._log, self._version = log, version
        self._rest = b""

    def sent(self, data: bytes) -> None:
        self._tell("sending", data, from_client=True)

    def received(self, data: bytes) -> None:
        """Log received packets. Data may end inside a packet; the rest comes with the next call."""
        self._rest = self._tell("received", self._rest + data, from_client=False)

    def _tell(self, what: str, data: bytes, from_client: bool) -> bytes:
        position = 0
        try:
            while position < len(data) and (whole := cut(data, position, FRAME_MAX)) is not None:
                first, start, position = whole
                packet = parse(first, data[start:position], self._version, from_client=from_client)
                self._log.debug("%s %s", what, described(packet))
        except PacketError:
            return b""
        return data[position:]


def described(packet: packets.Packet) -> str:
    """Text of a packet: its name and main fields, never a password."""
    name = type(packet).__name__.upper()
    match packet:
        case packets.Connect():
            said = f"client id {packet.client_id}, clean start {int(packet.clean_start)}, "
            return f"{name} ({said}keep-alive {packet.keep_alive} s)"
        case packets.Connack():
            return f"{name} ({packet.reason.name.lower()}, session present {int(packet.session_present)})"
        case packets.Publish():
            flags = f"d{int(packet.dup)}, q{packet.qos}, r{int(packet.retain)}, m{packet.packet_id}"
            return f"{name} ({flags}, '{packet.topic}', {len(packet.payload)} bytes)"
        case packets.Subscribe():
            return f"{name} (m{packet.packet_id}, {', '.join(one.filter for one in packet.entries)})"
        case packets.Unsubscribe():
            return f"{name} (m{packet.packet_id}, {', '.join(packet.filters)})"
        case packets.Suback() | packets.Unsuback():
            reasons = ", ".join(reason.name.lower() for reason in packet.reasons)
            return f"{name} (m{packet.packet_id}, {reasons})"
        case packets.Puback() | packets.Pubrec() | packets.Pubrel() | packets.Pubcomp():
            return f"{name} (m{packet.packet_id}, {packet.reason.name.lower()})"
        case packets.Disconnect():
            return f"{name} ({packet.reason.name.lower()})"
    return name
