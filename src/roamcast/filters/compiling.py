"""From an expression to a fast function: one small function per condition, joined by others.

The constants of a condition are default arguments of its function, not variables
of an enclosing one: they then sit in one tuple next to it. In a table of ten
thousand filters, where nothing stays in the processor's cache, that made
matching more than twice as fast. Generating source code for each shape of filter
was a little faster still, but mixed tables have as many shapes as filters.

Types are compared exactly: a bool is not a number here although Python thinks so.
"""

from collections.abc import Callable
from functools import cache
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

# In the tests below: `a` the attributes, `n` the name, `v` the current value, `b` and `c` constants. The
# value is of any type, and a test begins by finding out which. NaN fails every comparison, except those that
# test for inequality. Each test is written once, as text, and made for every condition.

_OF_STRINGS = "(v := a.get(n)).__class__ is str and ({})"
_OF_NUMBERS = "((v := a.get(n)).__class__ is float or v.__class__ is int) and ({})"
_ORDERS = {operator: f"v {operator} c" for operator in ("<", "<=", ">", ">=")}


def _maker(test: str, constants: str = "c") -> Any:
    """Return a function of a name and constants that returns the test."""
    names = f"n, {constants}".split(", ")
    defaults = ", ".join(f"{name}={name}" for name in names)
    return eval(f"lambda {', '.join(names)}: lambda a, {defaults}: {test}")


_STRING_TESTS = {
    "=": _maker("a.get(n) == c"),
    "IN": _maker("a.get(n) in c"),
    **{
        name: _maker(_OF_STRINGS.format(test))
        for name, test in {
            **_ORDERS,
            "<>": "v != c",
            "NOT IN": "v not in c",
            "PREFIX": "v.startswith(c)",
            "NOT PREFIX": "not v.startswith(c)",
            "PATTERN": "c(v) is not None",
            "NOT PATTERN": "c(v) is None",
        }.items()
    },
}
_NUMBER_TESTS = {
    "=": _maker("(v := a.get(n)) == c and v.__class__ is not bool"),
    "IN": _maker("(v := a.get(n)) in c and v.__class__ is not bool"),
    **{
        name: _maker(_OF_NUMBERS.format(test))
        for name, test in {**_ORDERS, "<>": "v != c and v == v", "NOT IN": "v not in c and v == v"}.items()
    },
}
_BETWEEN = {
    (is_string, negative): _maker(kind.format(test), "b, c")
    for is_string, kind in ((True, _OF_STRINGS), (False, _OF_NUMBERS))
    for negative, test in ((False, "b <= v <= c"), (True, "v < b or v > c"))
}
"""By whether it is about strings, and whether it is NOT BETWEEN."""


@cache
def _joiner(word: str, count: int) -> Any:
    """Return a function that joins so many predicates by "and" or "or"."""
    names = [f"p{number}" for number in range(count)]
    defaults = ", ".join(f"{name}={name}" for name in names)
    asked = f" {word} ".join(f"{name}(a)" for name in names)
    return eval(f"lambda {', '.join(names)}: lambda a, {defaults}: {asked}")


def compile_predicate(expression: Expression) -> Predicate:
    match expression:
        case Constant(value):
            return (lambda a: True) if value else (lambda a: False)
        case And():
            return _joined("and", expression)
        case Or():
            return _joined("or", expression)
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


def _joined(word: str, expression: And | Or) -> Predicate:
    parts = map(compile_predicate, expression.children)
    joined: Predicate = _joiner(word, len(expression.children))(*parts)
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
