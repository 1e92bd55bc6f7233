"""`roamcast demo`: its table, its folder, and what it does with a folder that is there already."""

import json
import re
import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from roamcast.cli import build_app, run
from roamcast.cli.demo import demo
from roamcast.lab.demo import DemoSettings, demo_protocols, scenes_of
from roamcast.mobility import find_protocol
from roamcast.mobility.base import Promise
from roamcast.protocol.records import Row
from roamcast.records.parquet import read_log

SMALL = ["demo", "--clients", "20", "--duration", "20", "--no-brokers", "--no-audit"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(build_app(), [*SMALL, *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line.removeprefix("roamcast: ")


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_defaults_are_those_of_the_settings() -> None:
    default, given = DemoSettings(), signature(demo).parameters
    names = {"clients": "clients", "duration": "duration_s", "seed": "seed"}
    for option, field in names.items():
        assert given[option].default.default == getattr(default, field)


def test_a_person_sees_a_table_and_where_everything_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    Path("demo").mkdir()  # An empty folder is taken.
    assert run(build_app(), SMALL) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    lost_and_such = {row[0]: row[4:7] for row in cells}
    assert list(lost_and_such) == demo_protocols()
    assert int(lost_and_such["none"][0]) > 0, "without support something is lost"
    assert lost_and_such["sub_unsub"] == ["0", "0", "0"]
    assert lines[-4:-1] == [
        "Logs, figures and pictures are in demo",
        "Report: demo/report.html",
        "Watch it again in the browser: roamcast view demo/log",
    ]
    assert lines[-1] == f'To call it by its name: export PATH="{Path(sys.executable).parent}:$PATH"'
    (lost,) = re.findall(r"^  none: (\d+) of 60 notifications lost$", output.out, re.MULTILINE)
    assert int(lost) >= 20, "everything that was published in ten seconds, twice a second"
    assert "  sub_unsub: 0 of 60 notifications lost" in lines
    for scene in scenes_of(DemoSettings(brokers=False)):
        assert f"{scene.title} ...\n" in output.err


def test_the_folder_holds_logs_figures_and_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), [*SMALL, "--out", "here/demo", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert result.pop("folder") == "here/demo"
    assert result.pop("report") == "here/demo/report.html"
    folder = Path("here/demo")
    assert json.loads((folder / "summary.json").read_text()) == result
    assert everything_in(folder) == [
        ".roamcast-demo",
        "departure_arrival.png",
        "departure_arrival.svg",
        *(f"log/{name}/part-00000.parquet" for name in sorted(demo_protocols())),
        "report.html",
        "summary.json",
    ]
    for name, figures in result["protocols"].items():
        rows = list(read_log(folder / "log" / name))
        assert len(rows) == figures["records"]
        assert sum(row.kind == "published" for row in rows) == figures["published"] > 0
        assert figures["violations"] == []
    moves = {(figures["published"], figures["expected"]) for figures in result["protocols"].values()}
    assert len(moves) == 1, "every protocol has the same work to do"
    assert result["departure_arrival"]["none"]["violations"] == []
    assert result["departure_arrival"]["none"]["away_s"] == 10


def test_a_former_demo_is_replaced_and_what_a_user_added_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(build_app(), SMALL) == 0
    first = Path("demo/summary.json").read_text()
    before = everything_in(Path("demo"))
    Path("demo/notes.txt").write_text("mine")
    capsys.readouterr()
    for option, value in (("--clients", "0"), ("--duration", "nan")):
        assert "valid is" in refused(capsys, option, value)
    assert everything_in(Path("demo")) == sorted([*before, "notes.txt"]), "what cannot be replaces nothing"
    Path("demo/log/none/part-00001.parquet").write_text("a larger demo left this")
    monkeypatch.setattr("roamcast.cli.spark.is_installed", lambda library="pyspark": False)
    assert run(build_app(), [*SMALL, "--seed", "8", "--audit"]) == 0
    assert everything_in(Path("demo")) == sorted([*before, "notes.txt"])
    assert Path("demo/notes.txt").read_text() == "mine"
    assert Path("demo/summary.json").read_text() != first
    lines = capsys.readouterr().out.splitlines()
    left_out = "The audit is skipped: DuckDB is not installed; it comes with: pip install 'roamcast[audit]'"
    assert left_out in lines
    assert "Report: demo/report.html" in lines


def numbers_in(rows: list[Row], kind: str) -> set[int]:
    """What the rows of a kind stand for; those without a number promised nothing."""
    known = [(row.number or 0, row.notifications or 1) for row in rows if row.kind == kind and row.number]
    return {number + index for number, count in known for index in range(count)}


def test_a_car_roams_between_real_brokers_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), [one for one in SMALL if one != "--no-brokers"]) == 0
    output = capsys.readouterr()
    told = r"(\d+) notifications with QoS 2: (\d+) delivered, 0 lost, 0 duplicates, 0 out of order"
    (found,) = re.findall(told, output.out)
    assert found[0] == found[1]
    assert int(found[0]) > 100
    assert Path("demo/roaming_brokers.png").stat().st_size > 10_000
    rows = [row for name in (".", "car") for row in read_log(Path("demo/log/brokers") / name)]
    published = numbers_in(rows, "published")
    assert len(published) == int(found[0])
    assert published == numbers_in(rows, "delivered"), "by the word of brokers and car, each in its own log"


def test_a_folder_with_something_else_in_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("work").mkdir()
    Path("work/summary.json").write_text("mine")
    line = "--out work: is not empty and not the folder of an earlier demo; name a new folder"
    assert refused(capsys, "--out", "work") == line
    assert everything_in(Path("work")) == ["summary.json"]
    assert Path("work/summary.json").read_text() == "mine"


def test_a_file_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.txt").write_text("mine")
    assert refused(capsys, "--out", "notes.txt") == "--out notes.txt: notes.txt is a file; name a folder"
    assert refused(capsys, "--out", "notes.txt/a") == "--out notes.txt/a: notes.txt is a file; name a folder"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where not even root may write")
def test_a_folder_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "--out", "/proc/demo").startswith("--out /proc/demo: cannot be written to (")


def test_a_broken_promise_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever loses and has promised not to is found out, in every scene.
    monkeypatch.setattr(find_protocol("none"), "promise", Promise())
    assert run(build_app(), SMALL) == 1
    shown = capsys.readouterr().out
    assert "violation: none: lost: subscriber never got publisher/" in shown


@pytest.mark.slow
def test_the_whole_demo_takes_under_two_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert run(build_app(), ["demo", "--json"]) == 0
    assert time.monotonic() - started < 120
    result = json.loads(capsys.readouterr().out)
    if "left_out" not in result["audit"]:
        audited = result["audit"]["protocols"]
        assert audited["brokers"]["lost"] == 0
        assert audited["brokers"]["expected"] == result["brokers"]["multi_hop_handoff"]["published"]
        for name, figures in result["protocols"].items():
            assert audited[name]["lost"] == figures["lost"], name
            assert audited[name]["expected"] == figures["expected"], name
    assert result["protocols"]["none"]["handoffs"] > 50
    assert result["protocols"]["none"]["lost"] > 100
    assert result["protocols"]["sub_unsub"]["lost"] == 0
