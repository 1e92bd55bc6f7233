"""Pictures for the page, for results without pictures: audits, metrics and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET, STYLE, save
from roamcast.pipeline.report import Part

WRONG = {"lost": LOST, "duplicates": ARRIVED, "out_of_order": QUIET, "unexpected": INK}
MEASURES = ("handoff_delay", "latency", "overhead_per_handoff", "delivery_rate")
"""Measures that a reader looks at first."""
GROUPS_MAX = 24
MINUTES_MAX = 1_440
GRID = "#e3e8ec"

Draw = Callable[[Figure], None]


def draw_into(part: Part, out: Path, prefix: str = "") -> list[Path]:
    """Draw the results as PNG and SVG; return the PNG files."""
    pictures = []
    for name, draw in _drawings(part):
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(11, 5.2), dpi=160, facecolor="white")
            FigureCanvasAgg(figure)
            draw(figure)
            pictures.append(save(figure, out / f"{prefix}{name}")[0])
    return pictures


def _drawings(part: Part) -> Iterator[tuple[str, Draw]]:
    for name, facts in part.facts.items():
        plain = name.rpartition("/")[2]
        if isinstance(facts.get("protocols"), dict) and "records" in facts and "lost" in facts:
            yield plain, _with(draw_audit, facts)
        if isinstance(facts.get("groups"), dict) and facts["groups"]:
            yield plain, _with(draw_metrics, facts["groups"])
    for file in part.minutes:
        yield "minutes", _with(draw_minutes, pq.read_table(file).to_pylist()[-MINUTES_MAX:])


def _with(draw: Callable[[Figure, Any], None], facts: Any) -> Draw:
    return lambda figure: draw(figure, facts)


def draw_audit(figure: Figure, facts: Mapping[str, Any]) -> None:
    """Draw what went wrong in each group of runs, as a share of what was owed."""
    groups = dict(list(facts["protocols"].items())[:GROUPS_MAX])
    figure.set_size_inches(11, 1.8 + 0.45 * max(len(groups), 3))
    axes = figure.subplots()
    height = 0.8 / len(WRONG)
    for place, (kind, colour) in enumerate(WRONG.items()):
        shares = [100 * one.get(kind, 0) / max(one.get("expected", 0), 1) for one in groups.values()]
        at = [row + (place - (len(WRONG) - 1) / 2) * height for row in range(len(groups))]
        axes.barh(at, shares, height, color=colour, label=kind.replace("_", " "))
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlim(left=0.0, right=None if any(facts.get(kind) for kind in WRONG) else 1.0)
    axes.set_xlabel("% of the notifications that were owed")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _finish(figure, [axes], f"Audit of {facts['records']:,} rows: what went wrong")


def draw_metrics(figure: Figure, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Draw, for each measure and group, the mean with its interval over runs, and the range of
    most samples.
    """
    shown = [name for name in MEASURES if any(name in measures for measures in groups.values())]
    names = list(groups)[:GROUPS_MAX]
    figure.set_size_inches(11, 1.8 + 0.35 * max(len(names), 4))
    panels = list(figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0])
    for axes, measure in zip(panels, shown, strict=False):
        unit = ""
        for row, group in enumerate(names):
            one = groups[group].get(measure)
            if one is None:
                continue
            unit = one["unit"]
            axes.plot([one["p05"], one["p95"]], [row, row], color=GRID, linewidth=6, solid_capstyle="butt")
            if one.get("low") is not None:
                axes.plot([one["low"], one["high"]], [row, row], color=ARRIVED, linewidth=2)
            axes.plot([one["mean"]], [row], "o", color=ARRIVED, markersize=5)
        axes.set_xlabel(f"{measure.replace('_', ' ')}, {unit}")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    title = "Mean (dot), its 95 % interval over runs (line), 5th to 95th percentile of all samples (band)"
    _finish(figure, panels, title)


def draw_minutes(figure: Figure, rows: list[Mapping[str, Any]]) -> None:
    """Draw what was owed and lost in each minute, and below it the duration of handoffs."""
    above, below = figure.subplots(2, 1, sharex=True)
    times = [row["minute"] for row in rows]
    width = 50 / 86_400
    """Width of a bar in days: almost a minute."""
    above.bar(times, [row["expected"] for row in rows], width, color=GRID, label="owed")
    above.bar(times, [row["lost"] for row in rows], width, color=LOST, label="lost")
    above.plot(times, [row["duplicates"] for row in rows], color=ARRIVED, label="came again", linewidth=1)
    above.set_ylabel("notifications\nper minute")
    for name, colour in (("handoff_delay", ARRIVED), ("transfer", QUIET)):
        known = [(row["minute"], row[f"{name}_p95_s"]) for row in rows if row[f"{name}_p95_s"] is not None]
        below.plot(
            [at for at, _ in known], [value for _, value in known], ".-", color=colour,
            label=f"{name.replace('_', ' ')}, 95th percentile",
        )  # fmt: skip
    below.set_ylabel("time in s")
    below.set_ylim(bottom=0)
    below.set_xlabel("minute (UTC)")
    for axes in (above, below):
        axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    _finish(figure, [above, below], "Minute by minute")


def _finish(figure: Figure, panels: list[Axes], title: str) -> None:
    for axes in panels:
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    figure.tight_layout()
