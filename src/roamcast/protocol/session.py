"""A client's session: what of it lives at exactly one broker, its holder, and moves with it."""

from __future__ import annotations

import msgspec

from roamcast.protocol.notification import Burst
from roamcast.protocol.whereabouts import InZone, Pace, Place

BEFORE_MAX = 2
"""Brokers that a session remembers having been at: with the one where it is, what third order asks for."""
SERVED_KEPT_MAX = 16
"""More copies of a request cannot be under way, since copies arise only where a session is moving."""


class Session(msgspec.Struct):
    """The part of a client's state that every protocol needs and none may copy.

    Only its holder changes it; a handoff moves it whole. What a protocol adds of
    its own goes along as `luggage`, and what the MQTT side adds as `capsule`:
    both are opaque here.
    """

    client: str
    number: int = 0
    """Attach number, one higher at each attach; the holder assigns it."""
    moves: int = -1
    """The client's own count of attaches, as far as the holder has seen it."""
    served: list[tuple[str, int]] = []
    """The last attach requests that were served: broker and connection."""
    incarnation: int = 0
    """Incarnation as publisher: higher than in every ended session of the client."""
    published: int = 0
    """Number of the client's last notification; the counter that makes its identity."""
    accepted: int = 0
    """The last request of the client that was taken."""
    subscriptions: dict[str, float] = {}
    """Filter text to the time at which the subscription was issued."""
    advertisements: dict[str, float] = {}
    deferred: list[tuple[int, str, str]] = []
    """Requests taken during a handoff, to be carried out after it: (request, kind, filter text),
    or, of a move, the values as JSON."""
    begun: tuple[float, str] = (0.0, "")
    """When and at which broker it was made: what tells it from any other session of the client."""
    life: int = 0
    """Which of the sessions that were made at that broker it is."""
    last_broker: str = ""
    """Where the session was before its last move; "" if it never moved."""
    places: dict[str, Place] = {}
    """The client's own state: where it is (`location`), and whatever else its filters depend on."""
    places_number: int = 0
    """One higher whenever brokers are to be told anew."""
    paces: dict[str, Pace] = {}
    owner: str = ""
    """Who may have it; nobody else gets it by giving the same name."""
    luggage: bytes = b""
    capsule: bytes = b""
    owed: tuple[Burst, ...] = ()
    """During a handoff: what is stored for the client and travels with its session. The protocol takes it
    out where the session arrives."""
    zones: dict[str, InZone] = {}
    """The zones on the earth in which the client is."""
    is_copied: bool = False
    """Whether there may be copies elsewhere that serve the client before its session is there."""
    copied: int = 0
    """The last sequence that such a copy has ever had: up to it, the client may have been sent everything."""
    is_lent: bool = False
    """Whether its location is that of a broker, because its client has never said where it is."""
    earlier: tuple[str, ...] = ()
    """Where it was before `last_broker`, the last one last."""

    @property
    def before(self) -> tuple[str, ...]:
        """Where it was before it came here, the last one last; no more than predictions look at."""
        return (*self.earlier, self.last_broker) if self.last_broker else ()

    def leave(self, broker: str) -> None:
        """Remember that it leaves this broker for another one."""
        self.earlier, self.last_broker = self.before[1 - BEFORE_MAX :], broker

    def serve(self, broker: str, connection: int) -> None:
        """Remember that this attach has been served."""
        self.served = [*self.served, (broker, connection)][-SERVED_KEPT_MAX:]

    def copy(self) -> Session:
        """One that can be changed without changing this one, which may be part of a message."""
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
