"""The engine: a heap of timed events and virtual time. It knows neither brokers nor clients.

Messages with a constant delay arrive in the order in which they were sent. So they wait in a lane, a plain
queue of which only the first event is in the heap: the heap stays small, even with many messages in transit.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush, heapreplace
from typing import Any

from roamcast.simulator.links import Delay

Handle = Callable[[Any, Any], None]
Event = tuple[float, int, Handle, Any, Any, "deque[Event] | None"]
"""Time, a number that orders equal times, the handler with its two arguments, and the lane."""

REPORT_EVERY = 5_000


class Engine:
    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        """Number of events so far."""
        self._heap: list[Event] = []
        self._pushed = 0

    def push(self, at: float, handle: Handle, first: Any = None, second: Any = None) -> None:
        """Call `handle(first, second)` at this time; events of the same time keep their order."""
        self._pushed += 1
        heappush(self._heap, (at, self._pushed, handle, first, second, None))

    def push_lane(self, lane: deque[Event], at: float, handle: Handle, first: Any, second: Any) -> None:
        """Like `push`, for times that never decrease within one lane."""
        self._pushed += 1
        event = (at, self._pushed, handle, first, second, lane)
        if not lane:
            heappush(self._heap, event)
        lane.append(event)

    def go(
        self,
        progress: Callable[[float], None] | None = None,
        until_s: float = float("inf"),
        steps_max: float = float("inf"),
    ) -> None:
        """Process events until none is left before this time, or `steps_max` events have happened."""
        with _without_collector():
            heap, steps = self._heap, self.steps
            report_at = steps if progress is not None else float("inf")
            while heap and steps < steps_max:
                at, _, handle, first, second, lane = heap[0]
                if at > until_s:
                    break
                self.now = at
                if lane is None:
                    heappop(heap)
                else:
                    lane.popleft()
                    if lane:
                        heapreplace(heap, lane[0])
                    else:
                        heappop(heap)
                handle(first, second)
                steps += 1
                if steps >= report_at and progress is not None:
                    progress(self.now)
                    report_at = steps + REPORT_EVERY
            self.steps = steps


def lane_for(delay: Delay, bits_per_s: float | None = None) -> deque[Event] | None:
    """Return a lane for everything with this delay, if it is constant."""
    return deque() if delay.is_fixed and bits_per_s is None else None


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable garbage collection: the loop makes many small objects and few cycles, and collecting would
    cost a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
