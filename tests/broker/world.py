"""A small world of sites without sockets: MQTT clients that roam, links with delay, brokers that crash.

Here a test decides what happens next; the simulator (`roamcast fuzz --front mqtt`) draws everything that may
come together. A site that crashes is rebuilt from its journal, which is the list of entries that it named as
durable; what the crashed turn wanted to send is lost, as with a killed process.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import (
    BrokerForgotten,
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    LinkDown,
    LinkFrames,
    LinkUp,
    MachineInput,
    Started,
    Tick,
    decode_entry,
    encode_entry,
)
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.making import make_machine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.protocol.codec import VERSION_MAX
from roamcast.protocol.snapshot import state_hash

PACKET_MAX = 1 << 20


@dataclass
class Client:
    """A well-behaved MQTT client with a lasting session: it sends again what was not acknowledged."""

    id: str
    version: int = 5
    broker: str = ""
    connection: int = 0
    is_welcome: bool = False
    rest: bytes = b""
    sent: list[str] = field(default_factory=list)
    """Payloads in the order of publishing."""
    unacknowledged: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    """Packet id to topic, payload and QoS."""
    released: dict[int, None] = field(default_factory=dict)
    backlog: list[tuple[str, str, int]] = field(default_factory=list)
    """Published while away."""
    acknowledged: set[str] = field(default_factory=set)
    received: list[tuple[str, int, bool]] = field(default_factory=list)
    """Payload, QoS, and whether it was marked as sent again."""
    open_ids: dict[int, None] = field(default_factory=dict)
    """QoS 2 messages received and not released."""
    subscriptions: dict[str, int] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    asked: dict[int, str] = field(default_factory=dict)
    withdrawn: dict[int, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """What its CONNECT says besides."""
    identity: Identity | None = None
    """Who it proves to be; None proves nothing."""
    next_id: int = 1
    presents: list[bool] = field(default_factory=list)

    def take_id(self) -> int:
        taken = (self.unacknowledged, self.released, self.asked, self.withdrawn)
        while any(self.next_id in used for used in taken):
            self.next_id = self.next_id % 65_535 + 1
        return self.next_id


class World:
    def __init__(self, seed: int, brokers: int, links: list[tuple[int, int]]) -> None:
        self.rng = random.Random(seed)
        self.now = 1_000.0
        self.ids = [f"b{i}" for i in range(brokers)]
        self.links = [(self.ids[i], self.ids[j]) for i, j in links]
        self.sites: dict[str, Any] = {}
        self.journals: dict[str, list[bytes]] = defaultdict(list)
        self.wires: dict[tuple[str, str], list[bytes]] = defaultdict(list)
        """Frames on their way, from one broker to another."""
        self.up: dict[tuple[str, str], bool] = {}
        self.clients: dict[str, Client] = {}
        self.towards: dict[int, list[bytes]] = defaultdict(list)
        """Bytes on their way from a client, by connection, and …"""
        self.back: dict[int, list[bytes]] = defaultdict(list)
        """… to it."""
        self.owner: dict[int, tuple[str, str]] = {}
        """Connection to client and broker, as long as the broker knows of it."""
        self.crashes = False
        """Whether brokers crash now and then."""
        self.is_ahead: dict[str, None] = {}
        """Brokers that crashed before their last turn was journalled."""
        for id in self.ids:
            self.start(id)
        for one, other in self.links:
            self.connect_link(one, other)
        self.settle()

    # --- brokers ---

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id)

    def start(self, id: str) -> None:
        site, live = self.recover(id), self.sites.get(id)
        if live is not None and id not in self.is_ahead:
            assert state_hash(site) == state_hash(live), f"{id} was replayed to another state"
        self.is_ahead.pop(id, None)
        self.sites[id] = site
        self.step(id, [Started(self.settings(id))])

    def recover(self, id: str) -> AnyMachine:
        """The machine as its journal has it."""
        site = self.begin(id)
        for data in self.journals[id]:
            entry = decode_entry(data)
            site.step(entry.now, entry.inputs)
        return site

    def begin(self, id: str) -> AnyMachine:
        """The machine as it was before the first entry of its journal."""
        return make_machine(self.settings(id))

    def crash(self, id: str) -> None:
        """Kill it; sometimes with a turn journalled whose effects nobody saw."""
        for one, other in self.links:
            if id in (one, other) and self.up.get((one, other)):
                self.cut_link(one, other)
        for connection, (client, broker) in list(self.owner.items()):
            if broker == id:
                self.drop(connection, client, tell=False)
        self.start(id)

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        site = self.sites[id]
        self.now += 0.001
        effects = site.step(self.now, inputs)
        if effects.durable:
            end = self.fate(inputs)
            if end != "before":
                self.journals[id].append(encode_entry(self.now, effects.durable))
            if end == "before":
                self.is_ahead[id] = None
            if end:
                self.crash(id)
                return
            site.journalled()
        for connection, parts in effects.writes.items():
            self.back[connection] += parts
        for connection in effects.closes:
            self.back[connection].append(b"")
        is_forgetting = any(isinstance(one, BrokerForgotten) for one in inputs)
        assert is_forgetting or not effects.link_closes, effects.link_closes
        for peer, end in site.links.ends.items():
            data = end.take()
            if data:
                self.wires[id, peer].append(data)

    def fate(self, inputs: list[MachineInput]) -> str:
        """Whether the broker crashes "before" or "after" this turn is journalled; "" if it lives."""
        return "after" if self.crashes and self.rng.random() < 0.004 else ""

    # --- links ---

    def connect_link(self, one: str, other: str) -> None:
        self.up[one, other] = True
        first, second = self.sites[one], self.sites[other]
        offers = first.links.offer(other), second.links.offer(one)
        anew = first.links.begins_anew(other, offers[1]), second.links.begins_anew(one, offers[0])
        self.wires[one, other], self.wires[other, one] = [], []
        draw = self.rng.getrandbits
        self.step(one, [LinkUp(other, offers[1], draw(62) + 1 if anew[0] else 0, VERSION_MAX)])
        if self.up.get((one, other)):
            self.step(other, [LinkUp(one, offers[0], draw(62) + 1 if anew[1] else 0, VERSION_MAX)])

    def cut_link(self, one: str, other: str) -> None:
        self.up[one, other] = False
        self.wires[one, other], self.wires[other, one] = [], []
        for id, peer in ((one, other), (other, one)):
            self.step(id, [LinkDown(peer)])

    # --- clients ---

    def attach(self, name: str, broker: str, clean: bool = False, version: int = 5) -> None:
        client = self.clients.setdefault(name, Client(name, version))
        if client.connection:
            self.drop(client.connection, name, tell=self.rng.random() < 0.5)
        connection = self.rng.getrandbits(40) + 1
        client.connection, client.broker, client.is_welcome, client.rest = connection, broker, False, b""
        self.owner[connection] = (name, broker)
        asked = {"session_expiry": 1_000_000 if client.version == 5 else None} | client.options
        connect = packets.Connect(client.version, name, clean_start=clean, **asked)
        self.step(broker, [ClientConnected(connection, connect, client.identity or Identity(name))])

    def bring_in(self, name: str, broker: str, filter: str = "", qos: int = 1, **how: Any) -> None:
        """Attach and perhaps subscribe; then everything comes to rest."""
        self.attach(name, broker, **how)
        self.settle()
        if filter:
            self.subscribe(name, filter, qos)
            self.settle()

    def tell(self, name: str, topic: str, qos: int) -> None:
        """Publish; then everything comes to rest."""
        self.publish(name, topic, qos)
        self.settle()

    def order(self, id: str, *inputs: MachineInput) -> None:
        """Give a broker inputs; then everything comes to rest."""
        self.step(id, [*inputs])
        self.settle()

    def drop(self, connection: int, name: str, tell: bool = True) -> None:
        """The connection breaks; the broker may notice only later (when the client comes again)."""
        _, broker = self.owner.pop(connection, ("", ""))
        self.towards.pop(connection, None)
        self.back.pop(connection, None)
        client = self.clients[name]
        if client.connection == connection:
            client.connection, client.broker, client.is_welcome = 0, "", False
        if tell and broker:
            self.step(broker, [ConnectionLost(connection)])

    def publish(self, name: str, topic: str, qos: int) -> None:
        client = self.clients[name]
        payload = f"{name}:{len(client.sent) + 1}:{topic}"
        client.sent.append(payload)
        client.backlog.append((topic, payload, qos))
        if client.is_welcome:
            self._send_backlog(client)

    def subscribe(self, name: str, topic: str, qos: int) -> None:
        client = self.clients[name]
        client.subscriptions[topic] = qos
        packet_id = client.take_id()
        client.asked[packet_id] = topic
        entry = packets.SubscriptionEntry(topic, qos)
        self._send(client, packets.Subscribe(packet_id, (entry,)))

    def unsubscribe(self, name: str, topic: str) -> None:
        client = self.clients[name]
        client.subscriptions.pop(topic, None)
        packet_id = client.take_id()
        client.withdrawn[packet_id] = topic
        self._send(client, packets.Unsubscribe(packet_id, (topic,)))

    def _send(self, client: Client, packet: Packet) -> None:
        if client.connection:
            self.towards[client.connection].append(write(packet, client.version))

    def _send_backlog(self, client: Client) -> None:
        for topic, payload, qos in client.backlog:
            packet_id = client.take_id()
            client.unacknowledged[packet_id] = (topic, payload, qos)
            self._send(client, packets.Publish(topic, payload.encode(), qos, packet_id=packet_id))
        client.backlog.clear()

    def _on_packet(self, client: Client, packet: Packet) -> None:
        match packet:
            case packets.Connack():
                if packet.reason:
                    # Another attach, of before, came in between; it can try again.
                    self.drop(client.connection, client.id)
                    return
                client.presents.append(packet.session_present)
                client.is_welcome = True
                self._resume(client)
            case packets.Publish():
                self._on_publish(client, packet)
            case packets.Puback(packet_id):
                client.acknowledged.add(client.unacknowledged.pop(packet_id)[1])
            case packets.Pubrec(packet_id):
                if packet_id in client.unacknowledged:
                    client.acknowledged.add(client.unacknowledged.pop(packet_id)[1])
                    client.released[packet_id] = None
                self._send(client, packets.Pubrel(packet_id))
            case packets.Pubcomp(packet_id):
                client.released.pop(packet_id, None)
            case packets.Pubrel(packet_id):
                client.open_ids.pop(packet_id, None)
                self._send(client, packets.Pubcomp(packet_id))
            case packets.Suback(packet_id):
                client.settled.add(client.asked.pop(packet_id, ""))
            case packets.Unsuback(packet_id):
                client.withdrawn.pop(packet_id)
            case packets.Disconnect():
                pass
            case _:
                raise AssertionError(packet)

    def _resume(self, client: Client) -> None:
        if not client.presents[-1]:
            client.open_ids.clear()
        for packet_id, (topic, payload, qos) in client.unacknowledged.items():
            again = packets.Publish(topic, payload.encode(), qos, dup=True, packet_id=packet_id)
            self._send(client, again)
        for packet_id in client.released:
            self._send(client, packets.Pubrel(packet_id))
        for packet_id, topic in client.withdrawn.items():
            self._send(client, packets.Unsubscribe(packet_id, (topic,)))
        for packet_id, topic in client.asked.items():
            entry = packets.SubscriptionEntry(topic, client.subscriptions.get(topic, 1))
            self._send(client, packets.Subscribe(packet_id, (entry,)))
        self._send_backlog(client)

    def _on_publish(self, client: Client, packet: packets.Publish) -> None:
        payload = packet.payload.decode()
        if packet.qos == 2:
            if packet.packet_id not in client.open_ids:
                client.received.append((payload, 2, packet.dup))
                client.open_ids[packet.packet_id] = None
            self._send(client, packets.Pubrec(packet.packet_id))
        else:
            client.received.append((payload, packet.qos, packet.dup))
            if packet.qos:
                self._send(client, packets.Puback(packet.packet_id))

    # --- time ---

    def moves(self) -> list[Callable[[], None]]:
        """Everything that could happen next on the wires."""
        found: list[Callable[[], None]] = []
        for (source, target), waiting in list(self.wires.items()):
            if waiting and self._is_up(source, target):
                found.append(lambda s=source, t=target: self._arrive(s, t))  # type: ignore[misc]
        for connection, waiting in list(self.towards.items()):
            if waiting and connection in self.owner:
                found.append(lambda c=connection: self._arrive_up(c))  # type: ignore[misc]
        for connection, waiting in list(self.back.items()):
            if waiting:
                found.append(lambda c=connection: self._arrive_down(c))  # type: ignore[misc]
        for id, site in self.sites.items():
            if isinstance(site, BrokerMachine) and site.deadline() == 0.0:
                # It has more to do, and lets others go first.
                found.append(lambda id=id: self.step(id, [Tick()]))  # type: ignore[misc]
        return found

    def _is_up(self, one: str, other: str) -> bool:
        return self.up.get((one, other)) or self.up.get((other, one)) or False

    def _arrive(self, source: str, target: str) -> None:
        data = b"".join(self.wires[source, target])
        self.wires[source, target] = []
        self.step(target, [LinkFrames(source, data)])

    def _arrive_up(self, connection: int) -> None:
        waiting = self.towards[connection]
        count = self.rng.randint(1, len(waiting))
        data = b"".join(waiting[:count])
        del waiting[:count]
        if self.rng.random() < 0.2 and len(data) > 1:
            # Packets may be cut anywhere on their way.
            place = self.rng.randrange(1, len(data))
            waiting.insert(0, data[place:])
            data = data[:place]
        self.step(self.owner[connection][1], [ClientFrames(connection, data)])

    def _arrive_down(self, connection: int) -> None:
        waiting = self.back[connection]
        name, _ = self.owner.get(connection, ("", ""))
        client = self.clients.get(name)
        data = waiting.pop(0)
        if client is None or client.connection != connection:
            return
        if not data:
            self.drop(connection, name)
            return
        client.rest += data
        while client.connection == connection:
            whole = cut(client.rest, 0, PACKET_MAX)
            if whole is None:
                break
            first, start, end = whole
            packet = parse(first, client.rest[start:end], client.version, from_client=False)
            client.rest = client.rest[end:]
            self._on_packet(client, packet)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            found = self.moves()
            if not found:
                return
            self.rng.choice(found)()

    def settle(self) -> None:
        """Heal all links, bring everyone back, and go on until nothing moves."""
        for one, other in self.links:
            if not self.up.get((one, other)):
                self.connect_link(one, other)
        crashes, self.crashes = self.crashes, False
        for _ in range(100_000):
            found = self.moves()
            if not found:
                break
            self.rng.choice(found)()
        else:
            raise AssertionError("the world does not come to rest")
        self.crashes = crashes

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for id in self.ids:
            deadline = self.sites[id].deadline()
            if deadline is not None and deadline <= self.now:
                self.step(id, [Tick()])


def bring_home(world: World, rng: random.Random) -> None:
    """Everyone attaches once more, and everything is delivered."""
    world.settle()
    for name in world.clients:
        world.attach(name, rng.choice(world.ids))
    world.settle()


def check(world: World) -> None:
    """Nothing acknowledged is lost, QoS 2 repeats nothing, every publisher's order holds."""
    for reader in world.clients.values():
        seen: dict[str, int] = {}
        for payload, qos, _ in reader.received:
            seen[payload] = seen.get(payload, 0) + 1
            assert qos < 2 or seen[payload] == 1, f"{reader.id} got {payload} twice"
        for writer in world.clients.values():
            wanted = [one for one in writer.sent if one.split(":")[2].startswith("a/")]
            missing = [one for one in wanted if one not in seen and one in writer.acknowledged]
            assert not missing, f"{reader.id} lost {missing}"
            first = [one for one in dict.fromkeys(one for one, _, _ in reader.received) if one in wanted]
            assert first == [one for one in wanted if one in seen], f"{reader.id}: order of {writer.id}"
