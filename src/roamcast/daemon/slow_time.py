"""Time in a broker whose clock was set back: it goes on, at half the pace, until the clock has caught up."""

from __future__ import annotations

import time
from collections.abc import Callable

PACE = 0.5


class SlowTime:
    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._began = (0.0, 0.0)
        """When time became slow: by a clock that is never set, and by the broker's own."""
        self._last: float | None = None

    def after(self, now: float) -> float:
        """What time it is. The last that was told is `now`, and the clock says less."""
        if self._last != now:
            self._began = (self._steady(), now)
        since, at = self._began
        self._last = max(now, at + PACE * (self._steady() - since))
        return self._last


def seconds_until(deadline: float, now: float, clock: float) -> float:
    """How long to wait for the broker's time to come to a deadline."""
    return max(0.0, deadline - clock if clock >= now else (deadline - now) / PACE)
