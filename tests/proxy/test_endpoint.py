"""Unmodified MQTT clients in front of real Mosquittos: a session follows its client between sites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions
from tests.proxy.proxies import Proxies, proxies_of, within

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.bench.processes import HOST, wait_until
from roamcast.mqtt.codec.packets import Connack, Connect, Packet, Pubcomp, Publish, Pubrec, Pubrel
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.writing import write
from roamcast.proxy.mqtt_session import NO_QOS_2

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


@pytest.mark.parametrize("version", [4, 5])
@within(3 * WAIT_S)
async def test_a_client_that_reconnects_at_another_site_keeps_its_session(
    version: int, sites: tuple[ForeignNetwork, Proxies]
) -> None:
    network, proxies = sites
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


@within(3 * WAIT_S)
async def test_what_was_sent_and_not_acknowledged_comes_again_elsewhere(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites
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


@within(3 * WAIT_S)
async def test_the_client_at_the_old_site_is_told_that_it_is_elsewhere(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    _, proxies = sites
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


@within(3 * WAIT_S)
async def test_a_clean_start_ends_the_session_wherever_it_is(sites: tuple[ForeignNetwork, Proxies]) -> None:
    network, proxies = sites
    async with at(proxies.mqtt_ports["hub"], "fresh") as client:
        await client.subscribe("fresh/#", qos=1)
    await publish(network.ports["hub"], "fresh/1", range(3))
    async with at(proxies.mqtt_ports["left"], "fresh", clean=True):
        pass
    async with at(proxies.mqtt_ports["left"], "fresh") as client:
        await client.subscribe("fresh/#", qos=1)
        await publish(network.ports["hub"], "fresh/1", range(3, 5))
        assert await take(client, 2) == names(range(3, 5))


@within(3 * WAIT_S)
async def test_qos_2_publishes_and_user_properties_pass_through(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites
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


@within(3 * WAIT_S)
async def test_a_site_that_may_hold_the_session_and_is_down_means_try_again(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites
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


# --- options of subscriptions and properties of messages ---


def described(**values: Any) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


async def next_of(client: aiomqtt.Client) -> aiomqtt.Message:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(client.messages))


async def subscribe(client: aiomqtt.Client, filter: str, identifier: int = 0, **options: Any) -> None:
    properties = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
    if identifier:
        properties.SubscriptionIdentifier = identifier
    await client.subscribe(
        filter, options=SubscribeOptions(qos=1, **options), properties=properties, timeout=WAIT_S
    )


@within(3 * WAIT_S)
async def test_properties_and_identifiers_come_as_they_were_also_after_a_move(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites
    sent = described(
        ContentType="text/plain", ResponseTopic="answers/7", CorrelationData=b"\x00\x07",
        PayloadFormatIndicator=1, UserProperty=[("colour", "blue"), ("colour", "red")],
    )  # fmt: skip

    def check(message: aiomqtt.Message) -> None:
        came: Any = message.properties
        assert (came.ContentType, came.ResponseTopic, came.CorrelationData, came.PayloadFormatIndicator) == (
            "text/plain", "answers/7", b"\x00\x07", 1,
        )  # fmt: skip
        assert came.UserProperty == [("colour", "blue"), ("colour", "red")]
        assert sorted(came.SubscriptionIdentifier) == [7, 9]

    async with at(network.ports["hub"], "describer", clean=True) as speaker:
        async with at(proxies.mqtt_ports["hub"], "reader") as client:
            await subscribe(client, "described/#", 7)
            await subscribe(client, "described/+", 9)
            await speaker.publish("described/1", "here", qos=1, properties=sent)
            check(await next_of(client))
        await speaker.publish("described/1", "away", qos=1, properties=sent)
        gone, lasting = described(MessageExpiryInterval=1), described(MessageExpiryInterval=600)
        await speaker.publish("described/1", "too old", qos=1, properties=gone)
        await asyncio.sleep(1.5)  # Until it is too old.
        await speaker.publish("described/1", "lasting", qos=1, properties=lasting)
    async with at(proxies.mqtt_ports["left"], "reader") as client:
        came = {}
        while "lasting" not in came:
            message = await next_of(client)
            came[bytes(message.payload).decode()] = message
        assert "too old" not in came
        check(came["away"])
        expiry = came["lasting"].properties.MessageExpiryInterval  # type: ignore[union-attr]
        assert 500 < expiry <= 600


@within(3 * WAIT_S)
async def test_a_client_may_leave_out_what_it_publishes_itself(sites: tuple[ForeignNetwork, Proxies]) -> None:
    _, proxies = sites
    async with (
        at(proxies.mqtt_ports["hub"], "chat/ann") as ann,
        at(proxies.mqtt_ports["left"], "chat/ben") as ben,
    ):
        await subscribe(ann, "chat/#", noLocal=True)
        await subscribe(ben, "chat/#")
        await ann.publish("chat/1", "from ann", qos=1)
        assert await take(ben, 1) == ["from ann"]
        await ben.publish("chat/1", "from ben", qos=1)
        assert await take(ann, 1) == ["from ben"]
        assert await take(ben, 1) == ["from ben"]


@within(3 * WAIT_S)
async def test_what_is_retained_comes_when_it_is_asked_for_and_not_after_a_move(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites

    async def flags(client: aiomqtt.Client, last: str) -> dict[str, bool]:
        came: dict[str, bool] = {}
        while last not in came:
            message = await next_of(client)
            came[bytes(message.payload).decode()] = message.retain
        return came

    async with at(network.ports["hub"], "keeper", clean=True) as speaker:
        await speaker.publish("kept/1", "stored", qos=1, retain=True)
        async with at(proxies.mqtt_ports["hub"], "asker") as client:
            await subscribe(client, "kept/1", retainHandling=2)
            await speaker.publish("kept/1", "live", qos=1, retain=True)
            assert await flags(client, "live") == {"live": False}
            await subscribe(client, "kept/1", retainHandling=1)
            await subscribe(client, "kept/+", retainHandling=1, retainAsPublished=True)
            assert await flags(client, "live") == {"live": True}
            await speaker.publish("kept/1", "live too", qos=1, retain=True)
            assert await flags(client, "live too") == {"live too": True}
            await subscribe(client, "kept/1", retainHandling=0, retainAsPublished=True)
            assert await flags(client, "live too") == {"live too": True}
    async with at(proxies.mqtt_ports["left"], "asker") as client:
        await publish(network.ports["hub"], "kept/1", range(1))
        assert "live too" not in await flags(client, "0")


@within(3 * WAIT_S)
async def test_members_of_a_group_share_and_take_their_share_with_them(
    sites: tuple[ForeignNetwork, Proxies],
) -> None:
    network, proxies = sites
    ports, came = proxies.mqtt_ports, []
    async with at(ports["hub"], "worker-1") as one, at(ports["hub"], "worker-2") as other:
        for worker in (one, other):
            await worker.subscribe("$share/crew/jobs/#", qos=1)
        await publish(network.ports["hub"], "jobs/1", range(10))
        shares = [await take(one, 5), await take(other, 5)]
        assert sorted(shares[0] + shares[1], key=int) == names(range(10))
        await one.unsubscribe("$share/crew/jobs/#")
        await publish(network.ports["hub"], "jobs/1", range(10, 14))
        assert await take(other, 4) == names(range(10, 14))
    await publish(network.ports["hub"], "jobs/1", range(14, 18))
    async with at(ports["left"], "worker-2") as moved:
        came = await take(moved, 4)
    assert came == names(range(14, 18))


def test_qos_2_is_granted_as_qos_1_and_the_client_is_told_why(sites: tuple[ForeignNetwork, Proxies]) -> None:
    _, proxies = sites
    answers: list[tuple[int, str]] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, "exact", protocol=paho.MQTTv5)

    def on_subscribe(_: object, __: object, ___: object, reasons: Any, properties: Any) -> None:
        answers.append((reasons[0].value, properties.ReasonString))

    client.on_subscribe = on_subscribe
    client.connect(HOST, proxies.mqtt_ports["hub"])
    client.loop_start()
    client.subscribe("exact/#", qos=2)
    assert wait_until(lambda: bool(answers), WAIT_S)
    client.disconnect()
    client.loop_stop()
    assert answers == [(1, NO_QOS_2)]


class Bare:
    """An MQTT 5 client that does what it is told, packet by packet."""

    async def connect(self, port: int, id: str) -> bool:
        """Whether there was a session."""
        self._data = b""
        self._reader, self._writer = await asyncio.open_connection(HOST, port)
        connack = await self.ask(Connect(5, id, False, session_expiry=600))
        assert isinstance(connack, Connack)
        return connack.session_present

    async def ask(self, packet: Packet) -> Packet:
        self._writer.write(write(packet, 5))
        async with asyncio.timeout(WAIT_S):
            while (found := cut(self._data, 0, 1 << 20)) is None:
                self._data += await self._reader.readexactly(1)
        first, start, end = found
        body, self._data = self._data[start:end], self._data[end:]
        return parse(first, body, 5, from_client=False)

    def cut(self) -> None:
        self._writer.transport.abort()


@pytest.mark.parametrize("is_killed", [False, True])
@within(3 * WAIT_S)
async def test_a_qos_2_publish_that_is_sent_again_elsewhere_is_published_once(
    is_killed: bool, sites: tuple[ForeignNetwork, Proxies]
) -> None:
    network, proxies = sites
    bare, topic = Bare(), f"once/{is_killed}"
    publish = Publish(topic, b"once", 2, packet_id=5)
    async with at(network.ports["hub"], "witness", clean=True) as witness:
        await witness.subscribe(f"{topic}/#", qos=2)
        await bare.connect(proxies.mqtt_ports["hub"], f"exact-{is_killed}")
        assert await bare.ask(publish) == Pubrec(5)
        bare.cut()
        if is_killed:
            proxies.processes["hub"].kill()
            await asyncio.to_thread(proxies.start, "hub")
        assert await bare.connect(proxies.mqtt_ports["left"], f"exact-{is_killed}")
        again = Publish(topic, b"once", 2, dup=True, packet_id=5)
        assert await bare.ask(again) == Pubrec(5)
        assert await bare.ask(Pubrel(5)) == Pubcomp(5)
        assert await bare.ask(Publish(topic, b"next", 2, packet_id=5)) == Pubrec(5)
        assert await take(witness, 2) == ["once", "next"]
        bare.cut()
