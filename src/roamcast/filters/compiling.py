"""From an expression to a fast function: one small function per condition, joined by others.

The constants of a condition are default arguments of its function, not variables
of an enclosing one: they then sit in one tuple next to it. In a table of ten
thousand filters, where nothing stays in the processor's cache, that made
matching more than twice as fast. Generating source code for each shape of filter
was a little faster still, but mixed tables have as many shapes as filters.

Types are compared exactly: a bool is not a number here although Python thinks so.
"""

from collections.abc import Callable
from typing import Any

from roamcast.filters.expression import (
    And,
    Attributes,
    Between,
    Compare,
    Constant,
    Expression,
    In,
    Inside,
    IsNull,
    Like,
    Matches,
    Or,
    Own,
    Value,
)
from roamcast.filters.geography import NamedZone, Outside, Region
from roamcast.filters.patterns import LikePattern, Pattern, Wild

Predicate = Callable[[Attributes], bool]

# In the tables below: `a` the attributes, `n` the name, `v` the current value, the others constants. The
# value is of any type, and the first half of each test finds out which. Type checkers cannot follow that, nor
# default arguments of a lambda; the functions below the tables give the types.

_STRING_TESTS: dict[str, Any] = {
    "=": lambda name, value: lambda a, n=name, c=value: a.get(n) == c,
    "<>": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v != c,
    "<": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v < c,
    "<=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v <= c,
    ">": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v > c,
    ">=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v >= c,
    "IN": lambda name, values: lambda a, n=name, c=values: a.get(n) in c,
    "NOT IN": lambda name, values: (
        lambda a, n=name, c=values: (v := a.get(n)).__class__ is str and v not in c
    ),
    "PREFIX": lambda name, prefix: (
        lambda a, n=name, c=prefix: (v := a.get(n)).__class__ is str and v.startswith(c)
    ),
    "NOT PREFIX": lambda name, prefix: (
        lambda a, n=name, c=prefix: (v := a.get(n)).__class__ is str and not v.startswith(c)
    ),
    "PATTERN": lambda name, search: (
        lambda a, n=name, c=search: (v := a.get(n)).__class__ is str and c(v) is not None
    ),
    "NOT PATTERN": lambda name, search: (
        lambda a, n=name, c=search: (v := a.get(n)).__class__ is str and c(v) is None
    ),
}

# NaN fails every comparison, except those that test for inequality.
_NUMBER_TESTS: dict[str, Any] = {
    "=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)) == c and v.__class__ is not bool,
    "<>": lambda name, value: (
        lambda a, n=name, c=value: (
            ((v := a.get(n)).__class__ is float or v.__class__ is int) and v != c and v == v
        )
    ),
    "<": lambda name, value: (
        lambda a, n=name, c=value: ((v := a.get(n)).__class__ is float or v.__class__ is int) and v < c
    ),
    "<=": lambda name, value: (
        lambda a, n=name, c=value: ((v := a.get(n)).__class__ is float or v.__class__ is int) and v <= c
    ),
    ">": lambda name, value: (
        lambda a, n=name, c=value: ((v := a.get(n)).__class__ is float or v.__class__ is int) and v > c
    ),
    ">=": lambda name, value: (
        lambda a, n=name, c=value: ((v := a.get(n)).__class__ is float or v.__class__ is int) and v >= c
    ),
    "IN": lambda name, values: lambda a, n=name, c=values: (v := a.get(n)) in c and v.__class__ is not bool,
    "NOT IN": lambda name, values: (
        lambda a, n=name, c=values: (
            ((v := a.get(n)).__class__ is float or v.__class__ is int) and v not in c and v == v
        )
    ),
}

_BETWEEN: dict[tuple[bool, bool], Any] = {
    # (is it about strings, is it NOT BETWEEN)
    (True, False): lambda name, low, high: (
        lambda a, n=name, b=low, c=high: (v := a.get(n)).__class__ is str and b <= v <= c
    ),
    (True, True): lambda name, low, high: (
        lambda a, n=name, b=low, c=high: (v := a.get(n)).__class__ is str and (v < b or v > c)
    ),
    (False, False): lambda name, low, high: (
        lambda a, n=name, b=low, c=high: (
            ((v := a.get(n)).__class__ is float or v.__class__ is int) and b <= v <= c
        )
    ),
    (False, True): lambda name, low, high: (
        lambda a, n=name, b=low, c=high: (
            ((v := a.get(n)).__class__ is float or v.__class__ is int) and (v < b or v > c)
        )
    ),
}

_ALL_OF: dict[int, Any] = {
    2: lambda p, q: lambda a, p=p, q=q: p(a) and q(a),
    3: lambda p, q, r: lambda a, p=p, q=q, r=r: p(a) and q(a) and r(a),
    4: lambda p, q, r, s: lambda a, p=p, q=q, r=r, s=s: p(a) and q(a) and r(a) and s(a),
}

_ANY_OF: dict[int, Any] = {
    2: lambda p, q: lambda a, p=p, q=q: p(a) or q(a),
    3: lambda p, q, r: lambda a, p=p, q=q, r=r: p(a) or q(a) or r(a),
}


def compile_predicate(expression: Expression) -> Predicate:
    match expression:
        case Constant(value):
            return (lambda a: True) if value else (lambda a: False)
        case And():
            return _all_of(tuple(map(compile_predicate, expression.children)))
        case Or():
            return _any_of(tuple(map(compile_predicate, expression.children)))
        case Compare(name, operator, value):
            return _compare(name, operator, value)
        case Between(name, low, high, negative):
            between: Predicate = _BETWEEN[isinstance(low, str), negative](name, low, high)
            return between
        case In(name, values, negative):
            return _member(name, values, negative)
        case Like(name, pattern, negative):
            return _like(name, pattern, negative)
        case Matches(name, topic, negative):
            return _search(name, topic, negative)
        case Inside(name, region, negative):
            if isinstance(region, NamedZone):
                # The zone is unknown here.
                return lambda a: False
            # What is no position is neither inside nor outside.
            return _search(name, Outside(region) if negative else region, False)
        case IsNull(name, negative):
            if negative:
                return lambda a: a.get(name) is not None
            return lambda a: a.get(name) is None
        case Own():
            # The client's state is not known here (see own.py).
            return lambda a: False
    raise TypeError(f"not an expression: {expression!r}")


def _all_of(parts: tuple[Predicate, ...]) -> Predicate:
    def all_of(a: Attributes) -> bool:
        for part in parts:  # noqa: SIM110 (a generator would cost more than the rest)
            if not part(a):
                return False
        return True

    joined: Predicate = _ALL_OF[len(parts)](*parts) if len(parts) in _ALL_OF else all_of
    return joined


def _any_of(parts: tuple[Predicate, ...]) -> Predicate:
    def any_of(a: Attributes) -> bool:
        for part in parts:  # noqa: SIM110 (a generator would cost more than the rest)
            if part(a):
                return True
        return False

    joined: Predicate = _ANY_OF[len(parts)](*parts) if len(parts) in _ANY_OF else any_of
    return joined


def _compare(name: str, operator: str, value: Value) -> Predicate:
    if isinstance(value, bool):
        return lambda a: a.get(name) is value
    tests = _STRING_TESTS if isinstance(value, str) else _NUMBER_TESTS
    test: Predicate = tests[operator](name, value)
    return test


def _member(name: str, values: tuple[Value, ...], negative: bool) -> Predicate:
    if isinstance(values[0], bool):
        # A list of one became an equality, so this one holds both booleans.
        return (lambda a: False) if negative else (lambda a: a.get(name).__class__ is bool)
    tests = _STRING_TESTS if isinstance(values[0], str) else _NUMBER_TESTS
    test: Predicate = tests["NOT IN" if negative else "IN"](name, frozenset(values))
    return test


def _like(name: str, pattern: LikePattern, negative: bool) -> Predicate:
    if not (pattern.items[-1] is Wild.RUN and len(pattern.prefix) == len(pattern.items) - 1):
        return _search(name, pattern, negative)
    test: Predicate = _STRING_TESTS["NOT PREFIX" if negative else "PREFIX"](name, pattern.prefix)
    return test


def _search(name: str, pattern: Pattern | Region, negative: bool) -> Predicate:
    test: Predicate = _STRING_TESTS["NOT PATTERN" if negative else "PATTERN"](name, pattern.search)
    return test
