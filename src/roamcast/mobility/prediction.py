"""Where clients of one broker go next, and when: by the way they came, corrected by the moves it sees.

The model is what `roamcast pipeline neighbours` learns, or empty. The way of a client is the brokers where it
was before this one; a model of third order knows two of them. Predictions for a longer way are mixed with
those for shorter ways. The shorter ways count more if clients often continued that longer way to a new
destination (Witten and Bell 1991). Weights of older moves decay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from roamcast.errors import InputError
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.state import State

FORGETTING = 0.98
"""Factor by which the weight of earlier moves of a context decays with each move."""
MOVES_LEARNED_MAX = 1 / (1 - FORGETTING)
"""Weight of a learned context, at most, in moves: the limit after infinitely many moves."""
WEIGHT_MIN = 0.01
"""A destination with less weight is forgotten."""
WAYS_MAX = 10_000
"""Ways remembered by one broker; beyond that the least recently used is forgotten."""
SEPARATOR = "\0"
ANYHOW = ""
"""Key of the row for all clients, whatever their way."""

Row = dict[str, float]
"""Next broker to its weight, in moves."""
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Context(msgspec.Struct, forbid_unknown_fields=True):
    """Moves of clients that came to a broker by the same way."""

    after: list[str]
    """Brokers visited before that one, the last one last."""
    next: dict[str, Annotated[float, msgspec.Meta(gt=0)]]
    """Next broker to the number of clients that went there."""


class Model(msgspec.Struct):
    """The parts of a model file that brokers read, besides the neighbour graph; the rest is for people."""

    contexts: dict[str, list[Context]] = {}
    """Contexts by the broker where a client is."""
    stays: dict[str, list[tuple[float, Share]]] = {}
    """Distribution of stays by broker: times in seconds, and the share of stays that end within them."""


def _lift_1(fields: dict[str, Any]) -> None:
    """Version 1 knew one broker before the current one, and no times."""
    fields["_ways"] = fields.pop("_second")
    fields["_stays"] = []


def _lift_2(fields: dict[str, Any]) -> None:
    """Version 2 did not separate learnt weights from the model's: all of them now count as learnt."""
    fields["_learnt"] = {**fields.pop("_ways"), ANYHOW: fields.pop("_first")}
    fields["_model"], fields["_left"] = {}, {}


class Predictor:
    """The part of the model that one broker needs, and what it has learnt from moves."""

    __state__ = State(
        "predictor", 3, saved=("_learnt", "_model", "_left", "_stays"), lifts={1: _lift_1, 2: _lift_2}
    )

    def __init__(self, here: str, model: str = "") -> None:
        self._learnt: dict[str, Row] = {}
        """Learnt weights by the brokers before this one, or `ANYHOW`; the most recently used last."""
        self.take(here, model)

    def take(self, here: str, model: str) -> None:
        """Use this model from now on. Learnt weights stay."""
        self._model: dict[str, Row] = {}
        """Weights of the model, with the same keys."""
        self._left: dict[str, float] = {}
        """Remaining share of a model's row, which decays with each observed move."""
        self._stays: list[tuple[float, float]] = []
        """Times, and the share of stays that end within them."""
        if model:
            known = read_contexts(model)
            rows = {SEPARATOR.join(one.after): _learned(one.next) for one in known.contexts.get(here, ())}
            if not rows.get(ANYHOW):
                # A graph does not say how many moves its probabilities rest on.
                rows[ANYHOW] = _learned(parse_graph(model).get(here, {}), MOVES_LEARNED_MAX)
            self._model = rows
            self._stays = known.stays.get(here, [])

    @property
    def knows_ways(self) -> bool:
        """True if predictions depend on the way by which a client came."""
        return any(self._model) or any(self._learnt)

    def learn(self, before: Sequence[str], destination: str) -> None:
        """Learn that a client went to this destination after these brokers, the last one last."""
        for way in (*_ways(before), ANYHOW):
            row = self._learnt.pop(way, {})
            _count(row, destination)
            self._learnt[way] = row
            if way in self._model:
                self._left[way] = self._left.get(way, 1.0) * FORGETTING
        while len(self._learnt) > WAYS_MAX + 1:
            del self._learnt[next(iter(self._learnt))]

    def _row(self, way: str) -> Row:
        """Return the combined weights for a way; the caller must not change them."""
        learnt, told = self._learnt.get(way, {}), self._model.get(way)
        if not told:
            return learnt
        left = self._left.get(way, 1.0)
        row = {one: weight * left for one, weight in told.items() if weight * left >= WEIGHT_MIN}
        for one, weight in learnt.items():
            row[one] = row.get(one, 0.0) + weight
        return row

    def chances(self, before: Sequence[str]) -> Row:
        """Return, by broker, the probability that a client which came by this way goes there next."""
        first = self._row(ANYHOW)
        total = sum(first.values())
        likely = {one: weight / total for one, weight in first.items()}
        for way in _ways(before):
            row = self._row(way)
            if row:
                shorter = len(row) if likely else 0
                total = sum(row.values()) + shorter
                likely = {
                    one: (row.get(one, 0.0) + shorter * likely.get(one, 0.0)) / total for one in likely | row
                }
        return likely

    def predict(self, before: Sequence[str], mass: float = 1.0) -> list[str]:
        """Return the likely next brokers, most likely first; no more than needed for the probability
        `mass`."""
        likely = self.chances(before)
        chosen: list[str] = []
        covered = 0.0
        for one in sorted(likely, key=lambda one: (-likely[one], one)):
            if covered >= mass:
                break
            chosen.append(one)
            covered += likely[one]
        return chosen

    def leaves_within(self, stayed_s: float, horizon_s: float) -> float:
        """Return the probability that a client which has stayed `stayed_s` leaves soon; 0 where nothing is
        known."""
        lasting = 1 - self._ended(stayed_s)
        return 1 - (1 - self._ended(stayed_s + horizon_s)) / lasting if lasting else 1.0

    def _ended(self, within_s: float) -> float:
        return max((share for time_s, share in self._stays if time_s <= within_s), default=0.0)


def why_unusable(model: str, here: str, now_s: float, age_s_max: float | None) -> str:
    """Return why a model file is useless for the broker `here`; "" if useful. Times are Unix time, in
    seconds."""
    try:
        graph = parse_graph(model, "the model")
        read_contexts(model)
    except InputError as error:
        return str(error)
    about = json.loads(model).get("about")
    made_at_s = about.get("made_at_s") if isinstance(about, dict) else None
    if age_s_max is not None and isinstance(made_at_s, int | float) and now_s - made_at_s > age_s_max:
        return f"the model was made {(now_s - made_at_s) / 86_400:.0f} days ago"
    if here not in graph and not any(here in row for row in graph.values()):
        return f"the model is of other brokers: {here} is not one of them"
    return ""


def read_contexts(model: str) -> Model:
    """Return contexts and stays of a model file; empty where it has none."""
    try:
        return msgspec.json.decode(model, type=Model)
    except msgspec.MsgspecError as error:
        raise InputError(f"neighbour graph: {error}") from None


def _ways(before: Sequence[str]) -> list[str]:
    """Return the suffixes of the way, the shortest first."""
    return [SEPARATOR.join(before[at:]) for at in range(len(before) - 1, -1, -1)]


def _learned(row: Mapping[str, float], moves: float | None = None) -> Row:
    """Scale the weights to `moves`, or their own sum, at most `MOVES_LEARNED_MAX`."""
    total = sum(row.values())
    scale = min(moves or total, MOVES_LEARNED_MAX) / total if total else 0.0
    return {one: weight * scale for one, weight in row.items() if weight > 0}


def _count(row: Row, destination: str) -> None:
    for one in list(row):
        row[one] *= FORGETTING
        if row[one] < WEIGHT_MIN:
            del row[one]
    row[destination] = row.get(destination, 0.0) + 1.0
