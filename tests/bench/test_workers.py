"""Benchmarks of sites with workers: that they count right and notice what is wrong, never how fast it is."""

import json
from typing import Any

import pytest

from roamcast.cli import build_app, run


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, Any]:
    code = run(build_app(), ["bench", *command.split(), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow  # 12 s
def test_every_load_is_measured_with_every_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = said(capsys, "workers --workers 1,2 --seconds 0.1 --rounds 1")
    assert code == 0
    cases = [(row["case"], row["qos"], row["workers"]) for row in result["cases"]]
    alone = [(case, qos, 1) for case in ("pairs", "one in flight") for qos in (0, 1)]
    both = [(case, qos, 2) for case in ("pairs", "pairs apart", "one in flight") for qos in (0, 1)]
    assert cases == alone + both
    assert all(row["messages_per_s"] > 0 and row["times"] > 0 for row in result["cases"])


@pytest.mark.slow  # 8 s
def test_a_client_moves_between_workers(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = said(capsys, "handoff --workers --rounds 3 --queued 10 --sync process")
    assert code == 0
    assert "2 workers of one site" in result["settings"]
    assert result["cases"][0]["handoff"]["all_messages"]["p50_ms"] > 0


@pytest.mark.slow  # 40 s
def test_chaos_with_workers_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = said(capsys, "chaos --workers 2 --seconds 10 --seed 4 --clients 12 --brokers 2")
    assert code == 0, (result["troubles"], result["examples"], result["folder"])
    assert (result["lost"], result["duplicated_qos_2"], result["out_of_order"]) == (0, 0, 0)
    assert result["workers_killed"] == result["faults"]["kill worker"] > 0
    assert result["delivered"] >= result["expected"] > 20


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("workers --workers 1,x", "valid are numbers from 1 to 64"),
        ("workers --workers 0", "valid are numbers from 1 to 64"),
        ("chaos --workers 2 --replicas 1", "not with --replicas"),
    ],
)
def test_what_cannot_be_measured(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["bench", *command.split()]) == 2
    assert complaint in capsys.readouterr().err
