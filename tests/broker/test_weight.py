"""What clients that are away weigh, counted in bytes that were allocated, and what is left of them asleep."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping

import msgspec
import pytest

from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.filters import remembering
from roamcast.mqtt.codec.packets import Connect, Publish, Subscribe, SubscriptionEntry
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server import asleep
from roamcast.mqtt.server.access import Identity
from roamcast.mqtt.server.sessions import MqttSession, NamedCapsule
from roamcast.protocol.snapshot import freeze, state_hash, thaw
from roamcast.protocol.snapshot_form import STATE_CLASSES

SETTINGS = MachineSettings("a")
TOPICS = 10
SESSION_BYTES_MAX = 4_000
"""Of a client that is away, with ten subscriptions of its own."""


class Fleet:
    """A broker and its clients, each of which has connected, subscribed and gone."""

    def __init__(self) -> None:
        self.machine = BrokerMachine(SETTINGS)
        self.now = 1000.0
        self.connections = 0
        self.machine.step(self.now, [Started(SETTINGS, 1)])

    def connect(self, name: str) -> int:
        self.now += 20.0  # Nothing waits any longer for what was asked before.
        self.connections += 1
        connect = Connect(5, name, session_expiry=3_000_000, clean_start=False)
        self.machine.step(self.now, [ClientConnected(self.connections, connect, Identity(name))])
        return self.connections

    def send(self, connection: int, packet: Subscribe | Publish) -> Mapping[int, list[bytes]]:
        return self.machine.step(self.now, [ClientFrames(connection, write(packet, 5))]).writes

    def visit(self, number: int, prefix: str = "") -> None:
        connection = self.connect(f"client-{number}")
        names = [f"{prefix}fleet/{number}/{topic}" for topic in range(TOPICS)]
        self.send(connection, Subscribe(1, tuple(SubscriptionEntry(name, 1) for name in names)))
        self.lose(connection)

    def lose(self, connection: int) -> None:
        self.machine.step(self.now, [ConnectionLost(connection)])


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(asleep, "AWAKE_MAX", 0)
    monkeypatch.setattr(asleep, "AWAKE_S", 0)
    # What was parsed last is remembered, and takes some megabytes in any broker.
    monkeypatch.setattr(remembering, "CHARACTERS_MIN", 1 << 16)
    return Fleet()


def test_a_client_that_is_away_weighs_little(fleet: Fleet) -> None:
    for number in range(200):
        fleet.visit(number)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(200, 600):
        fleet.visit(number)
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / 400
    tracemalloc.stop()
    assert each < SESSION_BYTES_MAX


def test_a_snapshot_is_the_same_whether_clients_are_awake(fleet: Fleet) -> None:
    for number in range(5):
        fleet.visit(number)
    machine = fleet.machine
    assert not machine.front.sessions.awake()
    assert not machine.broker.clients.here.awake()
    before = freeze(machine)
    for name in list(machine.front.sessions):
        assert len(machine.front.sessions[name].subscriptions) == TOPICS
        assert len(machine.broker.sessions[name].subscriptions) == TOPICS
    assert machine.front.sessions.awake()
    assert machine.broker.clients.here.awake()
    assert freeze(machine) == before
    assert state_hash(thaw(before)) == state_hash(machine)


def test_a_client_comes_back_to_what_it_left(fleet: Fleet) -> None:
    for number in range(3):
        fleet.visit(number)
    fleet.machine = thaw(freeze(fleet.machine))
    fleet.machine.step(fleet.now, [Started(SETTINGS, 2)])
    publisher = fleet.connect("publisher")
    for number in range(3):
        fleet.send(publisher, Publish(f"fleet/{number}/7", b"owed", 1, packet_id=number + 1))
    connection = fleet.connect("client-1")
    written = fleet.send(publisher, Publish("fleet/1/3", b"live", 1, packet_id=9))
    assert any(b"live" in part for part in written[connection])
    assert fleet.machine.front.sessions["client-1"].connection == connection


def test_a_member_of_a_group_stays_awake(fleet: Fleet) -> None:
    fleet.visit(1, prefix="$share/group/")
    fleet.visit(2)
    assert [session.client for session in fleet.machine.front.sessions.awake()] == ["client-1"]


def test_what_a_sleeping_session_carries_is_all_there_is() -> None:
    """A new field of a session has to be carried in its bytes, or has to keep the session awake."""
    carried = {"client", "owner", "stream", "timer", "will_timer", "again_to"}
    in_capsule = {field.name for field in msgspec.structs.fields(NamedCapsule)} - {"recalls"}
    wakeful = {"connection", "will", "copied_from"}
    assert set(STATE_CLASSES.of(MqttSession).saved) == carried | in_capsule | wakeful


@pytest.mark.slow
def test_many_clients_come_back_from_a_snapshot_asleep(fleet: Fleet) -> None:
    """5,000 clients that are away, with ten messages each, as after a restart of a large broker."""
    for number in range(5_000):
        fleet.visit(number)
    publisher = fleet.connect("publisher")
    for number in range(50_000):
        topic = f"fleet/{number % 5_000}/{number % TOPICS}"
        fleet.send(publisher, Publish(topic, b"x" * 64, 1, packet_id=number % 60_000 + 1))
    fleet.lose(publisher)
    data = freeze(fleet.machine)
    assert len(data) / 5_000 < 4_000
    again = thaw(data)
    assert state_hash(again) == state_hash(fleet.machine)
    assert not again.front.sessions.awake()
    assert not again.broker.clients.here.awake()
    assert again.queued_bytes == fleet.machine.queued_bytes
