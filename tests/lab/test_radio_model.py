import numpy as np
import pytest

from roamcast.lab.radio_model import (
    MODELS,
    CoverageJob,
    ReceptionJob,
    edges_m,
    judge_r1,
    judge_r2,
    measure_coverage,
    measure_reception,
    reception_curve,
)
from roamcast.lab.rows import Row


@pytest.fixture(scope="module")
def curve() -> list[Row]:
    return reception_curve([measure_reception(ReceptionJob(seed, 6)) for seed in (1, 2, 3)])


def test_reception_falls_over_distance_as_the_formulas_say(curve: list[Row]) -> None:
    received = np.array([row["received"] for row in curve])
    assert received[0] > 0.99
    assert received[-1] < 0.1
    assert np.abs(received - [row["expected"] for row in curve]).max() < 0.06


def test_the_transitional_region_lies_around_half_reception() -> None:
    begin_m, end_m = edges_m()
    assert begin_m < 10 ** (40 / 24) < end_m
    assert begin_m * end_m == pytest.approx(10 ** (80 / 24))


def test_a_channel_that_differs_from_the_formulas_is_noticed(curve: list[Row]) -> None:
    worse = [{**row, "received": row["received"] * 0.9} for row in curve]
    outcome = judge_r1(worse)
    assert outcome.holds is False
    assert "differ" in outcome.note


def test_a_walk_that_covered_as_much_would_be_noticed() -> None:
    rows = [measure_coverage(CoverageJob(model, 2.0, 1, duration_s=200.0)) for model in MODELS]
    assert judge_r2(rows).holds is True
    same = [{**row, "covered": 0.4} for row in rows]
    assert judge_r2(same).holds is False
