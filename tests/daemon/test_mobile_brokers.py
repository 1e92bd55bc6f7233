"""Brokers that move, as processes: leaders are killed, networks part and heal, addresses change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.daemon.brokers import MqttClient, roamcast
from tests.daemon.mobile_network import (
    Loopback,
    MobileBrokers,
    Namespaces,
    Network,
    Publisher,
    Relays,
    wait_for_all,
    why_no_namespaces,
)
from tests.daemon.test_discovery import multicast_port

KINDS = ("namespaces", "relays")


def make_network(kind: str, ids: str) -> Network:
    if kind == "relays":
        return Relays(ids)
    why = why_no_namespaces()
    if why:
        pytest.skip(why)
    return Namespaces(ids)


def test_a_leader_dies_the_network_parts_and_everything_owed_arrives(tmp_path: Path) -> None:
    """In namespaces, where brokers are found by multicast; where these are not allowed, through relays."""
    links = Relays("abcd") if why_no_namespaces() else Namespaces("abcd")
    with MobileBrokers(tmp_path, "abcd", links) as network:
        network.wait_for_tree("abcd")
        car, far = network.client("car", "b"), network.client("far", "d")
        for client in (car, far):
            client.subscribe("road/#")
        here, there = Publisher(network, "here", "b"), Publisher(network, "there", "c")
        network.brokers["a"].kill()
        here.publish("road/1", 5)
        network.wait_for_tree("bcd")
        there.publish("road/2", 5)
        there.wait()
        wait_for_all(car, there.acknowledged)

        network.network.part("ab", "cd")
        network.brokers["a"].start()
        here.publish("road/3", 5)
        network.wait_for_tree("ab")
        network.wait_for_tree("cd")
        there.publish("road/4", 5)
        for publisher in (here, there):
            publisher.wait()
        wait_for_all(car, here.acknowledged)
        wait_for_all(far, there.acknowledged)

        network.network.heal()
        network.wait_for_tree("abcd")
        for client in (car, far):
            wait_for_all(client, here.acknowledged | there.acknowledged)


@pytest.mark.slow
def test_brokers_find_each_other_and_go_on_without_their_leader(tmp_path: Path) -> None:
    with MobileBrokers(tmp_path, "abcd", Loopback(multicast_port())) as network:
        network.wait_for_tree("abcd")
        brokers = network.brokers
        car, at_leader = network.client("car", "d"), network.client("near", "a")
        for client in (car, at_leader):
            client.subscribe("road/#")
        sensor = Publisher(network, "sensor", "b")
        sensor.publish("road/1", 5)
        sensor.wait()
        status = roamcast("broker", "status", "--data", str(brokers["b"].data)).stdout
        assert "tree: leader a, parent " in status

        brokers["a"].kill()
        sensor.publish("road/2", 5)
        network.wait_for_tree("bcd")
        assert network.metric("b", "roamcast_tree_is_leader") == 1
        assert network.metric("b", 'roamcast_tree_changes_total{what="leader"}') >= 2
        sensor.publish("road/3", 5)
        network.attach(at_leader, "c")
        assert at_leader.present, "its session is known everywhere"
        sensor.wait()
        for client in (car, at_leader):
            wait_for_all(client, sensor.acknowledged)

        brokers["a"].start()  # At another port, which the others hear of.
        network.wait_for_tree("abcd")
        back = Publisher(network, "back", "a")
        back.publish("road/4", 5)
        back.wait()
        for client in (car, at_leader):
            wait_for_all(client, back.acknowledged)
        assert "this broker leads" in "".join(brokers["b"].lines)
        assert any("QoS 2, retained messages" in line for line in brokers["b"].lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_of_a_network_go_on_and_what_was_stored_follows(tmp_path: Path, kind: str) -> None:
    with MobileBrokers(tmp_path, "abcd", make_network(kind, "abcd")) as network:
        network.wait_for_tree("abcd")
        subscribers = {id: network.client(f"at-{id}", id) for id in "ad"}
        for client in subscribers.values():
            client.subscribe("all/#")
        publishers = [Publisher(network, f"from-{id}", id) for id in "bc"]
        network.network.part("ab", "cd")
        for publisher in publishers:
            publisher.publish("all/1", 5)
        network.wait_for_tree("ab")
        network.wait_for_tree("cd")
        for publisher in publishers:
            publisher.publish("all/2", 5)
            publisher.wait()
        here, there = (publisher.acknowledged for publisher in publishers)
        wait_for_all(subscribers["a"], here)
        wait_for_all(subscribers["d"], there)
        assert not there & {payload for _, payload in subscribers["a"].messages}, "it is another part"

        network.network.heal()
        network.wait_for_tree("abcd")
        for client in subscribers.values():
            wait_for_all(client, here | there)


@pytest.mark.slow
def test_a_broker_with_another_address_is_found_there(tmp_path: Path) -> None:
    places = make_network("namespaces", "abcd")
    assert isinstance(places, Namespaces)
    with MobileBrokers(tmp_path, "abcd", places) as network:
        network.wait_for_tree("abcd")
        car = network.client("car", "d")
        car.subscribe("road/#")
        sensor = Publisher(network, "sensor", "b")
        for number, id in enumerate("adb"):
            places.move(id, f"10.77.0.{100 + number}")
            sensor.publish("road/1", 5)
            network.brokers[id].wait_for(rf"this broker is at 10\.77\.0\.{100 + number} now")
            network.wait_for_tree("abcd")
            sensor.publish("road/2", 5)
            sensor.wait()
            wait_for_all(car, sensor.acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_dies_and_parts_what_was_acknowledged_arrives(
    tmp_path: Path, kind: str, seed: int
) -> None:
    rng = random.Random(seed)
    ids = "abcde"
    with MobileBrokers(tmp_path, ids, make_network(kind, ids)) as network:
        network.wait_for_tree(ids)
        homes = {name: rng.choice(ids) for name in ("s0", "s1", "s2")}
        subscribers = {name: network.client(name, home) for name, home in homes.items()}
        for client in subscribers.values():
            client.subscribe("all/#")
        publishers = {id: Publisher(network, f"from-{id}", id) for id in ids}
        dead: list[str] = []
        for _ in range(8):
            act(rng, network, publishers, subscribers, homes, dead)
        network.network.heal()
        for id in dead:
            restart(network, publishers, id)
        network.wait_for_tree(ids)
        owed: set[bytes] = set()
        for publisher in publishers.values():
            publisher.publish("all/last")
            owed |= publisher.acknowledged
        assert len(owed) > 50
        for name, client in subscribers.items():
            if client.disconnects or homes[name] in dead:
                network.attach(client, rng.choice(ids))
            wait_for_all(client, owed)


def act(
    rng: random.Random,
    network: MobileBrokers,
    publishers: dict[str, Publisher],
    subscribers: dict[str, MqttClient],
    homes: dict[str, str],
    dead: list[str],
) -> None:
    """One thing that happens, while everybody publishes."""
    ids = list(publishers)
    alive = [id for id in ids if id not in dead]
    for id in alive:
        publishers[id].publish("all/1", 5)
    choice = rng.choice(["kill", "restart", "part", "heal", "roam"])
    if choice == "kill" and len(alive) > 3:
        leaders = {network.tree(id)["leader"] for id in alive} & set(alive)
        victim = rng.choice([*sorted(leaders), *alive])
        network.brokers[victim].kill()
        dead.append(victim)
    elif choice == "restart" and dead:
        restart(network, publishers, dead.pop(0))
    elif choice == "part":
        half = rng.sample(ids, len(ids) // 2)
        network.network.heal()
        network.network.part("".join(id for id in ids if id not in half), "".join(half))
    elif choice == "heal":
        network.network.heal()
    elif choice == "roam":
        name = rng.choice(list(subscribers))
        homes[name] = rng.choice(alive)
        subscribers[name].paho.disconnect()
        subscribers[name].disconnects.clear()
        network.attach(subscribers[name], homes[name])
    for id in alive:
        publishers[id].publish("all/2", 5)


def restart(network: MobileBrokers, publishers: dict[str, Publisher], id: str) -> None:
    network.brokers[id].start()
    publishers[id].attach(id)
