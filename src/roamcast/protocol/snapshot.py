"""The whole state of a pure machine as bytes, and back: `freeze` and `thaw`; and its hash: `state_hash`.

A state is a graph of objects: containers, messages, instances of our own classes, in cycles and with
objects known from several places. All of it comes back as it was, and what was one object that can change
is one object. The bytes are data only: classes are told by stable names (`State`), and instances are made
without calling their constructors.

How: every value gets a number when it is met. Leaves and what can be changed later (lists, dicts,
instances, …) get it at once; what is fixed when it is made (tuples, frozen structs, …) gets it after its
parts. So in the order of the numbers everything can be made: the fixed from parts that are there, the
others empty. Then instances are filled, then sequences, and at last dicts and sets, whose keys must be
complete to be hashed.

A class declares what is saved of its instances in `__state__`. Its method `_restore`, if it has one, makes
the derived attributes again when everything has been filled. Objects that were met last come first, so
that an object finds those restored that it holds; the root comes last.

The hash is that of the first part of the bytes, which leaves out the fields that are declared as unhashed.
A machine that was recovered from a snapshot and a journal has the hash that it had before.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.protocol.snapshot_form import FORMAT, FORMATS, STATE_CLASSES, Catalogue, Kind, SnapshotForm
from roamcast.protocol.snapshot_reader import SnapshotReader
from roamcast.protocol.snapshot_writer import SnapshotWriter, Unwritable

CHECKSUM_BYTES = 4
HASH_BYTES = 16

_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes, bytes]).decode
_decode_form = msgspec.msgpack.Decoder(SnapshotForm).decode


class CannotFreeze(Exception):
    """Something in the state cannot be written: where it is, and what."""


def freeze(root: object, catalogue: Catalogue = STATE_CLASSES) -> bytes:
    """The bytes of a state; CannotFreeze says what in it cannot be written."""
    writer = SnapshotWriter(catalogue)
    try:
        number, form = writer.write_hashed(root)
        hashed, rest = msgspec.msgpack.encode(form), msgspec.msgpack.encode(writer.write_rest())
    except Exception as error:
        raise _explained(root, error, catalogue) from None
    encoded = msgspec.msgpack.encode((FORMAT, number, hashed, rest))
    return zlib.crc32(encoded).to_bytes(CHECKSUM_BYTES, "big") + encoded


def state_hash(root: object, catalogue: Catalogue = STATE_CLASSES) -> str:
    """The hash of a state, equal wherever the same state is."""
    try:
        _, form = SnapshotWriter(catalogue).write_hashed(root)
        return _hash(msgspec.msgpack.encode(form))
    except Exception as error:
        raise _explained(root, error, catalogue) from None


def hash_of(data: bytes) -> str:
    """The hash of the state behind the bytes, without thawing it."""
    return _hash(opened(data)[1])


def thaw(data: bytes, catalogue: Catalogue = STATE_CLASSES, *, verify: bool = False) -> Any:
    """The state behind the bytes; InputError if they are not what `freeze` gave.

    `verify` compares the hash of what was thawed with that of what was frozen, unless an older version
    wrote it, whose fields were lifted.
    """
    root, hashed, rest = opened(data)
    try:
        reader = SnapshotReader(_decode_form(hashed), _decode_form(rest), catalogue)
        found = reader.read(root)
        if verify and not reader.is_lifted and state_hash(found, catalogue) != _hash(hashed):
            raise InputError(f"its state hash is {state_hash(found, catalogue)}, not {_hash(hashed)}")
        return found
    except Exception as error:
        # Whole, but from a version whose classes were other ones, or from nobody of ours.
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        text = " ".join(said.split())
        raise InputError(f"snapshot of {len(data)} bytes: cannot be restored ({text})") from None


def _hash(encoded: bytes) -> str:
    return hashlib.blake2b(encoded, digest_size=HASH_BYTES).hexdigest()


def opened(data: bytes) -> tuple[int, bytes, bytes]:
    """The number of the root, the hashed part and the rest."""
    encoded = memoryview(data)[CHECKSUM_BYTES:]
    if not encoded or zlib.crc32(encoded) != int.from_bytes(data[:CHECKSUM_BYTES], "big"):
        raise InputError(f"snapshot of {len(data)} bytes: damaged or cut off, its checksum is wrong")
    try:
        format, root, hashed, rest = _decode(encoded)
    except msgspec.MsgspecError:
        raise InputError(f"snapshot of {len(data)} bytes: not of format {FORMAT}") from None
    if format not in FORMATS:
        raise InputError(f"snapshot of {len(data)} bytes: format {format}; this code reads {FORMAT}")
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
    """Where in a state a value is, as one would write it in Python, on one of the shortest ways."""
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
