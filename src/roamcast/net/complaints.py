"""What the log is told once, and not again and again."""

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
        """When each was said last, and how long it is not said again."""

    def is_due(self, about: str, why: str) -> bool:
        """Whether it is to be said now; from then on it has been."""
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
        """How many different things were said about it, and are remembered."""
        return sum(key[0] == about for key in self._said)

    def forget(self, about: str) -> None:
        """Whatever was said about it can be said again."""
        for key in [key for key in self._said if key[0] == about]:
            del self._said[key]
