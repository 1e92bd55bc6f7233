"""Counted moves become a neighbour graph of bounded degree."""

from collections import Counter
from random import Random

import pytest

from roamcast.errors import InputError
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.models.next_broker import Edge, bounded_graph, contexts_of, count_moves, graph_document

VISITS = [
    [("a", 0.0), ("b", 10.0), ("a", 20.0), ("c", 30.0)],
    [("a", 0.0), ("a", 5.0), ("b", 40.0)],
]


def test_moves_are_counted_and_returns_to_the_same_broker_are_none() -> None:
    assert count_moves(VISITS) == [Edge("a", "b", 2, 40.0), Edge("a", "c", 1, 30.0), Edge("b", "a", 1, 20.0)]


def test_probabilities_are_shares_of_all_moves_and_ages_end_with_the_learning() -> None:
    graph = bounded_graph(count_moves(VISITS), 50.0)
    assert graph["a"]["b"] == {"probability": 2 / 3, "moves": 2, "age_s": 10.0}
    assert list(graph["a"]) == ["b", "c"], "the most probable comes first"


def test_a_degree_or_a_mass_bounds_each_broker() -> None:
    edges = [Edge("a", name, moves, 0.0) for name, moves in (("b", 70), ("c", 20), ("d", 9), ("e", 1))]
    assert list(bounded_graph(edges, 0.0, degree=2)["a"]) == ["b", "c"]
    assert list(bounded_graph(edges, 0.0, mass=0.9)["a"]) == ["b", "c"]
    assert list(bounded_graph(edges, 0.0, mass=0.91)["a"]) == ["b", "c", "d"]
    assert list(bounded_graph(edges, 0.0, degree=1, mass=0.91)["a"]) == ["b"]


def test_the_document_is_what_proactive_reads() -> None:
    import json

    document = graph_document(bounded_graph(count_moves(VISITS), 50.0), {"visits": 7})
    assert document["about"] == {"visits": 7}
    assert parse_graph(json.dumps(document)) == {"a": {"b": 2 / 3, "c": 1 / 3}, "b": {"a": 1.0}}


@pytest.mark.parametrize(("degree", "mass"), [(0, 1.0), (None, 0.0), (None, 1.1), (None, float("nan"))])
def test_bounds_that_leave_nothing_are_refused(degree: int | None, mass: float) -> None:
    with pytest.raises(InputError, match="valid is"):
        bounded_graph([], 0.0, degree, mass)


def test_ways_that_only_fit_by_chance_are_left_out() -> None:
    draw = Random(1)
    by_chance: Counter[tuple[str, ...]] = Counter()
    for way in (f"w{number}" for number in range(200)):
        by_chance.update((way, "here", target) for target in draw.choices("abcdef", k=3))
    told: Counter[tuple[str, ...]] = Counter(
        {("north", "here", "south"): 9, ("south", "here", "north"): 9, ("once", "here", "a"): 1}
    )
    (row,) = contexts_of(by_chance)["here"]
    assert row["after"] == []
    assert [row["after"] for row in contexts_of(told)["here"]] == [[], ["north"], ["south"], ["once"]]
    # One way that is certain is found among many that mean nothing.
    by_chance["east", "here", "f"] = 30
    found = contexts_of(by_chance)["here"]
    assert [(row["after"], row["next"]) for row in found[1:]] == [(["east"], {"f": 30})]
