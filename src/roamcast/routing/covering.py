"""The routing strategy `covering`: a filter that another one covers is not forwarded."""

from __future__ import annotations

from collections import Counter

from roamcast.filters.cover_index import CoverIndex
from roamcast.filters.filter import Filter
from roamcast.protocol.messages import Entry
from roamcast.routing.changes import NO_CHANGE, Change
from roamcast.state import State


class Node:
    """A filter, with the filters below that are not forwarded because this one, or one above it, is."""

    __slots__ = ("above", "below", "filter")

    __state__ = State("covering-node")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.above: Node | None = None
        self.below: dict[Node, None] = {}
        """Nodes whose filters it covers, in order of arrival."""

    def put_below(self, other: Node) -> None:
        other.above = self
        self.below[other] = None


class CoveringAggregate:
    """Only filters that no other collected filter covers are forwarded.

    Collected filters form trees, each below one that covers it; the roots are forwarded. When a filter is
    removed, the filters directly below it take its place: below a root these are placed anew, with everything
    below them.
    """

    __state__ = State("covering-aggregate", saved=("_counts", "_nodes", "_roots"), derived=("_index", "_net"))

    def __init__(self) -> None:
        self._counts: Counter[Filter] = Counter()
        self._nodes: dict[Filter, Node] = {}
        self._roots: dict[Filter, Node] = {}
        self._restore()

    def _restore(self) -> None:
        self._index = CoverIndex()
        self._net: dict[Filter, int] = {}
        """Net number of times that each filter became a root since the change began."""
        for filter in self._roots:
            self._index.add(filter)

    def add(self, entry: Entry) -> Change:
        filter = entry[0]
        self._counts[filter] += 1
        if self._counts[filter] > 1:
            return NO_CHANGE
        node = self._nodes[filter] = self._make_node(filter)
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

    @property
    def is_empty(self) -> bool:
        return not self._counts

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

    def _make_node(self, filter: Filter) -> Node:
        return Node(filter)

    def _place(self, node: Node) -> None:
        """Find a place for a node that has none."""
        cover = self._index.first_covering(node.filter)
        if cover is None:
            self._settle(node)
        else:
            self._place_below(self._roots[cover], node)

    def _place_below(self, root: Node, node: Node) -> None:
        root.put_below(node)

    def _settle(self, node: Node) -> None:
        """Make an uncovered node a root."""
        self._absorb(node)
        self._add_root(node)

    def _absorb(self, node: Node) -> None:
        """Move roots that a new root covers below it."""
        for covered in self._index.covered_by(node.filter):
            other = self._roots[covered]
            self._remove_root(other)
            node.put_below(other)

    def _withdraw(self, node: Node) -> None:
        above, below = node.above, node.below
        if above is not None:
            del above.below[node]
            for other in below:
                above.put_below(other)
            return
        self._remove_root(node)
        for other in below:
            other.above = None
            self._place(other)
