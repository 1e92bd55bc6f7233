"""Real proxies beside real brokers: a move over two sites, and what survives kill -9."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.proxy.proxies import proxies_of

from roamcast.bench.foreign_brokers import foreign_network, missing
from roamcast.proxy.adapter import Adapter, ForeignMessage
from roamcast.proxy.client import Options, RoamingClient

SITES = ["hub", "left"]
WAIT_S = 20.0
KINDS = [
    "mosquitto",
    pytest.param("nats", marks=pytest.mark.slow),
    pytest.param("activemq", marks=pytest.mark.slow),
]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_so():
            await asyncio.sleep(0.01)


def is_journalled(folder: Path, text: bytes) -> bool:
    """Whether the first segment holds it, near its beginning."""
    with next(folder.glob("*.journal")).open("rb") as file:
        return text in file.read(1 << 17)


def is_complete(folder: Path) -> bool:
    """Whether the second handler, a copy, waits for its source no more: an entry `Changed` without one."""
    with next(folder.glob("*.journal")).open("rb") as file:
        written = file.read(1 << 17)
    return re.search(rb"Changed\x02.{1,80}\xcb.{8}\xc0\xc2", written, re.DOTALL) is not None


async def heard(client: RoamingClient, publisher: Adapter, topic: str) -> None:
    """Wait until the subscription is known where the publisher is."""
    tries = 0
    while client._queue.empty():
        tries += 1
        await publisher.publish(ForeignMessage(topic, b"try", {}, f"{topic}/{tries}"))
        await asyncio.sleep(0.1)
    await publisher.publish(ForeignMessage(topic, b"last try", {}, f"{topic}/last"))
    while (await take(client, 1)) != ["last try"]:
        pass


async def take(client: RoamingClient, count: int) -> list[str]:
    async with asyncio.timeout(WAIT_S):
        return [(await anext(client)).body.decode() for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_killed_between_move_out_and_move_in_loses_nothing(kind: str, tmp_path: Path) -> None:
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    brokers = tmp_path / "brokers"
    with foreign_network(kind, brokers, SITES) as network, proxies_of(network, tmp_path) as proxies:

        async def work() -> None:
            publisher = network.adapter("left")
            await publisher.open()
            topic = publisher.topic_of(["road", "1"])

            async def publish(first: int, count: int) -> None:
                for number in range(first, first + count):
                    text = f"{number}"
                    await publisher.publish(ForeignMessage(topic, text.encode(), {}, f"p/{text}"))

            client = RoamingClient("car", proxies.addresses, Options(again_s=0.2))
            await client.subscribe(topic)
            await client.move_in("hub")
            await heard(client, publisher, topic)
            await publish(0, 5)
            assert await take(client, 5) == [f"{number}" for number in range(5)]
            await client.move_out()
            await publish(5, 100)
            await until(lambda: is_journalled(tmp_path / "hub-data" / "buffers", b"p/104"))
            proxies.processes["hub"].kill()
            if kind == "mosquitto":  # This one keeps what comes while nobody listens.
                await publish(105, 20)
            proxies.start("hub")
            if kind != "mosquitto":
                log = proxies.processes["hub"].log
                await until(lambda: log.read_text().count("connected to the broker") == 2)
                await asyncio.sleep(0.5)
                await publish(105, 20)
            result = await client.move_in("left")
            assert (result.lost, result.dropped) == ((), 0)
            await publish(125, 5)
            assert await take(client, 125) == [f"{number}" for number in range(5, 130)]
            assert client._queue.empty()
            await client.close()
            await publisher.close()

        asyncio.run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_has_everything_though_the_old_proxy_is_dead(kind: str, tmp_path: Path) -> None:
    """Pro-active proxies: that clients go from one site to the other is learned from the first move."""
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    brokers, settings = tmp_path / "brokers", {"proactive.enabled": True}
    with foreign_network(kind, brokers, SITES) as network, proxies_of(network, tmp_path, settings) as proxies:

        async def work() -> None:
            publisher = network.adapter("left")
            await publisher.open()
            topic = publisher.topic_of(["road", "1"])
            client = RoamingClient(
                "car", proxies.addresses, Options(again_s=0.2, ahead=True, suspend="never")
            )
            await client.subscribe(topic)
            await client.move_in("hub")
            await heard(client, publisher, topic)
            await client.move_out()
            assert (await client.move_in("left")).copies == 0
            await client.move_out()
            for number in range(50):
                await publisher.publish(ForeignMessage(topic, b"%d" % number, {}, f"p/{number}"))
            await until(lambda: is_journalled(tmp_path / "hub-data" / "buffers", b"p/49"))
            await until(lambda: is_complete(tmp_path / "hub-data" / "buffers"))
            proxies.processes["left"].kill()
            result = await client.move_in("hub")
            assert (result.copies, result.missing, result.lost) == (1, (), ())
            assert await take(client, 50) == [f"{number}" for number in range(50)]
            assert client._queue.empty()
            await client.close()
            await publisher.close()

        asyncio.run(work())
