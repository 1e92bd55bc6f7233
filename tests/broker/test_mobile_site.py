"""Sites whose brokers move: sessions follow their clients, whatever parts, crashes and meets again."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.broker.mobile_world import MobileWorld

from roamcast.broker.inputs import MachineInput
from roamcast.protocol.snapshot import freeze, thaw

RING = [(0, 1), (1, 2), (2, 3), (3, 0)]


def make_world(seed: int = 1, brokers: int = 3, links: list[tuple[int, int]] | None = None) -> MobileWorld:
    chain = [(i, i + 1) for i in range(brokers - 1)]
    return MobileWorld(seed, brokers, links if links is not None else chain)


def subscribed(world: MobileWorld, name: str, broker: str, topic: str = "a/#") -> None:
    world.bring_in(name, broker, topic, 1)


def payloads(world: MobileWorld, name: str) -> list[str]:
    return [payload for payload, _, _ in world.clients[name].received]


def test_connections_in_a_ring_become_a_tree_with_one_leader() -> None:
    world = make_world(brokers=4, links=RING)
    assert world.leaders() == ["b0"]
    links = {frozenset((id, peer)) for id in world.ids for peer in world.sites[id].core.machine.peers}
    assert len(links) == 3


def test_a_publish_reaches_a_subscriber_over_the_tree() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    world.bring_in("p", "b0")
    world.publish("p", "a/1", 1)
    world.tell("p", "b/1", 1)
    assert payloads(world, "s") == ["p:1:a/1"]
    assert world.clients["p"].acknowledged == {"p:1:a/1", "p:2:b/1"}


def test_a_client_finds_its_session_and_what_was_stored_at_another_broker() -> None:
    world = make_world()
    subscribed(world, "s", "b2")
    world.bring_in("p", "b0")
    world.drop(world.clients["s"].connection, "s")
    world.tell("p", "a/1", 1)
    world.bring_in("s", "b1")
    assert world.clients["s"].presents == [False, True]
    assert payloads(world, "s") == ["p:1:a/1"]
    assert "s" not in world.sites["b2"].endpoint.sessions
    assert world.sites["b1"].endpoint.sessions["s"].subscriptions["a/#"].qos == 1


def drive(world: MobileWorld, rng: random.Random, rounds: int) -> None:
    """Clients roam and publish, connections are cut and come again, at random moments."""
    names = list(world.clients)
    for _ in range(rounds):
        name, choice = rng.choice(names), rng.random()
        client = world.clients[name]
        if choice < 0.2:
            world.attach(name, rng.choice(world.ids))
        elif choice < 0.25 and client.connection:
            world.drop(client.connection, name, tell=rng.random() < 0.7)
        elif choice < 0.33:
            world.cut_link(*rng.choice(world.links))
        elif choice < 0.43:
            world.connect_link(*rng.choice(world.links))
        elif choice < 0.55:
            world.run_for(rng.choice((0.3, 1.0, 4.0)))
        elif choice < 0.6 and client.is_welcome and not client.asked and not client.withdrawn:
            topic = rng.choice(("more/1", "more/2"))
            known = world.sites[client.broker].endpoint.sessions[name].subscriptions
            if topic in known and rng.random() < 0.6:
                world.unsubscribe(name, topic)
            else:
                world.subscribe(name, topic, 1)
        else:
            world.publish(name, rng.choice(("a/1", "a/2", "b/1")), 1)
        world.run(rng.randrange(12))


def bring_home(world: MobileWorld, rng: random.Random) -> None:
    world.settle()
    for name in world.clients:
        world.attach(name, rng.choice(world.ids))
    world.settle()
    world.settle()


def check(world: MobileWorld) -> None:
    """Nothing acknowledged is lost, nobody gets what it did not subscribe to, sessions were there."""
    for reader in world.clients.values():
        seen = Counter(payloads(world, reader.id))
        world.duplicates += sum(seen.values()) - len(seen)
        for writer in world.clients.values():
            wanted = [one for one in writer.sent if one.split(":")[2].startswith("a/")]
            missing = [one for one in wanted if one not in seen and one in writer.acknowledged]
            assert not missing, f"{reader.id} lost {missing}"
            assert not [one for one in writer.sent if one in seen and one not in wanted]
    for site in world.sites.values():
        counted = site.figures.dropped.get(("had already", b"\x01"), 0)
        assert counted <= site.core.duplicates  # The figures begin anew with a process.
    world.check_knowledge()
    for id in world.ids:
        world.check_replay(id)


class SkewedWorld(MobileWorld):
    """Clocks differ by up to a minute."""

    def settle(self) -> None:
        self.clocks = self.clocks or {id: self.rng.uniform(0.0, 60.0) for id in self.ids}
        super().settle()


class SnapshotWorld(MobileWorld):
    """Between two turns a site is now and then written down, and goes on from what was written."""

    def step(self, id: str, inputs: list[MachineInput]) -> None:
        super().step(id, inputs)
        if self.rng.random() < 0.02:
            election = self.sites[id].election
            self.sites[id] = thaw(freeze(self.sites[id]))
            self.sites[id].election = election  # Which is in no snapshot.


def story(seed: int, crash: bool, kind: type[MobileWorld] = MobileWorld, rounds: int = 60) -> MobileWorld:
    rng = random.Random(seed)
    links = rng.choice((RING, [(0, 1), (1, 2), (2, 3)], [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]))
    world = kind(seed, 4, links)
    for number in range(3):
        subscribed(world, f"c{number}", rng.choice(world.ids))
    world.crashes = crash
    drive(world, rng, rounds)
    world.crashes = False
    for _ in range(2):  # One may be closed, because of a clock that was wrong in another part.
        bring_home(world, rng)
    check(world)
    return world


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_whatever_happens(seed: int, crash: bool) -> None:
    world = story(seed, crash)
    sent = sum(len(client.sent) for client in world.clients.values())
    assert sent > 10


@pytest.mark.parametrize("kind", [SkewedWorld, SnapshotWorld])
@pytest.mark.parametrize("seed", range(2))
def test_clocks_that_differ_and_snapshots_change_nothing(seed: int, kind: type[MobileWorld]) -> None:
    story(seed, crash=True, kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SkewedWorld, SnapshotWorld])
@pytest.mark.parametrize("seed", range(2, 60))
def test_clocks_and_snapshots_over_many_seeds(seed: int, kind: type[MobileWorld]) -> None:
    story(seed, crash=True, kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("seed", range(4, 100))
def test_nothing_is_lost_whatever_happens_over_many_seeds(seed: int, crash: bool) -> None:
    story(seed, crash)
