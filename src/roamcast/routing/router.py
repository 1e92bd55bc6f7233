"""Reverse-path forwarding over an acyclic overlay: subscriptions by interface, and
updates to peers.

The matching table says which interfaces want a notification; an interface is a peer (its id) or a local owner
(a tuple, whatever the mobility protocol uses). A routing strategy decides which of its filters are forwarded
to the peers. With advertisements, a subscription travels only towards publishers that may match it.

Some protocols must know whose subscription an entry is, which is lost when filters are covered or merged. For
them there is a location table, too: (filter, subscriber) to next hop. It holds what every strategy collects
from its peers, but each entry is forwarded with its subscriber. The strategy then reduces the matching table,
link by link, and not the forwarded entries.

Settling: a broker may ask a peer, with an update, to say when every broker
behind it knows of all updates so far. The answers are gathered over the tree,
so the question is answered when the furthest broker has it.

Filters that depend on a client's own state travel unchanged, together with the
known state of that client; each broker derives the plain filter it needs
(`dependents.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from roamcast.errors import InputError
from roamcast.filters.filter import Filter
from roamcast.filters.own import owner_of
from roamcast.protocol.messages import Cause, Entry, Settled, Update
from roamcast.protocol.notification import Message
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.routing.aggregation import (
    AGGREGATES,
    FORWARDS_ALL,
    NO_CHANGE,
    STRATEGIES,
    Aggregate,
    Change,
    ReducedTable,
)
from roamcast.routing.collected import Collected
from roamcast.routing.dependents import Dependents, Instances, Wide
from roamcast.routing.matching import Interface, MatchingTable, Owner, Route
from roamcast.state import State

Token = tuple[Any, ...]
"""Value that a caller gets back when its request has settled."""


class _Answer(NamedTuple):
    """Continuation: answer the peer that asked."""

    peer: str
    message: Settled


class _Finish(NamedTuple):
    """Continuation: an unsubscription takes effect."""

    owner: Owner
    filter: Filter
    subscriber: str
    cause: Cause
    token: Token


_Then = _Answer | _Finish | Token


class _PeerState:
    """State agreed with one peer, and changes about to be sent to it."""

    __state__ = State(
        "router-peer",
        saved=(
            "aggregate", "advertised", "spread", "depending", "staged", "staged_whereabouts",
            "staged_advertise", "staged_unadvertise", "sent", "asked", "settled",
        ),
    )  # fmt: skip

    def __init__(self, aggregate: Aggregate | None) -> None:
        self.aggregate = aggregate
        self.advertised: dict[Filter, int] = {}
        """Advertisements from behind the peer."""
        self.spread: dict[Filter, int] = {}
        """Advertisements from elsewhere, reference-counted; equal ones are forwarded once."""
        self.depending: dict[str, int] = {}
        """Client to the number of forwarded filters that depend on its state."""
        self.staged: list[Change] = []
        self.staged_whereabouts: dict[str, None] = {}
        self.staged_advertise: list[Filter] = []
        self.staged_unadvertise: list[Filter] = []
        self.sent = 0
        """Updates sent; the peer answers with these numbers."""
        self.asked = 0
        self.settled = 0

    def wants(self, filter: Filter, uses_advertisements: bool) -> bool:
        """True if the peer must be told of a filter from elsewhere."""
        if self.aggregate is None:
            return False
        return not uses_advertisements or _overlaps_any(self.advertised, filter)

    def stage(self, change: Change) -> None:
        """Stage a change of the forwarded set."""
        if change is NO_CHANGE:
            return
        self.staged.append(change)
        for entry in change.subscribe:
            if entry[0].own:
                client = owner_of(entry[0])
                self.depending[client] = self.depending.get(client, 0) + 1
                self.staged_whereabouts[client] = None
        for entry in change.unsubscribe:
            if entry[0].own:
                client = owner_of(entry[0])
                self.depending[client] -= 1
                if not self.depending[client]:
                    del self.depending[client]
                    self.staged_whereabouts.pop(client, None)

    @property
    def is_staged(self) -> bool:
        return bool(
            self.staged or self.staged_whereabouts or self.staged_advertise or self.staged_unadvertise
        )

    def take_update(self, cause: Cause, flush: bool, dependents: Dependents) -> Update:
        """Return and clear the staged changes, as one update."""
        change = _joined(self.staged)
        whereabouts: tuple[Whereabouts, ...] = ()
        if self.staged_whereabouts:
            known = map(dependents.known, self.staged_whereabouts)
            whereabouts = tuple(one for one in known if one is not None)
            self.staged_whereabouts = {}
        update = Update(
            *change, tuple(self.staged_advertise), tuple(self.staged_unadvertise),
            flush=flush, cause=cause, whereabouts=whereabouts,
        )  # fmt: skip
        self.staged, self.staged_advertise, self.staged_unadvertise = [], [], []
        return update


def _lift_barrier_1(fields: dict[str, Any]) -> None:
    fields["is_strict"] = False


class _Barrier:
    """Peers that must settle, and the continuation, as data."""

    __slots__ = ("is_strict", "then", "waiting")

    __state__ = State("router-barrier", 2, lifts={1: _lift_barrier_1})

    def __init__(self, waiting: dict[str, int], then: _Then, is_strict: bool = False) -> None:
        self.waiting = waiting
        self.then = then
        self.is_strict = is_strict
        """True to wait for peers whose links are down, too."""


def _lift_1(fields: dict[str, Any]) -> None:
    fields["_collected"], fields["_unheard"] = Collected.of_entries(fields["_collected"]), {}


class Router:
    """The tables of one broker, and the updates they cause."""

    __state__ = State(
        "router",
        2,
        saved=(
            "strategy", "uses_advertisements", "table", "dependents", "_round_trips_s", "_peers",
            "_collected", "_ahead", "_diverted", "_local_advertisements", "_barriers", "_unheard",
        ),
        derived=("_send", "_settled", "_ways", "_client_named"),
        lifts={1: _lift_1},
    )  # fmt: skip

    def __init__(
        self,
        strategy: str,
        send: Callable[[str, Message], None],
        settled: Callable[[Token], None],
        advertisements: bool = False,
        outside: frozenset[str] | None = None,
        instances: Instances | None = None,
        locates: bool = False,
    ) -> None:
        """With `locates`, entries keep the names of their subscribers, whatever the strategy."""
        if strategy not in STRATEGIES:
            raise InputError(f"routing strategy {strategy!r}: valid are {', '.join(STRATEGIES)}")
        if strategy == "flooding" and advertisements:
            raise InputError("flooding forwards no subscriptions, so advertisements have no use with it")
        self.strategy = strategy
        self.uses_advertisements = advertisements
        reduces = locates and strategy not in ("flooding", FORWARDS_ALL)
        self.table = ReducedTable(strategy, outside) if reduces else MatchingTable(outside)
        self.dependents = Dependents(self.table, instances or Wide())
        self._round_trips_s: dict[str, float] = {}
        """Measured round trips to peers; infinite until measured."""
        self.connect(send, settled)
        self._peers: dict[str, _PeerState] = {}
        self._collected = Collected()
        self._ahead: dict[tuple[str, Entry], int] = {}
        """Unsubscriptions of peers that arrived before the subscription they remove (see
        `end_relocation`)."""
        self._diverted: dict[str, Interface] = {}
        """Moving subscribers to the interface that gets their notifications, whatever other entries they
        have."""
        self._local_advertisements: dict[Filter, int] = {}
        self._barriers: list[_Barrier] = []
        self._unheard: dict[str, None] = {}
        """Peers whose links are down: updates are sent to them, but not waited for."""

    def _restore(self) -> None:
        self._collected.shorten()

    def connect(self, send: Callable[[str, Message], None], settled: Callable[[Token], None]) -> None:
        """Set the functions that send updates and report settlement; repeated after thawing."""
        self._send = send
        self._settled = settled
        self._ways: dict[str, dict[Interface, int]] | None = None
        """Client to the interfaces of its entries, with counts; None until `way_to` is first called."""
        self._client_named: Callable[[str], str] = str

    # --- the overlay ---

    @property
    def peers(self) -> list[str]:
        return list(self._peers)

    @property
    def _forwards(self) -> str:
        """The strategy by which entries are forwarded."""
        return FORWARDS_ALL if isinstance(self.table, ReducedTable) else self.strategy

    @property
    def size(self) -> int:
        """Entries of the routing table: a filter, where it came from and, if that is kept, whose it is.

        If both tables are kept, this is the size of the location table; `len(router.table)` is that of the
        other.
        """
        return len(self._collected)

    def collected(self, peer: str) -> Mapping[Entry, int]:
        """Return what a peer has subscribed to, with counts."""
        return self._collected.of(peer)

    def advertised(self, peer: str) -> Mapping[Filter, int]:
        """Return what a peer has advertised, with counts."""
        state = self._peers.get(peer)
        return state.advertised if state is not None else {}

    def forwarded(self, peer: str) -> list[Entry]:
        """Return the filters forwarded to a peer."""
        state = self._peers.get(peer)
        return state.aggregate.forwarded() if state is not None and state.aggregate is not None else []

    def has_peer(self, peer: str) -> bool:
        return peer in self._peers

    def add_peer(self, peer: str) -> None:
        """Add a neighbour, and send it all subscriptions and advertisements from elsewhere."""
        aggregate = AGGREGATES[self._forwards]() if self._forwards in AGGREGATES else None
        state = _PeerState(aggregate)
        state.spread = dict(self._local_advertisements)
        for other in self._peers.values():
            for filter in other.advertised:
                state.spread[filter] = state.spread.get(filter, 0) + 1
        self._peers[peer] = state
        if self.uses_advertisements:
            state.staged_advertise = list(state.spread)
        elif aggregate is not None:
            for _, entries in self._collected:
                for entry in entries:
                    state.stage(aggregate.add(entry))
        self._commit("subscribe")

    def link_changed(self, peer: str, is_up: bool) -> None:
        """Settle without a peer while its link is down.

        Changes made meanwhile on this side of the link reach the peer later, in order.
        """
        if is_up:
            self._unheard.pop(peer, None)
        else:
            self._unheard[peer] = None
            self._settle(peer, None, is_down=True)

    def remove_peer(self, peer: str) -> None:
        """Remove a neighbour for good: its subscriptions and advertisements are withdrawn, and nothing waits
        for it."""
        for entry, count in list(self._collected.of(peer).items()):
            for _ in range(count):
                self._release(peer, entry)
        for filter, count in list(self._peers[peer].advertised.items()):
            for _ in range(count):
                self._on_unadvertised(peer, filter)
        del self._peers[peer]
        self._unheard.pop(peer, None)
        self._ahead = {key: count for key, count in self._ahead.items() if key[0] != peer}
        self._round_trips_s.pop(peer, None)
        self.dependents.forget_unused()
        self._commit("subscribe")
        self._settle(peer, None)

    # --- routing ---

    @property
    def known_routes(self) -> Mapping[bytes, Route]:
        """Cached routes; `route` computes others."""
        return {} if self.strategy == "flooding" else self.table.routes

    def route(self, attributes: bytes) -> Route:
        """Return the interfaces that want a notification with these attributes; the caller leaves out its
        source."""
        table = self.table
        route = table.routes.get(attributes) or table.route(attributes)
        if self.strategy == "flooding":
            return tuple(self._peers), route[1], route[2]
        return route

    # --- local clients ---

    def subscribe(
        self, owner: Owner, filter: Filter, subscriber: str, cause: Cause, token: Token | None = None
    ) -> None:
        """Subscribe a local owner; the token comes back once every broker that must know does."""
        self._collect(owner, (filter, subscriber))
        self._commit(cause, then=token)

    def unsubscribe(
        self, owner: Owner, filter: Filter, subscriber: str, cause: Cause, token: Token | None = None
    ) -> None:
        """Unsubscribe a local owner.

        Without a token this takes effect at once. With a token, notifications published before this call are
        still owed: first everything under way is flushed over the existing routes, and only then are the
        routes removed.
        """
        if token is None:
            self._release(owner, (filter, subscriber))
            self._commit(cause)
        else:
            self._commit(cause, then=_Finish(owner, filter, subscriber, cause, token), flush=True)

    def advertise(self, filter: Filter, token: Token) -> None:
        """A local publisher promises to publish within this filter.

        The request to settle also flushes. So when its answer arrives, all overlapping subscriptions have
        arrived from the brokers that know the advertisement.
        """
        self._local_advertisements[filter] = self._local_advertisements.get(filter, 0) + 1
        if not self.uses_advertisements:
            self._settled(token)
            return
        self._spread(None, filter, +1)
        self._commit("subscribe", then=token, flush=True)

    def unadvertise(self, filter: Filter) -> None:
        self._local_advertisements[filter] -= 1
        if not self._local_advertisements[filter]:
            del self._local_advertisements[filter]
        if self.uses_advertisements:
            self._spread(None, filter, -1)
            self._commit("subscribe")

    def relocate(
        self,
        filters: Iterable[Filter],
        subscriber: str,
        source: Interface,
        target: Interface,
        update: Update | None = None,
    ) -> Update | None:
        """Move a subscriber's filters from the source interface to the target.

        Its subscription moves over one link at a time: the broker that it leaves calls this with the peer as
        target, and sends the returned update along; the peer calls this with that `update`. Each assumes that
        the other forwards the filters to it from now on; exceptions (equal filters were forwarded before, or
        others cover them) are stated in the update. No other broker is involved.
        """
        entries = [(filter, subscriber) for filter in filters]
        # In the form in which a peer sends them: most strategies omit the subscriber.
        from_peer = entries if self._forwards == FORWARDS_ALL else [(filter, "") for filter, _ in entries]
        for entry in from_peer if isinstance(target, str) else entries:
            self._collect(target, entry)
        if isinstance(source, str):
            self._apply(source, update or Update())
            # The source has these already.
            assumed = tuple(from_peer)
            state = self._peers[source]
            state.staged.append(Change(unsubscribe=assumed))
            if self.dependents.heard_from(subscriber) == source:
                state.staged_whereabouts.pop(subscriber, None)
        else:
            for entry in entries:
                self._release(source, entry)
        return self._carry(target if isinstance(target, str) else None)

    def end_relocation(self, filters: Iterable[Filter], subscriber: str, peer: str) -> None:
        """End a relocation whose source broker is gone, after a peer has relocated the filters.

        The filters that the peer gave up without being told to are sent to it again, because the broker that
        detects the loss withdraws them, too. If the withdrawal came first, the peer remembers it (`_ahead`).
        """
        entries = tuple((filter, subscriber) for filter in filters)
        for entry in entries:
            self._collect(peer, entry)
        self._peers[peer].staged.append(Change(subscribe=entries))
        self._commit("handoff")

    def _carry(self, peer: str | None) -> Update | None:
        """Send what is staged, but return the update for this peer, which the caller sends along."""
        carried = None
        if peer is not None:
            state = self._peers[peer]
            state.sent += 1
            carried = state.take_update("handoff", flush=False, dependents=self.dependents)
        self._commit("handoff")
        return carried

    def direction(self, filters: Iterable[Filter], subscriber: str) -> Interface | None:
        """Return the interface that gets this subscriber's notifications; None if unknown."""
        if subscriber in self._diverted:
            return self._diverted[subscriber]
        return self._collected.holder(filters, subscriber)

    def way_to(self, client: str, client_named: Callable[[str], str]) -> Interface | None:
        """Return where a client's notifications go; if it has no entries, the only peer that sends any.

        `client_named`, always the same function, returns the client of a subscriber's name.
        """
        for subscriber, interface in self._diverted.items():
            if client_named(subscriber) == client:
                return interface
        if self._ways is None:
            self._ways, self._client_named = {}, client_named
            for interface, collected in self._collected:
                for _, subscriber in collected:
                    self._count_way(interface, subscriber, +1)
        ways = self._ways.get(client)
        if ways:
            # Peers before local owners, in an order that does not depend on when the index was made.
            return min(ways, key=lambda one: (not isinstance(one, str), str(one)))
        producing = [peer for peer, state in self._peers.items() if state.advertised]
        return producing[0] if len(producing) == 1 else None

    def _count_way(self, interface: Interface, subscriber: str, change: int) -> None:
        """Update the index of `way_to`, if it exists."""
        if self._ways is None:
            return
        ways = self._ways.setdefault(self._client_named(subscriber), {})
        ways[interface] = ways.get(interface, 0) + change
        if not ways[interface]:
            del ways[interface]
        if not ways:
            del self._ways[self._client_named(subscriber)]

    def divert(
        self,
        filters: Iterable[Filter],
        subscriber: str,
        target: Interface,
        onward: str | None,
        update: Update | None = None,
    ) -> Update | None:
        """Divert a subscriber: its notifications go to the target and nowhere else.

        Its entries from other interfaces stay until their makers withdraw them, so updates between brokers
        continue as usual; but nothing is forwarded for these entries. With a peer as target, `update` holds
        its subscriptions. Returns the update for the peer `onward`, so that it can travel with the message.
        """
        entries = [(filter, subscriber) for filter in filters]
        before = self.direction([filter for filter, _ in entries], subscriber)
        for entry in entries:
            if before is not None and self._collected.has(before, entry):
                self._remove_route(entry[0], before)
        self._diverted[subscriber] = target
        for entry in entries:
            if self._collected.has(target, entry):
                self._add_route(entry[0], target)
        if isinstance(target, str):
            self._apply(target, update or Update())
        else:
            for entry in entries:
                self._collect(target, entry)
        return self._carry(onward)

    def withdraw(
        self,
        filters: Iterable[Filter],
        subscriber: str,
        source: Interface,
        onward: str | None,
        update: Update | None = None,
        last: bool = True,
    ) -> Update | None:
        """End a diversion: remove the entries from the former direction.

        With a peer as source, `update` holds what it withdraws. Of several diversions of one subscriber only
        the last one to end gives the routes back to the entries.
        """
        if isinstance(source, str):
            self._apply(source, update or Update())
        else:
            for filter in filters:
                self._release(source, (filter, subscriber))
        if last:
            del self._diverted[subscriber]
        return self._carry(onward)

    def _is_routed(self, interface: Interface, entry: Entry) -> bool:
        return self._diverted.get(entry[1], interface) == interface

    # --- the table ---

    def _add_route(self, filter: Filter, interface: Interface) -> None:
        (self.dependents if filter.own else self.table).add(filter, interface)

    def _remove_route(self, filter: Filter, interface: Interface) -> None:
        (self.dependents if filter.own else self.table).remove(filter, interface)

    def listen(self, owner: Owner, filter: Filter) -> None:
        """Let a local owner receive what passes; no peer is told."""
        if filter.own:
            self._note_use(filter, +1)
        self._add_route(filter, owner)

    def unlisten(self, owner: Owner, filter: Filter) -> None:
        self._remove_route(filter, owner)
        if filter.own:
            self._note_use(filter, -1)
        self.dependents.forget_unused()

    # --- state of clients, on which filters depend ---

    def locate(self, whereabouts: Whereabouts, cause: Cause, token: Token | None = None) -> None:
        """Note a change of the own state of a client whose session is here; the token as in `subscribe`."""
        if self.dependents.locate(whereabouts):
            self._stage_whereabouts(whereabouts.client, None)
        self._commit(cause, then=token)

    def relocate_client(self, whereabouts: Whereabouts) -> None:
        """Note that a client's session moved here: its distance from other brokers changed."""
        self.dependents.locate(whereabouts)
        self._stage_whereabouts(whereabouts.client, None)
        self._commit("handoff")

    def settle(self, cause: Cause, token: Token, flush: bool = False) -> None:
        """Return the token once every broker that must know all updates so far does.

        With `flush`, once every broker has handled all earlier messages, even across links that are down now.
        """
        self._commit(cause, then=token, flush=flush, strict=flush)

    def depart(self, client: str) -> None:
        """Note that the client's session is no longer here."""
        self.dependents.depart(client)
        self.dependents.forget_unused()

    def hear_of(self, whereabouts: Whereabouts) -> None:
        """Take a broker's news of a client, before a message that needs it."""
        self.dependents.use(whereabouts.client, +1)
        if self.dependents.hear_of(whereabouts):
            self._stage_whereabouts(whereabouts.client, None)

    def heard(self, whereabouts: Whereabouts) -> None:
        """End the effect of `hear_of`, after that message."""
        self.dependents.use(whereabouts.client, -1)
        self._commit("handoff")

    def measure(self, peer: str, round_trip_s: float) -> None:
        """Seconds of the round trip to a peer."""
        self._round_trips_s[peer] = round_trip_s
        for client in self.dependents.measure(peer, round_trip_s):
            self._stage_whereabouts(client, peer)
        self._commit("subscribe")

    def _learn(self, peer: str, whereabouts: Whereabouts) -> None:
        round_trip_s = self._round_trips_s.get(peer, float("inf"))
        if self.dependents.learn(whereabouts, peer, round_trip_s):
            self._stage_whereabouts(whereabouts.client, peer)

    def _stage_whereabouts(self, client: str, source: str | None) -> None:
        """Stage news of a client for the peers that depend on it."""
        for peer, state in self._peers.items():
            if peer != source and client in state.depending:
                state.staged_whereabouts[client] = None

    def _note_use(self, filter: Filter, change: int) -> None:
        """Count the use of a filter that depends on its client's own state."""
        self.dependents.use(owner_of(filter), change)

    # --- peers ---

    def on_update(self, peer: str, update: Update) -> None:
        self._apply(peer, update)
        if update.settle:
            answer = _Answer(peer, Settled(update.settle, update.cause))
            self._commit(update.cause, peer, answer, update.flush, update.strict)
        else:
            self._commit(update.cause)

    def _apply(self, peer: str, update: Update) -> None:
        """Apply a peer's subscriptions and advertisements, and stage the consequences."""
        for whereabouts in update.whereabouts:
            self._learn(peer, whereabouts)
        for filter in update.advertise:
            self._on_advertised(peer, filter)
        for entry in update.subscribe:
            self._collect(peer, entry)
        for entry in update.unsubscribe:
            self._release(peer, entry)
        for filter in update.unadvertise:
            self._on_unadvertised(peer, filter)

    def on_settled(self, peer: str, message: Settled) -> None:
        state = self._peers[peer]
        state.settled = max(state.settled, message.number)
        self._settle(peer, message.number)

    def _settle(self, peer: str, number: int | None, is_down: bool = False) -> None:
        """Stop waiting for a peer up to this update number, or for all its updates."""
        finished = []
        for barrier in self._barriers:
            awaited = barrier.waiting.get(peer)
            if awaited is None or (is_down and barrier.is_strict):
                continue
            if number is not None and awaited > number:
                # Later barriers wait for later answers.
                break
            del barrier.waiting[peer]
            if not barrier.waiting:
                finished.append(barrier)
        for barrier in finished:
            self._barriers.remove(barrier)
        for barrier in finished:
            self._continue(barrier.then)

    def unfinished(self) -> list[str]:
        """Settlements that peers have not answered yet, and subscribers still on the move."""
        barriers = [f"{barrier.then} waits for {', '.join(barrier.waiting)}" for barrier in self._barriers]
        return barriers + [f"{client} is diverted to {target}" for client, target in self._diverted.items()]

    # --- subscriptions on their way ---

    def _collect(self, interface: Interface, entry: Entry) -> None:
        filter = entry[0]
        if self._ahead and isinstance(interface, str) and (interface, entry) in self._ahead:
            self._count_ahead(interface, entry, -1)
            return
        if filter.own:
            self._note_use(filter, +1)
        interface = self._collected.same(interface)
        if not self._diverted or self._is_routed(interface, entry):
            self._add_route(filter, interface)
        if self._collected.add(interface, entry) == 1:
            self._count_way(interface, entry[1], +1)
            for peer, state in self._peers.items():
                if peer != interface and state.wants(filter, self.uses_advertisements):
                    state.stage(state.aggregate.add(entry))  # type: ignore[union-attr]

    def _count_ahead(self, peer: str, entry: Entry, change: int) -> None:
        count = self._ahead[peer, entry] = self._ahead.get((peer, entry), 0) + change
        if not count:
            del self._ahead[peer, entry]

    def _release(self, interface: Interface, entry: Entry) -> None:
        filter = entry[0]
        if isinstance(interface, str) and not self._collected.has(interface, entry):
            self._count_ahead(interface, entry, +1)
            return
        if not self._diverted or self._is_routed(interface, entry):
            self._remove_route(filter, interface)
        if filter.own:
            self._note_use(filter, -1)
        if self._collected.remove(interface, entry):
            return
        self._count_way(interface, entry[1], -1)
        for peer, state in self._peers.items():
            if peer != interface and state.wants(filter, self.uses_advertisements):
                state.stage(state.aggregate.remove(entry))  # type: ignore[union-attr]

    # --- advertisements ---

    def _on_advertised(self, peer: str, filter: Filter) -> None:
        """Forward overlapping subscriptions to a peer with a publisher behind it."""
        state = self._peers[peer]
        already = dict(state.advertised)
        state.advertised[filter] = already.get(filter, 0) + 1
        if filter in already:
            return
        for entry in self._collected_elsewhere(peer, filter):
            if state.aggregate is not None and not _overlaps_any(already, entry[0]):
                state.stage(state.aggregate.add(entry))
        self._spread(peer, filter, +1)

    def _on_unadvertised(self, peer: str, filter: Filter) -> None:
        state = self._peers[peer]
        state.advertised[filter] -= 1
        if state.advertised[filter]:
            return
        del state.advertised[filter]
        for entry in self._collected_elsewhere(peer, filter):
            if state.aggregate is not None and not _overlaps_any(state.advertised, entry[0]):
                state.stage(state.aggregate.remove(entry))
        self._spread(peer, filter, -1)

    def _collected_elsewhere(self, peer: str, filter: Filter) -> list[Entry]:
        """Return entries from all other interfaces that overlap the filter."""
        return [
            entry
            for interface, entries in self._collected
            if interface != peer
            for entry in entries
            if entry[0].overlaps(filter)
        ]

    def _spread(self, source: str | None, filter: Filter, change: int) -> None:
        for peer, state in self._peers.items():
            if peer == source:
                continue
            before = state.spread.get(filter, 0)
            state.spread[filter] = before + change
            if before == 0:
                state.staged_advertise.append(filter)
            elif before + change == 0:
                del state.spread[filter]
                state.staged_unadvertise.append(filter)

    # --- sending, and settling ---

    def _commit(
        self,
        cause: Cause,
        asker: str | None = None,
        then: _Then | None = None,
        flush: bool = False,
        strict: bool = False,
    ) -> None:
        """Send staged updates, one per peer; run `then` when all peers but the asker have settled.

        A peer is asked if it is sent an update. `flush` asks the others, too, so that their answers follow
        everything they had under way.
        """
        waiting = {}
        for peer, state in self._peers.items():
            if then is None and not state.is_staged:
                continue
            update = state.take_update(cause, flush, self.dependents)
            news = update.is_news
            must_answer = then is not None and peer != asker and (flush or news or state.settled < state.sent)
            if news or (must_answer and (flush or state.asked < state.sent)):
                state.sent += 1
                if must_answer:
                    state.asked = state.sent
                    update = msgspec.structs.replace(update, settle=state.sent, strict=strict)
                self._send(peer, update)
            if must_answer and (strict or peer not in self._unheard):
                waiting[peer] = state.asked
        self.dependents.forget_unused()
        if then is None:
            return
        if waiting:
            self._barriers.append(_Barrier(waiting, then, strict))
        else:
            self._continue(then)

    def _continue(self, then: _Then) -> None:
        if isinstance(then, _Answer):
            if then.peer in self._peers:
                self._send(then.peer, then.message)
        elif isinstance(then, _Finish):
            self.unsubscribe(then.owner, then.filter, then.subscriber, then.cause)
            self._settled(then.token)
        else:
            self._settled(then)


def _overlaps_any(advertised: Iterable[Filter], filter: Filter) -> bool:
    return any(filter.overlaps(one) for one in advertised)


def _joined(changes: Sequence[Change]) -> Change:
    """Combine several changes: additions and removals of the same entry cancel out."""
    if len(changes) == 1:
        return changes[0]
    if len(changes) == 2 and changes[0] == changes[1][::-1]:
        return NO_CHANGE  # A client moves: what it leaves and where it goes are both this broker's.
    net: dict[Entry, int] = {}
    for change in changes:
        for entry in change.subscribe:
            net[entry] = net.get(entry, 0) + 1
        for entry in change.unsubscribe:
            net[entry] = net.get(entry, 0) - 1
    subscribe: list[Entry] = []
    unsubscribe: list[Entry] = []
    for entry, count in net.items():
        if count:
            (subscribe if count > 0 else unsubscribe).append(entry)
    return Change(tuple(subscribe), tuple(unsubscribe))


__all__ = ["STRATEGIES", "Interface", "MatchingTable", "Owner", "Route", "Router"]
