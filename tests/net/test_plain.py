"""Plain transports over real sockets: nothing lost or reordered, and the callbacks that asyncio promises."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from roamcast.net.plain import PlainTransport, Readiness

BYTES = bytes(range(256)) * 4096


class Noting(asyncio.Protocol):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.received = b""
        self.pauses: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[PlainTransport, Noting, socket.socket]]:
    """A transport with its protocol, and the other end of its connection."""
    loop = asyncio.get_running_loop()
    listening = socket.create_server(("127.0.0.1", 0))
    other = socket.create_connection(listening.getsockname())
    one, _ = listening.accept()
    listening.close()
    one.setblocking(False)
    other.setblocking(False)
    protocol = Noting()
    transport = PlainTransport(Readiness(loop), one, protocol)
    try:
        yield transport, protocol, other
    finally:
        other.close()
        transport.abort()
        await protocol.lost


async def read(other: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(other, size - len(data))
    return data


async def until_paused(transport: PlainTransport, protocol: Noting) -> int:
    """Write until the transport asks for a pause; return how many bytes were written."""
    count = 0
    while not protocol.pauses:
        transport.write(BYTES)
        count += 1
    return count * len(BYTES)


def test_what_the_system_does_not_take_is_kept_in_order() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, other):
            size = await until_paused(transport, protocol)
            assert transport.get_write_buffer_size()
            transport.write(b"end")
            assert await read(other, size + 3) == BYTES * (size // len(BYTES)) + b"end"
            assert protocol.pauses == ["pause", "resume"]
            assert transport.get_write_buffer_size() == 0

    uvloop.run(run())


def test_close_writes_what_is_left() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, other):
            size = await until_paused(transport, protocol)
            transport.close()
            transport.write(b"too late")
            assert len(await read(other, size)) == size
            assert await protocol.lost is None

    uvloop.run(run())


def test_the_end_of_output_leaves_the_input_open() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, other):
            loop = asyncio.get_running_loop()
            transport.write(b"last")
            transport.write_eof()
            assert await read(other, 4) == b"last"
            assert await loop.sock_recv(other, 1) == b""
            await loop.sock_sendall(other, b"answer")
            other.close()
            assert await protocol.lost is None
            assert protocol.received == b"answer"

    uvloop.run(run())


def test_paused_reading_leaves_bytes_in_the_socket() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, other):
            transport.pause_reading()
            other.send(b"one")
            for _ in range(3):
                await asyncio.sleep(0)
            assert not len(protocol.received)
            transport.resume_reading()
            other.close()
            assert await protocol.lost is None
            assert protocol.received == b"one"

    uvloop.run(run())


def test_abort_drops_what_is_left() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, _):
            await until_paused(transport, protocol)
            transport.abort()
            transport.abort()
            assert await protocol.lost is None
            assert transport.get_write_buffer_size() == 0

    uvloop.run(run())


def test_a_reset_connection_is_lost_once() -> None:
    async def run() -> None:
        async with connected() as (transport, protocol, other):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            other.close()
            assert isinstance(await protocol.lost, ConnectionResetError)
            transport.write(b"nobody")

    uvloop.run(run())


def test_a_protocol_that_fails_ends_its_connection_alone() -> None:
    async def story() -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about["message"]))
        async with connected() as (_, protocol, other):
            protocol.received = ()  # type: ignore[assignment]  # Bytes cannot be added to it.
            other.send(b"first")
            assert await protocol.lost is None
        assert told == ["a connection could not be served"]

    uvloop.run(story())
