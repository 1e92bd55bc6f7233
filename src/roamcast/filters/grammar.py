"""The grammar of the selector language, and how a selector becomes an expression.

Loaded for the first selector that is not in canonical form (see plain.py).
"""

from collections.abc import Callable
from sys import intern
from typing import Any, TypeVar

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from roamcast.errors import InputError, did_you_mean
from roamcast.filters.expression import (
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
from roamcast.filters.geography import RADIUS_MAX_M, Cell, Disc, Region, zone
from roamcast.filters.patterns import TopicPattern, parse_like
from roamcast.filters.selector import MAX_CONSTRAINTS, place, read_number, shortened, variable_of

MAX_NESTING = 64

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
    | _WITHIN NUMBER UNIT? _OF LPAR NUMBER _COMMA NUMBER _RPAR -> disc
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

# The parser's names of terminals, and names for users.
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

# Words that are names of attributes unless this follows them.
_NEEDED = {
    "INSIDE": ("INSIDE", "a zone's name or GeoJSON in single quotes"),
    "CELL": ("CELL", "a cell in single quotes"),
    "M": ("UNIT", "OF"),
    "KM": ("UNIT", "OF"),
}


def read_expression(text: str) -> Expression:
    """Parse a selector; InputError names the error and its place."""
    try:
        return _parser.parse(text)  # type: ignore[return-value]
    except UnexpectedInput as error:
        raise InputError(_explain(text, error)) from None


def _explain(text: str, error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedCharacters):
        position, found = error.pos_in_stream or 0, text[error.pos_in_stream or 0]
        if found in "'\"":
            return f"{place(position)}: the quote is not closed, expected another {found}"
        return f"{place(position)}: found {found!r}, expected {_expected_after(text[:position])}"
    assert isinstance(error, UnexpectedToken)
    terminals = error.accepts or error.expected
    expected = _expectations(terminals)
    if error.token.type == "$END":
        return f"{place(len(text))}: the selector ends here, expected {expected}"
    found = shortened(str(error.token))
    where = f"{place(error.token.start_pos or 0)}: found {found!r}"
    if (needed := _NEEDED.get(error.token.upper())) and needed[0] in terminals:
        return f"{where} without {needed[1]} behind it"
    words = {terminal.lstrip("_") for terminal in terminals} - set(_READABLE)
    hint = did_you_mean(found, words | ({"myloc"} if "OWN" in terminals else set()))
    return f"{where}, expected {expected}" + (f"; {hint}" if hint else "")


def _expected_after(beginning: str) -> str:
    """Return what could follow; after a foreign character, only the parser knows."""
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


def _kind(value: Value) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


# A condition carries the nesting depth of its parentheses, and a literal its position.
_Nested = tuple[Expression, int]
_Literal = tuple[Value, int]
_Test = Callable[[str], Expression]
"""The test of an attribute whose name is not known yet."""


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
        # Each NOT walks over all it negates, so it counts as nesting.
        return inner[0].negated(), self._deeper(word, inner[1])

    def nested(self, parenthesis: Token, inner: _Nested) -> _Nested:
        return inner[0], self._deeper(parenthesis, inner[1])

    def _deeper(self, token: Token, depth: int) -> int:
        if depth >= MAX_NESTING:
            raise InputError(
                f"{place(token.start_pos or 0)}: nested too deeply, expected at most {MAX_NESTING} levels"
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
                f"{place(operator.start_pos or 0)}: found {str(operator)!r}, expected = or <>"
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
            raise InputError(f"{place(low[1])}: found a boolean, expected a number or a string")
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

    # The client's own state: a variable, and its owner if known.

    def own(self, token: Token, _: Token | None = None, owner: Token | None = None) -> tuple[str, str]:
        return variable_of(token), "" if owner is None else _unquoted(owner)

    def own_in(self, _: Token, variable: tuple[str, str]) -> _Test:
        return lambda name: own(name, "IN", *variable)

    def within(self, token: Token, variable: tuple[str, str]) -> _Test:
        distance = _number(token)
        if distance < 0:
            raise InputError(f"{place(token.start_pos or 0)}: found {str(token)!r}, expected 0 or more")
        return lambda name: own(name, "IN", *variable, within=distance)

    # Regions of the earth.

    def within_distance(self, token: Token, unit: Token, variable: tuple[str, str]) -> _Test:
        metres = _metres(token, unit)
        return lambda name: own(name, "IN", *variable, within=metres, is_metric=True)

    def disc(self, token: Token, *rest: Token) -> _Test:
        *unit, _, latitude, longitude = rest
        if not unit:
            raise InputError(f"{place(token.start_pos or 0)}: found {str(token)!r} without M or KM behind it")
        metres = _metres(token, *unit)
        return _region(token, lambda: Disc(_number(latitude), _number(longitude), metres))

    def inside(self, _: Token, shape: Token) -> _Test:
        return _region(shape, lambda: zone(_unquoted(shape)))

    def cell(self, _: Token, __: Token, cell: Token) -> _Test:
        return _region(cell, lambda: Cell(_unquoted(cell)))

    def compare_own(self, name: str, operator: Token, variable: tuple[str, str]) -> _Nested:
        return own(name, "<>" if operator == "!=" else str(operator), *variable), 0

    def compare_own_mirrored(self, variable: tuple[str, str], operator: Token, name: str) -> _Nested:
        return own(name, "<>" if operator == "!=" else MIRRORED_OPERATOR[operator], *variable), 0


def _number(token: Token) -> int | float:
    return read_number(str(token), token.start_pos or 0)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _located(pattern: Token, read: Callable[[str], P]) -> P:
    """Read a pattern; an error names its place."""
    try:
        return read(_unquoted(pattern))
    except InputError as error:
        raise InputError(f"{place(pattern.start_pos or 0)}: {error}") from None


def _metres(token: Token, unit: Token) -> float:
    metres = _number(token) * (1000 if unit.upper() == "KM" else 1)
    if not 0 <= metres <= RADIUS_MAX_M:
        most = f"0 to {RADIUS_MAX_M:,} M"
        raise InputError(f"{place(token.start_pos or 0)}: found {str(token)!r} {unit}, expected {most}")
    return metres


def _region(at: Token, read: Callable[[], Region]) -> _Test:
    """Return a condition on a region; an error names its place."""
    try:
        region = read()
    except InputError as error:
        raise InputError(f"{place(at.start_pos or 0)}: {error}") from None
    return lambda name: Inside(name, region)


def _check_same_kind(first: _Literal, other: _Literal) -> None:
    if _kind(first[0]) != _kind(other[0]):
        raise InputError(
            f"{place(other[1])}: found a {_kind(other[0])}, expected a {_kind(first[0])} like the first value"
        )


_parser = Lark(
    GRAMMAR,
    parser="lalr",
    lexer="basic",
    lexer_callbacks={"NAME": _keyword},
    transformer=_Builder(),
    maybe_placeholders=False,
)
