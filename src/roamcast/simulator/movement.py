"""Where a client is attached, and when: movement patterns and lists of visits.

A plan is drawn before a run and holds every visit of one client, so that all compared protocols get the same
moves.
"""

import csv
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from roamcast.errors import InputError, did_you_mean, read_text
from roamcast.simulator.topology import Topology

PATTERNS = ("uniform", "RND", "NBR", "fixed")

COLUMNS = ("client", "broker", "attach_s", "leave_s")


@dataclass(frozen=True, slots=True)
class Visit:
    """The client attaches to `broker` at `attach_s` and leaves it at `leave_s` (None: it stays).

    At the end of a proclaimed visit the client announces the broker of its next visit.
    """

    broker: str
    attach_s: float
    leave_s: float | None
    proclaimed: bool = False


@dataclass(frozen=True, slots=True)
class _Means:
    connect_s: float
    disconnect_s: float
    handoff_s: float


# Which broker comes next, given where the client is.
_Choose = Callable[[str], str]
# From the end of a visit: the broker of the next one, and how long until then.
_Leave = Callable[[str, float], tuple[str, float]]


def plan(
    pattern: str,
    topology: Topology,
    home: str,
    duration_s: float,
    rng: random.Random,
    connect_s: float,
    disconnect_s: float,
    handoff_s: float = 3.0,
    proclaimed: float = 0.0,
) -> list[Visit]:
    """Draw the visits of one client that begin before `duration_s`.

    The first attaches to `home` at 0.0. A visit that would end at or after `duration_s` has no end.
    `proclaimed` is the probability that a client announces a move to another broker; it does not change the
    moves.
    """
    _check(pattern, topology, home, duration_s, proclaimed)
    if pattern == "fixed":
        return [Visit(home, 0.0, None)]
    means = _Means(
        _period("connect_s", connect_s),
        _period("disconnect_s", disconnect_s),
        _period("handoff_s", handoff_s),
    )
    leave = _MAKE_LEAVE[pattern](topology, means, rng)
    visits: list[Visit] = []
    broker, attach_s = home, 0.0
    while attach_s < duration_s:
        leave_s = _after(attach_s, means.connect_s, rng)
        # Drawn whether or not it can count, so that the moves do not depend on it.
        says_so = rng.random() < proclaimed
        if leave_s >= duration_s:
            visits.append(Visit(broker, attach_s, None))
            return visits
        next_broker, attach_s_next = leave(broker, leave_s)
        moves = next_broker != broker and attach_s_next < duration_s
        visits.append(Visit(broker, attach_s, leave_s, proclaimed=says_so and moves))
        broker, attach_s = next_broker, attach_s_next
    return visits


def from_file(path: str | Path, topology: Topology | None = None) -> dict[str, list[Visit]]:
    """Read the visits of many clients from a CSV file with the columns `COLUMNS`.

    Each client's rows are in the order of time; an empty `leave_s` means that it
    stays. With a topology, unknown brokers are refused too.
    """
    visits: dict[str, list[Visit]] = {}
    for where, row in _rows(Path(path)):
        client, broker = row["client"], row["broker"]
        for column, value in (("client", client), ("broker", broker)):
            if not value:
                raise InputError(f"{where}: {column} is empty; expected its id")
        if topology is not None and broker not in topology.neighbours:
            raise InputError(f"{where}: broker {broker!r} is not in topology {topology.name}")
        visit = Visit(
            broker,
            _time(where, "attach_s", row["attach_s"]),
            _time(where, "leave_s", row["leave_s"]) if row["leave_s"] else None,
        )
        earlier = visits.setdefault(client, [])
        _check_order(where, client, earlier[-1] if earlier else None, visit)
        earlier.append(visit)
    if not visits:
        raise InputError(f"{path}: no visits in this file; expected rows of {','.join(COLUMNS)}")
    return visits


def part_of(visits: list[Visit], from_s: float, until_s: float) -> list[Visit]:
    """Return the part of a client's visits within a period, in seconds since its start; a visit at its end
    stays open."""
    part = []
    for visit in visits:
        if visit.attach_s < until_s and (visit.leave_s is None or visit.leave_s > from_s):
            stays = visit.leave_s is None or visit.leave_s >= until_s
            part.append(
                replace(
                    visit,
                    attach_s=max(visit.attach_s - from_s, 0.0),
                    leave_s=None if stays or visit.leave_s is None else visit.leave_s - from_s,
                )
            )
    return part


def _uniform(topology: Topology, means: _Means, rng: random.Random) -> _Leave:
    """Draw visits of a client that is away for a while and then attaches at any broker, possibly the same
    (Wang 5.1).
    """

    def leave(broker: str, leave_s: float) -> tuple[str, float]:
        attach_s = _after(leave_s, means.disconnect_s, rng)
        return rng.choice(topology.brokers), attach_s

    return leave


def _random(topology: Topology, means: _Means, rng: random.Random) -> _Leave:
    """Gaddah's random pattern: a handoff leads to any other broker."""
    if len(topology.brokers) < 2:
        raise InputError(f"pattern RND: topology {topology.name} has one broker; it needs two or more")

    def choose(broker: str) -> str:
        while (chosen := rng.choice(topology.brokers)) == broker:
            pass
        return chosen

    return _three_states(choose, means, rng)


def _neighbouring(topology: Topology, means: _Means, rng: random.Random) -> _Leave:
    """Gaddah's neighbouring pattern: a handoff leads along the neighbour graph."""
    for broker in topology.brokers:
        if not topology.neighbours[broker]:
            raise InputError(
                f"pattern NBR: broker {broker!r} of topology {topology.name} has no neighbours; "
                "every broker needs one to move on to"
            )

    def choose(broker: str) -> str:
        return rng.choice(topology.neighbours[broker])

    return _three_states(choose, means, rng)


def _three_states(choose: _Choose, means: _Means, rng: random.Random) -> _Leave:
    """Draw connects, disconnects and handoffs, with an even fork after each of the first two (Gaddah 4.4,
    figure 6.1).
    """

    def leave(broker: str, leave_s: float) -> tuple[str, float]:
        if rng.random() < 0.5:
            leave_s = _after(leave_s, means.disconnect_s, rng)
            if rng.random() < 0.5:
                return broker, leave_s
        attach_s = _after(leave_s, means.handoff_s, rng)
        return choose(broker), attach_s

    return leave


_MAKE_LEAVE: dict[str, Callable[[Topology, _Means, random.Random], _Leave]] = {
    "uniform": _uniform,
    "RND": _random,
    "NBR": _neighbouring,
}


def _after(time_s: float, mean_s: float, rng: random.Random) -> float:
    """Return a time an exponential period later. It is always later: rounding must not lose a tiny period."""
    return max(time_s + rng.expovariate(1.0 / mean_s), math.nextafter(time_s, math.inf))


def _check(pattern: str, topology: Topology, home: str, duration_s: float, proclaimed: float) -> None:
    if pattern not in PATTERNS:
        hint = did_you_mean(pattern, PATTERNS) or f"valid: {', '.join(PATTERNS)}"
        raise InputError(f"pattern {pattern!r}: unknown; {hint}")
    topology.check_broker(home)
    _period("duration_s", duration_s)
    if not 0.0 <= proclaimed <= 1.0:
        raise InputError(f"proclaimed must be a probability from 0 to 1, not {proclaimed}")


def _period(name: str, value_s: float) -> float:
    if not 0.0 < value_s < math.inf:
        raise InputError(f"{name} must be a number of seconds above 0, not {value_s}")
    return value_s


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row by column name, and its place in the file for error messages."""
    rows = _split(path)
    columns = next(rows, ("", []))[1]
    if sorted(columns) != sorted(COLUMNS):
        raise InputError(f"{path} line 1: columns are {','.join(columns)!r}; expected {','.join(COLUMNS)!r}")
    for where, row in rows:
        if len(row) != len(COLUMNS):
            raise InputError(f"{where}: {len(row)} values; expected {len(COLUMNS)}: {','.join(columns)}")
        yield where, dict(zip(columns, row, strict=True))


def _split(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the values of each line that is not empty."""
    reader = csv.reader(read_text(path).splitlines())
    try:
        for row in reader:
            if row:
                yield f"{path} line {reader.line_num}", [value.strip() for value in row]
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num}: {error}; expected {','.join(COLUMNS)}") from error


def _time(where: str, column: str, text: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not 0.0 <= time_s < math.inf:
        raise InputError(f"{where}: {column} is {text!r}; expected seconds, 0 or more")
    return time_s


def _check_order(where: str, client: str, earlier: Visit | None, visit: Visit) -> None:
    if visit.leave_s is not None and visit.leave_s <= visit.attach_s:
        raise InputError(
            f"{where}: leave_s {visit.leave_s:g} is not after attach_s {visit.attach_s:g}; "
            "a visit ends after it begins"
        )
    if earlier is None:
        return
    if earlier.leave_s is None:
        raise InputError(
            f"{where}: client {client!r} already stays at {earlier.broker!r} (its leave_s is empty); "
            "only its last visit may have no end"
        )
    if visit.attach_s <= earlier.leave_s:
        raise InputError(
            f"{where}: client {client!r} attaches at {visit.attach_s:g}, but was at {earlier.broker!r} "
            f"until {earlier.leave_s:g}; its visits must follow one another"
        )
