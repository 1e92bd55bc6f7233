"""Connections that one process hands to another on this machine: the socket itself, before anything is read.

A client's session is at the worker that served the client before, but the system gives its next connection to
any worker of the site. The CONNECT tells which client it is, and the worker with the session takes the
connection.
"""

from __future__ import annotations

import array
import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.reading import CONNECT, cut, parse_connect
from roamcast.net.unix_sockets import bound, short

log = logging.getLogger("roamcast")

HEAD_BYTES_MAX = 4096
"""Bytes of the CONNECT that are examined; a client with a longer one is served by the worker that accepted
it."""
TAKEN_AT_ONCE = 64


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """Data sent along with a socket."""

    listener: int
    host: str
    address: str


Take = Callable[[socket.socket, Handed], None]


class HandOver:
    """Receives connections from other processes, and hands over those of their sessions."""

    def __init__(self, path: Path, take: Take) -> None:
        self._path = path
        self._take = take
        self._socket: socket.socket | None = None
        self.given = 0
        """Number of connections handed to others."""

    def open(self) -> None:
        """Open the socket for handovers; raise OSError if that fails."""
        self._socket = bound(self._path, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    def give(self, path: Path, one: socket.socket, about: Handed) -> bool:
        """Hand a connection over; return False if the other process does not take it now."""
        if self._socket is None:
            return False
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [one.fileno()]))]
        try:
            self._socket.sendmsg([msgspec.msgpack.encode(about)], files, 0, short(path))
        except OSError:
            return False
        self.given += 1
        one.close()
        return True

    def _receive(self) -> None:
        for _ in range(TAKEN_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, files, _, _ = socket.recv_fds(self._socket, HEAD_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                log.error("connections of other workers cannot be taken: %s", error.strerror)
                return
            for file in files:
                self._take(socket.socket(fileno=file), msgspec.msgpack.decode(data, type=Handed))


def client_id_of(one: socket.socket) -> str:
    """Return the client id in the bytes so far, if it is complete. The worker that serves the client
    parses them again."""
    with suppress(OSError, PacketError):
        head = one.recv(HEAD_BYTES_MAX, socket.MSG_PEEK)
        whole = cut(head, 0, HEAD_BYTES_MAX)
        if whole is not None and whole[0] >> 4 == CONNECT:
            return parse_connect(head[whole[1] : whole[2]]).client_id
    return ""
