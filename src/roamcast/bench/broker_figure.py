"""The picture of `roamcast bench broker`: the throughput as a multiple of the others', and the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, QUIET, ASKED = "#22303c", "#8a97a3", "#c8372d"
COLOURS = {"mosquitto": "#1f6fb2", "amqtt": "#7fb069"}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.color": QUIET,
    "ytick.labelcolor": INK,
}
BAR = 0.38


def write_figure(result: dict[str, Any], path: Path) -> bool:
    """Draw the picture; return whether there was a broker to compare with."""
    rows = [row for row in result["cases"] if row["against"]]
    names = [name for name in COLOURS if any(name in row["against"] for row in rows)]
    if not names:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.6 + 0.55 * len(rows)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for place, name in enumerate(names):
            _draw_bars(axes, rows, name, place - (len(names) - 1) / 2)
        axes.axvline(1, color=QUIET, linewidth=1)
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_xlabel("messages per second: how many times the other broker's (logarithmic)")
        axes.set_title("Roamcast on one core, under the same load", loc="left", fontweight="bold")
        figure.legend(loc="outside lower center", ncols=len(names) + 1, frameon=False)
        figure.savefig(path, dpi=150)
    return True


def _draw_bars(axes: Any, rows: list[dict[str, Any]], name: str, offset: float) -> None:
    found = [(index, row["against"][name]) for index, row in enumerate(rows) if name in row["against"]]
    heights = [index + offset * BAR for index, _ in found]
    ratios = [one["ratio"] for _, one in found]
    targets = [one["target"] for _, one in found]
    axes.barh(heights, ratios, BAR, left=0, color=COLOURS[name], label=f"against {name}")
    for height, ratio, target in zip(heights, ratios, targets, strict=True):
        # Behind the mark, where the bar ends before it.
        axes.text(max(ratio, target) * 1.06, height, f"{ratio:.3g}", va="center", fontsize=8)
    label = "asked for" if name == "mosquitto" else None
    axes.plot(targets, heights, "|", color=ASKED, ms=13, mew=2.2, label=label)


def _label(row: dict[str, Any]) -> str:
    journal = f", {row['journal']}" if row["qos"] else ""
    return f"{row['case']}\nQoS {row['qos']}{journal}"
