"""Checkers that run inside a simulation: expected deliveries, actual deliveries, and excuses for the
difference.

Checkers see the rows of the log, and never the brokers' tables. What a client is owed follows from the rows
`published`, `subscribed` and `unsubscribed` and from evaluating its filters one by one: published after a
subscription settled and before its unsubscription was issued, it must be delivered; between issued and
settled it may be; otherwise it must not. Actual deliveries are the clients' own rows. Each anomaly must have
an excuse that the protocol's promise names; without one it is a violation.

Some excuses depend on propagation delays. These are measured by a clock that stops while a broker or a link
is down, because messages then wait, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from roamcast.filters.filter import Filter
from roamcast.filters.own import widest
from roamcast.filters.selector import parse
from roamcast.mobility import Promise
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import HELD, Row

MUST, MAY, HAD = 1, 2, 3
Identity = tuple[str, int, int]
"""Publisher, incarnation, number."""

ROUNDING_S = 1e-6
"""Tolerance for sums of delays."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription of one client, from issued to the end of its unsubscription."""

    client: str
    filter: Filter
    settled: bool = False
    ending: bool = False


@dataclass(slots=True, eq=False)
class Receiver:
    """State of one client."""

    filters: dict[str, Filter] = field(default_factory=dict)
    """All its subscriptions so far, by the text of their filter."""
    owed: int = 0
    """Notifications that the client must still receive."""
    newest: dict[str, Notification] = field(default_factory=dict)
    """By publisher: the newest delivered notification."""
    waiting_since: float | None = None
    """Time of the last attach after which a waiting notification has not arrived yet."""
    left_at: float | None = None
    absences: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each absence; the end is by the clock that stops during outages."""
    at: str = ""
    """The broker that the client reported to be attached to."""
    noticed_at: dict[str, float] = field(default_factory=dict)
    """Time at which a broker last noticed that the client was gone."""
    move_ins: list[float] = field(default_factory=list)
    """Times at which the session reached the client's new broker, and the protocol started."""
    given_up: dict[str, set[Identity]] = field(default_factory=dict)
    """Notifications that brokers dropped, by excuse."""


@dataclass(slots=True, eq=False)
class Notification:
    """A published notification, and the clients that have not received it yet."""

    position: tuple[int, int]
    """Incarnation and number: the order in which its publisher published."""
    attributes: bytes
    published_at: float
    status: dict[str, int] | None
    """By client: MUST, MAY or HAD; None once all have received it."""
    had: tuple[str, ...] = ()
    """Clients that received it, once all have: a smaller form of `status`."""
    owed: int = 0
    broker_of: dict[str, str] = field(default_factory=dict)
    """The broker that delivered it first, kept if a promise needs it."""


@dataclass
class Violation:
    """A difference that the protocol's promise does not excuse."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass
class Counts:
    """Counts that every verdict has."""

    published: int = 0
    expected: int = 0
    """Number of deliveries owed."""
    delivered: int = 0
    """Number of arrivals, including duplicates."""
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    unexpected: int = 0


Arrival = Literal["new", "duplicate", "out of order"]


class Arrivals:
    """Counts arrivals, and tells new ones from duplicates and late ones.

    `Checker` has its own tables for that: it must forget settled notifications, or long runs would not fit
    into memory.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._had: dict[tuple[str, Identity], None] = {}
        self._newest: dict[tuple[str, str], tuple[int, int]] = {}
        """Number of the newest arrival, by receiver and publisher."""

    def had(self, receiver: str, identity: Identity) -> bool:
        return (receiver, identity) in self._had

    def newest(self, receiver: str, publisher: str) -> int:
        """Return the number of the newest arrival; 0 if there is none."""
        return self._newest.get((receiver, publisher), (0, 0))[1]

    def take(self, receiver: str, identity: Identity) -> Arrival:
        self._counts.delivered += 1
        if self.had(receiver, identity):
            self._counts.duplicates += 1
            return "duplicate"
        self._had[receiver, identity] = None
        stream, position = (receiver, identity[0]), identity[1:]
        if position < self._newest.get(stream, position):
            self._counts.out_of_order += 1
            return "out of order"
        self._newest[stream] = position
        return "new"


@dataclass
class Result(Counts):
    """The figures of a run."""

    dropped: int = 0
    handoffs: int = 0
    handoff_delays_s: list[float] = field(default_factory=list)
    handoffs_interrupted: int = 0
    """Handoffs that ended before a waiting notification arrived."""
    handoffs_nothing_waiting: int = 0
    crashes: int = 0
    links_down: int = 0
    """Number of link failures, including those with a failed end."""
    located: int = 0
    """Changes of clients' own state, for clients whose filters depend on it."""
    blacked_out: int = 0
    """Notifications that clients missed because they move too fast, exactly as predicted."""
    excused: dict[str, int] = field(default_factory=dict)
    violations_total: int = 0
    violations: list[Violation] = field(default_factory=list)
    """Descriptions of the first violations."""

    def violate(self, kind: str, text: str, kept_max: int = 20) -> None:
        self.violations_total += 1
        if len(self.violations) < kept_max:
            self.violations.append(Violation(kind, text))


@dataclass(frozen=True)
class Edges:
    """Tolerances around an absence, in seconds."""

    before_leave_s: float
    """A notification published this shortly before the client left may have been in transit."""
    after_attach_s: float
    """A notification published this shortly after the attach may have missed the subscription."""
    after_outage_s: float = 0.0
    """Longest delay of messages that were on a link when it failed and are sent again."""


class Checker:
    """Checks a run: pass every row in order of time, then call `finish`."""

    def __init__(self, promise: Promise, edges: Edges, violations_max: int = 20) -> None:
        self.result = Result()
        self.hostile = ""
        """The hostile broker; it may publish topics and client names with this prefix."""
        self._hears_hostile: dict[str, None] = {}
        """Clients that have subscribed to such topics."""
        self._promise = promise
        self._keeps_brokers = bool(promise.duplicate or promise.reordered)
        self._edges = edges
        self._violations_max = violations_max
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._matching: dict[bytes, list[Subscription]] = {}
        """Cache from attributes to matching subscriptions, valid while the subscriptions stay the same."""
        self._notifications: dict[tuple[str, int], list[Notification]] = {}
        self._newest: list[tuple[str, Notification]] = []
        """The last publishes, all at one time, with their brokers."""
        self._receivers: dict[str, Receiver] = defaultdict(Receiver)
        self._not_advertised: Counter[str] = Counter()
        """Number of refused publishes, by publisher."""
        self._outages: list[tuple[float, float]] = []
        """Start and end of outages of any broker or link."""
        self._down: dict[tuple[str, str | None], None] = {}
        """What is down: (broker, None), or (broker, peer) as reported by the broker."""
        self._handlers: dict[str, Callable[[Row], None]] = {
            "published": self._on_published,
            "delivered": self._on_delivered,
            "subscribed": self._on_subscribed,
            "unsubscribed": self._on_unsubscribed,
            "moved": self._on_moved,
            "attached": self._on_attached,
            "detached": self._on_detached,
            "dropped": self._on_dropped,
            "crashed": self._on_down,
            "started": self._on_up,
            "link_down": self._on_down,
            "link_up": self._on_up,
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
        if row.reason == HELD:
            return  # The log has it since it was issued.
        filter = parse(text)
        if row.reason == "settled":
            subscription = self._subscriptions.get((client, text))
            if subscription is not None:
                # `location_checks` decides what filters on the client's own state are owed.
                subscription.settled = not filter.own
            return
        subscription = self._subscriptions[client, text] = Subscription(client, widest(filter))
        self._receivers[client].filters[text] = subscription.filter
        if self.hostile and filter.matches({"topic": f"{self.hostile}/plan"}):
            self._hears_hostile[client] = None
        for attributes, matching in self._matching.items():
            if subscription.filter.matches(decode_attributes(attributes)):
                matching.append(subscription)
        for broker, notification in self._newest:
            # At the same time at another broker is not before.
            simultaneous = notification.published_at == row.time and broker != row.node
            if simultaneous and subscription.filter.matches(decode_attributes(notification.attributes)):
                notification.status = notification.status or {}
                if client not in notification.had:
                    notification.status.setdefault(client, MAY)

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
        number = row.number or 0
        for offset in range(row.notifications or 1):
            self._publish(row, number + offset)

    def _publish(self, row: Row, number: int) -> None:
        self.result.published += 1
        attributes = row.attributes or b""
        matching = self._matching.get(attributes)
        if matching is None:
            decoded = decode_attributes(attributes)
            matching = [one for one in self._subscriptions.values() if one.filter.matches(decoded)]
            if len(self._matching) >= 4096:
                self._matching.clear()
            self._matching[attributes] = matching
        numbered = self._notifications.setdefault((row.publisher or "", row.incarnation or 0), [])
        status: dict[str, int] = {}
        position = (row.incarnation or 0, len(numbered) + 1)
        notification = Notification(position, attributes, row.time, status)
        for subscription in matching:
            client = subscription.client
            if subscription.settled and not subscription.ending:
                if status.get(client) != MUST:
                    status[client] = MUST
                    notification.owed += 1
                    self._receivers[client].owed += 1
            else:
                status.setdefault(client, MAY)
        self.result.expected += notification.owed
        numbered.append(notification)
        if self._newest and self._newest[0][1].published_at != row.time:
            self._newest.clear()
        self._newest.append((row.node, notification))
        if number != len(numbered):
            self.violate("numbering", f"{row.publisher} number {number} after {len(numbered) - 1}")

    # --- what came ---

    def _on_delivered(self, row: Row) -> None:
        # There are millions of these rows: one slice is faster than seven names.
        client, _, _, publisher, incarnation, first, count = row[4:11]
        count = count or 1
        self.result.delivered += count
        numbered = self._notifications.get((publisher or "", incarnation or 0), ())
        receiver = self._receivers[client or ""]
        for number in range(first or 0, (first or 0) + count):
            if 1 <= number <= len(numbered):
                self._deliver(row, receiver, client or "", number, numbered[number - 1])
            elif client not in self._hears_hostile or not (publisher or "").startswith(self.hostile):
                self.violate("invented", f"{client} got {publisher}/{number}, which nobody published")

    def _deliver(
        self, row: Row, receiver: Receiver, client: str, number: int, notification: Notification
    ) -> None:
        if receiver.waiting_since is not None:
            self.result.handoff_delays_s.append(row.time - receiver.waiting_since)
            receiver.waiting_since = None
        status = notification.status
        standing = status.get(client, HAD) if status is not None else HAD
        if standing == HAD:
            self._on_again(row, number, notification)
            return
        assert status is not None
        status[client] = HAD
        if standing == MUST:
            notification.owed -= 1
            receiver.owed -= 1
        if self._keeps_brokers:
            notification.broker_of[client] = row.broker or ""
        if notification.owed == 0 and not self._promise.duplicate and MAY not in status.values():
            # A later arrival of it is a duplicate or unwanted.
            notification.had += tuple(status)
            notification.status = None
        newest, publisher = receiver.newest, row.publisher or ""
        last = newest.get(publisher)
        if last is None or notification.position > last.position:
            newest[publisher] = notification
        else:
            self._on_out_of_order(row, number, notification, last)

    def _on_again(self, row: Row, number: int, notification: Notification) -> None:
        """Note that the client is not owed the notification: it already has it, or was never owed it."""
        client = row.client or ""
        if client in notification.had or client in (notification.status or ()):
            self._on_duplicate(row, number, notification)
        else:
            self._on_unwanted(row, number, notification)

    def _on_out_of_order(self, row: Row, number: int, notification: Notification, last: Notification) -> None:
        self.result.out_of_order += 1
        excuse = "another_broker" if last.broker_of.get(row.client or "") != row.broker else None
        if "replayed" in self._promise.reordered:
            moved_in = self._tick(self._receivers[row.client or ""].move_ins[-1])
            delay_s = self._edges.after_attach_s + ROUNDING_S
            excuse = "replayed" if self._tick(notification.published_at) <= moved_in + delay_s else excuse
        self._judge(
            "out of order", excuse, self._promise.reordered,
            lambda: f"{row.client} got {row.publisher}/{number} at {row.time:.6f} from {row.broker} "
            f"after {last.position[1]}",
        )  # fmt: skip

    def _on_duplicate(self, row: Row, number: int, notification: Notification) -> None:
        self.result.duplicates += 1
        first = notification.broker_of.get(row.client or "")
        excuse = "another_broker" if first is not None and first != row.broker else None
        if "move_in" in self._promise.duplicate and self._was_moving_in(row.client or "", notification):
            excuse = "move_in"
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
        return any(filter.matches(attributes) for filter in self._receivers[client].filters.values())

    # --- where clients are ---

    def _on_moved(self, row: Row) -> None:
        receiver = self._receivers[_client(row)]
        receiver.at = ""
        if row.reason == "left":
            if receiver.left_at is None:
                receiver.left_at = row.time
            if receiver.waiting_since is not None:
                receiver.waiting_since = None
                self.result.handoffs_interrupted += 1
        elif row.reason is not None and row.reason != row.broker:
            self.result.handoffs += 1
            if receiver.owed:
                receiver.waiting_since = row.time
            else:
                self.result.handoffs_nothing_waiting += 1

    def _on_attached(self, row: Row) -> None:
        client = _client(row)
        receiver = self._receivers[client]
        if row.node != client:
            receiver.move_ins.append(row.time)
            return  # The broker's view; the client may have left unnoticed.
        receiver.at = row.broker or ""
        if receiver.left_at is not None:
            receiver.absences.append((receiver.left_at, row.time))
            receiver.left_at = None

    def _on_detached(self, row: Row) -> None:
        self._receivers[_client(row)].noticed_at[row.node] = row.time

    def _on_dropped(self, row: Row) -> None:
        count = row.notifications or 0
        if row.reason == "not advertised":
            self._not_advertised[row.publisher or ""] += count
        self.result.dropped += count
        receiver = self._receivers[_client(row)]
        if row.reason in ("in transit", "away") and not self._may_be_in_transit(receiver, row):
            return
        given_up = receiver.given_up.setdefault((row.reason or "").replace(" ", "_"), set())
        for number in range(row.number or 0, (row.number or 0) + count):
            given_up.add((row.publisher or "", row.incarnation or 0, number))

    def _may_be_in_transit(self, receiver: Receiver, row: Row) -> bool:
        """Return whether the notification may be in transit: not for an attached client, nor later than a
        round trip after the client was known to be gone."""
        noticed_at = receiver.noticed_at.get(row.node, float("-inf"))
        round_trip_s = 2 * self._edges.after_attach_s + ROUNDING_S
        return receiver.at != row.node and self._tick(row.time) <= self._tick(noticed_at) + round_trip_s

    # --- outages ---

    def _on_down(self, row: Row) -> None:
        """Note that a broker has crashed, or that a broker reports a link down."""
        if not self._down:
            last_s = self._outages[-1][1] if self._outages else row.time
            self._outages.append((max(row.time, last_s), float("inf")))
        if row.peer is None:
            self.result.crashes += 1
        elif (row.peer, row.node) not in self._down:
            self.result.links_down += 1
        self._down[_outage(row)] = None

    def _on_up(self, row: Row) -> None:
        self._down.pop(_outage(row), None)
        if not self._down and self._outages[-1][1] == float("inf"):
            self._outages[-1] = (self._outages[-1][0], row.time + self._edges.after_outage_s)

    def _tick(self, time: float) -> float:
        """Return a time by the clock that stops during outages, because messages in transit wait."""
        if not self._outages:
            return time
        return time - sum(min(end, time) - start for start, end in self._outages if start < time)

    # --- the end ---

    def finish(self, stored: set[tuple[str, Identity]], asked: Mapping[str, int] | None = None) -> Result:
        """Judge missing deliveries.

        `stored` maps clients to what brokers still hold for them; `asked` is the number of requested
        publishes of clients for which it is known.
        """
        for receiver in self._receivers.values():
            if receiver.left_at is not None:
                receiver.absences.append((receiver.left_at, float("inf")))
            receiver.absences = [(self._tick(left), self._tick(back)) for left, back in receiver.absences]
        for (publisher, incarnation), numbered in self._notifications.items():
            for index, notification in enumerate(numbered):
                for client, standing in (notification.status or {}).items():
                    if standing == MUST:
                        self._on_lost(client, (publisher, incarnation, index + 1), notification, stored)
        self._compare_published(asked or {})
        return self.result

    def _compare_published(self, asked: Mapping[str, int]) -> None:
        """Compare requested and actual publishes: a client repeats a publish until it is accepted, and it
        must count once."""
        published = Counter(self._not_advertised)
        for (publisher, _), numbered in self._notifications.items():
            published[publisher] += len(numbered)
        for publisher, count in asked.items():
            if published[publisher] != count:
                kind = "published twice" if published[publisher] > count else "never published"
                self.violate(kind, f"{published[publisher]} notifications of {publisher} instead of {count}")

    def _on_lost(
        self,
        client: str,
        identity: Identity,
        notification: Notification,
        stored: set[tuple[str, Identity]],
    ) -> None:
        self.result.lost += 1
        allowed = self._promise.lost
        receiver = self._receivers[client]
        excuse = next((one for one in sorted(allowed) if identity in receiver.given_up.get(one, ())), None)
        if excuse is None and "remainder" in allowed and (client, identity) in stored:
            excuse = "remainder"
        elif excuse is None and "away" in allowed and self._was_away(client, notification):
            excuse = "away"
        elif excuse is None and "move_in" in allowed and self._was_moving_in(client, notification):
            excuse = "move_in"
        self._judge(
            "lost", excuse, allowed,
            lambda: f"{client} never got {identity[0]}/{identity[2]}, "
            f"published at {notification.published_at:.6f}",
        )  # fmt: skip

    def _was_away(self, client: str, notification: Notification) -> bool:
        edges, published = self._edges, self._tick(notification.published_at)
        return any(
            left - edges.before_leave_s <= published <= back + edges.after_attach_s
            for left, back in self._receivers[client].absences
        )

    def _was_moving_in(self, client: str, notification: Notification) -> bool:
        """Return whether it was published within one propagation delay of a move-in, before or after."""
        delay_s = self._edges.after_attach_s + ROUNDING_S
        published, move_ins = self._tick(notification.published_at), self._receivers[client].move_ins
        first = bisect_left(move_ins, published - delay_s, key=self._tick)
        return first < len(move_ins) and self._tick(move_ins[first]) <= published + delay_s

    def _judge(self, kind: str, excuse: str | None, allowed: frozenset[str], text: Callable[[], str]) -> None:
        if excuse is not None and excuse in allowed:
            name = f"{kind} ({excuse})"
            self.result.excused[name] = self.result.excused.get(name, 0) + 1
        else:
            self.violate(kind, text())

    def violate(self, kind: str, text: str) -> None:
        self.result.violate(kind, text, self._violations_max)


def _client(row: Row) -> str:
    return row.client or ""


def _outage(row: Row) -> tuple[str, str | None]:
    """Describe what is down, or up again."""
    return (row.broker or "", None) if row.peer is None else (row.node, row.peer)
