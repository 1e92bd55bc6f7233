"""Phoenix (Amozarrain 2.4, on the simple routing of 2.3; algorithms 2.1 to 2.3).

Routing entries say whose they are (`simple` routing). A subscriber s that connects
to another broker sends MIG there; MIG follows the way that a PUB for s would take,
to the broker where s was last. Each broker on that way turns the entries of s
round, so that they point to where MIG came from. The last broker answers with REP:
what it has stored for s, after the last timestamp that s has received. Nothing is
missed on the way, because MIG follows what was sent before it and meets what is
sent after it.

MIG also asks for the session of s. Only the holder decides about the session, so MIG is split into two
parts here. The attach request says what s has received, and the session comes back with what is stored: one
round trip until s reads. MIG itself follows, turns the entries round and brings back the rest.

| Amozarrain 2.4 | here |
| --- | --- |
| 2.2, lines 1 to 14: SUB, UNS, and who is local (C_i) | `owner_of`, `keeps_for`; entries are the router's |
| 2.2, lines 15 to 24: PUB is stored for who is local | `on_notification` |
| 2.3, lines 1 to 4: MIG from s itself | `on_attach`, `begin_stay` |
| 2.3, lines 5 to 8: entries are turned, MIG goes on | `on_mig`, `redirect` |
| 2.3, lines 9 to 16: at the last broker, what is after the last timestamp is sent | `on_mig`, `replay` |
| 2.3, lines 17 to 20: REP is routed by the entries of s | `on_rep` |
| 2.3, lines 21 to 24: REP where s is local | `on_rep`, `enqueue` |
| not in the thesis: stays, and which comes next | `on_nxt`, `replay_early`, `deliver` |
| not in the thesis: brokers that are gone for good | `on_lost`, `skip_lost` |

In this file s is local (in C_i of the paper) where `local` has an entry for it;
SUB, UNS and PUB are the host's `Update` and `Burst`. As links do not overtake and
the session of s comes before its MIG, the way of a PUB for s is the way to the
broker that s was local to last, which MIG names.

What goes wrong as published (`phoenix:published`), and what is done about it:

- A PUB on its way to somebody else may pass the last broker, which stores it for s, cross MIG on a link, and
  be taken for s again where entries are turned already. Here duplicates are recognised by the last number of
  each publisher, which is kept until all replays have arrived.
- Timestamps are the clock's, and two events may get the same one, above all those that are replayed together.
  If s leaves between two such events, the second one is lost, because its timestamp is not later than the
  last timestamp of s. Here a timestamp is the number of the stay of s at the broker and a count within it, so
  no two are equal.
- Replayed events are delivered after those that arrived directly, so publishers are reordered; and if s moves
  again, replays arrive from several brokers in any order. Here a timestamp is never changed, each broker says
  where its stay ended and which came next (NXT), and the new one delivers in the order of the timestamps.
- Returning to the same broker takes s out of the local set (line 10 of algorithm
  2.3), and then nothing is stored for it. Here it is as if s had never left:

    brokers a-b
    protocol phoenix:published
    at 0.0 p attach b
    at 0.0 s attach a
    at 0.1 s subscribe TRUE
    at 1.0 s leave
    at 2.0 s attach a
    at 3.0 s leave
    at 4.0 p publish {}
    at 5.0 s attach a

A subscriber that is gone again before its session came has sent no MIG: what came with
the session waits beside it, the rest stays where it is, and the next MIG goes there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import msgspec

from roamcast.filters.own import bind
from roamcast.filters.selector import parse
from roamcast.mobility.base import STREAM, Host, MobilityProtocol, Promise, Settings, queue_of, register
from roamcast.protocol.messages import Cause, Message, Update
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.state import State

Timestamp = tuple[float, int]
"""Attach number of a stay and number of the event in it; in the published variant, the clock and 0. The
timestamp of a burst is that of its last event."""


Number = tuple[int, int]
"""Incarnation and number of a publisher's event."""


class MIG(Message, frozen=True, tag="phoenix.MIG"):
    """Subscriber s, last at this broker, is now behind the sender, with this attach number.

    Brokers know the subscriptions of s; the message repeats them for turning the entries
    round.
    """

    subscriber: str
    broker: str
    number: int
    ts_last: Timestamp
    subscriptions: dict[str, float]
    cause: ClassVar[Cause] = "handoff"


class REP(Message, frozen=True, tag="phoenix.REP"):
    """Replay an event towards s."""

    event: Burst
    subscriber: str
    ts: Timestamp
    cause: ClassVar[Cause] = "transfer"

    @property
    def weight(self) -> int:
        return self.event.count


class NXT(Message, frozen=True, tag="phoenix.NXT"):
    """No event comes between these two timestamps (not in the paper).

    The first timestamp ends a stay and the second begins the next; or all events between were
    duplicates.
    """

    subscriber: str
    ts: Timestamp
    ts_next: Timestamp
    cause: ClassVar[Cause] = "transfer"


class Luggage(msgspec.Struct, array_like=True):
    """Data that travels with the session."""

    __state__ = State("phoenix-luggage")

    broker: str
    """Broker where s is in the local set."""
    base: int
    """Last sequence that the client has acknowledged."""
    ts_last: Timestamp
    newest: dict[str, Number]
    """Last event of each publisher up to `ts_sent`, while events of earlier stays are missing."""
    stays: tuple[tuple[int, str], ...] = ()
    """The last stay, and earlier stays with missing events: attach number and broker."""
    timestamps: tuple[Timestamp, ...] = ()
    """Timestamps of the events that travel with the session."""

    @property
    def ts_sent(self) -> Timestamp:
        """Timestamp up to which everything is with the session or acknowledged."""
        return self.timestamps[-1] if self.timestamps else self.ts_last


class Local:
    """A subscriber in the local set: its stay here, from its MIG until the next one arrives."""

    __state__ = State(
        "phoenix-local",
        saved=(
            "stay", "count", "queue", "log", "logged", "ts_last", "ts_reached", "early", "newest",
            "nexts", "stays", "is_stored",
        ),
    )  # fmt: skip

    def __init__(
        self, stay: int, queue: DeliveryQueue, ts_last: Timestamp, newest: dict[str, Number]
    ) -> None:
        self.stay = stay
        self.count = 0
        """Number of events that came here by PUB during the stay."""
        self.queue = queue
        self.log: deque[tuple[Timestamp, Burst]] = deque()
        """Q_i(s): the queued events with their timestamps."""
        self.logged = 0
        self.ts_last = ts_last
        """Timestamp of the last event that the subscriber has acknowledged."""
        self.ts_reached = ts_last
        """Timestamp up to which everything has arrived and is queued."""
        self.early: dict[Timestamp, Burst] = {}
        """Events that arrived before their predecessors, by the timestamp of their first."""
        self.newest = dict(newest)
        """Incarnation and last number of each publisher, until all events of earlier stays have arrived."""
        self.nexts: dict[Timestamp, Timestamp] = {}
        """Received NXT: the timestamp that ends a stay to the one that follows it."""
        self.stays: tuple[tuple[int, str], ...] = ()
        """Earlier stays, with the brokers that report their events and where they ended."""
        self.is_stored = True
        """False if s is connected here without being in the local set (published variant only)."""

    @property
    def is_complete(self) -> bool:
        """True when all events of earlier stays have arrived."""
        return self.ts_reached[0] == self.stay

    def duplicates_in(self, event: Burst) -> int:
        """Return how many events at the front of the burst already came from an earlier stay."""
        incarnation, number = self.newest.get(event.publisher, (0, 0))
        if event.is_picked or (event.incarnation, event.number) > (incarnation, number):
            return 0
        return event.count if event.incarnation < incarnation else min(event.count, number - event.number + 1)

    def append(self, ts: Timestamp, event: Burst) -> None:
        self.log.append((ts, event))
        self.logged += event.count

    def forget_acknowledged(self) -> None:
        """Remove events from the log that have left the queue."""
        while self.log and self.logged > len(self.queue):
            ts, event = self.log.popleft()
            gone = min(event.count, self.logged - len(self.queue))
            left = event.count - gone
            self.logged -= gone
            self.ts_last = (ts[0], ts[1] - left)
            if left:
                self.log.appendleft((ts, event.tail(gone)))


class Phoenix(MobilityProtocol):
    name = "phoenix"
    assumes = frozenset({"honest_peers"})
    summary = "exactly once and in order; subscriptions turn round hop by hop, stored events are replayed"
    luggage_type = Luggage
    promise = Promise(lost=frozenset({"overflow"}))
    strategies = ("simple", "identity", "covering", "merging")
    locates = True
    advertisements = False

    __state__ = State("phoenix", saved=("local", "towards", "ahead"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.local: dict[str, Local] = {}
        self.towards: dict[str, str] = {}
        """Subscribers whose MIG has passed here: subscriber to the neighbour that sent it."""
        self.ahead: dict[str, Session] = {}
        """Sessions that arrived after their subscribers had left, with their undelivered events."""

    # --- algorithm 2.2: SUB, UNS, PUB ---

    def owner_of(self, session: Session) -> Owner:
        return (session.client,)

    def keeps_for(self, session: Session) -> bool:
        return session.client in self.local

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        local = self.local.get(owner[0])
        if local is None:
            return  # The session was lost with a broker that is gone.
        local.count += burst.count
        self.enqueue(owner[0], local, (local.stay, local.count), burst)

    # --- algorithm 2.3: MIG, first from the subscriber itself ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        subscriber = session.client
        self.ahead.pop(subscriber, None)
        if came_from == "":
            self.begin_stay(session, Luggage("", 0, self.first_ts(session), {}))
        elif (luggage := unpack(session)).broker == self.host.id:
            local = self.local[subscriber]
            self.put_back(session, local, luggage)
            self.return_to(subscriber, local, received.get(STREAM, 0))
        elif self.host.is_attached(subscriber):
            self.begin_stay(session, luggage)
            filters = dict(session.subscriptions)
            if self.host.is_reachable(luggage.broker):
                mig = MIG(subscriber, luggage.broker, session.number, luggage.ts_sent, filters)
                self.redirect(mig, self.host.next_hop(luggage.broker), (subscriber,))
            else:
                self.subscribe_all((subscriber,), filters)
        else:
            self.ahead[subscriber] = session
            return
        local = self.local[subscriber]
        self.host.deliver_from(subscriber, local.queue)
        self.deliver(subscriber, local)

    def begin_stay(self, session: Session, luggage: Luggage) -> None:
        queue = DeliveryQueue(STREAM, luggage.base, self.host.buffer)
        local = Local(session.number, queue, luggage.ts_last, luggage.newest)
        local.stays = luggage.stays
        self.local[session.client] = local
        self.towards.pop(session.client, None)
        self.take_owed(session, local, luggage)
        self.pack(session, local)

    def take_owed(self, session: Session, local: Local, luggage: Luggage) -> None:
        """Deliver the events that came with the session first; MIG then asks for later ones."""
        for ts, event in zip(luggage.timestamps, session.owed, strict=True):
            local.append(ts, event)
            self.keep(local.queue, session.client, event)
        local.ts_reached, session.owed = luggage.ts_sent, ()

    def put_back(self, session: Session, local: Local, luggage: Luggage) -> None:
        """Take the session back when s was nowhere else: the events that travelled with it precede the stored
        ones."""
        if not session.owed:
            return
        log, local.log, local.logged = local.log, deque(), 0
        local.queue.drain()
        local.queue, local.ts_last = DeliveryQueue(STREAM, luggage.base, self.host.buffer), luggage.ts_last
        for ts, event in (*zip(luggage.timestamps, session.owed, strict=True), *log):
            local.append(ts, event)
            self.keep(local.queue, session.client, event)
        session.owed = ()
        self.pack(session, local)

    def pack(self, session: Session, local: Local, timestamps: tuple[Timestamp, ...] = ()) -> None:
        here = (local.stay, self.host.id)
        stays = (here,) if local.is_complete else (*local.stays, here)
        base = local.queue.base
        luggage = Luggage(self.host.id, base, local.ts_last, local.newest, stays, timestamps)
        session.luggage = msgspec.msgpack.encode(luggage)

    def first_ts(self, session: Session) -> Timestamp:
        return (session.number, 0)

    def return_to(self, subscriber: str, local: Local, received: int) -> None:
        """Handle MIG from s while it is in the local set: resume where s stopped."""
        self.acknowledge(subscriber, local, received)

    def acknowledge(self, subscriber: str, local: Local, received: int) -> None:
        """Apply what the subscriber received on its previous connection."""
        local.queue.rewind(received)
        local.forget_acknowledged()

    def on_mig(self, sender: str, message: MIG) -> None:
        if not self.host.is_reachable(message.broker):
            self.host.end_relocation(message.subscriptions, message.subscriber, sender)
        elif message.broker != self.host.id:
            self.redirect(message, self.host.next_hop(message.broker), sender)
        else:
            local = self.local.pop(message.subscriber)
            self.host.relocate(message.subscriptions, message.subscriber, (message.subscriber,), sender)
            self.towards[message.subscriber] = sender
            self.replay(sender, message, local)

    def redirect(self, message: MIG, last: str, target: str | Owner) -> None:
        """Turn the entries of s round: from where it was to where it is. Then send MIG on."""
        subscriber, filters = message.subscriber, message.subscriptions
        # The neighbour does likewise when MIG arrives, so neither needs to be told what the other withdraws.
        entries = tuple((bind(parse(text), subscriber), subscriber) for text in filters)
        taken_back = Update(unsubscribe=entries)
        self.host.relocate(filters, subscriber, last, target, taken_back)
        if isinstance(target, str):
            self.towards[subscriber] = target
            lost = self.local.pop(subscriber, None)
            if lost is not None:
                # MIG goes to where s was last: events stored here belong to a session that was lost with a
                # broker.
                self.give_up(subscriber, (*lost.queue.drain(), *lost.early.values()), "broker is gone")
        self.host.send(last, message)

    def replay(self, target: str, message: MIG, local: Local) -> None:
        """Send the events stored here after the last timestamp of the subscriber."""
        for ts, event in self.after(message.subscriber, local, message.ts_last):
            self.host.send(target, REP(event, message.subscriber, ts))
        self.replay_early(target, message, local)

    def after(self, subscriber: str, local: Local, ts_last: Timestamp) -> list[tuple[Timestamp, Burst]]:
        """Return the stored events after this timestamp."""
        local.forget_acknowledged()
        for ts, event in local.log:
            if ts <= ts_last:
                self.host.dropped(subscriber, event, "timestamp")
        return [(ts, event) for ts, event in local.log if ts > ts_last]

    def replay_early(self, target: str, message: MIG, local: Local) -> None:
        """Send the events of this and earlier stays that cannot be delivered yet."""
        subscriber = message.subscriber
        for (stay, first), event in local.early.items():
            self.host.send(target, REP(event, subscriber, (stay, first + event.count - 1)))
        local.nexts[local.stay, local.count] = (message.number, 0)
        if local.ts_last > message.ts_last:
            # Since s left, a full buffer has dropped the oldest events.
            local.nexts[message.ts_last] = local.ts_last
        for ts, ts_next in local.nexts.items():
            if ts >= message.ts_last:
                self.host.send(target, NXT(subscriber, ts, ts_next))

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.local[session.client]

    # --- algorithm 2.3: REP ---

    def on_rep(self, sender: str, message: REP) -> None:
        local = self.local.get(message.subscriber)
        if local is None:
            self.host.send(self.towards[message.subscriber], message)
        else:
            self.enqueue(message.subscriber, local, message.ts, message.event)

    def on_nxt(self, sender: str, message: NXT) -> None:
        local = self.local.get(message.subscriber)
        if local is None:
            self.host.send(self.towards[message.subscriber], message)
        else:
            # If a broker is gone, this event may have been skipped.
            local.nexts.setdefault(message.ts, message.ts_next)
            self.deliver(message.subscriber, local)

    def enqueue(self, subscriber: str, local: Local, ts: Timestamp, event: Burst) -> None:
        if ts[0] < local.ts_reached[0]:
            self.host.dropped(subscriber, event, "broker is gone")
            return
        local.early[ts[0], ts[1] - event.count + 1] = event
        self.deliver(subscriber, local)

    def deliver(self, subscriber: str, local: Local) -> None:
        """Queue the events that are next in the order of the timestamps."""
        while True:
            stay, count = local.ts_reached
            event = local.early.pop((stay, count + 1), None)
            if event is not None:
                self.take(subscriber, local, event)
            elif local.ts_reached in local.nexts:
                local.ts_reached = local.nexts[local.ts_reached]
            elif not self.skip_lost(local):
                break
        self.host.pump(subscriber)
        if local.is_complete:
            local.newest.clear()
            self.host.handoff_finished(subscriber)

    def skip_lost(self, local: Local) -> bool:
        """Skip events that cannot arrive because a broker is gone for good.

        Only that broker knew the events of its stay, and earlier events were sent to it.
        """
        if local.is_complete:
            return False
        stays = [one for one in local.stays if one[0] >= local.ts_reached[0]]
        lost = [place for place, (_, broker) in enumerate(stays) if not self.host.is_reachable(broker)]
        if not lost:
            return False
        following = ([stay for stay, _ in stays] + [local.stay])[lost[-1] + 1]
        waiting = [ts for ts in local.early if local.ts_reached < ts < (following, 0)]
        early = min(waiting, default=(following, 1))
        # Recorded so that the next broker learns of the gap, too.
        local.nexts[local.ts_reached] = (early[0], early[1] - 1)
        return True

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        for subscriber, local in list(self.local.items()):
            self.deliver(subscriber, local)

    def take(self, subscriber: str, local: Local, event: Burst) -> None:
        stay, count = local.ts_reached
        duplicates = local.duplicates_in(event)
        if duplicates:
            local.nexts[local.ts_reached] = (stay, count + duplicates)
        local.ts_reached = (stay, count + event.count)
        if duplicates < event.count:
            event = event.tail(duplicates)
            if not event.is_picked:
                local.newest[event.publisher] = (event.incarnation, event.last)
            local.append(local.ts_reached, event)
            self.keep(local.queue, subscriber, event)

    # --- the subscriber is gone, or elsewhere ---

    def on_detach(self, session: Session) -> None:
        """Keep the client in the local set until its MIG arrives."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        """Send what is stored so far with the session; s stays in the local set until its MIG arrives."""
        self.ahead.pop(session.client, None)
        local = self.local.get(session.client)
        if local is not None:
            self.acknowledge(session.client, local, received.get(STREAM, 0))
            owed = self.after(session.client, local, local.ts_last)
            self.pack(session, local, tuple(ts for ts, _ in owed))
            session.owed = tuple(event for _, event in owed)
            local.queue.drain()
            local.log.clear()
            local.logged = 0
            if owed:
                local.ts_last = owed[-1][0]
        self.host.hand_over(session, destination)

    def on_acknowledged(self, client: str) -> None:
        local = self.local.get(client)
        if local is not None:
            local.forget_acknowledged()

    # --- the rest ---

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for subscriber, local in self.local.items():
            yield subscriber, local.queue
            yield subscriber, queue_of(local.early.values())
        for subscriber, session in self.ahead.items():
            yield subscriber, queue_of(session.owed)


class PhoenixPublished(Phoenix):
    """Algorithms 2.2 and 2.3 to the letter: every event is sent to s as it comes."""

    name = "phoenix:published"
    is_as_published = True
    summary = "as published: clocks as timestamps, nothing held back, returning ends the storing"
    promise = Promise(
        lost=frozenset({"timestamp", "not_local", "overflow"}),
        duplicate=frozenset({"move_in"}),
        reordered=frozenset({"replayed"}),
    )

    __state__ = State("phoenix-published")

    def first_ts(self, session: Session) -> Timestamp:
        return (0.0, -1)

    def begin_stay(self, session: Session, luggage: Luggage) -> None:
        super().begin_stay(session, luggage)
        local = self.local[session.client]
        local.ts_reached = (local.stay, 0)  # No event of earlier stays is awaited.

    def take_owed(self, session: Session, local: Local, luggage: Luggage) -> None:
        """Nothing special: these events are replayed like all others."""
        owed, session.owed = session.owed, ()
        for ts, event in zip(luggage.timestamps, owed, strict=True):
            self.enqueue(session.client, local, ts, event)

    def enqueue(self, subscriber: str, local: Local, ts: Timestamp, event: Burst) -> None:
        """Algorithm 2.2, lines 16 to 24, and algorithm 2.3, lines 22 to 24: ts is the clock's."""
        if not local.is_stored and not self.host.is_attached(subscriber):
            self.host.dropped(subscriber, event, "not local")
            return
        local.append((self.host.now, 0), event)
        self.host.pass_to(subscriber, local.queue, event)

    def return_to(self, subscriber: str, local: Local, received: int) -> None:
        """Algorithm 2.3: remove s from the local set (line 10), or add it again (line 4)."""
        super().return_to(subscriber, local, received)
        local.is_stored = not local.is_stored
        stored = list(local.log)
        local.log.clear()
        local.queue.drain()
        local.logged = 0
        for ts, event in stored:
            if ts > local.ts_last:
                local.append(ts, event)
                self.keep(local.queue, subscriber, event)
            else:
                self.host.dropped(subscriber, event, "timestamp")

    def acknowledge(self, subscriber: str, local: Local, received: int) -> None:
        super().acknowledge(subscriber, local, received)
        if not local.is_stored:
            self.give_up(subscriber, local.queue.drain(), "not local")
            local.log.clear()
            local.logged = 0

    def on_rep(self, sender: str, message: REP) -> None:
        local = self.local.get(message.subscriber)
        if local is not None and not local.is_stored:
            # Lines 18 to 20 look for a neighbour towards s; there is none.
            self.host.dropped(message.subscriber, message.event, "not local")
        else:
            super().on_rep(sender, message)

    def replay_early(self, target: str, message: MIG, local: Local) -> None:
        """The published variant holds no events back."""


def unpack(session: Session) -> Luggage:
    return msgspec.msgpack.decode(session.luggage, type=Luggage)


register(Phoenix)
register(PhoenixPublished)
