"""Who may come in, over real sockets: users with passwords, strangers, frames that are too long."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from random import Random

import aiomqtt
import pytest
from tests.net.certificates import Authority
from tests.proxy.foreign import Network

from roamcast.config.addresses import split_endpoint
from roamcast.net.users import changing_users, hash_password
from roamcast.proxy import messages
from roamcast.proxy.adapter import ForeignMessage
from roamcast.proxy.client import Options, RoamingClient
from roamcast.proxy.config import Access, Config, Listener, Mqtt, Neighbour, Peers
from roamcast.proxy.driver import ProxyServer
from roamcast.proxy.endpoint import MqttEndpoint
from roamcast.proxy.messages import MAGIC, PREFACE, MoveRefused
from roamcast.proxy.wire import ProxyError, connect_client


@cache
def hashed_password() -> str:
    """Hashing takes long by intention: once is enough."""
    return hash_password(b"open sesame")


def with_server(
    folder: Path, work: Callable[[ProxyServer, MqttEndpoint], Awaitable[None]], connections_max: int = 100
) -> None:
    users = str(folder / "users")
    with changing_users(users) as known:
        known |= dict.fromkeys(("alice", "bob"), hashed_password())

    async def run() -> None:
        data, access = str(folder / "data"), Access(users=users)
        listener = Listener(port=0, connections_max=connections_max)
        config = Config(data=data, listener=listener, access=access, mqtt=Mqtt(port=0))
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
        assert isinstance(refused, MoveRefused)
        assert refused.code == "identity"
        assert refused.text == "client 'car' belongs to another user at this site"
        bob.write(messages.MoveOut(2, "car", ticket, ("road/#",)))
        refused = await bob.read()
        assert isinstance(refused, MoveRefused)
        assert refused.text == "client id 'car' belongs to another user at this site"
        bob.write(messages.Download(3, "car", ticket, user="alice"))
        refused = await bob.read()
        assert isinstance(refused, MoveRefused)
        assert refused.code == "identity"
        assert refused.text == "client 'car' belongs to another user at this site"
        bob.write(messages.Locate(4, "car", "alice"))
        refused = await bob.read()
        assert isinstance(refused, MoveRefused)
        assert refused.text == "a client may not send Locate"
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


NOT_OURS = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another version": MAGIC + b"\0\x63" + b"\0\0\0\x01x",
    "too long": PREFACE + (1 << 20).to_bytes(4, "big") + b"x" * 5000,
    "no message": PREFACE + (3).to_bytes(4, "big") + b"\xff\xff\xff",
    "no Hello": PREFACE + messages.frame(messages.Echo(1)),
}


def test_whoever_speaks_otherwise_is_turned_away(tmp_path: Path) -> None:
    async def work(server: ProxyServer, _: MqttEndpoint) -> None:
        host, _colon, port = server.address.rpartition(":")
        for said in NOT_OURS.values():
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


def test_with_certificates_everything_is_encrypted(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    certificate, key = authority.sign("site", dns=("localhost",))

    async def work() -> None:
        listener = Listener(port=0, certificate=certificate, key=key)
        network = Network(Random(1), [("a", "b")], 0.0)
        servers: list[ProxyServer] = []
        addresses: dict[str, str] = {}
        for site in ("a", "b"):
            config = Config(
                site=site, data=str(tmp_path / site), listener=listener,
                proxies=tuple(Neighbour(other, address) for other, address in addresses.items()),
                peers=Peers(secret="a secret of some length", ca=authority.path),
            )  # fmt: skip
            servers.append(ProxyServer(config, network.adapter(site)))
            await servers[-1].start()
            # Certificates name hosts.
            addresses[site] = servers[-1].address.replace("127.0.0.1", "localhost")
        with pytest.raises(ProxyError):
            await connect_client(addresses["a"], "car", "", "")
        trusted = ssl.create_default_context(cafile=authority.path)
        car = RoamingClient(
            "car", addresses, Options(), tls=trusted, adapter=lambda welcome: network.adapter(welcome.site)
        )
        await car.subscribe("road/#")
        await car.move_in("a")
        await car.move_out()
        publisher = network.adapter("a")
        await publisher.open()
        await publisher.publish(ForeignMessage("road/1", b"", {}, "m1"))
        result = await car.move_in("b")
        assert (result.downloaded, result.missing, car.sources) == (1, (), [])
        await car.close()
        for server in servers:
            await server.stop()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_silent_connections_are_connections_and_give_way(tmp_path: Path) -> None:
    async def work(server: ProxyServer, endpoint: MqttEndpoint) -> None:
        for address in (server.address, endpoint.address):
            host, port = split_endpoint(address)
            silent = [await asyncio.open_connection(host, port) for _ in range(200)]
            ended = asyncio.gather(*(reader.read() for reader, _ in silent[:190]))
            assert await ended == [b""] * 190, "the oldest give way"
            if address == server.address:
                pipe, _ = await connect_client(address, "car", "alice", "open sesame")
                await pipe.end()
            else:
                login = {"username": "alice", "password": "open sesame"}
                async with aiomqtt.Client(host, port, identifier="car", **login):  # type: ignore[arg-type]
                    pass
            for _, writer in silent:
                writer.close()

    with_server(tmp_path, work, connections_max=10)
