"""Commits per second of the journal on a disk, and the time for which a snapshot stops the loop.

For each way of syncing and each size of an entry: commits of one entry, one after the other, as many as fit
into the time. Meanwhile a child process writes snapshots of a state of the given size, as in a broker; the
fork stops the loop.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, get_args

from roamcast.bench.report import Report, silent
from roamcast.storage.journal import Journal, Sync

ENTRY_SIZES = (100, 65_536)
SNAPSHOT_BYTES = 16 << 20


def run(
    folder: Path | None = None,
    seconds: float = 2.0,
    state_bytes: int = SNAPSHOT_BYTES,
    progress: Report = silent,
) -> dict[str, Any]:
    """Measure this disk, with files in a folder of their own that is removed afterwards."""
    cases = []
    syncs: tuple[Sync, ...] = get_args(Sync)
    combinations = [(sync, size) for sync in syncs for size in ENTRY_SIZES]
    state = bytes(state_bytes)
    for done, (sync, size) in enumerate(combinations):
        with TemporaryDirectory(dir=folder, prefix="roamcast-bench-journal-") as place:
            cases.append(measure(Path(place), sync, size, seconds, state))
        progress(done + 1, len(combinations))
    return {
        "seconds": seconds,
        "state_bytes": state_bytes,
        "cases": {f"{case['sync']}, {case['entry_bytes']} bytes": case for case in cases},
    }


def measure(folder: Path, sync: Sync, entry_bytes: int, seconds: float, state: bytes) -> dict[str, Any]:
    journal, _ = Journal.open(folder, sync=sync, version="bench", snapshot_retry_s=0.0)
    entry = bytes(entry_bytes)
    took_s: list[float] = []
    forks_s: list[float] = []
    snapshots = 0
    started_s = now_s = time.perf_counter()
    while now_s - started_s < seconds:
        journal.append(entry)
        journal.commit()
        after_s = time.perf_counter()
        took_s.append(after_s - now_s)
        if journal.wants_snapshot:
            journal.begin_snapshot().write_in_child(lambda: state)
            forks_s.append(time.perf_counter() - after_s)
        outcome = journal.poll_snapshot()
        snapshots += outcome is not None and outcome.error is None
        now_s = time.perf_counter()
    journal.close()
    took_s.sort()
    return {
        "sync": sync,
        "entry_bytes": entry_bytes,
        "commits": len(took_s),
        "commits_per_s": len(took_s) / (now_s - started_s),
        "megabytes_per_s": journal.bytes_written / (now_s - started_s) / 1e6,
        "commit_p50_ms": 1000 * median(took_s),
        "commit_p99_ms": 1000 * took_s[int(len(took_s) * 0.99)],
        "sync_mean_ms": 1000 * journal.sync_total_s / journal.syncs if journal.syncs else None,
        "snapshots": snapshots,
        "fork_max_ms": 1000 * max(forks_s) if forks_s else None,
    }
