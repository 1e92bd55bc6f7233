"""What is forwarded asks for exactly what was collected, in as few filters as the strategy can."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.small_filters import FILTERS, matched

from roamcast.core.aggregation import AGGREGATES, Aggregate
from roamcast.core.messages import Entry
from roamcast.filters.selector import parse

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
        assert matched(filters) == matched(filter for filter, _ in self.collected)
        if strategy == "simple":
            assert set(forwarded) == set(self.collected)
        else:
            assert all(subscriber == "" for _, subscriber in forwarded)
            assert len(set(filters)) == len(filters)
        if strategy in ("covering", "merging"):
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
