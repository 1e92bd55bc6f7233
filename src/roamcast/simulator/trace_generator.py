"""Synthetic traces of any size, for users without a real one.

Clients live in a grid of streets. Each moves between a few places of its own; some places are popular with
many clients. On its way from one place to the next a client passes the brokers along the streets, sometimes a
wrong one. It stays briefly at each broker on the way, and long at its places. So there are patterns to learn:
directions, hot spots, and a next broker that depends on the last one, too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from roamcast.errors import InputError
from roamcast.simulator.movement import COLUMNS, Visit

CLIENTS_MAX = 10_000_000
SIDE_MAX = 100
PLACES_MAX = 100


@dataclass(frozen=True)
class TraceSettings:
    side: int = 6
    """Side of the grid; brokers are those of the topology grid:SIDE."""
    clients: int = 100
    duration_s: float = 86_400.0
    stay_s: float = 3_600.0
    """Mean stay at a place."""
    pass_s: float = 120.0
    """Mean stay at a broker on the way."""
    places: int = 3
    wrong_turn: float = 0.1
    """Probability of a wrong turn at each broker."""
    seed: int = 0

    def check(self) -> None:
        for name, value, most in (
            ("side", self.side, SIDE_MAX), ("clients", self.clients, CLIENTS_MAX),
            ("places", self.places, PLACES_MAX),
        ):  # fmt: skip
            least = 1 if name == "clients" else 2
            if not least <= value <= most:
                raise InputError(f"{name} {value}: valid is {least} to {most}")
        for name, value_s in (
            ("duration", self.duration_s), ("stay", self.stay_s), ("pass", self.pass_s),
        ):  # fmt: skip
            if not 0.0 < value_s < math.inf:
                raise InputError(f"{name} {value_s}: valid is a number of seconds above 0")
        if not 0.0 <= self.wrong_turn < 1.0:
            raise InputError(f"wrong turns {self.wrong_turn}: valid is a number from 0 to below 1")


def generate_trace(settings: TraceSettings) -> Iterator[tuple[str, list[Visit]]]:
    """Yield each client with its visits. Only one client's visits are in memory, so any number of clients is
    possible.
    """
    settings.check()
    digits = len(str(settings.clients - 1))
    for number in range(settings.clients):
        client = f"c{number:0{digits}d}"
        yield client, _visits(settings, random.Random(f"{settings.seed}/trace/{client}"))


def _visits(settings: TraceSettings, rng: random.Random) -> list[Visit]:
    places = _places(settings, rng)
    visits: list[Visit] = []
    at, goal, now_s = places[0], 0, rng.random() * settings.pass_s
    while now_s < settings.duration_s:
        is_there = at == places[goal]
        leave_s = now_s + _stay(settings.stay_s if is_there else settings.pass_s, rng)
        visits.append(Visit(_name(settings, at), now_s, leave_s if leave_s < settings.duration_s else None))
        now_s = leave_s + 1.0 + rng.expovariate(1.0)
        if is_there:
            goal = (goal + 1) % len(places)
        at = _step(settings, at, places[goal], rng)
    return visits


def _places(settings: TraceSettings, rng: random.Random) -> list[tuple[int, int]]:
    """Draw different places; those near the middle are more likely."""
    places: list[tuple[int, int]] = []
    wanted = min(settings.places, settings.side**2)
    while len(places) < wanted:
        place = (_towards_middle(settings.side, rng), _towards_middle(settings.side, rng))
        if place not in places:
            places.append(place)
    return places


def _towards_middle(side: int, rng: random.Random) -> int:
    return int((rng.random() + rng.random()) / 2 * side)


def _step(
    settings: TraceSettings, at: tuple[int, int], goal: tuple[int, int], rng: random.Random
) -> tuple[int, int]:
    """Step first along the rows, then along the columns: all clients use the same streets."""
    x, y = at
    if rng.random() < settings.wrong_turn or at == goal:
        around = [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
        return rng.choice([one for one in around if min(one) >= 0 and max(one) < settings.side])
    if x != goal[0]:
        return (x + (1 if goal[0] > x else -1), y)
    return (x, y + (1 if goal[1] > y else -1))


def _stay(mean_s: float, rng: random.Random) -> float:
    """Draw a stay from a log-normal distribution: most are short and a few long, like those of people."""
    deviation = 1.0
    return max(rng.lognormvariate(math.log(mean_s) - deviation**2 / 2, deviation), 1.0)


def _name(settings: TraceSettings, at: tuple[int, int]) -> str:
    number = at[1] * settings.side + at[0]
    return f"b{number:0{max(2, len(str(settings.side**2 - 1)))}}"


def write_trace(file: Path, clients: Iterable[tuple[str, list[Visit]]]) -> int:
    """Write visits in the format of `movement.from_file`; return their number. The write is atomic."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    count = 0
    try:
        with unfinished.open("w", encoding="utf-8") as lines:
            lines.write(",".join(COLUMNS) + "\n")
            for client, visits in clients:
                for visit in visits:
                    leave = "" if visit.leave_s is None else f"{visit.leave_s:.3f}"
                    lines.write(f"{client},{visit.broker},{visit.attach_s:.3f},{leave}\n")
                count += len(visits)
        unfinished.replace(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return count
