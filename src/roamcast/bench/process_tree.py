"""CPU time and memory of a program and all processes that it starts."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roamcast.bench.processes import BenchFailed

LOOK_EVERY_S = 0.25
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Taken:
    """Resources used by a program until its end."""

    output: str
    core_s: float
    """CPU seconds of all its processes."""
    start_core_s: float
    """CPU seconds until the process said that it begins."""
    peak_mb: int
    """Peak memory of all processes together; shared memory is counted for each."""


@dataclass
class _Watch:
    """Samples a tree of processes until it is stopped."""

    root: int
    peak_bytes: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def look_until_over(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, tree_of(self.root))))


def run_watched(command: Sequence[str], begins_with: str, seconds_max: float) -> Taken:
    """Run a program to its end; the line on stderr with this prefix marks the end of its start-up."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch = _Watch(child.pid)
    watcher = threading.Thread(target=watch.look_until_over, daemon=True)
    timer = threading.Timer(seconds_max, child.terminate)
    errors: list[str] = []
    start_core_s = 0.0
    watcher.start()
    timer.start()
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        for line in child.stderr:
            errors.append(line.strip())
            if begins_with and line.startswith(begins_with) and not start_core_s:
                start_core_s = sum(map(_core_s, tree_of(child.pid)))
        output = child.stdout.read()
        # Whoever is waited for with its resources tells those of all whom it waited for itself.
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        timer.cancel()
        watch.over.set()
        watcher.join()
        child.stdout.close()
        child.stderr.close()
        if child.returncode is None:
            child.kill()
            child.wait()
    if child.returncode:
        raise BenchFailed(f"{' '.join(command[-8:])}: {(errors or ['it said nothing'])[-1]}")
    return Taken(output, usage.ru_utime + usage.ru_stime, start_core_s, watch.peak_bytes >> 20)


def tree_of(root: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [root]
    for pid in found:
        for task in _listed(Path(f"/proc/{pid}/task")):
            found += [int(child) for child in _read(task / "children").split()]
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(file: Path) -> str:
    """Return the content; "" if its process has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _resident_bytes(pid: int) -> int:
    parts = _read(Path(f"/proc/{pid}/statm")).split()
    return int(parts[1]) * _PAGE_BYTES if parts else 0


def _core_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    parts = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, parts[11:15])) / _TICKS_PER_S
