"""Adapters against the real servers: every kind keeps the same promises."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import nats
import pytest

from roamcast.bench.foreign_brokers import ForeignNetwork, foreign_network, missing
from roamcast.proxy.adapter import Adapter, AdapterError, ForeignMessage, open_adapter

# RabbitMQ takes longest to start; Roamcast's own broker speaks MQTT to the same adapter as Mosquitto.
SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("roamcast", "rabbitmq")]
KINDS = ["mosquitto", "nats", "activemq", *SLOW_KINDS]
WAIT_S = 10.0

Story = Callable[[Adapter, Adapter], Awaitable[None]]


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


async def until(is_so: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)


def bodies(messages: list[ForeignMessage]) -> list[bytes]:
    return [message.body for message in messages]


def numbered(topic: str, count: int, first: int = 0) -> list[ForeignMessage]:
    return [ForeignMessage(topic, b"%d" % number) for number in range(first, first + count)]


def test_messages_come_whole_in_order_and_with_their_identity(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        got: list[ForeignMessage] = []
        topic = one.topic_of(["whole", "x-1"])
        await one.subscribe("whole", topic, got.append)
        sent = [
            ForeignMessage(topic, bytes(range(256)), {"colour": "blå: \\ x"}, "p-1"),
            *[ForeignMessage(topic, b"%d" % number, {}, f"n-{number}") for number in range(20)],
        ]
        for message in sent:
            await other.publish(message)
        await until(lambda: len(got) >= len(sent))
        assert got == sent
        await one.unsubscribe("whole", topic)

    tell(network, story)


def test_what_was_sent_before_unsubscribing_is_received_before_it_returns(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        got: list[ForeignMessage] = []
        topic = one.topic_of(["before", "end"])
        await one.subscribe("leaver", topic, got.append)
        for message in numbered(topic, 200):
            await one.publish(message)
        await one.unsubscribe("leaver", topic)
        received = len(got)
        await other.publish(ForeignMessage(topic, b"late"))
        # A subscription made after that gets nothing of it, and nothing of before.
        await one.subscribe("leaver", topic, got.append)
        await other.publish(ForeignMessage(topic, b"again"))
        await until(lambda: b"again" in bodies(got))
        assert bodies(got) == [b"%d" % number for number in range(received)] + [b"again"]
        await one.unsubscribe("leaver", topic)

    tell(network, story)


def test_a_suspended_name_gets_everything_when_it_resumes(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        if not one.can_suspend:
            with pytest.raises(AdapterError):
                await one.suspend("sleeper")
            return
        got: list[ForeignMessage] = []
        topic = one.topic_of(["sleep", "er"])
        await one.subscribe("sleeper", topic, got.append)
        await other.publish(ForeignMessage(topic, b"awake"))
        await until(lambda: len(got) == 1)
        await one.suspend("sleeper")
        for message in numbered(topic, 50):
            await other.publish(message)
        assert len(got) == 1
        assert await one.resume("sleeper", (topic,), got.append)
        await until(lambda: len(got) >= 51)
        assert bodies(got) == [b"awake", *bodies(numbered(topic, 50))]
        await one.unsubscribe("sleeper", topic)

    tell(network, story)


def test_another_process_continues_or_ends_what_one_left(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        if not one.can_suspend:
            return
        got: list[ForeignMessage] = []
        topic = one.topic_of(["left", "behind"])
        for name in ("heir", "dead"):
            await one.subscribe(name, topic, got.append)
        await one.close()
        for message in numbered(topic, 10):
            await other.publish(message)
        await other.subscribe("heir", topic, got.append)
        await until(lambda: len(got) >= 10)
        assert bodies(got) == bodies(numbered(topic, 10))
        await other.unsubscribe("heir", topic)
        await other.unsubscribe("dead", topic)
        await other.subscribe("dead", topic, got.append)
        await other.publish(ForeignMessage(topic, b"new"))
        await until(lambda: b"new" in bodies(got))
        # Brokers of MQTT keep what was queued in the session; nothing new was added to it.
        assert len([body for body in bodies(got)[10:] if body == b"new"]) == 1
        await other.unsubscribe("dead", topic)

    tell(network, story)


def test_filters_of_several_names_do_not_disturb_each_other(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        got: dict[str, list[ForeignMessage]] = {"ann": [], "ben": []}
        topics = [one.topic_of(["several", level]) for level in ("x", "y")]
        await one.subscribe("ann", topics[0], got["ann"].append)
        await one.subscribe("ann", topics[1], got["ann"].append)
        await one.subscribe("ben", topics[1], got["ben"].append)
        await one.subscribe("ben", topics[1], got["ben"].append)
        await one.unsubscribe("ann", topics[1])
        for number in range(5):
            for topic in topics:
                await other.publish(ForeignMessage(topic, b"%d" % number))
        await until(lambda: len(got["ann"]) >= 5 and len(got["ben"]) >= 5)
        assert {message.topic for message in got["ann"]} == {topics[0]}
        assert {message.topic for message in got["ben"]} == {topics[1]}
        assert [len(messages) for messages in got.values()] == [5, 5]
        await one.unsubscribe("ann", topics[0])
        await one.unsubscribe("ben", topics[1])
        await one.unsubscribe("nobody", topics[0])

    tell(network, story)


def test_nothing_works_while_not_open(network: ForeignNetwork) -> None:
    async def story(one: Adapter, other: Adapter) -> None:
        await one.close()
        topic = one.topic_of(["not", "open"])
        with pytest.raises(AdapterError):
            await one.publish(ForeignMessage(topic, b""))
        with pytest.raises(AdapterError):
            await one.subscribe("closed", topic, print)

    tell(network, story)


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
        await until(lambda: bool(lost))
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
        await until(lambda: bodies(got) == [b"here"])
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
        await until(lambda: len(got) >= 20)
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
        await until(lambda: len(got) >= 2)
        assert bodies(got) == [b"red", b"red"]
        await one.unsubscribe("chooser", filter)
        with pytest.raises(AdapterError, match="SUBSCRIBE: colour = = 1"):
            await one.subscribe("chooser", "prices.>?colour = = 1", got.append)
        await one.subscribe("chooser", filter, got.append)
        await other.publish(ForeignMessage("prices.x", b"red too", {"colour": "red"}))
        await until(lambda: len(got) >= 3)
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
            await until(lambda: bool(got) and got[-1].body == b"19")
            await here.unsubscribe("far", topic)
            await here.close()
            await there.close()
            return [body for body in bodies(got) if body != b"first"]

        assert asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S)) == bodies(numbered("", 20))
