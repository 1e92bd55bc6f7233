"""MQTT packets over a blocking socket: what all load programs and hostile clients begin with."""

from __future__ import annotations

import socket
from typing import Self

from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.writing import write

PACKET_MAX = 1 << 28
READ_BYTES = 1 << 16


class PacketSocket:
    """One connection, packet by packet; used as a context, it is closed at the end."""

    def __init__(self, opened: socket.socket, version: int = 5) -> None:
        self.socket = opened
        self.version = version
        self._read = b""

    def send_all(self, packet: Packet) -> None:
        self.socket.sendall(write(packet, self.version))

    def receive_or_end(self) -> Packet | None:
        """Return the next packet; None when the broker has closed the connection."""
        while (packet := self.next_packet()) is None:
            if not self.take():
                return None
        return packet

    def take(self) -> bool:
        """Read once; return False at the end of the connection."""
        data = self.socket.recv(READ_BYTES)
        self._read += data
        return bool(data)

    def next_packet(self) -> Packet | None:
        """Return the next packet of the data read."""
        whole = cut(self._read, 0, PACKET_MAX)
        if whole is None:
            return None
        first, start, end = whole
        packet = parse(first, self._read[start:end], self.version, from_client=False)
        self._read = self._read[end:]
        return packet

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
