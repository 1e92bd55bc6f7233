"""Wire format of a link: frames, each a four-byte length, a kind, and the fields of that kind.

Numbers, acknowledgements and incarnations are eight bytes each, big-endian.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

from roamcast.errors import InputError
from roamcast.protocol.codec import LENGTH_BYTES

BATCH = 1
"""Fields: incarnation, acknowledged, number of the first message; the messages as a batch of the codec."""
PART = 2
"""Fields: incarnation, acknowledged, number of the message, whether this is its last part; some of its
bytes."""
ACKNOWLEDGED = 3
"""Field: acknowledged. Also the heartbeat of an end that sends nothing else."""
FLEETING = 4
"""Fields: messages without numbers, as a batch of the codec."""
FLEETING_PART = 5
"""Fields: whether this is the last part of a message without number; some of its bytes."""
POSITION = 6
"""Field: progress of the sender's history (see `broker.history`)."""

PART_BYTES = 512 * 1024
"""Part size for larger messages."""
BATCH_BYTES = 64 * 1024
"""Bytes of messages after which a frame is closed."""
FRAME_BYTES_MAX = BATCH_BYTES + PART_BYTES + 64
"""Limit of a frame's length."""

HEAD = struct.Struct(">IB")
_BATCH = struct.Struct(">IBQQQ")
_PART = struct.Struct(">IBQQQ?")
_FLEETING_PART = struct.Struct(">IB?")
_ACKNOWLEDGED = struct.Struct(">IBQ")

BATCH_FIELDS = struct.Struct(">QQQ")
ACKNOWLEDGED_FIELDS = struct.Struct(">Q")
PART_FIELDS = struct.Struct(">QQQ?")


def batch(incarnation: int, acknowledged: int, first: int, data: bytes) -> bytes:
    length = _BATCH.size - LENGTH_BYTES + len(data)
    return _BATCH.pack(length, BATCH, incarnation, acknowledged, first) + data


def part(incarnation: int, acknowledged: int, number: int, is_last: bool, data: bytes) -> bytes:
    length = _PART.size - LENGTH_BYTES + len(data)
    return _PART.pack(length, PART, incarnation, acknowledged, number, is_last) + data


def acknowledgement(number: int) -> bytes:
    return _ACKNOWLEDGED.pack(_ACKNOWLEDGED.size - LENGTH_BYTES, ACKNOWLEDGED, number)


def position(number: int) -> bytes:
    return _ACKNOWLEDGED.pack(_ACKNOWLEDGED.size - LENGTH_BYTES, POSITION, number)


def fleeting(data: bytes) -> bytes:
    return HEAD.pack(HEAD.size - LENGTH_BYTES + len(data), FLEETING) + data


def fleeting_parts(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        piece = data[start : start + PART_BYTES]
        length = _FLEETING_PART.size - LENGTH_BYTES + len(piece)
        yield _FLEETING_PART.pack(length, FLEETING_PART, start + PART_BYTES >= len(data)) + piece


class FrameCutter:
    """Cuts a stream into whole frames, and rejects frames longer than the limit.

    The limit can change: it is small until the peer is authenticated.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._bytes = b""
        self._later: list[bytes] = []
        """Bytes behind these, while the first frame is incomplete: large frames come in many reads."""
        self.waiting_bytes = 0

    def feed(self, data: bytes) -> None:
        self.waiting_bytes += len(data)
        if self._bytes:
            self._later.append(data)
            if len(self._bytes) < LENGTH_BYTES or self.waiting_bytes >= LENGTH_BYTES + self._length(0):
                self._bytes = b"".join((self._bytes, *self._later))
                self._later = []
        else:
            self._bytes = data

    def take_bytes(self, size: int) -> bytes:
        """Return the next `size` bytes outside a frame, or nothing while there are fewer."""
        return self._take(size) if self.waiting_bytes >= size else b""

    def take_rest(self) -> bytes:
        """Return the remaining bytes, whole frames or not."""
        return self._take(self.waiting_bytes)

    def take_one(self) -> bytes:
        """Return the next frame without its length, or nothing while it is incomplete."""
        return self._take(self._end_of_frame(0))[LENGTH_BYTES:]

    def take_all(self, bytes_max: int = sys.maxsize) -> bytes:
        """Return every complete frame in order; stops after the frame that reaches `bytes_max`."""
        end = 0
        while end < bytes_max and (after := self._end_of_frame(end)) != end:
            end = after
        return self._take(end)

    @property
    def has_frame(self) -> bool:
        return self._end_of_frame(0) > 0

    def _take(self, size: int) -> bytes:
        if self._later and size:
            self._bytes = b"".join((self._bytes, *self._later))
            self._later = []
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        self.waiting_bytes -= size
        return taken

    def _length(self, start: int) -> int:
        return int.from_bytes(self._bytes[start : start + LENGTH_BYTES], "big")

    def _end_of_frame(self, start: int) -> int:
        """Return the end of the frame that starts there; `start` itself if incomplete."""
        body = start + LENGTH_BYTES
        if len(self._bytes) < body:
            return start
        length = self._length(start)
        if not 0 < length <= self.frame_bytes_max:
            raise InputError(f"a frame of {length} bytes: 1 to {self.frame_bytes_max} are allowed")
        end = body + length
        return end if end <= len(self._bytes) else start
