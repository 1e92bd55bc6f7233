"""Perfect merging: fewer filters that together match exactly the same notifications.

Two filters merge if one covers the other, or if they are single boxes that
differ in one attribute only and the union there is again a simple condition:
a list of values, a range, both booleans. Joining arbitrary filters with OR would
be perfect too, but makes a table shorter without making it simpler.
"""

from roamcast.errors import InputError
from roamcast.filters.covering import Box
from roamcast.filters.expression import (
    And,
    Compare,
    Constant,
    Expression,
    IsNull,
    between,
    comparison,
    conjunction,
    membership,
    names_of,
)
from roamcast.filters.filter import Filter
from roamcast.filters.values import (
    ABSENT,
    BOTTOM,
    END,
    EVERY_MARK,
    EVERY_NUMBER,
    EVERY_STRING,
    FALSE,
    START,
    TOP,
    TRUE,
    ValueSet,
    number_points,
    string_points,
    union,
)

MAX_LIST = 256


def merge_pair(one: Filter, other: Filter) -> Filter | None:
    """Return one filter that matches exactly what either matches, or None if there is no simple one."""
    if one.covers(other):
        return one
    if other.covers(one):
        return other
    if one.boxes is None or other.boxes is None or len(one.boxes) != 1 or len(other.boxes) != 1:
        return None
    return _merged(one, one.boxes[0], other.boxes[0])


def _merged(filter: Filter, one: Box, other: Box) -> Filter | None:
    """Return the merger of two boxes, the first of which is that of `filter`."""
    if one.keys() != other.keys():
        return None
    different = [name for name in sorted(one) if one[name] != other[name]]
    if len(different) != 1:
        return None
    (name,) = different
    joined = union(one[name], other[name])
    return None if joined is None else with_values(filter, name, joined)


def with_values(filter: Filter, name: str, values: ValueSet) -> Filter | None:
    """Return a single box with other values of one attribute; None if no simple filter expresses that."""
    condition = condition_for(name, values)
    kept = _conditions_without(name, filter.expression)
    if condition is None or kept is None:
        return None
    try:
        return Filter(conjunction([*kept, condition]))
    except InputError:
        # The text would be longer than a selector may be.
        return None


def _conditions_without(name: str, expression: Expression) -> list[Expression] | None:
    """Return a conjunction's conditions on other attributes; None if a part concerns several attributes."""
    kept: list[Expression] = []
    for part in expression.children if isinstance(expression, And) else (expression,):
        names = names_of(part)
        if len(names) != 1:
            return None
        if name not in names:
            kept.append(part)
    return kept


def condition_for(name: str, values: ValueSet) -> Expression | None:
    """Return a single condition that holds for exactly these values, if there is one."""
    if values.is_full():
        return Constant(True)
    if values.patterns:
        return None
    kinds = (values.marks, values.numbers, values.strings)
    if kinds == (EVERY_MARK & ~ABSENT, EVERY_NUMBER, EVERY_STRING):
        return IsNull(name, negative=True)
    match [bool(kind) for kind in kinds]:
        case [True, False, False]:
            return _condition_for_marks(name, values.marks)
        case [False, True, False]:
            return _condition_for_numbers(name, values)
        case [False, False, True]:
            return _condition_for_strings(name, values)
    return None


def _condition_for_marks(name: str, marks: int) -> Expression | None:
    if marks == ABSENT:
        return IsNull(name)
    if marks == TRUE | FALSE:
        return membership(name, [False, True])
    if marks in (TRUE, FALSE):
        return comparison(name, "=", marks == TRUE)
    return None


def _condition_for_numbers(name: str, values: ValueSet) -> Expression | None:
    points = number_points(values.numbers)
    if points is not None:
        return membership(name, points) if len(points) <= MAX_LIST else None
    if len(values.numbers) != 2:
        return None
    (low, above_low), (high, above_high) = values.numbers
    parts: list[Expression] = []
    if (low, above_low) != BOTTOM:
        parts.append(comparison(name, ">" if above_low else ">=", low))
    if (high, above_high) != TOP:
        parts.append(comparison(name, "<=" if above_high else "<", high))
    if len(parts) == 2 and above_high and not above_low:
        return between(name, low, high)
    # All numbers: no single comparison expresses that.
    return conjunction(parts) if parts else None


def _condition_for_strings(name: str, values: ValueSet) -> Expression | None:
    points = string_points(values.strings)
    if points is not None:
        return membership(name, points) if len(points) <= MAX_LIST else None
    if len(values.strings) != 2:
        return None
    low, high = values.strings
    parts: list[Expression] = []
    if low != START:
        parts.append(Compare(name, ">=", low[1]))
    if high != END:
        parts.append(Compare(name, "<", high[1]))
    return conjunction(parts) if parts else None
