"""Broker networks: the acyclic overlay, and the neighbour graph that clients move on.

A topology is created from a short text such as ``grid:5``; `FORMS` lists them all. The same text and the same
random source give the same network in every process.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

from roamcast.errors import InputError, did_you_mean, read_text

BROKERS_MAX = 10_000

FORMS = ("grid:K", "tree:B:H", "line:N", "star:N", "random:N", "building", "file:PATH")

Edge = tuple[str, str]

# Gaddah 4.4, figure 4.3: where people in the building can walk. Rebuilt from the
# number of neighbours of each broker (2, 3, 4, 2, 1, 4), which fixes it up to
# swapping b1 and b4.
BUILDING_EDGES: tuple[Edge, ...] = (
    ("b1", "b2"), ("b2", "b3"), ("b3", "b4"), ("b3", "b5"),
    ("b1", "b6"), ("b2", "b6"), ("b3", "b6"), ("b4", "b6"),
)  # fmt: skip

# His brokers flood over the whole graph; our overlay is a tree of it. From b6 the
# breadth-first tree is unique (only b5 is two steps away, and only over b3), so
# the choice does not hang on the order in which neighbours are looked at.
BUILDING_ROOT = "b6"


@dataclass(frozen=True)
class Topology:
    """Brokers, the tree that connects them, and the neighbour graph of clients' moves.

    Create one with `parse_topology` or `from_edges`: they check that the overlay is a tree, on which every
    method here relies.
    """

    name: str
    brokers: tuple[str, ...]
    overlay: tuple[Edge, ...]
    neighbours: Mapping[str, tuple[str, ...]] = field(hash=False)

    def peers(self, broker: str) -> tuple[str, ...]:
        """Return the overlay neighbours of a broker, sorted."""
        self.check_broker(broker)
        return self._peers[broker]

    def next_hops(self, broker: str) -> dict[str, str]:
        """Return, for every other broker, the peer of `broker` on the path to it."""
        hops = {peer: peer for peer in self.peers(broker)}
        waiting = deque(hops)
        while waiting:
            here = waiting.popleft()
            for there in self._peers[here]:
                if there not in hops and there != broker:
                    hops[there] = hops[here]
                    waiting.append(there)
        return hops

    def path(self, a: str, b: str) -> tuple[str, ...]:
        """Return the brokers from `a` to `b` along the overlay, including both."""
        self.check_broker(a)
        self.check_broker(b)
        from_a, from_b = [a], [b]
        # Climb from the deeper end until both ends meet.
        while from_a[-1] != from_b[-1]:
            climbing = from_a if self._depths[from_a[-1]] >= self._depths[from_b[-1]] else from_b
            climbing.append(self._parents[climbing[-1]])
        return (*from_a, *reversed(from_b[:-1]))

    def distance(self, a: str, b: str) -> int:
        """Return the hops between two brokers along the overlay."""
        return len(self.path(a, b)) - 1

    @cached_property
    def diameter(self) -> int:
        """Return the longest distance between any two brokers, in hops."""
        # In a tree, what is farthest from anywhere is one end of a longest path.
        end = max(self.brokers, key=self._depths.__getitem__)
        return max(_breadth_first(self._peers, end)[1].values())

    @cached_property
    def mean_distance(self) -> float:
        """Return the mean distance between two different brokers, in hops; 0.0 for a single broker."""
        count = len(self.brokers)
        if count == 1:
            return 0.0
        # An edge lies on the path of every pair that it separates, so one pass
        # over the edges replaces the paths of all pairs.
        below = dict.fromkeys(self.brokers, 1)
        crossings = 0
        for broker in reversed(self._depths):
            if broker in self._parents:
                below[self._parents[broker]] += below[broker]
                crossings += below[broker] * (count - below[broker])
        return crossings / (count * (count - 1) // 2)

    def check_broker(self, broker: str) -> None:
        """Refuse a broker that is not part of this network."""
        if broker not in self._peers:
            known = f"{self.brokers[0]} to {self.brokers[-1]}" if len(self.brokers) > 1 else self.brokers[0]
            raise InputError(f"topology {self.name}: there is no broker {broker!r}; valid: {known}")

    @cached_property
    def _peers(self) -> dict[str, tuple[str, ...]]:
        return _adjacency(self.brokers, self.overlay)

    @cached_property
    def _rooted(self) -> tuple[dict[str, str], dict[str, int]]:
        return _breadth_first(self._peers, self.brokers[0])

    @property
    def _parents(self) -> dict[str, str]:
        return self._rooted[0]

    @property
    def _depths(self) -> dict[str, int]:
        return self._rooted[1]


def parse_topology(text: str, rng: random.Random) -> Topology:
    """Create the network that a text such as ``grid:5`` describes; see `FORMS`."""
    kind, colon, rest = text.partition(":")
    if kind == "file":
        return _from_file(text, rest)
    if kind not in _MAKERS:
        known = [form.partition(":")[0] for form in FORMS]
        hint = did_you_mean(kind, known) or f"valid: {', '.join(FORMS)}"
        raise InputError(f"topology {text!r}: unknown kind {kind!r}; {hint}")
    form, make = _MAKERS[kind]
    names = form.split(":")[1:]
    given = rest.split(":") if colon else []
    if len(given) != len(names):
        raise InputError(f"topology {text!r}: expected the form {form}")
    return make(text, [_number(text, name, value) for name, value in zip(names, given, strict=True)], rng)


def from_edges(
    name: str,
    brokers: Iterable[str],
    edges: Iterable[Edge],
    neighbours: Mapping[str, tuple[str, ...]] | None = None,
) -> Topology:
    """Create a network from given edges, which must form a tree over the brokers.

    Without `neighbours`, clients move along the overlay.
    """
    ids = list(brokers)
    ordered = tuple(sorted(set(ids)))
    if not ordered:
        raise InputError(f"topology {name}: there are no brokers; give at least one")
    if len(ordered) != len(ids):
        twice = next(broker for broker, same in itertools.pairwise(sorted(ids)) if broker == same)
        raise InputError(f"topology {name}: broker {twice!r} is given twice; every broker needs its own id")
    _check_count(name, len(ordered))
    overlay = tuple(sorted((min(edge), max(edge)) for edge in edges))
    _check_tree(name, ordered, overlay)
    return Topology(name, ordered, overlay, neighbours or _adjacency(ordered, overlay))


def _grid(text: str, sizes: list[int], rng: random.Random) -> Topology:
    """K rows of K stations, each connected to the stations beside it (Wang 5.1).

    All links cost the same in the paper, so any spanning tree is a minimum one: random costs choose one of
    them, determined by the seed.
    """
    (side,) = sizes
    _check_count(text, side * side)
    ids = _broker_ids(side * side)
    graph = nx.Graph()
    graph.add_nodes_from(ids)
    for row, column in itertools.product(range(side), repeat=2):
        here = row * side + column
        if column + 1 < side:
            graph.add_edge(ids[here], ids[here + 1], cost=rng.random())
        if row + 1 < side:
            graph.add_edge(ids[here], ids[here + side], cost=rng.random())
    tree = nx.minimum_spanning_edges(graph, weight="cost", data=False)
    return from_edges(text, ids, tree, _adjacency(ids, graph.edges))


def _tree(text: str, sizes: list[int], rng: random.Random) -> Topology:
    """A tree of height H; every broker above the lowest level has B children (Fiege B.2)."""
    degree, height = sizes
    count = level = 1
    for _ in range(height):
        level *= degree
        count += level
        _check_count(text, count)
    # Numbered level by level, the parent of broker i is broker (i - 1) // degree.
    return _numbered(text, count, (((child - 1) // degree, child) for child in range(1, count)))


def _line(text: str, sizes: list[int], rng: random.Random) -> Topology:
    (count,) = sizes
    return _numbered(text, count, itertools.pairwise(range(count)))


def _star(text: str, sizes: list[int], rng: random.Random) -> Topology:
    """N brokers, with the first one in the middle."""
    (count,) = sizes
    return _numbered(text, count, ((0, leaf) for leaf in range(1, count)))


def _random(text: str, sizes: list[int], rng: random.Random) -> Topology:
    """A tree drawn uniformly from all trees over N numbered brokers."""
    (count,) = sizes
    _check_count(text, count)
    if count < 3:
        return _line(text, sizes, rng)
    # Prüfer: sequences of N - 2 numbers and trees over N numbered nodes correspond one to one.
    sequence = [rng.randrange(count) for _ in range(count - 2)]
    return _numbered(text, count, nx.from_prufer_sequence(sequence).edges)


def _building(text: str, sizes: list[int], rng: random.Random) -> Topology:
    graph = nx.Graph(BUILDING_EDGES)
    tree = nx.bfs_edges(graph, BUILDING_ROOT)
    return from_edges(text, graph.nodes, tree, _adjacency(tuple(graph.nodes), BUILDING_EDGES))


_MAKERS: dict[str, tuple[str, Callable[[str, list[int], random.Random], Topology]]] = {
    "grid": ("grid:K", _grid),
    "tree": ("tree:B:H", _tree),
    "line": ("line:N", _line),
    "star": ("star:N", _star),
    "random": ("random:N", _random),
    "building": ("building", _building),
}


def _from_file(text: str, path_text: str) -> Topology:
    """One edge ``a b`` per line; ``#`` starts a comment."""
    if not path_text:
        raise InputError("topology 'file:': expected the form file:PATH, such as file:network.txt")
    lines_of: dict[Edge, int] = {}
    for number, line in enumerate(read_text(path_text).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{path_text} line {number}"
        if len(words) != 2:
            raise InputError(
                f"{where}: {' '.join(words)!r} is no edge; expected two broker ids, such as 'b1 b2'"
            )
        edge = (min(words), max(words))
        if edge[0] == edge[1]:
            raise InputError(f"{where}: broker {edge[0]!r} is joined to itself; an edge joins two brokers")
        if edge in lines_of:
            raise InputError(f"{where}: edge {edge[0]} {edge[1]} is already given in line {lines_of[edge]}")
        lines_of[edge] = number
    if not lines_of:
        raise InputError(f"{path_text}: no edges in this file; expected one per line, such as 'b1 b2'")
    return from_edges(text, dict.fromkeys(itertools.chain.from_iterable(lines_of)), lines_of)


def _numbered(text: str, count: int, edges: Iterable[tuple[int, int]]) -> Topology:
    _check_count(text, count)
    ids = _broker_ids(count)
    return from_edges(text, ids, ((ids[a], ids[b]) for a, b in edges))


def _broker_ids(count: int) -> tuple[str, ...]:
    """Return zero-padded names, which sort like their numbers."""
    width = max(2, len(str(count - 1)))
    return tuple(f"b{number:0{width}}" for number in range(count))


def _number(text: str, name: str, value: str) -> int:
    # int() would also take signs, blanks, underscores and other scripts' digits.
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= 9 else 0
    if number < 1:
        raise InputError(
            f"topology {text!r}: {name} must be a whole number from 1 to {BROKERS_MAX:,}, not {value!r}"
        )
    return number


def _check_count(text: str, count: int) -> None:
    if count > BROKERS_MAX:
        raise InputError(f"topology {text}: too many brokers; at most {BROKERS_MAX:,} are supported")


def _check_tree(name: str, brokers: tuple[str, ...], overlay: tuple[Edge, ...]) -> None:
    graph = nx.Graph()
    graph.add_nodes_from(brokers)
    for a, b in overlay:
        for end in (a, b):
            if end not in graph:
                raise InputError(
                    f"topology {name}: edge {a} {b} names {end!r}, which is not among its brokers"
                )
        if a == b or graph.has_edge(a, b):
            problem = "joins a broker to itself" if a == b else "is given twice"
            raise InputError(f"topology {name}: edge {a} {b} {problem}; every edge joins two brokers, once")
        graph.add_edge(a, b)
    reached = nx.node_connected_component(graph, brokers[0])
    for broker in brokers:
        if broker not in reached:
            raise InputError(
                f"topology {name}: broker {broker!r} cannot be reached from {brokers[0]!r}; "
                "the overlay must connect all brokers"
            )
    if len(overlay) >= len(brokers):
        cycle = [a for a, _ in nx.find_cycle(graph)]
        raise InputError(
            f"topology {name}: {' - '.join([*cycle, cycle[0]])} is a cycle; "
            "the overlay must have none, so leave one of these edges out"
        )


def _adjacency(brokers: Iterable[str], edges: Iterable[Edge]) -> dict[str, tuple[str, ...]]:
    lists: dict[str, list[str]] = {broker: [] for broker in brokers}
    for a, b in edges:
        lists[a].append(b)
        lists[b].append(a)
    return {broker: tuple(sorted(others)) for broker, others in lists.items()}


def _breadth_first(graph: Mapping[str, tuple[str, ...]], root: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return the parent of every broker except the root, and the depth of all, nearest first."""
    parents: dict[str, str] = {}
    depths = {root: 0}
    waiting = deque([root])
    while waiting:
        here = waiting.popleft()
        for there in graph[here]:
            if there not in depths:
                parents[there] = here
                depths[there] = depths[here] + 1
                waiting.append(there)
    return parents, depths
