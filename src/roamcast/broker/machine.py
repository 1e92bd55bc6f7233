"""A site: one broker with its MQTT endpoint, its links, and functions that span the network.

It is a state machine like the broker within: inputs in, effects out, no clock and no randomness. The
daemon journals the inputs it names as durable, and then lets the effects out; after a crash the journal
is fed to a site again and everything is as it was. In every turn, input from links comes before input
from clients, so that a session is never taken away between a client's request and its answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from roamcast.broker.announcing import Announcements, RecallAnnounced
from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.broker.draining import SLICE_SESSIONS, Draining, HandAway
from roamcast.broker.figures import Figures
from roamcast.broker.fronts import ClientFront, MqttFront, PlainFront
from roamcast.broker.inputs import (
    AccessRevoked,
    BrokerForgotten,
    ClientSlowed,
    DrainOrdered,
    HistoryAccepted,
    LinkDown,
    LinkFrames,
    LinkRefused,
    LinkSlowed,
    LinkUp,
    MachineEffects,
    MachineInput,
    NewsGiven,
    OverlayGiven,
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
from roamcast.broker.links.border import Border
from roamcast.broker.links.end import LinkError
from roamcast.broker.links.links import Links, LinkTurn
from roamcast.broker.machine_base import MachineBase
from roamcast.broker.news import NewsDesk, TellNews
from roamcast.broker.retained import (
    BeginRecall,
    EndRecall,
    GoOn,
    KeepThis,
    PeerListens,
    RetainedMessages,
    TellRetained,
)
from roamcast.broker.seeking import Seek, Seeking
from roamcast.broker.settings import MachineSettings
from roamcast.broker.shared import SharedSubscriptions
from roamcast.broker.shared_messages import GivesBack, MembersChanged, Takes
from roamcast.broker.wills import Wills
from roamcast.errors import InputError
from roamcast.filters.filter import Filter, Value
from roamcast.mobility import find_protocol
from roamcast.mqtt.server.sessions import Recall, Subscription, recall_of
from roamcast.protocol.codec import Codec
from roamcast.protocol.effects import (
    CommandGiven,
    Deadline,
    Input,
    LinkChanged,
    OverlayChanged,
    Received,
    Submitted,
    TrimQueues,
)
from roamcast.protocol.messages import LeftOut, Message, PeersExpected, TellHeld
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.state import State

UNDER_WAY_BYTES_MAX = 1 << 20
"""Bytes under way to a peer beyond which it is not told about retained messages yet."""


class BrokerMachine(MachineBase[ClientFront, Links, Seeking]):
    links_may_cycle: ClassVar[bool] = False

    __state__ = State(
        "broker-machine",
        saved=(
            "broker", "links", "border", "retained", "wills", "shared", "announcements", "seeking", "news",
            "draining", "_told", "_meet_until", "_slowed",
        ),
        unhashed=("_now",),
    )  # fmt: skip

    def __init__(self, settings: MachineSettings) -> None:
        super().__init__(settings)
        self.front: ClientFront = (
            MqttFront(self) if settings.front == "mqtt" else PlainFront(settings.encodes)
        )
        self.broker = BrokerCore(
            settings.id,
            find_protocol(settings.protocol),
            _broker_settings(settings),
            front=self.front.of_core,
        )
        self.links = Links(settings.id, Codec() if settings.encodes else None)
        self.retained = RetainedMessages(self.broker)
        self.wills = Wills(self.broker)
        self.shared = SharedSubscriptions(self.broker, self.front)
        self.announcements = Announcements(self.broker)
        self.seeking = Seeking(self.broker, self.front)
        self.news = NewsDesk(self.broker)
        self.draining = Draining(self.broker)
        self.border = Border(self.broker, self.links.reach)
        self.border.configure(settings.border, settings.front == "mqtt")
        self.links.set_guests(self.border.guest_peers)
        self._told: dict[str, None] = {}
        """Peers that have been told the retained messages."""
        self._meet_until = 0.0
        """Deadline of waiting for peers that were never met."""
        self._slowed: dict[str, None] = {}
        """Peers with too much buffered."""
        self._now = 0.0
        self._restore()

    def _restore(self) -> None:
        super()._restore()
        self.links.border = self.broker.border = self.border
        for part in (
            self.retained, self.wills, self.shared, self.announcements, self.seeking, self.news,
            self.draining,
        ):  # fmt: skip
            part.register_handlers()

    # --- the contract ---

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
        front = self.front
        self._now = front.now = now
        self._out = out = MachineEffects()
        kinds, of_clients = front.kinds, []
        for item in inputs:
            if type(item) in kinds:
                of_clients.append(item)
            elif type(item) is Received:
                front.inputs.append(item)  # Of a peer in this process, whose link has numbered it.
            elif type(item) is StateChecked:
                self._expected = item
            else:
                self._on_input(item)
        if front.inputs:
            self._run()
        if of_clients:
            front.take(of_clients, out)
            if front.inputs:
                self._run()
        if type(front) is MqttFront:
            front.collect(out)
        if self.seeking.answers:
            out.answers, self.seeking.answers = self.seeking.answers, []
        if self.news.heard:
            out.news, self.news.heard = self.news.heard, []
        if out.durable:
            if self.broker.clients.resting:
                self.broker.clients.rest(self._now)
            self._check_state(out.durable)
        return out

    def receive_in_process(
        self, now: float, peer: str, message: Message, number: int, out: MachineEffects
    ) -> None:
        """`step` for a message of a peer in this process, the most frequent input of a simulation."""
        self.links.ends[peer].receive_in_process(number)
        front = self.front
        self._now = front.now = now
        self._out = out
        self.broker.receive_in_process(now, peer, message, out)
        if front.inputs or out.client_closes:
            self._finish_in_process(out)

    def submit_in_process(self, now: float, items: Iterable[Submitted], out: MachineEffects) -> None:
        """`step` for messages of clients of a plain front that journals nothing."""
        front = self.front
        self._now = front.now = now
        self._out = out
        self.broker.submit_in_process(now, items, out)
        if front.inputs or out.client_closes:
            self._finish_in_process(out)

    def _finish_in_process(self, out: MachineEffects) -> None:
        if out.client_closes:
            self.front.perform(out)
        if self.front.inputs:
            self._run()

    @property
    def _waits_for_peers(self) -> bool:
        """True while questions wait, up to a time limit, for a peer that was never met: one that is not
        connected, and was configured after all others were met."""
        locator = self.broker.locator
        if not locator.unmet or not self.history.is_settled:
            return False
        is_short = locator.is_complete or self.settings.serves_unmet
        return is_short and not all(map(self._is_connected, locator.unmet))

    def _is_connected(self, peer: str) -> bool:
        end = self.links.ends.get(peer)
        return end is not None and end.is_up

    def deadline(self) -> float | None:
        broker = self.broker
        of_broker = broker.timers[0][0] if broker.timers else None
        if broker.locator.unmet and self._waits_for_peers:
            of_broker = min(self._meet_until, of_broker or self._meet_until)
        timers = self.front.timers
        of_clients = timers.next() if timers is not None else None
        retained = self.retained
        if (retained.recalls or retained.untold) and self._next_slice() is not None:
            return 0.0
        if of_clients is None:
            return of_broker
        return of_clients if of_broker is None else min(of_broker, of_clients)

    def awaits_acknowledgement(self, client: str) -> bool:
        broker = self.broker
        attachment = broker.attachments.get(client)
        if attachment is None or attachment.queue is None:
            return True
        return attachment.queue.needs_room(attachment.window) or broker.protocol.awaits_acknowledgement(
            client
        )

    # --- for observers (see contract.AnyMachine) ---

    @property
    def queued_bytes(self) -> int:
        """Bytes stored for clients here."""
        return sum(queue.size_bytes for _, queue in self.broker.protocol.stored())

    @property
    def taken_bytes(self) -> int:
        return self.broker.buffer.taken_bytes

    @property
    def figures(self) -> Figures:
        return self.broker.figures

    @property
    def promise(self) -> str:
        protocol = self.broker.protocol
        lost = "; a session on its way to a broker that is forgotten is lost"
        return protocol.summary + ("" if protocol.takes_back else lost)

    @property
    def tree(self) -> Tree | None:
        return None  # Links of this broker are permanent.

    @property
    def strategy(self) -> str:
        return self.broker.router.strategy

    @property
    def session_count(self) -> int:
        return len(self.broker.sessions)

    @property
    def retained_count(self) -> int:
        return len(self.retained)

    @property
    def retained_refused(self) -> int:
        return self.retained.refused

    def reserves(self, client: str) -> bool:
        return self.border.reserves(client)

    def refused(self, peer: str) -> Mapping[str, int]:
        return self.border.refused.get(peer, {})

    def stored(self) -> Iterable[Burst]:
        return (burst for _, queue in self.broker.protocol.stored() for burst in queue.bursts())

    def in_flight_bytes(self) -> dict[str, int]:
        return {client: queue.in_flight_bytes for client, queue in self.queues()}

    def queues(self) -> Iterable[tuple[str, DeliveryQueue]]:
        return self.broker.protocol.stored()

    def session_of(self, client: str) -> Session | None:
        return self.broker.sessions.get(client)

    def likely_next(self, session: Session) -> list[str]:
        return self.broker.protocol.likely_next(session)

    def may_hold(self, client: str) -> tuple[str, ...]:
        return self.broker.directory.may_hold(client)

    def unmet(self) -> list[str]:
        return list(self.broker.locator.unmet)

    def members(self) -> Mapping[str, bool]:
        reach = self.links.reach
        known = [*reach.next_hops, *reach.cut_off]
        return {
            one: one in reach.next_hops
            for one in dict.fromkeys(known)
            if one != self.id and not self.broker.is_guest(one)
        }

    def sessions_left(self) -> int:
        """Sessions that are not safely elsewhere: held here, granted but not taken, or still on a link."""
        broker = self.broker
        stored = [client for client, queue in broker.protocol.stored() if queue]
        departed = [here.client for here in broker.clients.here.awake() if here.departed is not None]
        held = dict.fromkeys([*broker.sessions, *departed, *stored])
        if not held and any(end.kept_bytes for end in self.links.ends.values() if end.is_up):
            return 1
        return len(held)

    def check_forgetting(self, broker: str) -> None:
        known = [*self.links.reach.next_hops, *self.links.reach.cut_off]
        if broker not in known:
            names = ", ".join(sorted(known)) or "none"
            raise InputError(f"there is no broker {broker} in the network; known are: {names}")

    def check_draining(self, destination: str) -> None:
        if destination not in self.links.reach.next_hops:
            up = ", ".join(peer for peer, end in self.links.ends.items() if end.is_up)
            raise InputError(f"broker {destination} cannot be reached; links are up to: {up}")
        if self.broker.is_guest(destination):
            raise InputError(f"broker {destination} is of another organisation; sessions go there one by one")

    # --- inputs that do not come from clients ---

    def _on_input(self, item: MachineInput | Input) -> None:
        match item:
            case LinkFrames(peer, data):
                self._on_link_frames(peer, data)
                return
            case ClientSlowed(connection, is_slow):
                self.front.set_slow(connection, is_slow)
                return
            case StatusAnnounced(topic, payload):
                told = self.announcements.announce(topic, payload, self._now)
                self.front.inputs.append(CommandGiven(told))
                return
            case NewsGiven(to, body):
                self.front.inputs.append(CommandGiven(TellNews(to, body)))
                return
        self._out.durable.append(item)
        match item:
            case OverlayGiven(links):
                self._follow(self.links.establish(links))
                for link in links:
                    self.history.link(link.peer, link.history)
            case LinkUp():
                self._on_link_up(item)
            case LinkDown(peer):
                self._follow(self.links.disconnected(peer))
            case LinkRefused(peer, why, is_fence):
                self._follow(self.links.refused(peer, why))
                if is_fence:
                    self._fence(peer, why)
            case HistoryAccepted():
                self._on_accepted(item)
            case PeerProgress(peer, position):
                self.history.progress(peer, position)
            case BrokerForgotten(broker):
                self._follow(self.links.forget(broker))
            case QueuesOverLimit(bytes_max, in_flight_bytes_max):
                if in_flight_bytes_max:
                    self.broker.limit_in_flight(in_flight_bytes_max)
                self.front.inputs.append(TrimQueues(bytes_max))
            case SessionSought(client, number):
                self.front.inputs.append(CommandGiven(Seek(client, number)))
            case DrainOrdered(destination, reference):
                are_connected = self.front.send_away(reference, SLICE_SESSIONS)
                self.front.inputs.append(CommandGiven(HandAway(destination, not are_connected)))
                self._run()
                if are_connected or self.draining.are_left:
                    self._out.deferred = [*self._out.deferred, item]
            case Tick():
                self._on_tick(item)
            case LinkSlowed(peer, is_slow):
                self._slowed.pop(peer, None)
                if is_slow:
                    self._slowed[peer] = None
                self._listen(peer)
            case SettingsChanged() | RulesChanged() | AccessRevoked() | Started():
                self._on_setting(item)
                if type(item) is Started:
                    self.front.inputs.append(CommandGiven(TellHeld()))
            case _:
                raise InputError(f"a broker that does not move does not know {type(item).__name__}")

    def _on_tick(self, item: Tick) -> None:
        if self._waits_for_peers and self._now >= self._meet_until:
            # A connected peer is met with its first frames, however long that takes.
            self._expect(*filter(self._is_connected, self.broker.locator.unmet))
        self.front.on_deadline()
        self.front.inputs.append(Deadline())
        if not (self.retained.recalls or self.retained.untold):
            return
        clients, peers = item.clients, item.peers
        if clients is None:
            # Slowness of connections is not journalled, so its consequences are.
            go_on = self._next_slice() or GoOn((), ())
            clients, peers = go_on.clients, go_on.peers
            self._out.durable[-1] = Tick(clients, peers)
        self.front.inputs.append(CommandGiven(GoOn(clients, peers)))

    def _next_slice(self) -> GoOn | None:
        """Return the recalls and peers with which the next turn continues; None if there are none."""
        ends = self.links.ends
        return self.retained.due(
            self.front.is_slow, lambda peer: peer in ends and ends[peer].kept_bytes > UNDER_WAY_BYTES_MAX
        )

    def _lose_links(self) -> None:
        for peer in list(self.links.ends):
            self._follow(self.links.disconnected(peer))

    def _configure(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.front.apply(settings)
        self.broker.configure(_broker_settings(settings))
        self.retained.configure(settings.retained_messages_max, settings.retained_bytes_max)
        for peer, update in self.border.configure(settings.border, settings.front == "mqtt"):
            if peer in self.links.ends:
                self.links.ends[peer].send(update)
        self._follow(self.links.set_guests(self.border.guest_peers))
        self.history.expect(settings.peers)
        known = self.links.reach.members
        unmet = [peer for peer in settings.peers if peer not in known]
        self._expect(*unmet)
        if not unmet:
            self.broker.locator.is_complete = True
        self._meet_until = self._now + settings.meet_timeout_s

    # --- histories (see history.py) ---

    def _fence(self, peer: str, why: str) -> None:
        """Fence this broker, because the peer refuses its history: serve no client, and drop the other
        peers."""
        self.history.fence(peer, why)
        self._serve_or_not()
        for other, end in self.links.ends.items():
            if end.is_up:
                self._follow(self.links.disconnected(other))
                self._close_link(other, self.history.refusal)

    def _expect(self, *peers: str) -> None:
        """Let questions about sessions wait for these peers only, among those never met."""
        if peers or self.broker.locator.unmet:
            self.front.inputs.append(CommandGiven(PeersExpected(peers)))

    def _serve_or_not(self) -> None:
        self.front.refuse_all(self.history.refusal if self.history.fences else "")

    def _on_accepted(self, item: HistoryAccepted) -> None:
        self.history.accept(item.broker, item.seen)
        if item.broker == self.id:
            self._expect()
        if item.begins_anew:
            self._follow(self.links.drop(item.broker, "an operator accepted another history of it"))
        self._serve_or_not()

    # --- links ---

    def _on_link_up(self, item: LinkUp) -> None:
        peer = item.peer
        try:
            if item.incarnation and peer in self.links.reach.peers:
                # The peer's end is not the one that this link was made with.
                turn = self.links.drop(peer, "the link restarts")
                turn.closes.clear()
                self._follow(turn)
            self._follow(self.links.connected(peer, item.offer, item.incarnation, item.version))
        except LinkError as error:
            self._close_link(peer, str(error))
            return
        if not self.history.is_settled:
            self._meet_until = self._now + self.settings.meet_timeout_s
        self.history.link(peer, item.offer.history)
        self._serve_or_not()

    def _on_link_frames(self, peer: str, data: bytes) -> None:
        try:
            turn = self.links.receive(peer, data)
        except LinkError as error:
            turn = self.links.disconnected(peer)
            if turn.inputs:
                # A replay does not have these frames, and the link goes down there at the same time.
                self._out.durable.append(LinkDown(peer))
            self._follow(turn)
            self._close_link(peer, str(error))
            return
        if turn.durable:
            self._out.durable.append(LinkFrames(peer, turn.durable))
        if self.history.is_progress(peer, turn.position):
            self._out.durable.append(PeerProgress(peer, turn.position))
            self.history.progress(peer, turn.position)
        self._follow(turn)

    def _follow(self, turn: LinkTurn) -> None:
        """Pass the broker the inputs that arrived over links or follow from a change of the overlay."""
        inputs = self.front.inputs
        for item in turn.inputs:
            inputs.append(item)
            if type(item) is OverlayChanged:
                new = [peer for peer in item.peers if peer not in self._told]
                self._told = dict.fromkeys(item.peers)
                inputs.append(CommandGiven(TellRetained(tuple(new), tuple(item.peers))))
                inputs.append(CommandGiven(MembersChanged()))
            elif type(item) is LinkChanged:
                self._listen(item.peer)
        inputs += turn.fleeting
        self.history.forget(turn.forgotten)
        for peer, why in turn.closes:
            self._close_link(peer, why)

    def _listen(self, peer: str) -> None:
        """Note whether the peer takes retained messages: its link is up, and not too much is buffered for
        it."""
        end = self.links.ends.get(peer)
        listens = end is not None and end.is_up and peer not in self._slowed
        self.front.inputs.append(CommandGiven(PeerListens(peer, listens)))

    def _close_link(self, peer: str, why: str) -> None:
        self._out.link_closes = [*self._out.link_closes, (peer, why)]

    # --- running the broker ---

    def _run(self) -> None:
        front, out = self.front, self._out
        while front.inputs:
            inputs, front.inputs = front.inputs, []
            sent = len(out.sends)
            self.broker.step(self._now, inputs, out)
            if self.settings.encodes and len(out.sends) > sent:
                self.links.send(out.sends[sent:])
                if self.border.replies:
                    front.inputs += [CommandGiven(reply) for reply in self.border.take_replies()]
            if out.to_clients or out.client_closes:
                front.perform(out)

    # --- what is checked in a replay ---

    def _clients(self) -> Collection[str]:
        return self.broker.sessions

    def _queue_position(self, client: str) -> tuple[int, ...]:
        session, attachment = self.broker.sessions.get(client), self.broker.attachments.get(client)
        position: tuple[int, ...] = ()
        if session is not None:
            position += (session.number, session.incarnation, session.published, session.accepted)
        if attachment is not None and attachment.queue is not None:
            queue = attachment.queue
            position += (queue.base, queue.sent, queue.appended, queue.popped)
        return position

    def _counters(self) -> tuple[int, ...]:
        return (*self.broker.counters(), *self.retained.counters())

    # --- calls of the endpoint (see mqtt.endpoint.Keeper) ---

    def retain(self, topic: str, marks: bytes, body: bytes, client: str) -> None:
        self.front.inputs.append(CommandGiven(KeepThis(topic, marks, body, client)))

    def recall(self, client: str, subscriptions: Sequence[Subscription]) -> None:
        recalls = tuple(map(recall_of, subscriptions))
        self.front.inputs.append(CommandGiven(BeginRecall(client, recalls)))
        self.front.inputs.append(CommandGiven(RecallAnnounced(client, recalls)))

    def end_recall(self, client: str, subscription: Subscription) -> None:
        self.front.inputs.append(CommandGiven(EndRecall(client, subscription.name)))

    def take_recalls(self, client: str) -> list[Recall]:
        return self.retained.take_recalls(client)

    def resume_recalls(self, client: str, recalls: Sequence[Recall]) -> None:
        self.retained.resume_recalls(client, recalls)

    def join(self, client: str, subscription: Subscription, asks: bool = False) -> None:
        is_there = self.front.is_connected(client)
        takes = Takes(subscription.group, subscription.filter, client, True, is_there, asks)
        self.front.inputs.append(CommandGiven(takes))

    def leave(self, client: str, subscription: Subscription) -> None:
        takes = Takes(subscription.group, subscription.filter, client, joins=False)
        self.front.inputs.append(CommandGiven(takes))

    def give_back(self, client: str, subscription: Subscription, burst: Burst) -> None:
        given = GivesBack(subscription.group, subscription.filter, client, burst)
        self.front.inputs.append(CommandGiven(given))

    def left_out(self, client: str, burst: Burst, reason: str) -> None:
        self.front.inputs.append(CommandGiven(LeftOut(client, burst, reason)))

    def unanswered(self, client: str) -> list[str]:
        return self.broker.locator.unanswered(client)

    def with_zones(self, filter: Filter) -> Filter:
        return self.broker.places.with_zones(filter)

    def refusal_of_filter(self, filter: Filter, client: str) -> str:
        return self.broker.places.refusal_of_filter(filter, client)

    def refusal_of_move(self, values: dict[str, Value]) -> str:
        return self.broker.places.refusal_of_move(values)

    def tells_place(self, topic: str) -> bool:
        telling = self.broker.places.telling
        return telling is not None and telling.counts(topic)

    def next_of(self, client: str, said: str) -> bytes | None:
        session, steering = self.broker.sessions.get(client), self.settings.endpoint.steering
        likely = self.broker.protocol.likely_next(session) if session is not None else ()
        return steering.answer(self.id, said, likely)


def _broker_settings(settings: MachineSettings) -> CoreSettings:
    """Return the broker's own settings, with location settings parsed from text."""
    if not (settings.movement_graph or settings.states or settings.position_step_m or settings.zones):
        return settings.broker
    return msgspec.structs.replace(settings.broker, location=settings.location())
