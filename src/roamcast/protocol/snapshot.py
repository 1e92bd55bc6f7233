"""The whole state of a pure machine as bytes, and back: `freeze` and `thaw`.

A state is a graph of objects: containers, messages, instances of our own classes, bound methods, in
cycles and with objects known from several places. All of it comes back as it was, and what was one
object is one object. The bytes are data only: classes are told by their names and looked up among
our own (`known_class`), and instances are made without calling their constructors.

How: every value gets a number when it is met. Leaves (equal ones once) and what can be changed later
(lists, dicts, instances, …) get it at once; what is fixed when it is made (tuples, frozen structs, …)
gets it after its parts. So in the order of the numbers everything can be made: the fixed from parts
that are there, the others empty. Then instances are filled, then sequences, and at last dicts and
sets, whose keys must be complete to be hashed.

A class may have attributes that need not be kept (memories, indices, compiled functions): it names
them in `__unsaved__`. Its method `_restore`, if it has one, is called when everything has been
filled, so that it can make them anew; those that were met last come first, so that an object finds
those restored that it holds.
"""

from __future__ import annotations

import importlib
import re
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from types import MethodType
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.protocol.snapshot_form import KnownClass, SnapshotForm, find_fields
from roamcast.protocol.snapshot_reader import SnapshotReader
from roamcast.protocol.snapshot_writer import SnapshotWriter, Unwritable

CHECKSUM_BYTES = 4

PURE_ROOMS = ("filters", "protocol", "routing", "mobility", "mqtt", "broker", "models")

_PURE_MODULE = re.compile(rf"roamcast\.({'|'.join(PURE_ROOMS)})(\.\w+)*")
_decode = msgspec.msgpack.Decoder(SnapshotForm).decode


class CannotFreeze(TypeError):
    """Something in the state cannot be written: where it is, and what."""


def known_class(module: str, name: str) -> type:
    """A class of one of our pure rooms; only modules of theirs are ever imported."""
    if _PURE_MODULE.fullmatch(module) is None:
        raise InputError(f"{module}.{name} is not in one of Roamcast's pure rooms")
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # A name may also lead to something that the module has only imported.
    if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
        raise InputError(f"there is no class {module}.{name}")
    return found


def freeze(root: object, known: KnownClass = known_class) -> bytes:
    """The bytes of a state; CannotFreeze says what in it cannot be written."""
    try:
        encoded = msgspec.msgpack.encode(SnapshotWriter(known).write(root))
    except Unwritable as problem:
        raise CannotFreeze(f"{path_to(root, problem.value)}: {problem.why}") from None
    except UnicodeEncodeError as error:
        raise CannotFreeze(f"{path_to(root, error.object)}: text that is not valid Unicode") from None
    except RecursionError:
        raise CannotFreeze("tuples or frozen structs are nested too deeply") from None
    return zlib.crc32(encoded).to_bytes(CHECKSUM_BYTES, "big") + encoded


def thaw(data: bytes, known: KnownClass = known_class) -> Any:
    """The state behind the bytes; InputError if they are not what `freeze` gave."""
    encoded = memoryview(data)[CHECKSUM_BYTES:]
    if not encoded or zlib.crc32(encoded) != int.from_bytes(data[:CHECKSUM_BYTES], "big"):
        raise InputError(f"snapshot of {len(data)} bytes: damaged or cut off, its checksum is wrong")
    try:
        return SnapshotReader(_decode(encoded), known).read()
    except Exception as error:
        # Whole, but from a version whose classes were other ones, or from nobody of ours.
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        text = " ".join(said.split())
        raise InputError(f"snapshot of {len(data)} bytes: cannot be restored ({text})") from None


def path_to(root: object, wanted: object) -> str:
    """Where in a state a value is, as one would write it in Python, on one of the shortest ways."""
    seen = {id(root)}
    held = [root]
    queue = deque([(type(root).__name__.lower(), root)])
    while queue:
        path, value = queue.popleft()
        if value is wanted:
            return path
        for step, part in _parts_of(value):
            if id(part) not in seen:
                seen.add(id(part))
                # Parts may exist only here, and nothing else may get their place meanwhile.
                held.append(part)
                queue.append((path + step, part))
    return f"{type(root).__name__.lower()}…"


def _parts_of(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f".keys()[{key!r}]", key
            yield f"[{key!r}]", part
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f".{name}", part) for name, part in zip(value._fields, value, strict=True))
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    elif not isinstance(value, type | str | bytes | int | float):
        yield from ((f".{name}", part) for name, part in find_fields(type(value)).of(value).items())
