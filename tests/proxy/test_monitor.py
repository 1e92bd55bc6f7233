"""The host monitor and discovery: clients are moved to the nearest proxy, and applications need not know."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from tests.proxy.foreign import Network
from tests.proxy.world import World, in_virtual_time, until, with_options

from roamcast.proxy import discovery, line
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.client import RoamingClient
from roamcast.proxy.discovery import Credentials, measure
from roamcast.proxy.messages import Message, Welcome
from roamcast.proxy.monitor import HostMonitor
from roamcast.proxy.wire import Pipe, ProxyError, connect_client


class Distances:
    """How far away each proxy is, in seconds for one way; those that are not here cannot be reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: dict[str, float] = {}
        monkeypatch.setattr(discovery, "connect_client", self.connect)
        monkeypatch.setattr(line, "connect_client", self.connect)
        monkeypatch.setattr("time.perf_counter", asyncio.get_running_loop().time)

    async def connect(self, address: str, *rest: Any) -> tuple[Pipe, Welcome]:
        site = address.partition(":")[0]
        if site not in self.seconds:
            raise ProxyError(f"{address}: no route to host")
        pipe, welcome = await connect_client(address, *rest)
        real = pipe.read

        async def read() -> Message:
            message = await real()
            await asyncio.sleep(2 * self.seconds.get(site, 0.0))
            return message

        pipe.read = read  # type: ignore[method-assign]
        return pipe, welcome


def new_world(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Distances]:
    world = World(Network(Random(3), [("a", "b"), ("b", "c")], 0.02), monkeypatch)
    return world, Distances(monkeypatch)


@in_virtual_time
async def test_the_nearest_proxy_comes_first_and_silent_ones_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, distances = new_world(monkeypatch)
    distances.seconds = {"a": 0.4, "b": 0.2}
    found = await measure(world.proxies, Credentials("car"))
    assert list(found) == ["b", "a"]
    assert found["b"] < 0.7 < found["a"]


@in_virtual_time
async def test_the_monitor_follows_the_nearest_proxy_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, distances = new_world(monkeypatch)
    await asyncio.sleep(0.5)
    car = world.client("car", with_options())
    await car.subscribe("road/#")
    distances.seconds = {"a": 0.1, "b": 1.0, "c": 1.0}
    async with HostMonitor([car]):
        await until(lambda: car.site == "a")
        await asyncio.sleep(1)
        publishing = asyncio.create_task(publish_until_cancelled(world))
        distances.seconds = {"a": 1.0, "b": 1.0, "c": 0.1}
        await until(lambda: car.site == "c")
        await asyncio.sleep(1)
        publishing.cancel()
        await asyncio.sleep(2)
    check_whole(car)


@in_virtual_time
async def test_a_host_that_knows_says_so_and_is_back_somewhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world, distances = new_world(monkeypatch)
    await asyncio.sleep(0.5)
    car = world.client("car", with_options())
    await car.subscribe("road/#")
    distances.seconds = {"a": 0.1}
    async with HostMonitor([car]) as monitor:
        await until(lambda: car.site == "a")
        await asyncio.sleep(1)
        publishing = asyncio.create_task(publish_until_cancelled(world))
        await asyncio.sleep(1)
        await monitor.going_down()
        distances.seconds = {}
        await asyncio.sleep(10)
        assert not car.is_attached
        distances.seconds = {"b": 0.1}
        monitor.back()
        await until(lambda: car.site == "b")
        publishing.cancel()
        await asyncio.sleep(2)
    check_whole(car)


async def publish_until_cancelled(world: World) -> None:
    adapter = world.network.adapter("b")
    await adapter.open()
    number = 0
    while True:
        number += 1
        await adapter.publish(ForeignMessage("road/1", b"", {}, f"{number}"))
        await asyncio.sleep(0.05)


def check_whole(car: RoamingClient) -> None:
    """Everything from the first to the last, once, in order."""
    got = []
    while not car._queue.empty():
        message = car._queue.get_nowait()
        assert message is not None
        got.append(int(message.identity))
    assert len(got) > 20
    assert got == list(range(1, len(got) + 1))
