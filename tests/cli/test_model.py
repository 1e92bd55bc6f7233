"""`roamcast model`: the figures of the models, as tables and as JSON, and one line for a mistake."""

import json
import shlex
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from roamcast.cli import build_app, model, run
from roamcast.models.cost import HANDOFFS, Sends
from roamcast.models.ctmc import Forks
from roamcast.models.fit import DEGREE_PUBLISHED

BUILDING = "ctmc --topology building --movement NBR --connect 60 --disconnect 12 --handoff 3 --clients 200"


def run_json(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert run(build_app(), ["model", *shlex.split(line), "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    result: dict[str, Any] = json.loads(output.out)
    return result


def shown(capsys: pytest.CaptureFixture[str], line: str) -> list[list[str]]:
    """The rows of the tables that a command prints, cell by cell."""
    assert run(build_app(), ["model", *shlex.split(line)]) == 0
    rows = [row for row in capsys.readouterr().out.splitlines() if "│" in row or "┃" in row]
    return [[cell.strip() for cell in row.replace("┃", "│").strip("│").split("│")] for row in rows]


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text("x,y\n0,1\n1,2.1\n\n2,4.9\n 3 , 10.1\n4,17\n", encoding="utf-8-sig")
    return path


# cost


def test_cost_gives_the_bounds_of_all_cases(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "cost --connect 600 --disconnect 30 --sends 1.7")
    assert list(result["cases"]) == ["1", "2", "3", "4", "5"]
    assert result["cases"]["1"]["r1"] == pytest.approx(0.808, abs=5e-4)
    assert result["cases"]["5"]["r1"] == pytest.approx(0.191, abs=5e-4)
    for figures in result["cases"].values():
        assert figures["xi_n_to_xi_m"] == pytest.approx(0.1864, abs=5e-5)
        assert figures["cheapest"] == "proactive"
        assert sum(figures["probabilities"]["reactive"].values()) == pytest.approx(1.0)


def test_cost_shows_both_sides_of_the_erratum(capsys: pytest.CaptureFixture[str]) -> None:
    by_table = run_json(capsys, "cost --connect 60 --disconnect 30 --case 1 --case 5")["cases"]
    found = [by_table[case][key] for key in ("r2_ratio_1", "r2_ratio_0") for case in ("1", "5")]
    assert found == pytest.approx([17.18, 5.78, 21.32, 6.07], abs=5e-3)
    other = run_json(capsys, "cost --connect 60 --disconnect 30 --case 1 --case 5 --handoff-elsewhere 0.32")
    assert [other["cases"][case]["r2_ratio_0"] for case in ("1", "5")] == pytest.approx(
        [21.10, 6.02], abs=5e-3
    )


def test_cost_takes_other_probabilities(capsys: pytest.CaptureFixture[str]) -> None:
    given = run_json(capsys, "cost --roaming 0.1,0.7,0.2,0.4,0.4,0.2")["cases"]
    assert given == {"given": run_json(capsys, "cost --case 1")["cases"]["1"]}
    dearer = run_json(capsys, "cost --case 5 --sends 2")["cases"]["5"]
    assert dearer["cheapest"] == "reactive"


def test_cost_is_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = shown(capsys, "cost")
    assert header[:3] == ["case", "xi_n/xi_m", "R1"]
    assert header[-4:] == ["cost reactive", "cost pro-active", "cost durable", "cheapest"]
    assert rows[0][:3] == ["1", "0.1864", "0.8078"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]


# ctmc


def test_ctmc_gives_table_6_1(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, BUILDING)
    found = [figures["probability"] for figures in result["brokers"].values()]
    assert list(result["brokers"]) == ["b1", "b2", "b3", "b4", "b5", "b6"]
    assert found == pytest.approx([0.1099, 0.1648, 0.2198, 0.1099, 0.0549, 0.2198], abs=5e-5)
    away = result["disconnect"]["probability"] + result["handoff"]["probability"]
    assert away == pytest.approx(0.1209, abs=5e-5)
    assert result["brokers"]["b1"]["clients"] == pytest.approx(200 * found[0])
    assert result["brokers"]["b1"]["low"] < 200 * found[0] < result["brokers"]["b1"]["high"]
    assert result["states"] == 18


@pytest.mark.parametrize(
    ("movement", "clients"), [("RND:published", 29.5359), ("RND", 29.3040), ("RND --seed 5", 29.3040)]
)
def test_ctmc_has_both_readings_of_random_mobility(
    movement: str, clients: float, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, f"ctmc --movement {movement}")
    assert result["brokers"]["b1"]["clients"] == pytest.approx(clients, abs=5e-5)


def test_ctmc_takes_any_network_and_any_forks(capsys: pytest.CaptureFixture[str]) -> None:
    star = run_json(capsys, "ctmc --topology star:5 --clients 10 --connect-to-handoff 1")
    assert star["brokers"]["b00"]["clients"] == pytest.approx(4 * star["brokers"]["b01"]["clients"])
    assert star["disconnect"] == {"probability": 0.0, "clients": 0.0, "low": None, "high": None}
    even = run_json(capsys, "ctmc --topology grid:3 --disconnect-to-handoff 0.5")
    assert even["brokers"] == run_json(capsys, "ctmc --topology grid:3")["brokers"]


def test_a_random_topology_is_drawn_from_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first, again, other = (run_json(capsys, f"ctmc --topology random:9 --seed {seed}") for seed in (1, 1, 2))
    assert first == again
    assert first["brokers"] != other["brokers"]


def test_ctmc_is_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = shown(capsys, BUILDING)
    assert header == ["where", "probability", "clients", "low", "high"]
    assert rows[2][:3] == ["b3", "0.2198", "43.96"]
    assert [row[0] for row in rows[-2:]] == ["disconnect", "handoff"]
    assert rows[-1][3:] != ["-", "-"]
    assert shown(capsys, "ctmc --clients 10")[1][3:] == ["-", "-"], "too few for bounds"


# fit


def test_fit_predicts_beyond_the_points(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, f"fit --points {points} --degree 2 --at 300 --at 2")
    assert (result["points"], result["degree"], result["x_max"]) == (5, 2, 4.0)
    assert result["coefficients"] == pytest.approx([1.02, 0.0, 1.0], abs=1e-9), "1 + x^2, and a mean error"
    far, near = result["predictions"]
    assert (far["extrapolated"], near["extrapolated"]) == (True, False)
    assert far["single_low"] < far["mean_low"] < far["y"] < far["mean_high"] < far["single_high"]
    assert result["r_squared"] > 0.999


def test_points_of_flags_are_added_to_those_of_the_file(
    points: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = run_json(capsys, f"fit --points {points} --point 5,26.2 --point=-1,2 --degree best")
    alone = run_json(
        capsys,
        "fit --point 0,1 --point 1,2.1 --point 2,4.9 --point 3,10.1 --point 4,17 --point 5,26.2 --point=-1,2 "
        "--degree best",
    )
    assert both == alone
    assert both["degree"] == 2


def test_fit_is_shown_as_tables(points: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shown(capsys, f"fit --points {points} --degree 1 --at 6")
    assert ["degree", "1"] in rows
    assert [row[0] for row in rows].count("coefficient of x^1") == 1
    assert rows[-2][:3] == ["x", "y", "mean low"]
    assert rows[-1][0] == "6"
    assert rows[-1][-1] == "yes"
    assert len(shown(capsys, f"fit --points {points}")) == len(rows) - 2 + 2, "two coefficients for two rows"


# Manners.


def default_of(command: Any, name: str) -> Any:
    return signature(command).parameters[name].default.default


def test_the_defaults_are_those_of_the_models() -> None:
    proactive = HANDOFFS["proactive"]
    assert default_of(model.cost, "handoff_neighbour") == proactive.neighbour_s
    assert default_of(model.cost, "handoff_elsewhere") == proactive.elsewhere_s
    assert default_of(model.cost, "sends_fetch") == Sends(1.0).fetching
    assert default_of(model.cost, "sends_store") == Sends(1.0).storing
    assert default_of(model.fit, "degree") == str(DEGREE_PUBLISHED)
    # The help texts say so.
    assert (Forks().connect_to_handoff, Forks().disconnect_to_handoff) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("cost --connect -1", "connect time must be a number of seconds above 0, not -1.0"),
        ("cost --disconnect nan", "disconnect time must be a number of seconds above 0, not nan"),
        ("cost --sends 0", "sends for buffering must be a number of sends above 0, not 0.0"),
        ("cost --case 6", "invalid value for '--case'"),
        ("cost --case 1 --roaming 1,0,0,1,0,0", "--case and --roaming exclude each other"),
        ("cost --roaming 1,0,0", "--roaming '1,0,0': expected 6 numbers a01,a02,a03,a10,a12,a13"),
        (
            "cost --roaming 1,1,0,1,0,0",
            "--roaming 1,1,0,1,0,0: roaming probabilities 01, 02 and 03 are 1, 1, 0",
        ),
        ("ctmc --connect 0", "connect time must be a number of seconds above 0, not 0.0"),
        ("ctmc --movement nbr", "movement 'nbr': valid are RND, RND:published, NBR"),
        ("ctmc --movement RND:published --connect-to-handoff 0.3", "RND:published has its own forks"),
        ("ctmc --connect-to-handoff 2", "fork from connect to handoff must be a probability"),
        ("ctmc --connect-to-handoff 0 --disconnect-to-handoff 0", "no client ever hands off"),
        ("ctmc --topology ring:5", "topology 'ring:5': unknown kind 'ring'"),
        ("ctmc --topology line:1", "neighbouring mobility needs two brokers or more, not 1"),
        ("ctmc --clients 0", "invalid value for '--clients'"),
        ("ctmc --confidence 95", "confidence must be between 0 and 1, such as 0.95, not 95.0"),
        ("fit", "there are no points; name a CSV file with --points FILE, or give --point X,Y"),
        ("fit --points nowhere.csv", "--points nowhere.csv: cannot be read (No such file or directory)"),
        ("fit --point 1", "--point '1': expected 2 numbers X,Y"),
        ("fit --point 1,two", "--point '1,two': expected 2 numbers X,Y"),
        ("fit --point 1,1 --point 2,2", "degree 3 needs 5 points or more; there are 2"),
        ("fit --point 1,1 --degree two", "--degree 'two': valid is a number from 0 to 12, or best"),
        ("fit --point 1,1 --degree 13", "degree must be from 0 to 12, not 13"),
        ("fit --point 1,inf --degree 0 --point 1,1", "point 1 is 1, inf; both must be finite numbers"),
        ("fit --point 1,1 --point 2,1 --degree 0 --at nan", "the x of a prediction must be a number"),
        ("fit --pionts a.csv", "'roamcast model fit' has no option --pionts; did you mean '--points'?"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), ["model", *shlex.split(arguments)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("roamcast: ")
    assert output.err.count("\n") == 1
    assert line in output.err


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ": the first line is ''; expected the columns 'x,y'"),
        (b"1,2\n3,4\n", ": the first line is '1,2'; expected the columns 'x,y'"),
        (b"x,y\n", ": there are no points in this file; expected lines such as 10,86.99"),
        (b"x,y\n1,2\n3\n", " line 3: '3': expected 2 numbers x,y"),
        (b"x,y\n\n1,2,3\n", " line 3: '1,2,3': expected 2 numbers x,y"),
        (b"x,y\n1,\xff\n", ": is not a text file in UTF-8"),
    ],
)
def test_a_file_without_points_is_refused(
    content: bytes, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(content)
    assert run(build_app(), ["model", "fit", "--points", str(path)]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"{path}{line}")


def test_a_folder_has_no_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["model", "fit", "--points", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"roamcast: --points {tmp_path}: cannot be read (Is a directory)\n"


def test_the_installed_command_computes() -> None:
    command = [str(Path(sys.executable).parent / "roamcast"), "model", *shlex.split(BUILDING), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["brokers"]["b5"]["probability"] == pytest.approx(0.0549, abs=5e-5)
