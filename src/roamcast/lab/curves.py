"""Measured curves: means over seeds with their intervals, and the shape of a curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np

from roamcast.lab.rows import Row, rounded
from roamcast.models.intervals import bounds_of, t_factor


@dataclass(frozen=True)
class Point:
    """Mean over seeds with its 95 % interval (t distribution)."""

    x: float
    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Curve:
    points: tuple[Point, ...]

    @property
    def xs(self) -> list[float]:
        return [point.x for point in self.points]

    @property
    def means(self) -> list[float]:
        return [point.mean for point in self.points]

    def at(self, x: float) -> float:
        """Return the measured mean at this x."""
        return next(point.mean for point in self.points if point.x == x)

    @property
    def growth(self) -> float:
        """Return the growth factor from the first point to the last."""
        return self.means[-1] - self.means[0]

    def falls(self, level: float = 0.0) -> bool:
        """Return whether the curve ends lower than it begins, and never rises by more than `level`."""
        steps = itertools.pairwise(self.means)
        return self.growth < 0 and all(after <= before + level for before, after in steps)

    @property
    def spread(self) -> float:
        """The largest mean, divided by the smallest: 1 if the curve is flat."""
        return max(self.means) / min(self.means)


class Slope(NamedTuple):
    """Increase per unit of one variable, with its 95 % interval."""

    value: float
    low: float
    high: float


class Curves(dict[str, Curve]):
    """One curve for each value of the column `by`: the means of column `y` against column `x`."""

    def __init__(self, rows: Iterable[Row], by: str, x: str, y: str) -> None:
        """Skips rows without a y."""
        values: dict[str, dict[float, list[float]]] = {}
        for row in rows:
            if row[y] is not None:
                values.setdefault(row[by], {}).setdefault(row[x], []).append(row[y])
        super().__init__(
            (name, Curve(tuple(_point(x, points[x]) for x in sorted(points))))
            for name, points in values.items()
        )
        self.columns = by, x, y

    def table(self) -> list[Row]:
        """Return the points as rows."""
        by, x, y = self.columns
        return [
            {by: name, x: point.x, y: point.mean, "low": point.low, "high": point.high, "runs": point.runs}
            for name, curve in self.items()
            for point in curve.points
        ]


def _point(x: float, values: list[float]) -> Point:
    return Point(x, fmean(values), *bounds_of(values), len(values))


def means_of(curves: Mapping[str, Curve], digits: int = 3) -> dict[str, list[float]]:
    return {name: rounded(curve.means, digits) for name, curve in curves.items()}


def power(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the exponent b of the best fit y = a·x^b, the slope on two logarithmic axes; NaN if there is
    none.
    """
    if len(xs) < 2 or min(*xs, *ys) <= 0:
        return math.nan
    slope, _ = np.polyfit(np.log(xs), np.log(ys), 1)
    return float(slope)


def plane(rows: Sequence[Row], y: str, xs: Sequence[str]) -> dict[str, Slope]:
    """Return by least squares how much each x adds to y while the others stay fixed; NaN where rows are too
    few or too similar.
    """
    used = [row for row in rows if row[y] is not None]
    design = np.array([[1.0, *(float(row[x]) for x in xs)] for row in used]).reshape(len(used), len(xs) + 1)
    freedom = len(used) - len(xs) - 1
    if freedom < 1 or np.linalg.matrix_rank(design) <= len(xs):
        return dict.fromkeys(xs, Slope(math.nan, math.nan, math.nan))
    measured = np.array([float(row[y]) for row in used])
    solution = np.linalg.lstsq(design, measured, rcond=None)[0]
    left_over = float(np.sum((measured - design @ solution) ** 2)) / freedom
    errors = np.sqrt(left_over * np.diag(np.linalg.inv(design.T @ design)))
    reach = t_factor(0.95, freedom) * errors
    return {
        x: Slope(float(solution[i]), float(solution[i] - reach[i]), float(solution[i] + reach[i]))
        for i, x in enumerate(xs, start=1)
    }
