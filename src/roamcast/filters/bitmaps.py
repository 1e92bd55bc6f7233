"""Conditions on several attributes: one bit per box, 64 boxes per machine operation.

For each attribute and each row of its axis a bitmap says which boxes refuse the
values of that row. A notification picks one row per attribute; what none of the
picked rows refuses, matches. Boxes without a condition on an attribute have no
bits there, so adding a box touches only the attributes it mentions.

The work per notification is one pass over a bitmap per attribute, whatever the
conditions are and however many of them each attribute value fulfils.
"""

from collections.abc import Callable
from math import inf, nextafter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.filters.axis import FIRST_NUMBER_ROW, Axis, suited_axis
from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes
from roamcast.filters.values import ValueSet

# Cuts per attribute. Numbers need few, because ranges are compared exactly afterwards.
MAX_NUMBERS, MAX_STRINGS = 128, 512
MIN_REBUILD = 32

Words = NDArray[np.uint64]
# Bytes and bits are addressed in little-endian order, whatever the machine's own is.
_WORD = np.dtype("<u8")
_GROWTH = 1.25
# Integers up to here are exact as floats.
_EXACT = 2**53


class Bitmaps:
    """Boxes by slot. `collect` finds the entry numbers of those that contain a notification."""

    def __init__(self) -> None:
        self._words = 1
        self._unused: Words = np.full(1, ~np.uint64(0), _WORD)
        self._numbers = np.zeros(64, np.int64)
        # The filters to ask for slots that bitmaps and ranges leave open, and which slots those are.
        self._predicates: list[Predicate | None] = [None] * 64
        self._open = np.zeros(64, np.bool_)
        # On how many attributes a slot is left open.
        self._loose = [0] * 64
        self._ranges = _Ranges(64)
        self._refusals: dict[str, _Refusals] = {}

    def add(self, slot: int, number: int, box: Box, predicate: Predicate) -> None:
        while slot >= self._words * 64:
            self._grow()
        self._numbers[slot] = number
        self._predicates[slot] = predicate
        self._loose[slot] = 0
        self._unused[slot >> 6] &= ~_bit(slot)
        for name, values in box.items():
            refusals = self._refusals.get(name)
            if refusals is None:
                refusals = self._refusals[name] = _Refusals(self._words, self._ranges.new_attribute())
            exact = self._ranges.add(slot, refusals.attribute, values)
            self._loose[slot] += refusals.add(slot, values, exact)
        self._open[slot] = self._loose[slot] > 0
        for name in box:
            if self._refusals[name].wants_rebuild():
                for changed, delta in self._refusals[name].rebuild():
                    self._loose[changed] += delta
                    self._open[changed] = self._loose[changed] > 0

    def remove(self, slot: int, box: Box) -> None:
        self._unused[slot >> 6] |= _bit(slot)
        self._predicates[slot] = None
        self._ranges.remove(slot)
        for name in box:
            refusals = self._refusals[name]
            refusals.remove(slot)
            if not refusals.members:
                self._ranges.free_attribute(refusals.attribute)
                del self._refusals[name]

    def _grow(self) -> None:
        added = max(1, int(self._words * (_GROWTH - 1)))
        self._words += added
        self._unused = np.concatenate([self._unused, np.full(added, ~np.uint64(0), _WORD)])
        self._numbers = np.concatenate([self._numbers, np.zeros(added * 64, np.int64)])
        self._open = np.concatenate([self._open, np.zeros(added * 64, np.bool_)])
        self._predicates += [None] * (added * 64)
        self._loose += [0] * (added * 64)
        self._ranges.widen(self._words * 64)
        for refusals in self._refusals.values():
            refusals.widen(self._words)

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        refused = self._unused.copy()
        merge = np.bitwise_or
        get: Callable[[str], Any] = attributes.get
        for name, refusals in self._refusals.items():
            merge(refused, refusals.rows[refusals.axis.row_of(get(name))], refused)
        np.invert(refused, refused)
        (words,) = refused.nonzero()
        if not len(words):
            return
        # Seen as booleans, the search for those that are set is many times faster.
        flags = np.unpackbits(refused.take(words).view(np.uint8), bitorder="little").view(np.bool_)
        (bits,) = flags.nonzero()
        slots = (words.take(bits >> 6) << 6) + (bits & 63)
        point = [0.0] * self._ranges.width
        for name, refusals in self._refusals.items():
            value = get(name)
            if value.__class__ is float or (value.__class__ is int and -_EXACT <= value <= _EXACT):
                point[refusals.attribute] = value
            elif value.__class__ is int:
                self._ask(slots, attributes, found)
                return
        slots = slots[self._ranges.hold(slots, np.array(point, np.float64))]
        left_open = self._open.take(slots)
        if left_open.any():
            self._ask(slots[left_open], attributes, found)
            slots = slots[~left_open]
        found += self._numbers.take(slots).tolist()

    def _ask(self, slots: NDArray[np.int64], attributes: Attributes, found: list[int]) -> None:
        predicates = self._predicates
        for slot, number in zip(slots.tolist(), self._numbers[slots].tolist(), strict=True):
            predicate = predicates[slot]
            if predicate is not None and predicate(attributes):
                found.append(number)


def _bit(slot: int) -> np.uint64:
    return np.uint64(1 << (slot & 63))


class _Ranges:
    """The ranges of numbers that each slot asks for, side by side in arrays.

    Ends of ranges are rarely cuts of the axis in a large table, so most
    candidates would have to be asked; here they are all compared at once.
    Floats hold only what they hold exactly; the rest is left to the filters.
    """

    PER_SLOT = 4

    def __init__(self, slots: int) -> None:
        self.width = 1
        self._free: list[int] = []
        self._used = np.zeros(slots, np.int8)
        # Attribute 0 is always 0.0: an unused range holds whatever the notification is.
        self._attributes = np.zeros((slots, self.PER_SLOT), np.int64)
        # Low ends, then high ends, both inclusive: one line of the processor's cache per slot.
        self._ends = np.zeros((slots, 2 * self.PER_SLOT), np.float64)

    def new_attribute(self) -> int:
        if self._free:
            return self._free.pop()
        self.width += 1
        return self.width - 1

    def free_attribute(self, attribute: int) -> None:
        self._free.append(attribute)

    def widen(self, slots: int) -> None:
        added = slots - len(self._used)
        self._used = np.concatenate([self._used, np.zeros(added, np.int8)])
        self._attributes = np.concatenate([self._attributes, np.zeros((added, self.PER_SLOT), np.int64)])
        self._ends = np.concatenate([self._ends, np.zeros((added, 2 * self.PER_SLOT), np.float64)])

    def add(self, slot: int, attribute: int, values: ValueSet) -> bool:
        """Whether the condition is one range of numbers that could be entered."""
        column = int(self._used[slot])
        if values.marks or values.strings or len(values.numbers) != 2 or column == self.PER_SLOT:
            return False
        (low, above_low), (high, above_high) = values.numbers
        if any(isinstance(end, int) and abs(end) > _EXACT for end in (low, high)):
            return False
        self._used[slot] += 1
        self._attributes[slot, column] = attribute
        self._ends[slot, column] = nextafter(low, inf) if above_low else low
        self._ends[slot, column + self.PER_SLOT] = high if above_high else nextafter(high, -inf)
        return True

    def remove(self, slot: int) -> None:
        self._used[slot] = 0
        self._attributes[slot] = 0
        self._ends[slot] = 0.0

    def hold(self, slots: NDArray[np.int64], point: NDArray[np.float64]) -> NDArray[np.bool_]:
        values = point.take(self._attributes.take(slots, axis=0))
        ends = self._ends.take(slots, axis=0)
        inside: NDArray[np.bool_] = values >= ends[:, : self.PER_SLOT]
        inside &= values <= ends[:, self.PER_SLOT :]
        # Four columns: combining them by hand is several times faster than all(axis=1).
        inside = inside[:, :2] & inside[:, 2:]
        return inside[:, 0] & inside[:, 1]


class _Refusals:
    """For one attribute: a bitmap per row of the axis, of the boxes that refuse the row's values."""

    def __init__(self, words: int, attribute: int) -> None:
        self.attribute = attribute
        # slot -> (values, whether the slot's ranges decide exactly, whether it is left open)
        self.members: dict[int, tuple[ValueSet, bool, bool]] = {}
        self._changes = 0
        self._size_at_rebuild = 0
        axis = Axis([], [])
        self._use(axis, np.zeros((axis.row_count, words), _WORD))

    def _use(self, axis: Axis, matrix: NDArray[Any]) -> None:
        self.axis = axis
        self._matrix = matrix
        # A list of views: indexing it is several times faster than indexing the matrix.
        self.rows: list[Words] = list(matrix)

    def widen(self, words: int) -> None:
        matrix = np.zeros((self._matrix.shape[0], words), _WORD)
        matrix[:, : self._matrix.shape[1]] = self._matrix
        self._use(self.axis, matrix)

    def add(self, slot: int, values: ValueSet, exact: bool) -> bool:
        """Whether the slot is left open: it shares a row with an end of its condition."""
        self._changes += 1
        whole, partly = self.axis.place(values)
        column, bit = self._matrix[:, slot >> 6], _bit(slot)
        column |= bit
        for first, last in whole + partly:
            column[first:last] &= ~bit
        left_open = bool(partly) and not exact
        self.members[slot] = (values, exact, left_open)
        return left_open

    def remove(self, slot: int) -> None:
        del self.members[slot]
        self._changes += 1
        self._matrix[:, slot >> 6] &= ~_bit(slot)

    def wants_rebuild(self) -> bool:
        return self._changes > max(MIN_REBUILD, self._size_at_rebuild)

    def rebuild(self) -> list[tuple[int, int]]:
        """Choose the cuts anew; returns the slots that are now left open (+1) or no more (-1)."""
        self._changes = 0
        self._size_at_rebuild = len(self.members)
        exact = [slot for slot, (_, is_exact, _) in self.members.items() if is_exact]
        ranges = np.array([self.members[slot][0].numbers for slot in exact], np.float64).reshape(-1, 2, 2)
        others = [slot for slot, (_, is_exact, _) in self.members.items() if not is_exact]
        axis = suited_axis(
            (self.members[slot][0] for slot in others), MAX_NUMBERS, MAX_STRINGS,
            ranges[:, :, 0][np.isfinite(ranges[:, :, 0])].tolist(),
        )  # fmt: skip
        if any(float(cut) != cut for cut in axis.numbers):
            # Floats could not be compared with such cuts; without them a few filters more are asked.
            axis = Axis([cut for cut in axis.numbers if float(cut) == cut], axis.strings)
        words = self._matrix.shape[1]
        # Walking down the rows, acceptance starts at the first and ends at the last.
        at = [rows * words + (np.array(exact, np.int64) >> 6) for rows in _rows_of_ranges(axis, ranges)]
        bit = np.uint64(1) << (np.array(exact, np.int64) & 63).astype(_WORD)
        flips: list[int] = []
        bits: list[int] = []
        changed: list[tuple[int, int]] = []
        for slot in others:
            values, _, was_open = self.members[slot]
            whole, partly = axis.place(values)
            for first, last in whole + partly:
                flips += (first * words + (slot >> 6), last * words + (slot >> 6))
                bits += (1 << (slot & 63),) * 2
            left_open = bool(partly)
            if left_open is not was_open:
                changed.append((slot, 1 if left_open else -1))
                self.members[slot] = (values, False, left_open)
        matrix = np.zeros((axis.row_count + 1) * words, _WORD)
        np.bitwise_xor.at(matrix, np.array(flips, np.int64), np.array(bits, _WORD))
        for places in at:
            np.bitwise_xor.at(matrix, places, bit)
        # Above the first row all boxes with a condition refuse; the first row may already accept some.
        slots = np.fromiter(self.members, np.int64, len(self.members))
        np.bitwise_xor.at(matrix, slots >> 6, np.uint64(1) << (slots & 63).astype(_WORD))
        rows = matrix.reshape(-1, words)
        np.bitwise_xor.accumulate(rows, axis=0, out=rows)
        self._use(axis, rows[:-1])
        return changed


def _rows_of_ranges(axis: Axis, ranges: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Where ranges of numbers begin and end on an axis, as `Axis.place` says of each; ends are exact floats.

    A row where an end lies belongs to the range: such ranges are compared afterwards.
    """
    cuts = np.array(axis.numbers, np.float64)
    rows = []
    for side in (0, 1):
        values, is_above = ranges[:, side, 0], ranges[:, side, 1].astype(np.int64)
        places = np.searchsorted(cuts, values)
        is_cut = np.append(cuts, np.nan).take(places) == values
        rows.append(FIRST_NUMBER_ROW + 2 * places + np.where(is_cut, 1 + is_above, side))
    return rows
