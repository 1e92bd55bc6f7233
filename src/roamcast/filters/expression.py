"""The condition behind a filter, as a small tree, and the one text that stands for it.

There is no NOT node. Under three-valued logic a negation can always be moved
to the leaves without changing when the whole is true, false or unknown, so
every node knows its own negation and the parser asks for it at once. What is
left can be evaluated with plain two-valued logic, because without a NOT
"false" and "unknown" have the same consequences.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roamcast.filters.geography import Region, metres_text
from roamcast.filters.patterns import LikePattern, TopicPattern

Value = str | int | float | bool
Attributes = Mapping[str, Value]

KEYWORDS = frozenset(
    (
        *("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE", "MATCHES"),
        *("WITHIN", "OF"),
    )
)
PLAIN_NAME = re.compile(r"[^\W\d$.][\w$.]*|\$[\w$.]*")
OWN_NAME = re.compile(r"myloc|my\.[\w$.]+")
"""Syntax of the client's own variables; `myloc` is short for `my.location`."""

NEGATED_OPERATOR = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED_OPERATOR = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

INT_MIN, INT_MAX = -(2**63), 2**63 - 1


def canonical_value(value: Value) -> Value:
    """Return the canonical form of a value: 5.0 and 5 compare equal, so they must print alike."""
    if isinstance(value, float) and value.is_integer() and INT_MIN <= value <= INT_MAX:
        whole = int(value)
        # 2.0**63 is within the float comparison above but not within 64 bits.
        return whole if whole <= INT_MAX else value
    return value


def canonical_number(value: int | float) -> int | float:
    number = canonical_value(value)
    assert not isinstance(number, str)
    return number


def name_text(name: str) -> str:
    if PLAIN_NAME.fullmatch(name) and name.upper() not in KEYWORDS and not OWN_NAME.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def string_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def value_text(value: Value) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return string_text(value)
    return repr(value)


class Expression:
    """A condition. `depth` counts nested AND/OR; `size` counts leaves."""

    __slots__ = ()

    depth: int = 0
    size: int = 1

    def text(self) -> str:
        raise NotImplementedError

    def negated(self) -> "Expression":
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    value: bool

    def text(self) -> str:
        return value_text(self.value)

    def negated(self) -> Expression:
        return Constant(not self.value)


@dataclass(frozen=True, slots=True)
class Compare(Expression):
    name: str
    operator: str
    value: Value

    def text(self) -> str:
        return f"{name_text(self.name)} {self.operator} {value_text(self.value)}"

    def negated(self) -> Expression:
        return comparison(self.name, NEGATED_OPERATOR[self.operator], self.value)


class _Test(Expression):
    """A condition that may have a NOT before its test."""

    __slots__ = ()

    name: str
    negative: bool

    def _text(self, asked: str) -> str:
        return f"{name_text(self.name)} {'NOT ' if self.negative else ''}{asked}"

    def negated(self) -> Expression:
        return replace(self, negative=not self.negative)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class Between(_Test):
    name: str
    low: Value
    high: Value
    negative: bool = False

    def text(self) -> str:
        return self._text(f"BETWEEN {value_text(self.low)} AND {value_text(self.high)}")


@dataclass(frozen=True, slots=True)
class In(_Test):
    name: str
    values: tuple[Value, ...]
    negative: bool = False

    def text(self) -> str:
        return self._text(f"IN ({', '.join(map(value_text, self.values))})")


@dataclass(frozen=True, slots=True)
class Like(_Test):
    name: str
    pattern: LikePattern
    negative: bool = False

    def text(self) -> str:
        tail = r" ESCAPE '\'" if self.pattern.escaped else ""
        return self._text(f"LIKE {string_text(self.pattern.text)}{tail}")


@dataclass(frozen=True, slots=True)
class Matches(_Test):
    name: str
    pattern: TopicPattern
    negative: bool = False

    def text(self) -> str:
        return self._text(f"MATCHES {string_text(self.pattern.text)}")


@dataclass(frozen=True, slots=True)
class Inside(_Test):
    """True if the attribute is a position in this region."""

    name: str
    region: Region
    negative: bool = False

    def text(self) -> str:
        return self._text(self.region.text)


@dataclass(frozen=True, slots=True)
class IsNull(_Test):
    name: str
    negative: bool = False

    def text(self) -> str:
        return f"{name_text(self.name)} IS {'NOT ' if self.negative else ''}NULL"


@dataclass(frozen=True, slots=True)
class Own(Expression):
    """A condition on the client's own state: `location WITHIN 2 OF myloc`, `price <= my.budget`.

    The operator is IN (values at most `within` away from the variable's value) or an inequality. `owner` says
    whose variable it is; "" until a broker knows.
    """

    name: str
    operator: str
    variable: str
    owner: str = ""
    within: int | float = 0
    negative: bool = False
    is_metric: bool = False
    """True if `within` is metres on the earth; otherwise steps, or a difference of numbers."""

    def text(self) -> str:
        variable = "myloc" if self.variable == "location" else f"my.{self.variable}"
        if self.owner:
            variable += f"({string_text(self.owner)})"
        if self.operator != "IN":
            return f"{name_text(self.name)} {self.operator} {variable}"
        if self.is_metric:
            relation = f"WITHIN {metres_text(self.within)} M OF"
        else:
            relation = f"WITHIN {value_text(self.within)} OF" if self.within else "IN"
        return f"{name_text(self.name)} {'NOT ' if self.negative else ''}{relation} {variable}"

    def negated(self) -> Expression:
        if self.operator == "IN":
            return replace(self, negative=not self.negative)
        return replace(self, operator=NEGATED_OPERATOR[self.operator])


class _Joined(Expression):
    __slots__ = ("children", "depth", "size")

    def __init__(self, children: tuple[Expression, ...]) -> None:
        self.children = children
        self.depth = 1 + max(child.depth for child in children)
        self.size = sum(child.size for child in children)


class And(_Joined):
    __slots__ = ()

    def text(self) -> str:
        return " AND ".join(
            f"({child.text()})" if isinstance(child, Or) else child.text() for child in self.children
        )

    def negated(self) -> Expression:
        return disjunction(child.negated() for child in self.children)


class Or(_Joined):
    __slots__ = ()

    def text(self) -> str:
        return " OR ".join(child.text() for child in self.children)

    def negated(self) -> Expression:
        return conjunction(child.negated() for child in self.children)


def names_of(expression: Expression) -> frozenset[str]:
    """Return the attributes that an expression depends on."""
    if isinstance(expression, And | Or):
        return frozenset[str]().union(*map(names_of, expression.children))
    if isinstance(expression, Constant):
        return frozenset()
    if isinstance(expression, Own):
        # The condition depends on more than the attribute, and a condition on that alone cannot replace it.
        return frozenset((expression.name, own_mark(expression)))
    assert isinstance(expression, Compare | Between | In | Like | Matches | Inside | IsNull)
    return frozenset((expression.name,))


def own_mark(condition: Own) -> str:
    """Return a name that no attribute has, under which the covering algebra keeps this condition."""
    return "\0" + condition.text()


def own_conditions(expression: Expression) -> tuple[Own, ...]:
    """Return the conditions on the client's own state."""
    if isinstance(expression, And | Or):
        return tuple(one for child in expression.children for one in own_conditions(child))
    return (expression,) if isinstance(expression, Own) else ()


def mapped(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Return the expression with its leaves replaced."""
    if isinstance(expression, And):
        return conjunction(mapped(child, change) for child in expression.children)
    if isinstance(expression, Or):
        return disjunction(mapped(child, change) for child in expression.children)
    return change(expression)


def conjunction(children: Iterable[Expression]) -> Expression:
    return _join(children, And, neutral=True)


def some_of(children: Sequence[Expression]) -> Expression:
    """Return some children of a conjunction, in order: they are sorted and distinct already."""
    return children[0] if len(children) == 1 else And(tuple(children))


def disjunction(children: Iterable[Expression]) -> Expression:
    return _join(children, Or, neutral=False)


def _join(
    children: Iterable[Expression],
    kind: type[And] | type[Or],
    neutral: bool,
) -> Expression:
    """Flatten, sort by text and drop repetitions, so that order and repetition do not make a new filter."""
    by_text: dict[str, Expression] = {}
    for child in children:
        if isinstance(child, Constant):
            if child.value == neutral:
                continue
            return child
        for part in child.children if isinstance(child, kind) else (child,):
            by_text[part.text()] = part
    if not by_text:
        return Constant(neutral)
    if len(by_text) == 1:
        return next(iter(by_text.values()))
    return kind(tuple(by_text[text] for text in sorted(by_text)))


def comparison(name: str, operator: str, value: Value) -> Expression:
    if isinstance(value, bool) and operator == "<>":
        # There are only two booleans, and both forms are unknown for other types.
        return Compare(name, "=", not value)
    return Compare(name, operator, canonical_value(value))


def between(name: str, low: Value, high: Value) -> Expression:
    return Between(name, canonical_value(low), canonical_value(high))


def membership(name: str, values: Iterable[Value]) -> Expression:
    """Return `name IN (values)`; the values are of one type, so they can be sorted."""
    unique = sorted(dict.fromkeys(canonical_value(value) for value in values))
    if len(unique) == 1:
        return comparison(name, "=", unique[0])
    return In(name, tuple(unique))


def own(
    name: str,
    operator: str,
    variable: str,
    owner: str = "",
    within: int | float = 0,
    is_metric: bool = False,
) -> Expression:
    """Return a condition on the client's state; equality is membership in a set of one value."""
    if operator in ("=", "<>"):
        return Own(name, "IN", variable, owner, 0, operator == "<>")
    return Own(name, operator, variable, owner, canonical_number(within), is_metric=is_metric)


def like(name: str, pattern: LikePattern) -> Expression:
    if pattern.literal is not None:
        return Compare(name, "=", pattern.literal)
    return Like(name, pattern)


def topic_matches(name: str, pattern: TopicPattern) -> Expression:
    if not pattern.has_wildcard:
        return Compare(name, "=", pattern.text)
    return Matches(name, pattern)
