"""Figures as data: panels of curves or bars under a title, and a line that describes the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from roamcast.lab.curves import Curve

GRID = "#e3e8ec"
SIZES = {1: (8.5, 4.8), 2: (11.0, 4.8), 3: (13.5, 4.8)}
"""Size of a figure in inches, by the number of panels side by side."""

Drawing = Callable[[Axes], None]


@dataclass(frozen=True)
class Pen:
    """Style of one curve, and its name in the legend."""

    label: str
    colour: str
    marker: str = "o"
    line: str = "-"


@dataclass(frozen=True)
class Panel:
    """One set of axes. `said` holds arguments of matplotlib's `Axes.set`: labels, scales and limits."""

    draw: Drawing
    said: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    ticks: Mapping[float, str] = field(default_factory=dict)
    """Positions on the x axis and their labels; matplotlib's own if empty."""
    legend: Mapping[str, Any] | None = None
    """Arguments of the legend; None for no legend."""
    room: float = 0.0
    """Height of the y axis as a multiple of the data's height, so that the legend covers no data; the axis
    starts at 0.
    """
    grid: Literal["both", "x", "y"] = "both"

    def finish(self, axes: Axes) -> None:
        """Label the axes."""
        axes.set(**self.said)
        if self.title:
            axes.set_title(self.title, loc="left", fontsize=10.5)
        if self.ticks:
            axes.set_xticks(list(self.ticks), list(self.ticks.values()))
            axes.minorticks_off()
        if self.room:
            axes.set_ylim(0, self.room * axes.get_ylim()[1])
        axes.grid(axis=self.grid, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        if self.legend is not None:
            handles, labels = axes.get_legend_handles_labels()
            # What was measured stands before what it is compared with.
            order = sorted(range(len(labels)), key=lambda at: not isinstance(handles[at], ErrorbarContainer))
            axes.legend(
                [handles[at] for at in order], [labels[at] for at in order],
                **{"frameon": False, "loc": "upper left", **self.legend},
            )  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """A figure that is drawn when it is called; without panels it stays empty."""

    title: str
    about: str
    panels: Sequence[Panel]
    columns: int = 0
    """Number of panels side by side; 0 means all."""
    size: tuple[float, float] | None = None
    share: Literal["none", "row", "all"] = "none"
    """Which panels share a y axis."""
    has_key: bool = False
    """True to draw the first panel's legend above all panels."""

    def __call__(self, figure: Figure) -> None:
        if not self.panels:
            return
        columns = self.columns or len(self.panels)
        lines = ceil(len(self.panels) / columns)
        fitting = SIZES.get(columns, SIZES[3]) if lines == 1 else (3.8 * columns + 0.4, 3.1 * lines + 0.6)
        figure.set_size_inches(*self.size or fitting)
        every = list(figure.subplots(lines, columns, squeeze=False, sharey=self.share).flat)
        for axes, panel in zip(every, self.panels, strict=True):
            panel.draw(axes)
        # Not before all are drawn: a shared axis would no longer follow what is drawn next.
        for axes, panel in zip(every, self.panels, strict=True):
            panel.finish(axes)
        _, height = figure.get_size_inches()
        if self.has_key:
            handles, labels = every[0].get_legend_handles_labels()
            figure.legend(
                handles, labels, loc="center right", bbox_to_anchor=(0.99, 1 - 0.48 / height),
                ncols=len(labels), frameon=False,
            )  # fmt: skip
        figure.text(0.012, 1 - 0.216 / height, self.title, fontsize=13, fontweight="bold", va="center")
        figure.text(0.012, 1 - 0.48 / height, self.about, fontsize=9, va="center")
        above = 0.576 if self.about or self.has_key else 0.36
        figure.tight_layout(rect=(0, 0, 1, 1 - above / height))


def curves(curves: Mapping[str, Curve], pens: Mapping[str, Pen], scale: float = 1.0) -> Drawing:
    """Draw the curves that have a pen, in the order of the pens; y is multiplied by `scale`."""

    def draw(axes: Axes) -> None:
        for name, pen in pens.items():
            if name not in curves:
                continue
            points = curves[name].points
            reach = [
                [scale * (point.mean - point.low) for point in points],
                [scale * (point.high - point.mean) for point in points],
            ]
            axes.errorbar(
                [point.x for point in points], [scale * point.mean for point in points], yerr=reach,
                label=pen.label, color=pen.colour, marker=pen.marker, linestyle=pen.line,
                linewidth=1.6, markersize=5, capsize=3, elinewidth=1,
            )  # fmt: skip

    return draw


def with_printed(draw: Drawing, pens: Mapping[str, Pen], printed: Mapping[str, Mapping[int, float]],
                 label: str = "printed") -> Drawing:  # fmt: skip
    """Extend a drawing by dotted lines with a document's printed values for each pen: x to y."""

    def drawn(axes: Axes) -> None:
        draw(axes)
        for name, points in printed.items():
            pen = pens[name]
            axes.plot(
                list(points), list(points.values()), color=pen.colour, marker=pen.marker, linestyle=":",
                markerfacecolor="white", linewidth=1.2, label=f"{pen.label}, {label}",
            )  # fmt: skip

    return drawn


Interval = tuple[float, float, float]
"""Height of a bar, and the bounds of its confidence interval."""


def bars(
    series: Mapping[str, Sequence[float | Interval]], colours: Sequence[str], *,
    across: bool = False, counted: bool = False,
) -> Drawing:  # fmt: skip
    """Draw groups of bars side by side, with one bar of each series per group; `across` draws them
    horizontally, one group below the other. `counted` is written above each bar.
    """
    width = 0.81 / len(series)

    def draw(axes: Axes) -> None:
        for number, ((label, found), colour) in enumerate(zip(series.items(), colours, strict=False)):
            places = [at + (number - (len(series) - 1) / 2) * width for at in range(len(found))]
            heights = [one[0] if isinstance(one, tuple) else one for one in found]
            draw_bars = axes.barh if across else axes.bar
            drawn = draw_bars(places, heights, 0.92 * width, color=colour, label=label)
            if counted:
                axes.bar_label(drawn, labels=[f"{height:,.0f}" for height in heights], fontsize=6, padding=2)
            known = [(at, one) for at, one in zip(places, found, strict=True) if isinstance(one, tuple)]
            reach = [[max(one[0] - one[1], 0) for _, one in known], [one[2] - one[0] for _, one in known]]
            middles = [at for at, _ in known], [one[0] for _, one in known]
            style: Any = {"fmt": "none", "ecolor": "#333333", "elinewidth": 1, "capsize": 3}
            if known and across:
                axes.errorbar(middles[1], middles[0], xerr=reach, **style)
            elif known:
                axes.errorbar(*middles, yerr=reach, **style)

    return draw


def named(names: Sequence[str]) -> dict[float, str]:
    """Return ticks with labels for groups of bars."""
    return dict(enumerate(names))


def runs_of(curves: Mapping[str, Curve]) -> str:
    """Describe in words how many runs the points average."""
    runs = sorted({point.runs for curve in curves.values() for point in curve.points})
    return in_words(*runs[:1], *runs[1:][-1:])


def in_words(*runs: int) -> str:
    if not runs or runs[-1] == 1:
        return "one run"
    return f"means of {' to '.join(map(str, runs))} runs with 95 % intervals"
