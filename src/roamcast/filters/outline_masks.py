"""Outlines of some hundred filters as rows of bits: bit n of every row is about the filter in slot n.

For each attribute there are rows for its marks, for how far the numbers and the strings reach (below each
of a few bounds, and above it), and for the levels of topics. All rows are changed by flipping the bit of
a filter, so that taking one out is the same as entering it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import or_
from typing import Any, NamedTuple

from roamcast.filters.filter import Filter
from roamcast.filters.masks import thinned
from roamcast.filters.values import ABSENT, FALSE, NAN, TRUE, NumberCut, StringCut

SLOTS = 1024
"""Filters per set. With a larger value changes cost more, and lookups less."""
BOUNDS_MAX = 64
"""Bounds per attribute: filters between the same two bounds are distinguished by asking them."""
FIRST_BOUNDS = 16
"""Number of filters at which bounds are chosen, and again whenever it has tripled."""

MARKS = (ABSENT, NAN, FALSE, TRUE)


class Span(NamedTuple):
    """Range of a filter in one attribute."""

    marks: int
    numbers: tuple[NumberCut, NumberCut, tuple[NumberCut, ...]] | None
    """Start, end, and for single values only, the start of each."""
    strings: tuple[StringCut, StringCut, tuple[StringCut, ...]] | None
    is_patterned: bool
    """True if its strings must match patterns, too, so that the range may be too wide."""
    levels: tuple[str, ...]
    """Levels of its topic, if its strings are those of one topic filter, or a single string."""


Outline = dict[str, Span]


def _encloses(outer: Outline, inner: Outline) -> bool:
    """True if one outline contains another that restricts the same attributes."""
    for name, wide in outer.items():
        narrow = inner[name]
        if narrow.marks & ~wide.marks or not _spans(wide.numbers, narrow.numbers):
            return False
        if narrow.is_patterned:
            # The range of strings may be too wide, but some strings match.
            if wide.strings is None:
                return False
        elif not _spans(wide.strings, narrow.strings):
            return False
    return True


def _spans(wide: tuple[Any, ...] | None, narrow: tuple[Any, ...] | None) -> bool:
    return narrow is None or (wide is not None and wide[0] <= narrow[0] and narrow[1] <= wide[1])


class OutlineMasks:
    def __init__(self) -> None:
        self._members: dict[int, tuple[Filter, Outline]] = {}
        self._free: list[int] = list(range(SLOTS - 1, -1, -1))
        self._all = 0
        self._columns: dict[str, _Column] = {}
        self._by_size: defaultdict[int, int] = defaultdict(int)
        """Number of attributes to the outlines that have it."""
        self._until_bounds = FIRST_BOUNDS

    def is_full(self) -> bool:
        return not self._free

    def add(self, filter: Filter, outline: Outline) -> int:
        """Add a filter; returns the slot, for `remove`."""
        slot = self._free.pop()
        self._members[slot] = filter, outline
        self._flip(slot, outline)
        self._until_bounds -= 1
        if not self._until_bounds:
            self._find_bounds()
        return slot

    def remove(self, slot: int) -> None:
        _, outline = self._members.pop(slot)
        self._flip(slot, outline)
        for name in outline:
            if not self._columns[name].mentioned:
                del self._columns[name]
        self._free.append(slot)

    def _flip(self, slot: int, outline: Outline) -> None:
        bit = 1 << slot
        self._all ^= bit
        self._by_size[len(outline)] ^= bit
        for name, span in outline.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _Column()
            column.flip(bit, span)

    def _find_bounds(self) -> None:
        """Choose new bounds, according to the present filters."""
        self._until_bounds = max(FIRST_BOUNDS, 3 * len(self._members))
        spans: dict[str, list[tuple[int, Span]]] = {}
        for slot, (_, outline) in self._members.items():
            for name, span in outline.items():
                spans.setdefault(name, []).append((1 << slot, span))
        self._columns = {name: _Column(found) for name, found in spans.items()}

    # --- questions ---

    def around(self, outline: Outline) -> list[Filter]:
        """Return the filters whose outline may contain this one."""
        found = self._restricting_only(outline)
        for name, span in outline.items():
            if not found:
                break
            column = self._columns.get(name)
            if column is not None:
                found &= ~(column.mentioned & ~column.around(span))
        return [filter for filter, other in self._at(found) if _encloses(other, outline)]

    def within(self, outline: Outline) -> list[Filter]:
        """Return the filters whose outline may be inside this one."""
        found = self._all
        for name, span in outline.items():
            column = self._columns.get(name)
            found &= column.within(span) if column is not None else 0
            if not found:
                break
        return [filter for filter, other in self._at(found) if _encloses(outline, other)]

    def _restricting_only(self, outline: Outline) -> int:
        """Return the filters that restrict no other attributes than the outline does."""
        if self._columns.keys() <= outline.keys():
            return self._all
        at_least = [self._all]
        for name in outline:
            column = self._columns.get(name)
            if column is not None:
                at_least.append(0)
                for count in range(len(at_least) - 1, 0, -1):
                    at_least[count] |= at_least[count - 1] & column.mentioned
        found = 0
        for size, those in self._by_size.items():
            if size < len(at_least):
                found |= those & at_least[size]
        return found

    def _at(self, found: int) -> Iterator[tuple[Filter, Outline]]:
        while found:
            slot = found.bit_length() - 1
            yield self._members[slot]
            found ^= 1 << slot


class _Column:
    """The rows of one attribute."""

    def __init__(self, spans: Sequence[tuple[int, Span]] = ()) -> None:
        self.mentioned = 0
        self._marked = [0, 0, 0, 0]
        self._patterned = 0
        self._numbers = _Reach([(bit, *span.numbers) for bit, span in spans if span.numbers is not None])
        self._strings = _Reach([(bit, *span.strings) for bit, span in spans if span.strings is not None])
        self._levels = _Levels()
        for bit, span in spans:
            self._flip_others(bit, span)

    def flip(self, bit: int, span: Span) -> None:
        if span.numbers is not None:
            self._numbers.flip(bit, *span.numbers)
        if span.strings is not None:
            self._strings.flip(bit, *span.strings)
        self._flip_others(bit, span)

    def _flip_others(self, bit: int, span: Span) -> None:
        """Flip all rows except those of the range."""
        self.mentioned ^= bit
        if span.marks:
            for at, mark in enumerate(MARKS):
                if span.marks & mark:
                    self._marked[at] ^= bit
        if span.is_patterned:
            self._patterned ^= bit
        if span.levels:
            self._levels.flip(bit, span.levels)

    def around(self, span: Span) -> int:
        """Return the filters that may accept everything in the range."""
        found = self.mentioned
        if span.marks:
            for at, mark in enumerate(MARKS):
                if span.marks & mark:
                    found &= self._marked[at]
        if span.numbers is not None:
            found &= self._numbers.around(*span.numbers[:2])
        if span.strings is not None:
            strings = self._strings
            found &= strings.having if span.is_patterned else strings.around(*span.strings[:2])
        if span.levels and self._levels.having:
            found &= ~(self._levels.having & ~self._levels.around(span.levels))
        return found

    def within(self, span: Span) -> int:
        """Return the filters that may accept nothing outside the range."""
        found = self.mentioned
        for at, mark in enumerate(MARKS):
            if not span.marks & mark:
                found &= ~self._marked[at]
        numbers, strings = self._numbers, self._strings
        found &= ~(numbers.having if span.numbers is None else numbers.beyond(*span.numbers))
        if span.strings is None:
            found &= ~strings.having
        else:
            found &= ~strings.beyond(*span.strings) | self._patterned
        if span.levels and self._levels.having:
            found &= ~(self._levels.having & ~self._levels.within(span.levels))
        return found


class _Reach:
    """Ranges of filters, as far as some bounds tell, and the single values that they list."""

    def __init__(self, members: list[tuple[int, Any, Any, tuple[Any, ...]]]) -> None:
        ends = [end for _, low, high, _ in members for end in (low, high)]
        self._bounds: list[Any] = thinned(ends, BOUNDS_MAX)
        begin, end = [0] * (len(self._bounds) + 1), [0] * (len(self._bounds) + 1)
        self._starting: dict[Any, int] = {}
        """Filters that begin exactly here."""
        self._listing = 0
        self._listed: dict[Any, int] = {}
        """Filters that list single values, by the start of each value."""
        for bit, low, high, values in members:
            begin[bisect_left(self._bounds, low)] |= bit
            end[bisect_right(self._bounds, high)] |= bit
            self._flip_exact(bit, low, values)
        self._from: list[int] = list(accumulate(begin, or_))
        """For each bound, the filters that begin there or below."""
        self.having = self._from.pop()
        """All filters with a range."""
        self._to: list[int] = list(accumulate(reversed(end[1:]), or_))[::-1]
        """For each bound, the filters that end there or above."""

    def flip(self, bit: int, low: Any, high: Any, values: tuple[Any, ...]) -> None:
        self.having ^= bit
        for at in range(bisect_left(self._bounds, low), len(self._bounds)):
            self._from[at] ^= bit
        for at in range(bisect_right(self._bounds, high)):
            self._to[at] ^= bit
        self._flip_exact(bit, low, values)

    def _flip_exact(self, bit: int, low: Any, values: tuple[Any, ...]) -> None:
        _flip_at(self._starting, low, bit)
        if values:
            self._listing ^= bit
            for value in values:
                _flip_at(self._listed, value, bit)

    def around(self, low: Any, high: Any) -> int:
        """Return the filters whose range may contain this one."""
        found = self.having
        at = bisect_left(self._bounds, low)
        if at < len(self._bounds):
            found &= self._from[at]
        at = bisect_right(self._bounds, high) - 1
        if at >= 0:
            found &= self._to[at]
        # A range inside a single value begins where that value does.
        return found & ~(self._listing & ~self._listed.get(low, 0))

    def beyond(self, low: Any, high: Any, values: tuple[Any, ...]) -> int:
        """Return the filters that certainly begin below, or end above, or begin with none of the listed
        values."""
        found = 0
        at = bisect_left(self._bounds, low) - 1
        if at >= 0:
            found |= self._from[at]
        at = bisect_right(self._bounds, high)
        if at < len(self._bounds):
            found |= self._to[at]
        if values:
            starting = 0
            for value in values:
                starting |= self._starting.get(value, 0)
            found |= self.having & ~starting
        return found


def _flip_at(rows: dict[Any, int], key: Any, bit: int) -> None:
    """Flip a bit; rows without any bit are not kept."""
    row = rows.get(key, 0) ^ bit
    if row:
        rows[key] = row
    else:
        del rows[key]


class _Levels:
    """Topic filters by level, ignoring that a leading wildcard does not match `$`."""

    def __init__(self) -> None:
        self.having = 0
        self._at: dict[tuple[int, str], int] = {}
        """Filters with this level, or wildcard, at this place."""
        self._reaching: defaultdict[int, int] = defaultdict(int)
        """Filters with any level at this place except `#`."""
        self._ending: defaultdict[int, int] = defaultdict(int)
        """Filters with this number of levels, without `#`."""

    def flip(self, bit: int, levels: tuple[str, ...]) -> None:
        self.having ^= bit
        for place, level in enumerate(levels):
            _flip_at(self._at, (place, level), bit)
            if level != "#":
                self._reaching[place] ^= bit
        if levels[-1] != "#":
            self._ending[len(levels)] ^= bit

    def around(self, levels: tuple[str, ...]) -> int:
        """Return the filters that match every topic that these levels match."""
        at = self._at.get
        # Every topic has at least one level.
        found = at((0, "+"), 0) & at((1, "#"), 0) if levels == ("#",) else 0
        left = self.having
        for place, level in enumerate(levels):
            found |= left & at((place, "#"), 0)
            if level == "#":
                return found
            left &= at((place, "+"), 0) | at((place, level), 0)
        return found | left & (self._ending.get(len(levels), 0) | at((len(levels), "#"), 0))

    def within(self, levels: tuple[str, ...]) -> int:
        """Return the filters whose topics are all matched by these levels."""
        found = self._at.get((0, "#"), 0) if levels == ("+", "#") else 0
        left = self.having
        for place, level in enumerate(levels):
            if level == "#":
                return found | left
            left &= self._reaching.get(place, 0) if level == "+" else self._at.get((place, level), 0)
        return found | left & self._ending.get(len(levels), 0)
