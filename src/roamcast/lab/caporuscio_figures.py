"""Figures 8 to 11 and table 3 of Caporuscio et al. 2003, drawn from measured trips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from roamcast.lab.curves import Pen, curves_of, draw
from roamcast.lab.figures import Trace, draw_trace
from roamcast.lab.sweep import Row

NAMES = {"mosquitto": "Mosquitto", "nats": "NATS", "activemq": "ActiveMQ", "roamcast": "Roamcast"}
WORDS = {"none": "no service", "basic": "basic service", "delay": "delay option", "ping": "ping option"}
LINKS = {"wired": "wired", "gprs": "over GPRS"}
FIG8_S = 50
LEGEND_INCHES = 0.3
PENS = {
    "basic": Pen("basic", "#1f6fb2", "o"),
    "ping": Pen("with ping", "#c8372d", "s"),
}


def draw_fig8(figure: Figure, rows: Sequence[Row]) -> None:
    """One system over the slow link, without and with the service; NATS stands for Siena."""
    slow = [row for row in rows if row["link"] == "gprs"]
    systems = [system for system in ("nats", *NAMES) if any(row["system"] == system for row in slow)]
    if not systems:
        return
    chosen = [row for row in slow if row["system"] == systems[0] and row["s"] <= FIG8_S]
    panels(figure, [chosen], ["none", "basic"])
    finish(figure, "End-to-end effect of the mobility service over GPRS, figure 8", LEGEND_INCHES)


def draw_systems(figure: Figure, rows: Sequence[Row], link: str, options: Sequence[str]) -> None:
    """A line of panels for each option, a column for each system."""
    systems = [
        [row for row in rows if row["link"] == link and row["system"] == system]
        for system in NAMES
        if any(row["system"] == system and row["link"] == link for row in rows)
    ]
    if not systems:
        return
    panels(figure, systems, options)
    number = {"wired": "9", "gprs": "11"}[link]
    finish(figure, f"Departures and arrivals, {LINKS[link]}, figure {number}", LEGEND_INCHES)


def panels(figure: Figure, systems: Sequence[Sequence[Row]], options: Sequence[str]) -> None:
    across = len(systems) > 1
    lines, columns = (len(options), len(systems)) if across else (1, len(options))
    figure.set_size_inches(4.1 * columns + 0.6, 3.7 * lines + 1.3)
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    for column, found in enumerate(systems):
        for line, option in enumerate(options):
            axes: Axes = grid[line][column] if across else grid[0][line]
            row = traced([one for one in found if one["option"] == option])
            if row is not None:
                draw_trace(axes, trace_of(row), has_note=False)
                axes.set_ylabel("arrived, time in s")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)


def traced(rows: Sequence[Row]) -> Row | None:
    """The trip that is drawn: of those with the most subscriptions and the rate nearest to the paper's, the
    one whose move-in took neither the longest nor the shortest."""
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


def finish(figure: Figure, title: str, bottom_inches: float = 0.0) -> None:
    """Put a title above everything, and leave room for what is below it."""
    _, height = figure.get_size_inches()
    figure.suptitle(title, x=0.02, y=1 - 0.12 / height, va="top", ha="left", fontsize=12, fontweight="bold")
    figure.tight_layout(rect=(0, bottom_inches / height, 1, 1 - 0.1 / height))


def draw_fig10(figure: Figure, rows: Sequence[Row]) -> None:
    """Duplicates against subscriptions, a column for each system, at the rate where most is to be seen."""
    if not rows:
        return
    systems = [system for system in NAMES if any(row["system"] == system for row in rows)]
    rates = sorted({row["p"] for row in rows})
    figure.set_size_inches(3.7 * len(systems) + 0.8, 2.9 * len(rates) + 0.9)
    grid: Any = figure.subplots(len(rates), len(systems), squeeze=False)
    for line, rate in enumerate(rates):
        for column, system in enumerate(systems):
            axes: Axes = grid[line][column]
            found = [row for row in rows if row["system"] == system and row["p"] == rate]
            draw(axes, curves_of(found, "option", "s", "duplicates"), PENS)
            axes.set_title(f"{NAMES[system]}, p = {rate:g} per second", loc="left", fontsize=10)
            count_subscriptions(axes)
            axes.set_ylabel("duplicates per move")
            axes.set_ylim(bottom=0)
    grid[0][0].legend(frameon=False, loc="upper left")
    finish(figure, "Duplicates upon a move, figure 10")


def count_subscriptions(axes: Axes) -> None:
    axes.set_xlabel("subscriptions s")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def draw_delays(figure: Figure, rows: Sequence[Row]) -> None:
    """How long a move-in takes over the slow link."""
    if not rows:
        return
    systems = [system for system in NAMES if any(row["system"] == system for row in rows)]
    figure.set_size_inches(3.7 * len(systems) + 0.8, 4.2)
    grid: Any = figure.subplots(1, len(systems), squeeze=False)
    for axes, system in zip(grid[0], systems, strict=False):
        found = [row for row in rows if row["system"] == system]
        draw(axes, curves_of(found, "option", "s", "move_in_s"), PENS)
        axes.set_title(NAMES[system], loc="left", fontsize=10)
        count_subscriptions(axes)
        axes.set_ylabel("move-in, s")
        axes.set_ylim(bottom=0)
    grid[0][0].legend(frameon=False, loc="upper left")
    finish(figure, "Move-in over GPRS, p = 2 per second, table 3")


def draw_why(figure: Figure, rows: Sequence[Row]) -> None:
    """Duplicates and losses over a narrow way to the broker, with and without confirmed subscriptions."""
    kinds = [
        ("Mosquitto, waits for confirmations", "mosquitto", False),
        ("NATS, waits for confirmations", "nats", False),
        ("NATS, does not wait", "nats", True),
    ]
    columns = {
        title: [row for row in rows if row["system"] == system and row["hasty"] == is_hasty]
        for title, system, is_hasty in kinds
        if any(row["system"] == system for row in rows)
    }
    if not columns:
        return
    figure.set_size_inches(3.8 * len(columns), 6.4)
    grid: Any = figure.subplots(2, len(columns), squeeze=False, sharey="row")
    for column, (title, found) in enumerate(columns.items()):
        for line, what in enumerate(("duplicates", "lost")):
            axes: Axes = grid[line][column]
            draw(axes, curves_of(found, "option", "s", what), PENS)
            axes.set_title(title, loc="left", fontsize=10)
            count_subscriptions(axes)
            axes.set_ylabel(f"{what} per move")
    for line in range(2):
        grid[line][0].set_ylim(bottom=0)  # Not before all are drawn: then the top would no longer follow.
    grid[0][0].legend(frameon=False, loc="upper left")
    finish(figure, "Where the duplicates of ping come from: a narrow way to the broker, p = 20 per second")
