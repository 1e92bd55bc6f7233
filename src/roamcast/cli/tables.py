"""Tables that are wider than the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from roamcast.cli.output import cell, table

BORDER = 3
"""Width that a column's border adds: a line and two blanks."""


def table_in_parts(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str) -> None:
    """Print a table, split into parts below each other if it is too wide; each part begins with the first
    column.

    Squeezing one table into the terminal would cut digits.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for number, part in enumerate(parts(columns, rows, width)):
        chosen = [0, *part]
        table(
            [columns[index] for index in chosen],
            [[row[index] for index in chosen] for row in rows],
            title=title if number == 0 else None,
        )


def parts(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[list[int]]:
    """Group the columns after the first one so that each group fits beside the first column."""
    widths = [
        max(len(text) for text in [heading, *(cell(row[index]) for row in rows)]) + BORDER
        for index, heading in enumerate(columns)
    ]
    groups: list[list[int]] = [[]]
    room = width - widths[0] - 1
    for index in range(1, len(columns)):
        if groups[-1] and sum(widths[i] for i in groups[-1]) + widths[index] > room:
            groups.append([])
        groups[-1].append(index)
    return groups
