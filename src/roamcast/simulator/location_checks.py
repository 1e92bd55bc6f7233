"""Judge deliveries to clients whose filters depend on where they are.

Figure 4 of Fiege et al. divides arrivals at a client into epochs, one for each location; an epoch begins when
the client's broker processes the move. Here epochs follow from the rows `located`. While the client is
attached and the delays of links are constant, the arrival time of a notification, and so its epoch, is known.
Otherwise a notification arrives within one longest delay after publishing: then it must be delivered if it
matches in all epochs of this interval, and may be delivered if it matches in one of them. (While a client is
away or in a handoff, there is only one epoch anyway.)

This is promised to clients that are no faster than brokers assume. For faster clients, only unwanted
deliveries are judged.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import networkx as nx

from roamcast.filters.filter import Attributes, Filter, Value
from roamcast.filters.geography import EARTH_RADIUS_M, EVERYWHERE, Position, Region
from roamcast.filters.own import NOTHING, Around, Possible, Values, instance
from roamcast.filters.selector import parse
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import HELD, Row
from roamcast.protocol.whereabouts import Pace
from roamcast.routing.location import pace
from roamcast.routing.location.earth import Earth
from roamcast.routing.location.movement_graph import MovementGraph
from roamcast.routing.location.settings import LocationSettings
from roamcast.simulator.checkers import ROUNDING_S, Identity


class Epoch(NamedTuple):
    """A client's own state, from some time until its next epoch begins."""

    begins_at: float
    broker: str
    values: dict[str, Value]
    stays_s: dict[str, float]
    """By variable: how long brokers assume that the client keeps each value."""
    is_late: bool


class Stay(NamedTuple):
    """A client is attached to a broker, and no handoff is under way."""

    begins_at: float
    broker: str
    ends_at: float


class Subscribed(NamedTuple):
    """One subscription of one client; missing times are infinite."""

    filter: Filter
    issued_at: float
    settled_at: float
    ends_at: float
    """Time at which the unsubscription was issued."""
    ended_at: float
    """Time at which the unsubscription had settled."""


class Published(NamedTuple):
    identity: Identity
    at: float
    broker: str
    attributes: Attributes


NEVER = float("inf")

DelayBetween = Callable[[str, str], float]
"""Delay of a notification from one broker to another."""


class NearPosition(Region):
    """Distance condition on positions, computed with another formula than the brokers' (the haversine)."""

    def __init__(self, centre: str, metres: float) -> None:
        super().__init__(f"near {centre} by {metres!r}", EVERYWHERE)
        self._centre = [math.radians(float(part)) for part in centre.split(",")]
        self._metres = metres

    def holds(self, place: Position) -> bool:
        (north, east), latitude, longitude = self._centre, *map(math.radians, place[:2])
        upwards, sideways = math.sin((latitude - north) / 2), math.sin((longitude - east) / 2)
        root = math.sqrt(upwards**2 + math.cos(north) * math.cos(latitude) * sideways**2)
        return 2 * EARTH_RADIUS_M * math.asin(min(root, 1.0)) <= self._metres


class LocationChecker:
    """Observes every row of a run in order of time; then call `judge`."""

    def __init__(self, settings: LocationSettings) -> None:
        self.settings = settings
        self.published: list[Published] = []
        self.subscriptions: dict[str, dict[str, list[Subscribed]]] = defaultdict(lambda: defaultdict(list))
        self.epochs: dict[str, list[Epoch]] = defaultdict(list)
        self.deliveries: dict[str, dict[Identity, float]] = defaultdict(dict)
        self.stays: dict[str, list[Stay]] = defaultdict(list)
        self._attached: dict[str, str] = {}
        self._paces: dict[tuple[str, str], Pace] = {}
        self._graphs = {
            name: _as_networkx(variable)
            for name, variable in settings.variables.items()
            if isinstance(variable, MovementGraph)
        }
        self._distances: dict[tuple[str, Value], dict[Value, int]] = {}
        self._exact: dict[tuple[Filter, tuple[tuple[str, Value], ...]], Filter] = {}

    # --- rows ---

    def observe(self, rows: list[Row]) -> None:
        for row in rows:
            match row.kind:
                case "published":
                    self._on_published(row)
                case "delivered":
                    self._on_delivered(row)
                case "located" if row.attributes is not None:
                    self._on_located(row, row.attributes)
                case "subscribed" | "unsubscribed" if row.reason != HELD:
                    self._on_subscription(row)
                case "attached" if row.node != row.client:
                    self._attached[row.client or ""] = row.node
                    if row.reason in (None, row.node):  # New, or back at the same broker.
                        self._begin_stay(row)
                case "handoff_finished" if self._attached.get(row.client or "") == row.node:
                    self._begin_stay(row)
                case "detached":
                    self._end_stay(row)

    def _on_published(self, row: Row) -> None:
        attributes = decode_attributes(row.attributes or b"")
        for identity in _identities(row):
            self.published.append(Published(identity, row.time, row.node, attributes))

    def _on_delivered(self, row: Row) -> None:
        for identity in _identities(row):
            self.deliveries[row.client or ""].setdefault(identity, row.time)

    def _on_located(self, row: Row, attributes: bytes) -> None:
        client, is_late = row.client or "", row.reason == "late"
        values = dict(decode_attributes(attributes))
        before = self.epochs[client][-1] if self.epochs[client] else None
        stays_s = dict(before.stays_s) if before is not None else {}
        for name, value in values.items():
            if before is None or before.values.get(name) != value:
                stays_s[name] = self._stay_s(client, name, row.time, is_late)
        self.epochs[client].append(Epoch(row.time, row.node, values, stays_s, is_late))

    def _stay_s(self, client: str, name: str, now: float, is_late: bool) -> float:
        settings, key = self.settings, (client, name)
        self._paces[key] = pace.changed(self._paces.get(key), now, is_late)
        if settings.stay_s is not None:
            return settings.stay_s
        return pace.stay_s(self._paces[key], settings.stay_first_s, settings.estimate)

    def _begin_stay(self, row: Row) -> None:
        self.stays[row.client or ""].append(Stay(row.time, row.node, NEVER))

    def _end_stay(self, row: Row) -> None:
        if self._attached.get(row.client or "") == row.node:
            del self._attached[row.client or ""]
        stays = self.stays[row.client or ""]
        for index, stay in enumerate(stays):
            if stay.broker == row.node and stay.ends_at == NEVER:
                stays[index] = stay._replace(ends_at=row.time)

    def _on_subscription(self, row: Row) -> None:
        """Record subscriptions, including plain ones: a notification that matches both kinds is owed to
        either."""
        text, now = row.filter or "", row.time
        known = self.subscriptions[row.client or ""][text]
        match row.kind, row.reason:
            case "subscribed", "issued":
                known.append(Subscribed(parse(text), now, NEVER, NEVER, NEVER))
            case "subscribed", _:
                known[-1] = known[-1]._replace(settled_at=now)
            case _, "issued":
                known[-1] = known[-1]._replace(ends_at=now)
            case _:
                known[-1] = known[-1]._replace(ended_at=now)

    # --- what a filter matches in an epoch ---

    def exact(self, filter: Filter, values: dict[str, Value]) -> Filter:
        """Return the plain filter for a client in this state."""
        if not filter.own:
            return filter
        key = (filter, tuple(sorted(values.items())))
        if key not in self._exact:
            self._exact[key] = instance(filter, lambda name, within: self._near(values, name, within))
        return self._exact[key]

    def _near(self, values: dict[str, Value], name: str, within: float) -> Possible:
        if name not in values:
            return NOTHING
        if isinstance(self.settings.variables[name], Earth):
            return Around((NearPosition(str(values[name]), within),), is_exact=True)
        if name not in self._graphs:
            return self.settings.variables[name].near((values[name],), 0, within)
        return Values(tuple(self.within(name, values[name], within)), is_exact=True)

    def within(self, name: str, value: Value, steps: float) -> Iterator[Value]:
        key = (name, value)
        if key not in self._distances:
            self._distances[key] = nx.single_source_shortest_path_length(self._graphs[name], value)
        return (other for other, distance in self._distances[key].items() if distance <= steps)

    # --- the verdict ---

    def judge(self, delay_s: float, between: DelayBetween | None = None) -> Iterator[tuple[str, str]]:
        """Return violations as (kind, description). `delay_s` is the longest delay of a notification;
        `between` gives exact delays, if they are constant.
        """
        for client, subscriptions in list(self.subscriptions.items()):
            held = [one for kept in subscriptions.values() for one in kept]
            if any(one.filter.own for one in held):
                yield from self._judge_client(client, held, delay_s + ROUNDING_S, between)

    def _judge_client(
        self, client: str, held: list[Subscribed], delay_s: float, between: DelayBetween | None
    ) -> Iterator[tuple[str, str]]:
        delivered, in_time = self.deliveries[client], self.is_in_time(client)
        begins = [epoch.begins_at for epoch in self.epochs[client]]
        for notification in self.published:
            first_s, last_s = self._arrival(client, notification, delay_s, between)
            first = bisect_right(begins, first_s - ROUNDING_S) - 1
            last = bisect_right(begins, last_s + ROUNDING_S) - 1
            epochs = self.epochs[client]
            touched = [epochs[index].values if index >= 0 else {} for index in range(first, last + 1)]
            had = notification.identity in delivered
            if had and not any(self._may_match(held, notification, values) for values in touched):
                yield "extra in epoch", self._tell(client, notification, touched)
            if not had and in_time and all(self._must_match(held, notification, one) for one in touched):
                yield "missing in epoch", self._tell(client, notification, touched)

    def _arrival(
        self, client: str, notification: Published, delay_s: float, between: DelayBetween | None
    ) -> tuple[float, float]:
        """Return the interval in which the notification reaches the broker that matches it for the client."""
        first_s, last_s = notification.at, notification.at + delay_s
        if between is not None:
            for stay in self.stays[client]:
                if stay.begins_at <= first_s and last_s <= stay.ends_at:
                    at = first_s + between(notification.broker, stay.broker)
                    return at, at
        return first_s, last_s

    def _may_match(self, held: list[Subscribed], notification: Published, values: dict[str, Value]) -> bool:
        return any(
            self.exact(one.filter, values).matches(notification.attributes)
            for one in held
            if one.issued_at <= notification.at + ROUNDING_S and notification.at <= one.ended_at
        )

    def _must_match(self, held: list[Subscribed], notification: Published, values: dict[str, Value]) -> bool:
        return any(
            self.exact(one.filter, values).matches(notification.attributes)
            for one in held
            if one.settled_at < notification.at < one.ends_at
        )

    def is_in_time(self, client: str) -> bool:
        """Return whether the client kept each value as long as brokers assumed.

        A client may follow a late move by another one at once, because all brokers know the late one by then.
        """
        stepped_at: dict[str, float] = {}
        longest_s: dict[str, float] = {}
        before: dict[str, Value] = {}
        for epoch in self.epochs[client]:
            for name, value in epoch.values.items():
                if before.get(name) == value:
                    continue
                stayed_s = epoch.begins_at - stepped_at.get(name, float("-inf"))
                if not epoch.is_late and stayed_s < longest_s.get(name, 0.0) - ROUNDING_S:
                    return False
                stepped_at[name] = float("-inf") if epoch.is_late else epoch.begins_at
                # One that was slower once may be faster than that later.
                longest_s[name] = max(longest_s.get(name, 0.0), epoch.stays_s[name])
            before = epoch.values
        return True

    def _tell(self, client: str, notification: Published, touched: list[dict[str, Value]]) -> str:
        publisher, _, number = notification.identity
        return (
            f"{client} and {publisher}/{number}, published at {notification.at:.6f} with"
            f" {dict(notification.attributes)}, while it was at {touched}"
        )


def _as_networkx(graph: MovementGraph) -> nx.DiGraph:
    """Read the graph edge by edge, so that distances are not computed by the brokers' own code."""
    directed = nx.DiGraph()
    directed.add_nodes_from(graph.locations)
    directed.add_edges_from((start, end) for start in graph.locations for end in graph.neighbours(start))
    return directed


def _identities(row: Row) -> Iterator[Identity]:
    for offset in range(row.notifications or 1):
        yield row.publisher or "", row.incarnation or 0, (row.number or 0) + offset
