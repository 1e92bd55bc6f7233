"""Delivery queues: a client's notifications, numbered, in order, until acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from roamcast.protocol.notification import HELD_BYTES, Burst
from roamcast.state import State

UNCOUNTED = -1
ARRIVALS_KEPT_MIN = 256
"""Remembered arrivals beyond which a buffer removes obsolete ones."""


class QueueLimits(msgspec.Struct, frozen=True):
    """Limits of a single queue; at the limit the oldest unsent burst, or the newest, is dropped.

    Bytes are memory, as `Burst.held` estimates it.
    """

    notifications_max: int
    bytes_max: int
    drops_newest: bool = False
    in_flight_bytes_max: int = 4_194_304
    """Limit of sent and unacknowledged bytes; a single burst may be larger. These bytes are in buffers of the
    connection if the client does not read."""


class Buffer:
    """Limit that the queues of one broker share; when full, the oldest burst is dropped.

    Without a limit it costs nothing. With a limit it remembers the order of arrival over all queues, and
    drops the oldest burst.
    """

    __state__ = State(
        "buffer",
        saved=("limit_bytes", "limits", "used_bytes", "_arrivals", "_tidy_at"),
        derived=("last", "last_held", "taken_bytes"),
    )

    def __init__(self, limit_bytes: int | None = None, limits: QueueLimits | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.limits = limits
        """Limits of each single queue."""
        self.used_bytes = 0
        self._arrivals: deque[tuple[DeliveryQueue, int]] = deque()
        self._tidy_at = ARRIVALS_KEPT_MIN
        self._restore()

    def _restore(self) -> None:
        self.taken_bytes = 0
        """Bytes ever added to queues that have limits; its increase since a time bounds their growth. A burst
        added to several queues in a row counts once."""
        self.last: Burst | None = None
        """The burst added last."""
        self.last_held = 0
        """Its `held`, for all queues that get it."""

    def take(self, burst: Burst, size: int) -> None:
        if burst is self.last:
            self.taken_bytes += HELD_BYTES
        else:
            self.last, self.last_held = burst, size
            self.taken_bytes += size

    def added(self, queue: DeliveryQueue, end: int, burst: Burst) -> list[tuple[DeliveryQueue, Burst]]:
        """Account for a new burst, which ends at this position of its queue; return dropped bursts."""
        self.used_bytes += self._take_room(burst)
        self._arrivals.append((queue, end))
        if len(self._arrivals) > self._tidy_at:
            self._tidy()
        evicted = []
        while self.limit_bytes is not None and self.used_bytes > self.limit_bytes and self._arrivals:
            oldest, oldest_end = self._arrivals[0]
            if oldest_end <= oldest.popped:
                self._arrivals.popleft()
            else:
                evicted.append((oldest, oldest.drop_oldest()))
        return evicted

    def removed(self, burst: Burst) -> None:
        self.used_bytes -= self._give_room(burst)

    def _take_room(self, burst: Burst) -> int:
        """Return the bytes that this burst takes in one more queue."""
        return burst.size

    def _give_room(self, burst: Burst) -> int:
        """Return the bytes that become free when this burst leaves a queue."""
        return burst.size

    def _tidy(self) -> None:
        """Remove obsolete arrivals; only at each doubling, so that the cost per burst is small."""
        self._arrivals = deque((queue, end) for queue, end in self._arrivals if end > queue.popped)
        self._tidy_at = max(ARRIVALS_KEPT_MIN, 2 * len(self._arrivals))


_NOTHING: deque[Burst] = deque(maxlen=0)
"""Shared empty queue: an own deque takes 700 bytes, and most queues are empty."""


def _lift_1(fields: dict[str, Any]) -> None:
    fields["backlog"] = fields.pop("waiting")


class DeliveryQueue:
    """A FIFO of bursts towards one client, with the sequence numbers of the access link.

    `base` is the highest acknowledged sequence. The front holds bursts that were sent and not yet
    acknowledged; they are sent again after the next attach.
    """

    __slots__ = (
        "_buffer", "_limited", "_limits", "_sent_bytes", "appended", "base", "in_flight", "popped", "sent",
        "size_bytes", "stream", "waiting",
    )  # fmt: skip

    __state__ = State(
        "delivery-queue",
        2,
        saved=(
            "_buffer", "_limited", "_limits", "appended", "backlog", "base", "in_flight", "popped", "sent",
            "size_bytes", "stream",
        ),
        derived=("_sent_bytes", "waiting"),
        lifts={1: _lift_1},
    )  # fmt: skip

    def __init__(self, stream: str, base: int = 0, buffer: Buffer | None = None) -> None:
        self.stream = stream
        self.base = base
        self.sent = base
        """The highest sequence sent."""
        self.in_flight: list[Burst] = []
        """Bursts sent and not acknowledged. A window is short: an empty deque takes 600 bytes more."""
        self.waiting = _NOTHING
        self.appended = 0
        self.popped = 0
        """Notifications ever removed at the front: gives positions within the queue."""
        self._limited = buffer is not None and buffer.limit_bytes is not None
        self._buffer = buffer
        self._limits = buffer.limits if buffer is not None else None
        self.size_bytes = 0
        """Counted only if there are limits."""
        self._sent_bytes = UNCOUNTED
        """Bytes in flight, counted from when they could exceed their limit until the queue is empty."""

    def _restore(self) -> None:
        self.in_flight = list(self.in_flight)  # Older snapshots contain a deque.
        self.waiting = deque(self.waiting) if self.waiting else _NOTHING
        self._sent_bytes = UNCOUNTED

    @property
    def in_flight_bytes(self) -> int:
        return sum(burst.held for burst in self.in_flight)

    @property
    def backlog(self) -> list[Burst] | None:
        """Waiting bursts, as stored in a snapshot."""
        return list(self.waiting) if self.waiting else None

    @backlog.setter
    def backlog(self, bursts: Any) -> None:
        self.waiting = bursts  # `_restore` turns it into a deque after filling.

    def __len__(self) -> int:
        """Notifications held."""
        return self.appended - self.popped

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.waiting)

    def needs_room(self, window: int) -> bool:
        """True if something waits to be sent, or soon will unless the client acknowledges."""
        limits = self._limits
        if self.waiting or self._limited or 2 * (self.sent - self.base) > window:
            return True
        return limits is not None and (
            2 * len(self) > limits.notifications_max
            or 2 * self.size_bytes > min(limits.bytes_max, limits.in_flight_bytes_max)
        )

    def limit(self, limits: QueueLimits | None) -> None:
        """Apply new limits; excess is dropped when the next burst arrives."""
        if self._limits is None or limits is None:
            self.size_bytes = sum(burst.held for burst in self.bursts()) if limits is not None else 0
        self._limits, self._sent_bytes = limits, UNCOUNTED

    def join(self, buffer: Buffer) -> list[tuple[DeliveryQueue, Burst]]:
        """Join a buffer; return the dropped bursts, of this or another queue."""
        self._buffer, self._limited = buffer, buffer.limit_bytes is not None
        self.limit(buffer.limits)
        buffer.taken_bytes += self.size_bytes
        evicted = self._shrink(buffer.limits) if buffer.limits is not None else []
        end = self.popped
        for burst in self.bursts() if self._limited else ():
            end += burst.count
            evicted += buffer.added(self, end, burst)
        return evicted

    def append(self, burst: Burst) -> Sequence[tuple[DeliveryQueue, Burst]]:
        """Add at the end; return the dropped bursts, of this or another queue."""
        if self.waiting:
            self.waiting.append(burst)
        else:
            self.waiting = deque((burst,))
        self.appended += burst.count
        limits, buffer = self._limits, self._buffer
        if limits is not None:
            size = burst.held
            self.size_bytes += size
            if buffer is not None:
                buffer.take(burst, size)
            is_full = (
                self.appended - self.popped > limits.notifications_max or self.size_bytes > limits.bytes_max
            )
        if not self._limited and (limits is None or not is_full):
            return ()
        evicted = self._shrink(limits) if limits is not None else []
        is_here = not evicted or evicted[-1][1] is not burst
        if is_here and self._limited and buffer is not None:
            evicted += buffer.added(self, self.appended, burst)
        return evicted

    def pass_through(self, burst: Burst, window: int) -> int:
        """Combine `append` and `take` for a burst that can be sent at once; returns its sequence, or 0 if it
        cannot."""
        count, limits, buffer = burst.count, self._limits, self._buffer
        if self.waiting or self._limited or self.sent - self.base + count > window:
            return 0
        appended = self.appended + count
        if limits is not None:
            size = buffer.last_held if buffer is not None and burst is buffer.last else burst.held
            size_bytes = self.size_bytes + size
            if size_bytes > limits.bytes_max or appended - self.popped > limits.notifications_max:
                return 0
            if size_bytes > limits.in_flight_bytes_max and self.in_flight:
                return 0
            self.size_bytes = size_bytes
            if self._sent_bytes != UNCOUNTED:
                self._sent_bytes += size
            if buffer is not None:
                buffer.take(burst, size)
        self.appended = appended
        self.in_flight.append(burst)
        sequence = self.sent + 1
        self.sent += count
        return sequence

    def _shrink(self, limits: QueueLimits) -> list[tuple[DeliveryQueue, Burst]]:
        """Apply the limits of this queue. Sent bursts stay: the client may have them already."""
        evicted: list[tuple[DeliveryQueue, Burst]] = []
        while self.waiting and (
            self.appended - self.popped > limits.notifications_max or self.size_bytes > limits.bytes_max
        ):
            if limits.drops_newest:
                burst = self.waiting.pop()
                self.appended -= burst.count
                self.size_bytes -= burst.held
                return [(self, burst)]
            evicted.append((self, self.drop_waiting()))
        return evicted

    def drop_waiting(self) -> Burst:
        """Drop the oldest unsent burst; its sequences are skipped if nothing is in flight."""
        burst = self._pop_front(self.waiting)
        if not self.in_flight:
            self.base = self.sent = self.base + burst.count
        return burst

    def extend(self, bursts: Iterable[Burst]) -> list[tuple[DeliveryQueue, Burst]]:
        evicted: list[tuple[DeliveryQueue, Burst]] = []
        for burst in bursts:
            evicted += self.append(burst)
        return evicted

    def take(self, window: int) -> list[tuple[int, Burst]]:
        """Send what fits into the window; returns (sequence, burst) for each, now in flight."""
        room = window - (self.sent - self.base)
        limits, taken = self._limits, []
        bytes_max = limits.in_flight_bytes_max if limits is not None else self.size_bytes
        if self.size_bytes > bytes_max and self._sent_bytes == UNCOUNTED:
            self._sent_bytes = self.in_flight_bytes
        while self.waiting and room > 0:
            burst = self.waiting[0]
            if self._sent_bytes != UNCOUNTED and self.in_flight and self._sent_bytes + burst.held > bytes_max:
                break
            self.waiting.popleft()
            if burst.count > room:
                self.waiting.appendleft(burst.tail(room))
                burst = burst.head(room)
            self.in_flight.append(burst)
            if self._sent_bytes != UNCOUNTED:
                self._sent_bytes += burst.held
            taken.append((self.sent + 1, burst))
            self.sent += burst.count
            room -= burst.count
        if not self.waiting:
            self.waiting = _NOTHING
        return taken

    def up_to(self, sequence: int) -> Iterator[Burst]:
        """Return the bursts that `acknowledge` would remove."""
        left = sequence - self.base
        for burst in chain(self.in_flight, self.waiting):
            if left <= 0:
                return
            yield burst if burst.count <= left else burst.head(left)
            left -= burst.count

    def acknowledge(self, sequence: int) -> int:
        """Remove what the client has; return the number of notifications.

        After a rewind nothing is in flight, but the client may have more than it reported: so waiting bursts
        can be acknowledged, too.
        """
        in_flight = self.in_flight
        if in_flight and sequence == self.sent and not self.waiting and not self._limited:
            # Nearly always: the client has everything, so no sums are needed.
            in_flight.clear()
            count = self.appended - self.popped
            self.base, self.popped = sequence, self.appended
            self.size_bytes, self._sent_bytes = 0, UNCOUNTED
            return count
        if in_flight and in_flight[0].count == sequence - self.base:
            self.base = sequence
            return self._pop_front(in_flight).count
        acknowledged = left = min(sequence - self.base, len(self))
        while left > 0:
            bursts: list[Burst] | deque[Burst] = self.in_flight or self.waiting
            burst = bursts[0]
            if burst.count > left:
                bursts[0] = burst.head(left)
                self._pop_front(bursts)
                bursts.insert(0, burst.tail(left))
                break
            left -= burst.count
            self._pop_front(bursts)
        if acknowledged <= 0:
            return 0
        self.base += acknowledged
        self.sent = max(self.sent, self.base)
        return acknowledged

    def rewind(self, received: int) -> None:
        """Prepare to send everything after `received` again, for a new attach."""
        if received > self.base:
            self.acknowledge(received)
        if self.in_flight:
            self.waiting = deque((*self.in_flight, *self.waiting))
            self.in_flight.clear()
        self._sent_bytes = UNCOUNTED
        self.sent = self.base

    def drain(self) -> list[Burst]:
        """Take everything out, for another queue."""
        bursts = [*self.in_flight, *self.waiting]
        if self._limited and self._buffer is not None:
            for burst in bursts:
                self._buffer.removed(burst)
        # All at once: summing over the bursts would take as long as reading them.
        self.popped, self.size_bytes, self._sent_bytes = self.appended, 0, UNCOUNTED
        self.in_flight.clear()
        self.waiting = _NOTHING
        self.sent = self.base
        return bursts

    def drop_oldest(self) -> Burst:
        """Drop the oldest burst; its sequences are skipped."""
        if not self.in_flight:
            return self.drop_waiting()
        self.base += self.in_flight[0].count
        return self._pop_front(self.in_flight)

    def bursts(self) -> list[Burst]:
        return [*self.in_flight, *self.waiting]

    def _pop_front(self, bursts: list[Burst] | deque[Burst]) -> Burst:
        burst = bursts[0]
        del bursts[0]
        self.popped += burst.count
        if self._limits is not None:
            size = burst.held
            self.size_bytes -= size
            if self._sent_bytes != UNCOUNTED and bursts is self.in_flight:
                self._sent_bytes -= size
        if self._limited and self._buffer is not None:
            self._buffer.removed(burst)
        return burst
