"""Figures 8 to 11 and table 3 of Caporuscio et al. 2003, drawn from measured trips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from roamcast.lab.charts import Chart, Panel, Pen, curves, with_printed
from roamcast.lab.curves import Curves
from roamcast.lab.figures import ARRIVED, LOST, Trace, draw_trace
from roamcast.lab.rows import Row, distinct, where

NAMES = {"mosquitto": "Mosquitto", "nats": "NATS", "activemq": "ActiveMQ", "roamcast": "Roamcast"}
WORDS = {"none": "no service", "basic": "basic service", "delay": "delay option", "ping": "ping option"}
FIG8_S = 50
PENS = {"basic": Pen("basic", ARRIVED, "o"), "ping": Pen("with ping", LOST, "s")}


def slow_traces(rows: Sequence[Row]) -> Chart:
    """Draw one system over the slow link, without and with the service; NATS stands for Siena."""
    slow = where(rows, link="gprs")
    system = next((one for one in ("nats", *NAMES) if where(slow, system=one)), "")
    chosen = [row for row in where(slow, system=system) if row["s"] <= FIG8_S]
    panels = [trace_panel(where(chosen, option=option)) for option in ("none", "basic")] if chosen else []
    title = "End-to-end effect of the mobility service over GPRS, figure 8"
    return Chart(title, "", panels, size=(8.8, 5), has_key=True)


def traces(rows: Sequence[Row], link: str, options: Sequence[str]) -> Chart:
    """Draw a row of panels for each option, and a column for each system."""
    found = where(rows, link=link)
    systems = [system for system in NAMES if where(found, system=system)]
    panels = [trace_panel(where(found, option=one, system=system)) for one in options for system in systems]
    title = {"wired": "wired, figure 9", "gprs": "over GPRS, figure 11"}[link]
    size = (4.1 * len(systems) + 0.6, 3.7 * len(options) + 1.3)
    return Chart(f"Departures and arrivals, {title}", "", panels, len(systems), size, has_key=True)


def trace_panel(rows: Sequence[Row]) -> Panel:
    row = traced(rows)
    if row is None:
        return Panel(lambda axes: axes.set_axis_off())
    return Panel(partial(draw_trace, trace=trace_of(row), has_note=False), {"ylabel": "arrived, time in s"})


def traced(rows: Sequence[Row]) -> Row | None:
    """Choose the trip to draw: among those with the most subscriptions and the rate nearest to the paper's,
    one whose move-in took neither the longest nor the shortest.
    """
    if not rows:
        return None

    def nearness(row: Row) -> tuple[int, float]:
        return row["s"], -abs(row["p"] - 2.0)

    nearest = max(map(nearness, rows))
    alike = sorted((row for row in rows if nearness(row) == nearest), key=lambda row: row["move_in_s"])
    return alike[len(alike) // 2]


def trace_of(row: Row) -> Trace:
    label = (
        f"{NAMES[row['system']]}, {WORDS[row['option']]}: {row['lost']} of {row['published']} lost\n"
        f"s = {row['s']}, p = {row['p']:g} per second"
    )
    points = tuple((published, arrived) for published, arrived in row["trace"])
    return Trace(label, points, row["left_s"], row["attached_s"], row["left_s"] + row["move_out_s"])


def panel(rows: Sequence[Row], column: str, label: str, title: str, *, has_legend: bool) -> Panel:
    """Return a panel with a figure of the trips against the client's number of subscriptions."""

    def draw(axes: Axes) -> None:
        curves(Curves(rows, "option", "s", column), PENS)(axes)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    said = {"xlabel": "subscriptions s", "ylabel": label, "ylim": (0, None)}
    return Panel(draw, said, title, legend={} if has_legend else None)


def duplicates(rows: Sequence[Row]) -> Chart:
    """Draw a column for each system, and a line for each rate."""
    systems = [system for system in NAMES if where(rows, system=system)]
    kinds = [(rate, system) for rate in sorted(distinct(rows, "p")) for system in systems]
    panels = [
        panel(where(rows, system=system, p=rate), "duplicates", "duplicates per move",
              f"{NAMES[system]}, p = {rate:g} per second", has_legend=not number)
        for number, (rate, system) in enumerate(kinds)
    ]  # fmt: skip
    return Chart("Duplicates upon a move, figure 10", "", panels, len(systems))


TABLE_3 = {
    "mosquitto": ("Elvin", {"basic": (13.551, 48.608, 95.031), "ping": (17.151, 52.525, 98.798)}),
    "nats": ("Siena", {"basic": (8.294, 10.984, 10.841), "ping": (11.751, 23.585, 39.608)}),
    "activemq": ("FioranoMQ", {"basic": (13.932, 40.544, 74.773), "ping": (15.747, 42.215, 77.304)}),
}
"""By our system: the paper's system that it stands for, and that system's move-in delays in seconds for s =
10, 50, 100.
"""


def delays(rows: Sequence[Row]) -> Chart:
    """Draw the duration of a move-in over the slow link; dotted lines are the paper's values."""
    panels = []
    for system in [system for system in NAMES if where(rows, system=system)]:
        title = f"{NAMES[system]}, and {TABLE_3[system][0]}" if system in TABLE_3 else NAMES[system]
        one = panel(where(rows, system=system), "move_in_s", "move-in, s", title, has_legend=True)
        name, printed = TABLE_3.get(system, ("", {}))
        points = {
            option: dict(zip((10, 50, 100), values_s, strict=True)) for option, values_s in printed.items()
        }
        panels.append(replace(one, draw=with_printed(one.draw, PENS, points, name)))
    title = "Move-in over GPRS, p = 2 per second, table 3"
    return Chart(title, "solid: measured here; dotted: as printed, for the system that ours replaces", panels)


def causes(rows: Sequence[Row]) -> Chart:
    """Draw duplicates and losses over a narrow link, with and without confirmed subscriptions."""
    kinds = {
        "Mosquitto, waits for confirmations": where(rows, system="mosquitto", hasty=False),
        "NATS, waits for confirmations": where(rows, system="nats", hasty=False),
        "NATS, does not wait": where(rows, system="nats", hasty=True),
    }
    shown = {title: found for title, found in kinds.items() if found}
    panels = [
        panel(found, what, f"{what} per move", title,
              has_legend=what == "duplicates" and found is next(iter(shown.values())))
        for what in ("duplicates", "lost")
        for title, found in shown.items()
    ]  # fmt: skip
    title = "Where the duplicates of ping come from: a narrow way to the broker, p = 20 per second"
    return Chart(title, "", panels, len(shown), share="row")
