"""Geofences: `$roamcast/zones/NAME/enter` and `…/leave` tell subscribers of clients that cross a border.

A client is in a zone from the position that it reports first inside, for at least the dwell time. It has
left when its distance from the zone exceeds the hysteresis. The state of its zones travels with its
session, which is at one broker at any time, and moves take effect only there: so each crossing is published
once, also across handoffs and restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from roamcast.filters.filter import Value
from roamcast.filters.geography import Polygon, Position, position_of
from roamcast.filters.region_index import RegionIndex
from roamcast.mqtt.codec.packets import PublishProperties
from roamcast.mqtt.server.marks import TOPIC
from roamcast.mqtt.server.publishing import described
from roamcast.protocol.notification import encode_attributes
from roamcast.protocol.session import Session
from roamcast.protocol.whereabouts import InZone
from roamcast.routing.router import Token

ZONES_TOPIC = "$roamcast/zones"
MARKS = b"\x01" + described(PublishProperties(content_type="application/json")).block
"""QoS 1 and JSON, so that filters can compare its fields."""


class Dwelling(NamedTuple):
    """Token of a timer: the client may have been in a zone for the dwell time."""

    client: str
    zone: str
    since: float


class FencingHost(Protocol):
    """What the fences need of their broker."""

    @property
    def now(self) -> float: ...
    def set_timer(self, at: float, token: Token) -> None: ...
    def publish_here(self, attributes: bytes, body: bytes, marks: bytes) -> None: ...


class Crossing(msgspec.Struct):
    """Content of a crossing message, as JSON."""

    client: str
    zone: str
    event: str
    lat: float
    lon: float
    at: float
    """Time when the broker received the position, in seconds of its clock."""


class Fences:
    def __init__(
        self, host: FencingHost, zones: Mapping[str, Polygon], dwell_s: float, hysteresis_m: float
    ) -> None:
        self._host = host
        self._zones = zones
        self._dwell_s = dwell_s
        self._hysteresis_m = hysteresis_m
        self._names = list(zones)
        self._index = RegionIndex()
        for number, zone in enumerate(zones.values()):
            self._index.add(number, zone, None)

    def moved(self, session: Session, location: Value | None) -> None:
        """Handle a new position of the client."""
        place = position_of(location) if isinstance(location, str) else None
        if place is None or not (self._zones or session.zones):
            return
        found: list[int] = []
        self._index.collect(str(location), {}, found)
        inside = dict.fromkeys(self._names[number] for number in found)
        for name in [name for name in session.zones if name not in inside]:
            self._outside(session, name, place)
        for name in inside:
            if name not in session.zones:
                self._enter(session, name, place)

    def _enter(self, session: Session, name: str, place: Position) -> None:
        presence = InZone(self._host.now, not self._dwell_s)
        session.zones[name] = presence
        if presence.is_told:
            self._tell(session.client, name, "enter", place)
        else:
            token = Dwelling(session.client, name, presence.since)
            self._host.set_timer(presence.since + self._dwell_s, token)

    def _outside(self, session: Session, name: str, place: Position) -> None:
        zone, presence = self._zones.get(name), session.zones[name]
        if zone is not None and zone.distance_m(place) <= self._hysteresis_m:
            return
        del session.zones[name]
        if presence.is_told:
            self._tell(session.client, name, "leave", place)

    def arrived(self, session: Session) -> None:
        """Resume the timers of a session that arrived here."""
        for name, presence in session.zones.items():
            if not presence.is_told:
                at = max(presence.since + self._dwell_s, self._host.now)
                self._host.set_timer(at, Dwelling(session.client, name, presence.since))

    def dwelt(self, session: Session, token: Dwelling, location: Value | None) -> None:
        presence = session.zones.get(token.zone)
        place = position_of(location) if isinstance(location, str) else None
        if presence is None or presence.is_told or presence.since != token.since or place is None:
            return
        session.zones[token.zone] = InZone(presence.since, True)
        self._tell(session.client, token.zone, "enter", place)

    def _tell(self, client: str, zone: str, event: str, place: Position) -> None:
        topic = f"{ZONES_TOPIC}/{zone}/{event}"
        crossing = Crossing(client, zone, event, place.latitude, place.longitude, self._host.now)
        attributes: dict[str, Value] = {TOPIC: topic}
        self._host.publish_here(encode_attributes(attributes), msgspec.json.encode(crossing), MARKS)
