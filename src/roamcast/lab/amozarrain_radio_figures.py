"""Figures 4.4 to 4.8 of Amozarrain 2021, drawn from measured curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roamcast.lab.curves import GRID, Curve, Pen, draw
from roamcast.lab.sweep import Row

PENS = {"mft": Pen("MFT-PubSub", "#1f6fb2", "o"), "aodv": Pen("AODV", "#c8372d", "s")}
SPEED_PENS = {
    "2 m/s": Pen("2 m/s", "#9ecae1", "o"),
    "4 m/s": Pen("4 m/s", "#6baed6", "s"),
    "6 m/s": Pen("6 m/s", "#3182bd", "^"),
    "8 m/s": Pen("8 m/s", "#08519c", "D"),
    "10 m/s": Pen("10 m/s", "#041f4a", "v"),
}
SIZE_LABEL = "configuration (brokers)"


def draw_fig44(figure: Figure, rates: Mapping[str, Mapping[str, Curve]], length_s: float) -> None:
    figure.set_size_inches(11, 4.8)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (protocol, curves) in zip(panels, rates.items(), strict=True):
        draw(axes, curves, SPEED_PENS, scale=100)
        _sizes(axes, curves)
        axes.set_title(PENS[protocol].label, loc="left", fontsize=10.5)
        axes.set_ylim(0, 104)
    panels[0].set_ylabel("delivered of what was owed, %")
    panels[0].legend(frameon=False, loc="lower left")
    every = {f"{protocol} {name}": curve for protocol, some in rates.items() for name, curve in some.items()}
    _finish(figure, "Delivery rate against the size of the network, figure 4.4", every, length_s)


def draw_fig45(
    figure: Figure, by_size: Mapping[str, Curve], by_speed: Mapping[str, Curve], length_s: float
) -> None:
    figure.set_size_inches(11, 4.8)
    left, right = figure.subplots(1, 2)
    draw(left, by_size, PENS)
    _sizes(left, by_size)
    left.set_title("(a) at 8 m/s", loc="left", fontsize=10.5)
    draw(right, by_speed, PENS)
    right.set_xlabel("speed, m/s")
    right.set_title("(b) C16", loc="left", fontsize=10.5)
    for axes in (left, right):
        axes.set_ylabel("notifications delivered in a run")
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    left.legend(frameon=False, loc="upper left")
    _finish(figure, "Notifications delivered, figure 4.5", by_size, length_s)


def draw_fig46(figure: Figure, delays: Mapping[str, Curve], length_s: float) -> None:
    _draw_single(
        figure, delays, "published to delivered, mean, s", "End-to-end delay at 8 m/s, figure 4.6", length_s
    )


def draw_fig47(
    figure: Figure, means: Mapping[str, Curve], maxima: Mapping[str, Curve], length_s: float
) -> None:
    figure.set_size_inches(11, 4.8)
    left, right = figure.subplots(1, 2)
    titles = ("(a) mean of a run", "(b) most in a run")
    for axes, curves, title in zip((left, right), (means, maxima), titles, strict=True):
        draw(axes, curves, PENS)
        _sizes(axes, curves)
        axes.set_ylabel("hops of a delivered notification")
        axes.set_ylim(bottom=0)
        axes.set_title(title, loc="left", fontsize=10.5)
    left.legend(frameon=False, loc="lower right")
    _finish(figure, "Hops at 8 m/s, figure 4.7", means, length_s)


def draw_fig48(figure: Figure, messages: Mapping[str, Curve], length_s: float) -> None:
    _draw_single(
        figure, messages, "messages sent by a node in a run", "Messages sent at 8 m/s, figure 4.8", length_s
    )


def _draw_single(
    figure: Figure, curves: Mapping[str, Curve], label: str, title: str, length_s: float
) -> None:
    """Over the sizes, on a logarithmic axis as in the thesis."""
    axes = figure.subplots()
    draw(axes, curves, PENS)
    axes.set_yscale("log")
    _sizes(axes, curves)
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="upper left")
    _finish(figure, title, curves, length_s)


def draw_load(figure: Figure, rows: Sequence[Row], length_s: float) -> None:
    """Who sends how much under MFT-PubSub: by role, and by distance from the leader."""
    figure.set_size_inches(11, 4.8)
    left, right = figure.subplots(1, 2)
    mft = [row for row in rows if row["protocol"] == "mft"]
    sizes = sorted({row["brokers"] for row in mft})
    places = range(len(sizes))
    colours = {"broker": "#1f6fb2", "publisher": "#2e7d4f", "subscriber": "#c8372d"}
    for index, (role, colour) in enumerate(colours.items()):
        heights = [_mean(mft, size, f"messages_per_{role}") for size in sizes]
        left.bar([at + 0.27 * (index - 1) for at in places], heights, 0.25, color=colour, label=f"{role}s")
    left.set_xticks(list(places), [f"C{size}" for size in sizes])
    left.set_xlabel(SIZE_LABEL)
    left.set_ylabel("messages sent by a node in a run")
    left.legend(frameon=False, loc="upper left")
    shades = ("#9ecae1", "#3182bd", "#08306b")
    for index, (size, colour) in enumerate(zip([size for size in sizes if size >= 8], shades, strict=False)):
        heights = [_mean(mft, size, f"load_at_{hops}_hops") for hops in range(4)]
        right.bar(
            [hops + 0.27 * (index - 1) for hops in range(4)], heights, 0.25, color=colour, label=f"C{size}"
        )
    right.set_xticks(range(4), ["leader", "1", "2", "3 or more"])
    right.set_xlabel("hops from the leader")
    right.set_ylabel("messages sent by a broker in a second")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(color=GRID, linewidth=0.6, axis="y")
        axes.set_axisbelow(True)
    runs = max((sum(row["brokers"] == size for row in mft) for size in sizes), default=0)
    _title(figure, "Who sends how much at 8 m/s under MFT-PubSub", f"means of {runs} runs", length_s)


def _mean(rows: Sequence[Row], size: int, column: str) -> float:
    values = [row[column] for row in rows if row["brokers"] == size and row[column] is not None]
    return fmean(values) if values else 0.0


def _sizes(axes: Axes, curves: Mapping[str, Curve]) -> None:
    axes.set_xscale("log", base=2)
    sizes = sorted({x for curve in curves.values() for x in curve.xs})
    axes.set_xticks(sizes, [f"C{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(SIZE_LABEL)


def _finish(figure: Figure, title: str, curves: Mapping[str, Curve], length_s: float) -> None:
    runs = sorted({point.runs for curve in curves.values() for point in curve.points})
    counted = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    _title(figure, title, f"means of {counted} runs with 95 % intervals", length_s)


def _title(figure: Figure, title: str, setting: str, length_s: float) -> None:
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    about = f"{setting}, of {length_s:g} s each; setting of Amozarrain 2021, section 4.5.2"
    figure.text(0.012, 0.9, about, fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))
