"""Connections over a slow link: real sockets, short times."""

import asyncio
import random
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable
from statistics import fmean
from typing import NamedTuple

import pytest

from roamcast.bench.processes import free_port, roamcast_command
from roamcast.slow_link.channel import HEADER_BYTES, PACKET_BYTES, Channel, Direction, Profile
from roamcast.slow_link.relay import BACKLOG_BYTES, SlowLink

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


def test_a_machine_that_is_late_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Channel.send

    def send_late(self: Channel, now: float, size: int) -> float:
        arrival = send(self, now, size)
        if not size:  # When the end comes to its turn, it and what is in front of it are overdue.
            time.sleep(0.01)
        return arrival

    async def story(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hellobye"

    monkeypatch.setattr(Channel, "send", send_late)
    some = Direction(200_000)
    over(some, some, story)


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


# --- the GPRS link of table 2, with the command and real transfers ---

SLOT_BPS = 13_400.0
SLOTS = {"up": (1, 2), "down": (1, 3)}
LATE_S = 3.0
"""A machine with other work may be late, a link is never early."""


class Measured(NamedTuple):
    up_s: float
    down_s: float
    echo_s: float
    """Of one byte there and back, the mean of several."""


def bits(size: int) -> int:
    return 8 * (size + HEADER_BYTES * -(-size // PACKET_BYTES))


async def transfer(port: int, server: int, size: int, echoes: int) -> Measured:
    """So much up, so much down, and single bytes there and back, through the link that listens on a port."""
    came: asyncio.Queue[float] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(size)
        came.put_nowait(time.monotonic())
        writer.write(b"d" * size)
        while data := await reader.read(1):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", server)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    began = time.monotonic()
    writer.write(b"u" * size)
    half = await came.get()
    await reader.readexactly(size)
    end = time.monotonic()
    times = []
    for _ in range(echoes):
        said = time.monotonic()
        writer.write(b"?")
        await reader.readexactly(1)
        times.append(time.monotonic() - said)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    listening.close()
    return Measured(half - began, end - half, fmean(times))


def measured(size: int, echoes: int, *options: str) -> Measured:
    port, server = free_port(), free_port()
    listen, to = f"127.0.0.1:{port}", f"127.0.0.1:{server}"
    command = roamcast_command("link", "--listen", listen, "--to", to, "--profile", "gprs", *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        try:
            return asyncio.run(asyncio.wait_for(transfer(port, server, size, echoes), 300))
        finally:
            process.terminate()


def test_gprs_carries_what_its_timeslots_carry_and_no_more() -> None:
    size = 4_000
    found = measured(size, 10, "--seed", "1")
    for direction, took_s in (("up", found.up_s), ("down", found.down_s)):
        fewest, most = SLOTS[direction]
        assert bits(size) / (most * SLOT_BPS) <= took_s <= bits(size) / (fewest * SLOT_BPS) + LATE_S
    quickest_s = bits(1) / (2 * SLOT_BPS) + bits(1) / (3 * SLOT_BPS)
    assert quickest_s <= found.echo_s <= 2 * bits(1) / SLOT_BPS + LATE_S / 10


@pytest.mark.slow
def test_gprs_has_the_mean_rates_and_the_delays_of_table_2() -> None:
    size = 60_000
    found = measured(size, 40, "--seed", "2")
    for direction, took_s in (("up", found.up_s), ("down", found.down_s)):
        # The timeslots are drawn about twenty times meanwhile; tests of the channel have the time for more.
        assert bits(size) / took_s == pytest.approx(SLOT_BPS * fmean(SLOTS[direction]), rel=0.3)
    # Every other packet breaks, so on average one more attempt of 30 to 50 ms in each direction.
    broken = measured(100, 150, "--seed", "3", "--error", "0.5")
    whole = measured(100, 150, "--seed", "3", "--error", "0")
    assert broken.echo_s - whole.echo_s == pytest.approx(2 * 0.040, abs=0.025)
