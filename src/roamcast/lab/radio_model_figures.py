"""Figures of the radio model: reception over distance, and how much of the area stations see."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from roamcast.lab.curves import Pen, curves_of, draw
from roamcast.lab.figures import AWAY, INK, QUIET
from roamcast.lab.sweep import Row

MODEL_PENS = {
    "random walk": Pen("random walk", "#c8372d", "s"),
    "random waypoint": Pen("random waypoint", "#1f6fb2", "o"),
}


def draw_reception(figure: Figure, curve: Sequence[Row], edges_m: tuple[float, float]) -> None:
    axes = figure.subplots()
    xs = [row["distance_m"] for row in curve]
    axes.axvspan(*edges_m, color=AWAY, zorder=0)
    axes.text(sum(edges_m) / 2, 1.06, "transitional region", ha="center", fontsize=9, color=INK)
    axes.text(edges_m[0] / 2, 1.06, "connected", ha="center", fontsize=9, color=INK)
    axes.text((edges_m[1] + 124.0) / 2, 1.06, "disconnected", ha="center", fontsize=9, color=INK)
    axes.plot(
        xs, [row["expected"] for row in curve], color=INK, label="expected: path loss, shadowing, 802.15.4"
    )
    reach = [
        [row["received"] - row["low"] for row in curve],
        [row["high"] - row["received"] for row in curve],
    ]
    axes.errorbar(
        xs, [row["received"] for row in curve], yerr=reach, fmt="o", color="#1f6fb2", markersize=5, capsize=3,
        label="measured on the simulated channel",
    )  # fmt: skip
    axes.plot(
        xs, [row["without_shadowing"] for row in curve], color=QUIET, linestyle="--",
        label="expected without shadowing",
    )  # fmt: skip
    axes.set_xlabel("distance, m")
    axes.set_ylabel("share of frames received")
    axes.set_ylim(0, 1.12)
    axes.set_xlim(0, 124)
    axes.legend(frameon=False, loc="center right", fontsize=9)
    _title(
        figure, "Packet reception over distance, CC2420 at 0 dBm", "frames of 51 bytes, nobody else sending"
    )


def draw_coverage(figure: Figure, rows: Sequence[Row]) -> None:
    figure.set_size_inches(11, 4.8)
    left, right = figure.subplots(1, 2)
    draw(left, curves_of(rows, "model", "speed", "covered"), MODEL_PENS, scale=100)
    left.set_ylabel("area that a station has been in after 700 s, %")
    draw(right, curves_of(rows, "model", "speed", "from_start_m"), MODEL_PENS)
    right.set_ylabel("distance from where it started, m")
    for axes in (left, right):
        axes.set_xlabel("speed, m/s")
        axes.set_ylim(bottom=0)
    left.legend(frameon=False, loc="upper left")
    _title(figure, "Why random walk was dropped", "C32, 110 m square, cells of 5 m")


def _title(figure: Figure, title: str, setting: str) -> None:
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    figure.text(0.012, 0.9, setting, fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))
