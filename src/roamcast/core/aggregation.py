"""What a broker asks of a peer on behalf of everyone behind it: one class per routing strategy.

For each peer a broker collects the filters that arrived over its other
interfaces and forwards a reduced set of them. `simple` reduces nothing,
`identity` forwards equal filters once, `covering` only those that no other
covers, `merging` also unites filters that have a perfect merger. Each class
answers a change of the collected filters with the change of the forwarded set.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from roamcast.core.messages import Entry
from roamcast.filters.cover_index import CoverIndex
from roamcast.filters.filter import Filter
from roamcast.filters.merging import merge_pair


class Change(NamedTuple):
    """What to tell the peer; additions first."""

    subscribe: tuple[Entry, ...] = ()
    unsubscribe: tuple[Entry, ...] = ()


NO_CHANGE = Change()


class Aggregate(Protocol):
    """The filters collected for one peer, and the reduced set forwarded to it."""

    def add(self, entry: Entry) -> Change: ...
    def remove(self, entry: Entry) -> Change: ...
    def forwarded(self) -> list[Entry]: ...


class SimpleAggregate:
    """Every entry is forwarded, with the identity of its subscriber."""

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


class IdentityAggregate(SimpleAggregate):
    """Equal filters are forwarded once, whoever holds them."""

    def add(self, entry: Entry) -> Change:
        return super().add((entry[0], ""))

    def remove(self, entry: Entry) -> Change:
        return super().remove((entry[0], ""))


class Node:
    """A filter, and those that are not forwarded because it, or what stands above it, is."""

    __slots__ = ("above", "below", "filter")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.above: Node | None = None
        self.below: dict[Node, None] = {}
        """Nodes whose filters it covers, in order of arrival."""


class CoveringAggregate:
    """Only filters that no other collected filter covers are forwarded.

    Collected filters stand in trees, each below one that covers it; the roots are
    forwarded. Removing one brings its place to those directly below it: below a root
    these are looked at anew, with all that is below them.
    """

    __unsaved__ = ("_index", "_net")

    def __init__(self) -> None:
        self._counts: Counter[Filter] = Counter()
        self._nodes: dict[Filter, Node] = {}
        self._roots: dict[Filter, Node] = {}
        self._restore()

    def _restore(self) -> None:
        self._index = CoverIndex()
        self._net: dict[Filter, int] = {}
        """How often each filter came and went as a root since the change began."""
        for filter in self._roots:
            self._index.add(filter)

    def add(self, entry: Entry) -> Change:
        filter = entry[0]
        self._counts[filter] += 1
        if self._counts[filter] > 1:
            return NO_CHANGE
        node = self._nodes[filter] = Node(filter)
        self._place(node)
        return self._take_change()

    def remove(self, entry: Entry) -> Change:
        filter = entry[0]
        self._counts[filter] -= 1
        if self._counts[filter]:
            return NO_CHANGE
        del self._counts[filter]
        self._withdraw(self._nodes.pop(filter))
        return self._take_change()

    def forwarded(self) -> list[Entry]:
        return [(root, "") for root in self._roots]

    def _take_change(self) -> Change:
        net, self._net = self._net, {}
        subscribe = tuple((filter, "") for filter, count in net.items() if count > 0)
        unsubscribe = tuple((filter, "") for filter, count in net.items() if count < 0)
        return Change(subscribe, unsubscribe) if subscribe or unsubscribe else NO_CHANGE

    # --- roots ---

    def _add_root(self, node: Node) -> None:
        self._roots[node.filter] = node
        self._index.add(node.filter)
        self._net[node.filter] = self._net.get(node.filter, 0) + 1

    def _remove_root(self, node: Node) -> None:
        del self._roots[node.filter]
        self._index.remove(node.filter)
        self._net[node.filter] = self._net.get(node.filter, 0) - 1

    # --- trees ---

    def _place(self, node: Node) -> None:
        """Find the place of a node that stands nowhere."""
        cover = self._index.first_covering(node.filter)
        if cover is not None:
            self._put_below(self._roots[cover], node)
            return
        self._absorb(node)
        self._add_root(node)

    def _put_below(self, node: Node, other: Node) -> None:
        other.above = node
        node.below[other] = None

    def _absorb(self, node: Node) -> None:
        """Roots that a new root covers stand below it from now on."""
        for covered in self._index.covered_by(node.filter):
            other = self._roots[covered]
            self._remove_root(other)
            self._put_below(node, other)

    def _withdraw(self, node: Node) -> None:
        above, below = node.above, node.below
        if above is not None:
            del above.below[node]
            for other in below:
                self._put_below(above, other)
            return
        self._remove_root(node)
        for other in below:
            other.above = None
            self._place(other)


class MergingAggregate(CoveringAggregate):
    """Covering, and filters whose union is itself a filter are forwarded as that union."""

    def _unite(self, root: Filter, members: dict[Filter, None]) -> Filter:
        root = super()._unite(root, members)
        merged = True
        while merged:
            merged = False
            for other in list(self._members):
                union = merge_pair(root, other)
                if union is not None:
                    members.update(self._members.pop(other))
                    root = super()._unite(union, members)
                    merged = True
                    break
        return root

    def _depends_on(self, root: Filter, member: Filter) -> bool:
        return True


class _Action(Protocol):
    def __call__(self) -> None: ...


AGGREGATES: dict[str, type[SimpleAggregate] | type[CoveringAggregate]] = {
    "simple": SimpleAggregate,
    "identity": IdentityAggregate,
    "covering": CoveringAggregate,
    "merging": MergingAggregate,
}

STRATEGIES = ("flooding", *AGGREGATES)
"""The routing strategies by name; `flooding` forwards no filters at all."""
