"""The clients that a broker knows of. An absent client is stored as bytes until it is needed.

Behaviour and snapshots do not depend on whether a client is awake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from roamcast.broker.session import Attachment, ClientHere, Departed, Event, Handoff, Holding, Presence
from roamcast.mqtt.server.asleep import Resting
from roamcast.protocol.session import Session
from roamcast.state import State

V = TypeVar("V")


class _SleepingClient(msgspec.Struct, frozen=True, array_like=True):
    """A session as bytes. New fields come last and have defaults: snapshots hold these bytes."""

    number: int
    moves: int
    served: list[tuple[str, int]]
    incarnation: int
    published: int
    accepted: int
    subscriptions: dict[str, float]
    begun: tuple[float, str]
    life: int
    last_broker: str
    places_number: int
    owner: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_SleepingClient).decode
_NAMES = _SleepingClient.__struct_fields__
_others = attrgetter(*[name for name in Session.__struct_fields__ if name not in ("client", *_NAMES)])
"""Fields that most sessions do not use; a client whose session uses one stays awake."""
_NO_OTHERS = _others(Session(""))


def _packed(here: ClientHere) -> bytes | None:
    """Pack the session of an absent client without work under way; None for other clients."""
    session = here.session
    if here.presence is not Presence.AWAY or session is None or not here.is_at_rest:
        return None
    if _others(session) != _NO_OTHERS or type(session.begun[0]) is not float:
        return None
    for issued_at in session.subscriptions.values():
        if type(issued_at) is not float:
            return None  # The number would change its type on the way through bytes.
    return _encode(_SleepingClient(*[getattr(session, name) for name in _NAMES]))


def _unpacked(client: str, data: bytes) -> ClientHere:
    told = _decode(data)
    session = Session(client, **{name: getattr(told, name) for name in _NAMES})
    return ClientHere(client, Holding.HELD, session=session)


_stored: Any = dict.__getitem__
_found: Any = dict.get


class Waking(dict[str, V], Generic[V]):
    """Clients, or their sessions. Sleeping ones (None, or bytes) wake on access."""

    __slots__ = ("_wake",)

    def __init__(self, wake: Callable[[str], None]) -> None:
        super().__init__()
        self._wake = wake

    def put(self, client: str, value: V | bytes | None) -> None:
        """Set an entry, awake or not."""
        super().__setitem__(client, value)  # type: ignore[assignment]

    def __getitem__(self, client: str) -> V:
        found: V = _stored(self, client)
        if found is None or type(found) is bytes:
            self._wake(client)
            found = _stored(self, client)
        return found

    def get(self, client: str, default: None = None) -> V | None:  # type: ignore[override]
        found: Any = _found(self, client)
        if found is not None and type(found) is not bytes:
            return found  # type: ignore[no-any-return]
        if client not in self:
            return None
        return self[client]

    def awake_one(self, client: str) -> V | None:
        """Return the entry of a client that is awake; None for others. All with work under way are awake."""
        found: Any = _found(self, client)
        return found if type(found) is not bytes else None

    def values(self) -> list[V]:  # type: ignore[override]
        return [self[client] for client in self]

    def items(self) -> list[tuple[str, V]]:  # type: ignore[override]
        return [(client, self[client]) for client in self]

    def rows(self) -> Iterator[tuple[str, V | bytes | None]]:
        """Return each client with its entry, awake or not."""
        return iter(super().items())

    def awake(self) -> list[V]:
        """Return the clients that are awake: all with work under way, and perhaps others."""
        return [one for one in super().values() if one is not None and type(one) is not bytes]


def _lift_1(fields: dict[str, Any]) -> None:
    fields["rows"], fields["held"] = fields.pop("here"), fields.pop("sessions")


class Clients:
    """Every client that this broker knows of; the one place where sessions and connections come and go."""

    __state__ = State(
        "clients",
        2,
        saved=("rows", "held", "attachments"),
        derived=("resting", "_told", "here", "may_rest", "sessions"),
        lifts={1: _lift_1},
    )

    _told: tuple[dict[str, Any], Any]
    """Content of a snapshot, until all of it has been read."""

    def __init__(self) -> None:
        self._told = ({}, [])
        self._restore()
        self.attachments: dict[str, Attachment] = {}
        """Reader of each session: the client's connection, or a stand-in that discards everything while the
        session ends."""

    def _restore(self) -> None:
        self.may_rest = False
        """True if no other part keeps references to idle clients and sessions, so that these may sleep."""
        self.here: Waking[ClientHere] = Waking(self._wake)
        self.sessions: Waking[Session] = Waking(self._wake)
        """Sessions held here, by client."""
        self.resting = Resting()
        rows, held = self._told
        for client, row in rows.items():
            self.here.put(client, None if isinstance(row, bytes) else row)
        for client in held:
            row = rows[client]
            self.sessions.put(client, row if isinstance(row, bytes) else row.session)
        self._told = ({}, [])

    @property
    def rows(self) -> dict[str, ClientHere | bytes]:
        """All clients, as stored in a snapshot."""
        asleep: dict[str, Any] = dict(self.sessions.rows())
        rows: dict[str, Any] = dict(self.here.rows())
        for client, here in rows.items():
            if here is None:
                rows[client] = asleep[client]
            elif self.may_rest:
                rows[client] = _packed(here) or here
        return rows

    @rows.setter
    def rows(self, rows: dict[str, ClientHere | bytes]) -> None:
        self._told = (rows, [])

    @property
    def held(self) -> list[str]:
        """Clients whose sessions are here, in order of arrival."""
        return list(self.sessions)

    @held.setter
    def held(self, held: Any) -> None:
        self._told = (self._told[0], held)

    # --- at rest ---

    def _wake(self, client: str) -> None:
        here = _unpacked(client, dict.__getitem__(self.sessions, client))  # type: ignore[arg-type]
        self.here.put(client, here)
        self.sessions.put(client, here.session)
        self.resting[client] = self.resting.now

    def glance(self, client: str) -> ClientHere:
        """Return a client for reading only, without waking it."""
        found = dict.__getitem__(self.here, client)
        return found or _unpacked(client, dict.__getitem__(self.sessions, client))  # type: ignore[arg-type]

    def rest(self, now: float) -> None:
        """Put some clients to sleep, except those awake most recently. No caller may hold a reference to one
        now."""
        if not self.may_rest:
            self.resting.clear()
        for client in self.resting.due(now):
            here = self.here.get(client)
            packed = _packed(here) if here is not None else None
            if packed is not None:
                self.here.put(client, None)
                self.sessions.put(client, packed)

    # --- coming and going ---

    def of(self, client: str) -> ClientHere:
        here = self.here.get(client)
        if here is None:
            here = self.here[client] = ClientHere(client)
        return here

    def forget_unused(self, here: ClientHere) -> None:
        """Remove a client without any state."""
        if here.session is not None or here.attachment is not None:
            return  # Nearly always; to compare all of it costs more.
        if here == ClientHere(here.client) and here.client in self.here:
            del self.here[here.client]

    def attach(self, here: ClientHere, attachment: Attachment) -> None:
        here.on(Event.ATTACHED)
        here.attachment = attachment
        if not here.is_ending:
            self.attachments[here.client] = attachment

    def detach(self, here: ClientHere) -> None:
        here.on(Event.DETACHED)
        here.attachment = None
        self.resting[here.client] = self.resting.now
        if not here.is_ending:
            del self.attachments[here.client]

    def arrive(self, here: ClientHere, session: Session, came_from: str) -> None:
        here.on(Event.ARRIVED if here.session is None else Event.MET)
        here.session = self.sessions[session.client] = session
        self.resting[session.client] = self.resting.now
        here.came_from = came_from
        here.request, here.asked, here.rival, here.departed = None, "", "", None

    def depart(self, here: ClientHere, departed: Departed) -> None:
        here.on(Event.DEPARTED)
        here.session, here.departed = None, departed
        del self.sessions[here.client]

    def end(self, here: ClientHere, came_from: str, stand_in: Attachment) -> None:
        if here.handoff is Handoff.FINISHED:
            here.came_from = came_from
        here.on(Event.ENDED)
        self.attachments.pop(here.client, None)
        self.attachments[here.client] = stand_in

    def over(self, here: ClientHere) -> None:
        here.on(Event.OVER)
        here.session = None
        del self.sessions[here.client], self.attachments[here.client]
        if here.attachment is not None:
            self.attachments[here.client] = here.attachment
