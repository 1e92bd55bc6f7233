"""Counts bytes of all connections that wait for clients that read slowly."""

from __future__ import annotations

from collections.abc import Callable, Collection

SHARED_BYTES_MIN = 16_384
"""Smaller parts are counted for each client."""


class Buffered:
    """Counts waiting bytes. Bytes that several clients wait for are counted once."""

    def __init__(self, on_growth: Callable[[], None] = lambda: None) -> None:
        """`on_growth` is called while more is held than `growth_bytes`."""
        self.size_bytes = 0
        self.growth_bytes = 0
        self._on_growth = on_growth
        self._holders: dict[int, tuple[bytes, int]] = {}
        """Large parts by id, each with the number of connections that wait for it."""

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
        """Return the bytes held only here; `ids` identify bytes that queues hold, too."""
        return self.size_bytes - sum(len(part) for id, (part, _) in self._holders.items() if id in ids)


def joined(parts: list[bytes]) -> list[bytes]:
    """Join small parts; large ones stay the same objects."""
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
