"""The first approach over the radio, and what is said of it."""

from __future__ import annotations

import pytest

from roamcast.lab.amozarrain_first_approach import FIRST, R21, R22, SECOND, ApproachJob, judge, measure
from roamcast.lab.rows import Row


def rows_of(first: list[float], second: list[float]) -> list[Row]:
    return [
        {"rules": rules, "brokers": 8, "seed": seed, "delivery_rate": value, "per_migration": value}
        for rules, values in ((FIRST, first), (SECOND, second))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        ([0.8, 0.81, 0.82], [0.9, 0.91, 0.93], True),
        ([0.9, 0.91, 0.93], [0.8, 0.81, 0.82], False),
        ([0.8, 0.95, 0.7], [0.9, 0.8, 0.9], None),
    ],
)
def test_both_claims_can_hold_and_fail(first: list[float], second: list[float], more: bool | None) -> None:
    rows = rows_of(first, second)
    assert judge(R21, rows, "delivery_rate", +1).holds is more
    assert judge(R22, rows, "per_migration", -1).holds is (None if more is None else not more)


def test_its_brokers_talk_over_the_radio() -> None:
    row = measure(ApproachJob(FIRST, 4, 1, 40.0, 30.0))
    assert row["sent_bmigoflocals"] > 0
    assert row["sent_btab"] > 0
    assert row["delivered"] > 0
