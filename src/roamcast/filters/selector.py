"""Text to filter: the selector language, and the short form used in MQTT subscriptions.

The selector language is the one JMS users know (a subset of SQL-92 conditions),
with five additions: strings can be ordered, attribute names that are not plain
words can be written in double quotes, `name MATCHES 'a/+/#'` tests an
attribute against an MQTT topic filter, `myloc` and `my.something` stand for
the client's own state (`location WITHIN 2 OF myloc`; see own.py), and positions can be
compared with regions of the earth (`location WITHIN 2 KM OF (43.26, -2.93)`; see geography.py).

    speed > 12.5 AND (line IN ('A', 'B') OR NOT tram)

An empty selector is an error rather than "everything": a forgotten selector
should not subscribe to the world. `TRUE` matches everything.
"""

import re
from collections.abc import Callable
from sys import intern
from typing import Any, TypeVar

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from roamcast.errors import InputError
from roamcast.filters.expression import (
    INT_MAX,
    INT_MIN,
    KEYWORDS,
    MIRRORED_OPERATOR,
    OWN_NAME,
    Constant,
    Expression,
    Inside,
    IsNull,
    Value,
    between,
    comparison,
    conjunction,
    disjunction,
    like,
    membership,
    own,
    topic_matches,
)
from roamcast.filters.filter import MAX_TEXT_LENGTH, Filter, living
from roamcast.filters.geography import RADIUS_MAX_M, Cell, Disc, Region, zone
from roamcast.filters.patterns import TopicPattern, parse_like
from roamcast.filters.plain import read_plain
from roamcast.filters.remembering import Remembered

MAX_NESTING = 64
MAX_CONSTRAINTS = 512
PARSED_CHARACTERS_MAX = 262_144
"""Of the selectors that are remembered though nobody may hold their filters: a filter takes some 60 times the
memory of its text. Those that are held are found without it."""
QUESTION_MARKS_MAX = 16
"""Number of last question marks of a subscription behind one of which its conditions can begin."""

TOPIC = "topic"

P = TypeVar("P")

GRAMMAR = r"""
start: disjunction
?disjunction: conjunction (_OR conjunction)*            -> any_of
?conjunction: negation (_AND negation)*                 -> all_of
?negation: primary | NOT negation                       -> inverse
?primary: condition | LPAR disjunction _RPAR            -> nested

condition: name                                         -> flag
    | boolean                                           -> constant
    | name OPERATOR literal                             -> compare
    | literal OPERATOR name                             -> compare_mirrored
    | name test                                         -> tested
    | name NOT test                                     -> not_tested
    | name _IS _NULL                                    -> null
    | name _IS NOT _NULL                                -> not_null
    | name OPERATOR own                                 -> compare_own
    | own OPERATOR name                                 -> compare_own_mirrored

test: BETWEEN literal _AND literal                      -> between
    | IN LPAR literal (_COMMA literal)* _RPAR           -> member
    | _LIKE STRING (_ESCAPE STRING)?                    -> like
    | _MATCHES STRING                                   -> matches
    | IN own                                            -> own_in
    | _WITHIN NUMBER _OF own                            -> within
    | _WITHIN NUMBER UNIT _OF own                       -> within_distance
    | _WITHIN NUMBER UNIT _OF LPAR NUMBER _COMMA NUMBER _RPAR -> disc
    | INSIDE STRING                                     -> inside
    | IN CELL STRING                                    -> cell

own: OWN (LPAR STRING _RPAR)?
name: NAME                                              -> plain_name
    | QUOTED_NAME                                       -> quoted_name
?literal: STRING                                        -> string
    | NUMBER                                            -> number
    | boolean
boolean: TRUE                                           -> true
    | FALSE                                             -> false

NAME: /[^\W\d$.][\w$.]*|\$[\w$.]*/
QUOTED_NAME: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
NUMBER: /[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?/
OPERATOR: /<>|!=|<=|>=|=|<|>/
INSIDE.1: /inside(?=\s*')/i
CELL.1: /cell(?=\s*')/i
UNIT.1: /(?:km|m)(?=\s+of\b)/i
LPAR: "("
_RPAR: ")"
_COMMA: ","
%declare _AND _OR NOT BETWEEN IN _LIKE _ESCAPE _IS _NULL TRUE FALSE _MATCHES _WITHIN _OF OWN
%ignore /\s+/
"""

# What the parser calls a terminal, and what a user would.
_READABLE = {
    "NAME": "an attribute name",
    "QUOTED_NAME": "an attribute name",
    "STRING": "a string in single quotes",
    "NUMBER": "a number",
    "OWN": "myloc or my.something",
    "UNIT": "M or KM",
    "OPERATOR": "a comparison (= <> < <= > >=)",
    "LPAR": "'('",
    "_RPAR": "')'",
    "_COMMA": "','",
    "$END": "the end",
}


def parse(text: str) -> Filter:
    """The filter that a selector describes; InputError says what is wrong and where."""
    if len(text) > MAX_TEXT_LENGTH:
        raise InputError(
            f"selector is too long: {len(text)} characters, expected at most {MAX_TEXT_LENGTH}"
        )
    return _parse(text)


def _parse(text: str) -> Filter:
    return living(text) or _parsed.get(text) or _parsed.put(text, _read(text), len(text))


def _read(text: str) -> Filter:
    plain = read_plain(text)
    if plain is not None:
        return Filter(plain)
    try:
        expression: Expression = _parser.parse(text)  # type: ignore[assignment]
    except UnexpectedInput as error:
        raise InputError(_explain(text, error)) from None
    return Filter(expression)


_parsed: Remembered[str, Filter] = Remembered(PARSED_CHARACTERS_MAX)


def read_again(text: str) -> Filter:
    """The filter that this is the text of; brokers make some that are longer than a selector may be."""
    if len(text) <= MAX_TEXT_LENGTH:
        return _parse(text)
    expression: Expression = _parser.parse(text)  # type: ignore[assignment]
    return Filter(expression, len(text))


def _place(position: int) -> str:
    return f"selector, position {position + 1}"


def _explain(text: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedCharacters):
        position, found = error.pos_in_stream or 0, text[error.pos_in_stream or 0]
        if found in "'\"":
            return f"{_place(position)}: the quote is not closed, expected another {found}"
        return f"{_place(position)}: found {found!r}, expected {_expected_after(text[:position])}"
    assert isinstance(error, UnexpectedToken)
    expected = _expectations(error.accepts or error.expected)
    if error.token.type == "$END":
        return f"{_place(len(text))}: the selector ends here, expected {expected}"
    found = _shortened(str(error.token))
    return f"{_place(error.token.start_pos or 0)}: found {found!r}, expected {expected}"


def _expected_after(beginning: str) -> str:
    """What could follow; the lexer that met a foreign character does not know, the parser does."""
    try:
        state = _parser.parse_interactive(beginning)
        state.exhaust_lexer()
    except (UnexpectedInput, InputError):
        return "a condition"
    return _expectations(state.accepts())  # type: ignore[no-untyped-call]


def _expectations(terminals: Any) -> str:
    words = {_READABLE.get(terminal, terminal.lstrip("_")) for terminal in terminals}
    ordered = sorted(words, key=lambda word: (word.isupper(), word))
    return " or ".join(ordered) if ordered else "a condition"


def _keyword(token: Token) -> Token:
    word = token.upper()
    if word in KEYWORDS:
        token.type = word if word in ("NOT", "BETWEEN", "IN", "TRUE", "FALSE") else "_" + word
    elif OWN_NAME.fullmatch(token):
        token.type = "OWN"
    return token


def _number(token: Token) -> int | float:
    text = str(token)
    if text.lstrip("+-").isdigit():
        # Python refuses to convert thousands of digits, so length is looked at first.
        whole = int(text) if len(text.lstrip("+-0")) <= 19 else INT_MAX + 1
        if not INT_MIN <= whole <= INT_MAX:
            raise InputError(
                f"{_place(token.start_pos or 0)}: the integer {_shortened(text)} is out of range,"
                f" expected {INT_MIN} to {INT_MAX}"
            )
        return whole
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise InputError(
            f"{_place(token.start_pos or 0)}: the number {_shortened(text)} is too large,"
            f" expected at most 1.7976931348623157e308"
        )
    return number


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


# A condition on its way up carries how deeply its parentheses are nested, and a literal where it stands.
_Nested = tuple[Expression, int]
_Literal = tuple[Value, int]
_Test = Callable[[str], Expression]
"""What is said about an attribute, before its name is known."""


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    def start(self, inner: _Nested) -> Expression:
        return inner[0]

    def any_of(self, *parts: _Nested) -> _Nested:
        return self._limited(disjunction(part for part, _ in parts)), max(depth for _, depth in parts)

    def all_of(self, *parts: _Nested) -> _Nested:
        return self._limited(conjunction(part for part, _ in parts)), max(depth for _, depth in parts)

    def _limited(self, expression: Expression) -> Expression:
        if expression.size > MAX_CONSTRAINTS:
            raise InputError(f"selector has too many conditions: expected at most {MAX_CONSTRAINTS}")
        return expression

    def inverse(self, word: Token, inner: _Nested) -> _Nested:
        # Each NOT walks over all it negates, so they count as nesting.
        return inner[0].negated(), self._deeper(word, inner[1])

    def nested(self, parenthesis: Token, inner: _Nested) -> _Nested:
        return inner[0], self._deeper(parenthesis, inner[1])

    def _deeper(self, token: Token, depth: int) -> int:
        if depth >= MAX_NESTING:
            raise InputError(
                f"{_place(token.start_pos or 0)}: nested too deeply, expected at most {MAX_NESTING} levels"
            )
        return depth + 1

    # Names repeat in every filter: one object each saves memory and, above all, cache misses in matching.

    def plain_name(self, token: Token) -> str:
        return intern(str(token))

    def quoted_name(self, token: Token) -> str:
        return intern(token[1:-1].replace('""', '"'))

    def string(self, token: Token) -> _Literal:
        return _unquoted(token), token.start_pos or 0

    def number(self, token: Token) -> _Literal:
        return _number(token), token.start_pos or 0

    def true(self, token: Token) -> _Literal:
        return True, token.start_pos or 0

    def false(self, token: Token) -> _Literal:
        return False, token.start_pos or 0

    def flag(self, name: str) -> _Nested:
        return comparison(name, "=", True), 0

    def constant(self, literal: _Literal) -> _Nested:
        return Constant(bool(literal[0])), 0

    def compare(self, name: str, operator: Token, literal: _Literal) -> _Nested:
        value, _ = literal
        sign = "<>" if operator == "!=" else str(operator)
        if isinstance(value, bool) and sign not in ("=", "<>"):
            raise InputError(
                f"{_place(operator.start_pos or 0)}: found {str(operator)!r}, expected = or <>"
                f" (booleans have no order)"
            )
        return comparison(name, sign, value), 0

    def compare_mirrored(self, literal: _Literal, operator: Token, name: str) -> _Nested:
        sign = "<>" if operator == "!=" else MIRRORED_OPERATOR[operator]
        return self.compare(name, operator.update(value=sign), literal)

    def tested(self, name: str, test: _Test) -> _Nested:
        return test(name), 0

    def not_tested(self, name: str, _: Token, test: _Test) -> _Nested:
        return test(name).negated(), 0

    def between(self, _: Token, low: _Literal, high: _Literal) -> _Test:
        if isinstance(low[0], bool):
            raise InputError(f"{_place(low[1])}: found a boolean, expected a number or a string")
        _check_same_kind(low, high)
        return lambda name: between(name, low[0], high[0])

    def member(self, _: Token, __: Token, first: _Literal, *others: _Literal) -> _Test:
        for other in others:
            _check_same_kind(first, other)
        return lambda name: membership(name, [first[0], *(value for value, _ in others)])

    def like(self, pattern: Token, escape: Token | None = None) -> _Test:
        escape_text = None if escape is None else _unquoted(escape)
        read = _located(pattern, lambda text: parse_like(text, escape_text))
        return lambda name: like(name, read)

    def matches(self, pattern: Token) -> _Test:
        read = _located(pattern, TopicPattern)
        return lambda name: topic_matches(name, read)

    def null(self, name: str) -> _Nested:
        return IsNull(name), 0

    def not_null(self, name: str, _: Token) -> _Nested:
        return IsNull(name, True), 0

    # The client's own state: a variable, and whose it is if that has been found out.

    def own(self, token: Token, _: Token | None = None, owner: Token | None = None) -> tuple[str, str]:
        return _variable(token), "" if owner is None else _unquoted(owner)

    def own_in(self, _: Token, variable: tuple[str, str]) -> _Test:
        return lambda name: own(name, "IN", *variable)

    def within(self, token: Token, variable: tuple[str, str]) -> _Test:
        distance = _number(token)
        if distance < 0:
            raise InputError(f"{_place(token.start_pos or 0)}: found {str(token)!r}, expected 0 or more")
        return lambda name: own(name, "IN", *variable, within=distance)

    # Regions of the earth.

    def within_distance(self, token: Token, unit: Token, variable: tuple[str, str]) -> _Test:
        metres = _metres(token, unit)
        return lambda name: own(name, "IN", *variable, within=metres, is_metric=True)

    def disc(self, token: Token, unit: Token, _: Token, latitude: Token, longitude: Token) -> _Test:
        metres = _metres(token, unit)
        return _region(token, lambda: Disc(_number(latitude), _number(longitude), metres))

    def inside(self, _: Token, shape: Token) -> _Test:
        return _region(shape, lambda: zone(_unquoted(shape)))

    def cell(self, _: Token, __: Token, cell: Token) -> _Test:
        return _region(cell, lambda: Cell(_unquoted(cell)))

    def compare_own(self, name: str, operator: Token, variable: tuple[str, str]) -> _Nested:
        return own(name, "<>" if operator == "!=" else str(operator), *variable), 0

    def compare_own_mirrored(self, variable: tuple[str, str], operator: Token, name: str) -> _Nested:
        return own(name, "<>" if operator == "!=" else MIRRORED_OPERATOR[operator], *variable), 0


def _variable(name: str) -> str:
    return intern("location" if name == "myloc" else name.removeprefix("my."))


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _located(pattern: Token, read: Callable[[str], P]) -> P:
    """Read a pattern; an error says where it stands."""
    try:
        return read(_unquoted(pattern))
    except InputError as error:
        raise InputError(f"{_place(pattern.start_pos or 0)}: {error}") from None


def _metres(token: Token, unit: Token) -> float:
    metres = _number(token) * (1000 if unit.upper() == "KM" else 1)
    if not 0 <= metres <= RADIUS_MAX_M:
        most = f"0 to {RADIUS_MAX_M:,} M"
        raise InputError(f"{_place(token.start_pos or 0)}: found {str(token)!r} {unit}, expected {most}")
    return metres


def _region(at: Token, read: Callable[[], Region]) -> _Test:
    """A condition on a region; an error says where it stands."""
    try:
        region = read()
    except InputError as error:
        raise InputError(f"{_place(at.start_pos or 0)}: {error}") from None
    return lambda name: Inside(name, region)


def _check_same_kind(first: _Literal, other: _Literal) -> None:
    if _kind(first[0]) != _kind(other[0]):
        raise InputError(
            f"{_place(other[1])}: found a {_kind(other[0])},"
            f" expected a {_kind(first[0])} like the first value"
        )


_parser = Lark(
    GRAMMAR,
    parser="lalr",
    lexer="basic",
    lexer_callbacks={"NAME": _keyword},
    transformer=_Builder(),
    maybe_placeholders=False,
)

# --- the short form of MQTT subscriptions --------------------------------------------------------------

_CONDITION = re.compile(r"([^\W\d$.][\w$.]*|\$[\w$.]*)(<>|!=|<=|>=|=|<|>)('(?:[^']|'')*'|[^&=<>'\"]+)")


def parse_subscription(text: str) -> Filter:
    """An MQTT topic filter, with content conditions behind a question mark if there are any.

    `sensors/+/temp?value>20&unit=C` holds two conditions. A value is a number
    if it looks like one, a boolean if it is true or false, the client's own
    state if it is myloc (or myloc~2: at most 2 away) or begins with my., and else
    a string (quote it with ' to insist). MQTT allows question marks in topics, so only
    the last one behind which everything reads as conditions counts.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise InputError(
            f"subscription is too long: {len(text)} characters, expected at most {MAX_TEXT_LENGTH}"
        )
    known = _subscriptions.get(text)
    if known is not None:
        return known
    topic, conditions = _split_subscription(text)
    found = Filter(conjunction([topic_matches(TOPIC, TopicPattern(topic)), *conditions]))
    return _subscriptions.put(text, found, len(text))


_subscriptions: Remembered[str, Filter] = Remembered(PARSED_CHARACTERS_MAX)
_splits: Remembered[str, tuple[str, tuple[Expression, ...]]] = Remembered(PARSED_CHARACTERS_MAX)


def topic_part(text: str) -> str:
    """The topic filter of a subscription, without its content conditions."""
    return _split_subscription(text)[0] if len(text) <= MAX_TEXT_LENGTH else text


def _split_subscription(text: str) -> tuple[str, tuple[Expression, ...]]:
    # A SUBSCRIBE is first checked and then carried out.
    return _splits.get(text) or _splits.put(text, _split(text), len(text))


def _split(text: str) -> tuple[str, tuple[Expression, ...]]:
    mark = text.rfind("?")
    for _ in range(QUESTION_MARKS_MAX):
        if mark <= 0:
            break
        conditions = _conditions(text[mark + 1 :])
        if conditions is not None:
            return text[:mark], tuple(conditions)
        mark = text.rfind("?", 0, mark)
    return text, ()


def _conditions(tail: str) -> list[Expression] | None:
    """The conditions that `tail` consists of, or None if it is not made of conditions."""
    found: list[Expression] = []
    position = 0
    while True:
        part = _CONDITION.match(tail, position)
        if part is None or len(found) == MAX_CONSTRAINTS:
            return None
        name, operator, written = part.groups()
        name = intern(name)
        operator = "<>" if operator == "!=" else operator
        condition = _short_own(name, operator, written) or _short_comparison(name, operator, written)
        if condition is None:
            return None
        found.append(condition)
        position = part.end()
        if position == len(tail):
            return found
        if tail[position] != "&":
            return None
        position += 1


_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


_SHORT_OWN = re.compile(rf"({OWN_NAME.pattern})(?:~(\d+(?:\.\d+)?))?", re.ASCII)


def _short_own(name: str, operator: str, written: str) -> Expression | None:
    """`location=myloc`, `location=myloc~2` (at most 2 away), `price<=my.budget`."""
    part = _SHORT_OWN.fullmatch(written)
    if part is None:
        return None
    variable, distance = part.groups()
    if distance is None:
        return own(name, operator, _variable(variable))
    if operator not in ("=", "<>"):
        return None
    near = own(name, "IN", _variable(variable), within=_number(Token("NUMBER", distance, start_pos=0)))
    return near if operator == "=" else near.negated()


def _short_comparison(name: str, operator: str, written: str) -> Expression | None:
    value = _short_value(written)
    if value is None or (isinstance(value, bool) and operator not in ("=", "<>")):
        return None
    return comparison(name, operator, value)


def _short_value(written: str) -> Value | None:
    if written.startswith("'"):
        return written[1:-1].replace("''", "'")
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    if _NUMBER.fullmatch(written):
        try:
            return _number(Token("NUMBER", written, start_pos=0))
        except InputError:
            return None
    return written
