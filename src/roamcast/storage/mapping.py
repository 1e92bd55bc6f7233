"""A segment in memory: what is put there is the system's, whatever becomes of this process.

Putting a record into a mapped page costs a tenth of writing it, and more where the broker has been idle
and none of the system's ways is in the processor's caches. It is done only where the file system has
given the segment its room for good, because a page that cannot be had then ends the process; and only
for pages that were made ready beforehand, which says so if it cannot be.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

MADV_POPULATE_WRITE = 23
"""Linux 5.14 and later; the mmap module has no name for it."""
READY_BYTES = 64 << 10
"""Made ready at a time: enough for some hundred messages, little enough to be done in between."""
MAPPED_BYTES_MAX = 4 << 10
"""Longer records are written: the system copies many pages faster than they are made ready one by one."""
FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""Those that overwrite where a file's room is, and so never run out of it there."""


def file_system_of(folder: Path) -> str:
    """The type of the file system that a folder is on; "" where the system does not say."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""
    for line in mounts.splitlines():
        place, _, what = line.partition(" - ")
        if place.split()[2] == wanted:
            return what.split()[0]
    return ""


class MappedSegment:
    """The file of a segment, as far as it has its full size."""

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, os.fstat(file).st_size)
        self._size = len(self._map)
        self._from = self._until = 0
        """Between these the pages are ready."""
        self.head: mmap.mmap | None = None
        """The same, once its first page is ready, and stays so."""

    def put_in_head(self, data: bytes, offset: int) -> bool:
        """As `put`, for the first page, which stays ready."""
        try:
            self._map.madvise(MADV_POPULATE_WRITE, 0, mmap.PAGESIZE)
        except OSError:
            return False
        self.head = self._map
        self._map[offset : offset + len(data)] = data
        return True

    def put(self, record: bytes, offset: int) -> bool:
        """False if there is no room, or no page can be had: then it has to be written."""
        end = offset + len(record)
        if (end > self._until or offset < self._from) and not self._make_ready(offset, end):
            return False
        self._map[offset:end] = record
        return True

    def _make_ready(self, offset: int, end: int) -> bool:
        start = offset - offset % mmap.PAGESIZE
        until = min(self._size, max(end, start + READY_BYTES))
        if end > until:
            return False
        try:
            self._map.madvise(MADV_POPULATE_WRITE, start, until - start)
        except OSError:
            return False
        self._from, self._until = start, until
        return True

    def close(self) -> None:
        self._map.close()
