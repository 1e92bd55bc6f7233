"""The async client against real servers: what it says and hears, and how it takes a no."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.client.servers import Broker, Mute, Relay, Server, Turncoat, free_port, live, run, running, until
from tests.net.certificates import Authority

import roamcast
from roamcast.client import (
    Client,
    ClientClosed,
    ConnectError,
    Notification,
    PublishError,
    Reason,
    SubscribeError,
    Will,
)
from roamcast.client.messages import Payload
from roamcast.client.waiting import Room
from roamcast.errors import InputError
from roamcast.filters.filter import Value
from roamcast.mqtt.codec.packets import Version
from roamcast.net.users import changing_users, hash_password

names = (f"topic-{number}" for number in itertools.count())


async def take(client: Client, count: int) -> list[Notification]:
    return [await anext(client) for _ in range(count)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@live
async def test_publish_and_subscribe(server: Server, version: Version, qos: int) -> None:
    topic = next(names)
    async with (
        roamcast.connect(server.address, version=version) as reader,
        roamcast.connect([server.address], version=version) as writer,
    ):
        assert await reader.subscribe(f"{topic}/+", qos=qos) == qos
        for number in range(20):
            await writer.publish(f"{topic}/{number % 3}", str(number), qos=qos)
        assert await writer.publish_each(f"{topic}/each", map(str, range(3000)), qos=qos) == 3000
        found = await take(reader, 3020)
        assert [one.text for one in found] == [*map(str, range(20)), *map(str, range(3000))]
        assert {one.qos for one in found} == {qos}
        assert (found[4].topic, found[4].payload, found[4].retain) == (f"{topic}/1", b"4", False)
        await reader.unsubscribe(f"{topic}/+")
        await writer.publish(f"{topic}/1", b"unheard", qos=qos)
        await reader.subscribe(f"{topic}/end", qos=qos)
        await writer.publish(f"{topic}/end", b"end", qos=qos)
        assert (await anext(reader)).text == "end"


@live
async def test_properties_travel(server: Server) -> None:
    topic = next(names)
    described: dict[str, Value] = {"pm10": 57, "ok": True, "unit": "ug"}
    async with roamcast.connect(server.address) as client:
        await client.subscribe(topic, identifier=9)
        await client.publish(
            topic,
            b'{"deep": 3}',
            properties=described,
            content_type="application/json",
            message_expiry=100,
            response_topic="answers",
            correlation_data=b"\0\1",
        )
        found = await anext(client)
        assert found.user_properties == (("pm10", "57"), ("ok", "true"), ("unit", "ug"))
        assert found.properties["unit"] == "ug"
        assert (found.content_type, found.response_topic) == ("application/json", "answers")
        assert (found.correlation_data, found.subscription_identifiers) == (b"\0\1", (9,))
        assert found.message_expiry is not None
        assert 90 < found.message_expiry <= 100
        assert found.json() == {"deep": 3}
        attributes = {"pm10": 57, "ok": True, "unit": "ug", "deep": 3, "topic": topic}
        assert found.attributes == attributes
        assert found.identity is None


@live
async def test_retained_and_will(server: Server) -> None:
    topic = next(names)
    will = Will(f"{topic}/will", b"gone", 1)
    async with Relay(server.port) as relay, roamcast.connect(server.address) as reader:
        doomed = roamcast.connect(relay.address, will=will, reconnect=False, session_expiry=0)
        async with doomed as other:
            await other.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
            await reader.subscribe(f"{topic}/#", qos=1)
            kept = await anext(reader)
            assert (kept.text, kept.retain) == ("kept", True)
            relay.cut()
            assert (await anext(reader)).text == "gone"
            with pytest.raises(ConnectError, match="the connection was lost"):
                await anext(other)


@live
async def test_content_filters(broker: Broker) -> None:
    topic = next(names)
    async with roamcast.connect(broker.address) as client:
        await client.subscribe(f"{topic}/+/air?pm10>50", qos=2)
        await client.subscribe(f"{topic}/+/noise", qos=1, where="level > 3 AND site = 'north'")
        for level in (40, 60):
            await client.publish(f"{topic}/a/air", str(level), qos=2, properties={"pm10": level})
        for level in (3, 5):
            described: dict[str, Value] = {"level": level, "site": "north"}
            await client.publish(f"{topic}/a/noise", str(level), qos=1, properties=described)
        assert [one.text for one in await take(client, 2)] == ["60", "5"]


@pytest.mark.parametrize("version", [4, 5])
@live
async def test_a_lasting_session_keeps_what_was_not_taken(server: Server, version: Version) -> None:
    topic = next(names)

    def lasting() -> Client:
        return roamcast.connect(server.address, client_id=topic, clean=False, version=version)

    async with roamcast.connect(server.address, version=version) as writer:
        async with lasting() as reader:
            assert not reader.session_present
            await reader.subscribe(topic, qos=2)
            for number in range(4):
                await writer.publish(topic, str(number), qos=1 + number % 2)
            assert [one.text for one in await take(reader, 2)] == ["0", "1"]
            await until(lambda: reader.waiting == 2, "the rest is here")
        await writer.publish(topic, "4", qos=2)
        async with lasting() as reader:
            assert reader.session_present
            assert [one.text for one in await take(reader, 3)] == ["2", "3", "4"]
        async with roamcast.connect(server.address, client_id=topic, version=version) as reader:
            assert not reader.session_present, "a clean one begins anew"
        async with lasting() as reader:
            assert not reader.session_present, "and leaves nothing behind"


@live
async def test_what_was_taken_with_qos_2_is_finished_before_a_client_leaves(server: Server) -> None:
    topic = next(names)
    async with roamcast.connect(server.address, client_id=topic, clean=False) as reader:
        await reader.subscribe(topic, qos=2)
    async with roamcast.connect(server.address) as writer:
        await writer.publish(topic, "one", qos=2)
    async with roamcast.connect(server.address, client_id=topic, clean=False) as reader:
        assert (await anext(reader)).text == "one"
    assert reader._session.incoming.unreleased == 0


@live
async def test_the_next_address_is_tried() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError, match=f"^{nobody}: connection refused: nobody listens there$"):
        await roamcast.connect([f"x=mqtt://{nobody}", nobody]).__aenter__()
    with pytest.raises(ConnectError, match="there is no host of this name"):
        await roamcast.connect("no-such-host.invalid").__aenter__()


@live
async def test_the_first_that_answers_is_taken(broker: Broker) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with roamcast.connect([nobody, f"a={broker.address}"]) as client:
        assert (client.address.broker, str(client.address)) == ("a", broker.address)
        assert client.is_attached


@live
async def test_who_takes_over_ends_the_other(broker: Broker) -> None:
    name = next(names)
    async with roamcast.connect(broker.address, client_id=name) as first:
        waiting = asyncio.create_task(anext(first))
        async with roamcast.connect(broker.address, client_id=name) as second:
            with pytest.raises(ConnectError, match="session taken over"):
                await waiting
            with pytest.raises(ConnectError, match="session taken over"):
                await first.publish("x", b"")
            await second.publish("x", b"", qos=1)


ACCEPTED = b"\x20\x03\x00\x00\x00"


@live
async def test_no_answer(broker: Broker) -> None:
    async with Mute(b"") as mute:
        with pytest.raises(ConnectError, match=f"^{mute.address}: no answer within 0.2 s$"):
            await roamcast.connect(mute.address, connect_timeout=0.2).__aenter__()
    async with Mute(ACCEPTED) as mute:
        both = [mute.address, broker.address]
        async with roamcast.connect(both, keep_alive=1) as client:
            assert str(client.address) == mute.address
            await client.publish("x", b"", qos=1)
            assert str(client.address) == broker.address, "the one that is silent was left"


TAKEN_OVER = b"\xe0\x01\x8e"


@live
async def test_a_session_taken_by_our_own_late_attach_is_taken_back() -> None:
    """The first attach is given up; the broker grants it later, and ends the second one for it."""
    async with (
        Turncoat((b"", b""), (ACCEPTED, TAKEN_OVER), (ACCEPTED, b"")) as broker,
        roamcast.connect([broker.address] * 2, connect_timeout=0.2) as client,
    ):
        await client.publish("x", b"")
        await until(lambda: broker.connections == 3 and client.is_attached, "it is back")
    async with (
        Turncoat((ACCEPTED, TAKEN_OVER), (ACCEPTED, b"")) as broker,
        roamcast.connect(broker.address) as client,
    ):
        await client.publish("x", b"")
        with pytest.raises(ConnectError, match="session taken over"):
            await anext(client)
        assert broker.connections == 1


@live
async def test_a_client_gives_up() -> None:
    async with (
        Mute(ACCEPTED) as mute,
        roamcast.connect(mute.address, keep_alive=1, give_up_after=0.1) as client,
    ):
        mute.close()
        mute.cut()
        with pytest.raises(ConnectError, match="connection refused"):
            await client.publish("x", b"", qos=1)


@pytest.mark.parametrize(
    ("answer", "text", "is_final"),
    [
        (b"\x20\x03\x00\x87\x00", "refused: not authorised", True),
        (b"\x20\x03\x00\x89\x00", "refused: server busy", False),
        (b"\xd0\x00", "protocol error", False),
        (b"\x00\x00", "malformed packet", False),
    ],
)
@live
async def test_a_refused_connection(answer: bytes, text: str, is_final: bool) -> None:
    async with Mute(answer) as mute:
        with pytest.raises(ConnectError, match=text) as caught:
            await roamcast.connect([mute.address, mute.address]).__aenter__()
        assert caught.value.is_final == is_final
        assert mute.connections == (1 if is_final else 2)


@live
async def test_a_slow_reader_is_not_flooded(server: Server) -> None:
    """Reading stops when the queue is full, whatever the QoS; and an answer behind it still comes."""
    topic = next(names)
    slow = roamcast.connect(server.address, queue_max=50, receive_maximum=20)
    async with slow as reader, roamcast.connect(server.address) as writer:
        await reader.subscribe(f"{topic}/sure", qos=1)
        await writer.publish_each(f"{topic}/sure", map(str, range(300)), qos=1)
        await until(lambda: reader.waiting == 20, "as many as may be unacknowledged")
        await reader.publish("elsewhere", b"", qos=1)
        assert [one.text for one in await take(reader, 300)] == [*map(str, range(300))]
        await reader.subscribe(f"{topic}/fleeting")
        await writer.publish_each(f"{topic}/fleeting", (b"x" * 10 for _ in range(400)))
        await until(lambda: reader.waiting >= 50, "the queue is full")
        await reader.publish("elsewhere", b"", qos=1)
        assert reader.waiting <= 400
        await take(reader, 50)


@live
async def test_what_is_dropped_is_counted(broker: Broker) -> None:
    topic = next(names)

    async def endless(writer: Client, topic: str, reader: Client):  # type: ignore[no-untyped-def]
        yield b"first"
        while not reader.dropped:
            await writer.publish_each(topic, (b"x" for _ in range(200)))
            yield b"more"

    small = roamcast.connect(broker.address, queue_max=10)
    async with small as reader, roamcast.connect(broker.address) as writer:
        await reader.subscribe(topic)
        # Something is always waited for, so reading never stops.
        await reader.publish_each("elsewhere", endless(writer, topic, reader), qos=1)
        assert reader.dropped > 0


@pytest.mark.parametrize("qos", [0, 1, 2])
@live
async def test_bursts_of_any_form_arrive_in_order(server: Server, qos: int) -> None:
    topic = next(names)

    async def in_lists() -> AsyncIterator[list[bytes] | str]:
        yield [b"%d" % number for number in range(1200)]
        yield "1200"
        yield []
        yield [b"1201"]

    wide = roamcast.connect(server.address, queue_max=10_000)
    async with wide as reader, roamcast.connect(server.address) as writer:
        await reader.subscribe(topic, qos=qos)
        assert await writer.publish_each(topic, in_lists(), qos=qos) == 1202
        large: list[Payload] = [b"x" * 300_000, bytearray(b"y"), "z"]
        assert await writer.publish_each(topic, large, qos=qos) == 3
        found = [await anext(reader) for _ in range(1205)]
    assert [one.text for one in found[:1202]] == [str(number) for number in range(1202)]
    assert [len(one.payload) for one in found[1202:]] == [300_000, 1, 1]


@live
async def test_room_is_given_in_turn_and_back_by_whoever_is_cancelled() -> None:
    room, served = Room(10), list[int]()

    async def take(count: int) -> None:
        await room.take(count)
        served.append(count)

    await room.take(8)
    tasks = [asyncio.create_task(take(count)) for count in (5, 1, 9)]
    await asyncio.sleep(0)
    assert served == []
    tasks[0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert served == [1]
    room.give(8)
    tasks[2].cancel()
    room.give(1)
    await asyncio.wait(tasks)
    await asyncio.wait_for(room.take(10), 1)


@live
async def test_cancelling_and_closing(broker: Broker) -> None:
    topic = next(names)

    async def collect(client: Client) -> list[Notification]:
        return [one async for one in client]

    async with roamcast.connect(broker.address) as client:
        await client.subscribe(topic, qos=1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(client)
        publish = asyncio.create_task(client.publish(topic, b"cancelled", qos=1))
        await asyncio.sleep(0)
        publish.cancel()
        assert (await anext(client)).text == "cancelled"
        rest = asyncio.create_task(collect(client))
        await asyncio.sleep(0)
        await client.close()
        assert await rest == []
    with pytest.raises(ClientClosed):
        await client.publish(topic, b"")
    with pytest.raises(ClientClosed):
        await client.__aenter__()
    with pytest.raises(ClientClosed, match="async with"):
        await roamcast.connect(broker.address).publish(topic, b"")


CONFIG = """
id = "site"
data = "data"
[[listener]]
port = {port}
kind = "tls"
certificate = "localhost.pem"
key = "localhost.key"
[access]
users = "users"
[[access.rule]]
verdict = "allow"
user = "alice"
topic = "own/#"
"""


class Guarded(Broker):
    """A broker with TLS, a user, and rules."""

    def command(self) -> list[str | Path]:
        authority = Authority(self.folder, "ca")
        authority.sign("localhost", dns=("localhost",))
        with changing_users(str(self.folder / "users")) as users:
            users["alice"] = hash_password(b"right")
        (self.folder / "site.toml").write_text(CONFIG.format(port=self.port))
        return [*super().command()[:2], "--config", "site.toml"]


def test_tls_users_and_rules(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "site")
    address, cafile = f"mqtts://localhost:{guarded.port}", str(guarded.folder / "ca.pem")

    async def work() -> None:
        with pytest.raises(ConnectError, match="its certificate is not trusted") as caught:
            await roamcast.connect(address).__aenter__()
        assert caught.value.is_final
        for password in ("wrong", None):
            refused = roamcast.connect(address, cafile=cafile, username="alice", password=password)
            with pytest.raises(ConnectError, match=r"refused: (bad user name or password|not authorised)"):
                await refused.__aenter__()
        context = ssl.create_default_context(cafile=cafile)
        plain = f"localhost:{guarded.port}"
        async with roamcast.connect(plain, tls=context, username="alice", password="right") as client:
            await client.subscribe("own/#", qos=1)
            await client.publish("own/x", b"mine", qos=1)
            assert (await anext(client)).text == "mine"
            with pytest.raises(PublishError, match=r"^other: refused: not authorised$") as refusal:
                await client.publish("other", b"", qos=2)
            assert refusal.value.reason is Reason.NOT_AUTHORIZED
            with pytest.raises(PublishError, match=r"^other: refused"):
                await client.publish_each("other", (b"" for _ in range(10)), qos=1)
            with pytest.raises(SubscribeError, match=r"^other: refused: not authorised \(other may not be "):
                await client.subscribe("other")

    with running(guarded):
        run(work())


@live
async def test_mistakes_are_told_before_anything_is_sent(broker: Broker) -> None:
    async with (
        roamcast.connect(broker.address) as client,
        roamcast.connect(broker.address, version=4) as old,
    ):
        for topic in ("", "a/#", "nul\0", "long" * 20_000):
            with pytest.raises(InputError):
                await client.publish(topic, b"")
        with pytest.raises(InputError, match="a payload is bytes or text, not int"):
            await client.publish("a", 57)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="a payload is bytes or text, not dict"):
            await client.publish_each("a", [b"1", {}])  # type: ignore[list-item]
        with pytest.raises(InputError, match="QoS 3: valid are 0, 1 and 2"):
            await client.publish("a", b"", qos=3)
        with pytest.raises(InputError, match=r"wildcard|'#'"):
            await client.subscribe("a/#/b")
        with pytest.raises(InputError):
            await client.subscribe("a", where="pm10 >")
        with pytest.raises(InputError, match=r"3.1.1 has no properties"):
            await old.publish("a", b"", properties={"a": 1})
        with pytest.raises(InputError, match="use version 5"):
            await old.subscribe("a", where="a = 1")
        with pytest.raises(InputError, match=r"a proclaimed move to '127.0.0.1:9' needs"):
            await client.move_to("127.0.0.1:9", proclaimed=True)
        await client.publish("a", b"", qos=2)


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        ([], "no address"),
        ("http://host", "address 'http://host': valid is"),
        ("host:99999", "valid is"),
        ("user@host", "valid is"),
        ("::1", "valid is"),
    ],
)
def test_bad_addresses(addresses: str | list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        roamcast.connect(addresses)


def test_other_bad_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="MQTT version 3: valid are 4"):
        roamcast.connect("host", version=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cafile absent: cannot be used"):
        roamcast.connect("host", cafile="absent")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(InputError, match=r"cafile .* cannot be used"):
        roamcast.connect("host", cafile=str(empty))
    with pytest.raises(InputError, match=r"certfile .* cannot be used"):
        roamcast.connect("host", certfile=str(empty))
