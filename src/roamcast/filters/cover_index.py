"""Find filters that cover another one, or are covered by it, without testing each of them.

Of every filter an outline is kept: for each attribute that all of its boxes restrict, the marks it lets
through, how far its numbers and its strings reach, and the levels of its topic. A filter that covers another
has an outline around the other's. Outlines are kept as rows of bits, one bit per filter (see
`outline_masks.py`), so that a lookup is a few operations on long integers; only the remaining filters are
tested.
"""

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from roamcast.filters.covering import Box
from roamcast.filters.filter import Filter
from roamcast.filters.outline_masks import Outline, OutlineMasks, Span
from roamcast.filters.values import ValueSet, number_points, string_points

REFUSALS_MAX = 512
"""Failed tests allowed per lookup. Beyond that, untested filters count as not covering: that costs a router
an unnecessary entry, but never a notification."""


class CoverIndex:
    """Filters in order of arrival; answers have this order."""

    def __init__(self) -> None:
        self._number_of: dict[Filter, int] = {}
        self._next_number = 0
        self._masks: list[OutlineMasks] = []
        self._with_room: dict[int, None] = {}
        self._places: dict[Filter, tuple[int, int]] = {}
        self._empty: dict[Filter, None] = {}
        """Filters that match nothing: every filter covers them."""
        self._complex: dict[Filter, None] = {}
        """Filters too complex for boxes: only a filter without any condition covers them."""

    def add(self, filter: Filter) -> None:
        self._number_of[filter], self._next_number = self._next_number, self._next_number + 1
        outline = outline_of(filter)
        if outline is None:
            self._without_outline(filter)[filter] = None
            return
        if not self._with_room:
            self._with_room[len(self._masks)] = None
            self._masks.append(OutlineMasks())
        at = next(iter(self._with_room))
        self._places[filter] = at, self._masks[at].add(filter, outline)
        if self._masks[at].is_full():
            del self._with_room[at]

    def remove(self, filter: Filter) -> None:
        """Remove a filter; KeyError if it is not there."""
        del self._number_of[filter]
        place = self._places.pop(filter, None)
        if place is None:
            del self._without_outline(filter)[filter]
            return
        at, slot = place
        self._masks[at].remove(slot)
        self._with_room[at] = None

    def _without_outline(self, filter: Filter) -> dict[Filter, None]:
        return self._complex if filter.boxes is None else self._empty

    def first_covering(self, filter: Filter) -> Filter | None:
        """Return the first filter that covers this one; the filter itself, if it is here."""
        if filter in self._number_of:
            return filter
        if filter.boxes == ():
            return next(iter(self._number_of), None)
        outline = outline_of(filter) or {}
        found = [one for masks in self._masks for one in masks.around(outline)]
        return next(self._agreeing(found, lambda one: one.covers(filter)), None)

    def covered_by(self, filter: Filter) -> list[Filter]:
        """Return all filters that this one covers, including itself if it is here."""
        found = list(self._empty)
        outline = outline_of(filter)
        if outline is not None:
            found += [one for masks in self._masks for one in masks.within(outline)]
        if outline == {}:
            found += self._complex
        agreeing = dict.fromkeys(self._agreeing(found, filter.covers))
        if filter in self._number_of:
            agreeing[filter] = None
        return list(agreeing)

    def _agreeing(self, found: list[Filter], agrees: Callable[[Filter], bool]) -> Iterator[Filter]:
        if len(found) > 1:
            found.sort(key=self._number_of.__getitem__)
        refusals = 0
        for one in found:
            if agrees(one):
                yield one
            else:
                refusals += 1
                if refusals == REFUSALS_MAX:
                    break


_outlines: WeakKeyDictionary[Filter, Outline | None] = WeakKeyDictionary()


def outline_of(filter: Filter) -> Outline | None:
    if filter not in _outlines:
        _outlines[filter] = _new_outline(filter)
    return _outlines[filter]


def _new_outline(filter: Filter) -> Outline | None:
    boxes = filter.boxes
    if not boxes:
        return None
    if len(boxes) == 1:
        return {name: _span(values) for name, values in boxes[0].items()}
    common = [name for name in boxes[0] if all(name in box for box in boxes)]
    return {name: _joined(name, boxes) for name in common}


def _span(values: ValueSet) -> Span:
    numbers, strings = values.numbers, values.strings
    return Span(
        values.marks,
        (numbers[0], numbers[-1], numbers[::2] if number_points(numbers) else ()) if numbers else None,
        (strings[0], strings[-1], strings[::2] if string_points(strings) else ()) if strings else None,
        bool(values.patterns),
        _levels(values),
    )


def _levels(values: ValueSet) -> tuple[str, ...]:
    """Return the levels if the values are a topic filter or a single string; else none."""
    if values.topic is not None and values.topic_exact:
        return values.topic.levels
    points = string_points(values.strings) if len(values.strings) == 2 else None
    if points is None:
        return ()
    levels = tuple(points[0].split("/"))
    # A string with such a level is not the topic filter that looks like it.
    return () if "+" in levels or "#" in levels else levels


def _joined(name: str, boxes: tuple[Box, ...]) -> Span:
    """Return the range from the lowest to the highest value of several boxes."""
    spans = [_span(box[name]) for box in boxes]
    numbers = [span.numbers for span in spans if span.numbers is not None]
    strings = [span.strings for span in spans if span.strings is not None]
    marks = 0
    for span in spans:
        marks |= span.marks
    return Span(
        marks,
        (min(one[0] for one in numbers), max(one[1] for one in numbers), ()) if numbers else None,
        (min(one[0] for one in strings), max(one[1] for one in strings), ()) if strings else None,
        any(span.is_patterned for span in spans),
        (),
    )
