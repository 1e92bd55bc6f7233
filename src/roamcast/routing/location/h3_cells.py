"""Locations made of GPS positions: the hexagons of H3, with steps between adjacent cells."""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.errors import InputError
from roamcast.filters.geography import h3_module, position
from roamcast.routing.location.movement_graph import LOCATIONS_MAX, MovementGraph

Position = tuple[float, float]
"""Latitude and longitude, in degrees."""


def cell_of(latitude: float, longitude: float, resolution: int) -> str:
    """Return the location that contains a position."""
    position(latitude, longitude)  # Refuses positions that are not on the earth.
    if resolution not in range(16):
        raise InputError(f"resolution {resolution}: valid are 0 to 15 (9 makes cells about 350 m wide)")
    cell: str = h3_module().latlng_to_cell(latitude, longitude, resolution)
    return cell


def cells_around(positions: Iterable[Position], resolution: int, rings: int = 1) -> MovementGraph:
    """Return the movement graph of all cells within this number of rings around the positions."""
    h3 = h3_module()
    cells: dict[str, None] = {}
    for latitude, longitude in positions:
        centre = cell_of(latitude, longitude, resolution)
        cells.update(dict.fromkeys(sorted(h3.grid_disk(centre, rings))))
        if len(cells) > LOCATIONS_MAX:
            raise InputError(f"more than {LOCATIONS_MAX} cells: choose fewer rings or a lower resolution")
    edges = [(cell, other) for cell in cells for other in sorted(h3.grid_disk(cell, 1)) if other in cells]
    return MovementGraph((edge for edge in edges if edge[0] < edge[1]), cells)
