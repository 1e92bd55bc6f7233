"""A short way to read what brokers mostly tell each other: plain comparisons and ranges, joined by AND.

Only text exactly as a filter prints itself is read here; everything else takes the way of `selector.py`.
"""

import re

from roamcast.filters.expression import Expression, Value, between, comparison, conjunction

_NUMBER = r"-?\d{1,15}(?:\.\d{1,17})?"
_CONDITION = re.compile(
    rf"([A-Za-z_]\w*) (?:(<>|<=|>=|=|<|>) (?:({_NUMBER})|'([^']*)')|BETWEEN ({_NUMBER}) AND ({_NUMBER}))"
    r"(?: AND |\Z)",
    re.ASCII,
)
CONDITIONS_MAX = 64


def read_plain(text: str) -> Expression | None:
    """The expression that prints itself like this; None if it has to be read with the grammar."""
    conditions: list[Expression] = []
    at = 0
    while at < len(text) and len(conditions) < CONDITIONS_MAX:
        found = _CONDITION.match(text, at)
        if found is None:
            return None
        name, operator, number, string, low, high = found.groups()
        if operator is None:
            conditions.append(between(name, _number(low), _number(high)))
        else:
            conditions.append(comparison(name, operator, string if number is None else _number(number)))
        at = found.end()
    expression = conjunction(conditions)
    # Keywords as names, numbers that are written otherwise, an AND at the end: none of them prints like this.
    return expression if expression.text() == text else None


def _number(text: str) -> Value:
    return float(text) if "." in text else int(text)
