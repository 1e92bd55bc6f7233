"""Writing a snapshot, here or in a child process that has a copy of the state.

The child is forked at the border of a turn, so it sees the state after the last entry of the closed segments,
whatever the parent does next. It writes one file and ends without any clean-up of Python's or of ours; a pipe
tells whether it succeeded.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

from roamcast.storage.segments import (
    TEMPORARY_SUFFIX,
    snapshot_path,
    sync_folder,
    write_snapshot,
)

CHILD_S_MAX = 600.0
"""A child that takes longer is considered hanging; without a limit the journal could not continue."""

Pieces = bytes | Iterable[bytes]
"""Data to write, at once or in pieces: large states are never in memory as a whole."""

_DONE = b"done"
_TOLD_BYTES_MAX = 4096


class SnapshotOutcome(NamedTuple):
    """How writing a snapshot ended."""

    sequence: int
    """Last entry that the snapshot includes."""
    error: str | None
    """Why there is no snapshot, in one line."""
    size_bytes: int
    seconds: float


class SnapshotFile:
    """A snapshot being written: under a temporary name until complete."""

    def __init__(self, folder: Path, sequence: int, replay: int, version: str) -> None:
        self.sequence = sequence
        self.path = snapshot_path(folder, sequence)
        self.temporary = self.path.with_suffix(TEMPORARY_SUFFIX)
        self.size_bytes = 0
        self._folder = folder
        self._replay = replay
        self._version = version

    def write(self, pieces: Pieces) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        file = os.open(self.temporary, flags, 0o600)
        try:
            each = (pieces,) if isinstance(pieces, bytes) else pieces
            self.size_bytes = write_snapshot(file, self.sequence, self._replay, self._version, each)
            os.fsync(file)
        finally:
            os.close(file)

    def publish(self) -> None:
        self.temporary.rename(self.path)
        sync_folder(self._folder)

    def forget(self) -> None:
        self.temporary.unlink(missing_ok=True)


class SnapshotChild:
    """A child process that writes a snapshot."""

    def __init__(self, file: SnapshotFile, freeze: Callable[[], Pieces]) -> None:
        parent = os.getpid()

        def write() -> None:
            file.write(freeze())
            if os.getppid() != parent:
                os._exit(1)  # There is no parent to tell, and another process may have the folder by now.
            file.publish()

        self._file = file
        self._started_s = time.monotonic()
        self._child = Child(write)
        self.pid = self._child.pid

    def fileno(self) -> int:
        """Becomes readable when the child has ended, for the loop to wait for."""
        return self._child.fileno()

    def poll(self) -> SnapshotOutcome | None:
        """Return the outcome, or None while the child works."""
        error = self._child.poll()
        if error is not None:
            return self._outcome(error)
        if time.monotonic() - self._started_s > CHILD_S_MAX:
            outcome = self.kill()
            return outcome._replace(error=outcome.error and f"it took longer than {CHILD_S_MAX:g} s")
        return None

    def kill(self) -> SnapshotOutcome:
        """Kill the child before it is done."""
        return self._outcome(self._child.kill())

    def _outcome(self, error: str) -> SnapshotOutcome:
        if error:
            self._file.forget()
        size_bytes = 0 if error else self._file.path.stat().st_size
        seconds = time.monotonic() - self._started_s
        return SnapshotOutcome(self._file.sequence, error or None, size_bytes, seconds)


class Child:
    """A child process with a copy of the state that performs one task."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._pipe, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.pid = os.fork()
        if self.pid == 0:
            _be_child(work, told)
        os.close(told)

    def fileno(self) -> int:
        """Becomes readable when the child has ended."""
        return self._pipe

    def poll(self) -> str | None:
        """Return why the child failed, "" on success; None while it works."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return self._error(status) if pid else None

    def kill(self) -> str:
        """Kill the child before it is done."""
        os.kill(self.pid, signal.SIGKILL)
        return self._error(os.waitpid(self.pid, 0)[1])

    def _error(self, status: int) -> str:
        try:
            told = os.read(self._pipe, _TOLD_BYTES_MAX)
        except BlockingIOError:
            told = b""
        os.close(self._pipe)
        if told == _DONE:
            return ""
        code = os.waitstatus_to_exitcode(status)
        return told.decode(errors="replace") or f"the process that wrote it ended with {code}"


def _be_child(work: Callable[[], None], told: int) -> NoReturn:
    """Run the child; never returns into the copied loop."""
    try:
        # Signals for the parent must stop the child, too, without reaching the parent's loop.
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # Collecting would write to every object and so copy the shared memory.
        gc.disable()
        # A socket that the parent closes stays open for the other side while a copy exists.
        os.closerange(3, told)
        os.closerange(told + 1, os.sysconf("SC_OPEN_MAX"))
        os.nice(5)
        work()
        os.write(told, _DONE)
        os._exit(0)
    except BaseException as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        os.write(told, said.encode(errors="replace")[:_TOLD_BYTES_MAX])
        os._exit(1)
