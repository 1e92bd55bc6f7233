"""How a snapshot is laid out, and what is told of an instance (see snapshot.py)."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

FORMAT = 1

KnownClass = Callable[[str, str], type]
"""From a module and a qualified name to the class; InputError for anything that is not allowed."""

FIRST_NUMBER = 4
"""Behind None, True and False; nothing has number 0."""


PLAIN_TYPES = {one.__name__: one for one in (bool, int, float, str, bytes, tuple, list, dict, set, frozenset)}
"""Classes of Python's own that a state may refer to, as a defaultdict does."""


class Kind(IntEnum):
    """What a value is."""

    TEXT = 0
    BYTES = 1
    INT = 2
    FLOAT = 3
    LARGE_INT = 4
    FILTER = 5
    CLASS = 6
    ENUM = 7
    METHOD = 8
    TUPLE = 9
    NAMED_TUPLE = 10
    FROZENSET = 11
    FROZEN_STRUCT = 12
    # From here on: made empty, filled later.
    STRUCT = 13
    OBJECT = 14
    LIST = 15
    DEQUE = 16
    BYTEARRAY = 17
    SET = 18
    DICT = 19
    COUNTER = 20
    DEFAULTDICT = 21
    ORDERED_DICT = 22


class Shape(msgspec.Struct, array_like=True):
    """A class, and which fields of its instances are told, in which order."""

    module: str
    name: str
    fields: list[str]


class SnapshotForm(msgspec.Struct, array_like=True):
    """What is encoded. A reference is the number of a value."""

    format: int
    root: int
    order: bytes
    """The kind of each value, in the order of their numbers."""
    texts: list[str]
    blobs: list[bytes]
    ints: list[int]
    floats: list[float]
    shapes: list[Shape]
    building: list[int]
    """What the values are made with, in their order: lengths, shapes, references to earlier ones."""
    instances: list[int]
    """An instance and the references of its fields, again and again."""
    sequences: list[int]
    """A list or deque, its length, references."""
    mappings: list[int]
    """A dict, its length, references of the keys, references of the values."""
    sets: list[int]
    """A set, its length, references."""


class Fields(NamedTuple):
    """Which attributes of the instances of a class are told."""

    slots: tuple[str, ...]
    has_dict: bool
    unsaved: frozenset[str]

    def of(self, value: object) -> dict[str, Any]:
        """Those that this instance has, by name."""
        missing = object()
        told = {name: got for name in self.slots if (got := getattr(value, name, missing)) is not missing}
        if self.has_dict:
            told.update((name, one) for name, one in value.__dict__.items() if name not in self.unsaved)
        return told


def find_fields(cls: type) -> Fields:
    slots: list[str] = []
    unsaved: set[str] = set()
    for base in reversed(cls.__mro__[:-1]):
        own = base.__dict__.get("__slots__", ())
        names = (own,) if isinstance(own, str) else tuple(own)
        slots += [_mangled(base, one) for one in names if one not in ("__dict__", "__weakref__")]
        unsaved.update(base.__dict__.get("__unsaved__", ()))
    told = tuple(name for name in slots if name not in unsaved)
    return Fields(told, cls.__dictoffset__ != 0, frozenset(unsaved))


def _mangled(cls: type, name: str) -> str:
    """The name under which Python keeps an attribute that begins with two underscores."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if is_private else name


def method_of(cls: type, name: str) -> FunctionType | None:
    """The plain function behind a method, found without running anything."""
    found = next((one.__dict__[name] for one in cls.__mro__ if name in one.__dict__), None)
    return found if isinstance(found, FunctionType) else None
