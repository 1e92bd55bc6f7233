"""The life of a client's session at one broker: all states and transitions in one table.

A client attaches. If its session is not here, the broker asks for it: the client's last broker, or all
brokers. It then waits until the session arrives, or until the client turns out to be elsewhere. The session
arrives by a handoff; the client may read while the handoff is under way. From then on the session is held
here, whether its client is attached or away, until another broker asks for it. It then departs at once, or
waits until all its subscriptions have settled. Where it went is remembered until its arrival is confirmed. Or
the session ends: its remaining notifications are fetched and discarded, and when the handoff is finished and
all has settled, it is over. Its client, if attached, then gets a new session, or looks for the one that has
replaced it.

A copy of a session may serve its client before the session is there. The client then reads ahead, from when
it attaches until the session arrives or the client leaves.

Six small machines share the events: where the session is, the search for it, the client's connection, what
the client reads, the handoff, and the settling of changes. An event moves every machine that lists it, and
it must be legal in all of them: a session cannot depart while a change settles, and nobody searches for a
session that is here. A transition that the table does not list is a bug of ours and stops the process.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from roamcast.protocol.messages import AttachRequest, Hello, Request
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.state import State


class _Named(Enum):
    """Members are compared by identity; the hash of Enum would be computed anew at every table lookup."""

    __hash__ = object.__hash__


class Holding(_Named):
    """Where the session is, seen from this broker."""

    ABSENT = "absent"
    HELD = "held"
    DEPARTING = "departing"
    """Another broker asked for the session; it leaves when its changes have settled."""
    DEPARTED = "departed"
    """The session is on its way to another broker; questions are sent after it."""
    ENDING = "ending"
    """The rest of the session is discarded; an attached client gets a new session then."""
    REPLACED = "replaced"
    """The session is ending, and its client has another session elsewhere."""


class Search(_Named):
    """What this broker does to get the session."""

    IDLE = "idle"
    ASKS_ONE = "asks one"
    """The broker named by the client is asked."""
    ASKS_EVERYONE = "asks everyone"
    AWAITS = "awaits"
    """Some broker has the request and will grant or refuse it."""


class Presence(_Named):
    """The client's connection to this broker."""

    AWAY = "away"
    ATTACHED = "attached"


class Reading(_Named):
    """Where the attached client's notifications come from."""

    SESSION = "session"
    """Serve the client from its session, once that has arrived."""
    COPY = "copy"
    """Serve the client from a copy, ahead of its session."""


class Handoff(_Named):
    FINISHED = "finished"
    UNDER_WAY = "under way"


class Settling(_Named):
    """Settling of the client's subscriptions and advertisements."""

    SETTLED = "settled"
    SETTLING = "settling"


class Event(_Named):
    ATTACHED = "attached"
    DETACHED = "detached"
    SERVED_AHEAD = "served ahead"
    """A copy serves the client until its session is here."""
    ASKED_ONE = "asked one"
    ASKED_EVERYONE = "asked everyone"
    FOLLOWED = "followed"
    """The request was sent after the session, to where it went from here."""
    FOUND = "found"
    """Everyone was asked, and some broker has the request now."""
    REFUSED = "refused"
    ARRIVED = "arrived"
    """The session came from another broker, or was newly made."""
    MET = "met"
    """A second session of the client has arrived: two trees joined, and neither session ended in time. The
    one that was here is given up."""
    WELCOMED = "welcomed"
    """The client attached at the broker of its session."""
    CLAIMED = "claimed"
    """Another broker asked for the session, which has to settle first."""
    UNCLAIMED = "unclaimed"
    """The request that waited is served now, or obsolete."""
    DEPARTED = "departed"
    CONFIRMED = "confirmed"
    """The session has arrived at its destination, or is known never to."""
    ENDED = "ended"
    REPLACED = "replaced"
    OVER = "over"
    HANDED_OFF = "handed off"
    """The handoff is finished, or cut short by the next one."""
    CHANGED = "changed"
    """A subscription or advertisement has begun to change."""
    SETTLED = "settled"
    """The last change in progress is known to every broker that must know it."""


class IllegalTransition(RuntimeError):
    """An event that is illegal in the client's present state: a bug."""


def _stays(state: Enum, *events: Event) -> dict[Event, Any]:
    """Return events that are legal in a state and do not change it."""
    return dict.fromkeys(events, state)


TABLE: dict[str, dict[Any, dict[Event, Any]]] = {
    "holding": {
        Holding.ABSENT: {
            Event.ARRIVED: Holding.HELD,
            **_stays(Holding.ABSENT, Event.ASKED_ONE, Event.ASKED_EVERYONE, Event.SERVED_AHEAD),
        },
        Holding.HELD: {
            Event.CLAIMED: Holding.DEPARTING,
            Event.DEPARTED: Holding.DEPARTED,
            Event.ENDED: Holding.ENDING,
            **_stays(Holding.HELD, Event.WELCOMED, Event.CHANGED, Event.MET),
        },
        Holding.DEPARTING: {
            Event.UNCLAIMED: Holding.HELD,
            **_stays(Holding.DEPARTING, Event.CLAIMED, Event.CHANGED, Event.MET),
        },
        Holding.DEPARTED: {
            Event.CONFIRMED: Holding.ABSENT,
            Event.ARRIVED: Holding.HELD,
            **_stays(Holding.DEPARTED, Event.FOLLOWED, Event.ASKED_EVERYONE),
        },
        Holding.ENDING: {
            Event.OVER: Holding.ABSENT,
            Event.REPLACED: Holding.REPLACED,
            **_stays(Holding.ENDING, Event.CHANGED, Event.MET),
        },
        Holding.REPLACED: {
            Event.OVER: Holding.ABSENT,
            **_stays(Holding.REPLACED, Event.CHANGED, Event.MET),
        },
    },
    "search": {
        Search.IDLE: {
            Event.ASKED_ONE: Search.ASKS_ONE,
            Event.ASKED_EVERYONE: Search.ASKS_EVERYONE,
            Event.FOLLOWED: Search.AWAITS,
            **_stays(Search.IDLE, Event.ARRIVED),
        },
        Search.ASKS_ONE: {
            Event.ASKED_EVERYONE: Search.ASKS_EVERYONE,
            Event.ARRIVED: Search.IDLE,
            Event.REFUSED: Search.IDLE,
        },
        Search.ASKS_EVERYONE: {
            Event.FOUND: Search.AWAITS,
            Event.ARRIVED: Search.IDLE,
            Event.REFUSED: Search.IDLE,
            **_stays(Search.ASKS_EVERYONE, Event.ASKED_EVERYONE),
        },
        Search.AWAITS: {
            Event.ASKED_EVERYONE: Search.ASKS_EVERYONE,
            Event.ARRIVED: Search.IDLE,
            Event.REFUSED: Search.IDLE,
        },
    },
    "presence": {
        Presence.AWAY: {Event.ATTACHED: Presence.ATTACHED},
        Presence.ATTACHED: {
            Event.DETACHED: Presence.AWAY,
            **_stays(Presence.ATTACHED, Event.SERVED_AHEAD),
        },
    },
    "reading": {
        Reading.SESSION: {
            Event.SERVED_AHEAD: Reading.COPY,
            **_stays(Reading.SESSION, Event.ARRIVED, Event.DETACHED),
        },
        Reading.COPY: {Event.ARRIVED: Reading.SESSION, Event.DETACHED: Reading.SESSION},
    },
    "handoff": {
        Handoff.FINISHED: {
            Event.ARRIVED: Handoff.UNDER_WAY,
            Event.WELCOMED: Handoff.UNDER_WAY,
            Event.ENDED: Handoff.UNDER_WAY,
            Event.MET: Handoff.UNDER_WAY,
            **_stays(Handoff.FINISHED, Event.DEPARTED, Event.OVER),
        },
        Handoff.UNDER_WAY: {
            Event.HANDED_OFF: Handoff.FINISHED,
            **_stays(Handoff.UNDER_WAY, Event.WELCOMED, Event.ENDED, Event.MET),
        },
    },
    "settling": {
        Settling.SETTLED: {
            Event.CHANGED: Settling.SETTLING,
            **_stays(Settling.SETTLED, Event.ARRIVED, Event.DEPARTED, Event.OVER),
        },
        Settling.SETTLING: {
            Event.SETTLED: Settling.SETTLED,
            **_stays(Settling.SETTLING, Event.CHANGED, Event.CLAIMED),
        },
    },
}
"""Machine, state and event to the next state."""

MOVES: dict[Event, list[tuple[str, dict[Any, Any]]]] = {
    event: [
        (machine, {state: events[event] for state, events in states.items() if event in events})
        for machine, states in TABLE.items()
        if any(event in events for events in states.values())
    ]
    for event in Event
}
"""Event to the machines it moves, with the transitions of each."""


_known: dict[tuple[Any, ...], tuple[Any, ...]] = {}
"""Event and states of all machines to their next states, as far as they have occurred."""


class Attachment:
    """A client's connection to this broker."""

    __slots__ = ("at", "connection", "hello", "queue", "window")

    __state__ = State("attachment")

    def __init__(self, connection: int, hello: Hello, window: int, at: float) -> None:
        self.connection = connection
        """Number of the connection; 0 while a session ends: everything is read and discarded."""
        self.hello = hello
        self.at = at
        self.window = window
        """Maximum of notifications sent and not yet acknowledged."""
        self.queue: DeliveryQueue | None = None


class Departed(msgspec.Struct, frozen=True):
    """A former holder's record of a session on its way."""

    destination: str
    number: int
    """Attach number under which the session left."""
    begun: tuple[float, str]
    incarnation: int


class Waiting(NamedTuple):
    """The client's next move waits until every broker knows this announcement of its location."""

    number: int
    request: int = 0
    values: str = ""
    """The jump that takes effect then, as JSON; "" if none."""


def _lift_client_1(fields: dict[str, Any]) -> None:
    fields["reading"] = Reading.SESSION


class ClientHere(msgspec.Struct):
    """One client at this broker: the states of its machines, and what belongs to each state."""

    __state__ = State("client-here", 2, lifts={1: _lift_client_1})

    client: str
    holding: Holding = Holding.ABSENT
    search: Search = Search.IDLE
    presence: Presence = Presence.AWAY
    reading: Reading = Reading.SESSION
    handoff: Handoff = Handoff.FINISHED
    settling: Settling = Settling.SETTLED
    session: Session | None = None
    attachment: Attachment | None = None
    """The client's connection; while a session ends it waits for another one."""
    request: AttachRequest | None = None
    """During a search: the request of this broker."""
    asked: str = ""
    """While one broker is asked: its id."""
    rival: str = ""
    """While everyone is asked: the lowest other broker that asks everyone too."""
    claim: AttachRequest | None = None
    """While the session is departing: the request that gets it."""
    departed: Departed | None = None
    """While the session is on its way: its destination."""
    came_from: str = ""
    """During a handoff: the former broker; "" if the session was made here."""
    waiting: list[AttachRequest] | None = None
    """Requests of other brokers, to be answered when the session has arrived or is over."""
    held: list[Request] | None = None
    """Requests of the client, to be handled when its session is here."""
    unsettled: dict[str, int] | None = None
    """While changes settle: filters as text, and the number of changes of each."""
    gated: list[tuple[bytes, tuple[bytes, ...], bytes]] | None = None
    """Publishes that wait until the client's advertisements have settled."""
    is_carrying_on: bool = False
    """True while deferred work is being carried out."""
    announced: Waiting | None = None
    older: str = ""
    """Broker where an older session of the client has not ended yet; the session here stays."""
    newer: dict[str, None] | None = None
    """Brokers with a newer session of the client, which stays; the session here ends."""

    def on(self, event: Event) -> None:
        now = (
            event, self.holding, self.search, self.presence, self.reading, self.handoff, self.settling,
        )  # fmt: skip
        after = _known.get(now)
        if after is None:
            after = _known[now] = self._after(event)
        self.holding, self.search, self.presence, self.reading, self.handoff, self.settling = after

    def _after(self, event: Event) -> tuple[Any, ...]:
        """Return the next state of each machine."""
        states = {machine: getattr(self, machine) for machine in TABLE}
        for machine, moves in MOVES[event]:
            after = moves.get(states[machine])
            if after is None:
                now = f"{machine} is {states[machine].value!r}"
                raise IllegalTransition(f"client {self.client!r}: {event.value!r} cannot happen while {now}")
            states[machine] = after
        return tuple(states.values())

    @property
    def is_ending(self) -> bool:
        return self.holding is Holding.ENDING or self.holding is Holding.REPLACED

    @property
    def is_at_rest(self) -> bool:
        """True if the session is here and nothing is under way."""
        held = ClientHere(self.client, Holding.HELD, presence=self.presence)
        held.session, held.attachment = self.session, self.attachment
        return self == held

    def told(self) -> str:
        """Return the states and the other non-empty fields, for a message."""
        states = [f"{machine} {getattr(self, machine).value}" for machine in TABLE]
        kept = ("waiting", "held", "gated", "announced", "older", "newer")
        return f"{self.client}: {', '.join((*states, *(one for one in kept if getattr(self, one))))}"

    def finish_handoff(self) -> str:
        """Return the broker that the session came from, and end the handoff."""
        self.on(Event.HANDED_OFF)
        came_from, self.came_from = self.came_from, ""
        return came_from

    def wait(self, request: AttachRequest) -> None:
        """Keep another broker's request until the session has arrived or is over."""
        self.waiting = [*(self.waiting or ()), request]

    def take_waiting(self) -> list[AttachRequest]:
        waiting, self.waiting = self.waiting or [], None
        return waiting
