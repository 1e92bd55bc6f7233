"""Probabilities of the next broker: counted moves, as a neighbour graph of bounded degree.

The form is that of the neighbour graph with which `proactive` begins (Gaddah 3.3): it names, for every
broker, the few others at which a copy of a client's context is worth its cost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from roamcast.errors import InputError

BEFORE_MAX = 2
"""Number of brokers before the present one that are considered: third order."""
WAYS_MAX = 10_000
"""Maximum contexts of one broker in a model file: the shortest ones, and of these the most frequent."""
MODEL_VERSION = 1
"""Version of the model file; a reader refuses later versions."""


class Edge(NamedTuple):
    """Moves from one broker to another: their number, and the time of the last one."""

    source: str
    target: str
    moves: int
    last_s: float


def count_moves(visits: Iterable[Iterable[tuple[str, float]]]) -> list[Edge]:
    """Return the edges of some clients' visits: for each client, in order, its brokers and the times of
    attach.
    """
    counted: dict[tuple[str, str], Edge] = {}
    for of_client in visits:
        for (source, _), (target, at_s) in pairwise(of_client):
            if source != target:
                known = counted.get((source, target), Edge(source, target, 0, at_s))
                counted[source, target] = Edge(source, target, known.moves + 1, max(known.last_s, at_s))
    return sorted(counted.values())


def check_bounds(degree: int | None, mass: float) -> None:
    if degree is not None and degree < 1:
        raise InputError(f"degree {degree}: valid is 1 or more")
    if not 0.0 < mass <= 1.0:
        raise InputError(f"mass {mass}: valid is a probability above 0, at most 1")


def bounded_graph(
    edges: Iterable[Edge], until_s: float, degree: int | None = None, mass: float = 1.0
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by broker, its next brokers with the most probable first: at most `degree`, and no more than
    make up `mass`.

    Probabilities are shares of all moves, so they add up to less than 1 where the bounds leave brokers out.
    """
    check_bounds(degree, mass)
    rows: dict[str, list[Edge]] = {}
    for edge in edges:
        rows.setdefault(edge.source, []).append(edge)
    return {source: _bounded_row(rows[source], until_s, degree, mass) for source in sorted(rows)}


def _bounded_row(
    edges: list[Edge], until_s: float, degree: int | None, mass: float
) -> dict[str, dict[str, float]]:
    total = sum(edge.moves for edge in edges)
    row: dict[str, dict[str, float]] = {}
    covered = 0
    for edge in sorted(edges, key=lambda edge: (-edge.moves, edge.target))[:degree]:
        if covered >= mass * total:
            break
        covered += edge.moves
        row[edge.target] = {
            "probability": edge.moves / total,
            "moves": edge.moves,
            "age_s": max(until_s - edge.last_s, 0.0),
        }
    return row


def graph_document(
    graph: Mapping[str, Mapping[str, Mapping[str, float]]],
    about: Mapping[str, Any] | None = None,
    **parts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of a file that `proactive` and `roam` read."""
    return {"version": MODEL_VERSION, **({"about": dict(about)} if about else {}), "brokers": graph, **parts}


def learned_document(visits: Iterable[Iterable[tuple[str, float]]], until_s: float) -> dict[str, Any]:
    """Return the model file of some clients' visits: the graph, and next brokers by the previous ones."""
    kept = [list(of_client) for of_client in visits]
    counted: Counter[tuple[str, ...]] = Counter()
    for of_client in kept:
        brokers = [broker for broker, _ in groupby(broker for broker, _ in of_client)]
        counted.update(tuple(brokers[max(0, at - BEFORE_MAX - 1) : at + 1]) for at in range(1, len(brokers)))
    graph = bounded_graph(count_moves(kept), until_s)
    return graph_document(graph, {"learned_until_s": until_s}, contexts=contexts_of(counted))


def contexts_of(counted: Mapping[tuple[str, ...], int]) -> dict[str, list[dict[str, Any]]]:
    """Return, by the present broker: the previous brokers, and how many clients went where.

    Moves are counted by the known brokers up to the one that is left, and by the next one. Ways that only
    mislead are left out.
    """
    found: dict[str, dict[Way, Counter[str]]] = {}
    for (*way, here, target), moves in sorted(counted.items()):
        for length in range(len(way) + 1):
            after = tuple(way[len(way) - length :])
            found.setdefault(here, {}).setdefault(after, Counter())[target] += moves
    return {
        here: [
            {"after": list(after), "next": dict(row)}
            for after, row in sorted(kept_ways(rows).items(), key=lambda one: (len(one[0]), -one[1].total()))[
                :WAYS_MAX
            ]
        ]
        for here, rows in found.items()
    }


Way = tuple[str, ...]
"""Brokers before the present one, the last one last."""


def kept_ways(rows: Mapping[Way, Counter[str]]) -> dict[Way, Counter[str]]:
    """Return the ways to one broker that predict its next ones better than shorter ways do.

    All ways of a length are kept if they save bits together. Otherwise a way must save more bits than it
    takes to name it: of many ways that were taken a few times each, some always fit by chance.
    """
    total = rows[()].total()
    likely: dict[Way, dict[str, float]] = {(): {one: moves / total for one, moves in rows[()].items()}}
    kept: dict[Way, Counter[str]] = {(): rows[()]}
    for length in sorted({len(way) for way in rows} - {0}):
        saved = {way: _saved_bits(rows[way], likely[way[1:]]) for way in rows if len(way) == length}
        least = -math.inf if sum(saved.values()) > 0 else math.log2(len(saved))
        for way, bits in saved.items():
            shorter = likely[way] = likely[way[1:]]
            if bits > least:
                row = kept[way] = rows[way]
                likely[way] = {target: _mixed(row, target, share) for target, share in shorter.items()}
    return kept


def _mixed(row: Counter[str], target: str, shorter: float, without: int = 0) -> float:
    """Return the probability of a target after a way, mixed with that of the shorter way (Witten and Bell
    1991); `without` is 1 for a move that is not to be counted.
    """
    moves = row[target] - without
    kinds = len(row) - (moves == 0 and without)
    total = row.total() - without + kinds
    return (moves + kinds * shorter) / total if total else shorter


def _saved_bits(row: Counter[str], shorter: Mapping[str, float]) -> float:
    """Return how many bits less it takes to tell the moves after a way if the way is known; each move is
    predicted by the others.
    """
    return sum(
        moves * math.log2(_mixed(row, target, shorter[target], without=1) / shorter[target])
        for target, moves in row.items()
    )
