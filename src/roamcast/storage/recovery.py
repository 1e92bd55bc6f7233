"""Recovery of a folder: the last whole snapshot and the entries after it.

The rules, in the order in which they are applied:

1. The newest intact snapshot is used. If a newer one is damaged, a note says so; an older one serves
   only if every segment after it is still there. Without any snapshot the entries must begin with the
   first one ever.
2. Segments follow each other without a gap, each whole up to where the next one begins. Anything
   else is damage, and refused with the file and the offset.
3. In the last segment, data behind the last whole record are cut, if no whole record follows and the
  watermark is not beyond them: this is a torn commit, which was not promised. Otherwise promised records are
  damaged or gone, and the journal is refused.
4. With `sync = "process"` a power loss may take promised entries at the end. Where the operating system
   has been started since they were written, the journal opens without them, and says so.
5. Entries written with another replay number are refused: replaying them could give other results. A snapshot
  without entries after it, as a clean stop leaves it, can be opened by every later version that can lift its
  state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

from roamcast.errors import InputError
from roamcast.storage.segments import (
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    WAYS_OUT,
    JournalDamaged,
    SegmentHead,
    SegmentScan,
    numbered,
    read_entries,
    read_segment_head,
    read_snapshot,
    read_whole_part,
    scan_segment,
)
from roamcast.storage.snapshots import Child


@dataclass
class Recovered:
    """Content of a journal when it was opened."""

    sequence: int
    """Last entry in the snapshot; 0 if there is none."""
    snapshot: bytes | memoryview | None
    snapshot_version: str | None
    """Version of the code that wrote the snapshot."""
    entries: Iterator[bytes]
    """Entries after the snapshot, in order; to be read before anything is appended."""
    entry_count: int
    cut_bytes: int
    """Bytes of a torn commit at the end."""
    first_start: bool
    lost: int = 0
    """Promised entries at the end that a power loss has destroyed."""
    verifying: Child | None = None
    """Process that verifies the snapshot's state, if any."""
    notes: list[str] = field(default_factory=list)
    """Lines for the operator about irregularities."""


@dataclass(frozen=True)
class Found:
    """The part of a folder that recovery uses."""

    sequence: int
    """Last entry in the snapshot; 0 if there is none."""
    snapshot: bytes | memoryview | None
    snapshot_version: str | None
    scans: list[SegmentScan]
    """Segments after the snapshot."""
    notes: list[str]

    @property
    def entry_count(self) -> int:
        return sum(scan.next - scan.head.first for scan in self.scans)

    @property
    def cut_bytes(self) -> int:
        return self.scans[-1].torn_bytes if self.scans else 0

    @property
    def journal_bytes(self) -> int:
        return sum(scan.record_bytes for scan in self.scans)

    def recovered(self) -> Recovered:
        return Recovered(
            sequence=self.sequence,
            snapshot=self.snapshot,
            snapshot_version=self.snapshot_version,
            entries=(entry for scan in self.scans for entry in read_entries(scan)),
            entry_count=self.entry_count,
            cut_bytes=self.cut_bytes,
            first_start=self.snapshot is None and not self.scans,
            lost=self.scans[-1].lost if self.scans else 0,
            notes=self.notes,
        )


def find_recoverable(folder: Path) -> Found:
    """Read a folder and check everything that would be recovered from it, without changing it."""
    segments = numbered(folder, SEGMENT_SUFFIX)
    snapshots = numbered(folder, SNAPSHOT_SUFFIX)
    if not segments and not snapshots:
        return Found(0, None, None, [], [])
    notes: list[str] = []
    for path in reversed(snapshots.values()):
        try:
            head, data = read_snapshot(path)
        except JournalDamaged as error:
            notes.append(str(error))
            continue
        scans = _chain_instead(folder, segments, head.sequence, snapshots, notes)
        return Found(head.sequence, data, head.version, _noting(scans, notes), notes)
    scans = _chain_instead(folder, segments, 0, snapshots, notes)
    return Found(0, None, None, _noting(scans, notes), notes)


def entries_after(folder: Path, sequence: int, last: int, bytes_max: int) -> list[bytes] | None:
    """Return the entries after `sequence` of a journal in use that ends with `last`.

    None if the oldest of them are gone, or if reading them means reading more than about `bytes_max`.
    """
    chain: list[tuple[Path, int]] = []
    first = last + 1
    for path in reversed(numbered(folder, SEGMENT_SUFFIX).values()):
        if first <= sequence + 1:
            break
        chain.append((path, first))
        first = read_segment_head(path).first
    entries: list[bytes] = []
    for path, end in reversed(chain):
        scan = read_whole_part(path, end)
        bytes_max -= scan.record_bytes
        if bytes_max < 0:
            return None
        entries += islice(read_entries(scan), max(0, sequence + 1 - scan.head.first), None)
    return entries if first <= sequence + 1 and len(entries) == last - sequence else None


def _chain_instead(
    folder: Path, segments: dict[int, Path], sequence: int, snapshots: dict[int, Path], notes: list[str]
) -> list[SegmentScan]:
    """Return the segments after an older snapshot, which must replace a damaged newer one."""
    try:
        scans = _chain_after(folder, segments, sequence)
        if scans[-1].next <= max(snapshots, default=0):
            raise JournalDamaged(f"{folder}: the entries end with {scans[-1].next - 1}, before the snapshot")
    except JournalDamaged as error:
        if not notes:
            raise
        why = str(error).removesuffix(f"; {WAYS_OUT}")
        raise JournalDamaged(
            f"{notes[0]}; an older state cannot serve instead ({why}): restore the folder from a copy"
        ) from None
    return scans


def check_replay(folder: Path, found: Found, replay: int, version: str) -> None:
    """Refuse entries that this code would replay by other rules than its writer."""
    for scan in found.scans:
        if scan.next > scan.head.first and scan.head.replay != replay:
            raise InputError(
                f"{scan.path}: entries of version {scan.head.version} (replay {scan.head.replay}), which"
                f" {version} (replay {replay}) cannot replay: start version {scan.head.version} once with"
                f" {folder} and stop it cleanly, it leaves a snapshot; then start {version}"
            )


def _chain_after(folder: Path, segments: dict[int, Path], sequence: int) -> list[SegmentScan]:
    """Return the segments with the entries after this one, each checked."""
    chain: list[tuple[Path, SegmentHead]] = []
    # Backwards from the newest, so that obsolete segments are not read.
    for number, path in reversed(segments.items()):
        head = read_segment_head(path)
        if head.number != number:
            raise JournalDamaged(f"{path}: holds segment {head.number}; it was renamed")
        if chain and chain[0][1].number != number + 1:
            raise JournalDamaged(f"{folder}: segment {chain[0][1].number - 1} is missing")
        chain.insert(0, (path, head))
        if head.first <= sequence + 1:
            break
    if not chain or chain[0][1].first != sequence + 1:
        have = f"the oldest segment begins with entry {chain[0][1].first}" if chain else "there is no segment"
        raise JournalDamaged(f"{folder}: entry {sequence + 1} should follow, but {have}")
    scans = [scan_segment(path, following.first) for (path, _), (_, following) in pairwise(chain)]
    return [*scans, scan_segment(chain[-1][0])]


def _noting(scans: list[SegmentScan], notes: list[str]) -> list[SegmentScan]:
    last = scans[-1]
    if last.torn_bytes:
        notes.append(
            f"{last.path}: {last.torn_bytes} bytes at offset {last.end} are no whole record and are cut;"
            f" the last whole entry is {last.next - 1}"
        )
    if last.lost:
        notes.append(
            f"{last.path}: {last.lost} entries after {last.next - 1} were acknowledged and are lost:"
            ' the system was started again, and journal.sync = "process" does not survive a power loss'
        )
    return scans
