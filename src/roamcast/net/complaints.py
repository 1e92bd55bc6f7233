"""What the log is told once, and not again and again."""

from __future__ import annotations

import time
from collections import OrderedDict

COMPLAINTS_MAX = 256
COMPLAINT_AGAIN_S = 600.0


class Complaints:
    """The same about the same, peer or host, is not said again for a while."""

    def __init__(self) -> None:
        self._said: OrderedDict[tuple[str, str], float] = OrderedDict()

    def is_due(self, about: str, why: str) -> bool:
        """Whether it is to be said now; from then on it has been."""
        now, key = time.monotonic(), (about, why)
        last = self._said.get(key)
        is_due = last is None or now - last > COMPLAINT_AGAIN_S
        if is_due:
            self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > COMPLAINTS_MAX:
            self._said.popitem(last=False)
        return is_due

    def forget(self, about: str) -> None:
        """Whatever was said about it can be said again."""
        for key in [key for key in self._said if key[0] == about]:
            del self._said[key]
