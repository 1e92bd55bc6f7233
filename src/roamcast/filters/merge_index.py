"""Find a filter that merges with a given one, without testing each of them.

Two boxes merge if they agree on all attributes but one (see `merging.py`). So filters that are single boxes
are kept, once for each of their attributes, among those that agree with them on all the others. There, ranges
are sorted: only neighbours can touch. Lists of values are kept by their length. Only short lists are merged,
because a forwarded list is sent again as a whole when it changes.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from roamcast.filters.filter import Filter
from roamcast.filters.merging import merge_pair
from roamcast.filters.values import ValueSet, number_points, string_points

LIST_MAX = 32
"""Maximum of values in a list made by merging."""
ODD_ASKED_MAX = 64
"""Maximum of filters tested that are neither ranges nor lists."""


class Merger(NamedTuple):
    """The result of merging two filters, and the attribute in which they differed."""

    name: str
    other: Filter
    union: Filter


class MergeIndex:
    def __init__(self) -> None:
        self._groups: dict[_Agreement, _Group] = {}

    def add(self, filter: Filter) -> None:
        for agreement, values in _agreements(filter):
            group = self._groups.get(agreement)
            if group is None:
                group = self._groups[agreement] = _Group()
            group.add(filter, values)

    def remove(self, filter: Filter) -> None:
        for agreement, values in _agreements(filter):
            group = self._groups[agreement]
            group.remove(filter, values)
            if group.is_empty():
                del self._groups[agreement]

    def find(self, filter: Filter) -> Merger | None:
        """Return a filter that merges with this one. The caller ensures that this one covers no stored filter
        and is covered by none."""
        for agreement, values in _agreements(filter):
            group = self._groups.get(agreement)
            for other in group.candidates(values) if group is not None else ():
                union = merge_pair(filter, other)
                if union is not None:
                    return Merger(agreement.name, other, union)
        return None


class _Agreement:
    """All conditions of a box except those on one attribute."""

    __slots__ = ("_hash", "_others", "name")

    def __init__(self, name: str, others: tuple[tuple[str, ValueSet], ...], hash_of_others: int) -> None:
        self.name = name
        self._others = others
        self._hash = hash((name, hash_of_others))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Agreement)
        return self._hash == other._hash and self.name == other.name and self._others == other._others


_known: WeakKeyDictionary[Filter, list[tuple[_Agreement, ValueSet]]] = WeakKeyDictionary()


def _agreements(filter: Filter) -> list[tuple[_Agreement, ValueSet]]:
    found = _known.get(filter)
    if found is None:
        found = _known[filter] = _find_agreements(filter)
    return found


def _find_agreements(filter: Filter) -> list[tuple[_Agreement, ValueSet]]:
    if filter.boxes is None or len(filter.boxes) != 1:
        return []
    items = sorted(filter.boxes[0].items(), key=itemgetter(0))
    hashes = [hash(item) for item in items]
    together = 0
    for one in hashes:
        together ^= one
    return [
        (_Agreement(name, tuple(items[:at] + items[at + 1 :]), together ^ hashes[at]), values)
        for at, (name, values) in enumerate(items)
        # Patterns have no simple union with other sets.
        if not values.patterns
    ]


class Shape(NamedTuple):
    """The properties of a value set that decide with which others it may have a simple union."""

    is_number: bool
    points: int
    """Number of single values; 0 if it is not a list of such."""
    ends: tuple[Any, Any] | None
    """Ends of a single range."""


def shape_of(values: ValueSet) -> Shape | None:
    """Return the shape; None for other sets than a range or a list of values of one type."""
    if values.marks or bool(values.numbers) is bool(values.strings):
        return None
    cuts: tuple[Any, ...] = values.numbers or values.strings
    found: list[Any] | None = number_points(values.numbers) or string_points(values.strings)
    ends = (cuts[0], cuts[1]) if len(cuts) == 2 else None
    return Shape(bool(values.numbers), len(found or ()), ends) if found or ends else None


class _Group:
    """Filters that agree on all attributes but one, by their values of that one."""

    def __init__(self) -> None:
        self._ranges: dict[bool, list[tuple[Any, Any, Filter]]] = {True: [], False: []}
        """Ranges of numbers and of strings, by their start."""
        self._lists: dict[tuple[bool, int], dict[Filter, None]] = {}
        """Lists by type and length."""
        self._odd: dict[Filter, None] = {}

    def is_empty(self) -> bool:
        return not (self._ranges[True] or self._ranges[False] or self._lists or self._odd)

    def add(self, filter: Filter, values: ValueSet) -> None:
        shape = shape_of(values)
        if shape is None:
            self._odd[filter] = None
            return
        if shape.ends is not None:
            ranges = self._ranges[shape.is_number]
            place = bisect_left(ranges, shape.ends[0], key=itemgetter(0))
            ranges.insert(place, (*shape.ends, filter))
        if shape.points:
            self._lists.setdefault((shape.is_number, shape.points), {})[filter] = None

    def remove(self, filter: Filter, values: ValueSet) -> None:
        shape = shape_of(values)
        if shape is None:
            del self._odd[filter]
            return
        if shape.ends is not None:
            ranges = self._ranges[shape.is_number]
            place = bisect_left(ranges, shape.ends[0], key=itemgetter(0))
            while ranges[place][2] is not filter:
                place += 1
            del ranges[place]
        if shape.points:
            lists = self._lists[shape.is_number, shape.points]
            del lists[filter]
            if not lists:
                del self._lists[shape.is_number, shape.points]

    def candidates(self, values: ValueSet) -> list[Filter]:
        shape = shape_of(values)
        if shape is None:
            return list(islice(self._odd, ODD_ASKED_MAX))
        found: list[Filter] = []
        if shape.ends is not None:
            low, high = shape.ends
            ranges = self._ranges[shape.is_number]
            place = bisect_left(ranges, low, key=itemgetter(0))
            if place > 0 and ranges[place - 1][1] >= low:
                found.append(ranges[place - 1][2])
            if place < len(ranges) and ranges[place][0] <= high:
                found.append(ranges[place][2])
        if shape.points:
            # The longest list with room, so that few are left half full.
            for length in range(LIST_MAX - shape.points, 0, -1):
                found += islice(self._lists.get((shape.is_number, length), ()), 1)
        return found
