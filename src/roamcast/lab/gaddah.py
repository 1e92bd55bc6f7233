"""Gaddah 2008, chapter 5, measured: pro-active beside reactive and durable. Claims G7 to G12, G15.

The testbed, with its two settings and our choices where the thesis leaves something open, is in
`gaddah_testbed`; G1 to G6 are in `gaddah_models`, G13 and G14 in `gaddah_movement`. Every claim is judged in
both settings. The thesis measured Java brokers on ten machines, we measure a simulation: so we compare which
protocol is better and the shape of curves, never seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator

from roamcast.lab.charts import Chart, Panel, Pen, bars, curves, in_words, named, with_printed
from roamcast.lab.curves import Curve, Curves, means_of
from roamcast.lab.experiment import Claim, Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.gaddah_models import TIMES
from roamcast.lab.gaddah_testbed import BROKERS, NEIGHBOURS, PERCENTS, SETTINGS, BuildingJob, simulate
from roamcast.lab.rows import Row, distinct, rounded, where
from roamcast.lab.sweep import Sweep, grid, seeds
from roamcast.models.ctmc import movement_chain, presence

G7, G8, G9, G10, G11, G12, G15 = map(claim, ("G7", "G8", "G9", "G10", "G11", "G12", "G15"))

DURABLE, REACTIVE, PROACTIVE = "durable", "reactive", "proactive"
PROTOCOLS = (DURABLE, REACTIVE, PROACTIVE)
RND, NBR = "RND", "NBR"
ByProtocol = Mapping[str, Curve]
LEARNING_S = 6000.0
"""Minimum time until all subscribers together have learnt the neighbour graph; one subscriber makes about
sixty moves in that time.
"""


@dataclass(frozen=True)
class Size:
    """Size of the experiments: as in the thesis, or smaller."""

    populations: tuple[int, ...]
    populations_nbr: tuple[int, ...]
    pauses_s: tuple[float, ...]
    buffers_mb: tuple[int, ...]
    seeds: int
    warm_up_s: float
    window_s: float
    subscribers: int = 200
    """Number of subscribers, unless the experiment varies it."""

    def jobs(self, movement: str = RND, /, **changes: float) -> list[BuildingJob]:
        """Return jobs for all three protocols in both settings with all seeds; parameters not given have
        their default.

        The fewer subscribers, the longer the warm-up, so that about four moves cross each of the 15 edges of
        a random graph: otherwise the run would measure how pro-active learns.
        """
        subscribers = int(changes.pop("subscribers", self.subscribers))
        warm_up_s = max(self.warm_up_s, LEARNING_S / subscribers)
        one = BuildingJob("", movement, subscribers, warm_up_s=warm_up_s, window_s=self.window_s)
        changed = partial(replace, one, **changes)
        return grid(changed, costs=SETTINGS.values(), protocol=PROTOCOLS, seed=seeds(self.seeds))


FULL = Size((10, 50, 100, 150, 200), (10, 100, 200), (0.0, 0.5, 1.0, 1.5, 2.0), (1, 2, 3, 4), 5, 120.0, 240.0)
QUICK = Size((10, 50, 200), (200,), (0.0, 1.0), (1, 4), 2, 60.0, 60.0, subscribers=100)


def size_of(quick: bool) -> Size:
    return QUICK if quick else FULL


def over(rows: Sequence[Row], x: str, y: str, **wanted: object) -> Curves:
    """Return one curve for each protocol: y against x, over the rows with these values."""
    return Curves(where(rows, **wanted), "protocol", x, y)


def order(curves: ByProtocol, x: float) -> str:
    """Describe the order of the protocols at this x, the highest first."""
    names = sorted(curves, key=lambda name: -curves[name].at(x))
    text = names[0]
    for higher, lower in itertools.pairwise(names):
        text += f" {'=' if curves[higher].at(x) == curves[lower].at(x) else '>'} {lower}"
    return text


def is_order(curves: ByProtocol, names: Sequence[str], xs: Sequence[float]) -> bool:
    return all(
        curves[higher].at(x) > curves[lower].at(x) for x in xs for higher, lower in itertools.pairwise(names)
    )


def in_both(claim: Claim, judge: Callable[[Sequence[Row]], Outcome], rows: Sequence[Row]) -> Outcome:
    """Judge a claim in both settings."""
    return claim.in_settings({name: judge(where(rows, setting=name)) for name in SETTINGS})


def missing(rows: Sequence[Row]) -> str:
    absent = [name for name in PROTOCOLS if name not in distinct(rows, "protocol")]
    return f"no runs of {', '.join(absent)}" if absent else ""


# --- what all figures have in common ---

PENS = {
    REACTIVE: Pen("reactive", LOST, "s"),
    PROACTIVE: Pen("pro-active", ARRIVED, "o"),
    DURABLE: Pen("durable", "#2e7d4f", "^"),
}
LABELS = {
    "subscribers": "subscribers",
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
SMALL = {"fontsize": 9}


def chart(title: str, setting: str, rows: Sequence[Row], *panels: Panel) -> Chart:
    means = in_words(len(distinct(rows, "seed"))) if rows else ""
    about = "; ".join(filter(None, [setting, means, "testbed of Gaddah 2008, section 4.4, simulated"]))
    return Chart(title, about, panels)


def panel(rows: Sequence[Row], x: str, y: str, *, title: str = "", has_legend: bool = True,
          **wanted: object) -> Panel:  # fmt: skip
    """Return a panel with curves of y against x from 0 upwards, with space for a legend."""
    said = {"xlabel": LABELS[x], "ylabel": LABELS[y]}
    drawn = curves(over(rows, x, y, **wanted), PENS)
    return Panel(drawn, said, title, legend=SMALL if has_legend else None, room=1.3 if has_legend else 1.05)


def sweep_chart(title: str, rows: Sequence[Row], x: str) -> Chart:
    """Draw loss, duplicates and throughput over one parameter, with a row of panels for each setting: curves,
    or bars if the parameter has two values.
    """
    values = sorted(distinct(rows, x))
    panels = []
    for number, setting in enumerate(SETTINGS):
        found = where(rows, setting=setting)
        for y in THREE:
            one = panel(found, x, y, title=f"setting {setting}", has_legend=not number and y == THREE[0])
            if x in DRAWN_AS_CURVES:
                panels.append(replace(one, ticks={value: f"{value:g}" for value in values}))
            else:
                drawn = bars(_bars_of(over(found, x, y)), [pen.colour for pen in PENS.values()])
                ticks = named([f"{value:g}" for value in values])
                panels.append(replace(one, draw=drawn, ticks=ticks, grid="y"))
    made = chart(f"Loss, duplicates and throughput{title}", "random movement", rows, *panels)
    return replace(made, columns=len(THREE), size=(13.5, 8.2))


DRAWN_AS_CURVES = ("pause_s", "buffer_mb")


def _bars_of(found: ByProtocol) -> dict[str, list[tuple[float, float, float]]]:
    return {
        pen.label: [(point.mean, point.low, point.high) for point in found[name].points]
        for name, pen in PENS.items()
        if name in found
    }


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis of few decades with plain numbers such as 40 and 200."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(LogLocator(subs=(2, 4, 6)))
    axis.set_minor_formatter("{x:g}")


# --- tables 5.1 to 5.4, figures 5.1, 5.2 and 5.8: how many subscribers ---


FAR_MIN = 2.0
""""Far above" means at least twice. The thesis's tables have factors of four to twenty."""
FEW, FEW_PAST, MANY = 10, 50, 100
GAIN_MIN = 1.02
"""NBR is above RND if it gains at least 2 %, more than the scatter between seeds; the thesis's gain is 14 to
21 %.
"""
FOLLOWS_MIN = 0.9
"""Minimum correlation of a broker's throughput with its number of neighbours."""


def population_jobs(size: Size) -> list[BuildingJob]:
    return [
        job
        for movement, populations in ((RND, size.populations), (NBR, size.populations_nbr))
        for subscribers in populations
        for job in size.jobs(movement, subscribers=subscribers)
    ]


PRINTED: dict[str, dict[str, dict[str, dict[int, float]]]] = {
    "handoff_mean_s": {
        RND: {
            DURABLE: {10: 0.035, 50: 0.036, 100: 0.040, 150: 0.044, 200: 0.049},
            REACTIVE: {10: 0.697, 50: 0.653, 100: 0.841, 150: 0.919, 200: 1.141},
            PROACTIVE: {10: 0.030, 50: 0.084, 100: 0.139, 150: 0.224, 200: 0.259},
        }
    },
    "useful_per_s": {
        RND: {DURABLE: {10: 86.99, 100: 589.33, 200: 806.81}, REACTIVE: {10: 92.39, 100: 664.39, 200: 980.77},
              PROACTIVE: {10: 108.90, 100: 810.26, 200: 1172.77}},
        NBR: {DURABLE: {10: 86.28, 100: 574.32, 200: 791.74}, REACTIVE: {10: 90.53, 100: 663.63, 200: 953.17},
              PROACTIVE: {10: 124.72, 100: 957.32, 200: 1420.26}},
    },
    "loss_percent": {
        RND: {DURABLE: {10: 4.78, 100: 5.14, 200: 4.56}, REACTIVE: {10: 3.65, 100: 8.92, 200: 9.62},
              PROACTIVE: {10: 2.25, 100: 0.86, 200: 0.58}},
        NBR: {DURABLE: {10: 3.13, 100: 4.06, 200: 3.51}, REACTIVE: {10: 5.14, 100: 7.03, 200: 9.44},
              PROACTIVE: {10: 1.26, 100: 0.72, 200: 0.51}},
    },
    "duplicate_percent": {
        RND: {DURABLE: {10: 11.35, 100: 12.01, 200: 17.05}, REACTIVE: {10: 0.80, 100: 1.70, 200: 2.13},
              PROACTIVE: {10: 0.0, 100: 0.0, 200: 0.0}},
        NBR: {DURABLE: {10: 12.10, 100: 11.68, 200: 16.97}, REACTIVE: {10: 1.52, 100: 0.85, 200: 1.90},
              PROACTIVE: {10: 0.0, 100: 0.0, 200: 0.0}},
    },
}  # fmt: skip
"""Tables 5.1 to 5.4 as printed: quantity, movement and protocol to the value by number of subscribers."""
TABLES = {
    "table5_1_handoff": ("Handoff latency, table 5.1", "handoff_mean_s"),
    "table5_2_throughput": ("Throughput, table 5.2", "useful_per_s"),
    "table5_3_loss": ("Loss, table 5.3", "loss_percent"),
    "table5_4_duplicates": ("Duplicates, table 5.4", "duplicate_percent"),
}


@checks("gaddah-population", "Gaddah, tables 5.1 to 5.4: subscribers", G7, G8, G9, G10)
def population(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(simulate, population_jobs(size_of(quick)))
    most = max(row["subscribers"] for row in rows)
    crowd = where(rows, subscribers=most)
    latency = [
        panel(rows, "subscribers", y, title=f"setting {setting}", has_legend=not number, movement=RND,
              setting=setting)
        for setting in SETTINGS for number, y in enumerate(("latency_s", "useful_per_s"))
    ]  # fmt: skip
    distribution = [
        Panel(
            partial(draw_distribution, rows=where(crowd, movement=RND, setting=setting)),
            {"xlabel": LABELS["handoff_mean_s"], "ylabel": "handoffs that took no longer, %",
             "ylim": (0, 100)},
            f"setting {setting}", legend={"loc": "lower right"},
        )
        for setting in SETTINGS
    ]  # fmt: skip
    brokers = [
        by_broker(where(crowd, protocol=PROACTIVE, setting=setting), column, label, f"setting {setting}")
        for setting in SETTINGS
        for column, label in (("broker_per_s", "messages/s to subscribers"),
                              ("processing_ms", "processing of a message, ms"))
    ]  # fmt: skip
    return Findings(
        [
            in_both(G7, judge_g7, rows),
            in_both(G8, judge_g8, rows),
            in_both(G9, judge_g9, rows),
            in_both(G10, judge_g10, rows),
        ],
        {
            **{name: beside_printed(rows, y) for name, (_, y) in TABLES.items()},
            "fig5_1_latency": [
                {"setting": setting, **row}
                for setting in SETTINGS
                for row in over(rows, "subscribers", "latency_s", movement=RND, setting=setting).table()
            ],
        },
        {
            **{name: table_chart(title, rows, y) for name, (title, y) in TABLES.items()},
            "fig5_1_overhead": replace(
                chart("What mobility costs: latency and throughput, figure 5.1", "random movement", rows,
                      *latency),
                columns=2, size=(11.0, 8.2),
            ),
            "fig5_2_handoff_distribution": chart(
                "Distribution of handoff latency, figure 5.2",
                f"{most} subscribers, random movement; each percentile is the mean of the runs' own", (),
                *distribution,
            ),
            "fig5_8_brokers": replace(
                chart("Pro-active by broker, figure 5.8", f"{most} subscribers", crowd, *brokers),
                columns=2, size=(11.0, 8.2),
            ),
        },
    )  # fmt: skip


def beside_printed(rows: Sequence[Row], y: str) -> list[Row]:
    """Return a table of the thesis: each printed value, and the measured one in each setting with its
    interval.
    """
    found = {
        (setting, movement): over(rows, "subscribers", y, movement=movement, setting=setting)
        for setting in SETTINGS
        for movement in PRINTED[y]
    }
    table: list[Row] = []
    for movement, protocol in itertools.product(PRINTED[y], PROTOCOLS):
        points = {
            setting: {point.x: point for point in found[setting, movement][protocol].points}
            for setting in SETTINGS
            if protocol in found[setting, movement]
        }
        for subscribers in sorted({x for of_it in points.values() for x in of_it}):
            row: Row = {"movement": movement, "protocol": protocol, "subscribers": subscribers,
                        "printed": PRINTED[y][movement][protocol].get(int(subscribers))}  # fmt: skip
            for setting, of_it in points.items():
                if subscribers in of_it:
                    point = of_it[subscribers]
                    row |= {setting: point.mean, f"{setting}, low": point.low, f"{setting}, high": point.high}
            table.append(row)
    return table


def table_chart(title: str, rows: Sequence[Row], y: str) -> Chart:
    """Draw a panel for each movement and setting: measured curves, and dotted the printed ones."""
    panels: list[Panel] = []
    for movement, setting in itertools.product(PRINTED[y], SETTINGS):
        one = panel(rows, "subscribers", y, title=f"{movement}, setting {setting}", has_legend=not panels,
                    movement=movement, setting=setting)  # fmt: skip
        draw = with_printed(one.draw, PENS, PRINTED[y][movement])
        if y == "handoff_mean_s":
            said = {**one.said, "ylabel": "attach to first message, s", "ylim": (0.02, 10)}
            legend = one.legend and {"fontsize": 7, "ncols": 2}
            panels.append(replace(one, draw=_logarithmic(draw), said=said, legend=legend, room=0))
        else:
            panels.append(replace(one, draw=draw, room=1.25))
    made = chart(title, "solid: measured here; dotted: printed in the thesis", rows, *panels)
    return replace(made, columns=2, size=(11.0, 4.1 * len(PRINTED[y]) + 0.7))


def _logarithmic(draw: Callable[[Axes], None]) -> Callable[[Axes], None]:
    def drawn(axes: Axes) -> None:
        draw(axes)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)

    return drawn


def draw_distribution(axes: Axes, rows: Sequence[Row]) -> None:
    for name, pen in PENS.items():
        lists = [row["handoff_percentiles_s"] for row in where(rows, protocol=name)]
        lists = [one for one in lists if None not in one]
        if lists:
            times_ms = [1000 * fmean(values) for values in zip(*lists, strict=True)]
            axes.plot(times_ms, list(PERCENTS), color=pen.colour, label=pen.label, linewidth=1.6)
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)


def by_broker(rows: Sequence[Row], column: str, label: str, title: str) -> Panel:
    points = [
        {"movement": row["movement"], "at": number, "y": value}
        for row in rows
        for number, value in enumerate(row[column].values(), start=1)
    ]
    pens = {RND: Pen(RND, QUIET), NBR: Pen(NBR, ARRIVED)}
    ticks: dict[float, str] = {number: f"B{number}" for number in range(1, 7)}
    said = {"xlabel": "broker", "ylabel": label}
    drawn = curves(Curves(points, "movement", "at", "y"), pens)
    return Panel(drawn, said, title, ticks, {**SMALL, "ncols": 2}, 1.15)


def judge_g7(rows: Sequence[Row]) -> Outcome:
    if note := missing(rows):
        return G7.open(note)
    curves = over(rows, "subscribers", "handoff_mean_s", movement=RND)
    xs = curves[PROACTIVE].xs
    far = min(curves[REACTIVE].at(x) / curves[PROACTIVE].at(x) for x in xs)
    few = curves[PROACTIVE].at(FEW) / curves[DURABLE].at(FEW)
    misses = over(rows, "subscribers", "miss_percent", movement=RND)[PROACTIVE]
    loads = {name: busiest_load(rows, name) for name in PROTOCOLS}
    parts = {
        f"reactive is not {FAR_MIN:g} times slower than pro-active": far >= FAR_MIN,
        f"pro-active is not above durable from {FEW_PAST} subscribers up": is_order(
            curves, (PROACTIVE, DURABLE), [x for x in xs if x >= FEW_PAST]
        ),
        f"with {FEW} subscribers pro-active is {few:.2f} times durable's, not below it (both have the "
        "session brought from the old broker here, and durable needs nothing else; pro-active waits for "
        f"what was stored before, and has no active copy in time in {misses.at(FEW):.1f} % of its "
        "handoffs: unknown edges, and subscribers faster than the notice of their leaving)": few < 1,
    }
    figures: dict[str, object] = {
        "subscribers": xs,
        "handoff_s": means_of(curves, 4),
        "reactive / pro-active, minimum": round(far, 2),
        "pro-active / durable": [round(curves[PROACTIVE].at(x) / curves[DURABLE].at(x), 2) for x in xs],
        "pro-active without an active copy in time, %": rounded(misses.means),
        f"load of the busiest broker at {xs[-1]:g}, %": {name: round(one, 1) for name, one in loads.items()},
    }
    return G7.judge(parts, figures)


def busiest_load(rows: Sequence[Row], protocol: str) -> float:
    """Return the mean over seeds with the most subscribers that were run."""
    chosen = where(rows, protocol=protocol, movement=RND)
    most = max(row["subscribers"] for row in chosen)
    return fmean(max(row["load_percent"].values()) for row in where(chosen, subscribers=most))


def judge_g8(rows: Sequence[Row]) -> Outcome:
    if note := missing(rows):
        return G8.open(note)
    figures: dict[str, object] = {}
    parts: dict[str, bool | None] = {}
    for movement in (RND, NBR):
        curves = over(rows, "subscribers", "loss_percent", movement=movement)
        many = [x for x in curves[PROACTIVE].xs if x in (MANY, 2 * MANY)]
        figures[movement] = {"subscribers": curves[PROACTIVE].xs, **means_of(curves)}
        figures[f"{movement}, order"] = [f"{x:g}: {order(curves, x)}" for x in many]
        parts[f"{movement}: another order"] = is_order(curves, (REACTIVE, DURABLE, PROACTIVE), many)
        if len(curves[PROACTIVE].xs) > 1:
            parts[f"{movement}: pro-active's loss does not fall"] = curves[PROACTIVE].growth < 0
    figures["away, % of the time"] = round(100 * away_share(), 1)
    return G8.judge(parts, figures)


def away_share() -> float:
    found = presence(movement_chain(RND, NEIGHBOURS, TIMES))
    return found.disconnect + found.handoff


def judge_g9(rows: Sequence[Row]) -> Outcome:
    if note := missing(rows):
        return G9.open(note)
    figures: dict[str, object] = {}
    parts: dict[str, bool | None] = {}
    for movement in (RND, NBR):
        curves = over(rows, "subscribers", "duplicate_percent", movement=movement)
        figures[movement] = {"subscribers": curves[PROACTIVE].xs, **means_of(curves)}
        parts[f"{movement}: durable is not above reactive"] = is_order(
            curves, (DURABLE, REACTIVE), curves[DURABLE].xs
        )
        none = [f"{x:g}" for x in curves[REACTIVE].xs if curves[REACTIVE].at(x) == 0]
        parts[f"{movement}: reactive has none with {', '.join(none)} subscribers"] = not none
    repeated = [row["duplicate_percent"] for row in rows if row["protocol"] == PROACTIVE]
    parts["pro-active has duplicates"] = not any(repeated)
    return G9.judge(parts, figures)


def judge_g10(rows: Sequence[Row]) -> Outcome:
    """Judge G10 by messages that were new to their subscriber: the thesis counts duplicates against
    throughput.
    """
    if note := missing(rows):
        return G10.open(note)
    curves = {
        movement: over(rows, "subscribers", "useful_per_s", movement=movement) for movement in (RND, NBR)
    }
    both = [x for x in curves[NBR][PROACTIVE].xs if x in curves[RND][PROACTIVE].xs]
    gains = {
        name: round(curves[NBR][name].at(both[-1]) / curves[RND][name].at(both[-1]), 4) for name in PROTOCOLS
    }
    throughputs = broker_figures(rows, NBR, "broker_per_s")
    degrees = [len(NEIGHBOURS[broker]) for broker in BROKERS]
    follows = float(np.corrcoef(degrees, [throughputs[broker] for broker in BROKERS])[0, 1])
    wanted = (PROACTIVE, REACTIVE, DURABLE)
    parts = {
        f"{movement}: another order": is_order(curves[movement], wanted, curves[movement][PROACTIVE].xs)
        for movement in (RND, NBR)
    }
    parts |= {
        "NBR is not above RND for pro-active": gains[PROACTIVE] >= GAIN_MIN,
        "NBR is above RND for another, too": max(gains[REACTIVE], gains[DURABLE]) < GAIN_MIN,
        "a broker's throughput does not correlate with its number of neighbours": follows >= FOLLOWS_MIN,
    }
    received = {
        movement: over(rows, "subscribers", "throughput_per_s", movement=movement) for movement in curves
    }
    figures: dict[str, object] = {}
    for movement, of_it in curves.items():
        figures[f"{movement}, new messages/s"] = means_of(of_it, 1)
        figures[f"{movement}, with duplicates"] = means_of(received[movement], 1)
        figures[f"{movement}, order"] = [f"{x:g}: {order(of_it, x)}" for x in of_it[PROACTIVE].xs]
        rates = over(rows, "subscribers", "published_per_s", movement=movement)
        figures[f"{movement}, published/s"] = means_of(rates, 2)
    figures[f"NBR / RND at {both[-1]:g}"] = gains
    figures["pro-active by broker, NBR, messages/s"] = {
        name: round(one, 1) for name, one in throughputs.items()
    }
    loads = {movement: broker_figures(rows, movement, "load_percent") for movement in (RND, NBR)}
    figures["pro-active, mean load of the brokers, %"] = {
        movement: round(fmean(of_it.values()), 1) for movement, of_it in loads.items()
    }
    figures["correlation with the number of neighbours"] = round(follows, 3)
    return G10.judge(parts, figures)


def broker_figures(rows: Sequence[Row], movement: str, column: str) -> dict[str, float]:
    """Return pro-active's throughput by broker, with the most subscribers that were run."""
    chosen = where(rows, protocol=PROACTIVE, movement=movement)
    most = max(row["subscribers"] for row in chosen)
    of_most = [row[column] for row in where(chosen, subscribers=most)]
    return {broker: fmean(one[broker] for one in of_most) for broker in BROKERS}


# --- figure 5.4: buffers ---


CONSTANT_MAX = 0.5
"""Largest difference, in percentage points, at which loss counts as constant: about pro-active's loss at 1 MB
in table 5.3 (0.58 %), which may thus vanish but not grow.
"""
GROWS_MIN = 1.25
"""Minimum growth from the smallest buffer to the largest: more than the scatter between seeds."""


@checks("gaddah-buffers", "Gaddah, figure 5.4: buffers", G11)
def buffers(quick: bool, sweep: Sweep) -> Findings:
    size = size_of(quick)
    rows = sweep.run(simulate, [job for mb in size.buffers_mb for job in size.jobs(buffer_mb=mb)])
    return Findings(
        [in_both(G11, judge_g11, rows)],
        {"buffer_runs": rows},
        {"fig5_4_buffers": sweep_chart(", figure 5.4", rows, "buffer_mb")},
    )


def judge_g11(rows: Sequence[Row]) -> Outcome:
    if note := missing(rows):
        return G11.open(note)
    loss, duplicates = (over(rows, "buffer_mb", y) for y in ("loss_percent", "duplicate_percent"))
    spread = max(loss[PROACTIVE].means) - min(loss[PROACTIVE].means)
    parts = {f"{name}'s loss does not fall": loss[name].falls() for name in (REACTIVE, DURABLE)}
    parts |= {
        f"{name}'s duplicates do not grow": duplicates[name].means[-1]
        >= GROWS_MIN * duplicates[name].means[0]
        and duplicates[name].growth > 0
        for name in (DURABLE, REACTIVE)
    }
    parts[f"pro-active's loss is not constant: {spread:.2f} points from 1 MB on"] = spread <= CONSTANT_MAX
    figures: dict[str, object] = {
        "buffer_mb": loss[PROACTIVE].xs,
        "loss_percent": means_of(loss),
        "duplicate_percent": means_of(duplicates),
    }
    return G11.judge(parts, figures)


# --- figure 5.5: how long disconnected ---


TRIPLE = (2.0, 4.5)
"""Bounds of "about three times": clearly more than the time itself (2) and less than its square (4)."""


@checks("gaddah-disconnection", "Gaddah, figure 5.5: disconnection", G12)
def disconnection(quick: bool, sweep: Sweep) -> Findings:
    size = size_of(quick)
    rows = sweep.run(simulate, [job for s in (12.0, 24.0) for job in size.jobs(disconnect_s=s)])
    return Findings(
        [in_both(G12, judge_g12, rows)],
        {"disconnection_runs": rows},
        {"fig5_5_disconnection": sweep_chart(", figure 5.5", rows, "disconnect_s")},
    )


def judge_g12(rows: Sequence[Row]) -> Outcome:
    if note := missing(rows):
        return G12.open(note)
    loss = over(rows, "disconnect_s", "loss_percent")
    short_s, long_s = loss[DURABLE].xs[0], loss[DURABLE].xs[-1]
    factors = {name: ratio(loss[name].at(long_s), loss[name].at(short_s)) for name in PROTOCOLS}
    low, high = TRIPLE
    parts = {}
    for name in (DURABLE, PROACTIVE):
        factor = factors[name]
        parts[f"{name}: {show(factor)} times"] = factor is not None and low <= factor <= high
    figures: dict[str, object] = {
        "disconnect_s": [short_s, long_s],
        "loss_percent": means_of(loss),
        "factor": {name: show(factor) for name, factor in factors.items()},
        "about three": f"{low:g} to {high:g}",
    }
    return G12.judge(parts, figures)


def ratio(after: float, before: float) -> float | None:
    return after / before if before > 0 else None


def show(value: float | None) -> str:
    return "from nothing" if value is None else f"{value:.2f}"


# --- figures 5.1, 5.3, 5.6 and 5.7: latency, rate, frequency of handoffs, bandwidth ---


LARGE_MIN = 30.0
"""Minimum percentage that counts as large; the thesis has 37 to 42."""
SAID: dict[str, tuple[str, ...]] = {
    "loss_percent": (REACTIVE, DURABLE, PROACTIVE),
    "duplicate_percent": (DURABLE, REACTIVE, PROACTIVE),
    "useful_per_s": (PROACTIVE, REACTIVE, DURABLE),
}
"""Order that the text states for every sweep, the highest first."""
SAID_OF = ("pause_s", "connect_s", "wireless_mbps")
"""Sweeps on which the text makes a statement; it makes none on the handoff interval, which is only drawn."""
SWEEPS = {
    "pause_s": ("fig5_3_rate", ", figure 5.3"),
    "connect_s": ("fig5_6_frequency", ", figure 5.6"),
    "wireless_mbps": ("fig5_7_bandwidth", ", figure 5.7"),
    "handoff_s": ("handoff_interval", ""),
}


def sweep_jobs(size: Size) -> dict[str, list[BuildingJob]]:
    values: dict[str, tuple[float, ...]] = {
        "pause_s": size.pauses_s, "connect_s": (60.0, 150.0), "wireless_mbps": (1.0, 11.0),
        **({} if size is QUICK else {"handoff_s": (1.5, 3.0)}),
    }  # fmt: skip
    return {x: [job for value in at for job in size.jobs(**{x: value})] for x, at in values.items()}


@checks("gaddah-sweeps", "Gaddah, figures 5.1, 5.3, 5.6, 5.7: sweeps", G15)
def sweeps(quick: bool, sweep: Sweep) -> Findings:
    size = size_of(quick)
    jobs = sweep_jobs(size)
    crowds = [job for one in size.populations for job in size.jobs(subscribers=one)]
    # All at once, so that no core waits at the end of each.
    sweep.run(simulate, [*itertools.chain(*jobs.values()), *crowds])
    rows = {x: sweep.run(simulate, of_it) for x, of_it in jobs.items()}
    population_rows = sweep.run(simulate, crowds)
    verdicts = {
        name: judge_g15(
            where(population_rows, setting=name),
            {x: where(of_it, setting=name) for x, of_it in rows.items()},
        )
        for name in SETTINGS
    }
    outcome = G15.in_settings(verdicts)
    return Findings(
        [outcome],
        {f"{SWEEPS[x][0]}_runs": of_it for x, of_it in rows.items()},
        {SWEEPS[x][0]: sweep_chart(SWEEPS[x][1], of_it, x) for x, of_it in rows.items()},
    )


def judge_g15(population_rows: Sequence[Row], rows: Mapping[str, Sequence[Row]]) -> Outcome:
    if note := missing(population_rows) or next(filter(None, map(missing, rows.values())), ""):
        return G15.open(note)
    shares = over(population_rows, "subscribers", "transferred_percent")[REACTIVE]
    latency = over(population_rows, "subscribers", "latency_s")
    crowds = [x for x in latency[REACTIVE].xs if x > FEW]
    away = 100 * away_share()
    parts = {
        f"{shares.means[-1]:.1f} % are transferred, where subscribers are away {away:.1f} % of the time and "
        "so miss no more": shares.means[-1] >= LARGE_MIN,
        f"latency is {order(latency, crowds[-1])}": is_order(latency, (REACTIVE, PROACTIVE, DURABLE), crowds),
    }
    figures: dict[str, object] = {
        "subscribers": shares.xs,
        "transferred_percent": rounded(shares.means, 2),
        "latency_s": means_of(latency),
    }
    for x, of_it in rows.items():
        for y, said in SAID.items():
            curves = over(of_it, x, y)
            orders = {f"{at:g}": order(curves, at) for at in curves[PROACTIVE].xs}
            figures[f"{y} over {x}"] = {**orders, **means_of(curves)}
            if x in SAID_OF:
                parts[f"{y} over {x} is otherwise"] = is_order(curves, said, curves[PROACTIVE].xs)
    return G15.judge(parts, figures)
