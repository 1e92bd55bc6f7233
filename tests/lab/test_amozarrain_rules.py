"""Two rules side by side over the radio: what is measured, and what is said of it."""

from __future__ import annotations

import pytest

from roamcast.lab.amozarrain_rules import (
    APPROACHES,
    R21,
    R22,
    R24,
    TREES,
    RuleJob,
    judge,
    measure_approach,
    measure_backbone,
)
from roamcast.lab.rows import Row

MEASURES = ("delivery_rate", "per_migration", "slow_brokers", "clients")


def rows_of(rules: tuple[str, ...], *values: list[float]) -> list[Row]:
    return [
        {"rule": rule, "brokers": 8, "seed": seed, **dict.fromkeys(MEASURES, value)}
        for rule, of_it in zip(rules, values, strict=True)
        for seed, value in enumerate(of_it)
    ]


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        ([0.8, 0.81, 0.82], [0.9, 0.91, 0.93], True),
        ([0.9, 0.91, 0.93], [0.8, 0.81, 0.82], False),
        ([0.8, 0.95, 0.7], [0.9, 0.8, 0.9], None),
    ],
)
def test_the_claims_can_hold_and_fail(first: list[float], second: list[float], more: bool | None) -> None:
    fewer = None if more is None else not more
    approaches = rows_of(APPROACHES, first, second)
    assert (judge(R21, approaches).holds, judge(R22, approaches).holds) == (more, fewer)
    assert judge(R24, rows_of(TREES, first, second)).holds is fewer


def test_slow_and_fast_brokers_are_counted_apart() -> None:
    row = measure_backbone(RuleJob("backbone", 8, 1, is_quick=True))
    assert row["slow_brokers"] < row["fast_brokers"]
    assert row["delivered"] > 100


def test_brokers_of_the_first_approach_talk_over_the_radio() -> None:
    row = measure_approach(RuleJob("recursive_migration", 4, 1, is_quick=True))
    assert row["sent_bmigoflocals"] > 0
    assert row["sent_btab"] > 0
    assert row["delivered"] > 0
