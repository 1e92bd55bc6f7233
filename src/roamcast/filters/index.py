"""Find the subscriptions that match a notification, without testing each of them.

A filter is a union of boxes (covering.py). Each box is entered in one place:

- a filter that asks for one string or matches one topic filter, in that attribute's column: no box is made;
- a box with a region, in the column of that attribute: few others are there;
- a box with one attribute, in that attribute's column if it lists values or is a
  topic filter, else in a table of the boxes with this attribute alone;
- a box with several attributes, in the table of such boxes as long as that is small;
  later under an equality or topic filter of its own that few others use (the filter
  is asked only when that is met), or else in the table as well.

A filter too complex for boxes is evaluated for every notification.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from roamcast.filters.box_table import BoxTable
from roamcast.filters.columns import Column, is_looked_up, points_of
from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes, Compare, Expression, Matches
from roamcast.filters.filter import Filter
from roamcast.filters.patterns import TopicPattern
from roamcast.state import State

K = TypeVar("K", bound=Hashable)

# Boxes of several attributes that may wait under one equality or topic filter: more of them cost less in the
# table than being asked.
MAX_WAITING = 4


class FilterIndex(Generic[K]):
    """Keys with their filters; `match` lists the keys whose filter matches, in the order they were added."""

    __state__ = State(
        "filter-index",
        saved=("_filters",),
        derived=(
            "_asked", "_columns", "_entries", "_key_of", "_label_of", "_next_number", "_repeating", "_tables",
        ),
    )  # fmt: skip

    def __init__(self) -> None:
        self._filters: dict[K, Filter] = {}
        # Entries are numbered in order of arrival; the parts below store the numbers, which give the order of
        # results.
        self._next_number = 0
        self._key_of: dict[int, K] = {}
        self._entries: dict[K, int | tuple[int, list[Callable[[], None]]]] = {}
        """By key: its number and, unless the filter determines them, the functions that remove its boxes."""
        self._columns: dict[str, Column] = {}
        self._label_of: dict[int, Hashable] = {}
        self._tables: dict[str | None, BoxTable] = {}
        """Boxes with this attribute alone; under None, those with several attributes."""
        self._asked: dict[int, Predicate] = {}
        # Entries of more than one box may be found more than once.
        self._repeating = 0

    def _restore(self) -> None:
        """Restore from keys and filters, which determine everything else and take less room."""
        filters = self._filters
        self.__init__()  # type: ignore[misc]
        for key, filter in filters.items():
            self.add(key, filter)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def add(self, key: K, filter: Filter) -> None:
        """Add a key with its filter; a known key gets the new filter and moves to the end."""
        if key in self._entries:
            self.remove(key)
        number, self._next_number = self._next_number, self._next_number + 1
        self._key_of[number] = key
        self._filters[key] = filter
        plain = _plain(filter.expression)
        if plain is not None:
            name, asked = plain
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = Column()
            column.add_plain(number, asked)
            self._entries[key] = number
            return
        boxes = filter.boxes
        if boxes is None or boxes == ({},):
            self._asked[number] = filter.matches
            places: list[Callable[[], None]] = [partial(self._asked.__delitem__, number)]
        else:
            places = [self._enter(number, box, filter.matches) for box in boxes]
        self._repeating += len(places) > 1
        self._entries[key] = (number, places)

    def label(self, key: K, label: Hashable) -> None:
        """Give a key a label, which other keys may have too: see `labels`. No snapshot holds it."""
        entry = self._entries[key]
        self._label_of[entry if isinstance(entry, int) else entry[0]] = label
        for table in self._tables.values():
            for masks in table.sets:
                masks.relabel()

    def remove(self, key: K) -> None:
        """Remove a key; KeyError if it is not there."""
        entry, filter = self._entries.pop(key), self._filters.pop(key)
        number, places = (entry, []) if isinstance(entry, int) else entry
        del self._key_of[number]
        self._label_of.pop(number, None)
        plain = _plain(filter.expression)
        if plain is not None:
            name, asked = plain
            self._columns[name].remove_plain(number, asked)
            if not self._columns[name]:
                del self._columns[name]
            return
        self._repeating -= len(places) > 1
        for take_out in places:
            take_out()

    def match(self, attributes: Attributes) -> list[K]:
        found = self._found(attributes)
        for table in self._tables.values():
            for masks in table.sets:
                masks.collect(attributes, found)
        if self._repeating:
            found = sorted(set(found))
        else:
            found.sort()
        return list(map(self._key_of.__getitem__, found))

    def labels(self, attributes: Attributes) -> tuple[Hashable, ...]:
        """Return the labels of the keys whose filter matches, each once, in the order of their first key.

        All keys must have one. Where many have the same, this takes less time than finding all keys.
        """
        found = self._found(attributes)
        for table in self._tables.values():
            for masks in table.sets:
                masks.collect_distinct(attributes, found)
        if len(found) > 1:
            found.sort()
            return tuple(dict.fromkeys(map(self._label_of.__getitem__, found)))
        return (self._label_of[found[0]],) if found else ()

    def labels_of_each(self, contents: Sequence[Attributes]) -> list[tuple[Hashable, ...]]:
        """Return the labels for each of many notifications."""
        if not self._columns and not self._asked:
            sets = [masks for table in self._tables.values() for masks in table.sets]
            found = sets[0].labels_of_each(contents) if len(sets) == 1 else None
            if found is not None:
                return found
        return list(map(self.labels, contents))

    def _found(self, attributes: Attributes) -> list[int]:
        """Return the numbers of matching entries that are not in a table of boxes."""
        found: list[int] = []
        get = attributes.get
        for name, column in self._columns.items():
            column.collect(get(name), attributes, found)
        if self._asked:
            found += [number for number, check in self._asked.items() if check(attributes)]
        return found

    def _enter(self, number: int, box: Box, predicate: Predicate) -> Callable[[], None]:
        """Put a box in its place; returns a function that removes it."""
        name = next(iter(box)) if len(box) == 1 else None
        table, spot, check = self._tables.get(name), None, None
        region = next((name for name, values in box.items() if values.region is not None), None)
        if name is not None and is_looked_up(box[name]):
            spot = name
        elif region is not None:
            spot, check = region, predicate
        elif name is None and table is not None and not table.has_room():
            spot, check = self._quiet_spot(box), predicate
        if spot is not None:
            column = self._columns.setdefault(spot, Column())
            return partial(_leave, self._columns, spot, column.add(number, box[spot], check))
        if table is None:
            table = self._tables[name] = BoxTable(self._label_of)
        return partial(_leave, self._tables, name, table.add(number, box, predicate))

    def _quiet_spot(self, box: Box) -> str | None:
        """Return the attribute whose equality or topic filter has the fewest waiting entries, if these are
        few."""
        best, fewest = None, MAX_WAITING
        for name, values in box.items():
            points = points_of(values)
            if values.topic is None and (points is None or len(points) != 1):
                continue
            column = self._columns.get(name)
            waiting = 0 if column is None else column.waiting(values)
            if waiting < fewest:
                best, fewest = name, waiting
        return best


def _plain(expression: Expression) -> tuple[str, str | TopicPattern] | None:
    """Return the attribute, and its required string or topic filter, if there is no other condition."""
    if type(expression) is Compare:
        value = expression.value
        return (expression.name, value) if expression.operator == "=" and isinstance(value, str) else None
    if type(expression) is Matches and not expression.negative:
        return expression.name, expression.pattern
    return None


def _leave(places: dict[Any, Any], name: str | None, take_out: Callable[[], None]) -> None:
    """Remove a box from a column or table, and remove that if empty."""
    take_out()
    if not places[name]:
        del places[name]
