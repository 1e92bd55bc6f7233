"""A filter: a predicate over a notification's attributes, and how it relates to other filters."""

from collections.abc import Callable
from typing import NoReturn
from weakref import WeakValueDictionary

from roamcast.errors import InputError
from roamcast.filters import covering
from roamcast.filters.compiling import compile_predicate
from roamcast.filters.expression import Attributes, Constant, Expression, Own, Value, own_conditions
from roamcast.filters.remembering import Remembered

__all__ = ["ALL", "MAX_TEXT_LENGTH", "NONE", "Attributes", "Filter", "Value"]

MAX_TEXT_LENGTH = 8_192

PAIR_CHARACTERS_MAX = 4 << 20
"""Characters of filter texts in the cache of pair comparisons. Routing repeats comparisons while its tables
change slowly; the cache keeps no filter alive."""


class Filter:
    """An immutable predicate, identified by its canonical text.

    Filters with the same text are the same object, as long as anyone holds a reference to it. So comparing
    and hashing by identity is as good as by text, and costs nothing. `matches` decides with three-valued
    logic: an attribute that is missing or of another type makes a condition unknown, and unknown never
    matches. Attribute values are exactly str, int, float or bool. A filter with conditions on the client's
    own state matches nothing as it is: see `own.py`.
    """

    __slots__ = ("__weakref__", "_boxes", "_matches", "expression", "own", "text")

    text: str
    expression: Expression
    own: tuple[Own, ...]
    _boxes: covering.Boxes | bool | None
    _matches: Callable[[Attributes], bool] | None

    def __new__(cls, expression: Expression, length_max: int = MAX_TEXT_LENGTH) -> "Filter":
        text = expression.text()
        known = _interned.get(text)
        if known is not None:
            return known
        if len(text) > length_max:
            raise InputError(
                f"selector is too long: {len(text)} characters when written out,"
                f" expected at most {length_max}"
            )
        self = super().__new__(cls)
        fill = object.__setattr__
        fill(self, "text", text)
        fill(self, "expression", expression)
        fill(self, "_matches", None)
        fill(self, "own", own_conditions(expression))
        fill(self, "_boxes", False)
        _interned[text] = self
        return self

    @property
    def matches(self) -> Callable[[Attributes], bool]:
        """Return the predicate on attributes, compiled on first use: most filters of a broker are topics,
        which are looked up instead."""
        matches = self._matches
        if matches is None:
            matches = compile_predicate(self.expression)
            object.__setattr__(self, "_matches", matches)
        return matches

    def covers(self, other: "Filter") -> bool:
        """True if this matches everything `other` matches; False when that cannot be decided."""
        if self is other:
            return True
        pair = (self.text, other.text)
        known = _covering.get(pair)
        return _covering.put(pair, _covers(self, other), _length(pair)) if known is None else known

    def overlaps(self, other: "Filter") -> bool:
        """True if some notification may match both; also when that cannot be decided."""
        pair = (self.text, other.text)
        known = _overlapping.get(pair)
        return _overlapping.put(pair, _overlaps(self, other), _length(pair)) if known is None else known

    @property
    def boxes(self) -> covering.Boxes | None:
        """Return the filter as a union of boxes (see covering.py); None if it would need too many."""
        boxes = self._boxes
        if isinstance(boxes, bool):
            boxes = covering.boxes_of(self.expression)
            object.__setattr__(self, "_boxes", boxes)
        return boxes

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Filter({self.text!r})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a filter cannot be changed ({name})")

    def __reduce__(self) -> tuple[Callable[[str], "Filter"], tuple[str]]:
        # Copies and unpickled filters must be the interned object, because identity means equality.
        from roamcast.filters.selector import parse

        return parse, (self.text,)


_interned: WeakValueDictionary[str, Filter] = WeakValueDictionary()


living: Callable[[str], Filter | None] = _interned.get
"""Returns the filter with this canonical text, if it is in use."""


_Pair = tuple[str, str]
_covering: Remembered[_Pair, bool] = Remembered(PAIR_CHARACTERS_MAX)
_overlapping: Remembered[_Pair, bool] = Remembered(PAIR_CHARACTERS_MAX)


def _length(pair: _Pair) -> int:
    return len(pair[0]) + len(pair[1])


def _covers(wide: Filter, narrow: Filter) -> bool:
    if wide.boxes is None or narrow.boxes is None:
        # A filter that matches everything or nothing needs no algebra.
        return wide.expression == Constant(True) or narrow.expression == Constant(False)
    return covering.covers(wide.boxes, narrow.boxes)


def _overlaps(one: Filter, other: Filter) -> bool:
    if one.boxes is None or other.boxes is None:
        return Constant(False) not in (one.expression, other.expression)
    return covering.overlaps(one.boxes, other.boxes)


ALL = Filter(Constant(True))
NONE = Filter(Constant(False))
