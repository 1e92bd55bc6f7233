"""The MQTT sessions of a broker. The session of an absent client is stored as bytes until it is needed.

A session takes some 4 kB as objects and 0.6 kB as bytes, and most clients of a large broker are absent.
Behaviour and snapshots do not depend on whether a session is awake.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import islice

import msgspec
from msgspec.structs import replace

from roamcast.filters.expression import string_text
from roamcast.filters.selector import TOPIC
from roamcast.mqtt.server.sessions import MqttSession, NamedCapsule, Subscription
from roamcast.state import State

AWAKE_S = 5.0
"""How long absent clients stay awake: most clients that return, or appear elsewhere, do so soon."""

AWAKE_MAX = 256
"""Absent clients that stay awake for longer."""

REST_AT_ONCE = 64
"""Clients put to sleep per turn, at most."""


class Resting(dict[str, float]):
    """Absent clients that are awake, with the time since when; the one awake longest comes first."""

    now = 0.0
    """Time of the last turn."""

    def due(self, now: float) -> list[str]:
        """Remove and return those to put to sleep now."""
        self.now = now
        if len(self) <= AWAKE_MAX:
            return []
        first = islice(self.items(), min(len(self) - AWAKE_MAX, REST_AT_ONCE))
        found = [client for client, since in first if since <= now - AWAKE_S]
        for client in found:
            del self[client]
        return found


class _SleepingSession(msgspec.Struct, frozen=True, array_like=True):
    """A session as bytes. New fields come last and have defaults: snapshots hold these bytes."""

    owner: str
    subscriptions: int
    """Number of subscriptions."""
    subscription_bytes: int
    """Memory of the subscriptions when awake."""
    stream: str
    timer: int
    will_timer: int
    capsule: NamedCapsule
    """Session in the form in which it travels, without filters that follow from a subscription's topic
    filter."""
    again_to: int = 0


class _SleepingHead(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a session that is asleep."""

    owner: str
    subscriptions: int
    subscription_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_SleepingSession).decode
_decode_head = msgspec.msgpack.Decoder(_SleepingHead).decode


def _put_to_sleep(session: MqttSession) -> bytes | None:
    """Pack the session; None if it must stay awake because of work under way."""
    if session.connection or not session.expiry_s or session.will is not None or session.copied_from:
        return None
    subscriptions: list[Subscription] = []
    for one in session.subscriptions.values():
        if one.group:
            return None
        subscriptions.append(replace(one, filter="") if one.filter == _filter_of(one.name) else one)
    capsule = session.packed(subscriptions, will_at=session.will_at)
    return _encode(
        _SleepingSession(
            session.owner, len(session.subscriptions), session.subscriptions_bytes, session.stream,
            session.timer, session.will_timer, capsule, session.again_to,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def _filter_of(topic: str) -> str:
    """Return the core's filter for one topic."""
    return f"{TOPIC} = {string_text(topic)}"


def _wake(client: str, data: bytes) -> MqttSession:
    told = _decode(data)
    subscriptions = [
        one if one.filter else replace(one, filter=_filter_of(one.name)) for one in told.capsule.subscriptions
    ]
    session = MqttSession(client, replace(told.capsule, subscriptions=subscriptions), told.owner)
    session.stream, session.timer, session.will_timer = told.stream, told.timer, told.will_timer
    session.again_to = told.again_to
    return session


class Sessions(MutableMapping[str, MqttSession]):
    """Sessions by client. Access wakes a session; `rest` puts idle ones to sleep."""

    __slots__ = ("_all", "resting")
    __state__ = State("mqtt-sessions", saved=("rows",), derived=("_all", "resting"))

    def __init__(self, sessions: dict[str, MqttSession | bytes] | None = None) -> None:
        self._all: dict[str, MqttSession | bytes] = {} if sessions is None else sessions
        self.resting = Resting()

    @property
    def rows(self) -> dict[str, MqttSession | bytes]:
        """Content of a snapshot: sessions as bytes where possible."""
        return {
            client: one if isinstance(one, bytes) else (_put_to_sleep(one) or one)
            for client, one in self._all.items()
        }

    @rows.setter
    def rows(self, rows: dict[str, MqttSession | bytes]) -> None:
        self.__init__(rows)  # type: ignore[misc]

    def __getitem__(self, client: str) -> MqttSession:
        found = self._all[client]
        if isinstance(found, bytes):
            found = self._all[client] = _wake(client, found)
            self.resting[client] = self.resting.now
        return found

    def get(self, client: str, default: None = None) -> MqttSession | None:  # type: ignore[override]
        return self[client] if client in self._all else None

    def __contains__(self, client: object) -> bool:
        return client in self._all

    def __setitem__(self, client: str, session: MqttSession) -> None:
        self._all[client] = session
        self.resting[client] = self.resting.now

    def __delitem__(self, client: str) -> None:
        del self._all[client]
        self.resting.pop(client, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def is_asleep(self, client: str) -> bool:
        return isinstance(self._all.get(client), bytes)

    def awake_one(self, client: str) -> MqttSession | None:
        """Return the client's session if it is here and awake."""
        found = self._all.get(client)
        return None if isinstance(found, bytes) else found

    def awake(self) -> list[MqttSession]:
        """Return sessions with a connection or a shared subscription, and perhaps others."""
        return [one for one in self._all.values() if not isinstance(one, bytes)]

    def owners(self) -> Iterator[tuple[str, str]]:
        """Return each client with the owner of its session."""
        for client, one in self._all.items():
            yield client, one.owner if not isinstance(one, bytes) else _decode_head(one).owner

    def held(self) -> Iterator[tuple[str, int]]:
        """Return the owner of each session, with the memory of its subscriptions."""
        for one in self._all.values():
            if isinstance(one, bytes):
                head = _decode_head(one)
                yield head.owner, head.subscription_bytes
            else:
                yield one.owner, one.subscriptions_bytes

    @property
    def subscription_count(self) -> int:
        return sum(
            len(one.subscriptions) if not isinstance(one, bytes) else _decode_head(one).subscriptions
            for one in self._all.values()
        )

    def left(self, session: MqttSession) -> None:
        """Note that the client of this session has left."""
        self.resting[session.client] = self.resting.now

    def rest(self, now: float) -> None:
        """Put sessions to sleep, except those woken most recently. No caller may hold a reference to one
        now."""
        for client in self.resting.due(now):
            session = self._all[client]
            if not isinstance(session, bytes):
                self._all[client] = _put_to_sleep(session) or session
