"""Does one filter cover another, do two overlap: decided on unions of boxes.

A box holds, for each attribute it mentions, the set of values allowed; it is a
conjunction of conditions on single attributes. An expression becomes a union of
boxes by multiplying out, as long as that stays small. Then:

- two filters overlap if a box of one meets a box of the other on every attribute;
- a filter is covered if nothing is left of its boxes after those of the other
  have been cut off them one by one.

Where the sets are decided (values.py) both answers are exact. Work is bounded:
past a limit "covers" answers False and "overlaps" answers True, which costs a
router an entry or a message too many, and never a notification.
"""

from functools import reduce

from roamcast.filters.expression import And, Constant, Expression, Or
from roamcast.filters.values import (
    EVERYTHING,
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
MAX_PIECES = 512


def boxes_of(expression: Expression) -> Boxes | None:
    """The expression as a union of inhabited boxes, or None if it takes more than MAX_BOXES."""
    match expression:
        case Constant(value):
            return ({},) if value else ()
        case And():
            return _product(expression)
        case Or():
            return _sum(expression)
    name, values = set_of(expression)
    return () if values.is_empty() else ({name: values},)


def _product(expression: And) -> Boxes | None:
    boxes: Boxes = ({},)
    for child in expression.children:
        factors = boxes_of(child)
        if factors is None or len(boxes) * len(factors) > MAX_BOXES * 4:
            return None
        products = (meet(box, factor) for box in boxes for factor in factors)
        boxes = tuple(product for product in products if product is not None)
        if len(boxes) > MAX_BOXES:
            return None
    return boxes


def _sum(expression: Or) -> Boxes | None:
    boxes: list[Box] = []
    # Alternatives on one attribute alone (x = 1 OR x = 2) are one box with a larger set.
    place_of_single: dict[str, int] = {}
    for child in expression.children:
        summands = boxes_of(child)
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


def meet(one: Box, other: Box) -> Box | None:
    """What is in both boxes, or None if nothing is."""
    if not one:
        return other
    result = dict(one)
    for name, values in other.items():
        known = result.get(name)
        if known is not None:
            values = intersection(known, values)
            if values.is_empty():
                return None
        result[name] = values
    return result


def contains_box(wide: Box, narrow: Box) -> bool:
    return all(contains(values, narrow.get(name, EVERYTHING)) for name, values in wide.items())


def cut_off(box: Box, knife: Box) -> list[Box]:
    """Boxes that together hold what is in `box` and not in `knife`."""
    pieces: list[Box] = []
    rest = dict(box)
    for name, values in knife.items():
        mine = rest.get(name, EVERYTHING)
        pieces += [{**rest, name: outside} for outside in difference(mine, values)]
        inside = intersection(mine, values)
        if inside.is_empty():
            break
        rest[name] = inside
    return pieces


def covers(wide: Boxes, narrow: Boxes) -> bool:
    return all(_is_covered(wide, box) for box in narrow)


def _is_covered(wide: Boxes, box: Box) -> bool:
    if any(contains_box(candidate, box) for candidate in wide):
        return True
    # Boxes that do not meet this one cannot take anything away from it, but would split it.
    knives = [candidate for candidate in wide if meet(candidate, box) is not None]
    if len(knives) < 2:
        return False
    pieces = [box]
    for knife in knives:
        pieces = reduce(lambda done, piece: done + cut_off(piece, knife), pieces, list[Box]())
        if not pieces:
            return True
        if len(pieces) > MAX_PIECES:
            return False
    return False


def overlaps(one: Boxes, other: Boxes) -> bool:
    return any(meet(mine, theirs) is not None for mine in one for theirs in other)
