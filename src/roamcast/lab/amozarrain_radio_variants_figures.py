"""What each variant of the radio experiment does to the orders of figures 4.5a and 4.8."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roamcast.lab.amozarrain_radio_figures import PENS
from roamcast.lab.curves import GRID
from roamcast.lab.sweep import Row


def draw_delivered(figure: Figure, table: Sequence[Row]) -> None:
    """At C32, as a share of all, in each length of run."""
    lengths = sorted({row["duration_s"] for row in table})
    figure.set_size_inches(5.2 + 4.3 * len(lengths), 8.4)
    panels = figure.subplots(1, len(lengths), squeeze=False, gridspec_kw={"wspace": 0.75})[0]
    for axes, length_s in zip(panels, lengths, strict=True):
        rows = [row for row in table if row["duration_s"] == length_s]
        _draw_pairs(axes, rows, "c32_delivered")
        axes.set_title(f"runs of {length_s:g} s", loc="left", fontsize=10.5)
        axes.set_xlabel("notifications delivered in a run at C32, 8 m/s")
    _finish(figure, panels[0], "Who delivers more at C32: MFT-PubSub or AODV")


def draw_messages(figure: Figure, table: Sequence[Row]) -> None:
    """At C2 and C32, in the shortest runs, on logarithmic axes."""
    figure.set_size_inches(13.8, 8.4)
    panels = figure.subplots(1, 2, gridspec_kw={"wspace": 0.75})
    length_s = min(row["duration_s"] for row in table)
    rows = [row for row in table if row["duration_s"] == length_s]
    for axes, size in zip(panels, (2, 32), strict=True):
        _draw_pairs(axes, rows, f"c{size}_messages_per_node")
        axes.set_title(f"C{size}, runs of {length_s:g} s", loc="left", fontsize=10.5)
        axes.set_xlabel("messages sent by a node, 8 m/s")
    _finish(figure, panels[0], "Who sends more: MFT-PubSub or AODV")


def _draw_pairs(axes: Axes, rows: Sequence[Row], column: str) -> None:
    names = [row["variant"] for row in rows]
    for at, row in enumerate(rows):
        ends = [row[key] for protocol in PENS if (key := f"{protocol}_{column}") in row]
        axes.plot(ends, [at] * len(ends), color="#b9c3cb", linewidth=1.2, zorder=1)
    for protocol, pen in PENS.items():
        found = [
            (row[f"{protocol}_{column}"], at) for at, row in enumerate(rows) if f"{protocol}_{column}" in row
        ]
        xs, places = zip(*found, strict=True) if found else ((), ())
        axes.scatter(xs, places, color=pen.colour, marker=pen.marker, label=pen.label, zorder=2)
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)


def _finish(figure: Figure, axes: Axes, title: str) -> None:
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="upper right", ncols=2)
    figure.text(0.012, 0.975, title, fontsize=13, fontweight="bold", va="center")
    about = "means over seeds; one choice at a time, the other protocol under the same radio and publishing"
    figure.text(0.012, 0.948, about, fontsize=9, va="center")
    figure.subplots_adjust(left=0.19, right=0.985, top=0.9, bottom=0.07)
