"""A set of boxes: for every value of an attribute the boxes that accept it, as one long integer.

The ends of conditions cut an attribute's values into rows, and each row has an integer with a bit for each
box that accepts its values. A notification looks up one integer per attribute; the bits that are in all of
them are the boxes that contain it. A second integer per row marks the boxes that accept only some of its
values, whose filters must be evaluated: boxes with a pattern on strings and, if there are too many ends to
cut at each, boxes with an end within the row.

All integers are rebuilt together from time to time. Boxes added since then are evaluated one by one, until
that has cost as much as rebuilding: so a series of changes costs little more than one change. A set of few
boxes is always evaluated one by one.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from math import ceil, inf, nextafter
from operator import and_
from typing import Any, NamedTuple, TypeVar

from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes
from roamcast.filters.values import ABSENT, BOTTOM, END, FALSE, NAN, START, TOP, TRUE, NumberCut, ValueSet

# Rebuilding the integers costs per box about as much as asking this many filters.
ASKS_PER_BOX = 12
SCAN_MAX = 2
"""Up to this many filters, evaluating each is as fast as looking up integers."""

ROWS_MAX, ROW_BITS_MAX = 8_192, 64 << 20
"""Limit of rows per set, which normally has one row per end; exceeded only while all bits together are
few."""

# Limit of cached values per attribute; with more, caching is hardly worthwhile.
KNOWN_MAX = 2_048
FOUND_KEPT_MAX = 100_000
"""Limit of entry numbers in the cached answers of one set."""

WORD_BITS = 4_096
"""Longer integers are split into words, since every operation processes the whole integer."""

# Below, no integer lies between two neighbouring floats; above, nothing but integers is a float.
_EXACT = 2**53

_INTEGERS, _STRINGS = {int}, {str}

T = TypeVar("T")


class Member(NamedTuple):
    number: int
    """Number of the entry."""
    box: Box
    check: Predicate
    """The filter to evaluate."""


class BoxMasks:
    def __init__(self, label_of: Mapping[int, Hashable]) -> None:
        self.members: dict[int, Member] = {}
        """Members by handle."""
        self._label_of = label_of
        self._waiting: dict[int, Member] = {}
        """Members that are not in the integers yet."""
        self._asks = 0.0
        self._live = 0
        """Bits of the boxes that still exist; the oldest entry has the highest bit."""
        self._place: dict[int, int] = {}
        """The bit of each handle."""
        self._numbers: list[int] = []
        self._by_place: list[Member] = []
        self._bits: list[int] = []
        """Bits of one word."""
        self._axes: list[_Axis] = []
        self._open_axes: list[_Axis] = []
        """Axes that have rows with partly accepted values."""
        self._others: list[int] = []
        """By bit, all bits except those with the same label; empty until computed."""
        self._labels: list[Hashable] = []
        self._found: dict[int, list[int]] | None = None
        """Cache from bits to entry numbers, if one attribute decides alone, because its rows repeat."""
        self._found_room = FOUND_KEPT_MAX

    def add(self, handle: int, member: Member) -> None:
        self.members[handle] = self._waiting[handle] = member

    def absorb(self, other: "BoxMasks") -> None:
        """Take in another set; the integers are rebuilt before the next answer."""
        self.members |= other.members
        self._waiting |= other.members
        self._asks = inf

    def remove(self, handle: int) -> bool:
        """Remove a box; returns whether half of the set is gone."""
        del self.members[handle]
        place = self._place.pop(handle, None)
        if place is None:
            del self._waiting[handle]
        else:
            self._live ^= 1 << place
        is_half_gone = 2 * len(self.members) <= len(self._numbers)
        if is_half_gone:
            self._build()
        return is_half_gone or not self.members

    def relabel(self) -> None:
        """Note that an entry has another label now."""
        self._others = []

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        """Append the entries of all boxes that contain a notification."""
        if self._found is None or self._waiting:
            mask = self._containing(attributes, found)
            if mask and self._open_axes:
                asked = self._asked(mask, attributes)
                candidates: list[Member] = []
                self._pick(asked, self._by_place, candidates)
                found += [number for number, _, check in candidates if check(attributes)]
                mask ^= asked
            if mask:
                self._pick(mask, self._numbers, found)
            return
        (axis,) = self._axes
        mask = axis.row_of(attributes.get(axis.name)) & self._live
        known = self._found.get(mask)
        if known is None:
            known = []
            self._pick(mask, self._numbers, known)
            self._found_room -= len(known)
            if self._found_room < 0:
                self._found, self._found_room = {}, FOUND_KEPT_MAX
            self._found[mask] = known
        found += known

    def _pick(self, mask: int, choices: list[T], found: list[T]) -> None:
        bits = self._bits
        if len(choices) > WORD_BITS:
            for start, word in _words(mask):
                while word:
                    place = word.bit_length() - 1
                    word ^= bits[place]
                    found.append(choices[start + place])
            return
        while mask:
            place = mask.bit_length() - 1
            mask ^= bits[place]
            found.append(choices[place])

    def _asked(self, mask: int, attributes: Attributes) -> int:
        """Return the boxes of the mask that accept only some of these values: their filters must be
        tested."""
        asked = 0
        if mask:
            for axis in self._open_axes:
                asked |= axis.open_row_of(attributes.get(axis.name))
        return mask & asked

    def collect_distinct(self, attributes: Attributes, found: list[int]) -> None:
        """Append at least the first entry of each label."""
        if self._is_long():
            self.collect(attributes, found)
            return
        mask = self._containing(attributes, found)
        if not mask:
            return
        if not self._others:
            self._others = self._by_label()
        asked = self._asked(mask, attributes)
        numbers, bits, members, others = self._numbers, self._bits, self._by_place, self._others
        while mask:
            place = mask.bit_length() - 1
            if asked and asked & bits[place] and not members[place].check(attributes):
                mask ^= bits[place]
            else:
                found.append(numbers[place])
                mask &= others[place]

    def _containing(self, attributes: Attributes, found: list[int]) -> int:
        """Return the bits of the boxes that may contain a notification; waiting boxes are asked."""
        if self._waiting and not self._is_ready(1):
            found += [number for number, _, check in self._waiting.values() if check(attributes)]
        mask = self._live
        get: Callable[[str], Any] = attributes.get
        for axis in self._axes:
            mask &= axis.row_of(get(axis.name))
            if not mask:
                break
        return mask

    def _is_ready(self, count: int) -> bool:
        """True if this many notifications can be matched without testing a filter individually."""
        if not self._waiting:
            return True
        if len(self.members) <= SCAN_MAX:
            return False
        self._asks += len(self._waiting) * count
        if self._asks <= ASKS_PER_BOX * len(self.members):
            return False
        self._build()
        return True

    def _is_long(self) -> bool:
        """True if the integers have more than one word, or will after rebuilding."""
        return len(self.members) > WORD_BITS or len(self._numbers) > WORD_BITS

    def labels_of_each(self, contents: Sequence[Attributes]) -> list[tuple[Hashable, ...]] | None:
        """Return the labels of the boxes that contain each notification; None if only `collect` can tell."""
        if self._is_long() or not self._is_ready(len(contents)):
            return None
        masks: Iterable[int] = [self._live] * len(contents)
        for axis in self._axes:
            masks = map(and_, masks, axis.rows_of([attributes.get(axis.name) for attributes in contents]))
        if not self._others:
            self._others = self._by_label()
        bits, members, others, labels = self._bits, self._by_place, self._others, self._labels
        met: list[tuple[Hashable, ...]] = []
        for attributes, mask in zip(contents, masks, strict=True):
            found: list[Hashable] = []
            asked = self._asked(mask, attributes) if self._open_axes else 0
            while mask:
                place = mask.bit_length() - 1
                if asked and asked & bits[place] and not members[place].check(attributes):
                    mask ^= bits[place]
                else:
                    found.append(labels[place])
                    mask &= others[place]
            met.append(tuple(found))
        return met

    def _build(self) -> None:
        self._waiting.clear()
        self._asks = 0
        handles = sorted(self.members, key=lambda handle: self.members[handle].number, reverse=True)
        members = self._by_place = [self.members[handle] for handle in handles]
        count = len(members)
        self._place = {handle: place for place, handle in enumerate(handles)}
        self._numbers = [member.number for member in members]
        self._bits = [1 << place for place in range(min(count, WORD_BITS))]
        self._live = (1 << count) - 1
        self._others = []
        conditions: dict[str, list[tuple[int, ValueSet]]] = {}
        for place, member in enumerate(members):
            for name, values in member.box.items():
                conditions.setdefault(name, []).append((place, values))
        ends = sum(_ends(values) for wanted in conditions.values() for _, values in wanted)
        share = min(1.0, max(ROWS_MAX, ROW_BITS_MAX // max(count, 1)) / max(ends, 1))
        axes = [_Axis(name, wanted, count, share) for name, wanted in conditions.items()]
        # The most selective axes come first: often nothing is left soon.
        self._axes = sorted(axes, key=_Axis.accepted)
        self._open_axes = [axis for axis in axes if any(axis.open_number_rows) or any(axis.open_string_rows)]
        decides_alone = len(axes) == 1 and not self._open_axes
        self._found, self._found_room = {} if decides_alone else None, FOUND_KEPT_MAX

    def _by_label(self) -> list[int]:
        masks: dict[Hashable, int] = {}
        # Removed entries have no label any more, and their bits are never found.
        labels = self._labels = [self._label_of.get(number) for number in self._numbers]
        for label, bit in zip(labels, self._bits, strict=True):
            masks[label] = masks.get(label, 0) | bit
        every = (1 << len(labels)) - 1
        others = {label: every ^ mask for label, mask in masks.items()}
        return [others[label] for label in labels]


def _words(mask: int) -> Iterator[tuple[int, int]]:
    """Return the non-zero words of a mask, and where each begins."""
    size = WORD_BITS // 8
    data = mask.to_bytes(mask.bit_length() // 8 + 1, "little")
    for start in range(0, len(data), size):
        word = int.from_bytes(data[start : start + size], "little")
        if word:
            yield 8 * start, word


def _ends(values: ValueSet) -> int:
    return len(values.numbers) + len(values.strings)


class _KnownRows(dict[int, int]):
    """Cache from integers to their rows: many attributes have few values."""

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
        "absent", "false", "integers", "known", "name", "nan", "number_rows", "numbers", "open_number_rows",
        "open_string_rows", "string_rows", "strings", "true",
    )  # fmt: skip

    def __init__(
        self, name: str, conditions: Sequence[tuple[int, ValueSet]], count: int, share: float
    ) -> None:
        """`conditions` are the values that boxes accept, by bit; `share` is the part of their ends that
        become cuts."""
        self.name = name
        free = bytearray(b"\xff") * (count // 8 + 1)
        _flip(free, [place for place, _ in conditions])
        marked = []
        for mark in (ABSENT, NAN, FALSE, TRUE):
            marked.append(free.copy())
            _flip(marked[-1], [place for place, values in conditions if values.marks & mark])
        self.absent, self.nan, self.false, self.true = (int.from_bytes(row, "little") for row in marked)
        numbers = [(place, values.numbers, False) for place, values in conditions]
        cuts, self.number_rows, self.open_number_rows = _rows(numbers, BOTTOM, TOP, free.copy(), share)
        self.numbers = list(map(_first_above, cuts))
        # Comparing integers with integers takes half the time.
        self.integers = [cut if cut in (inf, -inf) else ceil(cut) for cut in self.numbers]
        self.known = _KnownRows(self.integers, self.number_rows)
        strings = [(place, values.strings, bool(values.patterns)) for place, values in conditions]
        cuts, self.string_rows, self.open_string_rows = _rows(strings, START, END, free, share)
        self.strings = [text for _, text in cuts]

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

    def open_row_of(self, value: Any) -> int:
        """Return the boxes that accept only some of the values in the row."""
        kind = value.__class__
        if (kind is int or kind is float) and value == value:
            return self.open_number_rows[bisect_right(self.numbers, value)]
        return self.open_string_rows[bisect_right(self.strings, value)] if kind is str else 0

    def rows_of(self, values: list[Any]) -> Iterator[int]:
        """Return the rows of many values, which are usually all of one type."""
        kinds = set(map(type, values))
        if kinds == _INTEGERS:
            if len(self.known) < KNOWN_MAX:
                return map(self.known.__getitem__, values)
            return map(self.number_rows.__getitem__, map(bisect_right, repeat(self.integers), values))
        if kinds == _STRINGS:
            return map(self.string_rows.__getitem__, map(bisect_right, repeat(self.strings), values))
        return map(self.row_of, values)

    def accepted(self) -> float:
        """Return the average number of boxes that accept a value, over the existing rows."""
        rows = self.number_rows + self.string_rows if len(self.string_rows) > 1 else self.number_rows
        return sum(map(int.bit_count, rows)) / len(rows)


def _rows(
    sets: Sequence[tuple[int, Sequence[Any], bool]], lowest: Any, highest: Any, free: bytearray, share: float
) -> tuple[list[Any], list[int], list[int]]:
    """Return the cuts, and for the rows between them the boxes that accept them, fully or partly.

    `sets` are the cuts of boxes, by their bits, and whether a pattern may reject values.
    """
    ends = [cut for _, cuts, _ in sets for cut in cuts if lowest < cut < highest]
    cuts = thinned(ends, ceil(share * len(ends)))
    row_of = {lowest: 0, highest: len(cuts) + 1} | {cut: row for row, cut in enumerate(cuts, start=1)}
    accepting, opening = _Switches(len(cuts) + 1), _Switches(len(cuts) + 1)
    for place, wanted, has_patterns in sets:
        for low, high in zip(wanted[::2], wanted[1::2], strict=True):
            first = row_of[low] if low in row_of else bisect_right(cuts, low)
            last = row_of[high] if high in row_of else bisect_right(cuts, high) + 1
            accepting.add(place, first, last)
            if has_patterns:
                opening.add(place, first, last)
                continue
            if low not in row_of:
                opening.add(place, first, first + 1)
            if high not in row_of:
                opening.add(place, last - 1, last)
    return cuts, accepting.rows(free), opening.rows(bytearray(len(free)))


def thinned(ends: list[Any], limit: int) -> list[Any]:
    """Return at most `limit` of the ends, rising, including those that occur often."""
    distinct = sorted(set(ends))
    if len(distinct) <= limit:
        return distinct
    ends.sort()
    return list(dict.fromkeys(ends[(2 * i + 1) * len(ends) // (2 * limit)] for i in range(limit)))


class _Switches:
    """Bits switched on or off at the beginning of each row."""

    def __init__(self, rows: int) -> None:
        self._at: list[list[int]] = [[] for _ in range(rows + 1)]
        self._place = -1
        self._until = 0

    def add(self, place: int, first: int, last: int) -> None:
        """Switch a bit on for these rows; they may follow earlier rows of the same bit without a gap."""
        until = self._until if place == self._place else 0
        self._at[max(first, until)].append(place)
        self._at[max(last, until)].append(place)
        self._place, self._until = place, max(last, until)

    def rows(self, row: bytearray) -> list[int]:
        rows = []
        for places in self._at[:-1]:
            _flip(row, places)
            rows.append(int.from_bytes(row, "little"))
        return rows


def _flip(row: bytearray, places: Iterable[int]) -> None:
    for place in places:
        row[place >> 3] ^= 1 << (place & 7)


def _first_above(cut: NumberCut) -> float:
    """Return the least number above a cut: values above the cut are those not less than that number."""
    number, is_above = cut
    if not is_above:
        return number
    return int(number) + 1 if _EXACT <= abs(number) < inf else nextafter(number, inf)
