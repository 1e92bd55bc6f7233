"""Read-only inspection of a journal, also while a broker writes to it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from roamcast.errors import InputError
from roamcast.storage.recovery import find_recoverable
from roamcast.storage.segments import (
    SEGMENT_SUFFIX,
    SNAPSHOT_SUFFIX,
    JournalDamaged,
    numbered,
    read_entries,
    read_segment_head,
    read_snapshot,
    read_whole_part,
    scan_segment,
)

ATTEMPTS = 3
"""Attempts to read a folder that is being written to, until it does not change meanwhile."""

BYTES_SHOWN_MAX = 256


class FileReport(NamedTuple):
    """Content of one file of a journal."""

    file: str
    kind: Literal["segment", "snapshot"]
    first: int | None = None
    """Sequence of its first entry."""
    last: int | None = None
    """Sequence of its last entry; of a snapshot, the last one included."""
    entries: int = 0
    commits: int = 0
    size_bytes: int = 0
    """Bytes of records, or of the state."""
    version: str = ""
    replay: int = 0
    state_hash: str = ""
    """For a broker's snapshot: the hash of its state."""
    damage: str | None = None
    note: str = ""


class JournalReport(NamedTuple):
    """Content of a journal, and whether it is recoverable."""

    folder: str
    files: list[FileReport]
    in_use_by: str | None
    """Process that has the journal open."""
    problem: str | None
    """Why a broker would refuse the journal."""
    snapshot: int | None
    """Last entry in the snapshot from which recovery would begin."""
    entries: int
    """Number of entries to replay."""
    cut_bytes: int

    @property
    def is_sound(self) -> bool:
        return self.problem is None and all(one.damage is None for one in self.files)


class ShownEntry(NamedTuple):
    sequence: int
    segment: int
    size_bytes: int
    content: Any


# --- verify ---


def find_journal(folder: Path) -> Path:
    """Return the folder itself, or its subfolder `journal`, as brokers name it."""
    for place in (folder, folder / "journal"):
        if any(numbered(place, suffix) for suffix in (SEGMENT_SUFFIX, SNAPSHOT_SUFFIX)):
            return place
    raise InputError(f"{folder}: no journal here; name the folder with the files segment-….journal")


def verify(folder: Path, hash_of: Callable[[memoryview], str] = lambda _: "") -> JournalReport:
    """Read and check everything; `hash_of` returns the hash of the state in a snapshot's bytes."""
    folder = find_journal(folder)
    for attempt in range(ATTEMPTS):
        owner = _owner_of(folder)
        try:
            report = _verify_once(folder, owner, hash_of)
        except FileNotFoundError:
            continue  # A file was recycled between two looks.
        # Names that change while they are read look like damage, once.
        if report.is_sound or owner is None or attempt == ATTEMPTS - 1:
            return report
    raise InputError(f"{folder}: changes while it is read; try again, or stop the broker first")


def _verify_once(folder: Path, owner: str | None, hash_of: Callable[[memoryview], str]) -> JournalReport:
    snapshots = [_snapshot_report(path, hash_of) for path in numbered(folder, SNAPSHOT_SUFFIX).values()]
    try:
        found = find_recoverable(folder)
    except JournalDamaged as error:
        files = [*snapshots, *_segment_reports(folder, 0)]
        return JournalReport(str(folder), files, owner, str(error), None, 0, 0)
    files = [*snapshots, *_segment_reports(folder, found.scans[0].head.number)]
    used = found.sequence if found.snapshot is not None else None
    return JournalReport(str(folder), files, owner, None, used, found.entry_count, found.cut_bytes)


def _snapshot_report(path: Path, hash_of: Callable[[memoryview], str]) -> FileReport:
    try:
        head, data = read_snapshot(path)
    except JournalDamaged as error:
        return FileReport(path.name, "snapshot", damage=str(error))
    return FileReport(
        path.name,
        "snapshot",
        last=head.sequence,
        size_bytes=head.length,
        version=head.version,
        replay=head.replay,
        state_hash=hash_of(data),
    )


def _segment_reports(folder: Path, first_needed: int) -> list[FileReport]:
    paths = numbered(folder, SEGMENT_SUFFIX)
    firsts: list[int | None] = []
    for path in paths.values():
        try:
            firsts.append(read_segment_head(path).first)
        except JournalDamaged:
            firsts.append(None)
    reports = []
    for (number, path), before in zip(paths.items(), [*firsts[1:], None], strict=True):
        report = _segment_report(path, before)
        reports.append(report if number >= first_needed else report._replace(note="older than the snapshot"))
    return reports


def _segment_report(path: Path, before: int | None) -> FileReport:
    damage = None
    try:
        scan = scan_segment(path, before)
    except JournalDamaged as error:
        damage = str(error)
        try:
            scan = read_whole_part(path, before)
        except JournalDamaged:
            return FileReport(path.name, "segment", damage=damage)
    count = scan.next - scan.head.first
    return FileReport(
        path.name,
        "segment",
        first=scan.head.first if count else None,
        last=scan.next - 1 if count else None,
        entries=count,
        commits=scan.records,
        size_bytes=scan.record_bytes,
        version=scan.head.version,
        replay=scan.head.replay,
        damage=damage,
        note=f"a torn commit of {scan.torn_bytes} bytes would be cut" if scan.torn_bytes else "",
    )


def _owner_of(folder: Path) -> str | None:
    """Return the process that has the journal open, if any."""
    try:
        file = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 20, 0).decode(errors="replace").strip()
    finally:
        os.close(file)
    return None


# --- show ---


def show_entries(
    folder: Path, first: int = 1, decode: Callable[[bytes], Any] = msgspec.msgpack.decode
) -> Iterator[ShownEntry]:
    """Return the entries from this one on, as far as segments are intact; `decode` decodes an entry."""
    folder = find_journal(folder)
    heads = [(path, read_segment_head(path)) for path in numbered(folder, SEGMENT_SUFFIX).values()]
    befores = [head.first for _, head in heads[1:]]
    for (path, head), before in zip(heads, [*befores, None], strict=True):
        if before is not None and before <= first:
            continue
        scan = read_whole_part(path, before)
        for sequence, entry in enumerate(read_entries(scan), head.first):
            if sequence >= first:
                yield ShownEntry(sequence, head.number, len(entry), describe(entry, decode))


def describe(entry: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Return an entry in readable form: decoded if possible, else as plain msgpack or bytes."""
    for attempt in (decode, msgspec.msgpack.decode):
        try:
            return readable(attempt(entry))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            continue
    return readable(entry)


def readable(value: Any) -> Any:
    """Convert any value to JSON types: bytes to text where possible, structs with their field names."""
    if isinstance(value, msgspec.Struct):
        fields = {name: readable(getattr(value, name)) for name in value.__struct_fields__}
        return {type(value).__name__: fields}
    if isinstance(value, bytes | bytearray | memoryview):
        return _readable_bytes(bytes(value))
    if isinstance(value, dict):
        return {str(readable(key)): readable(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [readable(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _readable_bytes(value: bytes) -> str:
    shown = value[:BYTES_SHOWN_MAX]
    more = f" … {len(value)} bytes" if len(value) > len(shown) else ""
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        text = ""
    return (text if text.isprintable() and text else f"0x{shown.hex()}") + more
