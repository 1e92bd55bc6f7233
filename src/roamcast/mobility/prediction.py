"""Where clients of one broker go next: a model of first and second order, corrected by the moves it sees.

The model is what `roamcast pipeline neighbours` learns, or empty. A probability in it counts as much as
`MOVES_LEARNED` moves that this broker has seen itself. Older moves count less and less. Where a client came
from tells more about where it goes the more often that was seen; until then first order decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from roamcast.errors import InputError
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.state import State

MOVES_LEARNED = 20.0
"""Weight of a learned row, in moves."""
FORGETTING = 0.98
"""What earlier moves of a row count after each move."""
MOVES_TO_TRUST = 4.0
"""Number of moves from one previous broker with which second order counts as much as first order."""
WEIGHT_MIN = 0.01
"""A destination that counts less is forgotten."""

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]

Row = dict[str, float]
"""Next broker to its weight, in moves."""


class Predictor:
    """The part of the model that one broker needs."""

    __state__ = State("predictor", saved=("_first", "_second"))

    def __init__(self, here: str, model: str = "") -> None:
        self._first: Row = {}
        self._second: dict[str, Row] = {}
        """By the broker that the client came from."""
        if model:
            self._first = _weighted(parse_graph(model).get(here, {}))
            for previous, rows in second_order(model).items():
                if here in rows:
                    self._second[previous] = _weighted(rows[here])

    def learn(self, previous: str, destination: str) -> None:
        """A client that had come from `previous` ("" if from nowhere) went to this destination."""
        _count(self._first, destination)
        if previous:
            _count(self._second.setdefault(previous, {}), destination)

    def predict(self, previous: str, mass: float = 1.0) -> list[str]:
        """Where a client that came from there may go next, the most likely first.

        No more brokers than make up the probability `mass`.
        """
        second = self._second.get(previous, {})
        seen = sum(second.values())
        trust = seen / (seen + MOVES_TO_TRUST)
        total = sum(self._first.values())
        likely = {one: (1 - trust) * weight / total for one, weight in self._first.items()}
        for one, weight in second.items():
            likely[one] = likely.get(one, 0.0) + trust * weight / seen
        chosen: list[str] = []
        covered = 0.0
        for one in sorted(likely, key=lambda one: (-likely[one], one)):
            if covered >= mass:
                break
            chosen.append(one)
            covered += likely[one]
        return chosen


def why_unusable(model: str, here: str, now_s: float, age_s_max: float | None) -> str:
    """Why a model file is of no use to the broker `here`; "" if it is. Times are Unix time, in seconds."""
    try:
        graph = parse_graph(model, "the model")
        second_order(model)
    except InputError as error:
        return str(error)
    about = json.loads(model).get("about")
    made_at_s = about.get("made_at_s") if isinstance(about, dict) else None
    if age_s_max is not None and isinstance(made_at_s, int | float) and now_s - made_at_s > age_s_max:
        return f"the model was made {(now_s - made_at_s) / 86_400:.0f} days ago"
    if here not in graph and not any(here in row for row in graph.values()):
        return f"the model is of other brokers: {here} is not one of them"
    return ""


def second_order(model: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Previous broker, this broker, next broker, and its probability; empty where the model has none."""
    about: Any = json.loads(model).get("about", {})
    rows = about.get("second_order", {}) if isinstance(about, dict) else {}
    try:
        return msgspec.convert(rows, dict[str, dict[str, dict[str, Probability]]])
    except msgspec.ValidationError as error:
        raise InputError(f"neighbour graph, about.second_order: {error}") from None


def _weighted(row: Mapping[str, float]) -> Row:
    return {one: probability * MOVES_LEARNED for one, probability in row.items() if probability > 0}


def _count(row: Row, destination: str) -> None:
    for one in list(row):
        row[one] *= FORGETTING
        if row[one] < WEIGHT_MIN:
            del row[one]
    row[destination] = row.get(destination, 0.0) + 1.0
