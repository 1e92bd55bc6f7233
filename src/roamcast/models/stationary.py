"""The share of time that a continuous-time Markov chain spends in each state (equation 6.1 of Gaddah)."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from roamcast.errors import InputError

Vector = npt.NDArray[np.float64]

ROW_SUM_TOLERANCE = 1e-9
"""Tolerated sum of a row of a generator, relative to its rates, because of rounding."""
DENSE_ADVANTAGE = 50
"""Number of rates changed in a full matrix in the time of changing one in dicts, roughly measured."""


def stationary(generator: Any) -> Vector:
    """The stationary distribution of a generator, given as rows of rates or as a sparse matrix.

    States that are left for good have probability 0. A chain with several parts that are never left is
    refused, because its distribution depends on its beginning; so is a chain that ends in a single state.
    """
    rates = _checked_generator(generator)
    members = _lasting_states(rates)
    try:
        with np.errstate(all="ignore"):
            weights = _weights(rates[members][:, members])
            shares = weights / weights.sum()
    except ZeroDivisionError:  # a rate became too small for a number
        shares = np.full(len(members), np.nan)
    if not (np.isfinite(shares).all() and (shares > 0.0).all()):
        raise InputError("the rates of this chain are too far apart; bring its mean times closer together")
    result = np.zeros(rates.shape[0])
    result[members] = shares
    return result


def _weights(rates: Any) -> Vector:
    """Return numbers proportional to the stationary distribution of states that all lead to each other.

    States are removed one by one, each replaced by direct rates between its neighbours, and added back in
    reverse order (Grassmann, Taksar and Heyman 1985). Nothing is ever subtracted, so even shares of 1e-100
    have nearly all their digits, unlike those of an LU solver.
    """
    network = _Network(rates)
    removed = []
    while (state := network.cheapest()) is not None:
        removed.append((state, network.remove(state)))
    weights = np.zeros(rates.shape[0])
    remaining = list(network.out)
    weights[remaining] = _dense_weights(network.matrix(remaining))
    for state, shares in reversed(removed):
        weights[state] = sum(weights[source] * share for source, share in shares.items())
    return weights


def _dense_weights(rates: Vector) -> Vector:
    """Return the weights for a full matrix; its diagonal is ignored."""
    size = len(rates)
    for state in range(size - 1, 0, -1):
        rates[:state, state] /= rates[state, :state].sum()
        rates[:state, :state] += np.outer(rates[:state, state], rates[state, :state])
    weights = np.ones(size)
    for state in range(1, size):
        weights[state] = weights[:state] @ rates[:state, state]
    return weights


class _Network:
    """The rates between states, while each state has few neighbours."""

    def __init__(self, rates: Any) -> None:
        size = rates.shape[0]
        self.out: dict[int, dict[int, float]] = {state: {} for state in range(size)}
        # Without the rates, and a dict only because its order is the same in every process.
        self.into: dict[int, dict[int, None]] = {state: {} for state in range(size)}
        entries = rates.tocoo()
        for source, target, rate in zip(
            entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True
        ):
            if source != target and rate > 0.0:
                self.out[source][target] = rate
                self.into[target][source] = None
        self.waiting = [(self.work(state), state) for state in self.out]
        heapq.heapify(self.waiting)

    def work(self, state: int) -> int:
        """Return the number of rates to change when a state is removed."""
        return len(self.into[state]) * len(self.out[state])

    def cheapest(self) -> int | None:
        """Return the next state to remove, or None when a full matrix is faster."""
        while True:
            work, state = self.waiting[0]
            if state in self.out and work == self.work(state):
                # The last few are never taken out, because for them the full matrix is always faster.
                return None if work * DENSE_ADVANTAGE >= len(self.out) ** 2 else state
            # Its surroundings have changed since it was put here; a newer entry tells how it is now.
            heapq.heappop(self.waiting)

    def remove(self, state: int) -> dict[int, float]:
        """Replace paths through this state by direct rates; return each source's part in its weight."""
        out, into = self.out.pop(state), self.into.pop(state)
        for target in out:
            del self.into[target][state]
        total = sum(out.values())
        parts: dict[int, float] = {}
        for source in into:
            onward = self.out[source]
            parts[source] = part = onward.pop(state) / total
            for target, rate in out.items():
                if target != source:
                    onward[target] = onward.get(target, 0.0) + part * rate
                    self.into[target][source] = None
        for changed in {**out, **parts}:
            heapq.heappush(self.waiting, (self.work(changed), changed))
        return parts

    def matrix(self, states: Sequence[int]) -> Vector:
        place = {state: number for number, state in enumerate(states)}
        result = np.zeros((len(states), len(states)))
        for source in states:
            for target, rate in self.out[source].items():
                result[place[source], place[target]] = rate
        return result


def _lasting_states(rates: Any) -> npt.NDArray[np.intp]:
    """Return the states of the only part of the chain that is never left."""
    moves = rates - sparse.diags_array(rates.diagonal())
    moves.eliminate_zeros()
    count, part_of = csgraph.connected_components(moves, directed=True, connection="strong")
    sources, targets = moves.nonzero()
    is_left = np.zeros(count, dtype=bool)
    is_left[part_of[sources[part_of[sources] != part_of[targets]]]] = True
    kept = np.flatnonzero(~is_left)
    first = [int(np.flatnonzero(part_of == part)[0]) for part in kept[:2]]
    if len(kept) > 1:
        raise InputError(
            f"the chain has separate parts: there is no path between states {first[0]} and {first[1]}; "
            "it must have one part that every state leads to"
        )
    members = np.flatnonzero(part_of == kept[0])
    if len(members) == 1:
        raise InputError(f"state {first[0]} is absorbing: no rate leads out of it; every state must be left")
    return members


def _checked_generator(generator: Any) -> Any:
    try:
        rates = sparse.csr_array(generator, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            "a generator is a square matrix of rates: a row of numbers for each state"
        ) from error
    if rates.ndim != 2 or rates.shape[0] != rates.shape[1] or rates.shape[0] == 0:
        size = " by ".join(map(str, rates.shape))
        raise InputError(f"a generator has as many columns as rows, at least one; this one is {size}")
    if not np.isfinite(rates.data).all():
        raise InputError("a generator holds finite rates only; this one has NaN or infinity in it")
    diagonal = rates.diagonal()
    outside = rates - sparse.diags_array(diagonal)
    rows, columns = (outside < 0.0).nonzero()
    if len(rows):
        raise InputError(f"the rate from state {rows[0]} to {columns[0]} is negative; rates are 0 or more")
    exits = np.asarray(outside.sum(axis=1)).ravel()
    sums = exits + diagonal
    uneven = np.flatnonzero(np.abs(sums) > ROW_SUM_TOLERANCE * np.maximum(exits, np.abs(diagonal)))
    if len(uneven):
        row = uneven[0]
        raise InputError(f"row {row} adds up to {sums[row]:g}; the rows of a generator add up to 0")
    return rates
