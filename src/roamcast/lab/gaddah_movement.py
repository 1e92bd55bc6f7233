"""Gaddah 2008, sections 3.3 and 6.6, measured: where subscribers go, and are. Claims G13 and G14.

Nothing is published here: the moves alone make the neighbour graph and fill the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel, Pen, curves, in_words, runs_of
from roamcast.lab.curves import Curve, Curves
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, register
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.gaddah_models import BROKERS, NEIGHBOURS, TIMES
from roamcast.lab.gaddah_testbed import CHANGING, BuildingJob, simulate
from roamcast.lab.rows import Row, where
from roamcast.lab.sweep import Sweep
from roamcast.models.ctmc import expected_clients, movement_chain, presence
from roamcast.models.intervals import bounds_of

RND, NBR = "RND", "NBR"
TESTBED = "testbed of Gaddah 2008, section 4.4, simulated"


# --- equations 3.5 and 3.6: the neighbour graph ---

G13 = Claim(
    "G13", "shape",
    "the probability of a neighbour-graph miss (eq. 3.5) starts near 1 and goes to 0; unused edges leave "
    "by the LRU rule, and F_pos (eq. 3.6) shows what they cost",
    "F_neg about 1 in the initial phase, closer to 0 in the steady state; F_pos > 0: unnecessary edges",
)  # fmt: skip

GRAPH_SUBSCRIBERS = 20
"""Few, so that learning can be seen: 200 subscribers make all moves that there are within seconds."""
GRAPH_TIMEOUT_S = 600.0
"""Ten mean connect times: at half of that, edges that are in use leave, too, now and then."""
GRAPH_S = 3600.0
NEAR_ONE_MIN = 0.7
"""In the first interval of 30 s, in which a second move over the same edge may already come."""
NEAR_ZERO_MAX = 0.02


def graph_jobs(quick: bool) -> list[BuildingJob]:
    one = BuildingJob(
        "proactive", CHANGING, GRAPH_SUBSCRIBERS, publishing=False, neighbour_timeout_s=GRAPH_TIMEOUT_S,
        warm_up_s=0.0, window_s=GRAPH_S,
    )  # fmt: skip
    return [replace(one, seed=seed) for seed in range(1, (5 if quick else 20) + 1)]


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
        "f_pos": Pen("F_pos, time of edges for nothing", ARRIVED, ""),
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

G14 = Claim(
    "G14", "shape",
    "simulated subscribers per broker agree with the Markov chain of the same forks within the 95 % "
    "interval (fig. 6.5, 6.8)",
    "the simulation lies within the bounds of the model",
)  # fmt: skip

OUTSIDE_MAX = 2
"""Of twelve 95 % intervals 0.6 miss what they measure; three or more would by chance in 2 % of cases."""


def place_jobs(quick: bool) -> list[BuildingJob]:
    window_s, seeds = (2400.0, 5) if quick else (10_000.0, 10)
    one = BuildingJob("durable", publishing=False, warm_up_s=900.0, window_s=window_s)
    return [
        replace(one, movement=movement, seed=seed) for movement in (RND, NBR) for seed in range(1, seeds + 1)
    ]


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
    """Measured and expected subscribers for each broker, and for all together."""
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


register(Experiment("gaddah-neighbours", "Gaddah, section 3.3: neighbour graph", (G13,), neighbour_graph))
register(Experiment("gaddah-places", "Gaddah, figures 6.5 and 6.8: where subscribers are", (G14,), places))
