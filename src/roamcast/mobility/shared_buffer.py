"""A buffer that stores what several clients wait for only once (Gaddah 2.5 and 3.4).

Bursts are immutable, so the queues of all clients share them anyway. Here they are
also counted that way: a notification takes room while any queue holds it, and not
once for each. The more similar the clients' subscriptions, the more fits.
"""

from __future__ import annotations

from collections import Counter

from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import Buffer
from roamcast.state import State


class SharedBuffer(Buffer):
    __state__ = State("shared-buffer", saved=("_holders",))

    def __init__(self, limit_bytes: int | None = None) -> None:
        super().__init__(limit_bytes)
        self._holders: Counter[tuple[str, int, int]] = Counter()

    def _take_room(self, burst: Burst) -> int:
        size = 0
        for number, body in zip(range(burst.number, burst.number + burst.count), burst.bodies, strict=True):
            key = (burst.publisher, burst.incarnation, number)
            self._holders[key] += 1
            if self._holders[key] == 1:
                size += len(burst.attributes) + len(body)
        return size

    def _give_room(self, burst: Burst) -> int:
        size = 0
        for number, body in zip(range(burst.number, burst.number + burst.count), burst.bodies, strict=True):
            key = (burst.publisher, burst.incarnation, number)
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                size += len(burst.attributes) + len(body)
        return size
