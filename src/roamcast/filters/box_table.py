"""Boxes that are compared as a whole, in a few sets of which each is several times as large as the next."""

from collections.abc import Callable, Hashable, Mapping
from functools import partial

from roamcast.filters.compiling import Predicate
from roamcast.filters.covering import Box
from roamcast.filters.masks import BoxMasks, Member

RECENT_MAX = 2_048
"""Boxes in the newest set. What a change costs grows with this, what a question costs falls with it."""
GROWTH, SET_MAX = 4, 32_768
"""A set is joined to one that is not so many times as large, unless they are too many boxes together: making
the integers anew keeps a broker from everything else."""


class BoxTable:
    """Sets of boxes. A change touches the newest one, so that the large ones are seldom made anew."""

    def __init__(self, label_of: Mapping[int, Hashable]) -> None:
        self._label_of = label_of
        self._next_handle = 0
        self._set_of: dict[int, BoxMasks] = {}
        self.sets: list[BoxMasks] = []

    def __len__(self) -> int:
        return len(self._set_of)

    def has_room(self) -> bool:
        """Whether another box takes no further set."""
        return not self.sets or (len(self.sets) == 1 and len(self.sets[0].members) < RECENT_MAX)

    def add(self, number: int, box: Box, predicate: Predicate) -> Callable[[], None]:
        """Enter a box of the entry with this number; returns how to take it out."""
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
        """Join each set to the one before that, unless that is much larger."""
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
