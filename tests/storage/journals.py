"""Small journals for tests: what was appended can be told from any entry."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from roamcast.storage.journal import Journal, Sync
from roamcast.storage.recovery import Recovered

SEGMENT_BYTES = 64 << 10


def open_journal(
    folder: Path, *, sync: Sync = "process", version: str = "1", **settings: Any
) -> tuple[Journal, Recovered]:
    return Journal.open(folder, sync=sync, version=version, **{"segment_bytes": SEGMENT_BYTES, **settings})


def entry(number: int, size: int = 12) -> bytes:
    """The entry with this sequence."""
    return f"{number}:".encode().ljust(size, b"x")


def commit_entries(journal: Journal, sizes: Iterable[Iterable[int]]) -> None:
    """One commit for each list of sizes; of one entry alone, the short way."""
    number = journal.last_sequence
    for batch in map(list, sizes):
        if len(batch) == 1:
            number += 1
            journal.write(entry(number, batch[0]))
            continue
        for size in batch:
            number += 1
            journal.append(entry(number, size))
        journal.commit()


def recovered_numbers(recovered: Recovered) -> list[int]:
    return [int(one.partition(b":")[0]) for one in recovered.entries]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.journal"))


def snapshots(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.snapshot"))
