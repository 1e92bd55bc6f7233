"""Helpers that benchmarks share with the command: progress, and valid names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from roamcast.errors import InputError, did_you_mean

Report = Callable[[int, int], None]
"""Called with the amount done and the total."""


def silent(done: int, total: int) -> None:
    """Report no progress."""


def split_names(option: str, text: str, valid: Collection[str]) -> list[str]:
    """Split names at commas."""
    return check_names(option, filter(None, map(str.strip, text.split(","))), valid)


def check_names(option: str, names: Iterable[str], valid: Collection[str]) -> list[str]:
    """Return the names; raise an error if one is not valid."""
    checked = list(names)
    for name in checked:
        if name not in valid:
            known = did_you_mean(name, valid) or f"valid are {', '.join(valid)}"
            raise InputError(f"{option} {name}: {known}")
    return checked
