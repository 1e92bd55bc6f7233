"""The broker: a state machine that drivers feed with inputs and whose effects they perform.

It routes notifications, keeps the sessions it holds and the connections it has,
and calls its mobility protocol where protocols differ. Everything it remembers
is data (timers and continuations too), so that it can be written down.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from roamcast.broker.clients import Clients
from roamcast.broker.core_services import CoreServices
from roamcast.broker.directory import Directory, Holdings, HoldingsAsked, HoldingsDue, HoldingsMissed
from roamcast.broker.endings import CopiesGone, Endings
from roamcast.broker.fences import Dwelling
from roamcast.broker.figures import Figures
from roamcast.broker.front import Front
from roamcast.broker.handoffs import Handoffs
from roamcast.broker.links.border import Border
from roamcast.broker.locate import Locator
from roamcast.broker.places import Announced, Places
from roamcast.broker.requests import Requests
from roamcast.broker.returns import Returns
from roamcast.broker.reunion import Reunion, Rival
from roamcast.broker.session import Attachment, Holding
from roamcast.broker.subscribing import Collecting, Ended, Subscribing
from roamcast.broker.ways import Ways
from roamcast.mobility.base import MobilityProtocol, OwnToken, Settings, check_combination
from roamcast.protocol.effects import (
    Attached,
    BrokersJoined,
    CommandGiven,
    Deadline,
    Detached,
    Effects,
    Input,
    LinkChanged,
    OverlayChanged,
    Received,
    SendFailed,
    SessionOver,
    SessionsMerged,
    Submitted,
    TrimQueues,
)
from roamcast.protocol.messages import (
    About,
    Acknowledge,
    ClientPublish,
    Command,
    Deliver,
    Drain,
    Fleeting,
    InPlaceOf,
    Leave,
    LeftOut,
    Message,
    PeersExpected,
    Probe,
    Relayed,
    Request,
    Settled,
    TakenBack,
    TellHeld,
    Update,
    told,
)
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import Buffer, QueueLimits
from roamcast.protocol.records import Level
from roamcast.protocol.session import Session
from roamcast.routing.location.ploc import Ploc
from roamcast.routing.location.settings import LocationSettings
from roamcast.routing.router import Owner, Route, Router, Token
from roamcast.state import State


class CoreSettings(msgspec.Struct, frozen=True):
    """Settings of a broker."""

    routing: str = ""
    """Routing strategy; "" is the protocol's own choice."""
    advertisements: bool = False
    window: int = 256
    """Maximum of notifications sent to a client and not yet acknowledged."""
    buffer_bytes: int | None = None
    """Limit of everything stored for clients; beyond it the oldest notifications are dropped."""
    queue: QueueLimits | None = None
    """Limits of what is stored for one client."""
    records: Level = "full"
    records_attributes: bool = True
    """True if rows record attributes; otherwise one row stands for a burst of several kinds."""
    clock_error_s: float | None = 0.0
    """Maximum difference between the brokers' clocks. Notifications published before a subscription was
    issued are not owed to it, and are left out by comparing clocks; None: never."""
    realm: str = ""
    """Name under which several brokers share their users; "" if this broker's users are its own."""
    realm_brokers: tuple[str, ...] = ()
    """Brokers trusted to vouch for users of the realm; * is a wildcard."""
    held_requests_max: int = 10_000
    """Maximum of requests held for a client whose session is on its way; further ones are refused."""
    protocol: Settings = Settings()
    location: LocationSettings = LocationSettings()


def _lift_1(fields: dict[str, Any]) -> None:
    fields["links_down"] = {}
    fields["directory"] = None


class BrokerCore(CoreServices):
    """One broker. `step` is the only way in, its result the only way out."""

    __state__ = State(
        "broker-core",
        2,
        lifts={1: _lift_1},
        saved=(
            "settings", "id", "buffer", "front", "router", "_ways", "clients", "next_incarnation",
            "sessions_begun", "_own", "locator", "protocol", "_next_hops", "_records_all", "_records_any",
            "timers", "_timers_set", "loopback", "handoffs", "requests", "endings", "reunion", "returns",
            "places", "subscribing", "guests", "links_down", "directory",
        ),
        # Fleeting bursts move the time and are recorded, and are not journalled.
        unhashed=("now", "_sequence"),
        derived=(
            "_attached_session", "_handlers", "_orders", "_out", "_unjournalled", "_unjournalled_source",
            "collect", "collects", "figures", "salvagers", "sessions", "attachments", "_issues",
            "hand_over", "release", "adopt", "take_back", "send_home", "handoff_finished", "_routes",
            "subscribe", "unsubscribe", "relocate", "end_relocation", "direction", "way_to",
            "divert", "withdraw", "listen", "unlisten", "border",
        ),
    )  # fmt: skip
    __slots__ = tuple(one for one in __state__.names if one not in CoreServices.__slots__)

    def __init__(
        self,
        id: str,
        protocol: type[MobilityProtocol],
        settings: CoreSettings | None = None,
        front: Front | None = None,
    ) -> None:
        self.settings = settings or CoreSettings()
        routing = self.settings.routing or protocol.strategies[0]
        check_combination(protocol, routing, self.settings.advertisements)
        self.id = id
        self.now = 0.0
        self.buffer = Buffer(self.settings.buffer_bytes, self.settings.queue)
        self.front = front
        self.router = Router(
            routing,
            self._send_peer,
            self.settled,
            self.settings.advertisements,
            front.outside if front is not None else None,
            Ploc(self.settings.location.variables, self.settings.location.rule),
            protocol.locates,
        )
        self._ways = Ways(self.router, front)
        self.clients = Clients()
        self.next_incarnation = 0
        """Higher than the incarnations of all sessions that ended here."""
        self.sessions_begun = 0
        self._own = Session(f"$broker/{id}")
        """The broker as a publisher of its own notifications."""
        self.directory = Directory(self)
        self.locator = Locator(self)
        self.protocol = protocol(self, self.settings.protocol)
        self._next_hops: Mapping[str, str] = {}
        self.guests: dict[str, None] = {}
        """Brokers of other organisations."""
        self.links_down: dict[str, None] = {}
        """Peers whose link is down at present."""
        self._sequence = 0
        self.timers: list[tuple[float, int, Token]] = []
        self._timers_set = 0
        self.loopback: list[Message | Command] = []
        """Messages and commands that this broker sent to itself."""
        self.handoffs = Handoffs(self)
        self.requests = Requests(self)
        self.endings = Endings(self)
        self.reunion = Reunion(self)
        self.returns = Returns(self)
        self.places = Places(self)
        self.subscribing = Subscribing(self)
        self.configure(self.settings)
        self._restore()

    def _restore(self) -> None:
        self._out = Effects()
        self.border: Border | None = None
        """Checks messages of peers; None lets all pass."""
        self._unjournalled: Message | None = None
        """Message being handled that is in no journal."""
        self._unjournalled_source = ""
        """Sender of that message; "" for a client."""
        self.figures = Figures()
        self.router.connect(self._send_peer, self.settled)
        self.sessions, self.attachments = self.clients.sessions, self.clients.attachments
        self.clients.may_rest = not self.protocol.keeps_sessions
        self._attached_session = partial(dict.get, self.sessions)
        """Return the session of an attached client, which is always awake."""
        if not self.directory:  # The state was written by an earlier version.
            self.directory = Directory(self)
            self.directory.begin_unknowing()
        self._issues = self.subscribing.issues
        self._routes = self.router.known_routes
        self._host_the_protocol()
        self.collect: Callable[[Owner, str, Burst], None] | None = None
        """Receives bursts routed to owners that are not clients: their first element is empty."""
        self.collects: Callable[[tuple[str, str]], None] | None = None
        """Called when a subscription of such an owner has settled."""
        self.salvagers: dict[type[Message], Callable[[Any], None]] = {Rival: self.reunion.salvage}
        self._handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Burst: self._on_burst,
            Fleeting: self._on_fleeting,
            **self.reunion.handlers,
            Update: self._on_update,
            Settled: self.router.on_settled,
            About: self._on_about,
            Probe: self.places.on_probe,
            Relayed: self._on_relayed,
            **self.locator.handlers,
            Holdings: self.directory.on_holdings,
            HoldingsMissed: self.directory.on_missed,
            HoldingsAsked: self.directory.on_asked,
        }
        self._orders: dict[type[Command], Callable[[Any], None]] = {
            Drain: self.endings.on_drain,
            LeftOut: self._on_left_out,
            TakenBack: self.locator.on_taken_back,
            PeersExpected: self.locator.on_peers_expected,
            InPlaceOf: self._on_in_place_of,
            TellHeld: self.requests.on_tell_held,
        }

    def _host_the_protocol(self) -> None:
        """Set the methods of `mobility.base.Host` that other parts of the broker implement."""
        locator, subscribing = self.locator, self.subscribing
        self.hand_over, self.release = locator.hand_over, locator.release
        self.adopt, self.take_back = locator.adopt, locator.take_back
        self.handoff_finished, self.send_home = self.handoffs.handoff_finished, self.handoffs.send_home
        self.subscribe, self.unsubscribe = subscribing.subscribe, subscribing.unsubscribe
        self.relocate, self.direction = subscribing.relocate, subscribing.direction
        self.end_relocation, self.way_to = subscribing.end_relocation, subscribing.way_to
        self.divert, self.withdraw = subscribing.divert, subscribing.withdraw
        self.listen, self.unlisten = subscribing.listen, subscribing.unlisten

    def configure(self, settings: CoreSettings) -> None:
        """Apply new settings; routing stays."""
        self.settings = settings
        self.protocol.configure(settings.protocol)
        self._records_all = settings.records == "full"
        self._records_any = settings.records != "none"
        self.places.configure(settings.location)
        self._limit_queues(settings.queue)

    def limit_in_flight(self, bytes_max: int) -> None:
        """Limit the bytes in flight per client until settings change."""
        own = self.settings.queue
        if own is not None:
            self._limit_queues(replace(own, in_flight_bytes_max=min(bytes_max, own.in_flight_bytes_max)))

    def _limit_queues(self, limits: QueueLimits | None) -> None:
        if self.buffer.limits != limits:
            self.buffer.limits = limits
            for _, queue in self.protocol.stored():
                queue.limit(limits)

    # --- the contract ---

    def step(self, now: float, inputs: Iterable[Input], out: Effects | None = None) -> Effects:
        """Process inputs in order; returns the effects, in `out` if given."""
        self.now = now
        if out is None:
            out = Effects()
        self._out = out
        border = self.border
        for item in inputs:
            # The two most frequent inputs come first.
            if type(item) is Submitted:
                self._on_submitted(item)
            elif type(item) is Received:
                message = item.message
                if border is not None:
                    admitted = border.admit(item.peer, message)
                    if admitted is None:
                        continue
                    message = admitted
                self._on_received(item.peer, message)
            else:
                self._on_input(item)
            if self.loopback:
                self._run_loopback()
        return out

    def receive_in_process(self, now: float, peer: str, message: Message, out: Effects) -> None:
        """Process a message of a peer that needs no border, because both are in one process."""
        self.now = now
        self._out = out
        route: Route | None = None
        if type(message) is Burst and not message.varied:
            route = self._routes.get(message.attributes)
        if route is not None and not route[2]:
            self._pass_on(peer, message, route[0], route[1])  # type: ignore[arg-type]
        else:
            self._on_received(peer, message)
        if self.loopback:
            self._run_loopback()

    def submit_in_process(self, now: float, items: Iterable[Submitted], out: Effects) -> None:
        """Process messages of clients."""
        self.now = now
        self._out = out
        for item in items:
            self._on_submitted(item)
            if self.loopback:
                self._run_loopback()

    def _on_received(self, peer: str, message: Message) -> None:
        if type(message) is Burst:
            self._on_burst(peer, message)
        elif type(message) is Fleeting:
            self._on_fleeting(peer, message)
        elif message.is_fleeting:
            self._take_fleeting(peer, message)
        else:
            self._on_message(peer, message)

    def _run_loopback(self) -> None:
        while self.loopback:
            item = self.loopback.pop(0)
            if isinstance(item, Command):
                self._orders[type(item)](item)
            else:
                self._on_message(self.id, item)

    def _take_fleeting(self, source: str, message: Message) -> None:
        """Handle a message that is in no journal. Nothing numbered may follow: a replay would number
        differently."""
        rows = self._begin_unjournalled(source, message)
        self._on_message(source, message)
        self._end_unjournalled(rows)

    def _begin_unjournalled(self, source: str, message: Message) -> int:
        self._unjournalled, self._unjournalled_source = message, source
        return self._sequence

    def _end_unjournalled(self, rows: int) -> None:
        if self.loopback:
            self._run_loopback()
        if self._sequence != rows:
            self._refuse_number("a row of the log")
        self._unjournalled = None

    def deadline(self) -> float | None:
        """When `step` wants to be called with a `Deadline`, or None."""
        return self.timers[0][0] if self.timers else None

    def connections(self) -> list[tuple[str, int]]:
        """Clients and their connections here. After a restart a driver reports these as ended."""
        known = self.clients.here.awake()
        return [(here.client, here.attachment.connection) for here in known if here.attachment is not None]

    def counters(self) -> tuple[int, ...]:
        """Figures that tell two states apart soon after anything differs; not affected by fleeting bursts."""
        return self.next_incarnation, self.sessions_begun, len(self.sessions), self._timers_set

    def unfinished(self) -> list[str]:
        """Unfinished work here; empty when the network is at rest."""
        under_way: dict[str, object] = {
            "clients": [here.told() for here in self.clients.here.awake() if not here.is_at_rest],
            **self.locator.unfinished(),
            **self.reunion.unfinished(),
            "timers": [one for one in self.timers if not isinstance(one[2], HoldingsDue)],
            "barriers": self.router.unfinished(),
        }
        return [f"{name} at {self.id}: {what}" for name, what in under_way.items() if what]

    # --- inputs ---

    def _on_input(self, item: Input) -> None:
        match item:
            case Attached():
                self.handoffs.on_attached(item)
            case Detached(client, connection):
                here = self.clients.here.get(client)
                if here is not None and here.attachment and here.attachment.connection == connection:
                    self.handoffs.detach(here, "silent")
                    self.clients.forget_unused(here)
            case CommandGiven(command):
                self._orders[type(command)](command)
            case TrimQueues(bytes_max):
                self._on_pressed(bytes_max)
            case SessionsMerged(source, target):
                self.endings.on_merged(source, target)
            case SessionOver(client):
                here = self.clients.here.get(client)
                if here is not None and here.holding is Holding.HELD and here.attachment is None:
                    self.endings.begin_after_copies(here)
            case Deadline():
                self._on_deadline()
            case OverlayChanged(peers, next_hops, guests):
                self.guests = dict.fromkeys(guests)
                self._configure(peers, next_hops)
            case BrokersJoined(brokers):
                self.reunion.begin(brokers)
            case LinkChanged(peer, up):
                self.links_down.pop(peer, None)
                if not up:
                    self.links_down[peer] = None
                self.record("link_up" if up else "link_down", peer=peer)
                self.directory.link_changed(peer, up)
                if self.front is not None:
                    self.router.link_changed(peer, up)
                if not up:
                    self.locator.leave_out(peer)
            case SendFailed(peer, messages):
                self.returns.send_failed(peer, messages)

    def _configure(self, peers: Sequence[str], next_hops: Mapping[str, str]) -> None:
        lost = [broker for broker in self._next_hops if broker not in next_hops]
        gone = [peer for peer in self.router.peers if peer not in peers]
        self.returns.overlay_changed(self._next_hops, next_hops, gone)
        self._next_hops = dict(next_hops)
        for here in self.clients.here.awake() if lost else ():
            # Before the peers are removed: that settles changes, and a session waiting for them would depart.
            if here.claim is not None and here.claim.broker in lost:
                self.handoffs.unclaim(here)
        for peer in gone:
            self.router.remove_peer(peer)
        for peer in peers:
            if not self.router.has_peer(peer):
                self.router.add_peer(peer)
                self.places.measure(peer)
        self.locator.met(peers)
        if lost:
            self.directory.lost(lost)
            self.locator.lost(gone, lost)
            self.reunion.lost(lost)
            self.protocol.on_lost(gone, lost)

    def _on_message(self, sender: str, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is not None:
            handler(sender, message)
        else:
            self.protocol.on_message(sender, message)

    def _on_in_place_of(self, command: InPlaceOf) -> None:
        self._on_message(command.peer, command.message)

    def _on_relayed(self, peer: str, message: Relayed) -> None:
        if message.destination == self.id:
            self._on_message(message.source, message.message)
        else:
            self._relay(message)

    def _on_update(self, peer: str, message: Update) -> None:
        if message.whereabouts:
            self.places.measure(peer)
        self.router.on_update(peer, message)

    def _on_about(self, sender: str, message: About) -> None:
        self.router.hear_of(message.whereabouts)
        self._on_message(sender, message.message)
        self.router.heard(message.whereabouts)

    def _on_deadline(self) -> None:
        while self.timers and self.timers[0][0] <= self.now:
            _, _, token = heapq.heappop(self.timers)
            if isinstance(token, Dwelling):
                self.places.dwelt(token)
            elif isinstance(token, HoldingsDue):
                self.directory.tell()
            else:
                self.protocol.on_deadline(token)

    def _on_pressed(self, bytes_max: int) -> None:
        """Drop the excess from the longest queues; bursts sent to attached clients stay."""
        queues = [(queue.size_bytes, client, queue) for client, queue in self.protocol.stored()]
        excess = sum(size for size, _, _ in queues) - bytes_max
        for _, client, queue in sorted(queues, key=lambda one: -one[0]):
            is_here = client in self.attachments
            while excess > 0 and (queue.waiting if is_here else queue):
                burst = queue.drop_waiting() if is_here else queue.drop_oldest()
                excess -= burst.held
                self.dropped(client, burst, "overflow")

    # --- notifications ---

    def _on_burst(self, source: str, burst: Burst) -> None:
        if not burst.varied:
            # Nearly always all notifications of the burst have one route.
            attributes = burst.attributes
            route = self._routes.get(attributes) or self.router.route(attributes)
            if not route[2]:
                self._pass_on(source, burst, route[0], route[1])
                return
        for part, peers, owners in self._ways.of(burst):
            self._pass_on(source, part, peers, owners)

    def _pass_on(self, source: str, burst: Burst, peers: tuple[str, ...], owners: tuple[Owner, ...]) -> None:
        sends = self._out.sends
        if self._unjournalled is not None and peers:
            self._refuse_number(f"{told(burst)} to {peers[0]}")
        for peer in peers:
            if peer != source:
                sends.append((peer, burst))
                if self._records_all:
                    self._record_forwarded(peer, burst)
        issues, protocol = self._issues, self.protocol
        for owner in owners:
            if not owner[0] and self.collect is not None:
                self.collect(owner, source, burst)
                continue
            if burst.published_at < issues.latest and issues.is_too_early(owner, burst):
                continue
            protocol.on_notification(owner, source, burst)

    def pass_back(self, peer: str, burst: Burst) -> None:
        """Keep a burst that came back from a peer, for sessions that came back before it."""
        taken_back = self.protocol.taken_back
        for part, _, owners in self._ways.of(burst) if taken_back else ():
            self._pass_on(peer, part, (), tuple(owner for owner in owners if owner in taken_back))

    def _on_fleeting(self, source: str, burst: Burst) -> None:
        """Send a QoS 0 burst to the peers and to attached clients, past every queue.

        The burst is not journalled, and nothing numbered follows from it, except where it is collected
        (`_spread`).
        """
        if not burst.varied:
            route = self._routes.get(burst.attributes) or self.router.route(burst.attributes)
            if not route[2]:
                self._spread(source, burst, route[0], route[1])
                return
        for part, peers, owners in self._ways.gathered(burst):
            self._spread(source, part, peers, owners)

    def _spread(self, source: str, burst: Burst, peers: tuple[str, ...], owners: tuple[Owner, ...]) -> None:
        out = self._out
        if peers and source != self.id:  # Bursts of the broker to itself are for attached clients only.
            out.sends += [(peer, burst) for peer in peers if peer != source]
        if not owners:
            return
        deliver = Deliver("", 0, burst)
        clients = {owner[0]: None for owner in owners} if len(owners) > 1 else owners[0][:1]
        for client in clients:
            attachment = self.attachments.get(client)
            if attachment is not None and attachment.queue is not None and attachment.connection:
                out.to_clients.append((client, attachment.connection, deliver))
        if "" in clients and self.collect is not None:
            rows = self._begin_unjournalled(source, burst)
            for owner in owners:
                if not owner[0]:
                    self.collect(owner, source, burst)
            self._end_unjournalled(rows)

    def publish(
        self,
        session: Session,
        attributes: bytes,
        bodies: tuple[bytes, ...],
        marks: bytes = b"",
        varied: tuple[bytes, ...] = (),
    ) -> None:
        """Assign identities to the notifications and send them."""
        first = session.published + 1
        session.published += len(bodies)
        client, incarnation, count = session.client, session.incarnation, len(bodies)
        burst = Burst(client, incarnation, first, attributes, self.now, bodies, count, marks, varied)
        if self._records_any:
            self._record_published(burst)
        if not varied:
            route = self._routes.get(attributes) or self.router.route(attributes)
            if not route[2]:
                self._pass_on("", burst, route[0], route[1])
                return
        self._on_burst("", burst)

    # --- what clients say ---

    def _on_submitted(self, item: Submitted) -> None:
        attachment = self.attachments.get(item.client)
        message = item.message
        if attachment is None or attachment.connection != item.connection:
            here = self.clients.here.get(item.client)
            waiting = here.attachment if here is not None and here.is_ending else None
            if waiting is not None and waiting.connection == item.connection and isinstance(message, Request):
                self.requests.hold(item.client, message)
            return
        if type(message) is ClientPublish:
            if message.request:
                session = self._attached_session(item.client)
                if session is not None:
                    self.requests.publish(session, message)
                else:
                    self.requests.hold(item.client, message)
                return
            if self.places.telling is not None:
                session = self._attached_session(item.client)
                if session is not None:
                    self.places.hear(session, message)
            attributes, bodies, marks = message.attributes, message.bodies, message.marks
            count, varied = len(bodies), message.varied
            self._on_fleeting(
                "", Fleeting(item.client, 0, 0, attributes, self.now, bodies, count, marks, varied)
            )
        elif type(message) is Acknowledge:
            self._on_acknowledge(item.client, attachment, message)
        elif type(message) is Leave:
            self._on_leave(item.client, message)
        elif isinstance(message, Request):
            self.requests.on_request(item.client, message)

    def _on_acknowledge(self, client: str, attachment: Attachment, message: Acknowledge) -> None:
        queue = attachment.queue
        if queue is None or queue.stream != message.stream:
            return
        # Clients of the plain front keep their own records; MQTT clients mostly do not.
        if self._records_all or (self._records_any and self.front is not None):
            self._record_acknowledged(client, queue.up_to(message.sequence))
        queue.acknowledge(message.sequence)
        if queue.waiting:
            self.pump(client)
        self.protocol.on_acknowledged(client)

    def _on_leave(self, client: str, message: Leave) -> None:
        """Hand over a session on a proclaimed move, as if the destination had asked for it."""
        here = self.clients.here[client]
        self.handoffs.detach(here, "proclaimed")
        self.handoffs.send_ahead(here, message.destination, message.received)
        self.clients.forget_unused(here)

    def announce(self, burst: Fleeting) -> None:
        """Publish a status message of this broker to clients attached here."""
        self._take_fleeting(self.id, burst)

    def publish_here(self, attributes: bytes, body: bytes, marks: bytes) -> None:
        """Publish in the broker's own name."""
        if not self._own.published:
            self._own.incarnation = self.new_incarnation()
        self.publish(self._own, attributes, (body,), marks)

    def publish_fleeting(self, attributes: bytes, body: bytes, marks: bytes) -> None:
        """Like `publish_here`, but without a journal: QoS 0."""
        self._take_fleeting("", Fleeting(self._own.client, 0, 0, attributes, self.now, (body,), 1, marks))

    # --- settling ---

    def settled(self, token: Token) -> None:
        if isinstance(token, Ended):
            self._issues.forget(token.owner, token.filter)
            token = token.token
        if isinstance(token, OwnToken):
            self.protocol.on_settled(token.token)
        elif isinstance(token, Announced):
            self.places.on_settled(token)
        elif isinstance(token, CopiesGone):
            self.endings.on_copies_gone(token)
        elif isinstance(token, Collecting) and self.collects is not None:
            self.collects(token.key)
        else:
            self.requests.on_settled(token)
