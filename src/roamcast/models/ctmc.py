"""Positions of moving clients in the long run: continuous-time Markov chains (Gaddah chapter 6).

A client is connected to a broker, disconnected from it, or handing off to another (figure 6.1).
`random_chain` is that of section 6.3, where a handoff leads to any broker, and `neighbouring_chain` that of
section 6.4, where it leads along the neighbour graph; both accept any network.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from roamcast.errors import InputError
from roamcast.models.intervals import Bounds, normal_factor
from roamcast.models.stationary import stationary

MOVEMENTS = ("RND", "RND:published", "NBR")


@dataclass(frozen=True, slots=True)
class MeanTimes:
    """Mean time in each kind of state: T_beta, T_delta and T_alpha of the thesis."""

    connect_s: float
    disconnect_s: float
    handoff_s: float

    def __post_init__(self) -> None:
        for name, value_s in (
            ("connect", self.connect_s), ("disconnect", self.disconnect_s), ("handoff", self.handoff_s),
        ):  # fmt: skip
            # A time so short that its rate overflows is refused with the zeros.
            if not (0.0 < value_s < math.inf and math.isfinite(1.0 / value_s)):
                raise InputError(f"{name} time must be a number of seconds above 0, not {value_s}")


@dataclass(frozen=True, slots=True)
class Forks:
    """Probability of a handoff when a client leaves a broker, and when a disconnection ends.

    Otherwise the client is disconnected next, or reconnects to the same broker. Figure 6.1 has even forks.
    """

    connect_to_handoff: float = 0.5
    disconnect_to_handoff: float = 0.5

    def __post_init__(self) -> None:
        for name, value in (
            ("connect to handoff", self.connect_to_handoff),
            ("disconnect to handoff", self.disconnect_to_handoff),
        ):
            if not 0.0 <= value <= 1.0:
                raise InputError(f"fork from {name} must be a probability from 0 to 1, not {value}")
        if self.connect_to_handoff == self.disconnect_to_handoff == 0.0:
            # Every broker would keep the clients that it began with.
            raise InputError("both forks are 0: no client ever hands off; one of them must be above 0")


class State(NamedTuple):
    """A state; `broker` is None for a state that all brokers share."""

    kind: str
    broker: str | None


@dataclass(frozen=True)
class Chain:
    """States and the rates between them: `generator[i, j]` is the rate from state i to j; each row adds up to
    0.
    """

    states: tuple[State, ...]
    generator: Any


@dataclass(frozen=True, slots=True)
class Presence:
    """Probability that a client is connected to each broker, disconnected, or handing off."""

    connect: dict[str, float]
    disconnect: float
    handoff: float


def published_forks(broker_count: int) -> Forks:
    """Return the forks of the rate matrix in section 6.3: from disconnect, all N + 1 targets are equally
    likely.

    Figure 6.1 and the text of section 6.2 say 1/2 instead, as in `Forks()`.
    """
    return Forks(0.5, 1.0 / (broker_count + 1))


def random_chain(brokers: Iterable[str], times: MeanTimes, forks: Forks | None = None) -> Chain:
    """Return the chain of section 6.3: a connect state for each broker, and one disconnect and one handoff
    state for all.

    The two shared states do not know where the client was, so it returns from them to any broker, whereas in
    figure 6.1 it reconnects to the same one or hands off to another. Since all brokers are alike, this
    changes which clients are at a broker but not how many.
    """
    forks = forks or Forks()
    ids = tuple(dict.fromkeys(brokers))
    if len(ids) < 2:
        raise InputError(f"random mobility needs two brokers or more, not {len(ids)}")
    states = (State("handoff", None), State("disconnect", None), *(State("connect", id) for id in ids))
    back = (1.0 - forks.disconnect_to_handoff) / len(ids)
    rates = [(1, 0, forks.disconnect_to_handoff / times.disconnect_s)]
    for here in range(2, len(states)):
        rates += [
            (0, here, 1.0 / (len(ids) * times.handoff_s)),
            (1, here, back / times.disconnect_s),
            (here, 0, forks.connect_to_handoff / times.connect_s),
            (here, 1, (1.0 - forks.connect_to_handoff) / times.connect_s),
        ]
    return Chain(states, _generator(len(states), rates))


def neighbouring_chain(
    neighbours: Mapping[str, Iterable[str]], times: MeanTimes, forks: Forks | None = None
) -> Chain:
    """Return the chain of section 6.4: a connect, a disconnect and a handoff state for each broker.

    Edges may lead one way only, as long as every broker can be reached from every other.
    """
    forks = forks or Forks()
    graph = _checked_graph(neighbours)
    count, numbers = len(graph), {broker: number for number, broker in enumerate(graph)}
    states = tuple(State(kind, broker) for kind in ("connect", "disconnect", "handoff") for broker in graph)
    rates: list[tuple[int, int, float]] = []
    for broker, connect in numbers.items():
        disconnect, handoff = connect + count, connect + 2 * count
        rates += [
            (connect, disconnect, (1.0 - forks.connect_to_handoff) / times.connect_s),
            (connect, handoff, forks.connect_to_handoff / times.connect_s),
            (disconnect, connect, (1.0 - forks.disconnect_to_handoff) / times.disconnect_s),
            (disconnect, handoff, forks.disconnect_to_handoff / times.disconnect_s),
        ]
        # alpha_i of equation 6.16.
        rate = 1.0 / (len(graph[broker]) * times.handoff_s)
        rates += [(handoff, numbers[there], rate) for there in graph[broker]]
    return Chain(states, _generator(len(states), rates))


def movement_chain(
    movement: str, neighbours: Mapping[str, Iterable[str]], times: MeanTimes, forks: Forks | None = None
) -> Chain:
    """Return the chain of a movement pattern by its name; random movement ignores the edges."""
    if movement == "NBR":
        return neighbouring_chain(neighbours, times, forks)
    if movement == "RND":
        return random_chain(neighbours, times, forks)
    if movement == "RND:published":
        if forks is not None:
            raise InputError("movement RND:published has its own forks; give other ones with RND")
        return random_chain(neighbours, times, published_forks(len(neighbours)))
    raise InputError(f"movement {movement!r}: valid are {', '.join(MOVEMENTS)}")


def presence(chain: Chain) -> Presence:
    """Return the probability of each position of a client in the long run."""
    connect: dict[str, float] = {}
    away = {"disconnect": 0.0, "handoff": 0.0}
    for state, probability in zip(chain.states, stationary(chain.generator).tolist(), strict=True):
        if state.kind == "connect" and state.broker is not None:
            connect[state.broker] = probability
        else:
            away[state.kind] += probability
    return Presence(connect, away["disconnect"], away["handoff"])


def expected_clients(probability: float, clients: int) -> float:
    """Return the expected number of clients in each state (equations 6.10 to 6.12 and 6.17)."""
    _check_binomial(probability, clients)
    return clients * probability


def client_bounds(probability: float, clients: int, confidence: float = 0.95) -> Bounds | None:
    """Return bounds on the number of clients in a state at a random moment (section 6.6.1).

    The bounds use the normal approximation to the binomial distribution; None where it is not valid, because
    two standard deviations from the mean exceed the range from none to all clients.
    """
    _check_binomial(probability, clients)
    mean = clients * probability
    deviation = math.sqrt(mean * (1.0 - probability))
    reach = normal_factor(confidence) * deviation
    if mean <= 2.0 * deviation or mean + 2.0 * deviation >= clients:
        return None
    return Bounds(mean - reach, mean + reach)


def _generator(size: int, rates: Sequence[tuple[int, int, float]]) -> Any:
    rows, columns, values = (np.array(part) for part in zip(*rates, strict=True))
    outside = sparse.coo_array((values, (rows, columns)), shape=(size, size)).tocsr()
    return (outside - sparse.diags_array(np.asarray(outside.sum(axis=1)).ravel())).tocsr()


def _checked_graph(neighbours: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    graph = {broker: tuple(dict.fromkeys(others)) for broker, others in neighbours.items()}
    if len(graph) < 2:
        raise InputError(f"neighbouring mobility needs two brokers or more, not {len(graph)}")
    for broker, others in graph.items():
        if not others:
            raise InputError(f"broker {broker!r} has no neighbours; a client there would never move on")
        if broker in others:
            raise InputError(f"broker {broker!r} is its own neighbour; a handoff leads to another broker")
        for other in others:
            if other not in graph:
                raise InputError(f"broker {broker!r} has the neighbour {other!r}, which has no entry itself")
    _check_ways(graph)
    return graph


def _check_ways(graph: Mapping[str, Sequence[str]]) -> None:
    """Refuse a graph in which some broker cannot be reached from some other."""
    numbers = {broker: number for number, broker in enumerate(graph)}
    edges = [(numbers[broker], numbers[other]) for broker, others in graph.items() for other in others]
    matrix = sparse.coo_array((np.ones(len(edges)), tuple(zip(*edges, strict=True))), (len(graph),) * 2)
    # Ways from one broker to all, and from all to that one, make ways from all to all.
    for ways, text in ((matrix, "from {0!r} to {1!r}"), (matrix.T, "from {1!r} to {0!r}")):
        reached = csgraph.breadth_first_order(ways, 0, return_predecessors=False)
        missed = [broker for broker, number in numbers.items() if number not in reached]
        if missed:
            way = text.format(next(iter(graph)), missed[0])
            raise InputError(
                f"the neighbour graph has no path {way}; clients must be able to reach every broker"
            )


def _check_binomial(probability: float, clients: int) -> None:
    if not 0.0 <= probability <= 1.0:
        raise InputError(f"probability must be from 0 to 1, not {probability}")
    if clients < 0:
        raise InputError(f"number of clients must be 0 or more, not {clients}")
