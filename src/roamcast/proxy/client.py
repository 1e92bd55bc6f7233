"""The client-side library: a client of a foreign broker whose subscriptions follow it between sites.

    client = RoamingClient("car-17", {"a": "127.0.0.1:7110", "b": "127.0.0.1:7111"})
    await client.move_in("a")
    await client.subscribe("road/#")
    …
    await client.move_out()         # before disconnecting: the proxy listens from now on, or the broker does
    await client.move_in("b")       # at any site
    async for message in client:    # nothing is missing in between
        …

While attached, the client publishes and receives directly at the foreign broker of its site, and the proxy
only knows that it is attached (section 3 of Caporuscio et al.). `monitor.py` moves it by itself.

Each stay has a ticket, and a channel at the foreign broker that is named after it. Where the broker can keep
a channel (`Adapter.can_suspend`), one that the client has left without a hand-over is a source like a proxy's
handler: the client resumes it when it comes back to the same site, and elsewhere the proxy of that site
resumes it in the client's place. Only one of them listens at a time, so no message is duplicated.
"""

from __future__ import annotations

import asyncio
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
from roamcast.proxy.client_state import ClientState, Source, Suspended, read_state, write_state
from roamcast.proxy.discovery import Credentials, measure
from roamcast.proxy.line import Line
from roamcast.proxy.messages import PING_LEVELS, ahead_ticket, channel_name, ping_key
from roamcast.proxy.wire import ProxyError

SyncOption = Literal["none", "basic", "delay", "ping"]
SuspendOption = Literal["never", "unreachable", "always"]
Keeper = Literal["proxy", "broker", "nobody"]
SEEN_MAX = 100_000
LASTING = ("expired", "unknown", "identity")
"""Refusals of a download that a retry cannot change."""


class MoveFailed(Exception):
    """Raised if a move failed; the client is where it was. The text says why in one line."""


class Unreachable(MoveFailed):
    """Raised if the proxy did not answer."""


class MoveIn(msgspec.Struct):
    """Result of a move-in."""

    site: str
    downloaded: int = 0
    copies: int = 0
    """Number of handlers of other sites whose copy at this site was complete (see `Options.ahead`)."""
    merged: int = 0
    """Number of messages received directly from the new site's broker meanwhile."""
    duplicates: int = 0
    """Number of duplicates that were left out."""
    dropped: int = 0
    """Number of messages dropped because the proxy's buffer was full."""
    missing: tuple[str, ...] = ()
    """Why messages may still arrive: they are requested again in the background."""
    lost: tuple[str, ...] = ()
    """Why messages are lost."""
    duration_s: float = 0.0


class Options(msgspec.Struct, frozen=True):
    """Options of a client's moves."""

    sync: SyncOption = "ping"
    """How to ensure that the new subscriptions work before the old ones end (section 3.3); "none" uses no
    proxy at all."""
    delay_s: float = 1.0
    """Seconds to wait with `sync = "delay"`."""
    ping_interval_s: float = 0.2
    ping_timeout_s: float = 10.0
    move_timeout_s: float = 30.0
    lease_s: float = 0.0
    """Seconds that a proxy is asked to keep a buffer; 0 lets the proxy decide."""
    bytes_max: int = 0
    """Requested size of a buffer; 0 lets the proxy decide."""
    is_unique: bool = True
    """Whether to leave out duplicates that can be recognised."""
    suspend: SuspendOption = "unreachable"
    """When the foreign broker itself, if it can, keeps messages instead of the proxy: "unreachable" means
    when no proxy answers at move-out; otherwise that move-out fails."""
    publishes_max: int = 10_000
    """Limit of publishes that wait here while the client is away."""
    ahead: bool = False
    """Whether to ask the proxy of a new site first for a copy of the buffer; set it where proxies have
    `proactive.enabled`. Without a copy it costs a round trip."""
    again_s: float = 5.0
    """Seconds before a proxy that did not answer is asked again."""


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
        adapter: Callable[[messages.Welcome], Adapter] | None = None,
        state_file: Path | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`proxies` are addresses by site. `adapter` opens the broker of a site, if not the one that the
        proxy names."""
        self.id = id
        self.proxies = dict(proxies)
        self.options = options or Options()
        self.site: str | None = None
        """The site where the client is attached."""
        self.filters: dict[str, None] = {}
        self.excluded: dict[str, None] = {}
        """Filters for which no messages are kept while the client is away."""
        self.sources: list[Source] = []
        self.waiting_publishes: deque[ForeignMessage] = deque()
        self.lost_because = ""
        """Why the connection to the site's broker was lost without a move-out, if it was."""
        self.credentials = Credentials(id, user, password, tls)
        self._open_adapter = adapter or _as_told
        self._state_file = state_file
        self._incarnation = secrets.token_hex(4)
        self._published = 0
        self._name = ""
        """Name of this stay's channel at the foreign broker."""
        self._stay: Source | None = None
        """Record of this stay, used if it ends without a move-out."""
        self._adapter: Adapter | None = None
        self._line: Line | None = None
        self._pings: dict[str, tuple[bytes, asyncio.Event]] = {}
        self._ping_prefix = ""
        self._merge: list[ForeignMessage] | None = None
        self._queue: asyncio.Queue[ForeignMessage | None] = asyncio.Queue()
        self._seen: dict[str, None] = {}
        self._duplicates = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving = asyncio.Lock()
        self._publishing = asyncio.Lock()
        if state_file is not None:
            state = read_state(state_file)
            self.filters, self.sources = dict.fromkeys(state.filters), list(state.sources)
            self.excluded = dict.fromkeys(state.excluded)

    # --- what applications use ---

    @property
    def is_attached(self) -> bool:
        return self.site is not None

    async def subscribe(self, filter: str, *, is_kept: bool = True) -> None:
        """Subscribe. While the client is away, the subscription begins at the next move-in.

        A subscription that is not kept follows the client, but its messages are lost while the client is
        away: no proxy listens, and no buffer is filled (Caporuscio et al., section 5).
        """
        self.filters[filter] = None
        if is_kept:
            self.excluded.pop(filter, None)
        else:
            self.excluded[filter] = None
        self._write_state()
        if self._adapter is not None:
            await self._adapter.subscribe(self._name, filter, self._receive)

    async def unsubscribe(self, filter: str) -> None:
        self.filters.pop(filter, None)
        self.excluded.pop(filter, None)
        self._write_state()
        if self._adapter is not None:
            await self._adapter.unsubscribe(self._name, filter)

    async def publish(
        self, topic: str, body: bytes, headers: Mapping[str, str] | None = None, *, is_kept: bool = True
    ) -> None:
        """Publish in order, also across a move: messages published while away wait here and are sent first.

        A message that is not kept is dropped if the client is away.
        """
        if not is_kept and self._adapter is None:
            return
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
        """Disconnect for good without a move-out; proxies keep their buffers until the leases end."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._detach(unsubscribe=True)
        self._queue.put_nowait(None)

    # --- move-out ---

    async def move_out(self, *, is_returning: bool = False) -> Keeper:
        """Detach, and let the proxy of this site listen; return who keeps messages from now on.

        A client that says `is_returning`, because it will come back here, is not handed over if the foreign
        broker can keep its subscriptions. MoveFailed: the client is still attached.
        """
        async with self._moving:
            adapter, site, options = self._adapter, self.site, self.options
            if adapter is None or site is None:
                raise MoveFailed(f"client {self.id} is not attached")
            if options.sync == "none":
                await self._detach(unsubscribe=True)
                return "nobody"
            if adapter.can_suspend and (is_returning or options.suspend == "always"):
                await self._suspend(adapter)
                return "broker"
            try:
                await self._hand_over(site, adapter)
            except Unreachable:
                if not adapter.can_suspend or options.suspend == "never":
                    raise
                await self._suspend(adapter)
                return "broker"
            await self._detach(unsubscribe=True)
            return "proxy"

    async def _suspend(self, adapter: Adapter) -> None:
        try:
            for filter in self.excluded:
                await adapter.unsubscribe(self._name, filter)
            await adapter.suspend(self._name)
        except AdapterError as error:
            raise MoveFailed(f"site {self.site}: {error}") from None
        await self._detach(unsubscribe=False)

    async def _hand_over(self, site: str, adapter: Adapter) -> None:
        options, ticket = self.options, secrets.token_hex(16)
        assert options.sync != "none"
        source = Source(site, ticket)
        key = ping_key(ticket)
        line = self._connected()
        move = messages.MoveOut(
            line.next_request(), self.id, ticket, self._kept_filters(), options.sync, options.delay_s,
            options.lease_s, options.bytes_max, options.is_unique,
        )  # fmt: skip
        # Written first: after a crash in between the client asks for a buffer that may not exist.
        self.sources.append(source)
        self._write_state()
        ping = self._ping_topic(key, "out-request")
        try:
            async with asyncio.timeout(options.move_timeout_s + options.delay_s):
                if options.sync == "ping":
                    await adapter.subscribe(self._name, ping, self._receive)
                answer = await line.ask(move)
        except (ProxyError, TimeoutError) as error:
            raise self._not_moved_out(source, Unreachable, str(error) or "no answer in time") from None
        except AdapterError as error:
            raise self._not_moved_out(source, MoveFailed, str(error)) from None
        finally:
            if options.sync == "ping":
                with suppress(AdapterError):
                    await adapter.unsubscribe(self._name, ping)
        if not isinstance(answer, messages.MovedOut):
            raise self._not_moved_out(source, MoveFailed, messages.refusal_in(answer))

    def _kept_filters(self) -> tuple[str, ...]:
        return tuple(filter for filter in self.filters if filter not in self.excluded)

    def _not_moved_out(self, source: Source, kind: type[MoveFailed], why: str) -> MoveFailed:
        self.sources.remove(source)
        self._write_state()
        return kind(f"site {source.site}: {why}")

    async def _detach(self, unsubscribe: bool) -> None:
        """Disconnect. The foreign broker keeps the remaining subscriptions for this client, if it can."""
        adapter, line, name = self._adapter, self._line, self._name
        if self._stay is not None and not unsubscribe:
            self.sources.append(self._with_filters(self._stay))
        self.site = self._adapter = self._line = self._stay = None
        if adapter is not None:
            with suppress(AdapterError):  # The broker is gone, so the client is detached anyway.
                for filter in self.filters if unsubscribe else ():
                    await adapter.unsubscribe(name, filter)
            with suppress(AdapterError):
                await adapter.close()
        if line is not None:
            await line.close()
        self._write_state()

    # --- move-in ---

    async def move_in(self, site: str | None = None) -> MoveIn:
        """Attach at a site (the nearest one if none is named), and fetch the messages kept meanwhile.

        MoveFailed: the client is not attached, and buffers at proxies are unchanged.
        """
        async with self._moving:
            if self._adapter is not None:
                raise MoveFailed(f"client {self.id} is attached at {self.site} already")
            began_s = time.perf_counter()
            site = site or await self._nearest()
            if site not in self.proxies:
                raise MoveFailed(f"site {site!r} is not known; known are {', '.join(self.proxies)}")
            self._merge, self._duplicates = [], 0
            result, kept = MoveIn(site), self._to_resume(site)
            try:
                adapter = await self._listen_at(site, kept, result)
            except (AdapterError, ProxyError, InputError, TimeoutError) as error:
                await self._detach(unsubscribe=kept is None)
                self._merge = None
                raise MoveFailed(f"site {site}: {str(error) or 'no answer in time'}") from None
            self.lost_because = ""
            for source in list(self.sources):
                await self._download(adapter, source, result)
            self._switch(result)
            if self.lost_because:
                raise MoveFailed(f"site {site}: {self.lost_because}")
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

    async def _listen_at(self, site: str, kept: Source | None, result: MoveIn) -> Adapter:
        """Steps 1 and 2 of a move-in: from here on, received messages go to the merge queue."""
        welcome = await self._welcomed(site, kept)
        adapter = self._adapter = self._open_adapter(welcome)
        adapter.on_lost(lambda why: self._on_lost(adapter, why))
        async with asyncio.timeout(self.options.move_timeout_s):
            await adapter.open()
            self._ping_prefix = adapter.topic_of((*PING_LEVELS, "x"))[:-1]
            stay = kept or Source(site, secrets.token_hex(16), Suspended((), welcome.kind, welcome.url))
            if adapter.can_suspend and self.options.sync != "none":
                # Written first: after a crash from now on the client finds the stay again.
                self._stay = stay
                if kept is not None:
                    self.sources.remove(kept)
                self._write_state()
            self._name = channel_name(self.id, stay.ticket)
            if kept is not None:
                await self._resume(adapter, kept, result)
            for filter in self.filters:
                await adapter.subscribe(self._name, filter, self._receive)
        return adapter

    def _to_resume(self, site: str) -> Source | None:
        """Return the channel of the last stay, if it was here. A channel of an earlier stay precedes later
        stays, so it is downloaded in order."""
        last = self.sources[-1] if self.sources else None
        is_here = last is not None and last.site == site and last.suspended is not None
        return last if is_here and self.options.sync != "none" else None

    async def _welcomed(self, site: str, kept: Source | None) -> messages.Welcome:
        """Return the proxy's description of its broker; if the proxy does not answer, the last known one."""
        self._line = Line(self.proxies[site], self.credentials)
        try:
            welcome = await self._line.open()
        except ProxyError as error:
            if kept is None or kept.suspended is None or error.code is not None:
                raise
            return messages.Welcome(site, kept.suspended.kind, kept.suspended.url)
        if welcome.site != site:
            raise InputError(f"the proxy there is that of site {welcome.site}")
        return welcome

    async def _resume(self, adapter: Adapter, kept: Source, result: MoveIn) -> None:
        """The short move-in: messages kept by the foreign broker precede new ones."""
        assert kept.suspended is not None
        filters = kept.suspended.filters
        if not await adapter.resume(self._name, filters, self._receive):
            result.lost += (f"site {kept.site}: the broker has not kept this client's messages",)
        for filter in filters:
            if filter not in self.filters:
                await adapter.unsubscribe(self._name, filter)
        self._stay = Source(kept.site, kept.ticket, msgspec.structs.replace(kept.suspended, filters=()))

    async def _download(self, adapter: Adapter, source: Source, result: MoveIn) -> None:
        """Steps 3 and 4 for one handler; what cannot be fetched now stays in `sources`."""
        try:
            if source.suspended is not None:
                refused = await self._let_stand_in(source, source.suspended)
                if refused is not None:
                    self._on_refused(source, refused, result)
                    return
                source = self._handed_over(source)
            elif self.options.ahead and await self._fetch_copy(source, result):
                return
            await self._synchronise(adapter, source)
            answer = await self._fetch(source, result)
        except (AdapterError, ProxyError, TimeoutError) as error:
            why = str(error) or "no ping came back through the brokers"
            result.missing += (f"site {source.site}: {why}",)
            return
        self._on_fetched(source, answer, result)

    def _on_fetched(
        self, source: Source, answer: messages.Downloaded | messages.MoveRefused, result: MoveIn
    ) -> bool:
        """Note the end of a download; return whether all messages of the source are here."""
        if isinstance(answer, messages.MoveRefused):
            self._on_refused(source, answer, result)
        elif answer.missing:
            result.missing += (answer.missing,)
        else:
            result.dropped += answer.dropped
            self._forget(source)
            return True
        return False

    async def _fetch_copy(self, source: Source, result: MoveIn) -> bool:
        """Download a handler's copy at the proxy here, if there is one; it is then the source.

        The client and the copy listen at the same foreign broker, so no ping is needed to prove the client's
        subscriptions.
        """
        if source.site == result.site:
            return False
        copy = Source(result.site, ahead_ticket(source.ticket, result.site))
        answer = await self._fetch(copy, result, instead_of=source)
        if copy not in self.sources:
            return False
        result.copies += self._on_fetched(copy, answer, result)
        return True

    def _on_refused(self, source: Source, refused: messages.MoveRefused, result: MoveIn) -> None:
        text = f"site {source.site}: {refused.text}"
        if refused.code in LASTING:
            result.lost += (text,)
            self._forget(source)
        else:
            result.missing += (text,)

    async def _let_stand_in(self, source: Source, suspended: Suspended) -> messages.MoveRefused | None:
        """Ask the proxy of that site to listen on the channel that this client has left there."""
        options, line = self.options, self._connected()
        stand_in = messages.StandIn(
            line.next_request(), self.id, source.ticket, suspended.filters, options.lease_s,
            options.bytes_max, options.is_unique, source.site,
        )  # fmt: skip
        async with asyncio.timeout(options.move_timeout_s):
            answer = await line.ask(stand_in)
        return answer if isinstance(answer, messages.MoveRefused) else None

    def _handed_over(self, source: Source) -> Source:
        """Note that a handler has taken over the channel: nothing is left to resume."""
        place = self.sources.index(source)
        self.sources[place] = Source(source.site, source.ticket)
        self._write_state()
        return self.sources[place]

    async def _synchronise(self, adapter: Adapter, source: Source) -> None:
        """Ensure that the new subscriptions work before the handler stops listening (3.3)."""
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

    async def _fetch(
        self, source: Source, result: MoveIn, instead_of: Source | None = None
    ) -> messages.Downloaded | messages.MoveRefused:
        line = self._connected()
        request = line.next_request()
        async with line.asking(messages.Download(request, self.id, source.ticket, source.site)) as answers:
            async for answer in answers:
                if instead_of in self.sources and isinstance(answer, messages.Batch | messages.Downloaded):
                    self.sources[self.sources.index(instead_of)] = source
                    self._write_state()
                if isinstance(answer, messages.Downloaded | messages.MoveRefused):
                    return answer
                if isinstance(answer, messages.Batch):
                    for message in answer.messages:
                        result.downloaded += self._deliver(message)
                    line.write(messages.Taken(request, answer.first + len(answer.messages) - 1))
        raise ProxyError("the answer of the proxy is incomplete")

    def _connected(self) -> Line:
        if self._line is None:
            raise ProxyError("the client has been detached")
        return self._line

    def _switch(self, result: MoveIn) -> None:
        """Steps 5 and 6: after the downloaded messages come the merged ones, then new ones."""
        merged, self._merge = self._merge or [], None
        for message in merged:
            result.merged += self._deliver(message)
        result.duplicates = self._duplicates

    async def _ask_again(self) -> None:
        """Ask again a proxy or broker that was down at the move-in, until everything is here or the client
        moves."""
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
        """Deliver a message; return whether it is new, as far as that can be known."""
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
        with suppress(AdapterError):  # The proxy repeats the question while it waits.
            await adapter.publish(message)

    async def _flush_publishes(self) -> None:
        async with self._publishing:
            while self.waiting_publishes and self._adapter is not None:
                try:
                    await self._adapter.publish(self.waiting_publishes[0])
                except AdapterError:
                    return  # The publish waits for the next move-in, with all later ones.
                self.waiting_publishes.popleft()

    def _on_lost(self, adapter: Adapter, why: str) -> None:
        if adapter is self._adapter:
            self.lost_because = why
            self._spawn(self._detach(unsubscribe=False))

    # --- odds and ends ---

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

    def _with_filters(self, stay: Source) -> Source:
        """Return what is needed to resume the stay, including filters that have not been unsubscribed yet."""
        assert stay.suspended is not None
        filters = dict.fromkeys((*stay.suspended.filters, *self._kept_filters()))
        suspended = msgspec.structs.replace(stay.suspended, filters=tuple(filters))
        return Source(stay.site, stay.ticket, suspended)

    def _write_state(self) -> None:
        if self._state_file is not None:
            stay = (self._with_filters(self._stay),) if self._stay is not None else ()
            sources = (*self.sources, *stay)
            write_state(self._state_file, ClientState(tuple(self.filters), sources, tuple(self.excluded)))


def _as_told(welcome: messages.Welcome) -> Adapter:
    """Create an adapter for the foreign broker that the proxy names."""
    return open_adapter(welcome.kind, welcome.url)
