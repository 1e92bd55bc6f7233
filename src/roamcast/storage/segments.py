"""The files of a journal, byte by byte: segments that hold records, and snapshots.

A segment begins with a block of its own: magic, format, marker, number, first sequence, replay number,
version of the code, checksum. Behind it are records, each what one commit wrote: marker, sequence of its
first entry, number of entries, length, checksum, and the entries, each with its length in front. Behind
the last record is an end mark of zeros, written together with it; the next record overwrites it.

How written data is distinguished from other data:

- Entries are numbered without a gap over all segments, so nothing can be missing unnoticed.
- Each segment has a random marker, which precedes each of its records. Former content of a recycled file
  has another marker, so it is never taken for new; and a client that chooses the journalled content cannot
  forge a record, because it does not know the marker.
- The checksum is CRC-32 over head and entries. It finds every flip of one or two bits in records of up to
  512 MB, every burst of up to 32 bits, and misses one of 2^32 other accidents. It protects against
  accidents, not against attackers with write access to the folder.
- A record is the unit, not an entry, because the parts of one commit may reach a disk in any order.
  The next commit is written only after it, so a whole record behind a broken one means damage.
- The watermark says how far entries were promised. It is written into the segment's first block after a
  commit (with `sync = "group"`: after the sync), so it is never ahead of what a crash leaves. Entries
  missing below the watermark existed before: the file was cut or overwritten.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from roamcast.errors import InputError

FORMAT = 3
HEADER_BYTES = 4096
"""Room for the head of a segment: one disk block, so that writing records never touches it."""
VERSION_BYTES_MAX = 64
SNAPSHOT_SUFFIX, SEGMENT_SUFFIX, SPARE_SUFFIX, TEMPORARY_SUFFIX = ".snapshot", ".journal", ".spare", ".tmp"

_SEGMENT_MAGIC, _SNAPSHOT_MAGIC = b"RoamJrnl", b"RoamSnap"
_SEGMENT_HEAD = struct.Struct(f">8sHIQQI{VERSION_BYTES_MAX}s")
_SNAPSHOT_HEAD = struct.Struct(f">8sHQQI{VERSION_BYTES_MAX}s")
_WATERMARK = struct.Struct(">IQQIB")
SYNCED, CONTINUED = 1, 2
WATERMARK_AT = (512, 1024)
"""The two places of the watermark, in separate blocks. They are written in turn, so that one is intact even
if a process is killed while it writes the other."""
_RECORD_HEAD = struct.Struct(">IQII")
_SINGLE_HEAD = struct.Struct(">IQIII")
_SEALED_HEAD = struct.Struct(">IQIIII")
"""The head of a record with one entry, and the length of that entry."""
_U32 = struct.Struct(">I")

RECORD_HEAD_BYTES = _RECORD_HEAD.size + _U32.size
END_MARK = bytes(RECORD_HEAD_BYTES)
SNAPSHOT_HEAD_BYTES = _SNAPSHOT_HEAD.size + _U32.size

LENGTH_BYTES = _U32.size
pack_length = _U32.pack


WAYS_OUT = "restore the folder from a copy, or accept the loss with 'roamcast journal repair'"


class JournalDamaged(InputError):
    """A journal that cannot be trusted; the text says which file, where, and what to do."""


class SegmentHead(NamedTuple):
    number: int
    first: int
    """Sequence of the first entry, existing or expected."""
    marker: int
    replay: int
    """Version of the rules for replaying the entries: only code with the same number replays them."""
    version: str
    """Version of the package that wrote the segment, for people."""


class Watermark(NamedTuple):
    """How far the entries of a segment were promised."""

    end: int
    """Offset behind the last promised record."""
    next: int
    """Sequence after the last entry of that record."""
    boot: int
    """Start of the operating system in which the watermark was written (see `current_boot`)."""
    is_synced: bool
    """True if the entries survive a power loss."""
    is_continued: bool
    """True if another segment follows."""

    def outlives(self, boot: int) -> bool:
        """True if every entry below the watermark must still exist.

        Without a sync, entries outlive the process but not the operating system.
        """
        return self.is_synced or self.boot == boot


class SegmentScan(NamedTuple):
    """Content of a segment."""

    path: Path
    head: SegmentHead
    next: int
    """Sequence after its last intact record."""
    records: int
    end: int
    """End of its last intact record."""
    torn_bytes: int
    """Bytes behind that which are no record, as far as distinguishable from former content."""
    lost: int = 0
    """Entries below the watermark lost by a power loss, where the journal did not promise to survive it."""

    @property
    def record_bytes(self) -> int:
        return self.end - HEADER_BYTES


class SnapshotHead(NamedTuple):
    sequence: int
    """Last entry that the snapshot includes."""
    length: int
    replay: int
    version: str


# --- names ---


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"segment-{number:012d}{SEGMENT_SUFFIX}"


def snapshot_path(folder: Path, sequence: int) -> Path:
    return folder / f"snapshot-{sequence:018d}{SNAPSHOT_SUFFIX}"


def numbered(folder: Path, suffix: str) -> dict[int, Path]:
    """Return the files of one kind by number, in order."""
    found = {}
    for path in folder.glob(f"*-*{suffix}"):
        number = path.name.removesuffix(suffix).rpartition("-")[2]
        if number.isascii() and number.isdigit():
            found[int(number)] = path
    return dict(sorted(found.items()))


# --- writing ---


def encode_version(version: str) -> bytes:
    encoded = version.encode()
    if not 0 < len(encoded) <= VERSION_BYTES_MAX or b"\0" in encoded:
        raise InputError(f"version {version!r}: expected 1 to {VERSION_BYTES_MAX} bytes without zeros")
    return encoded


def pack_segment_head(head: SegmentHead) -> bytes:
    """Return the first block of a segment without records, and the end mark behind it."""
    version = encode_version(head.version)
    packed = _SEGMENT_HEAD.pack(
        _SEGMENT_MAGIC, FORMAT, head.marker, head.number, head.first, head.replay, version
    )
    block = (packed + _U32.pack(crc32(packed))).ljust(WATERMARK_AT[0], b"\0")
    block += pack_watermark(head.marker, HEADER_BYTES, head.first, 0, SYNCED)
    return block.ljust(HEADER_BYTES, b"\0") + END_MARK


def pack_watermark(marker: int, end: int, next: int, boot: int, flags: int) -> bytes:
    """Encode a watermark (see `Watermark`) from plain values, because this runs at every commit. `flags` are
    SYNCED and CONTINUED."""
    packed = _WATERMARK.pack(marker, end, next, boot, flags)
    return packed + _U32.pack(crc32(packed))


def current_boot() -> int:
    """Return a number for this start of the operating system; 0 if the system does not identify its
    starts."""
    try:
        return crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0


def new_marker() -> int:
    """Return a random marker; never zero, which begins an end mark."""
    while True:
        marker = int.from_bytes(os.urandom(4), "big")
        if marker:
            return marker


def seal_record(record: bytearray, marker: int, first: int, count: int) -> None:
    """Fill in the head of a record whose entries are already in place."""
    _RECORD_HEAD.pack_into(record, 0, marker, first, count, len(record) - RECORD_HEAD_BYTES)
    checksum = crc32(record[: _RECORD_HEAD.size])
    with memoryview(record) as view, view[RECORD_HEAD_BYTES:] as body:
        checksum = crc32(body, checksum)
    _U32.pack_into(record, _RECORD_HEAD.size, checksum)


def single_record(marker: int, first: int, entry: bytes) -> bytes:
    """Return a complete record of one entry, and the end mark behind it."""
    length = len(entry)
    head = _SINGLE_HEAD.pack(marker, first, 1, _U32.size + length, length)
    checksum = crc32(entry, crc32(head))
    return _SEALED_HEAD.pack(marker, first, 1, _U32.size + length, checksum, length) + entry + END_MARK


def write_snapshot(file: int, sequence: int, replay: int, version: str, pieces: Iterable[bytes]) -> int:
    """Write a snapshot piece by piece, and return its length.

    The head with length and checksum is written last.
    """
    offset = SNAPSHOT_HEAD_BYTES
    for piece in pieces:
        write_all(file, piece, offset)
        offset += len(piece)
    length = offset - SNAPSHOT_HEAD_BYTES
    encoded = encode_version(version)
    head = _SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, FORMAT, sequence, length, replay, encoded)
    checksum, at = crc32(head), SNAPSHOT_HEAD_BYTES
    while at < offset:
        block = os.pread(file, 1 << 20, at)
        checksum = crc32(block, checksum)
        at += len(block)
    write_all(file, head + _U32.pack(checksum), 0)
    return length


def write_all(file: int, data: bytes | bytearray, offset: int) -> None:
    """Call `pwrite` until everything is written; OSError if impossible."""
    done = os.pwrite(file, data, offset)
    if done == len(data):
        return
    with memoryview(data) as view:
        while done < len(data):
            with view[done:] as rest:
                done += os.pwrite(file, rest, offset + done)


def sync_folder(folder: Path) -> None:
    """Make changes of names in the folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# --- reading ---


def read_segment_head(path: Path) -> SegmentHead:
    with path.open("rb") as file:
        return _parse_segment_head(path, file.read(_SEGMENT_HEAD.size + _U32.size))


def _parse_segment_head(path: Path, data: bytes) -> SegmentHead:
    head = _checked_head(path, data, _SEGMENT_HEAD, _SEGMENT_MAGIC)
    if crc32(head) != _U32.unpack_from(data, len(head))[0]:
        raise JournalDamaged(f"{path}: damaged at offset 0: its head has a wrong checksum")
    _, _, marker, number, first, replay, version = _SEGMENT_HEAD.unpack(head)
    return SegmentHead(number, first, marker, replay, _decode_version(path, version))


def _checked_head(path: Path, data: bytes, form: struct.Struct, magic: bytes) -> bytes:
    if len(data) < form.size + _U32.size:
        raise JournalDamaged(f"{path}: damaged at offset {len(data)}: it ends within its head")
    if not data.startswith(magic):
        raise JournalDamaged(f"{path}: damaged at offset 0: it does not begin with {magic.decode()}")
    found = int.from_bytes(data[len(magic) : len(magic) + 2], "big")
    if found != FORMAT:
        raise JournalDamaged(f"{path}: format {found} at offset {len(magic)}; this code reads {FORMAT}")
    return data[: form.size]


def _decode_version(path: Path, version: bytes) -> str:
    try:
        return version.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise JournalDamaged(f"{path}: damaged at offset 0: its version is not text") from None


def scan_segment(path: Path, before: int | None = None) -> SegmentScan:
    """Read a whole segment; JournalDamaged if required records are missing.

    `before` is the first sequence of the next segment, if there is one: this one must reach it. Records
    behind it were not promised, and are repeated in the next segment.
    """
    data = path.read_bytes()
    scan = _whole_part(path, data, before)
    broken = f"{path}: damaged at offset {scan.end}: entry {scan.next} is broken or missing, but"
    if before is not None:
        if scan.next != before:
            raise JournalDamaged(f"{broken} entries from {before} on follow in the next segment; {WAYS_OUT}")
        return scan
    behind = _whole_record_behind(data, scan.end, scan.head.marker, scan.next)
    if behind is not None:
        raise JournalDamaged(f"{broken} a whole record follows at offset {behind}; {WAYS_OUT}")
    mark = _parse_watermark(path, data, scan.head.marker)
    must_be_there = mark.outlives(current_boot())
    if scan.next < mark.next and must_be_there:
        raise JournalDamaged(
            f"{path}: damaged at offset {scan.end}: entries {scan.next} to {mark.next - 1} were acknowledged"
            f" and are missing; the file was cut or overwritten; {WAYS_OUT}"
        )
    if mark.is_continued and must_be_there:
        raise JournalDamaged(f"{path.parent}: segment {scan.head.number + 1} is missing; {WAYS_OUT}")
    return scan._replace(
        torn_bytes=_torn_bytes(data, scan.end, scan.head.marker), lost=max(0, mark.next - scan.next)
    )


def read_watermark(path: Path) -> Watermark:
    """Return how far the entries of a segment were promised."""
    with path.open("rb") as file:
        block = file.read(HEADER_BYTES)
    return _parse_watermark(path, block, _parse_segment_head(path, block).marker)


def _parse_watermark(path: Path, data: bytes, marker: int) -> Watermark:
    found = []
    for place in WATERMARK_AT:
        packed = data[place : place + _WATERMARK.size]
        checksum = data[place + _WATERMARK.size : place + _WATERMARK.size + _U32.size]
        if len(checksum) == _U32.size and checksum == _U32.pack(crc32(packed)):
            written_for, end, next, boot, flags = _WATERMARK.unpack(packed)
            if written_for == marker:
                found.append(Watermark(end, next, boot, bool(flags & SYNCED), bool(flags & CONTINUED)))
    if not found:
        raise JournalDamaged(f"{path}: damaged at offset {WATERMARK_AT[0]}: it has no whole watermark")
    return max(found, key=lambda mark: (mark.end, mark.is_continued))


def read_whole_part(path: Path, before: int | None = None) -> SegmentScan:
    """Like `scan_segment`, but everything after a break is left out."""
    return _whole_part(path, path.read_bytes(), before)


def _whole_part(path: Path, data: bytes, before: int | None) -> SegmentScan:
    head = _parse_segment_head(path, data)
    end, next, records = HEADER_BYTES, head.first, 0
    while before is None or next < before:
        following = _record_at(data, end, head.marker)
        if following is None or following[0] != next:
            break
        end, next, records = following[2], next + following[1], records + 1
    return SegmentScan(path, head, next, records, end, 0)


def _record_at(data: bytes, offset: int, marker: int) -> tuple[int, int, int] | None:
    """Return first sequence, number of entries and end of the complete record that begins here."""
    body = offset + RECORD_HEAD_BYTES
    if body > len(data):
        return None
    found, first, count, length = _RECORD_HEAD.unpack_from(data, offset)
    end = body + length
    if found != marker or count == 0 or end > len(data):
        return None
    with memoryview(data) as view:
        checksum = crc32(view[body:end], crc32(view[offset : offset + _RECORD_HEAD.size]))
    if checksum != _U32.unpack_from(data, offset + _RECORD_HEAD.size)[0]:
        return None
    return first, count, end


def _whole_record_behind(data: bytes, offset: int, marker: int, sequence: int) -> int | None:
    """Return where a complete record begins behind a broken one of unknown length."""
    sign = _U32.pack(marker)
    place = data.find(sign, offset)
    while place >= 0:
        record = _record_at(data, place, marker)
        if record is not None and record[0] >= sequence:
            return place
        place = data.find(sign, place + 1)
    return None


def _torn_bytes(data: bytes, end: int, marker: int) -> int:
    left = data[end : end + RECORD_HEAD_BYTES]
    if not any(left):
        return 0
    if len(left) < RECORD_HEAD_BYTES:
        return len(left)
    found, _, _, length = _RECORD_HEAD.unpack_from(left)
    # If even the marker is wrong, the intended length is unknown.
    claimed = length if found == marker else 0
    return min(RECORD_HEAD_BYTES + claimed, len(data) - end)


def read_entries(scan: SegmentScan) -> Iterator[bytes]:
    """Return the entries of a scanned segment."""
    with scan.path.open("rb") as file:
        data = file.read(scan.end)
    offset = HEADER_BYTES
    while offset < scan.end:
        _, _, count, _ = _RECORD_HEAD.unpack_from(data, offset)
        offset += RECORD_HEAD_BYTES
        for _ in range(count):
            (length,) = _U32.unpack_from(data, offset)
            offset += _U32.size + length
            yield data[offset - length : offset]


def read_snapshot(path: Path) -> tuple[SnapshotHead, memoryview]:
    """Read a snapshot; JournalDamaged if it is incomplete."""
    content = path.read_bytes()
    head = _checked_head(path, content, _SNAPSHOT_HEAD, _SNAPSHOT_MAGIC)
    _, _, sequence, length, replay, version = _SNAPSHOT_HEAD.unpack(head)
    data = memoryview(content)[SNAPSHOT_HEAD_BYTES:]
    if len(data) < length:
        raise JournalDamaged(
            f"{path}: damaged at offset {len(content)}: it ends after {len(data)} of {length} bytes"
        )
    if len(data) > length or crc32(data, crc32(head)) != _U32.unpack_from(content, len(head))[0]:
        raise JournalDamaged(f"{path}: damaged: its checksum is wrong")
    return SnapshotHead(sequence, length, replay, _decode_version(path, version)), data
