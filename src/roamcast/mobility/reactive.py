"""Reactive handoff by message transfer (Gaddah 4.3.2, fig. 4.2; JEDI and SIENA as told in 2.4.1).

The broker that a client leaves goes on storing for it. When the client has
reattached, the new broker requests what the old one has stored and meanwhile
subscribes and stores, too. The old broker ends its subscription, forwards what it
has and forgets the client. The new one merges both and delivers in publishing
order. In JEDI's words: `Leave` is moveOut, for clients that say so; for the
others the broker notices. `Hello` is moveIn.

| Gaddah 4.3.2 | here |
| --- | --- |
| 1 to 3: the subscriber registers with a broker | `on_attach` |
| 4: it disconnects, and its broker stores for it | `on_detach`, `on_notification` |
| 5: it reconnects to the proxy of another broker | `on_attach` |
| 6A to 9: that proxy requests what is stored, and subscribes | `move_in`, `request`, `subscribe` |
| 10 to 13: the old proxy forwards and forgets | `on_request_buffered`, `try_forward` |
| 14, 15: both are merged and delivered in publishing order | `on_forward_buffered`, `merge` |
| not in the thesis: a broker that is gone for good | `on_lost`, `do_without` |

The attach request is the request of step 6A. It says what the client has received,
and what is stored at that moment comes back with the session: one round trip until
the client reads. Only now does the new broker know the subscriptions, which in the
thesis the client's mobility library brings along (step 5). So the old broker goes on
storing until the new one, which subscribes, asks for the rest (`RequestBuffered`).

A client that is gone again before its session came has not reconnected: what came
with the session waits beside it, and the next broker where the client is found
requests the rest from where it is stored.

What goes wrong as published, always within one propagation delay of a move-in:

- Duplicates: the merge removes none. Where notifications reach the new broker
  without delay (flooding, or somebody there wants the same), both brokers store
  what arrives between the subscription here and the end of the one there.
- Losses: the request may overtake the subscription, since both set out together.
  A broker between the two that has seen only the request still sends to the old
  broker, which no longer stores.

`reactive:merged` mends both, and then loses, repeats and reorders nothing. It
subscribes first and requests behind that, so that along the way everyone knows
the new place before the old one is given up; and of what both brokers stored it
takes one. No waiting time is needed: links do not overtake, so whatever the old
broker had before the request arrived is here before its answer is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

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
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.state import State


class RequestBuffered(Message, frozen=True):
    """Steps 6A to 9: forward what the stay of this number stores, for the stay `number` at the sender."""

    client: str
    old_number: int
    number: int
    cause: ClassVar[Cause] = "handoff"


class ForwardBuffered(Message, frozen=True):
    """Steps 10 to 13: what was stored since the session left."""

    client: str
    number: int
    bursts: tuple[Burst, ...]

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class MoveIn(msgspec.Struct, frozen=True, array_like=True):
    """What travels with the session."""

    __state__ = State("reactive-move-in")

    broker: str
    """The broker that stores for the client…"""
    number: int
    """… and the attach number of the move-in there."""
    base: int = 0
    """How far the client has acknowledged."""


class ProxyObject:
    """What a broker keeps for a client: from its move-in there until the next broker has fetched it."""

    __state__ = State(
        "proxy-object",
        saved=("queue", "own", "merged", "filters", "source", "requested_by", "next_number"),
    )  # fmt: skip

    def __init__(self, queue: DeliveryQueue, own: DeliveryQueue, merged: bool) -> None:
        self.queue = queue
        """From which the client reads."""
        self.own = own
        """What is stored here until everything that comes before it is in the queue."""
        self.merged = merged
        """Whether what the old broker had is here (or there was none)."""
        self.filters: list[str] = []
        """Its subscriptions, as they were when the session left."""
        self.source = ""
        """The broker that was asked for what is missing."""
        self.requested_by = ""
        self.next_number = 0


class Reactive(MobilityProtocol):
    name = "reactive"
    summary = "fetched after attach; loses and repeats what is published within one delay of a move-in"
    promise = Promise(lost=frozenset({"move_in", "overflow"}), duplicate=frozenset({"move_in"}))

    __state__ = State("reactive", saved=("proxies", "current", "ahead"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.proxies: dict[tuple[str, int], ProxyObject] = {}
        """By client and the attach number of its move-in."""
        self.current: dict[str, ProxyObject] = {}
        """Of those whose session is here, too."""
        self.ahead: dict[str, DeliveryQueue] = {}
        """Of clients that were gone before their session came: what came with it."""

    # --- steps 1 to 5: the client registers, disconnects (nothing to do), reconnects ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client, host = session.client, self.host
        if came_from == "":
            self.begin(session, self.new_queue(), merged=True)
        moved_in = last_move_in(session)
        queue = self.ahead.pop(client, None)
        if queue is None:
            queue = self.new_queue(moved_in.base)
            self.extend(client, queue, session.owed)
            session.owed = ()
        if moved_in.broker == host.id:
            proxy = self.current[client] = self.proxies[client, moved_in.number]
            if queue:
                self.extend(client, queue, proxy.queue.drain())
                proxy.queue = queue
        elif host.is_attached(client):
            proxy = self.current[client] = self.begin(session, queue, merged=False)
            proxy.source = moved_in.broker
            self.move_in(session, moved_in)
        else:
            self.ahead[client] = queue
            return
        proxy.queue.rewind(received.get(STREAM, 0))
        host.deliver_from(client, proxy.queue)
        if proxy.merged:
            host.handoff_finished(client)
        elif not host.is_reachable(proxy.source):
            self.do_without(client, session.number, proxy)

    def new_queue(self, base: int = 0) -> DeliveryQueue:
        return DeliveryQueue(STREAM, base, self.host.buffer)

    def extend(self, client: str, queue: DeliveryQueue, bursts: Iterable[Burst]) -> None:
        for burst in bursts:
            self.keep(queue, client, burst)

    def begin(self, session: Session, queue: DeliveryQueue, merged: bool) -> ProxyObject:
        proxy = self.proxies[session.client, session.number] = ProxyObject(queue, self.new_queue(), merged)
        session.luggage = msgspec.msgpack.encode(MoveIn(self.host.id, session.number))
        return proxy

    def on_detach(self, session: Session) -> None:
        """Step 4: from now on the broker stores, as a durable subscription does."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        """Steps 6A to 9: the attach request came; what is stored so far goes back with the session."""
        client, moved_in = session.client, last_move_in(session)
        proxy = self.current.pop(client, None)
        if proxy is not None:
            proxy.filters = list(session.subscriptions)
        queue = proxy.queue if proxy is not None else self.ahead.pop(client)
        queue.rewind(received.get(STREAM, 0))
        session.luggage = msgspec.msgpack.encode(MoveIn(moved_in.broker, moved_in.number, queue.base))
        session.owed = tuple(queue.drain())
        self.host.hand_over(session, destination)

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        proxy = self.current.pop(session.client, None)
        if proxy is not None:
            self.proxies = {key: one for key, one in self.proxies.items() if one is not proxy}

    # --- steps 6A to 9: request the rest, and meanwhile subscribe ---

    def move_in(self, session: Session, moved_in: MoveIn) -> None:
        self.request(session, moved_in)
        self.subscribe(session)

    def request(self, session: Session, moved_in: MoveIn) -> None:
        message = RequestBuffered(session.client, moved_in.number, session.number)
        self.host.send(moved_in.broker, message)

    def subscribe(self, session: Session) -> None:
        self.subscribe_all((session.client, session.number), session.subscriptions)

    def expects(self, sender: str, message: Message) -> bool:
        if isinstance(message, RequestBuffered):
            proxy = self.proxies.get((message.client, message.old_number))
            return proxy is not None and not proxy.requested_by
        return True

    # --- steps 10 to 13: the old broker deactivates the subscriptions, forwards, forgets ---

    def on_request_buffered(self, sender: str, message: RequestBuffered) -> None:
        client, number = message.client, message.old_number
        proxy = self.proxies[client, number]
        self.unsubscribe_all((client, number), proxy.filters)
        proxy.requested_by, proxy.next_number = sender, message.number
        self.try_forward(client, number, proxy)

    def try_forward(self, client: str, number: int, proxy: ProxyObject) -> None:
        """Not before what was stored at earlier brokers has come."""
        if proxy.merged and proxy.requested_by:
            bursts = tuple(proxy.queue.drain())
            self.host.send(proxy.requested_by, ForwardBuffered(client, proxy.next_number, bursts))
            del self.proxies[client, number]

    # --- steps 14 and 15: merge, order, deliver ---

    def on_forward_buffered(self, sender: str, message: ForwardBuffered) -> None:
        client, number = message.client, message.number
        proxy = self.proxies.get((client, number))
        if proxy is None or proxy.merged:
            self.give_up(client, message.bursts, "broker is gone")
            return
        proxy.merged = True
        self.extend(client, proxy.queue, self.merge(list(message.bursts), proxy.own.drain()))
        if self.current.get(client) is proxy:
            self.host.pump(client)
            self.host.handoff_finished(client)
        self.try_forward(client, number, proxy)

    def merge(self, fetched: list[Burst], own: list[Burst]) -> list[Burst]:
        return in_publishing_order(fetched + own)

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        for (client, number), proxy in list(self.proxies.items()):
            if not proxy.merged and proxy.source in brokers:
                self.do_without(client, number, proxy)

    def do_without(self, client: str, number: int, proxy: ProxyObject) -> None:
        """What was stored is gone with its broker; the client goes on with what there is."""
        self.on_forward_buffered(self.host.id, ForwardBuffered(client, number, ()))

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client, number = owner
        proxy = self.proxies.get((client, number))
        if proxy is None:
            return  # Its session was lost with a broker that is gone.
        self.keep(proxy.queue if proxy.merged else proxy.own, client, burst)
        if proxy.merged and self.current.get(client) is proxy:
            self.host.pump(client)

    # --- the client's own requests; the host has kept back those of a handoff ---

    def owner_of(self, session: Session) -> Owner:
        return (session.client, last_move_in(session).number)

    def keeps_for(self, session: Session) -> bool:
        return self.owner_of(session) in self.proxies

    # --- the rest ---

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for (client, _), proxy in self.proxies.items():
            yield client, proxy.queue
            yield client, proxy.own
        yield from self.ahead.items()


class ReactiveMerged(Reactive):
    name = "reactive:merged"
    summary = "exactly once and in order: subscribes before it requests, and merges without duplicates"
    promise = Promise(lost=frozenset({"overflow"}))

    __state__ = State("reactive-merged")

    def move_in(self, session: Session, moved_in: MoveIn) -> None:
        self.subscribe(session)
        self.request(session, moved_in)

    def merge(self, fetched: list[Burst], own: list[Burst]) -> list[Burst]:
        """What only this broker has is newer than whatever was fetched of the same publisher.

        What was fetched comes first, as it was: some of it may have been sent, and must be recognised.
        """
        last = last_numbers(fetched)
        newer = (newer_part(burst, last.get(burst.publisher)) for burst in own)
        return [*fetched, *in_publishing_order([burst for burst in newer if burst is not None])]


def last_move_in(session: Session) -> MoveIn:
    return msgspec.msgpack.decode(session.luggage, type=MoveIn)


def in_publishing_order(bursts: list[Burst]) -> list[Burst]:
    """By the time of publishing; those of one publisher by their numbers, whatever its clocks said."""
    bursts = sorted(bursts, key=lambda burst: (burst.publisher, burst.incarnation, burst.number))
    newest: dict[str, float] = {}
    times = []
    for burst in bursts:
        newest[burst.publisher] = max(burst.published_at, newest.get(burst.publisher, burst.published_at))
        times.append(newest[burst.publisher])
    return [bursts[index] for index in sorted(range(len(bursts)), key=times.__getitem__)]


register(Reactive)
register(ReactiveMerged)
