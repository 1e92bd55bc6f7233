"""Figure 2 of Fiege et al.: what a client that moves without support misses and gets twice."""

from __future__ import annotations

import pytest

from roamcast.lab.fiege_fig2 import NAIVE, SUPPORTED, MoveJob, judge, move
from roamcast.lab.rows import Row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    times = (9.95, 10.12, 10.2, 10.4)
    jobs = [MoveJob(how, near, at) for how in (NAIVE, SUPPORTED) for near in ("B1", "B2") for at in times]
    return [move(job) for job in jobs]


def test_the_nearer_broker_decides(rows: list[Row]) -> None:
    got = {(row["how"], row["nearer"], row["moves_s"]): row["got"] for row in rows}
    assert [got[NAIVE, "B1", at] for at in (9.95, 10.12, 10.2, 10.4)] == [1, 2, 2, 1]
    assert [got[NAIVE, "B2", at] for at in (9.95, 10.12, 10.2, 10.4)] == [1, 0, 0, 1]
    assert {row["got"] for row in rows if row["how"] == SUPPORTED} == {1}
    assert judge(rows).holds


@pytest.mark.parametrize("changed", range(16))
def test_any_other_count_is_found(rows: list[Row], changed: int) -> None:
    wrong = [{**row, "got": row["got"] + (place == changed)} for place, row in enumerate(rows)]
    assert judge(wrong).holds is False
