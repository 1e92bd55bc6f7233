"""Processes started by a benchmark: on free ports of loopback, on their own core, stopped by id."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

HOST = "127.0.0.1"
START_S = 60.0
STOP_S = 10.0
PORTS = (20_000, 32_000)
"""Range of ports, below those that systems assign to outgoing connections."""
TRIES_MAX = 100
_PAUSE_S = 0.02


class BenchFailed(Exception):
    """Raised for a run without a valid result; the text says what went wrong."""


def roamcast_command(*arguments: str) -> list[str]:
    """Return the command that starts this same code again."""
    return [sys.executable, "-c", "import sys; from roamcast.cli import main; sys.exit(main())", *arguments]


def free_port() -> int:
    """Return a port that stays free while its server restarts.

    The system would choose a port from the range for outgoing connections; while no server listens there, any
    connection may take it.
    """
    for _ in range(TRIES_MAX):
        port = random.randrange(*PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise BenchFailed(f"no free port between {PORTS[0]} and {PORTS[1]} in {TRIES_MAX} tries")


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds; return false if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)
    return True


@dataclass
class Process:
    """A server program on a port. Its output goes to a file."""

    name: str
    command: Sequence[str]
    port: int
    log: Path
    cores: frozenset[int] = frozenset()
    """Cores to run on; empty lets the system choose."""
    variables: dict[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None
    has_group: ClassVar[bool] = False
    """True if the program starts child processes that also get its signals."""

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.variables},
                start_new_session=self.has_group,
            )
        if self.cores:
            os.sched_setaffinity(self.child.pid, self.cores)

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def is_listening(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 1.0).close()
        except OSError:
            return False
        return True

    def wait_listening(self, seconds: float = START_S) -> None:
        if not wait_until(lambda: not self.is_running or self.is_listening(), seconds):
            raise BenchFailed(f"{self.name} did not listen within {seconds:.0f} s: {self.last_words()}")
        if not self.is_running:
            raise BenchFailed(f"{self.name} ended: {self.last_words()}")

    def serve(self) -> Self:
        """Start, and wait until it listens; kill it if it does not."""
        self.start()
        try:
            self.wait_listening()
        except BenchFailed:
            self.kill()
            raise
        return self

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return " ".join(lines[-1:]) or "it said nothing"

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.child is not None:
            self.child.wait(STOP_S)

    def stop(self, seconds: float = STOP_S) -> bool:
        """Stop the program, and kill it if it takes too long; return true if it ended with exit code 0."""
        self.send(signal.SIGTERM)
        if self.child is None:
            return True
        try:
            return self.child.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        return cpu_s_of(self.pid)

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s_of(process: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    spent_ns = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # A thread that has ended since.
            spent_ns += int((task / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def two_cores() -> tuple[frozenset[int], frozenset[int]]:
    """Return a core for the measured program and one for the load; both empty on a machine with one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return frozenset(), frozenset()
    return frozenset(cores[:1]), frozenset(cores[1:2])


@contextmanager
def running_on(cores: frozenset[int]) -> Iterator[None]:
    """Run this process on these cores during the block."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
