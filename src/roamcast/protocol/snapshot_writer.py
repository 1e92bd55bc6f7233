"""From a graph of objects to its snapshot (see snapshot.py)."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from types import MethodType
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.protocol.snapshot_form import (
    FIRST_NUMBER,
    FORMAT,
    PLAIN_TYPES,
    Kind,
    KnownClass,
    Shape,
    SnapshotForm,
    find_fields,
    method_of,
)

INT_MIN, INT_MAX = -(2**63), 2**64 - 1

_HEAP_TYPE = 1 << 9
"""The flag of classes that were defined by code, not built into the interpreter."""


class Unwritable(Exception):
    """A value that cannot be written; where it is, is found out by whoever has the root."""

    def __init__(self, value: object, why: str) -> None:
        super().__init__(why)
        self.value = value
        self.why = why


def in_order(values: Iterable[Any]) -> list[Any]:
    """The members of a set, in an order that does not depend on their hashes, if they have one."""
    try:
        return sorted(values)
    except TypeError:
        return list(values)


class SnapshotWriter:
    """Numbers every value it meets; `write` is called once."""

    def __init__(self, known: KnownClass) -> None:
        self._known = known
        self._order = bytearray()
        self._texts: dict[str, int] = {}
        self._blobs: dict[bytes, int] = {}
        self._ints: dict[int, int] = {}
        self._floats: list[float] = []
        self._shapes: dict[tuple[type, tuple[str, ...]], int] = {}
        self._building: list[int] = []
        self._instances: list[int] = []
        self._sequences: list[int] = []
        self._mappings: list[int] = []
        self._sets: list[int] = []
        self._numbers: dict[int, int] = {id(None): 1, id(True): 2, id(False): 3}
        """By identity: what is in it is held by the state, so that no other value can get its place."""
        self._filled_later: set[type] = set()
        self._work: list[tuple[Callable[[Any, int], None], Any, int]] = []
        """What must still be filled. Not done at once, or long chains of objects would recurse."""
        self._writers: dict[type, Callable[[Any], int]] = {
            str: self._text,
            bytes: self._bytes,
            int: self._int,
            float: self._float,
            Filter: self._filter,
            tuple: self._tuple,
            frozenset: self._frozenset,
            MethodType: self._method,
            list: self._later(Kind.LIST, self._fill_sequence),
            deque: self._deque,
            bytearray: self._bytearray,
            set: self._later(Kind.SET, self._fill_set),
            dict: self._later(Kind.DICT, self._fill_mapping),
            Counter: self._later(Kind.COUNTER, self._fill_mapping),
            OrderedDict: self._later(Kind.ORDERED_DICT, self._fill_mapping),
            defaultdict: self._defaultdict,
        }

    def write(self, root: object) -> SnapshotForm:
        number = self._number(root)
        while self._work:
            fill, value, at = self._work.pop()
            fill(value, at)
        return SnapshotForm(
            FORMAT,
            number,
            bytes(self._order),
            list(self._texts),
            list(self._blobs),
            list(self._ints),
            self._floats,
            [Shape(cls.__module__, cls.__qualname__, list(names)) for cls, names in self._shapes],
            self._building,
            self._instances,
            self._sequences,
            self._mappings,
            self._sets,
        )

    # --- numbering ---

    def _number(self, value: object) -> int:
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        write = self._writers.get(type(value)) or self._writer_for(value)
        number = self._numbers[id(value)] = write(value)
        return number

    def _refer(self, values: Iterable[object]) -> list[int]:
        """The numbers of these values. Most were met before, and then this is all there is to do."""
        known, number = self._numbers.get, self._number
        return [known(id(value)) or number(value) for value in values]

    def _next(self, kind: int) -> int:
        self._order.append(kind)
        return len(self._order) + FIRST_NUMBER - 1

    def _shape(self, cls: type, names: tuple[str, ...]) -> int:
        return self._shapes.setdefault((cls, names), len(self._shapes))

    # --- leaves: equal ones become one ---

    def _text(self, value: str) -> int:
        number = self._texts.get(value)
        if number is None:
            number = self._texts[value] = self._next(Kind.TEXT)
        return number

    def _bytes(self, value: bytes) -> int:
        number = self._blobs.get(value)
        if number is None:
            number = self._blobs[value] = self._next(Kind.BYTES)
        return number

    def _int(self, value: int) -> int:
        if not INT_MIN <= value <= INT_MAX:
            size = value.bit_length() // 8 + 1
            self._building.append(self._bytes(value.to_bytes(size, "big", signed=True)))
            return self._next(Kind.LARGE_INT)
        number = self._ints.get(value)
        if number is None:
            number = self._ints[value] = self._next(Kind.INT)
        return number

    def _float(self, value: float) -> int:
        # Equal ones stay apart: 0.0 and -0.0 are equal, and yet not the same.
        self._floats.append(value)
        return self._next(Kind.FLOAT)

    def _filter(self, value: Filter) -> int:
        self._building.append(self._text(value.text))
        return self._next(Kind.FILTER)

    def _class(self, value: type) -> int:
        if PLAIN_TYPES.get(value.__name__) is not value:
            self._check_class(value, value)
        self._building.append(self._shape(value, ()))
        return self._next(Kind.CLASS)

    def _enum(self, value: Enum) -> int:
        self._building += (self._shape(type(value), ()), self._text(value.name))
        return self._next(Kind.ENUM)

    # --- fixed when they are made: their parts get their numbers first ---

    def _built(self, kind: int, head: int, values: Iterable[object]) -> int:
        parts = self._refer(values)
        building = self._building
        building.append(head)
        building += parts
        return self._next(kind)

    def _tuple(self, value: tuple[object, ...]) -> int:
        return self._built(Kind.TUPLE, len(value), value)

    def _frozenset(self, value: frozenset[object]) -> int:
        number = self._built(Kind.FROZENSET, len(value), in_order(value))
        for member in value:
            if type(member) in self._filled_later and type(member).__hash__ is not object.__hash__:
                raise Unwritable(value, "a frozenset of instances that are hashed by what is in them")
        return number

    def _method(self, value: MethodType) -> int:
        owner, name = value.__self__, value.__func__.__name__
        if method_of(type(owner), name) is not value.__func__:
            raise Unwritable(value, f"a method {name} that is not one of {type(owner).__name__}'s own")
        return self._built(Kind.METHOD, self._text(name), (owner,))

    # --- made empty, and filled later ---

    def _later(self, kind: int, fill: Callable[[Any, int], None]) -> Callable[[Any], int]:
        def write(value: object) -> int:
            number = self._next(kind)
            self._work.append((fill, value, number))
            return number

        return write

    def _deque(self, value: deque[object]) -> int:
        self._building.append(-1 if value.maxlen is None else value.maxlen)
        number = self._next(Kind.DEQUE)
        self._work.append((self._fill_sequence, value, number))
        return number

    def _bytearray(self, value: bytearray) -> int:
        self._building.append(self._bytes(bytes(value)))
        return self._next(Kind.BYTEARRAY)

    def _defaultdict(self, value: defaultdict[object, object]) -> int:
        self._building.append(self._number(value.default_factory))
        number = self._next(Kind.DEFAULTDICT)
        self._work.append((self._fill_mapping, value, number))
        return number

    def _fill_sequence(self, value: Iterable[object], number: int) -> None:
        parts = self._refer(value)
        self._sequences += (number, len(parts))
        self._sequences += parts

    def _fill_set(self, value: set[object], number: int) -> None:
        parts = self._refer(in_order(value))
        self._sets += (number, len(parts))
        self._sets += parts

    def _fill_mapping(self, value: dict[object, object], number: int) -> None:
        keys = self._refer(value)
        self._mappings += (number, len(keys))
        self._mappings += keys
        self._mappings += self._refer(value.values())

    def _fill_instance(self, attributes: Iterable[object], number: int) -> None:
        self._instances.append(number)
        self._instances += self._refer(attributes)

    # --- instances of our own classes: a writer for each class is made when it is first met ---

    def _writer_for(self, value: object) -> Callable[[Any], int]:
        cls = type(value)
        if isinstance(value, type):
            write: Callable[[Any], int] = self._class
        else:
            self._check_class(cls, value)
            if isinstance(value, Enum):
                write = self._enum
            elif isinstance(value, msgspec.Struct):
                write = self._struct_writer(value)
            elif isinstance(value, tuple):
                write = self._named_tuple_writer(cls, value)
            else:
                write = self._instance_writer(cls, value)
        self._writers[cls] = write
        return write

    def _check_class(self, cls: type, value: object) -> None:
        try:
            found = self._known(cls.__module__, cls.__qualname__)
        except InputError as error:
            what = f"a {cls.__name__}" if cls is not value else "a class"
            raise Unwritable(value, f"{what} cannot be written ({error})") from None
        if found is not cls:
            raise Unwritable(value, f"a {cls.__name__} of another class of that name cannot be written")

    def _struct_writer(self, value: msgspec.Struct) -> Callable[[Any], int]:
        cls = type(value)
        if hasattr(cls, "__post_init__"):
            raise Unwritable(value, f"a {cls.__name__}, which does something when it is made")
        names = cls.__struct_fields__
        shape, parts = self._shape(cls, names), _getter(names)
        if cls.__struct_config__.frozen:
            return lambda value: self._built(Kind.FROZEN_STRUCT, shape, parts(value))
        return lambda value: self._instance(Kind.STRUCT, shape, parts(value))

    def _named_tuple_writer(self, cls: type, value: tuple[object, ...]) -> Callable[[Any], int]:
        names = getattr(cls, "_fields", None)
        if not isinstance(names, tuple):
            raise Unwritable(value, f"a {cls.__name__}, a tuple without names")
        shape = self._shape(cls, names)
        return lambda value: self._built(Kind.NAMED_TUPLE, shape, value)

    def _instance_writer(self, cls: type, value: object) -> Callable[[Any], int]:
        if not all(base.__flags__ & _HEAP_TYPE for base in cls.__mro__[:-1]):
            raise Unwritable(value, f"a {cls.__name__}, which is derived from one of Python's own classes")
        self._filled_later.add(cls)
        fields = find_fields(cls)

        def write_any(value: object) -> int:
            told = fields.of(value)
            return self._instance(Kind.OBJECT, self._shape(cls, tuple(told)), told.values())

        if fields.has_dict or fields.unsaved:
            return write_any
        shape, parts = self._shape(cls, fields.slots), _getter(fields.slots)

        def write_slots(value: object) -> int:
            try:
                attributes = parts(value)
            except AttributeError:
                return write_any(value)  # One that has not been set yet.
            return self._instance(Kind.OBJECT, shape, attributes)

        return write_slots

    def _instance(self, kind: int, shape: int, attributes: Iterable[object]) -> int:
        self._building.append(shape)
        number = self._next(kind)
        self._work.append((self._fill_instance, attributes, number))
        return number


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Several attributes at once, as a tuple, however few they are."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
