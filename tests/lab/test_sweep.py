"""Sweeps: the same rows whoever does the work, and no run lost because another one failed."""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roamcast.lab.kept import KeptRuns, commit
from roamcast.lab.measure import ScenarioJob, Window, measure
from roamcast.lab.rows import Row
from roamcast.lab.sweep import Sweep
from roamcast.records.parquet import read_log
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.run import run_checked
from roamcast.simulator.scenario import Scenario

CLOCK_KEYS = ("wall_s", "hops_per_wall_s")
"""Figures that depend on the machine and its load; all others follow from the scenario and its seed."""


@dataclass(frozen=True)
class Sum:
    number: int
    folder: str = ""

    @property
    def name(self) -> str:
        return f"sum seed={self.number}"

    @property
    def cost(self) -> float:
        return float(self.number)


def square(job: Sum) -> Row:
    return {"number": job.number, "square": job.number**2}


def square_unless_three(job: Sum) -> Row:
    if job.number == 3:
        raise ValueError("three is too many")
    return square(job)


def die_once(job: Sum) -> Row:
    """The first attempt ends the whole process, as one without memory would."""
    mark = Path(job.folder) / str(job.number)
    if not mark.exists():
        mark.touch()
        os._exit(1)
    return square(job)


def die_at_three(job: Sum) -> Row:
    if job.number == 3:
        os._exit(1)
    return square(job)


SUMS = [Sum(number) for number in (2, 5, 3, 1)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_rows_are_in_the_order_of_the_jobs(workers: int) -> None:
    assert Sweep(workers).run(square, SUMS) == [square(job) for job in SUMS]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_fails_is_named_and_the_others_go_on(workers: int) -> None:
    steps: list[tuple[int, int]] = []
    sweep = Sweep(workers, report=lambda done, total: steps.append((done, total)))
    assert [row["number"] for row in sweep.run(square_unless_three, SUMS)] == [2, 5, 1]
    assert list(map(str, sweep.failures)) == ["sum seed=3: ValueError: three is too many"]
    assert steps == [(done, 4) for done in range(1, 5)]


def test_a_run_that_fails_is_tried_twice() -> None:
    calls = []

    def fail_once(job: Sum) -> Row:
        calls.append(job.number)
        if len(calls) == 1:
            raise MemoryError
        return square(job)

    sweep = Sweep(workers=1)
    assert sweep.run(fail_once, [Sum(4)]) == [square(Sum(4))]
    assert calls == [4, 4]
    assert not sweep.failures


def test_a_process_that_dies_takes_no_run_with_it(tmp_path: Path) -> None:
    jobs = [Sum(number, str(tmp_path)) for number in range(4)]
    sweep = Sweep(workers=2)
    assert sweep.run(die_once, jobs) == [square(job) for job in jobs]
    assert not sweep.failures


def test_a_run_that_always_kills_its_process_is_named() -> None:
    sweep = Sweep(workers=2)
    assert [row["number"] for row in sweep.run(die_at_three, SUMS)] == [2, 5, 1]
    assert [failure.run for failure in sweep.failures] == ["sum seed=3"]


def test_a_job_is_done_once() -> None:
    calls = []

    def count(job: Sum) -> Row:
        calls.append(job.number)
        return square(job)

    sweep = Sweep(workers=1)
    first = sweep.run(count, SUMS)
    assert sweep.run(count, [*SUMS, Sum(7)]) == [*first, square(Sum(7))]
    # The longest first, so that no core is left with it at the end.
    assert calls == [5, 3, 2, 1, 7]


def test_what_is_local_is_not_spread() -> None:
    def elsewhere(*_: object) -> Iterator[tuple[Any, Row | Exception]]:
        raise AssertionError("there are no servers there")

    steps: list[int] = []
    rows: list[Row] = []
    sweep = Sweep(1, report=lambda done, total: steps.append(done), spread=elsewhere)
    failures = sweep.run_here(square_unless_three, SUMS, rows.append)
    assert rows == [square(Sum(n)) for n in (5, 2, 1)], "each when it is done, the longest first"
    assert [failure.run for failure in failures] == ["sum seed=3"]
    assert steps == [1, 2, 3, 4]


# --- runs of scenarios ---


def scenario(seed: int, protocol: str = "multi_hop_handoff") -> Scenario:
    return Scenario(
        topology="grid:2", clients=16, mobile=0.5, connect_s=4, disconnect_s=2, publish_every_s=2,
        selectivity=0.25, duration_s=30, network=NetworkSettings(protocol=protocol, seed=seed),
    )  # fmt: skip


def without_clock(rows: list[Row]) -> list[Row]:
    return [{k: v for k, v in row.items() if k not in (*CLOCK_KEYS, "cpu_s")} for row in rows]


def test_the_number_of_workers_changes_nothing() -> None:
    jobs = [ScenarioJob((("case", "a"),), scenario(seed), warm_up_s=5) for seed in (3, 1, 2)]
    alone, together = (Sweep(workers).run(measure, jobs) for workers in (1, 3))
    assert without_clock(alone) == without_clock(together)
    assert [row["seed"] for row in alone] == [3, 1, 2]
    assert all(row["lost"] == row["violations"] == 0 for row in alone)


def test_the_window_leaves_the_warm_up_out() -> None:
    whole, part = (measure(ScenarioJob((), scenario(1), warm_up_s)) for warm_up_s in (0.0, 15.0))
    assert 0 < part["handoffs"] < whole["handoffs"]
    assert 0 < part["transfer_hops"] < whole["transfer_hops"]
    # What is owed is checked from the beginning all the same.
    assert part["expected"] == whole["expected"]
    counted = whole["handoffs_interrupted"] + whole["handoffs_nothing_waiting"]
    assert counted < whole["handoffs"]
    # Attach, and the answer: no delay is shorter than the air twice.
    assert whole["delay_p50_s"] >= 0.04


def test_an_endless_window_counts_what_the_simulator_counts() -> None:
    one = scenario(2, "sub_unsub")
    topology, window = one.make_topology(), Window(0.0, math.inf)
    actions = one.actions(topology)
    run = run_checked(topology, one.network, actions, window.observe, trace=window.on_message)
    assert window.hops == run.traffic.hops
    assert window.handoffs == run.result.handoffs


def test_logs_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    job = ScenarioJob((("case", "a/b c"),), scenario(1))
    (row,) = Sweep(workers=1, logs=tmp_path).run(measure, [job])
    (folder,) = tmp_path.iterdir()
    assert folder.name == "case-a-b-c-seed-1"
    rows = list(read_log(folder))
    assert len(rows) == row["records"]
    assert {"forwarded", "control"} <= {one.kind for one in rows}
    assert without_clock([measure(job)])[0]["hops"] == row["hops"]


# --- runs that are kept ---


def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    jobs = [Sum(number, str(tmp_path)) for number in (1, 2, 3)]
    first = Sweep(1, kept=KeptRuns(tmp_path))
    assert [row["square"] for row in first.run(square_once, jobs[:2])] == [1, 4]
    second = Sweep(1, kept=KeptRuns(tmp_path))
    assert [row["square"] for row in second.run(square_once, jobs)] == [1, 4, 9]
    assert second.failures == [], "the first two did not run again: they would have failed"


def square_once(job: Sum) -> Row:
    with (Path(job.folder) / f"ran-{job.number}").open("x"):
        return square(job)


def test_runs_of_other_code_are_not_taken(tmp_path: Path) -> None:
    Sweep(1, kept=KeptRuns(tmp_path)).run(square, [Sum(1)])
    path = tmp_path / "runs.jsonl"
    assert len(KeptRuns(tmp_path)) == 1
    path.write_text(
        path.read_text().replace('"code": "', '"code": "other').replace('"commit": "', '"commit": "c')
    )
    assert len(KeptRuns(tmp_path)) == 0
    sweep = Sweep(1, kept=KeptRuns(tmp_path, any_code=True))
    assert sweep.run(square, [Sum(1), Sum(2)]) == [square(Sum(1)), square(Sum(2))]
    assert sweep.commits == {f"c{commit()}": 1, commit(): 1}, (
        "whoever asks for old runs is told whose they are"
    )


def test_only_what_is_kept_is_judged_if_that_is_asked_for(tmp_path: Path) -> None:
    Sweep(1, kept=KeptRuns(tmp_path)).run(square, [Sum(1)])
    sweep = Sweep(1, kept=KeptRuns(tmp_path), only_kept=True)
    assert sweep.run(square_once, [Sum(3, str(tmp_path))]) == []
    assert sweep.run(square, [Sum(1), Sum(2)]) == [square(Sum(1))]
    assert (sweep.commits.total(), sweep.absent) == (1, 2)


def test_half_a_line_and_rows_that_json_would_change_are_left_out(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path)
    kept.keep(square, Sum(1), {"square": 1})
    kept.keep(square, Sum(2), {"pair": (1, 2)})
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"run": "roamcast.la')
    again = KeptRuns(tmp_path)
    assert len(again) == 1
    assert again.find(square, Sum(1)) == ({"square": 1}, commit())
    assert again.find(square, Sum(2)) is None
    again.keep(square, Sum(3), {"square": 9})
    assert KeptRuns(tmp_path).find(square, Sum(3)) == ({"square": 9}, commit())
