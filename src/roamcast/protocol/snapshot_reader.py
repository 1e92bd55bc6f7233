"""From a snapshot to the graph of objects it tells of (see snapshot.py)."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import islice
from types import MethodType
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.filters.selector import read_again
from roamcast.protocol.snapshot_form import FORMAT, PLAIN_TYPES, Kind, KnownClass, SnapshotForm, method_of

_set_attribute = object.__setattr__


class SnapshotReader:
    """Makes every value in the order of its number, then fills those that can be filled."""

    def __init__(self, state: SnapshotForm, known: KnownClass) -> None:
        if state.format != FORMAT:
            raise InputError(f"format {state.format}; this code reads {FORMAT}")
        self._state = state
        self._known = known
        self._values: list[Any] = [None, None, True, False]
        self._building = iter(state.building)
        self._classes: list[type | None] = [None] * len(state.shapes)
        self._shape_of: dict[int, int] = {}
        """Instances that are to be filled."""
        self._names = [tuple(map(sys.intern, shape.fields)) for shape in state.shapes]

    def read(self) -> Any:
        state, values = self._state, self._values
        makers = self._makers()
        append = values.append
        for kind in state.order:
            append(makers[kind]())
        self._fill_instances()
        self._fill_sequences()
        self._fill_mappings()
        self._fill_sets()
        for number in reversed(self._shape_of):
            restore = getattr(type(values[number]), "_restore", None)
            if restore is not None:
                restore(values[number])
        return values[state.root]

    def _makers(self) -> list[Callable[[], Any]]:
        """How a value of each kind is made, by kind."""
        state = self._state
        makers: dict[Kind, Callable[[], Any]] = {
            Kind.TEXT: iter(state.texts).__next__,
            Kind.BYTES: iter(state.blobs).__next__,
            Kind.INT: iter(state.ints).__next__,
            Kind.FLOAT: iter(state.floats).__next__,
            Kind.LARGE_INT: lambda: int.from_bytes(self._part(), "big", signed=True),
            Kind.FILTER: lambda: read_again(self._part()),
            Kind.CLASS: lambda: self._class(next(self._building)),
            Kind.ENUM: self._enum,
            Kind.METHOD: self._method,
            Kind.TUPLE: lambda: tuple(self._parts(next(self._building))),
            Kind.NAMED_TUPLE: self._named_tuple,
            Kind.FROZENSET: lambda: frozenset(self._parts(next(self._building))),
            Kind.FROZEN_STRUCT: self._frozen_struct,
            Kind.STRUCT: self._struct,
            Kind.OBJECT: self._object,
            Kind.LIST: list,
            Kind.DEQUE: self._deque,
            Kind.BYTEARRAY: lambda: bytearray(self._part()),
            Kind.SET: set,
            Kind.DICT: dict,
            Kind.COUNTER: Counter,
            Kind.DEFAULTDICT: lambda: defaultdict(self._part()),
            Kind.ORDERED_DICT: OrderedDict,
        }
        return [makers[kind] for kind in sorted(makers)]

    # --- making ---

    def _part(self) -> Any:
        return self._values[next(self._building)]

    def _parts(self, count: int, stream: Iterator[int] | None = None) -> list[Any]:
        """The values of the next references."""
        parts = list(map(self._values.__getitem__, islice(stream or self._building, count)))
        if len(parts) != count:
            raise InputError("references are missing")
        return parts

    def _class(self, shape: int) -> type:
        found = self._classes[shape]
        if found is None:
            told = self._state.shapes[shape]
            plain = PLAIN_TYPES.get(told.name) if told.module == "builtins" else None
            found = self._classes[shape] = plain or self._known(told.module, told.name)
        return found

    def _enum(self) -> Enum:
        cls = self._class(next(self._building))
        if not issubclass(cls, Enum):
            raise InputError(f"{cls.__name__} is no enumeration")
        return cls.__members__[self._part()]

    def _method(self) -> MethodType:
        name, owner = self._part(), self._part()
        function = method_of(type(owner), name)
        if function is None:
            raise InputError(f"{type(owner).__name__} has no method {name}")
        return MethodType(function, owner)

    def _named_tuple(self) -> Any:
        shape = next(self._building)
        cls, names = self._class(shape), self._names[shape]
        if not issubclass(cls, tuple) or getattr(cls, "_fields", None) != names:
            raise InputError(f"{cls.__name__} has other fields than {', '.join(names)}")
        return tuple.__new__(cls, self._parts(len(names)))

    def _frozen_struct(self) -> Any:
        shape = next(self._building)
        return self._make_struct(shape, self._parts(len(self._names[shape])))

    def _struct(self) -> Any:
        shape = next(self._building)
        self._shape_of[len(self._values)] = shape
        return self._make_struct(shape, [None] * len(self._names[shape]))

    def _make_struct(self, shape: int, parts: list[Any]) -> Any:
        """A struct's own constructor only takes its fields; one that does more is never written."""
        cls, names = self._class(shape), self._names[shape]
        if not issubclass(cls, msgspec.Struct) or hasattr(cls, "__post_init__"):
            raise InputError(f"{cls.__name__} is not a plain struct")
        if cls.__struct_fields__ == cls.__match_args__ == names:
            return cls(*parts)
        return cls(**dict(zip(names, parts, strict=True)))

    def _object(self) -> Any:
        shape = next(self._building)
        self._shape_of[len(self._values)] = shape
        return object.__new__(self._class(shape))

    def _deque(self) -> deque[Any]:
        room = next(self._building)
        return deque(maxlen=None if room < 0 else room)

    # --- filling ---

    def _fill_instances(self) -> None:
        values, stream = self._values, iter(self._state.instances)
        for number in stream:
            names = self._names[self._shape_of[number]]
            instance = values[number]
            # Structs have no __setattr__ of object's kind, and those that come here can be changed.
            assign = setattr if isinstance(instance, msgspec.Struct) else _set_attribute
            for name, part in zip(names, self._parts(len(names), stream), strict=True):
                assign(instance, name, part)

    def _fill_sequences(self) -> None:
        stream = iter(self._state.sequences)
        for number in stream:
            self._values[number].extend(self._parts(next(stream), stream))

    def _fill_mappings(self) -> None:
        stream = iter(self._state.mappings)
        for number in stream:
            mapping, count = self._values[number], next(stream)
            keys, parts = self._parts(count, stream), self._parts(count, stream)
            # A counter's own update would add.
            update = dict.update if type(mapping) is Counter else type(mapping).update
            update(mapping, zip(keys, parts, strict=True))

    def _fill_sets(self) -> None:
        stream = iter(self._state.sets)
        for number in stream:
            self._values[number].update(self._parts(next(stream), stream))
