"""The parts of the index that look one attribute up: equalities and topic filters.

Each part holds entry numbers. If the attribute alone decides, a number is "sure"; otherwise it comes with the
filter's predicate, which is evaluated.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from roamcast.filters.compiling import Predicate
from roamcast.filters.expression import Attributes
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.region_index import RegionIndex
from roamcast.filters.values import FALSE, TRUE, ValueSet, number_points, string_points

# As dictionary keys, True and 1 are equal in Python.
_TRUE, _FALSE = object(), object()


_NO_CHECKS: Mapping[int, Predicate] = MappingProxyType({})


class Bucket:
    """Entries found in one place. `sure` is sorted, because entry numbers rise and are appended."""

    __slots__ = ("_checks", "sure")

    def __init__(self) -> None:
        self.sure: list[int] = []
        self._checks: dict[int, Predicate] | None = None

    @property
    def checks(self) -> Mapping[int, Predicate]:
        return _NO_CHECKS if self._checks is None else self._checks

    def add(self, number: int, check: Predicate | None) -> None:
        if check is None:
            self.sure.append(number)
            return
        if self._checks is None:
            self._checks = {}
        self._checks[number] = check

    def discard(self, number: int) -> None:
        if self._checks is None or self._checks.pop(number, None) is None:
            place = bisect_left(self.sure, number)
            if place < len(self.sure) and self.sure[place] == number:
                del self.sure[place]

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        found += self.sure
        if self._checks:
            found += [number for number, check in self._checks.items() if check(attributes)]

    def __bool__(self) -> bool:
        return bool(self.sure or self._checks)


class Column:
    """Everything the index knows about one attribute alone."""

    __slots__ = ("_equal", "_regions", "_topics")

    def __init__(self) -> None:
        self._equal: dict[object, Bucket | int] = {}
        """By value: its entries; a single entry is stored without a bucket."""
        self._topics: TopicTree | None = None
        self._regions: RegionIndex | None = None

    def add(self, number: int, values: ValueSet, check: Predicate | None) -> Callable[[], None]:
        """Add a list of values, a topic filter or a region; returns a function that removes it.

        `check` tests further conditions, and is called when this one matches.
        """
        if values.region is not None and (values.region_exact or check is not None):
            if self._regions is None:
                self._regions = RegionIndex()
            return self._regions.add(number, values.region, check)
        points = points_of(values)
        if points is None:
            assert values.topic is not None
            if self._topics is None:
                self._topics = TopicTree()
            self._topics.bucket(values.topic).add(number, check)
            return partial(self._topics.remove, number, values.topic)
        for point in points:
            self._add_point(number, point, check)
        return partial(self._remove_points, number, points)

    def _add_point(self, number: int, point: object, check: Predicate | None) -> None:
        known = self._equal.get(point)
        if known is None and check is None:
            self._equal[point] = number
            return
        if not isinstance(known, Bucket):
            bucket = self._equal[point] = Bucket()
            if known is not None:
                bucket.add(known, None)
            known = bucket
        known.add(number, check)

    def add_plain(self, number: int, asked: str | TopicPattern) -> None:
        """Add one string, or a topic filter: the usual case."""
        if isinstance(asked, str):
            self._add_point(number, asked, None)
            return
        if self._topics is None:
            self._topics = TopicTree()
        self._topics.bucket(asked).add(number, None)

    def remove_plain(self, number: int, asked: str | TopicPattern) -> None:
        if isinstance(asked, str):
            self._remove_points(number, [asked])
        elif self._topics is not None:
            self._topics.remove(number, asked)

    def waiting(self, values: ValueSet) -> int:
        """Return how many predicates are evaluated when this value or topic filter matches."""
        points = points_of(values)
        bucket: Bucket | int | None
        if points is not None:
            bucket = self._equal.get(points[0])
        else:
            assert values.topic is not None
            bucket = None if self._topics is None else self._topics.find(values.topic)
        return len(bucket.checks) if isinstance(bucket, Bucket) else 0

    def __bool__(self) -> bool:
        return bool(self._equal or self._topics or self._regions)

    def collect(self, value: object, attributes: Attributes, found: list[int]) -> None:
        if self._equal and value is not None:
            key = value if value.__class__ is not bool else _TRUE if value else _FALSE
            bucket = self._equal.get(key)
            if bucket.__class__ is int:
                found.append(bucket)
            elif bucket is not None:
                bucket.collect(attributes, found)  # type: ignore[union-attr]
        if value.__class__ is str and self._topics is not None:
            self._topics.collect(str(value), attributes, found)
        if value.__class__ is str and self._regions is not None:
            self._regions.collect(str(value), attributes, found)

    def _remove_points(self, number: int, points: list[object]) -> None:
        for point in points:
            bucket = self._equal.get(point)
            if isinstance(bucket, Bucket):
                bucket.discard(number)
                if not bucket:
                    del self._equal[point]
            elif bucket == number:
                # Two boxes of one entry can be here, and the first removal removed both.
                del self._equal[point]


def is_looked_up(values: ValueSet) -> bool:
    """True if a column can hold exactly this set."""
    is_named = (values.topic is not None and values.topic_exact) or values.region_exact
    return is_named or points_of(values) is not None


def points_of(values: ValueSet) -> list[object] | None:
    """Return the members of a set as dictionary keys, if they are finitely many values."""
    if values.marks & ~(TRUE | FALSE) or values.patterns:
        return None
    strings = string_points(values.strings)
    numbers = number_points(values.numbers)
    if strings is None or numbers is None:
        return None
    points: list[object] = [*strings, *numbers]
    points += [_TRUE] * bool(values.marks & TRUE) + [_FALSE] * bool(values.marks & FALSE)
    return points


NO_LEVELS: "dict[str, _Level]" = {}
"""Shared empty children of levels without any."""


class _Level:
    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = NO_LEVELS
        self.here: Bucket | None = None
        """Filters that end at this level."""
        self.rest: Bucket | None = None
        """Filters with a `#` behind this level."""

    def __bool__(self) -> bool:
        return bool(self.children or self.here or self.rest)


class TopicTree:
    """Topic filters by level, so that the search skips all filters that differ at a level."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Level()

    def bucket(self, pattern: TopicPattern) -> Bucket:
        """Return the place of a topic filter, created if new."""
        level = self._root
        for name in _names(pattern):
            child = level.children.get(name)
            if child is None:
                if level.children is NO_LEVELS:
                    level.children = {}
                child = level.children[name] = _Level()
            level = child
        bucket: Bucket | None = getattr(level, _kind(pattern))
        if bucket is None:
            bucket = Bucket()
            setattr(level, _kind(pattern), bucket)
        return bucket

    def find(self, pattern: TopicPattern) -> Bucket | None:
        """Return the place of a topic filter, if it exists."""
        path = self._path(pattern)
        return getattr(path[-1], _kind(pattern)) if path else None

    def _path(self, pattern: TopicPattern) -> list[_Level]:
        """Return the levels from the root to the filter's place; empty if there is no such place."""
        path = [self._root]
        for name in _names(pattern):
            level = path[-1].children.get(name)
            if level is None:
                return []
            path.append(level)
        return path

    def remove(self, number: int, pattern: TopicPattern) -> None:
        bucket = self.find(pattern)
        if bucket is None:
            # Two boxes of one entry can be here, and the first removal removed both.
            return
        bucket.discard(number)
        path = self._path(pattern)
        if not bucket:
            setattr(path[-1], _kind(pattern), None)
        for depth in range(len(path) - 1, 0, -1):
            if path[depth]:
                break
            del path[depth - 1].children[pattern.levels[depth - 1]]

    def __bool__(self) -> bool:
        return bool(self._root)

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
                # A topic level that is literally "+" is invalid in MQTT, and must not count twice.
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


def _names(pattern: TopicPattern) -> tuple[str, ...]:
    return pattern.levels[:-1] if pattern.levels[-1] == "#" else pattern.levels


def _kind(pattern: TopicPattern) -> str:
    return "rest" if pattern.levels[-1] == "#" else "here"
