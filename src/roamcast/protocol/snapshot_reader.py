"""Reads the graph of objects out of a snapshot (see snapshot.py)."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from roamcast.errors import InputError
from roamcast.filters.selector import read_again
from roamcast.protocol.snapshot_form import FACTORIES, Catalogue, Fields, Kind, Shape, SnapshotForm


class _Class:
    """One class: its fields in the snapshot, and its present fields."""

    __slots__ = ("fields", "is_lifted", "names", "shape", "unhashed")

    def __init__(self, shape: Shape, fields: Fields) -> None:
        self.shape = shape
        self.fields = fields
        self.names = tuple(map(sys.intern, shape.fields))
        self.unhashed = tuple(map(sys.intern, shape.unhashed))
        versions = {state.name: state.version for state in fields.states}
        self.is_lifted = (self.names, self.unhashed, shape.versions) != (
            fields.saved,
            fields.unhashed,
            versions,
        )
        """True if another version wrote it, so that its fields must be lifted."""

    def lift(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the present fields. A missing value takes its default."""
        name = self.fields.name
        for state in self.fields.states:
            version = self.shape.versions.get(state.name, 1)
            if version > state.version:
                raise InputError(
                    f"{name} is of version {version}, this code knows {state.version}: a newer one wrote it"
                )
            for number in range(version, state.version):
                lift = state.lifts.get(number)
                if lift is not None:
                    lift(told)
        known = (*self.fields.saved, *self.fields.unhashed)
        for one in told:
            if one not in known:
                raise InputError(f"{name} has no field {one}")
        defaults = defaults_of(self.fields.cls)
        for one in known:
            if one not in told:
                if one not in defaults:
                    raise InputError(f"{name} needs the field {one}, which the snapshot does not have")
                told[one] = defaults[one]()
        return told


def defaults_of(cls: type) -> dict[str, Callable[[], Any]]:
    """Return the defaults for missing fields; objects have no defaults, only lifts."""
    found: dict[str, Callable[[], Any]] = {}
    if issubclass(cls, msgspec.Struct):
        for field in msgspec.structs.fields(cls):
            if field.default_factory is not msgspec.NODEFAULT:
                found[field.name] = field.default_factory
            elif field.default is not msgspec.NODEFAULT:
                found[field.name] = _giving(field.default)
    elif issubclass(cls, tuple):
        defaults: dict[str, Any] = getattr(cls, "_field_defaults", {})
        found = {name: _giving(value) for name, value in defaults.items()}
    elif dataclasses.is_dataclass(cls):
        for one in dataclasses.fields(cls):
            if one.default_factory is not dataclasses.MISSING:
                found[one.name] = one.default_factory
            elif one.default is not dataclasses.MISSING:
                found[one.name] = _giving(one.default)
    return found


def _giving(value: Any) -> Callable[[], Any]:
    return lambda: value


class SnapshotReader:
    """Makes every value in the order of its number, then fills the containers and instances."""

    def __init__(self, state: SnapshotForm, catalogue: Catalogue) -> None:
        """`state` holds both parts of a snapshot, concatenated."""
        self._state = state
        self._values: list[Any] = [None, None, True, False]
        self._building = iter(state.building)
        self._classes = [_Class(shape, catalogue.named(shape.name)) for shape in state.shapes]
        self._class_of: dict[int, _Class] = {}
        """Instances that are to be filled."""
        self.is_lifted = any(one.is_lifted for one in self._classes)

    def read(self, root: int) -> Any:
        values = self._values
        makers = self._makers()
        append = values.append
        for kind in self._state.order:
            append(makers[kind]())
        self._fill_instances()
        self._fill_sequences()
        self._fill_mappings()
        self._fill_sets()
        for number in reversed(self._class_of):
            restore = getattr(type(values[number]), "_restore", None)
            if restore is not None:
                restore(values[number])
        return values[root]

    def _makers(self) -> list[Callable[[], Any]]:
        """Return the functions that make values, by kind."""
        state = self._state
        makers: dict[Kind, Callable[[], Any]] = {
            Kind.TEXT: iter(state.texts).__next__,
            Kind.BYTES: iter(state.blobs).__next__,
            Kind.INT: iter(state.ints).__next__,
            Kind.FLOAT: iter(state.floats).__next__,
            Kind.LARGE_INT: lambda: int.from_bytes(self._part(), "big", signed=True),
            Kind.FILTER: lambda: read_again(self._part()),
            Kind.ENUM: lambda: self._class(Kind.ENUM).fields.cls.__members__[self._part()],  # type: ignore[attr-defined]
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
            Kind.DEFAULTDICT: lambda: defaultdict(FACTORIES[self._part()]),
            Kind.ORDERED_DICT: OrderedDict,
            Kind.BURST: iter(state.bursts).__next__,
        }
        return [makers[kind] for kind in sorted(makers)]

    # --- making ---

    def _part(self) -> Any:
        return self._values[next(self._building)]

    def _parts(self, count: int, stream: Iterator[int] | None = None) -> list[Any]:
        """Return the values of the next references."""
        parts = list(map(self._values.__getitem__, islice(stream or self._building, count)))
        if len(parts) != count:
            raise InputError("references are missing")
        return parts

    def _class(self, kind: Kind) -> _Class:
        found = self._classes[next(self._building)]
        if found.fields.kind != kind:
            raise InputError(f"{found.fields.name} is no {kind.name.lower().replace('_', ' ')}")
        return found

    def _named_tuple(self) -> Any:
        told = self._class(Kind.NAMED_TUPLE)
        parts = self._parts(len(told.names))
        if told.is_lifted:
            lifted = told.lift(dict(zip(told.names, parts, strict=True)))
            parts = [lifted[name] for name in told.fields.saved]
        return tuple.__new__(told.fields.cls, parts)

    def _frozen_struct(self) -> Any:
        told = self._class(Kind.FROZEN_STRUCT)
        return _make_struct(told, self._parts(len(told.names)))

    def _struct(self) -> Any:
        told = self._class(Kind.STRUCT)
        self._class_of[len(self._values)] = told
        fields = told.fields.saved
        return told.fields.cls(**dict.fromkeys(fields))

    def _object(self) -> Any:
        told = self._class(Kind.OBJECT)
        self._class_of[len(self._values)] = told
        cls: Any = told.fields.cls
        return cls.__new__(cls)

    def _deque(self) -> deque[Any]:
        room = next(self._building)
        return deque(maxlen=None if room < 0 else room)

    # --- filling ---

    def _fill_instances(self) -> None:
        values, classes = self._values, self._class_of
        lifted = dict[int, dict[str, Any]]()
        for references, is_hashed in ((self._state.instances, True), (self._state.unhashed, False)):
            stream = iter(references)
            for number in stream:
                told = classes[number]
                names = told.names if is_hashed else told.unhashed
                parts = zip(names, self._parts(len(names), stream), strict=True)
                if told.is_lifted:
                    lifted.setdefault(number, {}).update(parts)
                else:
                    _fill(values[number], parts)
        for number, fields in lifted.items():
            _fill(values[number], classes[number].lift(fields).items())

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


def _fill(instance: Any, parts: Iterable[tuple[str, Any]]) -> None:
    assign = setattr if isinstance(instance, msgspec.Struct) else object.__setattr__
    for name, part in parts:
        assign(instance, name, part)


def _make_struct(told: _Class, parts: list[Any]) -> Any:
    """A struct's own constructor only takes its fields; one that does more is never written."""
    cls: Any = told.fields.cls
    if told.is_lifted:
        return cls(**told.lift(dict(zip(told.names, parts, strict=True))))
    if cls.__match_args__ == told.names:
        return cls(*parts)
    return cls(**dict(zip(told.names, parts, strict=True)))
