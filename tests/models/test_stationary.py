"""The solver against chains whose answer is known in another way."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from roamcast.errors import InputError
from roamcast.models.stationary import stationary


@given(st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.01, 100.0)), min_size=1, max_size=15))
def test_births_and_deaths(pairs: list[tuple[float, float]]) -> None:
    """Between neighbouring states of a line the flows are equal, which gives the answer at once."""
    size = len(pairs) + 1
    generator = np.zeros((size, size))
    weights = [1.0]
    for here, (up, down) in enumerate(pairs):
        generator[here, here + 1], generator[here + 1, here] = up, down
        weights.append(weights[-1] * up / down)
    np.fill_diagonal(generator, -generator.sum(axis=1))
    assert stationary(generator) == pytest.approx(np.array(weights) / sum(weights), rel=1e-12)


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_a_dense_chain_is_in_balance(size: int, rng: random.Random) -> None:
    generator = np.array([[rng.uniform(0.1, 10.0) for _ in range(size)] for _ in range(size)])
    np.fill_diagonal(generator, 0.0)
    np.fill_diagonal(generator, -generator.sum(axis=1))
    found = stationary(generator)
    assert found.sum() == pytest.approx(1.0)
    assert found @ generator == pytest.approx(np.zeros(size), abs=1e-13)


def test_states_that_are_left_for_good_are_empty() -> None:
    found = stationary([[-1.0, 1.0, 0.0], [0.0, -2.0, 2.0], [0.0, 1.0, -1.0]])
    assert found == pytest.approx([0.0, 1 / 3, 2 / 3])


def test_a_large_chain_is_the_same_full_and_sparse() -> None:
    """A ring with chords: some states are taken out of dicts, the others out of a matrix."""
    rng, size = random.Random(8), 300
    generator = np.zeros((size, size))
    for here in range(size):
        generator[here, (here + 1) % size] = rng.uniform(0.1, 1.0)
        generator[here, rng.randrange(size)] += rng.uniform(0.1, 1.0)
    np.fill_diagonal(generator, 0.0)
    np.fill_diagonal(generator, -generator.sum(axis=1))
    equations = generator.T.copy()
    equations[-1] = 1.0
    expected = np.linalg.solve(equations, np.eye(size)[-1])
    assert stationary(generator) == pytest.approx(expected, rel=1e-9)
    assert (stationary(sparse.csr_array(generator)) == stationary(generator)).all()


def test_parts_that_hardly_exchange_anything_are_weighed_exactly() -> None:
    """Two pairs of states with a rate of 1e-18 between them: rounding alone would be larger."""
    slow = 1e-18
    generator = np.array(
        [
            [-1.0, 1.0, 0.0, 0.0],
            [1.0, -(1.0 + slow), slow, 0.0],
            [0.0, 3 * slow, -(1.0 + 3 * slow), 1.0],
            [0.0, 0.0, 1.0, -1.0],
        ]
    )
    assert stationary(generator) == pytest.approx([3 / 8, 3 / 8, 1 / 8, 1 / 8], rel=1e-12)


@pytest.mark.parametrize(
    ("generator", "line"),
    [
        ([[-1.0, 1.0], [0.0, 0.0]], "state 1 is absorbing: no rate leads out of it"),
        ([[0.0]], "state 0 is absorbing"),
        ([[0.0, 0.0], [0.0, 0.0]], "the chain has separate parts: there is no path between states 0 and 1"),
        (
            [[-1, 1, 0, 0], [1, -1, 0, 0], [0, 0, -1, 1], [0, 0, 1, -1]],
            "the chain has separate parts: there is no path between states 0 and 2",
        ),
        ([[1.0, -1.0], [1.0, -1.0]], "the rate from state 0 to 1 is negative"),
        ([[-1.0, 2.0], [1.0, -1.0]], "row 0 adds up to 1; the rows of a generator add up to 0"),
        ([[-1.0, 1.0]], "as many columns as rows, at least one; this one is 1 by 2"),
        ([[-math.inf, math.inf], [1.0, -1.0]], "finite rates only"),
        ([[math.nan, 1.0], [1.0, -1.0]], "finite rates only"),
        ([["a", "b"], ["c", "d"]], "a generator is a square matrix of rates"),
        ([[-1e-300, 1e-300], [1e300, -1e300]], "too far apart"),
    ],
)
def test_what_is_no_chain_is_refused(generator: object, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        stationary(generator)
    assert "\n" not in str(refused.value)
