"""Boxes with several attributes: kept in whichever way is the fastest for as many as there are."""

from collections.abc import Hashable, Mapping, Sequence

from roamcast.filters.axis import number_ends, string_ends
from roamcast.filters.bitmaps import Bitmaps
from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.expression import Attributes
from roamcast.filters.masks import BoxMasks, Member

# Each of these is less than the one after it, with some distance in between so that a table
# on the border does not change its mind all the time. Below the first two, asking each box's
# filter is as fast as anything.
SCAN_BELOW, SCAN_MAX = 8, 16
# Rows of masks get as long as there are boxes, and there are as many as conditions have ends.
MASK_BYTES_BELOW, MASK_BYTES_MAX = 4 << 20, 8 << 20


class BoxTable:
    """Boxes by slot. `collect` finds the entry numbers of those that contain a notification."""

    def __init__(self, label_of: Mapping[int, Hashable]) -> None:
        # A dict keeps the order in which they came.
        self._members: dict[int, Member] = {}
        self._free: list[int] = []
        self._slots = 0
        self._label_of = label_of
        self._ends = 0
        self._masks: BoxMasks | None = None
        self._bitmaps: Bitmaps | None = None

    def __len__(self) -> int:
        return len(self._members)

    def has_room_for(self, box: Box) -> bool:
        """Whether it costs less here than asking its filter."""
        return self._bitmaps is None and _mask_bytes(self._ends + _ends(box), len(self) + 1) <= MASK_BYTES_MAX

    def add(self, number: int, box: Box, predicate: Predicate) -> int:
        """Returns the slot, for `remove`."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._slots = self._slots, self._slots + 1
        self._members[slot] = (number, box, predicate)
        self._ends += _ends(box)
        if self._bitmaps is not None:
            self._bitmaps.add(slot, number, box, predicate)
        elif _mask_bytes(self._ends, len(self)) > MASK_BYTES_MAX:
            self._masks, self._bitmaps = None, Bitmaps()
            for member, (its_number, its_box, its_predicate) in self._members.items():
                self._bitmaps.add(member, its_number, its_box, its_predicate)
        elif self._masks is not None:
            self._masks.add(slot)
        elif len(self._members) > SCAN_MAX:
            self._masks = BoxMasks(self._members, self._label_of)
        return slot

    def remove(self, slot: int) -> None:
        _, box, _ = self._members.pop(slot)
        self._free.append(slot)
        self._ends -= _ends(box)
        if self._bitmaps is not None:
            self._bitmaps.remove(slot, box)
            if _mask_bytes(self._ends, len(self)) < MASK_BYTES_BELOW:
                self._bitmaps, self._masks = None, BoxMasks(self._members, self._label_of)
        elif self._masks is not None:
            self._masks.remove(slot)
            if len(self._members) < SCAN_BELOW:
                self._masks = None

    def relabel(self) -> None:
        """Some entry has another label now."""
        if self._masks is not None:
            self._masks.relabel()

    def collect(self, attributes: Attributes, found: list[int]) -> None:
        if self._masks is not None:
            self._masks.collect(attributes, found)
        else:
            self._collect_all(attributes, found)

    def collect_distinct(self, attributes: Attributes, found: list[int]) -> None:
        """At least the first entry of each label."""
        if self._masks is not None:
            self._masks.collect_distinct(attributes, found)
        else:
            self._collect_all(attributes, found)

    def labels_of_each(self, contents: Sequence[Attributes]) -> list[tuple[Hashable, ...]] | None:
        """The labels of the boxes that contain each of the notifications; None if only `collect` can tell."""
        if self._masks is None or not self._masks.is_ready(len(contents)):
            return None
        return self._masks.labels_of_each(contents)

    def _collect_all(self, attributes: Attributes, found: list[int]) -> None:
        if self._bitmaps is not None:
            self._bitmaps.collect(attributes, found)
        else:
            found += [number for number, _, predicate in self._members.values() if predicate(attributes)]


def _mask_bytes(ends: int, boxes: int) -> int:
    return ends * boxes // 8


def _ends(box: Box) -> int:
    return sum(len(number_ends(values)) + len(string_ends(values)) for values in box.values())
