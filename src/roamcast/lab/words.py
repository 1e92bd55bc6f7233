"""Values as a person reads them, in tables on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def cell(value: object) -> str:
    """A value as a person reads it."""
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
    """Nested figures as rows of a table: each value with the names that lead to it, a list as one line."""
    rows: list[tuple[str, object]] = []
    for key, value in figures.items():
        name = f"{above}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            rows += leaves(value, f"{name}: ")
        else:
            rows.append((name, ", ".join(map(cell, value)) if isinstance(value, list | tuple) else value))
    return rows
