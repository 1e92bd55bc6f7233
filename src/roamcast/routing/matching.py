"""The matching table: which interfaces want a notification.

Most filters of a broker match one topic. For these the table keeps the topic and its interfaces, without a
filter; all others are in an index.

Routes are remembered under the bytes of a burst's attributes. Where the access side keeps further
attributes in the bodies (user properties, fields of a JSON payload), these bytes do not decide a filter
on those attributes. Such a filter is grouped under its decidable part, and bodies are decoded only when
a notification matches that part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from roamcast.filters.expression import And, Compare, Expression, comparison, names_of, some_of
from roamcast.filters.filter import ALL, Attributes, Filter
from roamcast.filters.index import FilterIndex
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

Owner = tuple[Any, ...]
"""A local interface: a tuple, so that it can never be mistaken for a peer's id."""

Interface = str | Owner

Wanting = Interface | dict[Interface, int]
"""The interfaces of one entry: a single interface with count one, or interfaces with their counts. Most
entries have one, and a dictionary takes 200 bytes."""

Group = FilterIndex[Filter]
"""Filters with the same decidable part: the rest of each, to be decided by the full attributes. A filter's
label is its interface if it has only one, and else the filter itself."""

Route = tuple[tuple[str, ...], tuple[Owner, ...], tuple[Group, ...]]
"""The peers and the local owners that want a notification, and the groups still to be decided."""

Contents = Callable[[Burst], Sequence[Attributes]]
"""Returns, for each notification of a burst, its attributes including those of its body."""

ROUTES_KEPT_MAX = 4096
"""Cached routes per broker; beyond that the cache is cleared."""

ROUTES_CHECKED_MAX = 128
"""Number of cached routes up to which a change of the table drops only those it affects."""

PARTS_KEPT_MAX = 65_536
"""Cached sets of matching labels, with their interfaces."""


class Part(NamedTuple):
    """The interfaces for notifications with the same full attributes."""

    peers: tuple[str, ...]
    owners: tuple[Owner, ...]
    clients: tuple[str, ...]
    """The owners that are clients, each once."""
    collectors: tuple[Owner, ...]
    """The owners that are not clients: their first element is empty."""


Parts = dict[tuple[Hashable, ...], Part]
"""Parts by the matching labels, for notifications of one route."""


def _more(wanting: Wanting | None, interface: Interface) -> tuple[Wanting, bool]:
    """Add one count for an interface; returns the interfaces, and whether this one is new."""
    if wanting is None:
        return interface, True
    if not isinstance(wanting, dict):
        wanting = {wanting: 1}
    count = wanting[interface] = wanting.get(interface, 0) + 1
    return wanting, count == 1


def _less(wanting: Wanting, interface: Interface) -> tuple[Wanting | None, bool]:
    """Remove one count for an interface; returns the interfaces, and whether this one is gone."""
    if not isinstance(wanting, dict):
        if wanting != interface:
            raise KeyError(interface)
        return None, True
    wanting[interface] -= 1
    is_over = not wanting[interface]
    if is_over:
        del wanting[interface]
    if len(wanting) == 1:
        (left, count), *_ = wanting.items()
        return (left if count == 1 else wanting), is_over
    return wanting, is_over


def _each(wanting: Wanting | None) -> Iterable[Interface]:
    """Return the interfaces."""
    if wanting is None:
        return ()
    return wanting if isinstance(wanting, dict) else (wanting,)


def _lift_1(fields: dict[str, Any]) -> None:
    """Lift a snapshot of version 1: the index is made from the interfaces, and `_restore` moves topics out of
    them."""
    del fields["_index"]
    fields["_topics"] = {}


class MatchingTable:
    """Filters to interfaces, reference-counted, with cached routes."""

    __state__ = State(
        "matching-table",
        2,
        saved=("_outside", "_topics", "_interfaces", "_groups", "_group_index"),
        derived=("_alone", "_divisions", "_index", "_parts", "_parts_kept", "_routes_of", "routes"),
        lifts={1: _lift_1},
    )  # fmt: skip

    def __init__(self, outside: frozenset[str] | None = None) -> None:
        """`outside` names the attributes that are not in the bodies; None: none is in the bodies."""
        self._outside = outside
        self._topics: dict[str, Wanting] = {}
        """Interfaces by topic: by one value of the attribute `_alone`."""
        self._interfaces: dict[Filter, Wanting] = {}
        """Interfaces of the other filters."""
        self._groups: dict[Filter, Group] = {}
        self._group_index: FilterIndex[Filter] = FilterIndex()
        self._restore()

    def _restore(self) -> None:
        self.routes: dict[bytes, Route] = {}
        self._alone = next(iter(self._outside)) if self._outside and len(self._outside) == 1 else None
        """The only attribute outside the bodies, if there is just one: the topic."""
        self._routes_of: dict[Any, dict[bytes, None]] = {}
        """Cached routes by the value of this attribute."""
        self._parts: dict[tuple[tuple[str, ...], tuple[Owner, ...]], Parts] = {}
        """Parts by the peers and owners that want all notifications of a route."""
        self._parts_kept = 0
        self._index: FilterIndex[Filter] = FilterIndex()
        self._divisions: dict[Filter, tuple[Filter, Filter]] = {}
        """Filters of groups: their decidable part, and the rest."""
        for filter, wanting in list(self._interfaces.items()):
            topic = self._topic_of(filter)
            if isinstance(wanting, dict) and list(wanting.values()) == [1]:
                (self._interfaces[filter],) = wanting  # Found in older snapshots.
            if topic is not None:
                self._topics[topic] = self._interfaces.pop(filter)
                continue
            divided = self._divided(filter)
            if divided is None:
                self._index.add(filter, filter)
            else:
                self._divisions[filter] = divided
                self._label(filter)

    def __len__(self) -> int:
        """Entries: pairs of filter and interface."""
        return sum(len(wanting) if isinstance(wanting, dict) else 1 for _, wanting in self._all())

    def entries(self) -> list[tuple[Filter, Interface]]:
        return [
            (Filter(comparison(self._alone or "", "=", wanted)) if isinstance(wanted, str) else wanted, one)
            for wanted, wanting in self._all()
            for one in _each(wanting)
        ]

    def _all(self) -> Iterator[tuple[str | Filter, Wanting]]:
        return chain(self._topics.items(), self._interfaces.items())

    # --- changes ---

    def add(self, filter: Filter, interface: Interface) -> None:
        topic = self._topic_of(filter)
        if topic is not None:
            self._topics[topic], is_new = _more(self._topics.get(topic), interface)
            if is_new:
                self._forget_topic(topic)
            return
        wanting = self._interfaces.get(filter)
        if wanting is None:
            divided = self._divided(filter)
            if divided is None:
                self._index.add(filter, filter)
            else:
                self._divisions[filter] = divided
                self._enter(*divided, filter)
        self._interfaces[filter], is_new = _more(wanting, interface)
        if is_new:
            self._changed(filter)

    def remove(self, filter: Filter, interface: Interface) -> None:
        topic = self._topic_of(filter)
        if topic is not None:
            wanting, is_over = _less(self._topics[topic], interface)
            if wanting is None:
                del self._topics[topic]
            else:
                self._topics[topic] = wanting
            if is_over:
                self._forget_topic(topic)
            return
        wanting, is_over = _less(self._interfaces[filter], interface)
        if wanting is not None:
            self._interfaces[filter] = wanting
        if is_over:
            self._changed(filter)
        if wanting is not None:
            return
        del self._interfaces[filter]
        divided = self._divisions.pop(filter, None)
        if divided is None:
            self._index.remove(filter)
        else:
            self._leave(divided[0], filter)

    def _changed(self, filter: Filter) -> None:
        """Drop the cached routes that a changed filter affects."""
        divided = self._divisions.get(filter)
        if divided is not None:
            self._label(filter)
            self._forget_parts()
        if self.routes:
            self._forget_routes(filter if divided is None else divided[0])

    def _label(self, filter: Filter) -> None:
        """Label a filter in its group by its interface, so that filters with the same interface are found
        once."""
        interfaces = list(_each(self._interfaces[filter]))
        label = filter if len(interfaces) > 1 else interfaces[0]
        self._groups[self._divisions[filter][0]].label(filter, label)

    def _divided(self, filter: Filter) -> tuple[Filter, Filter] | None:
        """Return the decidable part of a filter, and the rest; None if all of it is decidable."""
        outside = self._outside
        if outside is None:
            return None
        expression = filter.expression
        parts: tuple[Expression, ...] = expression.children if isinstance(expression, And) else (expression,)
        decided: list[Expression] = []
        rest: list[Expression] = []
        for part in parts:
            (decided if names_of(part) <= outside else rest).append(part)
        if not rest:
            return None
        return Filter(some_of(decided)) if decided else ALL, Filter(some_of(rest))

    def _enter(self, decided: Filter, rest: Filter, filter: Filter) -> None:
        group = self._groups.get(decided)
        if group is None:
            group = self._groups[decided] = FilterIndex()
            self._group_index.add(decided, decided)
        group.add(filter, rest)

    def _leave(self, decided: Filter, filter: Filter) -> None:
        group = self._groups[decided]
        group.remove(filter)
        if not group:
            del self._groups[decided]
            self._group_index.remove(decided)

    # --- routes ---

    def route(self, attributes: bytes) -> Route:
        route = self.routes.get(attributes)
        if route is None:
            route = self._find_route(attributes)
        return route

    def _find_route(self, attributes: bytes) -> Route:
        decoded = decode_attributes(attributes)
        groups: tuple[Group, ...] = ()
        if self._groups:
            groups = tuple(self._groups[decided] for decided in self._group_index.match(decoded))
        if len(self.routes) >= ROUTES_KEPT_MAX:
            self._forget_all_routes()
        wanted: dict[Interface, None] = {}
        if self._alone is not None:
            topic: Any = decoded.get(self._alone)
            self._routes_of.setdefault(topic, {})[attributes] = None
            wanted = dict.fromkeys(_each(self._topics.get(topic)))
        for filter in self._index.match(decoded) if self._index else ():
            wanted.update(dict.fromkeys(_each(self._interfaces[filter])))
        route = self.routes[attributes] = (*_sorted_out(wanted), groups)
        return route

    # --- where the full attributes decide ---

    def split(
        self, burst: Burst, route: Route, contents: Sequence[Attributes]
    ) -> list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]]:
        """Return the runs of a burst that have the same route."""
        ways = []
        start, current = 0, None
        for position, part in enumerate(self._parts_of(route, contents)):
            # Not by identity: the cache may not influence the result.
            if part != current:
                if current is not None:
                    ways.append((burst.part(start, position), current.peers, current.owners))
                start, current = position, part
        if current is not None:
            ways.append((burst.part(start, burst.count), current.peers, current.owners))
        return [way for way in ways if way[1] or way[2]]

    def gather(
        self, burst: Burst, route: Route, contents: Sequence[Attributes]
    ) -> list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]]:
        """Return, for each peer, client and collector, all that it wants of a burst without numbers."""
        peers: dict[str, list[int]] = {}
        clients: dict[str, list[int]] = {}
        collectors: dict[Owner, list[int]] = {}
        for position, part in enumerate(self._parts_of(route, contents)):
            for client in part.clients:
                try:
                    clients[client].append(position)
                except KeyError:
                    clients[client] = [position]
            for peer in part.peers:
                peers.setdefault(peer, []).append(position)
            for owner in part.collectors:
                collectors.setdefault(owner, []).append(position)
        ways: list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]] = []
        ways += [(burst.pick(places), (peer,), ()) for peer, places in peers.items()]
        ways += [(burst.pick(places), (), ((client,),)) for client, places in clients.items()]
        ways += [(burst.pick(places), (), (owner,)) for owner, places in collectors.items()]
        return ways

    def _parts_of(self, route: Route, contents: Sequence[Attributes]) -> list[Part]:
        """Return the interfaces for each notification with these attributes."""
        peers, owners, groups = route
        known = self._parts.setdefault((peers, owners), {})
        if len(groups) == 1:
            labels = groups[0].labels_of_each(contents)
        else:
            met_in_each = [group.labels_of_each(contents) for group in groups]
            labels = [_joined_labels(met) for met in zip(*met_in_each, strict=True)]
        parts: list[Part] = []
        for met in labels:
            part = known.get(met)
            if part is None:
                part = known[met] = self._part(peers, owners, met)
                self._parts_kept += 1
            parts.append(part)
        if self._parts_kept > PARTS_KEPT_MAX:
            self._forget_parts()
        return parts

    def _part(self, peers: tuple[str, ...], owners: tuple[Owner, ...], labels: Iterable[Any]) -> Part:
        """Return the interfaces of these labels, together with the unconditional ones."""
        wanted: dict[Any, Any] = {**dict.fromkeys(peers), **dict.fromkeys(owners)}
        for label in labels:
            wanted.update(
                dict.fromkeys(_each(self._interfaces[label] if isinstance(label, Filter) else label))
            )
        peers, found = _sorted_out(wanted)
        return Part(
            peers,
            found,
            tuple(dict.fromkeys(owner[0] for owner in found if owner[0])),
            tuple(owner for owner in found if not owner[0]),
        )

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._parts_kept = 0

    def _forget_routes(self, decided: Filter) -> None:
        topic = self._topic_of(decided)
        if topic is not None:
            self._forget_topic(topic)
        elif len(self.routes) > ROUTES_CHECKED_MAX:
            self._forget_all_routes()
        else:
            for attributes in list(self.routes):
                decoded = decode_attributes(attributes)
                if decided.matches(decoded):
                    del self.routes[attributes]
                    if self._alone is not None:
                        del self._routes_of[decoded.get(self._alone)][attributes]

    def _forget_topic(self, topic: str) -> None:
        """Drop the cached routes of one topic, so that a client that moves affects only its own topics."""
        if self.routes:
            for attributes in self._routes_of.pop(topic, ()):
                del self.routes[attributes]

    def _forget_all_routes(self) -> None:
        self.routes.clear()
        self._routes_of.clear()

    def _topic_of(self, filter: Filter) -> str | None:
        """Return the only value of the outside attribute that matches the filter; None if others may
        match."""
        expression = filter.expression
        if type(expression) is Compare and expression.operator == "=" and expression.name == self._alone:
            return expression.value if type(expression.value) is str else None
        return None


def _sorted_out(wanted: Iterable[Interface]) -> tuple[tuple[str, ...], tuple[Owner, ...]]:
    """Split interfaces into peers and local owners."""
    peers = tuple(sorted(one for one in wanted if isinstance(one, str)))
    return peers, tuple(one for one in wanted if not isinstance(one, str))


def _joined_labels(met: Iterable[tuple[Hashable, ...]]) -> tuple[Hashable, ...]:
    """Return the labels of all groups together, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(met)))


__all__ = ["Contents", "Group", "Interface", "MatchingTable", "Owner", "Route"]
