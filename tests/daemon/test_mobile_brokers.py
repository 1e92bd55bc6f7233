"""Brokers that move, as processes: leaders are killed, networks part and heal, addresses change."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.daemon.brokers import roamcast
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
from tests.net.test_discovery import multicast_port

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
        forget = roamcast("broker", "forget", "a", "--data", str(brokers["b"].data))
        assert (forget.returncode, "need not be forgotten" in forget.stderr) == (2, True)

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
            network.brokers[id].wait_for(rf"the address of this broker is now 10\.77\.0\.{100 + number}")
            network.wait_for_tree("abcd")
            sensor.publish("road/2", 5)
            sensor.wait()
            wait_for_all(car, sensor.acknowledged)


class Story:
    """Whatever happens to brokers and clients, drawn from a seed, while everybody publishes."""

    def __init__(self, seed: int, ids: str, network: MobileBrokers) -> None:
        self._rng = random.Random(seed)
        self._ids = ids
        self._network = network
        self._parts = [ids]
        self._dead: list[str] = []
        self._homes = {name: self._rng.choice(ids) for name in ("s0", "s1", "s2")}
        self.subscribers = {name: network.client(name, home) for name, home in self._homes.items()}
        for client in self.subscribers.values():
            client.subscribe("all/#")
        self.publishers = {id: Publisher(network, f"from-{id}", id) for id in ids}

    @property
    def _alive(self) -> list[str]:
        return [id for id in self._ids if id not in self._dead]

    def act(self) -> None:
        self._publish("all/before")
        self._rng.choice([self._kill, self._restart, self._part, self._heal, self._roam, self._wait])()
        self._publish("all/after")

    def _publish(self, topic: str) -> None:
        for id in self._alive:
            self.publishers[id].publish(topic, 5)

    def _kill(self) -> None:
        """Often a leader."""
        alive = self._alive
        if len(alive) > 3:
            leaders = {self._network.tree(id)["leader"] for id in alive} & set(alive)
            victim = self._rng.choice([*sorted(leaders), *alive])
            self._network.brokers[victim].kill()
            self._dead.append(victim)

    def _restart(self) -> None:
        if self._dead:
            id = self._dead.pop(0)
            self._network.brokers[id].start()
            self.publishers[id].attach(id)

    def _part(self) -> None:
        self._heal()
        half = self._rng.sample(self._ids, len(self._ids) // 2)
        self._parts = ["".join(id for id in self._ids if id not in half), "".join(half)]
        self._network.network.part(*self._parts)

    def _heal(self) -> None:
        self._parts = [self._ids]
        self._network.network.heal()

    def _roam(self) -> None:
        name = self._rng.choice(list(self.subscribers))
        self.subscribers[name].paho.disconnect()
        self._attach(name, self._rng.choice(self._alive))

    def _attach(self, name: str, home: str) -> None:
        self._homes[name] = home
        self._network.attach(self.subscribers[name], home)

    def _wait(self) -> None:
        """Until every part has its tree."""
        for part in self._parts:
            alive = [id for id in part if id in self._alive]
            if alive:
                self._network.wait_for_tree(alive)

    def end(self) -> set[bytes]:
        """Everyone is back and in reach; what is owed."""
        self._heal()
        lost = [name for name, home in self._homes.items() if not self._is_connected(name, home)]
        while self._dead:
            self._restart()
        self._network.wait_for_tree(self._ids)
        for name in lost:
            self._attach(name, self._rng.choice(self._ids))
        self._publish("all/last")
        for publisher in self.publishers.values():
            if publisher.client.paho.is_connected():
                publisher.wait_for_last()
        return {payload for publisher in self.publishers.values() for payload in publisher.acknowledged}

    def _is_connected(self, name: str, home: str) -> bool:
        return home not in self._dead and self.subscribers[name].paho.is_connected()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_dies_and_parts_what_was_acknowledged_arrives(tmp_path: Path, kind: str, seed: int) -> None:
    ids = "abcde"
    with MobileBrokers(tmp_path, ids, make_network(kind, ids)) as network:
        network.wait_for_tree(ids)
        story = Story(seed, ids, network)
        for _ in range(10):
            story.act()
        owed = story.end()
        assert len(owed) > 100
        for client in story.subscribers.values():
            wait_for_all(client, owed)
        network.wait_for_tree(ids)
