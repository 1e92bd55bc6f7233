"""Gaddah 2008, sections 3.3, 6.6 and 7.2.1: positions and moves of subscribers. Claims G13, G14, R7 to R9.

For G13 and G14 nothing is published: only moves matter to the neighbour graph and to the number of
subscribers at each broker. R7 shows how the testbed's setting of the thesis was calibrated, R8 what the
thesis's chain and a fitted curve predict for a broker's throughput, R9 what choosing a broker by its load
would gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel, Pen, bars, curves, in_words, named, runs_of
from roamcast.lab.curves import Curve, Curves
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, INK, LOST, QUIET
from roamcast.lab.gaddah import DURABLE, NBR, PRINTED, PROACTIVE, RND, population_jobs, size_of
from roamcast.lab.gaddah_models import TIMES
from roamcast.lab.gaddah_testbed import (
    BROKERS,
    CALIBRATED,
    CHANGING,
    NEIGHBOURS,
    SETTINGS,
    THESIS,
    BuildingJob,
    simulate,
)
from roamcast.lab.rows import Row, distinct, grouped, rounded, where
from roamcast.lab.sweep import Sweep, grid, seeds
from roamcast.models.ctmc import expected_clients, movement_chain, presence
from roamcast.models.fit import THROUGHPUT_PUBLISHED, Fit, fit
from roamcast.models.intervals import bounds_of

G13, G14, R7, R8, R9 = map(claim, ("G13", "G14", "R7", "R8", "R9"))

TESTBED = "testbed of Gaddah 2008, section 4.4, simulated"


# --- equations 3.5 and 3.6: the neighbour graph ---


GRAPH_SUBSCRIBERS = 20
"""Number of subscribers; so few that learning is visible: 200 would make all possible moves within
seconds.
"""
GRAPH_TIMEOUT_S = 600.0
"""Ten mean connect times: with half of that, edges in use sometimes expire."""
GRAPH_S = 3600.0
NEAR_ONE_MIN = 0.7
"""Minimum F_neg of the first 30 s. It is below 1, because some moves already repeat an edge."""
NEAR_ZERO_MAX = 0.02


def graph_jobs(quick: bool) -> list[BuildingJob]:
    one = BuildingJob(
        "proactive", CHANGING, GRAPH_SUBSCRIBERS, publishing=False, neighbour_timeout_s=GRAPH_TIMEOUT_S,
        warm_up_s=0.0, window_s=GRAPH_S,
    )  # fmt: skip
    return grid(partial(replace, one), seed=seeds(5 if quick else 20))


@checks("gaddah-neighbours", "Gaddah, section 3.3: neighbour graph", G13)
def neighbour_graph(quick: bool, sweep: Sweep) -> Findings:
    rows = [point for row in sweep.run(simulate, graph_jobs(quick)) for point in row["graph"]]
    for row in rows:
        row["all"] = ""
    found = {y: Curves(rows, "all", "time_s", y).get("", Curve(())) for y in GRAPH_FIGURES}
    return Findings(
        [judge_g13(found)], {"graph": rows}, {"eq3_5_and_3_6_neighbour_graph": graph_chart(found)}
    )


def graph_chart(found: Mapping[str, Curve]) -> Chart:
    shares = {
        "f_neg": Pen("F_neg, moves without an edge", LOST, ""),
        "f_pos": Pen("F_pos, unused time of edges", ARRIVED, ""),
    }
    degree = {"neighbours": Pen("neighbours of a broker", "#2e7d4f", "")}

    def panel(pens: Mapping[str, Pen], label: str, limits: tuple[float, float | None]) -> Panel:
        def draw(axes: Axes) -> None:
            curves(found, pens)(axes)
            axes.axvline(GRAPH_S / 3, color=QUIET, linestyle=":")

        across = "time, s (dotted: from random to neighbouring movement)"
        return Panel(draw, {"xlabel": across, "ylabel": label, "ylim": limits}, legend={"loc": "best"})

    return Chart(
        "The neighbour graph learns and forgets, equations 3.5 and 3.6",
        f"pro-active; {runs_of(found)}; {TESTBED}",
        [panel(shares, "share", (0, 1.05)), panel(degree, "neighbours of a broker, mean", (0, None))],
    )


GRAPH_FIGURES = ("f_neg", "f_pos", "neighbours", "removals")


def judge_g13(curves: Mapping[str, Curve]) -> Outcome:
    f_neg, f_pos, neighbours = (curves[name] for name in GRAPH_FIGURES[:3])
    if not f_neg.points:
        return G13.open("no runs")
    change_s = GRAPH_S / 3
    learnt = fmean(f_neg.at(x) for x in f_neg.xs if change_s - 300 <= x <= change_s)
    before, after = f_pos.at(change_s), max(point.mean for point in f_pos.points if point.x > change_s)
    true_degree = fmean(len(others) for others in NEIGHBOURS.values())
    parts = {
        "F_neg does not start near 1": f_neg.means[0] >= NEAR_ONE_MIN,
        "F_neg does not go to 0": learnt <= NEAR_ZERO_MAX,
        "unused edges stay": neighbours.means[-1] < (neighbours.at(change_s) + true_degree) / 2,
        "F_pos does not show them": after > before,
    }
    figures: dict[str, object] = {
        "F_neg, first 30 s": round(f_neg.means[0], 3),
        "F_neg, last 300 s before the pattern changes": round(learnt, 4),
        "neighbours then": round(neighbours.at(change_s), 2),
        "neighbours at the end": round(neighbours.means[-1], 2),
        "neighbours in the building": round(true_degree, 2),
        "F_pos then": round(before, 3),
        "F_pos, highest afterwards": round(after, 3),
        "F_pos at the end": round(f_pos.means[-1], 3),
        "edges removed": round(curves["removals"].means[-1], 1),
    }
    return G13.judge(parts, figures)


# --- figures 6.5 and 6.8: where subscribers are ---


OUTSIDE_MAX = 2
"""Of twelve 95 % intervals, 0.6 miss the true value on average; three or more do so by chance in 2 % of
cases.
"""


def place_jobs(quick: bool) -> list[BuildingJob]:
    window_s, count = (2400.0, 5) if quick else (10_000.0, 10)
    one = BuildingJob("durable", publishing=False, warm_up_s=900.0, window_s=window_s)
    return grid(partial(replace, one), movement=(RND, NBR), seed=seeds(count))


@checks("gaddah-places", "Gaddah, figures 6.5 and 6.8: where subscribers are", G14)
def places(quick: bool, sweep: Sweep) -> Findings:
    rows = place_rows(sweep.run(simulate, place_jobs(quick)))
    about = f"200 subscribers; {in_words(max(row['runs'] for row in rows))}; {TESTBED}"
    chart = Chart(
        "Where subscribers are, figures 6.5 and 6.8", about,
        [place_panel(where(rows, movement=RND), "random"),
         place_panel(where(rows, movement=NBR), "neighbouring")],
    )  # fmt: skip
    return Findings([judge_g14(rows)], {"places": rows}, {"fig6_5_and_6_8_places": chart})


def place_panel(rows: Sequence[Row], name: str) -> Panel:
    chosen = [row for row in rows if row["place"] != "all"]

    def draw(axes: Axes) -> None:
        ticks = range(len(chosen))
        axes.bar(ticks, [row["expected"] for row in chosen], color="#c9dcec", label="Markov chain")
        reach = [
            [row["measured"] - row["low"] for row in chosen],
            [row["high"] - row["measured"] for row in chosen],
        ]
        axes.errorbar(
            list(ticks), [row["measured"] for row in chosen], yerr=reach, color=ARRIVED, marker="o",
            linestyle="", capsize=4, markersize=5, label="simulated",
        )  # fmt: skip
        axes.set_xticks(ticks, [row["place"].upper() for row in chosen])

    said = {"xlabel": "broker", "ylabel": "subscribers attached, mean"}
    return Panel(draw, said, f"{name} movement", legend={"ncols": 2, "fontsize": 9}, room=1.15, grid="y")


def place_rows(runs: Sequence[Row]) -> list[Row]:
    """Return measured and expected subscribers for each broker and in total."""
    rows: list[Row] = []
    for movement in (RND, NBR):
        found = presence(movement_chain(movement, NEIGHBOURS, TIMES)).connect
        of_it = where(runs, movement=movement)
        for place in (*BROKERS, "all"):
            values = [
                sum(run["attached"].values()) if place == "all" else run["attached"][place] for run in of_it
            ]
            share = sum(found.values()) if place == "all" else found[place]
            low, high = bounds_of(values)
            expected = expected_clients(min(share, 1.0), of_it[0]["subscribers"])
            rows.append({"movement": movement, "place": place, "measured": fmean(values), "low": low,
                         "high": high, "expected": expected, "runs": len(values),
                         "inside": low <= expected <= high})  # fmt: skip
    return rows


def judge_g14(rows: Sequence[Row]) -> Outcome:
    brokers = [row for row in rows if row["place"] != "all"]
    outside = [f"{row['movement']} {row['place']}" for row in brokers if not row["inside"]]
    published = sum(presence(movement_chain("RND:published", NEIGHBOURS, TIMES)).connect.values()) * 200
    (everywhere,) = (row for row in rows if row["place"] == "all" and row["movement"] == RND)
    figures: dict[str, object] = {
        f"{row['movement']} {row['place']}": f"{row['measured']:.2f} "
        f"({row['low']:.2f} to {row['high']:.2f}), chain {row['expected']:.2f}"
        for row in rows
    }
    figures["intervals without the chain's value"] = f"{len(outside)} of {len(brokers)}"
    figures["allowed"] = OUTSIDE_MAX
    figures["all brokers by his matrix (RND)"] = round(published, 2)
    figures["his matrix within the interval"] = bool(everywhere["low"] <= published <= everywhere["high"])
    note = f"outside: {', '.join(outside)}" if outside else ""
    return G14.outcome(len(outside) <= OUTSIDE_MAX, figures, note)


# --- table 5.3, durable column: the calibration ---


CALIBRATED_ON = PRINTED["loss_percent"][RND][DURABLE]


def calibration_jobs(quick: bool) -> list[BuildingJob]:
    one = BuildingJob(DURABLE, warm_up_s=60.0, window_s=120.0)
    tried, crowds = (
        ([THESIS, CALIBRATED[0]], tuple(CALIBRATED_ON)[:2]) if quick else (CALIBRATED, tuple(CALIBRATED_ON))
    )
    return grid(partial(replace, one), costs=tried, subscribers=crowds, seed=seeds(1 if quick else 2))


@checks("gaddah-calibration", "Gaddah, table 5.3: calibration of the testbed", R7)
def calibration(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(simulate, calibration_jobs(quick))
    table: list[Row] = []
    for costs in CALIBRATED:
        of_it = where(rows, costs=asdict(costs))
        found = {x: fmean(row["loss_percent"] for row in where(of_it, subscribers=x)) for x in CALIBRATED_ON
                 if where(of_it, subscribers=x)}  # fmt: skip
        if found:
            off = sum((CALIBRATED_ON[x] - loss) ** 2 for x, loss in found.items())
            table.append(
                {"message_bytes": costs.message_bytes, "entry_ms": 1000 * costs.entry_s,
                 **{f"{x} subscribers": round(loss, 2) for x, loss in found.items()},
                 "squared difference": round(off, 2), "frozen": costs == THESIS}
            )  # fmt: skip
    return Findings([judge_r7(table)], {"calibration": table})


def judge_r7(table: Sequence[Row]) -> Outcome:
    if len(table) < len(CALIBRATED):
        return R7.open("all pairs are tried in the full setting only")
    best = min(table, key=lambda row: float(row["squared difference"]))
    figures = {
        f"{row['message_bytes']:,} bytes, {row['entry_ms']:g} ms for an entry": row["squared difference"]
        for row in table
    }
    (frozen,) = where(table, frozen=True)
    off = best["squared difference"] - frozen["squared difference"]
    return R7.judge({f"another pair is nearer by {-off:g}": best is frozen}, figures)


# --- figures 6.4, 6.6, 6.7, 6.9 and 6.10: throughput foretold ---


CLOSE = 0.15
"""Largest difference that counts as close, as a share of the measured value."""


@checks("gaddah-throughput", "Gaddah, figures 6.4 to 6.10: throughput", R8)
def throughput(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(simulate, population_jobs(size_of(quick)))
    rows = where(rows, setting=next(iter(SETTINGS)), protocol=PROACTIVE)
    points = [
        (row["attached"][broker], row["broker_per_s"][broker])
        for row in where(rows, movement=RND)
        for broker in BROKERS
    ]
    fitted = fit([x for x, _ in points], [y for _, y in points])
    table = [
        foretold(fitted, of_it, subscribers, movement)
        for (movement, subscribers), of_it in sorted(grouped(rows, "movement", "subscribers").items())
    ]
    return Findings(
        [judge_r8(table, fitted)],
        {"throughput": [{**row, "brokers": None} for row in table]},
        {"fig6_4_fit": fit_chart(points, fitted), "fig6_6_to_6_10_throughput": throughput_chart(table)},
    )


def foretold(fitted: Fit, rows: Sequence[Row], subscribers: int, movement: str) -> Row:
    share = presence(movement_chain(movement, NEIGHBOURS, TIMES)).connect
    brokers = {
        broker: (fitted.curve(expected_clients(share[broker], subscribers)),
                 fmean(row["broker_per_s"][broker] for row in rows))
        for broker in BROKERS
    }  # fmt: skip
    foreseen, measured = (sum(pair[at] for pair in brokers.values()) for at in (0, 1))
    return {"movement": movement, "subscribers": subscribers, "foretold": foreseen, "measured": measured,
            "brokers": brokers}  # fmt: skip


def judge_r8(table: Sequence[Row], fitted: Fit) -> Outcome:
    random, neighbouring = (
        max(where(table, movement=movement), key=lambda row: int(row["subscribers"]))
        for movement in (RND, NBR)
    )
    off = {broker: said / measured - 1 for broker, (said, measured) in random["brokers"].items()}
    off_nbr = {broker: said / measured - 1 for broker, (said, measured) in neighbouring["brokers"].items()}
    total = random["foretold"] / random["measured"] - 1
    parts = {
        f"{broker} is {one:+.0%} off with random movement": abs(one) <= CLOSE for broker, one in off.items()
    }
    parts[f"the total is {total:+.0%} off with random movement"] = abs(total) <= CLOSE
    for broker in ("b3", "b6"):
        parts[f"{broker} is {off_nbr[broker]:+.0%} off with neighbouring movement"] = off_nbr[broker] < 0
    total_nbr = neighbouring["foretold"] / neighbouring["measured"] - 1
    parts[f"the total is {total_nbr:+.0%} off with neighbouring movement, not lower"] = total_nbr < 0
    figures = {
        "fitted curve, the constant first": rounded(fitted.curve.coefficients, 4),
        "printed curve (eq. 6.18)": list(THROUGHPUT_PUBLISHED.coefficients),
        "R squared, here and printed": [round(fitted.r_squared or 0.0, 4), 0.9198],
        "random movement, off the measured": {name: f"{one:+.1%}" for name, one in off.items()},
        "neighbouring movement, off the measured": {name: f"{one:+.1%}" for name, one in off_nbr.items()},
        "total, off the measured": {RND: f"{total:+.1%}", NBR: f"{total_nbr:+.1%}"},
    }
    return R8.judge(parts, figures)


def fit_chart(points: Sequence[tuple[float, float]], fitted: Fit) -> Chart:
    most = max(x for x, _ in points)
    xs = [most * step / 60 for step in range(61)]

    def draw(axes: Axes) -> None:
        axes.scatter(
            [x for x, _ in points],
            [y for _, y in points],
            s=14,
            color=ARRIVED,
            label="measured, a broker in a run",
        )
        axes.plot(xs, [fitted.curve(x) for x in xs], color=INK, label="cubic fitted to these")
        axes.plot(
            xs, [THROUGHPUT_PUBLISHED(x) for x in xs], color=LOST, linestyle=":", label="printed, eq. 6.18"
        )

    said = {"xlabel": "subscribers attached, mean", "ylabel": "messages/s to subscribers", "ylim": (0, None)}
    return Chart("Throughput of a broker by its subscribers, figure 6.4",
                 f"pro-active, random movement; {TESTBED}", [Panel(draw, said, legend={})])  # fmt: skip


def throughput_chart(table: Sequence[Row]) -> Chart:
    panels = []
    for movement, brokers, total in ((RND, "6.6", "6.7"), (NBR, "6.9", "6.10")):
        of_it = where(table, movement=movement)
        most = max(of_it, key=lambda row: int(row["subscribers"]))
        pairs = list(most["brokers"].values())
        series = {"foretold": [said for said, _ in pairs], "measured": [measured for _, measured in pairs]}
        panels.append(Panel(
            bars(series, ("#c9dcec", ARRIVED)), {"xlabel": "broker", "ylabel": "messages/s"},
            f"{movement}, {most['subscribers']} subscribers (fig. {brokers})",
            named([broker.upper() for broker in BROKERS]), {"ncols": 2}, 1.15, "y",
        ))  # fmt: skip
        totals = {name: [row[name] for row in of_it] for name in ("foretold", "measured")}
        panels.append(Panel(
            bars(totals, ("#c9dcec", ARRIVED)), {"xlabel": "subscribers", "ylabel": "messages/s in all"},
            f"{movement}, in total (fig. {total})", named([str(row["subscribers"]) for row in of_it]),
            {"ncols": 2}, 1.15, "y",
        ))  # fmt: skip
    about = f"by the chain and the curve of figure 6.4, and measured; pro-active; {TESTBED}"
    return Chart(
        "Throughput predicted and measured, figures 6.6, 6.7, 6.9, 6.10", about, panels, 2, (11.0, 8.2)
    )


# --- section 7.2.1: choosing a broker by its load ---


def balance_jobs(quick: bool) -> list[BuildingJob]:
    size = size_of(quick)
    one = BuildingJob(PROACTIVE, NBR, size.subscribers, warm_up_s=size.warm_up_s, window_s=size.window_s,
                      costs=THESIS)  # fmt: skip
    return grid(partial(replace, one), selects=(False, True), seed=seeds(size.seeds))


@checks("gaddah-balance", "Gaddah, section 7.2.1: load balancing among brokers", R9)
def balance(quick: bool, sweep: Sweep) -> Findings:
    rows: list[Row] = [
        {"selects": row["selects"], "seed": row["seed"], "useful_per_s": row["useful_per_s"],
         "spread": max(row["attached"].values()) - min(row["attached"].values()),
         "slowest_ms": max(row["processing_ms"].values()), "loss_percent": row["loss_percent"],
         **{f"attached_{broker}": row["attached"][broker] for broker in BROKERS}}
        for row in sweep.run(simulate, balance_jobs(quick))
    ]  # fmt: skip
    return Findings([judge_r9(rows)], {"balance": rows})


def judge_r9(rows: Sequence[Row]) -> Outcome:
    if len(distinct(rows, "selects")) < 2:
        return R9.open("runs are missing")
    found = {
        name: {selects: fmean(row[name] for row in where(rows, selects=selects)) for selects in (False, True)}
        for name in ("spread", "slowest_ms", "useful_per_s", "loss_percent")
    }
    parts = {
        "brokers are not more evenly occupied": found["spread"][True] < found["spread"][False],
        "messages do not wait less at the slowest broker": found["slowest_ms"][True]
        < found["slowest_ms"][False],
        "throughput is lower": found["useful_per_s"][True] >= found["useful_per_s"][False],
    }
    figures = {f"{name}, without and with selection": rounded(one.values(), 2) for name, one in found.items()}
    return R9.judge(parts, figures)
