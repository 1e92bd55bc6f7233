"""Brokers that tell clients where to go next, and clients that go there: real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.client.servers import ROAMCAST, Broker, live, run, running, until

import roamcast
from roamcast.client import Client
from roamcast.client.addresses import AddressBook, parse_address
from roamcast.errors import InputError
from roamcast.mqtt.codec.reasons import Reason


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    config = tmp_path / "steering.toml"
    signals = tmp_path / "signals.txt"
    signals.write_text("# what clients hear where\naa:01 a\nbb:01 b\nbb:02 b\n")
    a = Broker(tmp_path, "a", None, "--config", str(config))
    b = Broker(tmp_path, "b", {"a": a.link_port}, "--config", str(config))
    tables = "".join(
        f'[[steering.broker]]\nid = "{one.id}"\naddress = "{one.address}"\nposition = "{position}"\n'
        for one, position in ((a, "43.26,-2.93"), (b, "43.32,-1.98"))
    )
    config.write_text(f'[steering]\nsignals = "{signals}"\n{tables}')
    with ExitStack() as stack:
        stack.enter_context(running(a))
        stack.enter_context(running(b))
        run(until(lambda: "the link to b is up" in a.log.read_text(), "the link is up"))
        yield a, b


async def comes(client: Client, broker: Broker) -> None:
    await until(lambda: client.is_attached and str(client.address) == broker.address, f"it is at {broker.id}")


async def next_text(client: Client) -> str:
    async with asyncio.timeout(30):
        return (await anext(client)).text


@pytest.mark.slow
@live
async def test_a_client_goes_where_its_broker_says(sites: tuple[Broker, Broker]) -> None:
    a, b = sites
    async with (
        roamcast.connect(a.address, client_id="car", clean=False, steered=True) as car,
        roamcast.connect(a.address, client_id="station") as station,
    ):
        await car.subscribe("news", qos=2)

        async def comes_to(broker: Broker, text: str) -> None:
            await comes(car, broker)
            await station.publish("news", text, qos=2)
            assert await next_text(car) == text

        await car.signal("somewhere unknown", "aa:01")
        await comes_to(a, "not moved")
        await car.signal("somewhere unknown", "bb:02", "aa:01")
        await comes_to(b, "by a signal")
        await car.signal("43.27,-2.90")
        await comes_to(a, "by distance")
        assert car.session_present
        assert car.waiting == 0, "hints are not for the application"


@pytest.mark.slow
@live
async def test_a_client_follows_the_reference_of_a_drained_broker(
    sites: tuple[Broker, Broker],
) -> None:
    a, b = sites
    async with (
        roamcast.connect(a.address, client_id="car", clean=False) as car,
        roamcast.connect(b.address, client_id="station") as station,
    ):
        await car.subscribe("news", qos=2)
        command = f"{ROAMCAST} broker drain --data data --to b --reference {b.address}".split()
        drain = await asyncio.create_subprocess_exec(*command, cwd=a.folder)
        assert await drain.wait() == 0
        await comes(car, b)
        assert car.session_present
        await station.publish("news", "all is well", qos=2)
        assert await next_text(car) == "all is well"


@pytest.mark.slow
def test_a_broker_with_many_clients_sends_others_elsewhere(tmp_path: Path) -> None:
    b = Broker(tmp_path, "b")
    config = tmp_path / "steering.toml"
    table = f'[[steering.broker]]\nid = "b"\naddress = "{b.address}"\n'
    config.write_text(f'[steering]\nclients_max = 1\noverflow = "b"\n{table}')
    a = Broker(tmp_path, "a", {"b": b.link_port}, "--config", str(config))

    async def work() -> None:
        async with (
            roamcast.connect(a.address, client_id="first") as first,
            roamcast.connect(a.address, client_id="second") as second,
        ):
            assert (str(first.address), str(second.address)) == (a.address, b.address)
        with pytest.raises(roamcast.ConnectError) as refused:
            async with (
                roamcast.connect(a.address, client_id="first"),
                roamcast.connect(a.address, client_id="third", version=4),
            ):
                pass
        assert refused.value.reason is Reason.SERVER_UNAVAILABLE

    with running(b), running(a):
        run(work())


def test_references() -> None:
    book = AddressBook(["a=mqtts://one:8883", "b=mqtts://two:8883"], False)
    assert not book.refer("")
    assert not book.refer("mqtt://three:1883"), "from TLS to none"
    assert not book.refer("::::")
    assert book.refer("mqtts://three mqtts://four")
    assert book.go_on() == parse_address("mqtts://three")
    assert book.go_on() == parse_address("a=mqtts://one:8883"), "once"


def test_steering_needs_mqtt_5() -> None:
    with pytest.raises(InputError, match="steered needs MQTT 5"):
        roamcast.connect("127.0.0.1", steered=True, version=4)
