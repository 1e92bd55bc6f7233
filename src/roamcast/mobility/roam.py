"""Roam: a multi-hop handoff that is over before it begins, where the client was expected. See docs/roam.md.

The holder of a session keeps copies of the client's queue at the few brokers where the
client is likely to appear next (`prediction.py`). A copy begins when the client leaves
(or has stayed for `copies_after_s`), and the holder feeds it with whatever it queues, in
the order in which it queues it. So every copy is a prefix of one sequence, and what a client
says it has received means the same at every broker.

A client that attaches where its copy is reads at once, from what it has not received: zero
round trips. Behind that the session comes by a plain multi-hop handoff. Its list of what is to
be read begins with the copy, which is already there; the former holder forgets its own when
the copy has taken its place. The other copies go. A client that attaches elsewhere is handed
off as in `multi_hop_handoff`.

    StoreCopy    holder to copy     a copy begins: what is queued, after `base`
    FeedCopy     holder to copy     what was queued since
    DropCopy     holder to copy     the copy is of no use any more
    CopyServed   copy to holder     the token is here and the copy is the queue: forget yours

A copy is of one stay: the attach number tells the messages of two holders apart, and the
client's own count of attaches tells whether it has been elsewhere since. A client that does
not count (standard MQTT) is not served from a copy before its session is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar

import msgspec

from roamcast.errors import InputError
from roamcast.mobility.base import STREAM, Host, Settings, register
from roamcast.mobility.multi_hop_handoff import Hold, MultiHopHandoff, Reference, SubMigration
from roamcast.mobility.neighbour_graph import parse_graph
from roamcast.mobility.prediction import Predictor, second_order
from roamcast.mobility.proactive_messages import ClientGone
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst, count_of
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State

TRIM_AFTER_S = 1.0
"""While a client reads at the holder, its copies hear of that once in this time."""

COPY = "copy"
"""In a list of segments: the first is the copy at the destination, under the attach number of its stay."""


class ToCopies(Message, frozen=True):
    """From the holder of a session to the brokers with its copies, along the tree: over each link once."""

    client: str
    holder: str
    number: int
    """The attach number of the client's stay at the holder."""
    brokers: tuple[str, ...]
    """Those that are reached over this link."""

    def _carried(self) -> tuple[Burst, ...]:
        return ()

    @property
    def cause(self) -> Cause:
        return "transfer" if self._carried() else "handoff"

    @property
    def weight(self) -> int:
        return count_of(self._carried()) or 1


class StoreCopy(ToCopies, frozen=True):
    """Keep this for the client, which may come to you: what follows the sequence `base`."""

    moves: int
    """The client's own count of attaches at that stay."""
    owner: str
    base: int
    bursts: tuple[Burst, ...]

    def _carried(self) -> tuple[Burst, ...]:
        return self.bursts


class FeedCopy(ToCopies, frozen=True):
    """The holder has queued this; the client has acknowledged up to `base`."""

    base: int
    bursts: tuple[Burst, ...]

    def _carried(self) -> tuple[Burst, ...]:
        return self.bursts


class DropCopy(ToCopies, frozen=True):
    """The client is elsewhere, or was away for too long, or too much is stored for it."""


class CopyServed(Message, frozen=True):
    """The session is at the sender, which has everything: the queue of the stay `number` can go."""

    client: str
    number: int
    cause: ClassVar[Cause] = "handoff"


class Spread:
    """The copies of a session, as its holder knows them."""

    __state__ = State("roam-spread", saved=("number", "brokers", "end", "size_bytes", "is_trimmed_soon"))

    def __init__(self, number: int, brokers: Collection[str], end: int, size_bytes: int) -> None:
        self.number = number
        self.brokers = dict.fromkeys(brokers)
        self.end = end
        """The last sequence that the copies have."""
        self.size_bytes = size_bytes
        self.is_trimmed_soon = False
        """Whether the copies will be told what the client has acknowledged."""


class Replica:
    """A copy, at the broker where the client may appear."""

    __state__ = State("roam-replica", saved=("holder", "number", "moves", "owner", "queue"))

    def __init__(self, message: StoreCopy) -> None:
        self.holder = message.holder
        self.number = message.number
        self.moves = message.moves
        self.owner = message.owner
        self.queue = DeliveryQueue(STREAM, message.base)
        """Not in the broker's buffer: what is stored here is stored at the holder, too."""
        self.queue.extend(message.bursts)


class Roam(MultiHopHandoff):
    name = "roam"
    summary = "exactly once and in order; served at once where the client was expected, elsewhere by hops"
    draws_copies = True

    __state__ = State("roam", saved=("predictor", "figures", "held", "spreads", "copies"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.predictor = Predictor(host.id, settings.neighbour_graph)
        self.figures: Counter[str] = Counter()
        """Sessions that came from elsewhere: `hit` (a copy was here) or `miss`; clients that were `served`
        before their session came; `copies` made elsewhere, and those `recalled`."""
        self.held: dict[str, Session] = {}
        self.spreads: dict[str, Spread] = {}
        """Sessions that are here and have copies elsewhere."""
        self.copies: dict[str, Replica] = {}
        """Of sessions that are elsewhere."""

    @classmethod
    def check(cls, settings: Settings) -> None:
        if settings.neighbour_graph:
            parse_graph(settings.neighbour_graph)
            second_order(settings.neighbour_graph)
        if settings.copies_max < 0:
            raise InputError(f"copies_max {settings.copies_max}: valid is 0 or more")

    # --- the client is here: no copies, until it has stayed for a while ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        self.held[client] = session
        self.copies.pop(client, None)  # Of a session that was lost with its holder, if there is one.
        self.recall(client)
        super().on_attach(session, came_from, received)
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
            return  # It has come again, or is elsewhere.
        self.spread(session)
        if self.settings.context_timeout_s is not None:
            timeout_at = self.host.now + self.settings.context_timeout_s
            self.host.set_timer(timeout_at, ("give up", client, session.number))

    def go_on(self, client: str, hold: Hold) -> None:
        """When a handoff ends and the client has left meanwhile, the copies begin then."""
        was_live = hold.own is None
        super().go_on(client, hold)
        is_live = hold.own is None and self.holds.get(client) is hold
        session = self.held.get(client)
        if is_live and not was_live and session is not None and not self.host.is_attached(client):
            self.spread(session)

    def spread(self, session: Session) -> None:
        """Begin a copy wherever the client is likely to appear, within the budget."""
        client, queue = session.client, self.holds[session.client].queue
        if client in self.spreads or self.holds[client].own is not None or not session.subscriptions:
            return
        if self.host.is_attached(client) and queue.waiting:
            return  # What a slow client leaves in a full queue gets other sequences than in a copy.
        bursts = tuple(queue.bursts())
        size_bytes = sum(burst.size for burst in bursts)
        likely = self.likely_next(session)
        if not likely or size_bytes > self.settings.copy_bytes_max:
            return
        self.spreads[client] = Spread(session.number, likely, queue.base + len(queue), size_bytes)
        self.figures["copies"] += len(likely)
        moves, owner, here = session.moves, session.owner, self.host.id
        self.send_on(StoreCopy(client, here, session.number, tuple(likely), moves, owner, queue.base, bursts))

    def likely_next(self, session: Session) -> list[str]:
        likely = self.predictor.predict(session.last_broker)
        there = [one for one in likely if one != self.host.id and self.host.is_reachable(one)]
        return there[: self.settings.copies_max]

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        super().on_notification(owner, source, burst)
        spread = self.spreads.get(owner[0])
        if spread is not None and len(owner) == 2:
            self.feed(owner[0], spread, burst)

    def feed(self, client: str, spread: Spread, burst: Burst) -> None:
        """The copies get what was queued. The budget ends them, or a client that reads too slowly."""
        queue = self.holds[client].queue
        is_slow = self.host.is_attached(client) and bool(queue.waiting)
        is_first = len(queue) == burst.count
        spread.size_bytes = burst.size if is_first else spread.size_bytes + burst.size
        spread.end += burst.count
        if is_slow or not self.is_complete(queue, spread) or spread.size_bytes > self.settings.copy_bytes_max:
            self.recall(client)
            return
        self.send_feed(client, spread, (burst,))

    def send_feed(self, client: str, spread: Spread, bursts: tuple[Burst, ...]) -> None:
        base, brokers = self.holds[client].queue.base, tuple(spread.brokers)
        self.send_on(FeedCopy(client, self.host.id, spread.number, brokers, base, bursts))

    def on_acknowledged(self, client: str) -> None:
        super().on_acknowledged(client)
        spread = self.spreads.get(client)
        if spread is not None and not spread.is_trimmed_soon:
            spread.is_trimmed_soon = True
            self.host.set_timer(self.host.now + TRIM_AFTER_S, ("trim", client, spread.number))

    def trim(self, client: str) -> None:
        """The copies need not keep what the client has."""
        spread = self.spreads.get(client)
        if spread is not None:
            spread.is_trimmed_soon = False
            self.send_feed(client, spread, ())

    def is_complete(self, queue: DeliveryQueue, spread: Spread) -> bool:
        """Whether the queue ends where the copies end; not, if a full queue gave up what came last.

        What was given up at the front is in the copies, and has the same sequence there.
        """
        return queue.base + len(queue) == spread.end

    def recall(self, client: str, but: str = "") -> None:
        """The copies are of no use any more."""
        spread = self.spreads.pop(client, None)
        brokers = tuple(one for one in spread.brokers if one != but) if spread is not None else ()
        if spread is not None and brokers:
            self.figures["recalled"] += len(brokers)
            self.send_on(DropCopy(client, self.host.id, spread.number, brokers))

    def send_on(self, message: ToCopies) -> None:
        """Towards the copies, except one that is here; those of brokers that are gone are no copies."""
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
            if self.host.id not in message.brokers:
                return
        super().on_message(sender, message)

    # --- at the brokers where the client may appear ---

    def on_store_copy(self, sender: str, message: StoreCopy) -> None:
        copy = self.copies.get(message.client)
        if message.client not in self.holds and (copy is None or copy.number <= message.number):
            self.copies[message.client] = Replica(message)

    def copy_of(self, message: ToCopies) -> Replica | None:
        copy = self.copies.get(message.client)
        is_theirs = copy is not None and (copy.holder, copy.number) == (message.holder, message.number)
        return copy if is_theirs else None

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        copy = self.copy_of(message)
        if copy is not None:
            copy.queue.extend(message.bursts)
            copy.queue.acknowledge(message.base)
            if self.host.is_read(message.client, copy.queue):
                self.host.pump(message.client)

    def on_drop_copy(self, sender: str, message: DropCopy) -> None:
        if self.copy_of(message) is not None:
            del self.copies[message.client]

    def serve_ahead(self, client: str, owner: str, moves: int, received: Mapping[str, int]) -> None:
        """The client is here and its session is not: it reads from the copy, if it was nowhere else since."""
        copy = self.copies.get(client)
        if copy is not None and copy.owner == owner and moves == copy.moves + 1:
            self.figures["served"] += 1
            copy.queue.rewind(received.get(STREAM, 0))
            self.host.deliver_from(client, copy.queue)

    # --- the session follows: a multi-hop handoff whose list begins with the copy ---

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        del self.held[session.client]
        self.predictor.learn(session.last_broker, destination)
        super().on_depart(session, destination, received)

    def to_be_read(self, client: str, hold: Hold, destination: str) -> list[Reference]:
        """A copy at the destination comes first; what is left behind is read if the copy is not there."""
        spread = self.spreads.get(client)
        is_hit = (
            spread is not None and destination in spread.brokers and self.is_complete(hold.queue, spread)
        )
        self.recall(client, destination if is_hit else "")
        left = super().to_be_read(client, hold, destination)
        return [(destination, spread.number, COPY), *left] if spread is not None and is_hit else left

    def receive_token(self, message: SubMigration, sender: str) -> None:
        super().receive_token(message, sender)
        client = message.session.client
        hold, copy = self.holds[client], self.copies.pop(client, None)
        if not hold.segments or hold.segments[0][2] != COPY:
            self.figures["miss"] += 1
            return
        (_, number, _), *left = hold.segments
        if copy is None or copy.number != number:
            hold.segments = left  # The broker of the copy is gone, and the session stays here.
            return
        self.figures["hit"] += 1
        hold.queue, hold.segments = copy.queue, []
        hold.queue.acknowledge(message.base)  # Perhaps by a client that cannot say what it has received.
        for evicted_from, evicted in hold.queue.join(self.host.buffer):
            self.host.dropped(self.client_of(evicted_from) or client, evicted, "overflow")
        for broker, stay, _ in left:
            self.host.send(broker, CopyServed(client, stay))

    def on_copy_served(self, sender: str, message: CopyServed) -> None:
        self.segments.pop((message.client, message.number, "in"), None)

    # --- the rest ---

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.held[session.client]
        self.recall(session.client)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        """A broker that is gone keeps no copy; copies of its sessions stay while they are read."""
        for spread in self.spreads.values():
            spread.brokers = {one: None for one in spread.brokers if one not in brokers}
        self.copies = {
            client: copy for client, copy in self.copies.items()
            if copy.holder not in brokers or self.host.is_read(client, copy.queue)
        }  # fmt: skip
        super().on_lost(peers, brokers)

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        yield from super().stored()
        for client, copy in self.copies.items():
            yield client, copy.queue


register(Roam)
