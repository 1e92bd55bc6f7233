"""Bytes that wait for clients that read more slowly than they are written to, over all connections."""

from __future__ import annotations

from collections.abc import Callable, Collection

SHARED_BYTES_MIN = 16_384
"""What is smaller is a part of one client's own."""


class Buffered:
    """Counts what is held. Where several clients wait for the very same bytes, these are held once."""

    def __init__(self, on_growth: Callable[[], None] = lambda: None) -> None:
        """`on_growth` is called while more is held than `growth_bytes`."""
        self.size_bytes = 0
        self.growth_bytes = 0
        self._on_growth = on_growth
        self._holders: dict[int, tuple[bytes, int]] = {}
        """Each large part by its id, and how many connections wait for it."""

    def add(self, part: bytes) -> None:
        if len(part) >= SHARED_BYTES_MIN:
            _, holders = self._holders.get(id(part), (part, 0))
            self._holders[id(part)] = part, holders + 1
            if holders:
                return
        self.size_bytes += len(part)
        if self.size_bytes > self.growth_bytes:
            self._on_growth()

    def remove(self, part: bytes) -> None:
        if len(part) >= SHARED_BYTES_MIN:
            _, holders = self._holders.pop(id(part))
            if holders > 1:
                self._holders[id(part)] = part, holders - 1
                return
        self.size_bytes -= len(part)

    def beside(self, ids: Collection[int]) -> int:
        """The bytes that are held here and nowhere else; `ids` are those of bytes that queues hold."""
        return self.size_bytes - sum(len(part) for id, (part, _) in self._holders.items() if id in ids)


def joined(parts: list[bytes]) -> list[bytes]:
    """Small parts put together; large ones stay the objects that they are."""
    if max(map(len, parts)) < SHARED_BYTES_MIN:
        return [b"".join(parts)]
    found: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < SHARED_BYTES_MIN:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    if small:
        found.append(b"".join(small))
    return found
