"""Gaddah 2008, chapters 3 and 6: claims that follow from formulas alone. Claims G1 to G6."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from matplotlib.axes import Axes
from scipy.optimize import brentq

from roamcast.lab.charts import Chart, Panel, bars, named
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, QUIET
from roamcast.lab.gaddah_testbed import BROKERS, NEIGHBOURS
from roamcast.lab.rows import Row, rounded
from roamcast.lab.sweep import Sweep
from roamcast.models.cost import (
    CASES,
    DISCONNECT_S,
    HANDOFFS,
    Handoffs,
    Sends,
    Setting,
    bound_against_durable,
    bound_against_reactive,
    buffer_to_fetch,
)
from roamcast.models.ctmc import MeanTimes, Presence, expected_clients, movement_chain, presence
from roamcast.models.fit import THROUGHPUT_PUBLISHED

G1, G2, G3, G4, G5, G6 = map(claim, ("G1", "G2", "G3", "G4", "G5", "G6"))


SUBSCRIBERS = 200
TIMES = MeanTimes(60.0, 12.0, 3.0)
TABLE_6_1 = (0.1099, 0.1648, 0.2198, 0.1099, 0.0549, 0.2198)
TABLE_3_2 = {
    1.3: (0.4277, 0.1426, 0.0713, 0.0475, 0.0143),
    1.5: (0.4935, 0.1645, 0.0823, 0.0548, 0.0164),
    1.7: (0.5593, 0.1864, 0.0932, 0.0621, 0.0186),
    2.0: (0.6580, 0.2193, 0.1097, 0.0731, 0.0219),
}
ROUNDED = 1e-12
"""Tolerance beyond half a unit of the last printed digit: two printed values were rounded down from exactly
half.
"""


def near(found: float, printed: float, digits: int) -> bool:
    """Return true if the value rounds to the printed one."""
    return abs(found - printed) <= 0.5 * 10.0**-digits + ROUNDED


@checks("gaddah-models", "Gaddah, chapters 3 and 6: formulas", G1, G2, G3, G4, G5, G6)
def models(quick: bool, sweep: Sweep) -> Findings:
    table_3_2: list[Row] = [
        {"sends": sends, "disconnect_s": disconnect_s, "found": found, "printed": printed}
        for sends, row in TABLE_3_2.items()
        for disconnect_s, printed in zip(DISCONNECT_S, row, strict=True)
        for found in [buffer_to_fetch(Sends(sends), disconnect_s)]
    ]
    published = presence(movement_chain("RND:published", NEIGHBOURS, TIMES))
    forks = presence(movement_chain("RND", NEIGHBOURS, TIMES))
    neighbouring = presence(movement_chain("NBR", NEIGHBOURS, TIMES))
    outcomes = [
        judge_g1(published, forks), judge_g2(neighbouring), judge_g3(), judge_g4(table_3_2), judge_g5(),
        judge_g6(),
    ]  # fmt: skip
    places: list[Row] = [
        {"model": name, "state": state, "probability": value, "subscribers": SUBSCRIBERS * value}
        for name, found in (("RND:published", published), ("RND", forks), ("NBR", neighbouring))
        for state, value in (
            *found.connect.items(), ("handoff", found.handoff), ("disconnect", found.disconnect),
        )
    ]  # fmt: skip
    return Findings(
        outcomes,
        {"table_3_2": table_3_2, "places": places},
        {"fig3_4_to_3_6_bounds": bounds_chart(), "table6_1_places": places_chart(neighbouring)},
    )


def bounds_chart() -> Chart:
    """Draw figures 3.4 to 3.6: the cost ratio below which pro-active is cheaper, and the ratios of
    table 3.2.
    """

    def panel(title: str, name: str, connect_s: float, bound: Callable[[Setting], float],
              estimates: Mapping[str, Sequence[float]], ylim: tuple[float, float]) -> Panel:  # fmt: skip
        def draw(axes: Axes) -> None:
            for (case, roaming), colour in zip(CASES.items(), CASE_COLOURS, strict=True):
                values = [bound(Setting(roaming, connect_s, one)) for one in DISCONNECT_S]
                axes.plot(DISCONNECT_S, values, color=colour, marker="o", label=f"bound, case {case}")
            for label, estimated in estimates.items():
                axes.plot(DISCONNECT_S, estimated, color=QUIET, linestyle=":", marker=".", label=label)

        said = {"xlabel": "mean disconnect time, s", "ylabel": name, "xscale": "log", "yscale": "log",
                "ylim": ylim, "xlim": (8, 600)}  # fmt: skip
        ticks = {one: f"{one:g}" for one in DISCONNECT_S}
        return Panel(draw, said, title, ticks, {"fontsize": 7, "loc": "best"})

    fetched = {f"N1 = {sends:g}": row for sends, row in TABLE_3_2.items()}
    stored = {f"N1/N3 = {sends / 2:g}": [sends / 2] * 5 for sends in (2.5, 4.0)}
    return Chart(
        "Where pro-active costs fewer messages: figures 3.4 to 3.6",
        "lines: bounds (equations 3.16, 3.17, table 3.1); dotted: estimates (table 3.2 and the text)",
        [
            panel("R1, against reactive (fig. 3.4)", "xi_n / xi_m", 600.0, bound_against_reactive, fetched,
                  (0.01, 20)),
            *(
                panel(f"R2 with ratio {ratio:g} (fig. 3.{number})", "xi_n / xi_n3", 60.0,
                      partial(bound_against_durable, fetch_to_buffer=ratio), stored, (1, 200))
                for ratio, number in ((1.0, 5), (0.0, 6))
            ),
        ],
    )  # fmt: skip


CASE_COLOURS = ("#08306b", "#2171b5", "#6baed6", "#2e7d4f", "#c8372d")


def places_chart(found: Presence) -> Chart:
    """Draw table 6.1 as printed, and the solution of our chain."""
    ours = [*(found.connect[broker] for broker in BROKERS), found.disconnect + found.handoff]
    drawn = bars({"printed": [*TABLE_6_1, 0.1209], "solved here": ours}, ("#c9dcec", ARRIVED))
    said = {"xlabel": "connected to a broker, or disconnected and handing off", "ylabel": "probability"}
    names = named([*(broker.upper() for broker in BROKERS), "away"])
    return Chart(
        "Where a subscriber is with neighbouring mobility, table 6.1", "the chain of section 6.4",
        [Panel(drawn, said, ticks=names, legend={}, room=1.15, grid="y")],
    )  # fmt: skip


def judge_g1(published: Presence, forks: Presence) -> Outcome:
    # The thesis multiplies the rounded probability.
    per_broker = expected_clients(round(published.connect["b1"], 6), SUBSCRIBERS)
    holds = (
        all(near(value, 0.147679, 6) for value in published.connect.values())
        and near(published.handoff, 0.025316, 6)
        and near(published.disconnect, 0.088608, 6)
        and near(per_broker, 29.5358, 4)
    )
    return G1.outcome(
        holds,
        {
            "by his matrix": {**shares(published), "subscribers per broker": round(per_broker, 4)},
            "by the forks of fig. 6.1": {
                **shares(forks),
                "subscribers per broker": round(expected_clients(forks.connect["b1"], SUBSCRIBERS), 3),
            },
        },
        G1.why,
    )


def shares(found: Presence) -> dict[str, float]:
    return {
        "connected to a broker": round(found.connect["b1"], 6),
        "handoff": round(found.handoff, 6),
        "disconnect": round(found.disconnect, 6),
    }


def judge_g2(found: Presence) -> Outcome:
    away = found.disconnect + found.handoff
    places = [found.connect[broker] for broker in BROKERS]
    holds = all(near(one, printed, 4) for one, printed in zip(places, TABLE_6_1, strict=True))
    figures = {"connected, b1 to b6": rounded(places, 5), "away": round(away, 5)}
    return G2.outcome(holds and near(away, 0.1209, 4), figures)


def judge_g3() -> Outcome:
    found = THROUGHPUT_PUBLISHED(29.5358)
    return G3.outcome(near(found, 218.983, 3), {"messages/s": round(found, 4)})


def judge_g4(table: Sequence[Row]) -> Outcome:
    wrong = [row for row in table if not near(row["found"], row["printed"], 4)]
    dearer, at_60_s = (
        {sends: [case for case in CASES if is_dearer(sends, case, connect_s)] for sends in TABLE_3_2}
        for connect_s in (600.0, 60.0)
    )
    holds = len(table) == 20 and not wrong and not any(dearer[sends] for sends in (1.3, 1.5, 1.7))
    return G4.outcome(
        holds,
        {
            "values": len(table),
            "largest difference": max(abs(row["found"] - row["printed"]) for row in table),
            "cases in which pro-active costs more, at 600 s": by_sends(dearer),
            "the same at 60 s": by_sends(at_60_s),
        },
        G4.why,
    )


def is_dearer(sends: float, case: int, connect_s: float) -> bool:
    return any(
        buffer_to_fetch(Sends(sends), disconnect_s)
        >= bound_against_reactive(Setting(CASES[case], connect_s, disconnect_s))
        for disconnect_s in DISCONNECT_S
    )


def by_sends(cases: Mapping[float, Sequence[int]]) -> dict[str, str]:
    return {f"{sends} sends": ", ".join(map(str, one)) or "none" for sends, one in cases.items()}


def judge_g5() -> Outcome:
    found = {case: bound_against_reactive(Setting(CASES[case], 600.0, 30.0)) for case in (1, 5)}
    return G5.outcome(
        near(found[1], 0.808, 3) and near(found[5], 0.191, 3),
        {f"case {case}": round(value, 4) for case, value in found.items()},
        G5.why,
    )


R2_PRINTED = {1.0: {1: (13.95, 17.18), 5: (5.51, 5.78)}, 0.0: {1: (21.10, 21.32), 5: (6.02, 6.07)}}
"""By ratio of fetching to buffering, and by case: the printed value, and the value by table 3.1."""


def judge_g6() -> Outcome:
    """Judge G6: the printed values do not follow from table 3.1. One unknown, pro-active's time of a handoff
    elsewhere, is solved from case 1 of each figure; case 5 must then follow without further choice.
    """
    figures: dict[str, object] = {}
    parts: dict[str, bool] = {}
    for ratio, cases in R2_PRINTED.items():
        elsewhere_s = sorted(solve_elsewhere(ratio, cases[1][0] + rounding) for rounding in (-0.005, 0.005))
        said = f"case 5 with the {elsewhere_s[0]:.2f} to {elsewhere_s[1]:.2f} s elsewhere that case 1 implies"
        predicted = sorted(r2(5, ratio, Handoffs(PROACTIVE_S, one)) for one in elsewhere_s)
        for case, (printed, by_table) in cases.items():
            found = r2(case, ratio, HANDOFFS["proactive"])
            figures[f"ratio {ratio:g}, case {case}"] = {"printed": printed, "by table 3.1": round(found, 3)}
            parts[f"ratio {ratio:g}, case {case}: {found:.2f} by table 3.1"] = near(found, by_table, 2)
            parts[f"ratio {ratio:g}, case {case}: no erratum"] = not near(found, printed, 2)
        figures[f"ratio {ratio:g}, {said}"] = rounded(predicted, 3)
        low, high = predicted
        parts[f"ratio {ratio:g}: one other time does not explain both cases"] = (
            low - 0.005 <= cases[5][0] <= high + 0.005
        )
    return G6.judge(parts, figures, notes=[G6.why])


PROACTIVE_S = HANDOFFS["proactive"].neighbour_s


def solve_elsewhere(ratio: float, printed: float) -> float:
    return float(brentq(lambda one: r2(1, ratio, Handoffs(PROACTIVE_S, one)) - printed, 1e-3, 60.0))


def r2(case: int, ratio: float, handoffs: Handoffs) -> float:
    setting = Setting(CASES[case], 60.0, 30.0)
    return bound_against_durable(replace(setting, handoffs={**HANDOFFS, "proactive": handoffs}), ratio)
