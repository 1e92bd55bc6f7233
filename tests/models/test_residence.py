"""Chains fitted to what was counted, and the test of the exponential assumption."""

import math
import random

import pytest

from roamcast.errors import InputError
from roamcast.models.ctmc import presence
from roamcast.models.residence import Stays, exponential_test, fitted_chain, presence_error


def distance_of(times: list[float]) -> float:
    """Kolmogorov's distance from the exponential distribution of the same mean."""
    ordered, mean, count = sorted(times), sum(times) / len(times), len(times)
    fitted = [1 - math.exp(-time / mean) for time in ordered]
    return max(max(abs(f - i / count), abs(f - (i + 1) / count)) for i, f in enumerate(fitted))


@pytest.mark.parametrize("samples", [20, 200])
def test_exponential_times_are_rejected_as_often_as_the_level_says(samples: int) -> None:
    rng = random.Random(7)
    tests = [
        exponential_test(distance_of([rng.expovariate(0.01) for _ in range(samples)]), samples)
        for _ in range(2000)
    ]
    # Of 2000 tests at 5 %, four standard deviations are 39.
    assert abs(sum(test.rejected for test in tests) - 100) < 39
    assert abs(sum(test.p_max <= 0.01 for test in tests) - 20) < 18


def test_other_times_are_rejected() -> None:
    rng = random.Random(8)
    times = [rng.lognormvariate(0.0, 1.5) for _ in range(300)]
    assert exponential_test(distance_of(times), len(times)).rejected


@pytest.mark.parametrize(("distance", "samples"), [(0.1, 0), (-0.1, 5), (1.1, 5), (float("nan"), 5)])
def test_what_is_no_distance_is_refused(distance: float, samples: int) -> None:
    with pytest.raises(InputError, match="valid is"):
        exponential_test(distance, samples)


def stays_between_two() -> dict[str, Stays]:
    """Three quarters of the connected time at a: it is left after 30 s, and b after 10 s."""
    stays = {"a": Stays(), "b": Stays()}
    for here, there, stay_s in (("a", "b", 30.0), ("b", "a", 10.0)):
        stays[here].total_s["connect"] = 100 * stay_s
        stays[here].total_s["handoff"] = 100 * 5.0
        stays[here].count("connect", "handoff", here, 100)
        stays[here].count("handoff", "connect", there, 100)
    return stays


def test_a_fitted_chain_gives_the_times_that_were_counted() -> None:
    found = presence(fitted_chain(stays_between_two()))
    assert found.connect == pytest.approx({"a": 30 / 50, "b": 10 / 50})
    assert found.handoff == pytest.approx(10 / 50)


def test_what_is_left_for_good_is_no_part_of_the_chain() -> None:
    stays = stays_between_two()
    stays["a"].count("connect", "connect", "exit", 3)
    stays["exit"] = Stays()
    stays["exit"].total_s["connect"] = 1000.0
    assert sorted(presence(fitted_chain(stays)).connect) == ["a", "b"]


def test_a_chain_needs_a_way_back() -> None:
    stays = {"a": Stays(), "b": Stays()}
    stays["a"].total_s["connect"] = 10.0
    stays["a"].count("connect", "connect", "b")
    with pytest.raises(InputError, match="moves in both directions"):
        fitted_chain(stays)


def test_the_error_is_the_share_at_a_wrong_broker() -> None:
    assert presence_error({"a": 1.0, "b": 1.0}, {"a": 0.5, "b": 0.5}) == pytest.approx(0.0)
    assert presence_error({"a": 1.0}, {"b": 3.0}) == pytest.approx(1.0)
    assert presence_error({"a": 1.0}, {"a": 0.75, "c": 0.25}) == pytest.approx(0.25)
    with pytest.raises(InputError, match="must not all be 0"):
        presence_error({}, {"a": 1.0})
