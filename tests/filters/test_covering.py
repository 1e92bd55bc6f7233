"""Covering, overlapping, merging: never wrong, and decided where it is simple."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters.naive_filters import VALUES, Condition, conditions, text_of

from roamcast.filters.filter import ALL, NONE, Filter
from roamcast.filters.merging import merge_pair
from roamcast.filters.selector import parse

quick = settings(derandomize=True, deadline=None, max_examples=250, database=None)

filters: st.SearchStrategy[Filter] = conditions.map(text_of).map(parse)

EVERY_NOTIFICATION: list[dict[str, Any]] = [
    {name: value for name, value in zip(("a", "b", "odd name"), values, strict=True) if value is not None}
    for values in product(VALUES, VALUES, (None, 1, "a/b"))
]


def matching(filter: Filter) -> list[bool]:
    return [filter.matches(notification) for notification in EVERY_NOTIFICATION]


@quick
@given(filters, filters)
def test_covers_and_overlaps_are_never_wrong(one: Filter, other: Filter) -> None:
    both = list(zip(matching(one), matching(other), strict=True))
    if one.covers(other):
        assert all(mine or not theirs for mine, theirs in both)
    if not one.overlaps(other):
        assert not any(mine and theirs for mine, theirs in both)
    assert one.overlaps(other) is other.overlaps(one)


@quick
@given(filters)
def test_every_filter_relates_to_itself_and_to_the_constants(filter: Filter) -> None:
    assert filter.covers(filter)
    assert ALL.covers(filter)
    assert filter.covers(NONE)
    assert not filter.overlaps(NONE)
    if NONE.covers(filter):
        assert not any(matching(filter))
    else:
        assert filter.overlaps(filter)


@quick
@given(conditions, conditions)
def test_a_conjunction_is_covered_and_a_disjunction_covers(one: Condition, other: Condition) -> None:
    for part in (one, other):
        assert parse(text_of(part)).covers(parse(text_of(("AND", one, other))))
        assert parse(text_of(("OR", one, other))).covers(parse(text_of(part)))


def merge(filters: Iterable[Filter]) -> list[Filter]:
    """Merge pairs until none merges any more."""
    remaining = sorted(dict.fromkeys(filters), key=str)
    while True:
        for one, other in combinations(remaining, 2):
            union = merge_pair(one, other)
            if union is not None:
                break
        else:
            return remaining
        others = [filter for filter in remaining if filter not in (one, other)]
        remaining = sorted(dict.fromkeys([*others, union]), key=str)


@settings(quick, max_examples=100)
@given(st.lists(filters, max_size=6))
def test_merging_keeps_exactly_what_matched(before: list[Filter]) -> None:
    after = merge(before)
    assert len(after) <= len(before)
    assert after == merge(reversed(before))
    assert [any(column) for column in zip(*map(matching, before), strict=True)] == [
        any(column) for column in zip(*map(matching, after), strict=True)
    ]


RELATIONS = [
    # wide, narrow, does it cover, do they overlap
    ("v > 5", "v > 6", True, True),
    ("v > 5", "v >= 5", False, True),
    ("v >= 5", "v = 5", True, True),
    ("v > 5", "v < 5", False, False),
    ("v > 1", "v < 2", False, True),  # 1.5
    ("v <> 5", "v BETWEEN 1 AND 4", True, True),
    ("v BETWEEN 1 AND 10", "v IN (1, 5.5, 10)", True, True),
    ("v BETWEEN 1 AND 10", "v IN (1, 11)", False, True),
    ("v < 3 OR v >= 3", "v BETWEEN 1 AND 7", True, True),
    ("v < 3 OR v > 3", "v BETWEEN 1 AND 7", False, True),
    ("v >= 9007199254740993", "v = 9007199254740992", False, False),
    ("v > 1", "v > 'a'", False, False),
    ("v = TRUE", "v = 1", False, False),
    ("v = TRUE OR v = FALSE", "v <> TRUE", True, True),
    ("v IS NOT NULL", "v > 5", True, True),
    ("v IS NOT NULL", "v NOT LIKE 'x'", True, True),
    ("v IS NULL", "v IS NOT NULL", False, False),
    ("v IS NULL OR v IS NOT NULL", "TRUE", True, True),
    # A missing attribute and NaN are left.
    ("v < 0 OR v >= 0", "v IS NOT NULL", False, True),
    ("a = 1", "a = 1 AND b = 2", True, True),
    ("a = 1 AND b = 2", "a = 1", False, True),
    ("a = 1 AND b = 2", "b = 3", False, False),
    ("a > 0 OR b > 0", "a > 0 AND b > 0 OR b > 1", True, True),
    # Covered by several boxes together only.
    ("a < 5 OR b < 5", "a BETWEEN 0 AND 9 AND b = 3", True, True),
    ("a < 5 OR a >= 5 AND b > 0", "a BETWEEN 0 AND 9 AND b = 3", True, True),
    ("a < 5 AND b < 5 OR a >= 5 AND b < 7", "a BETWEEN 0 AND 9 AND b = 3", True, True),
    ("a < 5 AND b < 3 OR a >= 5 AND b < 7", "a BETWEEN 0 AND 9 AND b = 3", False, True),
    ("s > 'a'", "s = 'b'", True, True),
    ("s > 'a' AND s < 'a\0'", "s IS NOT NULL", False, False),  # there is no string between the two
    ("s LIKE 'ab%'", "s LIKE 'abc%'", True, True),
    ("s LIKE 'ab%'", "s = 'abx'", True, True),
    ("s LIKE 'ab%'", "s LIKE 'ac%'", False, False),
    ("s LIKE 'ab%'", "s BETWEEN 'aba' AND 'abz'", True, True),
    ("s BETWEEN 'ab' AND 'ac'", "s LIKE 'ab%'", True, True),
    ("s LIKE '%a%'", "s LIKE '%ba_'", True, True),
    ("s LIKE '%a'", "s LIKE '%b'", False, False),
    ("s LIKE '%a'", "s LIKE 'b%'", False, True),
    ("s LIKE '_%'", "s <> ''", True, True),
    ("s LIKE '_' OR s LIKE '__%'", "s <> ''", True, True),
    ("s LIKE '%a' OR s NOT LIKE '%a'", "s = 'x' OR s LIKE 'y%'", True, True),
    ("s NOT LIKE '%a'", "s LIKE '%b'", True, True),
    ("s NOT IN ('x', 'y')", "s = 'z'", True, True),
    ("topic MATCHES '#'", "topic MATCHES 'a/+'", True, True),
    ("topic MATCHES '#'", "topic MATCHES '$sys/#'", False, False),
    ("topic MATCHES 'a/#'", "topic = 'a'", True, True),
    ("topic MATCHES 'a/#'", "topic MATCHES 'a/+/c'", True, True),
    ("topic MATCHES 'a/+'", "topic MATCHES 'a/#'", False, True),
    ("topic MATCHES '+/b'", "topic MATCHES 'a/+'", False, True),
    ("topic MATCHES '+/b'", "topic MATCHES '+/c'", False, False),
    ("topic MATCHES '+/#'", "topic MATCHES '#'", True, True),
    ("topic MATCHES 'a/+' OR topic MATCHES 'a/+/#'", "topic MATCHES 'a/+/#'", True, True),
    ("topic MATCHES 'a/+'", "topic LIKE 'a/%'", False, True),
    ("topic LIKE 'a/%'", "topic MATCHES 'a/+'", True, True),
    ("topic MATCHES '+/+'", "topic MATCHES 'a/b/+'", False, False),
]


@pytest.mark.parametrize(("wide", "narrow", "covers", "overlaps"), RELATIONS)
def test_simple_cases_are_decided(wide: str, narrow: str, covers: bool, overlaps: bool) -> None:
    assert parse(wide).covers(parse(narrow)) is covers
    assert parse(wide).overlaps(parse(narrow)) is overlaps


def test_too_complex_is_undecided_on_the_safe_side() -> None:
    def clauses(names: str, numbers: range) -> str:
        return " AND ".join(f"({names}{n} = 1 OR {names.upper()}{n} = 2)" for n in numbers)

    large, part = parse(clauses("x", range(12))), parse("x0 = 1 OR X0 = 2")
    assert large.boxes is None
    assert not part.covers(large)
    assert large.overlaps(part)
    assert large.covers(large)
    assert ALL.covers(large)
    assert large.covers(NONE)
    assert not large.overlaps(NONE)
    notification = {f"x{n}": 1 for n in range(12)}
    assert large.matches(notification)
    assert not large.matches(notification | {"x3": 2})


def test_a_search_that_is_given_up_stays_on_the_safe_side() -> None:
    # Each pattern alone is small, but side by side they have more states than the search may visit.
    parts = [f"s LIKE '%{letter}{'_' * 12}{letter}%'" for letter in "abcdefgh"]
    hard = parse(" AND ".join([*parts, "s NOT LIKE '%a%'"]))
    assert not hard.matches({"s": "abc"})
    assert hard.overlaps(parse("s LIKE '%b'"))
    assert not NONE.covers(parse(" AND ".join(parts)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        (["FALSE"], ["FALSE"]),
        (["v > 5", "v > 6", "v = 9"], ["v > 5"]),
        (["g = 'x'", "g = 'z'", "g = 'y'"], ["g IN ('x', 'y', 'z')"]),
        (["v = 1", "v IN (2, 3)"], ["v IN (1, 2, 3)"]),
        (["v BETWEEN 1 AND 3", "v BETWEEN 2 AND 5"], ["v BETWEEN 1 AND 5"]),
        (["v >= 1 AND v < 3", "v >= 3 AND v < 5"], ["v < 5 AND v >= 1"]),
        (["v < 3", "v > 3"], ["v < 3", "v > 3"]),
        (["v BETWEEN 1 AND 3", "v BETWEEN 4 AND 5"], ["v BETWEEN 1 AND 3", "v BETWEEN 4 AND 5"]),
        (["b = TRUE", "b = FALSE"], ["b IN (FALSE, TRUE)"]),
        (["b IS NULL", "b IS NOT NULL"], ["TRUE"]),
        (["a = 1 AND b = 1", "a = 1 AND b = 2"], ["a = 1 AND b IN (1, 2)"]),
        (["a = 1 AND b = 1", "a = 2 AND b = 2"], ["a = 1 AND b = 1", "a = 2 AND b = 2"]),
        (
            ["a = 1 AND b = 1", "a = 1 AND b = 2", "a = 2 AND b = 1", "a = 2 AND b = 2"],
            ["a IN (1, 2) AND b IN (1, 2)"],
        ),
        (
            ["topic MATCHES 'x/+' AND v < 3", "topic MATCHES 'x/+' AND v >= 3 AND v < 9"],
            ["topic MATCHES 'x/+' AND v < 9"],
        ),
        (["s >= 'a' AND s < 'b'", "s >= 'b' AND s < 'c'"], ["s < 'c' AND s >= 'a'"]),
        (["topic MATCHES 'a/#'", "topic MATCHES 'a/+'", "topic = 'a'"], ["topic MATCHES 'a/#'"]),
    ],
)
def test_merging(before: list[str], after: list[str]) -> None:
    assert [filter.text for filter in merge(map(parse, before))] == after


def test_a_merger_never_outgrows_a_selector() -> None:
    words = [parse(f"s = '{'x' * 100}{n}'") for n in range(120)]
    merged = merge(words)
    assert len(merged) < len(words)
    for filter in merged:
        assert parse(filter.text) is filter
    assert merge_pair(parse("a = 1"), parse("b = 1")) is None
