"""Turns GPS points into attachments: each point belongs to the broker of its place.

A broker serves a cell of H3's hexagonal grid, or the area nearest to a site of a list. A point that could
only have been reached at an impossible speed is dropped; if the points after it are consistent with it, the
earlier ones were wrong and it is kept.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from roamcast.errors import InputError
from roamcast.pipeline.sightings import seconds_of
from roamcast.pipeline.visits import Rows, map_groups

COLUMNS: Mapping[str, str] = {
    "client": "vehicle_id",
    "time": "timestamp",
    "latitude": "latitude",
    "longitude": "longitude",
}
"""Columns of the Austin bus data, the default of the importer."""

POINTS = "client string, at_s double, latitude double, longitude double"
SIGHTINGS = "client string, at_s double, broker string"

EARTH_M = 6_371_000.0
AGREEING = 3
"""Number of consistent points in a row that outweigh the points before them."""
SITES_MAX = 10_000
RESOLUTIONS = range(16)

Position = tuple[float, float]


def points(table: DataFrame) -> DataFrame:
    """Return the rows that are points on the earth, one for each client and time."""
    return (
        table.select(
            fn.concat(fn.lit("v"), fn.regexp_replace("client", r"[\s,]+", "-")).alias("client"),
            seconds_of("time").alias("at_s"),
            fn.expr("try_cast(latitude as double)").alias("latitude"),
            fn.expr("try_cast(longitude as double)").alias("longitude"),
        )
        .where("client is not null and at_s is not null")
        .where("latitude between -90 and 90 and longitude between -180 and 180")
        # A receiver without a fix says that it is off the coast of Africa.
        .where("not (latitude = 0 and longitude = 0)")
        .dropDuplicates(["client", "at_s"])
    )


def possible(rows: DataFrame, speed_max_m_s: float) -> DataFrame:
    """Remove points that no client can have reached."""

    def of_client(track: Rows) -> Rows:
        points = list(track)
        positions = [(at_s, latitude, longitude) for _, at_s, latitude, longitude in points]
        return (points[number] for number in reachable(positions, speed_max_m_s))

    return map_groups(rows, ["at_s"], of_client, POINTS)


def reachable(track: Sequence[tuple[float, float, float]], speed_max_m_s: float) -> Iterator[int]:
    """Return which points (time, latitude, longitude) of a track are kept."""
    last: tuple[float, float, float] | None = None
    doubted: list[int] = []
    for index, point in enumerate(track):
        if last is None or _speed_m_s(last, point) <= speed_max_m_s:
            doubted.clear()
            last = point
            yield index
            continue
        if doubted and _speed_m_s(track[doubted[-1]], point) > speed_max_m_s:
            doubted.clear()
        doubted.append(index)
        if len(doubted) == AGREEING:
            yield from doubted
            doubted.clear()
            last = point


def _speed_m_s(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    distance_m = distance_between_m(one[1:], other[1:])
    return distance_m / (other[0] - one[0]) if other[0] > one[0] else math.inf if distance_m else 0.0


def distance_between_m(one: Position, other: Position) -> float:
    """Return the distance along the surface of the earth."""
    lat_1, lon_1, lat_2, lon_2 = map(math.radians, (*one, *other))
    half = math.sin((lat_2 - lat_1) / 2) ** 2
    half += math.cos(lat_1) * math.cos(lat_2) * math.sin((lon_2 - lon_1) / 2) ** 2
    return 2 * EARTH_M * math.asin(min(1.0, math.sqrt(half)))


# --- brokers ---


def by_cell(rows: DataFrame, resolution: int) -> DataFrame:
    """Add the H3 cell of each point."""
    if resolution not in RESOLUTIONS:
        raise InputError(f"--cells {resolution}: valid is 0 (largest cells) to 15")
    _h3()

    def cells(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import h3

        for batch in batches:
            places = zip(batch["latitude"].to_pylist(), batch["longitude"].to_pylist(), strict=True)
            yield _with_broker(batch, [h3.latlng_to_cell(*place, resolution) for place in places])

    return rows.mapInArrow(cells, SIGHTINGS)


def _with_broker(batch: pa.RecordBatch, brokers: list[str]) -> pa.RecordBatch:
    columns = [batch["client"], batch["at_s"], pa.array(brokers, pa.string())]
    return pa.RecordBatch.from_arrays(columns, ["client", "at_s", "broker"])


def cell_positions(brokers: Sequence[str]) -> dict[str, Position]:
    h3 = _h3()
    return {broker: h3.cell_to_latlng(broker) for broker in brokers}


def _h3() -> Any:
    try:
        import h3
    except ImportError:
        raise InputError("--cells needs the package h3: pip install 'roamcast[location]'") from None
    return h3


def by_site(rows: DataFrame, sites: Mapping[str, Position]) -> DataFrame:
    """Add the nearest site of each point."""
    names = list(sites)
    places = [_on_sphere(sites[name]) for name in names]

    def nearest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from scipy.spatial import KDTree

        tree = KDTree(places)
        for batch in batches:
            pairs = zip(batch["latitude"].to_pylist(), batch["longitude"].to_pylist(), strict=True)
            points = [_on_sphere(pair) for pair in pairs]
            found = tree.query(points)[1] if points else []
            yield _with_broker(batch, [names[number] for number in found])

    return rows.mapInArrow(nearest, SIGHTINGS)


def _on_sphere(position: Position) -> tuple[float, float, float]:
    """Return the position in space: the nearest one there is also the nearest on the sphere, across any
    meridian.
    """
    latitude, longitude = math.radians(position[0]), math.radians(position[1])
    flat = math.cos(latitude)
    return flat * math.cos(longitude), flat * math.sin(longitude), math.sin(latitude)


def read_sites(file: Path) -> dict[str, Position]:
    """Read sites from a CSV file with the columns broker, latitude, longitude."""
    sites: dict[str, Position] = {}
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                name, position = _site(f"{file} line {number}", row)
                if name in sites:
                    raise InputError(f"{file} line {number}: broker {name!r} is given twice")
                sites[name] = position
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {getattr(error, 'strerror', None) or 'is no text in UTF-8'}") from None
    if not 0 < len(sites) <= SITES_MAX:
        raise InputError(f"{file}: {len(sites)} sites; valid is 1 to {SITES_MAX}")
    return sites


def _site(where: str, row: Mapping[str, str | None]) -> tuple[str, Position]:
    name = (row.get("broker") or "").strip()
    try:
        latitude, longitude = float(row.get("latitude") or ""), float(row.get("longitude") or "")
    except ValueError:
        latitude = longitude = math.nan
    if not name or " " in name or not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise InputError(f"{where}: expected broker,latitude,longitude such as 'depot,30.27,-97.74'")
    return name, (latitude, longitude)
