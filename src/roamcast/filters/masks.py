"""Small tables of boxes: for every value of an attribute the boxes that accept it, as one long integer.

The ends of all conditions cut an attribute's values into rows. The values of a
row are alike to every box, so each row has an integer with a bit for each box
that accepts them. A notification looks up one integer per attribute; the bits
that are in all of them are the boxes that contain it. Patterns on strings are
the exception: a box that has one is asked as well.

The integers are made all at once, from time to time. Boxes that have come since
are asked one by one, until that has cost as much as making the integers does:
many changes in a row cost little more than one.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import ceil, inf, nextafter
from operator import and_
from typing import Any, TypeVar

from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes
from roamcast.filters.values import ABSENT, BOTTOM, END, FALSE, NAN, START, TOP, TRUE, NumberCut, ValueSet

# Making the integers takes about as long for one box as asking so many filters does.
ASKS_PER_BOX = 12

# So many values of an attribute are remembered; when there are more, it is hardly worth it.
KNOWN_MAX = 2_048

# Below, no integer lies between two neighbouring floats; above, nothing but integers is a float.
_EXACT = 2**53

_INTEGERS, _STRINGS = {int}, {str}

Member = tuple[int, Box, Predicate]
"""Entry number, box, and the filter to ask."""


class BoxMasks:
    """Boxes by slot, in the order in which they came; their entry numbers rise."""

    def __init__(self, members: Mapping[int, Member], label_of: Mapping[int, Hashable]) -> None:
        self._members = members
        self._label_of = label_of
        self._waiting = dict(members)
        """Not among the integers yet."""
        self._asks = 0
        self._live = 0
        """The bits of the boxes that are still there; the oldest has the highest."""
        self._place: dict[int, int] = {}
        """Slot to bit."""
        self._numbers: list[int] = []
        self._checks: list[Predicate | None] = []
        self._bits: list[int] = []
        self._axes: list[_Axis] = []
        self._others: list[int] = []
        """By bit, all bits but those with the same label; empty if it has to be found out."""
        self._labels: list[Hashable] = []

    def add(self, slot: int) -> None:
        self._waiting[slot] = self._members[slot]

    def remove(self, slot: int) -> None:
        place = self._place.pop(slot, None)
        if place is None:
            del self._waiting[slot]
        else:
            self._live ^= self._bits[place]

    def relabel(self) -> None:
        """Some entry has another label now."""
        self._others = []

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        """The entries of all boxes that contain a notification."""
        self._pick(self._containing(attributes, found), None, attributes, found)

    def collect_distinct(self, attributes: Attributes, found: list[int]) -> None:
        """At least the first entry of each label."""
        mask = self._containing(attributes, found)
        if mask and not self._others:
            self._others = self._by_label()
        self._pick(mask, self._others, attributes, found)

    def _pick(self, mask: int, others: list[int] | None, attributes: Attributes, found: list[int]) -> None:
        numbers, bits, checks = self._numbers, self._bits, self._checks
        while mask:
            place = mask.bit_length() - 1
            check = checks[place]
            if check is None or check(attributes):
                found.append(numbers[place])
                if others is not None:
                    mask &= others[place]
                    continue
            mask ^= bits[place]

    def _containing(self, attributes: Attributes, found: list[int]) -> int:
        """The bits of the boxes that may contain a notification; those that wait are asked."""
        if not self.is_ready(1):
            found += [number for number, _, check in self._waiting.values() if check(attributes)]
        mask = self._live
        get: Callable[[str], Any] = attributes.get
        for axis in self._axes:
            mask &= axis.row_of(get(axis.name))
            if not mask:
                break
        return mask

    def is_ready(self, count: int) -> bool:
        """Whether none would have to be asked singly about so many notifications."""
        if not self._waiting:
            return True
        self._asks += len(self._waiting) * count
        if self._asks <= ASKS_PER_BOX * len(self._members):
            return False
        self._build()
        return True

    def labels_of_each(self, contents: Sequence[Attributes]) -> list[tuple[Hashable, ...]]:
        """The labels of the boxes that contain each of the notifications; it must be ready."""
        masks: Iterable[int] = [self._live] * len(contents)
        for axis in self._axes:
            masks = map(and_, masks, axis.rows_of([attributes.get(axis.name) for attributes in contents]))
        if not self._others:
            self._others = self._by_label()
        bits, checks, others, labels = self._bits, self._checks, self._others, self._labels
        met: list[tuple[Hashable, ...]] = []
        for attributes, mask in zip(contents, masks, strict=True):
            found: list[Hashable] = []
            while mask:
                place = mask.bit_length() - 1
                check = checks[place]
                if check is None or check(attributes):
                    found.append(labels[place])
                    mask &= others[place]
                else:
                    mask ^= bits[place]
            met.append(tuple(found))
        return met

    def _build(self) -> None:
        self._waiting.clear()
        self._asks = 0
        slots = list(self._members)[::-1]
        members = [self._members[slot] for slot in slots]
        self._place = {slot: place for place, slot in enumerate(slots)}
        self._numbers = [number for number, _, _ in members]
        self._bits = [1 << place for place in range(len(slots))]
        self._live = (1 << len(slots)) - 1
        self._others = []
        conditions: dict[str, list[tuple[int, ValueSet]]] = {}
        is_open = [False] * len(slots)
        for place, (_, box, _) in enumerate(members):
            for name, values in box.items():
                conditions.setdefault(name, []).append((self._bits[place], values))
                is_open[place] = is_open[place] or bool(values.patterns)
        self._checks = [
            check if must_ask else None for (_, _, check), must_ask in zip(members, is_open, strict=True)
        ]
        axes = [_Axis(name, wanted, self._live) for name, wanted in conditions.items()]
        # Those that refuse most come first: often nothing is left soon.
        self._axes = sorted(axes, key=_Axis.accepted)

    def _by_label(self) -> list[int]:
        masks: dict[Hashable, int] = {}
        # Entries that are gone have no label any more, and their bits are never met.
        labels = self._labels = [self._label_of.get(number) for number in self._numbers]
        for label, bit in zip(labels, self._bits, strict=True):
            masks[label] = masks.get(label, 0) | bit
        every = (1 << len(labels)) - 1
        others = {label: every ^ mask for label, mask in masks.items()}
        return [others[label] for label in labels]


class _KnownRows(dict[int, int]):
    """Integers that came before, and their rows: many attributes have few values."""

    def __init__(self, cuts: list[float], rows: list[int]) -> None:
        super().__init__()
        self._cuts = cuts
        self._rows = rows

    def __missing__(self, value: int) -> int:
        row = self[value] = self._rows[bisect_right(self._cuts, value)]
        return row


class _Axis:
    """The rows of one attribute."""

    __slots__ = (
        "absent", "false", "integers", "known", "name", "nan", "number_rows", "numbers", "string_rows",
        "strings", "true",
    )  # fmt: skip

    def __init__(self, name: str, conditions: list[tuple[int, ValueSet]], every: int) -> None:
        self.name = name
        free = every
        for bit, _ in conditions:
            free ^= bit
        self.absent, self.nan, self.false, self.true = (
            free | sum(bit for bit, values in conditions if values.marks & mark)
            for mark in (ABSENT, NAN, FALSE, TRUE)
        )
        number_flips: dict[float, int] = {}
        string_flips: dict[str, int] = {}
        first_number = first_string = free
        for bit, values in conditions:
            # Walking up the values, every cut switches between accepting and refusing.
            for number in values.numbers:
                if number == BOTTOM:
                    first_number ^= bit
                elif number != TOP:
                    at = _first_above(number)
                    number_flips[at] = number_flips.get(at, 0) ^ bit
            for text in values.strings:
                if text == START:
                    first_string ^= bit
                elif text != END:
                    string_flips[text[1]] = string_flips.get(text[1], 0) ^ bit
        self.numbers, self.number_rows = _rows(first_number, number_flips)
        # Comparing integers with integers takes half the time.
        self.integers = [cut if cut in (inf, -inf) else ceil(cut) for cut in self.numbers]
        self.known = _KnownRows(self.integers, self.number_rows)
        self.strings, self.string_rows = _rows(first_string, string_flips)

    def row_of(self, value: Any) -> int:
        kind = value.__class__
        if (kind is int or kind is float) and value == value:
            return self.number_rows[bisect_right(self.numbers, value)]
        if kind is str:
            return self.string_rows[bisect_right(self.strings, value)]
        if value is None:
            return self.absent
        if kind is bool:
            return self.true if value else self.false
        return self.nan

    def rows_of(self, values: list[Any]) -> Iterator[int]:
        """The same for many values, which most often are all of one kind."""
        kinds = set(map(type, values))
        if kinds == _INTEGERS:
            if len(self.known) < KNOWN_MAX:
                return map(self.known.__getitem__, values)
            return map(self.number_rows.__getitem__, map(bisect_right, repeat(self.integers), values))
        if kinds == _STRINGS:
            return map(self.string_rows.__getitem__, map(bisect_right, repeat(self.strings), values))
        return map(self.row_of, values)

    def accepted(self) -> float:
        """How many boxes accept a value, on average over the rows that have been made."""
        rows = self.number_rows + self.string_rows if len(self.string_rows) > 1 else self.number_rows
        return sum(map(int.bit_count, rows)) / len(rows)


End = TypeVar("End", float, str)


def _rows(row: int, flips: dict[End, int]) -> tuple[list[End], list[int]]:
    """The cuts, and the rows below, between and above them."""
    cuts = sorted(flips)
    rows = [row]
    for cut in cuts:
        row ^= flips[cut]
        rows.append(row)
    return cuts, rows


def _first_above(cut: NumberCut) -> float:
    """The least number above a cut, so that what is above it is what is not less than that."""
    number, is_above = cut
    if not is_above:
        return number
    return int(number) + 1 if _EXACT <= abs(number) < inf else nextafter(number, inf)
