"""Connections over a slow link: real sockets, short times."""

import asyncio
import random
import signal
import subprocess
from collections.abc import Awaitable, Callable

import pytest

from roamcast.bench.processes import free_port, roamcast_command
from roamcast.link.channel import Direction, Profile
from roamcast.link.relay import BACKLOG_BYTES, SlowLink

FAST = Direction(80_000_000)


def over(
    up: Direction,
    down: Direction,
    story: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> SlowLink:
    """Tell a story to a server that says everything back, over a link."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.write(b"bye")
        writer.close()

    async def run() -> SlowLink:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        link = SlowLink(server.sockets[0].getsockname()[1], Profile(up, down, ""), random.Random(1).random)
        await link.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        await asyncio.wait_for(story(reader, writer), 20)
        writer.close()
        await link.close()
        server.close()
        return link

    return asyncio.run(run())


def test_what_is_said_comes_back_whole_and_in_order() -> None:
    said = random.Random(2).randbytes(300_000)

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        assert await reader.readexactly(len(said)) == said

    over(FAST, FAST, story)


def test_it_takes_its_time() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        writer.write(b"x" * 960)
        await reader.readexactly(960)
        # 8,000 bits at 40 kbit/s, and 50 ms in each direction; twice, for the greeting of TCP.
        assert loop.time() - began >= 0.2 + 0.1

    over(Direction(40_000, delay_s=0.05), Direction(80_000_000, delay_s=0.05), story)


def test_the_end_of_one_side_waits_for_what_comes_back() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hellobye"

    over(FAST, Direction(80_000_000, delay_s=0.1), story)


def test_a_slow_link_makes_its_sender_wait() -> None:
    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(b"x" * 20_000_000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.3)

    link = over(Direction(8_000), FAST, story)
    assert link.channels[0].packets < 2 * BACKLOG_BYTES / 1_460 + 4


def test_nobody_behind_the_link() -> None:
    async def run() -> bytes:
        link = SlowLink(free_port(), Profile(FAST, FAST, ""), random.Random(1).random)
        await link.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        try:
            return await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            await link.close()

    assert asyncio.run(run()) == b""


def test_the_command_says_where_it_listens_and_ends_when_told() -> None:
    port = free_port()
    command = roamcast_command("link", "--listen", f"127.0.0.1:{port}", "--to", "127.0.0.1:9", "--seed", "1")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert line.startswith(f"link gprs listens on 127.0.0.1:{port}, to 127.0.0.1:9: GPRS class 6")
