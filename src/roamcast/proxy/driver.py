"""A mobility proxy as a process: sockets, the foreign broker and the journal around the pure service.

This module contains no protocol. Every input goes through `step`: its entries are journalled, and only then
are its effects performed. Messages of the foreign broker are journalled before its adapter acknowledges them.
If `step` raises, none of its effects is performed, and the process restarts from its journal.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from roamcast import __version__
from roamcast.config.addresses import join_endpoint
from roamcast.config.sections import Access
from roamcast.errors import InputError
from roamcast.net.doorway import Doorway
from roamcast.net.passwords import Outcome, Verifier
from roamcast.net.strangers import Stranger, Strangers
from roamcast.net.tls import load_authorities, load_own
from roamcast.net.users import read_users
from roamcast.proxy import messages, steps
from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage, open_adapter
from roamcast.proxy.config import Config, Listener, Mqtt
from roamcast.proxy.messages import Challenge, MoveRefused, Proof, ProxyHello, Welcome
from roamcast.proxy.service import Service
from roamcast.proxy.store import Store
from roamcast.proxy.wire import HANDSHAKE_TIMEOUT_S, Pipe, ProxyError, connect_proxy
from roamcast.storage.failures import failure_of
from roamcast.storage.journal import JournalFailed
from roamcast.storage.kept_out import Who
from roamcast.storage.restarting import FailStop

log = logging.getLogger("roamcast.proxy")

TEND_S = 1.0
REOPEN_MIN_S, REOPEN_MAX_S = 0.2, 5.0
WAITING_BYTES_MAX = 64 << 20
"""A connection with more unsent bytes than this is closed."""


def server_context(certificate: str, key: str, name: str) -> ssl.SSLContext | None:
    """TLS for a listener with a certificate."""
    if not certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_own(context, certificate, key, name)
    return context


async def open_listener(doorway: Doorway, name: str, settings: Listener | Mqtt) -> str:
    """Listen as configured; return the address."""
    try:
        await doorway.open(settings.address, settings.port)
    except OSError as error:
        where = join_endpoint(settings.address, settings.port)
        raise InputError(f"{name} {where}: cannot be used ({error.strerror or error})") from None
    return doorway.address


class ProxyServer:
    """One proxy. `start`, then `run` until `stop` is called."""

    def __init__(
        self,
        config: Config,
        adapter: Adapter | None = None,
        store: Store | None = None,
        clock: Callable[[], float] = time.time,
        fail_stop: FailStop | None = None,
    ) -> None:
        """Without a `fail_stop`, for example if a process has several proxies, a step that raises ends
        `run`."""
        self.config = config
        self._fail_stop = fail_stop
        self._has_failed = False
        self._clock = clock
        broker = config.broker
        options = {"is_behind_endpoint": True} if config.mqtt.enabled else {}
        self.adapter = adapter or open_adapter(broker.kind, broker.own_url, **options)
        users = read_users(config.access.users) if config.access.users else {}
        self._verifier = Verifier(users, Access(users=config.access.users))
        self.store = store or Store(config.journal_folder, config.buffers.sync)
        self.service = Service(config, self.adapter.can_suspend, self.adapter.topic_of, self.store.buffers)
        self.address = ""
        """Address of the listener, once it is open."""
        self.locals: dict[int, Callable[[messages.Message | steps.Local], None]] = {}
        """Connections without sockets: those of the MQTT endpoint."""
        self.callers: dict[int, Who] = {}
        """Client or proxy of each connection, to be kept out if its input makes `step` raise."""
        self._pipes: dict[int, Pipe] = {}
        self._connections = 0
        self._operations: dict[str, asyncio.Task[None]] = {}
        """The last operation at the foreign broker for each handler: operations of one handler are
        sequential."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self.connections_max = config.listener.connections_max
        """As configured, or fewer where the system allows fewer open files."""
        self._admitted: set[int] = set()
        """Authenticated connections that have not ended."""
        self._strangers = Strangers(lambda: self.connections_max - len(self._admitted))
        self._doorway = Doorway(self._strangers, self._enter, lambda: HANDSHAKE_TIMEOUT_S)
        self._context = server_context(config.listener.certificate, config.listener.key, "listener")
        self._lost = asyncio.Event()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- life ---

    async def start(self) -> None:
        self.address = await open_listener(self._doorway, "listener", self.config.listener)
        self.begin()
        log.info("site %s: proxy listens on %s", self.config.site, self.address)

    def begin(self) -> None:
        """Start everything except the listener."""
        self.adapter.on_lost(self._on_lost)
        self.spawn(self._keep_open())
        self.spawn(self._tend())

    async def run(self) -> None:
        """Run until `stop`; raise JournalFailed if the journal cannot be written."""
        await self._ended

    def end(self) -> None:
        """Make `run` return."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def stop(self) -> None:
        self.end()
        self._doorway.close()
        for pipe in self._pipes.values():
            pipe.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self.adapter.close()
        except AdapterError as error:
            log.warning("disconnecting from the broker failed: %s", error)
        self._verifier.close()
        if self._has_failed:
            self.store.abandon()
        else:
            self.store.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._ended.done():
            self._ended.set_exception(task.exception() or RuntimeError())

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_S)
            if not self._has_failed:
                self.store.tend()

    # --- steps ---

    def step(self, inputs: Iterable[steps.Input] = ()) -> None:
        """Pass inputs to the service, and perform its effects."""
        if self._ended.done():
            return
        inputs, now = list(inputs), self._clock()
        try:
            effects = self.service.step(now, inputs)
        except Exception as error:
            self._fail(error, now, inputs)
        entries = [effect.entry for effect in effects if isinstance(effect, steps.Keep)]
        if entries:
            try:
                self.store.write(entries)
            except JournalFailed as error:
                # None of this step's effects may be performed: the process restarts from the journal.
                self._ended.set_exception(error)
                return
        for effect in effects:
            self._perform(effect)
        self._set_timer()

    def _fail(self, error: Exception, now: float, inputs: list[steps.Input]) -> NoReturn:
        """End the process, because the buffers may be inconsistent; it restarts from the journal."""
        self._has_failed = True
        if self._fail_stop is None:
            self._ended.set_exception(error)
            raise error
        encoded = msgspec.msgpack.encode(inputs, enc_hook=repr)
        brought = [one.connection for one in inputs if isinstance(one, steps.Joined | steps.Got | steps.Left)]
        culprit = self.callers.get(brought[0]) if brought else None
        failure = failure_of(error, self.config.site, __version__, now, inputs, encoded)
        self._fail_stop.closes = [self.store.abandon]
        self._fail_stop.restart(failure, culprit)

    def refusal(self, kind: Literal["client", "peer"], name: str) -> str:
        """Return why this client or proxy is refused now, in one line; "" if it is accepted."""
        return self._fail_stop.kept_out.refusal(kind, name) if self._fail_stop is not None else ""

    def _set_timer(self) -> None:
        deadline = self.service.deadline()
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, deadline
        if deadline is not None:
            delay_s = min(max(0.0, deadline - self._clock()), 3600.0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = None
        self.step()

    def _perform(self, effect: steps.Effect) -> None:
        match effect:
            case steps.Send(connection=connection, message=message):
                self._send(connection, message)
            case steps.Close(connection=connection):
                pipe = self._pipes.get(connection)
                if pipe is not None:
                    pipe.close()
            case steps.Dial(connection=connection, site=site):
                self.spawn(self._dial(connection, site))
            case steps.Listen():
                self._begin(effect.name, lambda: self._listen(effect))
            case steps.Unlisten():
                self._begin(effect.name, lambda: self._unlisten(effect))
            case steps.PublishStep(message=message):
                self.spawn(self._publish(message))

    def _send(self, connection: int, message: messages.Message | steps.Local) -> None:
        local = self.locals.get(connection)
        if local is not None:
            local(message)
            return
        pipe = self._pipes.get(connection)
        if pipe is None or isinstance(message, steps.Local):
            return
        if pipe.waiting_bytes > WAITING_BYTES_MAX:
            log.warning("%s does not read: closing its connection", pipe.host)
            pipe.abort()
            return
        pipe.write(message)

    # --- the foreign broker ---

    def _on_lost(self, why: str) -> None:
        log.warning("connection to the broker of site %s lost: %s", self.config.site, why)
        self.step([steps.ForeignLost(why)])
        self._lost.set()

    async def _keep_open(self) -> None:
        pause_s = REOPEN_MIN_S
        while True:
            self._lost.clear()
            try:
                await self.adapter.open()
            except AdapterError as error:
                log.warning("the broker of site %s cannot be reached: %s", self.config.site, error)
                self.step([steps.ForeignLost(str(error))])
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, REOPEN_MAX_S)
                continue
            pause_s = REOPEN_MIN_S
            log.info("connected to the broker of site %s", self.config.site)
            self.step([steps.ForeignBack()])
            await self._lost.wait()

    def _begin(self, name: str, work: Callable[[], Awaitable[steps.Input]]) -> None:
        before = self._operations.get(name)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            answer = await work()
            if self._operations.get(name) is task:
                del self._operations[name]
            self.step([answer])

        task = self._operations[name] = self.spawn(run())

    async def _listen(self, listen: steps.Listen) -> steps.Input:
        name, receive = listen.name, _Receiver(self, listen.name)
        is_kept = True
        try:
            if listen.is_resumed:
                is_kept = await self.adapter.resume(name, listen.filters, receive)
            else:
                for filter in listen.filters:
                    await self.adapter.subscribe(name, filter, receive)
        except AdapterError as error:
            return steps.ForeignFailed(name, "listen", str(error), listen.token)
        return steps.Listening(name, listen.token, is_kept)

    async def _unlisten(self, unlisten: steps.Unlisten) -> steps.Input:
        name = unlisten.name
        try:
            for filter in unlisten.filters:
                await self.adapter.unsubscribe(name, filter)
        except AdapterError as error:
            return steps.ForeignFailed(name, "unlisten", str(error))
        return steps.Unlistened(name, unlisten.is_end)

    async def _publish(self, message: ForeignMessage) -> None:
        try:
            await self.adapter.publish(message)
        except AdapterError as error:
            log.warning("a ping was not published: %s", error)

    # --- connections ---

    def new_connection(self) -> int:
        self._connections += 1
        return self._connections

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        """Handle a connection that has sent its first byte."""
        streams = await self._doorway.open_streams(one, stranger, self._context)
        if streams is not None:
            try:
                await self.serve(*streams, is_known=lambda: self._strangers.settle(stranger))
            finally:
                self._strangers.settle(stranger)

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_known: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve a client or another proxy; `is_known` is called when it is authenticated."""
        pipe = Pipe(reader, writer)
        connection = self.new_connection()
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await pipe.exchange_prefaces(is_dialer=False)
                joined = await self._admit(connection, pipe)
            self._admitted.add(connection)
            is_known()
            await self._read(pipe, joined)
        except (ProxyError, TimeoutError) as error:
            log.info("%s: %s", pipe.host, str(error) or "no handshake in time")
        except asyncio.CancelledError:
            pipe.abort()  # It was closed for a new connection, or the proxy stops.
            raise
        finally:
            self.callers.pop(connection, None)
            await pipe.end()
            self._admitted.discard(connection)

    async def _admit(self, connection: int, pipe: Pipe) -> steps.Joined:
        """Authenticate the other end; refuse it with a message and ProxyError if that fails."""
        hello = await pipe.read()
        if not isinstance(hello, ProxyHello):
            raise self._turned_away(pipe, MoveRefused(0, "unknown", "a connection begins with Hello"))
        broker = self.config.broker
        welcome = Welcome(self.config.site, broker.kind, broker.client_url or broker.url)
        if hello.role == "client":
            outcome = await self.verify(hello.user, hello.password.encode(), pipe.host)
            if outcome is not Outcome.ACCEPTED:
                raise self._turned_away(pipe, MoveRefused(0, "identity", outcome.value))
            self._keep_out(connection, pipe, Who("client", hello.user or pipe.host))
            pipe.write(welcome)
            pipe.frame_bytes_max = messages.FRAME_BYTES_MAX
            return steps.Joined(connection, "client", hello.user if self.config.access.users else "")
        challenge = Challenge(self.config.site, secrets.token_bytes(messages.NONCE_BYTES))
        pipe.write(challenge)
        given, secret = await pipe.read(), self.config.peers.secret
        if not isinstance(given, Proof) or not messages.is_proof(
            given.proof, secret, "dialer", hello, challenge
        ):
            text = f"site {self.config.site} does not know the proxy {hello.id!r}: the secrets differ"
            raise self._turned_away(pipe, MoveRefused(0, "secret", text))
        self._keep_out(connection, pipe, Who("peer", hello.id))
        pipe.write(Welcome(self.config.site, proof=messages.proof(secret, "listener", hello, challenge)))
        pipe.frame_bytes_max = messages.FRAME_BYTES_MAX
        return steps.Joined(connection, "proxy", hello.id)

    async def verify(self, user: str, password: bytes, host: str) -> Outcome:
        """Return whether a client may connect under this name; without a users file every client may."""
        if not self.config.access.users:
            return Outcome.ACCEPTED
        return await self._verifier.verify(user, password, host)

    def _keep_out(self, connection: int, pipe: Pipe, who: Who) -> None:
        """Refuse a client or proxy that is kept out, with a message and ProxyError; otherwise record its
        identity."""
        refusal = self.refusal(who.kind, who.name)
        if refusal:
            raise self._turned_away(pipe, MoveRefused(0, "busy", refusal))
        self.callers[connection] = who

    def _turned_away(self, pipe: Pipe, refused: MoveRefused) -> ProxyError:
        pipe.write(refused)
        return ProxyError(refused.text, refused.code)

    async def _read(self, pipe: Pipe, joined: steps.Joined) -> None:
        connection = joined.connection
        self._pipes[connection] = pipe
        self.step([joined])
        try:
            while True:
                message = await pipe.read()
                self.step([steps.Got(connection, message)])
        finally:
            del self._pipes[connection]
            self.step([steps.Left(connection)])

    async def _dial(self, connection: int, site: str) -> None:
        address = next(one.address for one in self.config.proxies if one.site == site)
        refusal = self.refusal("peer", site)
        if refusal:
            self.step([steps.Left(connection, refusal)])
            return
        try:
            pipe = await connect_proxy(
                address, self.config.site, site, self.config.peers.secret, self._client_context()
            )
        except ProxyError as error:
            log.warning("site %s: %s", site, error)
            self.step([steps.Left(connection, str(error))])
            return
        self.callers[connection] = Who("peer", site)
        try:
            await self._read(pipe, steps.Joined(connection, "dialed", site))
        except ProxyError as error:
            log.debug("site %s: %s", site, error)
        finally:
            self.callers.pop(connection, None)
            pipe.close()

    def _client_context(self) -> ssl.SSLContext | None:
        if not self.config.peers.ca:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, self.config.peers.ca, "peers.ca")
        return context


class _Receiver:
    """Receives messages of the foreign broker for one name: they are on disk when a call returns."""

    def __init__(self, server: ProxyServer, name: str) -> None:
        self._server, self._name = server, name

    def __call__(self, message: ForeignMessage) -> None:
        self.many((message,))

    def many(self, messages: Sequence[ForeignMessage]) -> None:
        self._server.step([steps.Received(self._name, message) for message in messages])
