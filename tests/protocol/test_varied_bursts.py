"""Bursts whose notifications have different attributes: cutting them keeps every notification's own."""

import pytest

from roamcast.protocol.notification import Burst


def burst() -> Burst:
    return Burst("p", 0, 10, b"", 0.0, (b"1", b"2", b"3", b"4"), 4, b"m", (b"a", b"a", b"b", b"a"))


def told(one: Burst) -> list[tuple[int, bytes, bytes]]:
    attributes = one.varied or (one.attributes,) * one.count
    return [(one.number + i, attributes[i], one.bodies[i]) for i in range(one.count)]


ALL = [(10, b"a", b"1"), (11, b"a", b"2"), (12, b"b", b"3"), (13, b"a", b"4")]


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("length", range(1, 5))
def test_a_part_has_the_numbers_attributes_and_bodies_of_its_place(start: int, length: int) -> None:
    end = min(start + length, 4)
    part = burst().part(start, end)
    assert told(part) == ALL[start:end]
    assert part.marks == b"m"
    assert part.count == end - start


def test_uniform_runs_are_bursts_like_any_other() -> None:
    runs = list(burst().uniform())
    assert [one.attributes for one in runs] == [b"a", b"b", b"a"]
    assert all(not one.varied for one in runs)
    assert [row for one in runs for row in told(one)] == ALL
    assert list(runs[0].uniform()) == [runs[0]]


def test_head_and_tail_make_up_the_whole_and_so_do_their_sizes() -> None:
    whole = burst()
    for place in range(1, 4):
        assert told(whole.head(place)) + told(whole.tail(place)) == ALL
        assert whole.head(place).size + whole.tail(place).size == whole.size
