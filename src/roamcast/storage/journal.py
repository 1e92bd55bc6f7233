"""The journal of a broker's inputs: committed entries survive a crash.

    journal, recovered = Journal.open(folder, sync="group", version=__version__)
    …                           # thaw recovered.snapshot, replay recovered.entries
    journal.write(entry)        # the inputs of a turn of the loop; afterwards its answers may leave

`write` is `append`, which can be called several times, and `commit` in one.

What `commit` promises: with `sync="process"` that its entries survive the end of the process, however it
ends; with `sync="group"` that they survive a power loss, if the disk keeps what it has confirmed. Recovery
gives a prefix of what was appended that includes everything committed; recovery.py has the rules for torn
and damaged files. (A flipped bit in the very last commit looks like a torn one.)

When a write fails, `commit` raises `JournalFailed` and the journal refuses everything until `try_again`
succeeds. Committed entries stay safe; entries appended since are kept in memory and written by `try_again`,
in a new segment, which supersedes any part that did reach the disk.

Size: the entries since the last snapshot take at most `journal_bytes_max`, beside at most two snapshots, the
spare files (as many bytes as lie between snapshots, at most) and one segment. Past that the journal fails as
on a full disk, and continues when a snapshot has been written.

One process at a time can have a folder open; the folder and its files are private to their owner.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from roamcast.errors import InputError
from roamcast.storage.locking import lock_folder
from roamcast.storage.mapping import FILE_SYSTEMS, MAPPED_BYTES_MAX, MappedSegment, file_system_of
from roamcast.storage.recovery import Found, Recovered, check_replay, find_recoverable
from roamcast.storage.segments import (
    CONTINUED,
    END_MARK,
    HEADER_BYTES,
    LENGTH_BYTES,
    RECORD_HEAD_BYTES,
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    WATERMARK_AT,
    SegmentHead,
    current_boot,
    encode_version,
    new_marker,
    numbered,
    pack_length,
    pack_watermark,
    seal_record,
    segment_path,
    single_record,
    write_all,
)
from roamcast.storage.snapshots import Pieces, SnapshotChild, SnapshotFile, SnapshotOutcome
from roamcast.storage.spares import Spares

Sync = Literal["process", "group"]

MEBIBYTE = 1 << 20
SEGMENT_BYTES = 16 * MEBIBYTE
SEGMENT_BYTES_MIN = 64 << 10
SNAPSHOT_AFTER_BYTES = 64 * MEBIBYTE
JOURNAL_BYTES_MAX = 1024 * MEBIBYTE
SNAPSHOT_RETRY_S = 30.0
ENTRY_BYTES_MAX = 512 * MEBIBYTE
RECORD_BYTES_MAX = 1024 * MEBIBYTE
WRITES_SYNCED = hasattr(os, "RWF_DSYNC")


class JournalFailed(Exception):
    """The journal can promise nothing now; the text says why, in one line."""


class _Settings(NamedTuple):
    """Arguments of `Journal.open`."""

    sync: Sync
    version: str
    replay: int
    segment_bytes: int
    snapshot_after_bytes: int
    journal_bytes_max: int
    snapshot_retry_s: float

    def check(self) -> None:
        if self.sync not in get_args(Sync):
            raise InputError(f"journal sync {self.sync!r}: valid are {', '.join(get_args(Sync))}")
        encode_version(self.version)
        if self.segment_bytes < SEGMENT_BYTES_MIN:
            raise InputError(
                f"journal segments of {self.segment_bytes} bytes: at least {SEGMENT_BYTES_MIN} are needed"
            )
        if not 0 < self.snapshot_after_bytes <= self.journal_bytes_max:
            raise InputError(
                f"a journal snapshot after {self.snapshot_after_bytes} bytes: expected 1 to"
                f" {self.journal_bytes_max}, the most that the journal may take"
            )


class SnapshotTicket:
    """A snapshot of the state after the entry `sequence`: `write` it, then `commit` it."""

    def __init__(self, journal: Journal, file: SnapshotFile, first_needed: int, at_bytes: int) -> None:
        self.sequence = file.sequence
        self.first_needed = first_needed
        """Number of the segment with the entries after the snapshot."""
        self.at_bytes = at_bytes
        """Bytes written to the journal before it."""
        self.size_bytes = 0
        self._journal = journal
        self._file = file
        self.child: SnapshotChild | None = None
        """Process that writes the snapshot, if any; its `fileno` becomes readable at its end."""

    def write(self, pieces: Pieces) -> None:
        """Write the snapshot to the disk without activating it; JournalFailed if impossible."""
        try:
            self._file.write(pieces)
        except OSError as error:
            self.abandon()
            raise JournalFailed(f"{self._file.path}: cannot write the snapshot ({_reason(error)})") from None
        self.size_bytes = self._file.size_bytes

    def commit(self) -> None:
        """Activate the snapshot: recovery begins with it, and older files are obsolete."""
        try:
            self._file.publish()
        except OSError as error:
            self.abandon()
            raise JournalFailed(f"{self._file.path}: cannot write the snapshot ({_reason(error)})") from None
        self._journal._snapshot_done(self)

    def abandon(self) -> None:
        """Discard the snapshot; nothing changes."""
        if self.child is not None:
            self.child.kill()
        self._file.forget()
        self._journal._snapshot_abandoned()

    def write_in_child(self, freeze: Callable[[], Pieces]) -> None:
        """Write and commit the result of `freeze` in a child process; `Journal.poll_snapshot` follows."""
        self._journal._spares.wait()
        try:
            self.child = SnapshotChild(self._file, freeze)
        except OSError as error:
            self.abandon()
            raise JournalFailed(f"{self._file.path}: cannot write the snapshot ({_reason(error)})") from None

    def poll(self) -> SnapshotOutcome | None:
        outcome = self.child.poll() if self.child is not None else None
        if outcome is None:
            return None
        self.child = None
        if outcome.error is None:
            self.size_bytes = outcome.size_bytes
            self._journal._snapshot_done(self)
        else:
            self.abandon()
        return outcome


class Journal:
    """The journal in one folder. `open` is the way to get one."""

    __slots__ = (
        "_before_bytes", "_boot", "_file", "_found_bytes", "_head", "_lock", "_map", "_maps",
        "_mark_place", "_marked_s", "_next", "_offset", "_pending", "_plain_until", "_record",
        "_settings", "_snapshot_at_bytes", "_snapshot_not_before_s", "_snapshot_wanted_bytes",
        "_spares", "_syncs_commits", "_syncs_records", "_ticket", "_written_by", "commits", "failed",
        "folder", "is_unmarked", "mark_after_s", "snapshot_bytes", "sync_last_s", "sync_total_s", "syncs",
    )  # fmt: skip

    def __init__(self, folder: Path, lock: int, found: Found, settings: _Settings) -> None:
        self.folder = folder
        self.failed: str | None = None
        """Why the journal can promise nothing now."""
        self.commits = 0
        self.syncs = 0
        self.sync_last_s = 0.0
        self.sync_total_s = 0.0
        self.snapshot_bytes = 0
        """Size of the last snapshot."""
        self._snapshot_wanted_bytes = 0
        """Bytes of entries after which the next snapshot is worthwhile."""
        self._lock = lock
        self._settings = settings
        self._set_snapshot_bytes(len(found.snapshot or b""))
        self._written_by = (settings.replay, settings.version)
        self._syncs_commits = settings.sync == "group"
        self._spares = Spares(
            folder,
            segment_bytes=settings.segment_bytes,
            synced=self._syncs_commits,
            kept_max=max(2, settings.snapshot_after_bytes // settings.segment_bytes + 1),
        )
        self._ticket: SnapshotTicket | None = None
        self._snapshot_not_before_s = 0.0
        self._found_bytes = found.journal_bytes
        """Bytes of records after the snapshot when the journal was opened."""
        self._before_bytes = found.journal_bytes - HEADER_BYTES
        """Added to the offset in the segment, gives the current total."""
        self._snapshot_at_bytes = 0
        """The total when the last completed snapshot was begun."""
        self._record = bytearray(RECORD_HEAD_BYTES)
        self._pending = 0
        self._boot = current_boot()
        self._mark_place = 0
        """Which of the two places of the watermark was written last."""
        self.mark_after_s = 0.0
        """Allowed delay of the watermark, in seconds. A caller that raises it calls `mark` within that
        time."""
        self.is_unmarked = False
        """True while the watermark is behind the promised entries."""
        self._syncs_records = False
        """True if nothing in the file, such as the watermark, has to be synced but the next record."""
        self._marked_s = -math.inf
        self._file = -1
        self._map: MappedSegment | None = None
        """Mapping of the file, where usable."""
        self._maps = settings.sync == "process" and file_system_of(folder) in FILE_SYSTEMS
        self._head = SegmentHead(0, found.sequence + 1, 0, *self._written_by)
        self._offset = HEADER_BYTES
        self._plain_until = 0
        """Offset up to which a record is simply written into the segment."""
        self._next = found.sequence + 1
        """Sequence of the next entry to be committed."""

    # --- opening and closing ---

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        sync: Sync,
        version: str,
        replay: int = 1,
        segment_bytes: int = SEGMENT_BYTES,
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
        journal_bytes_max: int = JOURNAL_BYTES_MAX,
        snapshot_retry_s: float = SNAPSHOT_RETRY_S,
    ) -> tuple[Journal, Recovered]:
        """Open the folder, created if missing, and recover its content.

        Entries are recovered only if they were written with this `replay` number; `version` is for people.
        """
        settings = _Settings(
            sync, version, replay, segment_bytes, snapshot_after_bytes, journal_bytes_max, snapshot_retry_s
        )
        settings.check()
        lock = -1
        try:
            lock = lock_folder(folder)
            found = find_recoverable(folder)
            check_replay(folder, found, replay, version)
            journal = cls(folder, lock, found, settings)
            journal._continue_from(found)
        except BaseException as error:
            if lock >= 0:
                os.close(lock)
            if isinstance(error, OSError):
                where = f", {error.filename}" if error.filename not in (None, str(folder)) else ""
                raise InputError(
                    f"journal folder {folder}: cannot be used ({_reason(error)}{where})"
                ) from None
            raise
        return journal, found.recovered()

    def _continue_from(self, found: Found) -> None:
        """Remove the remains of a crash, cut a torn commit, and prepare for appending."""
        for path in self.folder.glob(f"*{TEMPORARY_SUFFIX}"):
            path.unlink()
        if not found.scans:
            self._begin_segment()
            return
        last = found.scans[-1]
        self._head, self._next = last.head, last.next
        if (last.head.replay, last.head.version) == self._written_by:
            self._take(os.open(last.path, os.O_RDWR | os.O_CLOEXEC))
            self._offset = last.end
            self._before_bytes = self._found_bytes - last.end
            write_all(self._file, END_MARK, last.end)
            if self._syncs_commits:
                os.fdatasync(self._file)
            # In both places: after a power loss an older watermark may be ahead of the remaining entries.
            self._mark()
            self._mark()
        else:
            self._begin_segment()
        self._remove_before(found.sequence, found.scans[0].head.number)
        self._look_ahead()

    def close(self) -> None:
        """Commit what is pending, unless the journal has failed, and release the folder."""
        if self._lock < 0:
            return
        if self._ticket is not None:
            self._ticket.abandon()
        try:
            if self.failed is None:
                self.commit()
            self.mark()
        finally:
            self._spares.wait()
            self._let_go()
            os.close(self._lock)
            self._lock = -1

    # --- entries ---

    @property
    def last_sequence(self) -> int:
        """Number of the last committed entry; 0 if there was none yet."""
        return self._next - 1

    @property
    def bytes_written(self) -> int:
        """Bytes written since the journal was opened."""
        return self._total_bytes - self._found_bytes

    @property
    def _total_bytes(self) -> int:
        return self._before_bytes + self._offset

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet committed."""
        return len(self._record) - RECORD_HEAD_BYTES

    def write(self, entry: bytes) -> None:
        """Commit this entry; on return it is safe."""
        offset = self._offset
        end = offset + RECORD_HEAD_BYTES + LENGTH_BYTES + len(entry)
        if end <= self._plain_until:
            record = single_record(self._head.marker, self._next, entry)
            try:
                is_written = False
                if self._map is not None and len(record) <= MAPPED_BYTES_MAX:
                    follows, self._map.small_end = self._map.small_end == offset, end
                    # Between long records, preparing pages for a short one costs more than writing it.
                    is_written = follows and self._map.put(record, offset)
                    if follows and not is_written:
                        self._map = None
                if not is_written and self._syncs_records:
                    is_written = self._write_synced(record, offset)
                elif not is_written:
                    is_written = os.pwrite(self._file, record, offset) == len(record)
                    if is_written and self._syncs_commits:
                        self._sync()
            except OSError as error:
                self.append(entry)
                raise self._cannot_write(error) from None
            if is_written:
                self._offset, self._next = end, self._next + 1
                self.commits += 1
                if not self.is_unmarked:
                    self._mark_soon()
                return
        self.append(entry)
        self.commit()

    def append(self, entry: bytes) -> None:
        """Add an entry to the next `commit`."""
        if self.failed is not None:
            raise JournalFailed(self.failed)
        if len(entry) > ENTRY_BYTES_MAX:
            raise InputError(f"an entry of {len(entry)} bytes: at most {ENTRY_BYTES_MAX} are allowed")
        if len(self._record) + len(entry) > RECORD_BYTES_MAX:
            self.commit()
        self._record += pack_length(len(entry))
        self._record += entry
        self._pending += 1
        self._plain_until = 0

    def commit(self) -> None:
        """Write appended entries; on return they are safe."""
        if self.failed is not None:
            raise JournalFailed(self.failed)
        if not self._pending:
            return
        try:
            self._write_pending()
        except OSError as error:
            raise self._cannot_write(error) from None
        self._look_ahead()

    def try_again(self) -> None:
        """Write what a failed `commit` did not; JournalFailed if that fails, too."""
        if self.failed is None:
            return
        try:
            # An empty segment has nothing to supersede.
            if self._offset > HEADER_BYTES:
                self._begin_segment()
            if self._pending:
                self._write_pending()
        except OSError as error:
            raise self._cannot_write(error) from None
        self.failed = None
        self._look_ahead()
        if self.failed is not None:
            raise JournalFailed(self.failed)

    def _look_ahead(self) -> None:
        """Refuse further entries at the limit; entries written so far stay safe."""
        most = self._settings.journal_bytes_max
        if self._since_snapshot_bytes >= most:
            self._fail(
                f"{self.folder}: {self._since_snapshot_bytes} bytes since the last snapshot, at most"
                f" {most} are allowed: nothing is acknowledged until a snapshot is written"
            )
        end = self._settings.segment_bytes // 2
        if self._offset > end:
            self._spares.prepare()
            end = self._settings.segment_bytes - len(END_MARK)
        if self.failed is None:
            self._plain_until = min(end, self._offset + most - self._since_snapshot_bytes - 1)

    def _write_pending(self) -> None:
        record = self._record
        size = len(record)
        if self._offset + size + len(END_MARK) > self._settings.segment_bytes and self._offset > HEADER_BYTES:
            self._begin_segment()
        seal_record(record, self._head.marker, self._next, self._pending)
        record += END_MARK
        try:
            write_all(self._file, record, self._offset)
            if self._syncs_commits:
                self._sync()
        except OSError:
            del record[size:]
            raise
        self._offset += size
        self._next += self._pending
        self.commits += 1
        if not self.is_unmarked:
            self._mark_soon()
        self._record = bytearray(RECORD_HEAD_BYTES)
        self._pending = 0

    def _mark_soon(self) -> None:
        """Move the watermark now, or leave it to `mark` if it was moved a moment ago.

        The watermark has a block of its own, which the sync of the next commit would have to write, too.
        """
        if self.mark_after_s and time.monotonic() - self._marked_s < self.mark_after_s:
            self.is_unmarked = True
        else:
            self._mark()

    def mark(self) -> None:
        """Move the watermark behind the promised entries, if it is not there."""
        if self.is_unmarked and self._file >= 0:
            self._mark()

    def _mark(self, flags: int = 0) -> None:
        self.is_unmarked = False
        if self.mark_after_s:
            self._marked_s = time.monotonic()
        self._syncs_records = False
        flags |= self._syncs_commits
        packed = pack_watermark(self._head.marker, self._offset, self._next, self._boot, flags)
        self._mark_place ^= 1
        place = WATERMARK_AT[self._mark_place]
        segment = self._map
        if segment is not None and segment.head is not None:
            segment.head[place : place + len(packed)] = packed
        elif segment is None or not segment.put_in_head(packed, place):
            # A late watermark promises less, and the next commit reports the error of the disk.
            with suppress(OSError):
                os.pwrite(self._file, packed, place)

    def _sync(self) -> None:
        started_s = time.perf_counter()
        os.fdatasync(self._file)
        self._count_sync(started_s)
        self._syncs_records = self._syncs_commits and WRITES_SYNCED

    def _write_synced(self, record: bytes, offset: int) -> bool:
        """Write and sync a record by one system call, which takes a third less time than two."""
        started_s = time.perf_counter()
        try:
            written = os.pwritev(self._file, (record,), offset, os.RWF_DSYNC)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            written = os.pwrite(self._file, record, offset)
            os.fdatasync(self._file)
        self._count_sync(started_s)
        return written == len(record)

    def _count_sync(self, started_s: float) -> None:
        self.sync_last_s = time.perf_counter() - started_s
        self.sync_total_s += self.sync_last_s
        self.syncs += 1

    def _begin_segment(self) -> None:
        head = SegmentHead(self._head.number + 1, self._next, new_marker(), *self._written_by)
        file = self._spares.begin_segment(head)
        if self._file >= 0:
            self._mark(CONTINUED)
        self._let_go()
        self._take(file)
        self._before_bytes += self._offset - HEADER_BYTES
        self._head, self._offset = head, HEADER_BYTES
        self._plain_until = 0

    def _take(self, file: int) -> None:
        self._file = file
        self._map = MappedSegment(file) if self._maps else None

    def _let_go(self) -> None:
        if self._map is not None:
            self._map.close()
        if self._file >= 0:
            os.close(self._file)

    def _cannot_write(self, error: OSError) -> JournalFailed:
        path = segment_path(self.folder, self._head.number)
        return self._fail(f"{path}: cannot be written ({_reason(error)})")

    def _fail(self, why: str) -> JournalFailed:
        self.failed = " ".join(why.split())
        self._plain_until = 0
        return JournalFailed(self.failed)

    # --- snapshots ---

    @property
    def _since_snapshot_bytes(self) -> int:
        return self._before_bytes + self._offset - self._snapshot_at_bytes

    @property
    def wants_snapshot(self) -> bool:
        """True if a replay would be long enough to justify a snapshot, and one can be begun."""
        return (
            self._since_snapshot_bytes >= self._snapshot_wanted_bytes
            and self._ticket is None
            and not (self.failed is not None and self._pending)
            and not self._spares.is_preparing
            and time.monotonic() >= self._snapshot_not_before_s
        )

    @property
    def is_writing_snapshot(self) -> bool:
        return self._ticket is not None

    def _set_snapshot_bytes(self, size: int) -> None:
        """Set the interval of snapshots: large states are written less often, or most of the work would be
        snapshots."""
        self.snapshot_bytes = size
        settings = self._settings
        self._snapshot_wanted_bytes = min(
            max(settings.snapshot_after_bytes, size), settings.journal_bytes_max // 2
        )

    def begin_snapshot(self) -> SnapshotTicket:
        """Begin a snapshot of the present state, after everything has been committed."""
        if self._ticket is not None:
            raise RuntimeError("a snapshot is being written")
        if self._pending:
            self.commit()
        try:
            if self._offset > HEADER_BYTES:
                self._begin_segment()
        except OSError as error:
            self._snapshot_abandoned()
            why = f"{self.folder}: no new segment ({_reason(error)})"
            if segment_path(self.folder, self._head.number + 1).exists():
                # The snapshot would supersede everything committed from now on.
                raise self._fail(why) from None
            raise JournalFailed(why) from None
        file = SnapshotFile(self.folder, self._next - 1, *self._written_by)
        self._ticket = SnapshotTicket(self, file, self._head.number, self._total_bytes)
        return self._ticket

    def write_snapshot(self, pieces: Pieces) -> None:
        """Write a snapshot synchronously, as for a clean stop; one that a child writes is abandoned."""
        if self._ticket is not None:
            self._ticket.abandon()
        ticket = self.begin_snapshot()
        ticket.write(pieces)
        ticket.commit()

    def begin_anew(self, sequence: int, data: bytes) -> None:
        """Discard everything in this folder, and continue behind a snapshot of another journal.

        A crash meanwhile may leave a folder that is refused as damaged.
        """
        if self._ticket is not None:
            self._ticket.abandon()
        file = SnapshotFile(self.folder, sequence, *self._written_by)
        try:
            file.write(data)
            old = [*numbered(self.folder, SNAPSHOT_SUFFIX).values()]
            old += numbered(self.folder, SEGMENT_SUFFIX).values()
            self._next = sequence + 1
            self._begin_segment()
            for path in old:
                path.unlink()
            file.publish()
        except OSError as error:
            raise self._fail(f"{self.folder}: cannot write the snapshot ({_reason(error)})") from None

    def poll_snapshot(self) -> SnapshotOutcome | None:
        """Return the outcome of a child's snapshot; None while it works, or if there is none."""
        return self._ticket.poll() if self._ticket is not None else None

    def _snapshot_done(self, ticket: SnapshotTicket) -> None:
        self._ticket = None
        self._snapshot_at_bytes = ticket.at_bytes
        self._set_snapshot_bytes(ticket.size_bytes)
        self._remove_before(ticket.sequence, ticket.first_needed)

    def _snapshot_abandoned(self) -> None:
        self._ticket = None
        self._snapshot_not_before_s = time.monotonic() + self._settings.snapshot_retry_s

    def _remove_before(self, sequence: int, number: int) -> None:
        """Remove snapshots before this one, and segments before the one with the entries after it."""
        for found, path in numbered(self.folder, SNAPSHOT_SUFFIX).items():
            if found < sequence:
                path.unlink()
        for found, path in numbered(self.folder, SEGMENT_SUFFIX).items():
            if found < number:
                self._spares.recycle(path)


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
