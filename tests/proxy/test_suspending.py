"""Real brokers that keep a client's own channel: what it finds when it comes back, here or elsewhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from tests.proxy.proxies import Proxies, proxies_of, within
from tests.proxy.test_processes import WAIT_S, heard, take

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.proxy.adapter import Adapter, ForeignMessage, open_adapter
from roamcast.proxy.client import Options, RoamingClient

SITES = ["hub", "left"]
STREAM = "?stream=kept"
KINDS = [
    "mosquitto",
    *[pytest.param(kind, marks=pytest.mark.slow) for kind in ("nats", "activemq", "roamcast")],
]


@pytest.fixture(scope="module", params=KINDS)
def sites(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ForeignNetwork, Proxies]]:
    kind = request.param
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(kind)
    with foreign_network(kind, folder / "brokers", SITES) as network:
        if kind == "nats":
            asyncio.run(add_streams(network))
        query = STREAM if kind == "nats" else ""
        with proxies_of(network, folder, query=query) as proxies:
            yield network, proxies


async def add_streams(network: ForeignNetwork) -> None:
    """What is to be kept, and pings: they must come behind it."""
    for site in SITES:
        plain = await nats.connect(network.url(site))
        await plain.jetstream().add_stream(name="kept", subjects=["road.>", "roamcast.ping.>"])
        await plain.close()


class Story:
    """A client, and somebody who publishes numbers at another site."""

    def __init__(self, client: RoamingClient, publisher: Adapter, topics: list[str]) -> None:
        self.client = client
        self._publisher, self._topics = publisher, topics
        self._published = self._taken = 0

    async def publish(self, count: int) -> None:
        for number in range(self._published, self._published + count):
            topic = self._topics[number % len(self._topics)]
            await self._publisher.publish(ForeignMessage(topic, b"%d" % number, {}, f"p/{number}"))
        self._published += count

    async def take_all(self) -> None:
        """What was published comes once and in order, and nothing else."""
        numbers = range(self._taken, self._published)
        assert await take(self.client, len(numbers)) == [f"{number}" for number in numbers]
        assert self.client._queue.empty()
        self._taken = self._published


@asynccontextmanager
async def story(
    sites: tuple[ForeignNetwork, Proxies], id: str, options: Options | None = None
) -> AsyncIterator[Story]:
    network, proxies = sites
    query = STREAM if network.kind == "nats" else ""
    publisher = open_adapter(network.kind, network.url("left") + query)
    await publisher.open()
    client = RoamingClient(id, proxies.addresses, options or Options(again_s=0.2))
    # These two keep what comes for each filter, and not in which order it came for several.
    names = [["road", id, "1"], ["road", id, "2"]][: 1 if network.kind in ("activemq", "nats") else 2]
    topics = [publisher.topic_of(levels) for levels in names]
    for topic in topics:
        await client.subscribe(topic)
    await client.move_in("hub")
    try:
        for topic in topics:
            await heard(client, publisher, topic)
        yield Story(client, publisher, topics)
    finally:
        await client.close()
        await publisher.close()


@within(3 * WAIT_S)
async def test_a_client_that_returns_finds_its_channel_as_it_was(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    async with story(sites, "returns") as told:
        assert await told.client.move_out(is_returning=True) == "broker"
        await told.publish(200)
        result = await told.client.move_in("hub")
        assert (result.lost, result.missing, result.duplicates) == ((), (), 0)
        assert not told.client.sources
        await told.publish(10)
        await told.take_all()


@pytest.mark.parametrize(("back_at", "is_returning"), [("hub", True), ("left", False)])
@within(3 * WAIT_S)
async def test_nothing_is_kept_for_an_excluded_subscription(
    sites: tuple[ForeignNetwork, Proxies], back_at: str, is_returning: bool, tmp_path: Path
) -> None:
    """Neither by the broker nor by a proxy, also not after a restart; afterwards it works again."""
    network, proxies = sites
    query = STREAM if network.kind == "nats" else ""
    publisher = open_adapter(network.kind, network.url("left") + query)
    await publisher.open()
    kept, excluded = (publisher.topic_of(["road", f"excluded-{back_at}", name]) for name in ("1", "2"))
    file = tmp_path / "state"
    client = RoamingClient("excludes", proxies.addresses, Options(again_s=0.2), state_file=file)
    await client.subscribe(kept)
    await client.subscribe(excluded, is_kept=False)
    await client.move_in("hub")
    for topic in (kept, excluded):
        await heard(client, publisher, topic)
    await client.move_out(is_returning=is_returning)
    await client.publish(kept, b"not kept", is_kept=False)
    await client.close()
    for number, topic in enumerate((kept, excluded, kept, excluded)):
        await publisher.publish(ForeignMessage(topic, b"%d" % number, {}, f"away/{number}"))
    client = RoamingClient("excludes", proxies.addresses, Options(again_s=0.2), state_file=file)
    assert list(client.excluded) == [excluded]
    await client.move_in(back_at)
    assert await take(client, 2) == ["0", "2"]
    await heard(client, publisher, excluded)
    await client.close()
    await publisher.close()


@within(3 * WAIT_S)
async def test_elsewhere_the_proxy_of_the_old_site_resumes_it(sites: tuple[ForeignNetwork, Proxies]) -> None:
    async with story(sites, "elsewhere", Options(again_s=0.2, suspend="always")) as told:
        assert await told.client.move_out() == "broker"
        await told.publish(100)
        result = await told.client.move_in("left")
        assert (result.lost, result.missing) == ((), ())
        assert result.downloaded == 100
        await told.publish(10)
        await told.take_all()


@pytest.mark.parametrize("back_at", SITES)
@within(3 * WAIT_S)
async def test_where_the_proxy_was_killed_the_broker_keeps_it(
    back_at: str, sites: tuple[ForeignNetwork, Proxies]
) -> None:
    _, proxies = sites
    async with story(sites, f"killed-{back_at}") as told:
        proxies.processes["hub"].kill()
        assert await told.client.move_out() == "broker"
        await told.publish(100)
        result = await told.client.move_in(back_at)
        assert bool(result.missing) == (back_at == "left")
        await told.publish(10)
        await asyncio.to_thread(proxies.start, "hub")
        async with asyncio.timeout(20):
            while told.client.sources:
                await asyncio.sleep(0.05)
        if back_at == "left":
            # What was missing comes later: behind what was published at the new site.
            came = await take(told.client, 110)
            assert sorted(map(int, came)) == list(range(110))
            assert told.client._queue.empty()
            told._taken = 110
        # The proxy that was started again can be used like before.
        assert await told.client.move_out() == "proxy"
        await told.publish(5)
        await told.client.move_in("hub")
        await told.take_all()


@within(3 * WAIT_S)
async def test_a_proxy_killed_while_it_stands_in_loses_nothing(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    _, proxies = sites
    async with story(sites, "stand-in") as told:
        assert await told.client.move_out(is_returning=True) == "broker"
        await told.publish(300)
        moving = asyncio.create_task(told.client.move_in("left"))
        await asyncio.sleep(random.uniform(0.01, 0.1))
        proxies.processes["hub"].kill()
        await moving
        await asyncio.to_thread(proxies.start, "hub")
        async with asyncio.timeout(20):
            while told.client.sources:
                await asyncio.sleep(0.05)
        await told.take_all()
