"""Bulk coding of PUBLISH frames and acknowledgements.

A busy broker spends most of its time here, so the payload is the only object
made per frame. Frames of one size are taken apart and put together by a few
operations on the whole burst, which takes a fraction of the time that going
from frame to frame takes.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from struct import iter_unpack

from roamcast.errors import InputError
from roamcast.mqtt.codec.fields import write_binary, write_variable
from roamcast.mqtt.codec.packet_ids import (
    HIGH_BYTES,
    LOW_BYTES,
    PACKET_ID_MAX,
    acknowledgements,
    consecutive,
    encode_id,
    following,
)

Frames = tuple[int, bytes, bytes, int, list[bytes]]
"""First byte, topic and properties (raw, without their lengths) shared by the frames, the first of their
consecutive packet ids (0 with QoS 0), and their payloads."""

TOGETHER_MIN = 16
TOGETHER_FIRST = 32
TOGETHER_MAX = 8_192
"""Bounds of the number of frames of one size that are compared together: few at first, four times as many
after each success. So data that only resemble a burst cost one attempt; with fewer frames than the minimum,
comparing together is slower."""

HEADER_BYTES = 64
"""Memory of a header beside its topic."""
HEADERS_BYTES_MAX = 8_192
"""Memory limit of the headers remembered by one writer."""

# First bytes of a PUBLISH: there is no QoS 3, and QoS 0 is never a duplicate.
_PUBLISH = frozenset((0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3B, 0x3C, 0x3D))


def cut_bursts(
    data: bytes, start: int, packet_max: int, version: int, bursts_max: int = 1 << 30
) -> tuple[list[Frames], int]:
    """Return the PUBLISH frames at `start`, and where they end: a limited number of bursts.

    Frames with the same first byte, topic and properties and consecutive packet ids are together. They end at
    the first one that is incomplete, not a PUBLISH, larger than 16 KiB, with more than 127 bytes of
    properties, or invalid: reading.cut and reading.parse handle that one, so nothing is raised here. The
    caller checks topics and properties, once for each burst: see topics.decode_topic and
    properties.publish_properties.
    """
    # One long function, because a call per frame would cost a third of its run time.
    bursts: list[Frames] = []
    size, at, last_size, together = len(data), start, 0, TOGETHER_FIRST
    last_first = numbered = packet_id = following_id = 0
    last_topic: bytes | None = None
    block = last_block = b""
    payloads: list[bytes] = []
    try:
        while at < size:
            first = data[at]
            if first != last_first:
                if first not in _PUBLISH:
                    break
                last_first, numbered, last_topic = first, 1 if first & 0x06 else 0, None
                packet_id = following_id = 0
            length, body = data[at + 1], at + 2
            if length >= 0x80:
                if not 0 < data[body] < 0x80:
                    break
                length += (data[body] << 7) - 0x80
                body += 1
            end = body + length
            if end > size or end - at > packet_max:
                break
            body += 2
            topic_end = payload = body + (data[body - 2] << 8 | data[body - 1])
            if numbered:
                packet_id = data[topic_end] << 8 | data[topic_end + 1]
                if not packet_id:
                    break
                payload += 2
            if version == 5:
                block_size = data[payload]
                payload += 1
                if block_size:
                    if block_size >= 0x80:
                        break
                    payload += block_size
                block = data[payload - block_size : payload]
            if payload > end:
                break  # A read went past the end; its result is discarded.
            topic = data[body:topic_end]
            if topic != last_topic or packet_id != following_id or block != last_block:
                if len(bursts) == bursts_max:
                    break
                last_topic, last_block, payloads = topic, block, []
                bursts.append((first, topic, block, packet_id, payloads))
            elif (
                end - at == last_size
                and end + TOGETHER_MIN * last_size <= size
                and data.startswith(data[at:topic_end], end)
            ):
                found = _take_apart(data, at, end, topic_end, payload, together, payloads)
                together = min(together * 4, TOGETHER_MAX) if found == together else TOGETHER_FIRST
                at += found * last_size
                following_id = following(packet_id, found) if numbered else 0
                continue
            last_size = end - at
            following_id = packet_id + numbered
            payloads.append(data[payload:end])
            at = end
    except IndexError:
        pass  # The last frame is incomplete. Checking before each byte costs more.
    return bursts, at


def last_frame(data: bytes, start: int, packet_max: int, version: int) -> tuple[bytes, int, bytes] | None:
    """Return topic, packet id (0: QoS 0) and payload of the PUBLISH at `start`, if it is short, plain and the
    last frame in these data.

    This is the case of single messages; None leaves everything else to `cut_bursts`.
    """
    size = len(data)
    if not 6 <= size - start <= 129 or data[start + 1] != size - start - 2 or size - start > packet_max:
        return None
    first = data[start]
    payload = topic_end = start + 4 + (data[start + 2] << 8 | data[start + 3])
    packet_id = 0
    if first == 0x32:
        payload += 2
        if payload > size:
            return None
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if not packet_id:
            return None
    elif first != 0x30:
        return None
    if version == 5:
        if payload >= size or data[payload]:
            return None
        payload += 1
    if payload > size:
        return None
    return data[start + 4 : topic_end], packet_id, data[payload:]


def _take_apart(
    data: bytes, at: int, end: int, id_at: int, payload_at: int, together: int, payloads: list[bytes]
) -> int:
    """Count the frames like the one at `at`, including it, and append their payloads.

    These frames differ only in packet id and payload. With the ids blanked, their headers are identical, so
    reassembling the frames and comparing shows whether all match.
    """
    stride = end - at
    count = min(together, (len(data) - at) // stride)
    region = data[at : at + count * stride]
    front = data[at:payload_at]
    if front[0] & 0x06:
        id_at -= at
        count = _consecutive(region[id_at::stride], region[id_at + 1 :: stride])
        blanked = bytearray(region)
        blanked[id_at::stride] = blanked[id_at + 1 :: stride] = bytes(len(region) // stride)
        region = bytes(blanked)
        front = front[:id_at] + b"\0\0" + front[id_at + 2 :]
    # Struct skips (x) the front and takes the payload as one string (s), frame after frame.
    taken = iter_unpack(f"{len(front)}x{stride - len(front)}s", region[: count * stride])
    found: list[bytes] = list(chain.from_iterable(taken))
    if not region.startswith(front + front.join(found)):
        found = found[: next(n for n in range(count) if not region.startswith(front, n * stride))]
    payloads += found
    return len(found)


def _consecutive(high: bytes, low: bytes) -> int:
    """Count the consecutive ids with these bytes, from the first on."""
    first = (high[0] << 8 | low[0]) - 1
    end = first + len(high)
    wanted_high, wanted_low = HIGH_BYTES[first:end], LOW_BYTES[first:end]
    if high == wanted_high and low == wanted_low:
        return len(high)
    return next(
        place
        for place in range(len(high))
        if high[place] != wanted_high[place] or low[place] != wanted_low[place]
    )


class _Headers(dict[int, bytes]):
    """Headers before the packet id, by the size of the payload; made on first access."""

    __slots__ = ("first", "fixed", "topic")

    def __init__(self, first: bytes, topic: bytes, fixed: int) -> None:
        super().__init__()
        self.first, self.topic, self.fixed = first, topic, fixed

    def __missing__(self, payload_size: int) -> bytes:
        if len(self) * (len(self.topic) + HEADER_BYTES) >= HEADERS_BYTES_MAX:
            self.clear()
        header = self.first + write_variable(self.fixed + payload_size) + self.topic
        self[payload_size] = header
        return header


class FrameWriter:
    """Writes PUBLISH frames of one topic that differ in packet id and payload.

    `topic` is the raw name. `described` are the bytes between the packet id and the payload: nothing in
    3.1.1, and in 5.0 the properties with their length in front, at least a zero byte.
    """

    __slots__ = ("_described", "_headers", "_numbered")

    def __init__(
        self, topic: bytes, qos: int, retain: bool = False, described: bytes = b"", dup: bool = False
    ) -> None:
        name = write_binary(topic)
        self._numbered = qos > 0
        self._described = described
        self._headers = _Headers(
            bytes((0x30 | dup << 3 | qos << 1 | retain,)),
            name,
            len(name) + 2 * self._numbered + len(described),
        )

    def write(self, payloads: Sequence[bytes], first_packet_id: int = 1) -> bytes:
        """Return the frames of these payloads, with consecutive packet ids (1 follows 65,535)."""
        count = len(payloads)
        if not 0 < first_packet_id <= PACKET_ID_MAX or count > PACKET_ID_MAX:
            raise InputError(f"{count} packet ids from {first_packet_id}: 1 to {PACKET_ID_MAX} are valid")
        if count < 2:
            return self.write_one(payloads[0], first_packet_id) if count else b""
        sizes = list(map(len, payloads))
        if sizes.count(sizes[0]) == count:
            return self._write_even(payloads, sizes[0], first_packet_id)
        return self._write_uneven(payloads, sizes, first_packet_id)

    def write_one(self, payload: bytes, packet_id: int) -> bytes:
        if self._numbered:
            return self._headers[len(payload)] + encode_id(packet_id) + self._described + payload
        return self._headers[len(payload)] + self._described + payload

    def write_apart(self, payload: bytes, packet_id: int) -> tuple[bytes, bytes]:
        """Like `write_one`, but the payload stays a separate object, which several clients can share."""
        encoded = encode_id(packet_id) if self._numbered else b""
        return self._headers[len(payload)] + encoded + self._described, payload

    def _write_even(self, payloads: Sequence[bytes], size: int, first_packet_id: int) -> bytes:
        """Write payloads of one size: their headers are identical, and the ids are filled in afterwards."""
        header = self._headers[size]
        if not self._numbered:
            front = header + self._described
            return front + front.join(payloads)
        front = header + b"\0\0" + self._described
        frames = bytearray(front)
        frames += front.join(payloads)
        number, stride = len(header), len(front) + size
        start, end = first_packet_id - 1, first_packet_id - 1 + len(payloads)
        frames[number::stride] = HIGH_BYTES[start:end]
        frames[number + 1 :: stride] = LOW_BYTES[start:end]
        return bytes(frames)

    def _write_uneven(self, payloads: Sequence[bytes], sizes: list[int], first_packet_id: int) -> bytes:
        count = len(payloads)
        parts = [self._described] * (4 * count)
        parts[0::4] = map(self._headers.__getitem__, sizes)
        parts[1::4] = map(encode_id, consecutive(first_packet_id, count)) if self._numbered else [b""] * count
        parts[3::4] = payloads
        return b"".join(parts)


def write_each(writers: Sequence[FrameWriter], payloads: Sequence[bytes], packet_ids: Iterable[int]) -> bytes:
    """Return a frame of each payload by its own writer; the writers have one QoS."""
    # Like `write_one`, without a call for each frame: 2 % of the machine's time with mixed topics.
    if writers[0]._numbered:
        return b"".join([
            writer._headers[len(payload)] + encode_id(packet_id) + writer._described + payload
            for writer, payload, packet_id in zip(writers, payloads, packet_ids, strict=False)
        ])  # fmt: skip
    return b"".join([
        writer._headers[len(payload)] + writer._described + payload
        for writer, payload in zip(writers, payloads, strict=True)
    ])  # fmt: skip


def written_acknowledgements(first_byte: int, first_packet_id: int, count: int) -> bytes:
    """`count` acknowledgements (0x40 PUBACK, 0x50 PUBREC, 0x62 PUBREL, 0x70 PUBCOMP) of consecutive ids."""
    start = 4 * (first_packet_id - 1)
    return acknowledgements(first_byte)[start : start + 4 * count]


def acknowledged(data: bytes, start: int, first_byte: int, first_packet_id: int, count_max: int) -> int:
    """Count the acknowledgements at `start` for consecutive ids from this one on: often all of them.

    Only those without reason and properties count; any other is for reading.cut and reading.parse.
    """
    count = min((len(data) - start) // 4, count_max)
    sent = data[start : start + 4 * count]
    wanted = written_acknowledgements(first_byte, first_packet_id, count)
    if sent == wanted:
        return count
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if sent.startswith(wanted[: 4 * middle]):
            good = middle
        else:
            bad = middle
    return good
