"""Access as clients meet it: a real broker process, a real MQTT client, TLS, passwords, rules, SIGHUP."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode
from tests.daemon.broker_process import BrokerProcess, wait_until
from tests.net.certificates import Authority

from roamcast.net.users import changing_users, hash_password

PASSWORD = "open sesame, and quickly"

CONFIG = """
id = "site"
data = "data"
[[listener]]
port = 0
kind = "tls"
certificate = "localhost.pem"
key = "localhost.key"
client_ca = "ca.pem"
[access]
users = "users"
[[access.rule]]
verdict = "allow"
user = "alice"
topic = ["own/%u/#", "shared"]
[[access.rule]]
verdict = "allow"
user = "certificate:car-*"
action = "publish"
topic = "cars/%u"
"""


class Broker(BrokerProcess):
    """One with a user, and with certificates for itself and its clients."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder, "ca")
        self.authority.sign("localhost", dns=("localhost",))
        with changing_users(str(folder / "users")) as users:
            users["alice"] = hash_password(PASSWORD.encode())
        super().__init__(folder, CONFIG)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path)
    yield started
    started.stop()


class Client:
    """An MQTT 5 client, connected or refused."""

    def __init__(
        self, broker: Broker, own: tuple[str, str] | None = None, will: str = "", **login: str
    ) -> None:
        self.answers: dict[str, Any] = {}
        # A session belongs to its user, so each has a client id of its own.
        client_id = f"phone of {login.get('username', 'nobody')}"
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
        context = ssl.create_default_context(cafile=broker.authority.path)
        if own is not None:
            context.load_cert_chain(*own)
        self.paho.tls_set_context(context)
        if login:
            self.paho.username_pw_set(**login)
        if will:
            self.paho.will_set(will, b"gone")
        self.paho.on_connect = lambda *said: self._keep("connect", said[3])
        self.paho.on_publish = lambda *said: self._keep("publish", said[3])
        self.paho.on_subscribe = lambda *said: self._keep("subscribe", said[3][0])
        self.paho.connect("localhost", broker.port)
        self.paho.loop_start()
        self.connected = self._answer("connect")

    def _keep(self, what: str, reason: ReasonCode) -> None:
        self.answers[what] = str(reason)
        if what == "connect" and reason.is_failure:
            self.paho.disconnect()

    def _answer(self, what: str) -> str:
        wait_until(lambda: what in self.answers, lambda: f"no answer to {what}")
        return str(self.answers.pop(what))

    def publish(self, topic: str) -> str:
        self.paho.publish(topic, b"x", qos=1)
        return self._answer("publish")

    def subscribe(self, topic: str) -> str:
        self.paho.subscribe(topic, qos=1)
        return self._answer("subscribe")

    def certificate(self) -> dict[str, Any]:
        connection = self.paho.socket()
        assert isinstance(connection, ssl.SSLSocket)
        return connection.getpeercert() or {}

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def try_login(broker: Broker, own: tuple[str, str] | None = None, will: str = "", **login: str) -> str:
    client = Client(broker, own, will, **login)
    client.leave()
    return client.connected


def test_who_is_let_in_and_what_they_may_do(broker: Broker) -> None:
    assert try_login(broker) == "Not authorized"
    assert try_login(broker, username="alice", password="wrong") == "Bad user name or password"
    assert try_login(broker, username="eve", password=PASSWORD) == "Bad user name or password"
    alice = Client(broker, username="alice", password=PASSWORD)
    assert alice.connected == "Success"
    assert alice.publish("own/alice/x") in ("Success", "No matching subscribers")
    assert alice.publish("own/bob/x") == "Not authorized"
    assert alice.subscribe("own/alice/#") == "Granted QoS 1"
    assert alice.subscribe("own/#") == "Not authorized"
    assert alice.subscribe("#") == "Not authorized"
    alice.leave()
    assert try_login(broker, will="own/alice/gone", username="alice", password=PASSWORD) == "Success"
    assert try_login(broker, will="own/bob/gone", username="alice", password=PASSWORD) == "Not authorized"
    car = Client(broker, broker.authority.sign("car-7"))
    assert car.connected == "Success"
    assert car.publish("cars/car-7") in ("Success", "No matching subscribers")
    assert car.publish("cars/car-8") == "Not authorized"
    assert car.subscribe("cars/car-7") == "Not authorized"
    car.leave()


def test_a_password_reaches_neither_the_journal_nor_the_log(broker: Broker) -> None:
    alice = Client(broker, username="alice", password=PASSWORD)
    assert alice.connected == "Success"
    alice.leave()
    journal = b"".join(path.read_bytes() for path in (broker.folder / "data").rglob("*") if path.is_file())
    assert b"alice" in journal, "the connection is journalled"
    assert PASSWORD.encode() not in journal
    assert PASSWORD not in "".join(broker.lines)


def test_users_rules_and_certificates_are_read_again(broker: Broker) -> None:
    alice = Client(broker, username="alice", password=PASSWORD)
    before = alice.certificate()["serialNumber"]
    assert alice.publish("new") == "Not authorized"
    with changing_users(str(broker.folder / "users")) as users:
        users["bob"] = hash_password(b"builder")
    (broker.folder / "site.toml").write_text(CONFIG.replace('"shared"', '"new"'))
    broker.authority.sign("localhost", dns=("localhost",))
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for("have been read again")
    assert alice.publish("new") in ("Success", "No matching subscribers"), "who is there goes on"
    bob = Client(broker, username="bob", password="builder")
    assert bob.connected == "Success"
    assert bob.certificate()["serialNumber"] != before
    assert bob.publish("new") == "Not authorized"
    alice.leave()
    bob.leave()


def test_a_configuration_that_cannot_be_used_changes_nothing(broker: Broker) -> None:
    (broker.folder / "site.toml").write_text(CONFIG.replace("verdict", "verdikt"))
    broker.process.send_signal(signal.SIGHUP)
    line = broker.wait_for("the configuration stays as it was: (.*)")[1]
    assert "[access.rule.0] has no key 'verdikt'; did you mean 'verdict'?" in line
    assert try_login(broker, username="alice", password=PASSWORD) == "Success"
