"""A replay as one picture, for people without a browser."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.errors import InputError
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET, STYLE
from roamcast.view.replay import Place, Replay, figures_by_bucket

GRID = "#e3e8ec"
DURATIONS = ((50.0, "under 50 ms", "#2a7fb8"), (250.0, "50 to 250 ms", "#2a9d8f"),
             (1000.0, "250 ms to 1 s", "#d98e04"), (math.inf, "1 s or more", "#c8372d"))  # fmt: skip
"""How long a handoff took, in the classes and colours of the page."""
NAMES_MAX = 40


def draw(replay: Replay, file: Path) -> None:
    """Write the picture as PNG."""
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
    """What became of the run, in one sentence."""
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


def _draw_lines(axes: Axes, times: list[float], title: str, series: dict[str, tuple[list[float], str]]) -> None:
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
    below = 0.0
    for limit, name, colour in DURATIONS:
        found = [one for one in replay.handoffs if below <= one.duration_ms < limit]
        below = limit
        if found:
            at = [one.end_s - replay.start_s for one in found]
            axes.plot(at, [max(one.duration_ms, 0.1) for one in found], ".", color=colour, label=name, markersize=5)
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
    axes.scatter(*zip(*places.values(), strict=True), s=110, color=INK, zorder=3)
    for name, (x, y) in list(places.items())[:NAMES_MAX]:
        axes.annotate(name, (x, y), (0, -15), textcoords="offset points", ha="center", fontsize=9, zorder=4)
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")


def _places(replay: Replay) -> dict[str, Place]:
    """Where brokers are drawn: on the map, if all have a place, else around the middle of the tree."""
    if replay.places and all(name in replay.places for name in replay.brokers):
        return {name: (place[1], place[0]) for name, place in replay.places.items() if name in replay.brokers}
    neighbours: dict[str, list[str]] = {name: [] for name in replay.brokers}
    for a, b in replay.links:
        neighbours[a].append(b)
        neighbours[b].append(a)
    places: dict[str, Place] = {}
    left = 0.0
    for name in replay.brokers:
        if name not in places:
            left = _put_tree(_middle(name, neighbours), neighbours, places, left)
    return places


def _reached(start: str, neighbours: dict[str, list[str]]) -> dict[str, str | None]:
    """Each broker that `start` is linked to, nearest first, with the next one on the way back."""
    parents: dict[str, str | None] = {start: None}
    order = [start]
    for one in order:
        for other in neighbours[one]:
            if other not in parents:
                parents[other] = one
                order.append(other)
    return parents


def _middle(name: str, neighbours: dict[str, list[str]]) -> str:
    end = list(_reached(name, neighbours))[-1]
    parents = _reached(end, neighbours)
    way: list[str] = []
    at: str | None = list(parents)[-1]
    while at is not None:
        way.append(at)
        at = parents[at]
    return way[len(way) // 2]


def _put_tree(root: str, neighbours: dict[str, list[str]], places: dict[str, Place], left: float) -> float:
    """Put a tree to the right of `left`: rings by hops, angles by how many leaves are behind."""
    parents = _reached(root, neighbours)
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, parent in parents.items():
        if parent is not None:
            children[parent].append(name)
    leaves: dict[str, int] = {}
    for name in reversed(parents):
        leaves[name] = max(sum(leaves[child] for child in children[name]), 1)
    rings = {root: 0}
    spans = {root: (math.pi, 3 * math.pi)}
    for name in parents:
        begin, end = spans[name]
        for child in children[name]:
            share = (end - begin) * leaves[child] / leaves[name]
            rings[child], spans[child] = rings[name] + 1, (spans[name][0], spans[name][0] + share)
            spans[name] = (spans[name][0] + share, end)
        spans[name] = (begin, end)
    reach = max(max(rings.values()), 0.5)
    for name, ring in rings.items():
        angle = sum(spans[name]) / 2
        places[name] = (left + reach + ring * math.cos(angle), ring * math.sin(angle))
    return left + 2 * reach + 1
