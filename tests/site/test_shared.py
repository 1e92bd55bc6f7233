"""Shared subscriptions: one member of the group gets each notification, wherever members are and go."""

import random

import pytest
from tests.site.world import World


def members_of(world: World) -> list[list[str]]:
    return [[payload for payload, _, _ in world.clients[f"m{i}"].received] for i in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_each_notification_reaches_exactly_one_member_while_members_roam(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed, 3, [(0, 1), (1, 2)])
    for number in range(3):
        world.attach(f"m{number}", rng.choice(world.ids))
        world.settle()
        world.subscribe(f"m{number}", "$share/workers/jobs/#", 2)
        world.settle()
    world.attach("p", "b0")
    world.settle()
    for round in range(30):
        world.publish("p", "jobs/1", 2)
        if round % 3 == 0:
            world.attach(f"m{rng.randrange(3)}", rng.choice(world.ids))
        world.run(rng.randrange(10))
    for number in range(3):
        world.settle()
        world.attach(f"m{number}", rng.choice(world.ids))
    world.settle()
    received = members_of(world)
    assert sorted(one for member in received for one in member) == sorted(world.clients["p"].sent)
    assert sum(bool(one) for one in received) > 1, "one member got everything"


def test_a_group_that_everyone_left_gets_nothing() -> None:
    world = World(1, 2, [(0, 1)])
    world.attach("m0", "b0")
    world.settle()
    world.subscribe("m0", "$share/workers/jobs/#", 1)
    world.settle()
    world.attach("m0", "b1", clean=True)
    world.attach("p", "b0")
    world.settle()
    world.publish("p", "jobs/1", 1)
    world.settle()
    assert world.clients["m0"].received == []
    assert all(not site.shared._groups for site in world.sites.values())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_that_are_there_come_before_those_that_are_away(qos: int) -> None:
    world = World(1, 3, [(0, 1), (1, 2)])
    for number, broker in enumerate(world.ids):
        world.attach(f"m{number}", broker)
        world.settle()
        world.subscribe(f"m{number}", "$share/workers/jobs/#", 2)
    world.attach("p", "b1")
    world.settle()
    for name in ("m0", "m2"):
        world.drop(world.clients[name].connection, name, tell=True)
    world.settle()
    for _ in range(10):
        world.publish("p", "jobs/1", qos)
    world.settle()
    assert members_of(world) == [[], world.clients["p"].sent, []]


def test_what_came_while_everyone_was_away_waits_for_its_member() -> None:
    world = World(1, 2, [(0, 1)])
    for number in range(2):
        world.attach(f"m{number}", world.ids[number])
        world.settle()
        world.subscribe(f"m{number}", "$share/workers/jobs/#", 1)
    world.attach("p", "b0")
    world.settle()
    for number in range(2):
        world.drop(world.clients[f"m{number}"].connection, f"m{number}", tell=True)
    world.settle()
    for _ in range(10):
        world.publish("p", "jobs/1", 1)
    world.settle()
    for number in range(2):
        world.attach(f"m{number}", world.ids[1 - number])
        world.settle()
    received = [payload for name in ("m0", "m1") for payload, _, _ in world.clients[name].received]
    assert sorted(received) == sorted(world.clients["p"].sent)
