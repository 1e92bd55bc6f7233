"""Figures of Gaddah 2008, chapters 3, 5 and 6, drawn from measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from roamcast.lab.curves import GRID, Curve, Pen, curves_of, draw
from roamcast.lab.figures import QUIET
from roamcast.lab.gaddah_testbed import PERCENTS
from roamcast.lab.sweep import Row

PENS = {
    "reactive": Pen("reactive", "#c8372d", "s"),
    "proactive": Pen("pro-active", "#1f6fb2", "o"),
    "durable": Pen("durable", "#2e7d4f", "^"),
}
SUBSCRIBERS = "subscribers"
LABELS = {
    "subscribers": SUBSCRIBERS,
    "pause_s": "pause between messages, s",
    "buffer_mb": "buffer of each broker, MB",
    "disconnect_s": "mean disconnect time, s",
    "connect_s": "mean connect time, s",
    "wireless_mbps": "wireless bandwidth, Mbps",
    "handoff_s": "mean handoff interval, s",
    "loss_percent": "lost, % of messages owed",
    "duplicate_percent": "duplicates, % of messages received",
    "useful_per_s": "throughput, new messages/s",
    "latency_s": "end-to-end latency, s",
    "handoff_mean_s": "attach to first message, ms",
}
THREE = ("loss_percent", "duplicate_percent", "useful_per_s")


def draw_overhead(figure: Figure, rows: Sequence[Row]) -> None:
    """Figure 5.1."""
    left, right = _wide(figure, 2)
    _lines(left, rows, "subscribers", "latency_s", movement="RND")
    _lines(right, rows, "subscribers", "useful_per_s", movement="RND")
    _legend(left, above=1.3)
    right.set_ylim(bottom=0)
    _finish(figure, "What mobility costs: latency and throughput, figure 5.1", "random movement", rows)


def draw_handoff(figure: Figure, curves: Mapping[str, Curve]) -> None:
    """Table 5.1."""
    axes = figure.subplots()
    draw(axes, curves, PENS, scale=1000)
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_xlabel(SUBSCRIBERS)
    axes.set_ylabel(LABELS["handoff_mean_s"])
    axes.legend(frameon=False)
    runs = max((point.runs for curve in curves.values() for point in curve.points), default=0)
    _title(figure, "Handoff latency, table 5.1", "random movement", runs)


def draw_distribution(figure: Figure, rows: Sequence[Row]) -> None:
    """Figure 5.2: each percentile is the mean of the runs' own."""
    axes = figure.subplots()
    most = max(row["subscribers"] for row in rows)
    chosen = [row for row in rows if row["subscribers"] == most and row["movement"] == "RND"]
    for name, pen in PENS.items():
        lists = [row["handoff_percentiles_s"] for row in chosen if row["protocol"] == name]
        lists = [one for one in lists if None not in one]
        if lists:
            times_ms = [1000 * fmean(values) for values in zip(*lists, strict=True)]
            axes.plot(times_ms, list(PERCENTS), color=pen.colour, label=pen.label, linewidth=1.6)
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_ylim(0, 100)
    axes.set_xlabel("attach to first message, ms")
    axes.set_ylabel("handoffs that took no longer, %")
    axes.grid(color=GRID, linewidth=0.6)
    axes.legend(frameon=False, loc="lower right")
    runs = len({row["seed"] for row in chosen})
    setting = f"{most} subscribers, random movement; each percentile is the mean of {runs} runs"
    _title(figure, "Distribution of handoff latency, figure 5.2", setting, 0)


def draw_loss(figure: Figure, rows: Sequence[Row]) -> None:
    """Tables 5.3 and 5.4; a dashed line is neighbouring movement."""
    panels = _wide(figure, 2)
    for axes, y in zip(panels, THREE, strict=False):
        _lines(axes, rows, "subscribers", y, movement="RND")
        dashed = {name: Pen(f"{pen.label}, NBR", pen.colour, pen.marker, "--") for name, pen in PENS.items()}
        draw(axes, _curves(rows, "subscribers", y, movement="NBR"), dashed)
        _legend(axes, above=1.3, columns=2)
    _finish(figure, "Loss and duplicates, tables 5.3 and 5.4", "random movement, and NBR dashed", rows)


def draw_brokers(figure: Figure, rows: Sequence[Row]) -> None:
    """Figure 5.8. How long a broker takes for a message is shown by its load, which decides that."""
    panels = _wide(figure, 2)
    most = max(row["subscribers"] for row in rows)
    chosen = [row for row in rows if row["subscribers"] == most and row["protocol"] == "proactive"]
    for axes, column, label in zip(
        panels, ("broker_per_s", "load_percent"), ("messages/s to subscribers", "load of the broker, %"),
        strict=True,
    ):  # fmt: skip
        for movement, pen in (("RND", Pen("RND", QUIET)), ("NBR", PENS["proactive"])):
            points = [
                {"movement": movement, "at": number, "y": value}
                for row in chosen if row["movement"] == movement
                for number, value in enumerate(row[column].values(), start=1)
            ]  # fmt: skip
            label_of = movement if movement == "RND" else "NBR"
            draw(axes, curves_of(points, "movement", "at", "y"),
                 {movement: Pen(label_of, pen.colour, pen.marker)})  # fmt: skip
        _legend(axes, above=1.15, columns=2)
        axes.set_xticks(range(1, 7), [f"B{number}" for number in range(1, 7)])
        axes.set_xlabel("broker")
        axes.set_ylabel(label)
    _finish(figure, "Pro-active by broker, figure 5.8", f"{most} subscribers", chosen)


def draw_sweep(figure: Figure, rows: Sequence[Row], x: str) -> None:
    """Figures 5.3 and 5.4: loss, duplicates and throughput over one parameter."""
    panels = _wide(figure, 3)
    for axes, y in zip(panels, THREE, strict=True):
        _lines(axes, rows, x, y)
        axes.set_xticks(sorted({row[x] for row in rows}))
        axes.set_ylim(bottom=0)
    _legend(panels[0], above=1.3)
    number = {"pause_s": "5.3", "buffer_mb": "5.4"}.get(x, "")
    _finish(figure, f"Loss, duplicates and throughput, figure {number}", "random movement", rows)


def draw_bars(figure: Figure, rows: Sequence[Row], x: str) -> None:
    """Figures 5.5 to 5.7: the three protocols side by side at two values of a parameter."""
    panels = _wide(figure, 3)
    values = sorted({row[x] for row in rows})
    for axes, y in zip(panels, THREE, strict=True):
        curves = _curves(rows, x, y)
        for place, (name, pen) in enumerate(PENS.items()):
            points = curves[name].points if name in curves else ()
            axes.bar(
                [values.index(point.x) + 0.27 * (place - 1) for point in points],
                [point.mean for point in points], width=0.25, color=pen.colour, label=pen.label,
                yerr=[[max(point.mean - point.low, 0) for point in points],
                      [point.high - point.mean for point in points]],
                capsize=3, error_kw={"elinewidth": 1},
            )  # fmt: skip
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_xlabel(LABELS[x])
        axes.set_ylabel(LABELS[y])
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    _legend(panels[0], above=1.3)
    number = {"disconnect_s": ", figure 5.5", "connect_s": ", figure 5.6", "wireless_mbps": ", figure 5.7"}
    _finish(figure, f"Loss, duplicates and throughput{number.get(x, '')}", "random movement", rows)


def draw_graph(figure: Figure, curves: Mapping[str, Curve], change_s: float) -> None:
    """Equations 3.5 and 3.6 over time."""
    left, right = _wide(figure, 2)
    shares = {
        "f_neg": Pen("F_neg, moves without an edge", "#c8372d", ""),
        "f_pos": Pen("F_pos, time of edges for nothing", "#1f6fb2", ""),
    }
    draw(left, curves, shares)
    left.set_ylabel("share")
    left.set_ylim(0, 1.05)
    left.legend(frameon=False)
    draw(right, curves, {"neighbours": Pen("neighbours of a broker", "#2e7d4f", "")})
    right.set_ylabel("neighbours of a broker, mean")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.axvline(change_s, color=QUIET, linestyle=":")
        axes.set_xlabel("time, s (dotted: from random to neighbouring movement)")
    runs = max((point.runs for curve in curves.values() for point in curve.points), default=0)
    _title(figure, "The neighbour graph learns and forgets, equations 3.5 and 3.6", "pro-active", runs)


def draw_places(figure: Figure, rows: Sequence[Row]) -> None:
    """Figures 6.5 and 6.8."""
    panels = _wide(figure, 2)
    for axes, movement, name in zip(panels, ("RND", "NBR"), ("random", "neighbouring"), strict=True):
        chosen = [row for row in rows if row["movement"] == movement and row["place"] != "all"]
        ticks = range(len(chosen))
        axes.bar(ticks, [row["expected"] for row in chosen], color="#c9dcec", label="Markov chain")
        reach = [
            [row["measured"] - row["low"] for row in chosen],
            [row["high"] - row["measured"] for row in chosen],
        ]
        axes.errorbar(
            list(ticks), [row["measured"] for row in chosen], yerr=reach, color="#1f6fb2", marker="o",
            linestyle="", capsize=4, markersize=5, label="simulated",
        )  # fmt: skip
        axes.set_xticks(ticks, [row["place"].upper() for row in chosen])
        axes.set_title(f"{name} movement", loc="left", fontsize=10.5)
        axes.set_xlabel("broker")
        axes.set_ylabel("subscribers attached, mean")
        _legend(axes, above=1.15, columns=2)
    runs = max((row["runs"] for row in rows), default=0)
    _title(figure, "Where subscribers are, figures 6.5 and 6.8", "200 subscribers", runs)


# --- helpers ---


def _wide(figure: Figure, panels: int) -> list[Axes]:
    figure.set_size_inches(11 if panels == 2 else 13.5, 4.8)
    return list(figure.subplots(1, panels))


def _curves(rows: Sequence[Row], x: str, y: str, **where: object) -> dict[str, Curve]:
    chosen = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return curves_of(chosen, "protocol", x, y)


def _lines(axes: Axes, rows: Sequence[Row], x: str, y: str, **where: object) -> None:
    draw(axes, _curves(rows, x, y, **where), PENS)
    axes.set_xlabel(LABELS[x])
    axes.set_ylabel(LABELS[y])


def _plain_numbers(axis: Axis) -> None:
    """On a logarithmic axis of few decades: 40 and 200, not powers of ten."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=(2, 4, 6)))
    axis.set_minor_formatter("{x:g}")


def _legend(axes: Axes, above: float, columns: int = 1) -> None:
    """From nothing up, with room above the curves, so that the legend covers none of them."""
    axes.set_ylim(0, above * axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper left", ncols=columns, fontsize=9)


def _finish(figure: Figure, title: str, setting: str, rows: Sequence[Row]) -> None:
    _title(figure, title, setting, len({row["seed"] for row in rows}))


def _title(figure: Figure, title: str, setting: str, runs: int) -> None:
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    means = {0: "", 1: "one run; "}.get(runs, f"means of {runs} runs with 95 % intervals; ")
    text = f"{setting}; {means}testbed of Gaddah 2008, section 4.4, simulated"
    figure.text(0.012, 0.9, text, fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))
