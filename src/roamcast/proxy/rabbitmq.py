"""RabbitMQ: a topic exchange, and a queue for each handler.

A queue gets each message once, even if several of its bindings match, and keeps it while nobody listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractExchange,
    AbstractIncomingMessage,
    AbstractQueue,
    FieldValue,
    HeadersType,
)
from aio_pika.exceptions import AMQPError, ChannelNotFoundEntity

from roamcast.proxy.adapter import ForeignMessage, Receive
from roamcast.proxy.base import DAY_S, ForeignAdapter, adapted, parse_url, with_identity, without_identity

CONNECT_S = 10.0
PREFETCH = 1_000


class RabbitMqAdapter(ForeignAdapter):
    can_suspend = True
    separator = "."

    def __init__(
        self, url: str, *, exchange: str = "amq.topic", prefix: str = "roamcast-", kept_s: float = DAY_S
    ) -> None:
        """`exchange`: an existing topic exchange; `prefix`: prefix of queue names; `kept_s`: how long a
        queue is kept while nobody listens."""
        super().__init__()
        self._kept_s = kept_s
        self._place = parse_url(url, "amqp", 5672)
        self._exchange_name, self._prefix = exchange, prefix
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self._handlers: dict[str, _Handler] = {}
        self._making = asyncio.Lock()
        """Held while a queue is created, so that two concurrent calls for a new name share one queue."""

    # --- life ---

    async def open(self) -> None:
        await self.close()
        place = self._place
        with adapted(place, AMQPError):
            connection = await aio_pika.connect(
                host=place.host, port=place.port, login=place.user or "guest",
                password=place.password or "guest", timeout=CONNECT_S,
            )  # fmt: skip
            channel = await connection.channel()
            self._exchange = await channel.get_exchange(self._exchange_name)
        connection.close_callbacks.add(self._on_closed)
        self._connection = connection
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        connection, self._connection, self._handlers = self._connection, None, {}
        if connection is not None:
            with suppress(AMQPError, OSError):
                await connection.close()

    @property
    def _open_connection(self) -> AbstractConnection:
        self.check_open()
        assert self._connection is not None
        return self._connection

    def _on_closed(self, *_: object) -> None:
        self.lose(f"{self._place}: the connection was lost")

    # --- subscribing ---

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        with adapted(filter, AMQPError):
            handler = await self._handler_of(name)
            handler.receivers[filter] = receive
            await handler.queue.bind(self._exchange_name, filter)
            await handler.listen()

    async def _handler_of(self, name: str) -> _Handler:
        async with self._making:
            if name not in self._handlers:
                is_there = await self._is_there(name)
                channel = await self._open_connection.channel()
                await channel.set_qos(prefetch_count=PREFETCH)
                # An existing queue keeps the settings that it was created with.
                made: dict[str, FieldValue] = {"x-expires": int(self._kept_s * 1000)}
                queue = await channel.declare_queue(
                    self._prefix + name, durable=True, passive=is_there, arguments=None if is_there else made
                )
                self._handlers[name] = _Handler(channel, queue)
        return self._handlers[name]

    async def unsubscribe(self, name: str, filter: str) -> None:
        with adapted(filter, AMQPError):
            is_known = name in self._handlers
            if not is_known and not await self._is_there(name):
                return
            handler = await self._handler_of(name)
            await handler.queue.unbind(self._exchange_name, filter)
            if is_known:
                await handler.drained()
            handler.receivers.pop(filter, None)
            # The other bindings of another process's queue are unknown: the queue stays, with its messages.
            if not handler.receivers and self._handlers.pop(name, None) is not None:
                await handler.end(is_known)

    async def suspend(self, name: str) -> None:
        self.check_open()
        handler = self._handlers.pop(name, None)
        if handler is not None:
            with adapted(name, AMQPError):
                await handler.end(is_own=False)

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        with adapted(name, AMQPError):
            is_kept = await self._is_there(name)
        await super().resume(name, filters, receive)
        return is_kept

    async def _is_there(self, name: str) -> bool:
        """Return whether the queue exists; the server closes a channel that asks for a missing one."""
        channel = await self._open_connection.channel()
        try:
            await channel.declare_queue(self._prefix + name, passive=True)
        except ChannelNotFoundEntity:
            return False
        await channel.close()
        return True

    # --- publishing ---

    async def publish(self, message: ForeignMessage) -> None:
        self.check_open()
        assert self._exchange is not None
        with adapted(message.topic, AMQPError):
            headers: HeadersType = {}
            headers.update(with_identity(message))
            body = aio_pika.Message(
                message.body, headers=headers, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
            )
            await self._exchange.publish(body, routing_key=message.topic, mandatory=False)


class _Handler:
    """One queue, its channel and its receivers."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self.channel, self.queue = channel, queue
        self.receivers: dict[str, Receive] = {}
        self._consumer: str | None = None

    async def listen(self) -> None:
        if self._consumer is None:
            self._consumer = ""
            self._consumer = await self.queue.consume(self._on_message)

    async def _on_message(self, message: AbstractIncomingMessage) -> None:
        # A message does not name its binding; all receivers belong to one handler.
        receive = next(reversed(self.receivers.values()), None)
        if receive is None:
            await message.reject(requeue=True)
            return
        headers = {name: str(value) for name, value in message.headers.items()}
        own = message.message_id or ""
        receive(without_identity(message.routing_key or "", message.body, headers, own))
        await message.ack()

    async def drained(self) -> None:
        """Wait until everything in the queue was received: the queue is unbound, so nothing is added."""
        if self._consumer is None:
            return
        while (await self.queue.declare()).message_count:
            pass

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self.queue.cancel(consumer)

    async def end(self, is_own: bool) -> None:
        """Stop listening; delete the queue if this handler owns it."""
        await self.stop()
        if is_own:
            await self.queue.delete(if_unused=False, if_empty=False)
        await self.channel.close()
