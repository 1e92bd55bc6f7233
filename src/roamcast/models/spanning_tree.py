"""An overlay for the brokers of a trace: the shortest tree between their positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from roamcast.errors import InputError

BROKERS_MAX = 5_000
"""Maximum number of brokers, because all distances are in memory."""

Position = tuple[float, float]


def spanning_tree(
    positions: Mapping[str, Position], distance: Callable[[Position, Position], float]
) -> list[tuple[str, str]]:
    """Return the edges of the tree; brokers at the same position are joined, too."""
    names = sorted(positions)
    if not 2 <= len(names) <= BROKERS_MAX:
        raise InputError(f"an overlay of {len(names)} brokers: valid is 2 to {BROKERS_MAX}")
    lengths = np.zeros((len(names), len(names)))
    for row, one in enumerate(names):
        for column in range(row + 1, len(names)):
            # To scipy, a length of 0 is no edge at all. The same more for each makes no other tree.
            lengths[row, column] = 1.0 + distance(positions[one], positions[names[column]])
    tree = minimum_spanning_tree(lengths).tocoo()
    return sorted((names[row], names[column]) for row, column in zip(tree.row, tree.col, strict=True))
