"""The picture of `roamcast bench handoff --rtt`: how long a client waits, by the round trip of links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.bench.broker_figure import STYLE

LINES = {
    "relocation": ("#b8860b", "-"),
    "multi_hop_handoff": ("#1f6fb2", (0, (5, 3))),
    "roam_miss": ("#e39a93", (0, (1, 2))),
    "proactive": ("#7fb069", "-"),
    "roam_hit": ("#c8372d", "-"),
    "resume": ("#22303c", (0, (1, 2))),
}
"""Colours and dashes, so that overlapping lines remain visible; later ones are drawn on top."""
FLOOR_MS = 0.5
"""Values below this are drawn as equal."""


def write_figure(result: dict[str, Any], path: Path) -> None:
    """Draw a row of axes for each loss, and columns for CONNACK and for the first message of each queue."""
    cases = result["cases"]
    losses = sorted({case["loss"] for case in cases})
    columns: list[tuple[str, int]] = [("connack", min(case["queued"] for case in cases))]
    columns += [("first_message", count) for count in sorted({case["queued"] for case in cases}) if count]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(columns), 0.9 + 3.0 * len(losses)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(losses), len(columns), squeeze=False, sharex=True, sharey=True)
        for loss, row in zip(losses, grid, strict=True):
            for (what, queued), axes in zip(columns, row, strict=True):
                chosen = [case for case in cases if (case["loss"], case["queued"]) == (loss, queued)]
                _draw(axes, chosen, what)
                is_first = what == "first_message"
                title = f"first of {queued:,} messages" if is_first else f"until CONNACK, {queued:,} queued"
                axes.set_title(title + (f", {loss:.0%} lost" if loss else ""), loc="left", fontsize=9)
        for axes in grid[-1]:
            axes.set_xlabel("round trip of a link, ms")
        for axes in grid[:, 0]:
            axes.set_ylabel("ms (logarithmic)")
        labels = dict(zip(*reversed(grid[0][0].get_legend_handles_labels()), strict=True))
        figure.legend(
            labels.values(), labels.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
        )
        figure.suptitle(
            "A client comes back: medians; a band spans the hops", x=0.01, ha="left", fontweight="bold"
        )
        figure.savefig(path, dpi=150)


def _draw(axes: Any, cases: list[dict[str, Any]], what: str) -> None:
    for kind, (colour, dashes) in LINES.items():
        times: dict[float, list[float]] = {}
        for case in cases:
            if case["kind"] == kind and case[what] is not None:
                times.setdefault(case["rtt_ms"], []).append(max(FLOOR_MS, case[what]["p50_ms"]))
        if times:
            rtts = sorted(times)
            low, high = [min(times[rtt]) for rtt in rtts], [max(times[rtt]) for rtt in rtts]
            name = kind.replace("_", " ")
            axes.plot(rtts, low, "o", linestyle=dashes, color=colour, ms=3, linewidth=1.8, label=name)
            axes.fill_between(rtts, low, high, color=colour, alpha=0.1, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    rtts = sorted({case["rtt_ms"] for case in cases})
    axes.set_xticks(rtts, [f"{rtt:g}" for rtt in rtts])
    axes.minorticks_off()
