"""Fiege's logical mobility: tables, formulas and the promise come out, and do not if something is broken."""

from __future__ import annotations

import pytest

from roamcast.lab import fiege_location as location
from roamcast.lab import fiege_traffic as traffic
from roamcast.lab.fiege_location import BlackoutJob, SeedsJob
from roamcast.lab.fiege_traffic import TrafficJob
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.routing.location.ploc import Rule
from roamcast.simulator import fuzz as drawing
from roamcast.simulator.checkers import Result, Violation

SWEEP = Sweep(1)

# --- F3 ---


def test_f3_the_tables_are_as_printed() -> None:
    (outcome,) = location.tables(True, SWEEP).outcomes
    assert (outcome.holds, outcome.note) == (True, location.F3.why)
    assert outcome.figures["rounded up, round trip (here)"] == [3, 4, 5]


def test_f3_fails_under_another_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the rounding of figure 13, table 4 would be all locations from the first broker on."""
    timed = "link B1-B2 0.12\nlink B2-B3 0.05\nlink B3-B4 0.05\nstay 0.1\nsteps published"
    found = location.table(timed, location.filters_at)
    assert found[1] == ("abcd",) * 4
    tables = {**location.PRINTED, "table 4": found}
    outcome = location.judge_f3(tables)
    assert outcome.holds is False
    assert "table 4 is" in outcome.note


# --- F4 and F5 ---


def test_f4_the_formulas_are_as_printed() -> None:
    outcome = traffic.judge_f4()
    assert outcome.holds is True
    assert outcome.figures["stays of 1 s, per second, links counted as for 10 s"] == 106_505.4
    assert "brokers (364)" in outcome.note
    assert traffic.flooding_messages(1) == 882_090
    assert traffic.formula(25, 10) == pytest.approx(35_283.6 * 25 + 363 * 2)


def test_f4_fails_if_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "PUBLISHED", Rule("one_way", "down"))
    assert traffic.judge_f4().holds is False


def test_the_surroundings_multiply_with_each_step() -> None:
    ring = traffic.Surroundings()
    assert [len(ring.reach(7, steps)) for steps in range(5)] == [1, 4, 16, 64, 100]
    for steps in range(4):
        # What can be reached in one more step contains what can be reached from there.
        wider = set(ring.reach(7, steps + 1))
        assert {one for start in ring.reach(7, steps) for one in ring.reach(start, 1)} <= wider


def rows_of_f5() -> list[Row]:
    """Small: one second, and a move in the middle of it."""
    jobs = [TrafficJob(mode, 1.0, 1.0) for mode in ("reverse path", "broadcast")]
    jobs += [TrafficJob("reverse path", 1.0, 1.0, Rule()), TrafficJob("flooding", 10.0, 0.02)]
    return [traffic.measure(job) for job in jobs]


@pytest.mark.slow  # 9 s
def test_f5_traffic_of_the_algorithm_and_of_the_formulas() -> None:
    reverse, broadcast, safe, flooding = rows_of_f5()
    due = traffic.formula(1, 1)
    assert (reverse["offered"] + reverse["control_hops"]) == pytest.approx(due, rel=0.02)
    assert reverse["notification_hops"] < safe["notification_hops"] < broadcast["notification_hops"]
    assert flooding["notification_hops"] == flooding["published"] * traffic.LINKS
    assert reverse["control_hops"] == traffic.LINKS


def f5_rows(**changes: float) -> list[Row]:
    """As measured over ten seconds."""
    base = {"duration_s": 10.0, "violations": 0, "control_hops": 363, "offered": 0, "rule": "one_way, up"}
    slow = {**base, "mode": "reverse path", "stay_s": 10.0, "notification_hops": 4_741, "offered": 352_962}
    fast = {
        **slow, "stay_s": 1.0, "notification_hops": 7_752, "control_hops": 3_630, "offered": 1_061_673,
        **changes,
    }  # fmt: skip
    others = [
        {**slow, "rule": "round_trip, up"},
        {**fast, "rule": "round_trip, up", "notification_hops": 31_080},
        {**slow, "mode": "broadcast", "notification_hops": 341_979},
        {**fast, "mode": "broadcast", "notification_hops": 349_740},
        {**base, "mode": "flooding", "stay_s": 10.0, "duration_s": 0.25, "notification_hops": 220_704},
    ]
    return [slow, fast, *others]


def test_f5_holds_for_what_was_measured_and_not_for_anything_else() -> None:
    assert traffic.judge_f5(f5_rows()).holds is True
    assert "off" in traffic.judge_f5(f5_rows(offered=1_090_000)).note
    assert traffic.judge_f5(f5_rows(notification_hops=4_000, control_hops=0)).holds is False
    assert "not below flooding" in traffic.judge_f5(f5_rows(notification_hops=9_000_000)).note
    assert "violations" in traffic.judge_f5(f5_rows(violations=1)).note
    assert traffic.judge_f5(f5_rows()[1:]).holds is None


# --- F6 ---


def walks() -> list[Row]:
    jobs = [BlackoutJob(solution, stay) for solution in ("sub/unsub", "adaptive") for stay in (1.5, 4)]
    return [location.walk(job) for job in jobs]


def test_f6_as_if_flooding_and_what_the_naive_solution_misses() -> None:
    rows = [location.try_seeds(SeedsJob(first)) for first in (location.FIRST_SEED,)]
    outcome = location.judge_f6(rows, walks())
    assert (outcome.holds, outcome.note) == (True, "")
    assert outcome.figures["silence of sub/unsub after a move, in t_d"] == [1.5, 2.02]
    assert outcome.figures["share of sub/unsub"] == [0.0, 0.5]
    assert outcome.figures["share of the algorithm"] == [1.0, 1.0]


@pytest.mark.slow  # 5 s
def test_f6_fails_at_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Result(violations_total=1, violations=[Violation("missing in epoch", "")])
    monkeypatch.setattr(drawing, "verdict", lambda story: missing)
    monkeypatch.setattr(drawing, "shrunk_failure", lambda seed, *_: drawing.Failure(seed, [], ""))
    outcome = location.judge_f6([location.try_seeds(SeedsJob(0))], walks())
    assert outcome.holds is False
    assert "violations" in outcome.note


@pytest.mark.slow  # 7 s
def test_f6_fails_if_the_algorithm_is_no_better_than_the_naive_solution() -> None:
    rows = [location.try_seeds(SeedsJob(20))]
    naive = [row for row in walks() if row["solution"] == "sub/unsub"]
    worse = [*naive, *({**row, "solution": "adaptive"} for row in naive)]
    assert location.judge_f6(rows, worse).note == "the algorithm misses notifications"


def test_f6_is_open_without_runs() -> None:
    assert location.judge_f6([], []).holds is None
