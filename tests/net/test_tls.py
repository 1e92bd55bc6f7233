"""TLS over real sockets: who gets in, under which name, and certificates replaced while it listens."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.net.certificates import Authority
from tests.net.link_node import live

from roamcast.config.sections import Link, Listener
from roamcast.daemon.config import load
from roamcast.errors import InputError
from roamcast.net.tls import (
    PeerCertificate,
    ServerContext,
    certificate_name,
    is_broker,
    link_contexts,
    listener_context,
)

REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def new_listener(authority: Authority, **settings: Any) -> Listener:
    certificate, key = authority.sign("localhost", dns=("localhost",))
    return Listener(kind="tls", certificate=certificate, key=key, **settings)


def client_context(authority: Authority, own: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.path)
    if own is not None:
        context.load_cert_chain(*own)
    return context


class Seen:
    """What a server saw of its clients."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.certificates: list[PeerCertificate | None] = []
        self.versions: list[str | None] = []


@asynccontextmanager
async def listening(context: ssl.SSLContext) -> AsyncIterator[Seen]:
    """A server that answers a line with the same line."""
    seen = Seen(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("ssl_object")
        seen.certificates.append(connection.getpeercert())
        seen.versions.append(connection.version())
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()


async def say_hello(seen: Seen, context: ssl.SSLContext, name: str = "localhost") -> PeerCertificate:
    """Connect, say a line and hear it again; gives the server's certificate."""
    reader, writer = await asyncio.open_connection("127.0.0.1", seen.port, ssl=context, server_hostname=name)
    try:
        writer.write(b"hello\n")
        if await reader.readexactly(6) != b"hello\n":
            raise ConnectionError("the server said something else")
        certificate: PeerCertificate = writer.get_extra_info("ssl_object").getpeercert()
        return certificate
    finally:
        writer.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """Both event loops, because the daemon runs on the one and tools on the other."""
    return str(request.param)


# Clients.


@live
async def test_a_client_is_served_over_tls(authority: Authority, loop: str) -> None:
    context = listener_context(new_listener(authority), "listener.0")
    async with listening(context) as seen:
        await say_hello(seen, client_context(authority))
        assert (seen.certificates, seen.versions) == ([None], ["TLSv1.3"])


def limited_to_1_2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@live
async def test_clients_that_know_only_tls_1_2_are_served(authority: Authority, loop: str) -> None:
    context = listener_context(new_listener(authority), "listener.0")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    async with listening(context) as seen:
        await say_hello(seen, limited_to_1_2(client_context(authority)))
        assert seen.versions == ["TLSv1.2"]


@pytest.mark.parametrize("required", [True, False])
@live
async def test_client_certificates(authority: Authority, loop: str, required: bool) -> None:
    stranger = Authority(authority.folder, "stranger")
    listener = new_listener(authority, client_ca=authority.path, require_certificate=required)
    async with listening(listener_context(listener, "listener.0")) as seen:
        own = authority.sign("car-7", dns=("car-7.example.org",), email="car@example.org")
        await say_hello(seen, client_context(authority, own))
        fields = ("common_name", "dns", "email", "uri")
        names = [certificate_name(seen.certificates[-1], field) for field in fields]
        assert names == ["car-7", "car-7.example.org", "car@example.org", ""]
        # Signed by someone else, or expired: refused whether or not one is required.
        for bad in (stranger.sign("thief"), authority.sign("late", days=-1)):
            with pytest.raises(REFUSED):
                await say_hello(seen, client_context(authority, bad))
        if required:
            with pytest.raises(REFUSED):
                await say_hello(seen, client_context(authority))
            assert len(seen.certificates) == 1
        else:
            await say_hello(seen, client_context(authority))
            assert not seen.certificates[-1]
            assert certificate_name(seen.certificates[-1], "common_name") == ""


def test_a_session_is_not_resumed_where_certificates_count(authority: Authority) -> None:
    context = listener_context(new_listener(authority, client_ca=authority.path), "listener.0")
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET


@live
async def test_clients_of_websockets_are_told_http(authority: Authority, loop: str) -> None:
    async def protocol_of(kind: str) -> str | None:
        listener = msgspec.structs.replace(new_listener(authority), kind=kind)
        async with listening(listener_context(listener, "listener.0")) as seen:
            context = client_context(authority)
            context.set_alpn_protocols(["mqtt", "http/1.1"])
            _, writer = await asyncio.open_connection("localhost", seen.port, ssl=context)
            chosen: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            writer.close()
            return chosen

    assert await protocol_of("tls") == "mqtt"
    assert await protocol_of("wss") == "http/1.1"


# Replaced while it listens.


def serial_of(certificate: PeerCertificate) -> str:
    return str(certificate["serialNumber"])


@live
async def test_a_certificate_is_replaced_while_it_listens(authority: Authority, loop: str) -> None:
    listener = new_listener(authority)
    server = ServerContext(lambda: listener_context(listener, "listener.0"))
    async with listening(server.context) as seen:
        reader, writer = await asyncio.open_connection("localhost", seen.port, ssl=client_context(authority))
        before = await say_hello(seen, client_context(authority))
        renewed = new_listener(authority)
        server.reload(lambda: listener_context(renewed, "listener.0"))
        after = await say_hello(seen, client_context(authority))
        assert serial_of(before) != serial_of(after)
        # Also a client that does not say whom it means, and a connection from before.
        nameless = client_context(authority)
        nameless.check_hostname = False
        assert serial_of(await say_hello(seen, nameless, "")) == serial_of(after)
        writer.write(b"hello\n")
        assert await reader.readexactly(6) == b"hello\n"
        writer.close()


@live
async def test_an_authority_is_replaced_while_it_listens(authority: Authority, loop: str) -> None:
    other = Authority(authority.folder, "other")
    old_client, new_client = authority.sign("old"), other.sign("new")
    listener = new_listener(authority, client_ca=authority.path, require_certificate=True)
    server = ServerContext(lambda: listener_context(listener, "listener.0"))
    async with listening(server.context) as seen:
        await say_hello(seen, client_context(authority, old_client))
        with pytest.raises(REFUSED):
            await say_hello(seen, client_context(authority, new_client))
        changed = msgspec.structs.replace(listener, client_ca=other.path)
        server.reload(lambda: listener_context(changed, "listener.0"))
        await say_hello(seen, client_context(authority, new_client))
        with pytest.raises(REFUSED):
            await say_hello(seen, client_context(authority, old_client))
        open_again = msgspec.structs.replace(changed, client_ca="", require_certificate=False)
        server.reload(lambda: listener_context(open_again, "listener.0"))
        await say_hello(seen, client_context(authority))


@live
async def test_files_that_cannot_be_used_leave_the_old_ones(authority: Authority, loop: str) -> None:
    listener = new_listener(authority)
    server = ServerContext(lambda: listener_context(listener, "listener.0"))
    async with listening(server.context) as seen:
        before = await say_hello(seen, client_context(authority))
        Path(listener.certificate).write_text("nothing")
        with pytest.raises(InputError):
            server.reload(lambda: listener_context(listener, "listener.0"))
        assert serial_of(await say_hello(seen, client_context(authority))) == serial_of(before)


# Peers.


def new_link(authority: Authority, id: str) -> Link:
    certificate, key = authority.sign(id)
    return Link(tls=True, certificate=certificate, key=key, ca=authority.path)


@live
async def test_peers_prove_who_they_are_in_both_directions(authority: Authority, loop: str) -> None:
    async with listening(link_contexts(new_link(authority, "a")).server) as seen:
        certificate = await say_hello(seen, link_contexts(new_link(authority, "b")).client)
        assert is_broker(certificate, "a")
        assert not is_broker(certificate, "b")
        assert is_broker(seen.certificates[0], "b")
        assert seen.versions == ["TLSv1.3"]
        # Someone without a certificate, one with that of another network, one who speaks an old version.
        plain = ssl.create_default_context(cafile=authority.path)
        plain.check_hostname = False
        stranger = link_contexts(new_link(Authority(authority.folder, "stranger"), "b")).client
        old = limited_to_1_2(link_contexts(new_link(authority, "b")).client)
        for context in (plain, stranger, old):
            with pytest.raises(REFUSED):
                await say_hello(seen, context)
        assert len(seen.certificates) == 1


def test_a_broker_is_known_by_any_of_its_names() -> None:
    certificate = {
        "subject": ((("organizationName", "x"),), (("commonName", "site-a"),)),
        "subjectAltName": (("DNS", "a"), ("DNS", "a.example.org"), ("email", "b")),
    }
    assert [id for id in ("a", "site-a", "a.example.org", "b", "x", "") if is_broker(certificate, id)] == [
        "a",
        "site-a",
        "a.example.org",
    ]
    assert not is_broker(None, "a")
    assert not is_broker({}, "")


# Error lines.


def broken(path: str, content: str) -> str:
    Path(path).write_text(content)
    return path


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda authority, listener: {"certificate": broken(listener.certificate, "nothing")},
            "listener.3.certificate = localhost.pem: holds no certificate in PEM (NO_CERT",
        ),
        (
            lambda authority, listener: {"key": broken(listener.key, "nothing")},
            "listener.3.key = localhost.key: holds no private key in PEM, or localhost.pem no certificate",
        ),
        (
            lambda authority, listener: {"key": authority.sign("other")[1]},
            "listener.3.key = other.key: does not belong to listener.3.certificate = localhost.pem",
        ),
        (
            lambda authority, listener: {"key": authority.sign_encrypted("locked")},
            "listener.3.key = locked.key: is encrypted, and its password cannot be asked for; "
            "decrypt it with: openssl pkey -in locked.key",
        ),
        (
            lambda authority, listener: {"client_ca": broken(listener.key, "")},
            "listener.3.key = localhost.key: holds no private key",
        ),
        (
            lambda authority, listener: {"client_ca": authority.sign("other")[1]},
            "listener.3.client_ca = other.key: holds no certificate in PEM",
        ),
        (
            lambda authority, listener: {"certificate": "absent"},
            "listener.3.certificate = absent: cannot be read (No such file or directory)",
        ),
    ],
)
def test_files_that_cannot_be_used_are_one_line(
    authority: Authority, change: Callable[[Authority, Listener], dict[str, str]], line: str
) -> None:
    listener = new_listener(authority)
    with pytest.raises(InputError) as refused:
        listener_context(msgspec.structs.replace(listener, **change(authority, listener)), "listener.3")
    assert line in str(refused.value).replace(f"{authority.folder}/", "")
    assert "\n" not in str(refused.value)


def test_a_key_that_everyone_can_read_is_refused(authority: Authority) -> None:
    listener = new_listener(authority)
    Path(listener.key).chmod(0o644)
    with pytest.raises(InputError, match="every user of this machine can read it"):
        listener_context(listener, "listener.0")


def test_certificates_go_through_the_configuration(authority: Authority) -> None:
    listener = new_listener(authority)
    path = authority.folder / "site.toml"
    path.write_text(f"""
        [[listener]]
        address = "0.0.0.0"
        kind = "tls"
        certificate = "{Path(listener.certificate).name}"
        key = "{Path(listener.key).name}"
        client_ca = "{Path(authority.path).name}"
        require_certificate = true
    """)
    config = load(path, {}, {})
    assert config.listeners[0].certificate == listener.certificate
    assert listener_context(config.listeners[0], "listener.0").verify_mode == ssl.CERT_REQUIRED
