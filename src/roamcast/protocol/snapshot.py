"""The whole state of a pure machine as bytes, and back: `freeze` and `thaw`; and its hash: `state_hash`.

A state is a graph of objects: containers, messages, instances of our own classes, in cycles and with objects
known from several places. Thawing restores the whole graph; a mutable object that was shared is shared again.
The bytes are data only: classes are identified by stable names (`State`), and instances are created without
calling their constructors.

How: every value gets a number when the writer meets it. Leaves and mutable values (lists, dicts, instances,
…) get it at once; immutable values (tuples, frozen structs, …) get it after their parts. So all values can be
created in the order of their numbers: immutable ones from existing parts, mutable ones empty. Then instances
are filled, then sequences, and at last dicts and sets, whose keys must be complete to be hashed.

A class declares what is saved of its instances in `__state__`. Its method `_restore`, if there is one,
computes the derived attributes after everything has been filled. It is called for the objects met last first,
so that the objects an object holds are restored before it; the root comes last.

The hash is that of the first part of the bytes, which leaves out the fields that are declared as unhashed. A
machine that was recovered from a snapshot and a journal has the hash that it had before.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.protocol.snapshot_form import (
    CHUNK_ITEMS,
    FORMAT_2,
    LISTS,
    MAGIC,
    STATE_CLASSES,
    Catalogue,
    Kind,
    SnapshotForm,
)
from roamcast.protocol.snapshot_reader import SnapshotReader
from roamcast.protocol.snapshot_writer import SnapshotWriter, Unwritable

CHECKSUM_BYTES = 4
HASH_BYTES = 16
CHUNK_HEAD_BYTES = 5
CHUNK_BYTES = 1 << 20
"""Approximate bytes encoded at a time."""

ROOT, HASHED, REST, END = range(4)
"""Content of a chunk: the number of the root, a piece of the hashed part, a piece of the rest; or nothing."""

Bytes = bytes | memoryview

_encode = msgspec.msgpack.Encoder().encode
_decode_2 = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes]).decode
_decode_form = msgspec.msgpack.Decoder(SnapshotForm).decode
_decode_root = msgspec.msgpack.Decoder(int).decode
_decoders = [msgspec.msgpack.Decoder(kind) for kind in LISTS.values()]


class NotOpened(InputError):
    """The bytes are damaged, or in no format that this code reads."""


class CannotFreeze(Exception):
    """A part of the state cannot be written; the text names the place and the value."""


def freeze(root: object, catalogue: Catalogue = STATE_CLASSES) -> bytes:
    """Return the bytes of a state; CannotFreeze names the value that cannot be written."""
    return b"".join(freezing(root, catalogue))


def freezing(root: object, catalogue: Catalogue = STATE_CLASSES) -> Iterator[bytes]:
    """Return the bytes of a state in pieces, small unless a single value is large. The state must not change
    meanwhile.

    A chunk is its length, what it holds, and its content. The last one is followed by a checksum.
    """
    yield MAGIC
    checksum = zlib.crc32(MAGIC)
    for kind, content in _chunks(root, catalogue):
        head = len(content).to_bytes(CHUNK_HEAD_BYTES - 1, "big") + bytes((kind,))
        checksum = zlib.crc32(content, zlib.crc32(head, checksum))
        yield head
        yield content
    end = bytes((0, 0, 0, 0, END))
    yield end + zlib.crc32(end, checksum).to_bytes(CHECKSUM_BYTES, "big")


def _chunks(root: object, catalogue: Catalogue) -> Iterator[tuple[int, bytes]]:
    writer = SnapshotWriter(catalogue)
    try:
        number, form = writer.write_hashed(root)
        yield from ((HASHED, content) for content in _parts_of_form(form))
        yield from ((REST, content) for content in _parts_of_form(writer.write_rest()))
        yield ROOT, _encode(number)
    except Exception as error:
        raise _explained(root, error, catalogue) from None


def _parts_of_form(form: SnapshotForm) -> Iterator[bytes]:
    """Return slices of the form's lists, each behind the number of the list. Equal forms are cut alike."""
    for number, name in enumerate(LISTS):
        values, start = getattr(form, name), 0
        while start < len(values):
            end = min(start + CHUNK_ITEMS, len(values))
            if name in ("blobs", "texts", "bursts"):
                end = _end_of_chunk(values, start, end)
            yield bytes((number,)) + _encode(values[start:end])
            start = end


def _end_of_chunk(values: list[Any], start: int, end: int) -> int:
    """Return the end of the slice that begins here: before it becomes large, or behind one value."""
    size = 0
    for place in range(start, end):
        value = values[place]
        size += len(value) if isinstance(value, bytes | str) else value.size
        if size > CHUNK_BYTES and place > start:
            return place
    return end


def state_hash(root: object, catalogue: Catalogue = STATE_CLASSES) -> str:
    """Return the hash of a state; equal states have equal hashes everywhere."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    try:
        for content in _parts_of_form(SnapshotWriter(catalogue).write_hashed(root)[1]):
            digest.update(content)
    except Exception as error:
        raise _explained(root, error, catalogue) from None
    return digest.hexdigest()


def hash_of(data: Bytes) -> str:
    """Return the hash of a frozen state, without thawing it."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    if not _is_whole(data):
        digest.update(_opened_2(data)[1])
    else:
        for kind, content in _read_chunks(data):
            if kind == HASHED:
                digest.update(content)
    return digest.hexdigest()


def thaw(data: Bytes, catalogue: Catalogue = STATE_CLASSES, *, verify: bool = False) -> Any:
    """Return the state from the bytes; InputError if `freeze` did not make them.

    `verify` compares the hash of the thawed state with that of the frozen one, unless an older version wrote
    the snapshot and its fields were lifted.
    """
    found, is_comparable = thawed(data, catalogue)
    if verify and is_comparable:
        verify_hash(found, data, catalogue)
    return found


def verify_hash(found: object, data: Bytes, catalogue: Catalogue = STATE_CLASSES) -> None:
    """Compare the hash of the thawed state with that of the frozen one; InputError if they differ."""
    hashes = state_hash(found, catalogue), hash_of(data)
    if hashes[0] != hashes[1]:
        raise _unusable(data, f"its state hash is {hashes[0]}, not {hashes[1]}")


def thawed(data: Bytes, catalogue: Catalogue = STATE_CLASSES) -> tuple[Any, bool]:
    """Return the state from the bytes, and whether its hash can be compared: no older version wrote it."""
    try:
        root, form = read_form(data)
        reader = SnapshotReader(form, catalogue)
        return reader.read(root), not reader.is_lifted and _is_whole(data)
    except NotOpened:
        raise
    except Exception as error:
        # Whole, but from a version whose classes were other ones, or from nobody of ours.
        why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        raise _unusable(data, why) from None


def _unusable(data: Bytes, why: str) -> InputError:
    return InputError(f"snapshot of {len(data)} bytes: cannot be restored ({' '.join(why.split())})")


def _is_whole(data: Bytes) -> bool:
    """True if the bytes are in the current format, and not damaged."""
    if bytes(data[: len(MAGIC)]) != MAGIC:
        return False
    behind = len(data) - CHECKSUM_BYTES
    return zlib.crc32(data[:behind]) == int.from_bytes(data[behind:], "big")


def _read_chunks(data: Bytes) -> Iterator[tuple[int, memoryview]]:
    view, at = memoryview(data), len(MAGIC)
    while True:
        length, kind = int.from_bytes(view[at : at + CHUNK_HEAD_BYTES - 1], "big"), view[at + 4]
        if kind == END:
            return
        at += CHUNK_HEAD_BYTES
        yield kind, view[at : at + length]
        at += length


def read_form(data: Bytes) -> tuple[int, SnapshotForm]:
    """Return the number of the root, and everything else."""
    if not _is_whole(data):
        return _read_form_2(*_opened_2(data))
    root = 0
    lists: list[Any] = [[] for _ in LISTS]
    for kind, content in _read_chunks(data):
        if kind == ROOT:
            root = _decode_root(content)
        else:
            lists[content[0]] += _decoders[content[0]].decode(content[1:])
    return root, SnapshotForm(*lists)


def _read_form_2(root: int, hashed: bytes, rest: bytes) -> tuple[int, SnapshotForm]:
    both = [msgspec.structs.astuple(_decode_form(part)) for part in (hashed, rest)]
    return root, SnapshotForm(*(one + other for one, other in zip(*both, strict=True)))


def _opened_2(data: Bytes) -> tuple[int, bytes, bytes]:
    """Return, for a snapshot of format 2, the number of the root, the hashed part and the rest."""
    encoded = memoryview(data)[CHECKSUM_BYTES:]
    if not encoded or zlib.crc32(encoded) != int.from_bytes(data[:CHECKSUM_BYTES], "big"):
        raise NotOpened(f"snapshot of {len(data)} bytes: damaged or cut off, its checksum is wrong")
    try:
        format, root, hashed, rest = _decode_2(encoded)
    except msgspec.MsgspecError:
        raise NotOpened(f"snapshot of {len(data)} bytes: its format is unknown to this code") from None
    if format != FORMAT_2:
        raise NotOpened(f"snapshot of {len(data)} bytes: format {format}; this code reads {FORMAT_2}")
    return root, hashed, rest


def _explained(root: object, error: Exception, catalogue: Catalogue) -> Exception:
    if isinstance(error, Unwritable):
        return CannotFreeze(f"{path_to(root, error.value, catalogue)}: {error.why}")
    if isinstance(error, UnicodeEncodeError):
        place = path_to(root, error.object, catalogue)
        return CannotFreeze(f"{place}: text that is not valid Unicode")
    if isinstance(error, RecursionError):
        return CannotFreeze("tuples or frozen structs are nested too deeply")
    return error


def path_to(root: object, wanted: object, catalogue: Catalogue = STATE_CLASSES) -> str:
    """Return the place of a value in a state, as a Python expression along one of the shortest ways."""
    seen = {id(root)}
    held = [root]
    queue = deque([(type(root).__name__.lower(), root)])
    while queue:
        path, value = queue.popleft()
        if value is wanted:
            return path
        for step, part in _parts_of(value, catalogue):
            if id(part) not in seen:
                seen.add(id(part))
                # Parts may exist only here, and nothing else may get their place meanwhile.
                held.append(part)
                queue.append((path + step, part))
    return f"{type(root).__name__.lower()}…"


def _parts_of(value: object, catalogue: Catalogue) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f".keys()[{key!r}]", key
            yield f"[{key!r}]", part
    elif isinstance(value, list | deque | set | frozenset) or type(value) is tuple:
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    else:
        try:
            fields = catalogue.of(type(value))
        except InputError:
            return
        if fields.kind != Kind.ENUM:
            yield from ((f".{name}", part) for name, part in fields.of(value).items())
