"""One attribute's values, cut into numbered rows, for the tables of the index.

All values in a row are alike to every condition whose ends are cuts of the
axis. Conditions with other ends still find their rows, but the row where such
an end lies is only partly theirs: there the filter itself has to be asked.

Rows 0 to 3 are absent, NaN, FALSE and TRUE. Then come the numbers, a row for
each cut and one for each gap around them, and then the strings, a row for each
gap (a string cut lies between strings, see values.py).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from roamcast.filters.values import ABSENT, BOTTOM, END, FALSE, NAN, START, TOP, TRUE, ValueSet

RowRange = tuple[int, int]

_ROW_OF_MARK = ((ABSENT, 0), (NAN, 1), (FALSE, 2), (TRUE, 3))
FIRST_NUMBER_ROW = 4


class Axis:
    __slots__ = ("numbers", "string_base", "strings")

    def __init__(self, numbers: list[float], strings: list[str]) -> None:
        self.numbers = numbers
        self.strings = strings
        self.string_base = FIRST_NUMBER_ROW + 2 * len(numbers) + 1

    @property
    def row_count(self) -> int:
        return self.string_base + len(self.strings) + 1

    def row_of(self, value: Any) -> int:
        kind = value.__class__
        if kind is float or kind is int:
            numbers = self.numbers
            place = bisect_left(numbers, value)
            if place < len(numbers) and numbers[place] == value:
                return 2 * place + FIRST_NUMBER_ROW + 1
            return 1 if value != value else 2 * place + FIRST_NUMBER_ROW
        if kind is str:
            return self.string_base + bisect_right(self.strings, value)
        if kind is bool:
            return 3 if value else 2
        return 0

    def place(self, values: ValueSet) -> tuple[list[RowRange], list[RowRange]]:
        """Rows that are wholly within the set, and rows that may be partly within it."""
        whole: list[RowRange] = [(row, row + 1) for mark, row in _ROW_OF_MARK if values.marks & mark]
        partly: list[RowRange] = []
        self._place_numbers(values, whole, partly)
        # A pattern may refuse any string of a row.
        self._place_strings(values, partly if values.patterns else whole, partly)
        return whole, partly

    def _place_numbers(self, values: ValueSet, whole: list[RowRange], partly: list[RowRange]) -> None:
        cuts = values.numbers
        for low, high in zip(cuts[::2], cuts[1::2], strict=True):
            gaps: list[int] = []
            first, last = FIRST_NUMBER_ROW, self.string_base
            if low != BOTTOM:
                place = bisect_left(self.numbers, low[0])
                if place < len(self.numbers) and self.numbers[place] == low[0]:
                    first = FIRST_NUMBER_ROW + 2 * place + 1 + low[1]
                else:
                    gaps.append(FIRST_NUMBER_ROW + 2 * place)
                    first = gaps[-1] + 1
            if high != TOP:
                place = bisect_left(self.numbers, high[0])
                if place < len(self.numbers) and self.numbers[place] == high[0]:
                    last = FIRST_NUMBER_ROW + 2 * place + 1 + high[1]
                else:
                    last = FIRST_NUMBER_ROW + 2 * place
                    if last not in gaps:
                        gaps.append(last)
            if first < last:
                whole.append((first, last))
            partly += [(gap, gap + 1) for gap in gaps]

    def _place_strings(self, values: ValueSet, whole: list[RowRange], partly: list[RowRange]) -> None:
        cuts, base = values.strings, self.string_base
        for low, high in zip(cuts[::2], cuts[1::2], strict=True):
            gaps: list[int] = []
            first, last = base, self.row_count
            if low != START:
                place = bisect_left(self.strings, low[1])
                first = base + place + 1
                if place == len(self.strings) or self.strings[place] != low[1]:
                    gaps.append(base + place)
            if high != END:
                place = bisect_left(self.strings, high[1])
                last = base + place
                if place < len(self.strings) and self.strings[place] == high[1]:
                    last += 1
                elif last not in gaps:
                    gaps.append(last)
            if first < last:
                whole.append((first, last))
            partly += [(gap, gap + 1) for gap in gaps]


def number_ends(values: ValueSet) -> list[float]:
    return [cut[0] for cut in values.numbers if cut not in (BOTTOM, TOP)]


def string_ends(values: ValueSet) -> list[str]:
    return [cut[1] for cut in values.strings if cut not in (START, END)]


def suited_axis(
    sets: Iterable[ValueSet], max_numbers: int, max_strings: int, more_numbers: Iterable[float] = ()
) -> Axis:
    """An axis for these sets, and for ranges that end at more numbers: all ends as cuts, or if too many a
    sample that follows their density."""
    numbers: list[float] = list(more_numbers)
    strings: list[str] = []
    for values in sets:
        numbers += number_ends(values)
        strings += string_ends(values)
    return Axis(thinned(numbers, max_numbers), thinned(strings, max_strings))


def thinned(ends: list, limit: int) -> list:  # type: ignore[type-arg]
    """At most `limit` of the ends, rising; those that occur often are among them."""
    distinct = sorted(set(ends))
    if len(distinct) <= limit:
        return distinct
    ends.sort()
    return list(dict.fromkeys(ends[(2 * i + 1) * len(ends) // (2 * limit)] for i in range(limit)))
