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


class CoveringAggregate:
    """Only filters that no other collected filter covers are forwarded.

    Collected filters are kept in clusters, each under the forwarded filter that
    covers all of its members, so that removing that filter brings back exactly
    the ones that only it covered.
    """

    def __init__(self) -> None:
        self._counts: Counter[Filter] = Counter()
        self._members: dict[Filter, dict[Filter, None]] = {}
        """Forwarded filter to the collected filters it stands for, in order of arrival."""
        self._cluster_of: dict[Filter, Filter] = {}

    def add(self, entry: Entry) -> Change:
        self._counts[entry[0]] += 1
        if self._counts[entry[0]] > 1:
            return NO_CHANGE
        return self._apply(lambda: self._place(entry[0]))

    def remove(self, entry: Entry) -> Change:
        self._counts[entry[0]] -= 1
        if self._counts[entry[0]]:
            return NO_CHANGE
        del self._counts[entry[0]]
        return self._apply(lambda: self._withdraw(entry[0]))

    def forwarded(self) -> list[Entry]:
        return [(root, "") for root in self._members]

    def _apply(self, change: _Action) -> Change:
        before = dict.fromkeys(self._members)
        change()
        return Change(
            tuple((root, "") for root in self._members if root not in before),
            tuple((root, "") for root in before if root not in self._members),
        )

    def _place(self, new: Filter) -> None:
        for root in self._members:
            if root.covers(new):
                self._join(root, new)
                return
        members = {new: None}
        root = self._unite(new, members)
        self._members[root] = members
        for member in members:
            self._cluster_of[member] = root

    def _unite(self, root: Filter, members: dict[Filter, None]) -> Filter:
        """Absorb the clusters that the new root covers."""
        for other in [other for other in self._members if root.covers(other)]:
            members.update(self._members.pop(other))
        return root

    def _join(self, root: Filter, new: Filter) -> None:
        self._members[root][new] = None
        self._cluster_of[new] = root

    def _withdraw(self, old: Filter) -> None:
        root = self._cluster_of.pop(old)
        members = self._members[root]
        del members[old]
        if members and not self._depends_on(root, old):
            return
        del self._members[root]
        # Those that cover others come first, so that the others find them in place.
        for member in members:
            self._place(member)

    def _depends_on(self, root: Filter, member: Filter) -> bool:
        """Whether the forwarded filter may no longer stand without this member."""
        return root == member


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
