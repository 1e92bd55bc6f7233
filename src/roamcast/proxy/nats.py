"""NATS: core subjects, and JetStream where it is on.

All subscriptions of a handler are in one queue group of its own, so a message that several of its filters
match comes once. With `stream`, each subscription is a durable consumer of that stream: the stream keeps
messages while nobody listens.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from urllib.parse import parse_qsl, urlsplit

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from roamcast.proxy.adapter import AdapterError, ForeignMessage, Receive
from roamcast.proxy.base import (
    DAY_S,
    ForeignAdapter,
    adapted,
    give,
    parse_url,
    with_identity,
    without_identity,
)

CONNECT_S = 10
FLUSH_S = 60
"""Long, because over a slow link much data may precede the server's answer."""
ACK_PENDING_MAX = 1_024
DELIVERED_PAUSE_S = 0.02
MESSAGE_ID = "Nats-Msg-Id"
"""The header by which a stream recognises duplicate publishes."""


class NatsAdapter(ForeignAdapter):
    separator = "."

    def __init__(self, url: str, *, stream: str = "", domain: str = "", kept_s: float = DAY_S) -> None:
        """`stream`: the JetStream stream that holds the subjects; `domain`: its domain, if it is remote.

        Both may be in the URL: nats://127.0.0.1:4222?stream=NAME. `kept_s`: how long a consumer is kept while
        nobody listens.
        """
        super().__init__()
        self._place = parse_url(url, "nats", 4222)
        asked = dict(parse_qsl(urlsplit(url).query))
        self._stream, self._domain = stream or asked.get("stream", ""), domain or asked.get("domain", "")
        self.can_suspend = bool(self._stream)
        self._kept_s = kept_s
        self._client: Client | None = None
        self._subscriptions: dict[str, dict[str, _Subscribed]] = {}
        self._arrivals = _Arrivals()
        self._refusals: list[str] = []

    # --- life ---

    async def open(self) -> None:
        await self.close()
        place = self._place
        self._refusals.clear()
        client = _OrderedClient()
        try:
            await client.connect(
                f"nats://{place}", user=place.user, password=place.password, allow_reconnect=False,
                max_reconnect_attempts=1, connect_timeout=CONNECT_S,
                error_cb=self._on_error, closed_cb=self._on_closed,
            )  # fmt: skip
        except (Error, OSError, TimeoutError) as error:
            # The last error of the server is more specific than a lost connection.
            raise AdapterError(f"{place}: {[str(error), *self._refusals][-1]}") from None
        self._client, self._is_open = client, True

    async def close(self) -> None:
        self._is_open = False
        client, self._client, self._subscriptions = self._client, None, {}
        if client is not None and not client.is_closed:
            await client.close()

    async def _on_error(self, error: Exception) -> None:
        self._refusals.append(str(error))

    async def _on_closed(self) -> None:
        self.lose(f"{self._place}: the connection was lost")

    @property
    def _open_client(self) -> Client:
        self.check_open()
        assert self._client is not None
        return self._client

    @property
    def _jetstream(self) -> JetStreamContext:
        return self._open_client.jetstream(domain=self._domain or None)

    # --- subscribing ---

    async def subscribe(self, name: str, filter: str, receive: Receive) -> None:
        await self._subscribe(name, filter, receive)

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        return any([await self._subscribe(name, filter, receive) for filter in filters])

    async def _subscribe(self, name: str, filter: str, receive: Receive) -> bool:
        """Subscribe; return whether the stream already had a consumer for the filter."""
        client = self._open_client
        known = self._subscriptions.setdefault(name, {})
        if filter in known:
            known[filter].receive = receive
            return True
        one = known[filter] = _Subscribed(receive, self._arrivals)
        try:
            with adapted(filter, Error):
                subject, is_kept = await self._consumer(name, filter) if self._stream else (filter, False)
                group = "" if self._stream else f"roamcast-{name}"
                one.listening = await client.subscribe(subject, queue=group, future=one)
                await self._settle(client, filter)
        except AdapterError:
            known.pop(filter, None)
            raise
        return is_kept

    async def _settle(self, client: Client, filter: str) -> None:
        """Wait until the server has the subscription; it reports a refusal before it answers this."""
        self._refusals.clear()
        await client.flush(FLUSH_S)
        if self._refusals:
            raise AdapterError(f"{filter}: {self._refusals[0]}")

    async def unsubscribe(self, name: str, filter: str) -> None:
        client = self._open_client
        one = self._subscriptions.get(name, {}).pop(filter, None)
        if not self._subscriptions.get(name, True):
            del self._subscriptions[name]
        with adapted(filter, Error):
            if one is not None and self._stream:
                await self._delivered(name, filter)
            if one is not None:
                await one.stop()
            await client.flush(FLUSH_S)
            if self._stream:
                for durable in durable_names(name, filter):
                    with suppress(NotFoundError):
                        await self._jetstream.delete_consumer(self._stream, durable)

    # --- JetStream ---

    async def _consumers(self, name: str, filter: str) -> list[ConsumerInfo]:
        found = []
        for durable in durable_names(name, filter):
            with suppress(NotFoundError):
                found.append(await self._jetstream.consumer_info(self._stream, durable))
        return sorted(found, key=lambda one: one.created)

    async def _delivered(self, name: str, filter: str) -> None:
        """Wait until the consumer has sent all earlier messages of the stream; this does not end the
        consumer."""
        last = (await self._jetstream.stream_info(self._stream)).state.last_seq
        async with asyncio.timeout(CONNECT_S):
            for consumer in await self._consumers(name, filter):
                sent = consumer
                while sent.num_pending and sent.delivered and sent.delivered.stream_seq < last:
                    await asyncio.sleep(DELIVERED_PAUSE_S)
                    sent = await self._jetstream.consumer_info(self._stream, consumer.name)

    async def _consumer(self, name: str, filter: str) -> tuple[str, bool]:
        """Return the subject to which the stream delivers this filter's messages, and whether the consumer
        existed."""
        durables, found = durable_names(name, filter), await self._consumers(name, filter)
        for older in found[:-1]:  # The process that renewed the consumer was killed in between.
            await self._jetstream.delete_consumer(self._stream, older.name)
        if not found:
            return await self._add_consumer(durables[0], filter, DeliverPolicy.NEW), False
        latest = found[-1]
        if not latest.num_ack_pending or latest.ack_floor is None:
            return str(latest.config.deliver_subject), True
        # The process that got these messages was killed before they were acknowledged. The server would send
        # them again after newer ones; a consumer that starts there has them in order.
        other = next(durable for durable in durables if durable != latest.name)
        begins = latest.ack_floor.stream_seq + 1
        renewed = await self._add_consumer(other, filter, DeliverPolicy.BY_START_SEQUENCE, begins)
        await self._jetstream.delete_consumer(self._stream, latest.name)
        return renewed, True

    async def _add_consumer(
        self, durable: str, filter: str, policy: DeliverPolicy, begins: int | None = None
    ) -> str:
        subject = f"_roamcast.{durable}"
        await self._jetstream.add_consumer(
            self._stream,
            ConsumerConfig(
                durable_name=durable,
                deliver_subject=subject,
                deliver_policy=policy,
                opt_start_seq=begins,
                ack_policy=AckPolicy.EXPLICIT,
                max_ack_pending=ACK_PENDING_MAX,
                filter_subject=filter,
                inactive_threshold=self._kept_s,
            ),
        )
        return subject

    async def suspend(self, name: str) -> None:
        client = self._open_client
        if not self._stream:
            raise AdapterError("NATS can suspend a subscription only with JetStream; name a stream")
        with adapted(name, Error):
            for one in self._subscriptions.pop(name, {}).values():
                await one.stop()
            await client.flush(FLUSH_S)

    # --- publishing ---

    async def publish(self, message: ForeignMessage) -> None:
        client, headers = self._open_client, with_identity(message) or None
        with adapted(message.topic, Error):
            if self._stream:
                await self._jetstream.publish(message.topic, message.body, headers=headers)
            else:
                await client.publish(message.topic, message.body, headers=headers)
                # Core NATS acknowledges nothing; a flush is the best available substitute.
                await client.flush(FLUSH_S)


class _OrderedClient(Client):
    """Client that sends commands in order. nats-py writes a PING at once, before commands that its flusher
    has yet to write, so the server's answer would say nothing about a new or ended subscription. This
    class writes them first."""

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        if self._pending and self._transport is not None:
            waiting, self._pending = self._pending, []
            self._transport.writelines(waiting)
        await super()._send_ping(future)


class _Subscribed(asyncio.Future[Msg]):
    """An active filter: takes messages as they are read.

    A callback would have a queue and a task for each subscription, and so change the order of messages for
    several filters of one handler.
    """

    def __init__(self, receive: Receive, arrivals: _Arrivals) -> None:
        super().__init__()
        self.receive = receive
        self.listening: Subscription | None = None
        self._arrivals = arrivals
        self._acknowledging: set[asyncio.Task[None]] = set()

    def set_result(self, msg: Msg) -> None:
        headers = dict(msg.headers or {})
        own = headers.get(MESSAGE_ID, "")
        is_kept = msg.reply.startswith("$JS.ACK")
        if is_kept and not own:
            about = msg.metadata
            # Streams of several sites may have the same name and separate sequences.
            own = f"{about.stream}:{about.sequence.stream}:{about.timestamp.timestamp():.6f}"
        message = without_identity(msg.subject, msg.data, headers, own)
        self._arrivals.add(self, message, msg if is_kept else None)

    def acknowledge(self, msg: Msg) -> None:
        task = asyncio.get_running_loop().create_task(msg.ack())
        self._acknowledging.add(task)
        task.add_done_callback(self._acknowledging.discard)

    async def stop(self) -> None:
        """Stop listening; all messages sent so far are received and acknowledged."""
        listening, self.listening = self.listening, None
        if listening is not None:
            await listening.drain()  # type: ignore[no-untyped-call]
            self._arrivals.give()
            await asyncio.gather(*self._acknowledging)


class _Arrivals:
    """Messages of one read for all receivers: they are passed on together, and so written to the disk
    together."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Subscribed, ForeignMessage, Msg | None]] = []

    def add(self, one: _Subscribed, message: ForeignMessage, to_acknowledge: Msg | None) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.give)
        self._waiting.append((one, message, to_acknowledge))

    def give(self) -> None:
        waiting, self._waiting = self._waiting, []
        for receive, group in groupby(waiting, key=lambda arrival: arrival[0].receive):
            arrivals = list(group)
            give(receive, [message for _, message, _ in arrivals])
            for one, _, to_acknowledge in arrivals:
                if to_acknowledge is not None:
                    one.acknowledge(to_acknowledge)


def durable_names(name: str, filter: str) -> tuple[str, str]:
    """Return names valid in NATS, the same in every process; two, so that one can replace the other."""
    one = "roamcast-" + hashlib.sha256(f"{name}\n{filter}".encode()).hexdigest()[:32]
    return one, f"{one}-b"
