"""Mosquitto, and any other broker of MQTT 5.

Each handler is an MQTT session of its own, with QoS 1: so the broker keeps messages while nobody listens. The
identifier of a subscription is derived from its filter, so it is the same in every process.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from itertools import groupby

from roamcast.client import Client, ClientError, Notification, connect
from roamcast.errors import InputError
from roamcast.proxy import base
from roamcast.proxy.adapter import ForeignMessage, Receive
from roamcast.proxy.base import DAY_S, ConnectionsAdapter, give, parse_url, with_identity, without_identity
from roamcast.proxy.mqtt_notes import foreign_message

IDENTIFIER_MAX = 268_435_455
"""The largest subscription identifier of MQTT."""
QUEUE_MAX = 16_384
TOGETHER_MAX = 1_000
"""Maximum number of messages received at once."""


class MosquittoAdapter(ConnectionsAdapter[Client, "_Handler"]):
    def __init__(
        self,
        url: str,
        *,
        session_expiry: int = DAY_S,
        keep_alive: int = 20,
        prefix: str = "roamcast-",
        is_behind_endpoint: bool = False,
    ) -> None:
        """`session_expiry`: seconds for which a suspended handler is kept; `prefix`: prefix of client ids.

        `is_behind_endpoint`: MQTT-specific data of a message is kept as well, and retained messages come only
        when the endpoint asks for them.
        """
        super().__init__()
        self._is_behind_endpoint = is_behind_endpoint
        self._place = parse_url(url, "mqtt", 1883)
        self._expiry_s, self._keep_alive_s, self._prefix = session_expiry, keep_alive, prefix

    async def connect_publisher(self) -> Client:
        publisher = self._connect(None)
        with adapted():
            await publisher.__aenter__()
        return publisher

    def _connect(self, client_id: str | None) -> Client:
        return connect(
            str(self._place), client_id=client_id, clean=client_id is None, reconnect=False,
            session_expiry=self._expiry_s, keep_alive=self._keep_alive_s,
            username=self._place.user, password=self._place.password, queue_max=QUEUE_MAX,
        )  # fmt: skip

    # --- subscribing ---

    def new_handler(self, name: str) -> _Handler:
        return _Handler(self, self._connect(self._prefix + name))

    async def unsubscribe(self, name: str, filter: str) -> None:
        self.check_open()
        if name in self._handlers:
            await super().unsubscribe(name, filter)
        else:
            with adapted():
                await self._unsubscribe_unknown(name, filter)

    async def _unsubscribe_unknown(self, name: str, filter: str) -> None:
        """End a subscription of another process. Messages for other filters in the session are not
        acknowledged, so they are not lost."""
        client = self._connect(self._prefix + name)
        await client.__aenter__()
        try:
            if client.session_present:
                await client.unsubscribe(self.topic_filter(filter))
        finally:
            await client.close(forget=not client.session_present)

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        handler = self.handler_of(name)
        for filter in filters:
            handler.add(filter, receive)
        await handler.begin()
        await super().resume(name, filters, receive)
        return handler.client.session_present

    # --- publishing ---

    async def publish(self, message: ForeignMessage) -> None:
        publisher = self.open_publisher
        with adapted():
            await publisher.publish(message.topic, message.body, qos=1, properties=with_identity(message))

    # --- what other brokers of MQTT do in another way ---

    async def ask(self, client: Client, filter: str) -> None:
        """Subscribe; retained messages come only for a new subscription, if at all."""
        is_behind = self._is_behind_endpoint
        await client.subscribe(
            filter, qos=1, retain_handling=2 if is_behind else 1, retain_as_published=is_behind,
            identifier=identifier_of(filter),
        )  # fmt: skip

    def topic_filter(self, filter: str) -> str:
        """Return the topic filter to unsubscribe."""
        return filter

    def message_of(self, notification: Notification) -> ForeignMessage:
        if self._is_behind_endpoint:
            return foreign_message(notification, time.time())
        return without_identity(notification.topic, notification.payload, notification.properties)


class _Handler:
    """One session and its receivers."""

    def __init__(self, adapter: MosquittoAdapter, client: Client) -> None:
        self.adapter, self.client = adapter, client
        self.receivers: dict[str, Receive] = {}
        self._by_identifier: dict[int, Receive] = {}
        self._latest: Receive | None = None
        self._begun: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None

    def add(self, filter: str, receive: Receive) -> None:
        self.receivers[filter] = self._by_identifier[identifier_of(filter)] = self._latest = receive

    def remove(self, filter: str) -> None:
        self.receivers.pop(filter, None)
        self._by_identifier.pop(identifier_of(filter), None)

    async def subscribe(self, filter: str) -> None:
        await self.begin()
        with adapted():
            await self.adapter.ask(self.client, filter)

    async def unsubscribe(self, filter: str) -> None:
        await self.begin()
        with adapted():
            await self.client.unsubscribe(self.adapter.topic_filter(filter))
        while self.client.waiting and self._reader is not None and not self._reader.done():
            await asyncio.sleep(0)  # Wait until every message received so far was given to its receiver.

    async def begin(self) -> None:
        """Connect and listen."""
        if self._begun is None:
            self._begun = asyncio.get_running_loop().create_task(self._begin())
        with adapted():
            await asyncio.shield(self._begun)

    async def _begin(self) -> None:
        await self.client.__aenter__()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            while waiting := await self.client.peek(TOGETHER_MAX):
                for receive, some in groupby(waiting, self._receiver_of):
                    give(receive, [self.adapter.message_of(notification) for notification in some])
                self.client.acknowledge(len(waiting))
        except ClientError as error:
            self.adapter.lose(str(error))

    def _receiver_of(self, notification: Notification) -> Receive:
        """Return the receiver of the message's filter; a message for a filter not subscribed yet goes to
        the latest one."""
        assert self._latest is not None
        for identifier in notification.subscription_identifiers:
            if identifier in self._by_identifier:
                return self._by_identifier[identifier]
        return self._latest

    async def close(self, *, forget: bool = False) -> None:
        if self._begun is not None:
            with suppress(ClientError):
                await self._begun
        if self._reader is not None:
            # Before the client stops: received messages must still be acknowledged.
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self.client.close(forget=forget)


def identifier_of(filter: str) -> int:
    return zlib.crc32(filter.encode()) % IDENTIFIER_MAX + 1


def adapted() -> AbstractContextManager[None]:
    """Turn refusals of the client library into AdapterError."""
    return base.adapted("", ClientError, InputError)
