"""`roamcast lab`: what it prints, what it writes, and its exit codes."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.cli.commands import Command

from roamcast.cli import build_app, run
from roamcast.lab import catalogue
from roamcast.lab.experiment import Claim, Experiment, Findings
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Job, Sweep

X1 = Claim("X1", "exact", "two and two make four", "4")
X2 = Claim("X2", "shape", "more is more", "4")
Y1 = Claim("Y1", "exact", "nothing crashes")
COMMAND = Command("lab")
run_json, refused = COMMAND.json, COMMAND.refused


class Crashing:
    name, cost = "crashing seed=9", 1.0


def crash(job: Crashing) -> Row:
    raise ValueError("out of luck")


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool | None]:
    """What the experiments of this test say, which a test may change."""
    says: dict[str, bool | None] = {"X1": True, "X2": False}

    def add(quick: bool, sweep: Sweep) -> Findings:
        figures = {"sum": 4, "parts": {"a": [1, 2.5]}}
        outcomes = [claim.outcome(says[claim.id], figures) for claim in (X1, X2)]
        return Findings(outcomes, {"sums": [{"sum": 4, "quick": quick}]}, {"f": lambda figure: None})

    def fail(quick: bool, sweep: Sweep) -> Findings:
        rows = sweep.run(crash, [Crashing()])
        return Findings([Y1.outcome(None, {"runs": len(rows)}, "no runs")])

    known = [Experiment("adding", "", (X1, X2), add), Experiment("crashing", "", (Y1,), fail)]
    monkeypatch.setattr(catalogue, "experiments", lambda: known)
    return says


def test_list_shows_every_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["lab", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for number in range(1, 8):
        assert any(f" W{number} " in line and " wang-" in line for line in lines)
    claims = run_json(capsys, "list")["claims"]
    w6 = next(claim for claim in claims if claim["claim"] == "W6")
    assert (w6["kind"], w6["experiment"]) == ("exact", "wang-pqlist")
    assert "PQ3→PQ1→PQ2" in w6["text"]


def test_check_of_a_real_claim(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "check", "w6", "--quick")
    (claim,) = result["claims"]
    assert list(claim) == ["claim", "kind", "holds", "paper", "figures", "note", "by_setting", "experiment"]
    assert (claim["claim"], claim["holds"], claim["experiment"]) == ("W6", True, "wang-pqlist")
    assert (result["holds"], result["fails"], result["open"]) == (1, 0, 0)
    assert result["wall_s"] >= 0


def test_that_a_claim_does_not_hold_is_a_finding(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, "check", "adding")
    assert [(one["claim"], one["holds"]) for one in result["claims"]] == [("X1", True), ("X2", False)]
    assert (result["holds"], result["fails"]) == (1, 1)
    assert [one["claim"] for one in run_json(capsys, "check", "X2")["claims"]] == ["X2"]


def test_that_an_exact_claim_does_not_hold_is_an_error(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts["X1"] = False
    assert run_json(capsys, "check", "X1", code=1)["fails"] == 1
    run_json(capsys, "check", "X2")
    verdicts["X1"] = None
    assert run_json(capsys, "check", "adding")["open"] == 1


def test_a_run_that_crashes_is_an_error_and_is_named(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), ["lab", "check", "--json"]) == 1
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["failed_runs"] == ["crashing seed=9: ValueError: out of luck"]
    assert [one["claim"] for one in result["claims"]] == ["X1", "X2", "Y1"]
    assert "a run failed twice: crashing seed=9" in output.err


def test_check_prints_tables(verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["lab", "check", "adding"]) == 0
    output = capsys.readouterr()
    assert "does not hold" in output.out
    assert any("parts: a" in line and "1, 2.5" in line for line in output.out.splitlines())
    assert output.err.startswith("adding ...")


def test_check_says_each_claim_when_it_is_judged_and_keeps_what_it_has(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(quick: bool, sweep: Sweep) -> Findings:
        assert capsys.readouterr().out.splitlines() == ["X1 holds", "X2 does not hold"]
        raise KeyboardInterrupt

    known = [*catalogue.experiments()[:1], Experiment("stopped", "", (Y1,), stop)]
    monkeypatch.setattr(catalogue, "experiments", lambda: known)
    assert run(build_app(), ["lab", "check"]) == 130
    output = capsys.readouterr()
    assert "not judged: Y1" in output.out
    assert "X2" in output.out
    monkeypatch.setattr(catalogue, "experiments", lambda: [*known[:1], replace(known[1], run=interrupt)])
    assert run(build_app(), ["lab", "check", "--json"]) == 130
    result = json.loads(capsys.readouterr().out)
    assert ([one["claim"] for one in result["claims"]], result["not_judged"]) == (["X1", "X2"], ["Y1"])


def interrupt(quick: bool, sweep: Sweep) -> Findings:
    raise KeyboardInterrupt


def test_report_is_one_page_with_every_claim(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(build_app(), ["lab", "report", "adding", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "claims.md").read_text()
    assert "2 claims: 1 hold, 1 do not, 0 are open" in page
    assert "| [X2](#x2) | shape | does not hold | full | 4 |" in page
    assert "Experiment `adding`: full setting, computed when the page was made." in page
    assert "![f](claims/adding-f.png)" in page
    assert (tmp_path / "claims" / "adding-f.png").stat().st_size > 0
    assert (tmp_path / "claims" / "adding-sums.csv").read_text() == "sum,quick\n4,False\n"


def test_report_judges_the_largest_setting_of_which_all_runs_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def count(quick: bool, sweep: Sweep) -> Findings:
        rows = sweep.run(once, [Once(seed) for seed in range(1, 2 if quick else 5)])
        return Findings([X1.outcome(True, {"runs": len(rows)})])

    monkeypatch.setattr(catalogue, "experiments", lambda: [Experiment("counting", "to count", (X1,), count)])
    arguments = ["lab", "report", "--runs", str(tmp_path / "runs"), "--kept-only", "--out", str(tmp_path)]
    assert run(build_app(), arguments) == 0
    assert "Experiment `counting`: not run." in (tmp_path / "claims.md").read_text()
    for repetitions, said in (
        (1, "full setting, once, 1 runs"),
        (3, "full setting, 3 of its repetitions, 3 runs"),
    ):
        runs = ["--repetitions", str(repetitions), "--runs", str(tmp_path / "runs"), "--workers", "1"]
        assert run(build_app(), ["lab", "check", *runs]) == 0
        assert run(build_app(), arguments) == 0
        assert f"Experiment `counting`: {said} made by commit " in (tmp_path / "claims.md").read_text()


@dataclass(frozen=True)
class Once(Job):
    seed: int


def once(job: Once) -> Row:
    return {"seed": job.seed}


def test_run_writes_everything(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "new"
    result = run_json(capsys, "run", "X2", "--quick", "--out", str(out))
    names = sorted(str(file.relative_to(out)) for file in out.rglob("*.*"))
    assert names == ["figures/f.png", "figures/f.svg", "metrics/sums.csv", "metrics/sums.parquet",
                     "outcomes.json"]  # fmt: skip
    written = json.loads((out / "outcomes.json").read_text())
    assert written["claims"] == result["claims"]
    assert (written["quick"], written["failed_runs"]) == (True, [])
    assert (out / "metrics/sums.csv").read_text() == "sum,quick\n4,True\n"


def test_bad_input_is_refused_before_any_work(
    verdicts: dict[str, bool | None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = refused(capsys, "check", "X1", "Z9")
    assert line == "there is no claim or experiment 'Z9'; `roamcast lab list` shows all"
    assert refused(capsys, "run", "Z9", "--out", str(tmp_path / "never")).startswith("there is no claim")
    assert not (tmp_path / "never").exists()
    assert "missing option '--out'" in refused(capsys, "run", "X1")
    (tmp_path / "outcomes.json").touch()
    assert "exists already; name a new folder" in refused(capsys, "run", "X1", "--out", str(tmp_path))
    assert "invalid value for '--workers'" in refused(capsys, "check", "--workers", "0")
