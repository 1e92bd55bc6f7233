"""Pictures of learned movement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET, STYLE, save

MODELS = {
    "second": ("second order: where from, where now", ARRIVED, "o"),
    "first": ("first order: where now", "#2a9d6f", "s"),
    "lru": ("online, last used destinations", LOST, "^"),
    "busiest": ("the busiest brokers, wherever one is", QUIET, "x"),
}
GRID = "#e3e8ec"


def save_figures(about: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw hit rates, residence times, the chain and the hot spots; return the files."""
    files: list[Path] = []
    for name, draw in (
        ("hit_rates", draw_hit_rates), ("residence_times", draw_residence), ("presence", draw_presence),
        ("hot_spots", draw_hot_spots),
    ):  # fmt: skip
        with mpl.rc_context(STYLE):
            figure = Figure(figsize=(7.2, 4.6), dpi=160, facecolor="white")
            FigureCanvasAgg(figure)
            axes = figure.subplots()
            if not draw(axes, about):
                continue
            axes.grid(color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            figure.tight_layout()
            files += save(figure, folder / name)
    return files


def draw_hit_rates(axes: Axes, about: Mapping[str, Any]) -> bool:
    rows = about["hit_rates"]
    for name, (label, colour, marker) in MODELS.items():
        axes.plot(
            [row["k"] for row in rows], [100 * row[name] for row in rows], color=colour, marker=marker,
            markersize=5, label=label,
        )  # fmt: skip
    axes.set_xlabel("k, brokers that are predicted")
    axes.set_ylabel("next broker is among them, % of later moves")
    axes.set_ylim(0, 100)
    axes.set_title("Prediction of the next broker", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return bool(rows)


def draw_residence(axes: Axes, about: Mapping[str, Any]) -> bool:
    residence = about["residence"]
    if not residence["visits"]:
        return False
    quantiles = residence["quantiles_s"]
    hours = [value / 3600 for _, value in quantiles]
    axes.step(hours, [1 - share for share, _ in quantiles], where="post", color=ARRIVED, label="measured")
    ends = [hours[-1] * step / 100 for step in range(101)]
    fitted = [math.exp(-3600 * hour / residence["mean_s"]) for hour in ends]
    axes.plot(ends, fitted, color=INK, linestyle=(0, (4, 3)), label="exponential of the same mean")
    axes.set_yscale("log")
    axes.set_ylim(5e-4, 1.2)
    axes.set_xlabel("residence time, hours")
    axes.set_ylabel("share of visits that last longer, logarithmic")
    axes.set_title("How long clients stay", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9)
    return True


def draw_presence(axes: Axes, about: Mapping[str, Any]) -> bool:
    rows = about["chain"]["brokers"].values()
    for name, colour, marker in (("even chain", QUIET, "x"), ("fitted chain", ARRIVED, "o")):
        known = [row for row in rows if name in row]
        error = about["chain"]["error"].get(name)
        if known and error is not None:
            axes.scatter(
                [100 * row["measured"] for row in known], [100 * row[name] for row in known], color=colour,
                marker=marker, s=22, label=f"{name}: {100 * error:.0f} % of the time at a wrong broker",
            )  # fmt: skip
    most = 105 * max((max(row.values()) for row in rows), default=0.0)
    axes.plot([0, most], [0, most], color=INK, linewidth=1, linestyle=(0, (4, 3)), label="as measured")
    axes.set_xlabel("attached time at a broker in the later period, %")
    axes.set_ylabel("by the chain of the earlier period, %")
    axes.set_title("Where clients are: Markov chains and later truth", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=9)
    return bool(rows)


def draw_hot_spots(axes: Axes, about: Mapping[str, Any]) -> bool:
    spots = about["hot_spots"][:12][::-1]
    axes.barh([row["broker"] for row in spots], [100 * row["share"] for row in spots], color=ARRIVED)
    for place, row in enumerate(spots):
        axes.annotate(
            f" {row['most_at_once']} at once", (100 * row["share"], place), va="center", fontsize=8, color=INK
        )
    axes.margins(x=0.15)
    axes.set_xlabel("share of all attached time, %")
    axes.set_ylabel("broker")
    axes.set_title("Hot spots", loc="left", fontweight="bold")
    return bool(spots)
