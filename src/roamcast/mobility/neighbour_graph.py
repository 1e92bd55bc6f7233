"""The neighbour graph: where the clients of a broker go next (Gaddah 3.3).

It is not the overlay. Each broker learns its own part from the moves it sees: a client that comes from
another broker (reconnection request) and one that is asked for by another broker (context transfer request).
In an undirected graph both make an edge. In a directed one only the second does, because a broker must know
where the clients that leave it go. An edge that no client has used for a while is removed, and so is the
least recently used when there are too many.

How good the graph is can be read off: `false_negative` is the share of moves over
edges that it did not have (eq. 3.5), `false_positive` the share of its edges' time
that was spent for nothing (eq. 3.6).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from roamcast.errors import InputError
from roamcast.state import State

MODEL_VERSION = 1
"""Version of the files that `parse_graph` reads; a file without a version is of version 1."""
EVENTS_KEPT_MAX = 10_000
"""Moves and removed edges remembered for the figures; older ones are forgotten."""

Graph = dict[str, dict[str, float]]
"""Broker to the brokers that its clients go to next, each with its probability."""


def parse_graph(text: str, name: str = "neighbour graph") -> Graph:
    """Read `{"brokers": {"b1": {"b2": {"probability": 0.4}, …}, …}}`; an error names the place."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: {error}; expected JSON") from None
    version = document.get("version", MODEL_VERSION) if isinstance(document, dict) else MODEL_VERSION
    if version != MODEL_VERSION:
        raise InputError(f"{name}: has version {version!r}: this program reads version {MODEL_VERSION}")
    rows = document.get("brokers") if isinstance(document, dict) else None
    if not isinstance(rows, dict):
        raise InputError(f'{name}: expected an object like {{"brokers": {{"b1": {{…}}}}}}')
    graph: Graph = {}
    for broker, row in rows.items():
        if not isinstance(row, dict):
            raise InputError(f'{name}, broker {broker!r}: expected {{"b2": {{"probability": 0.4}}, …}}')
        graph[broker] = {
            neighbour: _probability(f"{name}, {broker!r} to {neighbour!r}", edge)
            for neighbour, edge in row.items()
        }
        if broker in graph[broker]:
            raise InputError(f"{name}, broker {broker!r}: is its own neighbour; an edge joins two brokers")
    return graph


def _probability(where: str, edge: Any) -> float:
    value = edge.get("probability") if isinstance(edge, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f'{where}: expected {{"probability": P}} with P from 0 to 1')
    return float(value)


def neighbours_of(graph: Mapping[str, Mapping[str, float]], broker: str, directed: bool) -> dict[str, float]:
    """Return the part of a graph that one broker needs; without directions, edges count from both ends."""
    row = dict(graph.get(broker, {}))
    if not directed:
        for other, edges in graph.items():
            if broker in edges:
                row[other] = max(row.get(other, 0.0), edges[broker])
    return row


class Edge:
    """A neighbour, when it became one, and when a client last moved that way."""

    __slots__ = ("added_at", "used_at")

    __state__ = State("neighbour-edge")

    def __init__(self, at: float) -> None:
        self.added_at = at
        self.used_at = at


class Removed(NamedTuple):
    """A removed edge."""

    added_at: float
    used_at: float
    removed_at: float


class NeighbourGraph:
    """One broker's part of the graph: its neighbours."""

    __state__ = State(
        "neighbour-graph",
        saved=(
            "neighbours_max", "timeout_s", "directed", "online", "_loaded", "_is_changed", "insertions",
            "moves", "removals", "_edges", "_moves", "_removed",
        ),
    )  # fmt: skip

    def __init__(
        self,
        neighbours_max: int | None = None,
        timeout_s: float | None = None,
        directed: bool = False,
        online: bool = True,
    ) -> None:
        self.configure(neighbours_max, timeout_s, directed, online)
        self._loaded: list[str] = []
        """Initial neighbours, the most probable first, until the graph is first used."""
        self._is_changed = False
        self.insertions = 0
        self.moves = 0
        self.removals = 0
        self._edges: dict[str, Edge] = {}
        """Edges in order of use, the least recently used first."""
        self._moves: deque[tuple[float, bool]] = deque(maxlen=EVENTS_KEPT_MAX)
        """Time of each move to or from here, and whether it made a new edge."""
        self._removed: deque[Removed] = deque(maxlen=EVENTS_KEPT_MAX)

    def configure(
        self, neighbours_max: int | None, timeout_s: float | None, directed: bool, online: bool
    ) -> None:
        self.neighbours_max = neighbours_max
        self.timeout_s = timeout_s if online else None
        self.directed = directed
        self.online = online
        """True if moves change the edges; otherwise the loaded edges stay."""

    def load(self, row: Mapping[str, float]) -> None:
        """Load initial neighbours; if there are too many, the most probable. Their age counts from first use.

        Learnt neighbours stay; neighbours loaded before stay until they are unused for the timeout.
        """
        if not self.online:
            self._edges.clear()
        by_probability = sorted(row, key=lambda neighbour: (-row[neighbour], neighbour))
        self._loaded = by_probability[: self.neighbours_max]

    def neighbours(self, now: float) -> list[str]:
        self._expire(now)
        return sorted(self._edges)

    # --- learning (3.3.2) ---

    def on_reconnect(self, came_from: str, now: float) -> bool:
        """Learn that a client came from there; returns whether the neighbours changed since the last move."""
        return False if self.directed else self._learn(came_from, now)

    def on_context_request(self, destination: str, now: float) -> bool:
        """Learn that a client moved there; returns the same as `on_reconnect`."""
        return self._learn(destination, now)

    def _learn(self, neighbour: str, now: float) -> bool:
        self._expire(now)
        edge = self._edges.pop(neighbour, None)
        self.moves += 1
        self._moves.append((now, edge is None))
        if edge is None:
            if not self.online:
                return False
            edge = Edge(now)
            self.insertions += 1
            self._is_changed = True
        edge.used_at = now
        self._edges[neighbour] = edge
        self._limit(now)
        is_changed, self._is_changed = self._is_changed, False
        return is_changed

    def _expire(self, now: float) -> None:
        """Remove edges unused for the timeout, dated to the end of their timeout."""
        while self._loaded:
            self._edges.setdefault(self._loaded.pop(), Edge(now))
        self._limit(now)
        if self.timeout_s is not None:
            old = [one for one, edge in self._edges.items() if edge.used_at + self.timeout_s <= now]
            for neighbour in old:
                self._remove(neighbour, self._edges[neighbour].used_at + self.timeout_s)

    def _limit(self, now: float) -> None:
        while self.neighbours_max is not None and len(self._edges) > self.neighbours_max:
            self._remove(next(iter(self._edges)), now)

    def _remove(self, neighbour: str, at: float) -> None:
        edge = self._edges.pop(neighbour)
        self.removals += 1
        self._is_changed = True
        self._removed.append(Removed(edge.added_at, edge.used_at, at))

    # --- how good it is (3.3.3) ---

    def false_negative(self, now: float, interval_s: float) -> float | None:
        """F_neg: the share of moves within the interval without an edge; None without moves."""
        recent = [is_new for at, is_new in self._moves if now - interval_s <= at <= now]
        return sum(recent) / len(recent) if recent else None

    def false_positive(self, now: float, interval_s: float) -> float | None:
        """F_pos: the share of edge time within the interval in which the edge was of no use.

        An edge is of no use from its last use to its removal. If the timeout removes it, that is the
        published T; if the limit on neighbours does, less. None without edges.
        """
        self._expire(now)
        since = now - interval_s
        wasted = sum(
            edge.removed_at - max(edge.used_at, since) for edge in self._removed if edge.removed_at > since
        )
        resident = sum(end - max(added_at, since) for added_at, end in self._residence(now) if end > since)
        return wasted / resident if resident > 0 else None

    def _residence(self, now: float) -> Iterator[tuple[float, float]]:
        for edge in self._edges.values():
            yield edge.added_at, now
        for removed in self._removed:
            yield removed.added_at, removed.removed_at
