"""Routing strategies side by side, drawn."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from roamcast.lab.curves import GRID
from roamcast.lab.sweep import Row

COLOURS = {"simple": "#8a97a3", "identity": "#9cc3e4", "covering": "#1f6fb2", "merging": "#2e7d4f"}
LABELS = {
    "nested": "nested\n(ranges within ranges)",
    "ranges": "ranges\n(they overlap)",
    "groups": "groups\n(equal or apart)",
}
WIDTH = 0.2


def draw_routing(
    figure: Figure, rows: Sequence[Row], strategies: Sequence[str], workloads: Sequence[str]
) -> None:
    """Table sizes and control traffic, one bar for each strategy and workload."""
    figure.set_size_inches(11, 4.8)
    tables, control = figure.subplots(1, 2)
    shown = [name for name in workloads if any(row["workload"] == name for row in rows)]
    _bars(tables, rows, strategies, shown, "table_entries")
    tables.set_ylabel("routing entries, all brokers together")
    _bars(control, rows, strategies, shown, "control_hops")
    control.set_ylabel("hops of subscribing and unsubscribing")
    for axes in (tables, control):
        axes.set_xticks(range(len(shown)), [LABELS.get(name, name) for name in shown])
        axes.set_xlabel("workload")
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    tables.legend(frameon=False, ncols=4, fontsize=9, loc="upper left")
    title = "Table size and control traffic under each routing strategy"
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    runs = rows[0]["runs"] if rows else 0
    setting = "a quarter of the clients roam, under sub_unsub"
    figure.text(0.012, 0.9, f"means of {runs} runs; {setting}", fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))


def _bars(
    axes: Axes, rows: Sequence[Row], strategies: Sequence[str], workloads: Sequence[str], name: str
) -> None:
    sizes = {(row["workload"], row["strategy"]): row[name] for row in rows}
    for index, strategy in enumerate(strategies):
        places = [place + (index - (len(strategies) - 1) / 2) * WIDTH for place in range(len(workloads))]
        heights = [sizes[workload, strategy] for workload in workloads]
        bars = axes.bar(places, heights, WIDTH * 0.92, color=COLOURS[strategy], label=strategy)
        axes.bar_label(bars, labels=[f"{height:,.0f}" for height in heights], fontsize=6, padding=2)
