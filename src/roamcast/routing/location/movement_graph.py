"""The movement graph: locations, and the steps between them.

As a file: one edge on each line, two names with a space between them; `a -> b` is
one way only, and a name alone is a location without edges. A name with spaces goes
in quotes; the rest of a line after `#` is a comment.

    lobby corridor
    corridor "meeting room"
    ramp -> "car park"    # no way back
    attic
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.filters.own import Possible, Values
from roamcast.state import State

LOCATIONS_MAX = 1_000_000
BALLS_KEPT = 65_536
WIDE_MAX = 256
"""Limit of locations listed in a wide filter; with more it matches every location."""


class MovementGraph:
    """Locations and the steps between them. Staying is always possible, and no step."""

    is_metric = False

    __state__ = State("movement-graph", saved=("_neighbours",), derived=("_balls", "_nears"))

    def __init__(self, edges: Iterable[tuple[Any, Any]], alone: Iterable[Any] = (), one_way: bool = False):
        """`one_way` says that edges lead from the first to the second only."""
        neighbours: dict[Value, dict[Value, None]] = {location: {} for location in alone}
        for start, end in edges:
            neighbours.setdefault(start, {})[end] = None
            neighbours.setdefault(end, {})
            if not one_way:
                neighbours[end][start] = None
        if len({type(location) for location in neighbours}) > 1:
            raise InputError("movement graph: locations are all strings, or all of the same kind of number")
        if not 0 < len(neighbours) <= LOCATIONS_MAX:
            found = len(neighbours)
            raise InputError(f"movement graph: {found} locations; valid are 1 to {LOCATIONS_MAX}")
        self._neighbours = {location: tuple(sorted(ends)) for location, ends in neighbours.items()}
        self._restore()

    def _restore(self) -> None:
        self._balls: dict[tuple[Value, int], frozenset[Value]] = {}
        self._nears: dict[tuple[Any, ...], Values | None] = {}

    def validate(self) -> None:
        pass  # It was checked when it was made.

    @property
    def locations(self) -> list[Value]:
        return list(self._neighbours)

    def __contains__(self, location: object) -> bool:
        return location in self._neighbours

    def __len__(self) -> int:
        return len(self._neighbours)

    def neighbours(self, location: Value) -> tuple[Value, ...]:
        """Return the locations one step away."""
        return self._neighbours[location]

    def is_step(self, start: Value, end: Value) -> bool:
        return start == end or end in self._neighbours.get(start, ())

    def check(self, location: Value) -> None:
        """Refuse a location that is not on the graph."""
        if location not in self._neighbours:
            raise InputError(
                f"location {location!r} is not in the movement graph, which has {len(self)} locations"
            )

    def ball(self, location: Value, steps: float) -> frozenset[Value]:
        """All locations that can be reached in `steps` steps or fewer: the paper's ploc."""
        radius = int(min(steps, len(self)))
        ball = self._balls.get((location, radius))
        if ball is None:
            ball = self._find_ball(location, radius)
            if len(self._balls) >= BALLS_KEPT:
                self._balls.clear()
            self._balls[location, radius] = ball
        return ball

    def _find_ball(self, location: Value, radius: int) -> frozenset[Value]:
        found = {location: None}
        edge: Iterable[Value] = (location,)
        for _ in range(radius):
            reached: dict[Value, None] = {}
            for one in edge:
                reached.update(dict.fromkeys(self._neighbours.get(one, ())))
            edge = [one for one in reached if one not in found]
            if not edge:
                break
            found.update(dict.fromkeys(edge))
        return frozenset(found)

    def near(self, values: tuple[Value, ...], steps: float, within: float) -> Possible:
        """Return the locations at most `within` away from where a client may be after `steps` steps."""
        if steps == 0 and len(values) == 1:
            return self._near(values, int(within), exact=True)
        if steps == float("inf"):
            return None
        return self._near(values, int(steps) + int(within), exact=False)

    def _near(self, values: tuple[Value, ...], radius: int, exact: bool) -> Values | None:
        key = (*values, radius, exact)
        if key not in self._nears:
            if len(self._nears) >= BALLS_KEPT:
                self._nears.clear()
            balls = (self.ball(value, radius) for value in values)
            self._nears[key] = self._listed(frozenset().union(*balls), exact)
        return self._nears[key]

    def _listed(self, found: frozenset[Value], exact: bool) -> Values | None:
        if not exact and len(found) > WIDE_MAX:
            return None
        return Values(tuple(sorted(found, key=_order)), is_exact=exact)


def _order(value: Value) -> Any:
    return value


# --- text ---


def parse_movement_graph(text: str, name: str = "movement graph") -> MovementGraph:
    """Read a movement graph; an error names the line."""
    edges: list[tuple[str, str]] = []
    alone: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{name}, line {number}: {str(error).lower()}") from None
        match words:
            case []:
                continue
            case [location] if location != "->":
                alone.append(location)
            case [start, "->", end]:
                edges.append((start, end))
            case [start, end] if "->" not in words:
                edges += [(start, end), (end, start)]
            case _:
                raise InputError(f"{name}, line {number}: valid is `A B`, `A -> B` or one name")
    if not edges and not alone:
        raise InputError(f"{name}: no location in it; valid is one edge on each line, such as `A B`")
    return MovementGraph(edges, alone, one_way=True)


def format_movement_graph(graph: MovementGraph) -> str:
    """The text that reads as this graph (of names)."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: MovementGraph) -> Iterator[str]:
    for location in graph.locations:
        ends = graph.neighbours(location)
        start = shlex.quote(str(location))
        if not ends:
            yield start
        for end in ends:
            if not graph.is_step(end, location):
                yield f"{start} -> {shlex.quote(str(end))}"
            elif _order(location) <= _order(end):
                yield f"{start} {shlex.quote(str(end))}"


# --- generators ---


def grid(width: int, height: int) -> MovementGraph:
    """Streets in a rectangle: location `x,y` leads to its neighbours left, right, above and below."""
    edges = [((x, y), (x + 1, y)) for x in range(width - 1) for y in range(height)]
    edges += [((x, y), (x, y + 1)) for x in range(width) for y in range(height - 1)]
    named = [(f"{a},{b}", f"{c},{d}") for (a, b), (c, d) in edges]
    return MovementGraph(named, (f"{x},{y}" for x in range(width) for y in range(height)))


def rooms(floors: int, rooms_on_floor: int) -> MovementGraph:
    """A building: each floor has a corridor that leads to its rooms; stairs lead from floor to floor."""
    edges = [(f"corridor {floor}", f"corridor {floor + 1}") for floor in range(1, floors)]
    edges += [
        (f"corridor {floor}", f"room {floor}.{room}")
        for floor in range(1, floors + 1)
        for room in range(1, rooms_on_floor + 1)
    ]
    return MovementGraph(edges, (f"corridor {floor}" for floor in range(1, floors + 1)))


_GENERATORS = {"grid": grid, "rooms": rooms}


def generate_movement_graph(spec: str) -> MovementGraph:
    """From `grid:10x20` (width and height) or `rooms:3x8` (floors, and rooms on each)."""
    kind, _, size = spec.partition(":")
    numbers = size.split("x")
    if kind not in _GENERATORS or len(numbers) != 2 or not all(one.isdecimal() for one in numbers):
        raise InputError(f"movement graph {spec!r}: valid are grid:WIDTHxHEIGHT and rooms:FLOORSxROOMS")
    first, second = map(int, numbers)
    if not 1 <= first * (second + 1) <= LOCATIONS_MAX:
        raise InputError(f"movement graph {spec!r}: valid are 1 to {LOCATIONS_MAX} locations")
    return _GENERATORS[kind](first, second)
