"""Ingesting: what is kept, what is put aside, and that coming late or twice does no harm."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import WriteLog
from tests.pipeline.log_maker import Tampered

from roamcast.pipeline.ingest import QUARANTINE, RECORDS, TAKEN, ingest
from roamcast.pipeline.spark_engine import read_log
from roamcast.protocol.records import COLUMNS, KINDS, NEEDED, Row
from roamcast.records.parquet import LogWriter
from roamcast.simulator.fuzz import draw_story

pytestmark = pytest.mark.xdist_group("spark")


def write(folder: Path, rows: list[Row], run: str = "r") -> None:
    with LogWriter(folder, run) as log:
        log.write(rows)


def contents(folder: Path) -> list[dict[str, Any]]:
    """All rows below a folder, in an order of their own."""
    rows = [row for file in folder.rglob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def test_every_kind_has_its_needs() -> None:
    assert set(NEEDED) == set(KINDS)
    assert {field for fields in NEEDED.values() for field in fields} < set(COLUMNS)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"kind": None}, "no kind"),
    ({"node": None}, "no node"),
    ({"time": float("nan")}, "time is no number"),
    ({"time": float("-inf")}, "time is no number"),
    ({"kind": "exploded"}, "unknown kind exploded"),
    ({"client": None}, "delivered without client"),
    ({"number": -1}, "number not within 0 to 2^40"),
    ({"notifications": 0}, "notifications not within 1 to 1000000"),
    ({"notifications": 2**31 - 1}, "notifications not within 1 to 1000000"),
    ({"kind": "subscribed", "filter": "x = 1", "reason": "maybe"}, "subscribed neither issued nor settled"),
    (
        {"kind": "unsubscribed", "filter": "x <", "reason": "issued"},
        "filter cannot be read: selector, position 4: the selector ends here, expected "
        "a number or a string in single quotes or FALSE or TRUE",
    ),
    ({"kind": "published", "attributes": b"\\xc1"}, "attributes cannot be read"),
]


def test_all_that_a_run_writes_is_kept_and_bad_rows_are_put_aside(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever the runtime writes has the fields that the contract asks for."""
    rows: list[Row] = []
    draw_story("proactive", 3).run(rows.extend)
    write(tmp_path / "log" / "run", rows, "proactive-3")
    good = Row(0, 1.0, "c", "delivered", client="c", broker="b", publisher="p", incarnation=1, number=1,
               notifications=1)  # fmt: skip
    bad = [good._replace(sequence=number, **fields) for number, (fields, _) in enumerate(BAD, start=1)]
    write(tmp_path / "log" / "tampered", [good, *bad, good._replace(number=2)])
    figures = ingest(spark, tmp_path / "log", tmp_path / "out")
    reasons = figures["reasons"]
    assert figures == {
        "runs": 2, "rows_read": len(rows) + len(BAD) + 2, "rows_kept": len(rows) + 1,
        "quarantined": len(BAD) + 1, "reasons": reasons,
    }  # fmt: skip
    assert sum(reasons.values()) == len(BAD) + 1
    assert json.loads((tmp_path / "out" / "ingest.json").read_text()) == figures
    kept = read_log(spark, tmp_path / "out" / RECORDS)
    assert kept.columns == list(COLUMNS)
    of_run = {tuple(row) for row in kept.where("run = 'proactive-3'").collect()}
    assert of_run == {("proactive-3", *row) for row in rows}
    aside = {row["sequence"]: row["problem"] for row in contents(tmp_path / "out" / QUARANTINE)}
    assert aside[0] == TAKEN
    for number, (_, reason) in enumerate(BAD, start=1):
        assert aside[number].startswith(reason.split(", expected")[0]), number


@pytest.mark.slow
def test_late_and_repeated_files_do_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    rows, out = Tampered().rows, tmp_path / "out"
    half = len(rows) // 2
    write(tmp_path / "early", rows[:half], "a run/with: odd=signs")
    write(tmp_path / "early" / "other", rows[:5], "7")
    write(tmp_path / "late", rows[half:], "a run/with: odd=signs")
    ingest(spark, tmp_path / "early", out)
    figures = ingest(spark, tmp_path / "late", out)
    assert figures["rows_read"] == len(rows) - half
    assert len(rows) - half <= figures["rows_kept"] <= len(rows) + 5, "of the folders that they belong into"
    once = contents(out / RECORDS)
    assert len(once) == len(rows) + 5
    shutil.copytree(tmp_path / "early", tmp_path / "all" / "1")
    shutil.copytree(tmp_path / "early", tmp_path / "all" / "2")
    shutil.copytree(tmp_path / "late", tmp_path / "all" / "3")
    again = ingest(spark, tmp_path / "all", out)
    assert again["rows_kept"] == len(rows) + 5
    assert contents(out / RECORDS) == once
    assert again["quarantined"] == 0
    assert {path.name for path in out.iterdir()} == {RECORDS, QUARANTINE, "ingest.json"}


@pytest.mark.slow
def test_which_of_two_rows_is_kept_does_not_depend_on_which_came_first(
    spark: SparkSession, tmp_path: Path, write_log: WriteLog
) -> None:
    one = Row(1, 1.0, "b", "link_up", peer="x")
    other = one._replace(peer="y")
    ingest(spark, write_log([one, one], folder="first"), tmp_path / "out")
    figures = ingest(spark, write_log([other, other], folder="second"), tmp_path / "out")
    assert (figures["rows_kept"], figures["reasons"]) == (1, {TAKEN: 1})
    back = ingest(spark, write_log([other], folder="third"), tmp_path / "back")
    back = ingest(spark, write_log([one], folder="fourth"), tmp_path / "back")
    assert back["reasons"] == {TAKEN: 1}
    assert contents(tmp_path / "back") == contents(tmp_path / "out"), "whichever came first"
