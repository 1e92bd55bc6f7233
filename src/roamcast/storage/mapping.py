"""A segment in memory: data put there survive the end of this process.

Putting a record into a mapped page costs about a tenth of writing it. Mapping is used only where
the file system has allocated the segment permanently, because a page fault without room would end
the process; and only for pages that were prepared before, because preparation reports errors.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

MADV_POPULATE_WRITE = 23
"""Linux 5.14 and later; the mmap module has no name for it."""
READY_BYTES = 64 << 10
"""Bytes prepared at a time: enough for some hundred messages, and quick to prepare."""
MAPPED_BYTES_MAX = 4 << 10
"""Longer records are written: the system copies many pages faster than pages are prepared one by one."""
FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""File systems that overwrite files in place, and so cannot run out of room for it."""


def file_system_of(folder: Path) -> str:
    """Return the type of the file system of a folder; "" if unknown."""
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
    """The mapped file of a segment, up to its full size."""

    def __init__(self, file: int) -> None:
        self._map = mmap.mmap(file, os.fstat(file).st_size)
        self._size = len(self._map)
        self._from = self._until = 0
        """The pages between these offsets are prepared."""
        self.small_end = 0
        """End of the last record that was short enough for mapping."""
        self.head: mmap.mmap | None = None
        """Mapping of the first page, once prepared; it stays prepared."""

    def put_in_head(self, data: bytes, offset: int) -> bool:
        """Like `put`, for the first page, which stays prepared."""
        try:
            self._map.madvise(MADV_POPULATE_WRITE, 0, mmap.PAGESIZE)
        except OSError:
            return False
        self.head = self._map
        self._map[offset : offset + len(data)] = data
        return True

    def put(self, record: bytes, offset: int) -> bool:
        """Put a record into memory; False if there is no room or no page: then it has to be written."""
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
