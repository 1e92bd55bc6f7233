"""Queue of events for one subscriber, in order of arrival, without duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import QueueLimits
from roamcast.state import State

Place = tuple[str, int, int, int]
"""Identity of a burst's first notification, and the number of notifications."""


def place_of(burst: Burst) -> Place:
    return (burst.publisher, burst.incarnation, burst.number, burst.count)


class Stored:
    __slots__ = ("_bursts", "count", "size_bytes")

    __state__ = State("stored")

    def __init__(self) -> None:
        self.count = 0
        """Number of notifications in the queue."""
        self.size_bytes = 0
        self._bursts: dict[Place, Burst] = {}

    def __len__(self) -> int:
        return len(self._bursts)

    def __iter__(self) -> Iterator[Burst]:
        return iter(self._bursts.values())

    def add(self, burst: Burst, limits: QueueLimits | None = None) -> list[Burst]:
        """Add a burst unless it is here; return the bursts that a full queue dropped."""
        place = place_of(burst)
        if place in self._bursts:
            return []
        self._bursts[place] = burst
        self._count(burst, +1)
        given_up: list[Burst] = []
        while limits is not None and self._bursts and self._is_over(limits):
            given_up.append(self.pop_newest() if limits.drops_newest else self.pop())
        return given_up

    def add_in_front(self, bursts: Iterable[Burst]) -> None:
        """Put bursts that were taken out back to the front."""
        waiting, self._bursts = self._bursts, {}
        self.count = self.size_bytes = 0
        for burst in (*bursts, *waiting.values()):
            self.add(burst)

    def pop(self) -> Burst:
        """Take out the oldest burst."""
        return self._popped(next(iter(self._bursts)))

    def pop_newest(self) -> Burst:
        return self._popped(next(reversed(self._bursts)))

    def _is_over(self, limits: QueueLimits) -> bool:
        return self.count > limits.notifications_max or self.size_bytes > limits.bytes_max

    def _popped(self, place: Place) -> Burst:
        burst = self._bursts.pop(place)
        self._count(burst, -1)
        return burst

    def _count(self, burst: Burst, change: int) -> None:
        self.count += change * burst.count
        self.size_bytes += change * burst.held
