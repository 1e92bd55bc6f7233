"""The clients of this broker as operators see them, and which of them changed since the last examination.

One call of `look` examines a bounded number of sessions, so that no turn is delayed for long: with many
sessions one round takes several calls. Clients that came, went or moved are examined first (`touch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from roamcast.broker.contract import AnyMachine
from roamcast.daemon.reports import CLIENT_BYTES_MAX, ClientRow
from roamcast.errors import InputError
from roamcast.filters.geography import position_of
from roamcast.filters.selector import topic_part
from roamcast.mqtt.codec.topics import matches, split_shared, subscription_filter
from roamcast.mqtt.server.sessions import PROVISIONAL, MqttSession, Subscription, client_of
from roamcast.protocol.session import Session

LOOKED_AT_MAX = 10_000
"""Sessions examined in one round."""
REPORTED_MAX = 2_500
"""Clients in one report; further ones follow in the next."""
SUBSCRIPTIONS_BYTES_MAX = 150_000
"""Approximate size of one answer about subscriptions."""
LOCATION = "location"


class Census:
    def __init__(self, site: AnyMachine) -> None:
        self._site = site
        self.queued = 0
        """Number of notifications queued for all clients, as of the last round."""
        self.queued_bytes = 0
        """Size of these notifications in bytes."""
        self.begin()

    def begin(self) -> None:
        """Start again with a report of all clients."""
        self._rows: dict[str, ClientRow] = {}
        self._changed: dict[str, None] = {}
        """Clients to report."""
        self._touched: dict[str, None] = {}
        self._round: list[str] = []
        self._at = 0
        self._queued: dict[str, int] = {}

    def touch(self, client: str) -> None:
        """Mark a client as changed."""
        self._touched[client] = None

    def look(self) -> None:
        """Examine sessions for changes."""
        if self._at >= len(self._round):
            self._begin_round()
        touched, self._touched = self._touched, {}
        for name in touched:
            self._see(name, is_touched=True)
        for name in islice(self._round, self._at, self._at + LOOKED_AT_MAX):
            self._see(name)
        self._at += LOOKED_AT_MAX

    def _begin_round(self) -> None:
        self._round, self._at = list(self._site.endpoint.sessions), 0
        here = dict.fromkeys(self._round)
        for name in [name for name in self._rows if name not in here]:
            self._touched[name] = None
        queued: dict[str, int] = {}
        for client, queue in self._site.queues():
            count = len(queue)
            if count:
                queued[client] = queued.get(client, 0) + count
        self._queued = queued
        self.queued, self.queued_bytes = sum(queued.values()), self._site.queued_bytes

    def _see(self, name: str, is_touched: bool = False) -> None:
        sessions, known = self._site.endpoint.sessions, self._rows.get(name)
        if (
            known is not None
            and not is_touched
            and sessions.is_asleep(name)
            and (known.attached, known.queued) == (False, self._queued.get(name, 0))
        ):
            return  # The client is disconnected and sends nothing.
        mqtt = sessions.get(name)
        if mqtt is None:
            if known is not None:
                del self._rows[name]
                self._changed[name] = None
            return
        session = self._site.session_of(name)
        latitude, longitude = _position(session)
        attached, queued = bool(mqtt.connection), self._queued.get(name, 0)
        if (
            known is not None
            and not is_touched
            and (known.attached, known.queued, known.latitude, known.longitude)
            == (attached, queued, latitude, longitude)
        ):
            return
        predicted = tuple(self._site.likely_next(session)) if session is not None else ()
        row = ClientRow(shown(name), attached, queued, latitude, longitude, predicted)
        if row != known:
            self._rows[name] = row
            self._changed[name] = None

    def take(self) -> tuple[list[ClientRow], list[str], bool]:
        """Return the clients to report, the clients that are gone, and whether more follow."""
        names = list(islice(self._changed, REPORTED_MAX))
        rows, gone = [], []
        for name in names:
            del self._changed[name]
            row = self._rows.get(name)
            if row is not None:
                rows.append(row)
            else:
                gone.append(shown(name))
        is_unfinished = bool(self._changed) or self._at < len(self._round)
        return rows, gone, is_unfinished


def shown(name: str) -> str:
    """Return the client id to show operators: never the name of a stand-in for a session that cannot be
    reached."""
    client = client_of(name)
    return client if len(client) <= CLIENT_BYTES_MAX else client[:CLIENT_BYTES_MAX]


def _position(session: Session | None) -> tuple[float | None, float | None]:
    place = session.places.get(LOCATION) if session is not None and session.places else None
    if place is None or not isinstance(place.value, str):
        return None, None
    found = position_of(place.value)
    return (None, None) if found is None else (found.latitude, found.longitude)


def detail_of(site: AnyMachine, client: str) -> dict[str, object] | None:
    """Details of a session held here; None if it is elsewhere."""
    sessions = site.endpoint.sessions
    name = client if client in sessions else PROVISIONAL + client
    mqtt = sessions.get(name)
    if mqtt is None:
        return None
    queued = [queue for owner, queue in site.queues() if owner == name]
    session = site.session_of(name)
    latitude, longitude = _position(session)
    return {
        "id": shown(name),
        "broker": site.id,
        "attached": bool(mqtt.connection),
        "queued": sum(map(len, queued)),
        "lat": latitude,
        "lon": longitude,
        "predicted": site.likely_next(session) if session is not None else [],
        "owner": mqtt.owner,
        "protocol": _protocol(site, mqtt),
        "subscriptions": list(_fitting(map(_subscription, mqtt.subscriptions.values()))),
        "subscription_count": len(mqtt.subscriptions),
        "queued_bytes": sum(burst.size for queue in queued for burst in queue.bursts()),
        "inflight": mqtt.in_flight.count,
        "expires_s": mqtt.expiry_s,
        "since": mqtt.since,
        "moves": [
            {
                "at": one.at,
                "from": one.came_from,
                "to": site.id,
                "duration_ms": round((one.seconds or 0.0) * 1000, 3),
            }
            for one in site.figures.finished
            if one.client == name
        ],
    }


def subscriptions_of(site: AnyMachine, wanted: Mapping[str, str]) -> dict[str, Any]:
    """List subscriptions of local sessions by client: clients after `after` whose id contains `search`, with
    subscriptions that match `topic`. `next` is the `after` of the next page; "" at the end."""
    search, topic = wanted.get("search", "").lower(), wanted.get("topic", "")
    sessions = site.endpoint.sessions
    first, _, after = wanted.get("after", "").partition(" ")
    skipped = int(first) if first.isascii() and first.isdigit() else 0
    found: list[dict[str, Any]] = []
    size = 0
    for name in sorted(name for name in sessions if name >= after and search in shown(name).lower()):
        for number, one in enumerate(list(sessions[name].subscriptions.values())):
            if (name == after and number < skipped) or not _gets(one, topic):
                continue
            row = {"client": shown(name), "broker": site.id, **_subscription(one)}
            size += _size(row)
            if found and size > SUBSCRIPTIONS_BYTES_MAX:
                return {"subscriptions": found, "next": f"{number} {name}"}
            found.append(row)
    return {"subscriptions": found, "next": ""}


def _gets(subscription: Subscription, topic: str) -> bool:
    if not topic:
        return True
    shared = split_shared(subscription.name)
    name = shared[1] if shared is not None else subscription.name
    return matches(topic_part(name) if "?" in name else name, topic)


def _subscription(one: Subscription) -> dict[str, Any]:
    return {"filter": one.name, "qos": one.qos, "selector": _selector(one), "group": one.group or None}


def _size(row: Mapping[str, Any]) -> int:
    return sum(len(value) for value in row.values() if isinstance(value, str)) + 64


def _fitting(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The subscriptions that fit into one answer."""
    size = 0
    for row in rows:
        size += _size(row)
        if size > SUBSCRIPTIONS_BYTES_MAX:
            return
        yield row


def _selector(subscription: Subscription) -> str | None:
    """Return the whole filter if it has conditions beyond the topic."""
    shared = split_shared(subscription.name)
    try:
        plain = subscription_filter(shared[1] if shared is not None else subscription.name).text
    except InputError:
        return subscription.filter
    return subscription.filter if subscription.filter != plain else None


def _protocol(site: AnyMachine, mqtt: MqttSession) -> str:
    connection = site.endpoint.connections.get(mqtt.connection)
    if connection is None:
        return ""
    return "MQTT 5" if connection.version == 5 else "MQTT 3.1.1"
