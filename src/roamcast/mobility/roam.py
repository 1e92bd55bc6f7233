"""Roam: a multi-hop handoff that is over before it begins, where the client was expected. See docs/roam.md.

The holder of a session keeps copies of the head of the client's queue at the few brokers where the client is
likely to appear next (`prediction.py`). These are chosen when the client leaves (or has stayed for
`copies_after_s`). A copy begins when it has something to serve. The holder sends it the notifications that it
queues, in the same order, until all copies together have `HEAD_MAX` notifications. So every copy is a prefix
of one sequence, and the sequence numbers that a client reports mean the same at every broker.

A client that attaches at a broker with its copy reads at once, after what it has received: zero round trips.
Then the session arrives by a plain multi-hop handoff. The list of segments to read begins with the copy,
which is already there; the former holder deletes what the copy has, and the rest is pulled while the client
reads. The other copies are dropped. A client that attaches elsewhere is handed off as in `multi_hop_handoff`.

    StoreCopy    holder to copy     a copy begins: what is queued, after `base`
    FeedCopy     holder to copy     what was queued since
    DropCopy     holder to copy     the copy is of no use any more
    CopyServed   copy to holder     the token is here and the copy is (the head of) the queue: forget that

A copy belongs to one stay: the attach number distinguishes messages of different holders, and the client's
own count of attaches shows whether the client has been elsewhere since. A client that does not count
(standard MQTT) may have been: it is served from a copy only where duplicates do no harm (`Host.capsule_for`,
`Host.read_ahead`), and the copies of a session are withdrawn before the session ends (`end_copies`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from roamcast.errors import InputError
from roamcast.mobility.base import STREAM, Host, Settings, queue_of, register
from roamcast.mobility.multi_hop_handoff import FIRST_CREDIT, Hold, MultiHopHandoff, Reference, SubMigration
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.mobility.prediction import Predictor, read_contexts
from roamcast.mobility.proactive_messages import ClientGone
from roamcast.protocol.messages import Cause, Hello, Message
from roamcast.protocol.notification import Burst, count_of
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State

TRIM_AFTER_S = 1.0
"""While a client reads at the holder, the copies are told its acknowledgements at most once in this time."""

HEAD_MAX = 4
"""Maximum of notifications in all copies of a session together, but at least one in each. A client reads
these while the rest of its queue is pulled. The surer the prediction, the fewer copies, and the larger each
copy."""

MASS = 0.8
"""Copies begin at no more brokers than needed for this probability."""

COPY_HERE = "#copy"
"""Key in an attach request: this broker has a copy of the stay with this attach number."""

COPY, HEAD = "copy", "head"
"""Kinds in a list of segments: the first is the copy at the destination, named by the attach number of its
stay; it has the second segment completely, or only the head of it."""


def head_max(copies: int) -> int:
    """Return the maximum of notifications in each copy."""
    return max(1, HEAD_MAX // max(1, copies))


class ToCopies(Message, frozen=True, tag=False):
    """Message from the holder of a session to the brokers with its copies; crosses each link of the tree
    once."""

    client: str
    holder: str
    number: int
    """Attach number of the client's stay at the holder."""
    brokers: tuple[str, ...]
    """Receivers that are reached over this link."""

    def _carried(self) -> tuple[Burst, ...]:
        return ()

    @property
    def cause(self) -> Cause:
        return "transfer" if self._carried() else "handoff"

    @property
    def weight(self) -> int:
        return count_of(self._carried()) or 1


class StoreCopy(ToCopies, frozen=True, tag=True):
    """Keep a copy for the client, which may attach to you next: notifications after the sequence `base`."""

    moves: int
    """The client's own count of attaches at that stay."""
    owner: str
    base: int
    bursts: tuple[Burst, ...]
    is_kept_on_the_way: bool = False
    """True if brokers on the way keep copies, too."""
    capsule: bytes = b""
    """Data that the access side needs to serve a client that does not count its attaches; "" if a copy must
    not."""

    def _carried(self) -> tuple[Burst, ...]:
        return self.bursts


class FeedCopy(ToCopies, frozen=True, tag=True):
    """Notifications that the holder has queued since; the client has acknowledged up to `base`."""

    base: int
    bursts: tuple[Burst, ...]
    capsule: bytes = b""
    """As in `StoreCopy`, if the copy began before the client left."""

    def _carried(self) -> tuple[Burst, ...]:
        return self.bursts


class DropCopy(ToCopies, frozen=True, tag=True):
    """Drop the copy: the client is elsewhere, or was away for too long."""

    kept_at: str = ""
    """Destination of the session, which needs its copy."""
    ends: bool = False
    """True if the session ends: then every copy that is not of a later stay is dropped."""


class CopyServed(Message, frozen=True):
    """The session is at the sender, whose copy has `count` notifications of the queue of the stay `number`.

    The holder deletes these; without a `count`, all.
    """

    client: str
    number: int
    count: int | None = None
    cause: ClassVar[Cause] = "handoff"


def _lift_spread_1(fields: dict[str, Any]) -> None:
    fields["base"] = fields["copied"]


def _lift_spread_2(fields: dict[str, Any]) -> None:
    fields["is_begun"] = True


class Spread:
    """The copies of a session, as its holder knows them."""

    __state__ = State(
        "roam-spread",
        3,
        saved=("number", "brokers", "is_wide", "base", "copied", "end", "is_trimmed_soon", "is_begun"),
        lifts={1: _lift_spread_1, 2: _lift_spread_2},
    )

    def __init__(self, number: int, brokers: Collection[str], is_wide: bool, queue: DeliveryQueue) -> None:
        self.number = number
        self.brokers = dict.fromkeys(brokers)
        self.is_wide = is_wide
        """True if brokers on the way to the copies keep copies, too."""
        self.base = queue.base
        """Last sequence that the client has acknowledged. Notifications that a full queue dropped since stay
        in the copies: if the copies forgot them at different times, a client reading two copies could receive
        them too late."""
        self.copied = queue.base
        """Last sequence that the copies have."""
        self.end = queue.base + len(queue)
        """Last sequence of the queue, as long as only its front is dropped."""
        self.is_trimmed_soon = False
        """True if the copies are about to be told what the client has acknowledged."""
        self.is_begun = False
        """True when the copies have been sent: they begin with something to serve."""


def _lift_replica_1(fields: dict[str, Any]) -> None:
    fields["capsule"], fields["aside"] = b"", []


class Replica:
    """A copy, at the broker where the client may appear."""

    __state__ = State(
        "roam-replica",
        2,
        saved=("holder", "number", "moves", "owner", "is_named", "queue", "capsule", "aside"),
        lifts={1: _lift_replica_1},
    )

    def __init__(self, message: StoreCopy, is_named: bool) -> None:
        self.holder = message.holder
        self.number = message.number
        self.moves = message.moves
        self.owner = message.owner
        self.is_named = is_named
        """True if the holder lists this copy; False for a copy on the way to others."""
        self.queue = DeliveryQueue(STREAM, message.base)
        """Not counted in the broker's buffer: the holder stores these notifications, too."""
        self.queue.extend(message.bursts)
        self.capsule = message.capsule
        self.aside: list[Burst] = []
        """Bursts received while a client that does not count its attaches reads: served when the session
        arrives."""

    def feed(self, bursts: tuple[Burst, ...], is_aside: bool) -> None:
        if is_aside or self.aside:
            self.aside += bursts
        else:
            self.queue.extend(bursts)

    def follow(self, base: int) -> None:
        """Delete what the client has acknowledged at the holder, even beyond the end of the copy."""
        queue = self.queue
        queue.acknowledge(base)
        if not queue:
            queue.base = queue.sent = max(queue.base, base)


class Roam(MultiHopHandoff):
    name = "roam"
    keeps_sessions = True
    summary = "exactly once and in order; served at once where the client was expected, elsewhere by hops"
    draws_copies = True

    __state__ = State("roam", saved=("predictor", "figures", "held", "spreads", "copies"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.predictor = Predictor(host.id, settings.neighbour_graph)
        self.figures: Counter[str] = Counter()
        """Counters. Sessions that came from other brokers: `hit` (a copy was here) or `miss`; clients
        `served` before their session came; `copies` made at other brokers, and copies `recalled`."""
        self.held: dict[str, Session] = {}
        self.spreads: dict[str, Spread] = {}
        """Sessions that are here and have copies elsewhere."""
        self.copies: dict[str, Replica] = {}
        """Copies of sessions that are elsewhere."""

    @classmethod
    def check(cls, settings: Settings) -> None:
        if settings.neighbour_graph:
            parse_graph(settings.neighbour_graph)
            read_contexts(settings.neighbour_graph)
        if settings.copies_max < 0:
            raise InputError(f"copies_max {settings.copies_max}: valid is 0 or more")

    def take_model(self, model: str) -> None:
        self.predictor.take(self.host.id, model)

    # --- the client is here: no copies, until it has stayed for a while ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        self.held[client] = session
        self.copies.pop(client, None)  # The copy belongs to a session that was lost with its holder.
        self.recall(client)
        super().on_attach(session, came_from, received)
        hold = self.holds.get(client)
        if hold is not None and self.host.is_read(client, hold.queue):
            self.host.pump(client)  # Deliver bursts that were put aside while the client read from a copy.
        if self.settings.copies_after_s is not None:
            spread_at = self.host.now + self.settings.copies_after_s
            self.host.set_timer(spread_at, ("spread", client, session.number))

    def on_deadline(self, token: Token) -> None:
        what, client, number = token
        session = self.held.get(client)
        if session is None or session.number != number:
            return
        if what == "spread":
            self.spread(session)
        elif what == "trim":
            self.trim(client)
        elif not self.host.is_attached(client):
            self.recall(client)

    # --- the client leaves: copies begin ---

    def on_detach(self, session: Session) -> None:
        super().on_detach(session)
        self.host.send(self.host.id, ClientGone(session.client, session.number))

    def on_client_gone(self, sender: str, message: ClientGone) -> None:
        client, session = message.client, self.held.get(message.client)
        if session is None or session.number != message.number or self.host.is_attached(client):
            return  # The client has returned, or is elsewhere.
        spread = self.spreads.get(client)
        capsule = self.capsule_of(session, spread) if spread is not None else b""
        if spread is not None and capsule:
            self.send_feed(client, spread, (), capsule)
        elif session.moves < 0:
            self.recall(client)
        self.spread(session)
        if self.settings.copies_for_s is not None:
            timeout_at = self.host.now + self.settings.copies_for_s
            self.host.set_timer(timeout_at, ("give up", client, session.number))

    def go_on(self, client: str, hold: Hold) -> None:
        """Begin the copies at the end of a handoff if the client has left meanwhile."""
        was_live = hold.own is None
        super().go_on(client, hold)
        is_live = hold.own is None and self.holds.get(client) is hold
        session = self.held.get(client)
        if is_live and not was_live and session is not None and not self.host.is_attached(client):
            self.spread(session)

    def spread(self, session: Session) -> None:
        """Begin a copy at each broker where the client is likely to appear, within the budget."""
        client, queue = session.client, self.holds[session.client].queue
        if client in self.spreads or self.holds[client].own is not None or not session.subscriptions:
            return
        if self.host.is_attached(client) and queue.waiting:
            return  # Notifications left in a full queue by a slow client have other sequences than in a copy.
        predicted = self.predictor.predict(session.before, MASS)
        likely = [
            broker for broker in predicted if broker != self.host.id and self.host.is_reachable(broker)
        ][: self.settings.copies_max]  # fmt: skip
        bursts = self.head_of(queue, queue.base, head_max(len(likely)))
        if not likely or (queue and not bursts):
            return
        spread = Spread(session.number, likely, len(predicted) > len(likely), queue)
        spread.copied += count_of(bursts)
        capsule = self.capsule_of(session, spread)
        if session.moves < 0 and not capsule and not self.host.is_attached(client):
            return  # Copies could not serve the client.
        self.spreads[client] = spread
        if bursts or capsule:
            self.send_feed(client, spread, bursts, capsule)

    def capsule_of(self, session: Session, spread: Spread) -> bytes:
        """Return the capsule with which copies may serve a client that does not count its attaches."""
        capsule = self.host.capsule_for(session, spread.brokers) if session.moves < 0 else b""
        if capsule:
            session.is_copied = True
            session.copied = max(session.copied, spread.copied)
        return capsule

    def head_of(self, queue: DeliveryQueue, after: int, count: int) -> tuple[Burst, ...]:
        """Return the first notifications of the queue that a copy ending with the sequence `after` lacks."""
        skip, room, taken = max(after - queue.base, 0), self.settings.copy_bytes_max, []
        for burst in queue.up_to(queue.base + count):
            room -= burst.size
            if room < 0:
                break
            if skip < burst.count:
                taken.append(burst.tail(skip) if skip else burst)
            skip = max(skip - burst.count, 0)
        return tuple(taken)

    def likely_next(self, session: Session) -> list[str]:
        likely = self.predictor.predict(session.before)
        there = [one for one in likely if one != self.host.id and self.host.is_reachable(one)]
        return there[: self.settings.copies_max]

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        super().on_notification(owner, source, burst)
        spread = self.spreads.get(owner[0])
        if spread is not None and len(owner) == 2:
            self.feed(owner[0], spread, burst)

    def feed(self, client: str, spread: Spread, burst: Burst) -> None:
        """Feed the copies with what was queued, until they are full; recall them if the client reads too
        slowly."""
        queue = self.holds[client].queue
        is_slow = self.host.is_attached(client) and bool(queue.waiting)
        spread.end += burst.count
        if is_slow or not self.is_aligned(queue, spread):
            self.recall(client)
            return
        self.top_up(client, spread)
        if queue and spread.copied <= queue.base and client in self.spreads:
            self.recall(client)  # The copies have nothing that the client still has to read.

    def top_up(self, client: str, spread: Spread) -> bool:
        """Feed the copies with missing notifications of the head of the queue; False if nothing is
        missing."""
        queue = self.holds[client].queue
        given_up = queue.base - spread.base
        if given_up and spread.copied < queue.base:
            self.recall(client)  # The queue no longer continues where the copies end.
            return True
        spread.copied = max(spread.copied, queue.base)
        lacking = self.head_of(queue, spread.copied, head_max(len(spread.brokers)) - given_up)
        if lacking:
            spread.copied += count_of(lacking)
            self.send_feed(client, spread, lacking)
        return bool(lacking)

    def send_feed(self, client: str, spread: Spread, bursts: tuple[Burst, ...], capsule: bytes = b"") -> None:
        """Send this to the copies; the first of it begins them."""
        session, brokers, here = self.held[client], tuple(spread.brokers), self.host.id
        session.copied = max(session.copied, spread.copied) if session.is_copied else session.copied
        if spread.is_begun:
            self.send_on(FeedCopy(client, here, spread.number, brokers, spread.base, bursts, capsule))
            return
        spread.is_begun = True
        self.send_on(
            StoreCopy(
                client, here, spread.number, brokers, session.moves, session.owner, spread.base, bursts,
                spread.is_wide, capsule,
            )
        )  # fmt: skip

    def on_acknowledged(self, client: str) -> None:
        super().on_acknowledged(client)
        spread = self.spreads.get(client)
        if spread is not None:
            spread.base = self.holds[client].queue.base
        if spread is not None and not spread.is_trimmed_soon:
            spread.is_trimmed_soon = True
            self.host.set_timer(self.host.now + TRIM_AFTER_S, ("trim", client, spread.number))

    def trim(self, client: str) -> None:
        """Tell the copies to delete what the client has acknowledged."""
        spread = self.spreads.get(client)
        if spread is not None:
            spread.is_trimmed_soon = False
            if not self.top_up(client, spread) and spread.is_begun:
                self.send_feed(client, spread, ())

    def is_aligned(self, queue: DeliveryQueue, spread: Spread) -> bool:
        """True if sequences mean the same here and in the copies: false if a full queue dropped its newest
        part.

        Notifications dropped at the front are in the copies, with the same sequences.
        """
        return queue.base + len(queue) == spread.end

    def recall(self, client: str, but: str = "") -> None:
        """Drop the copies of a session, except one at the broker `but`."""
        spread = self.spreads.pop(client, None)
        brokers = tuple(one for one in spread.brokers if one != but) if spread is not None else ()
        if spread is not None and spread.is_begun and brokers:
            self.figures["recalled"] += len(brokers)
            self.send_on(DropCopy(client, self.host.id, spread.number, brokers, but))

    def send_on(self, message: ToCopies) -> None:
        """Forward to the brokers with copies, except this one and brokers that are gone."""
        here = self.host.id
        hops: dict[str, list[str]] = {}
        for broker in message.brokers:
            hops.setdefault(self.host.next_hop(broker), []).append(broker)
        for hop, brokers in hops.items():
            if hop != here:
                self.host.send(hop, msgspec.structs.replace(message, brokers=tuple(brokers)))

    def on_message(self, sender: str, message: Message) -> None:
        if isinstance(message, ToCopies):
            self.send_on(message)
            is_passing = self.host.id not in message.brokers
            if is_passing and isinstance(message, StoreCopy) and not message.is_kept_on_the_way:
                return
        super().on_message(sender, message)

    def expects(self, sender: str, message: Message) -> bool:
        """Accept messages about a copy only from its holder."""
        if isinstance(message, ToCopies) and self.host.next_hop(message.holder) != sender:
            return False
        return super().expects(sender, message)

    # --- at the brokers where the client may appear ---

    def on_store_copy(self, sender: str, message: StoreCopy) -> None:
        copy = self.copies.get(message.client)
        if message.client not in self.holds and (copy is None or copy.number <= message.number):
            self.figures["copies"] += 1
            self.copies[message.client] = Replica(message, self.host.id in message.brokers)

    def copy_of(self, message: ToCopies) -> Replica | None:
        copy = self.copies.get(message.client)
        is_theirs = copy is not None and (copy.holder, copy.number) == (message.holder, message.number)
        return copy if is_theirs else None

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        copy = self.copy_of(message)
        if copy is not None:
            is_read = self.host.is_read(message.client, copy.queue)
            copy.follow(message.base)
            copy.feed(message.bursts, is_aside=is_read and bool(copy.capsule))
            copy.capsule = message.capsule or copy.capsule
            if is_read:
                self.host.pump(message.client)

    def on_drop_copy(self, sender: str, message: DropCopy) -> None:
        if message.ends:
            # The client may have been served from an outdated copy, and its session be sought elsewhere.
            self.host.ask_too(message.client, message.holder)
        copy = self.copies.get(message.client)
        is_over = message.ends and copy is not None and copy.number <= message.number
        if copy is None or not (is_over or self.copy_of(message) is not None):
            return
        if message.kept_at != self.host.id:
            del self.copies[message.client]
            if copy.capsule:
                copy.queue.drain()  # A client that reads from this queue gets nothing more.

    def end_copies(self, session: Session) -> None:
        others = tuple(one for one in self.host.own_members if one != self.host.id)
        self.spreads.pop(session.client, None)
        self.send_on(DropCopy(session.client, self.host.id, session.number, others, ends=True))

    def holder_of(self, client: str) -> str:
        copy = self.copies.get(client)
        return copy.holder if copy is not None else ""

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        """Serve a client from the copy ahead of its session, if it was nowhere else since."""
        copy = self.copies.get(hello.client)
        if copy is None or copy.owner != hello.owner:
            return hello.received
        # Clients that do not count are served once: when they come again first, their session may be far
        # away.
        capsule = copy.capsule if hello.moves < 0 and not is_asked else b""
        if capsule or 0 <= hello.moves == copy.moves + 1:
            copy.queue.rewind(hello.received.get(STREAM, 0))
            self.figures["served"] += self.host.read_ahead(hello.client, copy.queue, copy.holder, capsule)
        return {**hello.received, COPY_HERE: copy.number}

    # --- the session follows: a multi-hop handoff whose list begins with the copy ---

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        del self.held[session.client]
        self.predictor.learn(session.before, destination)
        spread = self.spreads.get(session.client)
        if spread is not None and received.get(COPY_HERE) == spread.number:
            spread.brokers[destination] = None
        if spread is not None and session.is_copied and destination in spread.brokers:
            # Notifications sent ahead of the session can be read before it arrives (`to_be_read`).
            session.copied = max(session.copied, min(spread.copied + FIRST_CREDIT, spread.end))
        super().on_depart(session, destination, received)

    def to_be_read(self, client: str, hold: Hold, destination: str) -> list[Reference]:
        """Put the copy at the destination first; the segment left behind is read if the copy is missing."""
        spread, queue = self.spreads.get(client), hold.queue
        is_there = spread is not None and spread.is_begun and destination in spread.brokers
        if spread is None or not is_there or not self.is_aligned(queue, spread):
            self.recall(client)
            return super().to_be_read(client, hold, destination)
        base = spread.base if spread.copied >= queue.base else queue.base
        spread.copied = max(spread.copied, queue.base)
        # Ahead of the session, send as much more as a handoff without a copy would send at once.
        more = self.head_of(queue, spread.copied, spread.copied - queue.base + FIRST_CREDIT)
        if more:
            spread.copied += count_of(more)
            self.send_on(FeedCopy(client, self.host.id, spread.number, (destination,), base, more))
        kind = COPY if spread.copied >= spread.end else HEAD
        self.recall(client, destination)
        return [(destination, spread.number, kind), *super().to_be_read(client, hold, destination)]

    def on_sub_migration(self, sender: str, message: SubMigration) -> None:
        if message.destination != self.host.id:
            self.copies.pop(message.session.client, None)  # This broker kept the copy on the way to others.
        super().on_sub_migration(sender, message)

    def receive_token(self, message: SubMigration, sender: str) -> bool:
        super().receive_token(message, sender)
        client = message.session.client
        hold, copy = self.holds[client], self.copies.pop(client, None)
        if not hold.segments or hold.segments[0][2] not in (COPY, HEAD):
            self.figures["miss"] += 1
            return False
        (_, number, kind), *left = hold.segments
        hold.segments = left
        if copy is None or copy.number != number:
            return False  # The broker of the copy is gone, and the session stays here.
        self.figures["hit"] += 1
        copy.queue.extend(copy.aside)
        copy.follow(message.base)  # A client that cannot report what it received may have read more.
        hold.queue = copy.queue
        copied = hold.queue.base + len(hold.queue) - message.base
        for evicted_from, evicted in hold.queue.join(self.host.buffer):
            self.host.dropped(self.client_of(evicted_from) or client, evicted, "overflow")
        if kind == COPY:
            hold.segments = []
            for broker, stay, _ in left:
                self.host.send(broker, CopyServed(client, stay))
        else:
            broker, stay, _ = left[0]
            self.host.send(broker, CopyServed(client, stay, copied))
        return True

    def on_copy_served(self, sender: str, message: CopyServed) -> None:
        segment = self.segments.get((message.client, message.number, "in"))
        if segment is not None and message.count is not None:
            queue = queue_of(segment.bursts)
            queue.acknowledge(message.count)
            segment.bursts = deque(queue.drain())
        elif segment is not None:
            del self.segments[message.client, message.number, "in"]

    # --- the rest ---

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.held[session.client]
        self.recall(session.client)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        """Forget copies at brokers that are gone; copies of their sessions stay while they are read.

        Copies kept on the way to a lost broker may hear no more from their holders.
        """
        for client, spread in list(self.spreads.items()):
            is_hit = any(one in brokers for one in spread.brokers)
            spread.brokers = {one: None for one in spread.brokers if one not in brokers}
            if is_hit and spread.is_wide:
                self.recall(client)
        self.copies = {
            client: copy for client, copy in self.copies.items()
            if (copy.is_named and copy.holder not in brokers) or self.host.is_read(client, copy.queue)
        }  # fmt: skip
        super().on_lost(peers, brokers)

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        yield from super().stored()
        for client, copy in self.copies.items():
            yield client, copy.queue
            if copy.aside:
                yield client, queue_of(copy.aside)


register(Roam)
