"""Notifications between a broker and Spark: in files, in order, each with its position.

A broker forgets a notification once it is acknowledged, and Spark may ask for one again until its query has
committed it. So notifications are written here and synced before they are acknowledged, and removed when they
are committed. The position of a notification says how many came before it and never changes; that makes a
batch that Spark repeats after a failure the same batch.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from uuid import uuid4

import msgspec

from roamcast.errors import InputError

SEGMENT_BYTES = 4_000_000
BODY_MAX = 300_000_000
"""Maximum size of a record: more than the largest packet of MQTT."""
REMEMBERED = 1_024
"""Number of last notifications that a broker may repeat: as many as it has in flight."""
LOCK_WITHIN_S = 30.0
"""How long the reader of a stopped query may take to end."""

_FRAME = struct.Struct("<II")
"""Length and CRC-32 of the data that follows."""


Content = tuple[object, ...]


class Received(NamedTuple):
    """A stored notification."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: list[tuple[str, str]]
    content_type: str | None
    publisher: str | None
    incarnation: int | None
    number: int | None
    received_at: float

    @property
    def content(self) -> Content | None:
        """Identity and content, with a checksum for the payload; None if the notification has no identity."""
        if self.publisher is None or not self.number:
            return None
        return (self.topic, zlib.crc32(self.payload), self.qos, self.retain, *self[5:9])


decode = msgspec.msgpack.Decoder(Received).decode
_encode = msgspec.msgpack.Encoder().encode


class _Segment:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.first = int(path.stem)
        self.count = 0
        self.size = 0


class Inbox:
    """A folder of notifications; only one process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._guard = Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder / "lock")
        except OSError as error:
            raise _unusable(folder, error) from None
        try:
            self._load()
        except OSError as error:
            os.close(self._lock)
            raise _unusable(folder, error) from None
        except (ValueError, msgspec.MsgspecError):
            os.close(self._lock)
            text = f"inbox {folder}: is damaged; begin with a new one and a new checkpoint"
            raise InputError(text) from None

    def _load(self) -> None:
        self.id = _read_or_write(self.folder / "id", uuid4().hex)
        self.committed = int(_read_or_write(self.folder / "committed", "0"))
        self._segments = [_Segment(path) for path in sorted(self.folder.glob("*.inbox"))]
        self._known: dict[Content, None] = {}
        for segment in self._segments:
            self._recover(segment, is_last=segment is self._segments[-1])
        self._file = self._segments[-1].path.open("ab") if self._segments else None

    @property
    def first(self) -> int:
        """The position of the oldest stored notification."""
        return self._segments[0].first if self._segments else self.committed

    @property
    def end(self) -> int:
        """The position of the next notification."""
        if not self._segments:
            return self.committed
        return self._segments[-1].first + self._segments[-1].count

    @property
    def uncommitted(self) -> int:
        return self.end - self.committed

    def close(self) -> None:
        with self._guard:
            if self._file is not None:
                self._file.close()
                self._file = None
            os.close(self._lock)

    # --- writing ---

    def append(self, arrived: Sequence[Received]) -> int:
        """Store arrivals; return how many were new, once they are on the disk.

        After a restart, its own or the reader's, a broker sends again what its journal does not know to be
        acknowledged.
        """
        with self._guard:
            new = [one for one in arrived if self._is_new(one)]
            try:
                for one in new:
                    self._write(_encode(one))
                if new and self._file is not None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            except OSError as error:
                raise _unusable(self.folder, error) from None
            return len(new)

    def _is_new(self, one: Received) -> bool:
        """Return true if it is not one of the last notifications, and remember it."""
        content = one.content
        if content in self._known:
            return False
        if content is not None:
            self._known[content] = None
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return True

    def _write(self, body: bytes) -> None:
        if self._file is None or self._segments[-1].size >= SEGMENT_BYTES:
            self._begin_segment()
        assert self._file is not None
        self._file.write(_FRAME.pack(len(body), zlib.crc32(body)) + body)
        self._segments[-1].count += 1
        self._segments[-1].size += _FRAME.size + len(body)

    def _begin_segment(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        segment = _Segment(self.folder / f"{self.end:020d}.inbox")
        self._file = segment.path.open("ab")
        self._segments.append(segment)
        _sync_folder(self.folder)

    # --- reading ---

    def read(self, start: int, end: int) -> list[bytes]:
        """Read the notifications from `start` to before `end`, decoded with `decode`."""
        with self._guard:
            if start < self.first or end > self.end:
                raise InputError(
                    f"inbox {self.folder}: holds notifications {self.first} to {self.end}, and the checkpoint"
                    f" needs {start} to {end}: they do not belong together; begin with new folders for both"
                )
            if self._file is not None:
                self._file.flush()
            found: list[bytes] = []
            for segment in self._segments:
                if segment.first + segment.count <= start or segment.first >= end:
                    continue
                bodies = list(_bodies(segment.path.read_bytes()))
                found += bodies[max(start - segment.first, 0) : end - segment.first]
            return found

    # --- forgetting ---

    def commit(self, position: int) -> None:
        """Remove notifications before the position."""
        with self._guard:
            if position <= self.committed:
                return
            self.committed = position
            try:
                _replace(self.folder / "committed", str(position))
                while self._is_needless(self._segments[0]):
                    self._segments.pop(0).path.unlink(missing_ok=True)
            except OSError as error:
                raise _unusable(self.folder, error) from None

    def _is_needless(self, oldest: _Segment) -> bool:
        """Return whether a file is fully committed, and enough remains to recognise duplicates."""
        after = oldest.first + oldest.count
        return after <= self.committed and self.end - after >= REMEMBERED and len(self._segments) > 1

    # --- beginning again ---

    def _recover(self, segment: _Segment, is_last: bool) -> None:
        """Count and remember stored notifications; an incomplete last write is dropped."""
        data = segment.path.read_bytes()
        for body in _bodies(data):
            segment.count += 1
            segment.size += _FRAME.size + len(body)
            self._is_new(decode(body))
        if segment.size < len(data):
            if not is_last:
                raise ValueError(segment.path)
            os.truncate(segment.path, segment.size)


def _bodies(data: bytes) -> Iterator[bytes]:
    """Yield every complete record, up to the first incomplete one."""
    place = 0
    while place + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, place)
        body = data[place + _FRAME.size : place + _FRAME.size + length]
        if length > BODY_MAX or len(body) < length or zlib.crc32(body) != checksum:
            return
        yield body
        place += _FRAME.size + length


def _unusable(folder: Path, error: OSError) -> InputError:
    return InputError(f"inbox {folder}: cannot be used ({(error.strerror or str(error)).lower()})")


def _locked(file: Path) -> int:
    """Take a lock that lasts as long as the process; the previous process may take a moment to end."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + LOCK_WITHIN_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(handle)
                raise InputError(f"inbox {file.parent}: another query reads into it; name another") from None
            time.sleep(0.05)


def _read_or_write(file: Path, text: str) -> str:
    if not file.exists():
        _replace(file, text)
    return file.read_text(encoding="ascii").strip()


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f".{file.name}.new")
    with new.open("w", encoding="ascii") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
