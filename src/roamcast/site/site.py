"""A site: one broker with its MQTT endpoint, its links, and what only a network of brokers has in common.

It is a state machine like the broker within: inputs in, effects out, no clock and
no chance. The daemon journals the inputs it names as durable, and then lets the
effects out; after a crash the journal is fed to a site again and everything is as
it was. In every turn what came over links comes before what came from clients, so
that a session is never taken away between a client's request and its answer.
"""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.core.codec import Codec
from roamcast.core.effects import Configured, Deadline, LinkChanged, Received, SendFailed, Told
from roamcast.core.messages import Fleeting, Message
from roamcast.core.notification import encode_attributes
from roamcast.errors import InputError
from roamcast.mobility import find_protocol
from roamcast.mqtt.endpoint import Endpoint
from roamcast.mqtt.marks import PLAIN, TOPIC
from roamcast.mqtt.sessions import Subscription
from roamcast.node.broker import Broker
from roamcast.node.link import LinkEnd, LinkError, Resume
from roamcast.overlay.reach import Outcome, Reach
from roamcast.site.inputs import (
    Announced,
    Connected,
    Forgotten,
    Frames,
    Gone,
    LinkDown,
    LinkFrames,
    LinkUp,
    Ruled,
    SiteEffects,
    SiteInput,
    Started,
    Tick,
)
from roamcast.site.retained import KeepThis, Recall, RetainedMessages, TellRetained
from roamcast.site.settings import SiteSettings
from roamcast.site.wills import PublishThat, Wills


class Site:
    __unsaved__ = ("_out",)

    def __init__(self, settings: SiteSettings) -> None:
        self.settings = settings
        self.id = settings.id
        self.starts = 0
        """How often a process has begun to drive this site."""
        self.endpoint = Endpoint(self)
        self.broker = Broker(
            settings.id, find_protocol(settings.protocol), settings.broker, front=self.endpoint
        )
        self.reach = Reach(settings.id)
        self.links: dict[str, LinkEnd] = {}
        self.retained = RetainedMessages(self.broker)
        self.wills = Wills(self.broker)
        self._codec = Codec()
        self._now = 0.0
        self._restore()

    def _restore(self) -> None:
        self._out = SiteEffects()

    # --- the contract ---

    def step(self, now: float, inputs: Iterable[SiteInput]) -> SiteEffects:
        self._now = self.endpoint.now = now
        self._out = out = SiteEffects()
        of_clients = []
        for item in inputs:
            if type(item) is Frames or type(item) is Gone or type(item) is Connected:
                of_clients.append(item)
            else:
                self._on_input(item)
        self._run()
        for item in of_clients:
            if type(item) is Frames:
                durable = self.endpoint.read(item.connection, item.data)
                if durable:
                    out.durable.append(item if durable is item.data else Frames(item.connection, durable))
            elif type(item) is Connected:
                out.durable.append(item)
                self.endpoint.connected(item.connection, item.connect, item.identity)
            elif type(item) is Gone and item.connection in self.endpoint.connections:
                out.durable.append(item)
                self.endpoint.closed(item.connection)
        self._run()
        self._collect()
        return out

    def deadline(self) -> float | None:
        times = [one for one in (self.broker.deadline(), self.endpoint.timers.next()) if one is not None]
        return min(times, default=None)

    def journalled(self) -> None:
        """Everything that this site has received is in the journal: its peers may be told."""
        for link in self.links.values():
            link.acknowledge()

    # --- inputs that do not come from clients ---

    def _on_input(self, item: SiteInput) -> None:
        match item:
            case LinkFrames(peer, data):
                self._on_link_frames(peer, data)
                return
            case LinkDown(peer):
                self._on_link_down(peer)
                return
            case Announced(topic, payload):
                attributes = encode_attributes({TOPIC: topic})
                fleeting = Fleeting("", 0, 0, attributes, self._now, (payload,), 1, PLAIN[0])
                self.endpoint.inputs.append(Told(fleeting))
                return
        self._out.durable.append(item)
        match item:
            case LinkUp():
                self._on_link_up(item)
            case Tick():
                self.endpoint.on_deadline()
                self.endpoint.inputs.append(Deadline())
            case Ruled(rules):
                self.endpoint.set_access(rules)
            case Started(settings):
                self._on_started(settings)
            case Forgotten(broker):
                self._follow(self.reach.forget(broker))

    def _on_started(self, settings: SiteSettings) -> None:
        if (settings.id, settings.protocol) != (self.id, self.settings.protocol):
            raise InputError(
                f"this state is that of broker {self.id!r} with {self.settings.protocol}: it cannot become "
                f"{settings.id!r} with {settings.protocol}"
            )
        self.starts += 1
        self.settings = settings
        self.endpoint.configure(settings.endpoint)
        self.broker.settings = settings.broker
        self.retained.configure(settings.retained_messages_max, settings.retained_bytes_max)
        for id in list(self.endpoint.connections):
            self.endpoint.closed(id)
        for peer in self.links:
            self._on_link_down(peer)

    # --- links ---

    def resume_of(self, peer: str) -> Resume:
        """What to tell a peer when a connection is made."""
        link = self.links.get(peer)
        return link.resume() if link is not None else Resume()

    def _on_link_up(self, item: LinkUp) -> None:
        link = self.links.get(item.peer)
        if link is None:
            link = self.links[item.peer] = LinkEnd(item.peer, item.incarnation, self._codec)
        try:
            link.up(item.resume)
        except LinkError as error:
            self._out.link_closes.append((item.peer, str(error)))
            return
        self.endpoint.inputs.append(LinkChanged(item.peer, True))
        self._follow(self.reach.join(item.peer, item.offered))

    def _on_link_down(self, peer: str) -> None:
        link = self.links.get(peer)
        if link is not None and link.is_up:
            link.down()
            self.endpoint.inputs.append(LinkChanged(peer, False))

    def _on_link_frames(self, peer: str, data: bytes) -> None:
        link = self.links.get(peer)
        if link is None:
            return
        try:
            arrivals = link.receive(data)
        except LinkError as error:
            link.down()
            self._out.link_closes.append((peer, str(error)))
            return
        if arrivals.durable:
            self._out.durable.append(LinkFrames(peer, arrivals.durable))
        inputs = self.endpoint.inputs
        for message in arrivals.numbered:
            if type(message) in self.reach.messages:
                # Who is reachable must be known before what they send is looked at.
                self._run()
                self._follow(self.reach.receive(peer, message))
                self._run()
            else:
                inputs.append(Received(peer, message))
        inputs += [Received(peer, message) for message in arrivals.fleeting]

    def _follow(self, outcome: Outcome) -> None:
        """Do what follows for the overlay."""
        for peer, message in outcome.sends:
            self.links[peer].send(message)
        if outcome.is_changed:
            known = self.broker.peers
            self.endpoint.inputs.append(Configured(self.reach.peers, self.reach.next_hops))
            for peer in self.reach.peers:
                if peer not in known:
                    self.endpoint.inputs.append(Told(TellRetained(peer)))
        for peer, why in outcome.closes:
            self._out.link_closes.append((peer, why))
            failed = self.links.pop(peer).give_up()
            self.endpoint.inputs.append(SendFailed(peer, failed))

    # --- running the broker ---

    def _run(self) -> None:
        endpoint, broker = self.endpoint, self.broker
        while endpoint.inputs:
            inputs, endpoint.inputs = endpoint.inputs, []
            effects = broker.step(self._now, inputs)
            if effects.sends:
                self._send(effects.sends)
            if effects.records:
                self._out.records += effects.records
            if effects.to_clients or effects.closes:
                endpoint.perform(effects)

    def _send(self, sends: list[tuple[str, Message]]) -> None:
        encode, links = self._codec.encode, self.links
        last: Message | None = None
        data = b""
        for peer, message in sends:
            link = links.get(peer)
            if link is None:
                continue
            if message is not last:
                last, data = message, encode(message)
            if type(message) is Fleeting:
                link.send_fleeting_encoded(data, message.count)
            else:
                link.send_encoded(data)

    def _collect(self) -> None:
        self._out.writes = self.endpoint.take_writes()
        if self.endpoint.closes:
            self._out.closes = list(self.endpoint.closes)
            self.endpoint.closes.clear()

    # --- what the endpoint asks for (see mqtt.endpoint.Keeper) ---

    def publish(self, topic: str, marks: bytes, body: bytes) -> None:
        self.endpoint.inputs.append(Told(PublishThat(topic, marks, body)))

    def retain(self, topic: str, marks: bytes, body: bytes) -> None:
        self.endpoint.inputs.append(Told(KeepThis(topic, marks, body)))

    def recall(self, client: str, subscription: Subscription) -> None:
        self.endpoint.inputs.append(Told(Recall(client, subscription.filter)))

    def join(self, client: str, subscription: Subscription) -> None:
        raise NotImplementedError

    def leave(self, client: str, subscription: Subscription) -> None:
        raise NotImplementedError
