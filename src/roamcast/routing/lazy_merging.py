"""The routing strategy `lazy_merging`: imperfect merging, because filters are withdrawn later.

With `merging`, each removed or added filter can make the broker replace a merged filter at the peer. Here a
removed filter stays as a ghost: the peer still sends matching notifications, and no update is sent. If the
filter comes back, as with a moving client, no update is needed either. When there are more ghosts than wanted
filters, all ghosts are removed in one change.

So at most half of the collected filters are ghosts, and every change pays for itself: a purge touches as many
filters as have gone since the last one. The price is notifications that cross a link without a subscriber.
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
        """Filters that are still forwarded, alone or merged, without a subscriber."""

    def add(self, entry: Entry) -> Change:
        filter = entry[0]
        if filter in self._ghosts:
            del self._ghosts[filter]
            self._counts[filter] = 1
            return NO_CHANGE
        return super().add(entry)

    def remove(self, entry: Entry) -> Change:
        filter = entry[0]
        # A filter on a client's state is not kept without the client.
        if self._counts[filter] > 1 or filter.own:
            return super().remove(entry)
        del self._counts[filter]
        self._ghosts[filter] = None
        return self._purge() if len(self._ghosts) > len(self._counts) else NO_CHANGE

    def _purge(self) -> Change:
        ghosts, self._ghosts = self._ghosts, {}
        for filter in ghosts:
            self._withdraw(self._nodes.pop(filter))
        return self._take_change()
