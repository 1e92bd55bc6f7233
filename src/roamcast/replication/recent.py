"""The last entries of a journal, in memory: after a short absence a replica needs no snapshot."""

from __future__ import annotations

from collections import deque
from itertools import islice

RECENT_BYTES_MAX = 64 << 20


class Recent:
    def __init__(self, last: int = 0, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self.last = last
        """Number of the last entry."""
        self._bytes_max = bytes_max
        self._entries: deque[bytes] = deque()
        self._bytes = 0

    def append(self, entry: bytes) -> None:
        self.last += 1
        self._entries.append(entry)
        self._bytes += len(entry)
        while self._bytes > self._bytes_max and self._entries:
            self._bytes -= len(self._entries.popleft())

    def reset(self, last: int) -> None:
        """Clear, because the journal restarts behind a snapshot."""
        self.last = last
        self._entries.clear()
        self._bytes = 0

    def after(self, sequence: int) -> list[bytes] | None:
        """Return the entries after this one; None if some of them are not here."""
        missing = self.last - sequence
        if not 0 <= missing <= len(self._entries):
            return None
        newest = list(islice(reversed(self._entries), missing))
        newest.reverse()
        return newest
