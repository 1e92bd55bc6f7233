"""Text to filter: the selector language, and the short form used in MQTT subscriptions.

The selector language is the one JMS users know (a subset of SQL-92 conditions),
with five additions: strings can be ordered, attribute names that are not plain
words can be written in double quotes, `name MATCHES 'a/+/#'` tests an
attribute against an MQTT topic filter, `myloc` and `my.something` stand for
the client's own state (`location WITHIN 2 OF myloc`; see own.py), and positions can be
compared with regions of the earth (`location WITHIN 2 KM OF (43.26, -2.93)`; see geography.py).

    speed > 12.5 AND (line IN ('A', 'B') OR NOT tram)

An empty selector is an error rather than "everything": a forgotten selector
should not subscribe to the world. `TRUE` matches everything. The grammar is in grammar.py.
"""

import re
from sys import intern

from roamcast.errors import InputError
from roamcast.filters.expression import (
    INT_MAX,
    INT_MIN,
    OWN_NAME,
    Expression,
    Value,
    comparison,
    conjunction,
    own,
    topic_matches,
)
from roamcast.filters.filter import MAX_TEXT_LENGTH, Filter, living
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.plain import read_plain
from roamcast.filters.remembering import Remembered

MAX_CONSTRAINTS = 512
PARSED_CHARACTERS_MAX = 262_144
"""Characters of selectors remembered without a holder of their filters: a filter takes about 60 times the
memory of its text. Held filters are found without this."""
QUESTION_MARKS_MAX = 16
"""Number of last question marks of a subscription after which its conditions may begin."""

TOPIC = "topic"


def parse(text: str) -> Filter:
    """Return the filter that a selector describes; InputError names the error and its place."""
    found = living(text)
    if found is not None:
        return found
    if len(text) > MAX_TEXT_LENGTH:
        raise InputError(f"selector is too long: {len(text)} characters, expected at most {MAX_TEXT_LENGTH}")
    return _parse(text)


def _parse(text: str) -> Filter:
    return living(text) or _parsed.get(text) or _parsed.put(text, _read(text), len(text))


def _read(text: str) -> Filter:
    plain = read_plain(text)
    if plain is not None:
        return Filter(plain)
    # The grammar and its parser take 4 MB: most brokers never need them.
    from roamcast.filters.grammar import read_expression

    return Filter(read_expression(text))


_parsed: Remembered[str, Filter] = Remembered(PARSED_CHARACTERS_MAX)


def read_again(text: str) -> Filter:
    """Parse the text of an existing filter; brokers make some that exceed the limit of selectors."""
    if len(text) <= MAX_TEXT_LENGTH:
        return _parse(text)
    from roamcast.filters.grammar import read_expression

    return Filter(read_expression(text), len(text))


def place(position: int) -> str:
    return f"selector, position {position + 1}"


def read_number(text: str, position: int) -> int | float:
    """Read a number; InputError names its place if it exceeds the range of attributes."""
    if text.lstrip("+-").isdigit():
        # Python refuses to convert thousands of digits, so the length is checked first.
        whole = int(text) if len(text.lstrip("+-0")) <= 19 else INT_MAX + 1
        if not INT_MIN <= whole <= INT_MAX:
            raise InputError(
                f"{place(position)}: the integer {shortened(text)} is out of range,"
                f" expected {INT_MIN} to {INT_MAX}"
            )
        return whole
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise InputError(
            f"{place(position)}: the number {shortened(text)} is too large,"
            f" expected at most 1.7976931348623157e308"
        )
    return number


def shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def variable_of(name: str) -> str:
    return intern("location" if name == "myloc" else name.removeprefix("my."))


# --- the short form of MQTT subscriptions --------------------------------------------------------------

_CONDITION = re.compile(r"([^\W\d$.][\w$.]*|\$[\w$.]*)(<>|!=|<=|>=|=|<|>)('(?:[^']|'')*'|[^&=<>'\"]+)")


def parse_subscription(text: str) -> Filter:
    """An MQTT topic filter, with content conditions behind a question mark if there are any.

    `sensors/+/temp?value>20&unit=C` holds two conditions. A value is a number if it looks like one, a boolean
    if it is true or false, the client's own state if it is myloc (or myloc~2: at most 2 away) or begins with
    my., and else a string (quote it with ' to insist). MQTT allows question marks in topics, so only the last
    one followed by nothing but conditions counts.
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
    """Return the topic filter of a subscription, without its content conditions."""
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
    """Return the conditions in `tail`, or None if it is not made of conditions."""
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
    """Parse `location=myloc`, `location=myloc~2` (at most 2 away), or `price<=my.budget`."""
    part = _SHORT_OWN.fullmatch(written)
    if part is None:
        return None
    variable, distance = part.groups()
    if distance is None:
        return own(name, operator, variable_of(variable))
    if operator not in ("=", "<>"):
        return None
    near = own(name, "IN", variable_of(variable), within=read_number(distance, 0))
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
            return read_number(written, 0)
        except InputError:
            return None
    return written
