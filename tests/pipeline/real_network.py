"""A network of real brokers with clients of all sorts: the audit of its logs must find nothing wrong."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tests.daemon.brokers import ROAMCAST, BrokerProcess, MqttClient, free_port

import roamcast

SETTINGS = (
    "network=site-7", "events.level=counters", "events.attributes=true", "events.file_s=0.3",
    "journal.snapshot_after_bytes=65536",
)  # fmt: skip
DEADLINE_S = 60.0
ROUNDS = 6
"""How often everybody publishes, and then moves."""


class Network:
    """Three brokers in a line, and where their logs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = {id: free_port() for id in "abc"}
        self.brokers = {
            id: BrokerProcess(
                folder, id, *SETTINGS, link_port=ports[id], client_port=free_port(),
                peers={peer: ports[peer] for peer in peers},
            )
            for id, peers in (("a", "b"), ("b", "ac"), ("c", "b"))
        }  # fmt: skip
        self.brokers["b"].wait_for_link("a")
        self.brokers["c"].wait_for_link("b")

    def address(self, id: str) -> str:
        return f"{id}=127.0.0.1:{self.brokers[id].port}"

    @property
    def addresses(self) -> list[str]:
        return [self.address(id) for id in self.brokers]

    def restart(self, id: str) -> None:
        self.brokers[id].kill()
        self.brokers[id].start()

    def stop(self) -> None:
        for broker in self.brokers.values():
            broker.stop()


class Mosquitto:
    """mosquitto_sub, with a session that lasts unless told otherwise."""

    def __init__(self, id: str, topic: str, lasting: bool = True) -> None:
        self.id, self._topic, self._lasting = id, topic, lasting
        self.lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: int) -> None:
        session = ["-c", "-x", "3600"] if self._lasting else []
        self._process = subprocess.Popen(
            ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-i", self.id, "-V", "5",
             "-q", "1", "-d", "-t", self._topic, *session], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "SUBACK" in line or "Subscribed" in line:
                return
        raise AssertionError("it has ended")

    def kill(self, sign: signal.Signals = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(sign)
        self.lines += self._process.communicate(timeout=DEADLINE_S)[0].splitlines()


@asynccontextmanager
async def taking(client: roamcast.Client) -> AsyncIterator[list[roamcast.Notification]]:
    """Takes whatever comes to a client while the block runs."""
    taken: list[roamcast.Notification] = []

    async def take() -> None:
        async for one in client:
            taken.append(one)

    task = asyncio.create_task(take())
    try:
        yield taken
    finally:
        task.cancel()


async def until(happened: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not happened():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


def has_retained(taken: list[roamcast.Notification]) -> bool:
    return any(one.retain for one in taken)


def has_count(taken: list[roamcast.Notification], count: int) -> bool:
    return len(taken) >= count


async def live(network: Network, seed: int) -> None:
    """Everybody publishes, roams, subscribes again, is killed and comes back; at the end all is delivered."""
    draw, log = random.Random(seed), network.folder / "clients"
    bus, tram = MqttClient("bus", network.brokers["b"].port), Mosquitto("tram", "goods/#")
    walker = Mosquitto("walker", "goods/#", lasting=False)
    bus.subscribe("goods/#")
    await asyncio.to_thread(tram.start, network.brokers["c"].port)
    await asyncio.to_thread(walker.start, network.brokers["a"].port)
    spy = subprocess.Popen(
        [ROAMCAST, "sub", "-h", "127.0.0.1", "-p", str(network.brokers["a"].port), "-i", "spy", "-c",
         "-q", "1", "-t", "goods/#", "--records", str(log / "spy")], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    await asyncio.to_thread(network.brokers["a"].wait_for, "client spy connected")
    connect = partial(roamcast.connect, network.addresses, clean=False, session_expiry=3600)
    published: list[dict[str, int]] = []
    async with (
        connect(client_id="shop", records=log / "shop") as shop,
        connect(client_id="depot") as depot,
        connect(client_id="car", records=log / "car") as car,
        connect(client_id="idler", records=log / "idler") as idler,
        connect(client_id="member", records=log / "member") as member,
        taking(car) as cars, taking(shop) as shops, taking(idler) as idlers, taking(member) as members,
    ):  # fmt: skip
        await car.subscribe("goods/#", qos=2, where="cost < 50")
        await shop.subscribe("goods/shop", qos=1, no_local=True)
        await shop.subscribe("news", qos=1)
        await idler.subscribe("goods/#", qos=0)
        await member.subscribe("$share/team/goods/#", qos=1)
        await shop.publish("notice", b"kept", qos=1, retain=True)

        async def publish(client: roamcast.Client, name: str) -> None:
            cost, weight = draw.randrange(100), draw.randrange(10)
            published.append({"cost": cost, "weight": weight})
            payload = json.dumps({"weight": weight, "serial": len(published)})
            await client.publish(
                f"goods/{name}", payload, qos=draw.choice((1, 2)), properties=[("cost", str(cost))],
                content_type="application/json",
            )  # fmt: skip

        async def publish_some() -> None:
            await asyncio.gather(*(publish(shop, "shop") for _ in range(8)))
            await asyncio.gather(*(publish(depot, "depot") for _ in range(8)))

        had: list[int] = []
        for number in range(ROUNDS):
            van = connect(client_id="van", records=log / f"van-{number}")
            bike = roamcast.connect(network.addresses, client_id="bike", records=log / f"bike-{number}")
            async with van, bike, taking(van) as vans, taking(bike) as bikes:
                await van.subscribe("goods/#", qos=1, where="weight >= 5 AND cost BETWEEN 10 AND 90")
                await bike.subscribe("goods/#", qos=1)
                await bike.subscribe("notice", qos=1)
                radio = MqttClient("radio", draw.choice(list(network.brokers.values())).port)
                radio.publish("news", b"late again")
                radio.leave()
                await publish_some()
                await car.move_to(draw.choice(network.addresses), proclaimed=draw.random() < 0.5)
                if number == 2:
                    # With something received: it is subscribed.
                    assert spy.stdout is not None
                    assert await asyncio.to_thread(spy.stdout.readline)
                    spy.kill()
                    spy.communicate()
                if number % 2:
                    await car.unsubscribe("goods/#")
                    await publish_some()
                    await car.subscribe("goods/#", qos=2, where="cost < 50")
                publishing = asyncio.create_task(publish_some())
                if number in (1, 4):
                    await asyncio.to_thread(network.restart, draw.choice("abc"))
                await publishing
                await until(partial(has_retained, bikes), "the retained message")
                owed = [one for one in published if one["weight"] >= 5 and 10 <= one["cost"] <= 90]
                await until(partial(has_count, vans, len(owed) - sum(had)), "van")
                had.append(len(vans))
            described = [("cost", "40"), ("weight", "6")]
            # Whoever is away for a second does not get it, and was not owed it.
            await depot.publish("goods/late", b"{}", qos=1, message_expiry=1, properties=described)
            bus.leave()
            await asyncio.to_thread(tram.kill, draw.choice((signal.SIGKILL, signal.SIGTERM)))
            await publish_some()
            bus.connect(draw.choice(list(network.brokers.values())).port)
            await asyncio.to_thread(tram.start, draw.choice(list(network.brokers.values())).port)
            await depot.move_to(draw.choice(network.addresses))
        await until(lambda: len(set(bus.messages)) >= len(published), "bus")
        await until(lambda: len(members) >= len(published), "member")
        assert all((cars, shops, idlers))
        async with connect(client_id="spy") as spy_again, taking(spy_again) as rest:
            await publish(depot, "depot")
            await until(lambda: len(rest) > 0, "spy")
            await until(lambda: len(set(bus.messages)) >= len(published), "bus")
    bus.leave()
    for one in (tram, walker):
        await asyncio.to_thread(one.kill, signal.SIGTERM)


def make_log(folder: Path, seed: int) -> Path:
    """The logs of brokers and clients, all below one folder."""
    network = Network(folder)
    try:
        asyncio.run(live(network, seed))
        network.stop()
    finally:
        for broker in network.brokers.values():
            if broker.process.poll() is None:
                broker.kill()
    return folder
