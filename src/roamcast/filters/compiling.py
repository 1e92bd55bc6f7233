"""From an expression to a fast function.

Filters come in few shapes ("one string equality and one range") with many
different constants. The Python source of a shape is compiled once; making one
filter of that shape only binds its constants, which costs microseconds. The
constants never become source text, so nothing a user writes is executed.
"""

from collections.abc import Callable
from functools import lru_cache

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

_PYTHON_OPERATOR = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}

# `a` is the notification's attributes, `v` the value in hand. Types are compared
# exactly: a bool is not a number here although Python thinks so.
_FETCH_STRING = "(v := a.get({name})).__class__ is str"
_FETCH_NUMBER = "((v := a.get({name})).__class__ is float or v.__class__ is int)"


def compile_predicate(expression: Expression) -> Predicate:
    constants: list[object] = []
    source = _emit(expression, constants)
    return _shape(source, len(constants))(*constants)


@lru_cache(maxsize=1024)
def _shape(source: str, count: int) -> Callable[..., Predicate]:
    names = ", ".join(f"k{number}" for number in range(count))
    maker: Callable[..., Predicate] = eval(f"lambda {names}: lambda a: {source}", dict(_VISIBLE))
    return maker


_VISIBLE: dict[str, object] = {"__builtins__": {}, "str": str, "int": int, "float": float, "bool": bool}


def _bind(constants: list[object], value: object) -> str:
    constants.append(value)
    return f"k{len(constants) - 1}"


def _emit(expression: Expression, constants: list[object]) -> str:
    match expression:
        case Constant(value):
            return repr(value)
        case And():
            return "(" + " and ".join(_emit(child, constants) for child in expression.children) + ")"
        case Or():
            return "(" + " or ".join(_emit(child, constants) for child in expression.children) + ")"
        case Compare(name, operator, value):
            return _emit_compare(_bind(constants, name), operator, value, constants)
        case Between(name, low, high, negative):
            fetch = _fetch(low, _bind(constants, name))
            low_name, high_name = _bind(constants, low), _bind(constants, high)
            if negative:
                return f"({fetch} and (v < {low_name} or v > {high_name}))"
            return f"({fetch} and {low_name} <= v <= {high_name})"
        case In(name, values, negative):
            return _emit_in(_bind(constants, name), values, negative, constants)
        case Like(name, pattern, negative):
            return _emit_like(_bind(constants, name), pattern, negative, constants)
        case Matches(name, pattern, negative):
            fetch = _FETCH_STRING.format(name=_bind(constants, name))
            test = "is" if negative else "is not"
            return f"({fetch} and {_bind(constants, pattern.search)}(v) {test} None)"
        case IsNull(name, negative):
            return f"(a.get({_bind(constants, name)}) {'is not' if negative else 'is'} None)"
    raise TypeError(f"not an expression: {expression!r}")


def _fetch(example: Value, name: str) -> str:
    return (_FETCH_STRING if isinstance(example, str) else _FETCH_NUMBER).format(name=name)


def _emit_compare(name: str, operator: str, value: Value, constants: list[object]) -> str:
    if isinstance(value, bool):
        return f"(a.get({name}) is {value})"
    constant = _bind(constants, value)
    if operator == "=":
        if isinstance(value, str):
            return f"(a.get({name}) == {constant})"
        return f"((v := a.get({name})) == {constant} and v.__class__ is not bool)"
    test = f"{_fetch(value, name)} and v {_PYTHON_OPERATOR[operator]} {constant}"
    if operator == "<>" and not isinstance(value, str):
        # Every other comparison is false for NaN by itself.
        test += " and v == v"
    return f"({test})"


def _emit_in(name: str, values: tuple[Value, ...], negative: bool, constants: list[object]) -> str:
    if isinstance(values[0], bool):
        # A list of one became an equality, so this one holds both booleans.
        return "False" if negative else f"(a.get({name}).__class__ is bool)"
    members = _bind(constants, frozenset(values))
    if negative:
        return f"({_fetch(values[0], name)} and v not in {members} and v == v)"
    if isinstance(values[0], str):
        return f"(a.get({name}) in {members})"
    return f"((v := a.get({name})) in {members} and v.__class__ is not bool)"


def _emit_like(name: str, pattern: LikePattern, negative: bool, constants: list[object]) -> str:
    fetch = _FETCH_STRING.format(name=name)
    no = "not " if negative else ""
    body = pattern.items[:-1]
    if pattern.items[-1] is Wild.RUN and all(isinstance(item, str) for item in body):
        prefix = _bind(constants, "".join(map(str, body)))
        return f"({fetch} and {no}v.startswith({prefix}))"
    test = "is" if negative else "is not"
    return f"({fetch} and {_bind(constants, pattern.search)}(v) {test} None)"
