"""Spatial index of regions, so that a position is compared only with nearby ones.

The map of latitude and longitude is divided into squares, in several sizes, each half as large as the one
before. A region is entered in a few squares, mostly four: those of the smallest size at which it overlaps
only a few. A position lies in one square of each size.
"""

from collections.abc import Callable
from functools import partial
from math import floor

from roamcast.filters.compiling import Predicate
from roamcast.filters.expression import Attributes
from roamcast.filters.geography import Bounds, Region, position_of

SMALLEST = 24
"""Squares of this size are two metres wide."""

Square = tuple[int, int, int]
"""Level (how often the earth is halved), and place counted from the south and from the west."""


class RegionIndex:
    __slots__ = ("_next", "_sizes", "_squares")

    def __init__(self) -> None:
        self._next = 0
        self._squares: dict[Square, dict[int, tuple[int, Region, Predicate | None]]] = {}
        """Numbers, with their regions and further conditions. One number may have several regions."""
        self._sizes: dict[int, int] = {}
        """Number of squares of each size."""

    def add(self, number: int, region: Region, check: Predicate | None) -> Callable[[], None]:
        """Add a region; returns a function that removes it. `check` tests further conditions."""
        squares = _squares(region.bounds)
        handle, self._next = self._next, self._next + 1
        for square in squares:
            entries = self._squares.get(square)
            if entries is None:
                entries = self._squares[square] = {}
                self._sizes[square[0]] = self._sizes.get(square[0], 0) + 1
            entries[handle] = number, region, check
        return partial(self._remove, handle, squares)

    def _remove(self, handle: int, squares: list[Square]) -> None:
        for square in squares:
            entries = self._squares[square]
            del entries[handle]
            if not entries:
                del self._squares[square]
                self._sizes[square[0]] -= 1
                if not self._sizes[square[0]]:
                    del self._sizes[square[0]]

    def __bool__(self) -> bool:
        return bool(self._squares)

    def collect(self, value: str, attributes: Attributes, found: list[int]) -> None:
        place = position_of(value)
        if place is None:
            return
        north, east = (place.latitude + 90) / 360, (place.longitude + 180) / 360
        for size in self._sizes:
            scale = 1 << size
            entries = self._squares.get((size, floor(north * scale), floor(east * scale) % scale))
            if entries is not None:
                found += [
                    number
                    for number, region, check in entries.values()
                    if region.holds(place) and (check is None or check(attributes))
                ]


def _squares(bounds: Bounds) -> list[Square]:
    size, widest = 0, max(bounds.north - bounds.south, bounds.width)
    while size < SMALLEST and widest * (1 << (size + 1)) <= 360:
        size += 1
    scale = 1 << size
    south, north = (floor((one + 90) / 360 * scale) for one in (bounds.south, bounds.north))
    west = floor((bounds.west + 180) / 360 * scale)
    east = floor((bounds.west + bounds.width + 180) / 360 * scale)
    return [
        (size, row, column)
        for row in range(south, north + 1)
        for column in dict.fromkeys(column % scale for column in range(west, east + 1))
    ]
