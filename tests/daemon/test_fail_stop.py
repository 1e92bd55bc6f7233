"""Fail-stop with real processes: who poisons a broker is kept out, and nobody else misses anything."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.daemon import poisoned_broker
from tests.daemon.bad_peer import BadPeer
from tests.daemon.brokers import (
    DEADLINE_S,
    BrokerProcess,
    MqttClient,
    free_port,
    roamcast,
    roamcast_json,
    wait_until,
)
from tests.daemon.raw_client import Raw

from roamcast.mobility.multi_hop_handoff import DeliverTQ, Events, Pull, SegmentGone, SubMigrationAck
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Publish
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.protocol.messages import Message
from roamcast.storage.restarting import EXIT_FAILED

FIRST_S = 3.0
"""How long a culprit is kept out at first where a test waits for the end of it."""


def poisoned(first_s: float = 60.0) -> tuple[str, ...]:
    return sys.executable, poisoned_broker.__file__, str(first_s)


class Steady:
    """A client that comes back by itself, with its session."""

    def __init__(self, id: str, port: int) -> None:
        self.messages: list[bytes] = []
        self.subscribed = threading.Event()
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, id, protocol=MQTTProtocolVersion.MQTTv5)
        self.paho.max_inflight_messages_set(20)
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_message = lambda client, data, message: self.messages.append(bytes(message.payload))
        self.paho.on_subscribe = lambda *said: self.subscribed.set()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.paho.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self.paho.loop_start()

    def subscribe(self, topic: str, qos: int) -> None:
        self.paho.subscribe(topic, qos=qos)
        assert self.subscribed.wait(DEADLINE_S)

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    started = BrokerProcess(tmp_path, "a", program=poisoned(), client_port=free_port())
    yield started
    started.stop()


def starts_of(broker: BrokerProcess) -> int:
    return sum(" listens on " in line for line in list(broker.lines))


def wait_for_start(broker: BrokerProcess, number: int) -> None:
    wait_until(lambda: starts_of(broker) >= number, lambda: "".join(broker.lines))
    ports = [line for line in broker.lines if "metrics on" in line]
    broker.http_port = int(ports[-1].rsplit(":", 1)[1].partition("/")[0])


def poison(broker: BrokerProcess, id: str, is_split: bool = False) -> None:
    """Send the packet that makes the broker raise, in one turn or two; the connection ends without a word."""
    packet = write(Publish("news", b"poison of " + id.encode(), 1, packet_id=1), 5)
    cut = packet.index(b"poison") + 3 if is_split else 0
    with Raw(broker, id) as client:
        if is_split:
            client.socket.sendall(packet[:cut])
            with Raw(broker, "bystander") as bystander:
                bystander.ping()
        client.socket.sendall(packet[cut:])
        assert client.end() is None, "something of the failed turn came out"


def refusal_of(broker: BrokerProcess, id: str, version: int = 5) -> packets.Connack | None:
    """How the client is refused; None if it is let in."""
    with Raw(broker, id, version=version) as client:
        return client.connack if client.connack.reason.failed else None


def reports_of(broker: BrokerProcess) -> list[Path]:
    return sorted((broker.data / "failures").glob("*.json"))


def test_a_poisoned_client_is_kept_out_and_others_miss_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = BrokerProcess(tmp_path, "a", program=poisoned(), client_port=free_port())
        stack.callback(broker.stop)
        reader, writer = Steady("reader", broker.port), Steady("writer", broker.port)
        stack.callback(reader.leave)
        stack.callback(writer.leave)
        poison_among_others(broker, reader, writer)


def poison_among_others(broker: BrokerProcess, reader: Steady, writer: Steady) -> None:
    reader.subscribe("news", 2)
    sent = [paho_publish(writer, b"1-%d" % i, 1) for i in range(100)]
    sent += [paho_publish(writer, b"2-%d" % i, 2) for i in range(100)]
    poison(broker, "mallory")
    wait_for_start(broker, 2)
    wait_until(writer.paho.is_connected, lambda: "".join(broker.lines))
    sent += [paho_publish(writer, b"2-%d" % i, 2) for i in range(100, 200)]
    refused = refusal_of(broker, "mallory")
    assert refused is not None
    assert refused.reason is Reason.SERVER_UNAVAILABLE
    assert (refused.reason_string or "").startswith("client mallory is kept out until ")
    old = refusal_of(broker, "mallory", version=4)
    assert old is not None
    assert old.reason is Reason.SERVER_UNAVAILABLE
    for one in sent:
        one.wait_for_publish(DEADLINE_S)
    expected = {b"1-%d" % i for i in range(100)} | {b"2-%d" % i for i in range(200)}
    wait_until(lambda: set(reader.messages) >= expected, lambda: f"{len(reader.messages)} messages")
    assert set(reader.messages) == expected
    exactly_once = [one for one in reader.messages if one.startswith(b"2-")]
    assert sorted(exactly_once) == sorted({*exactly_once})

    owner = int((broker.data / "journal" / "lock").read_text())
    assert owner == broker.process.pid, "it is still the process that was started"
    assert sum("CRITICAL fail-stop" in line for line in broker.lines) == 1
    assert broker.metric("roamcast_fail_stops_total") == 1
    (report,) = reports_of(broker)
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    failure = json.loads(report.read_text())
    assert "KeyError: 'poisoned'" in failure["error"]
    assert "Traceback" in failure["traceback"]


@pytest.mark.slow
def test_when_its_time_is_over_a_client_may_come_again_and_the_next_time_is_longer(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker = BrokerProcess(tmp_path, "a", program=poisoned(FIRST_S), client_port=free_port())
        stack.callback(broker.stop)
        poison(broker, "mallory")
        wait_for_start(broker, 2)
        assert refusal_of(broker, "mallory") is not None
        wait_until(lambda: refusal_of(broker, "mallory") is None, lambda: "".join(broker.lines))
        poison(broker, "mallory")
        wait_for_start(broker, 3)
        broker.wait_for(f"client mallory is kept out for {2 * FIRST_S:.0f} s")
        status = roamcast_json("broker", "status", "--data", str(broker.data))
        assert (status["fail_stops"], [one["name"] for one in status["kept_out"]]) == (2, ["mallory"])


@pytest.mark.slow
def test_two_culprits_are_kept_out_and_an_operator_lets_one_in_again(broker: BrokerProcess) -> None:
    poison(broker, "mallory")
    wait_for_start(broker, 2)
    poison(broker, "oscar", is_split=True)
    wait_for_start(broker, 3)
    assert refusal_of(broker, "bystander") is None
    kept_out = [one["name"] for one in json.loads(broker.get("/healthz")[1])["kept_out"]]
    assert kept_out[-1] == "oscar", "".join(broker.lines)
    assert (broker.data / "kept-out.json").is_file()
    # A plain restart forgets nobody.
    broker.stop()
    broker.start()
    data = ("--data", str(broker.data))
    assert "kept out: client oscar until " in roamcast("broker", "status", *data).stdout
    assert refusal_of(broker, "oscar") is not None
    assert roamcast("broker", "readmit", "oscar", *data).stdout == "client oscar is readmitted\n"
    assert refusal_of(broker, "oscar") is None
    again = roamcast("broker", "readmit", "oscar", *data)
    assert (again.returncode, again.stdout) == (2, "")
    assert "oscar is not kept out" in again.stderr


@pytest.mark.slow
def test_without_room_for_a_report_the_culprit_is_kept_out_too(broker: BrokerProcess) -> None:
    (broker.data / "failures").write_text("a file where the folder should be")
    (broker.data / "kept-out.json").mkdir()
    poison(broker, "mallory")
    wait_for_start(broker, 2)
    broker.wait_for("no report, it cannot be written")
    assert refusal_of(broker, "mallory") is not None
    assert broker.metric("roamcast_fail_stops_total") == 1
    # What could not be written is handed from process to process.
    poison(broker, "oscar")
    wait_for_start(broker, 3)
    assert broker.metric("roamcast_fail_stops_total") == 2
    assert refusal_of(broker, "oscar") is not None


@pytest.mark.slow
def test_a_timer_that_nobody_can_be_blamed_for_ends_the_process_after_some_tries(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "a", program=poisoned(), client_port=free_port())
    with Raw(broker, "bomb", expiry=1) as client:
        client.leave()
    code = broker.process.wait(DEADLINE_S)
    broker.kill()
    assert code == EXIT_FAILED
    assert sum("CRITICAL fail-stop" in line for line in broker.lines) == poisoned_broker.UNEXPLAINED_MAX + 1
    assert "too many fail-stops" in broker.lines[-1]
    assert not any("Traceback" in line for line in broker.lines)
    assert json.loads((broker.data / "kept-out.json").read_text())["offenders"] == []


@pytest.mark.slow
def test_a_journal_entry_that_raises_ends_the_process_with_one_line(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "a")
    with Raw(broker, "mallory") as client:
        client.publish("news", b"poison for later")
    broker.kill()
    command = [*poisoned(), "broker", "--id", "a", "--listen", "127.0.0.1:0", "--data", str(broker.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "an entry cannot be replayed (KeyError: 'poisoned'); the journal is unchanged; report: " in line
    (report,) = reports_of(broker)
    assert "poison for later" in report.read_text()
    # Whoever has code that can replay the entry starts again.
    broker.start()
    broker.stop()


# --- a peer that sends what makes no sense ---


@pytest.mark.slow
def test_an_honest_peer_with_a_poisoned_message_comes_back_ever_more_seldom(tmp_path: Path) -> None:
    """Broker b only passes on what its client published; broker a raises on it each time."""
    with ExitStack() as stack:
        port = free_port()
        a = BrokerProcess(tmp_path, "a", program=poisoned(2.0), link_port=port, client_port=free_port())
        stack.callback(a.stop)
        b = BrokerProcess(tmp_path, "b", "link.reconnect_max_s=0.2", peers={"a": port})
        stack.callback(b.stop)
        a.wait_for_link("b")
        with Raw(a, "reader", expiry=3600) as reader, Raw(b, "writer") as writer:
            reader.subscribe("news")
            writer.publish("news", b"poison for peers")
            for seconds in (2, 4, 8):
                a.wait_for(f"peer b is kept out for {seconds} s")
            b.wait_for("no link with a at .*: it refuses: peer b is kept out until .*stopped this broker")
            a.wait_for("no link with b at .*: peer b is kept out until ")
        wait_for_start(a, 4)
        down = json.loads(a.get("/healthz")[1])
        assert (down["status"], down["fail_stops"]) == ("ok", 3)
        assert "peer b is kept out until" in down["links_down"]["b"]
        with Raw(a, "reader", clean=False, expiry=3600) as reader:
            assert reader.connack.session_present, "clients of the broker are served"


NONSENSE: list[Message] = [
    *(SubMigrationAck(f"nobody-{i}", i) for i in range(20)),
    DeliverTQ("nobody", 7, ()),
    Pull("nobody", ("b", 1, "in"), 10, "e", 7, True),
    Events("reader", 99, ("b", 1, "own"), (), True, (), 3),
    SegmentGone("reader", 99, ("b", 1, "in")),
    SubMigrationAck("reader", 99),
]


@pytest.mark.slow
def test_an_honest_link_loses_nothing_while_a_peer_sends_nonsense(tmp_path: Path) -> None:
    """Broker b stands between a and c; the bad peer e is linked to b."""
    count, ports = 4000, {id: free_port() for id in "bc"}
    # A peer that is kept out cannot be asked for sessions.
    serving = ("mobility.unreachable=serve", "mobility.locate_timeout_s=1")
    with ExitStack() as stack:
        a = BrokerProcess(tmp_path, "a", *serving, peers={"b": ports["b"]})
        stack.callback(a.stop)
        b = BrokerProcess(
            tmp_path, "b", *serving, link_port=ports["b"], peers={"c": ports["c"]}, client_port=free_port()
        )
        stack.callback(b.stop)
        c = BrokerProcess(tmp_path, "c", *serving, link_port=ports["c"])
        stack.callback(c.stop)
        a.wait_for_link("b")
        c.wait_for_link("b")
        reader, writer = Steady("reader", c.port), Steady("writer", a.port)
        stack.callback(reader.leave)
        stack.callback(writer.leave)
        reader.subscribe("news", 1)
        bad = BadPeer(tmp_path, "e", "b", ports["b"])
        stack.callback(bad.stop)
        bad.wait_for_link()
        sent = [paho_publish(writer, b"%d" % i, 1) for i in range(count // 8)]
        bad.send(NONSENSE)
        sent += [paho_publish(writer, b"%d" % i, 1) for i in range(count // 8, count)]
        for one in sent:
            one.wait_for_publish(DEADLINE_S)
        wait_until(lambda: len(reader.messages) >= count, lambda: f"{len(reader.messages)} messages")
        a.wait_for_link("b")
        c.wait_for_link("b")
        fresh = MqttClient("fresh", b.port)
        fresh.subscribe("last")
        paho_publish(writer, b"%d" % count, 1).wait_for_publish(DEADLINE_S)
        writer.paho.publish("last", b"word", qos=1)
        fresh.wait_for_messages(1)
        fresh.leave()
        wait_until(lambda: len(reader.messages) > count, lambda: f"{len(reader.messages)} messages")
        assert reader.messages == [b"%d" % i for i in range(count + 1)]


def paho_publish(client: Steady, payload: bytes, qos: int) -> paho.MQTTMessageInfo:
    return client.paho.publish("news", payload, qos=qos)
