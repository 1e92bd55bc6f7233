"""What a broker must let through for a client that moves (Fiege et al., section 5 and appendix B.1).

A distant broker learns of a move late, and its notifications arrive later still. So it must let
through notifications for any location that the client may have reached by then: ploc(x, q), all
locations at most q steps from x.

How many steps? The paper adds up the delays of the links on the way to the client, and divides by the time
that the client stays at a location: rounded down in its table 4, up in figure 13. Neither is enough. A
notification that passes here now arrives one delay later, and the latest news of the client are one delay
old. In both delays together, the client can take as many steps as minimum stays fit in, rounded up. So the
round trip counts, which a broker can also measure. The published rules can be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from roamcast.filters.filter import Filter
from roamcast.filters.own import NOTHING, Possible, Values, bind, instance
from roamcast.protocol.whereabouts import Place, Whereabouts
from roamcast.routing.location.variables import Variable
from roamcast.state import State

INSTANCES_KEPT = 65_536

ROUNDING = 1e-9
"""Tolerance for rounding errors of measured times."""


class Rule(NamedTuple):
    """Rule for the number of steps that a broker allows for."""

    distance: Literal["round_trip", "one_way"] = "round_trip"
    rounding: Literal["up", "down"] = "up"

    def steps(self, round_trip_s: float, stay_s: float) -> float:
        """Return the steps of a client that stays `stay_s` at each location; 0 and infinity are valid."""
        distance_s = round_trip_s if self.distance == "round_trip" else round_trip_s / 2
        if distance_s == 0 or stay_s == math.inf:
            return 0
        if stay_s == 0 or distance_s == math.inf:
            return math.inf
        steps = distance_s / stay_s
        return math.ceil(steps - ROUNDING) if self.rounding == "up" else math.floor(steps + ROUNDING)


class Ploc:
    """Makes the instances that a broker needs (see `core.dependents.Instances`)."""

    __state__ = State("ploc", saved=("_variables", "_rule"))

    def __init__(self, variables: Mapping[str, Variable], rule: Rule) -> None:
        self._variables = variables
        self._rule = rule

    def instance(self, filter: Filter, whereabouts: Whereabouts, exact: bool) -> Filter:
        template = bind(filter, "")
        return _instance(template, tuple(self._possible(template, whereabouts, exact)))

    def is_same(self, filters: Iterable[Filter], old: Whereabouts, new: Whereabouts) -> bool:
        """True while distances and stays are the same: brokers beyond then add the same number of steps to
        the same locations."""
        if old.distance_s != new.distance_s:
            return False
        for filter in filters:
            if any(
                _place(old, condition.variable).stay_s != _place(new, condition.variable).stay_s
                for condition in filter.own
            ):
                return False
            if list(self._possible(filter, old, False)) != list(self._possible(filter, new, False)):
                return False
        return True

    def _possible(self, filter: Filter, whereabouts: Whereabouts, exact: bool) -> Iterable[Possible]:
        """Return the possible values for each condition on the client's own state."""
        for condition in filter.own:
            place = _place(whereabouts, condition.variable)
            steps = 0 if exact else self._rule.steps(whereabouts.distance_s, place.stay_s)
            coming = None if exact else place.coming
            values = tuple(value for value in (place.value, coming) if value is not None)
            yield self._near(condition.variable, values, steps, condition.within)

    def _near(
        self, name: str, values: tuple[str | int | float | bool, ...], steps: float, within: float
    ) -> Possible:
        if not values:
            return NOTHING
        variable = self._variables.get(name)
        if variable is not None:
            return variable.near(values, steps, within)
        # Without a rule for its changes, only an exactly known value is certain.
        return Values(values, is_exact=True) if steps == 0 and len(values) == 1 else None


_NOWHERE = Place()


def _place(whereabouts: Whereabouts, variable: str) -> Place:
    return whereabouts.places.get(variable, _NOWHERE)


@lru_cache(maxsize=INSTANCES_KEPT)
def _instance(template: Filter, possible: tuple[Possible, ...]) -> Filter:
    found = iter(possible)
    # The conditions come in the order in which the filter lists them.
    return instance(template, lambda variable, within: next(found))
