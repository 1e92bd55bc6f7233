"""Timers as data: a heap of (time, order, key), where the key is a tuple of plain
values."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from roamcast.state import State

Key = tuple[Any, ...]


class Timers:
    __state__ = State("mqtt-timers", saved=("_heap", "_set"))

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Key]] = []
        self._set = 0

    def set(self, at: float, key: Key) -> int:
        """Set a timer; returns its number, so that a later one can supersede it."""
        self._set += 1
        heapq.heappush(self._heap, (at, self._set, key))
        return self._set

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[tuple[int, Key]]:
        while self._heap and self._heap[0][0] <= now:
            _, number, key = heapq.heappop(self._heap)
            yield number, key
