"""What the parts of a broker and its mobility protocol ask of the core: to send, to deliver, to record (see
`mobility.base.Host`)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from roamcast.broker.clients import Clients
from roamcast.broker.endings import Endings
from roamcast.broker.figures import Figures
from roamcast.broker.front import Front
from roamcast.broker.places import Places
from roamcast.broker.returns import Returns
from roamcast.broker.session import Attachment, Event
from roamcast.filters.filter import Filter
from roamcast.filters.own import bind
from roamcast.mobility.base import MobilityProtocol
from roamcast.protocol.effects import Effects
from roamcast.protocol.messages import (
    ClientMessage,
    Command,
    Deliver,
    Grant,
    LeftOut,
    Message,
    Relayed,
    cause_of,
    told,
)
from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.protocol.owners import vouches
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.records import Row, new_row
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Router, Token

if TYPE_CHECKING:
    from roamcast.broker.core import CoreSettings

NO_MESSAGE = (None,) * 8
"""The last fields of a row that is not about a message."""


class UnjournalledEffect(Exception):
    """A numbered effect would follow from an input that is not journalled: a bug."""


class CoreServices:
    """The methods of `BrokerCore` that its parts and its protocol call; the state is the core's."""

    __slots__ = ("_sequence", "_timers_set")
    id: str
    now: float
    settings: CoreSettings
    front: Front | None
    router: Router
    clients: Clients
    protocol: MobilityProtocol
    places: Places
    endings: Endings
    returns: Returns
    figures: Figures
    attachments: dict[str, Attachment]
    sessions: Mapping[str, Session]
    guests: dict[str, None]
    links_down: dict[str, None]
    loopback: list[Message | Command]
    timers: list[tuple[float, int, Token]]
    next_incarnation: int
    salvagers: dict[type[Message], Callable[[Any], None]]
    _handlers: dict[type[Message], Callable[[str, Any], None]]
    _orders: dict[type[Command], Callable[[Any], None]]
    _next_hops: Mapping[str, str]
    _out: Effects
    _records_all: bool
    _records_any: bool
    _sequence: int
    _timers_set: int
    _unjournalled: Message | None
    _unjournalled_source: str

    # --- where brokers are ---

    @property
    def members(self) -> list[str]:
        """Return every reachable broker, including this one."""
        return sorted([self.id, *self._next_hops])

    @property
    def peers(self) -> list[str]:
        return self.router.peers

    @property
    def own_members(self) -> list[str]:
        """Return the reachable brokers of this broker's organisation."""
        return [one for one in self.members if one not in self.guests]

    def is_guest(self, broker: str) -> bool:
        return broker in self.guests

    def hop_of(self, broker: str) -> str | None:
        """Return the peer towards a reachable broker."""
        return self._next_hops.get(broker)

    def next_hop(self, broker: str) -> str:
        if broker == self.id:
            return broker
        return self._next_hops.get(broker) or self.returns.hop_towards(broker)

    def is_reachable(self, broker: str) -> bool:
        return broker == self.id or broker in self._next_hops

    # --- handlers of other parts ---

    def understands(self, message: Message) -> bool:
        """True if this broker handles messages of this type."""
        return type(message) in self._handlers or self.protocol.has_handler(type(message))

    def expects(self, sender: str, message: Message) -> bool:
        """True if the protocol considers a message of another broker plausible."""
        is_of_protocol = type(message) is Grant or type(message) not in self._handlers
        return not is_of_protocol or self.protocol.expects(sender, message)

    def serve(self, kind: type[Message], handler: Callable[[str, Any], None]) -> None:
        """Let a handler take messages of this type, which the core does not handle itself."""
        self._handlers[kind] = handler

    def obey(self, kind: type[Command], handler: Callable[[Any], None]) -> None:
        """Let a handler take commands of this type."""
        self._orders[kind] = handler

    def salvage(self, kind: type[Message], handler: Callable[[Any], None]) -> None:
        """Let a handler take messages of this type that cannot reach their destination."""
        self.salvagers[kind] = handler

    # --- sessions ---

    def can_unpack(self, session: Session) -> bool:
        """True if the protocol and the access side can read their parts of the session."""
        if not self.protocol.can_unpack(session):
            return False
        return self.front is None or self.front.can_unpack(session.client, session.capsule)

    def new_incarnation(self, least: int = 0) -> int:
        """Return an incarnation for a publisher that begins to count at 1. It must be new, and ended sessions
        are not remembered: so it is the time in microseconds or, because clocks differ, the highest
        incarnation that is known to have ended, if that is higher."""
        return max(least, self.next_incarnation, int(self.now * 1_000_000))

    def as_it_is(self, filter: Filter, client: str) -> Filter:
        """Return what a client's filter matches at present."""
        return self.router.dependents.local(bind(filter, client))

    def enqueue(self, client: str, burst: Burst) -> bool:
        """Queue one more notification for a client whose session is here, in order with all others.

        False if nothing can be stored for the client here: its session is elsewhere, or came ahead of it.
        """
        owner = self.owner_of(client)
        if owner is None:
            return False
        self.protocol.on_notification(owner, "", burst)
        return True

    def owner_of(self, client: str) -> Owner | None:
        """The receiver of notifications stored here for a client; None if there is none."""
        session = self.sessions.get(client)
        if session is None or not self.protocol.keeps_for(session):
            return None
        return self.protocol.owner_of(session)

    def is_attached(self, client: str) -> bool:
        return client in self.attachments and client in self.sessions

    def capsule_for(self, session: Session, brokers: Collection[str]) -> bytes:
        realm, trusted = self.settings.realm, self.settings.realm_brokers
        if self.front is None or session.client in self.attachments:
            return b""
        if any(one in self.guests or not vouches(one, session.owner, realm, trusted) for one in brokers):
            return b""
        return self.front.copy(session.client)

    # --- to brokers ---

    def send(self, broker: str, message: Message) -> None:
        if type(message) not in self._handlers and self.router.dependents:
            message = self.places.about(message)
        if broker == self.id:
            self.loopback.append(message)
        elif self.router.has_peer(broker):
            self._send_peer(broker, message)
        else:
            self._relay(Relayed(self.id, broker, message))

    def _relay(self, message: Relayed) -> None:
        hop = self.next_hop(message.destination)
        if hop != self.id:
            self._send_peer(hop, message)
        else:
            self.returns.came_back(message.destination, message)

    def tell_self(self, command: Command) -> None:
        """Carry out the command after the present input."""
        self.loopback.append(command)

    def _send_peer(self, peer: str, message: Message) -> None:
        self._out.sends.append((peer, message))
        if message.is_fleeting:
            return
        if self._unjournalled is not None:
            self._refuse_number(f"{told(message)} to {peer}")
        if self._records_all:
            inner = message.message if isinstance(message, Relayed) else message
            self.record(
                "control", peer=peer, message=type(inner).__name__, cause=cause_of(inner), hops=message.weight
            )

    def _refuse_number(self, effect: str) -> None:
        assert self._unjournalled is not None
        cause = f"{told(self._unjournalled)} from {self._unjournalled_source or 'a client'}"
        raise UnjournalledEffect(
            f"broker {self.id}: {effect} would get a number because of {cause}, which no journal holds"
        )

    def set_timer(self, at: float, token: Token) -> None:
        self._timers_set += 1
        heapq.heappush(self.timers, (at, self._timers_set, token))

    # --- to clients ---

    def read_ahead(self, client: str, queue: DeliveryQueue, holder: str = "", capsule: bytes = b"") -> bool:
        if self.front is not None:
            # While a link is down, the age of a withdrawal beyond it is unknown.
            is_near = holder not in self.guests and self.next_hop(holder) not in self.links_down
            if not (capsule and is_near and self.front.serve_ahead(client, capsule, queue.bursts())):
                return False
        self.clients.here[client].on(Event.SERVED_AHEAD)
        self.deliver_from(client, queue)
        return True

    def ask_too(self, client: str, broker: str) -> None:
        here = self.clients.here.get(client)
        if here is not None and here.request is not None:
            self.send(broker, here.request)

    def is_read(self, client: str, queue: DeliveryQueue) -> bool:
        attachment = self.attachments.get(client)
        return attachment is not None and attachment.queue is queue

    def deliver_from(self, client: str, queue: DeliveryQueue) -> None:
        attachment = self.attachments.get(client)
        if attachment is not None:
            attachment.queue = queue
            self.pump(client)

    def pump(self, client: str) -> None:
        attachment = self.attachments.get(client)
        if attachment is None or attachment.queue is None:
            return
        queue, connection = attachment.queue, attachment.connection
        if not connection:
            self.endings.drain(client)
            return
        for sequence, burst in queue.take(attachment.window):
            self._out.to_clients.append((client, connection, Deliver(queue.stream, sequence, burst)))
            if self._records_all:
                self._record_sent(client, burst)

    def pass_to(self, client: str, queue: DeliveryQueue, burst: Burst) -> None:
        attachment = self.attachments.get(client)
        if attachment is not None and attachment.queue is queue and attachment.connection:
            # Nearly always the burst can be sent at once.
            sequence = queue.pass_through(burst, attachment.window)
            if sequence:
                deliver = Deliver(queue.stream, sequence, burst)
                self._out.to_clients.append((client, attachment.connection, deliver))
                if self._records_all:
                    self._record_sent(client, burst)
                return
        self.protocol.keep(queue, client, burst)
        self.pump(client)

    def tell(self, client: str, message: ClientMessage) -> None:
        attachment = self.attachments.get(client)
        if attachment is not None:
            self._out.to_clients.append((client, attachment.connection, message))

    def close(self, client: str, connection: int, reason: str) -> None:
        self._out.client_closes.append((client, connection, reason))

    # --- to the log ---

    # Rows that occur once per hop or delivery are made by position where they arise, because keywords would
    # cost as much as the rest of the step.

    def record(self, kind: str, **fields: Any) -> None:
        if not self._records_any:
            return
        self._sequence += 1
        self._out.records.append(Row(self._sequence, self.now, self.id, kind, **fields))

    def dropped(self, client: str, burst: Burst, reason: str) -> None:
        self.figures.drop(reason, burst)
        self.record(
            "dropped", client=client, broker=self.id, publisher=burst.publisher,
            incarnation=burst.incarnation, number=burst.number, notifications=burst.count, reason=reason,
        )  # fmt: skip

    def _on_left_out(self, command: LeftOut) -> None:
        burst = command.burst
        self.record(
            "dropped", client=command.client, broker=self.id, publisher=burst.publisher,
            incarnation=burst.incarnation, number=burst.number, notifications=burst.count,
            reason=command.reason,
        )  # fmt: skip

    def _record_published(self, burst: Burst) -> None:
        id, now, has_attributes = self.id, self.now, self.settings.records_attributes
        for part, attributes in self._described(burst) if has_attributes else ((burst, None),):
            self._sequence += 1
            publisher = part.publisher
            self._out.records.append(
                new_row(
                    Row,
                    (
                        self._sequence, now, id, "published", publisher, id, None, publisher,
                        part.incarnation, part.number, part.count, None, None, None, part.size,
                        None, attributes, None, now,
                    ),
                )
            )  # fmt: skip

    def _described(self, burst: Burst) -> Iterator[tuple[Burst, bytes]]:
        """Return the parts of a burst with all attributes that filters compare, including those in bodies."""
        for part in burst.uniform():
            if self.front is None:
                yield part, part.attributes
                continue
            found, start = list(map(encode_attributes, self.front.contents(part))), 0
            for position in range(1, part.count + 1):
                if position == part.count or found[position] != found[start]:
                    yield part.part(start, position), found[start]
                    start = position

    def _record_sent(self, client: str, burst: Burst) -> None:
        self._sequence += 1
        self._out.records.append(
            new_row(
                Row,
                (
                    self._sequence, self.now, self.id, "sent", client, self.id, None, burst.publisher,
                    burst.incarnation, burst.number, burst.count, *NO_MESSAGE,
                ),
            )
        )  # fmt: skip

    def _record_acknowledged(self, client: str, bursts: Iterable[Burst]) -> None:
        for burst in bursts:
            if burst.is_picked:
                continue  # Retained messages and shared subscriptions do not count as owed to the client.
            self._sequence += 1
            self._out.records.append(
                new_row(
                    Row,
                    (
                        self._sequence, self.now, self.id, "acknowledged", client, self.id, None,
                        burst.publisher, burst.incarnation, burst.number, burst.count, *NO_MESSAGE,
                    ),
                )
            )  # fmt: skip

    def _record_forwarded(self, peer: str, burst: Burst) -> None:
        self._sequence += 1
        self._out.records.append(
            new_row(
                Row,
                (
                    self._sequence, self.now, self.id, "forwarded", None, None, peer, burst.publisher,
                    burst.incarnation, burst.number, burst.count, "Burst", "publish", burst.count, burst.size,
                    None, None, None, None,
                ),
            )
        )  # fmt: skip
