"""A site whose broker moves: the same contract as `BrokerMachine`, with an election and a tree that changes.

Every broker has a connection to each peer in reach. The election sends its heartbeats over these, and its
results decide which of them carry links of the tree. The election is not replayed: heartbeats are not
journalled, but its results are (`ParentTaken`, `LinkLeft`), so a replay takes the same links without it. It
begins with the first `Tick`, which is never in a journal either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from roamcast.broker.announcing import Announcements, RecallAnnounced
from roamcast.broker.figures import Figures
from roamcast.broker.fronts import MqttFront
from roamcast.broker.inputs import (
    AccessRevoked,
    ClientConnected,
    ClientFrames,
    ClientSlowed,
    Confirmed,
    ConnectionLost,
    Elapsed,
    HistoryAccepted,
    LinkDown,
    LinkFrames,
    LinkLeft,
    LinkRefused,
    LinkSlowed,
    LinkUp,
    MachineEffects,
    MachineInput,
    ParentTaken,
    PeerProgress,
    QueuesOverLimit,
    RulesChanged,
    SessionSought,
    SettingsChanged,
    Started,
    StateChecked,
    StatusAnnounced,
    Tick,
    Tree,
)
from roamcast.broker.links.border import RESERVED
from roamcast.broker.links.end import LinkError
from roamcast.broker.machine_base import MachineBase
from roamcast.broker.moving.core import MobileCore
from roamcast.broker.moving.noted_filters import FILTER_LENGTH_MAX, NOTE
from roamcast.broker.moving.seeking import MobileSeeking
from roamcast.broker.moving.sessions import MobileSessions
from roamcast.broker.moving.tree_links import Beat, OffLink, OnLink, TreeLinks
from roamcast.broker.seeking import WhereIs
from roamcast.broker.settings import MachineSettings
from roamcast.broker.wills import Wills
from roamcast.errors import InputError
from roamcast.filters.expression import names_of
from roamcast.filters.filter import Filter, Value
from roamcast.filters.zones import with_zones
from roamcast.mobility import find_mobile_protocol
from roamcast.mobility.moving.election import Broadcast, ChildLost, Election, ElectionEffect, ParentChanged
from roamcast.mobility.moving.mft import Bmig
from roamcast.mobility.moving.mobile import MobileSettings
from roamcast.mqtt.server.sessions import Recall, Subscription, recall_of
from roamcast.protocol.codec import Codec
from roamcast.protocol.effects import CommandGiven, Input
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.state import State

NO_PLACES = "where brokers move, filters on the client's own state are not offered"
ROUNDS_WAITED = 2.5
"""Rounds of the election that an unknown client waits, so that a tree can form."""


class MovingMachine(MachineBase[MqttFront, TreeLinks, MobileSeeking]):
    links_may_cycle = True
    strategy = "every broker knows every subscriber"
    promise = (
        "QoS 1 notifications arrive eventually, maybe duplicated or reordered; QoS 2, retained messages and "
        "shared subscriptions are refused, because they cannot be guaranteed across partitions"
    )

    __state__ = State(
        "moving-machine",
        saved=("links", "core", "sessions", "wills", "announcements", "seeking", "_parent"),
        derived=("_lost", "election", "tree"),
    )

    def __init__(self, settings: MachineSettings) -> None:
        protocol = find_mobile_protocol(settings.protocol)
        if not protocol.keeps_promises:
            raise InputError(f"protocol {settings.protocol}: it promises nothing, and is for the lab alone")
        super().__init__(settings)
        self.front = MqttFront(self)
        self.links = TreeLinks(settings.id, Codec())
        self.core = MobileCore(settings.id, protocol(settings.id), self.links, self.front)
        self.sessions = MobileSessions(self.core, self.front)
        self.wills = Wills(self.core)
        self.announcements = Announcements(self.core)
        self.seeking = MobileSeeking(self.core, self.front.sessions)
        self._parent: str | None = None
        """Last parent, even if the link to it is gone."""
        self._restore()

    def _restore(self) -> None:
        for part in (self.sessions, self.wills, self.announcements, self.seeking):
            part.register_handlers()
        super()._restore()
        self.seeking.connect(self.front.sessions)
        self.election: Election | None = None
        self.tree: Tree | None = None
        self._lost: list[str] = []
        """Peers whose links were lost in this turn and not yet reported to the election."""

    # --- the contract ---

    def reserves(self, client: str) -> bool:
        return client.startswith(RESERVED)

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
        self.core.now = self.front.now = now
        self._out = out = MachineEffects()
        of_clients = []
        for item in inputs:
            if isinstance(item, ClientFrames | ConnectionLost | ClientConnected):
                of_clients.append(item)
            elif type(item) is StateChecked:
                self._expected = item
            else:
                self._on_input(item)
        self._run()
        if of_clients:
            self.front.take(of_clients, out)
            self._run()
        for item in of_clients:
            # Changed subscription options do not concern other brokers.
            connection = self.front.connections.get(item.connection)
            if connection is not None:
                self.sessions.synchronise(connection.client)
        self._run()
        if out.durable:
            for confirmed in list(self.links.confirmations()):
                self._confirm(confirmed)
        self.front.collect(out)
        if self.seeking.answers:
            out.answers, self.seeking.answers = self.seeking.answers, []
        if out.durable:
            self._check_state(out.durable)
        return out

    def deadline(self) -> float | None:
        if not self.starts:
            return None
        election = self.election.deadline() if self.election is not None else 0.0
        times = [self._clients_deadline(), election]
        return min((one for one in times if one is not None), default=None)

    def _clients_deadline(self) -> float | None:
        times = [self.front.timers.next(), self.sessions.next_time()]
        return min((one for one in times if one is not None), default=None)

    def awaits_acknowledgement(self, client: str) -> bool:
        return True  # Queues of brokers that move are not inspected.

    # --- for observers (see contract.AnyMachine) ---

    @property
    def queued_bytes(self) -> int:
        return self.core.queued_bytes

    def in_flight_bytes(self) -> dict[str, int]:
        return {client: visit.in_flight_bytes for client, visit in self.core.visits.items()}

    @property
    def taken_bytes(self) -> int:
        return self.core.taken_bytes

    @property
    def figures(self) -> Figures:
        return self.core.figures

    @property
    def session_count(self) -> int:
        return len(self.front.sessions)

    @property
    def retained_count(self) -> int:
        return 0

    @property
    def retained_refused(self) -> int:
        return 0

    def stored(self) -> Iterable[Burst]:
        return self.core.stored()

    def queues(self) -> Iterable[tuple[str, DeliveryQueue]]:
        return ()

    def session_of(self, client: str) -> Session | None:
        return None

    def likely_next(self, session: Session) -> list[str]:
        return []

    def may_hold(self, client: str) -> tuple[str, ...]:
        return ()

    def unmet(self) -> list[str]:
        return []

    def members(self) -> Mapping[str, bool]:
        return {peer: end.is_up for peer, end in self.links.ends.items()}

    def sessions_left(self) -> int:
        return self.session_count

    def check_forgetting(self, broker: str) -> None:
        raise InputError(
            f"{broker} need not be forgotten: brokers that move drop a lost broker automatically"
        )

    def check_draining(self, destination: str) -> None:
        raise InputError(
            "where brokers move, a session follows its client: stop this broker, and clients continue at "
            "any other; messages stored here follow when it is back"
        )

    # --- inputs ---

    def _on_input(self, item: MachineInput | Input) -> None:
        match item:
            case LinkFrames(peer, data):
                self._on_link_frames(peer, data)
            case Tick():
                self._on_tick()
            case LinkDown(peer):
                self._on_link_down(peer)
            case LinkSlowed():
                pass  # Brokers that move do not retain messages.
            case ClientSlowed(connection, is_slow):
                self.front.set_slow(connection, is_slow)
            case StatusAnnounced(topic, payload):
                told = self.announcements.announce(topic, payload, self.core.now)
                self.front.inputs.append(CommandGiven(told))
            case SessionSought(client, number):
                self.seeking.on_where_is(self.id, WhereIs(client, self.id, number))
            case LinkUp(peer):
                self._on_link_down(peer)  # End the former link, if any.
                self._conclude(item)
            case LinkRefused(_, _, is_fence):
                if is_fence:
                    self._conclude(item)
            case _:
                self._conclude(item)

    def _conclude(self, item: MachineInput | Input) -> None:
        """Apply a result of the election, as journalled."""
        self._out.durable.append(item)
        match item:
            case LinkUp(peer, offer, incarnation, version):
                self.links.connect(peer, incarnation, version)
                self.history.link(peer, offer.history)
                self._serve_or_not()
            case LinkRefused(peer, why):
                self._fence(peer, why)
            case HistoryAccepted(broker, seen):
                self.history.accept(broker, seen)
                self._serve_or_not()
            case PeerProgress(peer, position):
                self.history.progress(peer, position)
            case ParentTaken(old, new):
                self._take_parent(old, new)
            case LinkLeft(peer):
                self._close(peer, tell=True)
            case Confirmed(peer, number):
                self.links.confirm(peer, number)
            case Elapsed():
                self.front.on_deadline()
                self.sessions.on_time()
            case QueuesOverLimit(bytes_max, in_flight_bytes_max):
                if in_flight_bytes_max:
                    self.core.limit_in_flight(in_flight_bytes_max)
                self.core.press(bytes_max)
            case SettingsChanged() | RulesChanged() | AccessRevoked() | Started():
                self._on_setting(item)
            case _:
                raise InputError(f"a site whose broker moves does not support {type(item).__name__}")

    def _begin(self, start: int) -> None:
        super()._begin(start)
        self.history.expect(())  # A broker that moves also serves alone, until it meets others.

    def _lose_links(self) -> None:
        self._run()
        for peer in list(self.links.neighbours):
            self._close(peer, tell=False)
            self.links.disconnect(peer)
        self._lost.clear()
        self.core.incarnation = self.core.stamp()
        self.sessions.started()

    def _configure(self, settings: MachineSettings) -> None:
        if settings.movement_graph or settings.states or settings.position_step_m or settings.zones:
            raise InputError(NO_PLACES)
        settings.election.check()
        self.settings = settings
        broker = settings.broker
        self.front.configure(
            msgspec.structs.replace(
                settings.endpoint,
                qos_max=min(settings.endpoint.qos_max, 1),
                shared=False,
                retain=False,
                serves_unreachable=False,
            )
        )
        self.core.machine.settings = MobileSettings(queue=broker.queue, seen_max=settings.seen_max)
        self.core.configure(broker.queue, broker.records, broker.records_attributes)
        waits_s = ROUNDS_WAITED * settings.election.period_s
        self.sessions.configure(min(settings.endpoint.locate_timeout_s / 2, waits_s))

    # --- histories (see broker/history.py) ---

    def _fence(self, peer: str, why: str) -> None:
        """Fence this broker, because the peer refuses its history: serve no client, and drop the other
        peers."""
        self.history.fence(peer, why)
        self._serve_or_not()
        for other in list(self.links.neighbours):
            self._out.link_closes = [*self._out.link_closes, (other, self.history.refusal)]
            self._on_link_down(other)

    def _serve_or_not(self) -> None:
        self.front.refuse_all(self.history.refusal)

    # --- connections and links of the tree ---

    def _on_link_frames(self, peer: str, data: bytes) -> None:
        neighbour = self.links.neighbours.get(peer)
        if neighbour is None:
            return  # The connection is about to be closed.
        try:
            arrivals = neighbour.end.receive(data)
            if arrivals.durable:
                self._confirm_all(peer)
                self._out.durable.append(LinkFrames(peer, arrivals.durable))
            if self.history.is_progress(peer, arrivals.position):
                self._conclude(PeerProgress(peer, arrivals.position))
            for message in arrivals.numbered:
                self._on_message(peer, message)
        except (LinkError, InputError) as error:
            self._out.link_closes = [*self._out.link_closes, (peer, str(error))]
            self._on_link_down(peer)
            return
        self._tell_election()
        for message in arrivals.fleeting:
            if not isinstance(message, Beat):
                self.core.receive_fleeting(peer, message)
            elif self.election is not None:
                self._elect(self.election.on_heartbeat(self.core.now, peer, message.heartbeat()))

    def _on_message(self, peer: str, message: Message) -> None:
        links = self.links
        if isinstance(message, OnLink):
            if links.hears(peer, message):
                self._close(peer, tell=False)
                links.adopt(peer)
        elif isinstance(message, OffLink):
            if links.is_current(peer, (message.number, message.child)):
                self._close(peer, tell=False)
                self._lost.append(peer)
        elif links.is_current(peer):
            self.sessions.receive(peer, message)
            if isinstance(message, Bmig) and not message.hops:
                self.sessions.tree_has_grown()

    def _on_link_down(self, peer: str) -> None:
        """Handle a peer that is out of reach."""
        if peer not in self.links.neighbours:
            return
        self._confirm_all(peer)
        self._out.durable.append(LinkDown(peer))
        self._close(peer, tell=False)
        self.links.disconnect(peer)
        self._lost.append(peer)
        self._tell_election()

    def _close(self, peer: str, tell: bool) -> None:
        """Give up the link of the tree to this peer, if any."""
        if self.links.has_link(peer):
            unconfirmed = self.links.close(peer, tell)
            self.core.link_down(peer, unconfirmed)
            self.sessions.give_back(unconfirmed)

    def _take_parent(self, old: str | None, new: str) -> None:
        if new in self.links.neighbours:
            self._close(new, tell=True)
            self.links.open(new)
            self._parent = new
            self.core.migrate(old, new)
            self.sessions.tree_has_grown()

    def _confirm_all(self, peer: str) -> None:
        for confirmed in list(self.links.confirmations()):
            if confirmed.peer == peer:
                self._confirm(confirmed)

    def _confirm(self, confirmed: Confirmed) -> None:
        self._conclude(confirmed)

    # --- the election ---

    def _on_tick(self) -> None:
        now, due = self.core.now, self._clients_deadline()
        if due is not None and due <= now:
            self._conclude(Elapsed())
        if self.election is None:
            self.election = Election(self.id, self.settings.election, int(now * 1000))
            self._elect(self.election.start(now))
            return
        deadline = self.election.deadline()
        if deadline is not None and deadline <= now:
            self._elect(self.election.on_timer(now))

    def _tell_election(self) -> None:
        lost, self._lost = self._lost, []
        for peer in lost:
            if self.election is not None:
                self._elect(self.election.on_link_lost(self.core.now, peer))

    def _elect(self, effects: list[ElectionEffect]) -> None:
        links = self.links
        for effect in list(effects):
            match effect:
                case Broadcast(heartbeat):
                    links.broadcast(heartbeat)
                case ParentChanged(old, new, _):
                    if old is not None and links.has_link(old):
                        self._leave(old)
                    last = old if old is not None else self._parent
                    if new is not None and new in links.neighbours:
                        self._confirm_all(new)
                        self._conclude(ParentTaken(None if last and links.has_link(last) else last, new))
                case ChildLost(child):
                    if links.has_link(child) and links.neighbours[child].is_child:
                        self._leave(child)
        self._look_at_tree()

    def _look_at_tree(self) -> None:
        election = self.election
        if election is not None:
            children = tuple(sorted(election.children))
            tree = Tree(election.leader, election.parent or "", children, election.hops)
            if tree != self.tree:
                self.tree = self._out.tree = tree

    def _leave(self, peer: str) -> None:
        self._confirm_all(peer)
        self._conclude(LinkLeft(peer))

    # --- running ---

    def _run(self) -> None:
        endpoint, core = self.front, self.core
        while True:
            inputs, endpoint.inputs = endpoint.inputs, []
            for item in inputs:
                self.sessions.take(item)
            self.sessions.finish()
            effects = core.take_effects()
            if not inputs and not effects:
                return
            self._out.records += effects.records
            if effects.to_clients or effects.client_closes:
                endpoint.perform(effects)

    # --- what is checked in a replay ---

    def _clients(self) -> Collection[str]:
        return self.front.sessions

    def _queue_position(self, client: str) -> tuple[int, ...]:
        visit = self.core.visits.get(client)
        return () if visit is None else (visit.connection, visit.stamp, visit.published, visit.sent)

    def _counters(self) -> tuple[int, ...]:
        machine = self.core.machine
        return machine.changes, len(machine.known), len(machine.queues)

    # --- calls of the endpoint (see mqtt.endpoint.Keeper) ---

    def retain(self, topic: str, marks: bytes, body: bytes, client: str) -> None:
        """Do nothing: retained messages are not supported, and the endpoint tells clients so."""

    def recall(self, client: str, subscriptions: Sequence[Subscription]) -> None:
        told = RecallAnnounced(client, tuple(map(recall_of, subscriptions)))
        self.front.inputs.append(CommandGiven(told))

    def end_recall(self, client: str, subscription: Subscription) -> None: ...

    def take_recalls(self, client: str) -> list[Recall]:
        return []

    def resume_recalls(self, client: str, recalls: Sequence[Recall]) -> None: ...

    def join(self, client: str, subscription: Subscription, asks: bool = False) -> None:
        """Do nothing: shared subscriptions are not supported, and the endpoint tells clients so."""

    def leave(self, client: str, subscription: Subscription) -> None: ...

    def give_back(self, client: str, subscription: Subscription, burst: Burst) -> None: ...

    def left_out(self, client: str, burst: Burst, reason: str) -> None: ...

    def unanswered(self, client: str) -> list[str]:
        return []

    def with_zones(self, filter: Filter) -> Filter:
        return with_zones(filter, {})

    def refusal_of_filter(self, filter: Filter, client: str) -> str:
        if filter.own:
            return NO_PLACES
        if len(filter.text) > FILTER_LENGTH_MAX:
            return f"a filter of {len(filter.text)} characters: at most {FILTER_LENGTH_MAX} are allowed"
        if any(name.startswith(NOTE) for name in sorted(names_of(filter.expression))):
            return f"attributes whose names begin with {NOTE!r} are the broker's own"
        return ""

    def refusal_of_move(self, values: dict[str, Value]) -> str:
        return NO_PLACES

    def tells_place(self, topic: str) -> bool:
        return False

    def next_of(self, client: str, said: str) -> bytes | None:
        return self.settings.endpoint.steering.answer(self.id, said, ())
