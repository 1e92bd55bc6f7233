"""Sightings to visits: the rules, and both importers on small files and on the real traces."""

import gzip
import os
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from roamcast.errors import InputError
from roamcast.models.spanning_tree import spanning_tree
from roamcast.pipeline import gps, wifi
from roamcast.pipeline.sightings import Rules, read_table, readable, visits_of, visits_of_client

pytestmark = pytest.mark.xdist_group("spark")

RULES = Rules(away_s=100.0, linger_s=20.0, ping_pong_s=30.0, handoff_s=2.0)
TRACES = Path(os.environ.get("ROAMCAST_TRACES", "traces"))


def visits(*sightings: tuple[float, str]) -> list[tuple[str, float, float]]:
    return [(one.broker, one.first_s, one.last_s) for one in visits_of_client(sightings, RULES)]


def test_a_client_changes_half_way_between_two_sightings() -> None:
    assert visits((0.0, "a"), (50.0, "a"), (92.0, "b")) == [("a", 0.0, 70.0), ("b", 72.0, 112.0)]


def test_who_is_not_seen_for_long_had_left() -> None:
    assert visits((0.0, "a"), (500.0, "a")) == [("a", 0.0, 20.0), ("a", 500.0, 520.0)]


def test_ping_pong_is_no_move() -> None:
    assert visits((0.0, "a"), (10.0, "b"), (20.0, "a"), (30.0, "b"), (40.0, "a")) == [("a", 0.0, 60.0)]
    assert len(visits((0.0, "a"), (10.0, "b"), (45.0, "a"))) == 3, "long enough to have been there"
    assert len(visits((0.0, "a"), (10.0, "b"), (20.0, "c"))) == 3, "and not back"


def test_visits_follow_one_another_however_close_sightings_are() -> None:
    found = visits((0.0, "a"), (0.5, "b"), (1.0, "c"), (1.2, "d"))
    assert all(one[1] < one[2] for one in found)
    assert all(one[2] < later[1] for one, later in pairwise(found))


def test_stale_listings_linger_and_new_ones_win() -> None:
    def chosen(*snapshots: str) -> str:
        listed = [(number, spot) for number, spots in enumerate(snapshots) for spot in spots]
        rows = [("d", number, 60.0 * number, spot) for number, spot in listed]
        return "".join(row[2] for row in wifi.choose(rows))

    assert chosen("a", "ab", "ab", "b") == "abbb"
    assert chosen("a", "ab", "a") == "aba", "back where it was"
    assert chosen("ab", "ab") == "aa", "equally new: the first by name, and then where it was"
    assert chosen("b", "b", "", "ab") == "bbb", "its listing at b was broken: both began now"
    assert chosen("b", "ab", "bc", "abc") == "baca", "a was not listed for a while: it is new again"


def test_impossible_speeds_are_dropped_until_several_points_agree() -> None:
    here, far = (30.0, -97.0), (31.0, -97.0)
    track = [(0.0, *here), (60.0, *far), (120.0, *here)]
    assert list(gps.reachable(track, 40.0)) == [0, 2]
    wrong_start = [(0.0, *far), *((60.0 * n, *here) for n in range(1, 6))]
    assert list(gps.reachable(wrong_start, 40.0)) == [0, 1, 2, 3, 4, 5]


def test_the_overlay_is_the_shortest_tree() -> None:
    from math import dist

    positions = {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (3.0, 0.0), "d": (1.0, 0.0)}
    tree = spanning_tree(positions, dist)
    assert len(tree) == 3
    assert sum(dist(positions[one], positions[other]) for one, other in tree) == 3.0
    with pytest.raises(InputError, match="valid is 2"):
        spanning_tree({"a": (0.0, 0.0)}, dist)


WIFI = """Zeit,Accesspoint,Raum,x (ungefähr),y (ungefähr),fortlaufende Gerätenummer
2013-05-05T11:00:00.000Z,ap-r1-m2-001,hall,0,0,7
2013-05-05T11:00:00.000Z,ap-r1-m5-001,hall,0,0,7
2013-05-05T11:10:00.000Z,ap-r1-m5-001,hall,0,0,7
2013-05-05T11:10:00.000Z,ap-r1-m2-002,bar,2,0,7
2013-05-05T11:20:00.000Z,ap-r1-m2-002,bar,2,0,7
2013-05-05T11:30:00.000Z,ap-r1-m2-002,bar,2,0,7
not a time,ap-r1-m2-002,bar,2,0,7
"""


def test_snapshots_in_a_zip_archive_become_visits(spark: SparkSession, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "wlan.zip", "w") as archive:
        archive.writestr("../wlan.csv", WIFI)
    with readable([tmp_path / "wlan.zip"]) as plain:
        listed = wifi.listings(read_table(spark, plain, wifi.COLUMNS), "spot").cache()
        assert wifi.snapshot_gap_s(listed) == 600.0
        rows = visits_of(wifi.sightings(listed), "r", Rules(1800, 600, 900)).collect()
        assert wifi.positions(listed) == {"ap-r1-001": (0.0, 0.0), "ap-r1-002": (2.0, 0.0)}
        listed.unpersist()
    assert [(row.client, row.broker) for row in rows] == [("d7", "ap-r1-001"), ("d7", "ap-r1-002")]
    assert rows[1].attach_s - rows[0].attach_s == pytest.approx(300.5)
    assert not (tmp_path.parent / "wlan.csv").exists(), "a name in an archive leads nowhere"


GPS = """vehicle_id,timestamp,latitude,longitude
9,2016-11-24T00:00:00-06:00,30.20,-97.77
9,2016-11-24T00:00:00-06:00,30.20,-97.77
9,2016-11-24T00:04:00-06:00,30.20,-97.77
9,2016-11-24T00:06:00-06:00,0,0
9,2016-11-24T00:07:00-06:00,45.0,-97.77
9,2016-11-24T00:08:00-06:00,30.25,-97.77
"""


def test_points_fall_to_the_nearest_site_or_to_their_cell(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "day.csv.gz").write_bytes(gzip.compress(GPS.encode()))
    (tmp_path / "sites.csv").write_text("broker,latitude,longitude\nsouth,30.19,-97.77\nnorth,30.26,-97.77\n")
    table = read_table(spark, [tmp_path / "day.csv.gz"], gps.COLUMNS)
    points = gps.possible(gps.points(table), 40.0).cache()
    assert points.count() == 3
    seen = gps.by_site(points, gps.read_sites(tmp_path / "sites.csv")).orderBy("at_s").collect()
    assert [row.broker for row in seen] == ["south", "south", "north"]
    pytest.importorskip("h3", reason="cells need the package h3")
    cells = [row.broker for row in gps.by_cell(points, 7).orderBy("at_s").collect()]
    assert cells[0] == cells[1] != cells[2]
    latitude, longitude = gps.cell_positions(cells)[cells[2]]
    assert (latitude, longitude) == pytest.approx((30.25, -97.77), abs=0.03)


@pytest.mark.parametrize("line", ["x,30,200", "x,abc,0", ",30,0", "a b,30,0"])
def test_a_site_that_is_none_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "sites.csv").write_text(f"broker,latitude,longitude\n{line}\n")
    with pytest.raises(InputError, match=r"line 2: expected broker,latitude,longitude"):
        gps.read_sites(tmp_path / "sites.csv")


def test_a_column_that_is_missing_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one,two\n1,2\n")
    with pytest.raises(InputError, match="no column 'vehicle_id' for the client; there are one, two"):
        read_table(spark, [tmp_path / "a.csv"], gps.COLUMNS)
    with pytest.raises(InputError, match="No such file"):
        read_table(spark, [tmp_path / "b.csv"], gps.COLUMNS)


@pytest.mark.slow
def test_the_shared_wifi_trace(spark: SparkSession) -> None:
    file = TRACES / "republica13_wifi" / "republica13-wlan-data.csv.zip"
    if not file.exists():
        pytest.skip(f"{file} is not there: name the folder of the traces in ROAMCAST_TRACES")
    with readable([file]) as plain:
        listed = wifi.listings(read_table(spark, plain, wifi.COLUMNS), "spot").cache()
        assert listed.select("broker").distinct().count() == 52
        chosen = wifi.sightings(listed)
        assert chosen.count() == listed.select("client", "at_s").distinct().count()
        listed.unpersist()


@pytest.mark.slow
def test_the_shared_bus_trace(spark: SparkSession) -> None:
    files = sorted((TRACES / "capmetro_austin_bus").glob("*.csv.gz"))
    if not files:
        pytest.skip(f"{TRACES} has no bus trace: name the folder of the traces in ROAMCAST_TRACES")
    points = gps.points(read_table(spark, files, gps.COLUMNS))
    kept = gps.possible(points, 40.0)
    assert 0.95 < kept.count() / points.count() <= 1
