"""TCP relays: they listen on one port, connect to another, and forward the traffic in their own way."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from roamcast.slow_link.channel import PACKET_BYTES, Channel, Profile

LOOPBACK = "127.0.0.1"
READ_BYTES = 1 << 16
SOON_S = 1e-6
BACKLOG_BYTES = 16_384
"""Bytes that a slow link buffers for each direction of a connection; then the sender must wait."""


class TcpRelay(ABC):
    """Listens on a port and forwards everything to another one, both ways."""

    def __init__(self, target: int, host: str = LOOPBACK) -> None:
        self.target = target
        self.host = host
        self.port = 0
        self.is_open = True
        """True while connections are accepted."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        """Forward data until its end; direction 0 is towards the target, 1 is back."""

    async def prepare(self) -> None:  # noqa: B027 (most wait for nothing)
        """Delay a new connection before it reaches the target."""

    async def start(self, host: str = LOOPBACK, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self.is_open:
            self._begin(self._connect(reader, writer))
        else:
            self._abort(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self.prepare()
            there, back = await asyncio.open_connection(self.host, self.target)
        except OSError:
            self._abort(writer)
            return
        if writer not in self._writers:  # It was cut meanwhile.
            back.transport.abort()
            return
        self._writers.add(back)
        self._begin(self._relay(reader, back, writer, 0))
        self._begin(self._relay(there, writer, back, 1))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: asyncio.StreamWriter,
        direction: int,
    ) -> None:
        with suppress(OSError):
            await self.pass_on(reader, writer, direction)
        self.end(writer, source)

    def end(self, writer: asyncio.StreamWriter, source: asyncio.StreamWriter) -> None:
        """Handle the end of the data from `source`, after all of it was written."""
        self._abort(writer, source)

    def _abort(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            self._writers.discard(writer)
            writer.transport.abort()

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    def cut(self) -> None:
        """Close every connection, on both sides at once."""
        self._abort(*list(self._writers))

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)  # Connections that have just come get as far as being cut.
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def write_to(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write, unless the connection was cut in the meantime."""
    if not writer.is_closing():
        writer.write(data)


class SlowLink(TcpRelay):
    """A relay that behaves like a link of this profile; all its connections share the link."""

    def __init__(
        self, target: int, profile: Profile, random: Callable[[], float], host: str = LOOPBACK
    ) -> None:
        super().__init__(target, host)
        self.profile = profile
        self.channels = (Channel(profile.up, random), Channel(profile.down, random))

    def beside(self, target: int) -> SlowLink:
        """Return a relay to another port of that host over the same link, as one radio carries all
        traffic.
        """
        other = SlowLink(target, self.profile, lambda: 0.0, self.host)
        other.channels = self.channels
        return other

    async def prepare(self) -> None:
        """Delay the connection by TCP's handshake: once in each direction."""
        loop = asyncio.get_running_loop()
        there = self.channels[0].send(loop.time(), 0)
        back = self.channels[1].send(there, 0)
        await asyncio.sleep(max(back - loop.time(), 0))

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: int
    ) -> None:
        loop = asyncio.get_running_loop()
        channel = self.channels[direction]
        underway: deque[tuple[float, int]] = deque()
        backlog = 0
        while data := await reader.read(PACKET_BYTES):
            arrival = channel.send(loop.time(), len(data))
            loop.call_at(arrival, write_to, writer, data)
            underway.append((arrival, len(data)))
            backlog += len(data)
            while underway and (backlog > BACKLOG_BYTES or underway[0][0] <= loop.time()):
                arrived, size = underway.popleft()
                backlog -= size
                await asyncio.sleep(max(arrived - loop.time(), 0))
            await writer.drain()
        # The end of a connection goes over the link, too, behind everything else: by a timer, even if it is
        # due already, as a task that merely lets others go first comes before the timers of what is underway.
        await asyncio.sleep(max(channel.send(loop.time(), 0) - loop.time(), SOON_S))

    def end(self, writer: asyncio.StreamWriter, source: asyncio.StreamWriter) -> None:
        """Let the other direction continue until it ends itself."""
        if writer not in self._writers:
            return
        self._writers.discard(writer)
        if source in self._writers and not writer.is_closing():
            writer.write_eof()
        else:
            writer.close()
            source.close()
