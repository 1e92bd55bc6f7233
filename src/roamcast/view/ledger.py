"""Computes from a log the notifications that clients were owed, that arrived, that waited and that were lost.

The rules are those of the audit (docs/pipeline.md), simplified for a picture: a notification is owed to the
clients whose settled subscriptions match it. It is lost if a broker dropped it, or if a later one of the same
publisher arrived and this one never did; otherwise it waits. The log of a simulated client is complete: what
has not arrived by its end is lost. Arrivals are what clients wrote themselves; of clients that wrote nothing,
what brokers say they acknowledged. Logs without attributes have no filters to evaluate: without them a
notification is owed to the clients that it reached, and to those for which it was given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import HELD, NO_LOCAL, RETAINED, SHARED, UNPROMISED, Row
from roamcast.view.log import Arrival

Identity = tuple[str, int, int]
"""Publisher, incarnation, number."""
Reached = dict[Identity, dict[str, float]]
"""By notification: the clients that it reached, with the times. Keyed by notification, because most clients
receive it at about the same time: a million deliveries belong to few notifications.
"""
Delivery = tuple[str, Identity]
"""Client and notification."""

SESSION_ENDED = "session ended"
NOT_OWED = frozenset({SESSION_ENDED, UNPROMISED})
"""Reasons of a `dropped` row after which the notification is not owed."""
UNPROMISED_SUBSCRIPTIONS = frozenset({UNPROMISED, NO_LOCAL, SHARED})
CACHED_MAX = 4_096


class Published(NamedTuple):
    time: float
    receivers: tuple[str, ...]
    """Clients that are owed the notification."""


class Subscriptions:
    """Finds the clients that are owed a notification with given attributes, by the rows so far."""

    def __init__(self) -> None:
        self._settled: dict[tuple[str, str], None] = {}
        self._unpromised: dict[tuple[str, str], None] = {}
        self._filters: dict[str, Filter | None] = {}
        self._receivers: dict[bytes, tuple[str, ...]] = {}

    def take(self, row: Row) -> None:
        client, text = row.client or "", row.filter or ""
        if row.kind == "subscribed" and row.reason in UNPROMISED_SUBSCRIPTIONS:
            self._unpromised[client, text] = None
        elif row.kind == "subscribed" and row.reason in ("settled", HELD) and self._filter(text):
            self._settled[client, text] = None
        elif row.kind == "unsubscribed":
            self._settled.pop((client, text), None)
        elif row.kind == "detached" and row.reason == SESSION_ENDED:
            self._settled = {key: None for key in self._settled if key[0] != client}
        else:
            return
        self._receivers.clear()

    def receivers(self, attributes: bytes) -> tuple[str, ...]:
        known = self._receivers.get(attributes)
        if known is not None:
            return known
        if len(self._receivers) >= CACHED_MAX:
            self._receivers.clear()
        decoded = decode_attributes(attributes)
        matching = {text for text, filter in self._filters.items() if filter and filter.matches(decoded)}
        found = [key[0] for key in self._settled if key[1] in matching and key not in self._unpromised]
        self._receivers[attributes] = tuple(dict.fromkeys(found))
        return self._receivers[attributes]

    def _filter(self, text: str) -> Filter | None:
        """Return the filter; None if the result depends on the client's location, or the text is no
        filter."""
        if text not in self._filters:
            try:
                filter = parse(text)
                self._filters[text] = None if filter.own else filter
            except InputError:
                self._filters[text] = None
        return self._filters[text]


@dataclass
class Ledger:
    """Counts by time bucket; `waiting` and `lost_by` are changes."""

    width_s: float
    start_s: float
    buckets: int
    received: list[int] = field(init=False)
    owed: list[int] = field(init=False)
    delivered: list[int] = field(init=False)
    repeated: list[int] = field(init=False)
    lost: list[int] = field(init=False)
    given_up: Counter[tuple[int, str]] = field(default_factory=Counter)
    latencies_ms: list[list[float]] = field(init=False)
    waiting: list[dict[str, int]] = field(init=False)
    lost_by: list[dict[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("received", "owed", "delivered", "repeated", "lost"):
            setattr(self, name, [0] * self.buckets)
        self.latencies_ms = [[] for _ in range(self.buckets)]
        self.waiting = [{} for _ in range(self.buckets)]
        self.lost_by = [{} for _ in range(self.buckets)]

    def bucket(self, time_s: float) -> int:
        return min(max(int((time_s - self.start_s) / self.width_s), 0), self.buckets - 1)

    def fill(self, events: Sequence[Row], arrivals: Iterable[Arrival]) -> None:
        arrived = self._take_arrivals(arrivals)
        dropped = self._take_drops(events)
        published = self._take_published(events, arrived, dropped)
        # A process of a real client is a node of its own (`life_of`); a simulated client lives once.
        whole = {row.client for row in events if row.client == row.node}
        self._settle(published, arrived, dropped, whole)

    def _take_arrivals(self, arrivals: Iterable[Arrival]) -> Reached:
        arrived: Reached = {}
        delivered, repeated, latencies_ms = self.delivered, self.repeated, self.latencies_ms
        seen_at, bucket = None, 0
        for time, client, publisher, incarnation, first, count, reason, published_at in arrivals:
            if time != seen_at:
                seen_at, bucket = time, self.bucket(time)
            for number in (first,) if count == 1 else range(first, first + (count or 1)):
                identity = publisher, incarnation or 0, number
                reached = arrived.get(identity)
                if reached is None:
                    reached = arrived[identity] = {}
                if client not in reached:
                    reached[client] = time
                    delivered[bucket] += 1
                elif reason is None:
                    repeated[bucket] += 1
            if published_at is not None and reason != RETAINED:
                latencies_ms[bucket].append(1000 * (time - published_at))
        return arrived

    def _take_drops(self, events: Sequence[Row]) -> dict[Delivery, str]:
        dropped = {}
        for row in events:
            if row.kind != "dropped":
                continue
            reason = row.reason or "no reason given"
            self.given_up[self.bucket(row.time), reason] += row.notifications or 1
            if row.client and row.publisher and row.number:
                for number in range(row.number, row.number + (row.notifications or 1)):
                    dropped[row.client, (row.publisher, row.incarnation or 0, number)] = reason
        return dropped

    def _take_published(
        self, events: Sequence[Row], arrived: Reached, dropped: Iterable[Delivery]
    ) -> dict[Identity, Published]:
        reached: dict[Identity, dict[str, None]] = {}
        if not any(row.attributes for row in events if row.kind == "published"):
            reached = {identity: dict.fromkeys(clients) for identity, clients in arrived.items()}
            for client, identity in dropped:
                reached.setdefault(identity, {})[client] = None
        subscriptions, published = Subscriptions(), {}
        for row in events:
            if row.kind != "published":
                subscriptions.take(row)
                continue
            count = row.notifications or 1
            self.received[self.bucket(row.time)] += count
            if row.number is None or row.publisher is None:
                continue  # QoS 0 promises nothing.
            receivers = subscriptions.receivers(row.attributes) if row.attributes else ()
            for number in range(row.number, row.number + count):
                identity = row.publisher, row.incarnation or 0, number
                published[identity] = Published(row.time, receivers or tuple(reached.get(identity, ())))
        return published

    def _settle(
        self,
        published: Mapping[Identity, Published],
        arrived: Reached,
        dropped: Mapping[Delivery, str],
        whole: Container[str],
    ) -> None:
        newest: dict[tuple[str, str], tuple[int, int]] | None = None
        seen_at, later = None, 0
        for identity, (time, receivers) in published.items():
            bucket, reached = self.bucket(time), arrived.get(identity, {})
            for client in receivers:
                arrived_at = reached.get(client)
                if arrived_at is not None:
                    self.owed[bucket] += 1
                    if arrived_at != seen_at:
                        seen_at, later = arrived_at, self.bucket(arrived_at)
                    if later != bucket:
                        self._change(self.waiting, bucket, client, 1)
                        self._change(self.waiting, later, client, -1)
                    continue
                key, stream = (client, identity), (client, identity[0])
                if dropped.get(key) in NOT_OWED:
                    continue
                self.owed[bucket] += 1
                if newest is None:  # Not needed if everything arrived.
                    newest = _newest(arrived)
                if client in whole or key in dropped or identity[1:] < newest.get(stream, (-1, -1)):
                    self.lost[bucket] += 1
                    self._change(self.lost_by, bucket, client, 1)
                else:
                    self._change(self.waiting, bucket, client, 1)

    @staticmethod
    def _change(changes: list[dict[str, int]], bucket: int, client: str, change: int) -> None:
        at = changes[bucket]
        at[client] = at.get(client, 0) + change


def _newest(arrived: Reached) -> dict[tuple[str, str], tuple[int, int]]:
    """Return, for each client and publisher, incarnation and number of the last notification that arrived."""
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    for (publisher, incarnation, number), clients in arrived.items():
        position = incarnation, number
        for client in clients:
            if position > newest.get((client, publisher), (-1, -1)):
                newest[client, publisher] = position
    return newest
