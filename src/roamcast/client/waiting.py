"""Waiting for a broker's answers to requests and publishes."""

from __future__ import annotations

import asyncio
from collections import deque

from roamcast.client.attachment import Attachment
from roamcast.client.errors import ClientError, PublishError, SubscribeError, in_words
from roamcast.mqtt.client.outgoing import Acknowledged
from roamcast.mqtt.client.requests import Granted


class Room:
    """Limits unacknowledged publishes; callers wait in order of arrival."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int = 1) -> None:
        if not self._queue and self._free >= count:
            self._free -= count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(count)
            else:
                self.give(0)
            raise

    def give(self, count: int = 1) -> None:
        self._free += count
        while self._queue:
            wanted, turn = self._queue[0]
            if not turn.done():
                if wanted > self._free:
                    return
                self._free -= wanted
                turn.set_result(None)
            self._queue.popleft()


class Answer:
    """The answer to one request."""

    def __init__(self, attachment: Attachment, token: int) -> None:
        self._future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        attachment.waiters[token] = self
        attachment.listen()

    def settle(self, event: Acknowledged | Granted) -> bool:
        assert isinstance(event, Granted)
        if not self._future.done():
            self._future.set_result(event)
        return True

    def fail(self, error: ClientError) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    async def granted(self) -> Granted:
        """Raise SubscribeError if any part of the request was refused."""
        event = await self._future
        for name, reason in zip(event.filters, event.reasons, strict=False):
            if reason.failed:
                raise SubscribeError(f"{name}: refused: {in_words(reason, event.text)}", reason)
        return event


class Batch:
    """The answers to one or many publishes: how many are missing, and the first refusal."""

    def __init__(self, topic: str, room: Room, token: int) -> None:
        self.count = 0
        self._topic, self._room, self._token = topic, room, token
        self._open = 0
        self._error: ClientError | None = None
        self._all: asyncio.Future[None] | None = None

    def expect(self, attachment: Attachment, count: int) -> None:
        self.count += count
        self._open += count
        attachment.waiters[self._token] = self
        attachment.listen()

    def settle(self, event: Acknowledged | Granted) -> bool:
        assert isinstance(event, Acknowledged)
        if event.reason.failed and self._error is None:
            text = f"{self._topic}: refused: {in_words(event.reason, event.text)}"
            self._error = PublishError(text, event.reason)
        self._close(event.publishes)
        return not self._open

    def fail(self, error: ClientError) -> None:
        self._error = self._error or error
        self._close(self._open)

    def _close(self, count: int) -> None:
        self._open -= count
        self._room.give(count)
        if not self._open and self._all is not None and not self._all.done():
            self._all.set_result(None)

    def check(self, taken: int) -> None:
        """Raise the first refusal, and give back the room that was taken for further publishes."""
        if self._error is not None:
            self._room.give(taken)
            raise self._error

    async def done(self) -> None:
        if self._open:
            self._all = asyncio.get_running_loop().create_future()
            await self._all
        if self._error is not None:
            raise self._error
