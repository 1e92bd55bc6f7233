"""Unmodified MQTT clients in front of real Mosquittos: a session follows its client between sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.proxy.proxies import Proxies, proxies_of

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.bench.processes import HOST

WAIT_S = 20.0


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignNetwork, Proxies]]:
    reason = missing("mosquitto")
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("endpoint")
    with (
        foreign_network("mosquitto", folder / "brokers", ["hub", "left"]) as network,
        proxies_of(network, folder) as proxies,
    ):
        yield network, proxies


@asynccontextmanager
async def at(port: int, id: str, *, clean: bool = False, version: int = 5) -> AsyncIterator[aiomqtt.Client]:
    settings: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion(version)}
    if version == 5:
        expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        expiry.SessionExpiryInterval = 3600
        settings |= {"clean_start": clean, "properties": expiry}
    else:
        settings |= {"clean_session": clean}
    async with aiomqtt.Client(HOST, port, identifier=id, **settings) as client:
        yield client


async def take(client: aiomqtt.Client, count: int) -> list[str]:
    async with asyncio.timeout(WAIT_S):
        messages = aiter(client.messages)
        return [bytes((await anext(messages)).payload).decode() for _ in range(count)]


async def take_up_to(client: aiomqtt.Client, last: str) -> list[str]:
    """What comes up to this one, copies left out: who publishes without an identity gets QoS 1, no more."""
    came: dict[str, None] = {}
    while last not in came:
        came |= dict.fromkeys(await take(client, 1))
    return list(came)


async def publish(port: int, topic: str, numbers: range, qos: int = 1) -> None:
    async with aiomqtt.Client(HOST, port) as client:
        for number in numbers:
            await client.publish(topic, f"{number}", qos=qos)


def names(numbers: range) -> list[str]:
    return [f"{number}" for number in numbers]


def story(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 3 * WAIT_S))


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_that_reconnects_at_another_site_keeps_its_session(
    version: int, sites: tuple[ForeignNetwork, Proxies]
) -> None:
    network, proxies = sites

    async def work() -> None:
        id, topic, ports = f"car-{version}", f"road/{version}", proxies.mqtt_ports
        async with at(ports["hub"], id, version=version) as client:
            await client.subscribe(f"{topic}/#", qos=1)
            await publish(network.ports["left"], f"{topic}/1", range(10))
            assert await take(client, 10) == names(range(10))
        # Away: at the brokers themselves, and through an endpoint.
        await publish(network.ports["left"], f"{topic}/2", range(10, 20))
        await publish(ports["left"], f"{topic}/3", range(20, 30))
        async with at(ports["left"], id, version=version) as client:
            await publish(network.ports["hub"], f"{topic}/4", range(30, 35))
            assert await take_up_to(client, "34") == names(range(10, 35))
        await publish(network.ports["hub"], f"{topic}/5", range(35, 40))
        async with at(ports["hub"], id, version=version) as client:
            came = await take_up_to(client, "39")
            assert came[-5:] == names(range(35, 40))

    story(work)


def test_what_was_sent_and_not_acknowledged_comes_again_elsewhere(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites

    async def work() -> None:
        came = asyncio.Event()
        loop = asyncio.get_running_loop()
        client = paho.Client(CallbackAPIVersion.VERSION2, "sudden", clean_session=False, manual_ack=True)

        def on_message(*_: object) -> None:
            loop.call_soon_threadsafe(came.set)

        client.on_message = on_message
        client.connect(HOST, proxies.mqtt_ports["hub"])
        client.loop_start()
        client.subscribe("sudden/#", 1)
        await asyncio.sleep(0.5)
        await publish(network.ports["hub"], "sudden/1", range(3))
        await asyncio.wait_for(came.wait(), WAIT_S)
        socket = client.socket()
        assert socket is not None
        client.loop_stop()
        socket.close()  # Without a word.
        async with at(proxies.mqtt_ports["left"], "sudden", version=4) as elsewhere:
            assert await take(elsewhere, 3) == names(range(3))

    story(work)


def test_the_client_at_the_old_site_is_told_that_it_is_elsewhere(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    _, proxies = sites

    async def work() -> None:
        came: list[str] = []
        with suppress(aiomqtt.MqttError):  # The old one may find that it cannot say goodbye any more.
            async with at(proxies.mqtt_ports["hub"], "twice") as old:
                await old.subscribe("twice/#", qos=1)
                async with at(proxies.mqtt_ports["left"], "twice") as new:
                    with pytest.raises(aiomqtt.MqttError):
                        await take(old, 1)
                    await publish(proxies.mqtt_ports["hub"], "twice/1", range(2))
                    came += await take(new, 2)
        assert came == names(range(2))

    story(work)


def test_a_clean_start_ends_the_session_wherever_it_is(sites: tuple[ForeignNetwork, Proxies]) -> None:
    network, proxies = sites

    async def work() -> None:
        async with at(proxies.mqtt_ports["hub"], "fresh") as client:
            await client.subscribe("fresh/#", qos=1)
        await publish(network.ports["hub"], "fresh/1", range(3))
        async with at(proxies.mqtt_ports["left"], "fresh", clean=True):
            pass
        async with at(proxies.mqtt_ports["left"], "fresh") as client:
            await client.subscribe("fresh/#", qos=1)
            await publish(network.ports["hub"], "fresh/1", range(3, 5))
            assert await take(client, 2) == names(range(3, 5))

    story(work)


def test_qos_2_publishes_and_user_properties_pass_through(sites: tuple[ForeignNetwork, Proxies]) -> None:
    network, proxies = sites

    async def work() -> None:
        colour = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        colour.UserProperty = [("colour", "blue")]
        async with at(proxies.mqtt_ports["left"], "props") as client:
            await client.subscribe("props/#", qos=2)
            await publish(proxies.mqtt_ports["hub"], "props/1", range(2), qos=2)
            assert await take(client, 2) == names(range(2))
            async with at(network.ports["hub"], "speaker") as speaker:
                await speaker.publish("props/2", "x", qos=1, properties=colour)
            async with asyncio.timeout(WAIT_S):
                message = await anext(aiter(client.messages))
            assert ("colour", "blue") in message.properties.UserProperty  # type: ignore[union-attr]

    story(work)


def test_a_site_that_may_hold_the_session_and_is_down_means_try_again(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites

    async def work() -> None:
        async with at(proxies.mqtt_ports["hub"], "patient") as client:
            await client.subscribe("patient/#", qos=1)
        await publish(network.ports["hub"], "patient/1", range(5))
        proxies.processes["hub"].kill()
        with pytest.raises(aiomqtt.MqttError):
            async with at(proxies.mqtt_ports["left"], "patient"):
                pass
        await publish(network.ports["hub"], "patient/1", range(5, 8))
        proxies.start("hub")
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    async with at(proxies.mqtt_ports["left"], "patient") as client:
                        assert await take(client, 8) == names(range(8))
                        return
                except aiomqtt.MqttError:
                    await asyncio.sleep(0.1)

    story(work)
