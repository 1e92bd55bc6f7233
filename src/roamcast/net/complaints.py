"""Suppresses repeated log lines."""

from __future__ import annotations

import time
from collections import OrderedDict

COMPLAINTS_MAX = 256
COMPLAINT_AGAIN_S = 600.0


class Complaints:
    """Suppress repeated warnings about the same peer, host or client, for longer each time."""

    def __init__(
        self, first_pause_s: float = COMPLAINT_AGAIN_S, pause_max_s: float = COMPLAINT_AGAIN_S
    ) -> None:
        self._first_pause_s = first_pause_s
        self._pause_max_s = pause_max_s
        self._said: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        """When each warning was last logged, and how long it is suppressed."""

    def is_due(self, about: str, why: str) -> bool:
        """Return true if the warning is to be logged now, and count it as logged."""
        now, key = time.monotonic(), (about, why)
        last, pause_s = self._said.get(key, (0.0, 0.0))
        is_due = not pause_s or now - last > pause_s
        if is_due:
            self._said[key] = (now, min(2 * pause_s or self._first_pause_s, self._pause_max_s))
        self._said.move_to_end(key)
        if len(self._said) > COMPLAINTS_MAX:
            self._said.popitem(last=False)
        return is_due

    def count(self, about: str) -> int:
        """Return how many different warnings about this subject are remembered."""
        return sum(key[0] == about for key in self._said)

    def forget(self, about: str) -> None:
        """Allow all warnings about this subject again."""
        for key in [key for key in self._said if key[0] == about]:
            del self._said[key]
