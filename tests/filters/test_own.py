"""Filters over the client's own state, against a reading of them that puts the values into the text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filters import naive_filters as naive

from roamcast.errors import InputError
from roamcast.filters.filter import NONE
from roamcast.filters.merging import merge_pair
from roamcast.filters.own import NOTHING, Possible, Span, Values, bind, instance, owner_of, widest
from roamcast.filters.selector import parse

PLACES = ("a", "b", "ab", "a/b")
RING = {place: index for index, place in enumerate(PLACES)}


def near(place: str, within: int | float) -> tuple[str, ...]:
    """On a ring of four places."""
    steps = {other: abs(RING[place] - RING[other]) for other in PLACES}
    return tuple(other for other in PLACES if min(steps[other], 4 - steps[other]) <= within)


def resolver(places: tuple[str, ...]) -> Any:
    def resolve(variable: str, within: int | float) -> Possible:
        assert variable == "location"
        found = dict.fromkeys(other for place in places for other in near(place, within))
        return Values(tuple(found), is_exact=len(places) == 1)

    return resolve


own_leaves = st.one_of(
    st.tuples(st.just("near"), naive.names, st.integers(0, 2), st.booleans()),
    st.tuples(st.just("order"), naive.names, st.sampled_from(("<", "<=", ">", ">=", "=", "<>"))),
)
conditions = st.recursive(
    st.one_of(own_leaves, naive.leaves),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(("AND", "OR")), inner, inner), st.tuples(st.just("NOT"), inner)
    ),
    max_leaves=5,
)


def written(condition: naive.Condition, place: str | None) -> str:
    """The condition as a selector: with `myloc`, or with the place where the client is."""
    kind, *rest = condition
    if kind in ("AND", "OR"):
        return f"({written(rest[0], place)} {kind} {written(rest[1], place)})"
    if kind == "NOT":
        return f"NOT ({written(rest[0], place)})"
    if kind not in ("near", "order"):
        return naive.text_of(condition)
    name = f'"{rest[0]}"' if " " in rest[0] else rest[0]
    if kind == "order":
        return f"{name} {rest[1]} {'myloc' if place is None else naive.literal(place)}"
    negation = "NOT " if rest[2] else ""
    if place is None:
        return f"{name} {negation}WITHIN {rest[1]} OF myloc"
    return f"{name} {negation}IN ({', '.join(map(naive.literal, near(place, rest[1])))})"


@given(conditions, st.sampled_from(PLACES))
def test_with_one_value_an_instance_is_exact(condition: naive.Condition, place: str) -> None:
    filter = parse(written(condition, None))
    assert instance(bind(filter, "car"), resolver((place,))) is parse(written(condition, place))


@given(conditions, st.sets(st.sampled_from(PLACES), min_size=1), naive.notifications)
def test_with_more_values_an_instance_matches_no_less(
    condition: naive.Condition, places: set[str], attributes: dict[str, Any]
) -> None:
    filter = parse(written(condition, None))
    exact = [instance(filter, resolver((place,))) for place in sorted(places)]
    wide = instance(filter, resolver(tuple(sorted(places))))
    if any(one.matches(attributes) for one in exact):
        assert wide.matches(attributes)
        assert widest(filter).matches(attributes)


@given(conditions, conditions, st.sampled_from(PLACES), naive.notifications)
def test_covering_and_overlap_hold_wherever_the_client_is(
    one: naive.Condition, other: naive.Condition, place: str, attributes: dict[str, Any]
) -> None:
    first, second = bind(parse(written(one, None)), "car"), bind(parse(written(other, None)), "car")
    here = [instance(filter, resolver((place,))) for filter in (first, second)]
    if first.covers(second) and here[1].matches(attributes):
        assert here[0].matches(attributes)
    if here[0].matches(attributes) and here[1].matches(attributes):
        assert first.overlaps(second)


def test_a_filter_is_bound_to_one_client() -> None:
    filter = parse("service = 'parking' AND location WITHIN 2 OF myloc")
    bound = bind(filter, "car'7")
    assert bound.text == "location WITHIN 2 OF myloc('car''7') AND service = 'parking'"
    assert parse(bound.text) is bound
    assert (owner_of(filter), owner_of(bound), owner_of(parse("x = 1"))) == ("", "car'7", "")
    assert bind(parse("x = 1"), "car") is parse("x = 1")


def test_what_covers_a_filter_of_unknown_place() -> None:
    bound = bind(parse("service = 'parking' AND location IN myloc"), "car")
    assert parse("service = 'parking'").covers(bound)
    assert parse("location IS NOT NULL").covers(bound)
    assert not parse("location = 'a'").covers(bound)
    assert not bound.covers(parse("service = 'parking' AND location = 'a'"))
    assert not bound.covers(bind(parse("service = 'parking' AND location IN myloc"), "bus"))
    assert bound.covers(bind(parse("service = 'parking' AND location IN myloc AND cost < 3"), "car"))
    assert bound.overlaps(parse("location = 'a'"))
    assert not bound.overlaps(parse("service = 'news'"))


def test_merging_never_forgets_the_condition_on_the_client() -> None:
    halves = [bind(parse(f"location IN myloc AND location {sign} 'k'"), "car") for sign in ("<", ">=")]
    opposites = [bind(parse(text), "car") for text in ("location IN myloc", "location NOT IN myloc")]
    assert merge_pair(*halves) is None
    assert merge_pair(*opposites) is None


@pytest.mark.parametrize(
    ("text", "possible", "expected"),
    [
        ("x IN my.v", NOTHING, "FALSE"),
        ("x NOT IN my.v", NOTHING, "FALSE"),
        ("x IN my.v", None, "x IS NOT NULL"),
        ("x NOT IN my.v", Values((1, 2)), "x IS NOT NULL"),
        ("x NOT IN my.v", Values((1,), is_exact=True), "x <> 1"),
        ("x IN my.v", Values((2, 1)), "x IN (1, 2)"),
        ("x <= my.v", Values((2, 1)), "x <= 2"),
        ("x > my.v", Values((2, 1)), "x > 1"),
        ("x < my.v", Values((True,), is_exact=True), "FALSE"),
        ("x < my.v", Span(1, 3), "x < 3"),
        ("x >= my.v", Span(1, 3), "x >= 1"),
        ("x WITHIN 2 OF my.v", Span(-1, 5), "x BETWEEN -1 AND 5"),
        ("x NOT WITHIN 2 OF my.v", Span(1, 5, is_exact=True), "x NOT BETWEEN 1 AND 5"),
    ],
)
def test_what_an_instance_says(text: str, possible: Possible, expected: str) -> None:
    assert instance(parse(text), lambda variable, within: possible).text == expected


def test_without_the_clients_state_nothing_matches() -> None:
    for text in ("location IN myloc", "location NOT IN myloc", "price < my.budget"):
        assert not parse(text).matches({"location": "a", "price": 1})
    assert instance(parse("x IN myloc"), lambda variable, within: NOTHING) is NONE


def test_a_name_that_makes_the_text_too_long_is_refused() -> None:
    with pytest.raises(InputError, match="selector is too long"):
        bind(parse("x IN myloc"), "c" * 9_000)
