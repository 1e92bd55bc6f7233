"""ActiveMQ over STOMP, with selectors and durable subscriptions.

A filter is a topic, with `*` and `>`, and if there is a `?` in it, a JMS selector behind it: `prices.>?symbol
= 'X'`. Each handler is a connection with a client id of its own and each of its filters a durable
subscription, so the broker keeps messages that arrive while nobody listens.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from typing import cast

from roamcast.proxy.adapter import AdapterError, ForeignMessage, Receive
from roamcast.proxy.base import (
    ConnectionsAdapter,
    Place,
    adapted,
    give,
    parse_url,
    with_identity,
    without_identity,
)
from roamcast.proxy.stomp import Frame, StompError, StompReader, write_frame

TOPIC = "/topic/"
ANSWER_S = 30.0
PREFETCH = 1_000
# Headers that STOMP and ActiveMQ set, not the publisher.
OWN_HEADERS = {
    "ack", "destination", "expires", "message-id", "persistent", "priority", "redelivered", "subscription",
    "timestamp",
}  # fmt: skip


class ActiveMqAdapter(ConnectionsAdapter["_Connection", "_Handler"]):
    separator = "."

    def __init__(self, url: str, *, prefix: str = "roamcast-") -> None:
        """`prefix`: prefix of the client ids."""
        super().__init__()
        self._place = parse_url(url, "stomp", 61613)
        self._prefix = prefix

    async def connect_publisher(self) -> _Connection:
        publisher = _Connection(self._place, "")
        publisher.on_lost = self.lose
        await publisher.open()
        return publisher

    def new_handler(self, name: str) -> _Handler:
        handler = _Handler(_Connection(self._place, self._prefix + name))
        handler.connection.on_lost = self.lose
        return handler

    async def publish(self, message: ForeignMessage) -> None:
        publisher = self.open_publisher
        headers = {"destination": TOPIC + message.topic, "persistent": "true", **with_identity(message)}
        await publisher.ask("SEND", headers, message.body)


class _Handler:
    """The subscriptions of one handler."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        connection.on_messages = self._receive
        self.receivers: dict[str, Receive] = {}
        self._filters: dict[str, str] = {}
        """Filters by the name of the durable subscription, which is also its id here."""

    def add(self, filter: str, receive: Receive) -> None:
        self.receivers[filter] = receive

    def remove(self, filter: str) -> None:
        self.receivers.pop(filter, None)
        self._filters.pop(durable_name(filter), None)

    async def subscribe(self, filter: str) -> None:
        topic, _, selector = filter.partition("?")
        durable = durable_name(filter)
        if durable in self._filters:
            return
        self._filters[durable] = filter
        await self.connection.open()
        headers = {
            "id": durable,
            "destination": TOPIC + topic,
            "ack": "client",
            "activemq.subscriptionName": durable,
            "activemq.prefetchSize": str(PREFETCH),
        }
        await self.connection.ask("SUBSCRIBE", headers | ({"selector": selector} if selector else {}))

    async def unsubscribe(self, filter: str) -> None:
        await self.connection.open()
        durable = durable_name(filter)
        if durable in self._filters:
            await self.connection.ask("UNSUBSCRIBE", {"id": durable})
        # The first frame stops the delivery, the second ends the durable subscription; an unknown one needs
        # no end.
        await self.connection.ask(
            "UNSUBSCRIBE", {"id": durable, "activemq.subscriptionName": durable}, may_fail=True
        )

    async def close(self, *, forget: bool = False) -> None:
        """Close. The durable subscriptions ended with their filters: nothing else needs to be deleted."""
        await self.connection.close()

    def _receiver_of(self, frame: Frame) -> Receive | None:
        return self.receivers.get(self._filters.get(frame.headers.get("subscription", ""), ""))

    def _receive(self, frames: list[Frame]) -> None:
        latest: dict[str, str] = {}
        known = [(self._receiver_of(frame), frame) for frame in frames]
        for receive, some in groupby(known, lambda one: one[0]):
            if receive is not None:
                of_one = [frame for _, frame in some]
                give(receive, [message_of(frame) for frame in of_one])
                latest |= {frame.headers["subscription"]: frame.headers.get("ack", "") for frame in of_one}
        for acknowledged in latest.values():  # Acknowledges earlier ones, too.
            self.connection.send("ACK", {"id": acknowledged})


class _Connection(asyncio.Protocol):
    """A STOMP connection; the first user opens it."""

    def __init__(self, place: Place, client_id: str) -> None:
        self._place, self._client_id = place, client_id
        self._transport: asyncio.Transport | None = None
        self._reader = StompReader()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._number = 0
        self._opening: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._is_wanted = False
        self.on_messages: Callable[[list[Frame]], None] = lambda frames: None
        self.on_lost: Callable[[str], None] = lambda reason: None

    async def open(self) -> None:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        with adapted(self._place, StompError):
            await asyncio.shield(self._opening)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        async with asyncio.timeout(ANSWER_S):
            await loop.create_connection(lambda: self, self._place.host, self._place.port)
            headers = {"accept-version": "1.2", "host": self._place.host, "heart-beat": "0,0"}
            if self._client_id:
                headers["client-id"] = self._client_id
            if self._place.user is not None:
                headers |= {"login": self._place.user, "passcode": self._place.password or ""}
            self.send("CONNECT", headers)
            await self._wait("")
        self._is_wanted = True

    async def ask(
        self, command: str, headers: dict[str, str], body: bytes = b"", *, may_fail: bool = False
    ) -> None:
        """Send a frame, and wait until the broker has handled it."""
        self._number += 1
        receipt = str(self._number)
        with adapted(self._place, StompError):
            self.send(command, {**headers, "receipt": receipt}, body)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._wait(receipt)
            except StompError as error:
                if not may_fail:
                    raise StompError(f"{command}: {error}") from None

    async def _wait(self, receipt: str) -> None:
        answer = self._waiting[receipt] = asyncio.get_running_loop().create_future()
        try:
            await answer
        finally:
            self._waiting.pop(receipt, None)

    def send(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        if self._transport is None or self._transport.is_closing():
            raise StompError("the connection was lost")
        self._transport.write(write_frame(command, headers, body))

    async def close(self) -> None:
        """Close; the broker handles all earlier frames first."""
        self._is_wanted = False
        if self._transport is None:
            return
        with suppress(AdapterError):
            await self.ask("DISCONNECT", {})
        self._transport.close()
        if self._closed is not None:
            await self._closed

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: uvloop's transports have no class of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        messages: list[Frame] = []
        try:
            for frame in self._reader.feed(data):
                if frame.command == "MESSAGE":
                    messages.append(frame)
                else:
                    # Messages before an answer are given to their receiver before the waiting task continues.
                    self.on_messages(messages)
                    messages = []
                    self._answer(frame)
            self.on_messages(messages)
        except StompError as error:
            self._fail(str(error))

    def _answer(self, frame: Frame) -> None:
        text = frame.headers.get("message", "") or frame.body.decode("utf-8", "replace")[:200]
        receipt = frame.headers.get("receipt-id", "")
        answer = self._waiting.get(receipt)
        if frame.command == "ERROR" and answer is None:
            self._fail(text)
        elif answer is not None and not answer.done():
            if frame.command == "ERROR":
                answer.set_exception(StompError(text))
            else:
                answer.set_result(None)

    def _fail(self, reason: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(StompError(reason))
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"{self._place}: the connection was lost"
        self._fail(reason)
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        if self._is_wanted:
            self._is_wanted = False
            self.on_lost(reason)


def message_of(frame: Frame) -> ForeignMessage:
    headers = frame.headers
    kept = {name: value for name, value in headers.items() if name not in OWN_HEADERS}
    topic = headers.get("destination", "").removeprefix(TOPIC)
    return without_identity(topic, frame.body, kept, headers.get("message-id", ""))


def durable_name(filter: str) -> str:
    """Return the name of a durable subscription, the same in every process."""
    return "roamcast-" + hashlib.sha256(filter.encode()).hexdigest()[:16]
