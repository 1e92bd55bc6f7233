"""The layout of a snapshot, and the classes that it may hold (see snapshot.py)."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import cache
from inspect import get_annotations
from operator import attrgetter
from typing import Any, NamedTuple, get_type_hints

import msgspec

from roamcast.errors import InputError
from roamcast.protocol.notification import Burst
from roamcast.state import State

MAGIC = b"roamcast state 3"
"""Beginning of every snapshot."""
FORMAT_2 = 2
"""The format of 0.2.0, which is still read."""
CHUNK_ITEMS = 65_536
"""Maximum of values of one list that are encoded together."""

FIRST_NUMBER = 4
"""First number after None, True and False; number 0 is unused."""

FACTORIES = {one.__name__: one for one in (int, float, str, list, dict, set)}
"""Permitted factories of a defaultdict."""

STATEFUL = ("filters.index", "protocol", "routing", "mobility", "mqtt.codec", "mqtt.server", "broker")
"""Modules with the classes of a machine: rooms, or parts of rooms."""

_HEAP_TYPE = 1 << 9
"""Flag of classes that were defined by code, not built into the interpreter."""


class Kind(IntEnum):
    """The kind of a value."""

    TEXT = 0
    BYTES = 1
    INT = 2
    FLOAT = 3
    LARGE_INT = 4
    FILTER = 5
    ENUM = 6
    TUPLE = 7
    NAMED_TUPLE = 8
    FROZENSET = 9
    FROZEN_STRUCT = 10
    # From here on: made empty, filled later.
    STRUCT = 11
    OBJECT = 12
    LIST = 13
    DEQUE = 14
    BYTEARRAY = 15
    SET = 16
    DICT = 17
    COUNTER = 18
    DEFAULTDICT = 19
    ORDERED_DICT = 20
    BURST = 21
    """A small burst, whose parts have no numbers; created at once, like the kinds before `STRUCT`."""


class Shape(msgspec.Struct, array_like=True):
    """A class, and the saved fields of its instances, in order."""

    name: str
    versions: dict[str, int]
    """Versions of the states of the class and its bases, by name."""
    fields: tuple[str, ...]
    unhashed: tuple[str, ...] = ()


class SnapshotForm(msgspec.Struct, array_like=True):
    """One part of a snapshot: first everything that is hashed, then the rest. A reference is a number."""

    order: bytes | list[int]
    """The kind of each value, in the order of their numbers."""
    texts: list[str]
    blobs: list[bytes]
    ints: list[int]
    floats: list[float]
    shapes: list[Shape]
    building: list[int]
    """Data to make the values, in their order: lengths, shapes, references to earlier values."""
    instances: list[int]
    """For each instance: the instance, and the references of its fields."""
    unhashed: list[int]
    """For each instance: the instance, and the references of its unhashed fields."""
    sequences: list[int]
    """For each list or deque: its reference, its length, the references of its items."""
    mappings: list[int]
    """For each dict: its reference, its length, the references of its keys, the references of its values."""
    sets: list[int]
    """For each set: its reference, its length, the references of its items."""
    bursts: list[Burst] = []
    """Bursts in the form in which links carry them."""


LISTS: dict[str, Any] = get_type_hints(SnapshotForm)
"""Names of a form's lists, and the types of their items."""


class Fields(NamedTuple):
    """The saved fields of the instances of one class."""

    cls: type
    kind: Kind
    name: str
    states: tuple[State, ...]
    """The declarations of the class and its bases, the class's own last."""
    saved: tuple[str, ...]
    unhashed: tuple[str, ...] = ()
    declared: frozenset[str] = frozenset()
    """All attributes that an object may have."""

    @property
    def shape(self) -> Shape:
        versions = {state.name: state.version for state in self.states}
        return Shape(self.name, versions, self.saved, self.unhashed)

    def of(self, value: object) -> dict[str, Any]:
        """Return the saved attributes that this instance has, by name."""
        names = (*self.saved, *self.unhashed)
        return {name: getattr(value, name) for name in names if hasattr(value, name)}


class Catalogue:
    """The classes that a snapshot may hold: those of the modules under some prefixes, by their stable names.

    No module is imported because of the content of a snapshot: the caller has imported the classes that can
    be thawed.
    """

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes
        self._fields: dict[type, Fields] = {}
        self._classes: dict[str, list[type]] = {}

    def of(self, cls: type) -> Fields:
        """Return the saved fields of a class; InputError if its instances cannot be saved."""
        found = self._fields.get(cls)
        if found is None:
            name = name_of(cls)
            known = self._named(name)
            if cls not in known:
                full_name = f"{cls.__module__}.{cls.__qualname__}"
                raise InputError(f"{full_name} declares no state, or is not part of the machine")
            if len(known) > 1:
                others = " and ".join(f"{one.__module__}.{one.__qualname__}" for one in known)
                raise InputError(f"the name {name} is used by {others}: rename one of them (State)")
            found = self._fields[cls] = _describe(cls, name)
        return found

    def named(self, name: str) -> Fields:
        known = self._named(name)
        if not known:
            raise InputError(f"nothing is known of {name!r}: a newer version may have written it")
        return self.of(known[0])

    def ambiguous(self) -> list[str]:
        """Names that stand for several classes."""
        self._look()
        return [name for name, classes in self._classes.items() if len(classes) > 1]

    def __iter__(self) -> Iterator[type]:
        """Every class with a declared state."""
        self._look()
        return (one for classes in self._classes.values() for one in classes if _own_state(one) is not None)

    def _named(self, name: str) -> list[type]:
        if name not in self._classes:
            self._look()
        return self._classes.get(name, [])

    def _look(self) -> None:
        self._classes = {}
        for name, module in sorted(sys.modules.items()):
            if f"{name}.".startswith(self._prefixes):
                for cls in list(vars(module).values()):
                    if isinstance(cls, type) and cls.__module__ == name and _is_stateful(cls):
                        known = self._classes.setdefault(name_of(cls), [])
                        if cls not in known:
                            known.append(cls)


STATE_CLASSES = Catalogue(tuple(f"roamcast.{place}." for place in STATEFUL))


def _own_state(cls: type) -> State | None:
    state: State | None = cls.__dict__.get("__state__")
    return state


def _is_stateful(cls: type) -> bool:
    return (
        _own_state(cls) is not None
        or issubclass(cls, msgspec.Struct | Enum)
        or dataclasses.is_dataclass(cls)
        or _is_named_tuple(cls)
    )


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def name_of(cls: type) -> str:
    """Return the declared name; for values without one the tag, as in messages, or the name of the class."""
    state = _own_state(cls)
    if state is not None:
        return state.name
    if issubclass(cls, msgspec.Struct) and isinstance(cls.__struct_config__.tag, str):
        return cls.__struct_config__.tag
    return cls.__name__


def _describe(cls: type, name: str) -> Fields:
    own = _own_state(cls)
    states = () if own is None else (own,)
    if issubclass(cls, Enum):
        return Fields(cls, Kind.ENUM, name, states, ())
    if issubclass(cls, msgspec.Struct):
        if hasattr(cls, "__post_init__"):
            raise InputError(f"a {cls.__name__} runs code when it is created")
        kind = Kind.FROZEN_STRUCT if cls.__struct_config__.frozen else Kind.STRUCT
        return Fields(cls, kind, name, states, cls.__struct_fields__)
    if _is_named_tuple(cls):
        return Fields(cls, Kind.NAMED_TUPLE, name, states, tuple(getattr(cls, "_fields", ())))
    if not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
        raise InputError(f"a {cls.__name__} is derived from one of Python's own classes")
    return _describe_object(cls, name)


def _describe_object(cls: type, name: str) -> Fields:
    saved: dict[str, None] = {}
    unhashed: dict[str, None] = {}
    derived: dict[str, None] = {}
    slots: dict[str, None] = {}
    states: list[State] = []
    for base in reversed(cls.__mro__[:-1]):
        own_slots = [one for one in _slots_of(base) if one not in ("__dict__", "__weakref__")]
        slots.update(dict.fromkeys(own_slots))
        state = _own_state(base)
        if state is not None:
            states.append(state)
            unhashed.update(dict.fromkeys(state.unhashed))
            derived.update(dict.fromkeys(state.derived))
            fields = state.saved
            if not fields and not dataclasses.is_dataclass(base):
                fields = tuple(one for one in own_slots if one not in unhashed and one not in derived)
            saved.update(dict.fromkeys(fields))
    if dataclasses.is_dataclass(cls):
        names = [one.name for one in dataclasses.fields(cls)]
        saved.update((one, None) for one in names if one not in unhashed and one not in derived)
    declared = frozenset((*saved, *unhashed, *derived))
    for one in slots:
        if one not in declared:
            raise InputError(f"{cls.__name__}.{one} is not declared in {cls.__name__}.__state__")
    return Fields(cls, Kind.OBJECT, name, tuple(states), tuple(saved), tuple(unhashed), declared)


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__") or cls.__dict__.get("__compiled_slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def is_compiled(cls: type) -> bool:
    """True if instances hold their attributes in the form of mypyc, without slots or a dictionary."""
    return any("__mypyc_attrs__" in base.__dict__ for base in cls.__mro__)


@cache
def holds_containers(cls: type) -> bool:
    """True if a struct has fields that are dicts or lists."""
    types = [str(one) for base in cls.__mro__ for one in get_annotations(base).values()]
    return any(re.search(r"\b(dict|list|Mapping|Sequence)\b", one) for one in types)


def getter(names: tuple[str, ...]) -> Any:
    """Return a function that returns these attributes as a tuple, even if there is only one."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
