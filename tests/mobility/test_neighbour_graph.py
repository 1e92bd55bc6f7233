"""The neighbour graph: learning, forgetting, limits, figures, and reading it from text (Gaddah 3.3)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.mobility.neighbour_graph import EVENTS_KEPT_MAX, NeighbourGraph, neighbours_of, parse_graph

TEXT = """
{"brokers": {
    "b1": {"b2": {"probability": 0.4}, "b3": {"probability": 0.6}},
    "b2": {"b1": {"probability": 1}},
    "b4": {"b1": {"probability": 0.1}}
}}
"""

WORDS = ("brokers", "b1", "b2", "probability")


# --- learning ---


def test_both_ends_of_a_move_learn_the_edge() -> None:
    graph = NeighbourGraph()
    assert graph.neighbours(0.0) == []
    assert graph.on_reconnect("b2", 1.0)
    assert graph.on_context_request("b1", 2.0)
    assert not graph.on_reconnect("b1", 3.0)
    assert graph.neighbours(3.0) == ["b1", "b2"]
    assert (graph.moves, graph.insertions, graph.removals) == (3, 2, 0)


def test_with_directions_only_the_broker_that_clients_leave_learns() -> None:
    graph = NeighbourGraph(directed=True)
    assert not graph.on_reconnect("b2", 1.0)
    assert graph.neighbours(1.0) == []
    assert graph.on_context_request("b2", 2.0)
    assert graph.neighbours(2.0) == ["b2"]


def test_an_edge_that_is_not_used_is_removed() -> None:
    graph = NeighbourGraph(timeout_s=10.0)
    graph.on_reconnect("b1", 0.0)
    graph.on_reconnect("b2", 5.0)
    graph.on_reconnect("b1", 8.0)
    assert graph.neighbours(14.9) == ["b1", "b2"]
    assert graph.neighbours(15.0) == ["b1"]
    # The change is told with the next move, though that is over an edge that was there.
    assert graph.on_reconnect("b1", 15.5)
    assert not graph.on_reconnect("b1", 16.0)
    assert graph.neighbours(26.0) == []
    assert graph.removals == 2


def test_of_too_many_the_least_recently_used_gives_way() -> None:
    graph = NeighbourGraph(neighbours_max=2)
    for at, neighbour in enumerate(("b1", "b2", "b1", "b3")):
        graph.on_reconnect(neighbour, float(at))
    assert graph.neighbours(4.0) == ["b1", "b3"]


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.0, 5.0))),
    st.integers(1, 4),
    st.floats(0.1, 10.0),
)
def test_it_holds_what_was_used_last(moves: list[tuple[str, float]], most: int, timeout_s: float) -> None:
    graph = NeighbourGraph(most, timeout_s)
    used: dict[str, float] = {}
    now = 0.0
    for neighbour, pause_s in moves:
        now += pause_s
        graph.on_reconnect(neighbour, now)
        used.pop(neighbour, None)
        used[neighbour] = now
    recent = [one for one, at in used.items() if at + timeout_s > now][-most:]
    assert graph.neighbours(now) == sorted(recent)
    assert graph.insertions == graph.removals + len(recent)


# --- eq. 3.5 and 3.6 ---


def test_the_share_of_misses_falls_as_edges_are_learned() -> None:
    graph = NeighbourGraph()
    assert graph.false_negative(0.0, 10.0) is None
    for at, neighbour in enumerate(("b1", "b2", "b1", "b1", "b2", "b3", "b1", "b2")):
        graph.on_reconnect(neighbour, float(at))
    assert graph.false_negative(1.0, 1.0) == 1.0
    assert graph.false_negative(7.0, 7.0) == 3 / 8
    assert graph.false_negative(7.0, 1.0) == 0.0


def test_the_share_of_wasted_time() -> None:
    graph = NeighbourGraph(timeout_s=10.0)
    assert graph.false_positive(0.0, 10.0) is None
    graph.on_reconnect("b1", 0.0)
    assert graph.false_positive(5.0, 5.0) == 0.0
    graph.on_reconnect("b2", 6.0)
    # b1 was there from 0 to 10, and needed at no time after 0; b2 from 6 to 16, and still at 14.
    assert graph.false_positive(14.0, 14.0) == 10.0 / (10.0 + 8.0)
    # Only the interval counts: 4 seconds of b1 and 8 of b2.
    assert graph.false_positive(14.0, 8.0) == 4.0 / (4.0 + 8.0)


def test_an_edge_that_gave_way_to_another_was_wasted_since_its_last_use() -> None:
    graph = NeighbourGraph(neighbours_max=1)
    graph.on_reconnect("b1", 0.0)
    graph.on_reconnect("b1", 6.0)
    graph.on_reconnect("b2", 8.0)
    assert graph.false_positive(10.0, 10.0) == 2.0 / (8.0 + 2.0)


def test_what_is_remembered_for_the_figures_is_bounded() -> None:
    graph = NeighbourGraph(neighbours_max=1)
    for at in range(EVENTS_KEPT_MAX + 10):
        graph.on_reconnect(f"b{at % 2}", float(at))
    assert len(graph._moves) == len(graph._removed) == EVENTS_KEPT_MAX
    assert graph.moves == EVENTS_KEPT_MAX + 10


# --- from text ---


def test_a_graph_is_read_from_text() -> None:
    graph = parse_graph(TEXT)
    assert graph == {"b1": {"b2": 0.4, "b3": 0.6}, "b2": {"b1": 1.0}, "b4": {"b1": 0.1}}
    assert neighbours_of(graph, "b1", directed=True) == {"b2": 0.4, "b3": 0.6}
    assert neighbours_of(graph, "b1", directed=False) == {"b2": 1.0, "b3": 0.6, "b4": 0.1}
    assert neighbours_of(graph, "b3", directed=True) == {}
    assert neighbours_of(graph, "b3", directed=False) == {"b1": 0.6}


def test_of_too_many_the_most_probable_are_loaded() -> None:
    graph = NeighbourGraph(neighbours_max=2, timeout_s=10.0)
    graph.load({"b2": 0.5, "b3": 0.2, "b4": 0.3})
    assert graph.neighbours(1001.0) == ["b2", "b4"]
    # They are no moves that were seen, and they are forgotten like others.
    assert (graph.moves, graph.insertions, graph.removals) == (0, 0, 0)
    graph.on_reconnect("b3", 1005.0)
    assert graph.neighbours(1005.0) == ["b2", "b3"]
    assert graph.neighbours(1011.0) == ["b3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected JSON"),
        ("[1]", 'expected an object like {"brokers"'),
        ("{}", 'expected an object like {"brokers"'),
        ('{"brokers": []}', 'expected an object like {"brokers"'),
        ('{"brokers": {"b1": []}}', "graph.json, broker 'b1': expected"),
        ('{"brokers": {"b1": {"b2": 0.5}}}', "graph.json, 'b1' to 'b2': expected"),
        ('{"brokers": {"b1": {"b2": {"probability": "0.5"}}}}', "P from 0 to 1"),
        ('{"brokers": {"b1": {"b2": {"probability": true}}}}', "P from 0 to 1"),
        ('{"brokers": {"b1": {"b2": {"probability": 1.5}}}}', "P from 0 to 1"),
        ('{"brokers": {"b1": {"b2": {"probability": NaN}}}}', "P from 0 to 1"),
        ('{"brokers": {"b1": {"b1": {"probability": 1}}}}', "'b1': is its own neighbour"),
        ('{"version": 2, "brokers": {}}', "has version 2: this program reads version 1"),
    ],
)
def test_an_error_names_the_place(text: str, expected: str) -> None:
    with pytest.raises(InputError) as error:
        parse_graph(text, "graph.json")
    assert str(error.value).startswith("graph.json")
    assert expected in str(error.value)


DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(WORDS), inner),
)


@given(DOCUMENTS)
def test_whatever_is_read_gives_a_graph_or_an_error(document: object) -> None:
    try:
        graph = parse_graph(json.dumps(document))
    except InputError:
        return
    assert all(0 <= one <= 1 for row in graph.values() for one in row.values())


def test_a_graph_that_does_not_learn_keeps_what_was_loaded() -> None:
    graph = NeighbourGraph(neighbours_max=2, timeout_s=10.0, online=False)
    graph.load({"b": 0.5, "c": 0.3, "d": 0.2})
    assert graph.neighbours(0.0) == ["b", "c"]
    assert not graph.on_context_request("d", 1.0)
    assert not graph.on_reconnect("e", 2.0)
    assert graph.neighbours(1_000.0) == ["b", "c"], "neither moves nor time change it"
    assert graph.false_negative(1_000.0, 1_000.0) == 1.0, "what it misses is counted all the same"
