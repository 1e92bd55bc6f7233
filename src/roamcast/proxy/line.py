"""A client's connection to the proxy of its site: requests, and the answers to each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from roamcast.proxy.discovery import Credentials
from roamcast.proxy.messages import Download, Message, MoveOut, StandIn, Taken, Welcome
from roamcast.proxy.wire import Pipe, ProxyError, connect_client


class Line:
    """One connection. It is reopened after the proxy has closed it, for example at a restart."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._credentials = address, credentials
        self._pipe: Pipe | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Queue[Message | None]] = {}
        self._requests = 0

    async def open(self) -> Welcome:
        """Connect; raise ProxyError if the proxy cannot be reached, or refuses this client."""
        self._pipe, welcome = await connect_client(self._address, *self._credentials)
        self._reader = asyncio.get_running_loop().create_task(self._read(self._pipe))
        return welcome

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def ask(self, message: MoveOut | StandIn) -> Message:
        """Return the one answer to a request; raise ProxyError if there is none."""
        async with self.asking(message) as answers:
            return await anext(answers)

    @asynccontextmanager
    async def asking(self, message: MoveOut | StandIn | Download) -> AsyncIterator[AsyncIterator[Message]]:
        """The answers to a request, while the block runs."""
        if self._pipe is None:
            await self.open()
        queue = self._answers[message.request] = asyncio.Queue()
        self.write(message)
        try:
            yield _each(queue)
        finally:
            del self._answers[message.request]

    def write(self, message: Message | Taken) -> None:
        if self._pipe is not None:
            self._pipe.write(message)

    async def _read(self, pipe: Pipe) -> None:
        try:
            while True:
                message = await pipe.read()
                waiting = self._answers.get(getattr(message, "request", 0))
                if waiting is not None:
                    waiting.put_nowait(message)
        except ProxyError:
            pass
        finally:
            pipe.close()
            if self._pipe is pipe:
                self._pipe = None
            for waiting in self._answers.values():
                waiting.put_nowait(None)

    async def close(self) -> None:
        pipe, self._pipe = self._pipe, None
        if self._reader is not None:
            self._reader.cancel()
        if pipe is not None:
            await pipe.end()


async def _each(queue: asyncio.Queue[Message | None]) -> AsyncIterator[Message]:
    while (answer := await queue.get()) is not None:
        yield answer
    raise ProxyError("the connection to the proxy ended")
