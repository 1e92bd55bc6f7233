"""A table of boxes in a few sets, each several times as large as the next."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.masks import BoxMasks, Member

RECENT_MAX = 2_048
"""Maximum number of boxes in the newest set. With a larger value changes cost more, and lookups less."""
GROWTH, SET_MAX = 4, 32_768
"""A set is merged into one that is at most this many times larger, unless together they exceed the maximum:
rebuilding the integers blocks the broker."""


class BoxTable:
    """Sets of boxes. A change affects the newest set, so that large ones are seldom rebuilt."""

    def __init__(self, label_of: Mapping[int, Hashable]) -> None:
        self._label_of = label_of
        self._next_handle = 0
        self._set_of: dict[int, BoxMasks] = {}
        self.sets: list[BoxMasks] = []

    def __len__(self) -> int:
        return len(self._set_of)

    def has_room(self) -> bool:
        """True if another box needs no further set."""
        return not self.sets or (len(self.sets) == 1 and len(self.sets[0].members) < RECENT_MAX)

    def add(self, number: int, box: Box, predicate: Predicate) -> Callable[[], None]:
        """Add a box of the entry with this number; returns a function that removes it."""
        if not self.sets or len(self.sets[-1].members) >= RECENT_MAX:
            self._join_alike()
            self.sets.append(BoxMasks(self._label_of))
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self.sets[-1].add(handle, Member(number, box, predicate))
        self._set_of[handle] = self.sets[-1]
        return partial(self._remove, handle)

    def _remove(self, handle: int) -> None:
        masks = self._set_of.pop(handle)
        if masks.remove(handle):
            self._join_alike()

    def _join_alike(self) -> None:
        """Merge each set into the one before, unless that is much larger."""
        kept: list[BoxMasks] = []
        for masks in self.sets:
            while kept and _are_alike(len(kept[-1].members), len(masks.members)):
                self._set_of |= dict.fromkeys(kept[-1].members, masks)
                masks.absorb(kept.pop())
            if masks.members:
                kept.append(masks)
        self.sets = kept


def _are_alike(older: int, newer: int) -> bool:
    return older < GROWTH * newer and older + newer <= SET_MAX
