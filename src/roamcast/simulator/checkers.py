"""Checkers that run inside a simulation: what was owed, what came, and what excuses the rest.

They see the same rows as the log and nothing of the brokers' tables. What a
client is owed follows from the rows `published`, `subscribed` and `unsubscribed`
and from evaluating its filters one by one: published after a subscription
settled and before its unsubscription was issued, it must be delivered; between
issued and settled it may be; otherwise it must not. What came is what the
clients' own rows say. Each anomaly must have an excuse that the protocol's
promise names; without one it is a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from roamcast.core.notification import decode_attributes
from roamcast.core.records import Row
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility import Promise

MUST, MAY, HAD = 1, 2, 3
Identity = tuple[str, int, int]
"""Publisher, incarnation, number."""


class Subscription:
    """One subscription of one client, from issued to the end of its unsubscription."""

    __slots__ = ("client", "ending", "filter", "settled")

    def __init__(self, client: str, filter: Filter) -> None:
        self.client = client
        self.filter = filter
        self.settled = False
        self.ending = False


class Notification:
    """A published notification, and for whom it is still under way."""

    __slots__ = ("attributes", "broker_of", "owed", "published_at", "status")

    def __init__(self, attributes: bytes, published_at: float, status: dict[str, int]) -> None:
        self.attributes = attributes
        self.published_at = published_at
        self.status: dict[str, int] | None = status
        """Client to MUST, MAY or HAD; None once all who must have had it."""
        self.owed = 0
        self.broker_of: dict[str, str] = {}
        """Which broker delivered it first, kept where a promise asks."""


@dataclass
class Violation:
    """Something that the protocol's promise does not excuse."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Result:
    """The figures of a run."""

    published: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    dropped: int = 0
    handoffs: int = 0
    handoff_delays_s: list[float] = field(default_factory=list)
    handoffs_interrupted: int = 0
    """Ended before a waiting notification arrived."""
    handoffs_nothing_waiting: int = 0
    excused: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True)
class Edges:
    """How far the edges of an absence reach, in seconds."""

    before_leave_s: float
    """What was published so shortly before the client left may have been on its way to it."""
    after_attach_s: float
    """What was published so shortly after it attached may have missed its subscription."""


class Checker:
    """Give it every row of a run in order of time, then `finish`."""

    def __init__(self, promise: Promise, edges: Edges, violations_max: int = 20) -> None:
        self.result = Result()
        self._promise = promise
        self._edges = edges
        self._violations_max = violations_max
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._ever: dict[str, dict[str, Filter]] = {}
        self._matching: dict[bytes, list[Subscription]] = {}
        """Attributes to the subscriptions they match, remembered while these last."""
        self._notifications: dict[tuple[str, int], list[Notification]] = {}
        self._last: dict[tuple[str, str], tuple[int, int, str]] = {}
        """(client, publisher) to the newest delivered: incarnation, number, broker."""
        self._owed: dict[str, int] = {}
        self._waiting_since: dict[str, float] = {}
        self._left_at: dict[str, float] = {}
        self._absences: dict[str, list[tuple[float, float]]] = {}
        self._overflowed: set[tuple[str, Identity]] = set()
        self._handlers: dict[str, Callable[[Row], None]] = {
            "published": self._on_published,
            "delivered": self._on_delivered,
            "subscribed": self._on_subscribed,
            "unsubscribed": self._on_unsubscribed,
            "moved": self._on_moved,
            "attached": self._on_attached,
            "dropped": self._on_dropped,
        }

    def observe(self, rows: list[Row]) -> None:
        handlers = self._handlers
        for row in rows:
            handler = handlers.get(row[3])
            if handler is not None:
                handler(row)

    # --- what is owed ---

    def _on_subscribed(self, row: Row) -> None:
        client, text = _client(row), row.filter or ""
        if row.reason == "settled":
            subscription = self._subscriptions.get((client, text))
            if subscription is not None:
                subscription.settled = True
            return
        subscription = self._subscriptions[client, text] = Subscription(client, parse(text))
        self._ever.setdefault(client, {})[text] = subscription.filter
        for attributes, matching in self._matching.items():
            if subscription.filter.matches(decode_attributes(attributes)):
                matching.append(subscription)

    def _on_unsubscribed(self, row: Row) -> None:
        key = _client(row), row.filter or ""
        if row.reason == "issued":
            self._subscriptions[key].ending = True
            return
        ended = self._subscriptions.pop(key)
        for matching in self._matching.values():
            if ended in matching:
                matching.remove(ended)

    def _on_published(self, row: Row) -> None:
        self.result.published += 1
        attributes = row.attributes or b""
        matching = self._matching.get(attributes)
        if matching is None:
            decoded = decode_attributes(attributes)
            matching = [one for one in self._subscriptions.values() if one.filter.matches(decoded)]
            if len(self._matching) >= 4096:
                self._matching.clear()
            self._matching[attributes] = matching
        status: dict[str, int] = {}
        notification = Notification(attributes, row.time, status)
        for subscription in matching:
            client = subscription.client
            if subscription.settled and not subscription.ending:
                if status.get(client) != MUST:
                    status[client] = MUST
                    notification.owed += 1
                    self._owed[client] = self._owed.get(client, 0) + 1
            else:
                status.setdefault(client, MAY)
        self.result.expected += notification.owed
        numbered = self._notifications.setdefault((row.publisher or "", row.incarnation or 0), [])
        numbered.append(notification)
        if row.number != len(numbered):
            self._violate("numbering", f"{row.publisher} number {row.number} after {len(numbered) - 1}")

    # --- what came ---

    def _on_delivered(self, row: Row) -> None:
        number = row.number or 0
        for offset in range(row.notifications or 1):
            self._deliver(row, number + offset)

    def _deliver(self, row: Row, number: int) -> None:
        client, publisher = row.client or "", row.publisher or ""
        self.result.delivered += 1
        numbered = self._notifications.get((publisher, row.incarnation or 0), [])
        if not 1 <= number <= len(numbered):
            self._violate("invented", f"{client} got {publisher}/{number}, which nobody published")
            return
        notification = numbered[number - 1]
        since = self._waiting_since.pop(client, None)
        if since is not None:
            self.result.handoff_delays_s.append(row.time - since)
        status = notification.status
        standing = status.get(client) if status is not None else None
        if standing is None and (status is not None or not self._ever_matched(client, notification)):
            self._on_unwanted(row, number, notification)
            return
        if standing is None or standing == HAD:
            self._on_duplicate(row, number, notification)
            return
        assert status is not None
        status[client] = HAD
        if standing == MUST:
            notification.owed -= 1
            self._owed[client] -= 1
        if self._promise.duplicate:
            notification.broker_of[client] = row.broker or ""
        elif notification.owed == 0 and MAY not in status.values():
            notification.status = None  # Whatever comes of it now is a duplicate or unwanted.
        self._check_order(row, number)

    def _check_order(self, row: Row, number: int) -> None:
        key = (row.client or "", row.publisher or "")
        last = self._last.get(key)
        incarnation = row.incarnation or 0
        if last is None or (incarnation, number) > last[:2]:
            self._last[key] = (incarnation, number, row.broker or "")
            return
        self.result.out_of_order += 1
        excuse = "another_broker" if last[2] != row.broker else None
        self._judge(
            "out of order", excuse, self._promise.reordered,
            lambda: f"{key[0]} got {key[1]}/{number} at {row.time:.6f} from {row.broker} "
            f"after {last[1]} from {last[2]}",
        )  # fmt: skip

    def _on_duplicate(self, row: Row, number: int, notification: Notification) -> None:
        self.result.duplicates += 1
        first = notification.broker_of.get(row.client or "")
        excuse = "another_broker" if first is not None and first != row.broker else None
        self._judge(
            "duplicate", excuse, self._promise.duplicate,
            lambda: f"{row.client} got {row.publisher}/{number} again at {row.time:.6f} from {row.broker}",
        )  # fmt: skip

    def _on_unwanted(self, row: Row, number: int, notification: Notification) -> None:
        self.result.unexpected += 1
        stale = self._ever_matched(row.client or "", notification)
        excuse = "another_broker" if stale else None
        self._judge(
            "stale" if stale else "not matching", excuse, self._promise.stale,
            lambda: f"{row.client} got {row.publisher}/{number} at {row.time:.6f} from {row.broker}, "
            f"published at {notification.published_at:.6f} with {decode_attributes(notification.attributes)}",
        )  # fmt: skip

    def _ever_matched(self, client: str, notification: Notification) -> bool:
        attributes = decode_attributes(notification.attributes)
        return any(filter.matches(attributes) for filter in self._ever.get(client, {}).values())

    # --- where clients are ---

    def _on_moved(self, row: Row) -> None:
        client = _client(row)
        if row.reason == "left":
            self._left_at.setdefault(client, row.time)
            if self._waiting_since.pop(client, None) is not None:
                self.result.handoffs_interrupted += 1
        elif row.reason is not None and row.reason != row.broker:
            self.result.handoffs += 1
            if self._owed.get(client, 0):
                self._waiting_since[client] = row.time
            else:
                self.result.handoffs_nothing_waiting += 1

    def _on_attached(self, row: Row) -> None:
        client = _client(row)
        if row.node != client:
            return  # A broker's belief; the client may have left without its noticing.
        left_at = self._left_at.pop(client, None)
        if left_at is not None:
            self._absences.setdefault(client, []).append((left_at, row.time))

    def _on_dropped(self, row: Row) -> None:
        self.result.dropped += row.notifications or 0
        if row.reason == "overflow":
            for offset in range(row.notifications or 0):
                identity = (row.publisher or "", row.incarnation or 0, (row.number or 0) + offset)
                self._overflowed.add((_client(row), identity))

    # --- the end ---

    def finish(self, stored: set[tuple[str, Identity]]) -> Result:
        """Judge what never came; `stored` is what brokers still hold, for whom."""
        for client, left_at in self._left_at.items():
            self._absences.setdefault(client, []).append((left_at, float("inf")))
        for (publisher, incarnation), numbered in self._notifications.items():
            for index, notification in enumerate(numbered):
                for client, standing in (notification.status or {}).items():
                    if standing == MUST:
                        self._on_lost(client, (publisher, incarnation, index + 1), notification, stored)
        return self.result

    def _on_lost(
        self,
        client: str,
        identity: Identity,
        notification: Notification,
        stored: set[tuple[str, Identity]],
    ) -> None:
        self.result.lost += 1
        allowed = self._promise.lost
        excuse = None
        if (client, identity) in self._overflowed:
            excuse = "overflow"
        elif "remainder" in allowed and (client, identity) in stored:
            excuse = "remainder"
        elif "away" in allowed and self._was_away(client, notification.published_at):
            excuse = "away"
        self._judge(
            "lost", excuse, allowed,
            lambda: f"{client} never got {identity[0]}/{identity[2]}, "
            f"published at {notification.published_at:.6f}",
        )  # fmt: skip

    def _was_away(self, client: str, published_at: float) -> bool:
        return any(
            left_at - self._edges.before_leave_s <= published_at <= attached_at + self._edges.after_attach_s
            for left_at, attached_at in self._absences.get(client, ())
        )

    def _judge(self, kind: str, excuse: str | None, allowed: frozenset[str], text: Callable[[], str]) -> None:
        if excuse is not None and excuse in allowed:
            name = f"{kind} ({excuse})"
            self.result.excused[name] = self.result.excused.get(name, 0) + 1
        else:
            self._violate(kind, text())

    def _violate(self, kind: str, text: str) -> None:
        if len(self.result.violations) < self._violations_max:
            self.result.violations.append(Violation(kind, text))

    def violate(self, kind: str, text: str) -> None:
        """A violation that the driver found."""
        self._violate(kind, text)


def _client(row: Row) -> str:
    return row.client or ""
