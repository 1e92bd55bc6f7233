"""Five clients that move, lose connections and lose brokers, all at once: QoS 2 exactly once, in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from tests.client.servers import Broker, Relay, live, running_line, until

import roamcast
from roamcast.client import Client, ConnectError

SECONDS = 8.0


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Broker]]:
    with running_line(tmp_path, 3) as brokers:
        yield brokers


class Traveller:
    """A client that publishes, reads and moves."""

    def __init__(self, number: int, client: Client, rng: random.Random) -> None:
        self.number, self.client, self.rng = number, client, rng
        self.sent: list[str] = []
        self.received: list[str] = []

    async def read(self) -> None:
        async for notification in self.client:
            self.received.append(notification.text)

    async def write(self, end: float) -> None:
        while time.monotonic() < end:
            self.sent.append(f"{self.number}:{len(self.sent)}")
            await self.client.publish(f"t/{self.number}", self.sent[-1], qos=2)
            await asyncio.sleep(self.rng.uniform(0.0, 0.02))

    async def move(self, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            with suppress(ConnectError):
                await self.client.move_to(f"b{self.rng.randrange(3)}", proclaimed=self.rng.random() < 0.5)


async def cut(relays: list[Relay], rng: random.Random, end: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        rng.choice(relays).cut()


async def kill(brokers: list[Broker], rng: random.Random, end: float) -> None:
    loop = asyncio.get_running_loop()
    while time.monotonic() < end:
        await asyncio.sleep(rng.uniform(1.0, 3.0))
        broker = rng.choice(brokers)
        await loop.run_in_executor(None, broker.kill)
        await loop.run_in_executor(None, broker.start)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@live
async def test_everything_at_once(three: list[Broker], seed: int) -> None:
    rng = random.Random(seed)
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(Relay(broker.port)) for broker in three]
        known = [f"{broker.id}={relay.address}" for broker, relay in zip(three, relays, strict=True)]
        travellers = []
        for number in range(5):
            client = roamcast.connect(
                rng.sample(known, 3), client_id=f"c{number}", clean=False, back_off_max=0.5,
                keep_alive=4, connect_timeout=4,
            )  # fmt: skip
            travellers.append(Traveller(number, await stack.enter_async_context(client), rng))
            await client.subscribe("t/#", qos=2)
        readers = [asyncio.create_task(one.read()) for one in travellers]
        end = time.monotonic() + SECONDS
        await asyncio.gather(
            *(one.write(end) for one in travellers), *(one.move(end) for one in travellers),
            cut(relays, rng, end), kill(three, rng, end - 2),
        )  # fmt: skip
        total = sum(len(one.sent) for one in travellers)
        await until(
            lambda: all(len(one.received) >= total for one in travellers),
            f"{total} received: {[len(one.received) for one in travellers]}",
        )
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    for one in travellers:
        for other in travellers:
            mine = [text for text in one.received if text.startswith(f"{other.number}:")]
            assert mine == other.sent
