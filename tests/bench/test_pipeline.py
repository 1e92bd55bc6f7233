"""Logs of a made-up network, and what it takes to audit them. What the audit finds: test_audit.py."""

import json
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from roamcast.bench.process_tree import run_watched
from roamcast.bench.processes import BenchFailed
from roamcast.bench.synthetic_log import write_synthetic_log
from roamcast.cli import build_app, run


def test_the_kinds_of_rows_are_those_of_a_network(tmp_path: Path) -> None:
    write_synthetic_log(tmp_path / "log", 100_000)
    kinds = pq.read_table(tmp_path / "log", columns=["kind"]).column("kind")
    counted = {row["values"]: row["counts"] / len(kinds) for row in pc.value_counts(kinds).to_pylist()}
    assert counted["published"] == pytest.approx(0.05, abs=0.01)
    assert counted["forwarded"] == pytest.approx(0.45, abs=0.02)
    assert counted["delivered"] == pytest.approx(0.40, abs=0.02)


def test_a_program_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(BenchFailed, match="out of luck"):
        run_watched(["sh", "-c", "echo out of luck >&2; exit 3"], "", 60.0)


def test_what_a_program_takes_is_measured() -> None:
    script = "echo begun >&2; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; sh -c 'echo done'"
    taken = run_watched(["sh", "-c", script], "begun", 60.0)
    assert taken.output == "done\n"
    assert taken.core_s > taken.start_core_s >= 0


@pytest.mark.parametrize("records", ["many", "1e3,", "1e2", "1e99", "nan"])
def test_what_is_no_number_of_rows_is_refused(records: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", "pipeline", "--records", records]) != 0
    assert "--records" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_benchmark_says_what_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the pipeline's extra is not installed")
    sizes = ["--records", "2e4,4e4"]
    assert run(build_app(), ["bench", "pipeline", *sizes, "--dir", str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [case["records"] // 1_000 for case in result["cases"]] == [22, 42]
    assert result["holds"]["finds_what_was_planted"]
    assert result["growth"] > 0
    for case in result["cases"]:
        assert case["spark"]["core_s"] > 0
        assert case["spark"]["steps"]["verdicts"]["shuffle_mb"] > 0
        assert case["duckdb"]["steps"].keys() == case["spark"]["steps"].keys()
        assert 0 < case["spark"]["peak_mb"] < 6_144
    assert not list(tmp_path.iterdir()), "logs and tables are removed"
