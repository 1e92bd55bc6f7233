"""The protocols side by side, drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roamcast.lab.curves import GRID
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET
from roamcast.lab.sweep import Row

LIGHT = "#9cc3e4"


def draw_comparison(figure: Figure, rows: Sequence[Row], setting: str) -> None:
    """Four panels, one bar for each protocol in each."""
    figure.set_size_inches(11, 7.2)
    (hops, delay), (stored, wrong) = figure.subplots(2, 2)
    _stacked(hops, rows, {
        "handoff": ("signalling_per_handoff_hops", ARRIVED),
        "transfer": ("transfer_per_handoff_hops", LIGHT),
    })  # fmt: skip
    hops.set_xlabel("overhead per handoff, hops by cause")
    _bars(delay, rows, "delay_mean_s", 1000, ARRIVED, "mean")
    _marks(delay, rows, "delay_p95_s", 1000, "95th percentile")
    delay.set_xlabel("attach to first waiting notification, ms")
    _bars(stored, rows, "stored_per_broker_mean", 1, ARRIVED, "mean over brokers and time")
    _marks(stored, rows, "stored_per_broker_max", 1, "largest seen")
    stored.set_xscale("log")
    stored.set_xlim(left=0.1)
    stored.set_xlabel("notifications stored at one broker, logarithmic")
    wrongs = ("lost", "duplicates")
    percent = [{**row, **{name: 100 * row[name] / row["expected"] for name in wrongs}} for row in rows]
    _stacked(wrong, percent, {"lost": ("lost", LOST), "duplicate": ("duplicates", QUIET)})
    wrong.set_xlabel("lost and duplicate, % of what is owed")
    for axes in (hops, delay, stored, wrong):
        axes.set_ylabel("mobility protocol")
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize=8.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.98))
    figure.text(0.012, 0.97, "The protocols side by side", fontsize=13, fontweight="bold", va="center")
    runs = rows[0]["runs"] if rows else 0
    figure.text(0.012, 0.94, f"{setting}; {runs} run{'s' * (runs != 1)} each", fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.93))


def _names(axes: Axes, rows: Sequence[Row]) -> list[int]:
    """The first row on top."""
    places = list(range(len(rows)))[::-1]
    axes.set_yticks(places, [row["protocol"] for row in rows])
    return places


def _bars(axes: Axes, rows: Sequence[Row], name: str, scale: float, colour: str, label: str) -> None:
    axes.barh(_names(axes, rows), [scale * (row[name] or 0) for row in rows], color=colour, label=label)


def _marks(axes: Axes, rows: Sequence[Row], name: str, scale: float, label: str) -> None:
    axes.plot(
        [math.nan if row[name] is None else scale * row[name] for row in rows], _names(axes, rows),
        linestyle="none", marker="|",
        markersize=11, markeredgewidth=2, color=INK, label=label,
    )  # fmt: skip


def _stacked(axes: Axes, rows: Sequence[Row], parts: dict[str, tuple[str, str]]) -> None:
    ends = [0.0] * len(rows)
    for label, (name, colour) in parts.items():
        values = [row[name] or 0 for row in rows]
        axes.barh(_names(axes, rows), values, left=ends, color=colour, label=label)
        ends = [end + value for end, value in zip(ends, values, strict=True)]
