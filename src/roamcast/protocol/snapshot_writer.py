"""Writes the snapshot of a graph of objects (see snapshot.py)."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from typing import Any

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.protocol.notification import Burst
from roamcast.protocol.snapshot_form import (
    FACTORIES,
    FIRST_NUMBER,
    Catalogue,
    Fields,
    Kind,
    Shape,
    SnapshotForm,
    getter,
    holds_containers,
    is_compiled,
)

BURST_BYTES_MAX = 1024
"""Larger bursts are written part by part, so that a body in several of them is written once."""
INT_MIN, INT_MAX = -(2**63), 2**64 - 1


class Unwritable(Exception):
    """A value that cannot be written; the caller with the root finds its place."""

    def __init__(self, value: object, why: str) -> None:
        super().__init__(why)
        self.value = value
        self.why = why


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return the members of a set in an order that does not depend on their hashes."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


class SnapshotWriter:
    """Numbers every value it meets: first those that are hashed, then the others.

    Equal values that cannot change get one number, whether they are one object or several. So two states
    that no machine can tell apart have the same numbers throughout.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._order = bytearray()
        self._texts: dict[str, int] = {}
        self._blobs: dict[bytes, int] = {}
        self._ints: dict[int, int] = {}
        self._floats: dict[float | str, int] = {}
        self._bursts: dict[Burst, int] = {}
        self._write_large: Callable[[Burst], int] | None = None
        """Writes large bursts."""
        self._shapes: list[Shape] = []
        self._fixed: dict[Kind, dict[tuple[int, ...], int]] = {kind: {} for kind in Kind}
        """Numbers of immutable values, by kind and parts."""
        self._building: list[int] = []
        self._instances: list[int] = []
        self._unhashed: list[int] = []
        self._sequences: list[int] = []
        self._mappings: list[int] = []
        self._sets: list[int] = []
        self._given = (0, 0, 0, 0, 0, 0, 0)
        """Lengths of the lists when the first part was written; the second part continues them."""
        self._numbers: dict[int, int] = {id(None): 1, id(True): 2, id(False): 3}
        """Numbers by identity. The state holds these values, so that no other value can reuse their
        identity."""
        self._kept: list[object] = []
        self._filled_later: set[type] = set()
        self._work: list[tuple[Callable[[Any, int], None], Any, int]] = []
        """Objects that must still be filled. Filling them at once would recurse on long chains of objects."""
        self._later_fields: list[tuple[Callable[[Any], Iterable[object]], object, int]] = []
        """Objects with fields that are not hashed."""
        self._writers: dict[type, Callable[[Any], int]] = {
            str: self._text,
            bytes: self._bytes,
            int: self._int,
            float: self._float,
            Filter: self._filter,
            Burst: self._burst,
            tuple: self._tuple,
            frozenset: self._frozenset,
            list: self._later(Kind.LIST, self._fill_sequence),
            deque: self._deque,
            bytearray: self._bytearray,
            set: self._later(Kind.SET, self._fill_set),
            dict: self._later(Kind.DICT, self._fill_mapping),
            Counter: self._later(Kind.COUNTER, self._fill_mapping),
            OrderedDict: self._later(Kind.ORDERED_DICT, self._fill_mapping),
            defaultdict: self._defaultdict,
        }

    def write_hashed(self, root: object) -> tuple[int, SnapshotForm]:
        """Return the number of the root, and everything that is hashed."""
        number = self._number(root)
        self._fill()
        return number, self._take_form()

    def write_rest(self) -> SnapshotForm:
        """Return everything that the hashed part leaves out."""
        for parts, value, number in self._later_fields:  # It may grow meanwhile.
            self._unhashed.append(number)
            self._unhashed += self._refer(parts(value))
            self._fill()
        return self._take_form()

    def _fill(self) -> None:
        work = self._work
        while work:
            fill, value, at = work.pop()
            fill(value, at)

    def _take_form(self) -> SnapshotForm:
        order, texts, blobs, ints, floats, shapes, bursts = self._given
        # Negative zero and what is no number stand under their names, since they equal another or nothing.
        values = [float(one) for one in islice(self._floats, floats, None)]
        form = SnapshotForm(
            bytes(self._order[order:]),
            list(islice(self._texts, texts, None)),
            list(islice(self._blobs, blobs, None)),
            list(islice(self._ints, ints, None)),
            values,
            self._shapes[shapes:],
            self._building,
            self._instances,
            self._unhashed,
            self._sequences,
            self._mappings,
            self._sets,
            list(islice(self._bursts, bursts, None)),
        )
        lists = (
            self._order, self._texts, self._blobs, self._ints, self._floats, self._shapes, self._bursts,
        )  # fmt: skip
        order, texts, blobs, ints, floats, shapes, bursts = map(len, lists)
        self._given = (order, texts, blobs, ints, floats, shapes, bursts)
        self._building, self._instances, self._unhashed = [], [], []
        self._sequences, self._mappings, self._sets = [], [], []
        return form

    # --- numbering ---

    def _number(self, value: object) -> int:
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        write = self._writers.get(type(value)) or self._writer_for(value)
        number = self._numbers[id(value)] = write(value)
        return number

    def _refer(self, values: Iterable[object]) -> list[int]:
        """Return the numbers of these values. Most were met before, so nothing is left to do."""
        known, number = self._numbers.get, self._number
        return [known(id(value)) or number(value) for value in values]

    def _next(self, kind: int) -> int:
        self._order.append(kind)
        return len(self._order) + FIRST_NUMBER - 1

    # --- leaves ---

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
        number = self._ints.get(value)
        if number is None:
            if not INT_MIN <= value <= INT_MAX:
                size = value.bit_length() // 8 + 1
                return self._built(Kind.LARGE_INT, (self._bytes(value.to_bytes(size, "big", signed=True)),))
            number = self._ints[value] = self._next(Kind.INT)
        return number

    def _float(self, value: float) -> int:
        key: float | str = value if value and value == value else repr(value)
        number = self._floats.get(key)
        if number is None:
            number = self._floats[key] = self._next(Kind.FLOAT)
        return number

    def _burst(self, value: Burst) -> int:
        if value.size > BURST_BYTES_MAX or type(value.published_at) is not float:
            if self._write_large is None:
                self._write_large = self._new_writer(value)
            return self._write_large(value)
        number = self._bursts.get(value)
        if number is None:
            number = self._bursts[value] = self._next(Kind.BURST)
        return number

    def _filter(self, value: Filter) -> int:
        return self._built(Kind.FILTER, (self._text(value.text),))

    # --- fixed when they are made: their parts get their numbers first ---

    def _built(self, kind: Kind, made_with: tuple[int, ...]) -> int:
        known = self._fixed[kind]
        number = known.get(made_with)
        if number is None:
            self._building += made_with
            number = known[made_with] = self._next(kind)
        return number

    def _tuple(self, value: tuple[object, ...]) -> int:
        return self._built(Kind.TUPLE, (len(value), *self._refer(value)))

    def _frozenset(self, value: frozenset[object]) -> int:
        number = self._built(Kind.FROZENSET, (len(value), *self._refer(in_order(value))))
        for member in value:
            if type(member) in self._filled_later and type(member).__hash__ is not object.__hash__:
                raise Unwritable(value, "a frozenset of instances that are hashed by what is in them")
        return number

    def _value(self, part: object) -> int:
        """Write a part of a frozen struct, whose dicts and lists never change and so count as values."""
        if type(part) is dict:
            made_of = (len(part), *self._refer(part), *map(self._value, part.values()))
            kind, stream = Kind.DICT, self._mappings
        elif type(part) is list:
            made_of = (len(part), *map(self._value, part))
            kind, stream = Kind.LIST, self._sequences
        else:
            return self._number(part)
        known = self._fixed[kind]
        number = known.get(made_of)
        if number is None:
            number = known[made_of] = self._next(kind)
            stream += (number, *made_of)
        return number

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
        factory = getattr(value.default_factory, "__name__", "")
        if FACTORIES.get(factory) is not value.default_factory:
            raise Unwritable(value, f"a defaultdict that makes neither of {', '.join(FACTORIES)}")
        self._building.append(self._text(factory))
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
        # All numbers first: giving them may write other mappings.
        keys, parts = self._refer(value), self._refer(value.values())
        self._mappings += (number, len(keys))
        self._mappings += keys
        self._mappings += parts

    def _fill_instance(self, attributes: Iterable[object], number: int) -> None:
        self._instances.append(number)
        self._instances += self._refer(attributes)

    # --- instances of our own classes: a writer for each class is made when it is first met ---

    def _writer_for(self, value: object) -> Callable[[Any], int]:
        write = self._writers[type(value)] = self._new_writer(value)
        return write

    def _new_writer(self, value: object) -> Callable[[Any], int]:
        cls = type(value)
        try:
            fields = self._catalogue.of(cls)
        except InputError as error:
            raise Unwritable(value, f"a {cls.__name__} cannot be written ({error})") from None
        shape = len(self._shapes)
        self._shapes.append(fields.shape)
        return self._make_writer(fields, shape)

    def _make_writer(self, fields: Fields, shape: int) -> Callable[[Any], int]:
        kind, parts = fields.kind, getter(fields.saved)
        if kind == Kind.ENUM:

            def write_enum(value: Enum) -> int:
                return self._built(Kind.ENUM, (shape, self._text(value.name)))

            return write_enum
        if kind == Kind.NAMED_TUPLE:
            return lambda value: self._built(Kind.NAMED_TUPLE, (shape, *self._refer(value)))
        if kind == Kind.FROZEN_STRUCT and holds_containers(fields.cls):
            return lambda value: self._built(kind, (shape, *map(self._value, parts(value))))
        if kind == Kind.FROZEN_STRUCT:
            return lambda value: self._built(Kind.FROZEN_STRUCT, (shape, *self._refer(parts(value))))
        if kind == Kind.STRUCT:
            return lambda value: self._instance(Kind.STRUCT, shape, parts(value))
        self._filled_later.add(fields.cls)
        return self._object_writer(fields, shape)

    def _object_writer(self, fields: Fields, shape: int) -> Callable[[Any], int]:
        parts, unhashed = getter(fields.saved), getter(fields.unhashed)
        has_dict, declared = fields.cls.__dictoffset__ != 0, fields.declared
        if is_compiled(fields.cls):
            parts, unhashed, has_dict = self._keeping(parts), self._keeping(unhashed), False
        elif any(isinstance(getattr(fields.cls, name, None), property) for name in fields.saved):
            parts = self._keeping(parts)

        def write(value: object) -> int:
            if has_dict and not value.__dict__.keys() <= declared:
                (first, *_) = [name for name in value.__dict__ if name not in declared]
                name = fields.cls.__name__
                raise Unwritable(value, f"{name}.{first} is not declared in {name}.__state__")
            try:
                number = self._instance(Kind.OBJECT, shape, parts(value))
                if fields.unhashed:
                    unhashed(value)
                    self._later_fields.append((unhashed, value, number))
            except AttributeError as error:
                why = f"{fields.cls.__name__}.{error.name} is declared and not set"
                raise Unwritable(value, why) from None
            return number

        return write

    def _keeping(self, parts: Callable[[Any], tuple[object, ...]]) -> Callable[[Any], tuple[object, ...]]:
        """Keep parts that an object creates on access: by a property, or because the class is compiled.

        Otherwise a later value could be at the place in memory of one that has a number, and get that number.
        """

        def keep(value: object) -> tuple[object, ...]:
            found = parts(value)
            self._kept += found
            return found

        return keep

    def _instance(self, kind: int, shape: int, attributes: Iterable[object]) -> int:
        self._building.append(shape)
        number = self._next(kind)
        self._work.append((self._fill_instance, attributes, number))
        return number
