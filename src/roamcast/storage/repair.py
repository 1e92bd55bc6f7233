"""Repairing a damaged journal: an operator accepts that entries are lost.

The longest intact prefix of entries is kept. Everything behind it is given up, because later entries may
depend on missing ones. Segments that are given up stay in the folder under another name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from roamcast.errors import InputError
from roamcast.storage.locking import lock_folder
from roamcast.storage.recovery import find_recoverable
from roamcast.storage.segments import (
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    SYNCED,
    WATERMARK_AT,
    JournalDamaged,
    SegmentScan,
    current_boot,
    numbered,
    pack_watermark,
    read_segment_head,
    read_snapshot,
    read_watermark,
    read_whole_part,
    sync_folder,
    write_all,
)

GIVEN_UP_SUFFIX = ".given-up"
LOG_NAME = "repairs.log"


class Loss(NamedTuple):
    """Entries that a repair gives up."""

    damage: str
    """Why the journal is refused."""
    last_kept: int
    """Last entry that is kept."""
    last_known: int
    """Last entry known to have been acknowledged; there may have been more."""
    segments: list[str]
    """Segments that are given up completely."""

    @property
    def entries(self) -> int:
        return max(0, self.last_known - self.last_kept)


def find_loss(folder: Path) -> Loss | None:
    """Return what a repair of this journal would give up; None if it needs no repair."""
    try:
        find_recoverable(folder)
    except JournalDamaged as error:
        kept, later = _whole_prefix(folder)
        last_known = max(kept.next - 1, *(_last_known(path) for path in (kept.path, *later)))
        return Loss(str(error), kept.next - 1, last_known, [path.name for path in later])
    return None


def repair(folder: Path) -> Loss | None:
    """Give up what `find_loss` names; no process may have the journal open."""
    lock = lock_folder(folder)
    try:
        loss = find_loss(folder)
        if loss is None:
            return None
        kept, later = _whole_prefix(folder)
        for path in later:
            path.rename(path.with_suffix(GIVEN_UP_SUFFIX))
        _end_segment(kept)
        said = f"entries {loss.last_kept + 1} to {loss.last_known} given up; {loss.damage}"
        with (folder / LOG_NAME).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {said}\n")
            log.flush()
            os.fsync(log.fileno())
        sync_folder(folder)
        find_recoverable(folder)
        return loss
    finally:
        os.close(lock)


def _whole_prefix(folder: Path) -> tuple[SegmentScan, list[Path]]:
    """Return the segment in which the intact entries end, and the segments behind it."""
    snapshots = numbered(folder, SNAPSHOT_SUFFIX)
    sequence = read_snapshot(snapshots[max(snapshots)])[0].sequence if snapshots else 0
    paths = list(numbered(folder, SEGMENT_SUFFIX).values())
    heads = [read_segment_head(path) for path in paths]
    start = max((at for at, head in enumerate(heads) if head.first <= sequence + 1), default=None)
    if start is None:
        raise InputError(f"{folder}: entry {sequence + 1} is gone: restore the folder from a copy")
    for at in range(start, len(paths)):
        following = heads[at + 1] if at + 1 < len(paths) else None
        scan = read_whole_part(paths[at], following.first if following is not None else None)
        if following is None or (scan.next, scan.head.number + 1) != (following.first, following.number):
            break
    return scan, paths[at + 1 :]


def _last_known(path: Path) -> int:
    """Return the last entry of a segment known to have been acknowledged."""
    try:
        return read_watermark(path).next - 1
    except JournalDamaged:
        return 0


def _end_segment(scan: SegmentScan) -> None:
    """Make the last whole record of a segment its last one."""
    mark = pack_watermark(scan.head.marker, scan.end, scan.next, current_boot(), SYNCED)
    file = os.open(scan.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        write_all(file, bytes(max(0, size - scan.end)), scan.end)
        for place in WATERMARK_AT:
            write_all(file, mark, place)
        os.fsync(file)
    finally:
        os.close(file)
