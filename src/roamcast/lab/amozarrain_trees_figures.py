"""Trees of the election, rule by rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from roamcast.lab.curves import GRID
from roamcast.lab.sweep import Row

COLOURS = {"plain": "#c8372d", "stable": "#1f6fb2", "balanced": "#2e7d4f"}
PANELS = ("changes", "tree_hops", "tree_children_most", "tree_branch_largest", "delivery_rate", "messages")


def draw_trees(figure: Figure, table: Sequence[Row], measured: Mapping[str, str]) -> None:
    cases = sorted({row["case"] for row in table}, key=lambda case: (case.split(", C")[0], len(case), case))
    figure.set_size_inches(14, 8.2)
    panels = figure.subplots(2, 3, sharey=True).flatten()
    for axes, key in zip(panels, PANELS, strict=True):
        for index, (rule, colour) in enumerate(COLOURS.items()):
            rows = [row for row in table if row["rule"] == rule and row[key]]
            places = [cases.index(row["case"]) + 0.25 * (index - 1) for row in rows]
            means = [row[key][0] for row in rows]
            # A single run has no interval.
            lows, highs = zip(*((*row[key], *row[key] * 2)[1:3] for row in rows), strict=True)
            reach = [np.subtract(means, lows), np.subtract(highs, means)]
            axes.barh(places, means, 0.23, color=colour, label=rule)
            axes.errorbar(means, places, xerr=reach, fmt="none", ecolor="#333333", elinewidth=0.9, capsize=2)
        axes.set_xlabel(measured[key])
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(color=GRID, linewidth=0.6, axis="x")
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(cases)), cases)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="upper right", ncols=3)
    figure.text(
        0.012,
        0.975,
        "Trees of the election: plain, stable, balanced",
        fontsize=13,
        fontweight="bold",
        va="center",
    )
    figure.text(0.012, 0.945, "means over seeds with 95 % intervals", fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.93))
