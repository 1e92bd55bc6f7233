"""Wills and session expiry of clients that roam: published once, or made void, wherever the session goes."""

from __future__ import annotations

import pytest
from tests.broker.world import Client, World

from roamcast.broker.inputs import DrainOrdered
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Will

DELAY_S = 1000


class WillWorld(World):
    """Every CONNECT of a client has a will of its own; somebody watches for them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 4, [(0, 1), (1, 2), (1, 3)])
        self.attach("watch", "b3")
        self.settle()
        self.subscribe("watch", "wills/#", 2)
        self.settle()

    def come(
        self,
        name: str,
        broker: str,
        will: str,
        delay_s: int = DELAY_S,
        clean: bool = False,
        expiry_s: int = 9999,
    ) -> None:
        client = self.clients.setdefault(name, Client(name))
        client.options = {
            "will": Will("wills/1", will.encode(), 2, delay=delay_s),
            "session_expiry": expiry_s,
        }
        self.attach(name, broker, clean)

    def go(self, name: str) -> None:
        """Without a word."""
        self.drop(self.clients[name].connection, name)
        self.settle()

    def say_goodbye(self, name: str) -> None:
        self._send(self.clients[name], packets.Disconnect())
        self.settle()

    def drain(self, broker: str, destination: str) -> None:
        self.step(broker, [DrainOrdered(destination, "")])
        self.settle()

    def pass_time(self, seconds: float) -> None:
        self.tick(seconds)
        self.settle()

    @property
    def published(self) -> list[str]:
        self.settle()
        return [payload for payload, _, _ in self.clients["watch"].received]


@pytest.fixture
def world() -> WillWorld:
    world = WillWorld(1)
    world.come("c", "b0", "first")
    world.settle()
    return world


def test_whoever_comes_back_elsewhere_makes_the_will_void(world: WillWorld) -> None:
    world.go("c")
    world.come("c", "b2", "second")
    world.settle()
    world.say_goodbye("c")
    world.pass_time(DELAY_S + 1)
    assert world.published == []


def test_a_clean_start_elsewhere_ends_the_session_and_publishes_its_will(world: WillWorld) -> None:
    world.go("c")
    world.come("c", "b2", "second", clean=True)
    assert world.published == ["first"]
    world.pass_time(DELAY_S + 1)
    assert world.published == ["first"]


@pytest.mark.parametrize("delay_s", [0, DELAY_S])
def test_a_clean_start_elsewhere_while_the_client_is_still_there(delay_s: int) -> None:
    world = WillWorld(1)
    world.come("c", "b0", "first", delay_s)
    world.settle()
    old = world.clients["c"].connection
    world.clients["c"].connection = 0  # Its broker has not noticed that it went.
    world.come("c", "b2", "second", clean=True)
    assert world.published == ["first"]
    world.pass_time(DELAY_S + 1)
    assert world.published == ["first"]
    assert old not in world.sites["b0"].endpoint.connections


def test_a_connection_that_is_taken_over_leaves_no_will_behind(world: WillWorld) -> None:
    world.clients["c"].connection = 0  # Its broker has not noticed that it went.
    world.come("c", "b2", "second")
    world.settle()
    world.say_goodbye("c")
    world.drain("b2", "b0")
    world.pass_time(10_000)
    assert world.published == []
    assert not any(site.broker.sessions.keys() - {"watch"} for site in world.sites.values())


def test_a_will_goes_with_a_session_that_is_drained(world: WillWorld) -> None:
    world.pass_time(50)
    world.go("c")
    world.pass_time(DELAY_S - 100)
    world.drain("b0", "b2")
    assert "c" in world.sites["b2"].broker.sessions
    world.pass_time(90)
    assert world.published == []
    world.pass_time(20)
    assert world.published == ["first"]
    world.pass_time(10_000)
    assert world.published == ["first"]


def test_a_session_expires_so_long_after_its_client_went_wherever_it_is() -> None:
    world = WillWorld(1)
    world.come("c", "b0", "first", delay_s=5000, expiry_s=600)
    world.settle()
    world.go("c")
    world.pass_time(500)
    world.drain("b0", "b2")
    world.pass_time(90)
    assert "c" in world.sites["b2"].broker.sessions
    assert world.published == []
    world.pass_time(20)
    assert "c" not in world.sites["b2"].broker.sessions
    assert world.published == ["first"]


def test_a_client_that_is_gone_again_before_its_session_came_has_not_come_back(world: WillWorld) -> None:
    world.go("c")
    world.come("c", "b2", "second")
    world.go("c")
    assert world.clients["c"].presents == [False], "it was welcomed"
    world.pass_time(DELAY_S + 1)
    assert world.published == ["first"]
