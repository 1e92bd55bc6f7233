"""Shape of the tree of brokers that move: its depth, and the number of children."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple


class TreeShape(NamedTuple):
    """Shape of all trees at one time."""

    hops: float
    """Mean number of hops from a broker to its leader."""
    depth: int
    children_most: int
    branch_largest: float
    """In the largest tree: the share of brokers below the leader's child with the most brokers below it."""
    trees: int


def shape_of(parents: Mapping[str, str | None]) -> TreeShape:
    """Compute the shape from the parent of each broker; a leader has none."""
    chains = {broker: _chain(broker, parents) for broker in parents}
    children = Counter(parent for parent in parents.values() if parent is not None)
    sizes = Counter(chain[-1] for chain in chains.values())
    root, size = max(sizes.items(), key=lambda item: (item[1], item[0]))
    branches = Counter(chain[-2] for chain in chains.values() if chain[-1] == root and len(chain) > 1)
    return TreeShape(
        fmean(len(chain) - 1 for chain in chains.values()),
        max(len(chain) - 1 for chain in chains.values()),
        max(children.values(), default=0),
        max(branches.values(), default=0) / max(size - 1, 1),
        len(sizes),
    )


def _chain(broker: str, parents: Mapping[str, str | None]) -> list[str]:
    """Path from a broker to its leader, or to the first broker with an unknown parent."""
    chain = [broker]
    while (parent := parents[chain[-1]]) is not None and parent in parents and parent not in chain:
        chain.append(parent)
    return chain


class TreeWatch:
    """Samples the tree from time to time."""

    def __init__(self, parents: Callable[[], Mapping[str, str | None]]) -> None:
        self.shapes: list[TreeShape] = []
        self._parents = parents

    def look(self) -> None:
        self.shapes.append(shape_of(self._parents()))

    def figures(self) -> dict[str, float | None]:
        """Return means over time."""
        return {
            f"tree_{name}": fmean(getattr(one, name) for one in self.shapes) if self.shapes else None
            for name in TreeShape._fields
        }
