"""Cache of parsed texts, bounded by their total length, because clients choose the length."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CHARACTERS_MIN = 20
"""Minimum that an entry counts for."""


class Remembered(Generic[K, V]):
    """Cache that evicts the oldest entries when the others have too many characters."""

    def __init__(self, characters_max: int) -> None:
        self._characters_max = characters_max
        self._entries: dict[K, tuple[V, int]] = {}
        self._characters = 0

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, characters: int) -> V:
        if key not in self._entries:
            characters = max(characters, CHARACTERS_MIN)
            self._entries[key] = value, characters
            self._characters += characters
            while self._characters > self._characters_max:
                self._characters -= self._entries.pop(next(iter(self._entries)))[1]
        return value
