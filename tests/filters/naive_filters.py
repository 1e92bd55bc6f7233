"""An independent reading of the selector language, slow and plain, for the tests to compare with.

A condition is a nested tuple; `text_of` writes it as a selector, `value_of`
evaluates it with three-valued logic (None is unknown) straight from the
definition, NOT included. Nothing here uses the code under test.
"""

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Condition = tuple[Any, ...]

NAMES = ("a", "b", "odd name")
NUMBERS = (0, 1, 2, 2.5, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 1e300)
STRINGS = ("", "a", "b", "ab", "a/b", "$x", "a/b/c", "%", "it's", "\U0010ffff")
PATTERNS = ("", "a", "a%", "%b", "%", "_", "a_", "_%b", "%a%", "$%", "a/%", "%/%", "a!%", "!_%", "!!")
TOPICS = ("#", "+", "a", "a/#", "a/+", "+/b", "+/+", "$x", "$x/#", "a/b/#", "+/#", "a/+/c", "/")

# What an attribute may be; None stands for absent.
VALUES = (
    *(None, math.nan, True, False, 0, 1, 1.0, 2, 2.5, 3, -1, 2**53, 2**53 + 1, float(2**53), 2**63 - 1),
    *(math.inf, -math.inf, 1e300, "", "a", "b", "ab", "ba", "a/b", "$x", "$x/y", "a/", "/", "a/b/c"),
    *("a\0", "c", "%", "a%", "it's", "\U0010ffff", "\U0010ffffz", "1", "true"),
)


def literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def text_of(condition: Condition) -> str:
    kind, *rest = condition
    if kind in ("AND", "OR"):
        return f"({text_of(rest[0])} {kind} {text_of(rest[1])})"
    if kind == "NOT":
        return f"NOT ({text_of(rest[0])})"
    if kind == "constant":
        return str(rest[0])
    name = f'"{rest[0]}"' if " " in rest[0] else rest[0]
    match kind:
        case "flag":
            return name
        case "null":
            return f"{name} IS {'NOT ' * rest[1]}NULL"
        case "compare":
            return f"{name} {rest[1]} {literal(rest[2])}"
        case "mirrored":
            return f"{literal(rest[2])} {rest[1]} {name}"
        case "between":
            return f"{name} {'NOT ' * rest[3]}BETWEEN {literal(rest[1])} AND {literal(rest[2])}"
        case "in":
            return f"{name} {'NOT ' * rest[2]}IN ({', '.join(map(literal, rest[1]))})"
        case "like":
            escape = " ESCAPE '!'" if "!" in rest[1] else ""
            return f"{name} {'NOT ' * rest[2]}LIKE {literal(rest[1])}{escape}"
    assert kind == "matches"
    return f"{name} {'NOT ' * rest[2]}MATCHES {literal(rest[1])}"


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def both(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def compared(value: Any, operator: str, constant: Any) -> bool | None:
    if value is None or kind_of(value) != kind_of(constant) or value != value:
        return None
    less, equal = value < constant, value == constant
    return bool(
        {
            "=": equal,
            "<>": not equal,
            "<": less,
            "<=": less or equal,
            ">": not (less or equal),
            ">=": not less,
        }[operator]
    )


def value_of(condition: Condition, attributes: Mapping[str, Any]) -> bool | None:
    kind, *rest = condition
    if kind == "constant":
        return bool(rest[0])
    if kind == "NOT":
        return negation(value_of(rest[0], attributes))
    if kind == "AND":
        return both(value_of(rest[0], attributes), value_of(rest[1], attributes))
    if kind == "OR":
        # a OR b is NOT (NOT a AND NOT b)
        return negation(
            both(negation(value_of(rest[0], attributes)), negation(value_of(rest[1], attributes)))
        )
    value = attributes.get(rest[0])
    if kind == "null":
        return (value is None) is not rest[1]
    if value is None:
        return None
    result: bool | None
    match kind:
        case "flag":
            result = value if isinstance(value, bool) else None
        case "compare":
            result = compared(value, rest[1], rest[2])
        case "mirrored":
            mirror = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
            result = compared(value, mirror[rest[1]], rest[2])
        case "between":
            result = both(compared(value, ">=", rest[1]), compared(value, "<=", rest[2]))
            result = negation(result) if rest[3] else result
        case "in":
            results = [compared(value, "=", member) for member in rest[1]]
            result = True if True in results else None if None in results else False
            result = negation(result) if rest[2] else result
        case "like":
            result = like(rest[1], value) if isinstance(value, str) else None
            result = negation(result) if rest[2] else result
        case _:
            result = topic(rest[1].split("/"), value) if isinstance(value, str) else None
            result = negation(result) if rest[2] else result
    return result


def like(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "!":
        return text[:1] == pattern[1] and like(pattern[2:], text[1:])
    if pattern[0] == "%":
        return any(like(pattern[1:], text[cut:]) for cut in range(len(text) + 1))
    return text != "" and pattern[0] in ("_", text[0]) and like(pattern[1:], text[1:])


def topic(levels: list[str], text: str) -> bool:
    if levels[0] in "+#" and levels[0] and text.startswith("$"):
        return False
    return topic_levels(levels, text.split("/"))


def topic_levels(levels: list[str], names: list[str]) -> bool:
    if levels == ["#"]:
        return True
    if not levels or not names:
        return levels == names
    return levels[0] in ("+", names[0]) and topic_levels(levels[1:], names[1:])


operators = st.sampled_from(("=", "<>", "<", "<=", ">", ">="))
names = st.sampled_from(NAMES)
numbers = st.sampled_from(NUMBERS)
strings = st.sampled_from(STRINGS)

leaves: st.SearchStrategy[Condition] = st.one_of(
    st.tuples(st.just("compare"), names, operators, numbers),
    st.tuples(st.just("compare"), names, operators, strings),
    st.tuples(st.just("mirrored"), names, operators, numbers),
    st.tuples(st.just("compare"), names, st.sampled_from(("=", "<>")), st.booleans()),
    st.tuples(st.just("between"), names, numbers, numbers, st.booleans()),
    st.tuples(st.just("between"), names, strings, strings, st.booleans()),
    st.tuples(st.just("in"), names, st.lists(numbers, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("in"), names, st.lists(strings, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("in"), names, st.lists(st.booleans(), min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("like"), names, st.sampled_from(PATTERNS), st.booleans()),
    st.tuples(st.just("matches"), names, st.sampled_from(TOPICS), st.booleans()),
    st.tuples(st.just("null"), names, st.booleans()),
    st.tuples(st.just("flag"), names),
    st.tuples(st.just("constant"), st.booleans()),
)

conditions: st.SearchStrategy[Condition] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("AND"), inner, inner),
        st.tuples(st.just("OR"), inner, inner),
        st.tuples(st.just("NOT"), inner),
    ),
    max_leaves=6,
)

notifications: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {name: st.sampled_from(VALUES) for name in NAMES}
).map(lambda drawn: {name: value for name, value in drawn.items() if value is not None})
