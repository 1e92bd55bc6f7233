"""Workloads: subscriptions, notifications, and publish times.

A workload draws its notifications from a fixed list of equally likely attribute sets. So drawing is cheap,
brokers can cache the routes of all different notifications, and the selectivity is counted instead of
estimated.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from roamcast.errors import InputError, did_you_mean
from roamcast.filters.filter import Filter, Value
from roamcast.filters.selector import parse

GROUPS_MAX = 10_000
NESTED_VALUES = 1_000
NESTED_FAMILY = 8
NESTED_SELECTIVITY_MIN = 0.01
GADDAH_VALUES = 100
GADDAH_SELECTED = 20
MIXED_KINDS = ("alarm", "reading", "report", "status")
MIXED_LEVELS = (18.5, 19.5, 20.5, 21.5, 22.5)
MIXED_VALUES = 50
MIXED_SELECTIVITY_MIN = 0.02
TIMES_MAX = 10_000_000


@dataclass(frozen=True)
class Workload:
    """Filters of every client, and the notifications to publish.

    `selectivity` is the share of clients that a notification matches, averaged over `universe`. It is exact,
    and differs from the requested one by rounding to whole clients or values.
    """

    filters: Mapping[str, tuple[Filter, ...]]
    universe: tuple[dict[str, Value], ...] = field(repr=False)
    selectivity: float
    description: str

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """Return the attributes of one notification. They are shared and must not be changed."""
        return self.universe[int(rng.random() * len(self.universe))]


def make_workload(kind: str, clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """Create a workload of the given kind (see `KINDS`), in which a notification matches about `selectivity`
    of the clients. The kind `gaddah` ignores `selectivity`.
    """
    if kind not in _MAKERS:
        hint = did_you_mean(kind, KINDS) or f"valid: {', '.join(KINDS)}"
        raise InputError(f"workload {kind!r}: unknown; {hint}")
    if not 0.0 < selectivity <= 1.0:
        raise InputError(f"selectivity must be above 0 and at most 1, not {selectivity}")
    if not clients:
        raise InputError(f"workload {kind}: there are no clients; give at least one")
    if len(dict.fromkeys(clients)) != len(clients):
        twice = next(client for client, same in itertools.pairwise(sorted(clients)) if client == same)
        raise InputError(f"workload {kind}: client {twice!r} is given twice; every client needs its own id")
    return _MAKERS[kind](clients, selectivity, rng)


def publish_times(every_s: float, duration_s: float, rng: random.Random) -> list[float]:
    """Return the times at which one publisher publishes, below `duration_s`: a Poisson process with one per
    `every_s` on average.
    """
    for name, value_s in (("every_s", every_s), ("duration_s", duration_s)):
        if not 0.0 < value_s < math.inf:
            raise InputError(f"{name} must be a number of seconds above 0, not {value_s}")
    if duration_s / every_s > TIMES_MAX:
        raise InputError(f"every_s {every_s}: more than {TIMES_MAX:,} notifications in {duration_s} s")
    times = itertools.accumulate(rng.expovariate(1.0 / every_s) for _ in itertools.count())
    return list(itertools.takewhile(lambda time_s: time_s < duration_s, times))


def _groups(clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """Clients distributed over equally likely groups: no filter overlaps another group's."""
    count = round(1.0 / selectivity)
    if not math.isclose(count * selectivity, 1.0, rel_tol=1e-9):
        raise InputError(
            f"workload groups: selectivity {selectivity} is not 1 divided by a whole number; "
            "valid are 1, 0.5, 0.25, 0.2 and so on, or the workload ranges"
        )
    if count > GROUPS_MAX:
        raise InputError(
            f"workload groups: selectivity {selectivity} is too small; at least {1 / GROUPS_MAX}"
        )
    names = [f"g{number:0{len(str(count - 1))}}" for number in range(count)]
    group_of = dict(zip(_shuffled(clients, rng), itertools.cycle(names), strict=False))
    return Workload(
        _parsed((client, f"group = '{group_of[client]}'") for client in clients),
        tuple({"group": name} for name in names),
        1.0 / count,
        f"groups: {count} equally likely groups, each client in one of them",
    )


def _ranges(clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """As many values as clients, on a circle; every client's interval starts at a different value.

    All intervals are equally long, so each notification matches the same number of clients.
    """
    count = len(clients)
    length = round(selectivity * count)
    if length < 1:
        raise InputError(
            f"workload ranges: selectivity {selectivity} of {count} clients is less than one client; "
            f"give at least {1 / count:g}, or more clients"
        )
    start_of = {client: start for start, client in enumerate(_shuffled(clients, rng))}
    return Workload(
        _parsed((client, _circular("value", start_of[client], length, count)) for client in clients),
        tuple({"value": value} for value in range(count)),
        length / count,
        f"ranges: {count} values on a circle, every notification matches exactly {length} of {count} clients",
    )


def _nested(clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """Families of ranges, each inside the next longer one of its family.

    Lengths are spread evenly around the mean, down to the shortest that still holds a value, so covering and
    merging find much to reduce.
    """
    if selectivity < NESTED_SELECTIVITY_MIN:
        raise InputError(
            f"workload nested: selectivity {selectivity} is too small; give at least "
            f"{NESTED_SELECTIVITY_MIN}, or use the workload ranges"
        )
    lengths = _spread_lengths(len(clients), selectivity)
    families = math.ceil(len(clients) / NESTED_FAMILY)
    range_of: dict[str, tuple[int, int]] = {}
    around = [(0, NESTED_VALUES)] * families
    for place, client in enumerate(_shuffled(clients, rng)):
        start, room = around[place % families]
        range_of[client] = (start + rng.randint(0, room - lengths[place]), lengths[place])
        around[place % families] = range_of[client]
    return Workload(
        _parsed((client, _between("value", *range_of[client])) for client in clients),
        tuple({"value": value} for value in range(NESTED_VALUES)),
        sum(lengths) / (NESTED_VALUES * len(clients)),
        f"nested: ranges of {lengths[-1]} to {lengths[0]} of {NESTED_VALUES} values in {families} families, "
        "each range inside the next longer one of its family",
    )


def _spread_lengths(count: int, selectivity: float) -> list[int]:
    """Return whole lengths, longest first, whose mean is as near to the selectivity as a whole sum allows."""
    reach = 0.9 * min(selectivity, 1.0 - selectivity)
    sums = [0]
    exact = 0.0
    for place in range(count):
        offset = 2.0 * place / (count - 1) - 1.0 if count > 1 else 0.0
        exact += NESTED_VALUES * (selectivity + reach * offset)
        sums.append(math.floor(exact + 0.5))
    # Differences of the rounded sums: rounding each length by itself would let the errors add up.
    return sorted((max(1, end - begin) for begin, end in itertools.pairwise(sums)), reverse=True)


def _gaddah(clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """Selector values from 0 to 99; each client wants a random fifth of them in a row (Gaddah 4.4)."""
    last_start = GADDAH_VALUES - GADDAH_SELECTED
    return Workload(
        _parsed(
            (client, _between("selector", rng.randint(0, last_start), GADDAH_SELECTED)) for client in clients
        ),
        tuple({"selector": value} for value in range(GADDAH_VALUES)),
        GADDAH_SELECTED / GADDAH_VALUES,
        f"gaddah: each client a random range of {GADDAH_SELECTED} of {GADDAH_VALUES} selector values, "
        "whatever selectivity is asked for",
    )


def _mixed(clients: Sequence[str], selectivity: float, rng: random.Random) -> Workload:
    """Strings, whole numbers, fractions and truth values, compared with every operator of selectors.

    Each filter is a condition with a known share and a range of `value`: joined by AND if the condition alone
    matches too much, by OR if too little. The length of the range makes up the difference, and the rounding
    error is carried over to the next client.
    """
    if selectivity < MIXED_SELECTIVITY_MIN:
        raise InputError(
            f"workload mixed: selectivity {selectivity} is too small; give at least "
            f"{MIXED_SELECTIVITY_MIN}, or use the workload ranges"
        )
    texts: list[tuple[str, str]] = []
    carried = 0.0
    for client in clients:
        condition, share = _mixed_condition(rng)
        wanted = selectivity + carried
        joint, base, part = ("AND", 0.0, share) if share >= wanted else ("OR", share, 1.0 - share)
        length = min(math.floor((wanted - base) / part * MIXED_VALUES + 0.5), MIXED_VALUES)
        carried = wanted - (base + part * length / MIXED_VALUES)
        if length > 0:
            condition += f" {joint} {_between('value', rng.randint(0, MIXED_VALUES - length), length)}"
        texts.append((client, condition))
    universe: tuple[dict[str, Value], ...] = tuple(
        {"kind": kind, "level": level, "urgent": urgent, "value": value}
        for kind in MIXED_KINDS
        for level in MIXED_LEVELS
        for urgent in (False, True)
        for value in range(MIXED_VALUES)
    )
    return Workload(
        _parsed(texts),
        universe,
        selectivity - carried / len(clients),
        "mixed: kind (string), level (float), urgent (bool) and value (int), several operators",
    )


def _mixed_condition(rng: random.Random) -> tuple[str, float]:
    """Draw a condition on attributes other than `value`; return it with the share of notifications that meet
    it.
    """
    one, other = rng.sample(MIXED_KINDS, 2)
    truth = rng.choice(("TRUE", "FALSE"))
    above = rng.randrange(1, len(MIXED_LEVELS))
    threshold = (MIXED_LEVELS[above - 1] + MIXED_LEVELS[above]) / 2
    conditions = (
        (f"kind = '{one}'", 1 / 4),
        (f"kind <> '{one}'", 3 / 4),
        (f"kind IN ('{one}', '{other}')", 2 / 4),
        ("kind LIKE 're%'", 2 / 4),
        (f"urgent = {truth}", 1 / 2),
        (f"level > {threshold}", 1 - above / len(MIXED_LEVELS)),
        (f"level < {threshold}", above / len(MIXED_LEVELS)),
    )
    return rng.choice(conditions)


_MAKERS: dict[str, Callable[[Sequence[str], float, random.Random], Workload]] = {
    "groups": _groups,
    "ranges": _ranges,
    "nested": _nested,
    "gaddah": _gaddah,
    "mixed": _mixed,
}

KINDS = tuple(_MAKERS)


def _shuffled(clients: Sequence[str], rng: random.Random) -> list[str]:
    return rng.sample(clients, len(clients))


def _parsed(texts: Iterable[tuple[str, str]]) -> dict[str, tuple[Filter, ...]]:
    return {client: (parse(text),) for client, text in texts}


def _between(name: str, start: int, length: int) -> str:
    return f"{name} BETWEEN {start} AND {start + length - 1}"


def _circular(name: str, start: int, length: int, size: int) -> str:
    """Return an interval on the circle 0 … size - 1; one that wraps around is two ranges."""
    if length == size:
        return _between(name, 0, size)
    if start + length <= size:
        return _between(name, start, length)
    wrapped = start + length - size
    return f"{_between(name, start, length - wrapped)} OR {_between(name, 0, wrapped)}"
