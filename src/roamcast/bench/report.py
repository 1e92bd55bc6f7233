"""What a benchmark calls as it goes on."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[int, int], None]
"""How much is done, and of how much."""


def silent(done: int, total: int) -> None:
    """For those who do not want to see how far it is."""
