"""Rows of figures: selecting, grouping, averaging, and formatting for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

Row = dict[str, Any]
"""Column name to a plain value: text, number, truth value or None."""


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def values_of(rows: Iterable[Row], column: str) -> list[float]:
    """Return the values of a column, without unknown ones."""
    return [row[column] for row in rows if row[column] is not None]


def mean_of(rows: Iterable[Row], column: str, digits: int | None = None) -> float | None:
    """Return the mean of the known values of a column; None if there is none."""
    values = values_of(rows, column)
    if not values:
        return None
    return fmean(values) if digits is None else round(fmean(values), digits)


def sums_of(rows: Sequence[Row], columns: Iterable[str]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in columns}


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group the rows by these columns, in the order in which each group first appears."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in columns), []).append(row)
    return groups


def distinct(rows: Iterable[Row], column: str) -> list[Any]:
    """Return the values of a column in order of first appearance."""
    return list(dict.fromkeys(row[column] for row in rows))


def rounded(values: Iterable[float], digits: int = 1) -> list[float]:
    return [round(value, digits) for value in values]


# --- for tables on a terminal and on a page ---


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell(value: object) -> str:
    """Format a value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def leaves(figures: Mapping[str, Any], above: str = "") -> list[tuple[str, object]]:
    """Flatten nested figures into table rows: each value with the names that lead to it.

    A list of values is one row; the elements of a list of figures are numbered.
    """
    rows: list[tuple[str, object]] = []
    for key, value in figures.items():
        name = f"{above}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += leaves(value, f"{name}: ")
        elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value, start=1):
                rows += leaves({f"{key} {number}": one}, above)
        else:
            rows.append((name, ", ".join(map(cell, value)) if isinstance(value, list | tuple) else value))
    return rows
