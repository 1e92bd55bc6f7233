"""The routing strategy `lazy_merging`: imperfect, because what nobody wants any more is taken back later.

With `merging`, a filter that goes makes the broker say a merged filter anew, and the next one that comes
makes it say that anew again. Here a filter that goes stays as a ghost: the peer still sends what it matches,
and nobody is told. If the filter comes back, as a client's does that moves, nothing is said either. When
there are more ghosts than filters that are wanted, all of them go at once, in one change.

So at most half of the collected filters are ghosts, and every change pays for itself: a purge touches as many
filters as have gone since the last one. The price is notifications that cross a link for nobody.
"""

from __future__ import annotations

from roamcast.filters.filter import Filter
from roamcast.protocol.messages import Entry
from roamcast.routing.changes import NO_CHANGE, Change
from roamcast.routing.merging import MergingAggregate
from roamcast.state import State


class LazyMergingAggregate(MergingAggregate):
    __state__ = State("lazy-merging-aggregate", saved=("_ghosts",))

    def __init__(self) -> None:
        super().__init__()
        self._ghosts: dict[Filter, None] = {}
        """Filters that are forwarded, alone or merged, and that nobody wants."""

    def add(self, entry: Entry) -> Change:
        filter = entry[0]
        if filter in self._ghosts:
            del self._ghosts[filter]
            self._counts[filter] = 1
            return NO_CHANGE
        return super().add(entry)

    def remove(self, entry: Entry) -> Change:
        filter = entry[0]
        if self._counts[filter] > 1 or filter.own:  # What follows a client is not kept without it.
            return super().remove(entry)
        del self._counts[filter]
        self._ghosts[filter] = None
        return self._purge() if len(self._ghosts) > len(self._counts) else NO_CHANGE

    def _purge(self) -> Change:
        ghosts, self._ghosts = self._ghosts, {}
        for filter in ghosts:
            self._withdraw(self._nodes.pop(filter))
        return self._take_change()
