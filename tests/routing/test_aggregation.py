"""What is forwarded asks for exactly what was collected, in as few filters as the strategy can."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.routing.small_filters import FILTERS, matched

from roamcast.filters.filter import Filter
from roamcast.filters.merge_index import LIST_MAX
from roamcast.filters.merging import merge_pair
from roamcast.filters.selector import parse
from roamcast.protocol.messages import Entry
from roamcast.protocol.snapshot import freeze, thaw
from roamcast.routing.aggregation import AGGREGATES, NO_CHANGE, Aggregate

ENTRIES = st.tuples(st.sampled_from(FILTERS), st.sampled_from(("c1", "c2", "c3")))


class Follower:
    """Keeps what a peer would know, by the changes alone."""

    def __init__(self, strategy: str) -> None:
        self.aggregate: Aggregate = AGGREGATES[strategy]()
        self.collected: Counter[Entry] = Counter()
        self.known: dict[Entry, None] = {}

    def add(self, entry: Entry) -> None:
        self.collected[entry] += 1
        self.follow(*self.aggregate.add(entry))

    def remove(self, entry: Entry) -> None:
        self.collected[entry] -= 1
        self.collected += Counter()
        self.follow(*self.aggregate.remove(entry))

    def follow(self, subscribe: tuple[Entry, ...], unsubscribe: tuple[Entry, ...]) -> None:
        for entry in subscribe:
            assert entry not in self.known, "asked for twice"
            self.known[entry] = None
        for entry in unsubscribe:
            del self.known[entry]

    def check(self, strategy: str) -> None:
        forwarded = self.aggregate.forwarded()
        filters = [filter for filter, _ in forwarded]
        assert sorted(forwarded, key=str) == sorted(self.known, key=str)
        if strategy == "lazy_merging":
            assert matched(filters) >= matched(filter for filter, _ in self.collected)
        else:
            assert matched(filters) == matched(filter for filter, _ in self.collected)
        if strategy == "simple":
            assert set(forwarded) == set(self.collected)
        else:
            assert all(subscriber == "" for _, subscriber in forwarded)
            assert len(set(filters)) == len(filters)
        if strategy in ("covering", "merging", "lazy_merging"):
            for one, other in itertools.permutations(filters, 2):
                assert not one.covers(other), f"{one} covers {other}"


@pytest.mark.parametrize("strategy", AGGREGATES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_forwarded_is_the_union_of_collected(strategy: str, data: st.DataObject) -> None:
    follower = Follower(strategy)
    for _ in range(data.draw(st.integers(1, 25))):
        held = sorted(follower.collected, key=str)
        if bool(held) and data.draw(st.booleans()):
            follower.remove(data.draw(st.sampled_from(held)))
        else:
            follower.add(data.draw(ENTRIES))
        follower.check(strategy)
    rest = list(follower.collected.elements())
    data.draw(st.randoms()).shuffle(rest)
    for entry in rest:
        follower.remove(entry)
        follower.check(strategy)
    assert follower.aggregate.forwarded() == []


def texts(follower: Follower) -> set[str]:
    return {filter.text for filter, _ in follower.aggregate.forwarded()}


def test_covering_brings_back_what_only_the_cover_stood_for() -> None:
    follower = Follower("covering")
    wide, other = (parse("x BETWEEN 0 AND 4"), ""), (parse("kind = 'a'"), "")
    narrow = [(parse("x BETWEEN 1 AND 2"), "c1"), (parse("x BETWEEN 2 AND 3"), "c2"), (parse("x = 2"), "c3")]
    for entry in (*narrow, wide, other):
        follower.add(entry)
    assert texts(follower) == {wide[0].text, other[0].text}
    follower.remove(wide)
    # x = 2 is still covered, by one of its own.
    assert texts(follower) == {narrow[0][0].text, narrow[1][0].text, other[0].text}
    follower.remove(narrow[0])
    follower.remove(narrow[1])
    assert texts(follower) == {narrow[2][0].text, other[0].text}


def test_merging_unites_and_takes_apart() -> None:
    follower = Follower("merging")
    low, high, gap = ((parse(f"x BETWEEN {a} AND {b}"), "") for a, b in ((0, 2), (2, 3), (5, 6)))
    for entry in (low, gap, high):
        follower.add(entry)
    assert texts(follower) == {"x BETWEEN 0 AND 3", "x BETWEEN 5 AND 6"}
    follower.remove(low)
    assert texts(follower) == {"x BETWEEN 2 AND 3", "x BETWEEN 5 AND 6"}


def test_lazy_merging_says_nothing_of_a_filter_that_comes_back() -> None:
    follower = Follower("lazy_merging")
    parts = [(parse(f"x BETWEEN {a} AND {a + 1}"), "") for a in range(4)]
    for entry in parts:
        follower.add(entry)
    for entry in (*parts[:2], *parts[:2]):
        assert follower.aggregate.remove(entry) == NO_CHANGE
        assert follower.aggregate.add(entry) == NO_CHANGE
    assert texts(follower) == {"x BETWEEN 0 AND 4"}
    for entry in parts[:2]:
        follower.remove(entry)
    assert texts(follower) == {"x BETWEEN 0 AND 4"}, "as many ghosts as filters"
    follower.remove(parts[2])
    assert texts(follower) == {"x BETWEEN 3 AND 4"}, "more of them: all go at once"


@pytest.mark.parametrize("strategy", AGGREGATES)
def test_the_same_changes_are_answered_the_same(strategy: str) -> None:
    """The answers depend on the order of arrival alone, not on hashes or ids."""

    def answers() -> list[str]:
        rng, aggregate = random.Random(5), AGGREGATES[strategy]()
        held: list[Entry] = []
        said = []
        for _ in range(200):
            if held and rng.random() < 0.45:
                said.append(str(aggregate.remove(held.pop(rng.randrange(len(held))))))
            else:
                held.append((rng.choice(FILTERS), rng.choice("abc")))
                said.append(str(aggregate.add(held[-1])))
        return said

    assert answers() == answers()


# --- many filters, over two attributes and lists: what forwarding them one by one would do ---


def drawn_entry(rng: random.Random) -> Entry:
    """Rectangles that often touch, in a grid of 8 by 8; topics that are listed; both spellings of a range."""
    kind = rng.randrange(4)
    if kind == 0:
        return parse(f"k = {rng.randrange(80)}"), ""
    low, left = rng.randrange(7), rng.randrange(7)
    high, right = min(7, low + rng.choice((0, 1, 1, 2, 5))), min(7, left + rng.choice((0, 1, 1, 3)))
    if kind == 1:
        return parse(f"x >= {low} AND x < {high + 1}"), ""
    if kind == 2:
        return parse(f"x >= {low} AND x < {high + 1} AND y >= {left} AND y < {right + 1}"), ""
    return parse(f"x = {low} AND y BETWEEN {left} AND {right} AND k IN ({low}, {left + 10})"), ""


GRID = [
    {name: value for name, value in zip("xyk", values, strict=True) if value is not None}
    for values in itertools.product(
        (0, 0.5, 2, 3.5, 5, 7, 7.9), (None, 0, 1, 2.5, 4, 7), (None, 0, 1, 11, 40)
    )
]


def is_wanted(filters: list[Filter]) -> list[bool]:
    return [any(one.matches(attributes) for one in filters) for attributes in GRID]


@pytest.mark.parametrize("strategy", ["covering", "merging"])
def test_many_that_come_and_go_are_forwarded_as_defined(strategy: str) -> None:
    """No more than needed: none covers another, and, merging, no two of them have a merger."""
    rng, follower = random.Random(11), Follower(strategy)
    held: list[Entry] = []
    for turn in range(700):
        if held and rng.random() < (0.35 if turn < 450 else 0.7):
            follower.remove(held.pop(rng.randrange(len(held))))
        else:
            held.append(drawn_entry(rng))
            follower.add(held[-1])
        if turn % 35 == 0:
            check_as_defined(follower, strategy)
    while held:
        follower.remove(held.pop())
    assert follower.known == {}


def check_as_defined(follower: Follower, strategy: str) -> None:
    collected = [filter for filter, _ in follower.collected]
    known = [filter for filter, _ in follower.known]
    assert sorted(known, key=str) == sorted((filter for filter, _ in follower.aggregate.forwarded()), key=str)
    assert is_wanted(known) == is_wanted(collected)
    assert all(any(one.covers(filter) for one in known) for filter in collected)
    for one, other in itertools.combinations(known, 2):
        assert not one.covers(other)
        assert not other.covers(one)
        if strategy == "merging":
            union = merge_pair(one, other)
            assert union is None or is_long_list(union), f"{one} and {other}"
    if strategy == "covering":
        maximal = {
            one for one in collected if not any(two.covers(one) for two in collected if two is not one)
        }
        assert maximal <= set(known)


def is_long_list(filter: Filter) -> bool:
    """Such are not made: all of it would have to be said again at every change."""
    return filter.text.count(",") >= LIST_MAX


@pytest.mark.parametrize("strategy", ["covering", "merging"])
def test_a_thawed_one_goes_on_as_if_nothing_had_been(strategy: str) -> None:
    rng = random.Random(4)
    kept, frozen = AGGREGATES[strategy](), AGGREGATES[strategy]()
    held: list[Entry] = []
    for turn in range(300):
        if held and rng.random() < 0.45:
            entry = held.pop(rng.randrange(len(held)))
            assert kept.remove(entry) == frozen.remove(entry)
        else:
            held.append(drawn_entry(rng))
            assert kept.add(held[-1]) == frozen.add(held[-1])
        if turn % 20 == 0:
            frozen = thaw(freeze(frozen))


def test_of_a_merged_row_one_that_others_replace_changes_nothing() -> None:
    follower = Follower("merging")
    entries = [(parse(f"x >= {low} AND x < {low + 3}"), "") for low in range(50)]
    for entry in entries:
        follower.add(entry)
    assert texts(follower) == {"x < 52 AND x >= 0"}
    said = [follower.aggregate.remove(entry) for entry in entries[1:-1:2]]
    assert not any(change.subscribe or change.unsubscribe for change in said)
    # Its neighbours are gone, and what it alone reached is not asked for any more.
    assert follower.aggregate.remove(entries[24]).unsubscribe == ((parse("x >= 0 AND x < 52"), ""),)
    assert texts(follower) == {"x < 25 AND x >= 0", "x < 52 AND x >= 26"}


def test_listed_values_stay_in_lists_that_are_short() -> None:
    follower = Follower("merging")
    for number in range(100):
        follower.add((parse(f"k = 'topic {number}'"), ""))
    lengths = sorted(text.count(",") + 1 for text in texts(follower))
    assert lengths == [4, LIST_MAX, LIST_MAX, LIST_MAX]
