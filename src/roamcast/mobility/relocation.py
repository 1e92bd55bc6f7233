"""Relocation with junctions, fetch and replay (Fiege et al., section 4 and appendix A: REBECA).

A client that reattaches subscribes again, and the new border broker looks for the old one along
the routing entries (C, F) that lead there: neither the new broker nor the client needs to know
where the old one is. Where the message first meets an entry is the junction: the entry is
pointed to the new place at once, and `Fetch` goes along the old path, turning each entry on it
round. It travels behind everything that was sent towards the old border broker, which then
answers with `Replay`: what its cache holds. The new border broker holds back what arrives
meanwhile and delivers the replay first.

| Fiege et al., section 4.1, A.2, figs. 10 and 11 | here |
| --- | --- |
| A.1, 1: a new client; fig. 10, lines 1 to 10 with num = 0 | `on_attach`, `begin_cache` |
| A.1, 2: resumed at the same broker; fig. 10, lines 11 to 13 | `on_attach`, `deliver` |
| A.1, 3 and 4: a roaming client; fig. 10, lines 1 to 10 with num > 0 | `on_attach`, `relocate` |
| ordinary broker on the new path; fig. 11, lines 1 to 6 | `on_resubscribe`, `turn` (no entry) |
| the junction; fig. 11, lines 7 to 11 | `on_resubscribe`, `turn` (an entry) |
| on the old path, a fetch; fig. 11, lines 13 to 20 | `on_fetch`, `turn` |
| the old border broker, a fetch; fig. 10, lines 15 to 21 | `fetch_from`, `try_replay` |
| on the old path, a replay; fig. 11, lines 22 to 32 | `on_replay`, `pass_replay` |
| the new border broker, a replay; fig. 10, lines 23 to 27 | `on_replay`, `unblock` |
| the cache, a ring buffer with a time to live | `store`, `trim`, `expire` |
| the old broker is found without being known | `trail_of` |
| not in the paper: brokers that are gone for good | `on_lost`, `do_without` |

Only the old broker decides who gets the session. So the paper's message is split in two here.
The attach request takes the way described above, without turning entries, and the session comes
back with what the cache holds: one round trip until the client reads. `Resubscribe` and `Fetch`
follow on the same way, and `Replay` brings the rest.

Which part of the old path can be freed (sections 4.1 and A.2)? Each hop of the fetch says whether its sender
wants notifications from the receiver, which is so if overlapping advertisements came from there. The receiver
keeps an entry, which then points back, if there is another producer at it or behind it; otherwise it keeps
none. The replay takes away the entries that pointed to the old place. So the identifier of the last junction,
which the paper passes along for that, is not needed.

Taken literally, figs. 10 and 11 do not work. What was completed here:

- One fetch for all subscriptions of a client, which have one cache: otherwise a notification
  that two filters match would arrive on two ways.
- Notifications published beyond the point that the fetch has reached are stored for the client
  at the old broker, but may also reach the new one for other clients. The new broker drops these
  duplicates of the replay (`relocation:repeating` delivers both). All such duplicates arrive
  before the replay, since links do not overtake.
- Every message has the attach number. A client that moves on before the replay has
  come leaves a blocked cache behind: the fetch of its next relocation ends there, and
  is answered when that replay has come. The session moves along the tree behind each
  fetch, so the next fetch finds all entries turned that it needs.
- Before the junction the paper's message follows the advertisements. If the client has no subscription, no
  advertisement overlaps, or producers have just moved, these do not lead to the old broker. Here, a broker
  without an entry sends the message back along the path on which the session came; while producers stand
  still this is the same path.
- Because producers may move, an entry for the old place may be made at a broker that the fetch
  has passed already. The entry is kept until its maker withdraws it, like any other, but nothing
  is sent there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from roamcast.errors import InputError
from roamcast.mobility.base import (
    STREAM,
    Host,
    MobilityProtocol,
    Promise,
    Settings,
    last_numbers,
    newer_part,
    register,
)
from roamcast.protocol.messages import Cause, Message, Update
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.state import State


class Resubscribe(Message, frozen=True):
    """The subscription (X, F, num) of a client that roams, on its way to the junction.

    `number` is the attach number, `last_broker` where the session came from, and `update` the subscriptions
    that the sender issues at the receiver. Other brokers know the client's entries by `known_as`.
    """

    client: str
    known_as: str
    number: int
    subscriptions: dict[str, float]
    last_broker: str
    update: Update
    cause: ClassVar[Cause] = "handoff"


class Fetch(Resubscribe, frozen=True):
    """The `Resubscribe` message from the junction on, along the old path."""


class Replay(Message, frozen=True):
    """Notifications cached at the old broker since the session left, on their way to the new one.

    `update` holds the subscriptions that the sender withdraws at the receiver.
    """

    client: str
    known_as: str
    number: int
    bursts: tuple[Burst, ...]
    update: Update

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class Cache:
    """Notifications that a border broker holds for a client, from its arrival until they are fetched."""

    __state__ = State(
        "relocation-cache",
        saved=("subscriber", "number", "queue", "held_back", "blocked", "fetch"),
    )  # fmt: skip

    def __init__(
        self,
        subscriber: str,
        number: int,
        queue: DeliveryQueue,
        held_back: DeliveryQueue,
        blocked: bool,
    ) -> None:
        self.subscriber = subscriber
        self.number = number
        """Attach number under which the client's session came."""
        self.queue = queue
        """Queue that the client reads from; while blocked, the notifications that came with the session."""
        self.held_back = held_back
        self.blocked = blocked
        """True while the replay that precedes the held-back notifications is on its way."""
        self.fetch: Resubscribe | None = None
        """Fetch of a client that has moved on; answered with a replay."""


class Due(msgspec.Struct, frozen=True):
    """A replay that is to pass this broker."""

    client: str
    replay_to: str
    """Broker that the replay goes to from here."""
    onward: str
    """Peer that the replay comes from; "" if it begins here."""


class Relocation(MobilityProtocol):
    name = "relocation"
    assumes = frozenset({"honest_peers"})
    summary = "exactly once and in order within cache size and age; the old broker is found along the routes"
    luggage_type = int
    promise = Promise(lost=frozenset({"overflow", "expired"}))
    strategies = ("simple", "identity", "covering", "merging")
    locates = True
    follows_routes = True

    __state__ = State("relocation", saved=("caches", "current", "left", "replays_due"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.check(settings)
        self.caches: dict[tuple[str, int], Cache] = {}
        """All caches, by client and the attach number under which it came."""
        self.current: dict[str, Cache] = {}
        """Caches of clients whose session is here."""
        self.left: dict[tuple[str, int], Cache] = {}
        """Caches that wait for a fetch, by client and the attach number under which it left."""
        self.replays_due: dict[str, dict[int, Due]] = {}
        """Subscriber to its relocations that passed here."""

    @classmethod
    def check(cls, settings: Settings) -> None:
        if settings.cache_notifications is not None and settings.cache_notifications < 1:
            raise InputError(f"cache_notifications {settings.cache_notifications}: valid is 1 or more")
        if settings.cache_ttl_s is not None and settings.cache_ttl_s <= 0:
            raise InputError(f"cache_ttl_s {settings.cache_ttl_s}: valid is more than 0")

    # --- A.1: the four situations; fig. 10, subscription from the client ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        if came_from == "":  # A new client.
            self.begin_cache(session, 0, blocked=False)
        elif came_from != self.host.id:  # A roaming client, suspended meanwhile or not.
            self.begin_cache(session, msgspec.msgpack.decode(session.luggage, type=int), blocked=True)
            self.relocate(session)
        # Otherwise it resumes at the same broker.
        self.deliver(client, self.current[client], received.get(STREAM, 0))

    def begin_cache(self, session: Session, base: int, blocked: bool) -> None:
        client, host = session.client, self.host
        queue, held_back = (DeliveryQueue(STREAM, first, host.buffer) for first in (base, 0))
        cache = Cache(subscriber_name(session), session.number, queue, held_back, blocked)
        self.caches[client, session.number] = self.current[client] = cache
        owed, session.owed = session.owed, ()
        for burst in owed:
            self.store(client, cache.queue, burst)

    def relocate(self, session: Session) -> None:
        """Begin to look for the old border broker."""
        client, number = session.client, session.number
        subscriptions = dict(session.subscriptions)
        message = Resubscribe(
            client, subscriber_name(session), number, subscriptions, session.last_broker, Update()
        )
        self.turn(message, (client, number), self.host.id)

    def deliver(self, client: str, cache: Cache, received: int) -> None:
        cache.queue.rewind(received)
        self.expire(client, cache.queue)
        self.host.deliver_from(client, cache.queue)
        if not cache.blocked:
            self.host.handoff_finished(client)

    def on_detach(self, session: Session) -> None:
        """Limit the cache from now on: the client is suspended, or gone."""
        self.trim(session.client, self.current[session.client].queue)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        """Send the session with the cache; later notifications wait for the fetch."""
        cache = self.current.pop(session.client)
        cache.queue.rewind(received.get(STREAM, 0))
        self.expire(session.client, cache.queue)
        session.luggage = msgspec.msgpack.encode(cache.queue.base)
        session.owed = tuple(cache.queue.drain())
        self.left[session.client, session.number] = cache
        self.host.hand_over(session, destination)

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.caches[session.client, self.current.pop(session.client).number]

    # --- A.2: an inner broker; fig. 11, subscription and fetch ---

    def turn(self, message: Resubscribe, target: str | Owner, replay_to: str) -> None:
        """Point the client's entries to the target, and continue along the old entries, or where they would
        be."""
        client, subscriber = message.client, message.known_as
        # broker_oldnext = get(ldfTable, X, F). Without an entry this is an ordinary broker (fig. 11, lines 2
        # to 6); with one and a subscription it is the junction (lines 7 to 11), with one and a fetch it is
        # on the old path (lines 13 to 20).
        old = self.host.direction(message.subscriptions, client, subscriber)
        onward = old if isinstance(old, str) else self.host.next_hop(message.last_broker)
        due = Due(client, replay_to, onward)
        if onward == self.host.id or not self.host.is_reachable(onward):
            self.host.divert(message.subscriptions, client, subscriber, target, None, message.update)
            self.replays_due.setdefault(subscriber, {})[message.number] = due
            self.do_without(subscriber, message.number, due)
            return
        kind = Fetch if old is not None or isinstance(message, Fetch) else Resubscribe
        # The entry is updated to (F, X, B_j). Whether another producer keeps an entry alive behind this
        # broker ("#Advertisements > 1") is in `update`: it asks for F only where an advertisement overlaps.
        update = self.host.divert(message.subscriptions, client, subscriber, target, onward, message.update)
        self.replays_due.setdefault(subscriber, {})[message.number] = due
        self.host.send(
            onward,
            kind(
                client,
                subscriber,
                message.number,
                message.subscriptions,
                message.last_broker,
                update or Update(),
            ),
        )

    def on_resubscribe(self, sender: str, message: Resubscribe) -> None:
        """Handle a subscription on the new path, at the junction, on the old path, or at the old broker."""
        cache = self.left.pop((message.client, message.number), None)
        if cache is None:
            self.turn(message, sender, sender)
        else:
            self.fetch_from(cache, sender, message)

    def on_fetch(self, sender: str, message: Fetch) -> None:
        self.on_resubscribe(sender, message)

    # --- A.2: the border broker at the old location; fig. 10, fetch ---

    def fetch_from(self, cache: Cache, sender: str, message: Resubscribe) -> None:
        subscriber = message.known_as
        self.host.divert(message.subscriptions, message.client, subscriber, sender, None, message.update)
        due = Due(message.client, sender, "")
        self.replays_due.setdefault(subscriber, {})[message.number] = due
        cache.fetch = message
        self.try_replay(cache)

    def try_replay(self, cache: Cache) -> None:
        """Answer the fetch when all notifications are here, and forget the client."""
        fetch = cache.fetch
        if fetch is None or cache.blocked:
            return
        client = fetch.client
        self.expire(client, cache.queue)
        bursts = tuple(cache.queue.drain())
        replay = Replay(client, fetch.known_as, fetch.number, bursts, Update())
        del self.caches[client, cache.number]
        self.pass_replay((client, cache.number), replay, fetch.subscriptions)

    def pass_replay(self, source: str | Owner, replay: Replay, subscriptions: Mapping[str, float]) -> str:
        """Remove the entries for the old place, and forward the replay unless this broker is its goal."""
        client, subscriber = replay.client, replay.known_as
        due = self.replays_due[subscriber]
        replay_to = due.pop(replay.number).replay_to
        if not due:
            del self.replays_due[subscriber]
        # The entry that pointed to the old place goes, unless the sender of the replay wants F itself now,
        # because producers are there: what B_prod and nil are for in fig. 11, lines 24 to 32.
        is_further = replay_to != self.host.id and self.host.is_reachable(replay_to)
        onward = replay_to if is_further else None
        update = self.host.withdraw(
            subscriptions, client, subscriber, source, onward, replay.update, last=not due
        )
        if onward is not None:
            self.host.send(onward, msgspec.structs.replace(replay, update=update or Update()))
        return replay_to

    # --- A.2: a broker on the old path, and the border broker at the new location; replay ---

    def on_replay(self, sender: str, message: Replay) -> None:
        if self.pass_replay(sender, message, {}) != self.host.id:
            return
        client = message.client
        cache = self.caches[client, message.number]
        self.unblock(client, cache, message)
        if self.current.get(client) is cache:
            self.host.pump(client)
            self.host.handoff_finished(client)
        else:
            self.try_replay(cache)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        """Stop waiting for replays from brokers that are gone; their caches are lost."""
        for subscriber, dues in list(self.replays_due.items()):
            for number, due in list(dues.items()):
                if due.onward in peers:
                    self.do_without(subscriber, number, due)

    def do_without(self, subscriber: str, number: int, due: Due) -> None:
        """Continue without the replay."""
        self.on_replay(self.host.id, Replay(due.client, subscriber, number, (), Update()))

    def unblock(self, client: str, cache: Cache, message: Replay) -> None:
        """Put the replay before the held-back notifications."""
        cache.blocked = False
        held_back = self.without_replayed(cache.held_back.drain(), message.bursts)
        for burst in (*message.bursts, *held_back):
            self.store(client, cache.queue, burst)

    def without_replayed(self, held_back: Iterable[Burst], replayed: Iterable[Burst]) -> Iterator[Burst]:
        """Return the held-back notifications newer than all replayed ones of the same publisher."""
        last = last_numbers(replayed)
        for burst in held_back:
            newer = newer_part(burst, last.get(burst.publisher))
            if newer is not None:
                yield newer

    # --- A.2: the cache, a ring buffer with a time to live ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client = owner[0]
        cache = self.caches.get((client, owner[1]))
        if cache is None:
            return  # The session was lost with a broker that is gone.
        self.store(client, cache.held_back if cache.blocked else cache.queue, burst)
        if not cache.blocked and self.current.get(client) is cache:
            self.host.pump(client)

    def store(self, client: str, queue: DeliveryQueue, burst: Burst) -> None:
        self.keep(queue, client, burst)
        cache = self.current.get(client)
        is_read = cache is not None and cache.queue is queue and self.host.is_attached(client)
        if not is_read:
            self.trim(client, queue)

    def trim(self, client: str, queue: DeliveryQueue) -> None:
        """Drop the oldest notifications of an unread queue, past the time to live or past the capacity."""
        room, ttl_s = self.settings.cache_notifications, self.settings.cache_ttl_s
        while ttl_s is not None and queue and _front(queue).published_at < self.host.now - ttl_s:
            self.give_up_first(client, queue, _front(queue).count, "expired")
        while room is not None and len(queue) > room:
            self.give_up_first(client, queue, min(_front(queue).count, len(queue) - room), "overflow")

    def give_up_first(self, client: str, queue: DeliveryQueue, count: int, reason: str) -> None:
        self.host.dropped(client, _front(queue).head(count), reason)
        queue.acknowledge(queue.base + count)

    def expire(self, client: str, queue: DeliveryQueue) -> None:
        """Drop expired notifications anywhere in the queue, before the cache is read."""
        if self.settings.cache_ttl_s is None:
            return
        oldest_s = self.host.now - self.settings.cache_ttl_s
        for burst in queue.drain():
            if burst.published_at < oldest_s:
                self.host.dropped(client, burst, "expired")
            else:
                self.keep(queue, client, burst)

    # --- the client's own requests ---

    def owner_of(self, session: Session) -> Owner:
        return (session.client, self.current[session.client].number)

    def subscriber_of(self, owner: Owner) -> str:
        return self.caches[owner[0], owner[1]].subscriber

    # --- section 4.1: the old broker is found along the entries ---

    def trail_of(self, client: str) -> str:
        """Return where the client's entries lead; without entries, where the only producers are."""
        way = self.host.way_to(client, client_named)
        return way if isinstance(way, str) else ""

    # --- the rest ---

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for (client, _), cache in self.caches.items():
            yield client, cache.queue
            yield client, cache.held_back


class RelocationRepeating(Relocation):
    name = "relocation:repeating"
    is_as_published = True
    summary = (
        "as section 4 tells it: delivers a message twice if it reached the new broker for other clients, too"
    )

    __state__ = State("relocation-published")

    def without_replayed(self, held_back: Iterable[Burst], replayed: Iterable[Burst]) -> Iterator[Burst]:
        yield from held_back


def subscriber_name(session: Session) -> str:
    """Return the subscriber name of a session's routing entries. The client's name alone is not unique: when
    two trees join, each may have a session of the same client, and only entries of the right one may be
    turned or withdrawn."""
    return f"{session.client} {session.life} {session.begun[1]}"


def client_named(subscriber: str) -> str:
    return subscriber.rsplit(" ", 2)[0]


def _front(queue: DeliveryQueue) -> Burst:
    return (queue.in_flight or queue.waiting)[0]


register(Relocation)
register(RelocationRepeating)
