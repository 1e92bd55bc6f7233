"""Conditions on several attributes: one bit per box, 64 boxes per machine operation.

For each attribute and each row of its axis a bitmap says which boxes refuse the
values of that row. A notification picks one row per attribute; what none of the
picked rows refuses, matches. Boxes without a condition on an attribute have no
bits there, so adding a box touches only the attributes it mentions.

The work per notification is one pass over a bitmap per attribute, whatever the
conditions are and however many of them each attribute value fulfils.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roamcast.filters.axis import Axis, suited_axis
from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes
from roamcast.filters.values import ValueSet

MAX_CUTS = 128
MIN_REBUILD = 32

# Below, asking each box's filter is as fast, and above it is not: with some distance
# between the two so that a table on the border does not change its mind all the time.
SCAN_BELOW, BITMAPS_ABOVE = 16, 32

Words = NDArray[np.uint64]
# Bytes and bits are addressed in little-endian order, whatever the machine's own is.
_WORD = np.dtype("<u8")
_GROWTH = 1.25


class BoxTable:
    """Boxes by slot. `collect` finds the entry numbers of those that contain a notification."""

    def __init__(self) -> None:
        # slot -> (entry number, box, predicate); a dict keeps the order in which they came.
        self._members: dict[int, tuple[int, Box, Predicate]] = {}
        self._free: list[int] = []
        self._slots = 0
        self._bitmaps: _Bitmaps | None = None

    def __len__(self) -> int:
        return len(self._members)

    def add(self, number: int, box: Box, predicate: Predicate) -> int:
        """Returns the slot, for `remove`."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
        self._members[slot] = (number, box, predicate)
        if self._bitmaps is not None:
            self._bitmaps.add(slot, number, box, predicate)
        elif len(self._members) > BITMAPS_ABOVE:
            self._bitmaps = _Bitmaps()
            for member, (its_number, its_box, its_predicate) in self._members.items():
                self._bitmaps.add(member, its_number, its_box, its_predicate)
        return slot

    def remove(self, slot: int) -> None:
        _, box, _ = self._members.pop(slot)
        self._free.append(slot)
        if self._bitmaps is not None:
            self._bitmaps.remove(slot, box)
            if len(self._members) < SCAN_BELOW:
                self._bitmaps = None

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        if self._bitmaps is not None:
            self._bitmaps.collect(attributes, found)
        else:
            found += [number for number, _, predicate in self._members.values() if predicate(attributes)]


class _Bitmaps:
    def __init__(self) -> None:
        self._words = 1
        self._unused: Words = np.full(1, ~np.uint64(0), _WORD)
        self._numbers = np.zeros(64, np.int64)
        # What to ask before a slot counts; None where the bitmaps decide alone.
        self._checks: list[Predicate | None] = [None] * 64
        self._predicates: list[Predicate | None] = [None] * 64
        # On how many attributes a slot shares a row with an end of its condition.
        self._loose = [0] * 64
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
                refusals = self._refusals[name] = _Refusals(self._words)
            self._loose[slot] += refusals.add(slot, values)
        self._settle(slot)
        for name in box:
            if self._refusals[name].wants_rebuild():
                for changed, delta in self._refusals[name].rebuild():
                    self._loose[changed] += delta
                    self._settle(changed)

    def remove(self, slot: int, box: Box) -> None:
        self._unused[slot >> 6] |= _bit(slot)
        self._checks[slot] = self._predicates[slot] = None
        for name in box:
            self._refusals[name].remove(slot)
            if not self._refusals[name].members:
                del self._refusals[name]

    def _settle(self, slot: int) -> None:
        self._checks[slot] = self._predicates[slot] if self._loose[slot] else None

    def _grow(self) -> None:
        added = max(1, int(self._words * (_GROWTH - 1)))
        self._words += added
        self._unused = np.concatenate([self._unused, np.full(added, ~np.uint64(0), _WORD)])
        self._numbers = np.concatenate([self._numbers, np.zeros(added * 64, np.int64)])
        for more in (self._checks, self._predicates):
            more += [None] * (added * 64)
        self._loose += [0] * (added * 64)
        for refusals in self._refusals.values():
            refusals.widen(self._words)

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        refused = self._unused.copy()
        merge, get = np.bitwise_or, attributes.get
        for name, refusals in self._refusals.items():
            merge(refused, refusals.rows[refusals.axis.row_of(get(name))], refused)
        np.invert(refused, refused)
        (words,) = refused.nonzero()
        if not len(words):
            return
        (bits,) = np.unpackbits(refused[words].view(np.uint8), bitorder="little").nonzero()
        slots = (words[bits >> 6] << 6) + (bits & 63)
        checks = self._checks
        found += [
            number
            for slot, number in zip(slots.tolist(), self._numbers[slots].tolist(), strict=True)
            if (check := checks[slot]) is None or check(attributes)
        ]


def _bit(slot: int) -> np.uint64:
    return np.uint64(1 << (slot & 63))


class _Refusals:
    """For one attribute: a bitmap per row of the axis, of the boxes that refuse the row's values."""

    def __init__(self, words: int) -> None:
        self.members: dict[int, ValueSet] = {}
        self._changes = 0
        self._size_at_rebuild = 0
        self._loose: dict[int, bool] = {}
        self._use(Axis([], []), np.zeros((Axis([], []).row_count, words), _WORD))

    def _use(self, axis: Axis, matrix: NDArray[Any]) -> None:
        self.axis = axis
        self._matrix = matrix
        # A list of views: indexing it is several times faster than indexing the matrix.
        self.rows: list[Words] = list(matrix)

    def widen(self, words: int) -> None:
        matrix = np.zeros((self._matrix.shape[0], words), _WORD)
        matrix[:, : self._matrix.shape[1]] = self._matrix
        self._use(self.axis, matrix)

    def add(self, slot: int, values: ValueSet) -> bool:
        """Whether the slot shares a row with an end of its condition."""
        self.members[slot] = values
        self._changes += 1
        whole, partly = self.axis.place(values)
        column, bit = self._matrix[:, slot >> 6], _bit(slot)
        column |= bit
        for first, last in whole + partly:
            column[first:last] &= ~bit
        self._loose[slot] = bool(partly)
        return bool(partly)

    def remove(self, slot: int) -> None:
        del self.members[slot], self._loose[slot]
        self._changes += 1
        self._matrix[:, slot >> 6] &= ~_bit(slot)

    def wants_rebuild(self) -> bool:
        return self._changes > max(MIN_REBUILD, self._size_at_rebuild)

    def rebuild(self) -> list[tuple[int, int]]:
        """Choose the cuts anew; returns the slots that became loose (+1) or stopped being so (-1)."""
        self._changes = 0
        self._size_at_rebuild = len(self.members)
        axis = suited_axis(self.members.values(), MAX_CUTS)
        flips: list[int] = []
        words = self._matrix.shape[1]
        bits: list[int] = []
        changed: list[tuple[int, int]] = []
        for slot, values in self.members.items():
            whole, partly = axis.place(values)
            for first, last in whole + partly:
                # Walking down the rows, acceptance starts at the first and ends at the last.
                flips += (first * words + (slot >> 6), last * words + (slot >> 6))
                bits += (1 << (slot & 63),) * 2
            if bool(partly) is not self._loose[slot]:
                changed.append((slot, 1 if partly else -1))
                self._loose[slot] = bool(partly)
        matrix = np.zeros((axis.row_count + 1) * words, _WORD)
        np.bitwise_xor.at(matrix, np.array(flips, np.int64), np.array(bits, _WORD))
        slots = np.fromiter(self.members, np.int64, len(self.members))
        # Above the first row all mentioned boxes refuse; the first row may already accept some.
        np.bitwise_xor.at(matrix, slots >> 6, np.uint64(1) << (slots & 63).astype(_WORD))
        rows = matrix.reshape(-1, words)
        np.bitwise_xor.accumulate(rows, axis=0, out=rows)
        self._use(axis, rows[:-1])
        return changed

