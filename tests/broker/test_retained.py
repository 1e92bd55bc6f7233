"""Retained messages over the overlay: all brokers agree in the end, whatever was cut, killed, or set back."""

from __future__ import annotations

import random

import pytest
from tests.broker.world import World

from roamcast.broker.inputs import BrokerForgotten
from roamcast.broker.retained import SLICE_VISITS
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import PublishProperties

TOPICS = ("r/1", "r/2", "r/3")
PROTOCOLS = ("multi_hop_handoff", "relocation", "proactive", "phoenix", "reactive:merged")


class ProtocolWorld(World):
    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        super().__init__(1, 4, [(0, 1), (1, 2), (1, 3)])

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id, protocol=self.protocol)


def retain(world: World, name: str, topic: str, body: str, expiry_s: int | None = None) -> None:
    properties = PublishProperties(message_expiry=expiry_s) if expiry_s else None
    packet = packets.Publish(topic, body.encode(), 0, True, properties=properties)
    world._send(world.clients[name], packet)


def kept(world: World, broker: str) -> dict[str, tuple[object, bytes | None]]:
    return {topic: (one.stamp, one.body) for topic, one in world.sites[broker].retained._kept.items()}


@pytest.mark.parametrize("seed", range(10))
def test_all_brokers_agree_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed, 4, [(0, 1), (1, 2), (1, 3)])
    names = ("p0", "p1", "p2")
    for name in names:
        world.bring_in(name, rng.choice(world.ids))
    world.crashes = True
    for number in range(60):
        name, choice = rng.choice(names), rng.random()
        if choice < 0.2:
            world.attach(name, rng.choice(world.ids))
        elif choice < 0.35:
            one, other = rng.choice(world.links)
            change = world.cut_link if world.up[one, other] else world.connect_link
            change(one, other)
        elif choice < 0.4:
            world.now += rng.choice((0.5, -5.0))  # A clock is set.
        elif world.clients[name].is_welcome:
            retain(world, name, rng.choice(TOPICS), "" if rng.random() < 0.3 else f"{name}:{number}")
        world.run(rng.randrange(10))
    world.crashes = False
    world.settle()
    assert kept(world, "b0")
    for broker in world.ids:
        assert kept(world, broker) == kept(world, "b0")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_new_subscriber_gets_what_is_retained_whatever_the_protocol(protocol: str) -> None:
    world = ProtocolWorld(protocol)
    world.attach("p", "b0")
    world.bring_in("c", "b2")
    retain(world, "p", "r/1", "kept")
    world.settle()
    world.subscribe("c", "r/#", 1)
    world.settle()
    assert [payload for payload, _, _ in world.clients["c"].received] == ["kept"]


@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "reactive", "proactive"])
def test_a_recall_goes_on_where_the_session_goes(protocol: str) -> None:
    world = ProtocolWorld(protocol)
    world.attach("p", "b0")
    world.bring_in("c", "b2")
    wanted = {f"value {n}" for n in range(3 * SLICE_VISITS)}
    for n in range(len(wanted)):
        packet = packets.Publish(f"r/{n:04}", f"value {n}".encode(), 1, True, packet_id=n + 1)
        world.clients["p"].unacknowledged[n + 1] = (packet.topic, f"value {n}", 1)
        world._send(world.clients["p"], packet)
    world.settle()
    world.subscribe("c", "r/#", 1)
    while not world.clients["c"].received:
        world.run(1)
    assert len(world.clients["c"].received) < len(wanted)
    world.bring_in("c", "b1")
    assert {payload for payload, _, _ in world.clients["c"].received} == wanted


def retain_all(world: World, name: str, rounds: int) -> None:
    for number in range(rounds):
        for topic in TOPICS:
            retain(world, name, topic, f"{number}")


def test_a_peer_that_was_away_is_told_the_last_value_of_each_topic() -> None:
    """While its link is down nothing is kept for it; it hears what it missed in slices."""
    world = World(1, 2, [(0, 1)])
    world.bring_in("p0", "b0")
    retain_all(world, "p0", 1)
    world.settle()
    world.cut_link("b0", "b1")
    world.run(50)
    end = world.sites["b0"].links.ends["b1"]
    before = end.sent
    retain_all(world, "p0", 100)
    for number in range(2 * SLICE_VISITS):
        retain(world, "p0", f"many/{number}", "x")
    world.run(1000)
    assert end.sent == before
    world.connect_link("b0", "b1")
    world.settle()
    assert end.sent - before == len(TOPICS) + 2 * SLICE_VISITS
    assert kept(world, "b0") == kept(world, "b1")
    assert [kept(world, "b1")[topic][1] for topic in TOPICS] == [b"99"] * 3


def test_the_last_writer_wins_though_its_clock_was_set_back() -> None:
    world = World(1, 2, [(0, 1)])
    world.attach("p0", "b0")
    world.bring_in("p1", "b1")
    retain(world, "p0", "r/1", "first")
    world.settle()
    world.now -= 500.0
    retain(world, "p1", "r/1", "second")
    world.settle()
    retain(world, "p0", "r/2", "gone")
    world.settle()
    retain(world, "p1", "r/2", "")
    world.settle()
    for broker in world.ids:
        assert {topic: body for topic, (_, body) in kept(world, broker).items()} == {
            "r/1": b"second",
            "r/2": None,
        }


def test_a_broker_that_was_forgotten_and_comes_back_with_an_empty_disk_is_told_everything() -> None:
    world = World(1, 3, [(0, 1), (1, 2)])
    world.bring_in("p0", "b0")
    retain(world, "p0", "r/1", "kept")
    world.settle()
    world.cut_link("b1", "b2")
    world.links.remove(("b1", "b2"))
    world.sites["b1"].step(world.now, [BrokerForgotten("b2")])
    world.order(
        "b1",
    )
    world.journals["b2"].clear()
    del world.sites["b2"]
    world.start("b2")
    assert kept(world, "b2") == {}
    world.links.append(("b1", "b2"))
    world.settle()
    assert kept(world, "b2") == kept(world, "b0") != {}


def publish_for_a_minute(world: World, packet_id: int, body: str) -> None:
    """With QoS 1, and an expiry of 60 seconds."""
    properties = PublishProperties(message_expiry=60)
    packet = packets.Publish("r/2", body.encode(), 1, packet_id=packet_id, properties=properties)
    world._send(world.clients["p"], packet)
    world.clients["p"].unacknowledged[packet_id] = ("r/2", body, 1)
    world.settle()


def test_what_is_left_of_a_messages_time_counts_over_a_handoff() -> None:
    world = World(1, 2, [(0, 1)])
    world.attach("c", "b0")
    world.bring_in("p", "b0")
    world.subscribe("c", "r/#", 1)
    world.settle()
    world.drop(world.clients["c"].connection, "c")
    retain(world, "p", "r/1", "short", 60)
    publish_for_a_minute(world, 9, "in time")
    world.now += 50
    world.bring_in("c", "b1")
    world.drop(world.clients["c"].connection, "c")
    publish_for_a_minute(world, 10, "too late")
    world.now += 70
    world.attach("c", "b0")
    world.bring_in("late", "b1", "r/#", 1)
    assert [payload for payload, _, _ in world.clients["c"].received] == ["in time"]
    assert world.clients["late"].received == []
