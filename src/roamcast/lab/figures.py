"""Pictures of runs: drawn without a window, the same bytes for the same data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.protocol.records import Row

INK = "#22303c"
QUIET = "#8a97a3"
AWAY = "#eef1f4"
ARRIVED = "#1f6fb2"
LOST = "#c8372d"

# Any, because what type its keys have differs between versions of matplotlib.
STYLE: Any = {
    "font.family": "DejaVu Sans",  # matplotlib brings it along, so it is there on every machine
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "svg.hashsalt": "roamcast",  # without it, names inside the file differ from run to run
}


@dataclass(frozen=True)
class Trace:
    """Trip of one client: when each notification was published, and when it arrived; times in seconds."""

    label: str
    notifications: tuple[tuple[float, float | None], ...]
    """In publishing order: (published, arrived); arrived is None for lost notifications."""
    left_s: float
    attached_s: float
    detached_s: float | None = None
    """Time at which the broker noticed the detach, if leaving took a while."""

    @property
    def lost(self) -> int:
        return sum(arrived_s is None for _, arrived_s in self.notifications)

    @property
    def stored(self) -> list[float]:
        """Return the arrival times of notifications published while the client was away."""
        return [
            arrived_s
            for published_s, arrived_s in self.notifications
            if arrived_s is not None and arrived_s >= self.attached_s > published_s
        ]


def trace_of(rows: Iterable[Row], client: str, label: str, start_s: float = 0.0) -> Trace:
    """Build the trip of a client that is away once from a run in which every notification is for that client.

    Times are counted from `start_s`.
    """
    published: dict[tuple[str, int], float] = {}
    arrived: dict[tuple[str, int], float] = {}
    left_s = attached_s = 0.0
    for row in rows:
        if row.kind == "published":
            published[row.publisher or "", row.number or 0] = row.time - start_s
        elif row.kind == "delivered" and row.client == client:
            for offset in range(row.notifications or 1):
                # The first arrival counts; a duplicate is no point of the trace.
                arrived.setdefault((row.publisher or "", (row.number or 0) + offset), row.time - start_s)
        elif row.kind == "moved" and row.client == client and row.reason is not None:
            if row.reason == "left":
                left_s = row.time - start_s
            else:
                attached_s = row.time - start_s
    ordered = sorted(published.items(), key=lambda item: item[1])
    return Trace(label, tuple((at, arrived.get(identity)) for identity, at in ordered), left_s, attached_s)


def draw_departure_arrival(traces: Sequence[Trace], title: str, setting: str) -> Figure:
    """Departure/arrival traces side by side (Caporuscio et al. section 4.2, fig. 8).

    Each point is a notification: x is the time of publishing, y the time of arrival. Points are joined in
    publishing order; a lost notification interrupts the line.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.8), dpi=160, facecolor="white")
        FigureCanvasAgg(figure)
        figure.subplots_adjust(left=0.065, right=0.985, top=0.755, bottom=0.195, wspace=0.07)
        panels = figure.subplots(1, len(traces), sharex=True, sharey=True, squeeze=False)[0]
        for axes, trace in zip(panels, traces, strict=True):
            draw_trace(axes, trace)
        panels[0].set_ylabel("arrived at the client, time in s")
        figure.text(0.065, 0.95, title, fontsize=15, fontweight="bold", va="center")
        figure.text(0.065, 0.895, setting, fontsize=10, color="#5b6975", va="center")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0.055, 0.01), ncols=len(labels), frameon=False
        )
    return figure


def draw_trace(axes: Axes, trace: Trace, *, has_note: bool = True) -> None:
    times_s = [published_s for published_s, _ in trace.notifications]
    end_s = max(times_s[-1], *(arrived_s for _, arrived_s in trace.notifications if arrived_s is not None))
    axes.set_title(trace.label, loc="left", fontsize=11.5, fontweight="bold", pad=23)
    gone_s = trace.left_s if trace.detached_s is None else trace.detached_s
    axes.axvspan(gone_s, trace.attached_s, color=AWAY, zorder=0)
    for at_s, name in ((trace.left_s, "move-out"), (trace.attached_s, "move-in")):
        axes.axvline(at_s, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            f"{name}, {at_s:.0f} s", (at_s, 1), (0, 4), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", va="bottom", fontsize=9,
        )  # fmt: skip
    axes.plot([0, end_s], [0, end_s], color="#c3ccd4", linewidth=1, zorder=1, label="arrives at once")
    _draw_joined(axes, trace)
    lost_s = [published_s for published_s, arrived_s in trace.notifications if arrived_s is None]
    # Where it would have been had it arrived at once: the crosses show the way on over the gap.
    axes.scatter(
        lost_s, lost_s, marker="x", s=30, linewidths=1.4, color=LOST, zorder=3, label="lost: never arrived"
    )
    if has_note:
        _note(axes, trace)
    axes.set_xlabel("published, time in s")
    axes.set_xlim(0, end_s + 0.5)
    axes.set_ylim(0, end_s + 0.5)
    axes.grid(color="#e3e8ec", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)


def _draw_joined(axes: Axes, trace: Trace) -> None:
    label: str | None = "arrived, joined in publishing order"
    for has_arrived, group in groupby(trace.notifications, key=lambda one: one[1] is not None):
        if has_arrived:
            published_s, arrived_s = zip(*group, strict=True)
            axes.plot(
                published_s, arrived_s,
                color=ARRIVED, linewidth=1.3, marker="o", markersize=3.6, zorder=2, label=label,
            )  # fmt: skip
            label = None  # One entry in the legend is enough.


def _note(axes: Axes, trace: Trace) -> None:
    """Write a short note beside the important part of the trace."""
    middle_s = (trace.left_s + trace.attached_s) / 2
    stored = trace.stored
    if trace.lost:
        text, colour, at = f"{trace.lost} of {len(trace.notifications)} lost", LOST, (middle_s, middle_s)
        place = (middle_s, middle_s - 6.0)
    elif stored:
        all_here_s = max(stored) - trace.attached_s
        text = f"none lost:\n{len(stored)} were stored and\ncame within {all_here_s:.1f} s"
        colour, at = ARRIVED, (middle_s, min(stored))
        place = (middle_s, trace.attached_s + 6.2)
    else:
        return
    axes.annotate(
        text, at, place, ha="center", va="center", fontsize=10, color=colour, fontweight="bold",
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.8, "shrinkB": 7},
    )  # fmt: skip


def save(figure: Figure, path: Path) -> list[Path]:
    """Write the figure as PNG and SVG under this name; return the two files."""
    files = [save_png(figure, path), path.with_suffix(".svg")]
    with mpl.rc_context(STYLE):
        figure.savefig(files[1], metadata={"Date": None})
    return files


def save_png(figure: Figure, path: Path, dots_per_inch: float | None = None) -> Path:
    file = path.with_suffix(".png")
    with mpl.rc_context(STYLE):
        figure.savefig(file, metadata={"Software": None}, dpi=dots_per_inch or "figure")
    return file
