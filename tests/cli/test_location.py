"""`roamcast location`: graphs that are written can be read, and what is wrong is said in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from roamcast.cli import build_app, run
from roamcast.routing.location.movement_graph import grid, parse_movement_graph


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(build_app(), ["location", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(build_app(), ["location", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("roamcast: ")


def test_a_generated_graph_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    read = parse_movement_graph(output(capsys, "graph", "grid:4x3"))
    made = grid(4, 3)
    assert {one: read.neighbours(one) for one in read.locations} == {
        one: made.neighbours(one) for one in made.locations
    }


def test_cells_around_positions(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h3", reason="the package h3 is not installed")
    text = output(capsys, "graph", "h3", "--at", "43.263,-2.935", "--resolution", "8", "--rings", "2")
    assert len(parse_movement_graph(text)) == 19


def test_a_graph_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "streets.txt"
    file.write_text("a b\nb c\nattic\n")
    shown = json.loads(output(capsys, "show", str(file), "--json"))
    assert (shown["locations"], shown["steps"], shown["without_any_step"]) == (4, 4, ["attic"])
    assert shown["reached"]["1"] == pytest.approx((2 + 3 + 2 + 1) / 4)
    assert "attic" in output(capsys, "show", str(file))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["graph", "tree:3"], "movement graph 'tree:3': valid are grid:WIDTHxHEIGHT and rooms:FLOORSxROOMS"),
        (["graph", "h3"], "h3 needs positions: --at LATITUDE,LONGITUDE, once for each"),
        (["graph", "grid:2x2", "--at", "1,2"], "--at belongs to h3"),
        (["graph", "h3", "--at", "north"], "--at 'north': valid is LATITUDE,LONGITUDE in degrees"),
        (["show", "/nowhere/a.txt"], "/nowhere/a.txt: cannot be read (No such file or directory)"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert refused(capsys, *arguments).startswith(message)


def test_files_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("a b c d\n")
    assert refused(capsys, "show", str(bad)) == f"{bad}, line 1: valid is `A B`, `A -> B` or one name"
    bad.write_bytes(b"\xff\xfe\x00")
    assert refused(capsys, "show", str(bad)) == f"{bad}: is not a text file in UTF-8"
