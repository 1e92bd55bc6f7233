"""Predicts where clients go next and when: order-k models with back-off, residence times, and their quality.

A model is a chain of contexts, from one that is always known (empty) to one that is rarely known (this
client, its last broker, its present broker). The counts of each context are mixed with the probabilities of
the one before it; the more often a context was left for a new broker, the more the one before it counts
(Witten and Bell 1991). Residence times include stays that had not ended (Kaplan and Meier 1958).

All models are learned from the first part of the time and judged on the rest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from roamcast.models.next_broker import Way, kept_ways

HOURS_PER_BAND = 3
MOVES_FOR_BOUND = 20
"""Number of moves of a client needed to estimate its entropy."""
RECENT = 3
"""Number of previous brokers that contexts may contain."""
KS = (1, 2, 4, 8)


class Visit(NamedTuple):
    client: str
    broker: str
    attach_s: float
    leave_s: float | None


class Move(NamedTuple):
    """A move of a client from one broker to another."""

    client: str
    recent: tuple[str, ...]
    """Brokers that the client visited, in order, up to the one that it leaves."""
    target: str
    at_s: float


def moves_of(visits: Iterable[Visit]) -> list[Move]:
    """Return the moves of all clients in the order of time; a return to the same broker is not a move."""
    ways: dict[str, list[Visit]] = {}
    for visit in sorted(visits, key=lambda visit: (visit.client, visit.attach_s)):
        ways.setdefault(visit.client, []).append(visit)
    moves = []
    for client, way in ways.items():
        recent: tuple[str, ...] = (way[0].broker,)
        for here, there in pairwise(way):
            if here.broker != there.broker:
                moves.append(Move(client, recent, there.broker, there.attach_s))
                recent = (*recent, there.broker)[-RECENT:]
    return sorted(moves, key=lambda move: (move.at_s, move.client))


# --- where ---

Context = Callable[[Move], tuple[object, ...] | None]
"""Part of the history that a model uses; None if a move does not have it."""


def _last(count: int) -> Context:
    return lambda move: move.recent[-count:] if len(move.recent) >= count else None


def _band(move: Move) -> tuple[object, ...]:
    return int(move.at_s // 3600 % 24 // HOURS_PER_BAND), move.recent[-1]


def _client(count: int) -> Context:
    return lambda move: (move.client, *move.recent[-count:]) if len(move.recent) >= count else None


NOTHING: Context = lambda move: ()  # noqa: E731
CHAINS: dict[str, tuple[Context, ...]] = {
    "busiest": (NOTHING,),
    "order 1": (NOTHING, _last(1)),
    "order 2": (NOTHING, _last(1), _last(2)),
    "order 3": (NOTHING, _last(1), _last(2), _last(3)),
    "order 2, time of day": (NOTHING, _last(1), _band, _last(2)),
    "order 2, client": (NOTHING, _last(1), _last(2), _client(1), _client(2)),
}
"""Name of a model to its contexts, the most general first."""
MODEL_FILE = "model file"
"""The third order without ways that only fit by chance."""


@dataclass
class NextBroker:
    """A model of the next broker."""

    chain: Sequence[Context]
    counts: dict[tuple[int, tuple[object, ...]], Counter[str]] = field(default_factory=dict)

    def learn(self, move: Move) -> None:
        for level, context in enumerate(self.chain):
            known = context(move)
            if known is not None:
                self.counts.setdefault((level, known), Counter())[move.target] += 1

    def drop_ways(self) -> None:
        """Keep the ways that a model file keeps; for chains of last brokers alone."""
        rows: dict[str, dict[Way, Counter[str]]] = {}
        for _, known in self.counts:
            if known:
                *way, here = map(str, known)
                rows.setdefault(here, {})[tuple(way)] = self.counts[len(known), known]
        kept = {(*way, here) for here, of_broker in rows.items() for way in kept_ways(of_broker)}
        self.counts = {key: row for key, row in self.counts.items() if not key[1] or key[1] in kept}

    def probabilities(self, move: Move) -> dict[str, float]:
        """Map brokers to probabilities; brokers that nobody ever went to are missing, and so is the
        present broker."""
        likely: dict[str, float] = {}
        for level, context in enumerate(self.chain):
            known = context(move)
            row = self.counts.get((level, known)) if known is not None else None
            if row is None:
                continue
            total, kinds = row.total(), len(row) if likely else 0
            likely = {
                broker: (row[broker] + kinds * likely.get(broker, 0.0)) / (total + kinds)
                for broker in dict.fromkeys((*row, *likely))
            }
        likely.pop(move.recent[-1], None)
        whole = sum(likely.values())
        return {broker: share / whole for broker, share in likely.items()} if whole else {}

    def ranked(self, move: Move) -> list[tuple[str, float]]:
        return sorted(self.probabilities(move).items(), key=lambda one: (-one[1], one[0]))


class LastUsed:
    """The last used destinations of each broker (Gaddah 3.3): it continues to learn, and has no
    probabilities.
    """

    def __init__(self) -> None:
        self._used: dict[str, list[str]] = {}

    def learn(self, move: Move) -> None:
        used = self._used.setdefault(move.recent[-1], [])
        if move.target in used:
            used.remove(move.target)
        used.insert(0, move.target)

    def ranked(self, move: Move) -> list[tuple[str, float]]:
        return [(broker, 0.0) for broker in self._used.get(move.recent[-1], ())]


Model = NextBroker | LastUsed


@dataclass
class Judged:
    """Quality of predictions of the next broker."""

    moves: int = 0
    hits: Counter[int] = field(default_factory=Counter)
    """Number of hits by k: how often the next broker was among the first k."""
    bits: float = 0.0
    """Log loss: bits needed per move to state the next broker; 0 for a model without probabilities."""

    def row(self) -> dict[str, float | None]:
        rates: dict[str, float | None] = {f"hit_{k}": self.hits[k] / self.moves for k in KS}
        return {**rates, "log_loss_bits": self.bits / self.moves if self.bits else None}


def judge(models: Mapping[str, Model], moves: Sequence[Move], at_s: float) -> dict[str, Judged]:
    """Let models learn from moves before `at_s`, and judge them on the rest; only `LastUsed` continues to
    learn.
    """
    judged = {name: Judged() for name in models}
    brokers = len({move.target for move in moves} | {move.recent[-1] for move in moves})
    for name, model in models.items():
        for move in moves:
            if move.at_s < at_s:
                model.learn(move)
        if isinstance(model, NextBroker) and name == MODEL_FILE:
            model.drop_ways()
        for move in moves:
            if move.at_s >= at_s:
                _judge_one(judged[name], model, move, brokers)
                if isinstance(model, LastUsed):
                    model.learn(move)
    return judged


def _judge_one(judged: Judged, model: Model, move: Move, brokers: int) -> None:
    ranked = model.ranked(move)
    place = next((place for place, (broker, _) in enumerate(ranked) if broker == move.target), None)
    judged.moves += 1
    judged.hits.update(k for k in KS if place is not None and place < k)
    if isinstance(model, NextBroker):
        share = ranked[place][1] if place is not None else 0.0
        # A broker that was never gone to is one of all, once in a hundred.
        judged.bits -= math.log2(0.99 * share + 0.01 / max(1, brokers - 1))


# --- the most that can be predicted ---


def predictability_bound(moves: Iterable[Move]) -> float | None:
    """Return the upper bound of the hit rate of any predictor, as the mean over clients (Song et al. 2010).

    It follows from the entropy of each client's own moves, estimated from how soon they show something new
    (Lempel and Ziv). Moves of other clients are not considered: a model that learns from all clients may
    exceed it.
    """
    ways: dict[str, list[str]] = {}
    for move in moves:
        ways.setdefault(move.client, [move.recent[-1]]).append(move.target)
    bounds = [
        _most_predictable(_entropy_bits(way), len(set(way)))
        for way in ways.values()
        if len(way) > MOVES_FOR_BOUND
    ]
    return fmean(bounds) if bounds else None


def _entropy_bits(way: Sequence[str]) -> float:
    signs = {broker: chr(0x100 + number) for number, broker in enumerate(sorted(set(way)))}
    text = "".join(signs[broker] for broker in way)
    total = 0
    for at in range(1, len(text)):
        length = 1
        while at + length <= len(text) and text[at : at + length] in text[: at + length - 1]:
            length += 1
        total += length
    return (len(text) - 1) * math.log2(len(text)) / total


def _most_predictable(entropy_bits: float, brokers: int) -> float:
    """Return the probability at which Fano's inequality gives this entropy."""

    def needed_bits(hit: float) -> float:
        unsure = -sum(share * math.log2(share) for share in (hit, 1 - hit) if share > 0)
        return unsure + (1 - hit) * math.log2(max(1, brokers - 1))

    low, high = 1 / brokers, 1.0
    if entropy_bits >= needed_bits(low):
        return low
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if needed_bits(middle) > entropy_bits else (low, middle)
    return low


# --- when ---


@dataclass(frozen=True)
class Survival:
    """Survival curve of stays: the share that lasts longer than each time."""

    times_s: tuple[float, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, stays: Iterable[tuple[float, bool]]) -> Survival:
        """Estimate the curve from stays, each with whether it had ended (Kaplan and Meier)."""
        ended: Counter[float] = Counter()
        left: Counter[float] = Counter()
        for stay_s, is_over in stays:
            left[stay_s] += 1
            ended[stay_s] += is_over
        at_risk, share = left.total(), 1.0
        times, shares = [], []
        for time_s in sorted(left):
            if ended[time_s]:
                share *= 1 - ended[time_s] / at_risk
                times.append(time_s)
                shares.append(share)
            at_risk -= left[time_s]
        return cls(tuple(times), tuple(shares))

    def lasts_longer(self, time_s: float) -> float:
        place = bisect_right(self.times_s, time_s)
        return self.shares[place - 1] if place else 1.0

    def leaves_within(self, since_s: float, horizon_s: float) -> float:
        """Return the probability that a stay of `since_s` so far ends within the next `horizon_s`."""
        still = self.lasts_longer(since_s)
        return 1 - self.lasts_longer(since_s + horizon_s) / still if still else 1.0

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return the times within which given shares of the stays end; None where too few ended."""
        return [
            next(
                (time for time, left in zip(self.times_s, self.shares, strict=True) if left <= 1 - share),
                None,
            )
            for share in shares
        ]


HORIZON_S = 300.0


def calibration(visits: Iterable[Visit], at_s: float, horizon_s: float = HORIZON_S) -> list[dict[str, float]]:
    """Compare predicted and actual shares of clients that leave within the horizon, grouped by the predicted
    probability.

    A prediction is made at the beginning of each stay of the later part, from the earlier stays at its
    broker.
    """
    visits = list(visits)
    learned: dict[str, list[tuple[float, bool]]] = {}
    for visit in visits:
        if visit.attach_s < at_s:
            is_over = visit.leave_s is not None and visit.leave_s <= at_s
            until_s = visit.leave_s if is_over and visit.leave_s is not None else at_s
            learned.setdefault(visit.broker, []).append((until_s - visit.attach_s, is_over))
    survivals = {broker: Survival.of(stays) for broker, stays in learned.items()}
    bins: dict[int, list[tuple[float, bool]]] = {}
    for visit in visits:
        if visit.attach_s >= at_s and visit.leave_s is not None and visit.broker in survivals:
            said = survivals[visit.broker].leaves_within(0.0, horizon_s)
            did = visit.leave_s - visit.attach_s <= horizon_s
            bins.setdefault(min(9, int(10 * said)), []).append((said, did))
    return [
        {
            "stays": len(found),
            "predicted": fmean(said for said, _ in found),
            "left": fmean(did for _, did in found),
        }
        for _, found in sorted(bins.items())
    ]


# --- one table ---


def evaluate(visits: Sequence[Visit], learn_share: float = 0.7) -> dict[str, object]:
    """Judge every model on one trace, and add the last used destinations and the bound."""
    from_s = min(visit.attach_s for visit in visits)
    until_s = max(visit.leave_s or visit.attach_s for visit in visits)
    at_s = from_s + learn_share * (until_s - from_s)
    moves = moves_of(visits)
    models: dict[str, Model] = {name: NextBroker(chain) for name, chain in CHAINS.items()}
    models[MODEL_FILE] = NextBroker(CHAINS["order 3"])
    models["last used"] = LastUsed()
    judged = judge(models, moves, at_s)
    later = [move for move in moves if move.at_s >= at_s]
    return {
        "moves": len(later),
        "models": {name: one.row() for name, one in judged.items() if one.moves},
        "bound_of_own_way": predictability_bound(moves),
        "calibration": calibration(visits, at_s),
    }
