"""A replay as one picture, for people without a browser."""

from __future__ import annotations

import cmath
import math
from collections import Counter
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import networkx as nx
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogFormatter

from roamcast.errors import InputError
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET, STYLE
from roamcast.view.replay import Place, Replay, figures_by_bucket

GRID = "#e3e8ec"
DURATIONS = ((50.0, "under 50 ms", "#1b9e77"), (250.0, "50 to 250 ms", "#2b6cd4"),
             (1000.0, "250 ms to 1 s", "#d98200"), (math.inf, "1 s or more", "#c21d5a"))  # fmt: skip
"""Classes of handoff durations, with the page's colours."""
NAMES_MAX = 40


def draw(replay: Replay, file: Path) -> None:
    """Draw the picture as PNG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 7.6), dpi=110, facecolor="white")
        FigureCanvasAgg(figure)
        panels = figure.subplot_mosaic("NNTT;NNTT;NNHH;NNHH;WWLL", gridspec_kw={"hspace": 0.9, "wspace": 0.5})
        _draw_network(panels["N"], replay)
        figures = list(figures_by_bucket(replay))
        times = [number * replay.width_s for number in range(len(figures))]
        _draw_lines(
            panels["T"], times, "Throughput, notifications per s",
            {"published": ([one["received_per_s"] for one in figures], QUIET),
             "delivered": ([one["delivered_per_s"] for one in figures], ARRIVED)},
        )  # fmt: skip
        _draw_handoffs(panels["H"], replay)
        _draw_lines(panels["W"], times, "Waiting, notifications", {"": (_waiting(replay), ARRIVED)})
        _draw_lines(panels["L"], times, "Lost so far", {"": ([one["lost"] for one in figures], LOST)})
        for name in ("H", "W", "L"):
            panels[name].set_xlabel("seconds since the beginning")
        for name in ("T", "H", "W", "L"):
            panels[name].set_xlim(0, max(replay.end_s - replay.start_s, replay.width_s))
        figure.suptitle(answer(replay), x=0.02, y=0.985, ha="left", fontweight="bold", fontsize=13)
        figure.subplots_adjust(left=0.05, right=0.98, top=0.9, bottom=0.08)
        try:
            figure.savefig(file, format="png", metadata={"Software": None})
        except OSError as error:
            raise InputError(f"{file}: {(error.strerror or str(error)).lower()}") from None


def answer(replay: Replay) -> str:
    """Summarise the run in one sentence."""
    totals = replay.totals()
    lost = f"{totals['lost']:,} lost" if totals["lost"] else "nothing lost"
    repeated = f"{totals['repeated']:,} repeated" if totals["repeated"] else "nothing repeated"
    handoffs = f"{totals['handoffs']:,} handoff{'s' * (totals['handoffs'] != 1)}"
    return f"{replay.name}: {totals['owed']:,} deliveries owed, {lost}, {repeated}; {handoffs}"


def _waiting(replay: Replay) -> list[float]:
    total, waiting = 0, []
    for changed in replay.ledger.waiting:
        total += sum(changed.values())
        waiting.append(float(total))
    return waiting


def _draw_lines(
    axes: Axes, times: list[float], title: str, series: dict[str, tuple[list[float], str]]
) -> None:
    for name, (values, colour) in series.items():
        axes.plot(times, values, color=colour, linewidth=1.2, label=name)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylim(0, max(1.1 * max(max(values) for values, _ in series.values()), 1.0))
    axes.grid(color=GRID, linewidth=0.6)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2)


def _draw_handoffs(axes: Axes, replay: Replay) -> None:
    axes.set_title("Handoffs: how long each took, ms", loc="left", fontsize=10)
    axes.grid(color=GRID, linewidth=0.6)
    if not replay.handoffs:
        axes.text(0.5, 0.5, "no handoffs", transform=axes.transAxes, ha="center", color=QUIET)
        axes.set_yticks([])
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.2, 0.5)))
    below = 0.0
    for limit, name, colour in DURATIONS:
        found = [one for one in replay.handoffs if below <= one.duration_ms < limit]
        below = limit
        if found:
            at = [one.end_s - replay.start_s for one in found]
            axes.plot(
                at, [max(one.duration_ms, 0.1) for one in found], ".", color=colour, label=name, markersize=5
            )
    axes.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=4)


def _draw_network(axes: Axes, replay: Replay) -> None:
    axes.set_title("Brokers, and the handoffs between them", loc="left", fontsize=10)
    axes.set_axis_off()
    places = _places(replay)
    for a, b in replay.links:
        axes.plot(*zip(places[a], places[b], strict=True), color=QUIET, linewidth=1, zorder=1)
    pairs = Counter((one.origin, one.target) for one in replay.handoffs if one.origin != one.target)
    most = max(pairs.values(), default=1)
    for (origin, target), count in pairs.items():
        axes.annotate(
            "", places[target], places[origin],
            arrowprops={"arrowstyle": "-|>", "color": ARRIVED, "alpha": 0.25 + 0.6 * count / most,
                        "linewidth": 0.6 + 2.4 * count / most, "connectionstyle": "arc3,rad=0.22",
                        "shrinkA": 8, "shrinkB": 8},
        )  # fmt: skip
    across, up = zip(*places.values(), strict=True)
    axes.scatter(across, up, s=110, color=INK, zorder=3)
    for name, (x, y) in list(places.items())[:NAMES_MAX]:
        label = axes.annotate(
            name, (x, y), (0, -18), textcoords="offset points", ha="center", fontsize=9, zorder=4
        )
        label.set_path_effects([withStroke(linewidth=3, foreground="white")])
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")


def _places(replay: Replay) -> dict[str, Place]:
    """Return positions for drawing the brokers: on the map if all have one, otherwise as a tree."""
    if replay.places and all(name in replay.places for name in replay.brokers):
        found = {name: replay.places[name] for name in replay.brokers}
        narrow = math.cos(math.radians(fmean(latitude for latitude, _ in found.values())))
        return {name: (narrow * longitude, latitude) for name, (latitude, longitude) in found.items()}
    graph = nx.Graph()
    graph.add_nodes_from(replay.brokers)
    graph.add_edges_from(replay.links)
    places: dict[str, Place] = {}
    left = 0.0
    for names in nx.connected_components(graph):
        tree = graph.subgraph(sorted(names))
        layout = nx.kamada_kawai_layout(tree, scale=max(len(names) ** 0.5, 0.5))
        points = {name: complex(x, y) for name, (x, y) in layout.items()}
        # The panel is wider than high, so the longest way across goes from left to right.
        turn = cmath.rect(1, -cmath.phase(sum(one * one for one in points.values())) / 2)
        points = {name: turn * one for name, one in points.items()}
        edge = min(one.real for one in points.values())
        places |= {name: (left + one.real - edge, one.imag) for name, one in points.items()}
        left = max(x for x, _ in places.values()) + 1.5
    return places
