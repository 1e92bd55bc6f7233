"""Positions on the earth, and filters on them, for stories of clients that move."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from itertools import product

from roamcast.filters.geography import position_text
from roamcast.routing.location import earth
from roamcast.routing.location.movement_graph import MovementGraph

SIDE = 8
"""Side of the square in which positions lie."""
APARTS_M = (5.0, 120.0, 2_000.0, 40_000.0)
LATITUDES = (0.0, 43.26, -33.9, 78.2, 89.99)
LONGITUDES = (-2.93, 151.2, 179.999, -180.0)
METRE = 1 / 111_195.08
"""One metre in degrees of latitude."""


@dataclass(frozen=True)
class Earth:
    """An area on the earth, and the distance between its positions."""

    latitude: float
    longitude: float
    apart_m: float
    variable: earth.Earth
    graph: MovementGraph

    def filters(self, rng: random.Random) -> tuple[str, ...]:
        """Draw filters on the client's location; their distances differ from all distances between positions
        of the square.
        """
        near, far = (round(self.apart_m * rng.choice((0.63, 1.27, 2.6, 4.1)), 1) for _ in range(2))
        return (
            f"location WITHIN {near} M OF myloc", f"location WITHIN {far} M OF myloc",
            f"service = 'parking' AND location WITHIN {near} M OF myloc AND cost < 2",
            f"location WITHIN {near} M OF myloc OR cost = 0",
            f"location NOT WITHIN {far} M OF myloc AND service = 'news'",
            f"location WITHIN {far / 1000} KM OF myloc AND cost < my.budget",
        )  # fmt: skip

    def plain_filters(self, rng: random.Random) -> tuple[str, ...]:
        latitude, longitude = self._moved(rng.uniform(-3, 3), rng.uniform(-3, 3))
        radius = round(self.apart_m * rng.choice((1.3, 4.7)), 1)
        corners = [self._moved(north, east) for north, east in ((-3, -3), (-3, 2), (3, 3), (2, -3))]
        shape = {"type": "Polygon", "coordinates": [[[east, north] for north, east in corners]]}
        regions: tuple[str, ...] = (
            f"location WITHIN {radius} M OF ({latitude}, {longitude})",
            f"location NOT WITHIN {radius} M OF ({latitude}, {longitude}) AND cost > 1",
        )
        if abs(self.latitude) < 80:
            regions += (f"location INSIDE '{json.dumps(shape)}'",)
        return (*regions, "service = 'news'", "location IS NOT NULL")

    def beside(self, place: str, rng: random.Random) -> str:
        """Draw a position near another one."""
        latitude, longitude = map(float, place.split(","))
        north, east = rng.uniform(-0.3, 0.3), rng.uniform(-0.3, 0.3)
        return position_text(*_moved(latitude, longitude, north * self.apart_m, east * self.apart_m))

    def _moved(self, north: float, east: float) -> tuple[float, float]:
        return _moved(self.latitude, self.longitude, north * self.apart_m, east * self.apart_m)


def draw_earth(rng: random.Random) -> Earth:
    latitude, longitude, apart_m = rng.choice(LATITUDES), rng.choice(LONGITUDES), rng.choice(APARTS_M)
    if abs(latitude) > 85:
        apart_m = min(apart_m, 120.0)
    places = {
        (row, column): position_text(*_moved(latitude, longitude, row * apart_m, column * apart_m))
        for row, column in product(range(SIDE), repeat=2)
    }
    edges = [
        (place, places[other])
        for (row, column), place in places.items()
        for other in ((row + 1, column), (row, column + 1), (row + 1, column + 1))
        if other in places
    ]
    # A diagonal is the longest step; near a pole the square is not quite one.
    return Earth(latitude, longitude, apart_m, earth.Earth(round(1.7 * apart_m, 1)), MovementGraph(edges))


def _moved(latitude: float, longitude: float, north_m: float, east_m: float) -> tuple[float, float]:
    """Return the position this many metres away, measured at the starting point."""
    to_north = latitude + north_m * METRE
    to_east = longitude + east_m * METRE / max(math.cos(math.radians(latitude)), 1e-9)
    if to_north > 90:  # Over the pole, and down on the other side.
        to_north, to_east = 180 - to_north, to_east + 180
    return round(to_north, 7), round((to_east + 180) % 360 - 180, 7)
