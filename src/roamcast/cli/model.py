"""`roamcast model`: results of formulas, as an alternative to simulation."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from roamcast.cli.output import emit_json, table
from roamcast.cli.usage import AsJson, new_group, option, show_examples
from roamcast.errors import InputError, read_text

if TYPE_CHECKING:
    from roamcast.models.cost import Roaming, Sends, Setting
    from roamcast.models.ctmc import Forks
    from roamcast.models.fit import Fit

COST = "roamcast model cost --connect 600 --disconnect 30 --sends 1.7"
CTMC = "roamcast model ctmc --topology building --movement NBR --connect 60 --disconnect 12 --handoff 3"
FIT = "roamcast model fit --points points.csv --degree 2 --at 300"


def register(app: typer.Typer) -> None:
    group = new_group("Compute formulas about moving clients.", examples=[COST, CTMC, FIT])
    app.add_typer(group, name="model")
    group.command("cost", epilog=show_examples(COST, f"{COST} --case 5 --json"))(cost)
    group.command("ctmc", epilog=show_examples(CTMC, f"{CTMC} --clients 200 --json"))(ctmc)
    group.command(
        "fit",
        epilog=show_examples(
            FIT,
            "roamcast model fit --point 1,13 --point 8,87 --point 17,147 --point 25,190 --degree 1 --at 33",
        ),
    )(fit)


# The defaults of all three are those of the models, written out because importing these would slow down every
# start; a test compares them.

# --- cost ---

COST_COLUMNS = {
    "xi_n_to_xi_m": "xi_n/xi_m",
    "r1": "R1",
    "xi_n_to_xi_n3": "xi_n/xi_n3",
    "r2_ratio_1": "R2 at 1",
    "r2_ratio_0": "R2 at 0",
    "reactive": "cost reactive",
    "proactive": "cost pro-active",
    "durable": "cost durable",
    "cheapest": "cheapest",
}
"""Figures in the table, with their headings."""


def cost(
    case: list[int] | None = option(
        None, "Case of Gaddah's table 3.1; Repeatable. [default: all five]", min=1, max=5
    ),
    roaming: str | None = option(
        None, "Instead of a case: probabilities a01,a02,a03,a10,a12,a13 between the states."
    ),
    connect: float = option(600.0, "Mean time connected, in seconds."),
    disconnect: float = option(30.0, "Mean time disconnected, in seconds."),
    handoff_neighbour: float = option(0.32, "Mean time of a pro-active handoff to a neighbour, in seconds."),
    handoff_elsewhere: float = option(3.29, "Mean time of a pro-active handoff elsewhere, in seconds."),
    sends: float = option(1.7, "Sends of each message to buffer it at the neighbours (N1)."),
    sends_fetch: float = option(1.0, "Sends of each message to fetch it from the old broker (N2)."),
    sends_store: float = option(2.0, "Sends of each message to store it at every broker (N3)."),
    control: float = option(0.0, "Cost of a handoff's control messages, in sends."),
    as_json: AsJson = False,
) -> None:
    """Compare the message cost of reactive, pro-active and durable handling of moves.

    Pro-active costs less than reactive while xi_n/xi_m is below R1 (shown for the given sends), and less than
    durable while xi_n/xi_n3 is below R2 (shown for xi_m/xi_n at 1 and at 0).
    """
    from roamcast.models.cost import CASES, HANDOFFS, Handoffs, Sends, Setting

    if roaming is not None and case:
        raise InputError("--case and --roaming exclude each other: a case is a set of probabilities")
    movements: dict[str, Roaming] = (
        {"given": parse_roaming(roaming)}
        if roaming is not None
        else {str(number): CASES[number] for number in case or CASES}
    )
    handoffs = {**HANDOFFS, "proactive": Handoffs(handoff_neighbour, handoff_elsewhere)}
    each = Sends(sends, sends_fetch, sends_store)
    cases = {
        name: cost_figures(Setting(probabilities, connect, disconnect, handoffs), each, control)
        for name, probabilities in movements.items()
    }
    if as_json:
        settings = {
            "connect_s": connect, "disconnect_s": disconnect,
            "handoff_neighbour_s": handoff_neighbour, "handoff_elsewhere_s": handoff_elsewhere,
            "sends": sends, "sends_fetch": sends_fetch, "sends_store": sends_store, "control": control,
        }  # fmt: skip
        emit_json({**settings, "cases": cases})
        return
    title = f"connected {connect:g} s, disconnected {disconnect:g} s, {sends:g} sends to buffer a message"
    rows = [
        [name, *({**found, **found["costs"]}[key] for key in COST_COLUMNS)] for name, found in cases.items()
    ]
    table(["case", *COST_COLUMNS.values()], rows, title=title)


def cost_figures(setting: Setting, sends: Sends, control: float) -> dict[str, Any]:
    from roamcast.models import cost as model

    costs = model.average_costs(setting, sends, control)._asdict()
    elsewhere_s = setting.handoffs["proactive"].elsewhere_s
    return {
        "xi_n_to_xi_m": model.buffer_to_fetch(sends, setting.disconnect_s, elsewhere_s),
        "r1": model.bound_against_reactive(setting),
        "xi_n_to_xi_n3": sends.buffering / sends.storing,
        "r2_ratio_1": model.bound_against_durable(setting, 1.0),
        "r2_ratio_0": model.bound_against_durable(setting, 0.0),
        "costs": costs,
        "cheapest": min(costs, key=costs.__getitem__),
        "probabilities": {
            scheme: model.state_probabilities(setting, scheme)._asdict() for scheme in model.SCHEMES
        },
    }


def parse_roaming(text: str) -> Roaming:
    from roamcast.models.cost import Roaming

    values = parse_numbers("--roaming", text, 6, "a01,a02,a03,a10,a12,a13")
    try:
        return Roaming(*values)
    except InputError as error:
        raise InputError(f"--roaming {text}: {error}") from None


# --- ctmc ---


def ctmc(
    topology: str = option("building", "grid:K, tree:B:H, line:N, star:N, random:N, building or file:PATH."),
    movement: str = option(
        "NBR", "Movement: NBR (to neighbours), RND (to any broker) or RND:published (Gaddah's matrix)."
    ),
    connect: float = option(60.0, "Mean time connected, in seconds."),
    disconnect: float = option(12.0, "Mean time disconnected, in seconds."),
    handoff: float = option(3.0, "Mean time between two brokers, in seconds."),
    connect_to_handoff: float | None = option(
        None, "Share of the clients that leave a broker for another. [default: 0.5]"
    ),
    disconnect_to_handoff: float | None = option(
        None, "Share of disconnected clients that do not return. [default: 0.5]"
    ),
    clients: int = option(200, "Number of clients.", min=1),
    confidence: float = option(0.95, "Confidence of the bounds, between 0 and 1."),
    seed: int = option(0, "Seed of a random topology."),
    as_json: AsJson = False,
) -> None:
    """Compute the long-term number of clients at each broker, from a Markov chain.

    low and high bound the number at a random moment; they are omitted if the expected number is too small.
    """
    import random

    from roamcast.models.ctmc import MeanTimes, client_bounds, expected_clients, movement_chain, presence
    from roamcast.simulator.topology import parse_topology

    network = parse_topology(topology, random.Random(seed))
    forks = parse_forks(connect_to_handoff, disconnect_to_handoff)
    chain = movement_chain(movement, network.neighbours, MeanTimes(connect, disconnect, handoff), forks)

    def figures(probability: float) -> dict[str, float | None]:
        low, high = client_bounds(probability, clients, confidence) or (None, None)
        expected = expected_clients(probability, clients)
        return {"probability": probability, "clients": expected, "low": low, "high": high}

    found = presence(chain)
    brokers = {broker: figures(probability) for broker, probability in found.connect.items()}
    away = {"disconnect": figures(found.disconnect), "handoff": figures(found.handoff)}
    if as_json:
        settings = {
            "topology": topology, "movement": movement, "clients": clients, "confidence": confidence,
            "connect_s": connect, "disconnect_s": disconnect, "handoff_s": handoff,
            "states": len(chain.states),
        }  # fmt: skip
        emit_json({**settings, "brokers": brokers, **away})
        return
    title = f"{clients} clients on {topology}, movement {movement}; bounds at {confidence:.4g}"
    rows = [[name, *row.values()] for name, row in {**brokers, **away}.items()]
    table(["where", "probability", "clients", "low", "high"], rows, title=title)


def parse_forks(connect_to_handoff: float | None, disconnect_to_handoff: float | None) -> Forks | None:
    """Return the forks, or None if neither option is given: a published chain has its own."""
    from roamcast.models.ctmc import Forks

    if connect_to_handoff is None and disconnect_to_handoff is None:
        return None
    even = Forks()
    return Forks(
        even.connect_to_handoff if connect_to_handoff is None else connect_to_handoff,
        even.disconnect_to_handoff if disconnect_to_handoff is None else disconnect_to_handoff,
    )


# --- fit ---


def fit(
    points: Path | None = option(None, "CSV file with the columns x,y."),
    point: list[str] | None = option(None, "A point x,y. Repeatable."),
    degree: str = option(
        "3", "Degree of the polynomial, or best: the highest of 1 to 3 that improves the fit."
    ),
    at: list[float] | None = option(None, "x of a prediction. Repeatable."),
    confidence: float = option(0.95, "Confidence of the bounds, between 0 and 1."),
    as_json: AsJson = False,
) -> None:
    """Fit a polynomial to measured points, and predict values beyond them.

    mean low and high bound the curve itself; single low and high bound one more measurement.
    """
    xs, ys = gather_points(points, point or [])
    found = fitted(xs, ys, degree)
    predictions = [found.predict(x, confidence) for x in at or []]
    summary: dict[str, Any] = {
        "points": found.points,
        "x_min": found.x_min,
        "x_max": found.x_max,
        "degree": found.degree,
        "r_squared": found.r_squared,
        "r_squared_adjusted": found.r_squared_adjusted,
        "deviation": found.deviation,
    }
    rows = [
        {
            "x": prediction.x, "y": prediction.y,
            "mean_low": prediction.mean.low, "mean_high": prediction.mean.high,
            "single_low": prediction.single.low, "single_high": prediction.single.high,
            "extrapolated": prediction.extrapolated,
        }
        for prediction in predictions
    ]  # fmt: skip
    if as_json:
        summary["coefficients"] = found.curve.coefficients
        emit_json({**summary, "confidence": confidence, "predictions": rows})
        return
    terms = {f"coefficient of x^{power}": value for power, value in enumerate(found.curve.coefficients)}
    readable = [(name.replace("_", " "), value) for name, value in {**summary, **terms}.items()]
    table(["what", "value"], readable, title="least-squares polynomial")
    if rows:
        columns = [name.replace("_", " ") for name in rows[0]]
        table(columns, [list(row.values()) for row in rows], title=f"predictions; bounds at {confidence:.4g}")


def fitted(xs: Sequence[float], ys: Sequence[float], degree: str) -> Fit:
    from roamcast.models.fit import DEGREE_MAX, best_fit
    from roamcast.models.fit import fit as fit_degree

    if degree == "best":
        return best_fit(xs, ys)
    # int() would also take signs, blanks and underscores.
    if not (degree.isascii() and degree.isdigit() and len(degree) <= 3):
        raise InputError(f"--degree {degree!r}: valid is a number from 0 to {DEGREE_MAX}, or best")
    return fit_degree(xs, ys, int(degree))


def gather_points(path: Path | None, flags: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return the points of the file, then those of the flags."""
    if path is None and not flags:
        raise InputError("there are no points; name a CSV file with --points FILE, or give --point X,Y")
    found = [] if path is None else read_points(path)
    found += [parse_numbers("--point", text, 2, "X,Y") for text in flags]
    return [x for x, _ in found], [y for _, y in found]


def read_points(path: Path) -> list[list[float]]:
    reader = csv.reader(read_text(path, "--points").splitlines())
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: {error}; expected x,y") from None
    names = [name.strip() for name in rows[0][1]] if rows else []
    if names != ["x", "y"]:
        raise InputError(f"{path}: the first line is {','.join(names)!r}; expected the columns 'x,y'")
    if len(rows) == 1:
        raise InputError(f"{path}: there are no points in this file; expected lines such as 10,86.99")
    return [parse_numbers(f"{path} line {line}:", ",".join(row), 2, "x,y") for line, row in rows[1:]]


def parse_numbers(where: str, text: str, count: int, form: str) -> list[float]:
    """Read `count` numbers with commas between them."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != count:
        raise InputError(f"{where} {text!r}: expected {count} numbers {form}")
    return numbers
