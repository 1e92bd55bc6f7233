"""Gaddah 6.5 and 6.6.1: claim G3, and fits against answers found in other ways."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from roamcast.errors import InputError
from roamcast.models.fit import DEGREE_MAX, THROUGHPUT_PUBLISHED, best_fit, fit
from roamcast.models.intervals import mean_interval, share_interval, t_factor

X = [10.0, 50.0, 100.0, 150.0, 200.0, 200.0]
Y = [92.0, 310.0, 560.0, 790.0, 981.0, 953.0]


def noisy(seed: int, deviation: float = 1.0) -> tuple[list[float], list[float]]:
    rng = random.Random(seed)
    xs = [float(x) for x in range(20)]
    return xs, [3.0 + 2.0 * x - 0.1 * x * x + rng.gauss(0.0, deviation) for x in xs]


# G3.


def test_equation_6_18() -> None:
    assert THROUGHPUT_PUBLISHED(29.5358) == pytest.approx(218.983, abs=5e-4)
    assert THROUGHPUT_PUBLISHED(0.0) == 1.7111


# The fit.


def test_a_line_against_textbook_formulas() -> None:
    """Bounds of the curve and of one more point, from the sums of squares of simple regression."""
    found = fit(X, Y, 1)
    line = stats.linregress(X, Y)
    assert found.curve.coefficients == pytest.approx((line.intercept, line.slope))
    assert found.r_squared == pytest.approx(line.rvalue**2)
    x = np.array(X)
    left = np.square(np.array(Y) - line.intercept - line.slope * x).sum()
    deviation = math.sqrt(left / 4)
    assert found.deviation == pytest.approx(deviation)
    distance = 1 / 6 + (300.0 - x.mean()) ** 2 / np.square(x - x.mean()).sum()
    prediction = found.predict(300.0)
    assert prediction.y == pytest.approx(line.intercept + 300.0 * line.slope)
    # 2.776445 is the printed quantile for four degrees of freedom.
    reach = 2.776445 * deviation * math.sqrt(distance)
    assert prediction.mean == pytest.approx((prediction.y - reach, prediction.y + reach), rel=1e-6)
    reach = 2.776445 * deviation * math.sqrt(1.0 + distance)
    assert prediction.single == pytest.approx((prediction.y - reach, prediction.y + reach), rel=1e-6)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_any_degree_against_numpy(degree: int) -> None:
    xs, ys = noisy(1)
    found = fit(xs, ys, degree)
    coefficients, covariance = np.polyfit(xs, ys, degree, cov=True)
    assert found.degree == degree
    assert found.curve.coefficients == pytest.approx(coefficients[::-1], rel=1e-6)
    powers = 30.0 ** np.arange(degree, -1, -1)
    error = math.sqrt(powers @ covariance @ powers)
    prediction = found.predict(30.0, 0.9)
    assert prediction.mean.high - prediction.y == pytest.approx(
        float(stats.t.ppf(0.95, 19 - degree)) * error, rel=1e-6
    )


@given(
    st.lists(st.floats(-100.0, 100.0), min_size=1, max_size=5),
    st.lists(st.integers(-1000, 1000), min_size=7, max_size=20, unique=True),
)
def test_points_on_a_polynomial_give_it_back(coefficients: list[float], places: list[int]) -> None:
    def y(x: float) -> float:
        return sum(c * x**power for power, c in enumerate(coefficients))

    xs = [float(place) for place in places]
    ys = [y(x) for x in xs]
    found = fit(xs, ys, len(coefficients) - 1)
    size = max(1.0, *map(abs, ys))
    for x in xs:
        prediction = found.predict(x)
        assert prediction.y == pytest.approx(y(x), abs=1e-9 * size)
        assert prediction.single.high - prediction.single.low < 1e-6 * size
        assert not prediction.extrapolated


def test_the_curve_and_the_predictions_agree() -> None:
    found = fit(*noisy(2))
    assert found.degree == 3, "the degree of the thesis"
    for x in (-5.0, 0.0, 7.5, 40.0):
        assert found.predict(x).y == pytest.approx(found.curve(x), rel=1e-9)


def test_bounds_hold_as_often_as_they_say() -> None:
    """Over many samples, the truth beyond the points is within 95 % bounds in about 95 of 100."""
    truth, samples = 3.0 + 2.0 * 25.0 - 0.1 * 625.0, 1000
    held_mean = held_single = 0
    for seed in range(samples):
        prediction = fit(*noisy(seed), 2).predict(25.0)
        one_more = truth + random.Random(f"more {seed}").gauss(0.0, 1.0)
        held_mean += prediction.mean.low <= truth <= prediction.mean.high
        held_single += prediction.single.low <= one_more <= prediction.single.high
    # Three standard deviations of such a count are 2.1 %.
    assert held_mean / samples == pytest.approx(0.95, abs=0.021)
    assert held_single / samples == pytest.approx(0.95, abs=0.021)


def test_bounds_widen_with_the_distance_and_the_confidence() -> None:
    found = fit(*noisy(3), 2)
    near, far = found.predict(21.0), found.predict(40.0)
    assert (near.extrapolated, far.extrapolated, found.predict(19.0).extrapolated) == (True, True, False)
    assert far.mean.high - far.mean.low > near.mean.high - near.mean.low
    assert found.predict(21.0, 0.99).mean.high > near.mean.high
    assert near.single.high > near.mean.high


def test_large_x_are_fitted_as_well_as_small_ones() -> None:
    """Years, or times since an epoch: powers of such numbers alone would leave no digits."""
    xs, ys = noisy(4)
    shifted = fit([x + 1e6 for x in xs], ys)
    assert shifted.predict(1e6 + 25.0).mean == pytest.approx(fit(xs, ys).predict(25.0).mean, rel=1e-6)


def test_where_nothing_varies_there_is_nothing_to_explain() -> None:
    found = fit([1.0, 2.0, 3.0, 4.0], [5.0] * 4, 1)
    assert (found.r_squared, found.r_squared_adjusted) == (None, None)
    assert found.predict(9.0).y == pytest.approx(5.0)
    assert fit([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0).predict(7.0).y == pytest.approx(2.0)


# The choice of a degree.


def test_the_best_degree_is_found() -> None:
    xs = [float(x) for x in range(10)]
    assert best_fit(xs, [4.0 - x for x in xs]).degree == 1, "a line needs no more"
    assert best_fit(xs, [x**3 for x in xs]).degree == 3
    assert best_fit(xs, [(x - 4.5) ** 3 + math.sin(99 * x) for x in xs]).degree == 3, "no square is in it"
    assert best_fit(xs, [0.0] * 10).degree == 1
    assert best_fit(X, Y, confidence=0.999999).degree == 1, "who wants more proof gets a simpler curve"


def test_a_degree_too_high_is_chosen_as_rarely_as_the_confidence_says() -> None:
    degrees = [best_fit(*noisy(seed)).degree for seed in range(400)]
    assert degrees.count(3) / 400 == pytest.approx(0.05, abs=0.033), "three standard deviations"
    assert degrees.count(1) == 0


def test_every_degree_added_lowers_the_error_needed_or_not() -> None:
    """So R squared alone, by which the thesis judges, would always choose the highest."""
    xs, ys = noisy(5)
    fits = [fit(xs, ys, degree) for degree in range(1, 9)]
    shares = [found.r_squared or 0.0 for found in fits]
    assert shares == sorted(shares)
    adjusted = [found.r_squared_adjusted or 0.0 for found in fits]
    assert adjusted != sorted(adjusted)
    assert best_fit(xs, ys, range(1, 9)).degree == 2


def test_degrees_that_the_points_cannot_carry_are_left_out() -> None:
    assert best_fit([1.0, 2.0, 3.0], [1.0, 4.0, 9.0]).degree == 1
    with pytest.raises(InputError, match="degree 1 needs 3 points or more; there are 2"):
        best_fit([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(InputError, match="no degrees to choose from"):
        best_fit([1.0, 2.0], [1.0, 2.0], [])


# Means of a few runs.


def test_the_mean_of_five_runs() -> None:
    # 2.776445 is the printed quantile for four degrees of freedom.
    reach = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert mean_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3.0 - reach, 3.0 + reach), rel=1e-6)
    assert t_factor(0.95, 10**6) == pytest.approx(1.959966, abs=1e-6)
    with pytest.raises(InputError, match="two values or more, not 1"):
        mean_interval([1.0])
    with pytest.raises(InputError, match="NaN or infinity"):
        mean_interval([1.0, math.nan])


def test_the_bounds_of_a_share_are_the_exact_ones() -> None:
    assert share_interval(0, 200) == pytest.approx((0.0, 1 - 0.025 ** (1 / 200)))
    assert share_interval(200, 200) == pytest.approx((0.025 ** (1 / 200), 1.0))
    low, high = share_interval(8, 10)  # as in the tables of Clopper and Pearson
    assert (round(low, 4), round(high, 4)) == (0.4439, 0.9748)
    with pytest.raises(InputError, match="0 to 0 of one or more"):
        share_interval(0, 0)


# What is refused.


@pytest.mark.parametrize(
    ("x", "y", "degree", "line"),
    [
        ([], [], 1, "degree 1 needs 3 points or more; there are 0"),
        ([1.0, 2.0, 3.0], [1.0, 2.0], 1, "3 values of x and 2 of y"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 2, "degree 2 needs 4 points or more; there are 3"),
        ([1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0], 2, "degree 2 needs 3 different x or more; there are 2"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], -1, f"degree must be from 0 to {DEGREE_MAX}, not -1"),
        ([1.0] * 50, [1.0] * 50, DEGREE_MAX + 1, f"degree must be from 0 to {DEGREE_MAX}, not 13"),
        ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0], 1, "point 2 is nan, 2; both must be finite numbers"),
        ([1.0, 2.0, 3.0], [1.0, 2.0, math.inf], 1, "point 3 is 3, inf"),
        ([0.0, 1e-13, 2e-13, 1.0, 1.0], [1.0] * 5, 3, "too close together for degree 3"),
        ([1.0, 2.0, 3.0], [1e300, -1e300, 1e300], 1, "too large to be fitted"),
        ([-1e308, 0.0, 1e308], [1.0, 2.0, 3.0], 1, "too large, or too close together for degree 1"),
        ([0.0, 5e-324, 1e-323], [1.0, 2.0, 3.0], 1, "too large, or too close together for degree 1"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(
    x: list[float], y: list[float], degree: int, line: str
) -> None:
    with pytest.raises(InputError, match=line):
        fit(x, y, degree)


def test_places_that_are_too_far_are_refused() -> None:
    found = fit(*noisy(6))
    for x in (math.nan, math.inf):
        with pytest.raises(InputError, match="the x of a prediction must be a number"):
            found.predict(x)
    with pytest.raises(InputError, match=r"x = 1e\+200 is too far from the points, 0 to 19"):
        found.predict(1e200)
    with pytest.raises(InputError, match="confidence must be between 0 and 1"):
        found.predict(20.0, 95.0)
