"""`roamcast location`: create and inspect movement graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from roamcast.cli.output import emit_json, table
from roamcast.cli.usage import AsJson, argument, new_group, option, show_examples
from roamcast.errors import InputError, read_text

if TYPE_CHECKING:
    from roamcast.routing.location.movement_graph import MovementGraph

STEPS_SHOWN = (1, 2, 3, 5, 10)
STARTS_MAX = 1000
"""Limit of locations from which reachability is counted."""


def register(app: typer.Typer) -> None:
    group = new_group(
        "Movement graphs for location-dependent subscriptions.",
        examples=["roamcast location graph grid:10x20", "roamcast location show streets.txt"],
    )
    app.add_typer(group, name="location")
    group.command(
        "graph",
        epilog=show_examples(
            "roamcast location graph grid:10x20",
            "roamcast location graph rooms:3x8",
            "roamcast location graph h3 --at 43.263,-2.935 --resolution 9 --rings 5",
        ),
    )(graph)
    group.command("show", epilog=show_examples("roamcast location show streets.txt --json"))(show)


def graph(
    spec: str = argument(..., "grid:WIDTHxHEIGHT, rooms:FLOORSxROOMS, or h3 for cells around positions."),
    at: list[str] | None = option(None, "With h3: a position LATITUDE,LONGITUDE. Repeatable."),
    resolution: int = option(9, "With h3: 0 to 15; 9 makes cells about 350 m wide."),
    rings: int = option(5, "With h3: cells around each position.", min=0, max=500),
) -> None:
    """Write a movement graph to standard output: one edge on each line."""
    from roamcast.routing.location.h3_cells import cells_around
    from roamcast.routing.location.movement_graph import format_movement_graph, generate_movement_graph

    if spec != "h3":
        if at:
            raise InputError("--at belongs to h3: `roamcast location graph h3 --at LATITUDE,LONGITUDE`")
        made = generate_movement_graph(spec)
    elif not at:
        raise InputError("h3 needs positions: --at LATITUDE,LONGITUDE, once for each")
    else:
        made = cells_around([parse_position(text) for text in at], resolution, rings)
    print(format_movement_graph(made), end="")


def parse_position(text: str) -> tuple[float, float]:
    try:
        latitude, longitude = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--at {text!r}: valid is LATITUDE,LONGITUDE in degrees, as 43.263,-2.935") from None
    return latitude, longitude


def show(
    file: Path = argument(..., "A movement graph: one edge on each line."),
    as_json: AsJson = False,
) -> None:
    """Check a movement graph, and show how many locations a client can reach in N steps."""
    from roamcast.routing.location.movement_graph import parse_movement_graph

    found = parse_movement_graph(read_text(file), str(file))
    lonely = [str(one) for one in found.locations if not found.neighbours(one)]
    steps = sum(len(found.neighbours(one)) for one in found.locations)
    reached = {str(steps): mean_reach(found, steps) for steps in STEPS_SHOWN}
    if as_json:
        counts = {"locations": len(found), "steps": steps, "without_any_step": lonely}
        emit_json({**counts, "reached": reached})
        return
    table(
        ["what", "value"],
        [
            ("locations", len(found)),
            ("steps between them", steps),
            ("locations without steps to others", ", ".join(lonely) or "none"),
            *((f"locations within {steps} steps, mean", mean) for steps, mean in reached.items()),
        ],
        title=str(file),
    )


def mean_reach(found: MovementGraph, steps: int) -> float:
    starts = found.locations[:: max(1, len(found) // STARTS_MAX)]
    return sum(len(found.ball(one, steps)) for one in starts) / len(starts)
