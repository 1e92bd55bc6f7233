"""The parts of the index that look at one attribute: equalities, topic filters, ranges.

Each part holds entry numbers. Where the attribute decides alone, a number is
"sure"; otherwise it comes with the filter's predicate, which is asked.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from roamcast.filters.axis import FIRST_NUMBER_ROW, Axis, number_ends, string_ends, suited_axis
from roamcast.filters.compiling import Predicate
from roamcast.filters.expression import Attributes
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.values import FALSE, TRUE, ValueSet, number_points, string_points

MAX_CUTS = 512
MIN_REBUILD = 256
CROWD = 64

# Python takes True and 1 for the same dictionary key.
_TRUE, _FALSE = object(), object()


class Bucket:
    """Entries found in one place. `sure` rises, because entry numbers do and are appended."""

    __slots__ = ("checks", "sure")

    def __init__(self) -> None:
        self.sure: list[int] = []
        self.checks: dict[int, Predicate] = {}

    def add(self, number: int, check: Predicate | None) -> None:
        if check is None:
            self.sure.append(number)
        else:
            self.checks[number] = check

    def discard(self, number: int) -> None:
        if self.checks.pop(number, None) is None:
            place = bisect_left(self.sure, number)
            if place < len(self.sure) and self.sure[place] == number:
                del self.sure[place]

    def copy(self) -> "Bucket":
        twin = Bucket()
        twin.sure = self.sure.copy()
        twin.checks = self.checks.copy()
        return twin

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        found += self.sure
        if self.checks:
            found += [number for number, check in self.checks.items() if check(attributes)]

    def is_empty(self) -> bool:
        return not self.sure and not self.checks


class Column:
    """All that the index knows about one attribute alone."""

    __slots__ = ("_equal", "_segments", "_topics")

    def __init__(self) -> None:
        self._equal: dict[object, Bucket] = {}
        self._topics = TopicTree()
        self._segments: Segments | None = None

    def add(self, number: int, values: ValueSet, predicate: Predicate) -> Callable[[], None]:
        """Enter a condition that is decided by this attribute alone; returns how to take it out."""
        points = points_of(values)
        if points is not None:
            return self._add_points(number, points, None)
        if values.topic is not None and values.topic_exact:
            self._topics.bucket(values.topic).add(number, None)
            return partial(self._topics.remove, number, values.topic)
        if self._segments is None:
            self._segments = Segments()
        return partial(self._segments.remove, self._segments.add(number, values, predicate))

    def add_waiting(self, number: int, values: ValueSet, predicate: Predicate) -> Callable[[], None]:
        """Enter a box that has further conditions: where this one is met, its filter is asked."""
        points = points_of(values)
        if points is not None:
            return self._add_points(number, points, predicate)
        assert values.topic is not None
        self._topics.bucket(values.topic).add(number, predicate)
        return partial(self._topics.remove, number, values.topic)

    def waiting(self, values: ValueSet) -> int:
        points = points_of(values)
        if points is not None:
            bucket = self._equal.get(points[0])
            return 0 if bucket is None else len(bucket.checks)
        assert values.topic is not None
        return self._topics.waiting(values.topic)

    def is_empty(self) -> bool:
        return not self._equal and not self._segments and self._topics.is_empty()

    def collect(self, value: object, attributes: Attributes, found: list[int]) -> None:
        if self._equal and value is not None:
            key = value if value.__class__ is not bool else _TRUE if value else _FALSE
            bucket = self._equal.get(key)
            if bucket is not None:
                bucket.collect(attributes, found)
        if self._segments is not None:
            self._segments.collect(value, attributes, found)
        if value.__class__ is str and not self._topics.is_empty():
            self._topics.collect(str(value), attributes, found)

    def _add_points(
        self, number: int, points: list[object], predicate: Predicate | None
    ) -> Callable[[], None]:
        for point in points:
            bucket = self._equal.get(point)
            if bucket is None:
                bucket = self._equal[point] = Bucket()
            bucket.add(number, predicate)
        return partial(self._remove_points, number, points)

    def _remove_points(self, number: int, points: list[object]) -> None:
        for point in points:
            bucket = self._equal.get(point)
            if bucket is None:
                # Two boxes of one entry can meet here, and the first has taken both out.
                continue
            bucket.discard(number)
            if bucket.is_empty():
                del self._equal[point]


def points_of(values: ValueSet) -> list[object] | None:
    """The members of a set as dictionary keys, if they are finitely many values."""
    if values.marks & ~(TRUE | FALSE) or values.patterns:
        return None
    strings = string_points(values.strings)
    numbers = number_points(values.numbers)
    if strings is None or numbers is None:
        return None
    points: list[object] = [*strings, *numbers]
    points += [_TRUE] * bool(values.marks & TRUE) + [_FALSE] * bool(values.marks & FALSE)
    return points


class TopicTree:
    """Topic filters by level, so that a topic walks past all filters that differ from it at once."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Level()

    def bucket(self, pattern: TopicPattern) -> Bucket:
        """The place of a topic filter, made if it is new."""
        level = self._root
        for name in pattern.levels:
            if name == "#":
                if level.rest is None:
                    level.rest = Bucket()
                return level.rest
            level = level.children.setdefault(name, _Level())
        if level.here is None:
            level.here = Bucket()
        return level.here

    def waiting(self, pattern: TopicPattern) -> int:
        level: _Level | None = self._root
        for name in pattern.levels:
            if level is None or name == "#":
                break
            level = level.children.get(name)
        if level is None:
            return 0
        bucket = level.rest if pattern.levels[-1] == "#" else level.here
        return 0 if bucket is None else len(bucket.checks)

    def remove(self, number: int, pattern: TopicPattern) -> None:
        path = [self._root]
        for name in pattern.levels:
            if name != "#":
                level = path[-1].children.get(name)
                if level is None:
                    # Two boxes of one entry can meet here, and the first has taken both out.
                    return
                path.append(level)
        last = path[-1]
        bucket = last.rest if pattern.levels[-1] == "#" else last.here
        if bucket is None:
            return
        bucket.discard(number)
        if bucket.is_empty():
            if pattern.levels[-1] == "#":
                last.rest = None
            else:
                last.here = None
        for depth in range(len(path) - 1, 0, -1):
            if path[depth].children or path[depth].here or path[depth].rest:
                break
            del path[depth - 1].children[pattern.levels[depth - 1]]

    def is_empty(self) -> bool:
        return not self._root.children and self._root.rest is None

    def collect(self, topic: str, attributes: Attributes, found: list[int]) -> None:
        root = self._root
        # A leading wildcard does not match topics that start with `$`.
        wild = not topic.startswith("$")
        if wild and root.rest is not None:
            root.rest.collect(attributes, found)
        levels = [root]
        for name in topic.split("/"):
            following: list[_Level] = []
            for level in levels:
                children = level.children
                child = children.get(name)
                # A level that is literally "+" in a topic is not valid MQTT, and must not count twice.
                if child is not None and name != "+":
                    following.append(child)
                if wild and (child := children.get("+")) is not None:
                    following.append(child)
            wild = True
            for level in following:
                if level.rest is not None:
                    level.rest.collect(attributes, found)
            levels = following
        for level in levels:
            if level.here is not None:
                level.here.collect(attributes, found)


class _Level:
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = {}
        self.here: Bucket | None = None
        self.rest: Bucket | None = None


class Segments:
    """Conditions on one attribute alone, as precomputed answers for each row of its axis.

    New ends split a row in place. Past MAX_CUTS ends they do not; entries then
    share rows and are asked, and the cuts are chosen anew whenever the number of
    entries has doubled or halved (or grown by an eighth while a row is crowded), so
    a change costs little on average.
    """

    __slots__ = (
        "_adds",
        "_axis",
        "_crowded",
        "_loose",
        "_members",
        "_next",
        "_rows",
        "_size_at_rebuild",
        "_uses",
    )

    def __init__(self) -> None:
        self._axis = Axis([], [])
        self._rows = [Bucket() for _ in range(self._axis.row_count)]
        self._members: dict[int, tuple[int, ValueSet, Predicate]] = {}
        self._next = 0
        # How many members have an end that is no cut.
        self._loose = 0
        self._uses: dict[float | str, int] = {}
        self._size_at_rebuild = 0
        self._adds = 0
        # Whether some row has too many to ask: ends that arrive in rising order all meet in the last one.
        self._crowded = False

    def __len__(self) -> int:
        return len(self._members)

    def add(self, number: int, values: ValueSet, predicate: Predicate) -> int:
        """Returns a handle for `remove`."""
        handle, self._next = self._next, self._next + 1
        self._members[handle] = (number, values, predicate)
        for end in _ends(values):
            self._uses[end] = self._uses.get(end, 0) + 1
        if not self._loose:
            self._cut(values)
        self._enter(number, values, predicate)
        self._adds += 1
        size = len(self._members)
        if self._loose and (
            size > max(MIN_REBUILD, 2 * self._size_at_rebuild) or (self._crowded and self._adds * 8 > size)
        ):
            self._rebuild()
        return handle

    def remove(self, handle: int) -> None:
        number, values, _ = self._members.pop(handle)
        whole, partly = self._axis.place(values)
        for first, last in whole + partly:
            for row in self._rows[first:last]:
                row.discard(number)
        self._loose -= self._is_loose(values)
        unused = [end for end in _ends(values) if self._release(end)]
        if not self._loose:
            self._mend(unused)
        elif len(self._members) * 2 < self._size_at_rebuild:
            self._rebuild()

    def collect(self, value: object, attributes: Attributes, found: list[int]) -> None:
        row = self._rows[self._axis.row_of(value)]
        found += row.sure
        if row.checks:
            found += [number for number, check in row.checks.items() if check(attributes)]

    def _enter(self, number: int, values: ValueSet, predicate: Predicate) -> None:
        whole, partly = self._axis.place(values)
        for first, last in whole:
            for row in self._rows[first:last]:
                row.add(number, None)
        for first, last in partly:
            for row in self._rows[first:last]:
                row.add(number, predicate)
                self._crowded = self._crowded or len(row.checks) > CROWD
        self._loose += self._is_loose(values)

    def _is_loose(self, values: ValueSet) -> bool:
        axis = self._axis
        return not (
            all(_holds(axis.numbers, end) for end in number_ends(values))
            and all(_holds(axis.strings, end) for end in string_ends(values))
        )

    def _cut(self, values: ValueSet) -> None:
        """Make the ends of a set cuts of the axis, as long as there is room."""
        axis, rows = self._axis, self._rows
        for number in number_ends(values):
            place = bisect_left(axis.numbers, number)
            if place == len(axis.numbers) or axis.numbers[place] != number:
                if len(axis.numbers) >= MAX_CUTS:
                    continue
                axis.numbers.insert(place, number)
                axis.string_base += 2
                row = FIRST_NUMBER_ROW + 2 * place
                rows[row:row] = [rows[row].copy(), rows[row].copy()]
        for text in string_ends(values):
            place = bisect_left(axis.strings, text)
            if place == len(axis.strings) or axis.strings[place] != text:
                if len(axis.strings) >= MAX_CUTS:
                    continue
                axis.strings.insert(place, text)
                row = axis.string_base + place
                rows.insert(row, rows[row].copy())

    def _mend(self, unused: list[float | str]) -> None:
        """Take back cuts that no member needs any more; the rows around them are equal."""
        axis, rows = self._axis, self._rows
        for end in unused:
            if isinstance(end, str):
                if _holds(axis.strings, end):
                    place = bisect_left(axis.strings, end)
                    del axis.strings[place]
                    del rows[axis.string_base + place]
            elif _holds(axis.numbers, end):
                place = bisect_left(axis.numbers, end)
                del axis.numbers[place]
                axis.string_base -= 2
                row = FIRST_NUMBER_ROW + 2 * place
                del rows[row : row + 2]

    def _release(self, end: float | str) -> bool:
        self._uses[end] -= 1
        if self._uses[end]:
            return False
        del self._uses[end]
        return True

    def _rebuild(self) -> None:
        self._size_at_rebuild = len(self._members)
        self._adds = 0
        self._axis = suited_axis((values for _, values, _ in self._members.values()), MAX_CUTS, MAX_CUTS)
        self._rows = [Bucket() for _ in range(self._axis.row_count)]
        self._loose = 0
        self._crowded = False
        for number, values, predicate in self._members.values():
            self._enter(number, values, predicate)


def _ends(values: ValueSet) -> list[float | str]:
    return [*number_ends(values), *string_ends(values)]


End = TypeVar("End", float, str)


def _holds(ends: list[End], end: End) -> bool:
    place = bisect_left(ends, end)
    return place < len(ends) and ends[place] == end
