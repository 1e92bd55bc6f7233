"""Pro-active context distribution (Gaddah, chapter 3), completed to exactly once and in order.

A client's broker keeps passive copies of its context (its subscriptions) at the brokers where the client
may go next, its neighbours (`neighbour_graph.py`). When the client disconnects, the copies become active:
each is a virtual subscriber, which stores what the client misses. When it reattaches at a neighbour,
delivery begins from what is stored there. The methods for the eight cases of figure 3.1:

    1  initial connection        surround      PassiveCopy to every neighbour
    2  disconnects               activate      ActivateCopy, then ForwardStored until acknowledged
    3  reconnects, same broker   deactivate    DeactivateCopy
    4  moves out                 on_depart     DeactivateCopy where the new broker needs it, else DeleteCopy
    5  moves in                  move_in       PassiveCopy to the neighbours that have no copy yet
    6  (un)subscribes            on_settled    PassiveCopy anew, or DeleteCopy
    7  context obtained          on_passive_copy, on_activate_copy
    8  times out                 on_deadline   DeleteCopy

A copy is absent, passive or active (figure 3.2). Its control attribute is the attach number of the holder
that spoke last: late messages of an earlier holder are ignored (the races of section 3.2).

What is completed:

- A store begins with holes: `proactive_stores.py`.
- The old broker remains in charge of what it stored until the broker where the client is has acknowledged.
  If the new broker had no active copy (unknown edge, or the client was faster than the notice of its
  leaving), the activation takes place at departure: the reactive fallback is the same exchange, later.
- Notifications that the client had not received when it left go ahead of the session to the broker where
  the client attaches, and not to every neighbour.
- A copy that has everything serves the client at once: `proactive_ahead.py`.
- Copies are activated only when a handoff is complete and the client's own changes
  have settled, so that old and new broker always speak of the same context.
- The old broker decides which passive copies stay in place at a move, and tells the new broker with the
  session; the neighbour lists of both ends might disagree.

At a timeout only the neighbours give up; the last broker stores on, for as long as its buffer lasts. A failed
broker comes back with its state, and links buffer messages for it meanwhile, so nothing is lost. The measures
of the thesis against failures (section 3.2, last part) are in `proactive_failure.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility.base import (
    STREAM,
    Host,
    OwnToken,
    Promise,
    Settings,
    queue_of,
    register,
)
from roamcast.mobility.neighbour_graph import NeighbourGraph, neighbours_of, parse_graph
from roamcast.mobility.prediction import Predictor, read_contexts
from roamcast.mobility.proactive_ahead import ReadingAhead
from roamcast.mobility.proactive_failure import Failures
from roamcast.mobility.proactive_messages import (
    ActivateCopy,
    ClientGone,
    DeactivateCopy,
    DeleteCopy,
    NeighbourList,
    PassiveCopy,
    ServeFromCopy,
    StoredBefore,
    Subscriptions,
)
from roamcast.mobility.proactive_state import Copy, Remote, Stay, Store, uncovered
from roamcast.mobility.shared_buffer import SharedBuffer
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State

__all__ = ["Proactive", "ProactiveOneCounter", "Stay", "Store"]


class Luggage(msgspec.Struct, frozen=True, array_like=True):
    """Data that the old broker sends with the session."""

    __state__ = State("proactive-luggage")

    left_in_place: list[str]
    """Brokers where passive copies stay."""
    base: int
    """Last sequence that the client has received."""
    stream: str = STREAM
    """Stream that `base` belongs to."""
    source: str = ""
    """Broker that sends the context and the stored notifications; "" for the old broker itself."""
    lent: dict[str, int] = {}
    """See `Stay.lent`."""


class Proactive(ReadingAhead):
    name = "proactive"
    summary = "exactly once and in order; neighbours store for clients that are away and may come to them"
    luggage_type = Luggage
    promise = Promise(lost=frozenset({"overflow"}))
    has_heartbeats = True

    __state__ = State(
        "proactive",
        saved=(
            "graph", "buffer", "figures", "current", "copies", "stores", "fed", "activations",
            "neighbour_lists", "failures", "_serial",
        ),
        derived=("predictor",),
    )  # fmt: skip

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.graph = NeighbourGraph(
            settings.neighbours_max,
            settings.neighbour_timeout_s,
            settings.neighbours_directed,
            settings.neighbours_online,
        )
        self._load(settings.neighbour_graph)
        self.buffer = SharedBuffer(host.buffer.limit_bytes)
        self.figures: Counter[str] = Counter()
        """Counters. Attaches with a session from another broker: `hit`, `hit_activating`, `miss`;
        `served_nearer`, `timeout`; contexts copied to neighbours (`copies`) and `activated` there; filters
        `propagated` to neighbours, and filters `covered` by others; neighbours `suspected` and `recovered`;
        contexts `missing`; copies `expired`."""
        self.current, self.copies = {}, {}
        self.stores, self.fed, self.activations = {}, {}, {}
        self.neighbour_lists: dict[str, tuple[str, ...]] = {}
        self.failures = Failures(self)
        self._serial = 0
        self._restore()

    def _restore(self) -> None:
        self.predictor = Predictor(self.host.id, self.settings.neighbour_graph)

    def _load(self, model: str) -> None:
        graph = parse_graph(model) if model else {}
        self.graph.load(neighbours_of(graph, self.host.id, self.settings.neighbours_directed))

    def take_settings(self, settings: Settings) -> None:
        self.graph.configure(
            settings.neighbours_max,
            settings.neighbour_timeout_s,
            settings.neighbours_directed,
            settings.neighbours_online,
        )
        self.failures.configure(settings)

    def take_model(self, model: str) -> None:
        self._load(model)
        self.predictor.take(self.host.id, model)

    @classmethod
    def check(cls, settings: Settings) -> None:
        if settings.neighbour_graph:
            parse_graph(settings.neighbour_graph)
            read_contexts(settings.neighbour_graph)
        Failures.check(settings)

    # --- cases 1, 3, 5: the client is here ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        if came_from == "":
            self.drop_copy(client)  # The copy belongs to a session that was lost with its holder's memory.
            stay = self.current[client] = Stay(session, self.open_store(client, 0))
        elif came_from == self.host.id:
            stay = self.current[client]
            # A copy that served the client still holds notifications to fetch, so it must not be deleted.
            self.forget_copy(stay, self.read_elsewhere(stay, received))
            self.deactivate(stay)
        else:
            stay = self.current[client] = self.move_in(session, came_from)
            if not self.host.is_reachable(came_from):
                self.failures.on_lost((came_from,))
        stay.is_away = stay.is_timed_out = False
        if self.host.is_attached(client):
            self.follow_reader(stay, received)
        queue = stay.store.queue
        if not self.host.is_read(client, queue):
            queue.rewind(received.get(queue.stream, 0))
            self.host.deliver_from(client, queue)
        self.try_finish(stay)

    def move_in(self, session: Session, came_from: str) -> Stay:
        """Make the copy, activated before the session arrived, the client's own store."""
        luggage = msgspec.msgpack.decode(session.luggage, type=Luggage)
        copy = self.copies.pop(session.client, None)
        if copy is not None and luggage.source and not (copy.late and copy.holder == luggage.source):
            self.end_copy(copy)
            copy = None
        if copy is None or copy.store is None:
            self.figures["miss"] += 1
            source, base, stream = luggage.source or came_from, luggage.base, luggage.stream
            store = self.failures.await_context(session.client, session.number - 1, base, stream, source)
            stay = Stay(session, store)
        else:
            complete = copy.store.complete
            self.figures["miss" if copy.late else "hit" if complete else "hit_activating"] += 1
            stay = Stay(session, copy.store)
            self.subscribe_rest(stay)
        stay.copies = {broker: Remote(is_known=True) for broker in luggage.left_in_place}
        stay.lent = dict(luggage.lent)
        stay.lent.pop(self.host.id, None)
        if self.graph.on_reconnect(came_from, self.host.now):
            self.tell_neighbours()
        return stay

    def subscribe_rest(self, stay: Stay) -> None:
        """Subscribe the filters that the context left out because other filters cover them."""
        store = stay.store
        for text, issued_at in stay.session.subscriptions.items():
            if text not in store.subscriptions:
                self.host.subscribe(store.owner, parse(text), issued_at)
                store.subscriptions[text] = issued_at

    def try_finish(self, stay: Stay) -> None:
        if stay.store.complete:
            self.host.handoff_finished(stay.session.client)
            self.surround(stay)

    def surround(self, stay: Stay) -> None:
        """Keep copies at the neighbours, passive or active, as far as the client's state allows."""
        client = stay.session.client
        if self.current.get(client) is not stay or not stay.store.complete or stay.changing:
            return
        if self.host.is_attached(client):
            self.propagate(stay)
        elif stay.is_away and not stay.is_timed_out:
            self.activate(stay)

    def propagate(self, stay: Stay) -> None:
        session = stay.session
        for broker in self.choose_neighbours(stay):
            if not stay.copies[broker].is_known:
                stay.copies[broker].is_known = True
                self.figures["copies"] += 1
                self.host.send(
                    broker, PassiveCopy(session.client, session.number, self.context(session.subscriptions))
                )

    def likely_next(self, session: Session) -> list[str]:
        stay = self.current.get(session.client)
        return list(stay.copies) if stay is not None else []

    def choose_neighbours(self, stay: Stay) -> list[str]:
        """Return the neighbours that are to have copies of the client's context."""
        session = stay.session
        # Without subscriptions there is nothing that could be stored anywhere.
        wanted = self.next_of(session) if session.subscriptions else []
        self.delete(stay, [broker for broker in stay.copies if broker not in wanted], session.number)
        for broker in wanted:
            stay.copies.setdefault(broker, Remote(is_known=False))
        return wanted

    def context(self, subscriptions: Mapping[str, float]) -> Subscriptions:
        """Return the subscriptions to propagate: those that no older subscription covers (eq. 3.3)."""
        chosen = uncovered(subscriptions)
        self.figures["covered"] += len(subscriptions) - len(chosen)
        self.figures["propagated"] += len(chosen)
        return chosen

    # --- case 2: the client disconnects ---

    def on_detach(self, session: Session) -> None:
        self.host.send(self.host.id, ClientGone(session.client, session.number))

    def on_client_gone(self, sender: str, message: ClientGone) -> None:
        stay = self.current.get(message.client)
        if stay is None or stay.session.number != message.number or self.host.is_attached(message.client):
            return
        stay.is_away = True
        if self.settings.context_timeout_s is not None:
            timeout_at = self.host.now + self.settings.context_timeout_s
            self.host.set_timer(timeout_at, (message.client, message.number))
        self.surround(stay)

    def activate(self, stay: Stay) -> None:
        session, queue = stay.session, stay.store.queue
        stay.is_active = True
        for broker in self.choose_neighbours(stay):
            remote = stay.copies[broker]
            if remote.activation:
                continue
            context = None if remote.is_known else self.context(session.subscriptions)
            self.figures["copies"] += context is not None
            self.figures["activated"] += 1
            remote.active_from, remote.active_base = queue.appended, queue.base + len(queue)
            remote.activation = self.send_activation(
                stay.store, broker, session.number, context, late=False, session=session
            )
            remote.is_known = True
            # Only clients that count their attaches are served ahead of their session.
            if session.moves >= 0:
                stay.lent[broker] = session.moves
        self.failures.watch()

    def deactivate(self, stay: Stay) -> None:
        stay.is_active = False
        for broker, remote in stay.copies.items():
            if remote.activation:
                self.forget_reader(stay.store, remote)
                self.send_deactivation(broker, stay.session, stay.session.number)

    def send_deactivation(self, broker: str, session: Session, number: int) -> None:
        self.host.send(broker, DeactivateCopy(session.client, number, session.moves))

    def delete(self, stay: Stay, brokers: Iterable[str], number: int) -> None:
        for broker in brokers:
            self.forget_reader(stay.store, stay.copies.pop(broker))
            self.host.send(broker, DeleteCopy(stay.session.client, number, stay.session.moves))

    # --- case 4: the client moves out ---

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        stay = self.current.pop(session.client)
        store, number = stay.store, session.number - 1
        queue = store.queue
        queue.rewind(received.get(queue.stream, 0))
        if self.graph.on_context_request(destination, self.host.now):
            self.tell_neighbours()
        source = self.read_elsewhere(stay, received)
        if source == destination:
            source = ""
            self.serve_reader(stay, destination)
        elif source:
            self.send_served(stay, source, destination, number, received)
        else:
            self.serve_destination(stay, destination, number)
        # Copies that the new broker needs stay in place; it learns of them with the session.
        needed = self.neighbour_lists.get(destination, ())
        left = [broker for broker, remote in stay.copies.items() if broker in needed and remote.is_known]
        has_attached = any(session.moves > moves for moves in stay.lent.values())
        lent = {} if has_attached else stay.lent
        session.luggage = msgspec.msgpack.encode(Luggage(left, queue.base, queue.stream, source, lent))
        self.host.hand_over(session, destination)
        if has_attached:
            self.end_lent(stay, number, (source, destination))
        for broker in left:
            remote = stay.copies.pop(broker)
            if remote.activation:
                self.forget_reader(store, remote)
                self.send_deactivation(broker, session, number)
        self.delete(stay, list(stay.copies), number)
        store.departed = True
        self.serve_readers(store)

    # --- what the destination of a move needs ---

    def serve_destination(self, stay: Stay, destination: str, number: int) -> None:
        """Give the destination an active copy and the earlier notifications, ahead of the session."""
        session, store = stay.session, stay.store
        client, base = session.client, store.queue.base
        remote = stay.copies.pop(destination, Remote(is_known=False))
        if remote.activation:
            stay.counted_on = remote
            before, entrusted = self.stored_before(stay), self.failures.entrust(stay, destination, number)
            if before or entrusted or base != remote.active_base:
                self.host.send(destination, StoredBefore(client, base, before, entrusted))
            return
        nearer = self.host.next_hop(destination)
        if nearer in stay.copies and stay.copies[nearer].complete:
            # A store on the way has the rest and sends it from there (section 3.4).
            self.figures["served_nearer"] += 1
            stay.counted_on = stay.copies.pop(nearer)
            stay.lent.pop(nearer, None)
            before, entrusted = self.stored_before(stay), self.failures.entrust(stay, destination, number)
            self.host.send(nearer, ServeFromCopy(client, destination, base, before, entrusted))
            return
        context = None if remote.is_known else self.context(session.subscriptions)
        self.send_activation(store, destination, number, context, late=True)

    def stored_before(self, stay: Stay) -> tuple[Burst, ...]:
        """Return what the client still misses from before the serving copy was activated."""
        assert stay.counted_on is not None
        queue = stay.store.queue
        return _first(queue.bursts(), stay.counted_on.active_from - queue.popped)

    def on_stored_before(self, sender: str, message: StoredBefore | ServeFromCopy) -> Store | None:
        store = self.failures.take(sender, message)
        if store is not None:
            after = store.queue.drain()
            store.queue = DeliveryQueue(store.queue.stream, message.base, self.buffer)
            for burst in (*message.bursts, *after):
                self.keep(store.queue, message.client, burst)
        return store

    def on_serve_from_copy(self, sender: str, message: ServeFromCopy) -> None:
        store = self.on_stored_before(sender, message)
        if store is not None:
            copy = self.copies.pop(message.client)
            store.departed = True
            self.send_activation(store, message.destination, copy.number, copy.subscriptions, late=True)

    # --- case 7: at the neighbours, a context is obtained ---

    def on_passive_copy(self, sender: str, message: PassiveCopy) -> None:
        if self.is_controlled(message.client, message.number):
            self.drop_copy(message.client)
            copy = Copy(sender, message.number, message.subscriptions, None, late=False)
            self.copies[message.client] = copy

    def on_activate_copy(self, sender: str, message: ActivateCopy) -> None:
        client = message.client
        if self.failures.fill(sender, message):
            return
        # A `late` activation comes just ahead of the session: a copy with a higher number is of an earlier,
        # lost session.
        is_foreign = not self.is_controlled(client, message.number, message.moves)
        if is_foreign and not message.late:
            return
        context = message.subscriptions
        if context is None and (is_foreign or client not in self.copies):
            self.failures.ask_for_context(sender, client, message.activation)
            return
        if context is None:
            context = self.copies[client].subscriptions
        store = self.open_store(client, message.base, sender, message.activation, message.stream)
        for burst in message.bursts:
            self.keep(store.queue, client, burst)
        self.subscribe_store(store, context)
        # Dropped only now, so that routes which the new store also needs are not taken down.
        self.drop_copy(client)
        self.copies[client] = Copy(
            sender, message.number, context, store, message.late, message.moves, message.owner
        )
        self.failures.watch()

    def on_deactivate_copy(self, sender: str, message: DeactivateCopy) -> None:
        copy = self.copies.get(message.client)
        if copy is not None and self.is_controlled(message.client, message.number, message.moves):
            self.drop_copy(message.client)
            self.copies[message.client] = Copy(sender, message.number, copy.subscriptions, None, late=False)

    def on_delete_copy(self, sender: str, message: DeleteCopy) -> None:
        if self.is_controlled(message.client, message.number, message.moves):
            self.drop_copy(message.client)

    def is_controlled(self, client: str, number: int, moves: int | None = None) -> bool:
        """True if the holder with this attach number controls the copy: no holder with a higher one has
        spoken.

        While the copy serves the client, only a holder that knows of a later attach has control.
        """
        copy = self.copies.get(client)
        if copy is None:
            return True
        return copy.number <= number and not (moves is not None and copy.is_kept_from(moves))

    def drop_copy(self, client: str) -> None:
        copy = self.copies.pop(client, None)
        if copy is not None:
            self.end_copy(copy)

    def end_copy(self, copy: Copy) -> None:
        if copy.store is not None:
            self.end(copy.store)

    def complete(self, store: Store) -> None:
        super().complete(store)
        stay = self.current.get(store.client)
        if stay is not None and stay.store is store:
            self.try_finish(stay)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        """Stop waiting for brokers that are gone, in either direction; what they stored is lost."""
        for (source, _), store in list(self.fed.items()):
            if source in brokers:
                self.complete(store)
        for stay in self.current.values():
            for broker in [broker for broker in stay.copies if broker in brokers]:
                self.forget_reader(stay.store, stay.copies.pop(broker))
        for store in list(self.stores.values()):
            for activation in [one for one, reader in store.readers.items() if reader.broker in brokers]:
                del store.readers[activation], self.activations[activation]
            self.serve_readers(store)
        self.failures.on_lost(brokers)
        for copy in self.copies.values():
            if copy.holder in brokers:
                copy.number = 0  # If the session was lost too, a new session counts from the beginning.

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        store = self.stores[owner[1]]
        stay = self.current.get(store.client)
        if not store.complete:
            store.early.append(burst)
        elif burst.is_picked and stay is not None and stay.store is store and stay.is_active:
            # A picked burst does not reach the copies: they begin anew behind it.
            self.deactivate(stay)
            self.append(store, burst)
            self.surround(stay)
        else:
            self.append(store, burst)

    # --- case 6: the client subscribes and unsubscribes ---

    def on_subscribe(self, session: Session, filter: Filter, token: Token) -> None:
        store = self.begin_change(session)
        store.subscriptions[filter.text] = self.host.now
        own_token = OwnToken((session.client, token))
        self.host.subscribe(store.owner, filter, self.host.now, "subscribe", own_token)

    def on_unsubscribe(self, session: Session, filter: Filter, token: Token) -> None:
        store = self.begin_change(session)
        del store.subscriptions[filter.text]
        self.host.unsubscribe(store.owner, filter, "subscribe", OwnToken((session.client, token)))

    def begin_change(self, session: Session) -> Store:
        """Mark all copies inactive and outdated until the change has settled."""
        stay = self.current[session.client]
        stay.changing += 1
        self.deactivate(stay)
        for remote in stay.copies.values():
            remote.is_known = False
        return stay.store

    def on_settled(self, token: Token) -> None:
        client, change = token
        stay = self.current[client]
        stay.changing -= 1
        self.host.settled(change)
        self.surround(stay)

    def on_end(self, session: Session) -> None:
        stay = self.current.pop(session.client)
        self.delete(stay, list(stay.copies), session.number)
        self.end(stay.store)

    # --- case 8: the client times out ---

    def on_deadline(self, token: Token) -> None:
        if self.failures.on_deadline(token):
            return
        client, number = token
        stay = self.current.get(client)
        if stay is not None and stay.is_away and stay.session.number == number:
            self.figures["timeout"] += 1
            stay.is_active, stay.is_timed_out = False, True
            self.delete(stay, list(stay.copies), number)

    # --- the neighbours ---

    def neighbours(self) -> list[str]:
        """Return where clients may go next, without brokers that are suspected to have failed."""
        return [one for one in self.graph.neighbours(self.host.now) if one not in self.failures.suspects]

    def next_of(self, session: Session) -> list[str]:
        """Return where this client may go next; uses the way it came if the model knows ways."""
        if not self.predictor.knows_ways:
            return self.neighbours()
        likely = self.predictor.predict(session.before, self.settings.neighbours_mass)
        there = [one for one in likely if one != self.host.id and one not in self.failures.suspects]
        return there[: self.settings.neighbours_max]

    def tell_neighbours(self) -> None:
        """Send the changed neighbour list to the neighbours, because case 4 needs it."""
        neighbours = self.neighbours()
        for broker in neighbours:
            self.host.send(broker, NeighbourList(tuple(neighbours)))

    def on_neighbour_list(self, sender: str, message: NeighbourList) -> None:
        self.neighbour_lists[sender] = message.neighbours

    # --- the rest ---

    def owner_of(self, session: Session) -> Owner | None:
        stay = self.current.get(session.client)
        return stay.store.owner if stay is not None else None

    def on_message(self, sender: str, message: Message) -> None:
        if not self.failures.on_message(sender, message):
            super().on_message(sender, message)

    def has_handler(self, kind: type[Message]) -> bool:
        return kind in self.failures.handlers or super().has_handler(kind)

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for store in self.stores.values():
            yield store.client, store.queue
            if store.early:
                yield store.client, queue_of(store.early)


def _first(bursts: Iterable[Burst], count: int) -> tuple[Burst, ...]:
    """Take `count` notifications from the front."""
    taken = []
    for burst in bursts:
        if count <= 0:
            break
        taken.append(burst if burst.count <= count else burst.head(count))
        count -= burst.count
    return tuple(taken)


class ProactiveOneCounter(Proactive):
    name = "proactive:one_counter"
    is_as_published = True
    summary = "one last number for all publishers, so notifications of other publishers may be lost"

    __state__ = State("proactive-published")

    def counter_of(self, burst: Burst) -> str:
        return ""


register(Proactive)
register(ProactiveOneCounter)
