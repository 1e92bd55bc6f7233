"""NATS: core subjects, and JetStream where it is on.

All subscriptions of a handler are in one queue group of its own, so a message that several of its filters
match comes once. With `stream`, each subscription is a durable consumer of that stream: the stream keeps what
comes while nobody listens.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlsplit

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError

from roamcast.proxy.adapter import AdapterError, ForeignMessage, Receive
from roamcast.proxy.base import DAY_S, ForeignAdapter, parse_url, with_identity, without_identity

CONNECT_S = 10.0
ACK_PENDING_MAX = 1_024
ORDER_WAIT_S = 5.0
MESSAGE_ID = "Nats-Msg-Id"
"""The header by which publishers let a stream leave out copies."""


class NatsAdapter(ForeignAdapter):
    separator = "."

    def __init__(self, url: str, *, stream: str = "", domain: str = "", kept_s: float = DAY_S) -> None:
        """`stream`: the JetStream stream that holds the subjects, `domain`: where it is, if not here.

        Both may be in the URL: nats://127.0.0.1:4222?stream=NAME. `kept_s`: how long a consumer is kept
        while nobody listens.
        """
        super().__init__()
        self._place = parse_url(url, "nats", 4222)
        asked = dict(parse_qsl(urlsplit(url).query))
        self._stream, self._domain = stream or asked.get("stream", ""), domain or asked.get("domain", "")
        self.can_suspend = bool(self._stream)
        self._kept_s = kept_s
        self._client: Client | None = None
        self._subscriptions: dict[str, dict[str, _Subscribed]] = {}
        self._refusals: list[str] = []

    # --- life ---

    async def open(self) -> None:
        await self.close()
        place = self._place
        self._refusals.clear()
        try:
            self._client = await nats.connect(
                f"nats://{place}", user=place.user, password=place.password, allow_reconnect=False,
                max_reconnect_attempts=1, reconnect_time_wait=0.1, connect_timeout=CONNECT_S,
                error_cb=self._on_error, closed_cb=self._on_closed,
            )  # fmt: skip
        except (Error, OSError, TimeoutError) as error:
            # The last word of the server says more than that there is none.
            raise AdapterError(f"{place}: {[str(error), *self._refusals][-1]}") from None
        self._is_open = True

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
        await self.resume(name, (filter,), receive)

    async def resume(self, name: str, filters: Sequence[str], receive: Receive) -> bool:
        """All at once: so that what the stream has kept for several filters comes in its order."""
        client = self._open_client
        known = self._subscriptions.setdefault(name, {})
        for filter in filters:
            if filter in known:
                known[filter].receive = receive
        new = {filter: _Subscribed(receive) for filter in filters if filter not in known}
        known |= new
        is_kept = True
        try:
            for filter, one in new.items():
                with adapted(filter):
                    is_kept &= await self._prepare(name, filter, one)
            hold_together(list(new.values()))
            for filter, one in new.items():
                with adapted(filter):
                    await self._listen(client, name, one)
                    await self._settle(client, filter)
        except AdapterError:
            for filter, one in new.items():
                known.pop(filter, None)
                await one.stop()
            raise
        return is_kept

    async def _prepare(self, name: str, filter: str, one: _Subscribed) -> bool:
        """Whether there was something to go on with."""
        one.subject = filter
        if not self._stream:
            return False
        consumer, is_new = await self._consumer(name, filter)
        one.subject, one.kept = str(consumer.config.deliver_subject), consumer.num_pending or 0
        return not is_new

    async def _listen(self, client: Client, name: str, one: _Subscribed) -> None:
        group = "" if self._stream else f"roamcast-{name}"
        one.listening = await client.subscribe(one.subject, queue=group, future=_Inbox(one))

    async def _settle(self, client: Client, filter: str) -> None:
        """Wait until the server has it; what it refuses, it says before it answers this."""
        self._refusals.clear()
        await client.flush()
        if self._refusals:
            raise AdapterError(f"{filter}: {self._refusals[0]}")

    async def unsubscribe(self, name: str, filter: str) -> None:
        client = self._open_client
        one = self._subscriptions.get(name, {}).pop(filter, None)
        if not self._subscriptions.get(name, True):
            del self._subscriptions[name]
        with adapted(filter):
            if one is not None:
                await one.stop()
            await client.flush()
            if self._stream:
                for durable in durable_names(name, filter):
                    with suppress_missing():
                        await self._jetstream.delete_consumer(self._stream, durable)

    # --- JetStream ---

    async def _consumer(self, name: str, filter: str) -> tuple[ConsumerInfo, bool]:
        """The durable consumer of a filter, and whether it is new."""
        found = []
        durables = durable_names(name, filter)
        for durable in durables:
            with suppress_missing():
                found.append(await self._jetstream.consumer_info(self._stream, durable))
        found.sort(key=lambda one: one.created)
        for older in found[:-1]:  # Whoever renewed it was killed in between.
            await self._jetstream.delete_consumer(self._stream, older.name)
        if not found:
            return await self._add_consumer(durables[0], filter, DeliverPolicy.NEW), True
        latest = found[-1]
        if not latest.num_ack_pending or latest.ack_floor is None:
            return latest, False
        # Whoever got that was killed before it was acknowledged. The server would send it again after what
        # comes next; a consumer that begins there has it in order.
        other = next(durable for durable in durables if durable != latest.name)
        begins = latest.ack_floor.stream_seq + 1
        renewed = await self._add_consumer(other, filter, DeliverPolicy.BY_START_SEQUENCE, begins)
        await self._jetstream.delete_consumer(self._stream, latest.name)
        return renewed, False

    async def _add_consumer(
        self, durable: str, filter: str, policy: DeliverPolicy, begins: int | None = None
    ) -> ConsumerInfo:
        return await self._jetstream.add_consumer(
            self._stream,
            ConsumerConfig(
                durable_name=durable,
                deliver_subject=f"_roamcast.{durable}",
                deliver_policy=policy,
                opt_start_seq=begins,
                ack_policy=AckPolicy.EXPLICIT,
                max_ack_pending=ACK_PENDING_MAX,
                filter_subject=filter,
                inactive_threshold=self._kept_s,
            ),
        )

    async def suspend(self, name: str) -> None:
        client = self._open_client
        if not self._stream:
            raise AdapterError("NATS suspends nothing without JetStream; name a stream")
        with adapted(name):
            for one in self._subscriptions.pop(name, {}).values():
                await one.stop()
            await client.flush()

    # --- publishing ---

    async def publish(self, message: ForeignMessage) -> None:
        client, headers = self._open_client, with_identity(message) or None
        with adapted(message.topic):
            if self._stream:
                await self._jetstream.publish(message.topic, message.body, headers=headers)
            else:
                await client.publish(message.topic, message.body, headers=headers)
                # Core NATS acknowledges nothing; this is as near as it gets.
                await client.flush()


class _Subscribed:
    """A filter at work."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.subject = ""
        self.kept = 0
        """What the stream has for it, and has not sent."""
        self.order: _Order | None = None
        self.listening: Subscription | None = None
        self._acknowledging: set[asyncio.Task[None]] = set()

    def on_message(self, msg: Msg) -> None:
        if self.order is not None:
            self.order.on_message(self, msg)
        else:
            self.give(msg)

    def give(self, msg: Msg) -> None:
        headers = dict(msg.headers or {})
        own = headers.get(MESSAGE_ID, "")
        is_kept = msg.reply.startswith("$JS.ACK")
        if is_kept and not own:
            about = msg.metadata
            # Streams of several sites may have the same name, and count for themselves.
            own = f"{about.stream}:{about.sequence.stream}:{about.timestamp.timestamp():.6f}"
        self.receive(without_identity(msg.subject, msg.data, headers, own))
        if is_kept:
            task = asyncio.get_running_loop().create_task(msg.ack())
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)

    async def stop(self) -> None:
        """Listen no more; everything that had been sent is received and acknowledged."""
        listening, self.listening = self.listening, None
        if listening is not None:
            await listening.drain()  # type: ignore[no-untyped-call]
            if self.order is not None:
                self.order.end()
            await asyncio.gather(*self._acknowledging)


class _Order:
    """Merges what a stream has kept for several filters: each has a consumer, which knows only its own."""

    def __init__(self, members: list[_Subscribed]) -> None:
        self._waiting: dict[_Subscribed, deque[Msg]] = {one: deque() for one in members}
        self._heard_s = asyncio.get_running_loop().time()
        self._watch()

    def on_message(self, one: _Subscribed, msg: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        one.kept = msg.metadata.num_pending
        self._waiting[one].append(msg)
        while self._is_complete and any(self._waiting.values()):
            self._give_first()
        if not any(one.kept for one in self._waiting):
            self.end()

    @property
    def _is_complete(self) -> bool:
        """Whether nothing can come that belongs before what is here."""
        return all(waiting or not one.kept for one, waiting in self._waiting.items())

    def _give_first(self) -> None:
        heads = [one for one, waiting in self._waiting.items() if waiting]
        first = min(heads, key=lambda one: self._waiting[one][0].metadata.sequence.stream)
        first.give(self._waiting[first].popleft())

    def _watch(self) -> None:
        """A stream that has reached its limits may have thrown away what is waited for."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard_s > ORDER_WAIT_S:
            self.end()
        elif any(one.order is self for one in self._waiting) or not self._waiting:
            loop.call_later(ORDER_WAIT_S, self._watch)

    def end(self) -> None:
        """Give what is left; from now on everything comes as the server sends it."""
        while any(self._waiting.values()):
            self._give_first()
        for one in self._waiting:
            one.order = None


def hold_together(members: list[_Subscribed]) -> None:
    if sum(1 for one in members if one.kept) > 1:
        order = _Order(members)
        for one in members:
            one.order = order


class _Inbox(asyncio.Future[Msg]):
    """Takes messages as they come off the wire.

    A callback would have a queue and a task for each subscription, and so mix up the order of what comes for
    several filters of one handler.
    """

    def __init__(self, one: _Subscribed) -> None:
        super().__init__()
        self._one = one

    def set_result(self, msg: Msg) -> None:
        self._one.on_message(msg)


def durable_names(name: str, filter: str) -> tuple[str, str]:
    """Names that NATS takes, the same in every process; two, so that one can follow the other."""
    one = "roamcast-" + hashlib.sha256(f"{name}\n{filter}".encode()).hexdigest()[:32]
    return one, f"{one}-b"


@contextmanager
def suppress_missing() -> Iterator[None]:
    try:
        yield
    except NotFoundError:
        return


@contextmanager
def adapted(what: str) -> Iterator[None]:
    """What NATS refuses, in the words of adapters."""
    try:
        yield
    except (Error, OSError, TimeoutError) as error:
        raise AdapterError(f"{what}: {error}") from None
