"""Confidence intervals (Gaddah 6.6.1)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtri, stdtrit

from roamcast.errors import InputError


class Bounds(NamedTuple):
    low: float
    high: float


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Bounds:
    """Return bounds of the mean of a few runs, by the t distribution."""
    if len(values) < 2:
        raise InputError(f"bounds of a mean need two values or more, not {len(values)}")
    if not all(map(math.isfinite, values)):
        raise InputError("bounds of a mean need finite values; NaN or infinity is among them")
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    reach = t_factor(confidence, len(values) - 1) * float(sample.std(ddof=1)) / math.sqrt(len(values))
    return Bounds(mean - reach, mean + reach)


def bounds_of(values: Sequence[float]) -> Bounds:
    """Return 95 % bounds of the mean; those of a single value are the value itself."""
    return mean_interval(values) if len(values) > 1 else Bounds(values[0], values[0])


def share_interval(counted: int, total: int, confidence: float = 0.95) -> Bounds:
    """Return bounds of a probability by Clopper and Pearson, if `counted` of `total` were counted."""
    if not 0 <= counted <= total or not total:
        raise InputError(f"bounds of a share need 0 to {total} of one or more, not {counted}")
    _check_confidence(confidence)
    beyond = (1.0 - confidence) / 2.0
    low = float(betaincinv(counted, total - counted + 1, beyond)) if counted else 0.0
    high = float(betaincinv(counted + 1, total - counted, 1.0 - beyond)) if counted < total else 1.0
    return Bounds(low, high)


def t_factor(confidence: float, freedom: int) -> float:
    """Return the number of standard errors to each side, if the error was estimated from the sample."""
    _check_confidence(confidence)
    return float(stdtrit(freedom, 0.5 + confidence / 2.0))


def normal_factor(confidence: float) -> float:
    """Return the number of standard deviations to each side, if the deviation is known."""
    _check_confidence(confidence)
    return float(ndtri(0.5 + confidence / 2.0))


def _check_confidence(confidence: float) -> None:
    # So near to 1 that nothing is left beyond it, the bounds would be infinite.
    if not (confidence > 0.0 and 0.5 + confidence / 2.0 < 1.0):
        raise InputError(f"confidence must be between 0 and 1, such as 0.95, not {confidence}")
