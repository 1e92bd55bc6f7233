"""Networks of three brokers with everything in them that a state can hold: made, written down, opened again.

A world is written down as its brokers leave it: the journal folder of each broker, and what its clients
remember. Opening one is a restart of all brokers: connections and links are gone, sessions are not.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from tests.broker.mobile_world import MobileWorld
from tests.broker.world import Client, World, bring_home, check
from tests.compat.journals import read_machine, write_journal

from roamcast.broker.inputs import Started
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec import packets
from roamcast.protocol.snapshot import freeze

PROTOCOLS = ("multi_hop_handoff", "relocation", "proactive", "phoenix", "reactive:merged", "roam", "mft")
LINKS = [(0, 1), (1, 2)]
SEED = 7
CLIENTS_FILE = "clients.json"
TOPICS = ("a/1", "a/2")
KEPT_TOPIC, KEPT = "kept/1", "kept"
WILL_TOPIC, WILL = "b/will", "last words"
JOBS = "$share/workers/job/#"


class Memory(msgspec.Struct):
    """What is written down beside the journals."""

    now: float
    clients: dict[str, Client]


class CompatWorld(World):
    """A world of one mobility protocol. Its brokers begin with journal folders, if there are any."""

    qos_max = 2

    def __init__(self, protocol: str, folder: Path | None = None) -> None:
        self.protocol = protocol
        self.folder = folder
        self.snapshots: dict[str, bytes] = {}
        """Each is continued by the entries in `journals`."""
        self.memory = Memory(0.0, {})
        if folder is not None:
            self.memory = msgspec.json.decode((folder / CLIENTS_FILE).read_bytes(), type=Memory)
        super().__init__(SEED, len(LINKS) + 1, LINKS)
        self.clients.update(self.memory.clients)

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id, protocol=self.protocol)

    def start(self, id: str) -> None:
        if self.folder is None:
            super().start(id)
            return
        self.now = max(self.now, self.memory.now)
        self.sites[id] = read_machine(self.folder / id / "journal")
        self.step(id, [Started(self.settings(id))])

    def take_snapshots(self) -> None:
        for id in self.ids:
            self.snapshots[id] = freeze(self.sites[id])
            self.journals[id].clear()

    def write(self, folder: Path) -> None:
        for id in self.ids:
            write_journal(folder / id / "journal", self.snapshots[id], self.journals[id])
        for name, client in self.clients.items():
            if client.connection:
                self.drop(client.connection, name, tell=False)
        memory = msgspec.to_builtins(Memory(self.now, self.clients), str_keys=True, order="deterministic")
        text = msgspec.json.format(msgspec.json.encode(memory), indent=1)
        (folder / CLIENTS_FILE).write_bytes(text + b"\n")


class MovingWorld(CompatWorld, MobileWorld):
    """Brokers that move take QoS 1 at most, retain nothing and have no shared subscriptions."""

    qos_max = 1

    def start(self, id: str) -> None:
        self.told.setdefault(id, [])
        super().start(id)


def new_world(protocol: str, folder: Path | None = None) -> CompatWorld:
    return (MovingWorld if protocol == "mft" else CompatWorld)(protocol, folder)


# --- the story ---


def tell_first_part(world: CompatWorld) -> None:
    """Sessions of both versions of MQTT, queues, a will, and where there can be: retained, shared."""
    qos = world.qos_max
    world.clients["tram"] = Client("tram", options={"receive_maximum": 1})
    will = packets.Will(WILL_TOPIC, WILL.encode(), qos=1)
    for name, broker, version in (("car", "b0", 5), ("bus", "b1", 4), ("tram", "b2", 5), ("van", "b1", 5)):
        world.bring_in(name, broker, version=version)
        for topic in ("a/#", "b/#", "city/+/air?pm10>50"):
            world.subscribe(name, topic, qos)
        world.settle()
    world.clients["hearse"] = Client("hearse", options={"will": will})
    world.attach("hearse", "b1")
    world.clients["hearse"].options.clear()
    world.settle()
    world.subscribe("hearse", "a/#", qos)
    if qos == 2:
        for name in ("car", "tram"):
            world.subscribe(name, JOBS, 1)
        _retain(world, "bus")
    world.settle()
    # Away, with messages that wait.
    world.drop(world.clients["car"].connection, "car")
    for number in range(4):
        world.publish(("bus", "van")[number % 2], TOPICS[number % 2], 1 + number % qos)
    world.settle()


def _retain(world: CompatWorld, name: str) -> None:
    client = world.clients[name]
    packet_id = client.take_id()
    client.unacknowledged[packet_id] = (KEPT_TOPIC, KEPT, 1)
    kept = packets.Publish(KEPT_TOPIC, KEPT.encode(), 1, retain=True, packet_id=packet_id)
    world._send(client, kept)


def tell_second_part(world: CompatWorld) -> None:
    """A handoff that has only begun, and messages on their way in all directions."""
    world.publish("tram", TOPICS[0], 1)
    for number in range(6):
        world.publish(("bus", "tram")[number % 2], TOPICS[number % 2], 1 + number % world.qos_max)
        world.run(3)
    world.attach("van", "b2")
    world.run(6)


def make_killed(protocol: str) -> CompatWorld:
    """All brokers are killed in the middle: entries follow the snapshots."""
    world = new_world(protocol)
    tell_first_part(world)
    world.take_snapshots()
    tell_second_part(world)
    return world


def make_stopped(protocol: str) -> CompatWorld:
    """All brokers are stopped cleanly in the middle: nothing follows the snapshots."""
    world = make_killed(protocol)
    world.take_snapshots()
    return world


# --- what must hold when a world has been opened ---


def check_opened(world: CompatWorld) -> None:
    """Everybody comes back to their session and gets what they are owed."""
    world.settle()
    bring_home(world, random.Random(SEED))
    assert {name: client.presents[-1] for name, client in world.clients.items()} == dict.fromkeys(
        world.clients, True
    )
    if world.qos_max == 2:
        check(world)
        _check_kept(world)
        _check_shared(world)
    else:
        _check_nothing_lost(world)
    for name in ("bus", "car", "tram", "van"):
        got = [payload for payload, _, _ in world.clients[name].received]
        assert WILL in got, f"{name} did not get the will"


def _check_nothing_lost(world: CompatWorld) -> None:
    for reader in world.clients.values():
        got = {payload for payload, _, _ in reader.received}
        for writer in world.clients.values():
            assert writer.acknowledged <= got, f"{reader.id} lost {writer.acknowledged - got}"


def _check_kept(world: CompatWorld) -> None:
    world.bring_in("new", "b2", "kept/#", 1)
    got = [payload for payload, _, _ in world.clients["new"].received]
    assert got == [KEPT]


def _check_shared(world: CompatWorld) -> None:
    for _ in range(4):
        world.publish("new", "job/1", 1)
    world.settle()
    received = [payload for client in world.clients.values() for payload, _, _ in client.received]
    jobs = [payload for payload in received if ":job/" in payload]
    assert sorted(jobs) == [f"new:{number}:job/1" for number in range(1, 5)]
