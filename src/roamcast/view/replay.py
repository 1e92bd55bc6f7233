"""A run as a replay: a header, then one line for each time bucket (docs/view.md describes the file)."""

from __future__ import annotations

import csv
import gzip
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from roamcast.errors import InputError
from roamcast.protocol.records import Row
from roamcast.view.ledger import SESSION_ENDED, Ledger
from roamcast.view.log import RunLog

FORMAT, VERSION = "roamview", 1
BUCKETS_MAX = 2_000
KEY_EVERY = 50
"""Number of buckets between two full ones; a jump reads at most this many."""
WIDTHS_S = [factor * 10.0**power for power in range(-2, 7) for factor in (1, 2, 5)]
RATE_WINDOW_S = 2.0
PERCENTILE_WINDOW_S = 10.0
PERCENTILES_PER_WINDOW = 10
"""Latencies are sorted only this many times per window, because there may be hundreds of thousands."""
NOWHERE = -1
COMPRESSION = 5

Place = tuple[float, float]
"""Latitude and longitude."""


class Handoff(NamedTuple):
    client: str
    origin: str
    target: str
    end_s: float
    duration_ms: float


@dataclass
class Replay:
    """Data shown by the page, the picture and the file."""

    name: str
    start_s: float
    end_s: float
    width_s: float
    rows: int
    brokers: list[str]
    links: list[tuple[str, str]]
    clients: list[str]
    handoffs: list[Handoff]
    ledger: Ledger
    places: Mapping[str, Place] = field(default_factory=dict)
    changes: list[Changes] = field(default_factory=list)
    """Changes, one entry per bucket."""

    def totals(self) -> dict[str, Any]:
        ledger = self.ledger
        counts = {name: sum(getattr(ledger, name)) for name in ("owed", "delivered", "lost", "repeated")}
        sizes = {"handoffs": len(self.handoffs), "clients": len(self.clients)}
        return {**counts, "published": sum(ledger.received), **sizes}


@dataclass
class Changes:
    """Changes within a bucket; only the last of several changes counts."""

    places: dict[str, tuple[str | None, bool]] = field(default_factory=dict)
    """Client to the broker of its session, and whether it is attached."""
    brokers: dict[str, bool] = field(default_factory=dict)
    links: dict[tuple[str, str], bool] = field(default_factory=dict)


def build(files: Sequence[Path], run: str, places: Mapping[str, Place] | None = None) -> Replay:
    """Read a run's log and collect the data of a replay."""
    log = RunLog(files, run)
    if not log.rows:
        raise InputError(f"run {run}: its log holds no rows")
    start_s, end_s = log.span()
    span_s = max(end_s - start_s, 0.001)
    width_s = next((width for width in WIDTHS_S if span_s / width < BUCKETS_MAX), span_s / (BUCKETS_MAX - 1))
    ledger = Ledger(width_s, start_s, min(int(span_s / width_s) + 1, BUCKETS_MAX))
    events = log.events()
    ledger.fill(events, log.arrivals())
    brokers, links = _network(events, log.links())
    clients = dict.fromkeys(row.client for row in events if row.client)
    clients |= dict.fromkeys(client for changed in ledger.waiting for client in changed)
    told = _Telling(ledger, brokers, links)
    for row in events:
        told.take(row)
    return Replay(
        run, start_s, end_s, width_s, log.rows, brokers, links, list(clients), told.handoffs, ledger,
        places or {}, told.changes,
    )  # fmt: skip


def _network(
    events: Sequence[Row], used: Sequence[tuple[str, str]]
) -> tuple[list[str], list[tuple[str, str]]]:
    told = [(row.node, row.peer) for row in events if row.kind in ("link_up", "link_down") and row.peer]
    links = {(min(pair), max(pair)): None for pair in (*used, *told)}
    brokers = {name: None for pair in links for name in pair}
    brokers |= {row.broker: None for row in events if row.broker}
    brokers |= {row.node: None for row in events if row.kind in ("started", "crashed")}
    return sorted(brokers), sorted(links)


class _Telling:
    """Follows brokers, links and clients through the rows, in the order of time."""

    def __init__(self, ledger: Ledger, brokers: Sequence[str], links: Sequence[tuple[str, str]]) -> None:
        self.changes = [Changes() for _ in range(ledger.buckets)]
        self.handoffs: list[Handoff] = []
        self._ledger = ledger
        self._sides: dict[tuple[str, str], bool] = {}
        """By broker and peer: whether the broker reports that their link is up."""
        self._neighbours: dict[str, list[str]] = {broker: [] for broker in brokers}
        for a, b in links:
            self._neighbours[a].append(b)
            self._neighbours[b].append(a)
        self._down: dict[str, None] = {}
        self._at: dict[str, tuple[str | None, bool]] = {}
        self._started: dict[tuple[str, str], float] = {}

    def take(self, row: Row) -> None:
        now = self.changes[self._ledger.bucket(row.time)]
        if row.node in self._down and row.kind != "crashed":
            self._rise(row.node, now)
        if row.kind in ("link_up", "link_down") and row.peer:
            self._take_link(row.node, row.peer, row.kind == "link_up", now)
        elif row.kind == "crashed":
            self._fall(row.node, now)
        elif row.client and row.broker:
            self._take_client(row, row.client, row.broker, now)

    def _take_client(self, row: Row, client: str, broker: str, now: Changes) -> None:
        if row.kind == "attached":
            self._put(client, broker, True, now)
        elif row.kind == "detached" and self._at.get(client, (broker,))[0] == broker:
            self._put(client, None if row.reason == SESSION_ENDED else broker, False, now)
        elif row.kind == "handoff_started":
            self._started[client, broker] = row.time
        elif row.kind == "handoff_finished" and row.peer:
            began = self._started.pop((client, broker), row.time)
            self.handoffs.append(Handoff(client, row.peer, broker, row.time, 1000 * (row.time - began)))
            if self._at.get(client, (None,))[0] != broker:
                self._put(client, broker, True, now)

    def _put(self, client: str, broker: str | None, is_attached: bool, now: Changes) -> None:
        self._at[client] = now.places[client] = (broker, is_attached)

    def _take_link(self, node: str, peer: str, is_up: bool, now: Changes) -> None:
        self._sides[node, peer] = is_up
        link = min(node, peer), max(node, peer)
        now.links[link] = all(self._sides.get(side, True) for side in (link, link[::-1]))
        if is_up and peer in self._down:
            self._rise(peer, now)
        # A crash may leave no row: all neighbours then report that their links are down.
        elif not is_up and not any(self._sides.get((other, peer), True) for other in self._neighbours[peer]):
            self._fall(peer, now)

    def _fall(self, broker: str, now: Changes) -> None:
        self._down[broker] = None
        now.brokers[broker] = False
        for client, (at, is_attached) in list(self._at.items()):
            if at == broker and is_attached:
                self._put(client, broker, False, now)

    def _rise(self, broker: str, now: Changes) -> None:
        self._down.pop(broker, None)
        now.brokers[broker] = True


# --- the file ---


def lines(replay: Replay) -> Iterator[dict[str, Any]]:
    """Yield the lines of the file."""
    yield {
        "format": FORMAT, "version": VERSION, "name": replay.name,
        "start": replay.start_s, "end": replay.end_s, "bucket_s": replay.width_s,
        "brokers": [{"id": id, **_place(replay.places.get(id))} for id in replay.brokers],
        "links": [list(link) for link in replay.links], "rows": replay.rows, "totals": replay.totals(),
    }  # fmt: skip
    yield {"names": replay.clients}
    yield from _buckets(replay)


def _place(place: Place | None) -> dict[str, float | None]:
    return {"lat": place[0] if place else None, "lon": place[1] if place else None}


def _buckets(replay: Replay) -> Iterator[dict[str, Any]]:
    ledger = replay.ledger
    index_of = {client: index for index, client in enumerate(replay.clients)}
    broker_of = {broker: index for index, broker in enumerate(replay.brokers)}
    link_of = {link: index for index, link in enumerate(replay.links)}
    handoffs: list[list[Handoff]] = [[] for _ in range(ledger.buckets)]
    for handoff in replay.handoffs:
        handoffs[ledger.bucket(handoff.end_s)].append(handoff)
    states: dict[int, list[int]] = {}
    brokers: dict[int, int] = {}
    links: dict[int, int] = {}
    for number, figures in enumerate(figures_by_bucket(replay)):
        changes = replay.changes[number]
        touched = _apply(number, ledger, changes, states, index_of, broker_of)
        bucket: dict[str, Any] = {"t": round(number * replay.width_s, 4)}
        is_key = number % KEY_EVERY == 0
        moved_brokers = {broker_of[name]: int(is_up) for name, is_up in changes.brokers.items()}
        moved_links = {link_of[name]: int(is_up) for name, is_up in changes.links.items()}
        brokers |= moved_brokers
        links |= moved_links
        if is_key:
            bucket["key"] = True
        shown = states if is_key else {index: states[index] for index in touched}
        bucket["clients"] = [[index, *(state if state[2] else state[:2])] for index, state in shown.items()]
        told = [
            [index_of[one.client], broker_of[one.origin], broker_of[one.target],
             round(one.end_s - replay.start_s, 3), round(one.duration_ms, 1),
             states.get(index_of[one.client], [0, 0])[1]]
            for one in handoffs[number]
        ]  # fmt: skip
        optional = {
            "handoffs": told,
            "brokers": list((brokers if is_key else moved_brokers).items()),
            "links": list((links if is_key else moved_links).items()),
        }
        yield bucket | {key: value for key, value in optional.items() if value} | {"figures": figures}


def _apply(
    number: int, ledger: Ledger, changes: Changes, states: dict[int, list[int]],
    index_of: Mapping[str, int], broker_of: Mapping[str, int],
) -> dict[int, None]:  # fmt: skip
    """Advance the states of clients to this bucket; return the changed ones."""
    touched: dict[int, None] = {}

    def state_of(client: str) -> list[int]:
        index = index_of[client]
        touched[index] = None
        return states.setdefault(index, [NOWHERE, 0, 0])

    for client, (broker, is_attached) in changes.places.items():
        at = NOWHERE if broker is None else broker_of[broker]
        # Away with the session at a broker: below -1, so that one number says both.
        state_of(client)[0] = at if is_attached or at == NOWHERE else -at - 2
    for client, change in ledger.waiting[number].items():
        if change:
            state_of(client)[1] += change
    for client, change in ledger.lost_by[number].items():
        state_of(client)[2] += change
    return touched


def figures_by_bucket(replay: Replay) -> Iterator[dict[str, Any]]:
    """Return totals up to the end of each bucket, and rates and percentiles of the time before it."""
    ledger, width_s = replay.ledger, replay.width_s
    rate_buckets = max(round(RATE_WINDOW_S / width_s), 1)
    percentile_buckets = max(round(PERCENTILE_WINDOW_S / width_s), 1)
    every = max(percentile_buckets // PERCENTILES_PER_WINDOW, 1)
    latency_ms: dict[str, float] | None = None
    totals: Counter[str] = Counter()
    given_up: Counter[str] = Counter()
    ended = [handoff.end_s for handoff in replay.handoffs]
    reasons: dict[int, list[tuple[str, int]]] = {}
    for (bucket, reason), count in ledger.given_up.items():
        reasons.setdefault(bucket, []).append((reason, count))
    for number in range(ledger.buckets):
        for name in ("owed", "delivered", "lost", "repeated"):
            totals[name] += getattr(ledger, name)[number]
        for reason, count in reasons.get(number, ()):
            given_up[reason] += count
        since = max(number + 1 - rate_buckets, 0)
        window_s = (number + 1 - since) * width_s
        now_s = replay.start_s + (number + 1) * width_s
        first = bisect_right(ended, now_s - PERCENTILE_WINDOW_S)
        last = bisect_right(ended, now_s)
        handoffs = [handoff.duration_ms for handoff in replay.handoffs[first:last]]
        recent = last - bisect_right(ended, now_s - window_s)
        if number % every == 0:
            window = ledger.latencies_ms[max(number + 1 - percentile_buckets, 0) : number + 1]
            latency_ms = percentiles([value for values in window for value in values])
        yield {
            **totals, **({"given_up": dict(given_up)} if given_up else {}),
            "received_per_s": round(sum(ledger.received[since : number + 1]) / window_s, 2),
            "delivered_per_s": round(sum(ledger.delivered[since : number + 1]) / window_s, 2),
            "handoffs_per_s": round(recent / window_s, 3),
            "latency_ms": latency_ms, "handoff_ms": percentiles(handoffs),
        }  # fmt: skip


def percentiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {name: round(ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1], 2)
            for name, share in (("p50", 0.5), ("p99", 0.99))}  # fmt: skip


def encode(replay: Replay) -> bytes:
    """Return the content of the file: the same bytes for the same log."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines(replay))
    return gzip.compress(text.encode(), COMPRESSION, mtime=0)


def read_places(file: Path) -> dict[str, Place]:
    """Read positions of brokers from a CSV file with the columns broker, latitude and longitude."""
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
        return {row["broker"]: (float(row["latitude"]), float(row["longitude"])) for row in rows}
    except OSError as error:
        raise InputError(f"{file}: {(error.strerror or str(error)).lower()}") from None
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{file}: expected CSV with the columns broker, latitude and longitude") from None
