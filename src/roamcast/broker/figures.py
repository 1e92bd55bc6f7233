"""Counters of a broker for observers. No behaviour depends on them, and snapshots do not contain
them."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

from roamcast.protocol.notification import Burst

HANDOFF_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram of handoff times; the last class is unbounded."""


HANDOFFS_KEPT = 2048
"""Finished handoffs that are remembered individually."""


class FinishedHandoff(NamedTuple):
    """A handoff to this broker that is complete, with all that was owed to the client."""

    client: str
    came_from: str
    at: float
    seconds: float | None
    """Seconds since the attach; None if the session came ahead of its client."""
    moved: int
    """Notifications that came with the session or waited for it."""


class Figures:
    """Counters since the process began."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.handoffs: dict[str, int] = {}
        """Number of handoffs, by result."""
        self.handoff_classes = [0] * (len(HANDOFF_BOUNDS_S) + 1)
        """Number of handoffs by duration, from the attach until all that was owed had come."""
        self.handoff_total_s = 0.0
        self.finished: deque[FinishedHandoff] = deque(maxlen=HANDOFFS_KEPT)
        self.finished_count = 0
        """Number of finished handoffs; the last of them are in `finished`."""
        self.dropped: dict[tuple[str, bytes], int] = {}
        """Dropped notifications, by reason and first byte of their marks."""

    def handoff(self, result: str, seconds: float | None = None) -> None:
        """Count a handoff to this broker that is over; no time if the session came ahead of its client."""
        self.handoffs[result] = self.handoffs.get(result, 0) + 1
        if seconds is not None:
            self.handoff_classes[bisect_left(HANDOFF_BOUNDS_S, seconds)] += 1
            self.handoff_total_s += seconds

    def finish(self, handoff: FinishedHandoff) -> None:
        self.handoff("finished", handoff.seconds)
        self.finished.append(handoff)
        self.finished_count += 1

    def drop(self, reason: str, burst: Burst) -> None:
        self.leave_out(reason, burst.count, burst.marks[:1])

    def leave_out(self, reason: str, count: int, marks: bytes = b"\x01") -> None:
        self.dropped[reason, marks] = self.dropped.get((reason, marks), 0) + count
