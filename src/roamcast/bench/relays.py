"""TCP relays that stand between two programs and can delay, cut and swallow what they say to each other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from roamcast.bench.processes import HOST

READ_BYTES = 1 << 16


class Relay:
    """Listens on a port and passes everything on to another one, both ways."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delays_s = [0.0, 0.0]
        """Towards the target, and back."""
        self.is_swallowed = [False, False]
        """What is said in this direction goes nowhere. TCP has no holes: cut before hearing again."""
        self.is_open = True
        """Whether connections are accepted."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self.is_open:
            self._begin(self._connect(reader, writer))
        else:
            self._abort(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, self.target)
        except OSError:
            self._abort(writer)
            return
        if writer not in self._writers:  # It was cut meanwhile.
            back.transport.abort()
            return
        self._writers.add(back)
        self._begin(self._pass_on(reader, back, writer, 0))
        self._begin(self._pass_on(there, writer, back, 1))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: asyncio.StreamWriter,
        direction: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        free_at = 0.0
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if self.is_swallowed[direction]:
                    continue
                # What comes later never overtakes, also when the delay has just ended.
                free_at = max(free_at, loop.time() + self.delays_s[direction])
                if free_at > loop.time():
                    loop.call_at(free_at, self._write, writer, data)
                else:
                    self._write(writer, data)
                    await writer.drain()
        if free_at > loop.time():
            await asyncio.sleep(free_at - loop.time())
        self._abort(writer, source)

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    def _abort(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            self._writers.discard(writer)
            writer.transport.abort()

    def cut(self) -> None:
        """End every connection, on both sides at once."""
        self._abort(*list(self._writers))

    def heal(self) -> None:
        """Pass everything on at once; whatever had swallowed something is cut."""
        if any(self.is_swallowed):
            self.cut()
        self.delays_s, self.is_swallowed, self.is_open = [0.0, 0.0], [False, False], True

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)  # Connections that have just come get as far as being cut.
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
