"""Relocation as section 4 and A.2 of Fiege et al. tell it: a cache and a fetch for each subscription.

What `relocation.py` has completed is left out here:

| Fiege et al., section 4 | here |
| --- | --- |
| A.2: a cache for each client and subscription, a ring | `on_notification`, `cached` |
| A.1, 2: a client that resumes gets what its caches hold | `on_attach`, `empty` |
| 4.1: (C, F, num) for each subscription | `relocate_each` |
| 4.1: a junction and a fetch for each | `on_resubscribe`, `turn`, `fetch_from` |
| 4.1: a replay for each, and the old broker forgets | `try_replay` |
| 4.1: the replay is delivered first, then what was buffered | `on_replay` |

The consequences: a busy subscription does not evict notifications cached for another one. But a notification
that two filters match is delivered twice after a move or a pause, publishers are reordered between
subscriptions (`relocation_published_two_filters.txt`), and notifications that reached the new broker for
other clients there are in the replay again (`relocation_published_repeats.txt`).

The text is followed where figs. 10 and 11 contradict it: a replay with nil is never forwarded there,
"#Advertisements > 1" counts the link to the client, a border broker on the old path takes a roaming client
for one that resumes, and one with num = 0 is not blocked. Messages are numbered by attaches, and the session
comes first, as in `relocation.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from roamcast.filters.filter import Filter
from roamcast.mobility.base import STREAM, Host, Settings, register
from roamcast.mobility.relocation import (
    Cache,
    Relocation,
    Replay,
    Resubscribe,
    client_named,
    subscriber_name,
)
from roamcast.protocol.messages import Update
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State


class RelocationPublished(Relocation):
    name = "relocation:published"
    is_as_published = True
    summary = "as section 4 tells it: a cache and a fetch for each subscription, and what they repeat"

    __state__ = State(
        "relocation-per-filter", saved=("streams", "fetched", "out", "stays"), derived=("latest",)
    )

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.streams: dict[Owner, Cache] = {}
        """cache(X, F): by client, the attach number of the stay, and filter."""
        self.fetched: dict[tuple[str, int], Cache] = {}
        """Caches that wait for a fetch, by subscription name and the number of the next stay."""
        self.out: dict[str, DeliveryQueue] = {}
        """Unacknowledged notifications of clients whose session is here."""
        self.stays: dict[str, int] = {}
        self._restore()

    def _restore(self) -> None:
        self.latest: dict[str, Burst] = {}
        """Last burst sent to each client: several of its subscriptions may match the same burst."""

    # --- A.1: the four situations ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        if came_from != self.host.id:
            base = 0 if came_from == "" else msgspec.msgpack.decode(session.luggage, type=int)
            self.stays[client] = session.number
            self.out[client] = DeliveryQueue(STREAM, base, self.host.buffer)
            owed, session.owed = session.owed, ()
            for burst in owed:
                self.keep(self.out[client], client, burst)
            for text in session.subscriptions:
                self.begin_stream(session, text, blocked=came_from != "")
            if came_from != "":
                self.relocate_each(session)
        self.out[client].rewind(received.get(STREAM, 0))
        self.host.deliver_from(client, self.out[client])
        for cache in self.streams_of(client):
            self.empty(client, cache)
        self.finish(client)

    def begin_stream(self, session: Session, text: str, blocked: bool) -> Owner:
        owner: Owner = (session.client, self.stays[session.client], text)
        queue, held_back = (DeliveryQueue(STREAM, 0, self.host.buffer) for _ in range(2))
        self.streams[owner] = Cache(stream_name(session, text), owner[1], queue, held_back, blocked)
        return owner

    def relocate_each(self, session: Session) -> None:
        for text, issued_at in session.subscriptions.items():
            owner: Owner = (session.client, session.number, text)
            name = stream_name(session, text)
            filters = {text: issued_at}
            message = Resubscribe(
                session.client, name, session.number, filters, session.last_broker, Update()
            )
            self.turn(message, owner, self.host.id)

    def empty(self, client: str, cache: Cache) -> None:
        """Send cache(X, F) to X."""
        if cache.blocked or not self.host.is_attached(client):
            return
        self.expire(client, cache.queue)
        for burst in cache.queue.drain():
            self.host.pass_to(client, self.out[client], burst)

    def finish(self, client: str) -> None:
        if not any(cache.blocked for cache in self.streams_of(client)):
            self.host.handoff_finished(client)

    def on_detach(self, session: Session) -> None:
        """Start caching for the client."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        client = session.client
        out = self.out.pop(client)
        out.rewind(received.get(STREAM, 0))
        session.luggage = msgspec.msgpack.encode(out.base)
        session.owed = tuple(out.drain())
        for owner in [one for one in self.streams if one[:2] == (client, self.stays[client])]:
            if owner[2] in session.subscriptions:
                self.fetched[stream_name(session, owner[2]), session.number] = self.streams[owner]
            else:
                del self.streams[owner]
        del self.stays[client]
        self.host.hand_over(session, destination)

    def on_end(self, session: Session) -> None:
        client = session.client
        for text in session.subscriptions:
            self.unsubscribe_all((client, self.stays[client], text), [text], "subscribe")
        for owner in [one for one in self.streams if one[:2] == (client, self.stays[client])]:
            del self.streams[owner]
        del self.stays[client], self.out[client]

    # --- A.2: fetch and replay ---

    def on_resubscribe(self, sender: str, message: Resubscribe) -> None:
        cache = self.fetched.pop((message.known_as, message.number), None)
        if cache is None:
            self.turn(message, sender, sender)
        else:
            self.fetch_from(cache, sender, message)

    def try_replay(self, cache: Cache) -> None:
        fetch = cache.fetch
        if fetch is None or cache.blocked:
            return
        owner: Owner = (fetch.client, cache.number, next(iter(fetch.subscriptions)))
        self.expire(fetch.client, cache.queue)
        replay = Replay(fetch.client, fetch.known_as, fetch.number, tuple(cache.queue.drain()), Update())
        del self.streams[owner]
        self.pass_replay(owner, replay, fetch.subscriptions)

    def on_replay(self, sender: str, message: Replay) -> None:
        if self.pass_replay(sender, message, {}) != self.host.id:
            return
        client = message.client
        cache = self.streams[client, message.number, text_in(message.known_as)]
        cache.blocked = False
        for burst in (*message.bursts, *cache.held_back.drain()):
            self.cached(client, cache.queue, burst)
        if self.stays.get(client) == cache.number and client in self.out:
            self.empty(client, cache)
            self.finish(client)
        else:
            self.try_replay(cache)

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client, cache = owner[0], self.streams.get(owner)
        if cache is None:
            # The burst was picked for the client regardless of subscriptions, or its session was lost with a
            # broker.
            if client in self.out and owner == (client, self.stays[client], ""):
                self.host.pass_to(client, self.out[client], burst)
        elif cache.blocked:
            self.cached(client, cache.held_back, burst)
        elif self.stays.get(client) != cache.number or not self.host.is_attached(client):
            self.cached(client, cache.queue, burst)
        elif self.latest.get(client) is not burst:
            self.latest[client] = burst
            self.host.pass_to(client, self.out[client], burst)

    def cached(self, client: str, queue: DeliveryQueue, burst: Burst) -> None:
        self.keep(queue, client, burst)
        self.trim(client, queue)

    # --- the client's own requests ---

    def on_subscribe(self, session: Session, filter: Filter, token: Token) -> None:
        if session.client not in self.stays:
            self.host.settled(token)
            return
        owner = self.begin_stream(session, filter.text, blocked=False)
        self.host.subscribe(owner, filter, self.host.now, "subscribe", token)

    def on_unsubscribe(self, session: Session, filter: Filter, token: Token) -> None:
        if session.client not in self.stays:
            self.host.settled(token)
            return
        owner: Owner = (session.client, self.stays[session.client], filter.text)
        self.host.unsubscribe(owner, filter, "subscribe", token)

    def owner_of(self, session: Session) -> Owner:
        return (session.client, self.stays[session.client], "")

    def subscriber_of(self, owner: Owner) -> str:
        return self.streams[owner].subscriber

    def streams_of(self, client: str) -> list[Cache]:
        return [one for owner, one in self.streams.items() if owner[:2] == (client, self.stays.get(client))]

    def trail_of(self, client: str) -> str:
        way = self.host.way_to(client, client_in)
        return way if isinstance(way, str) else ""

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        yield from self.out.items()
        for owner, cache in self.streams.items():
            yield owner[0], cache.queue
            yield owner[0], cache.held_back


def stream_name(session: Session, text: str) -> str:
    """Return the name of a routing entry: one subscription of one client."""
    return f"{len(text)} {text} {subscriber_name(session)}"


def text_in(name: str) -> str:
    length, _, rest = name.partition(" ")
    return rest[: int(length)]


def client_in(name: str) -> str:
    length, _, rest = name.partition(" ")
    return client_named(rest[int(length) + 1 :])


register(RelocationPublished)
