"""Movement fitted to measurements: the Markov chain of Gaddah's chapter 6 with rates for each broker.

The thesis's chain uses the same three exponential distributions everywhere and chooses every next broker with
equal probability. Here each broker has the mean times, forks and next brokers that were counted there, and a
test says whether the times can be exponential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from roamcast.errors import InputError
from roamcast.models.ctmc import Chain, State

KINDS = ("connect", "disconnect", "handoff")

# Stephens 1974, "EDF statistics for goodness of fit", the exponential distribution with its mean estimated:
# the chance of a larger statistic, and the statistic.
_STEPHENS = ((0.15, 0.926), (0.10, 0.990), (0.05, 1.094), (0.025, 1.190), (0.01, 1.308))


class ExponentialTest(NamedTuple):
    """Result of a test whether times are exponentially distributed with their mean."""

    samples: int
    distance: float
    """Kolmogorov's distance: the largest gap between the measured distribution and the fitted one."""
    statistic: float
    """The distance, corrected for the number of samples and the estimated mean."""
    p_max: float
    """Upper bound of the probability of such a statistic if the times are exponential."""
    rejected: bool
    """True if the hypothesis is rejected at 5 %."""


def exponential_test(distance: float, samples: int) -> ExponentialTest:
    """Judge Kolmogorov's distance between times and the exponential distribution with their mean."""
    if samples < 1 or not 0.0 <= distance <= 1.0:
        raise InputError(f"{samples} samples, distance {distance}: valid is 1 or more samples, and 0 to 1")
    root = math.sqrt(samples)
    statistic = (distance - 0.2 / samples) * (root + 0.26 + 0.5 / root)
    p_max = min((chance for chance, bound in _STEPHENS if statistic > bound), default=1.0)
    return ExponentialTest(samples, distance, statistic, p_max, p_max <= 0.05)


@dataclass
class Stays:
    """Statistics of one broker: time of clients in each state, and the next states."""

    total_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    """State to the total time of clients in it."""
    left: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Transitions from one state to another state of a broker, with their counts."""

    def count(self, kind: str, to_kind: str, to_broker: str, times: int = 1) -> None:
        key = (kind, to_kind, to_broker)
        self.left[key] = self.left.get(key, 0) + times


def fitted_chain(stays: Mapping[str, Stays]) -> Chain:
    """Return the chain whose rates make the counts most likely.

    A rate is a count of events, divided by the time in which they could have happened. Only brokers of the
    largest strongly connected part remain: a chain that can be left for good has no long run.
    """
    states = tuple(State(kind, broker) for kind in KINDS for broker in stays)
    place = {state: number for number, state in enumerate(states)}
    rows, columns, rates = [], [], []
    for broker, stay in stays.items():
        for (kind, to_kind, to_broker), times in stay.left.items():
            if stay.total_s[kind] > 0.0 and State(to_kind, to_broker) in place:
                rows.append(place[State(kind, broker)])
                columns.append(place[State(to_kind, to_broker)])
                rates.append(times / stay.total_s[kind])
    matrix = sparse.coo_array((rates, (rows, columns)), shape=(len(states),) * 2).tocsr()
    kept = _largest_part(matrix)
    if len(kept) < 2:
        raise InputError("no two brokers have moves in both directions between them: no chain can be fitted")
    inner = matrix[kept][:, kept]
    generator = inner - sparse.diags_array(np.asarray(inner.sum(axis=1)).ravel())
    return Chain(tuple(states[number] for number in kept), generator.tocsr())


def _largest_part(matrix: sparse.csr_array) -> Sequence[int]:
    if not matrix.nnz:
        return []
    _, part_of = csgraph.connected_components(matrix, directed=True, connection="strong")
    largest = int(np.bincount(part_of).argmax())
    return [int(number) for number in np.flatnonzero(part_of == largest)]


def presence_error(expected: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Return the total variation between two distributions of clients over brokers, each scaled to 1; 0 if
    equal.
    """
    brokers = sorted({**expected, **measured})
    sums = sum(expected.values()), sum(measured.values())
    if not all(sums):
        raise InputError("shares of clients over brokers must not all be 0")
    gaps = (abs(expected.get(one, 0.0) / sums[0] - measured.get(one, 0.0) / sums[1]) for one in brokers)
    return 0.5 * sum(gaps)
