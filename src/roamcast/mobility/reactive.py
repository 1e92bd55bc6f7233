"""Reactive handoff by message transfer (Gaddah 4.3.2, fig. 4.2; JEDI and SIENA as told in 2.4.1).

The broker that a client leaves goes on storing for it. When the client has reattached, the new broker
requests what the old one has stored and meanwhile subscribes and stores, too. The old broker ends its
subscription, forwards its stored notifications and forgets the client. The new one merges them with its own
and delivers in publishing order. In JEDI's words: `Leave` is moveOut, for clients that announce it; for
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

A client that leaves before its session has arrived has not reconnected: the notifications that came with the
session wait beside it, and the next broker at which the client attaches requests the rest from the broker
that stores it.

What goes wrong as published, always within one propagation delay of a move-in:

- Duplicates: the merge removes none. Where notifications reach the new broker without delay
  (flooding, or another client there has a matching subscription), both brokers store what arrives
  between the subscription here and the end of the one there.
- Losses: the request may overtake the subscription, since both set out together.
  A broker between the two that has seen only the request still sends to the old
  broker, which no longer stores.

`reactive:merged` repairs both: nothing is lost, duplicated or reordered. It subscribes first, and its request
follows, so that every broker on the path knows the new place before the old one is given up; and duplicates
stored by both are removed. No waiting time is needed: links do not overtake, so whatever the old broker had
before the request arrived is here before its answer is.
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
    """Steps 6A to 9: asks for what the stay `old_number` stores, on behalf of the stay `number` at the
    sender."""

    client: str
    old_number: int
    number: int
    cause: ClassVar[Cause] = "handoff"


class ForwardBuffered(Message, frozen=True):
    """Steps 10 to 13: notifications stored since the session left."""

    client: str
    number: int
    bursts: tuple[Burst, ...]

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class MoveIn(msgspec.Struct, frozen=True, array_like=True):
    """Data that travels with the session."""

    __state__ = State("reactive-move-in")

    broker: str
    """Broker that stores for the client."""
    number: int
    """Attach number of the move-in at that broker."""
    base: int = 0
    """Last sequence that the client has acknowledged."""


class ProxyObject:
    """State that a broker keeps for a client, from the move-in there until the next broker has fetched it."""

    __state__ = State(
        "proxy-object",
        saved=("queue", "own", "merged", "filters", "source", "requested_by", "next_number"),
    )  # fmt: skip

    def __init__(self, queue: DeliveryQueue, own: DeliveryQueue, merged: bool) -> None:
        self.queue = queue
        """Queue that the client reads from."""
        self.own = own
        """Notifications stored here, until everything before them is in the queue."""
        self.merged = merged
        """True when the old broker's notifications are here, or there was no old broker."""
        self.filters: list[str] = []
        """Subscriptions of the client when the session left."""
        self.source = ""
        """Broker that was asked for the missing notifications."""
        self.requested_by = ""
        self.next_number = 0


class Reactive(MobilityProtocol):
    name = "reactive"
    summary = "fetched after attach; loses and repeats what is published within one delay of a move-in"
    luggage_type = MoveIn
    promise = Promise(lost=frozenset({"move_in", "overflow"}), duplicate=frozenset({"move_in"}))

    __state__ = State("reactive", saved=("proxies", "current", "ahead"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.proxies: dict[tuple[str, int], ProxyObject] = {}
        """All stays, by client and the attach number of the move-in."""
        self.current: dict[str, ProxyObject] = {}
        """Stays whose session is here, by client."""
        self.ahead: dict[str, DeliveryQueue] = {}
        """Notifications that came with a session after its client had left, by client."""

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
        """Step 4: store from now on, as a durable subscription does."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        """Steps 6A to 9: answer the attach request with the session and what is stored so far."""
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
        """Forward once the notifications of earlier brokers have arrived."""
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
        """Continue without the notifications that are gone with their broker."""
        self.on_forward_buffered(self.host.id, ForwardBuffered(client, number, ()))

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client, number = owner
        proxy = self.proxies.get((client, number))
        if proxy is None:
            return  # The session was lost with a broker that is gone.
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
        """Merge: notifications that only this broker has are newer than all fetched of the same publisher.

        Fetched notifications come first and unchanged: some may have been sent before, and must be
        recognised.
        """
        last = last_numbers(fetched)
        newer = (newer_part(burst, last.get(burst.publisher)) for burst in own)
        return [*fetched, *in_publishing_order([burst for burst in newer if burst is not None])]


def last_move_in(session: Session) -> MoveIn:
    return msgspec.msgpack.decode(session.luggage, type=MoveIn)


def in_publishing_order(bursts: list[Burst]) -> list[Burst]:
    """Sort by time of publishing; bursts of one publisher by their numbers, whatever its clocks said."""
    bursts = sorted(bursts, key=lambda burst: (burst.publisher, burst.incarnation, burst.number))
    newest: dict[str, float] = {}
    times = []
    for burst in bursts:
        newest[burst.publisher] = max(burst.published_at, newest.get(burst.publisher, burst.published_at))
        times.append(newest[burst.publisher])
    return [bursts[index] for index in sorted(range(len(bursts)), key=times.__getitem__)]


register(Reactive)
register(ReactiveMerged)
