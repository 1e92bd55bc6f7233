"""When the subscriptions of local owners were issued.

A notification published before a subscription was issued is not owed to it,
though it may arrive afterwards, on its way to other clients. Comparing the
times is the only way to tell.
"""

from __future__ import annotations

from roamcast.filters.filter import Filter
from roamcast.protocol.notification import Burst, decode_attributes
from roamcast.routing.dependents import Dependents
from roamcast.routing.router import Owner
from roamcast.state import State


class IssueTimes:
    __state__ = State("issue-times", saved=("latest", "_clock_error_s", "_dependents", "_issued_at"))

    def __init__(self, clock_error_s: float | None, dependents: Dependents) -> None:
        """`dependents` knows what a filter on a client's own state matches at present."""
        self.latest = float("-inf")
        """Latest time of issue at this broker; notifications published later need no closer look."""
        self._clock_error_s = clock_error_s
        self._dependents = dependents
        self._issued_at: dict[Owner, dict[Filter, float]] = {}

    def note(self, owner: Owner, filter: Filter, issued_at: float) -> None:
        if self._clock_error_s is not None:
            issued = self._issued_at.setdefault(owner, {})
            issued[filter] = issued_at - self._clock_error_s
            self.latest = max(self.latest, issued[filter])

    def forget(self, owner: Owner, filter: Filter) -> None:
        issued = self._issued_at.get(owner, {})
        issued.pop(filter, None)
        if not issued:
            self._issued_at.pop(owner, None)

    def is_too_early(self, owner: Owner, burst: Burst) -> bool:
        """True if the burst was published before any matching subscription of the owner was issued."""
        issued = self._issued_at.get(owner)
        if issued is None or burst.varied or burst.published_at >= max(issued.values()):
            return False  # A burst with varied attributes comes from clients whose clocks are not compared.
        attributes = decode_attributes(burst.attributes)
        return not any(
            issued_at <= burst.published_at
            and (self._dependents.local(filter) if filter.own else filter).matches(attributes)
            for filter, issued_at in issued.items()
        )
