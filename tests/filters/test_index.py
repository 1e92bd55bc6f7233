"""The index finds exactly what asking every filter finds, whatever was added and removed before."""

import os
import random
import subprocess
import sys
from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters.naive_filters import conditions, notifications, text_of

from roamcast.filters import box_table, index, masks
from roamcast.filters.filter import ALL, NONE, Filter
from roamcast.filters.index import FilterIndex
from roamcast.filters.selector import parse, parse_subscription

filters: st.SearchStrategy[Filter] = conditions.map(text_of).map(parse)

# Add a filter under a key, or remove the key.
changes = st.lists(
    st.tuples(st.integers(0, 30), st.one_of(filters, filters, filters, st.none())), min_size=1, max_size=60
)


class Twin:
    """An index beside a plain dictionary that is asked one by one."""

    def __init__(self) -> None:
        self.index: FilterIndex[Any] = FilterIndex()
        self.filters: dict[Any, Filter] = {}

    def add(self, key: Any, filter: Filter) -> None:
        self.index.add(key, filter)
        self.index.label(key, _label(key))
        self.filters.pop(key, None)
        self.filters[key] = filter

    def remove(self, key: Any) -> None:
        self.index.remove(key)
        del self.filters[key]

    def check(self, notification: dict[str, Any]) -> None:
        expected = [key for key, filter in self.filters.items() if filter.matches(notification)]
        assert self.index.match(notification) == expected
        assert len(self.index) == len(self.filters)
        labels = tuple(dict.fromkeys(map(_label, expected)))
        assert self.index.labels(notification) == labels
        assert self.index.labels_of_each([notification, {}, notification])[::2] == [labels, labels]


def _label(key: Any) -> str:
    """One of a few, so that several keys have each."""
    return f"label {hash(key) % 3}"


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits so low that a handful of filters passes through every way of storing and rebuilding."""
    monkeypatch.setattr(box_table, "RECENT_MAX", 2)
    monkeypatch.setattr(box_table, "GROWTH", 2)
    monkeypatch.setattr(box_table, "SET_MAX", 16)
    monkeypatch.setattr(masks, "ROWS_MAX", 2)
    monkeypatch.setattr(masks, "ROW_BITS_MAX", 1)
    monkeypatch.setattr(masks, "WORD_BITS", 8)
    monkeypatch.setattr(masks, "ASKS_PER_BOX", 1)
    monkeypatch.setattr(masks, "SCAN_MAX", 1)
    monkeypatch.setattr(masks, "FOUND_KEPT_MAX", 4)
    monkeypatch.setattr(index, "MAX_WAITING", 1)


def run_changes(steps: list[tuple[int, Filter | None]], asked: list[dict[str, Any]]) -> None:
    twin = Twin()
    for key, filter in steps:
        if filter is not None:
            twin.add(key, filter)
        elif key in twin.filters:
            assert key in twin.index
            twin.remove(key)
        twin.check(asked[key % len(asked)])
    for notification in asked:
        twin.check(notification)
    for key in list(twin.filters):
        twin.remove(key)
    for notification in asked:
        assert twin.index.match(notification) == []
    # Nothing may be left behind by what is gone.
    assert not twin.index._columns
    assert not twin.index._asked
    assert not twin.index._tables
    assert not twin.index._repeating


@settings(derandomize=True, deadline=None, max_examples=120, database=None)
@given(changes, st.lists(notifications, min_size=1, max_size=12))
def test_as_asking_each(steps: list[tuple[int, Filter | None]], asked: list[dict[str, Any]]) -> None:
    run_changes(steps, asked)


@pytest.mark.usefixtures("small_limits")
def test_as_asking_each_under_small_limits() -> None:
    @settings(derandomize=True, deadline=None, max_examples=250, database=None)
    @given(changes, st.lists(notifications, min_size=1, max_size=12))
    def check(steps: list[tuple[int, Filter | None]], asked: list[dict[str, Any]]) -> None:
        run_changes(steps, asked)

    check()


@pytest.mark.parametrize("asks", [0, 1, 12], ids=["at once", "soon", "later"])
def test_masks_as_asking_each(monkeypatch: pytest.MonkeyPatch, asks: int) -> None:
    """Whenever the masks are made, and whatever has changed since."""
    monkeypatch.setattr(masks, "SCAN_MAX", 1)
    monkeypatch.setattr(masks, "ASKS_PER_BOX", asks)
    several = st.lists(filters, min_size=2, max_size=4).map(
        lambda parts: parse(" AND ".join(f"({part.text})" for part in parts))
    )
    added = st.tuples(st.integers(0, 30), st.one_of(several, several, several, st.none()))

    @settings(derandomize=True, deadline=None, max_examples=60, database=None)
    @given(st.lists(added, min_size=1, max_size=40), st.lists(notifications, min_size=1, max_size=12))
    def check(steps: list[tuple[int, Filter | None]], asked: list[dict[str, Any]]) -> None:
        run_changes(steps, asked)

    check()


NUMBERS = (-(2**63), 2**63 - 1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), -(2**53) - 1, -1, 0, 1, 0.5, 1e300)


def test_ends_of_ranges_are_exact() -> None:
    """Open and closed ends, between integers and floats that lie next to each other."""
    twin = Twin()
    for low in NUMBERS:
        for operator in ("<", "<=", ">", ">=", "=", "<>"):
            twin.add((low, operator), parse(f"v {operator} {low!r} AND w >= 0"))
    near = [neighbour for number in NUMBERS for neighbour in (number - 1, number, number + 1)]
    near += [nextafter(number, away) for number in NUMBERS for away in (-inf, inf)]
    near += [*map(float, NUMBERS), inf, -inf, 2**70, -(2**70), 10**400, -(10**400)]
    for _ in range(20):  # Until they are not asked singly any more.
        for value in near:
            twin.check({"v": value, "w": 1})
    assert not twin.index._tables[None].sets[0]._waiting
    values: list[dict[str, Any]] = [{"v": int(value), "w": 1} for value in near if abs(value) < inf]
    assert twin.index.labels_of_each(values) == list(map(twin.index.labels, values))
    more: list[dict[str, Any]] = [{"v": value, "w": value} for value in range(masks.KNOWN_MAX + 1)]
    for _ in range(2):  # The second time there are too many to be remembered.
        assert twin.index.labels_of_each(more) == list(map(twin.index.labels, more))


def test_labels_follow_their_keys() -> None:
    table: FilterIndex[int] = FilterIndex()
    for key in range(100):
        table.add(key, parse(f"v >= {key} AND w >= 0"))
        table.label(key, "even" if key % 2 == 0 else "odd")
    for _ in range(50):
        assert table.labels({"v": 50, "w": 1}) == ("even", "odd")
    assert table.labels_of_each([{"v": 0, "w": 1}, {"v": 50, "w": 1}, {"w": 1}]) == [
        ("even",),
        ("even", "odd"),
        (),
    ]
    table.label(0, "nought")
    table.remove(1)
    assert table.labels({"v": 50, "w": 1}) == ("nought", "even", "odd")
    assert table.labels_of_each([{"v": 1, "w": 1}]) == [("nought",)]


def test_labels_of_more_boxes_than_a_word_has_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where so many are gone that the rest would fit a word, and the integers are still as they were."""
    monkeypatch.setattr(masks, "WORD_BITS", 64)
    twin = Twin()
    for key in range(100):
        twin.add(key, parse(f"v >= {key} AND w LIKE '%{key % 10}'"))
    for key in range(45):
        for value in (0, 50, 99):
            twin.check({"v": value, "w": f"x{value % 10}"})
        twin.remove(key)
    assert len(twin.index._tables[None].sets[0]._numbers) == 100


def test_many_boxes_do_not_take_much_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows get longer with the number of boxes, so a large set does not have one for each end."""
    monkeypatch.setattr(box_table, "RECENT_MAX", 100)
    monkeypatch.setattr(masks, "ROWS_MAX", 64)
    monkeypatch.setattr(masks, "ROW_BITS_MAX", 1 << 14)
    table: FilterIndex[int] = FilterIndex()
    for key in range(500):
        table.add(key, parse(f"v >= {key} AND w <= {key} AND x <> {key}"))
    boxes = table._tables[None]
    assert [len(one.members) for one in boxes.sets] == [400, 100]
    for _ in range(20):
        assert table.match({"v": 400, "w": 10, "x": 50}) == [*range(10, 50), *range(51, 401)]
    assert [sum(len(axis.number_rows) for axis in one._axes) <= 170 for one in boxes.sets] == [True, True]
    for key in range(480):
        table.remove(key)
    assert [len(one.members) for one in boxes.sets] == [20]
    for _ in range(20):
        assert table.match({"v": 490, "w": 10, "x": 481}) == [480, *range(482, 491)]


def drawn_filter(draw: random.Random) -> Filter:
    def condition(name: str) -> str:
        low = draw.randrange(2_000) / 2
        return draw.choice(
            [
                f"{name} = {low}",
                f"{name} BETWEEN {low} AND {low + draw.randrange(300)}",
                f"{name} > {low}",
                f"{name} <= {low}",
                f"{name} LIKE '{draw.choice('abc')}{draw.choice('abc')}%'",
                f"{name} LIKE '%{draw.choice('abc')}'",
                f"{name} IN ('a', 'ab', '{draw.choice('abc') * 2}')",
                f"{name} MATCHES '{draw.choice('abc')}/+'",
                f"{name} NOT BETWEEN {low} AND {low + 100}",
            ]
        )

    names = draw.sample(["p", "q", "r", "s"], draw.choice((1, 1, 2, 3)))
    text = " AND ".join(map(condition, names))
    return parse(f"{text} OR {condition('p')}" if draw.random() < 0.1 else text)


def drawn_notification(draw: random.Random) -> dict[str, Any]:
    def value() -> Any:
        words = ["a", "ab", "ba", "cc", "b/x", "a/", "abc"]
        return draw.choice([draw.randrange(1_200), draw.random() * 1_200, draw.choice(words), 2**60, True])

    return {name: value() for name in ["p", "q", "r", "s"] if draw.random() < 0.9}


def test_large_tables_that_grow_and_shrink() -> None:
    draw = random.Random(7)
    twin = Twin()
    for round_number, growing in enumerate((0.95, 0.3, 0.9, 0.1)):
        for step in range(2_500):
            if draw.random() < growing or not twin.filters:
                twin.add((round_number, step), drawn_filter(draw))
            else:
                twin.remove(draw.choice(list(twin.filters)))
            if step % 100 == 0:
                twin.check(drawn_notification(draw))
        for _ in range(20):
            twin.check(drawn_notification(draw))


def test_ranges_of_one_attribute_that_arrive_in_order() -> None:
    twin = Twin()
    for low in range(3_000):
        twin.add(low, parse(f"v BETWEEN {low} AND {low + 3}"))
    for value in (0, 1, 1_500.5, 2_999, 3_002, 3_003, 2**70):
        twin.check({"v": value})


def test_constants_duplicates_and_strangers() -> None:
    table: FilterIndex[str] = FilterIndex()
    table.add("all", ALL)
    table.add("none", NONE)
    table.add("either", parse("a = 1 OR b = 1"))
    assert table.match({"a": 1, "b": 1}) == ["all", "either"]
    table.add("all", parse("a = 1"))
    assert table.match({"a": 1}) == ["either", "all"]
    assert "none" in table
    assert "other" not in table
    with pytest.raises(KeyError):
        table.remove("other")
    for key in ("all", "none", "either"):
        table.remove(key)
    assert len(table) == 0


def test_true_is_not_one_and_big_integers_are_exact() -> None:
    twin = Twin()
    for number, text in enumerate(["v = 1", "v = TRUE", "v = 9007199254740993", "v > 9007199254740992"]):
        twin.add(number, parse(text))
        twin.add(number + 10, parse(f"{text} AND w IS NULL"))
    for value in (1, 1.0, True, False, 2**53, 2**53 + 1, float(2**53), float("nan")):
        twin.check({"v": value})


def test_topics() -> None:
    table: FilterIndex[str] = FilterIndex()
    for pattern in ("#", "+", "a/#", "a/+", "+/b", "a/b", "$sys/#", "+/+/#", "a/+/c"):
        table.add(pattern, parse_subscription(pattern))
    assert table.match({"topic": "a/b"}) == ["#", "a/#", "a/+", "+/b", "a/b", "+/+/#"]
    assert table.match({"topic": "a"}) == ["#", "+", "a/#"]
    assert table.match({"topic": "$sys/b"}) == ["$sys/#"]
    assert table.match({"topic": "a/x/c"}) == ["#", "a/#", "+/+/#", "a/+/c"]
    assert table.match({"topic": 5}) == []


STORY = """
import random
from roamcast.errors import InputError
from roamcast.filters.index import FilterIndex
from roamcast.filters.merging import merge_pair
from roamcast.filters.selector import parse
from tests.filters.test_index import drawn_filter, drawn_notification
draw = random.Random(3)
filters = [drawn_filter(draw) for _ in range(300)]
index = FilterIndex()
for number, filter in enumerate(filters):
    index.add(f"key {number}", filter)
for _ in range(50):
    print(index.match(drawn_notification(draw)))
print([merge_pair(*pair) for pair in zip(filters, filters[1:])])
print([one.covers(other) for one in filters[:40] for other in filters[:40]])
try:
    parse("a ~ 1")
except InputError as error:
    print(error)
"""


def test_every_process_gives_the_same_answers() -> None:
    answers = [
        subprocess.run(
            [sys.executable, "-c", STORY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1]
    assert answers[0]
