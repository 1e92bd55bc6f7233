"""From an expression to a fast function: one small function per condition, joined by others.

The constants of a condition are default arguments of its function, not variables
of an enclosing one: they then sit in one tuple next to it. In a table of ten
thousand filters, where nothing stays in the processor's cache, that made
matching more than twice as fast. Generating source code for each shape of filter
was a little faster still, but mixed tables have as many shapes as filters.

Types are compared exactly: a bool is not a number here although Python thinks so.
"""

from collections.abc import Callable, Mapping
from typing import Any

from roamcast.filters.expression import (
    And,
    Attributes,
    Between,
    Compare,
    Constant,
    Expression,
    In,
    IsNull,
    Like,
    Matches,
    Or,
    Value,
)
from roamcast.filters.patterns import LikePattern, Wild

Predicate = Callable[[Attributes], bool]

# In the tables below: `a` the attributes, `n` the name, `v` the value in hand, the others constants.
# The value is of any type, and the first half of each test finds out which.
_Test = Callable[[Mapping[str, Any]], bool]
_Maker = Callable[[str, Any], _Test]
_RangeMaker = Callable[[str, Any, Any], _Test]

_STRING_TESTS: dict[str, _Maker] = {
    "=": lambda name, value: lambda a, n=name, c=value: a.get(n) == c,
    "<>": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v != c,
    "<": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v < c,
    "<=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v <= c,
    ">": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v > c,
    ">=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)).__class__ is str and v >= c,
    "IN": lambda name, values: lambda a, n=name, c=values: a.get(n) in c,
    "NOT IN": lambda name, values: lambda a, n=name, c=values: (
        (v := a.get(n)).__class__ is str and v not in c
    ),
    "PREFIX": lambda name, prefix: lambda a, n=name, c=prefix: (
        (v := a.get(n)).__class__ is str and v.startswith(c)
    ),
    "NOT PREFIX": lambda name, prefix: lambda a, n=name, c=prefix: (
        (v := a.get(n)).__class__ is str and not v.startswith(c)
    ),
    "PATTERN": lambda name, search: lambda a, n=name, c=search: (
        (v := a.get(n)).__class__ is str and c(v) is not None
    ),
    "NOT PATTERN": lambda name, search: lambda a, n=name, c=search: (
        (v := a.get(n)).__class__ is str and c(v) is None
    ),
}

# NaN fails every comparison by itself, except those that ask for difference.
_NUMBER_TESTS: dict[str, _Maker] = {
    "=": lambda name, value: lambda a, n=name, c=value: (v := a.get(n)) == c and v.__class__ is not bool,
    "<>": lambda name, value: lambda a, n=name, c=value: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v != c and v == v
    ),
    "<": lambda name, value: lambda a, n=name, c=value: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v < c
    ),
    "<=": lambda name, value: lambda a, n=name, c=value: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v <= c
    ),
    ">": lambda name, value: lambda a, n=name, c=value: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v > c
    ),
    ">=": lambda name, value: lambda a, n=name, c=value: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v >= c
    ),
    "IN": lambda name, values: lambda a, n=name, c=values: (
        (v := a.get(n)) in c and v.__class__ is not bool
    ),
    "NOT IN": lambda name, values: lambda a, n=name, c=values: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and v not in c and v == v
    ),
}

_BETWEEN: dict[tuple[bool, bool], _RangeMaker] = {
    # (is it about strings, is it NOT BETWEEN)
    (True, False): lambda name, low, high: lambda a, n=name, b=low, c=high: (
        (v := a.get(n)).__class__ is str and b <= v <= c
    ),
    (True, True): lambda name, low, high: lambda a, n=name, b=low, c=high: (
        (v := a.get(n)).__class__ is str and (v < b or v > c)
    ),
    (False, False): lambda name, low, high: lambda a, n=name, b=low, c=high: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and b <= v <= c
    ),
    (False, True): lambda name, low, high: lambda a, n=name, b=low, c=high: (
        ((v := a.get(n)).__class__ is float or v.__class__ is int) and (v < b or v > c)
    ),
}


def compile_predicate(expression: Expression) -> Predicate:
    match expression:
        case Constant(value):
            return (lambda a: True) if value else (lambda a: False)
        case And():
            return _all_of(tuple(compile_predicate(child) for child in expression.children))
        case Or():
            return _any_of(tuple(compile_predicate(child) for child in expression.children))
        case Compare(name, operator, value):
            if isinstance(value, bool):
                return lambda a, n=name, c=value: a.get(n) is c
            return (_STRING_TESTS if isinstance(value, str) else _NUMBER_TESTS)[operator](name, value)
        case Between(name, low, high, negative):
            return _BETWEEN[isinstance(low, str), negative](name, low, high)
        case In(name, values, negative):
            return _member(name, values, negative)
        case Like(name, pattern, negative):
            return _like(name, pattern, negative)
        case Matches(name, pattern, negative):
            return _STRING_TESTS["NOT PATTERN" if negative else "PATTERN"](name, pattern.search)
        case IsNull(name, negative):
            if negative:
                return lambda a, n=name: a.get(n) is not None
            return lambda a, n=name: a.get(n) is None
    raise TypeError(f"not an expression: {expression!r}")


def _all_of(parts: tuple[Predicate, ...]) -> Predicate:
    match parts:
        case (p, q):
            return lambda a, p=p, q=q: p(a) and q(a)
        case (p, q, r):
            return lambda a, p=p, q=q, r=r: p(a) and q(a) and r(a)
        case (p, q, r, s):
            return lambda a, p=p, q=q, r=r, s=s: p(a) and q(a) and r(a) and s(a)

    def all_of(a: Attributes, parts: tuple[Predicate, ...] = parts) -> bool:
        for part in parts:  # noqa: SIM110 (a generator would cost more than the rest)
            if not part(a):
                return False
        return True

    return all_of


def _any_of(parts: tuple[Predicate, ...]) -> Predicate:
    match parts:
        case (p, q):
            return lambda a, p=p, q=q: p(a) or q(a)
        case (p, q, r):
            return lambda a, p=p, q=q, r=r: p(a) or q(a) or r(a)

    def any_of(a: Attributes, parts: tuple[Predicate, ...] = parts) -> bool:
        for part in parts:  # noqa: SIM110 (a generator would cost more than the rest)
            if part(a):
                return True
        return False

    return any_of


def _member(name: str, values: tuple[Value, ...], negative: bool) -> Predicate:
    if isinstance(values[0], bool):
        # A list of one became an equality, so this one holds both booleans.
        return (lambda a: False) if negative else (lambda a, n=name: a.get(n).__class__ is bool)
    tests = _STRING_TESTS if isinstance(values[0], str) else _NUMBER_TESTS
    return tests["NOT IN" if negative else "IN"](name, frozenset(values))


def _like(name: str, pattern: LikePattern, negative: bool) -> Predicate:
    body = pattern.items[:-1]
    if pattern.items[-1] is Wild.RUN and all(isinstance(item, str) for item in body):
        return _STRING_TESTS["NOT PREFIX" if negative else "PREFIX"](name, "".join(map(str, body)))
    return _STRING_TESTS["NOT PATTERN" if negative else "PATTERN"](name, pattern.search)
