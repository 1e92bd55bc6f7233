"""Steps, instances and pace: what a broker lets through for a client that moves."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.filters.own import Span, bind
from roamcast.filters.selector import parse
from roamcast.protocol.whereabouts import Pace, Place, Whereabouts
from roamcast.routing.location import pace
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.ploc import Ploc, Rule
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.location.variables import NumberSteps

SQUARE = MovementGraph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
"""Figure 7 of the paper."""


def whereabouts(place: Place, distance_s: float = 0.0, number: int = 1) -> Whereabouts:
    return Whereabouts("car", number, {"location": place}, distance_s)


# --- how many steps ---


@given(
    st.integers(0, 100),
    st.integers(1, 100),
    st.lists(st.integers(0, 50), max_size=30),
    st.integers(-300, 300),
)
def test_a_round_trip_rounded_up_is_enough(delay: int, stay: int, pauses: list[int], passes_at: int) -> None:
    """The proof, by cases: a client that stays at least `stay` at each location, a broker `delay` away."""
    moves = list(itertools.accumulate(stay + pause for pause in pauses))
    known = sum(move + delay <= passes_at for move in moves)
    arrived = sum(move <= passes_at + delay for move in moves)
    assert arrived - known <= Rule().steps(2 * delay, stay)


def test_it_is_also_necessary() -> None:
    # Two links of 90 there and back, stays of 100: the news of two moves are not here yet.
    assert Rule().steps(180, 100) == 2
    assert Rule(distance="one_way").steps(180, 100) == 1
    assert Rule(distance="one_way", rounding="down").steps(180, 100) == 0


def test_both_limits_are_in_the_rule() -> None:
    for rule in (Rule(), Rule("one_way"), Rule("one_way", "down")):
        assert rule.steps(5, math.inf) == 0
        assert rule.steps(5, 0) == math.inf
        assert rule.steps(math.inf, 5) == math.inf
        assert rule.steps(0, 5) == 0


# --- instances ---


def test_instances_of_a_filter_at_several_distances() -> None:
    ploc = Ploc({"location": SQUARE}, Rule())
    filter = bind(parse("service = 'parking' AND location IN myloc"), "car")
    here = Place("a", None, 1.0)
    texts = [ploc.instance(filter, whereabouts(here, distance_s), False).text for distance_s in (0, 0.5, 1.5)]
    assert texts == [
        "location = 'a' AND service = 'parking'",
        "location IN ('a', 'b', 'c') AND service = 'parking'",
        "location IN ('a', 'b', 'c', 'd') AND service = 'parking'",
    ]
    assert ploc.instance(filter, whereabouts(here, 9), exact=True).text == texts[0]
    far = ploc.instance(filter, whereabouts(here, math.inf), False)
    assert far.text == "location IS NOT NULL AND service = 'parking'"


def test_a_jump_lets_both_places_through_but_counts_for_one() -> None:
    ploc = Ploc({"location": SQUARE}, Rule())
    filter = bind(parse("location IN myloc"), "car")
    jumping = Place("a", "d", math.inf)
    assert ploc.instance(filter, whereabouts(jumping, 1), False).text == "location IN ('a', 'd')"
    assert ploc.instance(filter, whereabouts(jumping), True).text == "location = 'a'"


def test_an_unknown_place_matches_nothing() -> None:
    ploc = Ploc({"location": SQUARE}, Rule())
    for text in ("location IN myloc", "location NOT IN myloc", "location WITHIN 2 OF myloc"):
        assert ploc.instance(bind(parse(text), "car"), whereabouts(Place()), True).text == "FALSE"
        assert ploc.instance(bind(parse(text), "car"), whereabouts(Place(), 5), False).text == "FALSE"


def test_where_nobody_said_how_it_changes_all_is_let_through() -> None:
    ploc = Ploc({}, Rule())
    filter = bind(parse("location IN myloc"), "car")
    assert ploc.instance(filter, whereabouts(Place("a", None, 1), 1), False).text == "location IS NOT NULL"
    assert ploc.instance(filter, whereabouts(Place("a", None, 1), 1), True).text == "location = 'a'"


edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=10)


@given(edges, st.booleans(), st.data())
def test_what_changes_nothing_here_changes_nothing_further_away(
    drawn: list[tuple[int, int]], one_way: bool, data: st.DataObject
) -> None:
    graph = MovementGraph(drawn, one_way=one_way)
    ploc = Ploc({"location": graph}, Rule())
    filters = [bind(parse(text), "car") for text in ("x IN myloc", "x WITHIN 1 OF myloc AND y = 1")]
    old, new = (Place(data.draw(st.sampled_from(graph.locations)), None, 1.0) for _ in range(2))
    distance_s = data.draw(st.integers(0, 4))
    if ploc.is_same(filters, whereabouts(old, distance_s), whereabouts(new, distance_s)):
        for further_s in range(distance_s, 8):
            for filter in filters:
                instances = [
                    ploc.instance(filter, whereabouts(place, further_s), False) for place in (old, new)
                ]
                assert instances[0] is instances[1]


def test_other_distances_and_stays_must_be_told() -> None:
    ploc = Ploc({"location": SQUARE}, Rule())
    filter = bind(parse("location IN myloc"), "car")
    place = Place("a", None, 1.0)
    assert ploc.is_same([filter], whereabouts(place, 9), whereabouts(Place("b", None, 1.0), 9))
    assert not ploc.is_same([filter], whereabouts(place, 9), whereabouts(place, 8))
    assert not ploc.is_same([filter], whereabouts(place, 9), whereabouts(Place("a", None, 0.5), 9))


# --- numbers ---


def test_numbers_fall_and_rise_by_so_much() -> None:
    budget = NumberSteps(fall=10, rise=0, lowest=0, highest=100)
    assert budget.is_step(50, 40)
    assert not budget.is_step(50, 39)
    assert not budget.is_step(50, 51)
    assert budget.near((50,), 2, 0) == Span(30, 50)
    assert budget.near((5,), 2, 1) == Span(-1, 6)
    assert budget.near((5,), 0, 0) == Span(5, 5, is_exact=True)
    assert budget.near((5,), math.inf, 0) is None
    for value in ("5", True, -1, 101):
        with pytest.raises(InputError, match="valid is a number from 0 to 100"):
            budget.check(value)


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(InputError, match="0 or more"):
        NumberSteps(fall=-1, rise=0).validate()
    with pytest.raises(InputError, match="valid is a range"):
        NumberSteps(fall=1, rise=1, lowest=5, highest=4).validate()
    with pytest.raises(InputError, match="stay_s -1: valid is 0"):
        LocationSettings(stay_s=-1).check()


# --- pace ---


def test_the_shortest_of_the_last_stays_counts() -> None:
    now, known = 0.0, None
    for stay in (3.0, 1.0, *(4.0,) * 6):
        now += stay
        known = pace.changed(known, now, is_late=False)
    # The first change begins the first stay.
    assert known is not None
    assert known.stays_s == (1.0, *(4.0,) * 6)
    assert pace.stay_s(known, 9.0) == 1.0
    assert pace.stay_s(known, 9.0, "mean") == pytest.approx(2 ** (7 / 4))
    for _ in range(2):
        now += 4.0
        known = pace.changed(known, now, is_late=False)
    assert pace.stay_s(known, 9.0) == 4.0


def test_a_change_that_came_late_says_nothing_about_the_pace() -> None:
    known = pace.changed(None, 1.0, is_late=False)
    known = pace.changed(known, 5.0, is_late=True)
    known = pace.changed(known, 5.1, is_late=False)
    assert known == Pace(5.1)
    assert pace.changed(known, 8.1, is_late=False).stays_s == (3.0,)


def test_before_it_has_moved_twice_its_pace_is_assumed() -> None:
    assert pace.stay_s(None, 9.0) == 9.0
    assert pace.stay_s(Pace(1.0), 9.0) == 9.0


@given(st.floats(1e-6, 1e6))
def test_a_stay_is_rounded_down_by_less_than_a_fifth(stay_s: float) -> None:
    rounded = pace.stay_s(Pace(0.0, (stay_s,)), 9.0)
    assert 0.84 * stay_s <= rounded <= stay_s * (1 + 1e-6)
    assert pace.stay_s(Pace(0.0, (0.0,)), 9.0) == 0.0
