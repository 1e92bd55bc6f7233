"""Operations as an operator meets them: real broker processes, real clients, real commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import (
    BrokerProcess,
    MqttClient,
    free_port,
    roamcast,
    roamcast_json,
    wait_until,
)

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.writing import write

FULL = ("events.level=full", "events.file_s=0.3")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    port = free_port()
    with ExitStack() as stack:
        a = BrokerProcess(tmp_path, "a", *FULL, link_port=port)
        stack.callback(a.stop)
        b = BrokerProcess(
            tmp_path, "b", *FULL, "mqtt.sys_interval_s=0.5", "log.format=json", peers={"a": port}
        )
        stack.callback(b.stop)
        a.wait_for_link("b")
        b.wait_for_link("a")
        yield a, b


def test_a_roaming_client_is_seen_by_all_means(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = pair
    sensor = MqttClient("sensor", a.port)
    car = MqttClient("car", a.port)
    car.subscribe("road/#")
    sensor.publish("road/1", b"first")
    sensor.publish("road/1", b"fleeting", qos=0)
    car.wait_for_messages(2)
    car.leave()
    sensor.publish("road/1", b"second")

    away = roamcast_json("where", "car", "--data", str(b.data))
    assert (away["broker"], away["state"], away["queued"], away["queued_bytes"]) == ("a", "away", 1, 20)
    assert abs(away["since"] - time.time()) < 60
    assert a.metric('roamcast_messages_queued{qos="1"}') == 1
    assert a.metric('roamcast_messages_received_total{qos="1"}') == 2
    assert a.metric('roamcast_messages_received_total{qos="0"}') == 1

    car.connect(b.port)
    assert car.present
    car.wait_for_messages(3)
    there = roamcast("where", "car", "--data", str(a.data))
    assert there.stdout.startswith("car is attached at broker b since ")
    finished = 'roamcast_handoffs_total{protocol="multi_hop_handoff",result="finished"}'
    wait_until(lambda: b.metric(finished) == 1, lambda: b.get("/metrics")[1])
    assert b.metric('roamcast_handoff_seconds_bucket{le="+Inf"}') == 1
    assert 0 < b.metric("roamcast_handoff_seconds_sum") < 30
    assert b.metric("roamcast_journal_commits_total") > 0
    assert roamcast("where", "nobody", "--data", str(a.data)).returncode == 1

    wait_until(
        lambda: "the client has received it" in explained(a, b, "sensor:2"),
        lambda: explained(a, b, "sensor:2"),
    )
    story = explained(a, b, "sensor:2").splitlines()
    told = [line.split("  ", 1)[1] for line in story[:-1]]
    assert told[0] == "a: published by sensor (20 bytes)"
    assert "b: the client attached (a)" in told
    assert "b: sent at the client’s broker" in told
    assert "b: acknowledged by the client" in told
    car.leave()
    sensor.leave()


def explained(a: BrokerProcess, b: BrokerProcess, notification: str) -> str:
    return roamcast("explain", "car", notification, "--log", str(a.data), "--log", str(b.data)).stdout


def test_sys_topics_come_promptly_and_from_this_broker_alone(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    _, b = pair
    watcher = MqttClient("watcher", b.port)
    watcher.subscribe("$SYS/broker/#", qos=0)

    def values() -> dict[str, str]:
        return {topic.removeprefix("$SYS/broker/"): text.decode() for topic, text in watcher.messages}

    wait_until(lambda: values().get("clients/connected") == "1", lambda: str(values()))
    assert values()["roamcast/id"] == "b"
    assert values()["version"].startswith("roamcast version ")
    assert "$SYS/broker/uptime" in watcher.retained, "the last values were sent because of the subscription"
    assert not [text for topic, text in watcher.messages if topic.endswith("roamcast/id") and text != b"b"]
    everything = MqttClient("everything", b.port)
    everything.subscribe("#", qos=0)
    everything.publish("mark", b"", qos=0)
    everything.wait_for_messages(1)
    assert [topic for topic, _ in everything.messages] == ["mark"]
    watcher.leave()
    everything.leave()


def test_draining_hands_every_session_to_the_peer(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = pair
    sensor = MqttClient("sensor", b.port)
    present, away = MqttClient("present", a.port), MqttClient("away", a.port)
    old = MqttClient("old", a.port, version=4)
    for client in (present, away, old):
        client.subscribe("road")
    away.leave()
    sensor.publish("road", b"1")
    present.wait_for_messages(1)
    reference = f"127.0.0.1:{b.port}"
    done = roamcast("broker", "drain", "--data", str(a.data), "--reference", reference)
    assert "sessions have gone to b; the broker can be stopped" in done.stdout, done.stderr
    assert a.metric("roamcast_sessions") == 0
    wait_until(lambda: bool(present.disconnects), lambda: "not told to go")
    assert present.disconnects == [(0x9C, reference)]
    assert roamcast_json("where", "away", "--data", str(a.data))["broker"] == "b"
    refused = MqttClient("present", a.port)
    assert refused.connected == "Use another server"
    a.stop()  # Nothing waits there any more.
    for client in (present, away, old):
        client.paho.loop_stop()
        client.connect(b.port, version=4 if client is old else 5)
        assert client.present
        client.wait_for_messages(1)
        assert [text for _, text in client.messages] == [b"1"]
        client.leave()
    sensor.leave()
    a.start()


def test_a_forgotten_broker_is_not_waited_for(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = pair
    client = MqttClient("known", b.port)
    client.leave()
    b.kill()
    wait_until(lambda: a.metric('roamcast_link_up{peer="b"}') == 0, lambda: "".join(a.lines))
    status, body = a.get("/healthz")
    assert (status, list(json.loads(body)["links_down"])) == (200, ["b"])
    assert "connection" in json.loads(body)["links_down"]["b"], "it says why, also where the peer has dialed"
    client.connect(a.port)
    assert client.connected == "Server unavailable", "b has its session"
    a.wait_for("client known refused .*: server unavailable: the session may be at b or behind")
    assert json.loads(body)["away"] == ["b"]
    assert a.metric('roamcast_clients_refused_total{reason="server unavailable"}') == 1
    sought = roamcast("where", "x", "--data", str(a.data)).stdout
    assert "these brokers did not answer, and may hold the session: b" in sought
    assert "no broker c in the network; known are: b" in roamcast(*forget(a, "c")).stderr
    assert roamcast(*forget(a, "b")).stdout == "b is forgotten\n"
    again = MqttClient("known", a.port)
    assert (again.connected, again.present) == ("Success", False)
    again.leave()
    # With an empty disk it may come back under the same id.
    shutil.rmtree(b.data)
    b.start()
    b.wait_for_link("a")
    a.wait_for_link("b")
    again.connect(b.port)
    assert (again.connected, again.present) == ("Success", True)
    again.leave()


def test_a_session_on_its_way_to_a_forgotten_broker_stays(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    a, b = pair
    client, sensor = MqttClient("roaming", a.port), MqttClient("sensor", a.port)
    client.subscribe("t")
    client.leave()
    for number in range(20):
        sensor.publish("t", b"%d" % number)
    a.process.send_signal(signal.SIGSTOP)
    try:
        before = b.metric('roamcast_link_kept_bytes{peer="a"}')
        with socket.create_connection(("127.0.0.1", b.port)) as elsewhere:
            connect = packets.Connect(5, "roaming", clean_start=False, session_expiry=3600)
            elsewhere.sendall(write(connect, 5))
            wait_until(lambda: b.metric('roamcast_link_kept_bytes{peer="a"}') > before, lambda: "not asked")
        b.kill()
    finally:
        a.process.send_signal(signal.SIGCONT)
    # It gives the session to a broker that is not there any more.
    wait_until(lambda: a.metric('roamcast_link_up{peer="b"}') == 0, lambda: "".join(a.lines))
    wait_until(lambda: a.metric("roamcast_sessions") == 1, lambda: "the session has not left")
    assert roamcast(*forget(a, "b")).stdout == "b is forgotten\n"
    client.connect(a.port)
    assert (client.connected, client.present) == ("Success", True)
    client.wait_for_messages(20)
    assert [payload for _, payload in client.messages] == [b"%d" % number for number in range(20)]
    client.leave()
    sensor.leave()


def forget(broker: BrokerProcess, which: str) -> list[str]:
    return ["broker", "forget", which, "--data", str(broker.data)]


def test_who_is_connected_cannot_be_forgotten_and_strangers_get_short_answers(
    pair: tuple[BrokerProcess, BrokerProcess],
) -> None:
    a, _ = pair
    assert "b is connected: stop it first" in roamcast(*forget(a, "b")).stderr
    assert "a is this broker itself" in roamcast(*forget(a, "a")).stderr
    status = roamcast("broker", "status", "--data", str(a.data)).stdout
    assert status.startswith("broker a, version ")
    assert "link to b: up" in status
    assert stat.S_IMODE(os.stat(a.data / "control").st_mode) == 0o600
    for request, answer in (
        (b"GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ):
        assert a.raw_http(request)[0] == answer
    head = a.raw_http(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (head[0], head[2]) == (200, "")


def test_a_clean_stop_is_told_and_lines_are_objects(pair: tuple[BrokerProcess, BrokerProcess]) -> None:
    _, b = pair
    client = MqttClient("phone", b.port)
    gone = MqttClient("gone", b.port)
    gone.leave()
    b.wait_for('"client":"gone".*by the client')
    b.stop()
    wait_until(lambda: bool(client.disconnects), lambda: "not told")
    assert client.disconnects[0][0] == 0x8B
    client.paho.loop_stop()
    lines = [json.loads(line) for line in b.lines]
    told = [(line["event"], line["reason"]) for line in lines if line.get("client") == "phone"]
    assert told == [("connected", "with a new session"), ("disconnected", "the broker stops")]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    b.start()


def test_limits_and_log_level_are_read_again(tmp_path: Path) -> None:
    config = tmp_path / "site.toml"
    text = 'id = "site"\ndata = "data"\n[[listener]]\nport = 0\n[metrics]\nenabled = true\nport = 0\n'
    config.write_text(text)
    broker = ConfiguredBroker(config)
    try:
        first = MqttClient("first", broker.port)
        config.write_text(
            text + "[quotas]\nconnections_max = 1\nsubscriptions_per_client_max = 1\n"
            '[log]\nlevel = "warning"\n[mobility]\nunreachable = "serve"\nseen_max = 7\n'
        )
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: broker.metric("roamcast_turns_total") > 0 and refuses(broker), lambda: "not read")
        first.subscribe("one")
        first.paho.subscribe("two", qos=1)
        assert str(first.answer("subscribe")) == "Quota exceeded"
        first.leave()
        broker.wait_for("restart to apply these changed settings: mobility.seen_max")
    finally:
        broker.stop()
    assert not any("client first disconnected" in line for line in broker.lines)


class ConfiguredBroker(BrokerProcess):
    def __init__(self, config: Path) -> None:
        from tests.daemon.brokers import ROAMCAST

        self._command = [str(ROAMCAST), "broker", "--config", str(config)]
        self.lines = []
        self.start()


def refuses(broker: BrokerProcess) -> bool:
    """Whether one more connection is closed at once."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=5) as connection:
        connection.settimeout(0.2)
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True
