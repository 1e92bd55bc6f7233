"""A backbone of slow brokers: what is measured, and what is said of it."""

from __future__ import annotations

import pytest

from roamcast.lab.amozarrain_backbone import BackboneJob, judge, measure
from roamcast.lab.rows import Row


def rows_of(stable: list[float], backbone: list[float]) -> list[Row]:
    return [
        {"rule": rule, "brokers": 16, "seed": seed, "slow_brokers": value, "clients": value}
        for rule, values in (("stable", stable), ("backbone", backbone))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("stable", "backbone", "holds"),
    [
        ([9.0, 9.5, 10.0], [5.0, 5.1, 5.2], True),
        ([5.0, 5.1, 5.2], [9.0, 9.5, 10.0], False),
        ([5.0, 9.0, 4.0], [6.0, 5.0, 4.5], None),
    ],
)
def test_it_can_hold_and_fail(stable: list[float], backbone: list[float], holds: bool | None) -> None:
    assert judge(rows_of(stable, backbone)).holds is holds


def test_slow_and_fast_brokers_are_counted_apart() -> None:
    row = measure(BackboneJob("backbone", 8, 1, 60.0, 40.0))
    assert row["slow_brokers"] < row["fast_brokers"]
    assert row["delivered"] > 100
