"""The border at a link, with real processes: strangers, forgers, changed secrets, and who sits in between."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from tests.daemon.bad_peer import BadPeer
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port, roamcast, roamcast_json, wait_until
from tests.net.certificates import Authority

from roamcast.broker.links.reach import Reaches
from roamcast.broker.retained import Retain
from roamcast.broker.shared_messages import GroupJoin
from roamcast.filters.selector import parse_subscription
from roamcast.mobility.multi_hop_handoff import SubMigration
from roamcast.mqtt.server.access import ANONYMOUS
from roamcast.mqtt.server.in_flight import PackedInFlight
from roamcast.mqtt.server.sessions import NamedCapsule, Subscription
from roamcast.protocol.messages import AttachRequest, Relayed, Update
from roamcast.protocol.notification import Burst, Fleeting, Message, encode_attributes
from roamcast.protocol.session import Session

LISTED = "link.unlisted=refuse"
QOS_1, QOS_0 = b"\x01", b"\x00"


def burst(
    topic: str, publisher: str, number: int = 1, incarnation: int = 1, body: bytes = b"forged"
) -> Burst:
    return Burst(publisher, incarnation, number, encode_attributes({"topic": topic}), 0.0, (body,), 1, QOS_1)


def fleeting(topic: str, publisher: str = "x", body: bytes = b"forged") -> Fleeting:
    return Fleeting(publisher, 0, 0, encode_attributes({"topic": topic}), 0.0, (body,), 1, QOS_0)


def malformed_sessions(client: str) -> list[Session]:
    """Sessions of which a part would end the broker that acts on it."""
    group = Subscription("$share/g/x", "no selector (", 1, False, False, None, "g")
    capsules = (
        NamedCapsule(60, [group], PackedInFlight(), []),
        NamedCapsule(60, [], PackedInFlight(next_id=70_000), []),
        NamedCapsule(60, [], PackedInFlight(), [], will_at=float("nan")),
    )
    deferred = Session(client, 9, last_broker="e", deferred=[(1, "Subscribe", "no selector (")])
    return [
        deferred,
        *(Session(client, 9, last_broker="e", capsule=msgspec.msgpack.encode(one)) for one in capsules),
    ]


def refused(broker: BrokerProcess, peer: str) -> dict[str, int]:
    status = roamcast_json("broker", "status", "--data", str(broker.data))
    found: dict[str, int] = next(link["refused"] for link in status["links"] if link["peer"] == peer)
    return found


def wait_refused(broker: BrokerProcess, peer: str, reason: str, count: int = 1) -> None:
    wait_until(
        lambda: refused(broker, peer).get(reason, 0) >= count,
        lambda: f"{refused(broker, peer)} of {peer}: {''.join(broker.lines)}",
    )


# --- 1: who is not listed ---


def test_an_unlisted_broker_with_the_right_secret_gets_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", LISTED, link_port=port, peers={"b": 0})
        stack.callback(a.stop)
        b = BrokerProcess(tmp_path, "b", LISTED, peers={"a": port})
        stack.callback(b.stop)
        a.wait_for_link("b")
        reader = MqttClient("reader", a.port)
        stack.callback(reader.leave)
        reader.paho.publish("secret", b"of a", qos=1, retain=True).wait_for_publish(10)
        bad = BadPeer(tmp_path, "x", "a", port)
        stack.callback(bad.stop)
        wait_until(lambda: bool(bad.why), lambda: "".join(a.lines))
        assert bad.why == "it refuses: x is not in the list of peers of a; list it there as [[peer]]"
        a.wait_for("no link with x at .*: x is not in the list of peers of a")
        assert not bad.has_joined
        assert bad.site.retained_count == 0


# --- 2: what a peer makes up ---


@pytest.fixture
def network(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess, int]]:
    """Broker a, its honest peer c, and a port for a bad peer e, which is listed."""
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", LISTED, link_port=port, peers={"e": 0, "c": 0})
        stack.callback(a.stop)
        c = BrokerProcess(tmp_path, "c", LISTED, peers={"a": port})
        stack.callback(c.stop)
        a.wait_for_link("c")
        yield a, c, port


@pytest.mark.slow
def test_a_peer_cannot_speak_for_clients_and_brokers_of_this_side(
    network: tuple[BrokerProcess, BrokerProcess, int], tmp_path: Path
) -> None:
    a, c, port = network
    with ExitStack() as stack:
        bad = BadPeer(tmp_path, "e", "a", port)
        stack.callback(bad.stop)
        bad.wait_for_link()
        reader, writer = MqttClient("reader", a.port), MqttClient("writer", a.port)
        stack.callback(reader.leave)
        stack.callback(writer.leave)
        reader.subscribe("#")
        reader.subscribe("$SYS/#")
        writer.publish("news", b"honest")
        reader.wait_for_messages(1)
        forged: list[Message] = [
            burst("$SYS/broker/version", "x"),
            fleeting("$SYS/broker/version"),
            burst("news", "writer", number=10**6, incarnation=(1 << 60)),
            burst("news", "$broker/a"),
            burst("news", "$broker/c"),
            Relayed("c", "a", AttachRequest("reader", "c", 7, -1, {}, owner=ANONYMOUS)),
            Relayed("a", "a", AttachRequest("reader", "a", 7, -1, {}, owner=ANONYMOUS)),
            AttachRequest("reader", "c", 7, -1, {}, owner=ANONYMOUS),
            SubMigration(Session("reader", 9), "a", 0, (), 0, Update()),
            Retain("news", 1e9, 0, "c", 1e9, QOS_1, b"forged"),
            Reaches(forgotten=("c",)),
            Reaches(forgotten=("a",)),
            GroupJoin("g", "no selector (", "reader", "e", True, False),
            msgspec.structs.replace(burst("news", "x"), count=1 << 62),
        ]
        bad.send(forged)
        bad.send([burst("news", "somebody at e", body=b"allowed")])
        wait_until(lambda: ("news", b"allowed") in reader.messages, lambda: f"{reader.messages}")
        own = [message for message in reader.messages if not message[0].startswith("$SYS")]
        assert own == [("news", b"honest"), ("news", b"allowed")]
        assert not any(payload == b"forged" for _, payload in reader.messages)
        assert not reader.disconnects, "its session was not taken"
        for reason, count in (
            ("topic", 2), ("publisher", 3), ("source", 4), ("holder", 1), ("forget", 2), ("form", 2)
        ):  # fmt: skip
            wait_refused(a, "e", reason, count)
        a.wait_for_link("c")
        writer.publish("news", b"still")
        reader.wait_for_messages(len(reader.messages) + 1)
        other = MqttClient("other", c.port)
        stack.callback(other.leave)
        other.subscribe("news")
        writer.publish("news", b"to c")
        other.wait_for_messages(1)
        a.wait_for(r"refused \d+ messages from e: messages in the name of clients or brokers of this side")
        assert (
            "messages on topics that it may not send"
            in roamcast("broker", "status", "--data", str(a.data)).stdout
        )
        assert a.metric('roamcast_link_refused_total{peer="e",reason="forget"}') == 2
        assert a.metric("roamcast_fail_stops_total") == 0


@pytest.mark.slow
def test_a_guest_gets_only_its_topics_and_moves_only_its_clients(tmp_path: Path) -> None:
    rules = ("peer.0.clients=guest-*", "peer.0.import=yard/#", "peer.0.export=yard/#")
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", LISTED, *rules, link_port=port, peers={"e": 0})
        stack.callback(a.stop)
        reader, guest = MqttClient("reader", a.port), MqttClient("guest-1", a.port)
        stack.callback(reader.leave)
        reader.subscribe("#")
        guest.subscribe("yard/gate")
        guest.leave()
        bad = BadPeer(tmp_path, "e", "a", port, clients=["guest-*"])
        stack.callback(bad.stop)
        bad.wait_for_link()
        everything = Update(((parse_subscription("#"), ""),))
        bad.send(
            [
                everything,
                AttachRequest("reader", "e", 7, -1, {}, owner=ANONYMOUS),
                burst("plans", "x"),
                # Its own client has the id of one of this side.
                burst("yard/gate", "reader", number=99, incarnation=1 << 60, body=b"named"),
                *(SubMigration(one, "a", 0, (), 0, Update()) for one in malformed_sessions("guest-2")),
                AttachRequest("guest-1", "e", 7, -1, {}, owner=ANONYMOUS),
            ]
        )
        wait_refused(a, "e", "client")
        wait_refused(a, "e", "topic")
        wait_refused(a, "e", "form", len(malformed_sessions("")))
        wait_until(lambda: "guest-1" in bad.site.broker.sessions, lambda: f"{bad.site.border.refused}")
        reader.publish("plans", b"ours")
        reader.publish("yard/gate", b"open")
        reader.wait_for_messages(3)
        assert reader.messages == [("yard/gate", b"named"), ("plans", b"ours"), ("yard/gate", b"open")]
        assert not reader.disconnects
        assert "reader" not in bad.site.broker.sessions
        assert a.metric("roamcast_fail_stops_total") == 0


# --- 3: a secret that is replaced ---


def test_a_changed_secret_and_a_reload_end_the_link(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret of last year")
    secret.chmod(0o600)
    with ExitStack() as stack:
        port = free_port()
        own = (LISTED, f"link.secret_file={secret}")
        a = BrokerProcess(tmp_path, "a", *own, link_port=port, peers={"b": 0}, secret="")
        stack.callback(a.stop)
        b = BrokerProcess(tmp_path, "b", *own, peers={"a": port}, secret="")
        stack.callback(b.stop)
        a.wait_for_link("b")
        secret.write_text("the secret of this year")
        os.kill(a.process.pid, signal.SIGHUP)
        a.wait_for("the link to b is down: the secret that b proved itself with is not valid any more")
        b.wait_for("no link with a at .*: it refuses: the shared secrets differ")
        os.kill(b.process.pid, signal.SIGHUP)
        b.wait_for("have been read again")
        a.wait_for_link("b")


# --- 4: somebody between two brokers ---


class Forger:
    """Passes on what two brokers say to each other, and changes one word once."""

    def __init__(self, target: int, word: bytes, other: bytes) -> None:
        self._target, self._word, self._other = target, word, other
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.changed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                dialer, _ = self._listening.accept()
            except OSError:
                return
            there = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((dialer, there), (there, dialer)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if self._word in data and not self.changed:
                    self.changed += 1
                    data = data.replace(self._word, self._other)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            one.close()

    def close(self) -> None:
        self._listening.close()


def test_a_changed_byte_on_a_plain_link_is_noticed_and_the_message_arrives_as_it_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", LISTED, link_port=port, peers={"b": 0})
        stack.callback(a.stop)
        forger = Forger(port, b"pay 100 to alice", b"pay 999 to mallo")
        stack.callback(forger.close)
        b = BrokerProcess(tmp_path, "b", LISTED, peers={"a": forger.port})
        stack.callback(b.stop)
        a.wait_for_link("b")
        reader, writer = MqttClient("reader", a.port), MqttClient("writer", b.port)
        stack.callback(reader.leave)
        stack.callback(writer.leave)
        reader.subscribe("orders", qos=2)
        writer.publish("orders", b"pay 100 to alice", qos=2)
        reader.wait_for_messages(1)
        assert forger.changed == 1
        assert reader.messages == [("orders", b"pay 100 to alice")]
        a.wait_for("the link to b is down: received data was changed, omitted, repeated or moved on its way")


def test_another_certificate_of_the_authority_is_refused_and_a_revoked_one_ends_its_link(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "stolen").mkdir()
    elsewhere = Authority.__new__(Authority)
    elsewhere.__dict__ |= {**authority.__dict__, "folder": tmp_path / "stolen"}
    own, port = {id: authority.sign(id, dns=(id,)) for id in "ab"}, free_port()
    stolen = elsewhere.sign("b", dns=("b",))
    crl = authority.revoke()

    def tls(files: tuple[str, str], *more: str) -> tuple[str, ...]:
        named = {"tls": "true", "certificate": files[0], "key": files[1], "ca": authority.path}
        return (LISTED, *(f"link.{key}={value}" for key, value in named.items()), *more)

    der = ssl.PEM_cert_to_DER_cert(Path(own["b"][0]).read_text())
    pin = f"peer.0.certificate_sha256={hashlib.sha256(der).hexdigest()}"
    with ExitStack() as stack:
        settings = tls(own["a"], pin, f"link.crl={crl}")
        a = BrokerProcess(tmp_path, "a", *settings, link_port=port, peers={"b": 0}, secret="")
        stack.callback(a.stop)
        (tmp_path / "x").mkdir()
        x = BrokerProcess(tmp_path / "x", "b", *tls(stolen), peers={"a": port}, secret="")
        x.wait_for("no link with a at .*certificate")
        x.kill()
        b = BrokerProcess(tmp_path, "b", *tls(own["b"]), peers={"a": port}, secret="")
        stack.callback(b.stop)
        a.wait_for_link("b")
        assert authority.revoke(own["b"][0]) == crl
        os.kill(a.process.pid, signal.SIGHUP)
        a.wait_for("the link to b is down: .*certificate")
