"""The matching table: which interfaces want a notification.

Routes are remembered under the bytes of a burst's attributes. Where the access
side keeps further attributes in the bodies (user properties, fields of a JSON
payload), a filter that asks for those is not decided by these bytes: it waits in
a group under the part of it that is, and the bodies are looked into only when
some notification meets that part.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from roamcast.filters.expression import And, Compare, Expression, names_of, some_of
from roamcast.filters.filter import ALL, Attributes, Filter
from roamcast.filters.index import FilterIndex
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.state import State

Owner = tuple[Any, ...]
"""A local interface: a tuple, so that it can never be mistaken for a peer's id."""

Interface = str | Owner

Group = FilterIndex[Filter]
"""Filters with the same decided part: the rest of each, which the full attributes decide. A filter's label
is its interface if it has only one, and else the filter itself."""

Route = tuple[tuple[str, ...], tuple[Owner, ...], tuple[Group, ...]]
"""The peers and the local owners that want a notification, and who else may want it."""

Contents = Callable[[Burst], Sequence[Attributes]]
"""What the bodies of a burst add to its attributes, for each notification everything together."""

ROUTES_KEPT_MAX = 4096
"""Remembered routes per broker; past that the memory starts afresh."""

ROUTES_CHECKED_MAX = 128
"""Number of remembered routes up to which a change of the table drops only those it touches."""

PARTS_KEPT_MAX = 65_536
"""Remembered sets of labels that the full attributes met, and where these lead."""


class Part(NamedTuple):
    """Who wants a notification, once its full attributes are known."""

    peers: tuple[str, ...]
    owners: tuple[Owner, ...]
    clients: tuple[str, ...]
    """Those of the owners that are clients, each once."""
    collectors: tuple[Owner, ...]
    """Those that are not: their first element is empty."""


Parts = dict[tuple[Hashable, ...], Part]
"""By the labels met, for notifications of one route."""


class MatchingTable:
    """Filter to interfaces, reference-counted, with the route of each kind of notification remembered."""

    __state__ = State(
        "matching-table",
        saved=("_outside", "_interfaces", "_index", "_groups", "_group_index"),
        derived=("_alone", "_divisions", "_parts", "_parts_kept", "_routes_of", "routes"),
    )  # fmt: skip

    def __init__(self, outside: frozenset[str] | None = None) -> None:
        """`outside` names the attributes that are not in the bodies; None: none is in the bodies."""
        self._outside = outside
        self._interfaces: dict[Filter, dict[Interface, int]] = {}
        self._index: FilterIndex[Filter] = FilterIndex()
        self._groups: dict[Filter, Group] = {}
        self._group_index: FilterIndex[Filter] = FilterIndex()
        self._restore()

    def _restore(self) -> None:
        self.routes: dict[bytes, Route] = {}
        self._alone = next(iter(self._outside)) if self._outside and len(self._outside) == 1 else None
        """The attribute outside the bodies, if there is only one: a topic."""
        self._routes_of: dict[Any, dict[bytes, None]] = {}
        """The remembered routes by the value of this attribute."""
        self._parts: dict[tuple[tuple[str, ...], tuple[Owner, ...]], Parts] = {}
        """By the peers and owners that want all of a route's notifications."""
        self._parts_kept = 0
        divided = ((filter, self._divided(filter)) for filter in self._interfaces)
        self._divisions = {filter: parts for filter, parts in divided if parts is not None}
        """The filters of groups: what of each the attributes outside the bodies decide, and the rest."""
        for filter in self._divisions:
            self._label(filter)

    def __len__(self) -> int:
        """Entries: pairs of filter and interface."""
        return sum(map(len, self._interfaces.values()))

    def entries(self) -> list[tuple[Filter, Interface]]:
        return [(filter, one) for filter, interfaces in self._interfaces.items() for one in interfaces]

    # --- changes ---

    def add(self, filter: Filter, interface: Interface) -> None:
        interfaces = self._interfaces.get(filter)
        if interfaces is None:
            interfaces = self._interfaces[filter] = {}
            divided = self._divided(filter)
            if divided is None:
                self._index.add(filter, filter)
            else:
                self._divisions[filter] = divided
                self._enter(*divided, filter)
        interfaces[interface] = interfaces.get(interface, 0) + 1
        if interfaces[interface] == 1:
            self._changed(filter)

    def remove(self, filter: Filter, interface: Interface) -> None:
        interfaces = self._interfaces[filter]
        interfaces[interface] -= 1
        if interfaces[interface]:
            return
        del interfaces[interface]
        self._changed(filter)
        if interfaces:
            return
        del self._interfaces[filter]
        divided = self._divisions.pop(filter, None)
        if divided is None:
            self._index.remove(filter)
        else:
            self._leave(divided[0], filter)

    def _changed(self, filter: Filter) -> None:
        """Other interfaces want it now: forget the routes that it is part of."""
        divided = self._divisions.get(filter)
        if divided is not None:
            self._label(filter)
            self._forget_parts()
        if self.routes:
            self._forget_routes(filter if divided is None else divided[0])

    def _label(self, filter: Filter) -> None:
        """Say in its group where a filter leads: a place that many lead to is then found once."""
        decided, interfaces = self._divisions[filter][0], self._interfaces[filter]
        if interfaces:
            self._groups[decided].label(filter, filter if len(interfaces) > 1 else next(iter(interfaces)))

    def _divided(self, filter: Filter) -> tuple[Filter, Filter] | None:
        """What of a filter the attributes outside the bodies decide, and the rest; None if that is all."""
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
        groups = tuple(self._groups[decided] for decided in self._group_index.match(decoded))
        if len(self.routes) >= ROUTES_KEPT_MAX:
            self._forget_all_routes()
        if self._alone is not None:
            self._routes_of.setdefault(decoded.get(self._alone), {})[attributes] = None
        route = self.routes[attributes] = (*self._joined(self._index.match(decoded)), groups)
        return route

    def _joined(self, filters: Iterable[Filter]) -> tuple[tuple[str, ...], tuple[Owner, ...]]:
        wanted: dict[Interface, None] = {}
        for filter in filters:
            wanted.update(self._interfaces[filter])  # type: ignore[arg-type]
        peers = tuple(sorted(one for one in wanted if isinstance(one, str)))
        return peers, tuple(one for one in wanted if not isinstance(one, str))

    # --- where the full attributes decide ---

    def split(
        self, burst: Burst, route: Route, contents: Sequence[Attributes]
    ) -> list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]]:
        """The runs of a burst that take the same way."""
        ways = []
        start, current = 0, None
        for position, part in enumerate(self._parts_of(route, contents)):
            # Not by identity: whether the same one was remembered may not decide what stays together.
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
        """What each peer, client and collector wants of a burst without numbers, all of it together."""
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
        """Who wants each of the notifications with these attributes."""
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

    def _part(self, peers: tuple[str, ...], owners: tuple[Owner, ...], labels: Iterable[Hashable]) -> Part:
        """What these labels lead to, and what wants it anyway."""
        wanted: dict[Any, Any] = {**dict.fromkeys(peers), **dict.fromkeys(owners)}
        for label in labels:
            wanted.update(self._interfaces[label] if isinstance(label, Filter) else {label: None})
        found = [one for one in wanted if not isinstance(one, str)]
        return Part(
            tuple(sorted(one for one in wanted if isinstance(one, str))),
            tuple(found),
            tuple(dict.fromkeys(owner[0] for owner in found if owner[0])),
            tuple(owner for owner in found if not owner[0]),
        )

    def _forget_parts(self) -> None:
        self._parts.clear()
        self._parts_kept = 0

    def _forget_routes(self, decided: Filter) -> None:
        value = self._only_value(decided)
        if value is not None:
            # A client that moves changes the routes of its own topics, and nobody else's.
            for attributes in self._routes_of.pop(value, ()):
                del self.routes[attributes]
        elif len(self.routes) > ROUTES_CHECKED_MAX:
            self._forget_all_routes()
        else:
            for attributes in list(self.routes):
                decoded = decode_attributes(attributes)
                if decided.matches(decoded):
                    del self.routes[attributes]
                    if self._alone is not None:
                        del self._routes_of[decoded.get(self._alone)][attributes]

    def _forget_all_routes(self) -> None:
        self.routes.clear()
        self._routes_of.clear()

    def _only_value(self, decided: Filter) -> str | None:
        """The one value of the attribute outside the bodies that meets the filter; None if others may."""
        expression = decided.expression
        if type(expression) is Compare and expression.operator == "=" and expression.name == self._alone:
            return expression.value if type(expression.value) is str else None
        return None


def _joined_labels(met: Iterable[tuple[Hashable, ...]]) -> tuple[Hashable, ...]:
    """Those of all groups together, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(met)))


__all__ = ["Contents", "Group", "Interface", "MatchingTable", "Owner", "Route"]
