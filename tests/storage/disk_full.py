"""What a journal does on a disk that is really full, told line by line.

python disk_full.py FOLDER process|group     (FOLDER on a disk of one megabyte, and empty)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from roamcast.storage.journal import Journal, JournalFailed, Sync


def say_failure(what: str, error: JournalFailed) -> None:
    print(f"{what}: {error}")


def main() -> None:
    disk = Path(sys.argv[1])
    sync: Sync = "group" if sys.argv[2] == "group" else "process"
    filler = disk / "filler"
    journal, _ = Journal.open(disk / "j", sync=sync, version="1", segment_bytes=64 << 10)
    fill(filler, leave_bytes=100 << 10)
    promised = []
    try:
        while True:
            number = journal.last_sequence + 1
            journal.write(b"%d:" % number + bytes(5_000))
            promised.append(number)
    except JournalFailed as error:
        say_failure("commit", error)
    refused: dict[str, Callable[[], None]] = {
        "append": lambda: journal.append(b"x"),
        "commit again": journal.commit,
        "try again": journal.try_again,
    }
    for what, call in refused.items():
        try:
            call()
        except JournalFailed as error:
            say_failure(what, error)
    filler.unlink()
    journal.try_again()
    promised.append(promised[-1] + 1)
    print(f"after room was made: {journal.failed} {journal.last_sequence - promised[-1]}")
    fill(filler, leave_bytes=100 << 10)
    try:
        journal.write_snapshot(bytes(300 << 10))
    except JournalFailed as error:
        say_failure("snapshot", error)
    journal.append(b"%d:" % (promised[-1] + 1))
    journal.commit()
    promised.append(promised[-1] + 1)
    print(f"after a snapshot did not fit: {journal.failed}")
    filler.unlink()
    # As a crash leaves it: only what the system took counts.
    os.close(journal._lock)
    journal, recovered = Journal.open(disk / "j", sync=sync, version="1", segment_bytes=64 << 10)
    found = [int(one.partition(b":")[0]) for one in recovered.entries]
    print(f"recovered: {found == promised} {len(found)}")


def fill(path: Path, leave_bytes: int) -> None:
    disk = os.statvfs(path.parent)
    with path.open("wb") as file:
        file.write(bytes(max(0, disk.f_bavail * disk.f_frsize - leave_bytes)))


if __name__ == "__main__":
    main()
