"""`roamcast bench routing`: cost of subscriptions in the routing tables of two brokers, by strategy.

Two routers run in one process with a link between them: subscriptions are added at one and settle at the
other, a client with some of them is handed over and back, and all are removed in another order. Times include
both brokers, but not the parsing of filters, which every strategy does once for each.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from roamcast.bench.report import Report, silent
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.messages import Settled, Update
from roamcast.protocol.notification import Message
from roamcast.routing.aggregation import AGGREGATES
from roamcast.routing.router import Router

ATTRIBUTES = "abcde"
VALUES = 1_000.0
MATCHING = 0.01
HANDED_OVER = 10
HANDOFFS = 20

SIZES = (100, 1_000, 10_000)

US_MAX = 1_000.0
"""Maximum microseconds per subscription in the largest table."""
GROWTH_MAX = 3.0
"""Maximum factor between the time in the largest table and in the smallest."""

Draw = Callable[[random.Random, int], str]


def _box(ranges: Sequence[tuple[float, float]]) -> str:
    conditions = [
        f"{name} BETWEEN {low:.3f} AND {high:.3f}"
        for name, (low, high) in zip(ATTRIBUTES, ranges, strict=False)
    ]
    return " AND ".join(["topic = 'bench/topic'", *conditions])


def random_ranges(draw: random.Random, count: int) -> str:
    """Return filters with a range for each of five attributes, which together match one notification in a
    hundred.
    """
    width = VALUES * MATCHING ** (1 / len(ATTRIBUTES))
    lows = [draw.uniform(0, VALUES - width) for _ in ATTRIBUTES]
    return _box([(low, low + width) for low in lows])


def nested_ranges(draw: random.Random, count: int) -> str:
    """Return boxes of all sizes around twenty places: most are covered by others."""
    places = random.Random(draw.randrange(20))
    half = draw.uniform(10, 250)
    centres = [places.uniform(300, 700) for _ in ATTRIBUTES]
    ends = [(half * draw.uniform(0.97, 1), half * draw.uniform(0.97, 1)) for _ in ATTRIBUTES]
    return _box([(at - below, at + above) for at, (below, above) in zip(centres, ends, strict=True)])


def touching_ranges(draw: random.Random, count: int) -> str:
    """Return ranges of one attribute, on average twice as wide as their distance: they merge in rows."""
    low = draw.uniform(0, VALUES)
    return _box([(low, low + draw.uniform(0, 4 * VALUES / count))])


def wildcards(draw: random.Random, count: int) -> str:
    """Return topic filters of four levels, some of which cover others."""
    levels = [f"site{draw.randrange(5)}", str(draw.randrange(30)), str(draw.randrange(100)), "state"]
    for place in (1, 2, 3):
        if draw.random() < 0.15:
            levels[place] = "+"
    if draw.random() < 0.01:
        levels[2:] = ["#"]
    return f"topic MATCHES '{'/'.join(levels)}'"


def plain_topics(draw: random.Random, count: int) -> str:
    """Return topics, nearly all different."""
    return f"topic = 'site/{draw.randrange(100 * count)}/state'"


def equal_filters(draw: random.Random, count: int) -> str:
    """Return fifty different filters, repeated."""
    return random_ranges(random.Random(draw.randrange(50)), count)


WORKLOADS: dict[str, Draw] = {
    "random ranges": random_ranges,
    "nested ranges": nested_ranges,
    "touching ranges": touching_ranges,
    "topics with wildcards": wildcards,
    "plain topics": plain_topics,
    "equal filters": equal_filters,
}


class Pair:
    """Two routers, and the link between them."""

    def __init__(self, strategy: str) -> None:
        self._link: deque[tuple[str, str, Message]] = deque()
        self.entries = 0
        """Number of filters sent over the link."""
        self.text_bytes = 0
        self.routers = {
            name: Router(strategy, partial(self._send, name), lambda _: None, outside=frozenset({"topic"}))
            for name in ("a", "b")
        }
        for name, other in (("a", "b"), ("b", "a")):
            self.routers[name].add_peer(other)

    def _send(self, sender: str, peer: str, message: Message) -> None:
        self._link.append((sender, peer, message))

    def rest(self) -> None:
        """Run until nothing is in transit."""
        while self._link:
            sender, receiver, message = self._link.popleft()
            if isinstance(message, Update):
                self._count(message)
                self.routers[receiver].on_update(sender, message)
            elif isinstance(message, Settled):
                self.routers[receiver].on_settled(sender, message)

    def _count(self, update: Update) -> None:
        said = (*update.subscribe, *update.unsubscribe)
        self.entries += len(said)
        self.text_bytes += sum(len(filter.text) for filter, _ in said)

    def subscribe(self, client: str, filter: Filter) -> None:
        self.routers["b"].subscribe((client,), filter, client, "subscribe", ("subscribed",))
        self.rest()

    def unsubscribe(self, client: str, filter: Filter) -> None:
        self.routers["b"].unsubscribe((client,), filter, client, "subscribe", ("unsubscribed",))
        self.rest()

    def hand_over(self, client: str, filters: Sequence[Filter], source: str, target: str) -> None:
        carried = self.routers[source].relocate(filters, client, (client,), target)
        if carried is not None:
            self._count(carried)
        self.routers[target].relocate(filters, client, source, (client,), carried)
        self.rest()


def measure(draw: Draw, strategy: str, count: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    filters = [parse(draw(rng, count)) for _ in range(count)]
    own = list(dict.fromkeys(parse(draw(rng, count)) for _ in range(HANDED_OVER)))
    for filter in (*filters, *own):
        # What reading them takes belongs to reading, in which no strategy differs.
        assert filter.boxes is not None
    pair = Pair(strategy)
    gc.collect()
    # A broker looks for garbage so seldom that it does not count.
    gc.disable()
    try:
        return _timed_all(pair, filters, own, rng)
    finally:
        gc.enable()


def _timed_all(
    pair: Pair, filters: Sequence[Filter], own: Sequence[Filter], rng: random.Random
) -> dict[str, Any]:
    count = len(filters)
    started = time.process_time()
    for number, filter in enumerate(filters):
        pair.subscribe(f"c{number}", filter)
    subscribed = time.process_time()
    forwarded, entries, text_bytes = pair.routers["a"].size, pair.entries, pair.text_bytes
    for filter in own:
        pair.subscribe("roaming", filter)
    handed = time.process_time()
    for way in [("b", "a"), ("a", "b")] * (HANDOFFS // 2):
        pair.hand_over("roaming", own, *way)
    handed_back = time.process_time()
    for filter in own:
        pair.unsubscribe("roaming", filter)
    order = rng.sample(range(count), count)
    began = time.process_time()
    for number in order:
        pair.unsubscribe(f"c{number}", filters[number])
    ended = time.process_time()
    if pair.routers["a"].size or pair.routers["b"].size:
        raise RuntimeError(f"{pair.routers['a'].strategy}: entries were left after all had unsubscribed")
    return {
        "subscribe_us": (subscribed - started) / count * 1e6,
        "unsubscribe_us": (ended - began) / count * 1e6,
        "handoff_ms": (handed_back - handed) / HANDOFFS * 1e3,
        "forwarded": forwarded,
        "entries_said": entries,
        "text_bytes_said": text_bytes,
    }


def run(
    sizes: Sequence[int] = SIZES,
    strategies: Sequence[str] = tuple(AGGREGATES),
    seed: int = 1,
    progress: Report = silent,
) -> dict[str, Any]:
    cases = [
        (workload, strategy, size) for workload in WORKLOADS for strategy in strategies for size in sizes
    ]
    rows = []
    for done, (workload, strategy, size) in enumerate(cases):
        progress(done, len(cases))
        found = measure(WORKLOADS[workload], strategy, size, seed)
        rows.append({"workload": workload, "strategy": strategy, "subscriptions": size, **found})
    progress(len(cases), len(cases))
    return {"seed": seed, "python": sys.version.split()[0], "cases": rows, **judged(rows)}


def judged(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the cost of a subscription in the largest table, its growth from the smallest, and whether both
    are allowed.
    """
    by_case: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_case.setdefault((row["workload"], row["strategy"]), []).append(row["subscribe_us"])
    worst_us = max(times[-1] for times in by_case.values())
    growth = max(times[-1] / times[0] for times in by_case.values())
    return {
        "worst_subscribe_us": worst_us,
        "worst_growth": growth,
        "holds": worst_us <= US_MAX and growth <= GROWTH_MAX,
    }
