"""What is promised besides plain roaming: everything that may come together, drawn from seeds."""

from __future__ import annotations

import random

import pytest
from tests.broker.test_every_crash import PROTOCOLS
from tests.broker.test_machine_snapshots import SnapshotWorld
from tests.broker.test_world import TOPICS, bring_home, check
from tests.broker.world import Client

from roamcast.broker.inputs import (
    BrokerForgotten,
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    DrainOrdered,
    LinkFrames,
    MachineInput,
)
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.settings import EndpointSettings

LOCATE_TIMEOUT_S = 5.0


class HardWorld(SnapshotWorld):
    """Brokers crash before or after they have journalled, and come back from snapshots of any age."""

    def __init__(
        self,
        seed: int,
        protocol: str = "multi_hop_handoff",
        serves: bool = False,
        links: tuple[tuple[int, int], ...] = ((0, 1), (1, 2), (1, 3)),
    ) -> None:
        self.protocol = protocol
        self.serves = serves
        super().__init__(seed, 4, list(links))

    def settings(self, id: str) -> MachineSettings:
        endpoint = EndpointSettings(serves_unreachable=self.serves, locate_timeout_s=LOCATE_TIMEOUT_S)
        return MachineSettings(id, protocol=self.protocol, endpoint=endpoint)

    def fate(self, inputs: list[MachineInput]) -> str:
        if not super().fate(inputs):
            return ""
        from_others = all(
            isinstance(one, ClientConnected | ClientFrames | ConnectionLost | LinkFrames) for one in inputs
        )
        return self.rng.choice(("before", "after")) if from_others else "after"

    def change_a_link(self, rng: random.Random) -> None:
        one, other = rng.choice(self.links)
        change = self.cut_link if self.up[one, other] else self.connect_link
        change(one, other)

    def rest(self) -> None:
        """No crashes any more; every broker is started anew, which also ends drains."""
        self.crashes = False
        for id in self.ids:
            self.crash(id)
        self.settle()
        self.tick(LOCATE_TIMEOUT_S + 1)
        self.settle()

    def holders(self) -> list[str]:
        return sorted(name for site in self.sites.values() for name in site.broker.sessions)

    def unfinished(self) -> list[str]:
        found = [one for site in self.sites.values() for one in site.broker.unfinished()]
        return [one for one in found if not one.startswith("timers")]


def roam(seed: int, protocol: str) -> None:
    """Subscriptions change around handoffs, brokers are drained, some clients take one message at a time."""
    rng, world = random.Random(seed), HardWorld(seed, protocol)
    for number in range(4):
        name, version = f"c{number}", rng.choice((4, 5))
        one_by_one = version == 5 and rng.random() < 0.4
        world.clients[name] = Client(name, version, options={"receive_maximum": 1} if one_by_one else {})
        world.attach(name, rng.choice(world.ids))
        world.settle()
        world.subscribe(name, "a/#", 2)
        world.settle()
    world.crashes = True
    for _ in range(60):
        name, choice = rng.choice(list(world.clients)), rng.random()
        client = world.clients[name]
        if choice < 0.22:
            world.attach(name, rng.choice(world.ids))
        elif choice < 0.26 and client.connection:
            world.drop(client.connection, name, tell=rng.random() < 0.7)
        elif choice < 0.32:
            world.change_a_link(rng)
        elif choice < 0.34:
            world.step(rng.choice(world.ids), [DrainOrdered(rng.choice(world.ids), "")])
        elif choice < 0.36:
            world.crash(rng.choice(world.ids))
        elif choice < 0.44 and client.is_welcome:
            if "b/#" in client.subscriptions:
                world.unsubscribe(name, "b/#")
            else:
                world.subscribe(name, "b/#", rng.choice((1, 2)))
            world.run(rng.randrange(3))
            world.attach(name, rng.choice(world.ids))
        else:
            world.publish(name, rng.choice(TOPICS), rng.choice((1, 2)))
        world.run(rng.randrange(12))
    world.rest()
    bring_home(world, rng)
    check(world)
    assert world.holders() == sorted(world.clients)
    assert world.unfinished() == []


def begin(world: HardWorld, rng: random.Random, qos: int) -> None:
    """Two who subscribe, and one who publishes."""
    for name in ("c0", "c1", "p"):
        world.attach(name, rng.choice(world.ids))
        world.settle()
    for name in ("c0", "c1"):
        world.subscribe(name, "a/#", qos)
        world.settle()


def attach_at_two(seed: int, protocol: str) -> None:
    """Clean starts anywhere, also where the session cannot be reached; attaches at two brokers at once."""
    rng, world = random.Random(seed), HardWorld(seed, protocol)
    begin(world, rng, 2)
    insists: dict[str, int] = {}
    """Clients that want a new session, and how often they had been welcomed before."""
    world.crashes = True
    for _ in range(50):
        name, choice = rng.choice(("c0", "c1", "p")), rng.random()
        client = world.clients[name]
        if choice < 0.3 or not client.connection:
            insisted = insists.pop(name, None) == len(client.presents)
            clean = insisted or (rng.random() < 0.3 and name != "p")
            if clean:
                insists[name] = len(client.presents)
                client.open_ids.clear()
            world.attach(name, rng.choice(world.ids), clean)
            if not clean and rng.random() < 0.4:
                client.connection = 0  # That connection lives on.
                world.attach(name, rng.choice(world.ids))
        elif choice < 0.45:
            world.change_a_link(rng)
        elif choice < 0.52:
            world.tick(LOCATE_TIMEOUT_S + 1)
        elif choice < 0.9:
            world.publish("p", rng.choice(("a/1", "a/2")), 2)
        world.run(rng.randrange(20))
    world.rest()
    for name, client in world.clients.items():
        world.attach(name, rng.choice(world.ids), insists.get(name) == len(client.presents))
        world.settle()
        assert client.is_welcome
    assert world.holders() == ["c0", "c1", "p"]
    end(world, 2)
    for name in ("c0", "c1"):
        received = [payload for payload, _, _ in world.clients[name].received]
        assert len(received) == len(set(received))


def end(world: HardWorld, qos: int) -> None:
    """One more message, which everyone gets once."""
    for name in ("c0", "c1"):
        world.subscribe(name, "a/#", qos)
    world.settle()
    world.publish("p", "a/1", 2)
    world.settle()
    for name in ("c0", "c1"):
        received = [payload for payload, _, _ in world.clients[name].received]
        assert received.count(world.clients["p"].sent[-1]) == 1
    assert world.unfinished() == []


def serve(seed: int) -> None:
    """Clients whose broker cannot be reached are served at once, and miss nothing in the end."""
    rng, world = random.Random(seed), HardWorld(seed, serves=True)
    begin(world, rng, 1)
    world.crashes = seed % 2 == 1
    for _ in range(50):
        name, choice = rng.choice(("c0", "c1", "p")), rng.random()
        client = world.clients[name]
        if choice < 0.25 or not client.connection:
            world.attach(name, rng.choice(world.ids))
        elif choice < 0.45:
            world.change_a_link(rng)
        elif choice < 0.55:
            world.tick(LOCATE_TIMEOUT_S + 1)
        elif client.is_welcome and not client.presents[-1] and name != "p" and rng.random() < 0.6:
            world.subscribe(name, "a/#", 1)
        elif choice < 0.9:
            world.publish("p", rng.choice(("a/1", "a/2")), 1)
        world.run(rng.randrange(20))
    world.rest()
    for broker in (*world.ids, *world.ids):
        for name, client in world.clients.items():
            world.attach(name, broker)
            world.settle()
            if not client.is_welcome:
                world.attach(name, broker)  # Its session was back: it had to connect again.
                world.settle()
    assert world.holders() == ["c0", "c1", "p"], "a session that stood in is left"
    end(world, 1)
    for name in ("c0", "c1"):
        received = {payload for payload, _, _ in world.clients[name].received}
        assert world.clients["p"].acknowledged <= received


def grow_and_shrink(seed: int, protocol: str) -> None:
    """Brokers join a network that is in use, and one that nobody uses any more is forgotten."""
    rng, world = random.Random(seed), HardWorld(seed, protocol, links=((0, 1),))
    here, joining = ["b0", "b1"], [("b1", "b2"), ("b2", "b3")]
    for number in range(4):
        world.attach(f"c{number}", rng.choice(here))
        world.settle()
        world.subscribe(f"c{number}", "a/#", 2)
        world.settle()
    for round in range(60):
        world.crashes = True
        name, choice = rng.choice(list(world.clients)), rng.random()
        if choice < 0.3:
            world.attach(name, rng.choice(here))
        elif choice < 0.35:
            world.change_a_link(rng)
        else:
            world.publish(name, rng.choice(TOPICS), rng.choice((1, 2)))
        world.run(rng.randrange(12))
        world.crashes = False
        if round in (12, 24):
            world.links.append(joining.pop(0))
            world.connect_link(*world.links[-1])
            world.run(rng.randrange(20))
            world.settle()
            here.append(world.links[-1][1])
        elif round == 45:
            here.remove("b3")
            bring_here(world, rng, here)
            world.cut_link("b2", "b3")
            world.links.remove(("b2", "b3"))
            world.ids.remove("b3")
            world.step("b2", [BrokerForgotten("b3")])
    del world.sites["b3"]
    world.rest()
    bring_home(world, rng)
    check(world)
    assert world.holders() == sorted(world.clients)
    assert world.unfinished() == []


def bring_here(world: HardWorld, rng: random.Random, brokers: list[str]) -> None:
    world.settle()
    for name in world.clients:
        world.attach(name, rng.choice(brokers))
        world.settle()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_brokers_join_and_are_forgotten_while_clients_roam(protocol: str) -> None:
    grow_and_shrink(len(protocol), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_lost_while_everything_changes(protocol: str) -> None:
    roam(len(protocol), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_session_is_left_of_attaches_at_two_brokers_and_clean_starts(protocol: str) -> None:
    attach_at_two(len(protocol), protocol)


@pytest.mark.parametrize("seed", range(2))
def test_who_is_served_without_its_session_misses_nothing(seed: int) -> None:
    serve(seed)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("start", range(100, 200, 20))
def test_over_many_seeds(start: int, protocol: str) -> None:
    for seed in range(start, start + 20):
        roam(seed, protocol)
        attach_at_two(seed, protocol)
        grow_and_shrink(seed, protocol)
        if protocol == "multi_hop_handoff":
            serve(seed)
