"""Regions of the earth: what lies in them, and what they say of each other, against other ways to tell."""

from __future__ import annotations

import json
import math
import random

import pytest

from roamcast.errors import InputError
from roamcast.filters.expression import Inside
from roamcast.filters.filter import Filter
from roamcast.filters.geography import (
    EARTH_RADIUS_M,
    Cell,
    Disc,
    Polygon,
    Region,
    position,
    position_of,
    position_text,
    read_position,
)
from roamcast.filters.index import FilterIndex
from roamcast.filters.selector import parse
from roamcast.filters.zones import with_zones

SQUARE = '{"type":"Polygon","coordinates":[[[0,0],[2,0],[2,2],[0,2]]]}'
DATE_LINE = '{"type":"Polygon","coordinates":[[[179,-1],[-179,-1],[-179,1],[179,1]]]}'
RING = '{"type":"Polygon","coordinates":[[[0,0],[4,0],[4,4],[0,4],[0,0]],[[1,1],[3,1],[3,3],[1,3],[1,1]]]}'
PIERCED_DATE_LINE = (
    '{"type":"Polygon","coordinates":[[[170,0],[-170,0],[-170,9],[170,9]],[[-175,5],[-172,5],[-172,6]]]}'
)
CUT_AT_DATE_LINE = json.dumps({"type": "MultiPolygon", "coordinates": [
    [[[170, 0], [180, 0], [180, 9], [170, 9]]], [[[-180, 0], [-170, 0], [-170, 9], [-180, 9]]],
]})  # fmt: skip
NESTED = json.dumps({"type": "MultiPolygon", "coordinates": [
    [[[0, 0], [4, 0], [4, 4], [0, 4]]], [[[0, 0], [4, 0], [4, 4], [0, 4]]],
    [[[1, 1], [2, 1], [2, 2], [1, 2]]],
]})  # fmt: skip
ARCTIC, EARTH = (
    json.dumps({"type": "MultiPolygon", "coordinates": [
        [[[west, south], [west + 120, south], [west + 120, 90], [west, 90]]] for west in (-180, -60, 60)
    ]})
    for south in (66, -90)
)  # fmt: skip
FLAT = "[[[-26.64822917534545,90],[-22.864183836993845,90],[91.64564311709768,90]]]"
"""Rounding gives it a little area."""
TWO = '{"type":"MultiPolygon","coordinates":[[[[0,0],[1,0],[1,1],[0,1]]],[[[5,5],[6,5],[6,6],[5,6]]]]}'


def haversine_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    (north, east), (latitude, longitude) = (map(math.radians, place) for place in (one, other))
    inner = (
        math.sin((latitude - north) / 2) ** 2
        + math.cos(north) * math.cos(latitude) * math.sin((longitude - east) / 2) ** 2
    )
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(inner, 1.0)))


def winds_around(ring: list[tuple[float, float]], x: float, y: float) -> bool:
    """The angles under which a point sees the edges: a full turn from inside, none from outside."""
    turned = 0.0
    for (x1, y1), (x2, y2) in zip(ring, ring[1:] + ring[:1], strict=True):
        turn = math.atan2(y2 - y, x2 - x) - math.atan2(y1 - y, x1 - x)
        turned += (turn + math.pi) % math.tau - math.pi
    return abs(turned) > math.pi


def near(rng: random.Random, latitude: float, longitude: float, reach: float) -> tuple[float, float]:
    north = max(min(latitude + rng.uniform(-reach, reach), 90.0), -90.0)
    east = longitude + rng.uniform(-reach, reach) / max(math.cos(math.radians(north)), 0.01)
    return north, (east + 180) % 360 - 180


PLACES = [(0.0, 0.0), (43.26, -2.93), (-33.9, 179.9999), (78.2, -180.0), (89.95, 10.0), (-90.0, 0.0)]


@pytest.mark.parametrize("centre", PLACES)
@pytest.mark.parametrize("metres", [3, 800, 50_000, 3_000_000])
def test_discs_hold_what_is_near(centre: tuple[float, float], metres: int) -> None:
    rng = random.Random(f"{centre}{metres}")
    disc = Disc(*centre, metres)
    found = 0
    for _ in range(400):
        place = near(rng, *centre, 1.6 * math.degrees(metres / EARTH_RADIUS_M))
        distance = haversine_m(centre, place)
        if abs(distance - metres) > 1e-6 * metres + 0.01:
            assert disc.holds(position(*place)) is (distance <= metres), place
            found += distance <= metres
    assert 20 < found < 400


def test_polygons_hold_what_their_outlines_go_around() -> None:
    rng = random.Random(4)
    for _ in range(60):
        middle = rng.choice((-179.99, -60.0, 0.0, 179.5))
        turns = sorted(rng.uniform(0, math.tau) for _ in range(rng.randint(3, 40)))
        if max(b - a for a, b in zip(turns, [*turns[1:], turns[0] + math.tau], strict=True)) > 3:
            continue  # The middle would be outside.
        reach = [5 * rng.uniform(0.3, 1) for _ in turns]  # Seen from the middle, no edge hides another.
        ring = [
            (middle + far * math.cos(turn), 20 + far * math.sin(turn))
            for far, turn in zip(reach, turns, strict=True)
        ]
        polygon = Polygon([[[((x + 180) % 360 - 180, y) for x, y in ring]]])
        for _ in range(60):
            x, y = middle + rng.uniform(-6, 6), 20 + rng.uniform(-6, 6)
            place = position(y, (x + 180) % 360 - 180)
            assert polygon.holds(place) is winds_around(ring, x, y), (ring, x, y)


@pytest.mark.parametrize(
    ("shape", "inside", "outside"),
    [
        (SQUARE, ["1,1", "0.5,1.9"], ["3,1", "1,-1", "-1,1", "1,181", "here", "1", "95,1"]),
        (DATE_LINE, ["0,180", "0,-180", "0.5,179.5", "-0.5,-179.5"], ["0,178", "0,-178", "0,0", "2,180"]),
        (RING, ["0.5,0.5", "3.5,2"], ["2,2", "5,5"]),
        (TWO, ["0.5,0.5", "5.5,5.5"], ["3,3"]),
        (CUT_AT_DATE_LINE, ["1,175", "1,180", "1,-180", "1,-175"], ["1,165", "1,-165", "1,0", "-1,180"]),
        (NESTED, ["0.5,0.5", "1.5,1.5", "3.5,3.5"], ["5,2", "2,5"]),
        (ARCTIC, ["67,0", "80,-180", "80,180", "66,12", "90,0", "90,77"], ["65,0", "-80,0"]),
        (EARTH, ["0,0", "90,0", "-90,0", "0,180", "0,-180", "12,100"], []),
    ],
)
def test_shapes(shape: str, inside: list[str], outside: list[str]) -> None:
    within, without = parse(f"at INSIDE '{shape}'"), parse(f"at NOT INSIDE '{shape}'")
    assert [within.matches({"at": place}) for place in inside] == [True] * len(inside)
    assert [within.matches({"at": place}) for place in outside] == [False] * len(outside)
    for place in (*inside, *outside):
        is_position = position_of(place) is not None
        assert without.matches({"at": place}) is (is_position and not within.matches({"at": place}))


def test_what_is_no_position_is_neither_inside_nor_outside() -> None:
    for value in ("", "a,b", "91,0", "0,181", "1;2", "1,2,3", 5, True, None, "nan,1"):
        attributes = {} if value is None else {"at": value}
        for region in ("WITHIN 9000 KM OF (0, 0)", "NOT WITHIN 1 M OF (0, 0)", f"NOT INSIDE '{SQUARE}'"):
            assert not parse(f"at {region}").matches(attributes)


def test_cells() -> None:
    h3 = pytest.importorskip("h3", reason="cells need the package h3")
    rng = random.Random(7)
    for _ in range(200):
        latitude, longitude = math.degrees(math.asin(rng.uniform(-1, 1))), rng.uniform(-180, 180)
        cell = Cell(h3.latlng_to_cell(latitude, longitude, rng.randrange(16)))
        assert cell.holds(position(latitude, longitude))
        index: FilterIndex[str] = FilterIndex()
        index.add("cell", Filter(Inside("at", cell)))
        assert index.match({"at": position_text(latitude, longitude)}) == (
            ["cell"] if cell.holds(position_of(position_text(latitude, longitude)) or position(0, 0)) else []
        )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("at WITHIN -1 M OF (0, 0)", "expected 0 to"),
        ("at WITHIN 30000 KM OF (0, 0)", "expected 0 to"),
        ("at WITHIN 1 M OF (91, 0)", "-90 to 90"),
        ("at WITHIN 1 MILES OF (1, 0)", "expected M or KM"),
        ("at INSIDE ''", "a name of 1 to"),
        ("at INSIDE '{}'", "valid are Polygon"),
        ('at INSIDE \'{"type":"Point","coordinates":[1,2]}\'', "valid are Polygon"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[0,0],[1,1],[1,0],[0,1]]]}\'', "crosses itself"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[0,0],[1,1],[2,2]]]}\'', "without an area"),
        (f'at INSIDE \'{{"type":"Polygon","coordinates":{FLAT}}}\'', "without an area"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[0,0],[1,1]]]}\'', "3 or more"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[]}\'', "valid are 3 to"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[0,0],[1,99],[1,0]]]}\'', "-90 to 90"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[-90,80],[0,80],[90,80],[180,80]]]}\'', "a pole"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[["a",0],[1,9],[1,0]]]}\'', "lists of rings"),
        ("at INSIDE '{broken'", "cannot be read"),
        ("at IN CELL 'zz'", "H3"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[["0",0],[1,9],[1,0]]]}\'', "lists of rings"),
        ('at INSIDE \'{"type":"Polygon","coordinates":[[[0],[1,9],[1,0]]]}\'', "lists of rings"),
        (
            'at INSIDE \'{"type":"Polygon","coordinates":[[[-180,80],[-90,70],[0,75],[90,70],[180,80]]]}\'',
            "a pole",
        ),
        ("at WITHIN 1 M OF (-122.4, 37.7)", r"latitude -122\.4, longitude 37\.7: .* swapped"),
        ("at INSIDE harbour", "position 4: found 'INSIDE' without a zone's name"),
        ("at IN CELL 8a39629a2d37fff", "found 'CELL' without a cell in single quotes"),
        ("at WITHIN 5 OF (1, 2)", "found '5' without M or KM"),
        ("at WITHIN 5 M (1, 2)", "found 'M' without OF"),
        ("at WITHIN 5 M OF mylock", "did you mean 'myloc'"),
        ("at WITHN 5 M OF myloc", "did you mean 'WITHIN'"),
    ],
)
def test_bad_regions_are_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse(text)


def test_texts_read_as_the_same_filter() -> None:
    for text in (
        "at WITHIN 1.5 KM OF (43.26, -2.93)", f"at NOT INSIDE '{TWO}'", "at INSIDE 'the harbour''s mouth'",
        "at WITHIN 20 KM OF myloc", "inside = 1 AND cell = 'a' AND m > 2 AND km < 3",
    ):  # fmt: skip
        filter = parse(text)
        assert parse(filter.text) is filter


def draw_region(rng: random.Random) -> Region:
    latitude, longitude = rng.uniform(40, 41), rng.uniform(179.5, 180.5)
    longitude = (longitude + 180) % 360 - 180
    if rng.random() < 0.6:
        return Disc(latitude, longitude, rng.choice((100, 9_000, 40_000)))
    reach = rng.choice((0.01, 0.2))
    corners = ((-1, -1), (-1, 1), (1, 1), (1, -1))
    return Polygon(
        [[[((longitude + x * reach + 180) % 360 - 180, latitude + y * reach) for y, x in corners]]]
    )


def test_what_covers_holds_all_and_what_does_not_overlap_holds_nothing_of_the_other() -> None:
    rng = random.Random(11)
    covering = apart = 0
    for _ in range(1500):
        one, other = draw_region(rng), draw_region(rng)
        wide = Filter(Inside("at", one, rng.random() < 0.2))
        narrow = Filter(Inside("at", other, rng.random() < 0.2))
        covers, overlaps = wide.covers(narrow), wide.overlaps(narrow)
        covering += covers
        apart += not overlaps
        for _ in range(25):
            bounds = other.bounds
            place = {
                "at": position_text(
                    rng.uniform(bounds.south, bounds.north),
                    (bounds.west + rng.uniform(0, bounds.width) + 180) % 360 - 180,
                )
            }
            if covers and narrow.matches(place):
                assert wide.matches(place), (wide, narrow, place)
            assert overlaps or not (wide.matches(place) and narrow.matches(place)), (wide, narrow, place)
    assert covering > 50
    assert apart > 50


def test_the_index_finds_what_asking_each_finds_while_filters_come_and_go() -> None:
    rng = random.Random(12)
    index: FilterIndex[int] = FilterIndex()
    filters: dict[int, Filter] = {}
    for number in range(600):
        parts = [Filter(Inside("at", draw_region(rng))).text for _ in range(rng.choice((1, 1, 1, 2)))]
        text = rng.choice((" OR ", " AND ")).join(parts)
        filters[number] = parse(rng.choice((text, f"({text}) AND cost < {rng.randrange(5)}")))
        index.add(number, filters[number])
        if rng.random() < 0.3:
            gone = rng.choice(list(filters))
            del filters[gone]
            index.remove(gone)
    found = 0
    for _ in range(300):
        longitude = (rng.uniform(179.3, 180.7) + 180) % 360 - 180
        attributes: dict[str, str | int] = {
            "at": position_text(rng.uniform(39.8, 41.2), longitude), "cost": rng.randrange(5),
        }  # fmt: skip
        wanted = [number for number, filter in filters.items() if filter.matches(attributes)]
        assert index.match(attributes) == wanted
        found += len(wanted)
    assert found > 300
    for number in filters:
        index.remove(number)
    assert index.match({"at": "40.5,180", "cost": 1}) == []


def test_positions_are_read_as_people_write_them() -> None:
    assert read_position({"lat": 43.26, "lon": -2.93}) == "43.26,-2.93"
    assert read_position({"latitude": 1, "longitude": 2, "speed": 3}) == "1,2"
    assert read_position({"type": "Point", "coordinates": [-2.93, 43.26, 12.0]}) == "43.26,-2.93"
    for wrong in ({"lat": "1", "lon": 2}, {"lat": 91, "lon": 0}, {"lat": True, "lon": 1}, {"lon": 1}, {}):
        assert read_position(wrong) is None


def test_zones_are_put_in_for_their_names() -> None:
    zones = {"harbour": Polygon([[[(0, 0), (2, 0), (2, 2), (0, 2)]]])}
    named = parse("at NOT INSIDE 'harbour' AND cost < 2")
    assert not named.matches({"at": "9,9", "cost": 1})
    filter = with_zones(named, zones)
    assert filter.matches({"at": "9,9", "cost": 1})
    assert not filter.matches({"at": "1,1", "cost": 1})
    with pytest.raises(InputError, match="did you mean 'harbour'"):
        with_zones(parse("at INSIDE 'harbor'"), zones)
    assert json.loads(filter.text.split("'")[1])["type"] == "Polygon"


@pytest.mark.parametrize("degrees", [0.0000899, -0.0000001, 0.00009, 0.0, 0.0010001, 12, -89.9999999])
def test_a_position_can_be_read_again_also_close_to_the_equator(degrees: float) -> None:
    text = position_text(degrees, -degrees)
    assert "e" not in text
    found = position_of(text)
    assert found is not None
    assert (found.latitude, found.longitude) == (degrees, -degrees)
