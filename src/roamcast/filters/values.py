"""Sets of values that one attribute may take, for the covering algebra.

The values of an attribute fall into kinds that never compare with each other:
absent, NaN, the two booleans, the numbers, the strings. A set is kept kind by
kind: a few bits, intervals of numbers, intervals of strings, and patterns that
the strings must also fulfil (or must not).

Intervals are written as a flat, rising tuple of cuts: (c0, c1, c2, c3) holds
what lies between c0 and c1 and between c2 and c3. A cut never hits a value, so
open and closed ends need no cases:

- numbers: (x, 0) is just below x and (x, 1) just above it. Numbers are treated
  as dense, so an open interval between neighbouring floats counts as inhabited:
  a missed chance to say "empty", never a wrong answer.
- strings: (0, s) is just below s, and END is above all. Strings by code point
  are not dense: the next after s is s followed by a null character, so "above
  s" is (0, s + "\\0") and every interval with distinct ends holds a string.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from roamcast.filters.expression import (
    Between,
    Compare,
    Expression,
    In,
    Inside,
    IsNull,
    Like,
    Matches,
    Value,
)
from roamcast.filters.geography import Outside, Region, none_in_all
from roamcast.filters.patterns import LikePattern, Pattern, TopicPattern, Wild

NumberCut = tuple[float, int]
StringCut = tuple[int, str]
Numbers = tuple[NumberCut, ...]
Strings = tuple[StringCut, ...]
Machine = tuple[Pattern, bool]
Literal = tuple[Pattern | Region, bool]

ABSENT, NAN, FALSE, TRUE = 1, 2, 4, 8
EVERY_MARK = ABSENT | NAN | FALSE | TRUE

BOTTOM: NumberCut = (float("-inf"), 0)
TOP: NumberCut = (float("inf"), 1)
START: StringCut = (0, "")
END: StringCut = (1, "")

EVERY_NUMBER: Numbers = (BOTTOM, TOP)
EVERY_STRING: Strings = (START, END)

# Steps of one search for a string, and searches to answer one question. Beyond, the answer is
# "there may be one". Both limits count what is asked for, not what a cache has left to do:
# otherwise answers would depend on earlier questions, and a replay on its history.
MAX_SEARCH_STEPS = 20_000
MAX_SEARCHES = 64


class Effort:
    """Remaining effort for one question."""

    __slots__ = ("searches",)

    def __init__(self) -> None:
        self.searches = MAX_SEARCHES

    def spend_search(self) -> bool:
        self.searches -= 1
        return self.searches >= 0


@dataclass(frozen=True, slots=True)
class ValueSet:
    """A set of values of one attribute, which may include being absent.

    `topic` and `region` are hints for the index: if set, all members are strings that
    match that topic filter, or lie in that region; `…_exact` says that they are all of those.
    """

    marks: int = 0
    numbers: Numbers = ()
    strings: Strings = ()
    patterns: tuple[Literal, ...] = ()
    topic: TopicPattern | None = field(default=None, compare=False)
    topic_exact: bool = field(default=False, compare=False)
    region: Region | None = field(default=None, compare=False)
    region_exact: bool = field(default=False, compare=False)

    def is_empty(self, effort: Effort) -> bool:
        """True if the set is empty; False if the search for a member was given up."""
        if self.topic_exact:
            return False  # Every topic filter matches some topic.
        return not self.marks and not self.numbers and not _inhabited(self.strings, self.patterns, effort)

    def is_full(self) -> bool:
        return self.marks == EVERY_MARK and self.numbers == EVERY_NUMBER and self.strings == EVERY_STRING


EVERYTHING = ValueSet(EVERY_MARK, EVERY_NUMBER, EVERY_STRING)
PRESENT = ValueSet(EVERY_MARK & ~ABSENT, EVERY_NUMBER, EVERY_STRING)


# --- intervals; the functions work for both kinds of cuts ---------------------------------------------


Cuts = TypeVar("Cuts", Numbers, Strings)

_IN_BOTH, _IN_EITHER, _IN_FIRST_ONLY = 0b1000, 0b1110, 0b0100


def _combine(one: Cuts, other: Cuts, keep: int) -> Cuts:
    """Combine the cuts of both; bit `2 * in_one + in_other` of `keep` says what is kept."""
    result: list[Any] = []
    i = j = 0
    inside = False
    while i < len(one) or j < len(other):
        if j == len(other) or (i < len(one) and one[i] <= other[j]):
            cut: Any = one[i]
            if j < len(other) and other[j] == cut:
                j += 1
            i += 1
        else:
            cut = other[j]
            j += 1
        now = bool(keep >> (2 * (i & 1) + (j & 1)) & 1)
        if now != inside:
            result.append(cut)
            inside = now
    return tuple(result)


def union_of(one: Cuts, other: Cuts) -> Cuts:
    return _combine(one, other, _IN_EITHER)


def intersection_of(one: Cuts, other: Cuts) -> Cuts:
    if len(one) == 2 and len(other) == 2:
        low, high = max(one[0], other[0]), min(one[1], other[1])
        return (low, high) if low < high else ()
    return _combine(one, other, _IN_BOTH)


def difference_of(one: Cuts, other: Cuts) -> Cuts:
    return _combine(one, other, _IN_FIRST_ONLY)


def number_points(numbers: Numbers) -> list[float] | None:
    """Return the numbers if the set is finitely many single ones."""
    points = [low[0] for low, high in zip(numbers[::2], numbers[1::2], strict=True) if low[0] == high[0]]
    return points if len(points) * 2 == len(numbers) else None


def string_points(strings: Strings) -> list[str] | None:
    """Return the strings if the set is finitely many single ones."""
    points = [
        low[1] for low, high in zip(strings[::2], strings[1::2], strict=True) if high == (0, low[1] + "\0")
    ]
    return points if len(points) * 2 == len(strings) else None


def string_point(text: str) -> Strings:
    return ((0, text), (0, text + "\0"))


def prefix_range(prefix: str) -> Strings:
    """Return all strings with this prefix: up to the prefix with its last character raised by one."""
    shortened = prefix.rstrip("\U0010ffff")
    if not shortened:
        return ((0, prefix), END)
    return ((0, prefix), (0, shortened[:-1] + chr(ord(shortened[-1]) + 1)))


# --- sets ---------------------------------------------------------------------------------------------


def intersection(one: ValueSet, other: ValueSet) -> ValueSet:
    patterns = one.patterns
    if other.patterns:
        known = {(pattern.key, wanted) for pattern, wanted in patterns}
        patterns += tuple(p for p in other.patterns if (p[0].key, p[1]) not in known)
    return _make(
        one.marks & other.marks,
        intersection_of(one.numbers, other.numbers),
        intersection_of(one.strings, other.strings),
        patterns,
        one.topic or other.topic,
        one.region or other.region,
    )


def union(one: ValueSet, other: ValueSet) -> ValueSet | None:
    """Return the union if it is expressible as one set; patterns of different sets cannot be combined."""
    if one.patterns and other.patterns and one.patterns != other.patterns:
        return None
    if one.patterns != other.patterns and one.strings and other.strings:
        return None
    return ValueSet(
        one.marks | other.marks,
        union_of(one.numbers, other.numbers),
        union_of(one.strings, other.strings),
        one.patterns or other.patterns,
    )


def difference(one: ValueSet, other: ValueSet, effort: Effort) -> list[ValueSet]:
    """Return sets that together contain what is in `one` and not in `other`, each non-empty as far as
    known."""
    pieces = [
        _make(
            one.marks & ~other.marks,
            difference_of(one.numbers, other.numbers),
            difference_of(one.strings, other.strings),
            one.patterns,
        )
    ]
    common = intersection_of(one.strings, other.strings)
    for pattern, wanted in other.patterns:
        if common:
            pieces.append(_make(0, (), common, (*one.patterns, (pattern, not wanted))))
    return [piece for piece in pieces if not piece.is_empty(effort)]


def contains(one: ValueSet, other: ValueSet, effort: Effort) -> bool:
    """True if every member of `other` is known to be in `one`."""
    if one.topic is not None and one.topic_exact and other.topic is not None and other.topic_exact:
        return one.topic.contains(other.topic)
    # Routers ask this for many pairs of entries, and mostly the answer is clearly no.
    if other.marks & ~one.marks or not _spans(one.numbers, other.numbers):
        return False
    if not other.patterns and not _spans(one.strings, other.strings):
        return False
    return not difference(other, one, effort)


def _spans(one: Cuts, other: Cuts) -> bool:
    """True if `one` spans `other` from beginning to end, and contains its first and last values."""
    if not other:
        return True
    if not one or other[0] < one[0] or one[-1] < other[-1]:
        return False
    return len(one) == 2 or bool(bisect_right(one, other[0]) & bisect_left(one, other[-1]) & 1)


def _make(
    marks: int,
    numbers: Numbers,
    strings: Strings,
    patterns: tuple[Literal, ...],
    topic: TopicPattern | None = None,
    region: Region | None = None,
) -> ValueSet:
    if patterns and strings:
        points = string_points(strings)
        if points is not None:
            strings = ()
            for point in points:
                if all(pattern.accepts(point) is wanted for pattern, wanted in patterns):
                    strings = union_of(strings, string_point(point))
            patterns = ()
    if not strings:
        patterns = ()
    return ValueSet(marks, numbers, strings, patterns, topic, region=region)


# --- from a leaf of an expression to a set ------------------------------------------------------------


def set_of(leaf: Expression) -> tuple[str, ValueSet]:
    """Return the attribute of a leaf, and the values that make it true."""
    match leaf:
        case Compare(name, operator, value):
            return name, _compared(operator, value)
        case Between(name, low, high, negative):
            inside = intersection(_compared(">=", low), _compared("<=", high))
            if not negative:
                return name, inside
            outside = union(_compared("<", low), _compared(">", high))
            assert outside is not None
            return name, outside
        case In(name, values, negative):
            return name, _member(values, negative)
        case Like(name, pattern, negative):
            return name, _pattern_set(pattern, _like_strings(pattern), negative)
        case Matches(name, pattern, negative):
            return name, _pattern_set(pattern, _topic_strings(pattern), negative)
        case Inside(name, region, negative):
            if negative:
                return name, ValueSet(strings=EVERY_STRING, patterns=((Outside(region), True),))
            within: tuple[Literal, ...] = ((region, True),)
            return name, ValueSet(strings=EVERY_STRING, patterns=within, region=region, region_exact=True)
        case IsNull(name, negative):
            return name, PRESENT if negative else ValueSet(ABSENT)
    raise TypeError(f"not a leaf: {leaf!r}")


def _compared(operator: str, value: Value) -> ValueSet:
    if isinstance(value, bool):
        return ValueSet(TRUE if value else FALSE)
    if isinstance(value, str):
        here: StringCut = (0, value)
        after: StringCut = (0, value + "\0")
        strings = {
            "=": (here, after),
            "<>": difference_of(EVERY_STRING, (here, after)),
            "<": () if here == START else (START, here),
            "<=": (START, after),
            ">": (after, END),
            ">=": (here, END),
        }[operator]
        return ValueSet(strings=strings)
    below, above = (value, 0), (value, 1)
    numbers = {
        "=": (below, above),
        "<>": (BOTTOM, below, above, TOP),
        "<": (BOTTOM, below),
        "<=": (BOTTOM, above),
        ">": (above, TOP),
        ">=": (below, TOP),
    }[operator]
    return ValueSet(numbers=numbers)


def _member(values: tuple[Value, ...], negative: bool) -> ValueSet:
    # Values are sorted and distinct, so their points line up into a rising tuple of cuts
    # (neighbouring strings such as 'a' and 'a\0' touch, which union_of would join).
    if isinstance(values[0], bool):
        return ValueSet(0 if negative else TRUE | FALSE)
    if isinstance(values[0], str):
        strings: Strings = ()
        flat = tuple(cut for value in values for cut in string_point(str(value)))
        strings = flat if all(low < high for low, high in pairwise(flat)) else _joined(values)
        return ValueSet(strings=difference_of(EVERY_STRING, strings) if negative else strings)
    numbers: Numbers = tuple(cut for v in values if not isinstance(v, str) for cut in ((v, 0), (v, 1)))
    return ValueSet(numbers=difference_of(EVERY_NUMBER, numbers) if negative else numbers)


def _joined(values: Iterable[Value]) -> Strings:
    strings: Strings = ()
    for value in values:
        strings = union_of(strings, string_point(str(value)))
    return strings


def _pattern_set(pattern: Pattern, strings: Strings | None, negative: bool) -> ValueSet:
    """Return intervals alone if these suffice; else the pattern, within the range of its prefix."""
    if strings is not None:
        if negative:
            return ValueSet(strings=difference_of(EVERY_STRING, strings))
        if isinstance(pattern, TopicPattern):
            return ValueSet(strings=strings, topic=pattern, topic_exact=True)
        return ValueSet(strings=strings)
    if negative:
        return ValueSet(strings=EVERY_STRING, patterns=((pattern, False),))
    within = prefix_range(pattern.prefix) if pattern.prefix else EVERY_STRING
    if isinstance(pattern, TopicPattern):
        return ValueSet(strings=within, patterns=((pattern, True),), topic=pattern, topic_exact=True)
    return ValueSet(strings=within, patterns=((pattern, True),))


def _like_strings(pattern: LikePattern) -> Strings | None:
    if pattern.literal is not None:
        return string_point(pattern.literal)
    if pattern.items[-1] is Wild.RUN and len(pattern.prefix) == len(pattern.items) - 1:
        return prefix_range(pattern.prefix) if pattern.prefix else EVERY_STRING
    return None


def _topic_strings(pattern: TopicPattern) -> Strings | None:
    *above, last = pattern.levels
    if "+" in pattern.levels:
        return None
    if last != "#":
        return string_point(pattern.text)
    if not above:
        return difference_of(EVERY_STRING, prefix_range("$"))
    parent = "/".join(above)
    return union_of(string_point(parent), prefix_range(parent + "/"))


# --- is there a string? -------------------------------------------------------------------------------


def _inhabited(strings: Strings, patterns: tuple[Literal, ...], effort: Effort) -> bool:
    if not patterns or not strings:
        return bool(strings)
    regions = [(one, wanted) for one, wanted in patterns if isinstance(one, Region)]
    if regions:
        # No machine decides whether a text is a position; other patterns' conditions on it are ignored.
        return not none_in_all(regions)
    machines = tuple((one, wanted) for one, wanted in patterns if isinstance(one, Pattern))
    return any(
        not effort.spend_search() or _search(low[1], None if high == END else high[1], machines)
        for low, high in zip(strings[::2], strings[1::2], strict=True)
    )


@lru_cache(maxsize=4096)
def _search(low: str, high: str | None, patterns: tuple[Machine, ...]) -> bool:
    """Search a string from `low` up to `high` that all machines accept, by running them side by side.

    Between two characters that occur in a pattern or a bound, all other characters behave alike, so one of
    them stands for all.
    """
    alphabet = _alphabet(low, high, patterns)
    wanted = [want for _, want in patterns]
    start = (tuple(pattern.start() for pattern, _ in patterns), 0, -1 if high is None else 0)
    seen = {start}
    waiting = [start]
    steps = 0
    for states, low_at, high_at in waiting:
        if (low_at == -1 or low_at == len(low)) and all(
            pattern.accepting(state) is want for (pattern, want), state in zip(patterns, states, strict=True)
        ):
            return True
        for character in alphabet:
            steps += len(patterns)
            if steps > MAX_SEARCH_STEPS:
                return True
            next_low = _step_low(low, low_at, character)
            next_high = -1 if high is None else _step_high(high, high_at, character)
            if next_low is None or next_high is None:
                continue
            after = tuple(p.step(state, character) for (p, _), state in zip(patterns, states, strict=True))
            if any(want and not state for want, state in zip(wanted, after, strict=True)):
                continue
            place = (after, next_low, next_high)
            if place not in seen:
                seen.add(place)
                waiting.append(place)
    return False


def _step_low(low: str, at: int, character: str) -> int | None:
    """Return how far the string still equals `low`; -1 once it is above, None if it is below."""
    if at == -1 or at == len(low) or character > low[at]:
        return -1
    return at + 1 if character == low[at] else None


def _step_high(high: str, at: int, character: str) -> int | None:
    """Return how far the string still equals `high`; -1 once it is below, None if it is not below."""
    if at == -1 or character < high[at]:
        return -1
    return at + 1 if character == high[at] and at + 1 < len(high) else None


def _alphabet(low: str, high: str | None, patterns: tuple[Machine, ...]) -> list[str]:
    mentioned = {"/", "$", *low, *(high or "")}
    for pattern, _ in patterns:
        mentioned |= pattern.characters
    codes = sorted(map(ord, mentioned))
    if not low and high is None:
        # Without ordering, one unmentioned character represents all of them.
        other = next(code for code in range(97, 0x110000) if chr(code) not in mentioned)
        return [chr(code) for code in sorted([*codes, other])]
    gaps = [code + 1 for code, following in pairwise([-1, *codes, 0x110000]) if code + 1 < following]
    return [chr(code) for code in sorted([*codes, *gaps])]
