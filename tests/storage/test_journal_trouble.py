"""A broker whose journal cannot be written: it promises nothing, loses nothing, and goes on by itself."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.daemon.brokers import BrokerProcess, MqttClient, free_port, roamcast

SMALL_BYTES = 100
"""No file may be longer: every write to the journal fails as on a full disk."""
WRITTEN = "journal.sync=group"
"""Where nothing has to be on the disk a record goes into memory, with room that was had beforehand."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    started = BrokerProcess(
        tmp_path, "site", WRITTEN, "journal.bytes_max=1048576", "mqtt.packet_bytes_max=4194304",
        "journal.snapshot_retry_s=1", "journal.segment_bytes=262144", "journal.snapshot_after_bytes=1048576",
    )  # fmt: skip
    yield started
    allow_writing(started, True)
    started.stop()


def allow_writing(broker: BrokerProcess, allowed: bool) -> None:
    hard = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)[1]
    limit = hard if allowed else SMALL_BYTES
    resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (limit, hard))


def test_nothing_is_promised_and_nothing_is_lost(broker: BrokerProcess) -> None:
    sensor, car, other = (MqttClient(name, broker.port) for name in ("sensor", "car", "other"))
    car.subscribe("road/#")
    sensor.publish("road/1", b"before")
    car.wait_for_messages(1)
    allow_writing(broker, False)
    begun = sensor.paho.publish("road/1", b"during", qos=1)
    broker.wait_for("journal unavailable, refusing new acknowledgements.*File too large")
    status, body = broker.get("/healthz")
    assert status == 503
    assert "File too large" in json.loads(body)["journal"]
    assert broker.metric("roamcast_journal_promises") == 0
    assert roamcast("broker", "status", "--data", str(broker.data)).returncode == 1
    # What needs no promise goes on, for clients that wait for none.
    other.paho.publish("road/1", b"fleeting", qos=0)
    car.wait_for_messages(2)
    assert MqttClient("late", broker.port).connected == "Server unavailable"
    more = other.paho.publish("road/1", b"more", qos=1)
    after = other.paho.publish("road/1", b"behind it", qos=0)
    assert not begun.is_published()
    assert not more.is_published()
    allow_writing(broker, True)
    for one in (begun, more, after):
        one.wait_for_publish(60)
    car.wait_for_messages(5)
    assert [text for _, text in car.messages] == [b"before", b"fleeting", b"during", b"more", b"behind it"]
    broker.wait_for("the journal can be written again")
    assert broker.get("/healthz")[0] == 200
    for client in (sensor, car, other):
        client.leave()


def test_a_kill_meanwhile_loses_nothing_that_was_promised(broker: BrokerProcess) -> None:
    sensor, car = MqttClient("sensor", broker.port), MqttClient("car", broker.port)
    car.subscribe("road/#")
    car.leave()
    sensor.publish("road/1", b"promised")
    allow_writing(broker, False)
    unpromised = sensor.paho.publish("road/1", b"not promised", qos=1)
    broker.wait_for("journal unavailable")
    broker.kill()
    assert not unpromised.is_published()
    sensor.paho.loop_stop()
    broker.start()
    car.connect(broker.port)
    assert car.present
    car.wait_for_messages(1)
    assert [text for _, text in car.messages] == [b"promised"]
    car.leave()


def test_a_journal_that_is_too_long_goes_on_after_a_snapshot(broker: BrokerProcess) -> None:
    sensor = MqttClient("sensor", broker.port)
    sensor.publish("road/1", bytes(2 << 20))
    broker.wait_for("at most 1048576 are allowed")
    broker.wait_for("snapshot of .* written")
    broker.wait_for("the journal can be written again")
    sensor.publish("road/1", b"on")
    assert broker.metric('roamcast_snapshots_total{result="written"}') == 1
    assert broker.get("/healthz")[0] == 200
    sensor.leave()


def test_links_wait_and_lose_nothing(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        hub = BrokerProcess(tmp_path, "hub", link_port=port)
        stack.callback(hub.stop)
        edge = BrokerProcess(tmp_path, "edge", WRITTEN, peers={"hub": port})
        stack.callback(edge.stop)
        edge.wait_for_link("hub")
        sensor, car = MqttClient("sensor", hub.port), MqttClient("car", edge.port)
        car.subscribe("road/#")
        allow_writing(edge, False)
        for number in range(20):
            sensor.publish("road/1", b"%d" % number)
        edge.wait_for("journal unavailable")
        assert len(car.messages) < 20
        hub.stop()
        hub.start()
        edge.wait_for("broker edge cannot write its journal now")
        allow_writing(edge, True)
        edge.wait_for("the journal can be written again")
        edge.wait_for_link("hub")
        sensor.paho.loop_stop()
        sensor.connect(hub.port)
        for number in range(20, 40):
            sensor.publish("road/1", b"%d" % number)
        car.wait_for_messages(40)
        assert [text for _, text in car.messages] == [b"%d" % number for number in range(40)]
        for client in (sensor, car):
            client.leave()
