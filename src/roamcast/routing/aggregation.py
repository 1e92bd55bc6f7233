"""The filters that a broker forwards to a peer: one class per routing strategy.

For each peer a broker collects the filters that arrived over its other interfaces and forwards
a reduced set of them. `simple` reduces nothing, `identity` forwards equal filters once,
`covering` only those that no other covers, `merging` also unites filters that have a perfect
merger, and `lazy_merging` withdraws filters later, in batches. Each class answers a change of
the collected filters with the change of the forwarded set.
"""

from __future__ import annotations

from roamcast.filters.filter import Filter
from roamcast.protocol.messages import Entry
from roamcast.routing.changes import NO_CHANGE, Aggregate, Change
from roamcast.routing.covering import CoveringAggregate
from roamcast.routing.lazy_merging import LazyMergingAggregate
from roamcast.routing.matching import Interface, MatchingTable
from roamcast.routing.merging import MergingAggregate
from roamcast.state import State


class SimpleAggregate:
    """Every entry is forwarded, with the identity of its subscriber."""

    __state__ = State("simple-aggregate", saved=("_counts",))

    def __init__(self) -> None:
        self._counts: dict[Entry, int] = {}

    def add(self, entry: Entry) -> Change:
        count = self._counts[entry] = self._counts.get(entry, 0) + 1
        return Change((entry,)) if count == 1 else NO_CHANGE

    def remove(self, entry: Entry) -> Change:
        count = self._counts[entry] = self._counts[entry] - 1
        if count:
            return NO_CHANGE
        del self._counts[entry]
        return Change((), (entry,))

    def forwarded(self) -> list[Entry]:
        return list(self._counts)

    @property
    def is_empty(self) -> bool:
        return not self._counts


class IdentityAggregate(SimpleAggregate):
    """Equal filters are forwarded once, whoever holds them."""

    __state__ = State("identity-aggregate")

    def add(self, entry: Entry) -> Change:
        return SimpleAggregate.add(self, (entry[0], ""))

    def remove(self, entry: Entry) -> Change:
        return SimpleAggregate.remove(self, (entry[0], ""))


AGGREGATES: dict[str, type[SimpleAggregate] | type[CoveringAggregate]] = {
    "simple": SimpleAggregate,
    "identity": IdentityAggregate,
    "covering": CoveringAggregate,
    "merging": MergingAggregate,
    "lazy_merging": LazyMergingAggregate,
}

STRATEGIES = ("flooding", *AGGREGATES)
"""The routing strategies by name; `flooding` forwards no filters at all."""

FORWARDS_ALL = "simple"
"""The strategy that forwards every entry with the name of its subscriber."""


class ReducedTable(MatchingTable):
    """A matching table that stores only the strategy's reduced set of each peer's entries.

    (Fiege et al., section 2.2: a filter replaces those that it covers and that are assigned to the same
    link.) Entries of local owners are not reduced, because a client's front is told each filter that matches.
    """

    __state__ = State("reduced-table", saved=("_strategy", "_reduced"))

    def __init__(self, strategy: str, outside: frozenset[str] | None = None) -> None:
        super().__init__(outside)
        self._strategy = strategy
        self._reduced: dict[str, Aggregate] = {}

    def add(self, filter: Filter, interface: Interface) -> None:
        if isinstance(interface, str):
            if interface not in self._reduced:
                self._reduced[interface] = AGGREGATES[self._strategy]()
            self._apply(interface, self._reduced[interface].add((filter, "")))
        else:
            super().add(filter, interface)

    def remove(self, filter: Filter, interface: Interface) -> None:
        if isinstance(interface, str):
            change = self._reduced[interface].remove((filter, ""))
            if self._reduced[interface].is_empty:
                del self._reduced[interface]
            self._apply(interface, change)
        else:
            super().remove(filter, interface)

    def _apply(self, peer: str, change: Change) -> None:
        for filter, _ in change.subscribe:
            super().add(filter, peer)
        for filter, _ in change.unsubscribe:
            super().remove(filter, peer)


__all__ = [
    "AGGREGATES",
    "FORWARDS_ALL",
    "NO_CHANGE",
    "STRATEGIES",
    "Aggregate",
    "Change",
    "ReducedTable",
]
