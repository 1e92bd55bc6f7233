"""One end of a link between two brokers: nothing is lost, repeated or reordered, whoever crashes.

Messages are numbered from 1, encoded once, and kept until the peer says that it has journalled them. The link
itself survives its connections: after a cut both ends report how far they have received, and each continues
after that point. QoS 0 messages take a second lane without numbers, and are not kept.

On the wire there are frames (`broker/links/frames.py`). Messages that are sent in one turn share a frame, and
a message that is too large for one is cut into parts. Only whole messages have numbers, so the numbers do not
depend on how anything was cut: a replay of the journal sends the same messages under the same numbers.

What is journalled. An end is part of a broker's durable state. Its state follows from what the broker sends
(a consequence of journalled inputs) and from the numbered frames that `receive` names in `Arrivals.durable`.
Acknowledgements, fleeting messages, `up`, `down`, `take` and `acknowledge` need not be journalled: without
them an end only keeps messages for longer, until the peer reports its progress again. Hence nothing that is
journalled may be decided by the figures (`kept_bytes`, `is_over_limit`); they are for drivers, which can stop
reading from the source of the load.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, ClassVar, NamedTuple

import msgspec

from roamcast.broker.links import frames as wire
from roamcast.errors import InputError
from roamcast.protocol.codec import (
    LENGTH_BYTES,
    VERSION_MAX,
    VERSION_MIN,
    Codec,
    UnknownMessage,
    batch_head,
    without_skipped,
)
from roamcast.protocol.notification import Fleeting, Message
from roamcast.state import State

MESSAGE_BYTES_MAX = 1024 * 1024 * 1024
KEPT_BYTES_MAX = 256 * 1024 * 1024
FLEETING_BYTES_MAX = 4 * 1024 * 1024
TAKE_BYTES = 1024 * 1024

ACKNOWLEDGE_EVERY = 64
ACKNOWLEDGE_EVERY_BYTES = 64 * 1024
"""Messages, or bytes, after which an end that sends nothing itself acknowledges."""

_BATCH_HEAD_BYTES = len(batch_head(0))


class LinkError(Exception):
    """The two ends do not fit together; the error text is one line for the log."""


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """First data of an end on a new connection: its identity, and the number of the last message that it has
    received.

    An end that does not exist yet sends `Resume()`.
    """

    incarnation: int = 0
    peer_incarnation: int = 0
    """Incarnation of the end that the sender received from; 0: none."""
    received: int = 0


class Arrivals(NamedTuple):
    """Decoded contents of frames."""

    numbered: list[Message]
    """Numbered messages, in order, each exactly once."""
    fleeting: list[Message]
    durable: bytes
    """The frames with the messages of `numbered`, to be journalled; a replay passes them to `receive`."""
    position: int = 0
    """Progress of the peer's history, as reported; 0: not reported."""


class Kept(NamedTuple):
    """Content of one frame, or a message too large for one."""

    first: int
    last: int
    is_large: bool
    data: bytes


def _lift_1(fields: dict[str, Any]) -> None:
    del fields["_under_way"]


class LinkEnd:
    """This broker's end of the link to one peer.

    `incarnation` distinguishes this end from every earlier one towards the same peer, also those lost with a
    disk: the driver draws it (63 random bits) and it is journalled. A link is not resumed with a peer that
    knows another incarnation.
    """

    unnumbered: ClassVar[tuple[type[Message], ...]] = ()
    """Types of messages that may come without a number, besides QoS 0 bursts."""

    __state__ = State(
        "link-end",
        2,
        saved=(
            "peer", "incarnation", "peer_incarnation", "sent", "received", "is_up", "version", "_codec",
            "_kept_bytes_max", "_fleeting_bytes_max", "_acknowledge_every",
        ),
        # The peer's acknowledgements and the data written to it are not journalled.
        unhashed=(
            "settled", "kept_bytes", "dropped_fleeting", "_written", "_unwritten", "_offset", "_open",
            "_open_bytes", "_acknowledged", "_told", "_untold_bytes",
        ),
        derived=("_fleeting", "_fleeting_bytes", "_fleeting_parts", "_parts", "taken", "promised"),
        lifts={1: _lift_1},
    )  # fmt: skip
    """An incomplete message is not journalled either: a replay receives it whole."""

    def __init__(
        self,
        peer: str,
        incarnation: int,
        codec: Codec | None,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        fleeting_bytes_max: int = FLEETING_BYTES_MAX,
        acknowledge_every: int = ACKNOWLEDGE_EVERY,
    ) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self.peer_incarnation = 0
        """Incarnation of the peer's end; 0 until a numbered message came from it."""
        self.sent = 0
        """Number of the last message sent."""
        self.settled = 0
        """Number up to which the peer has journalled everything."""
        self.received = 0
        """Number of the last message received."""
        self.kept_bytes = 0
        self.dropped_fleeting = 0
        """Notifications of the unnumbered lane that were dropped at this end."""
        self.is_up = False
        self.version = VERSION_MIN
        """Version of the link protocol, as last negotiated. It is journalled, because it decides what is
        sent."""
        self._codec: Any = codec
        """A `Codec`; None where both ends are in one process, so messages are not encoded."""
        self._kept_bytes_max = kept_bytes_max
        self._fleeting_bytes_max = fleeting_bytes_max
        self._acknowledge_every = acknowledge_every
        self._written: deque[Kept] = deque()
        self._unwritten: deque[Kept] = deque()
        self._offset = 0
        """Bytes already written of the first unwritten item, which may be a large message."""
        self._open: list[bytes] = []
        """Messages for the next frame."""
        self._open_bytes = 0
        self._acknowledged = 0
        """Number up to which everything is journalled here."""
        self._told = 0
        """Number up to which the peer has been told so."""
        self._untold_bytes = 0
        self._restore()

    def _restore(self) -> None:
        self._fleeting: list[bytes] = []
        self._fleeting_bytes = 0
        self._parts: list[bytes] = []
        """Frames of a large message that is not complete yet."""
        self._fleeting_parts: list[bytes] = []
        self.taken = 0
        """Messages received since the process began, for quotas."""
        self.promised: tuple[int, int] | None = None
        """On a replicated site, the numbers of the last messages sent and received that the replicas have.
        The peer hears of nothing beyond. None: everything journalled here may be told."""

    # --- figures ---

    @property
    def kept_count(self) -> int:
        """Messages that the peer has not acknowledged."""
        return self.sent - self.settled

    @property
    def is_over_limit(self) -> bool:
        """True if more is buffered than should be. Nothing is refused: drivers slow down the source."""
        return self.kept_bytes > self._kept_bytes_max

    @property
    def has_more(self) -> bool:
        """True if `take` has output."""
        if self.promised is None:
            has_numbered = bool(self._open or self._unwritten)
        else:
            has_numbered = bool(self._unwritten) and self._unwritten[0].last <= self.promised[0]
        return self.is_up and (has_numbered or bool(self._fleeting) or self._must_tell)

    def end_turn(self, apart: bool = False) -> tuple[int, int]:
        """End a turn whose messages must wait for replicas; returns what `promised` becomes once they have
        it."""
        if self.promised is None:
            self.promised = 0, 0
        if apart:
            self._close_apart()
        else:
            self._close_frame()
        return self.sent, self.received

    # --- sending ---

    def send(self, message: Message) -> None:
        if message.needs <= self.version:
            self.send_encoded(self._codec.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """Send a message that was encoded once for several links."""
        size = len(data)
        if size > wire.PART_BYTES:
            self._send_large(data)
            return
        self.sent += 1
        self.kept_bytes += size
        self._open.append(data)
        self._open_bytes += size
        if self._open_bytes >= wire.BATCH_BYTES:
            self._close_frame()

    def _send_large(self, data: bytes) -> None:
        if len(data) > MESSAGE_BYTES_MAX:
            raise InputError(f"a message of {len(data)} bytes: at most {MESSAGE_BYTES_MAX} can be sent")
        self._close_frame()
        self.sent += 1
        self.kept_bytes += len(data)
        self._unwritten.append(Kept(self.sent, self.sent, True, data))

    def _close_frame(self) -> None:
        """Pack messages sent since the last frame into a frame."""
        count = len(self._open)
        if count:
            data = b"".join((batch_head(count), *self._open))
            self._unwritten.append(Kept(self.sent - count + 1, self.sent, False, data))
            self._open = []
            self._open_bytes = 0

    def _close_apart(self) -> None:
        messages, self._open, self._open_bytes = self._open, [], 0
        for number, data in enumerate(messages, self.sent - len(messages) + 1):
            self._unwritten.append(Kept(number, number, False, batch_head(1) + data))

    def send_fleeting(self, message: Message) -> None:
        """Send with the next `take`, or never: the link may be down, or the peer too slow."""
        if message.needs <= self.version:
            self.send_fleeting_encoded(self._codec.encode(message), message.weight)

    def send_fleeting_encoded(self, data: bytes, weight: int) -> None:
        size = self._fleeting_bytes + len(data)
        if not self.is_up or (self._fleeting and size > self._fleeting_bytes_max):
            self.dropped_fleeting += weight
            return
        self._fleeting.append(data)
        self._fleeting_bytes = size

    def take(self, bytes_max: int = TAKE_BYTES, apart: bool = False) -> bytes:
        """Return output for the connection, about `bytes_max` bytes; nothing while the link is down.

        `apart` gives every message a frame of its own.

        Call this only when the connection accepts more: QoS 0 messages can be dropped until they are taken.
        """
        if not self.is_up:
            return b""
        if apart:
            self._close_apart()
        elif self._open:
            self._close_frame()
        out: list[bytes] = []
        room = bytes_max
        last = self.sent if self.promised is None else self.promised[0]
        while self._unwritten and room > 0 and self._unwritten[0].last <= last:
            frame = self._next_frame()
            out.append(frame)
            room -= len(frame)
        if not out and self._must_tell:
            out.append(wire.acknowledgement(self._acknowledged))
        if out:
            self._told = self._acknowledged
            self._untold_bytes = 0
        if self._fleeting:
            self._take_fleeting(out)
        return out[0] if len(out) == 1 else b"".join(out)

    def _next_frame(self) -> bytes:
        kept = self._unwritten[0]
        if not kept.is_large:
            self._written.append(self._unwritten.popleft())
            return wire.batch(self.incarnation, self._acknowledged, kept.first, kept.data)
        start, self._offset = self._offset, self._offset + wire.PART_BYTES
        is_last = self._offset >= len(kept.data)
        if is_last:
            self._written.append(self._unwritten.popleft())
            self._offset = 0
        piece = kept.data[start : start + wire.PART_BYTES]
        return wire.part(self.incarnation, self._acknowledged, kept.first, is_last, piece)

    def _take_fleeting(self, out: list[bytes]) -> None:
        batch: list[bytes] = []
        size = 0
        for data in self._fleeting:
            if batch and (size >= wire.BATCH_BYTES or len(data) > wire.PART_BYTES):
                out.append(wire.fleeting(b"".join((batch_head(len(batch)), *batch))))
                batch, size = [], 0
            if len(data) > wire.PART_BYTES:
                out.extend(wire.fleeting_parts(data))
            else:
                batch.append(data)
                size += len(data)
        if batch:
            out.append(wire.fleeting(b"".join((batch_head(len(batch)), *batch))))
        self._fleeting = []
        self._fleeting_bytes = 0

    # --- both ends in one process: the same numbers, without encoding (see `Links.send_in_process`) ---

    def receive_in_process(self, number: int) -> None:
        if number != self.received + 1:
            raise LinkError(f"{self.peer} sent message {number} after {self.received}")
        self.received = number

    # --- connecting and disconnecting ---

    def resume(self) -> Resume:
        """Return the first data for the peer on a new connection."""
        return Resume(self.incarnation, self.peer_incarnation, self.received)

    def up(self, peer: Resume, version: int = VERSION_MAX) -> None:
        """Note that the peer is connected with this version; write again what it has not received.

        Messages encoded under a later version stay unchanged. A peer that does not know one skips it, or
        refuses the connection until it is upgraded; either way nothing is lost.
        """
        self.down()
        objection = self.objection(peer)
        if objection:
            raise LinkError(objection)
        kept = [*self._written, *self._unwritten]
        self._written = deque(one for one in kept if one.last <= peer.received)
        self._unwritten = deque(one for one in kept if one.last > peer.received)
        self.is_up = True
        self.version = version
        # The peer may have been told before, without receiving it.
        self._told = 0

    def objection(self, peer: Resume) -> str:
        """Return why the two ends cannot resume, or "": no gap may go unnoticed."""
        if self.peer_incarnation and peer.incarnation != self.peer_incarnation:
            return (
                f"{self.peer} has restarted this link (it lost its journal, or gave the link up): what it "
                f"held is gone; forget {self.peer} here, then it can join again"
            )
        if peer.received and peer.peer_incarnation != self.incarnation:
            return (
                f"{self.peer} resumes an earlier link (the journal here was lost, or the link was "
                f"given up here): this broker must be forgotten there, then it can join again"
            )
        if not self.settled <= peer.received <= self.sent:
            return (
                f"{self.peer} reports {peer.received} received messages, but {self.sent} were sent here, and "
                f"it confirmed {self.settled} before; one of the two journals was replaced by an older one"
            )
        return ""

    def down(self) -> None:
        """Note that the connection is gone; sent messages are kept."""
        self.is_up = False
        self._offset = 0
        self._parts = []
        self._fleeting_parts = []
        self._fleeting = []
        self._fleeting_bytes = 0

    def give_up(self) -> list[Message]:
        """End the link; return the messages that the peer has not acknowledged (for `SendFailed`)."""
        self._close_frame()
        messages: list[Message] = []
        for kept in (*self._written, *self._unwritten):
            if kept.is_large:
                messages.append(self._codec.decode(kept.data))
            else:
                known = max(0, self.settled + 1 - kept.first)
                messages += self._codec.decode_batch(kept.data)[known:]
        self._written.clear()
        self._unwritten.clear()
        self.settled, self.kept_bytes = self.sent, 0
        self.down()
        return without_skipped(messages)

    # --- acknowledging ---

    def acknowledge(self, number: int | None = None) -> None:
        """Note that everything received (up to `number`) has been journalled, so that the peer may be told.

        The next frame acknowledges it, or a frame of its own once enough has accumulated; `heartbeat`
        acknowledges the rest.
        """
        if number is None:
            number = self.received if self.promised is None else self.promised[1]
        self._acknowledged = max(number, self._acknowledged)

    @property
    def _must_tell(self) -> bool:
        untold = self._acknowledged - self._told
        is_much = self._untold_bytes >= ACKNOWLEDGE_EVERY_BYTES
        return untold >= self._acknowledge_every or (untold > 0 and is_much)

    def heartbeat(self, position: int = 0) -> bytes:
        """Return a heartbeat with the number of the last message journalled here, and this broker's
        progress."""
        self._told = self._acknowledged
        self._untold_bytes = 0
        life = wire.acknowledgement(self._acknowledged)
        return life + wire.position(position) if position else life

    def learn_settled(self, number: int) -> None:
        """Note what the peer has journalled, as told by the replica that speaks with the peer."""
        self._settle(min(number, self.sent))

    def _settle(self, number: int) -> None:
        """Note that the peer has journalled everything up to this number."""
        if number > self.sent:
            raise LinkError(f"{self.peer} acknowledges message {number}, but only {self.sent} were sent")
        if number <= self.settled:
            return
        self.settled = number
        if number > self.sent - len(self._open):
            self._close_frame()
        while self._written and self._written[0].last <= number:
            self.kept_bytes -= _size(self._written.popleft())
        # After a replay, messages that the peer has may not have been written yet.
        while self._unwritten and self._unwritten[0].last <= number:
            self.kept_bytes -= _size(self._unwritten.popleft())

    # --- receiving ---

    def receive(self, frames: bytes) -> Arrivals:
        """Take whole frames. Duplicates are skipped; a gap is an error.

        An error leaves the end as it was before these frames.
        """
        reading = _Reading(self, frames)
        reading.read()
        self._settle(reading.acknowledged)
        self.received = reading.received
        self.peer_incarnation = reading.incarnation
        self._parts, self._fleeting_parts = reading.parts, reading.fleeting_parts
        self._untold_bytes += len(frames)
        self.taken += len(reading.numbered) + len(reading.fleeting)
        durable = reading.durable
        whole = durable[0] if len(durable) == 1 else b"".join(durable)
        return Arrivals(reading.numbered, reading.fleeting, whole, reading.position)


def _size(kept: Kept) -> int:
    return len(kept.data) - (0 if kept.is_large else _BATCH_HEAD_BYTES)


class _Reading:
    """Changes that reading frames would make to an end; applied only when all frames are valid."""

    __slots__ = (
        "acknowledged", "durable", "end", "fleeting", "fleeting_parts", "frames", "incarnation", "numbered",
        "parts", "position", "received",
    )  # fmt: skip

    def __init__(self, end: LinkEnd, frames: bytes) -> None:
        self.end = end
        self.frames = frames
        self.received = end.received
        self.incarnation = end.peer_incarnation
        self.acknowledged = 0
        self.position = 0
        self.parts = end._parts
        self.fleeting_parts = end._fleeting_parts
        self.numbered: list[Message] = []
        self.fleeting: list[Message] = []
        self.durable: list[bytes] = []

    def read(self) -> None:
        frames = self.frames
        at = 0
        try:
            while at < len(frames):
                length, kind = wire.HEAD.unpack_from(frames, at)
                body, at = at + wire.HEAD.size, at + LENGTH_BYTES + length
                if not body <= at <= len(frames):
                    raise LinkError(f"{self.end.peer} sent a frame of {length} bytes that is incomplete")
                if kind == wire.BATCH:
                    self._read_batch(body, at)
                else:
                    self._read_frame(kind, body, at)
        except UnknownMessage as error:
            raise LinkError(f"{self.end.peer} sent {error}: if it is newer, upgrade this broker") from None
        except (struct.error, InputError) as error:
            raise LinkError(f"{self.end.peer} sent an unreadable frame: {error}") from None

    def _read_frame(self, kind: int, start: int, stop: int) -> None:
        codec = self.end._codec
        if kind == wire.POSITION:
            (self.position,) = wire.ACKNOWLEDGED_FIELDS.unpack_from(self.frames, start)
        elif kind == wire.ACKNOWLEDGED:
            self._note(*wire.ACKNOWLEDGED_FIELDS.unpack_from(self.frames, start))
        elif kind == wire.FLEETING:
            self._take_fleeting(codec.decode_batch(memoryview(self.frames)[start:stop]))
        elif kind == wire.PART:
            self._read_part(start, stop)
        elif kind == wire.FLEETING_PART:
            self.fleeting_parts = [*self.fleeting_parts, self.frames[start + 1 : stop]]
            self._limit(self.fleeting_parts)
            if self.frames[start]:
                self._take_fleeting([codec.decode(b"".join(self.fleeting_parts))])
                self.fleeting_parts = []
        else:
            raise LinkError(f"{self.end.peer} sent a frame of the unknown kind {kind}")

    def _take_fleeting(self, messages: list[Message]) -> None:
        """Take unnumbered messages. They are not journalled, so they must not change the state."""
        known = without_skipped(messages)
        for message in known:
            if type(message) is Fleeting:
                continue  # Nearly all messages.
            if not (message.is_fleeting or type(message) in self.end.unnumbered):
                raise LinkError(f"{self.end.peer} sent {type(message).__name__} without a number")
        self.fleeting += known

    def _read_batch(self, start: int, stop: int) -> None:
        fields = wire.BATCH_FIELDS
        incarnation, acknowledged, first = fields.unpack_from(self.frames, start)
        if acknowledged > self.acknowledged:
            self.acknowledged = acknowledged
        self._expect(incarnation, first)
        messages = self.end._codec.decode_batch(memoryview(self.frames)[start + fields.size : stop])
        known = self.received + 1 - first
        if len(messages) > known:
            self.numbered += without_skipped(messages[known:] if known else messages)
            self.received = first + len(messages) - 1
            self.parts = []
            start -= wire.HEAD.size
            is_everything = start == 0 and stop == len(self.frames)
            self.durable.append(self.frames if is_everything else self.frames[start:stop])

    def _read_part(self, start: int, stop: int) -> None:
        fields = wire.PART_FIELDS
        incarnation, acknowledged, number, is_last = fields.unpack_from(self.frames, start)
        self._note(acknowledged)
        self._expect(incarnation, number)
        if number <= self.received:
            return
        self.parts = [*self.parts, self.frames[start - wire.HEAD.size : stop]]
        self._limit(self.parts)
        if is_last:
            skip = wire.HEAD.size + fields.size
            message = self.end._codec.decode(b"".join(part[skip:] for part in self.parts))
            self.numbered += without_skipped([message])
            self.received = number
            self.durable += self.parts
            self.parts = []

    def _expect(self, incarnation: int, number: int) -> None:
        if incarnation != (self.incarnation or incarnation):
            raise LinkError(f"{self.end.peer} sends with another incarnation: its journal was replaced")
        if number > self.received + 1:
            raise LinkError(f"{self.end.peer} sent message {number} after {self.received}: some are missing")
        self.incarnation = incarnation

    def _note(self, acknowledged: int) -> None:
        self.acknowledged = max(self.acknowledged, acknowledged)

    def _limit(self, parts: list[bytes]) -> None:
        if sum(map(len, parts)) > MESSAGE_BYTES_MAX + len(parts) * 64:
            raise LinkError(f"{self.end.peer} sent a message of more than {MESSAGE_BYTES_MAX} bytes")
