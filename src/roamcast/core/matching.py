"""The matching table: which interfaces want a notification.

Routes are remembered under the bytes of a burst's attributes. Where the access
side keeps further attributes in the bodies (user properties, fields of a JSON
payload), a filter that asks for those is not decided by these bytes: it waits in
a group under the part of it that is, and the bodies are looked into only when
some notification meets that part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from roamcast.core.notification import Burst, decode_attributes
from roamcast.filters.expression import And, Expression, conjunction, names_of
from roamcast.filters.filter import ALL, Attributes, Filter
from roamcast.filters.index import FilterIndex

Owner = tuple[Any, ...]
"""A local interface: a tuple, so that it can never be mistaken for a peer's id."""

Interface = str | Owner

Group = FilterIndex[Filter]
"""Filters with the same decided part: the rest of each, which the full attributes decide."""

Route = tuple[tuple[str, ...], tuple[Owner, ...], tuple[Group, ...]]
"""The peers and the local owners that want a notification, and who else may want it."""

Contents = Callable[[Burst], Sequence[Attributes]]
"""What the bodies of a burst add to its attributes, for each notification everything together."""

ROUTES_KEPT_MAX = 4096
"""Remembered routes per broker; past that the memory starts afresh."""

ROUTES_CHECKED_MAX = 128
"""Up to so many remembered routes, a change of the table drops only those it touches."""

PARTS_KEPT_MAX = 65_536
"""Remembered sets of filters that the full attributes met, and where these lead."""


class MatchingTable:
    """Filter to interfaces, reference-counted, with the route of each kind of notification remembered."""

    __unsaved__ = ("_parts", "_routes")

    def __init__(self, outside: frozenset[str] | None = None) -> None:
        """`outside` names the attributes that are not in the bodies; None: none is in the bodies."""
        self._outside = outside
        self._interfaces: dict[Filter, dict[Interface, int]] = {}
        self._index: FilterIndex[Filter] = FilterIndex()
        self._groups: dict[Filter, Group] = {}
        self._group_index: FilterIndex[Filter] = FilterIndex()
        self._restore()

    def _restore(self) -> None:
        self._routes: dict[bytes, Route] = {}
        self._parts: dict[tuple[Filter, ...], tuple[tuple[str, ...], tuple[Owner, ...]]] = {}

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
            decided, rest = self._divided(filter)
            if rest is None:
                self._index.add(filter, filter)
            else:
                self._enter(decided, rest, filter)
        interfaces[interface] = interfaces.get(interface, 0) + 1
        if interfaces[interface] == 1:
            self._forget_routes(filter)

    def remove(self, filter: Filter, interface: Interface) -> None:
        interfaces = self._interfaces[filter]
        interfaces[interface] -= 1
        if interfaces[interface]:
            return
        del interfaces[interface]
        if not interfaces:
            del self._interfaces[filter]
            decided, rest = self._divided(filter)
            if rest is None:
                self._index.remove(filter)
            else:
                self._leave(decided, filter)
        self._forget_routes(filter)

    def _divided(self, filter: Filter) -> tuple[Filter, Filter | None]:
        """What of a filter is decided by the attributes outside the bodies, and the rest, if there is one."""
        if self._outside is None or names_of(filter.expression) <= self._outside:
            return filter, None
        expression = filter.expression
        parts: tuple[Expression, ...] = expression.children if isinstance(expression, And) else (expression,)
        decided = [part for part in parts if names_of(part) <= self._outside]
        rest = [part for part in parts if not names_of(part) <= self._outside]
        return Filter(conjunction(decided)) if decided else ALL, Filter(conjunction(rest))

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
        route = self._routes.get(attributes)
        if route is None:
            route = self._find_route(attributes)
        return route

    def _find_route(self, attributes: bytes) -> Route:
        decoded = decode_attributes(attributes)
        groups = tuple(self._groups[decided] for decided in self._group_index.match(decoded))
        if len(self._routes) >= ROUTES_KEPT_MAX:
            self._routes.clear()
        route = self._routes[attributes] = (*self._joined(self._index.match(decoded)), groups)
        return route

    def _joined(self, filters: Iterable[Filter]) -> tuple[tuple[str, ...], tuple[Owner, ...]]:
        wanted: dict[Interface, None] = {}
        for filter in filters:
            wanted.update(self._interfaces[filter])  # type: ignore[arg-type]
        peers = tuple(sorted(one for one in wanted if isinstance(one, str)))
        return peers, tuple(one for one in wanted if not isinstance(one, str))

    def split(
        self, burst: Burst, route: Route, contents: Sequence[Attributes]
    ) -> list[tuple[Burst, tuple[str, ...], tuple[Owner, ...]]]:
        """The runs of a burst that take the same way, once the full attributes are known."""
        parts = []
        start, current = 0, None
        for position, attributes in enumerate(contents):
            wanted = self._part(route, attributes)
            # Not by identity: whether the same one was remembered may not decide what stays together.
            if wanted != current:
                if current is not None and position > start:
                    parts.append((burst.part(start, position), *current))
                start, current = position, wanted
        if current is not None:
            parts.append((burst.part(start, burst.count), *current))
        return [part for part in parts if part[1] or part[2]]

    def _part(self, route: Route, attributes: Attributes) -> tuple[tuple[str, ...], tuple[Owner, ...]]:
        groups = route[2]
        met = groups[0].match(attributes) if len(groups) == 1 else _match_all(groups, attributes)
        key = tuple(met)
        part = self._parts.get(key)
        if part is None:
            peers, owners = self._joined(key)
            if len(self._parts) >= PARTS_KEPT_MAX:
                self._parts.clear()
            part = self._parts[key] = (peers, owners)
        if route[0] or route[1]:
            return _merged(route, part)
        return part

    def _forget_routes(self, filter: Filter) -> None:
        self._parts.clear()
        decided, _ = self._divided(filter)
        if len(self._routes) > ROUTES_CHECKED_MAX:
            self._routes.clear()
        else:
            for attributes in [key for key in self._routes if decided.matches(decode_attributes(key))]:
                del self._routes[attributes]


def _match_all(groups: Iterable[Group], attributes: Attributes) -> list[Filter]:
    return [filter for group in groups for filter in group.match(attributes)]


def _merged(
    route: Route, part: tuple[tuple[str, ...], tuple[Owner, ...]]
) -> tuple[tuple[str, ...], tuple[Owner, ...]]:
    """Both together, each once."""
    return (
        tuple(sorted({**dict.fromkeys(route[0]), **dict.fromkeys(part[0])})),
        tuple({**dict.fromkeys(route[1]), **dict.fromkeys(part[1])}),
    )


__all__ = ["Contents", "Group", "Interface", "MatchingTable", "Owner", "Route"]
