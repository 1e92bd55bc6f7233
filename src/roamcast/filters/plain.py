"""Fast parser for the usual filters between brokers: plain comparisons and ranges, joined by AND.

Only canonical filter text is parsed here; `selector.py` parses everything else.
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
    """Return the expression with this canonical text; None if the grammar is needed."""
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
    # Keywords as names, other number formats or a trailing AND do not print like this.
    return expression if expression.text() == text else None


def _number(text: str) -> Value:
    return float(text) if "." in text else int(text)
