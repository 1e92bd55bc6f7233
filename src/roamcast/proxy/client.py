"""The client-side library: a client of a foreign broker whose subscriptions follow it between sites.

    client = RoamingClient("car-17", {"a": "127.0.0.1:7110", "b": "127.0.0.1:7111"})
    await client.move_in("a")
    await client.subscribe("road/#")
    …
    await client.move_out()          # before the connection goes
    await client.move_in("b")        # wherever it comes back
    async for message in client: …   # nothing missing in between

While attached, the client publishes and receives directly at the foreign broker of its site, and the
proxy only knows that it is there (section 3 of Caporuscio et al.). `monitor.py` moves it by itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from roamcast.errors import InputError
from roamcast.proxy import messages
from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage, open_adapter
from roamcast.proxy.discovery import Credentials, measure
from roamcast.proxy.messages import PING_LEVELS, Batch, Downloaded, Message, Refused, Welcome, ping_key
from roamcast.proxy.wire import Pipe, ProxyError, connect_client

SyncOption = Literal["none", "basic", "delay", "ping"]
SEEN_MAX = 100_000
LASTING = ("expired", "unknown", "identity")
"""Refusals of a download that asking again cannot change."""


class MoveFailed(Exception):
    """A move that did not happen; the client is where it was. One line that says why."""


class Source(msgspec.Struct, frozen=True):
    """A handler that holds something for this client."""

    site: str
    ticket: str


class State(msgspec.Struct, frozen=True):
    """What a client must know again after a restart of its own."""

    filters: tuple[str, ...]
    sources: tuple[Source, ...]


class MoveIn(msgspec.Struct):
    """What a move-in brought."""

    site: str
    downloaded: int = 0
    merged: int = 0
    """What had come directly from the broker of the new site meanwhile."""
    duplicates: int = 0
    """What was recognised as a copy, and left out."""
    dropped: int = 0
    """What came to the proxy while its buffer was full."""
    missing: tuple[str, ...] = ()
    """Why something may still come: it is asked for again in the background."""
    lost: tuple[str, ...] = ()
    """Why something will not come."""
    duration_s: float = 0.0


class Options(msgspec.Struct, frozen=True):
    """How a client moves."""

    sync: SyncOption = "ping"
    """How to be sure that one listens before the other stops (section 3.3); "none" uses no proxy at all."""
    delay_s: float = 1.0
    """For "delay"."""
    ping_interval_s: float = 0.2
    ping_timeout_s: float = 10.0
    move_timeout_s: float = 30.0
    lease_s: float = 0.0
    """How long a proxy shall keep a buffer; 0 leaves it to the proxy."""
    bytes_max: int = 0
    """How large a buffer may become; 0 leaves it to the proxy."""
    is_unique: bool = True
    """Whether copies of a message are left out, where they can be recognised."""
    publishes_max: int = 10_000
    """What is published while away waits here, at most so many."""
    again_s: float = 5.0
    """The pause before a proxy that could not be asked is asked again."""


class RoamingClient:
    """One client. Use it from one event loop; `close` it at the end."""

    def __init__(
        self,
        id: str,
        proxies: Mapping[str, str],
        options: Options | None = None,
        *,
        user: str = "",
        password: str = "",
        adapter: Callable[[Welcome], Adapter] | None = None,
        state_file: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`proxies` are addresses by site. `adapter` opens the broker of a site, if not as the proxy says."""
        self.id = id
        self.proxies = dict(proxies)
        self.options = options or Options()
        self.site: str | None = None
        """Where it is attached."""
        self.filters: dict[str, None] = {}
        self.sources: list[Source] = []
        self.waiting_publishes: deque[ForeignMessage] = deque()
        self.lost_because = ""
        """Why the broker of the site went away without a move-out, if it did."""
        self.credentials = Credentials(id, user, password, tls)
        self._open_adapter = adapter or _as_told
        self._state_file = state_file
        self._incarnation = secrets.token_hex(4)
        self._published = 0
        self._adapter: Adapter | None = None
        self._pipe: Pipe | None = None
        self._answers: dict[int, asyncio.Queue[Message | None]] = {}
        self._requests = 0
        self._pings: dict[str, tuple[bytes, asyncio.Event]] = {}
        self._ping_prefix = ""
        self._merge: list[ForeignMessage] | None = None
        self._queue: asyncio.Queue[ForeignMessage | None] = asyncio.Queue()
        self._seen: dict[str, None] = {}
        self._duplicates = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._read_state()

    # --- what applications use ---

    @property
    def is_attached(self) -> bool:
        return self.site is not None

    async def subscribe(self, filter: str) -> None:
        """Also while away: then it begins at the next move-in."""
        self.filters[filter] = None
        self._write_state()
        if self._adapter is not None:
            await self._adapter.subscribe(self._name, filter, self._receive)

    async def unsubscribe(self, filter: str) -> None:
        self.filters.pop(filter, None)
        self._write_state()
        if self._adapter is not None:
            await self._adapter.unsubscribe(self._name, filter)

    async def publish(self, topic: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """In order, also over a move: what is published while away waits here and goes out first."""
        self._published += 1
        identity = f"{self.id}/{self._incarnation}/{self._published}"
        if len(self.waiting_publishes) >= self.options.publishes_max:
            raise MoveFailed(f"{self.options.publishes_max} publishes wait for the next move-in already")
        self.waiting_publishes.append(ForeignMessage(topic, body, dict(headers or {}), identity))
        if self._adapter is not None and self._merge is None:
            await self._flush_publishes()

    def __aiter__(self) -> AsyncIterator[ForeignMessage]:
        return self

    async def __anext__(self) -> ForeignMessage:
        message = await self._queue.get()
        if message is None:
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return message

    async def close(self) -> None:
        """Leave for good, without a move-out; what proxies hold stays there until its lease ends."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._detach(unsubscribe=True)
        self._queue.put_nowait(None)

    # --- move-out ---

    async def move_out(self) -> None:
        """Let the proxy of this site listen, and detach. MoveFailed: the client is still attached."""
        async with self._moving:
            if self._adapter is None or self.site is None:
                raise MoveFailed(f"client {self.id} is not attached")
            if self.options.sync != "none":
                await self._hand_over(self.site, self._adapter)
            await self._detach(unsubscribe=True)

    async def _hand_over(self, site: str, adapter: Adapter) -> None:
        options, ticket = self.options, secrets.token_hex(16)
        source = Source(site, ticket)
        key = ping_key(ticket)
        request = self._next_request()
        move = messages.MoveOut(
            request, self.id, ticket, tuple(self.filters), _sync_of(options), options.delay_s,
            options.lease_s, options.bytes_max, options.is_unique,
        )  # fmt: skip
        # Written down first: who is stopped in between asks for a buffer that is perhaps not there.
        self.sources.append(source)
        self._write_state()
        try:
            async with asyncio.timeout(options.move_timeout_s + options.delay_s):
                if options.sync == "ping":
                    await adapter.subscribe(self._name, self._ping_topic(key, "out-request"), self._receive)
                answer = await self._ask(move)
                if options.sync == "ping":
                    await adapter.unsubscribe(self._name, self._ping_topic(key, "out-request"))
        except (AdapterError, ProxyError, TimeoutError) as error:
            raise self._not_moved_out(source, str(error) or "no answer in time") from None
        if not isinstance(answer, messages.MovedOut):
            text = answer.text if isinstance(answer, Refused) else "the connection ended"
            raise self._not_moved_out(source, text)

    def _not_moved_out(self, source: Source, why: str) -> MoveFailed:
        self.sources.remove(source)
        self._write_state()
        return MoveFailed(f"site {source.site}: {why}")

    async def _detach(self, unsubscribe: bool) -> None:
        adapter, pipe = self._adapter, self._pipe
        self.site = self._adapter = self._pipe = None
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if adapter is not None:
            try:
                for filter in self.filters if unsubscribe else ():
                    await adapter.unsubscribe(self._name, filter)
                await adapter.close()
            except AdapterError:
                pass  # The broker is gone: that is as detached as it gets.
        if pipe is not None:
            await pipe.end()

    # --- move-in ---

    async def move_in(self, site: str | None = None) -> MoveIn:
        """Attach at a site (the nearest one if none is named), and fetch what was kept meanwhile.

        MoveFailed: the client is not attached, and nothing that a proxy holds was touched.
        """
        async with self._moving:
            if self._adapter is not None:
                raise MoveFailed(f"client {self.id} is attached at {self.site} already")
            began_s = time.perf_counter()
            site = site or await self._nearest()
            if site not in self.proxies:
                raise MoveFailed(f"site {site!r} is not known; known are {', '.join(self.proxies)}")
            self._merge, self._duplicates = [], 0
            try:
                adapter = await self._listen_at(site)
            except (AdapterError, ProxyError, InputError, TimeoutError) as error:
                await self._detach(unsubscribe=False)
                self._merge = None
                raise MoveFailed(f"site {site}: {error or 'no answer in time'}") from None
            self.lost_because = ""
            result = MoveIn(site)
            for source in list(self.sources):
                await self._download(adapter, source, result)
            self._switch(result)
            self.site = site
            await self._flush_publishes()
            if self.sources:
                self._spawn(self._ask_again())
            result.duration_s = time.perf_counter() - began_s
            return result

    async def _nearest(self) -> str:
        found = await measure(self.proxies, self.credentials)
        if not found:
            raise MoveFailed(f"no proxy answers; asked were {', '.join(self.proxies.values())}")
        return next(iter(found))

    async def _listen_at(self, site: str) -> Adapter:
        """Steps 1 and 2 of a move-in: from here on, what comes is put into the merge queue."""
        pipe, welcome = await connect_client(self.proxies[site], *self.credentials)
        self._pipe = pipe
        self._reader = asyncio.get_running_loop().create_task(self._read(pipe))
        if welcome.site != site:
            raise InputError(f"the proxy there is that of site {welcome.site}")
        adapter = self._adapter = self._open_adapter(welcome)
        adapter.on_lost(lambda why: self._on_lost(adapter, why))
        async with asyncio.timeout(self.options.move_timeout_s):
            await adapter.open()
            self._ping_prefix = adapter.topic_of((*PING_LEVELS, "x"))[:-1]
            for filter in self.filters:
                await adapter.subscribe(self._name, filter, self._receive)
        return adapter

    async def _download(self, adapter: Adapter, source: Source, result: MoveIn) -> None:
        """Steps 3 and 4 for one handler; what cannot be had now stays in `sources`."""
        try:
            await self._synchronise(adapter, source)
            answer = await self._fetch(source, result)
        except (AdapterError, ProxyError, TimeoutError) as error:
            result.missing += (f"site {source.site}: {error or 'no ping came back through the brokers'}",)
            return
        if isinstance(answer, Refused):
            text = f"site {source.site}: {answer.text}"
            if answer.code in LASTING:
                result.lost += (text,)
                self._forget(source)
            else:
                result.missing += (text,)
        elif answer.missing:
            result.missing += (answer.missing,)
        else:
            result.dropped += answer.dropped
            self._forget(source)

    async def _synchronise(self, adapter: Adapter, source: Source) -> None:
        """Before the handler stops listening: be sure that the new subscriptions are effective (3.3)."""
        options = self.options
        if options.sync == "delay":
            await asyncio.sleep(options.delay_s)
        if options.sync != "ping":
            return
        key, nonce = ping_key(source.ticket), secrets.token_hex(8).encode()
        answer, request = self._ping_topic(key, "in-response"), self._ping_topic(key, "in-request")
        came = asyncio.Event()
        self._pings[answer] = nonce, came
        try:
            await adapter.subscribe(self._name, answer, self._receive)
            async with asyncio.timeout(options.ping_timeout_s):
                while not came.is_set():
                    await adapter.publish(ForeignMessage(request, nonce))
                    try:
                        await asyncio.wait_for(came.wait(), options.ping_interval_s)
                    except TimeoutError:
                        continue
            await adapter.unsubscribe(self._name, answer)
        finally:
            del self._pings[answer]

    async def _fetch(self, source: Source, result: MoveIn) -> Downloaded | Refused:
        request = self._next_request()
        answers = self._answers[request] = asyncio.Queue()
        pipe = self._connected()
        pipe.write(messages.Download(request, self.id, source.ticket, source.site))
        try:
            while True:
                answer = await answers.get()
                match answer:
                    case Batch(first=first, messages=batch):
                        for message in batch:
                            result.downloaded += self._deliver(message)
                        pipe.write(messages.Taken(request, first + len(batch) - 1))
                    case Downloaded() | Refused():
                        return answer
                    case _:
                        raise ProxyError("the connection to the proxy ended")
        finally:
            del self._answers[request]

    def _switch(self, result: MoveIn) -> None:
        """Steps 5 and 6: behind what was downloaded comes what had been merged, then what comes directly."""
        merged, self._merge = self._merge or [], None
        for message in merged:
            result.merged += self._deliver(message)
        result.duplicates = self._duplicates

    async def _ask_again(self) -> None:
        """A proxy or broker was down at the move-in: ask until everything is here, or the client moves."""
        adapter = self._adapter
        while self.sources and adapter is not None:
            await asyncio.sleep(self.options.again_s)
            async with self._moving:
                if self._adapter is not adapter:
                    return
                for source in list(self.sources):
                    await self._download(adapter, source, MoveIn(source.site))

    # --- messages ---

    def _receive(self, message: ForeignMessage) -> None:
        if self._ping_prefix and message.topic.startswith(self._ping_prefix):
            self._on_ping(message)
        elif self._merge is not None:
            self._merge.append(message)
        else:
            self._deliver(message)

    def _deliver(self, message: ForeignMessage) -> bool:
        """Whether it is new, as far as that can be told."""
        if message.identity and self.options.is_unique:
            if message.identity in self._seen:
                self._duplicates += 1
                return False
            self._seen[message.identity] = None
            if len(self._seen) > SEEN_MAX:
                del self._seen[next(iter(self._seen))]
        self._queue.put_nowait(message)
        return True

    def _on_ping(self, message: ForeignMessage) -> None:
        expected = self._pings.get(message.topic)
        if expected is not None and message.body == expected[0]:
            expected[1].set()
        elif message.topic.endswith("out-request") and self._adapter is not None:
            answer = message.topic.removesuffix("out-request") + "out-response"
            self._spawn(self._publish_ping(self._adapter, ForeignMessage(answer, message.body)))

    async def _publish_ping(self, adapter: Adapter, message: ForeignMessage) -> None:
        with suppress(AdapterError):  # The proxy asks again, as long as it waits.
            await adapter.publish(message)

    async def _flush_publishes(self) -> None:
        async with self._publishing:
            while self.waiting_publishes and self._adapter is not None:
                try:
                    await self._adapter.publish(self.waiting_publishes[0])
                except AdapterError:
                    return  # It waits for the next move-in, with all that come after it.
                self.waiting_publishes.popleft()

    def _on_lost(self, adapter: Adapter, why: str) -> None:
        if adapter is self._adapter:
            self.lost_because = why
            self._spawn(self._detach(unsubscribe=False))

    # --- the connection to the proxy ---

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

    async def _ask(self, message: messages.MoveOut) -> Message | None:
        answers = self._answers[message.request] = asyncio.Queue()
        try:
            self._connected().write(message)
            return await answers.get()
        finally:
            del self._answers[message.request]

    def _connected(self) -> Pipe:
        if self._pipe is None:
            raise ProxyError("the connection to the proxy ended")
        return self._pipe

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    # --- odds and ends ---

    @property
    def _name(self) -> str:
        return f"roamcast-client-{self.id}"

    def _ping_topic(self, key: str, kind: str) -> str:
        assert self._adapter is not None
        return self._adapter.topic_of((*PING_LEVELS, key, kind))

    def _forget(self, source: Source) -> None:
        self.sources.remove(source)
        self._write_state()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read_state(self) -> None:
        if self._state_file is None or not self._state_file.exists():
            return
        try:
            state = msgspec.json.decode(self._state_file.read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(f"{self._state_file}: is no state of a client ({error})") from None
        self.filters, self.sources = dict.fromkeys(state.filters), list(state.sources)

    def _write_state(self) -> None:
        if self._state_file is None:
            return
        draft = self._state_file.with_name(f"{self._state_file.name}.tmp")
        with open(draft, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(msgspec.json.encode(State(tuple(self.filters), tuple(self.sources))))
        os.replace(draft, self._state_file)


def _sync_of(options: Options) -> messages.Sync:
    assert options.sync != "none"
    return options.sync


def _as_told(welcome: Welcome) -> Adapter:
    """The foreign broker that the proxy names."""
    return open_adapter(welcome.kind, welcome.url)
