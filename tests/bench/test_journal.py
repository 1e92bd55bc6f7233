"""The benchmark of the journal: that it measures what it says, never how fast that is."""

import json
from pathlib import Path

import pytest

from roamcast.bench import journal as benchmark
from roamcast.cli import build_app, run


def test_every_case_is_there_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(build_app(), ["bench", "journal", "--dir", str(tmp_path), "--seconds", "0.1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result["cases"]) == [
        "process, 100 bytes", "process, 65536 bytes", "group, 100 bytes", "group, 65536 bytes",
    ]  # fmt: skip
    for case in result["cases"].values():
        assert case["commits"] > 0
        assert case["commits_per_s"] == pytest.approx(case["commits"] / 0.1, rel=0.9)
        assert (case["sync_mean_ms"] is None) == (case["sync"] == "process")
        assert case["commit_p50_ms"] <= case["commit_p99_ms"]
    assert list(tmp_path.iterdir()) == []


def test_snapshots_are_written_meanwhile(tmp_path: Path) -> None:
    case = benchmark.measure(tmp_path, "process", 1 << 20, 2.0, b"state")
    assert case["snapshots"] > 0
    assert case["fork_max_ms"] > 0


def test_a_folder_that_is_not_there_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", "journal", "--dir", "/nowhere"]) == 2
    assert capsys.readouterr().err == "roamcast: --dir /nowhere: there is no such folder\n"
