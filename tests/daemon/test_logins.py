"""Ways to prove who one is, at a real broker: tokens, a service, SCRAM, certificates, a load balancer."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import paho.mqtt.client as paho
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paho.mqtt.enums import CallbackAPIVersion
from tests.daemon.broker_process import BrokerProcess, wait_until
from tests.daemon.raw_client import Raw, payloads
from tests.net.certificates import Authority

from roamcast.client import ConnectError, connect
from roamcast.mqtt import scram
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.net.users import changing_users, hash_password, with_scram

HEAD = 'id = "site"\ndata = "data"\n[journal]\nsync = "process"\n'
Start = Callable[[str], BrokerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with a configuration in the folder of the test."""
    started: list[BrokerProcess] = []

    def start(config: str) -> BrokerProcess:
        started.append(BrokerProcess(tmp_path, HEAD + config))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def reload(broker: BrokerProcess) -> None:
    before = len(broker.lines)
    broker.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: any("have been read again" in line for line in broker.lines[before:]),
        lambda: "".join(broker.lines),
    )


# --- tokens ---


class Issuer:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def pem(self) -> str:
        return self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def jwk(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return {**found, "kid": self.name}

    def token(self, user: str, expires_in_s: float = 60.0, **claims: Any) -> bytes:
        said = {"sub": user, "exp": time.time() + expires_in_s, **claims}
        headers = {"kid": self.name} if self.name else None
        return jwt.encode(said, self._key, "ES256", headers=headers).encode()


JWT_CONFIG = '[[listener]]\nport = 0\n[access.jwt]\nkeys = "keys"\n'


def test_tokens_say_who_a_client_is_and_what_it_may_do(start: Start, tmp_path: Path) -> None:
    issuer, stranger = Issuer(), Issuer()
    (tmp_path / "keys").write_text(issuer.pem)
    broker = start(JWT_CONFIG)
    with Raw(broker, "x") as nobody:
        assert nobody.connack.reason is Reason.NOT_AUTHORIZED
    grants = {"publish": ["cars/%c"], "subscribe": ["cars/#"]}
    with Raw(broker, "car-1", username="alice", password=issuer.token("alice", roamcast=grants)) as car:
        assert car.connack.reason is Reason.SUCCESS
        assert car.subscribe("cars/#", qos=1) == (Reason.GRANTED_QOS_1,)
        assert car.subscribe("other") == (Reason.NOT_AUTHORIZED,)
        assert car.publish("cars/car-1", b"here") is Reason.SUCCESS
        assert car.publish("cars/car-2", b"here") is Reason.NOT_AUTHORIZED
        assert payloads(car.take(1)) == [b"here"]
    refused = (
        {"password": stranger.token("alice")},
        {"password": issuer.token("alice", -1.0)},
        {"password": issuer.token("alice"), "username": "bob"},
        {"password": issuer.token("a/b")},
        {"password": issuer.token("alice", roamcast={"publish": ["a#b"]})},
        {"password": jwt.encode({"sub": "alice", "exp": time.time() + 60}, "k" * 32, "HS256").encode()},
        {"password": jwt.encode({"sub": "alice", "exp": time.time() + 60}, "", "none").encode()},
        {"username": "alice", "password": b"not a token"},
    )
    for said in refused:
        with Raw(broker, "x", **said) as client:
            assert client.connack.reason is Reason.BAD_USER_NAME_OR_PASSWORD, said
    journal = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert b"alice" in journal
    assert b"eyJ" not in journal, "no token is written down"


def test_a_connection_ends_when_its_token_expires(start: Start, tmp_path: Path) -> None:
    issuer = Issuer()
    (tmp_path / "keys").write_text(issuer.pem)
    broker = start(JWT_CONFIG)
    with Raw(broker, "car", password=issuer.token("alice", 1.5), expiry=3600) as car:
        assert car.connack.reason is Reason.SUCCESS
        assert car.end() is Reason.NOT_AUTHORIZED
    with Raw(broker, "car", password=issuer.token("alice"), expiry=3600, clean=False) as car:
        assert car.connack.session_present


def test_keys_rotate_on_reload(start: Start, tmp_path: Path) -> None:
    old, new = Issuer("old"), Issuer("new")
    keys = tmp_path / "keys"
    keys.write_text(json.dumps({"keys": [old.jwk]}))
    broker = start(JWT_CONFIG)
    with Raw(broker, "a", password=old.token("alice")) as first:
        assert first.connack.reason is Reason.SUCCESS
        keys.write_text(json.dumps({"keys": [old.jwk, new.jwk]}))
        reload(broker)
        first.ping()
        with Raw(broker, "b", password=new.token("bob")) as second:
            assert second.connack.reason is Reason.SUCCESS
            keys.write_text(json.dumps({"keys": [new.jwk]}))
            reload(broker)
            assert first.end() is Reason.NOT_AUTHORIZED, "its key was removed"
            second.ping()
    with Raw(broker, "a", password=old.token("alice")) as late:
        assert late.connack.reason is Reason.BAD_USER_NAME_OR_PASSWORD


# --- a service ---


class Service:
    """Answers like the operator's own service."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.release = threading.Event()
        self.release.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(question)
                service.release.wait(30)
                answer = service.answers.get(question["user"], {"allow": False})
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(500 if answer == b"broken" else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *values: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/login"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.stop()


def hook_config(service: Service, timeout_s: float = 10.0) -> str:
    return f'[[listener]]\nport = 0\n[access.http]\nurl = "{service.url}"\ntimeout_s = {timeout_s}\n'


def test_a_service_is_asked_once_and_its_answer_remembered(start: Start, service: Service) -> None:
    service.answers["alice"] = {"allow": True, "publish": ["up"], "subscribe": []}
    broker = start(hook_config(service))
    for _ in range(3):
        with Raw(broker, "phone", username="alice", password=b"secret") as alice:
            assert alice.connack.reason is Reason.SUCCESS
            assert alice.publish("up", b"x") is not Reason.NOT_AUTHORIZED
            assert alice.publish("down", b"x") is Reason.NOT_AUTHORIZED
            assert alice.subscribe("up") == (Reason.NOT_AUTHORIZED,)
    assert service.asked == [
        {"user": "alice", "password": "secret", "client": "phone", "address": "127.0.0.1", "broker": "site"}
    ]
    with Raw(broker, "x", username="eve", password=b"secret") as eve:
        assert eve.connack.reason is Reason.BAD_USER_NAME_OR_PASSWORD


def test_what_a_service_says_can_have_an_end(start: Start, service: Service) -> None:
    service.answers["alice"] = {"allow": True, "expires_s": 1.0}
    broker = start(hook_config(service))
    with Raw(broker, "phone", username="alice", password=b"x") as alice:
        assert alice.connack.reason is Reason.SUCCESS
        assert alice.end() is Reason.NOT_AUTHORIZED


def test_a_service_that_fails_lets_nobody_in(start: Start, service: Service) -> None:
    answers = (b"broken", b"no json", {"allow": "yes"}, {"allow": True, "publish": ["a#"]}, b"x" * 100_000)
    service.answers = {f"user-{number}": answer for number, answer in enumerate(answers)}
    broker = start(hook_config(service))
    for user in service.answers:
        with Raw(broker, "phone", username=user, password=b"x") as client:
            assert client.connack.reason is Reason.SERVER_UNAVAILABLE
    broker.wait_for("the service at access.http.url could not be asked")


def test_a_slow_service_delays_nobody_else(start: Start, service: Service, tmp_path: Path) -> None:
    with changing_users(str(tmp_path / "users")) as users:
        users["bob"] = hash_password(b"builder")
    config = hook_config(service, 1.0).replace("[access.http]", '[access]\nusers = "users"\n[access.http]')
    broker = start(config)
    service.release.clear()
    with Raw(broker) as waiting:
        waiting.send(packets.Connect(5, "phone", username="alice", password=b"x"))
        with Raw(broker, "desk", username="bob", password=b"builder") as bob:
            assert bob.connack.reason is Reason.SUCCESS
            bob.ping()
        assert waiting.expect(packets.Connack).reason is Reason.SERVER_UNAVAILABLE


# --- SCRAM ---


SCRAM_CONFIG = '[[listener]]\nport = 0\n[access]\nusers = "users"\n'


class ScramClient(Raw):
    """Logs in by SCRAM-SHA-256; `connack` is what came of it."""

    def __init__(self, broker: BrokerProcess, user: str, password: bytes, **more: Any) -> None:
        super().__init__(broker)
        self.exchange = scram.ClientExchange(user, password, b"nonce of a client")
        method, first = scram.METHOD, self.exchange.first()
        self.send(
            packets.Connect(5, "phone", authentication_method=method, authentication_data=first, **more)
        )
        challenge = self.expect(packets.Auth)
        assert (challenge.reason, challenge.authentication_method) == (
            Reason.CONTINUE_AUTHENTICATION,
            scram.METHOD,
        )
        self.answer(self.exchange.answer(challenge.authentication_data or b""))
        self.connack = self.expect(packets.Connack)

    def answer(self, data: bytes) -> None:
        self.send(packets.Auth(Reason.CONTINUE_AUTHENTICATION, scram.METHOD, data))

    def prove_again(self, user: str, password: bytes) -> None:
        self.exchange = scram.ClientExchange(user, password, b"another nonce")
        self.send(packets.Auth(Reason.RE_AUTHENTICATE, scram.METHOD, self.exchange.first()))
        challenge = self.expect(packets.Auth)
        self.answer(self.exchange.answer(challenge.authentication_data or b""))


@pytest.fixture
def scram_broker(start: Start, tmp_path: Path) -> BrokerProcess:
    with changing_users(str(tmp_path / "users")) as users:
        users["alice"] = with_scram(hash_password(b"open sesame"), b"open sesame")
        users["bob"] = hash_password(b"builder")
    return start(SCRAM_CONFIG)


def test_both_sides_prove_by_scram_that_they_know_the_password(scram_broker: BrokerProcess) -> None:
    with ScramClient(scram_broker, "alice", b"open sesame", session_expiry=60) as alice:
        assert alice.connack.reason is Reason.SUCCESS
        assert alice.connack.authentication_method == scram.METHOD
        assert alice.exchange.is_server(alice.connack.authentication_data or b"")
        alice.prove_again("alice", b"open sesame")
        proved = alice.expect(packets.Auth)
        assert proved.reason is Reason.SUCCESS
        assert alice.exchange.is_server(proved.authentication_data or b"")
        alice.ping()
        folder = scram_broker.folder / "data"
        journal = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert b"alice" in journal
        assert b"c=biws" not in journal, "what proves a password is not written down"
        alice.prove_again("alice", b"something else")
        assert alice.end() is Reason.NOT_AUTHORIZED
    with Raw(scram_broker, "desk", username="alice", password=b"open sesame") as plain:
        assert plain.connack.reason is Reason.SUCCESS, "her password goes on to work"


def test_the_client_of_roamcast_logs_in_by_scram(scram_broker: BrokerProcess) -> None:
    async def story(password: str) -> list[bytes]:
        address = f"127.0.0.1:{scram_broker.port}"
        async with connect(address, username="alice", password=password, scram=True) as alice:
            await alice.subscribe("a", qos=1)
            await alice.publish("a", b"x", qos=1)
            async for message in alice:
                return [message.payload]
        return []

    assert asyncio.run(story("open sesame")) == [b"x"]
    with pytest.raises(ConnectError, match="bad user name or password"):
        asyncio.run(story("wrong"))


def test_who_proves_nothing_by_scram_is_refused(scram_broker: BrokerProcess) -> None:
    for user, password in (("alice", b"wrong"), ("eve", b"x"), ("bob", b"builder")):
        with ScramClient(scram_broker, user, password) as client:
            assert client.connack.reason is Reason.BAD_USER_NAME_OR_PASSWORD


def test_other_methods_and_broken_exchanges_are_refused(scram_broker: BrokerProcess) -> None:
    with Raw(scram_broker, "x", authentication_method="GS2-KRB5") as unknown:
        assert unknown.connack.reason is Reason.BAD_AUTHENTICATION_METHOD
    broken_messages = (
        b"", b"p=tls-unique,,n=alice,r=x", b"n,,r=x", b"n,a=bob,n=alice,r=x", b"\xff" * 10, b"x" * 5000
    )  # fmt: skip
    for first in broken_messages:
        with Raw(scram_broker, "x", authentication_method=scram.METHOD, authentication_data=first) as broken:
            assert broken.connack.reason is Reason.NOT_AUTHORIZED
    with Raw(scram_broker) as impatient:
        first = scram.ClientExchange("alice", b"x", b"nonce").first()
        connect = packets.Connect(5, "x", authentication_method=scram.METHOD, authentication_data=first)
        impatient.send(connect)
        impatient.expect(packets.Auth)
        impatient.send(packets.Publish("a", b"x"))
        assert impatient.expect(packets.Connack).reason is Reason.PROTOCOL_ERROR


# --- certificates ---


CERTIFICATES = (
    '[[listener]]\nport = 0\nkind = "tls"\ncertificate = "localhost.pem"\nkey = "localhost.key"\n'
    'client_ca = "ca.pem"\ncrl = "revoked.pem"\nrequire_certificate = true\n'
)


class Car:
    """A paho client with a certificate."""

    def __init__(self, broker: BrokerProcess, authority: Authority, own: tuple[str, str], id: str) -> None:
        self.reasons: list[str] = []
        self.ends: list[str] = []
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2, id, protocol=paho.MQTTv5, reconnect_on_failure=False
        )
        context = ssl.create_default_context(cafile=authority.path)
        context.load_cert_chain(*own)
        self._client.tls_set_context(context)
        self._client.on_connect = lambda *said: self.reasons.append(str(said[3]))
        self._client.on_disconnect = lambda *said: self.ends.append(str(said[3]))
        self._client.connect("localhost", broker.port)
        self._client.loop_start()

    def leave(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def test_a_revoked_certificate_ends_its_connections(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    authority.sign("localhost", dns=("localhost",))
    good, bad = authority.sign("car-1"), authority.sign("car-2")
    authority.revoke()
    broker = start(CERTIFICATES)
    cars = [Car(broker, authority, own, id) for own, id in ((good, "one"), (bad, "two"))]
    wait_until(lambda: all(car.reasons for car in cars), lambda: "nobody is let in")
    authority.revoke(bad[0])
    reload(broker)
    wait_until(lambda: bool(cars[1].ends), lambda: "".join(broker.lines))
    assert cars[1].ends == ["Not authorized"]
    assert not cars[0].ends
    # With TLS 1.3 a client learns only when it reads that its certificate was refused.
    late = Car(broker, authority, bad, "three")
    wait_until(lambda: bool(late.ends), lambda: "it is let in")
    assert not late.reasons
    for car in (*cars, late):
        car.leave()


# --- a load balancer ---


def proxied(client: str, version: int = 2, command: int = 1) -> bytes:
    if version == 1:
        return f"PROXY TCP4 {client} 127.0.0.1 50000 1883\r\n".encode()
    addresses = socket.inet_aton(client) + socket.inet_aton("127.0.0.1") + b"\xc3\x50\x07\x5b"
    start = b"\r\n\r\n\0\r\nQUIT\n" + bytes((version << 4 | command, 0x11))
    return start + len(addresses).to_bytes(2, "big") + addresses


def through(broker: BrokerProcess, header: bytes, client: str) -> Raw:
    raw = Raw(broker)
    raw.socket.sendall(header + write(packets.Connect(5, client), 5))
    return raw


PROXIED = '[[listener]]\nport = 0\nanonymous = true\nproxy_protocol = true\ntrusted_proxies = ["{}"]\n'


def test_the_address_that_a_load_balancer_names_counts(start: Start) -> None:
    broker = start(PROXIED.format("127.0.0.0/8"))
    with through(broker, proxied("198.51.100.7"), "car") as car:
        assert car.expect(packets.Connack).reason is Reason.SUCCESS
        broker.wait_for(r"client car connected \(198.51.100.7:50000\)")
    with through(broker, proxied("198.51.100.7", command=0), "check") as check:
        assert check.expect(packets.Connack).reason is Reason.SUCCESS
        broker.wait_for(r"client check connected \(127.0.0.1:")
    for header, said in (
        (proxied("198.51.100.7", version=1), "a header of version 1: set the load balancer to version 2"),
        (b"", "no header of the PROXY protocol"),
        (proxied("198.51.100.7", version=3), "version 3"),
    ):
        with through(broker, header, "x") as refused:
            assert refused.end() is None
        broker.wait_for(f"a connection from 127.0.0.1 is refused: .*{said}")


def test_nobody_but_a_trusted_load_balancer_can_name_an_address(start: Start) -> None:
    broker = start(PROXIED.format("192.0.2.1"))
    with through(broker, proxied("198.51.100.7"), "x") as refused:
        assert refused.end() is None
    broker.wait_for("a connection from 127.0.0.1 is refused: not in trusted_proxies")


def test_a_load_balancer_passes_tls_on(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    authority.sign("localhost", dns=("localhost",))
    broker = start(
        PROXIED.format("127.0.0.1") + 'kind = "tls"\ncertificate = "localhost.pem"\nkey = "localhost.key"\n'
    )
    plain = socket.create_connection(("127.0.0.1", broker.port), 30)
    plain.sendall(proxied("203.0.113.9"))
    context = ssl.create_default_context(cafile=authority.path)
    with context.wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall(write(packets.Connect(5, "car"), 5))
        assert secure.recv(100)[0] == 0x20
        broker.wait_for(r"client car connected \(203.0.113.9:50000\)")
