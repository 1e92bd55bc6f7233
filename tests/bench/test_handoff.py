"""The benchmark of handoffs: that it measures what it says, never how fast that is."""

import json
from typing import Any

import pytest

from roamcast.bench.handoff import judge
from roamcast.cli import build_app, run


def test_resumes_and_handoffs_are_timed_and_every_message_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = "bench handoff --rounds 2 --queued 0 --queued 30 --json"
    assert run(build_app(), arguments.split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["queued"] for row in result["cases"]] == [0, 30]
    assert result["cases"][0]["handoff"]["first_message"] is None
    for kind in ("resume", "handoff"):
        case = result["cases"][1][kind]
        assert 0 < case["connack"]["p50_ms"] <= case["connack"]["p99_ms"]
        assert case["connack"]["p50_ms"] <= case["first_message"]["p50_ms"]
        assert case["first_message"]["p50_ms"] <= case["all_messages"]["p50_ms"]
    for case in result["cases"]:
        assert case["journal_sync_ms"] > 0
        assert case["round_trip_ms"] > 0
    assert "sync = group" in result["settings"]


def test_a_handoff_may_take_three_syncs_and_a_round_trip_more() -> None:
    def times(p50: float, p99: float) -> dict[str, float]:
        return {"p50_ms": p50, "p99_ms": p99}

    row: dict[str, Any] = {
        "journal_sync_ms": 2,
        "round_trip_ms": 1,
        "resume": {"connack": times(5, 9), "first_message": None},
        "handoff": {"connack": times(12, 23), "first_message": None},
    }
    judge(row)
    handed = row["handoff"]["connack"]
    assert (handed["bound_p50_ms"], handed["bound_p99_ms"]) == (12, 24)
    assert (handed["holds_p50"], handed["holds_p99"]) == (True, True)
    row["journal_sync_ms"] = 1.9
    judge(row)
    assert (handed["holds_p50"], handed["holds_p99"]) == (False, True)
