"""A client's session: the state that exists at exactly one broker, its holder, and moves in
handoffs."""

from __future__ import annotations

import msgspec

from roamcast.protocol.notification import Burst
from roamcast.protocol.whereabouts import InZone, Pace, Place

BEFORE_MAX = 2
"""Former brokers that a session remembers: with the current one, as many as third-order prediction needs."""
SERVED_KEPT_MAX = 16
"""Limit of remembered requests; more duplicates cannot be under way, since they arise only while a session
moves."""


class Session(msgspec.Struct):
    """The part of a client's state that every protocol needs and none may copy.

    Only its holder changes it; a handoff moves it whole. The protocol's own part travels as `luggage`, and
    that of the MQTT side as `capsule`: both are opaque here.
    """

    client: str
    number: int = 0
    """Attach number, one higher at each attach; the holder assigns it."""
    moves: int = -1
    """The client's own count of attaches, as far as the holder has seen it."""
    served: list[tuple[str, int]] = []
    """Last attach requests that were served: broker and connection."""
    incarnation: int = 0
    """Incarnation as publisher: higher than in every ended session of the client."""
    published: int = 0
    """Number of the client's last notification; the counter that makes its identity."""
    accepted: int = 0
    """Number of the client's last accepted request."""
    subscriptions: dict[str, float] = {}
    """Filter text to the time of issue."""
    advertisements: dict[str, float] = {}
    deferred: list[tuple[int, str, str]] = []
    """Requests accepted during a handoff, to be carried out after it: (request, kind, filter text); for a
    move, with the values as JSON."""
    begun: tuple[float, str] = (0.0, "")
    """Time and broker of the session's creation: distinguishes it from other sessions of the client."""
    life: int = 0
    """Number of the session among those made at that broker."""
    last_broker: str = ""
    """Where the session was before its last move; "" if it never moved."""
    places: dict[str, Place] = {}
    """The client's own state: its location (`location`), and other values that its filters depend on."""
    places_number: int = 0
    """Rises whenever brokers must be told of the state again, and never restarts with a new session; 0 if
    never told."""
    paces: dict[str, Pace] = {}
    owner: str = ""
    """Owner of the session; no other owner can get it by using the same client id."""
    luggage: bytes = b""
    capsule: bytes = b""
    owed: tuple[Burst, ...] = ()
    """During a handoff: stored notifications that travel with the session. The protocol takes them out on
    arrival."""
    zones: dict[str, InZone] = {}
    """Zones on the earth that contain the client."""
    is_copied: bool = False
    """True if copies elsewhere may serve the client ahead of its session."""
    copied: int = 0
    """Last sequence that a copy ever had: up to it, the client may have been sent everything."""
    is_lent: bool = False
    """True if the location is that of a broker, because the client never reported one."""
    earlier: tuple[str, ...] = ()
    """Brokers before `last_broker`, the last one last."""

    @property
    def before(self) -> tuple[str, ...]:
        """Brokers before the current one, the last one last; no more than predictions use."""
        return (*self.earlier, self.last_broker) if self.last_broker else ()

    def leave(self, broker: str) -> None:
        """Note that the session leaves this broker."""
        self.earlier, self.last_broker = self.before[1 - BEFORE_MAX :], broker

    def serve(self, broker: str, connection: int) -> None:
        """Note that this attach has been served."""
        self.served = [*self.served, (broker, connection)][-SERVED_KEPT_MAX:]

    def copy(self) -> Session:
        """Return an independent copy; the original may be part of a message."""
        return msgspec.structs.replace(
            self,
            served=list(self.served),
            subscriptions=dict(self.subscriptions),
            advertisements=dict(self.advertisements),
            deferred=list(self.deferred),
            places=dict(self.places),
            paces=dict(self.paces),
            zones=dict(self.zones),
        )
