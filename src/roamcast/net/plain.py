"""The transport of TCP connections without TLS.

A connection needs no task, no handle and no round of the event loop before its first packet is handled, and
what it sends leaves at once, before the bookkeeping of the turn that sent it. The loop only says that some
socket is ready.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from typing import Any, Protocol
from weakref import WeakKeyDictionary

READ_BYTES = 256_000
_buffer = bytearray(READ_BYTES)
"""What all connections read into: their protocols get copies."""
_view = memoryview(_buffer)
READY_MAX = 128
"""Connections served in one round of the loop; others follow in the next."""
READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Watcher(Protocol):
    def on_ready(self, events: int) -> None:
        """Do what a ready socket allows."""


class Readiness:
    """Tells when sockets are ready, at the price of one system call for each change of what is asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        loop.add_reader(self._epoll.fileno(), self._serve)

    def watch(self, file: int, watcher: Watcher, events: int, before: int) -> None:
        """Tell the watcher about these events instead of those of before."""
        if not events:
            self._epoll.unregister(file)
            del self._watchers[file]
        elif before:
            self._epoll.modify(file, events)
        else:
            self._watchers[file] = watcher
            self._epoll.register(file, events)

    def _serve(self) -> None:
        find = self._watchers.get
        for file, events in self._epoll.poll(0, READY_MAX):
            watcher = find(file)
            if watcher is not None:
                watcher.on_ready(events)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Readiness] = WeakKeyDictionary()


def readiness_of(loop: asyncio.AbstractEventLoop) -> Readiness:
    """Return the one of this event loop."""
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Readiness(loop)
    return found


class PlainTransport(asyncio.Transport):
    """Connects a socket that is accepted already, and set to send small packets at once, to a protocol."""

    __slots__ = (
        "_file", "_has_ended", "_high", "_is_closing", "_is_full", "_protocol", "_readiness", "_receive",
        "_send", "_socket", "_waiting", "_waiting_bytes", "_watched",
    )  # fmt: skip

    def __init__(self, readiness: Readiness, one: socket.socket, protocol: asyncio.Protocol) -> None:
        self._readiness = readiness
        self._socket = one
        self._file = one.fileno()
        self._watched = 0
        """Events that this transport is told about."""
        self._receive, self._send = one.recv_into, one.send
        self._protocol = protocol
        self._waiting: deque[bytes | memoryview] | None = None
        """Output that the system did not take; None if there is none."""
        self._waiting_bytes = 0
        self._high = 65_536
        self._is_full = False
        """True between `pause_writing` and `resume_writing`."""
        self._is_closing = False
        self._has_ended = False
        """True if nothing is written any more."""
        protocol.connection_made(self)
        self.resume_reading()
        if self._watched:
            self._read()  # The first bytes are here.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else default

    def _watch(self, events: int) -> None:
        if events != self._watched:
            before, self._watched = self._watched, events
            self._readiness.watch(self._file, self, events, before)

    def on_ready(self, events: int) -> None:
        if events & ~WRITE and self._watched & READ:
            self._read()
        if self._watched & WRITE:
            self._write_on()

    # --- reading ---

    def _read(self) -> None:
        try:
            size = self._receive(_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not size:
            self.close()
            return
        try:
            self._protocol.data_received(_view[:size].tobytes())
        except Exception as error:
            # As asyncio's own transports do: one connection ends, and the others are served.
            self._readiness.loop.call_exception_handler(
                {"message": "a connection could not be served", "exception": error, "transport": self}
            )
            self._end(None)

    def is_reading(self) -> bool:
        return bool(self._watched & READ)

    def pause_reading(self) -> None:
        self._watch(self._watched & ~READ)

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._watch(self._watched | READ)

    # --- writing ---

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self._waiting is not None or self._has_ended:
            self._keep(data)
            return
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error)
            return
        if sent < len(data):
            self._waiting = deque()
            self._watch(self._watched | WRITE)
            self._keep(memoryview(data)[sent:] if sent else data)

    def _keep(self, data: bytes | memoryview) -> None:
        if self._waiting is not None and not self._has_ended:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            if self._waiting_bytes > self._high and not self._is_full:
                self._is_full = True
                self._protocol.pause_writing()

    def _write_on(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                sent = self._send(waiting[0])
                self._waiting_bytes -= sent
                if sent < len(waiting[0]):
                    waiting[0] = memoryview(waiting[0])[sent:]
                    break
                waiting.popleft()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        if self._is_full and self._waiting_bytes <= self._high // 4:
            self._is_full = False
            self._protocol.resume_writing()
        if not waiting:
            self._stop_writing()
            if self._is_closing:
                self._end(None)
            elif self._has_ended:
                self._shut()

    def _stop_writing(self) -> None:
        if self._waiting is not None:
            self._waiting, self._waiting_bytes = None, 0
            self._watch(self._watched & ~WRITE)

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = self._high if high is None else high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Tell the other side that nothing follows, after what was written."""
        self._has_ended = True
        if self._waiting is None:
            self._shut()

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error)

    # --- the end ---

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Read nothing more, and close when everything has been written."""
        if not self._is_closing:
            self._is_closing = self._has_ended = True
            self.pause_reading()
            if self._waiting is None:
                self._readiness.loop.call_soon(self._close, None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        """Close at once, and say so after the present callback."""
        if self._socket.fileno() < 0:
            return
        self._is_closing = self._has_ended = True
        self.pause_reading()
        self._stop_writing()
        self._readiness.loop.call_soon(self._close, error)

    def _close(self, error: OSError | None) -> None:
        if self._socket.fileno() < 0:
            return
        self._stop_writing()
        self._socket.close()
        self._protocol.connection_lost(error)
