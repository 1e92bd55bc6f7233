"""Checks every byte that a load program receives: no message may be lost, duplicated, reordered or changed.

A publisher repeats a cycle of different frames, so what a subscriber must receive is known beforehand, except
the packet ids, which the broker chooses. Frames of one size are checked in thousands with a few operations on
the whole read, so the check costs less than the sockets do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from roamcast.bench.processes import BenchFailed
from roamcast.mqtt.codec.bursts import FrameWriter, acknowledged
from roamcast.mqtt.codec.packet_ids import encode_id

READ_BYTES = 1 << 18
_PUBACK = b"\x40\x02"


class Miscounted(BenchFailed):
    """Raised if the received data differs from the expected data."""


class Cycle:
    """Messages that a publisher repeats; their packet ids are 1, 2, … in each round."""

    def __init__(
        self, topics: Sequence[bytes], payloads: Sequence[bytes], qos: int, described: bytes = b""
    ) -> None:
        writers = {topic: FrameWriter(topic, qos, described=described) for topic in topics}
        self.qos = qos
        self.frames = [
            writers[topic].write([payload], number + 1)
            for number, (topic, payload) in enumerate(zip(topics, payloads, strict=True))
        ]
        self.id_at = [4 + len(topic) for topic in topics]
        """Offset of the packet id in each frame, if it has one."""
        if any(len(frame) > 129 for frame in self.frames):
            raise ValueError("frames of more than 127 bytes have a longer header than this check expects")

    def __len__(self) -> int:
        return len(self.frames)

    def blanked(self, index: int) -> bytes:
        return blanked(self.frames[index], self.qos)


def blanked(frame: bytes, qos: int) -> bytes:
    """Return a frame without its packet id, for comparison."""
    at = 4 + frame[3]
    return frame[:at] + b"\0\0" + frame[at + 2 :] if qos else frame


def frames_in(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + 2 + data[at + 1]
        yield data[at:end]
        at = end


class Acknowledged:
    """Checks the PUBACKs for a publisher: one for each message, in order."""

    def __init__(self, round: int) -> None:
        self._round = round
        """Number of messages after which packet ids start at 1 again."""
        self._rest = b""
        self.count = 0

    def take(self, data: bytes, sent: int) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= 4:
            place = self.count % self._round
            most = min(self._round - place, sent - self.count)
            found = acknowledged(data, at, 0x40, place + 1, most) if most else 0
            if not found:
                raise Miscounted(f"{data[at : at + 4].hex()} arrived where PUBACK {place + 1} was expected")
            at += 4 * found
            self.count += found
        self._rest = data[at:]


class EvenStream:
    """Checks what one subscriber receives from one publisher whose messages have one size and one topic.

    `due` lists the messages of the cycle for this subscriber, in order; None means all.
    """

    def __init__(self, cycle: Cycle, due: Sequence[int] | None = None) -> None:
        self.due = range(len(cycle)) if due is None else due
        self._cycle_length = len(cycle)
        frames = [cycle.blanked(index) for index in self.due]
        self._stride = len(frames[0])
        self._id_at = cycle.id_at[0]
        self._qos = cycle.qos
        if any(len(frame) != self._stride for frame in frames):
            raise ValueError("frames of one size are needed")
        once = b"".join(frames)
        self._ring = once * (2 + 2 * READ_BYTES // len(once))
        self._rest = b""
        self.received = 0

    def done(self) -> int:
        """Return how many of the publisher's messages are complete at this subscriber."""
        rounds, place = divmod(self.received, len(self.due))
        return rounds * self._cycle_length + self.due[place]

    def expected(self, sent: int) -> int:
        """Return how many messages must have arrived when the publisher has sent `sent`."""
        rounds, place = divmod(sent, self._cycle_length)
        return rounds * len(self.due) + bisect_left(self.due, place)

    def take(self, data: bytes) -> bytes:
        """Check received bytes; return the acknowledgements to send."""
        if self._rest:
            data = self._rest + data
        stride = self._stride
        count = len(data) // stride
        whole = count * stride
        self._rest = data[whole:]
        place = self.received % len(self.due)
        wanted = self._ring[place * stride : place * stride + whole]
        acks = b""
        if self._qos:
            region, id_at = bytearray(data[:whole]), self._id_at
            written = bytearray((_PUBACK + b"\0\0") * count)
            written[2::4], written[3::4] = region[id_at::stride], region[id_at + 1 :: stride]
            region[id_at::stride] = region[id_at + 1 :: stride] = bytes(count)
            is_right, acks = region == wanted, bytes(written)
        else:
            is_right = data.startswith(wanted) if self._rest else data == wanted
        if not is_right:
            raise Miscounted(_difference(data, wanted, stride, self.received))
        self.received += count
        return acks


def _difference(data: bytes, wanted: bytes, stride: int, received: int) -> str:
    for index, at in enumerate(range(0, len(wanted), stride)):
        came, due = data[at : at + stride], wanted[at : at + stride]
        # The payload is at the end; the packet id is somewhere before it.
        if came[-32:] != due[-32:] or came[0] != due[0]:
            return f"message {received + index}: {came!r} arrived where {due!r} was expected"
    return f"message {received}: its header differs from what was published"


class FrameStream:
    """PUBLISH frames of any topics, kept for a later check: during the measurement only lengths and packet
    ids are read.
    """

    def __init__(self, qos: int) -> None:
        self._qos = qos
        self.kept: list[bytes] = []
        """The complete frames of each read."""
        self._rest = b""
        self.received = 0

    def take(self, data: bytes) -> bytes:
        if self._rest:
            data = self._rest + data
        size, at, ids = len(data), 0, []
        try:
            while True:
                end = at + 2 + data[at + 1]
                if end > size:
                    break
                id_at = at + 4 + data[at + 3]
                ids.append(data[id_at : id_at + 2])
                at = end
        except IndexError:
            pass  # The last frame is incomplete.
        self._rest = data[at:]
        self.kept.append(data[:at])
        self.received += len(ids)
        return _PUBACK + _PUBACK.join(ids) if self._qos and ids else b""


class MixedStream(FrameStream):
    """What one subscriber receives of several publishers: in any interleaving, but each publisher's messages
    in order.

    Payloads begin with two digits that identify the publisher.
    """

    def __init__(self, cycles: Sequence[Cycle]) -> None:
        super().__init__(cycles[0].qos)
        self._cycles = cycles

    def verify(self, sent: Sequence[int]) -> None:
        """Raise Miscounted unless exactly `sent` messages of each publisher arrived, in order."""
        counts = [0] * len(self._cycles)
        for data in self.kept:
            for frame in frames_in(data):
                self._check(frame, counts)
        for number, (count, wanted) in enumerate(zip(counts, sent, strict=True)):
            if count != wanted:
                raise Miscounted(f"publisher {number} sent {wanted} messages, {count} came")

    def _check(self, frame: bytes, counts: list[int]) -> None:
        payload = frame[4 + frame[3] + (2 if self._qos else 0) :]
        publisher = int(payload[:2]) if payload[:2].isdigit() else -1
        if not 0 <= publisher < len(counts):
            raise Miscounted(f"{frame!r} comes from no known publisher")
        cycle = self._cycles[publisher]
        wanted = cycle.blanked(counts[publisher] % len(cycle))
        if blanked(frame, self._qos) != wanted:
            raise Miscounted(f"message {counts[publisher]}: {frame!r} arrived where {wanted!r} was expected")
        counts[publisher] += 1


class Echo:
    """One message in flight: it is published and returns to its publisher, which then sends the next one."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._read = b""
        self.count = 0

    def first(self) -> bytes:
        return self._cycle.frames[0]

    def take(self, data: bytes) -> bytes | None:
        """Return what to send once the message has returned (and is acknowledged); None before that."""
        data = self._read = self._read + data
        cycle = self._cycle
        place = self.count % len(cycle)
        frame = cycle.frames[place]
        following = cycle.frames[place + 1 if place + 1 < len(cycle) else 0]
        if not cycle.qos:
            if len(data) < len(frame):
                return None
            if data != frame:
                raise Miscounted(f"message {self.count}: {data!r} arrived where {frame!r} was expected")
            answer = following
        else:
            if len(data) < len(frame) + 4:
                return None
            # The acknowledgement comes before the message or after it.
            start = 4 if data[0] == 0x40 else 0
            puback = data[:4] if start else data[len(frame) :]
            id_at = start + cycle.id_at[place]
            came = data[start:id_at] + b"\0\0" + data[id_at + 2 : start + len(frame)]
            if came != cycle.blanked(place) or puback != _PUBACK + encode_id(place + 1):
                raise Miscounted(
                    f"message {self.count}: {data!r} arrived where {frame!r} and its PUBACK were expected"
                )
            answer = _PUBACK + data[id_at : id_at + 2] + following
        self._read = b""
        self.count += 1
        return answer
