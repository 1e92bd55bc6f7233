"""Reads lines of standard input, many at a time."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator

CHUNK_BYTES = 1 << 16


class Lines:
    """Reads lines of a file, a pipe or a terminal, without reading ahead."""

    def __init__(self, source: int) -> None:
        self.count = 0
        self._source = source

    async def bursts(self) -> AsyncIterator[list[bytes]]:
        """Yield lists of available non-empty lines, without waiting for more."""
        begun: list[bytes] = []
        async for chunk in self._chunks():
            first, *rest = chunk.split(b"\n")
            begun.append(first)
            if not rest:
                continue  # In the middle of a long line: joining each time would be quadratic.
            lines = [b"".join(begun), *rest]
            begun = [lines.pop()]
            yield self._counted(lines)
        yield self._counted([b"".join(begun)])

    def _counted(self, lines: list[bytes]) -> list[bytes]:
        found = [line for line in lines if line]
        self.count += len(found)
        return found

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            await self._readable()
            chunk = os.read(self._source, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk

    async def _readable(self) -> None:
        """Wait until reading does not block. The file stays in blocking mode: a shell may share it."""
        if select.select([self._source], [], [], 0)[0]:
            return
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(self._source, came.set)
        try:
            await came.wait()
        finally:
            loop.remove_reader(self._source)
