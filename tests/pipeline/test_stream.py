"""Minutes of a growing log: closed by the watermark, corrected by what comes late, the same after a kill."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.pipeline.conftest import WriteLog
from tests.pipeline.waiting import wait_until

from roamcast.cli.pipeline_stream import stream as command
from roamcast.errors import InputError
from roamcast.pipeline.minutes import NAMES
from roamcast.pipeline.places import ArrowFiles
from roamcast.pipeline.stream import Progress, StreamSettings, check_log, check_settings, start_stream
from roamcast.protocol.records import HELD, Row
from roamcast.simulator.story import parse_story

pytestmark = pytest.mark.xdist_group("spark")

ROAMCAST = [sys.executable, "-c", "import sys; from roamcast.cli import main; sys.exit(main())"]
STORY = """
brokers a-b b-c
protocol sub_unsub
at 0.0 car attach a
at 0.0 garage attach b
at 0.5 car subscribe service = 'parking' AND cost < 3
at 10.0 garage publish {"service": "parking", "cost": 1}
at 11.0 garage publish {"service": "parking", "cost": 9}
at 50.0 car leave
at 70.0 garage publish 3 {"service": "parking", "cost": 2}
at 75.0 garage publish {"service": "parking", "cost": 1}
at 125.0 garage publish {"service": "parking", "cost": 7}
at 190.0 car attach c
at 200.0 garage publish {"service": "parking", "cost": 1}
at 400.0 garage publish {"service": "parking", "cost": 5}
"""
"""What is published while the car is away, in the second minute, reaches it in the fourth."""


@cache
def rows_of_story() -> tuple[Row, ...]:
    rows: list[Row] = []
    parse_story(STORY).run(rows.extend)
    return tuple(rows)


def between(begin_s: float, end_s: float) -> list[Row]:
    return [row for row in rows_of_story() if begin_s <= row.time < end_s]


def follow(
    spark: SparkSession, log: Path, out: Path, late_s: float = 0.0, forget_s: float = 86_400.0
) -> list[Progress]:
    """Read what is there now; how far each batch came."""
    settings = StreamSettings(late_s=late_s, forget_s=forget_s)
    out.mkdir(exist_ok=True)
    check_log(log)
    reports: list[Progress] = []
    start_stream(spark, log, out, settings, reports.append, once=True).awaitTermination()
    return reports


def minutes_in(out: Path) -> dict[int, dict[str, Any]]:
    rows = pq.read_table(out / "minutes.parquet").to_pylist()
    return {row["minute"].minute: row for row in rows}


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("expected", "delivered", "lost", "duplicates", "unexpected"))


@pytest.mark.slow
def test_a_log_by_the_minute(spark: SparkSession, write_log: WriteLog, tmp_path: Path) -> None:
    # The car had subscribed before its broker kept a log.
    rows = [row for row in rows_of_story() if row.reason != "issued"]
    rows = [row._replace(reason=HELD) if row.reason == "settled" else row for row in rows]
    log, out = write_log(rows), tmp_path / "out"
    (report,) = follow(spark, log, out, late_s=30.0)
    assert (report.batch, report.rows, report.closed_until_s) == (0, len(rows), 360)
    found = minutes_in(out)
    assert {minute: counts(row) for minute, row in found.items()} == {
        0: (1, 1, 0, 0, 0),
        1: (4, 4, 0, 0, 0),
        3: (1, 1, 0, 0, 0),
    }
    assert (found[3]["handoff_delay_count"], found[3]["transfer_count"]) == (1, 1)


@pytest.mark.slow
def test_minutes_are_closed_and_corrected(spark: SparkSession, write_log: WriteLog, tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = write_log(between(0.0, 130.0), folder="log/first")
    (report,) = follow(spark, log.parent, out)
    assert report.closed_until_s == 120
    found = minutes_in(out)
    assert counts(found[0]) == (1, 1, 0, 0, 0)
    assert counts(found[1]) == (4, 0, 4, 0, 0), "the car is away, and owed four"
    # The car is back; one delivery is written a second time, as if it had come twice.
    rest = between(130.0, 500.0)
    delivered = [row for row in rest if row.kind == "delivered"]
    last = max(row.sequence for row in rows_of_story() if row.node == "car")
    again = delivered[-1]._replace(sequence=last + 1)
    strange = again._replace(sequence=last + 2, number=99)
    write_log([*rest, again, strange, *between(0.0, 20.0)], folder="log/second")
    (report,) = follow(spark, log.parent, out)
    assert report.closed_until_s == 360
    found = minutes_in(out)
    assert counts(found[0]) == (1, 1, 0, 0, 0), "rows that come again change nothing"
    assert counts(found[1]) == (4, 4, 0, 0, 0), "nothing was lost after all"
    assert counts(found[3]) == (1, 3, 0, 1, 1)
    assert found[3]["handoff_delay_count"] == 1
    assert 0 < found[3]["handoff_delay_mean_s"] < 10
    assert found[3]["transfer_count"] == 1
    figures = json.loads((out / "stream.json").read_text())
    assert (figures["lost"], figures["duplicates"], figures["batches"]) == (0, 1, 2)
    assert len(list((out / "state").iterdir())) == 2, "older states go"


def day(hours: int) -> str:
    """Every hour the car subscribes, moves while the garage publishes, and unsubscribes."""
    lines = ["brokers a-b b-c", "protocol sub_unsub", "at 0 car attach a", "at 0 garage attach b"]
    for hour in range(hours):
        at_s, there = 3_600 * hour + 10, "ca"[hour % 2]
        lines.append(f"at {at_s} car subscribe cost < 3")
        lines += [f'at {at_s + 60 * minute} garage publish {{"cost": 1}}' for minute in range(1, 10)]
        lines += [f"at {at_s + 700} car leave", f"at {at_s + 760} car attach {there}"]
        lines.append(f"at {at_s + 1_000} car unsubscribe cost < 3")
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_the_state_of_a_day_is_that_of_an_hour(
    spark: SparkSession, write_log: WriteLog, tmp_path: Path
) -> None:
    """What can be corrected no more is kept as minutes that are shown, and as nothing else."""
    rows: list[Row] = []
    parse_story(day(24)).run(rows.extend)
    out, sizes = tmp_path / "out", []
    for piece in range(6):
        begin_s = piece * 4 * 3_600
        part = [row for row in rows if begin_s <= row.time < begin_s + 4 * 3_600]
        log = write_log(part, folder=f"log/{piece}")
        (report,) = follow(spark, log.parent, out, forget_s=3_600.0)
        state = out / "state" / str(report.batch)
        sizes.append({name: pq.read_table(state / name).num_rows for name in NAMES if name != "frozen"})
    # The first few hours have what comes before all others: attaching for the first time.
    assert sizes[1] == sizes[2] == sizes[-1], sizes
    found = pq.read_table(out / "minutes.parquet").to_pylist()
    assert sum(row["expected"] for row in found) == sum(row["delivered"] for row in found) == 9 * 24


def test_what_cannot_be_followed_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        check_log(tmp_path / "nowhere")
    check_settings(tmp_path, tmp_path, StreamSettings(late_s=5), ArrowFiles())
    check_settings(tmp_path, tmp_path, StreamSettings(late_s=5, every_s=1), ArrowFiles())
    with pytest.raises(InputError, match=r"was begun with late_s 5, now 6"):
        check_settings(tmp_path, tmp_path, StreamSettings(late_s=6), ArrowFiles())


def test_the_command_has_the_defaults_of_the_settings() -> None:
    options = {name: one.default for name, one in inspect.signature(command).parameters.items()}
    assert asdict(StreamSettings()) == {
        f"{name}_s": options[name] for name in ("late", "forget", "clock_error", "every")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_a_stream_that_is_killed_ends_in_the_same_minutes(write_log: WriteLog, tmp_path: Path) -> None:
    log, out, whole = tmp_path / "log", tmp_path / "out", tmp_path / "whole"
    asked = [*ROAMCAST, "pipeline", "stream", "--log", str(log), "--late", "0", "--master", "local[2]"]
    pieces = [(0.0, 130.0), (130.0, 500.0)]

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "said").open("ab") as said:
            live = [*asked, "--out", str(out), "--every", "0.1"]
            return subprocess.Popen(live, stdout=said, stderr=said, start_new_session=True)

    def batches() -> int:
        file = out / "stream.json"
        return int(json.loads(file.read_text())["batches"]) if file.exists() else 0

    log.mkdir()
    process = start()
    try:
        for number, piece in enumerate(pieces):
            seen = batches()
            write_log(between(*piece), folder=f"log/{number}")
            if number:
                # In the middle of a batch, mostly: its state may be there, half there or not.
                wait_until(
                    lambda seen=seen: (out / "state" / str(seen)).exists(),  # type: ignore[misc]
                    lambda: (tmp_path / "said").read_text()[-2000:],
                )
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process = start()
            wait_until(
                lambda seen=seen: batches() > seen,  # type: ignore[misc]
                lambda: (tmp_path / "said").read_text()[-2000:],
            )
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, (tmp_path / "said").read_text()[-2000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    done = subprocess.run([*asked, "--out", str(whole), "--once", "--json"], capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] == len(rows_of_story())
    assert minutes_in(out) == minutes_in(whole)
    assert counts(minutes_in(out)[1]) == (4, 4, 0, 0, 0)
