"""Routes of a burst: one for the whole burst, or different ones for its parts.

Parts differ if the notifications of a burst have different attributes, or if a filter uses attributes in
their bodies. Parts with the same route stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roamcast.broker.front import Front
from roamcast.filters.filter import Attributes
from roamcast.protocol.notification import Burst
from roamcast.routing.router import Owner, Route, Router
from roamcast.state import State

Way = tuple[Burst, tuple[str, ...], tuple[Owner, ...]]
"""A burst, and the peers and local owners it goes to."""


Divide = Callable[[Burst, Route, Sequence[Attributes]], list[Way]]
"""How a burst is divided when the full attributes of its notifications are known."""


class Ways:
    __state__ = State("ways", saved=("_router", "_front"))

    def __init__(self, router: Router, front: Front | None) -> None:
        self._router = router
        self._front = front

    def of(self, burst: Burst) -> list[Way]:
        """Return the routes of the parts, in the order of the burst."""
        return self._ways(burst, self._router.table.split)

    def gathered(self, burst: Burst) -> list[Way]:
        """Return one part for each receiver: its notifications of a burst without numbers."""
        return self._ways(burst, self._router.table.gather)

    def _ways(self, burst: Burst, divide: Divide) -> list[Way]:
        if not burst.varied:
            return self._uniform(burst, self._router.route(burst.attributes), divide)
        ways: list[Way] = []
        known, find, start, current = self._router.known_routes, self._router.route, 0, None
        for position, attributes in enumerate(burst.varied):
            route = known.get(attributes) or find(attributes)
            if route is current:
                continue
            if current is not None:
                if not route[2] and not current[2] and route[:2] == current[:2]:
                    continue
                ways += self._same(burst.part(start, position), current, divide)
            start, current = position, route
        if current is not None:
            ways += self._same(burst.part(start, burst.count), current, divide)
        return ways

    def _same(self, burst: Burst, route: Route, divide: Divide) -> list[Way]:
        """Divide a part whose attributes outside the bodies give one route."""
        if not route[2]:
            return [(burst, route[0], route[1])]
        return [way for part in burst.uniform() for way in self._uniform(part, route, divide)]

    def _uniform(self, burst: Burst, route: Route, divide: Divide) -> list[Way]:
        if not route[2] or self._front is None:
            return [(burst, route[0], route[1])]
        return divide(burst, route, self._front.contents(burst))
