"""Filters over the client's own state: `location WITHIN 2 OF myloc`, `price <= my.budget`.

As it is written, such a filter matches nothing: the client's state is missing. A broker binds the filter to
its client, so that other brokers know whose state it uses. Every broker that matches the filter makes an
instance of it: a plain filter, in which the possible values replace the variables. The more values, the more
the instance matches; with the one value that a variable has, it is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from roamcast.filters.expression import (
    Constant,
    Expression,
    Inside,
    IsNull,
    Own,
    Value,
    between,
    comparison,
    disjunction,
    mapped,
    membership,
)
from roamcast.filters.filter import Filter
from roamcast.filters.geography import Region

BINDINGS_KEPT = 65_536
INSTANCE_LENGTH_MAX = 64 * 1024 * 1024
"""Limit of instances, which brokers make for themselves, and which may list every location."""


class Values(NamedTuple):
    """The variable, or what is near it, has one of these values; `is_exact` if the variable has only one."""

    values: tuple[Value, ...]
    is_exact: bool = False


class Around(NamedTuple):
    """The variable, or what is near it, lies in one of these regions."""

    regions: tuple[Region, ...]
    is_exact: bool = False


class Span(NamedTuple):
    """The variable is a number between these two."""

    low: float
    high: float
    is_exact: bool = False


Possible = Values | Span | Around | None
"""What a variable may be; None means any value, and an empty set no value."""

NOTHING = Values(())

Resolve = Callable[[str, int | float], Possible]
"""Maps a variable, and a distance, to the possible values within that distance."""


def bind(filter: Filter, owner: str) -> Filter:
    """Return the filter bound to this client's state; a filter without such conditions is unchanged."""
    return _bound(filter, owner) if filter.own else filter


@lru_cache(maxsize=BINDINGS_KEPT)
def _bound(filter: Filter, owner: str) -> Filter:
    return Filter(_mapped(filter.expression, lambda condition: replace(condition, owner=owner)))


def owner_of(filter: Filter) -> str:
    """Return the client whose state a filter uses; "" if none, or not bound yet."""
    return filter.own[0].owner if filter.own else ""


def instance(filter: Filter, resolve: Resolve) -> Filter:
    """Return the plain filter that matches what this one may match, as far as known."""
    expression = _mapped(filter.expression, lambda condition: _resolved(condition, resolve))
    return Filter(expression, INSTANCE_LENGTH_MAX)


@lru_cache(maxsize=BINDINGS_KEPT)
def widest(filter: Filter) -> Filter:
    """Return the instance for a client in any state."""
    return instance(filter, lambda variable, within: None)


def _mapped(expression: Expression, change: Callable[[Own], Expression]) -> Expression:
    return mapped(expression, lambda leaf: change(leaf) if isinstance(leaf, Own) else leaf)


def _resolved(condition: Own, resolve: Resolve) -> Expression:
    name, operator = condition.name, condition.operator
    possible = resolve(condition.variable, condition.within)
    if possible == NOTHING:
        return Constant(False)
    if possible is None or (condition.negative and not possible.is_exact):
        # Two values exclude each other, so what is "not this one" may be anything.
        return IsNull(name, negative=True)
    if operator == "IN":
        if isinstance(possible, Around):
            near = disjunction(Inside(name, region) for region in possible.regions)
        elif isinstance(possible, Span):
            near = between(name, possible.low, possible.high)
        else:
            near = membership(name, possible.values)
        return near.negated() if condition.negative else near
    if isinstance(possible, Around):
        return Constant(False)  # Positions have no order.
    bounds = (possible.low, possible.high) if isinstance(possible, Span) else possible.values
    if isinstance(bounds[0], bool):
        return Constant(False)  # Booleans have no order.
    return comparison(name, operator, (max if operator in ("<", "<=") else min)(bounds))
