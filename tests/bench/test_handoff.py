"""The benchmark of handoffs: that it measures what it says, never how fast that is."""

import json
from pathlib import Path
from typing import Any

import pytest

from roamcast.bench import handoff_far
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


@pytest.mark.slow
def test_over_slow_links_a_handoff_takes_round_trips(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = "bench handoff --rtt 40 --hops 1 --queued 9 --only resume,multi_hop_handoff --rounds 2 --json"
    assert run(build_app(), [*arguments.split(), "--out", str(tmp_path)]) == 0
    cases = {case["kind"]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert cases["multi_hop_handoff"]["hops"] == 1
    assert cases["resume"]["hops"] == 0
    assert cases["multi_hop_handoff"]["connack"]["p50_ms"] >= 40
    assert cases["resume"]["first_message"]["p50_ms"] > 0
    assert (tmp_path / "handoff.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_is_asked_of_roam() -> None:
    def case(kind: str, hops: int, p50_ms: float) -> dict[str, Any]:
        times = {"p50_ms": p50_ms}
        common = {"kind": kind, "rtt_ms": 50.0, "loss": 0.0, "queued": 0, "hops": hops}
        return {**common, "connack": times, "first_message": None}

    far = [case("resume", 0, 2.0), case("multi_hop_handoff", 1, 50.0), case("multi_hop_handoff", 2, 100.0)]
    well = handoff_far.judge([*far, case("roam_hit", 1, 2.6), case("roam_miss", 2, 110.0)])
    assert [(one["ratio"], one["holds"]) for one in well] == [(1.3, True), (1.1, True)]
    badly = handoff_far.judge([*far, case("roam_hit", 1, 2.7), case("roam_miss", 1, 60.0)])
    assert [one["holds"] for one in badly] == [False, False]
    assert handoff_far.judge(far) == []
