"""A broker that must be asked is away: clients are refused, or served from a session that stands in."""

from tests.broker.world import World

from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.settings import EndpointSettings


def world_with(serves: bool) -> World:
    world = World(3, 3, [(0, 1), (1, 2)])
    for id in world.ids:
        settings = EndpointSettings(serves_unreachable=serves, locate_timeout_s=5.0)
        world.sites[id].endpoint.configure(settings)
    for name, broker in (("car", "b0"), ("garage", "b2")):
        world.attach(name, broker)
    world.settle()
    world.subscribe("car", "a/#", 2)
    world.settle()
    return world


def site_of(world: World, broker: str) -> BrokerMachine:
    site = world.sites[broker]
    assert isinstance(site, BrokerMachine)
    return site


def test_by_default_the_client_is_refused_and_nothing_is_lost() -> None:
    world = world_with(serves=False)
    world.cut_link("b0", "b1")
    world.publish("garage", "a/1", 2)
    world.attach("car", "b2")
    world.run(200)
    assert not world.clients["car"].is_welcome
    world.tick(6.0)
    world.run(200)
    assert world.clients["car"].connection == 0, "it was not refused"
    world.settle()
    world.bring_in("car", "b1")
    assert [payload for payload, _, _ in world.clients["car"].received] == ["garage:1:a/1"]


def test_served_at_once_and_what_is_missing_comes_when_the_broker_is_back() -> None:
    world = world_with(serves=True)
    car = world.clients["car"]
    world.drop(car.connection, "car")
    world.tell("garage", "a/1", 1)
    world.cut_link("b0", "b1")
    world.publish("garage", "a/2", 1)
    world.attach("car", "b2")
    world.run(200)
    world.tick(6.0)
    world.run(200)
    assert car.is_welcome, "it is not served"
    assert not any(car.presents[-1:])
    world.subscribe("car", "a/#", 2)
    world.run(200)
    world.publish("garage", "a/3", 1)
    world.run(200)
    assert "garage:3:a/3" in [payload for payload, _, _ in car.received]
    world.settle()
    assert car.connection == 0, "it must connect again for its session"
    world.tell("garage", "a/4", 1)
    world.bring_in("car", "b2")
    received = [payload for payload, _, _ in car.received]
    assert {f"garage:{n}:a/{n}" for n in (1, 2, 3, 4)} <= set(received)
    assert all(car.presents[-1:])
    world.tell("garage", "a/5", 2)
    assert [payload for payload, _, _ in car.received].count("garage:5:a/5") == 1
    assert all(len(site.broker.sessions) <= 2 for site in world.sites.values())
    assert all("\0" not in name for site in world.sites.values() for name in site.broker.sessions)


def test_settings_reach_the_endpoint() -> None:
    assert MachineSettings(
        "a", endpoint=EndpointSettings(serves_unreachable=True)
    ).endpoint.serves_unreachable
