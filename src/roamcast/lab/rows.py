"""Rows of figures: chosen, grouped and averaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

Row = dict[str, Any]
"""Name to a plain value: text, number, truth value or None."""


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values_of(rows: Iterable[Row], column: str) -> list[float]:
    """The values of a column, without those that are not known."""
    return [row[column] for row in rows if row[column] is not None]


def mean_of(rows: Iterable[Row], column: str, digits: int | None = None) -> float | None:
    """The mean of what is known of a column; None if nothing is."""
    values = values_of(rows, column)
    if not values:
        return None
    return fmean(values) if digits is None else round(fmean(values), digits)


def sums_of(rows: Sequence[Row], columns: Iterable[str]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in columns}


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """The rows by what they have in these columns, in the order in which each group first appears."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return groups


def distinct(rows: Iterable[Row], column: str) -> list[Any]:
    """The values of a column, in the order in which they first appear."""
    return list(dict.fromkeys(row[column] for row in rows))


def rounded(values: Iterable[float], digits: int = 1) -> list[float]:
    return [round(value, digits) for value in values]
