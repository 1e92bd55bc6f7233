"""Figures 5 and 6 of Wang et al. 2007, drawn from measured curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from roamcast.lab.curves import Curve, Pen, curves_of, draw
from roamcast.lab.figures import QUIET
from roamcast.lab.sweep import Row

PENS = {
    "multi_hop_handoff": Pen("multi-hop handoff", "#1f6fb2", "o"),
    "home_broker": Pen("home broker", "#c8372d", "s"),
    "sub_unsub": Pen("sub-unsub", "#2e7d4f", "^"),
}
FIG6_PENS = {
    **PENS,
    "sub_unsub identity nested": Pen("sub-unsub, nested filters, identity routing", "#8a6d1d", "v", "--"),
    "sub_unsub covering nested": Pen("sub-unsub, nested filters, covering routing", "#7a4fa3", "D", "--"),
}

PERIOD_LABEL = "mean connection period, s"
BROKERS_LABEL = "brokers"


def draw_fig5a(figure: Figure, curves: Mapping[str, Curve]) -> None:
    """As in the paper, and beside it with a logarithmic axis, on which the lower curves can be read."""
    figure.set_size_inches(11, 4.8)
    linear, logarithmic = figure.subplots(1, 2)
    for axes in (linear, logarithmic):
        axes.set_xscale("log")
        draw(axes, curves, PENS)
        axes.set_xlabel(PERIOD_LABEL)
        axes.set_ylabel("overhead per handoff, hops")
    linear.set_ylim(bottom=0)
    linear.set_title("as in figure 5(a)", loc="left", fontsize=10.5)
    logarithmic.set_yscale("log")
    logarithmic.set_title("the same, overhead on a logarithmic axis", loc="left", fontsize=10.5)
    linear.legend(frameon=False, loc="upper left")
    _finish(figure, "Message overhead per handoff against the connection period", runs_of(curves))


def draw_fig5b(figure: Figure, curves: Mapping[str, Curve]) -> None:
    axes = figure.subplots()
    axes.set_xscale("log")
    draw(axes, curves, PENS, scale=1000)
    axes.set_xlabel(PERIOD_LABEL)
    axes.set_ylabel("attach to first notification, ms")
    _finish_single(figure, "Handoff delay against the connection period, figure 5(b)", curves)


def draw_fig6a(figure: Figure, overhead: Mapping[str, Curve], signalling: Mapping[str, Curve]) -> None:
    figure.set_size_inches(11, 4.8)
    left, right = figure.subplots(1, 2)
    draw(left, overhead, FIG6_PENS)
    left.set_ylabel("overhead per handoff, hops")
    left.set_title("as in figure 6(a)", loc="left", fontsize=10.5)
    draw(right, {name: signalling[name] for name in signalling if name != "home_broker"}, FIG6_PENS)
    right.set_ylabel("per handoff, hops")
    right.set_title("of it, signalling (without transferred notifications)", loc="left", fontsize=10.5)
    for axes in (left, right):
        axes.set_xlabel(BROKERS_LABEL)
        axes.set_ylim(bottom=0)
    left.legend(frameon=False, loc="upper left", fontsize=8.5)
    _finish(figure, "Message overhead per handoff against the size of the network", runs_of(overhead))


def draw_fig6b(figure: Figure, curves: Mapping[str, Curve], rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    draw(axes, curves, PENS, scale=1000)
    distances = {
        "mean distance": ("mean_distance_hops", ":"), "longest distance (diameter)": ("diameter_hops", "-."),
    }  # fmt: skip
    for label, (column, line) in distances.items():
        (curve,) = curves_of([{**row, "all": ""} for row in rows], "all", "brokers", column).values()
        times_ms = [20 * hops for hops in curve.means]
        axes.plot(curve.xs, times_ms, color=QUIET, linestyle=line, label=f"{label}, there and back")
    axes.set_xlabel(BROKERS_LABEL)
    axes.set_ylabel("attach to first notification, ms")
    _finish_single(figure, "Handoff delay against the size of the network, figure 6(b)", curves)


def runs_of(curves: Mapping[str, Curve]) -> int:
    return max((point.runs for curve in curves.values() for point in curve.points), default=0)


def _finish_single(figure: Figure, title: str, curves: Mapping[str, Curve]) -> None:
    (axes,) = figure.axes
    # Room above the curves, so that the legend covers none of them.
    axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
    handles, labels = axes.get_legend_handles_labels()
    # What was measured stands before what it is compared with.
    order = sorted(range(len(labels)), key=lambda place: not isinstance(handles[place], ErrorbarContainer))
    axes.legend(
        [handles[place] for place in order], [labels[place] for place in order],
        frameon=False, loc="upper left", ncols=2 if len(order) > 3 else 3, fontsize=9,
    )  # fmt: skip
    _finish(figure, title, runs_of(curves))


def _finish(figure: Figure, title: str, runs: int) -> None:
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    setting = f"means of {runs} runs with 95 % intervals" if runs > 1 else "one run"
    figure.text(0.012, 0.9, f"{setting}; setting of Wang et al. 2007, section 5.1", fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))
