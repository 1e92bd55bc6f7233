"""Covering and overlap of filters, decided on unions of boxes.

A box holds, for each attribute it mentions, the set of values allowed; it is a
conjunction of conditions on single attributes. An expression becomes a union of
boxes by multiplying out, as long as that stays small. Then:

- two filters overlap if a box of one meets a box of the other on every attribute;
- a filter is covered if nothing is left of its boxes after those of the other
  have been cut off them one by one.

Where the sets are decided (values.py) both answers are exact. Work is bounded: past a limit "covers" answers
False and "overlaps" answers True, which costs a router an unnecessary entry or message, but never a
notification.
"""

from roamcast.filters.expression import And, Constant, Expression, Or, Own, own_mark
from roamcast.filters.values import (
    EVERYTHING,
    PRESENT,
    TRUE,
    Effort,
    ValueSet,
    contains,
    difference,
    intersection,
    set_of,
    union,
)

Box = dict[str, ValueSet]
Boxes = tuple[Box, ...]

MAX_BOXES = 64
MAX_PIECES = 256


def boxes_of(expression: Expression) -> Boxes | None:
    """The expression as a union of inhabited boxes, or None if it takes more than MAX_BOXES."""
    return _boxes(expression, Effort())


def _boxes(expression: Expression, effort: Effort) -> Boxes | None:
    match expression:
        case Constant(value):
            return ({},) if value else ()
        case And():
            return _product(expression, effort)
        case Or():
            return _sum(expression, effort)
        case Own():
            # Only a filter with the identical condition, or without any on this attribute, covers it.
            return ({expression.name: PRESENT, own_mark(expression): ValueSet(TRUE)},)
    name, values = set_of(expression)
    return () if values.is_empty(effort) else ({name: values},)


def _product(expression: And, effort: Effort) -> Boxes | None:
    boxes: Boxes = ({},)
    for child in expression.children:
        factors = _boxes(child, effort)
        if factors is None or len(boxes) * len(factors) > MAX_BOXES * 4:
            return None
        products = (meet(box, factor, effort) for box in boxes for factor in factors)
        boxes = tuple(product for product in products if product is not None)
        if len(boxes) > MAX_BOXES:
            return None
    return boxes


def _sum(expression: Or, effort: Effort) -> Boxes | None:
    boxes: list[Box] = []
    # Alternatives on one attribute alone (x = 1 OR x = 2) are one box with a larger set.
    place_of_single: dict[str, int] = {}
    for child in expression.children:
        summands = _boxes(child, effort)
        if summands is None:
            return None
        for box in summands:
            if len(box) == 1:
                ((name, values),) = box.items()
                place = place_of_single.setdefault(name, len(boxes))
                if place < len(boxes):
                    joined = union(boxes[place][name], values)
                    if joined is not None:
                        boxes[place] = {} if joined.is_full() else {name: joined}
                        if joined.is_full():
                            return ({},)
                        continue
            boxes.append(box)
        if len(boxes) > MAX_BOXES:
            return None
    return tuple(boxes)


def meet(one: Box, other: Box, effort: Effort) -> Box | None:
    """Return the intersection of both boxes, or None if it is empty."""
    if not one:
        return other
    result = dict(one)
    for name, values in other.items():
        known = result.get(name)
        common = values if known is None else intersection(known, values)
        if known is not None and common.is_empty(effort):
            return None
        result[name] = common
    return result


def contains_box(wide: Box, narrow: Box, effort: Effort) -> bool:
    # A box never mentions an attribute without restricting it.
    return all(name in narrow and contains(values, narrow[name], effort) for name, values in wide.items())


def cut_off(box: Box, knife: Box, effort: Effort) -> list[Box]:
    """Return boxes that together contain what is in `box` and not in `knife`."""
    pieces: list[Box] = []
    rest = dict(box)
    for name, values in knife.items():
        mine = rest.get(name, EVERYTHING)
        pieces += [{**rest, name: outside} for outside in difference(mine, values, effort)]
        inside = intersection(mine, values)
        if inside.is_empty(effort):
            break
        rest[name] = inside
    return pieces


def covers(wide: Boxes, narrow: Boxes) -> bool:
    effort = Effort()
    return all(_is_covered(wide, box, effort) for box in narrow)


def _is_covered(wide: Boxes, box: Box, effort: Effort) -> bool:
    if any(contains_box(candidate, box, effort) for candidate in wide):
        return True
    if len(wide) < 2:
        return False
    # Boxes that do not meet this one cannot take anything away from it, but would split it.
    knives = [candidate for candidate in wide if meet(candidate, box, effort) is not None]
    pieces = [box]
    for knife in knives:
        pieces = [part for piece in pieces for part in cut_off(piece, knife, effort)]
        if len(pieces) > MAX_PIECES:
            return False
    return not pieces


def overlaps(one: Boxes, other: Boxes) -> bool:
    effort = Effort()
    return any(meet(mine, theirs, effort) is not None for mine in one for theirs in other)
