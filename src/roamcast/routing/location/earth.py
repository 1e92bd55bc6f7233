"""Positions on the earth as a variable of a client's own state.

Brokers assume a maximum distance between two reports, and a minimum stay learnt from the reports (see
ploc.py). So a distant broker lets through notifications for a disc that grows with the distance. The disc is
centred on a grid point and enlarged accordingly: most moves do not change it, and are not reported further.
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec

from roamcast.errors import InputError
from roamcast.filters.expression import Value
from roamcast.filters.geography import (
    DEGREE_M,
    RADIUS_MAX_M,
    Disc,
    Position,
    degrees,
    distance_m,
    position_of,
)
from roamcast.filters.own import Around, Possible
from roamcast.state import State

GRID_PART = 4
"""Grid points are at most this share of the radius apart."""
ROUNDING_M = 1.0


class Earth(msgspec.Struct, frozen=True):
    step_m: float
    """Maximum distance between two reports of a client."""

    is_metric: ClassVar[bool] = True

    __state__ = State("earth")

    def validate(self) -> None:
        if not 0 < self.step_m <= RADIUS_MAX_M:
            raise InputError(f"a step of {self.step_m:g} m: valid is more than 0, up to {RADIUS_MAX_M:,}")

    def check(self, value: Value) -> None:
        if not isinstance(value, str) or position_of(value) is None:
            raise InputError(f"location {value!r}: valid is LATITUDE,LONGITUDE in degrees, as 43.263,-2.935")

    def is_step(self, start: Value, end: Value) -> bool:
        return distance_m(_position(start), _position(end)) <= self.step_m

    def near(self, values: tuple[Value, ...], steps: float, within: float) -> Possible:
        places = [_position(value) for value in values]
        if steps == 0 and len(places) == 1:
            return Around((Disc(places[0].latitude, places[0].longitude, within),), is_exact=True)
        radius_m = within + self.step_m * steps
        if radius_m > RADIUS_MAX_M / 2:
            return None
        apart_m = max(self.step_m, radius_m / GRID_PART)
        discs = dict.fromkeys(self._around(place, radius_m, apart_m) for place in places)
        return Around(tuple(discs))

    @staticmethod
    def _around(place: Position, radius_m: float, apart_m: float) -> Disc:
        """Return the disc around the nearest grid point that contains the disc around this position."""
        north = apart_m / DEGREE_M
        latitude = max(min(round(place.latitude / north) * north, 90.0), -90.0)
        # Near a pole meridians meet, and one point stands for all longitudes.
        around = math.cos(math.radians(latitude))
        count = max(1, math.floor(around * 360 / north))
        longitude = (round((place.longitude + 180) / 360 * count) % count) * 360 / count - 180
        latitude, longitude = degrees(latitude), degrees(longitude)
        centre = Disc(latitude, longitude, 0).centre
        # No place is farther than this from its point, except some at the poles.
        away_m = max(apart_m, distance_m(centre, place))
        return Disc(latitude, longitude, math.ceil(radius_m + away_m + ROUNDING_M))


def _position(value: Value) -> Position:
    place = position_of(value) if isinstance(value, str) else None
    assert place is not None, "its report was checked"
    return place
