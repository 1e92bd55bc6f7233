"""Findings as files: tables as Parquet and CSV, figures as PNG and SVG, outcomes as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.lab.experiment import Experiment, Findings, as_row
from roamcast.lab.figures import STYLE, save
from roamcast.lab.rows import Row
from roamcast.lab.summary import write_json


def write_findings(
    folder: Path, experiment: Experiment, findings: Findings, about: Mapping[str, Any]
) -> None:
    """Write `metrics/`, `figures/`, and last `outcomes.json`, which begins with `about`."""
    for name in ("metrics", "figures"):
        (folder / name).mkdir(exist_ok=True)
    for name, rows in findings.tables.items():
        write_table(folder / "metrics" / name, rows)
    for name, draw in findings.figures.items():
        save(drawn(draw), folder / "figures" / name)
    outcomes = [as_row(outcome, experiment) for outcome in findings.outcomes]
    write_json(folder / "outcomes.json", {"experiment": experiment.id, **about, "claims": outcomes})


def drawn(draw: Callable[[Figure], None]) -> Figure:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 4.8), dpi=160, facecolor="white")
        FigureCanvasAgg(figure)
        draw(figure)
    return figure


def write_table(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Write a table as Parquet for programs and as CSV for people."""
    file = path.with_name(f"{path.name}.parquet")
    pq.write_table(pa.table({name: pa.array(values) for name, values in _cells(rows).items()}), file)
    return [file, write_csv(path, rows)]


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    cells = _cells(rows)
    csv_file = path.with_name(f"{path.name}.csv")
    with csv_file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    return csv_file


def _cells(rows: Sequence[Row]) -> dict[str, list[str | int | float | bool | None]]:
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: [_cell(row.get(name)) for row in rows] for name in columns}


def _cell(value: Any) -> str | int | float | bool | None:
    """Return a plain cell value; other values become JSON text."""
    if isinstance(value, str | int | float | bool | None):
        return value
    return json.dumps(value, sort_keys=True)
