"""Files that become segments: made ahead of time, and recycled when their entries are not needed.

A commit that must survive a power loss is fast only where the file system need not write metadata: its blocks
must be allocated, and must have been written before. So a spare is filled with zeros once, in a thread, and
reused many times. The marker of each segment distinguishes new records from former content (see segments.py).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from roamcast.storage.segments import (
    SPARE_SUFFIX,
    TEMPORARY_SUFFIX,
    SegmentHead,
    numbered,
    pack_segment_head,
    segment_path,
    sync_folder,
    write_all,
)

_ZEROS = bytes(4096)
"""Written page by page: a file system keeps together what is written at once, and would process a whole
megabyte at every later sync of a few bytes."""


class Spares:
    """The spare files of one folder."""

    def __init__(self, folder: Path, *, segment_bytes: int, synced: bool, kept_max: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._synced = synced
        self._kept_max = kept_max
        self._making: threading.Thread | None = None
        self._paths: list[Path] = []
        self._number = 0
        for number, path in numbered(folder, SPARE_SUFFIX).items():
            self._number = number
            if path.stat().st_size == segment_bytes and len(self._paths) < kept_max:
                self._paths.append(path)
            else:
                path.unlink()

    def begin_segment(self, head: SegmentHead) -> int:
        """Make a spare the next segment; returns its file, open for writing.

        Its name appears only after its head is on the disk, so a segment without a head is damage.
        """
        self.wait()
        if not self._paths:
            self._paths.append(self._make())
        spare, path = self._paths[0], segment_path(self._folder, head.number)
        file = os.open(spare, os.O_RDWR | os.O_CLOEXEC)
        try:
            write_all(file, pack_segment_head(head), 0)
            if self._synced:
                os.fdatasync(file)
            spare.rename(path)
            del self._paths[0]
            if self._synced:
                sync_folder(self._folder)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        return file

    def recycle(self, path: Path) -> None:
        """Reuse a segment whose entries are in a snapshot."""
        if len(self._paths) >= self._kept_max:
            path.unlink()
            return
        if path.stat().st_size != self._segment_bytes:
            # The segment grew for one large entry, or the setting was changed.
            path.unlink()
            return
        spare = self._next_path()
        path.rename(spare)
        self._paths.append(spare)

    def prepare(self) -> None:
        """Prepare a spare in a thread. If no zeros must be written, it is made on demand instead."""
        if self._paths or self._making is not None or not self._synced:
            return
        self._making = threading.Thread(target=self._make_quietly, name="journal-spare", daemon=True)
        self._making.start()

    @property
    def is_preparing(self) -> bool:
        return self._making is not None and self._making.is_alive()

    def wait(self) -> None:
        if self._making is not None:
            self._making.join()
            self._making = None

    def _make_quietly(self) -> None:
        try:
            self._paths.append(self._make())
        except OSError:
            return  # The spare is then made on demand, where the error is reported.

    def _make(self) -> Path:
        spare = self._next_path()
        temporary = spare.with_suffix(TEMPORARY_SUFFIX)
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if self._synced:
                for offset in range(0, self._segment_bytes, len(_ZEROS)):
                    write_all(file, _ZEROS[: self._segment_bytes - offset], offset)
                os.fsync(file)
            else:
                # Reserves room: a full disk is then noticed now.
                os.posix_fallocate(file, 0, self._segment_bytes)
        except BaseException:
            temporary.unlink()
            raise
        finally:
            os.close(file)
        temporary.rename(spare)
        return spare

    def _next_path(self) -> Path:
        self._number += 1
        return self._folder / f"spare-{self._number:012d}{SPARE_SUFFIX}"
