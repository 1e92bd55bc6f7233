"""Listening sockets: a connection costs only a descriptor until its first byte arrives.

No TLS is begun, no buffer is made and no task is started for a connection that says nothing. All protocols
here let the client speak first: MQTT, WebSocket, HTTP, links and proxies, with TLS or without.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any

from roamcast.config.addresses import join_endpoint
from roamcast.net.complaints import Complaints
from roamcast.net.plain import READ, PlainTransport, Readiness, readiness_of
from roamcast.net.strangers import Stranger, Strangers

log = logging.getLogger("roamcast.doorway")

BACKLOG = 4096
ACCEPTS_AT_ONCE = 64
"""Maximum number of connections accepted in one round of the loop, so that existing connections with new data
are served between rounds. All input of one round shares a turn and a sync of the journal."""
ROUNDS_TO_READ = 8
"""Number of rounds of the loop within which the first bytes of a connection have been read. No flood may take
its place before."""
ACCEPTING_S = 0.002
"""Time limit for accepting in one round, so that a flood of connections does not starve others."""
ACCEPT_AGAIN_S = 0.2
EXPIRE_EVERY_S = 0.5

Entering = Coroutine[Any, Any, None] | asyncio.Protocol | None
"""What takes over a connection: a task, or a protocol for TCP without TLS; None if somebody else does."""
Enter = Callable[[socket.socket, Stranger], Entering]
"""Takes over a connection that has sent its first byte."""


class _Silent:
    """A connection that has not sent a byte."""

    __slots__ = ("is_watched", "on_ready", "stranger")

    def __init__(self, stranger: Stranger, on_ready: Callable[[int], None]) -> None:
        self.stranger = stranger
        self.on_ready = on_ready
        self.is_watched = False


class Doorway:
    """The listening sockets of one address and port."""

    def __init__(
        self,
        strangers: Strangers,
        enter: Enter,
        timeout_s: Callable[[], float],
        on_failure: Callable[[Stranger, str], None] | None = None,
    ) -> None:
        """`timeout_s` is how long a connection may take to identify itself; `on_failure` is called when
        TLS fails."""
        self._strangers = strangers
        self._enter = enter
        self._timeout_s = timeout_s
        self._on_failure = on_failure or self._log_failure
        self._loop: asyncio.AbstractEventLoop
        self._sockets: list[socket.socket] = []
        self._readiness: Readiness
        self._waiting: dict[socket.socket, _Silent] = {}
        self._tasks: dict[asyncio.Task[None], tuple[socket.socket, Stranger]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._complaints = Complaints()

    async def open(self, host: str, port: int, *, is_shared: bool = False) -> None:
        """Listen on every address of the host; raise OSError if that fails.

        Connections to a shared port are spread over all processes that listen there.
        """
        self._loop = asyncio.get_running_loop()
        self._readiness = readiness_of(self._loop)
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                port = self._sockets[0].getsockname()[1] if self._sockets else port
                one = socket.create_server(
                    (str(address[0]), port), family=family, backlog=BACKLOG, reuse_port=is_shared
                )
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # For all that it accepts.
                self._sockets.append(one)
        except OSError:
            self.close()
            raise
        for one in self._sockets:
            self._loop.add_reader(one, self._accept, one)
        self._expire()

    @property
    def ports(self) -> list[int]:
        return [int(one.getsockname()[1]) for one in self._sockets]

    @property
    def address(self) -> str:
        return join_endpoint(*self._sockets[0].getsockname()[:2]) if self._sockets else ""

    @property
    def is_open(self) -> bool:
        return bool(self._sockets)

    @property
    def outside(self) -> int:
        """Number of connections that nobody has taken over yet."""
        return len(self._waiting) + len(self._tasks)

    def close(self) -> None:
        """Stop listening, and close waiting connections."""
        if self._timer is not None:
            self._timer.cancel()
        for one in self._sockets:
            self._loop.remove_reader(one)
            one.close()
        self._sockets = []
        for silent in list(self._waiting.values()):
            silent.stranger.leave("it stops")
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Close, and wait for connections that are being taken over."""
        tasks = list(self._tasks)
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _expire(self) -> None:
        self._strangers.expire(self._timeout_s())
        self._timer = self._loop.call_later(EXPIRE_EVERY_S, self._expire)

    # --- from accept to the first byte ---

    def _accept(self, listening: socket.socket) -> None:
        until_s = monotonic() + ACCEPTING_S
        for _ in range(min(ACCEPTS_AT_ONCE, self._strangers.room // ROUNDS_TO_READ or 1)):
            if monotonic() > until_s:
                return
            try:
                one, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            self.receive(one, str(address[0]), join_endpoint(str(address[0]), int(address[1])))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """Stop accepting for a while: too many files are open, or memory is short."""
        if self._complaints.is_due("", str(error)):
            log.error("no connection can be accepted for now: %s", error.strerror or error)
        self._loop.remove_reader(listening)
        self._loop.call_later(ACCEPT_AGAIN_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def receive(self, one: socket.socket, host: str, address: str, *, is_handed: bool = False) -> None:
        """Take a connection that was accepted here, or by the process that handed it over."""
        stranger = self._strangers.enter(host, address, lambda why: self._forget(one))
        if stranger is None:
            if self._complaints.is_due(host, "busy"):
                log.warning("%s is refused: too many connections, and all of them are busy", address)
            one.close()
            return
        stranger.is_handed = is_handed
        one.setblocking(False)
        self._waiting[one] = _Silent(stranger, lambda events: self._look(one))
        self._look(one)  # The first bytes have often arrived with the connection.

    def _stop_waiting(self, one: socket.socket) -> bool:
        """Forget a connection that has not sent a byte; return False if it is not known."""
        silent = self._waiting.pop(one, None)
        if silent is not None and silent.is_watched:
            self._readiness.watch(one.fileno(), silent, 0, READ)
        return silent is not None

    def _forget(self, one: socket.socket) -> None:
        if self._stop_waiting(one):
            one.close()

    def _look(self, one: socket.socket) -> None:
        """Look whether a connection has sent its first byte."""
        silent = self._waiting[one]
        stranger = silent.stranger
        try:
            has_spoken = bool(one.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            if not silent.is_watched:
                silent.is_watched = True
                self._readiness.watch(one.fileno(), silent, READ, 0)
            return
        except OSError:
            has_spoken = False
        if not has_spoken:
            self._strangers.settle(stranger)
            self._forget(one)
            return
        self._stop_waiting(one)
        self._strangers.spoke(stranger)
        entering = self._enter(one, stranger)
        if entering is None:
            return
        if isinstance(entering, asyncio.Protocol):
            PlainTransport(self._readiness, one, entering)
            return
        task = self._loop.create_task(entering)
        stranger.leave = partial(self._break_off, task)
        self._tasks[task] = one, stranger
        task.add_done_callback(self._entered)

    def _break_off(self, task: asyncio.Task[None], why: str) -> None:
        task.cancel()

    def _entered(self, task: asyncio.Task[None]) -> None:
        one, stranger = self._tasks.pop(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self._strangers.settle(stranger)
            one.close()  # A transport that owns the socket closes it.
        if error is not None:
            context = {"message": "a connection failed", "exception": error, "task": task}
            self._loop.call_exception_handler(context)

    # --- what `enter` may use ---

    async def hand_over(
        self,
        one: socket.socket,
        stranger: Stranger,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext | None = None,
    ) -> asyncio.Transport | None:
        """Pass the connection to a protocol, with TLS or without; return None if that failed, which is
        logged."""
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, one, ssl=context)
        except OSError as error:
            why = str(getattr(error, "reason", None) or error.strerror or error or "no answer")
            self._strangers.settle(stranger)
            self._on_failure(stranger, f"TLS failed: {why}" if context is not None else why)
            return None
        return transport

    def _log_failure(self, stranger: Stranger, why: str) -> None:
        if self._complaints.is_due(stranger.network, why):
            log.info("%s was not accepted: %s", stranger.address, why)

    async def open_streams(
        self,
        one: socket.socket,
        stranger: Stranger,
        context: ssl.SSLContext | None = None,
        bytes_max: int = 65_536,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Open the connection as streams; `bytes_max` bounds the read-ahead. Return None if TLS failed."""
        reader = asyncio.StreamReader(limit=bytes_max, loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport = await self.hand_over(one, stranger, protocol, context)
        if transport is None:
            return None
        return reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)
