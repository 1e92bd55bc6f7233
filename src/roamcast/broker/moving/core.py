"""The machine of a protocol for brokers that move, between links of the tree and connected clients.

This is the counterpart of `BrokerCore`: it publishes for clients, delivers to them within their window, and
keeps unacknowledged notifications, to return them to the machine of the protocol when the connection ends.
`MovingMachine` puts it between an MQTT endpoint and an election, where `sessions` manages the MQTT
sessions. `MobileBroker` drives it for clients that speak the protocol themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from zlib import crc32

from msgspec.structs import replace

from roamcast.broker.figures import Figures
from roamcast.broker.front import Front
from roamcast.broker.moving.noted_filters import asks_more
from roamcast.broker.moving.waves import Wave, WaveBack, Waves
from roamcast.filters.filter import Attributes, Filter
from roamcast.mobility.moving.mobile import LOCAL, MobileProtocol, Outcome
from roamcast.mobility.stored import Stored
from roamcast.mqtt.server.sessions import Subscription
from roamcast.protocol.effects import Effects
from roamcast.protocol.messages import (
    Acknowledge,
    ClientMessage,
    ClientPublish,
    Command,
    Deliver,
    Fleeting,
    Message,
    cause_of,
)
from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.protocol.queues import QueueLimits
from roamcast.protocol.records import Level, Row
from roamcast.state import State

MARK_BITS = 16
"""Bits of a timestamp that identify the broker which chose it."""
WINDOW = 1024
"""Default limit of unacknowledged notifications per client."""


class Links(Protocol):
    """What the core needs of the links of the tree."""

    def send(self, peer: str, message: Message) -> None: ...

    def send_fleeting(self, peer: str, message: Message) -> None: ...


class Visit:
    """A client that is connected here."""

    __state__ = State(
        "mobile-visit",
        saved=(
            "connection", "owner", "window", "stamp", "is_clean", "began", "is_leaving", "insists_until",
            "incarnation", "published", "subscriptions", "sent", "in_flight", "waiting",
        ),
        derived=("in_flight_bytes",),
    )  # fmt: skip

    def __init__(self, connection: int, owner: str = "", window: int = 0, stamp: int = 0) -> None:
        self.connection = connection
        self.owner = owner
        self.window = window or WINDOW
        self.stamp = stamp
        """Timestamp of the last message sent here for the client; initially, of its arrival."""
        self.is_clean = False
        """True if the client asked for a clean start."""
        self.began = 0
        """Time of the clean start with which the session began; 0 without one."""
        self.is_leaving = False
        self.insists_until = 0.0
        """Until this time the broker may repeat, to brokers with a later timestamp, that the client is
        here."""
        self.incarnation = stamp
        """Incarnation for notifications that the client publishes."""
        self.published = 0
        self.subscriptions: dict[str, Subscription] = {}
        """Subscriptions that the machine has been told."""
        self.sent = 0
        self.in_flight: deque[tuple[int, Burst]] = deque()
        self.waiting = Stored()
        self._restore()

    def _restore(self) -> None:
        self.in_flight_bytes = sum(burst.held for _, burst in self.in_flight)

    def acknowledge(self, sequence: int) -> list[Burst]:
        """Remove and return the acknowledged bursts."""
        done = []
        while self.in_flight and self.in_flight[0][0] <= sequence:
            burst = self.in_flight.popleft()[1]
            self.in_flight_bytes -= burst.held
            done.append(burst)
        return done

    def unacknowledged(self) -> list[Burst]:
        return [*(burst for _, burst in self.in_flight), *self.waiting]


class MobileCore:
    __state__ = State(
        "mobile-core",
        saved=(
            "id", "machine", "links", "front", "waves", "visits", "incarnation", "_mark", "_published",
            "_limits", "_level", "_tells_attributes",
        ),
        # Fleeting bursts move the time and are recorded, and are not journalled.
        unhashed=("now", "duplicates", "_rows"),
        derived=("_asks_more", "_given_bytes", "_handlers", "_orders", "_out", "figures"),
    )  # fmt: skip

    def __init__(self, id: str, machine: MobileProtocol, links: Links, front: Front | None) -> None:
        """Without a front, clients speak the protocol themselves."""
        self.id = id
        self.machine = machine
        self.links = links
        self.front = front
        self.waves = Waves(links)
        self.visits: dict[str, Visit] = {}
        self.now = 0.0
        self.duplicates = 0
        """Duplicates that were suppressed before clients."""
        self.incarnation = 0
        """Incarnation for notifications that this broker publishes itself."""
        self._mark = crc32(id.encode()) % (1 << MARK_BITS)
        self._published = 0
        self._limits: QueueLimits | None = None
        self._level: Level = "full"
        self._tells_attributes = True
        self._rows = 0
        self._restore()

    def _restore(self) -> None:
        self._given_bytes = 0
        """Bytes ever taken for connected clients."""
        self.figures = Figures()
        if self.front is not None:
            self.machine.contents = self.contents_of
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {}
        self._orders: dict[type[Command], Callable[[Any], None]] = {}
        self._out = Effects()
        self._asks_more: tuple[int, bool] = (-1, False)

    def configure(self, limits: QueueLimits | None, level: Level, attributes: bool) -> None:
        self._limits, self._level, self._tells_attributes = limits, level, attributes

    def limit_in_flight(self, bytes_max: int) -> None:
        """Limit the bytes in flight per client until settings change."""
        if self._limits is not None:
            self._limits = replace(self._limits, in_flight_bytes_max=bytes_max)

    def take_effects(self) -> Effects:
        """Return the effects since the last call."""
        out, self._out = self._out, Effects()
        return out

    def stamp(self, after: int = 0) -> int:
        """Return a timestamp: the clock in milliseconds, or later than `after`, with this broker's mark.

        Two brokers must never choose the same timestamp for a client: no broker could tell which is right.
        """
        return max(int(self.now * 1000), (after >> MARK_BITS) + 1) << MARK_BITS | self._mark

    # --- hooks for other parts of the site (see announcing, wills) ---

    def serve(self, kind: type[Message], handler: Callable[[str, Any], None]) -> None:
        """Messages of this type are not the machine's: they go to this handler."""
        self._handlers[kind] = handler

    def obey(self, kind: type[Command], handler: Callable[[Any], None]) -> None:
        """Commands of this type go to this handler."""
        self._orders[kind] = handler

    def carry_out(self, command: Command) -> None:
        self._orders[type(command)](command)

    def as_it_is(self, filter: Filter, client: str) -> Filter:
        return filter

    def tell(self, client: str, message: ClientMessage) -> None:
        visit = self.visits.get(client)
        if visit is not None:
            self._out.to_clients.append((client, visit.connection, message))

    def close(self, client: str, connection: int, why: str) -> None:
        self._out.client_closes.append((client, connection, why))

    def publish_here(self, attributes: bytes, body: bytes, marks: bytes) -> None:
        """Publish in the broker's own name."""
        self._published += 1
        name = f"$broker/{self.id}"
        self.take_burst(
            name, Burst(name, self.incarnation, self._published, attributes, self.now, (body,), 1, marks)
        )

    def publish_fleeting(self, attributes: bytes, body: bytes, marks: bytes) -> None:
        """Like `publish_here`, but without a promise (QoS 0)."""
        burst = Fleeting(f"$broker/{self.id}", 0, 0, attributes, self.now, (body,), 1, marks)
        self.route_fleeting(LOCAL, burst)

    # --- peers ---

    def receive(self, peer: str, message: Message) -> None:
        """Handle a message over a link of the tree."""
        handler = self._handlers.get(type(message))
        if type(message) is Wave:
            self.waves.on_wave(peer, message, list(self.machine.peers))
        elif type(message) is WaveBack:
            self.waves.on_back(peer, message)
        elif handler is not None:
            handler(peer, message)
        else:
            self.perform(self.machine.receive(peer, message))

    def receive_fleeting(self, peer: str, message: Message) -> None:
        if isinstance(message, Fleeting):
            self.route_fleeting(peer, message)
        elif (handler := self._handlers.get(type(message))) is not None:
            handler(peer, message)

    def migrate(self, old: str | None, new: str) -> None:
        self.record("link_up", peer=new)
        self.perform(self.machine.migrate(old, new))

    def link_down(self, peer: str, unconfirmed: Sequence[Message]) -> None:
        self.record("link_down", peer=peer)
        self.waves.on_link_down(peer)
        self.perform(self.machine.link_down(peer, unconfirmed))

    # --- clients ---

    def say(self, client: str, message: Message) -> None:
        """Pass a message to the machine, from the client or from the site on its behalf."""
        self.perform(self.machine.receive(client, message, is_subscriber=True))

    def publish(self, client: str, visit: Visit, message: ClientPublish) -> None:
        varied = message.varied or (message.attributes,) * len(message.bodies)
        for attributes, body in zip(varied, message.bodies, strict=True):
            if not message.request:
                burst = Fleeting(client, 0, 0, attributes, self.now, (body,), 1, message.marks)
                self.route_fleeting(LOCAL, burst)
                continue
            visit.published += 1
            self.take_burst(
                client,
                Burst(
                    client, visit.incarnation, visit.published, attributes, self.now, (body,), 1,
                    message.marks,
                ),
            )  # fmt: skip

    def take_burst(self, client: str, burst: Burst) -> None:
        self.record(
            "published", client=client, broker=self.id, publisher=burst.publisher,
            incarnation=burst.incarnation, number=burst.number, notifications=burst.count,
            size_bytes=burst.size, published_at=burst.published_at,
            attributes=self._described(burst) if self._tells_attributes else None,
        )  # fmt: skip
        self.say(client, burst)

    def _described(self, burst: Burst) -> bytes:
        """Return the attributes that filters compare, including those in the body."""
        front = self.front
        return burst.attributes if front is None else encode_attributes(front.contents(burst)[0])

    def route_fleeting(self, way: str, burst: Fleeting) -> None:
        """Send a QoS 0 notification to all subscribers that can be reached now; it is not stored."""
        machine = self.machine
        peers: dict[str, None] = {}
        for subscriber in machine.matching(burst):
            towards = machine.known[subscriber].way
            if towards == LOCAL:
                self.tell(subscriber, Deliver("", 0, burst))
            elif towards is not None and towards in machine.peers and towards != way:
                peers[towards] = None
        for peer in peers:
            self.links.send_fleeting(peer, burst)

    def announce(self, burst: Fleeting) -> None:
        """Deliver a status message of this broker to the clients connected here."""
        for subscriber in self.machine.matching(burst):
            self.tell(subscriber, Deliver("", 0, burst))

    def contents_of(self, burst: Burst) -> Attributes | None:
        """Return all attributes of a notification, if a filter needs more than the topic."""
        machine = self.machine
        if self._asks_more[0] != machine.changes:
            filters = (filter for known in machine.known.values() for filter in known.filters.values())
            self._asks_more = machine.changes, any(map(asks_more, filters))
        return self.front.contents(burst)[0] if self.front is not None and self._asks_more[1] else None

    # --- deliveries ---

    def acknowledge(self, client: str, visit: Visit, message: Acknowledge) -> None:
        done = visit.acknowledge(message.sequence)
        if self._level == "full" or (self._level == "counters" and self.front is not None):
            for burst in done:
                self.record(
                    "acknowledged", client=client, broker=self.id, publisher=burst.publisher,
                    incarnation=burst.incarnation, number=burst.number, notifications=burst.count,
                )  # fmt: skip
        while visit.waiting and self._may_send(visit):
            self._send(client, visit, visit.waiting.pop())

    def _deliver(self, client: str, burst: Burst) -> None:
        visit = self.visits[client]
        self._given_bytes += burst.held
        if not visit.waiting and self._may_send(visit):
            self._send(client, visit, burst)
        else:
            for one in visit.waiting.add(burst, self._limits):
                self._drop(client, one)

    def _may_send(self, visit: Visit) -> bool:
        limits = self._limits
        has_room = limits is None or visit.in_flight_bytes < limits.in_flight_bytes_max
        return has_room and len(visit.in_flight) < visit.window

    def _send(self, client: str, visit: Visit, burst: Burst) -> None:
        visit.sent += 1
        visit.in_flight.append((visit.sent, burst))
        visit.in_flight_bytes += burst.held
        self.tell(client, Deliver("", visit.sent, burst))
        if self._level == "full":
            self.record(
                "sent", client=client, broker=self.id, publisher=burst.publisher,
                incarnation=burst.incarnation, number=burst.number, notifications=burst.count,
            )  # fmt: skip

    def leave(self, client: str) -> None:
        """Handle the end of a client's connection."""
        visit = self.visits.pop(client)
        if client in self.machine.attached:
            self.perform(self.machine.detach(client, visit.unacknowledged()))

    # --- what is stored ---

    def queues(self) -> Iterator[tuple[str, Stored]]:
        """Return what waits here for each client, without sent and unacknowledged notifications."""
        yield from self.machine.queues.items()
        yield from ((client, visit.waiting) for client, visit in self.visits.items())

    def stored(self) -> Iterator[Burst]:
        for _, queue in self.queues():
            yield from queue
        for visit in self.visits.values():
            yield from (burst for _, burst in visit.in_flight)

    @property
    def queued_bytes(self) -> int:
        waiting = sum(queue.size_bytes for _, queue in self.queues())
        return waiting + sum(visit.in_flight_bytes for visit in self.visits.values())

    @property
    def taken_bytes(self) -> int:
        return self._given_bytes + self.machine.taken_bytes

    def press(self, bytes_max: int) -> None:
        """Shrink all queues together to `bytes_max`: the longest queue drops its oldest first."""
        over = self.queued_bytes - bytes_max
        while over > 0:
            client, queue = max(self.queues(), key=lambda one: one[1].size_bytes, default=("", Stored()))
            if not queue:
                return
            burst = queue.pop()
            over -= burst.held
            self._drop(client, burst)

    # --- effects ---

    def perform(self, outcome: Outcome) -> None:
        for peer, message in outcome.sends:
            self.links.send(peer, message)
            if self._level == "full":
                self._record_sent(peer, message)
        if outcome.duplicates:
            self.duplicates += outcome.duplicates
            self.figures.leave_out("had already", outcome.duplicates)
        for client, burst in outcome.dropped:
            self._drop(client, burst)
        for client, message in outcome.to_subscribers:
            if isinstance(message, Burst):
                self._deliver(client, message)
            elif self.front is None:
                # The subscriptions known here (FILTERS), for a client that may know better.
                self._out.to_clients.append((client, self.visits[client].connection, message))

    def _drop(self, client: str, burst: Burst) -> None:
        self.figures.drop("overflow", burst)
        self.record(
            "dropped", client=client, broker=self.id, publisher=burst.publisher,
            incarnation=burst.incarnation, number=burst.number, notifications=burst.count, reason="overflow",
        )  # fmt: skip

    def _record_sent(self, peer: str, message: Message) -> None:
        if isinstance(message, Burst):
            self.record(
                "forwarded", peer=peer, publisher=message.publisher, incarnation=message.incarnation,
                number=message.number, notifications=message.count, hops=message.weight,
            )  # fmt: skip
        else:
            self.record(
                "control", peer=peer, message=type(message).__name__, cause=cause_of(message),
                hops=message.weight,
            )  # fmt: skip

    def record(self, kind: str, **fields: object) -> None:
        if self._level != "none":
            self._rows += 1
            self._out.records.append(Row(self._rows, self.now, self.id, kind, **fields))  # type: ignore[arg-type]

    def filters_of(self, client: str) -> list[Filter]:
        known = self.machine.known.get(client)
        return list(known.filters.values()) if known is not None else []
