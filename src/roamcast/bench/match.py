"""Speed of the filter index compared with testing every filter, and its growth with the table.

The large tables hold conjunctions of two to four conditions over many attributes: equalities, ranges, LIKE
prefixes, IN lists. The smaller one has wider conditions, so that a notification matches as many subscriptions
in both, and only the size of the table differs. The small tables have the size of one broker's.
"""

import gc
import itertools
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from roamcast.bench.report import Report, silent
from roamcast.filters.filter import Attributes, Filter, Value
from roamcast.filters.index import FilterIndex
from roamcast.filters.selector import parse

# Matches per notification, as a share of the large table.
MATCHING_SHARE = 0.001
GROWTH = 10
NAIVE_EVENTS = 5
PASSES = 3
CHANGES = 1_000

LETTERS = "abcdefghijklmnopqrst"
KINDS = 20
LEVELS = 1_000_000

STAGES = 9


class _Workload:
    """Draws subscriptions that match a notification with a given probability, and notifications.

    Attributes are of four kinds in turn: levels (integers), ratios (floats), kinds (a few strings, for
    equality and IN) and names (many strings, for LIKE).
    """

    def __init__(self, attributes: int, generator: random.Random) -> None:
        self._random = generator
        sorts = ("level", "kind", "ratio", "name")
        self._names = [f"{sorts[number % 4]}{number}" for number in range(attributes)]
        self._ranged = [name for name in self._names if name.startswith(("level", "ratio"))]

    def notification(self) -> dict[str, Value]:
        return {name: self._value(name) for name in self._names}

    def _value(self, name: str) -> Value:
        draw = self._random
        if name.startswith("level"):
            return draw.randrange(LEVELS)
        if name.startswith("ratio"):
            return draw.random()
        if name.startswith("kind"):
            return f"kind {draw.randrange(KINDS)}"
        return "".join(draw.choices(LETTERS, k=5))

    def subscription(self, probability: float) -> str:
        """Draw some conditions, and a range wide enough to reach the required probability."""
        draw = self._random
        while True:
            last = draw.choice(self._ranged)
            others = [name for name in self._names if name != last]
            drawn = [self._condition(name) for name in draw.sample(others, draw.randint(1, 3))]
            reached = 1.0
            for _, share in drawn:
                reached *= share
            if reached >= probability:
                conditions = [text for text, _ in drawn]
                return " AND ".join([*conditions, self._range(last, probability / reached)])

    def _condition(self, name: str) -> tuple[str, float]:
        """Draw a condition; return it with the share of values that it accepts."""
        draw = self._random
        if name.startswith("kind"):
            wanted = draw.sample(range(KINDS), draw.choice((1, 1, 1, 2, 3, 5)))
            if len(wanted) == 1:
                return f"{name} = 'kind {wanted[0]}'", 1 / KINDS
            listed = ", ".join(f"'kind {number}'" for number in wanted)
            return f"{name} IN ({listed})", len(wanted) / KINDS
        if name.startswith("name"):
            length = draw.choice((1, 1, 2))
            prefix = "".join(draw.choices(LETTERS, k=length))
            return f"{name} LIKE '{prefix}%'", len(LETTERS) ** -length
        share = draw.choice((0.02, 0.05, 0.1, 0.2, 0.5))
        return self._range(name, share), share

    def _range(self, name: str, share: float) -> str:
        start = self._random.random() * (1 - share)
        if name.startswith("level"):
            low = int(start * LEVELS)
            return f"{name} BETWEEN {low} AND {low + int(share * LEVELS) - 1}"
        if self._random.random() < 0.2:
            return f"{name} < {share!r}"
        return f"{name} >= {start!r} AND {name} < {start + share!r}"


def run(
    subscriptions: int = 100_000,
    attributes: int = 20,
    events: int = 200,
    seed: int = 1,
    progress: Report = silent,
) -> dict[str, object]:
    """Measure; raise if the index and testing every filter ever disagree."""
    stages = itertools.count()

    def step() -> None:
        progress(next(stages), STAGES)

    matches = max(1.0, subscriptions * MATCHING_SHARE)
    smaller = max(1, subscriptions // GROWTH)
    small, large = (
        _measure_table(size, matches / size, attributes, events, seed, step)
        for size in (smaller, subscriptions)
    )
    step()
    return {
        "seed": seed,
        "attributes": attributes,
        "events": events,
        "python": sys.version.split()[0],
        "tables": [small, large],
        "growth": large["index_us_per_event"] / small["index_us_per_event"],
        "speedup": large["speedup"],
        "small_tables": _measure_small_tables(seed),
    }


def _measure_table(
    size: int, probability: float, attributes: int, events: int, seed: int, step: Callable[[], None]
) -> dict[str, Any]:
    """Measure parsing, building the index, testing every filter, and matching by the index."""
    workload = _Workload(attributes, random.Random(seed))
    step()
    texts = [workload.subscription(probability) for _ in range(size)]
    started = time.perf_counter()
    filters = [parse(text) for text in texts]
    parsed = time.perf_counter()
    memory_before = _peak_memory_mb()
    step()
    index = _index_of(filters)
    built = time.perf_counter()
    memory_after = _peak_memory_mb()
    notifications = [workload.notification() for _ in range(events)]
    step()
    naive_us = _check_and_time_naive(index, filters, notifications[:NAIVE_EVENTS])
    step()
    index_us, mean_matches = _time_matching(index, notifications)
    return {
        "subscriptions": size,
        "parse_seconds": parsed - started,
        "build_seconds": built - parsed,
        "memory_mb": memory_after - memory_before,
        "matches_per_event": mean_matches,
        "naive_us_per_event": naive_us,
        "index_us_per_event": index_us,
        "speedup": naive_us / index_us,
        "change_us": _time_changes(index, filters, random.Random(seed)),
    }


def _index_of(filters: Sequence[Filter]) -> FilterIndex[int]:
    index: FilterIndex[int] = FilterIndex()
    for key, filter in enumerate(filters):
        index.add(key, filter)
    return index


def _check_and_time_naive(
    index: FilterIndex[int], filters: Sequence[Filter], notifications: Sequence[Attributes]
) -> float:
    predicates = [(key, filter.matches) for key, filter in enumerate(filters)]
    gc.collect()
    seconds = []
    for notification in notifications:
        started = time.perf_counter()
        expected = [key for key, matches in predicates if matches(notification)]
        seconds.append(time.perf_counter() - started)
        if index.match(notification) != expected:
            raise RuntimeError(f"the index and the filters disagree about {notification}")
    return statistics.median(seconds) * 1e6


def _time_matching(index: FilterIndex[int], notifications: Sequence[Attributes]) -> tuple[float, float]:
    """Return microseconds per notification (median of some passes) and matches per notification."""
    gc.collect()
    passes = []
    found = 0
    for _ in range(PASSES):
        started = time.perf_counter()
        found = 0
        for notification in notifications:
            found += len(index.match(notification))
        passes.append((time.perf_counter() - started) / len(notifications))
    return statistics.median(passes) * 1e6, found / len(notifications)


def _time_changes(index: FilterIndex[int], filters: Sequence[Filter], generator: random.Random) -> float:
    """Return the microseconds of a change: half of removing one subscription and adding another."""
    keys = generator.sample(range(len(filters)), min(CHANGES, len(filters)))
    started = time.perf_counter()
    for key in keys:
        index.remove(key)
        index.add(key, filters[key])
    return (time.perf_counter() - started) / (2 * len(keys)) * 1e6


def _peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _measure_small_tables(seed: int) -> dict[str, object]:
    draw = random.Random(seed)
    groups = [f"grp = 'g{number}'" for number in range(16)]
    # 250 ranges over 1,000 values, of which about 16 hold a given value.
    ranges = [f"v BETWEEN {low} AND {low + 64}" for low in (draw.randrange(-64, 1_000) for _ in range(250))]
    boxes = [f"v > {draw.randrange(1_000)} AND grp = 'g{draw.randrange(16)}'" for _ in range(250)]
    topics = [f"topic MATCHES 'site/{draw.randrange(50)}/+/{draw.choice('abc')}'" for _ in range(250)]
    notifications: list[Attributes] = [
        {
            "grp": f"g{draw.randrange(16)}",
            "v": draw.randrange(1_000),
            "topic": f"site/{draw.randrange(50)}/x/{draw.choice('abc')}",
        }
        for _ in range(2_000)
    ]
    tables = {"16_groups": groups, "250_ranges": ranges, "250_boxes": boxes, "250_topics": topics}
    return {name: _measure_small(texts, notifications) for name, texts in tables.items()}


def _measure_small(texts: Sequence[str], notifications: Sequence[Attributes]) -> dict[str, object]:
    filters = [parse(text) for text in texts]
    index = _index_of(filters)
    naive_us = _check_and_time_naive(index, filters, notifications[:50])
    index_us, matches = _time_matching(index, notifications)
    return {
        "subscriptions": len(filters),
        "matches_per_event": matches,
        "naive_us_per_event": naive_us,
        "index_us_per_event": index_us,
        "change_us": _time_changes(index, filters, random.Random(0)),
    }
