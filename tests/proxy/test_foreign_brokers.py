"""Adapters against the real servers: every kind keeps the same promises."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage, open_adapter
from roamcast.proxy.conformance import STORIES, WAIT_S, NotKept, Story, bodies, check_adapter, numbered, until
from roamcast.proxy.mosquitto import MosquittoAdapter

# RabbitMQ takes longest to start; Roamcast's own broker speaks MQTT to the same adapter as Mosquitto.
SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("roamcast", "rabbitmq")]
KINDS = ["mosquitto", "nats", "activemq", *SLOW_KINDS]


@pytest.fixture(scope="module", params=KINDS)
def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignNetwork]:
    """One server of each kind."""
    reason = missing(request.param)
    if reason is not None:
        pytest.skip(reason)
    with foreign_network(request.param, tmp_path_factory.mktemp(request.param) / "one", ["hub"]) as started:
        yield started


def tell(network: ForeignNetwork, story: Story) -> None:
    """Two adapters, as two processes would have them, at one server."""

    async def run() -> None:
        one, other = network.adapter("hub"), network.adapter("hub")
        await one.open()
        await other.open()
        try:
            await story(one, other)
        finally:
            await one.close()
            await other.close()

    asyncio.run(asyncio.wait_for(run(), 4 * WAIT_S))


@pytest.mark.parametrize("kept", STORIES, ids=lambda kept: kept.__name__)
def test_an_adapter_keeps_its_promises(kept: Story, network: ForeignNetwork) -> None:
    told = asyncio.run(check_adapter(lambda: network.adapter("hub"), [kept]))
    assert told == [kept.__name__]


@pytest.mark.parametrize("network", ["mosquitto"], indirect=True)
def test_a_promise_that_is_not_kept_is_found(
    network: ForeignNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget(self: Adapter, name: str) -> None:
        """As a broker would that keeps nothing."""
        await self.unsubscribe(name, self.topic_of(["sleep", "er"]))

    monkeypatch.setattr(MosquittoAdapter, "suspend", forget)
    with pytest.raises(NotKept, match="resume says that the name was kept: False instead of True"):
        asyncio.run(check_adapter(lambda: network.adapter("hub")))


def test_a_server_that_goes_away_is_told_once_and_open_finds_it_again(
    network: ForeignNetwork, tmp_path: Path
) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        lost: list[str] = []
        topic = one.topic_of(["comes", "back"])
        one.on_lost(lost.append)
        await one.subscribe("survivor", topic, print)
        process = network.process("hub")
        process.kill()
        await until(lambda: bool(lost), "it comes")
        with pytest.raises(AdapterError):
            await one.publish(ForeignMessage(topic, b""))
        with pytest.raises(AdapterError):
            await one.open()
        process.start()
        await asyncio.to_thread(process.wait_listening)
        await open_again(one)
        await other.close()
        await open_again(other)
        got: list[ForeignMessage] = []
        await one.subscribe("survivor", topic, got.append)
        await other.publish(ForeignMessage(topic, b"here"))
        await until(lambda: bodies(got) == [b"here"], "it comes")
        assert len(lost) == 1
        await one.unsubscribe("survivor", topic)

    tell(network, story)


async def open_again(adapter: Adapter) -> None:
    """A server that listens may still refuse for a moment."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        try:
            await adapter.open()
            return
        except AdapterError:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("network", ["nats"], indirect=True)
def test_jetstream_keeps_what_comes_for_a_suspended_name(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        plain = await nats.connect(network.url("hub"))
        await plain.jetstream().add_stream(name="kept", subjects=["kept.>"])
        await plain.close()
        keeper = open_adapter("nats", f"{network.url('hub')}?stream=kept")
        await keeper.open()
        assert keeper.can_suspend
        got: list[ForeignMessage] = []
        await keeper.subscribe("sleeper", "kept.*", got.append)
        await keeper.suspend("sleeper")
        for message in numbered("kept.x", 20):
            await other.publish(message)
        await keeper.close()
        await keeper.open()
        await keeper.subscribe("sleeper", "kept.*", got.append)
        await until(lambda: len(got) >= 20, "it comes")
        assert bodies(got) == bodies(numbered("kept.x", 20))
        places = [message.identity.rpartition(":")[0] for message in got]
        assert places == [f"kept:{number}" for number in range(1, 21)]
        await keeper.unsubscribe("sleeper", "kept.*")
        await keeper.close()

    tell(network, story)


@pytest.mark.parametrize("network", ["activemq"], indirect=True)
def test_activemq_selects_by_content(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        got: list[ForeignMessage] = []
        filter = "prices.>?colour = 'red'"
        await one.subscribe("chooser", filter, got.append)
        for colour in ("red", "blue", "red"):
            await other.publish(ForeignMessage("prices.x", colour.encode(), {"colour": colour}))
        await until(lambda: len(got) >= 2, "it comes")
        assert bodies(got) == [b"red", b"red"]
        await one.unsubscribe("chooser", filter)
        with pytest.raises(AdapterError, match="SUBSCRIBE: colour = = 1"):
            await one.subscribe("chooser", "prices.>?colour = = 1", got.append)
        await one.subscribe("chooser", filter, got.append)
        await other.publish(ForeignMessage("prices.x", b"red too", {"colour": "red"}))
        await until(lambda: len(got) >= 3, "it comes")
        await one.unsubscribe("chooser", filter)

    tell(network, story)


@pytest.mark.parametrize("kind", ["mosquitto", "nats", pytest.param("activemq", marks=pytest.mark.slow)])
def test_three_servers_are_one_network(kind: str, tmp_path: Path) -> None:
    reason = missing(kind)
    if reason is not None:
        pytest.skip(reason)
    with foreign_network(kind, tmp_path / "three") as network:

        async def run() -> list[bytes]:
            here, there = network.adapter("a"), network.adapter("b")
            await here.open()
            await there.open()
            got: list[ForeignMessage] = []
            topic = here.topic_of(["over", "two", "links"])
            await here.subscribe("far", topic, got.append)
            # How long a subscription takes to get around is each broker's own affair.
            while not got:
                await there.publish(ForeignMessage(topic, b"first"))
                await asyncio.sleep(0.02)
            for message in numbered(topic, 20):
                await there.publish(message)
            await until(lambda: bool(got) and got[-1].body == b"19", "it comes")
            await here.unsubscribe("far", topic)
            await here.close()
            await there.close()
            return [body for body in bodies(got) if body != b"first"]

        assert asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S)) == bodies(numbered("", 20))


@pytest.mark.parametrize("network", ["nats"], indirect=True)
def test_what_nats_confirms_was_written_before(network: ForeignNetwork) -> None:
    async def run() -> None:
        adapter = network.adapter("hub")
        await adapter.open()
        written: list[bytes] = []
        transport = adapter._client._transport  # type: ignore[attr-defined]
        write = transport.write

        def keep(data: bytes) -> None:
            written.append(data)
            write(data)

        transport.write, transport.writelines = keep, lambda lines: keep(b"".join(lines))
        try:
            for number in range(3):
                await adapter.subscribe("orderly", f"orderly.{number}", print)
            await adapter.unsubscribe("orderly", "orderly.0")
        finally:
            await adapter.close()
        said = b"".join(written).split(b"\r\n")
        words = [line.split()[0] for line in said if line]
        assert words[:8] == [b"SUB", b"PING", b"SUB", b"PING", b"SUB", b"PING", b"UNSUB", b"PING"]

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
