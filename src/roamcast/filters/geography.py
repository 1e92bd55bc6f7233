"""Regions of the earth: discs, polygons and H3 cells, and which positions lie in them.

A position is latitude and longitude in degrees (WGS 84). As the value of an attribute it is a text,
`43.263,-2.935`; any other text is no position, and no condition on regions is true of it.

Distances are those on a sphere with the earth's mean radius: within half a percent of those on the
ellipsoid. Edges of polygons are straight lines on a map of latitude and longitude, as GeoJSON has them
(RFC 7946). A polygon may lie across the meridian of 180 degrees, but not around a pole; a disc may. Filters
travel to brokers of earlier releases, so no shape may become valid that those refuse.

Every region is a pattern over texts, so the covering algebra can calculate with it (values.py). Where no
better way is known, bounding boxes decide whether one region contains another. Then the answer may be "not
known", which costs a router an unnecessary entry, but never a notification.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec

from roamcast.errors import InputError

EARTH_RADIUS_M = 6_371_008.8
DEGREE_M = math.radians(EARTH_RADIUS_M)
"""Distance between two parallels one degree apart."""
RADIUS_MAX_M = 20_040_000
"""Greatest distance between two places."""
LATITUDES = ("lat", "latitude")
LONGITUDES = ("lon", "lng", "longitude")
POSITION_NAMES = (*LATITUDES, *LONGITUDES, "type", "coordinates")
"""Names of the parts of positions."""
VERTICES_MAX = 300
ZONE_NAME_MAX = 128
POSITIONS_REMEMBERED = 4_096
DIGITS = 7
"""Decimal places of degrees: about a centimetre."""
MARGIN = 1e-9
"""Maximum error of calculated bounds, in degrees."""

_POSITION = re.compile(r"\s*([+-]?\d{1,3}(?:\.\d{0,17})?)\s*,\s*([+-]?\d{1,3}(?:\.\d{0,17})?)\s*", re.ASCII)


class Position(NamedTuple):
    latitude: float
    longitude: float
    x: float
    y: float
    z: float
    """Coordinates on a sphere with radius one, so that distances need no sines and cosines."""


def position(latitude: float, longitude: float) -> Position:
    """Return a position; InputError if it is not on the earth."""
    if not _is_on_earth(latitude, longitude):
        where = f"latitude {latitude:.12g}, longitude {longitude:.12g}"
        hint = "; are they swapped?" if _is_on_earth(longitude, latitude) else ""
        raise InputError(f"{where}: valid are -90 to 90 and -180 to 180 degrees{hint}")
    north, east = math.radians(latitude), math.radians(longitude)
    around = math.cos(north)
    return Position(latitude, longitude, around * math.cos(east), around * math.sin(east), math.sin(north))


def _is_on_earth(latitude: float, longitude: float) -> bool:
    return -90 <= latitude <= 90 and -180 <= longitude <= 180


@lru_cache(maxsize=POSITIONS_REMEMBERED)
def position_of(text: str) -> Position | None:
    """Return the position that a text represents; None if it is no position."""
    found = _POSITION.fullmatch(text)
    if found is None:
        return None
    try:
        return position(float(found[1]), float(found[2]))
    except InputError:
        return None


def position_text(latitude: float, longitude: float) -> str:
    """Return the text of a position as an attribute value."""
    return f"{_plain(latitude)},{_plain(longitude)}"


def _plain(value: float) -> str:
    """Format without an exponent, which Python would use near zero."""
    rounded = degrees(value)
    return f"{rounded:.{DIGITS}f}".rstrip("0") if 0 < abs(rounded) < 0.001 else repr(rounded)


def degrees(value: float) -> float | int:
    """Format degrees in one canonical way, as precisely as needed."""
    rounded = round(value, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def read_position(said: Mapping[str, Any]) -> str | None:
    """Return the text of a position written as {"lat": …, "lon": …} or as a GeoJSON point."""
    latitude: Any
    longitude: Any
    if said.get("type") == "Point":
        point = said.get("coordinates")
        longitude, latitude = point[:2] if isinstance(point, list) and len(point) in (2, 3) else (None, None)
    else:
        latitude, longitude = (
            next((said[name] for name in names if name in said), None) for names in (LATITUDES, LONGITUDES)
        )
    if type(latitude) not in (int, float) or type(longitude) not in (int, float):
        return None
    return position_text(latitude, longitude) if _is_on_earth(latitude, longitude) else None


def distance_m(one: Position, other: Position) -> float:
    chord = math.dist(one[2:], other[2:])
    return 2 * EARTH_RADIUS_M * math.asin(min(chord / 2, 1.0))


class Bounds(NamedTuple):
    """The area between two parallels, and from a meridian `width` degrees to the east."""

    south: float
    north: float
    west: float
    width: float

    def meet(self, other: Bounds) -> bool:
        if self.south > other.north or other.south > self.north:
            return False
        return (other.west - self.west) % 360 <= self.width or (self.west - other.west) % 360 <= other.width

    @property
    def corners(self) -> list[tuple[float, float]]:
        return [
            (latitude, longitude)
            for latitude in (self.south, self.north)
            for longitude in (self.west, self.west + self.width)
        ]


EVERYWHERE = Bounds(-90.0, 90.0, -180.0, 360.0)


class Region:
    """A part of the earth. Regions with equal text are equal."""

    __slots__ = ("bounds", "key", "text")

    # Required of every pattern (see patterns.py); no prefix of a text decides that it lies in a region.
    prefix = ""
    characters: frozenset[str] = frozenset()

    def __init__(self, text: str, bounds: Bounds) -> None:
        self.text = text
        """Condition text that describes the region."""
        self.key = ("region", text)
        self.bounds = bounds

    def holds(self, place: Position) -> bool:
        raise NotImplementedError

    def search(self, text: str) -> object:
        """Return None for a text that is no position, or lies elsewhere."""
        place = position_of(text)
        return True if place is not None and self.holds(place) else None

    def accepts(self, text: str) -> bool:
        return self.search(text) is not None

    def contains(self, other: Region) -> bool:
        """True if all of the other region is known to lie in this one."""
        return self == other or (not isinstance(other, Outside) and self._holds_bounds(other.bounds))

    def _holds_bounds(self, bounds: Bounds) -> bool:
        """True if everything between these bounds is known to lie here."""
        return False

    def is_apart_from(self, other: Region) -> bool:
        """True if the regions are known to be disjoint."""
        if isinstance(other, Outside):
            return other.inner.contains(self)
        return not self.bounds.meet(other.bounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class Outside(Region):
    """All positions except those in another region."""

    __slots__ = ("inner",)

    def __init__(self, inner: Region) -> None:
        super().__init__(f"NOT {inner.text}", EVERYWHERE)
        self.inner = inner

    def holds(self, place: Position) -> bool:
        return not self.inner.holds(place)

    def contains(self, other: Region) -> bool:
        if isinstance(other, Outside):
            return other.inner.contains(self.inner)
        return self.inner.is_apart_from(other)

    def is_apart_from(self, other: Region) -> bool:
        return self.inner.contains(other)


class Disc(Region):
    """Positions at most `metres` away from a position."""

    __slots__ = ("_chord2", "centre", "metres")

    def __init__(self, latitude: float, longitude: float, metres: float) -> None:
        self.centre = position(degrees(latitude), degrees(longitude))
        if not 0 <= metres <= RADIUS_MAX_M:
            raise InputError(f"{metres:g} m: valid is a distance from 0 to {RADIUS_MAX_M:,} m")
        self.metres = metres
        angle = metres / EARTH_RADIUS_M
        self._chord2 = (2 * math.sin(min(angle / 2, math.pi / 2))) ** 2
        where = f"({degrees(latitude)!r}, {degrees(longitude)!r})"
        super().__init__(f"WITHIN {metres_text(metres)} M OF {where}", _disc_bounds(self.centre, angle))

    def holds(self, place: Position) -> bool:
        _, _, x, y, z = place
        _, _, u, v, w = self.centre
        x -= u
        y -= v
        z -= w
        return x * x + y * y + z * z <= self._chord2

    def contains(self, other: Region) -> bool:
        if isinstance(other, Disc):
            # One centimetre for the rounding of both.
            return distance_m(self.centre, other.centre) + other.metres <= self.metres - 0.01 or self == other
        return super().contains(other)

    def _holds_bounds(self, bounds: Bounds) -> bool:
        # Within a quarter of the earth, the corners of a box are its farthest points.
        farthest = max(
            abs((longitude - self.centre.longitude + 180) % 360 - 180) for _, longitude in bounds.corners
        )
        if bounds.width > 90 or farthest > 90:
            return False
        return all(
            self.holds(position(latitude, (longitude + 180) % 360 - 180))
            for latitude, longitude in bounds.corners
        )

    def is_apart_from(self, other: Region) -> bool:
        if isinstance(other, Disc):
            return distance_m(self.centre, other.centre) > self.metres + other.metres + 0.01
        return super().is_apart_from(other)


def metres_text(metres: float) -> str:
    return repr(int(metres)) if metres == int(metres) else repr(round(metres, 3))


def _disc_bounds(centre: Position, angle: float) -> Bounds:
    reach = math.degrees(angle) + MARGIN
    south, north = centre.latitude - reach, centre.latitude + reach
    if south <= -90 or north >= 90:
        return Bounds(max(south, -90.0), min(north, 90.0), -180.0, 360.0)
    aside = math.sin(angle) / math.cos(math.radians(centre.latitude))
    side = math.degrees(math.asin(min(aside, 1.0))) + MARGIN
    return Bounds(south, north, centre.longitude - side, 2 * side)


# --- polygons ---

Point = tuple[float, float]
"""Longitude and latitude, in GeoJSON's order; the longitude may be beyond 180 degrees."""
Edge = tuple[float, float, float, float]
"""Two points."""
_Rings = list[list[Annotated[list[float], msgspec.Meta(min_length=2)]]]
"""A polygon as GeoJSON has it. A third coordinate is a height, and ignored."""


class Polygon(Region):
    """One or more polygons, each with or without holes."""

    __slots__ = ("_bands", "_edges", "_step", "shape")

    def __init__(self, rings: Sequence[Sequence[Sequence[Point]]]) -> None:
        """`rings`: for each polygon its outline, and then its holes. They are checked."""
        vertices = sum(len(ring) for polygon in rings for ring in polygon)
        if not 0 < vertices <= VERTICES_MAX:
            raise InputError(f"a polygon of {vertices} points: valid are 3 to {VERTICES_MAX}")
        checked = [[_checked_ring(ring) for ring in polygon] for polygon in rings]
        if not all(checked):
            raise InputError("a polygon without an outline: valid is one ring of points, then its holes")
        unrolled = [[_unrolled(ring) for ring in polygon] for polygon in checked]
        west, width = _reach(unrolled)
        if width > 360:
            raise InputError(
                "a polygon with rings on both sides of the meridian of 180 degrees: cut it there, as a "
                "MultiPolygon"
            )
        # Parts on both sides of that meridian are beside each other.
        beside = _middle(unrolled[0][0])
        turned = [[_turned(ring, beside) for ring in polygon] for polygon in unrolled]
        if _reach(turned)[1] < width:
            unrolled = turned
            west, width = _reach(unrolled)
        points = [point for polygon in unrolled for ring in polygon for point in ring]
        south, north = min(point[1] for point in points), max(point[1] for point in points)
        parts = [[edge for ring in polygon for edge in _edges(ring)] for polygon in unrolled]
        self._edges = [edge for edges in parts for edge in edges]
        _refuse_crossings(self._edges)
        # Rounding may leave a flat polygon a little area.
        if south == north or not all(_has_area(ring) for polygon in unrolled for ring in polygon):
            raise InputError(
                "a polygon without an area: valid are three or more points that are not in a line"
            )
        self._make_bands(parts, south, north)
        self.shape = _as_geojson(checked)
        super().__init__(f"INSIDE '{self.shape}'", Bounds(south, north, west, width))

    def _make_bands(self, parts: Sequence[Sequence[Edge]], south: float, north: float) -> None:
        """Index the edges by bands of latitude, so that a query tests only a few."""
        count = max(1, len(self._edges) // 4)
        self._step = (north - south) / count
        self._bands: list[list[tuple[float, float, float, float, int]]] = [[] for _ in range(count)]
        for number, edges in enumerate(parts):
            for edge in edges:
                low, high = sorted((edge[1], edge[3]))
                first = min(int((low - south) / self._step), count - 1)
                last = min(int((high - south) / self._step), count - 1)
                for band in self._bands[first : last + 1]:
                    band.append((*edge, 1 << number))

    def holds(self, place: Position) -> bool:
        latitude, longitude, *_ = place
        if latitude == 90:
            latitude -= MARGIN  # An outline holds its southern and western edges, not the northern one.
        south, north, west, width = self.bounds
        if not south <= latitude <= north:
            return False
        east_of = (longitude - west) % 360
        if east_of > width:
            return False
        return self._encloses(west + east_of, latitude)

    def _encloses(self, longitude: float, latitude: float) -> bool:
        """True if a line to the east crosses the outline and holes of one of the polygons an odd number of
        times."""
        band = self._bands[min(int((latitude - self.bounds.south) / self._step), len(self._bands) - 1)]
        inside = 0
        for x1, y1, x2, y2, part in band:
            if (y1 > latitude) != (y2 > latitude):
                inside ^= part * (longitude < x1 + (latitude - y1) / (y2 - y1) * (x2 - x1))
        return inside != 0

    def distance_m(self, place: Position) -> float:
        """Return the approximate distance to a position outside (on a local map); 0 inside."""
        if self.holds(place):
            return 0.0
        west, width = self.bounds.west, self.bounds.width
        # The same place, in the turn in which the polygon is near.
        x = min((place.longitude + turn for turn in (-360, 0, 360)), key=lambda x: abs(x - west - width / 2))
        narrow = math.cos(math.radians(place.latitude))
        return DEGREE_M * min(_distance(edge, x, place.latitude, narrow) for edge in self._edges)

    def _holds_bounds(self, bounds: Bounds) -> bool:
        west = self.bounds.west + (bounds.west - self.bounds.west) % 360
        east = west + bounds.width
        corners = [(x, y) for y in (bounds.south, bounds.north) for x in (west, east)]
        if bounds.south < self.bounds.south or bounds.north > self.bounds.north:
            return False
        if east > self.bounds.west + self.bounds.width or not all(self._encloses(*one) for one in corners):
            return False
        return not any(_crosses_box(edge, west, bounds.south, east, bounds.north) for edge in self._edges)


def _checked_ring(ring: Sequence[Point]) -> tuple[Point, ...]:
    """Return the ring without repeated points, including the last one that closes it."""
    points: list[Point] = []
    for longitude, latitude in ring:
        place = position(latitude, longitude)
        point = (degrees(place.longitude), degrees(place.latitude))
        if not points or point != points[-1]:
            points.append(point)
    if len(points) > 1 and points[0] == points[-1]:
        points.pop()
    if len(points) < 3:
        raise InputError(f"a ring of {len(points)} different points: valid are 3 or more")
    return tuple(points)


def _unrolled(ring: Sequence[Point]) -> Sequence[Point]:
    """Unroll longitudes, so that each point is reached the shorter way, beyond 180 degrees if needed."""
    points = [ring[0]]
    for longitude, latitude in ring[1:]:
        before = points[-1][0]
        points.append((before + (longitude - before + 180) % 360 - 180, latitude))
    is_wide = any(abs(edge[0] - edge[2]) > 180 for edge in _edges(ring))
    if abs(points[-1][0] - points[0][0]) > 180 or (is_wide and not _has_area(points)):
        raise InputError(
            "a polygon around a pole or the earth: cut it into parts of less than 180 degrees, as a "
            "MultiPolygon, or take WITHIN … KM OF (90, 0)"
        )
    return points


def _reach(polygons: Sequence[Sequence[Sequence[Point]]]) -> tuple[float, float]:
    """Return the westernmost longitude, and how far it is from there to the easternmost one."""
    west = min(x for polygon in polygons for ring in polygon for x, _ in ring)
    return west, max(x for polygon in polygons for ring in polygon for x, _ in ring) - west


def _middle(ring: Sequence[Point]) -> float:
    return (min(x for x, _ in ring) + max(x for x, _ in ring)) / 2


def _turned(ring: Sequence[Point], beside: float) -> Sequence[Point]:
    """Return the ring in the turn of the earth that is nearest to a longitude."""
    turn = 360 * round((beside - _middle(ring)) / 360)
    return [(x + turn, y) for x, y in ring]


def _has_area(ring: Sequence[Point]) -> bool:
    doubled = sum(x1 * y2 - x2 * y1 for x1, y1, x2, y2 in _edges(ring))
    return abs(doubled) >= 10.0 ** (2 - 2 * DIGITS)


def _edges(ring: Sequence[Point]) -> list[Edge]:
    return [(*one, *other) for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)]


def _refuse_crossings(edges: Sequence[Edge]) -> None:
    """Refuse outlines that cross themselves or each other: their inside is ambiguous."""
    ordered = sorted(edges, key=lambda edge: min(edge[0], edge[2]))
    open_edges: list[Edge] = []
    for edge in ordered:
        west = min(edge[0], edge[2])
        open_edges = [other for other in open_edges if max(other[0], other[2]) >= west]
        for other in open_edges:
            if _cross(edge, other):
                x, y = degrees((edge[0] + 180) % 360 - 180), degrees(edge[1])
                raise InputError(f"a polygon whose outline crosses itself near latitude {y}, longitude {x}")
        open_edges.append(edge)


def _cross(one: Edge, other: Edge) -> bool:
    """True if two edges share a point that is not an end of both."""
    a, b, c, d = one[:2], one[2:], other[:2], other[2:]
    sides = _side(a, b, c), _side(a, b, d), _side(c, d, a), _side(c, d, b)
    return sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0


def _distance(edge: Edge, x: float, y: float, narrow: float) -> float:
    """Return the distance from a point to an edge, in degrees of latitude; degrees of longitude are
    narrower."""
    x1, y1, x2, y2 = (edge[0] - x) * narrow, edge[1] - y, (edge[2] - x) * narrow, edge[3] - y
    dx, dy = x2 - x1, y2 - y1
    along = max(0.0, min(1.0, -(x1 * dx + y1 * dy) / (dx * dx + dy * dy))) if dx or dy else 0.0
    return math.hypot(x1 + along * dx, y1 + along * dy)


def _side(a: Sequence[float], b: Sequence[float], c: Sequence[float]) -> int:
    turned = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
    return (turned > 0) - (turned < 0)


def _crosses_box(edge: Edge, west: float, south: float, east: float, north: float) -> bool:
    """True if the edge may touch the box."""
    x1, y1, x2, y2 = edge
    if max(x1, x2) < west or min(x1, x2) > east or max(y1, y2) < south or min(y1, y2) > north:
        return False
    sides = {_side((x1, y1), (x2, y2), corner) for corner in
             ((west, south), (west, north), (east, south), (east, north))}  # fmt: skip
    return len(sides) > 1 or sides == {0}


def _as_geojson(rings: Sequence[Sequence[Sequence[Point]]]) -> str:
    closed = [[[*ring, ring[0]] for ring in polygon] for polygon in rings]
    if len(closed) == 1:
        shape: dict[str, Any] = {"type": "Polygon", "coordinates": closed[0]}
    else:
        shape = {"type": "MultiPolygon", "coordinates": closed}
    return msgspec.json.encode(shape).decode()


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read_geojson(text: str | bytes) -> Polygon:
    """Read a Polygon or MultiPolygon, or a Feature of one."""
    try:
        shape = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"GeoJSON cannot be read: {error}") from None
    if shape.get("type") == "Feature" and isinstance(shape.get("geometry"), dict):
        shape = shape["geometry"]
    kind, coordinates = shape.get("type"), shape.get("coordinates")
    if kind not in ("Polygon", "MultiPolygon"):
        raise InputError(f"GeoJSON {kind!r}: valid are Polygon, MultiPolygon, or a Feature that is one")
    try:
        polygons = msgspec.convert([coordinates] if kind == "Polygon" else coordinates, list[_Rings])
    except msgspec.ValidationError:
        raise InputError(f"GeoJSON {kind}: valid are lists of rings of [longitude, latitude]") from None
    return Polygon([[[(point[0], point[1]) for point in ring] for ring in rings] for rings in polygons])


class NamedZone(Region):
    """A zone by its name. Brokers know its region (see zones.py); until then it contains nothing."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not name or len(name) > ZONE_NAME_MAX:
            raise InputError(f"zone {name!r}: valid is a name of 1 to {ZONE_NAME_MAX} characters, or GeoJSON")
        self.name = name
        quoted = name.replace("'", "''")
        super().__init__(f"INSIDE '{quoted}'", EVERYWHERE)

    def holds(self, place: Position) -> bool:
        return False


def zone(text: str) -> Region:
    """Return a zone by its name, or from GeoJSON."""
    return read_geojson(text) if text.lstrip().startswith("{") else NamedZone(text)


# --- cells ---


class Cell(Region):
    """A hexagon of H3, by its index."""

    __slots__ = ("_find", "_resolution", "cell")

    def __init__(self, cell: str) -> None:
        h3 = h3_module()
        cell = cell.lower()
        if not h3.is_valid_cell(cell):
            raise InputError(f"cell {cell!r}: valid is the index of an H3 cell, as 8a39629a2d37fff")
        self.cell = cell
        self._resolution: int = h3.get_resolution(cell)
        self._find = h3.latlng_to_cell
        super().__init__(f"IN CELL '{cell}'", self._outline(h3))

    def _outline(self, h3: Any) -> Bounds:
        centre = h3.cell_to_latlng(self.cell)
        corners = h3.cell_to_boundary(self.cell)
        sides = [(longitude - centre[1] + 180) % 360 - 180 for _, longitude in corners]
        south, north = min(one[0] for one in corners), max(one[0] for one in corners)
        # Edges of cells are not straight on a map.
        more = (north - south) / 10
        south, north = max(south - more, -90.0), min(north + more, 90.0)
        for pole in (-90.0, 90.0):
            if h3.latlng_to_cell(pole, 0.0, self._resolution) == self.cell:
                return Bounds(min(south, pole), max(north, pole), -180.0, 360.0)
        if max(sides) - min(sides) >= 180:
            return Bounds(south, north, -180.0, 360.0)
        more = (max(sides) - min(sides)) / 10
        return Bounds(south, north, centre[1] + min(sides) - more, max(sides) - min(sides) + 2 * more)

    def holds(self, place: Position) -> bool:
        return bool(self._find(place.latitude, place.longitude, self._resolution) == self.cell)


def h3_module() -> Any:
    try:
        import h3
    except ImportError:
        raise InputError("H3 cells need the package h3: install roamcast[location]") from None
    return h3


def none_in_all(regions: Iterable[tuple[Region, bool]]) -> bool:
    """True if it is known that no position lies in all wanted regions and in none of the others."""
    wanted = [region for region, is_wanted in regions if is_wanted]
    others = [region for region, is_wanted in regions if not is_wanted]
    for at, one in enumerate(wanted):
        if any(one.is_apart_from(other) for other in wanted[:at]) or any(x.contains(one) for x in others):
            return True
    return False
