"""Measured curves: means over seeds with their intervals, how they bend, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from roamcast.lab.sweep import Row
from roamcast.models.intervals import mean_interval, t_factor

GRID = "#e3e8ec"


@dataclass(frozen=True)
class Point:
    """The mean over seeds, and the 95 % interval around it (by the t distribution)."""

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
        """The mean there; it was measured."""
        return next(point.mean for point in self.points if point.x == x)

    @property
    def growth(self) -> float:
        """From the first point to the last."""
        return self.means[-1] - self.means[0]

    @property
    def spread(self) -> float:
        """The largest mean, divided by the smallest: 1 if the curve is flat."""
        return max(self.means) / min(self.means)


class Slope(NamedTuple):
    """What one more of something adds, and the 95 % interval around it."""

    value: float
    low: float
    high: float


def curves_of(rows: Iterable[Row], by: str, x: str, y: str) -> dict[str, Curve]:
    """One curve for each value of `by`: y against x. Rows without a y are passed over."""
    values: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row[y] is not None:
            values.setdefault(row[by], {}).setdefault(row[x], []).append(row[y])
    return {
        name: Curve(tuple(_point(at, points[at]) for at in sorted(points))) for name, points in values.items()
    }


def _point(x: float, values: list[float]) -> Point:
    mean = fmean(values)
    low, high = mean_interval(values) if len(values) > 1 else (mean, mean)
    return Point(x, mean, low, high, len(values))


def as_rows(curves: Mapping[str, Curve], by: str, x: str, y: str) -> list[Row]:
    """The points of curves as a table."""
    return [
        {by: name, x: point.x, y: point.mean, "low": point.low, "high": point.high, "runs": point.runs}
        for name, curve in curves.items()
        for point in curve.points
    ]


def power(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The exponent b of the best y = a·x^b: the slope on two logarithmic axes. NaN if there is none."""
    if len(xs) < 2 or min(*xs, *ys) <= 0:
        return math.nan
    slope, _ = np.polyfit(np.log(xs), np.log(ys), 1)
    return float(slope)


def plane(rows: Sequence[Row], y: str, xs: Sequence[str]) -> dict[str, Slope]:
    """Least squares: how much each x adds to y, the others kept; NaN where rows are too few or alike."""
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


# --- drawing ---


@dataclass(frozen=True)
class Pen:
    """How one curve is drawn and what the legend calls it."""

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"


def draw(axes: Axes, curves: Mapping[str, Curve], pens: Mapping[str, Pen], scale: float = 1.0) -> None:
    """Every curve that has a pen, in the pens' order, with its intervals; y is multiplied by `scale`."""
    for name, pen in pens.items():
        if name not in curves:
            continue
        points = curves[name].points
        reach = [
            [scale * (point.mean - point.low) for point in points],
            [scale * (point.high - point.mean) for point in points],
        ]
        axes.errorbar(
            [point.x for point in points], [scale * point.mean for point in points], yerr=reach,
            label=pen.label, color=pen.colour, marker=pen.marker, linestyle=pen.line,
            linewidth=1.6, markersize=5, capsize=3, elinewidth=1,
        )  # fmt: skip
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
