"""Logical mobility, drawn: what the naive solution misses, and how many messages it all takes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from roamcast.lab.curves import GRID
from roamcast.lab.figures import QUIET
from roamcast.lab.sweep import Row

NAIVE, ADAPTIVE, FLOODING = "#c8372d", "#1f6fb2", "#8a97a3"


def draw_blackout(figure: Figure, rows: Sequence[Row], delay_s: float) -> None:
    """Figure 3, measured: the share of what flooding brings, against how long the client stays."""
    figure.set_size_inches(8.5, 4.8)
    axes = figure.subplots()
    for solution, colour, label in (
        ("sub/unsub", NAIVE, "unsubscribe and subscribe at each move"),
        ("adaptive", ADAPTIVE, "the algorithm of section 5"),
    ):
        points = [(row["stay_delays"], row["share"]) for row in rows if row["solution"] == solution]
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label, linestyle="none")
    longest = max(row["stay_delays"] for row in rows)
    stays = [2 + (longest - 2) * step / 100 for step in range(101)]
    axes.plot(
        [0, *stays], [0, *(1 - 2 / stay for stay in stays)], color=QUIET, linestyle="--", linewidth=1,
        label="1 - 2 t_d / stay: silence for two delays",
    )  # fmt: skip
    axes.axvline(2, color=QUIET, linewidth=0.8, linestyle=":")
    axes.annotate(
        "at shorter stays\nit gets nothing", (2, 0.75), (-6, 0), textcoords="offset points",
        ha="right", va="center", fontsize=9,
    )  # fmt: skip
    axes.set_xlabel("stay at each location, in one-way delays t_d to the producer")
    axes.set_ylabel("delivered, of what flooding delivers")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(-0.03, 1.05)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    title = "What a client misses that moves from location to location"
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    setting = f"t_d is {delay_s * 1000:.0f} ms; 24 moves for each point"
    figure.text(0.012, 0.9, setting, fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))


def draw_traffic(figure: Figure, formulas: Sequence[Row], rows: Sequence[Row]) -> None:
    """Figure 9: total messages over time by formula, and beside it what was measured, per second."""
    figure.set_size_inches(11, 4.8)
    total, rates = figure.subplots(1, 2, width_ratios=(1.1, 1))
    times = [row["time_s"] for row in formulas]
    for name, colour, label in (
        ("flooding", FLOODING, "flooding"),
        ("stay_1", NAIVE, "stays of 1 s"),
        ("stay_10", ADAPTIVE, "stays of 10 s"),
    ):
        total.plot(times, [row[name] for row in formulas], color=colour, label=label, linewidth=1.8)
    total.set_yscale("log")
    total.set_xlabel("time in s")
    total.set_ylabel("messages in total, by the formulas")
    total.legend(frameon=False, fontsize=9, loc="lower right")
    bars = _rates(rows)
    places = range(len(bars))
    rates.barh(places, [value for _, value, _ in bars], color=[colour for _, _, colour in bars], height=0.7)
    for place, (_, value, _) in zip(places, bars, strict=True):
        rates.annotate(
            f"{value:,.0f}", (value, place), (3, 0), textcoords="offset points", va="center", fontsize=8
        )
    rates.set_yticks(places, [label for label, _, _ in bars], fontsize=8)
    rates.invert_yaxis()
    rates.set_xscale("log")
    rates.set_xlim(100, 1e7)
    rates.set_xlabel("hops over the links of the tree per second, measured")
    for axes in (total, rates):
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    title = "Messages for one moving consumer among 2,430 producers (figure 9)"
    figure.text(0.012, 0.955, title, fontsize=13, fontweight="bold", va="center")
    setting = "364 brokers, 100 locations; links to the clients' brokers take 600 ms, the others 10 ms"
    figure.text(0.012, 0.9, setting, fontsize=9, va="center")
    figure.tight_layout(rect=(0, 0, 1, 0.88))


def _rates(rows: Sequence[Row]) -> list[tuple[str, float, str]]:
    """Label, hops per second and colour of each bar."""
    bars = []
    for row in rows:
        colour = {10.0: ADAPTIVE, 1.0: NAIVE}[row["stay_s"]]
        stays = f"stays of {row['stay_s']:g} s"
        hops = (row["notification_hops"] + row["control_hops"]) / row["duration_s"]
        if row["mode"] == "flooding":
            bars.append(("flooding", hops, FLOODING))
            continue
        rule = ", round trips" if row["rule"].startswith("round") else ""
        bars.append((f"{row['mode']},\n{stays}{rule}", hops, colour))
        if row["offered"] and not rule:
            offered = (row["offered"] + row["control_hops"]) / row["duration_s"]
            bars.append((f"let through by links,\n{stays}", offered, colour))
    return sorted(bars, key=lambda bar: -bar[1])
