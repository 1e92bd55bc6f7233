import math
from typing import Any

import numpy as np
import pytest

from roamcast.errors import InputError
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.reception import (
    Shadowing,
    bit_error_rate,
    expected_reception,
    log_success,
    milliwatts,
    packet_success,
    path_loss_db,
    received_mw,
)

PARAMETERS = RadioParameters()


def test_without_a_signal_a_bit_is_a_guess() -> None:
    assert bit_error_rate(0.0) == pytest.approx(0.5)


def test_the_first_terms_of_the_formula_dominate_at_high_ratios() -> None:
    # 8/15 · 1/16 · 120 · e^-10 is the term of k = 2, the slowest to vanish.
    assert bit_error_rate(2.0) == pytest.approx(8 / 15 / 16 * 120 * math.exp(-20), rel=0.02)


def test_the_standard_asks_for_one_lost_packet_in_a_hundred_at_the_sensitivity() -> None:
    ratio = milliwatts(PARAMETERS.sensitivity_dbm - PARAMETERS.noise_floor_dbm)
    assert packet_success(ratio, 26) > 0.99


def test_the_table_is_the_formula() -> None:
    ratios = np.linspace(0.001, 3.9, 57)
    exact = np.log1p([-bit_error_rate(ratio) for ratio in ratios])
    assert np.allclose(log_success(ratios), exact, atol=0.005)
    assert log_success(np.array([1e9]))[0] == 0.0


def test_path_loss_grows_by_24_db_in_a_decade_and_is_constant_within_a_metre() -> None:
    loss = path_loss_db(PARAMETERS, np.array([0.0, 1.0, 10.0, 100.0]))
    assert loss == pytest.approx([55.0, 55.0, 79.0, 103.0])


def test_shadowing_has_its_deviation_and_is_almost_the_same_both_ways() -> None:
    shadowing = Shadowing(PARAMETERS, 110.0, np.random.default_rng(1))
    positions = np.random.default_rng(2).uniform(0, 110, (200, 2))
    loss = shadowing.loss_db(positions)
    upper = np.triu_indices(200, 1)
    assert loss[upper].std() == pytest.approx(math.hypot(4.0, 0.5), rel=0.05)
    assert (loss - loss.T)[upper].std() == pytest.approx(1.0, rel=0.05)


def test_shadowing_stays_while_both_stay_in_their_cells() -> None:
    shadowing = Shadowing(PARAMETERS, 50.0, np.random.default_rng(1))
    before = shadowing.loss_db(np.array([[1.0, 1.0], [31.0, 42.0]]))
    after = shadowing.loss_db(np.array([[4.9, 0.1], [34.9, 40.1]]))
    elsewhere = shadowing.loss_db(np.array([[5.1, 0.1], [34.9, 40.1]]))
    assert (before == after).all()
    assert before[0, 1] != elsewhere[0, 1]


def test_nobody_receives_oneself() -> None:
    shadowing = Shadowing(PARAMETERS, 10.0, np.random.default_rng(1))
    power = received_mw(PARAMETERS, np.array([[1.0, 1.0], [2.0, 1.0]]), shadowing)
    assert power[0, 0] == power[1, 1] == 0.0
    assert power[0, 1] > 0.0


def test_half_arrives_where_the_mean_power_is_the_sensitivity() -> None:
    # 55 + 24 log10(d) = 95
    assert expected_reception(PARAMETERS, 10 ** (40 / 24), 50) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("name", "value"), [("bit_rate", 0.0), ("shadowing_db", -1.0), ("frame_bytes_max", 9)]
)
def test_parameters_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        RadioParameters(**{name: value})


def test_an_area_too_large_for_the_table_is_refused() -> None:
    with pytest.raises(InputError, match="shadowing_cell_m"):
        Shadowing(PARAMETERS, 1000.0, np.random.default_rng(1))
