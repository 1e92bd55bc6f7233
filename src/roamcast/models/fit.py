"""Curves fitted to measured points, and their confidence bounds (Gaddah 6.5).

A polynomial fitted by least squares predicts the value at a number of clients that was not measured; bounds
from the t distribution state the confidence.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial
from scipy.linalg import solve_triangular

from roamcast.errors import InputError
from roamcast.models.intervals import Bounds, t_factor

Vector = npt.NDArray[np.float64]

DEGREE_PUBLISHED = 3
"""Degree of the curve in section 6.5."""
ROUNDING = 1e-12
"""Tolerance for rounding errors of a computed value."""
DEGREE_MAX = 12
"""Maximum degree; a polynomial of a higher one follows the errors of the points."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Value of a curve at one place.

    `mean` bounds the curve itself, `single` one more measurement. `extrapolated` is true if the place lies
    outside the measured range, where the bounds rest on the curve having the right form.
    """

    x: float
    y: float
    mean: Bounds
    single: Bounds
    extrapolated: bool


@dataclass(frozen=True)
class Curve:
    """A polynomial by its coefficients, the constant first."""

    coefficients: tuple[float, ...]

    def __call__(self, x: float) -> float:
        y = 0.0
        for coefficient in reversed(self.coefficients):
            y = y * x + coefficient
        return y


THROUGHPUT_PUBLISHED = Curve((1.7111, 12.362, -0.2256, 0.0019))
"""Equation 6.18: messages per second that a broker delivers, by its number of subscribers."""


@dataclass(frozen=True)
class Fit:
    """A fitted polynomial, returned by `fit`."""

    curve: Curve
    points: int
    x_min: float
    x_max: float
    r_squared: float | None
    """Share of the variation that the curve explains; None if there was none to explain."""
    r_squared_adjusted: float | None
    deviation: float
    """Standard deviation of the points from the curve."""
    _scaled: Polynomial
    _triangle: Vector

    @property
    def degree(self) -> int:
        return len(self.curve.coefficients) - 1

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the deviation: number of points minus number of coefficients."""
        return self.points - self.degree - 1

    @property
    def leading_t(self) -> float:
        """Return by how many of its standard errors the highest coefficient differs from 0."""
        # R is upper triangular, so its last entry alone relates that coefficient to the points.
        return float(self._scaled.coef[-1] * self._triangle[-1, -1]) / (self.deviation or math.ulp(0.0))

    def predict(self, x: float, confidence: float = 0.95) -> Prediction:
        """Return the curve's value at `x`, with its bounds."""
        factor = t_factor(confidence, self.freedom)
        if not math.isfinite(x):
            raise InputError(f"the x of a prediction must be a number, not {x}")
        with np.errstate(all="ignore"):
            y = float(self._scaled(x))
            offset, scale = self._scaled.mapparms()
            row = np.power(offset + scale * x, np.arange(self.degree + 1))
            # How far the place is from the points, in the measure that the fit itself uses.
            leverage = float(np.sum(np.square(_solve(self._triangle, row))))
        if not math.isfinite(y + leverage):
            raise InputError(f"x = {x:g} is too far from the points, {self.x_min:g} to {self.x_max:g}")
        mean = factor * self.deviation * math.sqrt(leverage)
        single = factor * self.deviation * math.sqrt(1.0 + leverage)
        outside = not self.x_min <= x <= self.x_max
        return Prediction(x, y, Bounds(y - mean, y + mean), Bounds(y - single, y + single), outside)


def fit(x: Sequence[float], y: Sequence[float], degree: int = DEGREE_PUBLISHED) -> Fit:
    """Return the polynomial of this degree with the least sum of squared errors."""
    xs, ys = _checked_points(x, y)
    _check_degree(degree, xs)
    with np.errstate(all="ignore"):
        scaled, triangle = _least_squares(xs, ys, degree)
        coefficients = scaled.convert().coef
        left = float(np.sum(np.square(ys - scaled(xs))))
        spread = float(np.sum(np.square(ys - ys.mean())))
    if not (np.isfinite(coefficients).all() and math.isfinite(left + spread)):
        raise InputError("the points are too large to be fitted; use another unit")
    freedom = len(xs) - degree - 1
    unexplained = left / spread if spread > 0.0 and np.ptp(ys) > 0.0 else None
    return Fit(
        # Conversion drops leading zeros; the degree asked for is kept.
        curve=Curve((*map(float, coefficients), *[0.0] * (degree + 1 - len(coefficients)))),
        points=len(xs),
        x_min=float(xs.min()),
        x_max=float(xs.max()),
        r_squared=None if unexplained is None else 1.0 - unexplained,
        r_squared_adjusted=None if unexplained is None else 1.0 - unexplained * (len(xs) - 1) / freedom,
        deviation=math.sqrt(left / freedom),
        _scaled=scaled,
        _triangle=triangle,
    )


def best_fit(
    x: Sequence[float], y: Sequence[float], degrees: Iterable[int] = (1, 2, 3), confidence: float = 0.95
) -> Fit:
    """Return the fit with the highest significant degree; degrees with too few points are skipped.

    The thesis compared curves by their error alone. That error falls with every added degree, needed or not,
    and an unneeded degree harms extrapolation. So a degree is accepted only if its highest coefficient
    differs from 0 with the given confidence; the lowest degree is always accepted.
    """
    candidates = sorted({*degrees})
    if not candidates:
        raise InputError("no degrees to choose from; give at least one")
    xs, _ = _checked_points(x, y)
    carried = [degree for degree in candidates if _carries(xs, degree)]
    if not carried:
        _check_degree(candidates[0], xs)
    fits = [fit(x, y, degree) for degree in carried]
    # Where a curve leaves nothing but rounding, a higher degree would be judged by that rounding.
    rounding = ROUNDING * max(map(abs, y))
    for found in fits:
        if found.deviation <= rounding:
            return found
    for found in reversed(fits[1:]):
        if abs(found.leading_t) > t_factor(confidence, found.freedom):
            return found
    return fits[0]


def _checked_points(x: Sequence[float], y: Sequence[float]) -> tuple[Vector, Vector]:
    if len(x) != len(y):
        raise InputError(f"{len(x)} values of x and {len(y)} of y; a point has one of each")
    for number, point in enumerate(zip(x, y, strict=True), start=1):
        if not all(map(math.isfinite, point)):
            raise InputError(f"point {number} is {point[0]:g}, {point[1]:g}; both must be finite numbers")
    return np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)


def _check_degree(degree: int, xs: Vector) -> None:
    if not 0 <= degree <= DEGREE_MAX:
        raise InputError(f"degree must be from 0 to {DEGREE_MAX}, not {degree}")
    if len(xs) < degree + 2:
        # One more than the curve needs to go through them all: without it there is no error to judge by.
        raise InputError(f"degree {degree} needs {degree + 2} points or more; there are {len(xs)}")
    distinct = len(np.unique(xs))
    if distinct < degree + 1:
        raise InputError(f"degree {degree} needs {degree + 1} different x or more; there are {distinct}")


def _carries(xs: Vector, degree: int) -> bool:
    try:
        _check_degree(degree, xs)
    except InputError:
        return False
    return True


def _least_squares(xs: Vector, ys: Vector, degree: int) -> tuple[Polynomial, Vector]:
    """Return the polynomial on a scale of its own, and the triangle R of the points' QR factors on that
    scale.
    """
    # Powers of x itself differ by many orders of magnitude; on -1 to 1 they do not.
    domain = [xs.min(), xs.max()] if degree else [-1.0, 1.0]
    offset, scale = Polynomial([0.0], domain).mapparms()
    design = np.vander(offset + scale * xs, degree + 1, increasing=True)
    orthogonal, triangle = np.linalg.qr(design)
    diagonal = np.abs(np.diag(triangle))
    # Negated, so that the NaN of an overflow is refused too.
    if not diagonal.min() > len(xs) * np.finfo(np.float64).eps * diagonal.max():
        raise InputError(
            f"the x of the points are too large, or too close together for degree {degree}; "
            "use another unit or a lower degree"
        )
    return Polynomial(_solve(triangle, orthogonal.T @ ys, transposed=False), domain), triangle


def _solve(triangle: Vector, right: Vector, *, transposed: bool = True) -> Vector:
    solution: Vector = solve_triangular(triangle, right, trans=1 if transposed else 0, check_finite=False)
    return solution
