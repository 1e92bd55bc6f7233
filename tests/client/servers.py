"""Real servers for the client: broker processes of Roamcast, Mosquitto, and a relay that cuts connections."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import pytest

ROAMCAST = Path(sys.executable).parent / "roamcast"
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
DEADLINE_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")
ServerT = TypeVar("ServerT", bound="Server")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, but not for ever."""

    async def limited() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(limited())


def live(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run a test in a loop of its own."""

    @wraps(test)
    def run_test(*arguments: P.args, **named: P.kwargs) -> T:
        return run(test(*arguments, **named))

    return run_test


async def until(happened: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_S / 2
    while not happened():
        assert time.monotonic() < end, f"it never came to this: {what}"
        await asyncio.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A process in a folder of its own, with a log that is waited for."""

    ready = ""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str | Path]:
        raise NotImplementedError

    def start(self) -> None:
        at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        end = time.monotonic() + DEADLINE_S
        while not re.search(self.ready, self.log.read_bytes()[at:].decode()):
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """As the system would: without a word."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=DEADLINE_S)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()


class Broker(Server):
    ready = "listens on"

    def __init__(self, folder: Path, id: str = "a", peers: dict[str, int] | None = None, *more: str) -> None:
        super().__init__(folder / id, free_port())
        self.id = id
        self.link_port = free_port()
        self.peers = peers or {}
        self.more = more

    def command(self) -> list[str | Path]:
        command: list[str | Path] = [ROAMCAST, "broker", "--id", self.id, "--listen", self.address]
        command += ["--data", "data", "--peer-listen", f"127.0.0.1:{self.link_port}"]
        command += ["--set", "journal.sync=process"]
        for id, port in self.peers.items():
            command += ["--peer", f"{id}=127.0.0.1:{port}"]
        return [*command, *self.more]


class Mosquitto(Server):
    ready = "running"

    def __init__(self, folder: Path) -> None:
        if MOSQUITTO is None:
            pytest.skip("mosquitto is not installed (Debian's package mosquitto)")
        super().__init__(folder / "mosquitto", free_port())
        (self.folder / "mosquitto.conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        )

    def command(self) -> list[str | Path]:
        assert MOSQUITTO is not None
        return [MOSQUITTO, "-c", "mosquitto.conf", "-v"]


def line_of_brokers(folder: Path, count: int, *more: str) -> list[Broker]:
    """Brokers b0, b1, … each linked to the one before, and all links up."""
    brokers: list[Broker] = []
    for number in range(count):
        peers = {brokers[-1].id: brokers[-1].link_port} if brokers else {}
        brokers.append(Broker(folder, f"b{number}", peers, *more))
        brokers[-1].start()
    end = time.monotonic() + DEADLINE_S
    for broker in brokers[1:]:
        while "is up" not in broker.log.read_text():
            assert time.monotonic() < end, broker.log.read_text()
            time.sleep(0.02)
    return brokers


@contextmanager
def running_line(folder: Path, count: int, *more: str) -> Iterator[list[Broker]]:
    brokers = line_of_brokers(folder, count, *more)
    try:
        yield brokers
    finally:
        for broker in brokers:
            broker.stop()


@contextmanager
def running(server: ServerT) -> Iterator[ServerT]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


class LocalServer:
    """A server within the test's own loop."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self.writers: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._on_client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Listen no more; connections stay."""
        self._server.close()

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers[writer] = None
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


class Mute(LocalServer):
    """Answers CONNECT, or not even that, and never says anything again."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self.answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(4096)
            writer.write(self.answer)
            while await reader.read(4096):
                pass
        writer.transport.abort()


class Turncoat(LocalServer):
    """Each connection gets an answer to its CONNECT, and another to whatever comes next."""

    def __init__(self, *answers: tuple[bytes, bytes]) -> None:
        super().__init__()
        self.answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            for answer in self.answers[self.connections - 1]:
                await reader.read(4096)
                writer.write(answer)
            while await reader.read(4096):
                pass
        writer.transport.abort()


class Relay(LocalServer):
    """Stands between clients and a server, and cuts connections in the middle of whatever is on its way."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.target = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.writers[to_writer] = None
        await asyncio.gather(self._pass(reader, to_writer), self._pass(to_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            # Pieces of an odd size, so that cuts fall within packets.
            while data := await reader.read(777):
                writer.write(data)
                await writer.drain()
        self.writers.pop(writer, None)
        writer.transport.abort()
