"""The index of covering finds what asking every filter finds, and asks few."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters.naive_filters import conditions, text_of

from roamcast.filters import outline_masks
from roamcast.filters.cover_index import CoverIndex
from roamcast.filters.filter import Filter
from roamcast.filters.patterns import TopicPattern
from roamcast.filters.selector import parse
from roamcast.filters.values import Effort, difference, set_of

LEVELS = ("a", "b", "$x", "")


def naive_first(held: list[Filter], filter: Filter) -> Filter | None:
    return filter if filter in held else next((one for one in held if one.covers(filter)), None)


def agree(index: CoverIndex, held: list[Filter], filter: Filter) -> None:
    assert index.first_covering(filter) is naive_first(held, filter)
    assert index.covered_by(filter) == [one for one in held if filter.covers(one)]


@settings(derandomize=True, deadline=None, max_examples=40, database=None)
@given(st.lists(conditions.map(text_of).map(parse), min_size=1, max_size=25, unique=True))
def test_it_finds_what_asking_every_filter_finds(filters: list[Filter]) -> None:
    index, held = CoverIndex(), list[Filter]()
    for filter in filters:
        agree(index, held, filter)
        index.add(filter)
        held.append(filter)
    for filter in filters[::2]:
        index.remove(filter)
        held.remove(filter)
        agree(index, held, filter)


def drawn_text(rng: random.Random) -> str:
    def between(name: str) -> str:
        low = rng.randrange(12)
        return f"{name} BETWEEN {low} AND {low + rng.randrange(8)}"

    def topic() -> str:
        levels = [rng.choice((*LEVELS, "+", "+")) for _ in range(rng.randint(1, 3))]
        return f"t MATCHES '{'/'.join(levels + ['#'] * rng.randint(0, 1))}'".replace("''", "'+'")

    draws = (
        lambda: between("x"),
        lambda: f"{between('x')} AND {between('y')}",
        lambda: f"{topic()} AND {between('x')}",
        topic,
        lambda: f"s IN ('{rng.choice('abc')}', '{rng.choice('def')}')",
        lambda: f"s LIKE '{rng.choice('abc')}%' AND x > {rng.randrange(9)}",
        lambda: f"{between('x')} OR {between('y')}",
        lambda: f"z IS NULL AND {between('x')}",
    )
    return rng.choice(draws)()


def test_it_still_does_when_there_are_many_and_they_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few slots to a table, so that there are several tables, and bounds are chosen again and again."""
    monkeypatch.setattr(outline_masks, "SLOTS", 96)
    rng = random.Random(3)
    index, held = CoverIndex(), list[Filter]()
    found = 0
    for turn in range(600):
        filter = parse(drawn_text(rng))
        if turn % 3 == 0:
            agree(index, held, filter)
            found += index.first_covering(filter) is not None
        if filter not in held:
            index.add(filter)
            held.append(filter)
        while len(held) > 250:
            index.remove(held.pop(rng.randrange(len(held))))
    assert found > 60


def test_among_many_ranges_few_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    asked = 0
    covers = Filter.covers

    def counted(self: Filter, other: Filter) -> bool:
        nonlocal asked
        asked += 1
        return covers(self, other)

    monkeypatch.setattr(Filter, "covers", counted)
    index = CoverIndex()
    for _ in range(600):
        lows = [rng.randrange(600) for _ in "abcde"]
        filter = parse(
            " AND ".join(f"{n} BETWEEN {low} AND {low + 400}" for n, low in zip("abcde", lows, strict=True))
        )
        index.first_covering(filter)
        index.covered_by(filter)
        index.add(filter)
    assert asked < 600


@pytest.mark.parametrize("seed", range(3))
def test_topic_filters_cover_by_their_levels_what_their_machines_say(seed: int) -> None:
    """Against a search for a topic that one matches and the other does not."""
    rng = random.Random(seed)
    covered = 0
    for _ in range(400):
        wide, narrow = (drawn_topic(rng) for _ in range(2))
        sets = [set_of(parse(f"t MATCHES '{one}'").expression)[1] for one in (wide, narrow)]
        expected = not difference(sets[1], sets[0], Effort())
        assert TopicPattern(wide).contains(TopicPattern(narrow)) is expected, (wide, narrow)
        covered += expected
    assert covered > 40


def drawn_topic(rng: random.Random) -> str:
    levels = [rng.choice((*LEVELS, "+", "+")) for _ in range(rng.randint(0, 3))]
    return "/".join([*levels, "#"] if not levels or rng.random() < 0.4 else levels) or "+"
