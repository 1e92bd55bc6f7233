"""Movement graphs: read, written, generated, and what can be reached."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.filters.own import Values
from roamcast.routing.location.h3_cells import cell_of, cells_around
from roamcast.routing.location.movement_graph import (
    WIDE_MAX,
    MovementGraph,
    format_movement_graph,
    generate_movement_graph,
    grid,
    parse_movement_graph,
    rooms,
)

INFINITE = float("inf")


def test_a_file_of_edges() -> None:
    graph = parse_movement_graph(
        """
        # the ground floor
        lobby corridor
        corridor "meeting room"   # on the left
        ramp -> "car park"
        attic
        """
    )
    assert graph.locations == ["attic", "lobby", "corridor", "meeting room", "ramp", "car park"]
    assert graph.neighbours("corridor") == ("lobby", "meeting room")
    assert graph.is_step("ramp", "car park")
    assert not graph.is_step("car park", "ramp")
    assert graph.is_step("attic", "attic")
    assert graph.ball("attic", 3) == {"attic"}
    assert parse_movement_graph(format_movement_graph(graph)).ball("lobby", INFINITE) == {
        "lobby",
        "corridor",
        "meeting room",
    }


names = st.text("ab '\"#->", min_size=1, max_size=4).filter(lambda name: name != "->")
graphs = st.lists(st.tuples(names, names), min_size=1, max_size=12)


@given(graphs, st.booleans())
def test_written_and_read_it_is_the_same(edges: list[tuple[str, str]], one_way: bool) -> None:
    graph = MovementGraph(edges, one_way=one_way)
    again = parse_movement_graph(format_movement_graph(graph))
    assert sorted(map(str, again.locations)) == sorted(map(str, graph.locations))
    for location in graph.locations:
        assert again.neighbours(location) == graph.neighbours(location)


@given(graphs, st.booleans(), st.integers(0, 5))
def test_a_ball_is_what_can_be_reached(edges: list[tuple[str, str]], one_way: bool, steps: int) -> None:
    graph = MovementGraph(edges, one_way=one_way)
    reference = (nx.DiGraph if one_way else nx.Graph)(edges)
    for location in graph.locations:
        reached = nx.single_source_shortest_path_length(reference, location, cutoff=steps)
        assert graph.ball(location, steps) == set(reached)
        # Equation 1 of the paper, and that a ball grows by the steps from its members.
        assert graph.ball(location, steps) <= graph.ball(location, steps + 1)
        grown = {one for member in graph.ball(location, steps) for one in graph.ball(member, 1)}
        assert graph.ball(location, steps + 1) == grown


def test_near_lists_few_locations_and_gives_up_on_many() -> None:
    graph = grid(40, 40)
    assert graph.near(("0,0",), 1, 0) == Values(("0,0", "0,1", "1,0"))
    assert graph.near(("0,0",), 0, 1) == Values(("0,0", "0,1", "1,0"), is_exact=True)
    assert graph.near(("0,0", "5,5"), 0, 0) == Values(("0,0", "5,5"))
    assert graph.near(("20,20",), 30, 0) is None
    assert graph.near(("20,20",), INFINITE, 0) is None
    exact = graph.near(("20,20",), 0, 30)
    assert isinstance(exact, Values)
    assert len(exact.values) > WIDE_MAX


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "graph: no location in it; valid is one edge on each line, such as `A B`"),
        ("a b\na b c", "graph, line 2: valid is `A B`, `A -> B` or one name"),
        ("a ->", "graph, line 1: valid is `A B`, `A -> B` or one name"),
        ("->", "graph, line 1: valid is `A B`, `A -> B` or one name"),
        ('a "b', "graph, line 1: no closing quotation"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_movement_graph(text, "graph")
    assert str(caught.value) == message


def test_an_unknown_location_is_refused() -> None:
    with pytest.raises(InputError, match=r"location 'z' is not in the movement graph, which has 2 locations"):
        parse_movement_graph("a b").check("z")


def test_locations_are_of_one_kind() -> None:
    with pytest.raises(InputError, match="all strings, or all of the same kind"):
        MovementGraph([("a", 1)])
    assert MovementGraph([(1, 2), (2, 3)]).ball(1, 1) == {1, 2}


def test_generated_graphs() -> None:
    streets = generate_movement_graph("grid:3x2")
    assert len(streets) == 6
    assert streets.neighbours("1,0") == ("0,0", "1,1", "2,0")
    building = generate_movement_graph("rooms:2x3")
    assert len(building) == len(rooms(2, 3)) == 8
    assert building.neighbours("corridor 1") == ("corridor 2", "room 1.1", "room 1.2", "room 1.3")
    # Rooms on one corridor see the same from two steps away: a move between them changes nothing there.
    assert building.ball("room 1.1", 2) == building.ball("room 1.2", 2)
    assert len(generate_movement_graph("grid:1x1")) == 1


@pytest.mark.parametrize("spec", ["grid", "grid:3", "grid:axb", "tree:3x3", "grid:0x5", "grid:9999x9999"])
def test_a_bad_specification_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="valid are"):
        generate_movement_graph(spec)


def test_cells_around_positions() -> None:
    pytest.importorskip("h3", reason="the package h3 is not installed")
    here, there = (43.2630, -2.9350), (43.2635, -2.9300)
    graph = cells_around([here, there], resolution=10, rings=2)
    start, end = cell_of(*here, 10), cell_of(*there, 10)
    assert len(graph.neighbours(start)) == 6
    assert end in graph.ball(start, 12)
    assert graph.ball(start, 1) == {start, *graph.neighbours(start)}
    with pytest.raises(InputError, match="valid are -90 to 90"):
        cell_of(91, 0, 9)
    with pytest.raises(InputError, match="valid are 0 to 15"):
        cell_of(0, 0, 16)
