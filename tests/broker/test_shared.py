"""Shared subscriptions: one member of the group gets each notification, wherever members are and go."""

import random

import pytest
from tests.broker.world import World

from roamcast.broker.inputs import BrokerForgotten


def members_of(world: World) -> list[list[str]]:
    return [
        [payload for payload, _, _ in world.clients[f"m{i}"].received]
        for i in range(3)
        if f"m{i}" in world.clients
    ]


def test_a_group_that_everyone_left_gets_nothing() -> None:
    world = World(1, 2, [(0, 1)])
    world.bring_in("m0", "b0", "$share/workers/jobs/#", 1)
    world.attach("m0", "b1", clean=True)
    world.bring_in("p", "b0")
    world.tell("p", "jobs/1", 1)
    assert world.clients["m0"].received == []
    assert all(not site.shared._groups for site in world.sites.values())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_members_that_are_there_come_before_those_that_are_away(qos: int) -> None:
    world = World(1, 3, [(0, 1), (1, 2)])
    for number, broker in enumerate(world.ids):
        world.bring_in(f"m{number}", broker)
        world.subscribe(f"m{number}", "$share/workers/jobs/#", 2)
    world.bring_in("p", "b1")
    for name in ("m0", "m2"):
        world.drop(world.clients[name].connection, name, tell=True)
    world.settle()
    for _ in range(10):
        world.publish("p", "jobs/1", qos)
    world.settle()
    assert members_of(world) == [[], world.clients["p"].sent, []]


def publish_to_two_that_are_away(world: World, qos: int, sent: int) -> None:
    """Two members subscribe at the first two brokers and go; then ten jobs come from the last broker."""
    for number in range(2):
        world.bring_in(f"m{number}", world.ids[number])
        world.subscribe(f"m{number}", "$share/workers/jobs/#", qos)
    world.bring_in("p", world.ids[-1])
    for number in range(2):
        world.drop(world.clients[f"m{number}"].connection, f"m{number}", tell=True)
    world.settle()
    for _ in range(10):
        world.publish("p", "jobs/1", sent)
    world.settle()


def test_what_came_while_everyone_was_away_waits_for_its_member() -> None:
    world = World(1, 2, [(0, 1)])
    publish_to_two_that_are_away(world, 1, 1)
    for number in range(2):
        world.bring_in(f"m{number}", world.ids[1 - number])
    received = [payload for name in ("m0", "m1") for payload, _, _ in world.clients[name].received]
    assert sorted(received) == sorted(world.clients["p"].sent)


def filter_of(world: World) -> str:
    (filter,) = {key[1] for site in world.sites.values() for key in site.shared._groups}
    assert isinstance(filter, str)
    return filter


@pytest.mark.parametrize("group", ["workers", "w1", "w2", "w3", "w4"])
def test_what_is_published_after_the_suback_reaches_the_group(group: str) -> None:
    world = World(1, 4, [(0, 1), (1, 2), (1, 3)])
    world.attach("m0", "b0")
    world.bring_in("p", "b3")
    world.subscribe("m0", f"$share/{group}/jobs/#", 1)
    while not world.clients["m0"].settled:
        world.run(1)
    world.tell("p", "jobs/1", 1)
    assert [payload for payload, _, _ in world.clients["m0"].received] == world.clients["p"].sent


def test_one_packet_may_ask_twice_for_the_same_group() -> None:
    world = World(1, 2, [(0, 1)])
    world.bring_in("m0", "b0")
    for _ in range(2):
        world.subscribe("m0", "$share/workers/jobs/#", 1)
    world.settle()
    assert world.clients["m0"].asked == {}


@pytest.mark.parametrize("seed", range(12))
def test_brokers_join_and_each_notification_still_reaches_exactly_one_member(seed: int) -> None:
    """The group gets another owner meanwhile, in some of these networks more than once."""
    rng = random.Random(seed)
    world = World(seed, 4, [(0, 1)])
    group = f"$share/w{seed}/jobs/#"
    for number in range(3):
        world.attach(f"m{number}", rng.choice(["b0", "b1"]))
        world.settle()
        world.subscribe(f"m{number}", group, 2)
        world.settle()
    for number in range(2):
        world.attach(f"p{number}", rng.choice(["b0", "b1"]))
    world.settle()
    check_owner(world, f"w{seed}")
    world.crashes = True
    joins = [("b1", "b2"), ("b1", "b3")]
    for round in range(40):
        world.publish(f"p{rng.randrange(2)}", "jobs/1", 2)
        if round in (10, 20):
            world.links.append(joins.pop())
            world.connect_link(*world.links[-1])
        world.run(rng.randrange(8))
    world.crashes = False
    for name in world.clients:
        world.settle()
        world.attach(name, rng.choice(world.ids))
    world.settle()
    received = sorted(one for member in members_of(world) for one in member)
    assert received == sorted([*world.clients["p0"].sent, *world.clients["p1"].sent])
    check_owner(world, f"w{seed}")


def check_owner(world: World, group: str) -> None:
    """One broker owns the group: the one that all take for its owner."""
    (owner,) = [id for id, site in world.sites.items() if site.shared._groups]
    assert world.sites[owner].shared.owner_of(group, filter_of(world)) == owner


@pytest.mark.parametrize("number", range(6))
def test_a_group_goes_on_when_its_owner_is_gone_for_good(number: int) -> None:
    world = World(1, 3, [(0, 1), (1, 2)])
    group = f"w{number}"
    for name, broker in (("m0", "b0"), ("m1", "b1"), ("m2", "b2"), ("p", "b0")):
        world.attach(name, broker)
    world.settle()
    for name in ("m0", "m1", "m2"):
        world.subscribe(name, f"$share/{group}/jobs/#", 1)
    world.settle()
    world.tell("p", "jobs/1", 1)
    world.cut_link("b1", "b2")
    world.links.remove(("b1", "b2"))
    world.drop(world.clients["m2"].connection, "m2", tell=False)
    for _ in range(6):
        world.publish("p", "jobs/2", 1)
    world.run(200)
    world.sites["b1"].step(world.now, [BrokerForgotten("b2")])
    world.order(
        "b1",
    )
    for _ in range(10):
        world.publish("p", "jobs/3", 1)
    world.settle()
    received = [one for member in members_of(world)[:2] for one in member]
    wanted = [one for one in world.clients["p"].sent if one.endswith("jobs/3")]
    assert sorted(one for one in received if one.endswith("jobs/3")) == sorted(wanted)
    assert len(received) == len(set(received))
    assert [id for id in ("b0", "b1") if world.sites[id].shared._groups] == [owner_of(world, group)]


def owner_of(world: World, group: str) -> str:
    owner = world.sites["b0"].shared.owner_of(group, filter_of(world))
    assert owner == world.sites["b1"].shared.owner_of(group, filter_of(world))
    assert isinstance(owner, str)
    return owner


@pytest.mark.parametrize("seed", range(5))
def test_what_a_member_did_not_get_before_its_session_ended_goes_to_another(seed: int) -> None:
    """Section 4.8.2 of MQTT 5.0, for QoS 1."""
    world = World(seed, 3, [(0, 1), (1, 2)])
    publish_to_two_that_are_away(world, 1, 2)
    world.bring_in("m0", world.ids[2], clean=True)
    assert world.clients["m0"].received == [], "its session is new, and not subscribed"
    world.bring_in("m1", world.ids[seed % 3])
    assert sorted(members_of(world)[1]) == sorted(world.clients["p"].sent)
    world.bring_in("m1", world.ids[1], clean=True)
    assert all(not site.shared._groups for site in world.sites.values())


@pytest.mark.parametrize("qos", [1, 2])
def test_with_qos_2_no_other_member_gets_it(qos: int) -> None:
    """[MQTT-4.8.2-5]"""
    world = World(1, 2, [(0, 1)])
    publish_to_two_that_are_away(world, qos, 2)
    world.bring_in("m0", "b0", clean=True)
    world.bring_in("m1", "b1")
    assert len(members_of(world)[1]) == (10 if qos == 1 else 5)
