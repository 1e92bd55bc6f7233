"""Pictures: of audits, metrics and streams for a page, and of learned movement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pyarrow.parquet as pq
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET, STYLE, save

if TYPE_CHECKING:
    from roamcast.pipeline.report import Part

WRONG = {"lost": LOST, "duplicates": ARRIVED, "out_of_order": QUIET, "unexpected": INK}
MEASURES = ("handoff_delay", "latency", "overhead_per_handoff", "delivery_rate")
"""Measures that a reader looks at first."""
GROUPS_MAX = 24
MINUTES_MAX = 1_440
GRID = "#e3e8ec"

Draw = Callable[[Figure], None]
WIDE, SMALL = (11, 5.2), (7.2, 4.6)
"""Sizes in inches: for a page, and for a guide."""


def _saved(draw: Draw, size: tuple[float, float], file: Path) -> list[Path]:
    """Draw a picture; return the files, PNG and SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, dpi=160, facecolor="white")
        FigureCanvasAgg(figure)
        draw(figure)
        for axes in figure.axes:
            axes.grid(color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
        figure.tight_layout()
        return list(save(figure, file))


# --- for a page ---


def draw_into(part: Part, out: Path, prefix: str = "") -> list[Path]:
    """Draw the results as PNG and SVG; return the PNG files."""
    return [_saved(draw, WIDE, out / f"{prefix}{name}")[0] for name, draw in _drawings(part)]


def _drawings(part: Part) -> Iterator[tuple[str, Draw]]:
    for name, facts in part.facts.items():
        plain = name.rpartition("/")[2]
        if isinstance(facts.get("protocols"), dict) and "records" in facts and "lost" in facts:
            yield plain, _with(draw_audit, facts)
        if isinstance(facts.get("groups"), dict) and facts["groups"]:
            yield plain, _with(draw_metrics, facts["groups"])
    for file in part.minutes:
        yield "minutes", _with(draw_minutes, pq.read_table(file).to_pylist()[-MINUTES_MAX:])


def _with(draw: Callable[[Figure, Any], None], facts: Any) -> Draw:
    return lambda figure: draw(figure, facts)


def draw_audit(figure: Figure, facts: Mapping[str, Any]) -> None:
    """Draw what went wrong in each group of runs, as a share of what was owed."""
    groups = dict(list(facts["protocols"].items())[:GROUPS_MAX])
    figure.set_size_inches(11, 1.8 + 0.45 * max(len(groups), 3))
    axes = figure.subplots()
    height = 0.8 / len(WRONG)
    for place, (kind, colour) in enumerate(WRONG.items()):
        shares = [100 * one.get(kind, 0) / max(one.get("expected", 0), 1) for one in groups.values()]
        at = [row + (place - (len(WRONG) - 1) / 2) * height for row in range(len(groups))]
        axes.barh(at, shares, height, color=colour, label=kind.replace("_", " "))
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlim(left=0.0, right=None if any(facts.get(kind) for kind in WRONG) else 1.0)
    axes.set_xlabel("% of the notifications that were owed")
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    _entitle(figure, f"Audit of {facts['records']:,} rows: what went wrong")


def draw_metrics(figure: Figure, groups: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Draw, for each measure and group, the mean with its interval over runs, and the range of
    most samples.
    """
    shown = [name for name in MEASURES if any(name in measures for measures in groups.values())]
    names = list(groups)[:GROUPS_MAX]
    figure.set_size_inches(11, 1.8 + 0.35 * max(len(names), 4))
    panels = list(figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0])
    for axes, measure in zip(panels, shown, strict=False):
        unit = ""
        for row, group in enumerate(names):
            one = groups[group].get(measure)
            if one is None:
                continue
            unit = one["unit"]
            axes.plot([one["p05"], one["p95"]], [row, row], color=GRID, linewidth=6, solid_capstyle="butt")
            if one.get("low") is not None:
                axes.plot([one["low"], one["high"]], [row, row], color=ARRIVED, linewidth=2)
            axes.plot([one["mean"]], [row], "o", color=ARRIVED, markersize=5)
        axes.set_xlabel(f"{measure.replace('_', ' ')}, {unit}")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    title = "Mean (dot), its 95 % interval over runs (line), 5th to 95th percentile of all samples (band)"
    _entitle(figure, title)


def draw_minutes(figure: Figure, rows: list[Mapping[str, Any]]) -> None:
    """Draw what was owed and lost in each minute, and below it the duration of handoffs."""
    above, below = figure.subplots(2, 1, sharex=True)
    times = [row["minute"] for row in rows]
    width = 50 / 86_400
    """Width of a bar in days: almost a minute."""
    above.bar(times, [row["expected"] for row in rows], width, color=GRID, label="owed")
    above.bar(times, [row["lost"] for row in rows], width, color=LOST, label="lost")
    above.plot(times, [row["duplicates"] for row in rows], color=ARRIVED, label="came again", linewidth=1)
    above.set_ylabel("notifications\nper minute")
    for name, colour in (("handoff_delay", ARRIVED), ("transfer", QUIET)):
        known = [(row["minute"], row[f"{name}_p95_s"]) for row in rows if row[f"{name}_p95_s"] is not None]
        below.plot(
            [at for at, _ in known], [value for _, value in known], ".-", color=colour,
            label=f"{name.replace('_', ' ')}, 95th percentile",
        )  # fmt: skip
    below.set_ylabel("time in s")
    below.set_ylim(bottom=0)
    below.set_xlabel("minute (UTC)")
    for axes in (above, below):
        axes.legend(frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    _entitle(figure, "Minute by minute")


def _entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)


# --- learned movement ---

MODELS = {
    "second": ("second order: where from, where now", ARRIVED, "o"),
    "first": ("first order: where now", "#2a9d6f", "s"),
    "lru": ("online, last used destinations", LOST, "^"),
    "busiest": ("the busiest brokers, wherever one is", QUIET, "x"),
}


def save_figures(about: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw hit rates, residence times, the chain and the hot spots; return the files."""
    residence, chain = about["residence"], about["chain"]
    drawings: list[tuple[str, Callable[[Figure, Any], None], Any]] = [
        ("hit_rates", draw_hit_rates, about["hit_rates"]),
        ("residence_times", draw_residence, residence if residence["visits"] else None),
        ("presence", draw_presence, chain if chain["brokers"] else None),
        ("hot_spots", draw_hot_spots, about["hot_spots"]),
    ]
    pictures = [_saved(_with(draw, shown), SMALL, folder / name) for name, draw, shown in drawings if shown]
    return [file for files in pictures for file in files]


def draw_hit_rates(figure: Figure, rows: list[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
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


def draw_residence(figure: Figure, residence: Mapping[str, Any]) -> None:
    axes = figure.subplots()
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


def draw_presence(figure: Figure, chain: Mapping[str, Any]) -> None:
    axes = figure.subplots()
    rows = chain["brokers"].values()
    for name, colour, marker in (("even chain", QUIET, "x"), ("fitted chain", ARRIVED, "o")):
        known = [row for row in rows if name in row]
        error = chain["error"].get(name)
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


def draw_hot_spots(figure: Figure, spots: list[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    spots = spots[:12][::-1]
    axes.barh([row["broker"] for row in spots], [100 * row["share"] for row in spots], color=ARRIVED)
    for place, row in enumerate(spots):
        axes.annotate(
            f" {row['most_at_once']} at once", (100 * row["share"], place), va="center", fontsize=8, color=INK
        )
    axes.margins(x=0.15)
    axes.set_xlabel("share of all attached time, %")
    axes.set_ylabel("broker")
    axes.set_title("Hot spots", loc="left", fontweight="bold")
