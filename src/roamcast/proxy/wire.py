"""Connections to and between proxies: prefaces, frames, and the dialing side of the handshake."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from roamcast.config.addresses import split_endpoint
from roamcast.errors import InputError
from roamcast.proxy import messages

Step = TypeVar("Step", messages.Challenge, messages.Welcome)

HANDSHAKE_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 15


class ProxyError(Exception):
    """Raised if a proxy refuses something or cannot be reached; the text says what and why, in one line."""

    def __init__(self, text: str, code: messages.Code | None = None) -> None:
        super().__init__(text)
        self.code = code
        """The kind of refusal; None if nobody answered."""


class Pipe:
    """One connection, message by message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.frame_bytes_max = messages.STRANGER_BYTES_MAX
        peer = writer.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        _keep_alive(writer.get_extra_info("socket"))

    async def exchange_prefaces(self, is_dialer: bool) -> None:
        if is_dialer:
            self._writer.write(messages.PREFACE)
        try:
            preface = await self._reader.readexactly(len(messages.PREFACE))
        except (asyncio.IncompleteReadError, OSError):
            raise ProxyError("the connection ended before the handshake") from None
        if not preface.startswith(messages.MAGIC):
            raise ProxyError("this is not a mobility proxy")
        if not is_dialer:
            self._writer.write(messages.PREFACE)
        version = int.from_bytes(preface[len(messages.MAGIC) :], "big")
        if version != messages.WIRE_VERSION:
            here = messages.WIRE_VERSION
            raise ProxyError(f"it speaks version {version} of the protocol, this proxy speaks {here}")

    async def read(self) -> messages.Message:
        """Read the next message; ProxyError at the end of the connection and for an invalid frame."""
        try:
            length = int.from_bytes(await self._reader.readexactly(messages.LENGTH_BYTES), "big")
            if not 0 < length <= self.frame_bytes_max:
                raise ProxyError(f"a frame of {length} bytes: 1 to {self.frame_bytes_max} are allowed")
            return messages.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            raise ProxyError("the connection ended") from None
        except InputError as error:
            raise ProxyError(str(error)) from None

    def write(self, message: messages.Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(messages.frame(message))

    @property
    def waiting_bytes(self) -> int:
        """Bytes written that the network has not taken yet."""
        return self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        self._writer.close()

    async def end(self) -> None:
        """Close, and wait until the connection is closed."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        self._writer.transport.abort()


def _keep_alive(connection: socket.socket | None) -> None:
    """Notice within a minute that the other host has vanished."""
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def connect(address: str, tls: ssl.SSLContext | None = None) -> Pipe:
    """Connect to a proxy and exchange prefaces."""
    pipe = Pipe(*await asyncio.open_connection(*split_endpoint(address), ssl=tls))
    try:
        await pipe.exchange_prefaces(is_dialer=True)
    except BaseException:
        pipe.close()
        raise
    return pipe


@asynccontextmanager
async def _dialing(address: str, tls: ssl.SSLContext | None) -> AsyncIterator[Pipe]:
    """Connect for the handshake in the block; a failure closes the connection and names the address."""
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            pipe = await connect(address, tls)
            try:
                yield pipe
            except BaseException:
                pipe.close()
                raise
        pipe.frame_bytes_max = messages.FRAME_BYTES_MAX
    except ProxyError as error:
        raise ProxyError(f"{address}: {error}", error.code) from None
    except TimeoutError:
        raise ProxyError(f"{address}: no answer for {HANDSHAKE_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ProxyError(f"{address}: {error.strerror or error}") from None


async def connect_client(
    address: str, id: str, user: str, password: str, tls: ssl.SSLContext | None = None
) -> tuple[Pipe, messages.Welcome]:
    """Connect a client to a proxy."""
    async with _dialing(address, tls) as pipe:
        pipe.write(messages.ProxyHello("client", id, user=user, password=password))
        welcome = await _read(pipe, messages.Welcome)
    return pipe, welcome


async def connect_proxy(
    address: str, own: str, expected: str, secret: str, tls: ssl.SSLContext | None = None
) -> Pipe:
    """Connect to the proxy of the expected site, which must prove that it has our secret."""
    async with _dialing(address, tls) as pipe:
        hello = messages.ProxyHello("proxy", own, nonce=secrets.token_bytes(messages.NONCE_BYTES))
        pipe.write(hello)
        challenge = await _read(pipe, messages.Challenge)
        if challenge.id != expected:
            raise ProxyError(f"the proxy there is not that of site {expected}", "proxy")
        pipe.write(messages.Proof(messages.proof(secret, "dialer", hello, challenge)))
        welcome = await _read(pipe, messages.Welcome)
        if not messages.is_proof(welcome.proof, secret, "listener", hello, challenge):
            raise ProxyError("the proxy there does not have our secret", "secret")
    return pipe


async def _read(pipe: Pipe, wanted: type[Step]) -> Step:
    """Read the next step of the handshake."""
    answer = await pipe.read()
    if isinstance(answer, messages.MoveRefused):
        raise ProxyError(answer.text, answer.code)
    if not isinstance(answer, wanted):
        raise ProxyError(f"it answers with {type(answer).__name__}")
    return answer
