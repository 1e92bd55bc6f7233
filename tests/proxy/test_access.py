"""Who may come in, over real sockets: users with passwords, strangers, frames that are too long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import aiomqtt
import pytest
from tests.proxy.foreign import Network

from roamcast.daemon.users import changing_users, hash_password
from roamcast.proxy import messages
from roamcast.proxy.config import Access, Config, Listener, Mqtt
from roamcast.proxy.driver import ProxyServer
from roamcast.proxy.endpoint import MqttEndpoint
from roamcast.proxy.messages import MAGIC, PREFACE, Refused
from roamcast.proxy.wire import ProxyError, connect_client


def with_server(folder: Path, work: Callable[[ProxyServer, MqttEndpoint], Awaitable[None]]) -> None:
    users = str(folder / "users")
    with changing_users(users) as known:
        known |= {name: hash_password(b"open sesame") for name in ("alice", "bob")}

    async def run() -> None:
        data, access = str(folder / "data"), Access(users=users)
        config = Config(data=data, listener=Listener(port=0), access=access, mqtt=Mqtt(port=0))
        server = ProxyServer(config, Network(Random(1), [("a", "b")], 0.0).adapter("a"))
        endpoint = MqttEndpoint(server)
        await server.start()
        await endpoint.start()
        try:
            async with asyncio.timeout(30):
                await work(server, endpoint)
        finally:
            await endpoint.stop()
            await server.stop()

    asyncio.run(run())


def test_a_user_comes_in_with_the_right_password_only(tmp_path: Path) -> None:
    async def work(server: ProxyServer, _: MqttEndpoint) -> None:
        pipe, welcome = await connect_client(server.address, "car", "alice", "open sesame")
        assert welcome.site == "a"
        for user, password in (("alice", "wrong"), ("", ""), ("nobody", "open sesame")):
            with pytest.raises(ProxyError, match="bad user name or password") as refusal:
                await connect_client(server.address, "car", user, password)
            assert refusal.value.code == "identity"
        await pipe.end()

    with_server(tmp_path, work)


def test_another_user_gets_neither_the_buffer_nor_the_id(tmp_path: Path) -> None:
    async def work(server: ProxyServer, _: MqttEndpoint) -> None:
        alice, _welcome = await connect_client(server.address, "car", "alice", "open sesame")
        bob, _welcome = await connect_client(server.address, "car", "bob", "open sesame")
        ticket = "0123456789abcdef"
        alice.write(messages.MoveOut(1, "car", ticket, ("road/#",)))
        assert isinstance(await alice.read(), messages.MovedOut)
        bob.write(messages.Download(1, "car", ticket))
        refused = await bob.read()
        assert isinstance(refused, Refused)
        assert (refused.code, refused.text) == ("identity", "client 'car' is another user's here")
        bob.write(messages.MoveOut(2, "car", ticket, ("road/#",)))
        refused = await bob.read()
        assert isinstance(refused, Refused)
        assert refused.text == "client id 'car' belongs to another user here"
        bob.write(messages.Fetch(3, "car", ticket, "alice"))
        refused = await bob.read()
        assert isinstance(refused, Refused)
        assert refused.text == "a client may not say Fetch"
        with pytest.raises(ProxyError, match="the connection ended"):
            await bob.read()
        await bob.end()
        alice.write(messages.Download(2, "car", ticket))
        assert await alice.read() == messages.Downloaded(2)
        await alice.end()

    with_server(tmp_path, work)


def test_the_endpoint_asks_for_the_same_passwords(tmp_path: Path) -> None:
    async def work(server: ProxyServer, endpoint: MqttEndpoint) -> None:
        port = int(endpoint.address.rpartition(":")[2])
        async with aiomqtt.Client("127.0.0.1", port, username="alice", password="open sesame"):
            pass
        for name, password in (("alice", "wrong"), (None, None)):
            with pytest.raises(aiomqtt.MqttError):
                async with aiomqtt.Client("127.0.0.1", port, username=name, password=password):
                    pytest.fail("it was let in")

    with_server(tmp_path, work)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        MAGIC + b"\0\x63" + b"\0\0\0\x01x",
        PREFACE + (1 << 20).to_bytes(4, "big") + b"x" * 5000,
        PREFACE + (3).to_bytes(4, "big") + b"\xff\xff\xff",
        PREFACE + messages.frame(messages.Echo(1)),
    ],
    ids=["another protocol", "another version", "too long", "no message", "no Hello"],
)
def test_whoever_speaks_otherwise_is_turned_away(said: bytes, tmp_path: Path) -> None:
    async def work(server: ProxyServer, _: MqttEndpoint) -> None:
        host, _colon, port = server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        while await reader.read(1000):
            pass
        writer.close()
        pipe, _welcome = await connect_client(server.address, "car", "alice", "open sesame")
        pipe.write(messages.Echo(7))
        assert await pipe.read() == messages.Echo(7)
        await pipe.end()

    with_server(tmp_path, work)
