"""A filter as conditions that Spark can evaluate: intervals of sortable bytes.

All values of all types have one common order: a value is encoded as a letter for its type and bytes that sort
as the values do; a missing attribute is encoded as no bytes. So every comparison, range, list or prefix
becomes "these bytes lie in this interval", and a filter becomes a union of boxes, each a few intervals.
Patterns that no interval can express (a wildcard in the middle) are regular expressions.

The parser gives the structure of a filter; its meaning is implemented again here, so that the pipeline can
find errors of the brokers' implementation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from roamcast.filters.expression import (
    And,
    Between,
    Compare,
    Constant,
    Expression,
    In,
    Inside,
    IsNull,
    Like,
    Matches,
    Or,
    Value,
)
from roamcast.filters.geography import Region, position_of
from roamcast.filters.patterns import LikePattern, TopicPattern, Wild

Interval = tuple[bytes, bytes]
"""Interval with its first value, and without its end."""

MISSING = b""
BOOLEANS: Interval = (b"b", b"c")
NOT_A_NUMBER = b"m"
NUMBERS: Interval = (b"n", b"o")
STRINGS: Interval = (b"s", b"t")
END = b"\xff"
EVERYTHING: Interval = (MISSING, END)

BOXES_MAX = 64
"""A filter that would need more boxes is evaluated directly."""

_DOUBLE, _LONG, _SHORT = struct.Struct(">d"), struct.Struct(">Q"), struct.Struct(">H")
_SIGN = 1 << 63
_RESIDUE_ZERO = 1 << 15


def encode(value: Value) -> bytes:
    """Return the bytes that represent a value, sorted like the values of its type."""
    if value.__class__ is str:
        return b"s" + value.encode("utf-8", "surrogatepass")
    if value.__class__ is bool:
        return b"b\x01" if value else b"b\x00"
    return _encode_number(value)  # type: ignore[arg-type]


def _encode_number(value: float) -> bytes:
    """Encode the nearest double, and the distance of a large integer from it: so both kinds compare
    exactly."""
    nearest = float(value) + 0.0  # There is one zero.
    if nearest != nearest:
        return NOT_A_NUMBER
    bits: int = _LONG.unpack(_DOUBLE.pack(nearest))[0]
    bits = bits ^ _SIGN if bits < _SIGN else ~bits & (2 * _SIGN - 1)
    residue = value - int(nearest) if isinstance(value, int) else 0
    return b"n" + _LONG.pack(bits) + _SHORT.pack(_RESIDUE_ZERO + residue)


def after(encoded: bytes) -> bytes:
    """Return the first bytes after these."""
    return encoded + b"\x00"


def behind_prefix(encoded: bytes) -> bytes:
    """Return the first bytes after all that have this prefix; UTF-8 never contains the byte 0xFF."""
    return encoded[:-1] + bytes((encoded[-1] + 1,))


@dataclass(frozen=True)
class Derived:
    """A value computed from an attribute: whether it lies in a region; missing if it is no position."""

    name: str
    region: Region

    @property
    def column(self) -> str:
        """Name of its column among those of attributes, whose names contain no null character."""
        return f"{self.name}\0{self.region.text}"

    def encoded(self, value: Value | None) -> bytes:
        place = position_of(value) if isinstance(value, str) else None
        return MISSING if place is None else encode(self.region.holds(place))


def leaves_of(expression: Expression) -> Iterator[Expression]:
    """Return the conditions on single attributes in a filter."""
    if isinstance(expression, And | Or):
        for child in expression.children:
            yield from leaves_of(child)
    elif not isinstance(expression, Constant):
        yield expression


# --- what a condition says of one attribute ---


@dataclass(frozen=True)
class Pattern:
    """A regular expression that the whole string must match (or, if negative, must not match).

    Java, RE2 and Python interpret it alike, except for atomic groups, which RE2 does not support.
    """

    regex: str
    negative: bool = False


@dataclass(frozen=True)
class Allowed:
    """Values that an attribute may have."""

    intervals: tuple[Interval, ...] = (EVERYTHING,)
    patterns: tuple[Pattern, ...] = ()

    @property
    def hull(self) -> Interval:
        return self.intervals[0][0], self.intervals[-1][1]

    @property
    def is_hull(self) -> bool:
        """Return whether the hull is exact."""
        return len(self.intervals) == 1 and not self.patterns

    @property
    def points(self) -> list[bytes]:
        """Return the allowed values, if they can be listed."""
        points = [low for low, high in self.intervals if high == after(low)]
        return points if len(points) == len(self.intervals) else []

    def and_also(self, other: Allowed) -> Allowed:
        both = [
            (max(low, other_low), min(high, other_high))
            for low, high in self.intervals
            for other_low, other_high in other.intervals
        ]
        return Allowed(_tidied(both), self.patterns + other.patterns)


def _tidied(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return intervals in order, without empty ones, and with adjacent ones merged."""
    tidy: list[Interval] = []
    for low, high in sorted(intervals):
        if low >= high:
            continue
        if tidy and low <= tidy[-1][1]:
            tidy[-1] = (tidy[-1][0], max(high, tidy[-1][1]))
        else:
            tidy.append((low, high))
    return tuple(tidy)


def _without(whole: Interval, intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return what remains of an interval. A condition on one type says nothing about other types, negated or
    not.
    """
    left, start = [], whole[0]
    for low, high in _tidied(intervals):
        left.append((start, low))
        start = high
    return _tidied([*left, (start, whole[1])])


def _type_of(value: Value) -> Interval:
    if isinstance(value, bool):
        return BOOLEANS
    return STRINGS if isinstance(value, str) else NUMBERS


def _compared(operator: str, value: Value) -> tuple[Interval, ...]:
    (first, last), point = _type_of(value), encode(value)
    match operator:
        case "=":
            return ((point, after(point)),)
        case "<>":
            return _without((first, last), [(point, after(point))])
        case "<":
            return _tidied([(first, point)])
        case "<=":
            return ((first, after(point)),)
        case ">":
            return ((after(point), last),)
        case ">=":
            return ((point, last),)
    raise ValueError(f"no comparison: {operator!r}")


def _of_type(whole: Interval, intervals: Iterable[Interval], negative: bool) -> Allowed:
    return Allowed(_without(whole, intervals) if negative else _tidied(intervals))


def _patterned(hull: Iterable[Interval], regex: str, negative: bool) -> Allowed:
    return Allowed((STRINGS,) if negative else _tidied(hull), (Pattern(regex, negative),))


def _prefixed(prefix: str) -> Interval:
    encoded = encode(prefix)
    return encoded, behind_prefix(encoded)


def _like(pattern: LikePattern, negative: bool) -> Allowed:
    items = pattern.items
    if items[-1] is Wild.RUN and all(isinstance(item, str) for item in items[:-1]):
        return _of_type(STRINGS, [_prefixed("".join(map(str, items[:-1])))], negative)
    head = next(place for place, item in enumerate(items) if not isinstance(item, str))
    # Between two runs the leftmost fit is as good as any other: atomic groups keep Java from going back.
    segments = [""]
    for item in items:
        if item is Wild.RUN:
            segments.append("")
        else:
            segments[-1] += "." if item is Wild.ONE else java_quoted(str(item))
    regex = segments[0]
    if len(segments) > 1:
        regex += "".join(f"(?>.*?{segment})" for segment in segments[1:-1]) + f".*{segments[-1]}"
    return _patterned([_prefixed("".join(map(str, items[:head])))], regex, negative)


def _topic(pattern: TopicPattern, negative: bool) -> Allowed:
    """Convert a topic filter. MQTT 4.7: a final `#` also stands for the level above; leading wildcards do not
    match `$` topics.
    """
    levels = pattern.levels
    fixed = levels[:-1] if levels[-1] == "#" else levels
    if "+" not in fixed:
        if not fixed:
            return _of_type(STRINGS, _without(STRINGS, [_prefixed("$")]), negative)
        above = encode("/".join(fixed))
        return _of_type(STRINGS, [(above, after(above)), _prefixed("/".join(fixed) + "/")], negative)
    head = fixed[: fixed.index("+")]
    parts = ["[^/]*" if level == "+" else java_quoted(level) for level in fixed]
    if not head:
        parts[0] = "(?:[^/$][^/]*)?"
    regex = "/".join(parts) + ("(?:/.*)?" if levels[-1] == "#" else "")
    if not head:
        return _patterned(_without(STRINGS, [_prefixed("$")]), regex, negative)
    return _patterned([_prefixed("/".join(head) + "/")], regex, negative)


def java_quoted(text: str) -> str:
    r"""Return a Java regular expression that matches this text literally; `\E` alone would end a
    quotation."""
    return "".join(f"\\{sign}" if sign in r"\^$.|?*+()[]{}-/" else sign for sign in text)


def allowed_by(leaf: Expression) -> tuple[str, Allowed]:
    """Return the attribute of a condition, and the values for which it is true."""
    match leaf:
        case Compare(name, operator, value):
            return name, Allowed(_compared(operator, value))
        case Between(name, low, high, negative):
            within = _tidied([(encode(low), after(encode(high)))])
            return name, _of_type(_type_of(low), within, negative)
        case In(name, values, negative):
            points = [(encode(value), after(encode(value))) for value in values]
            return name, _of_type(_type_of(values[0]), points, negative)
        case Like(name, pattern, negative):
            return name, _like(pattern, negative)
        case Matches(name, topic, negative):
            return name, _topic(topic, negative)
        case Inside(name, region, negative):
            # Whether a position is there is worked out with the values: see `Derived`.
            point = encode(not negative)
            return Derived(name, region).column, Allowed(((point, after(point)),))
        case IsNull(name, negative):
            return name, Allowed(((after(MISSING), END),) if negative else ((MISSING, after(MISSING)),))
    raise TypeError(f"not a condition: {leaf!r}")


# --- whole filters ---

Box = Mapping[str, Allowed]
"""Allowed values by attribute; other attributes may have any value."""


def boxes_of(expression: Expression) -> list[Box] | None:
    """Return the boxes whose union is the filter; None if there would be too many."""
    if isinstance(expression, Constant):
        return [{}] if expression.value else []
    if isinstance(expression, Or):
        return _united([boxes_of(child) for child in expression.children])
    if isinstance(expression, And):
        boxes: list[Box] = [{}]
        for child in expression.children:
            parts = boxes_of(child)
            if parts is None or len(boxes) * len(parts) > BOXES_MAX:
                return None
            pairs = [_joined(one, other) for one in boxes for other in parts]
            boxes = [pair for pair in pairs if pair is not None]
        return boxes
    name, allowed = allowed_by(expression)
    return [{name: allowed}] if allowed.intervals else []


def _joined(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes; None if it is empty."""
    joined = dict(one)
    for name, allowed in other.items():
        joined[name] = joined[name].and_also(allowed) if name in joined else allowed
        if not joined[name].intervals:
            return None
    return joined


def _united(parts: Iterable[list[Box] | None]) -> list[Box] | None:
    """Merge boxes of the same single attribute, if they are intervals."""
    others: list[Box] = []
    single: dict[str, tuple[Interval, ...]] = {}
    for boxes in parts:
        if boxes is None:
            return None
        for box in boxes:
            allowed = next(iter(box.values())) if len(box) == 1 else None
            if allowed is None or allowed.patterns:
                others.append(box)
            else:
                name = next(iter(box))
                single[name] = _tidied([*single.get(name, ()), *allowed.intervals])
    united = [*({name: Allowed(intervals)} for name, intervals in single.items()), *others]
    return united if len(united) <= BOXES_MAX else None
