"""Topologies: the shapes, their measures, and what is refused."""

import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.simulator.topology import Topology, from_edges, parse_topology

TEXTS = ("grid:1", "grid:2", "grid:5", "tree:3:3", "tree:1:4", "line:1", "line:7", "star:6",
         "random:1", "random:2", "random:3", "random:40", "building")  # fmt: skip


def make(text: str, seed: int = 1) -> Topology:
    return parse_topology(text, random.Random(seed))


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        make(text)
    message = str(caught.value)
    assert "\n" not in message
    return message


def as_graph(topology: Topology) -> nx.Graph:
    graph = nx.Graph(topology.overlay)
    graph.add_nodes_from(topology.brokers)
    return graph


@pytest.mark.parametrize("text", TEXTS)
def test_overlay_is_a_tree_over_sorted_brokers(text: str) -> None:
    topology = make(text)
    assert nx.is_tree(as_graph(topology))
    assert list(topology.brokers) == sorted(topology.brokers)
    assert topology.name == text
    assert tuple(topology.neighbours) == topology.brokers


@pytest.mark.parametrize("text", TEXTS)
def test_measures_agree_with_networkx(text: str) -> None:
    topology = make(text)
    graph = as_graph(topology)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    for a in topology.brokers:
        assert topology.peers(a) == tuple(sorted(graph[a]))
        hops = topology.next_hops(a)
        assert sorted(hops) == [b for b in topology.brokers if b != a]
        for b in topology.brokers:
            path = topology.path(a, b)
            assert list(path) == nx.shortest_path(graph, a, b)
            assert topology.distance(a, b) == lengths[a][b]
            if a != b:
                assert hops[b] == path[1]
    assert topology.diameter == nx.diameter(graph)
    if len(topology.brokers) > 1:
        assert topology.mean_distance == pytest.approx(nx.average_shortest_path_length(graph))


def test_grid_is_the_four_neighbourhood() -> None:
    topology = make("grid:3")
    assert topology.brokers == tuple(f"b0{i}" for i in range(9))
    assert topology.neighbours["b04"] == ("b01", "b03", "b05", "b07")
    assert topology.neighbours["b00"] == ("b01", "b03")
    assert topology.neighbours["b02"] == ("b01", "b05")
    for a, b in topology.overlay:
        assert b in topology.neighbours[a]


def test_the_seed_fixes_the_grid_tree() -> None:
    assert make("grid:6", 7) == make("grid:6", 7)
    assert len({make("grid:6", seed).overlay for seed in range(20)}) == 20
    assert make("random:30", 7) == make("random:30", 7) != make("random:30", 8)


def test_random_draws_all_trees_equally() -> None:
    rng = random.Random(3)
    counts = Counter(parse_topology("random:4", rng).overlay for _ in range(3200))
    assert len(counts) == 16  # Cayley: 4 to the power of 2 labelled trees.
    assert all(140 < count < 260 for count in counts.values())


def test_tree_has_fieges_size() -> None:
    topology = make("tree:3:5")
    assert len(topology.brokers) == 364
    assert len(topology.overlay) == 363
    assert sum(len(topology.peers(broker)) == 1 for broker in topology.brokers) == 243
    assert topology.peers("b000") == ("b001", "b002", "b003")
    assert topology.diameter == 10


def test_small_shapes() -> None:
    assert make("line:3").overlay == (("b00", "b01"), ("b01", "b02"))
    assert make("star:3").overlay == (("b00", "b01"), ("b00", "b02"))
    assert make("line:3").neighbours == {"b00": ("b01",), "b01": ("b00", "b02"), "b02": ("b01",)}
    assert make("line:101").brokers[-1] == "b100"
    assert make("line:1").overlay == ()
    assert make("line:1").diameter == 0
    assert make("line:1").mean_distance == 0.0
    assert make("line:1").next_hops("b00") == {}


def test_building_is_gaddahs() -> None:
    topology = make("building")
    assert [len(topology.neighbours[f"b{i}"]) for i in range(1, 7)] == [2, 3, 4, 2, 1, 4]
    assert topology.overlay == (("b1", "b6"), ("b2", "b6"), ("b3", "b5"), ("b3", "b6"), ("b4", "b6"))


def test_next_hops_of_196_and_1000_brokers_are_quick() -> None:
    for text in ("grid:14", "random:1000"):
        started = time.process_time()
        topology = make(text)
        for broker in topology.brokers:
            topology.next_hops(broker)
        assert topology.diameter > topology.mean_distance > 1
        assert time.process_time() - started < 5.0  # measured: 0.4 s; the bound is for slow machines


def test_topology_can_be_pickled_and_hashed() -> None:
    topology = make("grid:4")
    topology.path("b00", "b15")
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert hash(make("grid:4")) == hash(topology)


def test_same_in_a_process_with_other_string_hashes() -> None:
    code = (
        "import random; from roamcast.simulator.topology import parse_topology as p;"
        "print([p(t, random.Random(5)) for t in ('grid:5', 'random:20', 'building')])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grid:0", "K must be a whole number from 1 to 10,000, not '0'"),
        ("grid:x", "K must be a whole number from 1 to 10,000, not 'x'"),
        ("grid:-3", "not '-3'"),
        ("grid:", "not ''"),
        ("grid:1_0", "not '1_0'"),
        ("grid:²", "not '²'"),
        ("grid:" + "9" * 5000, "K must be a whole number"),
        ("grid", "expected the form grid:K"),
        ("grid:3:3", "expected the form grid:K"),
        ("tree:3", "expected the form tree:B:H"),
        ("tree:3:0", "H must be a whole number"),
        ("tree:10:9000", "too many brokers; at most 10,000"),
        ("grid:101", "too many brokers; at most 10,000"),
        ("line:10001", "too many brokers; at most 10,000"),
        ("star:10001", "too many brokers"),
        ("random:999999999", "too many brokers"),
        ("building:2", "expected the form building"),
        ("gird:5", "unknown kind 'gird'; did you mean 'grid'?"),
        ("Building", "did you mean 'building'?"),
        ("", "unknown kind ''; valid: grid:K, tree:B:H, line:N"),
        ("file:", "expected the form file:PATH"),
    ],
)
def test_bad_texts_are_refused_with_one_line(text: str, expected: str) -> None:
    assert expected in refused(text)


def test_largest_sizes_are_accepted() -> None:
    assert len(make("grid:100").brokers) == 10_000


def write(tmp_path: Path, content: str) -> str:
    path = tmp_path / "net.txt"
    path.write_text(content, encoding="utf-8")
    return f"file:{path}"


def test_file_gives_the_same_network_whatever_its_order(tmp_path: Path) -> None:
    text = write(tmp_path, "# our sites\nhall  dock\n\nyard\thall # outside\n")
    topology = make(text)
    assert topology.brokers == ("dock", "hall", "yard")
    assert topology.overlay == (("dock", "hall"), ("hall", "yard"))
    assert topology.neighbours["hall"] == ("dock", "yard")
    assert make(write(tmp_path, "hall yard\ndock hall")) == topology


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a b\nb c\nc d\nd b\n", "b - c - d - b is a cycle"),
        ("a b\nc d\n", "broker 'c' cannot be reached from 'a'"),
        ("a b\nc d\nd e\ne c\n", "broker 'c' cannot be reached from 'a'"),
        ("a b\n# x\na b c\n", "net.txt line 3: 'a b c' is no edge"),
        ("a b\nc\n", "net.txt line 2: 'c' is no edge"),
        ("a a\n", "net.txt line 1: broker 'a' is joined to itself"),
        ("a b\nb a\n", "net.txt line 2: edge a b is already given in line 1"),
        ("", "no edges in this file"),
        ("# nothing\n", "no edges in this file"),
    ],
)
def test_bad_files_are_refused_with_one_line(tmp_path: Path, content: str, expected: str) -> None:
    assert expected in refused(write(tmp_path, content))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(f"file:{tmp_path}/missing.txt")
    assert "cannot be read" in refused(f"file:{tmp_path}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00a")
    assert "UTF-8" in refused(f"file:{tmp_path}/binary")


@pytest.mark.parametrize(
    ("brokers", "edges", "expected"),
    [
        ([], [], "no brokers"),
        (["a", "a"], [], "broker 'a' is given twice"),
        (["a", "b"], [("a", "x")], "names 'x', which is not among its brokers"),
        (["a", "b"], [("a", "b"), ("b", "a")], "edge a b is given twice"),
        (["a", "b"], [("a", "a")], "joins a broker to itself"),
        (["a", "b"], [], "broker 'b' cannot be reached from 'a'"),
    ],
)
def test_from_edges_refuses_what_is_no_tree(
    brokers: list[str], edges: list[tuple[str, str]], expected: str
) -> None:
    with pytest.raises(InputError, match="topology net: ") as caught:
        from_edges("net", brokers, edges)
    assert expected in str(caught.value)


def test_unknown_brokers_are_refused() -> None:
    topology = make("line:3")
    with pytest.raises(InputError, match="topology line:3: there is no broker 'b9'; valid: b00 to b02"):
        topology.peers("b9")
    with pytest.raises(InputError, match="no broker 'x'"):
        topology.path("b00", "x")
    with pytest.raises(InputError, match=r"no broker 'x'; valid: b00$"):
        make("line:1").distance("x", "b00")


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.data())
def test_from_edges_agrees_with_networkx_on_what_is_a_tree(count: int, data: st.DataObject) -> None:
    ids = [f"b{i}" for i in range(count)]
    pairs = [(a, b) for a in ids for b in ids if a < b]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=count + 1))
    graph = nx.Graph(edges)
    graph.add_nodes_from(ids)
    if nx.is_tree(graph):
        assert set(from_edges("net", ids, edges).overlay) == set(edges)
    else:
        with pytest.raises(InputError, match=r"is a cycle|cannot be reached"):
            from_edges("net", ids, edges)
