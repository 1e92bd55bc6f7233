"""Stations that run MFT-PubSub: brokers that elect a leader and move, and their clients.

Protocol and election are pure machines; here they meet the air. Where the thesis leaves something open:

- Heartbeats are sent once a second. They also keep a broker's children and clients connected to it.
- A client takes the first broker it hears, keeps it until it has missed two of its heartbeats or could not
  send to it, and then takes the one nearest to the leader of those it has heard since.
- A link is lost when a message over it was not acknowledged. The other end may not notice. So a broker that
  has given up the link of a child or client and still hears that station tells it to connect again
  (`Relink`).
- A publisher keeps what no broker has accepted until it finds one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roamcast.filters.expression import Attributes
from roamcast.filters.selector import parse
from roamcast.mobility.moving.election import (
    Broadcast,
    ChildLost,
    Election,
    ElectionEffect,
    ElectionSettings,
    Heartbeat,
    ParentChanged,
)
from roamcast.mobility.moving.mft import Bmig, Mft
from roamcast.mobility.moving.mobile import LOCAL, Mig, MobileProtocol, Outcome, Rep
from roamcast.mobility.moving.mobile_subscriber import MobileSubscriber
from roamcast.mobility.moving.recursive_migration import BmigOfLocals
from roamcast.protocol.messages import Burst, Message
from roamcast.protocol.notification import decode_attributes, encode_attributes
from roamcast.simulator.radio.ledger import Ledger
from roamcast.simulator.radio.mft_links import (
    HEARTBEAT_BYTES,
    LINKS,
    Group,
    LinkSettings,
    Outbox,
    Presence,
    Relink,
    Wire,
    name_of,
    wires_of,
)
from roamcast.simulator.radio.network import Station
from roamcast.simulator.radio.workload import Publishing

JITTER_S = 0.010
"""Our choice, as in AODV: random delay, so that stations that heard the same heartbeat do not repeat it at
once.
"""
MISSED_MAX = 2
"""Number of heartbeats that a client may miss, as many as AODV's ALLOWED_HELLO_LOSS."""
RELINKS_AT_ONCE, RELINK_EVERY = 3, 5
"""A broker asks an unreachable client to connect again in each of the first periods, then in every fifth. The
client may be in another part of the network; but a client that hears the heartbeats does not come by
itself.
"""

EVERYTHING = parse("TRUE")


def number_of(name: str) -> int:
    return int(name)


class Load(NamedTuple):
    messages: int
    periods: int


class MftBroker:
    def __init__(
        self,
        station: Station,
        ledger: Ledger,
        settings: ElectionSettings,
        brokers: range,
        publishers: range,
        content_bytes: int,
        links: LinkSettings = LINKS,
        rules: type[MobileProtocol] = Mft,
        speed: float = 0.0,
    ) -> None:
        self.station = station
        self.election = Election(name_of(station.number), settings, speed=speed)
        self.protocol = rules(name_of(station.number))
        self.migrations = 0
        self.load: dict[int, Load] = {}
        """By distance from the leader in hops, while another broker is in the tree."""
        self._counted = 0
        self._period_s = settings.period_s
        self._brokers = brokers
        self._publishers = publishers
        self._ledger = ledger
        self._links = links
        self._outbox = Outbox(station, content_bytes, links)
        self._started = False
        self._elects_at: float | None = None
        self._missing: set[str] = set()
        """Children and clients that were not connected at the last check."""
        self._relinks: dict[str, int] = {}

    # --- for the network ---

    def on_start(self) -> None:
        self.station.set_timer(self.station.chance.random() * self._period_s, self._elect)
        self.station.set_timer(self.station.chance.random() * self._period_s, self._check)

    def accepts(self, sender: int, message: Wire | Group) -> bool:
        return (
            not self._links.refused
            or connects(wires_of(message)[0].message, name_of(sender))
            or sender in self._publishers
            or self._outbox.is_current(sender, message)
        )

    def on_received(self, sender: int, message: Heartbeat | Presence | Wire | Group) -> None:
        if isinstance(message, Wire | Group):
            for wire in wires_of(message):
                self._on_wire(sender, wire)
        elif isinstance(message, Heartbeat) and self._started:
            self._perform(self.election.on_heartbeat(self.station.now, name_of(sender), message))

    def _on_wire(self, sender: int, wire: Wire) -> None:
        name = name_of(sender)
        if isinstance(wire.message, Relink):
            if name == self.election.parent:
                self._give_up(name)
                self._migrate(name, name)
            return
        if connects(wire.message, name) and not self._outbox.is_current(sender, wire):
            self._give_up(name)
            self._outbox.links[sender] = wire.link
        self._note_owed(wire.message)
        is_client = sender not in self._brokers
        self._carry_out(self.protocol.receive(name, wire.message, is_subscriber=is_client), wire)

    def on_sent(self, destination: int, message: Heartbeat | Wire | Group) -> None:
        if not isinstance(message, Heartbeat):
            self._outbox.sent(destination, message)

    def on_send_failed(self, destination: int, message: Heartbeat | Wire | Group) -> None:
        if isinstance(message, Heartbeat) or not self._outbox.failed(destination, message):
            return
        self._give_up(name_of(destination))
        if destination in self._brokers:
            self._perform(self.election.on_link_lost(self.station.now, name_of(destination)))

    # --- election ---

    def _elect(self) -> None:
        now = self.station.now
        self._elects_at = None
        if self._started:
            self._perform(self.election.on_timer(now))
        else:
            self._started = True
            self._perform(self.election.start(now))

    def _perform(self, effects: Iterable[ElectionEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Broadcast):
                at = self.station.now + self.station.chance.random() * JITTER_S
                say = self.station.broadcast
                self.station.set_timer(at, say, "HEARTBEAT", effect.heartbeat, HEARTBEAT_BYTES)
            elif isinstance(effect, ParentChanged):
                if effect.old is not None:
                    self._give_up(effect.old)
                if effect.new is not None:
                    self._migrate(effect.old, effect.new)
            elif isinstance(effect, ChildLost) and effect.child != self.election.parent:
                self._give_up(effect.child)
        deadline = self.election.deadline()
        if deadline is not None and (self._elects_at is None or deadline < self._elects_at):
            self._elects_at = max(deadline, self.station.now)
            self.station.set_timer(self._elects_at, self._elect)

    def _give_up(self, name: str) -> None:
        """Give up the link to a neighbour or client."""
        left = self._outbox.give_up(number_of(name))
        down = self.protocol.link_down if number_of(name) in self._brokers else self.protocol.detach
        self._carry_out(down(name, left))

    def _migrate(self, old: str | None, new: str) -> None:
        self.migrations += 1
        self._outbox.connect(number_of(new))
        self._carry_out(self.protocol.migrate(old, new))

    # --- the protocol ---

    def _carry_out(self, outcome: Outcome, cause: Wire | None = None) -> None:
        for peer, message in outcome.sends:
            self._outbox.send(number_of(peer), message, _hops(message, cause))
        for subscriber, message in outcome.to_subscribers:
            self._outbox.send(number_of(subscriber), message, _hops(message, cause))

    def _note_owed(self, message: Message) -> None:
        """Record a publish as owed to every subscriber that a broker on its way knows (section 4.5.3)."""
        if isinstance(message, Burst):
            notification = (number_of(message.publisher), message.number)
            attributes = decode_attributes(message.attributes)
            for subscriber, known in self.protocol.known.items():
                if any(filter.matches(attributes) for filter in known.filters.values()):
                    self._ledger.owed(notification, number_of(subscriber))

    def _count(self) -> None:
        """Count what the broker has sent since the last count, at its present place in the tree."""
        sent = self.station.sent.total()
        if self.election.parent is not None or self.election.children:
            hops = 0 if self.election.parent is None else self.election.hops
            load = self.load.get(hops, Load(0, 0))
            self.load[hops] = Load(load.messages + sent - self._counted, load.periods + 1)
        self._counted = sent

    def _check(self) -> None:
        """Ask stations to connect again whose link was given up here, and who may not know it."""
        self.station.set_timer(self.station.now + self._period_s, self._check)
        self._count()
        if self._links.relinks:
            self._ask_to_connect()

    def _ask_to_connect(self) -> None:
        missing = {child for child in self.election.children if child not in self.protocol.peers}
        for name in sorted(missing & self._missing):
            self._outbox.send(number_of(name), Relink())
        self._missing = missing
        away = [
            name
            for name, known in self.protocol.known.items()
            if known.way == LOCAL and name not in self.protocol.attached
        ]
        self._relinks = {name: self._relinks.get(name, 0) + 1 for name in away}
        for name, count in self._relinks.items():
            if count <= RELINKS_AT_ONCE or count % RELINK_EVERY == 0:
                self._outbox.send(number_of(name), Relink())


def connects(message: Message | Relink, sender: str) -> bool:
    """Return whether a message begins a link, or asks for one."""
    if isinstance(message, BmigOfLocals):
        return message.broker == sender
    if isinstance(message, Bmig):
        return message.hops == 0
    return isinstance(message, Mig | Relink)


def _hops(message: Message, cause: Wire | None) -> int:
    """Return the hops so far plus one; what was stored here starts again at one (section 4.5.4)."""
    if cause is None or isinstance(cause.message, Relink):
        return 1
    came = _events(cause.message)
    return cause.hops + 1 if any(event in came for event in _events(message)) else 1


def _events(message: Message | Relink) -> list[tuple[str, int]]:
    bursts = message.bursts if isinstance(message, Rep) else (message,) if isinstance(message, Burst) else ()
    return [(burst.publisher, burst.number) for burst in bursts]


class MftClient:
    """A subscriber or a publisher."""

    def __init__(
        self,
        station: Station,
        ledger: Ledger,
        period_s: float,
        publishing: Publishing,
        *,
        subscribers: range,
        links: LinkSettings = LINKS,
    ) -> None:
        """A client that is not one of the subscribers publishes for them."""
        self.station = station
        self.client = MobileSubscriber(name_of(station.number))
        self.migrations = 0
        self._ledger = ledger
        self._period_s = period_s
        self._publishing = publishing
        self._subscribers = subscribers
        self._publishes = station.number not in subscribers
        self._links = links
        self._outbox = Outbox(station, publishing.content_bytes, links)
        self._heard: dict[int, tuple[float, int, float]] = {}
        """By broker: time of its last heartbeat, its distance from its leader, and its speed."""
        self._round = ("", (-1, 0))
        """The leader that it follows, if any, and that leader's latest round."""
        self._round_at = 0.0

    # --- for the network ---

    def on_start(self) -> None:
        now, chance = self.station.now, self.station.chance
        self.station.set_timer(now + chance.random() * self._period_s, self._check)
        if self._publishes:
            self.station.set_timer(now + chance.random() * self._publishing.every_s, self._publish)
        else:
            wanted = parse(f"to = '{self.client.id}'") if self._publishing.to_each else EVERYTHING
            self._send(self.client.subscribe(wanted))

    def accepts(self, sender: int, message: Wire | Group) -> bool:
        first = wires_of(message)[0].message
        is_taken = not self._links.refused or isinstance(first, Relink)
        return is_taken or self._outbox.is_current(sender, message)

    def on_received(self, sender: int, message: Heartbeat | Presence | Wire | Group) -> None:
        if isinstance(message, Wire | Group):
            for wire in wires_of(message):
                self._on_wire(sender, wire)
        elif isinstance(message, Heartbeat):
            self._on_heartbeat(sender, message)

    def _on_heartbeat(self, sender: int, message: Heartbeat) -> None:
        self._heard[sender] = (self.station.now, message.hops, message.speed)
        if not self.client.broker:
            self._connect(sender)
        elif self._links.clients_follow:
            self._follow(sender, message)

    def _on_wire(self, sender: int, wire: Wire) -> None:
        if isinstance(wire.message, Burst):
            self._take(wire.message, wire.hops)
        elif name_of(sender) == self.client.broker:
            if isinstance(wire.message, Relink):
                self.client.disconnect(self._outbox.give_up(sender))
                self._connect(sender)
            else:
                self._send(self.client.receive(wire.message))

    def on_sent(self, destination: int, message: Presence | Wire | Group) -> None:
        if not isinstance(message, Presence):
            self._outbox.sent(destination, message)

    def on_send_failed(self, destination: int, message: Presence | Wire | Group) -> None:
        if not isinstance(message, Presence) and self._outbox.failed(destination, message):
            self._lose(destination)

    # --- being connected ---

    def _check(self) -> None:
        now = self.station.now
        self.station.set_timer(now + self._period_s, self._check)
        if self._links.clients_beat:
            self.station.broadcast("HEARTBEAT", Presence(), HEARTBEAT_BYTES)
        missed_s = MISSED_MAX * self._period_s
        self._heard = {one: heard for one, heard in self._heard.items() if now - heard[0] <= missed_s}
        if self.client.broker and number_of(self.client.broker) not in self._heard:
            self._lose(number_of(self.client.broker))

    def _lose(self, broker: int) -> None:
        self._heard.pop(broker, None)
        self.client.disconnect(self._outbox.give_up(broker))
        if self._heard:
            self._connect(min(self._heard, key=self._preference))

    def _preference(self, broker: int) -> tuple[float, float, float]:
        heard_at, hops, speed = self._heard[broker]
        return speed if self._links.clients_prefer_slow else 0.0, hops, -heard_at

    def _follow(self, sender: int, heartbeat: Heartbeat) -> None:
        """Follow the broker whose heartbeat of a round arrives first; of two leaders the one with the lower
        name wins.
        """
        leader, round = self._round
        missed_s = MISSED_MAX * self._period_s
        is_news = heartbeat.leader < leader or (heartbeat.leader == leader and heartbeat.round > round)
        if not is_news and self.station.now <= self._round_at + missed_s:
            return
        self._round, self._round_at = (heartbeat.leader, heartbeat.round), self.station.now
        if name_of(sender) != self.client.broker:
            self.client.disconnect(self._outbox.give_up(number_of(self.client.broker)))
            self._connect(sender)

    def _connect(self, broker: int) -> None:
        self.migrations += 1
        self._outbox.connect(broker)
        messages = self.client.connect(name_of(broker))
        # Brokers know nothing of publishers (section 2.4).
        self._send(one for one in messages if not (self._publishes and isinstance(one, Mig)))

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._outbox.send(number_of(self.client.broker), message)

    # --- events ---

    def _publish(self) -> None:
        now = self.station.now
        if now >= self._publishing.until_s:
            return
        self.station.set_timer(now + self._publishing.every_s, self._publish)
        if not self._publishing.to_each:
            self._publish_one({"kind": "event"}, len(self._subscribers))
            return
        apart_s = self._publishing.every_s / len(self._subscribers)
        for index, subscriber in enumerate(self._subscribers):
            alone: Attributes = {"to": name_of(subscriber)}
            self.station.set_timer(now + index * apart_s, self._publish_one, alone, 1)

    def _publish_one(self, attributes: Attributes, subscribers: int) -> None:
        now = self.station.now
        self._ledger.published((self.station.number, self.client.published + 1), now, subscribers)
        self._send(self.client.publish(encode_attributes(attributes), now=now))

    def _take(self, burst: Burst, hops: int) -> None:
        publisher = number_of(burst.publisher)
        self._ledger.arrived((publisher, burst.number), self.station.number, self.station.now, hops)
