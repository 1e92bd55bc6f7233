"""A broker is down: nobody else waits for it, and nobody gets a second session."""

from __future__ import annotations

import pytest
from tests.broker.world import Client, World

from roamcast.broker.machine import BrokerMachine

LINE = [(0, 1), (1, 2)]


def world_of(brokers: int = 3, links: list[tuple[int, int]] = LINE, seed: int = 3) -> World:
    world = World(seed, brokers, links)
    for number, id in enumerate(world.ids):
        world.attach(f"local{number}", id)
    world.settle()
    told(world)
    return world


def told(world: World) -> None:
    """Let brokers tell each other what they hold."""
    world.tick(0.6)
    world.settle()


def site(world: World, id: str) -> BrokerMachine:
    machine = world.sites[id]
    assert isinstance(machine, BrokerMachine)
    return machine


def cut_off(world: World, id: str) -> None:
    """The links of a broker are down, and stay so."""
    for one, other in [pair for pair in world.links if id in pair]:
        world.cut_link(one, other)
        world.links.remove((one, other))


def attach_briefly(world: World, broker: str) -> None:
    """A client whose session ends with its connection."""
    world.clients.setdefault("brief", Client("brief", options={"session_expiry": 0}))
    world.attach("brief", broker, clean=True)


def holders(world: World, at: str, client: str) -> tuple[str, ...]:
    return site(world, at).broker.directory.holders_of(client)


def test_everyone_knows_who_holds_a_session() -> None:
    world = world_of()
    assert holders(world, "b0", "local2") == ("b2",)
    assert holders(world, "b2", "local2") == ()
    world.bring_in("local2", "b0")
    told(world)
    assert [holders(world, id, "local2") for id in world.ids] == [(), ("b0",), ("b0",)]


def test_what_is_over_is_forgotten() -> None:
    world = world_of()
    attach_briefly(world, "b2")
    world.settle()
    told(world)
    assert holders(world, "b0", "brief") == ("b2",)
    world.drop(world.clients["brief"].connection, "brief")
    world.settle()
    told(world)
    assert [holders(world, id, "brief") for id in world.ids] == [(), (), ()]


@pytest.mark.parametrize("missing", ["b0", "b2"])
def test_a_new_client_is_served_at_once_by_the_larger_part(missing: str) -> None:
    world = world_of()
    cut_off(world, missing)
    world.attach("new", "b1")
    world.run(200)
    assert world.clients["new"].is_welcome
    assert world.clients["new"].presents == [False]
    assert "new" in site(world, "b1").broker.sessions


def test_a_session_that_is_elsewhere_is_found() -> None:
    world = world_of()
    cut_off(world, "b2")
    world.attach("local0", "b1")
    world.run(300)
    assert world.clients["local0"].presents[-1:] == [True]


def test_the_broker_that_is_known_to_hold_a_session_is_asked_alone() -> None:
    world = world_of()
    world.attach("local2", "b0")
    assert site(world, "b0").unanswered("local2") == ["b2"]
    assert not site(world, "b0").broker.locator.unfinished()["questions on their way"]
    world.settle()
    assert world.clients["local2"].presents[-1:] == [True]


def test_who_has_moved_on_is_found_though_the_broker_that_was_asked_alone_goes_down() -> None:
    world = world_of()
    world.bring_in("local0", "b2")
    assert holders(world, "b1", "local0") == ("b0",), "b1 has not been told"
    world.attach("local0", "b1")
    cut_off(world, "b0")
    world.run(300)
    assert world.clients["local0"].presents[-1:] == [True]


def test_who_lives_on_the_missing_broker_waits_and_is_told_of_it() -> None:
    world = world_of()
    cut_off(world, "b2")
    world.attach("local2", "b0")
    world.run(300)
    assert not world.clients["local2"].is_welcome
    assert site(world, "b0").unanswered("local2") == ["b2"]


def test_who_has_moved_on_to_the_missing_broker_waits_even_if_only_its_former_broker_knows() -> None:
    world = world_of()
    world.bring_in("local0", "b2")
    cut_off(world, "b2")  # Before b2 could tell anybody.
    world.attach("local0", "b1")
    world.run(300)
    assert not world.clients["local0"].is_welcome


def test_the_smaller_part_makes_no_session_but_stands_in() -> None:
    world = world_of()
    cut_off(world, "b2")
    world.attach("new", "b2")
    world.run(300)
    assert not world.clients["new"].is_welcome
    world.tick(1.1)
    world.run(300)
    assert world.clients["new"].presents == [False]
    assert "new" not in site(world, "b2").broker.sessions
    world.attach("new", "b0")
    world.run(300)
    assert "new" in site(world, "b0").broker.sessions, "the larger part serves it"
    assert world.clients["new"].is_welcome


def test_two_brokers_go_on_with_one_of_them() -> None:
    for missing, left in (("b1", "b0"), ("b0", "b1")):
        world = world_of(2, [(0, 1)])
        cut_off(world, missing)
        world.attach("new", left)
        world.run(200)
        world.tick(1.1)
        world.run(200)
        assert world.clients["new"].is_welcome, left


def test_what_was_made_meanwhile_is_met_when_the_broker_is_back() -> None:
    world = world_of()
    world.cut_link("b1", "b2")
    world.links.remove(("b1", "b2"))
    for client, broker in (("new", "b0"), ("late", "b2")):
        world.attach(client, broker)
    world.run(200)
    world.subscribe("new", "a/#", 1)
    world.run(200)
    world.tick(1.1)
    world.run(200)
    world.links.append(("b1", "b2"))
    world.settle()
    world.tell("local2", "a/1", 1)
    world.bring_in("new", "b2")
    assert world.clients["new"].presents[-1:] == [True]
    assert [payload for payload, _, _ in world.clients["new"].received] == ["local2:1:a/1"]
    world.bring_in("late", "b0")
    assert world.clients["late"].is_welcome
    assert sum("late" in site(world, id).broker.sessions for id in world.ids) == 1


def test_a_session_that_ended_with_its_connection_is_stood_in_for() -> None:
    world = world_of()
    attach_briefly(world, "b2")
    world.settle()
    told(world)
    cut_off(world, "b2")
    attach_briefly(world, "b0")
    world.run(200)
    world.tick(1.1)
    world.run(200)
    assert world.clients["brief"].is_welcome


def test_two_majorities_one_after_the_other_make_one_session() -> None:
    """A session made by one majority is known in every other one."""
    world = world_of(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    world.cut_link("b2", "b3")
    world.links.remove(("b2", "b3"))
    world.attach("new", "b0")
    world.run(300)
    assert world.clients["new"].is_welcome
    # Now b0 and b1 are away, and the others together again.
    world.cut_link("b1", "b2")
    world.links.remove(("b1", "b2"))
    world.links.append(("b2", "b3"))
    world.run(400)
    world.attach("new", "b4")
    world.run(400)
    assert not world.clients["new"].is_welcome, "its session is at b0"


def test_subscribing_and_roaming_do_not_wait_for_the_missing_broker() -> None:
    world = world_of()
    cut_off(world, "b2")
    world.subscribe("local0", "a/#", 1)
    world.run(200)
    assert world.clients["local0"].settled == {"a/#"}, "SUBACK waits"
    world.attach("local0", "b1")
    world.run(300)
    assert world.clients["local0"].presents[-1:] == [True], "its session waits until all has settled"


def test_the_missing_broker_hears_of_subscriptions_when_it_is_back() -> None:
    world = world_of()
    world.cut_link("b1", "b2")
    world.subscribe("local0", "a/#", 1)
    world.run(200)
    world.settle()
    world.tell("local2", "a/1", 1)
    assert [payload for payload, _, _ in world.clients["local0"].received] == ["local2:1:a/1"]
