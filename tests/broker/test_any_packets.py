"""Whatever a client sends, in whatever order: the answers are valid packets, its limits are kept, others are
served on."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mqtt import strategies as mqtt

from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, MachineInput, Started, Tick
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet, Publish
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity

RECEIVE_MAXIMUM, ALIAS_MAXIMUM, PACKET_MAXIMUM = 3, 2, 150
FEW_IDS = st.integers(1, 4)
TOPICS = st.sampled_from(("a", "a/b", "b", "$x", "a/ü"))


def likely(version: int) -> st.SearchStrategy[Packet]:
    """Packets that have to do with each other: few packet ids and topics, much that matches."""
    entry = st.builds(packets.SubscriptionEntry, st.sampled_from(("#", "a/#", "+", "a", "$x")), mqtt.qos)
    about = mqtt.described(version, identifiers=False, alias=False)
    return st.one_of(
        st.builds(Publish, TOPICS, mqtt.blobs, st.just(0), st.booleans(), properties=about),
        st.builds(
            Publish, TOPICS, mqtt.blobs, st.integers(1, 2), st.booleans(), st.booleans(), FEW_IDS, about
        ),
        st.builds(packets.Subscribe, FEW_IDS, st.tuples(entry)),
        *(
            st.builds(kind, FEW_IDS)
            for kind in (packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp)
        ),
    )


class Checker:
    """The client's end: reads everything, and holds the broker to the standard and to its own limits."""

    def __init__(self, version: int, limit: int | None) -> None:
        self.version = version
        self.limit = limit
        self.rest = b""
        self.packets: list[Packet] = []
        self.in_flight: dict[int, int] = {}
        """Packet ids of the broker's publishes, with their QoS, until they are acknowledged."""
        self.aliases: dict[int, str] = {}

    def receive(self, data: bytes) -> None:
        self.rest += data
        while (whole := cut(self.rest, 0, 1 << 20)) is not None:
            first, start, end = whole
            packet = parse(first, self.rest[start:end], self.version, from_client=False)
            assert self.limit is None or end <= self.limit or isinstance(packet, packets.Connack), packet
            self.rest = self.rest[end:]
            self._check(packet)
            self.packets.append(packet)

    def _check(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            alias = packet.properties.topic_alias if packet.properties is not None else None
            if alias is not None:
                assert alias <= ALIAS_MAXIMUM
                assert self.aliases.setdefault(alias, packet.topic) or not packet.topic
            assert packet.topic or alias in self.aliases
            if packet.qos:
                assert packet.packet_id not in self.in_flight, "the packet id is in use"
                self.in_flight[packet.packet_id] = packet.qos
                assert self.version == 4 or len(self.in_flight) <= RECEIVE_MAXIMUM

    def sent(self, packet: Packet) -> None:
        """What the client sends may free packet ids."""
        match packet:
            case packets.Puback(packet_id) | packets.Pubcomp(packet_id):
                self.in_flight.pop(packet_id, None)
            case packets.Pubrec(packet_id, reason) if reason.failed:
                self.in_flight.pop(packet_id, None)


class Table:
    """A site with one client that does anything, and one that behaves."""

    def __init__(self, version: int, limit: int | None) -> None:
        self.site = BrokerMachine(MachineSettings("s"))
        self.now, self.version, self.limit = 100.0, version, limit
        self.connection = 0
        self.ends: dict[int, Checker] = {}
        self.open: dict[int, None] = {}
        self.step(Started(MachineSettings("s")))
        self.bystander = self.connect(packets.Connect(5, "bystander"))
        self.step(
            ClientFrames(
                self.bystander, write(packets.Subscribe(1, (packets.SubscriptionEntry("by", 1),)), 5)
            )
        )

    def step(self, *inputs: MachineInput) -> None:
        self.now += 0.25
        effects = self.site.step(self.now, inputs)
        for id, parts in effects.writes.items():
            self.ends[id].receive(b"".join(parts))
        for id in effects.closes:
            self.open.pop(id, None)

    def connect(self, connect: packets.Connect) -> int:
        self.connection += 1
        self.ends[self.connection] = Checker(connect.version, connect.maximum_packet_size)
        self.open[self.connection] = None
        self.step(ClientConnected(self.connection, connect, Identity(connect.client_id)))
        return self.connection

    def come(self, clean: bool) -> int:
        more: dict[str, Any] = {}
        if self.version == 5:
            more = {
                "session_expiry": 2,
                "receive_maximum": RECEIVE_MAXIMUM,
                "topic_alias_maximum": ALIAS_MAXIMUM,
                "maximum_packet_size": self.limit,
            }
        will = packets.Will("a", b"gone", 1)
        return self.connect(packets.Connect(self.version, "any", clean_start=clean, will=will, **more))

    def serves_on(self) -> bool:
        """Whether the bystander gets its own message."""
        before = len(self.ends[self.bystander].packets)
        self.step(ClientFrames(self.bystander, write(Publish("by", b"?", 1, packet_id=9), 5)))
        new = self.ends[self.bystander].packets[before:]
        got = [one for one in new if isinstance(one, Publish) and one.topic == "by"]
        for one in got:
            self.ends[self.bystander].sent(packets.Puback(one.packet_id))
            self.step(ClientFrames(self.bystander, write(packets.Puback(one.packet_id), 5)))
        return bool(got) and packets.Puback(9) in new


@st.composite
def stories(draw: st.DrawFn) -> tuple[int, int | None, list[Any]]:
    version = draw(st.sampled_from((4, 5)))
    moves = st.one_of(
        likely(version),
        likely(version),
        mqtt.from_clients(version),
        st.sampled_from(("come", "come anew", "go", "wait")),
        st.binary(min_size=1, max_size=8),
    )
    limit = draw(st.sampled_from((None, PACKET_MAXIMUM))) if version == 5 else None
    return version, limit, draw(st.lists(moves, max_size=25))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(stories(), st.integers(1, 40))
def test_any_packets_in_any_order(story: tuple[int, int | None, list[Any]], cut_at: int) -> None:
    version, limit, moves = story
    table = Table(version, limit)
    id = table.come(clean=True)
    for move in moves:
        if move == "go":
            table.step(ConnectionLost(id))
        elif move == "wait":
            table.now += 3
            table.step(Tick())
        elif isinstance(move, str) or id not in table.open:
            id = table.come(clean=move == "come anew")
        if not isinstance(move, str) and id in table.open:
            data = move if isinstance(move, bytes) else write(move, version)
            if not isinstance(move, bytes):
                table.ends[id].sent(move)
            table.step(ClientFrames(id, data[:cut_at]))
            if data[cut_at:]:
                table.step(ClientFrames(id, data[cut_at:]))
    assert table.serves_on()
