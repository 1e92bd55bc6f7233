"""The event log of real broker processes: on disk what happened, once, and nothing that was not asked for."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tests.daemon.brokers import BrokerProcess, MqttClient, roamcast, wait_until

from roamcast.config.sections import Config, Events
from roamcast.daemon.event_log import EventLog
from roamcast.mqtt.server.identities import identity_properties
from roamcast.mqtt.server.sessions import PROVISIONAL, public_name
from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import FREQUENT_KINDS, Row
from roamcast.records.parquet import log_files, read_log
from roamcast.records.pseudonyms import pseudonyms

KEY = "a key that the whole network shares"


def rows_of(folder: Path) -> list[Row]:
    return list(read_log(folder)) if log_files(folder) else []


def test_after_a_kill_every_row_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    broker = BrokerProcess(
        tmp_path, "site", "events.level=full", "events.file_s=0.3",
        f"events.pseudonym_key_file={tmp_path / 'key'}",
    )  # fmt: skip
    folder = broker.data / "events"
    car, sensor = MqttClient("car", broker.port), MqttClient("sensor", broker.port)
    car.subscribe("road/#")
    sensor.publish("road/1", b"1")
    car.wait_for_messages(1)
    wait_until(lambda: bool(rows_of(folder)), lambda: "no file")
    for number in range(2, 12):
        sensor.publish("road/1", b"%d" % number)
    broker.kill()  # Some of these rows were not on the disk.
    for client in (car, sensor):
        client.paho.loop_stop()
    broker.start()
    broker.stop()

    rows = rows_of(folder)
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    published = [row.number for row in rows if row.kind == "published"]
    assert published == list(range(1, 12))
    name = pseudonyms(KEY)
    assert {row.publisher for row in rows if row.kind == "published"} == {name("sensor")}
    assert {row.client for row in rows} - {None} == {name("sensor"), name("car")}
    assert all(row.attributes is None and row.filter is None for row in rows)
    everything = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"sensor" not in everything
    assert b"road" not in everything
    key_file = str(tmp_path / "key")
    done = roamcast("explain", "car", "sensor:1", "--log", str(broker.data), "--key-file", key_file)
    assert done.stdout.splitlines()[-1] == "the client has received it", done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        id="a", data=str(tmp_path), events=Events(level="counters", file_s=0.05, retention_days=1.0)
    )


def a_row(sequence: int, kind: str = "published") -> Row:
    return Row(sequence, 1.0, "a", kind, client="p", publisher="p", number=sequence, notifications=1)


def test_rows_of_a_replay_are_written_only_where_they_were_not(config: Config) -> None:
    first = EventLog(config)
    first.take([a_row(1), a_row(2)])
    first.close()
    second = EventLog(config)
    second.take([a_row(1)])
    second.take([a_row(2), a_row(3)])
    second.replayed()
    second.take([a_row(4)])
    second.close()
    assert [row.sequence for row in rows_of(config.events_folder)] == [1, 2, 3, 4]
    assert (first.written, second.written, second.lost) == (2, 2, 0)


def test_old_files_are_deleted_and_those_of_others_stay(config: Config) -> None:
    folder = config.events_folder
    for number in range(3):
        log = EventLog(config)
        log.replayed()
        log.take([a_row(number + 1)])
        log.close()
    other = folder / "events-a-b-00000.parquet"
    other.write_bytes((folder / "events-a-00000.parquet").read_bytes())
    two_days_ago = time.time() - 2 * 86_400
    for path in (other, folder / "events-a-00000.parquet", folder / "events-a-00001.parquet"):
        os.utime(path, (two_days_ago, two_days_ago))
    EventLog(config).close()
    assert sorted(path.name for path in folder.iterdir()) == [
        "events-a-00002.parquet", "events-a-b-00000.parquet",
    ]  # fmt: skip


def test_a_disk_that_fails_loses_rows_and_says_so(config: Config) -> None:
    log = EventLog(config)
    folder = config.events_folder
    folder.rmdir()
    folder.write_text("in the way")
    log.take([a_row(1)])
    log.flush()
    log.close()
    assert log.lost == 1
    assert folder.read_text() == "in the way"


def test_counters_leave_out_every_hop(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "site", "events.level=counters", "events.attributes=true")
    client = MqttClient("car", broker.port)
    client.subscribe("road/#")
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = ("cost", "40")
    properties.ContentType = "application/json"
    for speed in (50, 50, 60):
        client.paho.publish("road/1", b'{"speed": %d}' % speed, qos=1, properties=properties)
    client.wait_for_messages(3)
    client.leave()
    broker.stop()
    rows = rows_of(broker.data / "events")
    assert {row.kind for row in rows}.isdisjoint(FREQUENT_KINDS)
    assert all(row.filter for row in rows if row.kind == "subscribed")
    published = [row for row in rows if row.kind == "published"]
    attributes = [decode_attributes(row.attributes or b"") for row in published]
    counts = Counter[object]()
    for one, row in zip(attributes, published, strict=True):
        counts[one["speed"]] += row.notifications or 0
    assert counts == {50: 2, 60: 1}, "as filters compare them"
    assert all(one["topic"] == "road/1" and one["cost"] == 40 for one in attributes)
    acknowledged = [row for row in rows if row.kind == "acknowledged"]
    assert sum(row.notifications or 0 for row in acknowledged) == 3
    assert {(row.client, row.publisher) for row in acknowledged} == {("car", "car")}


def test_stand_ins_show_up_by_names_for_people(config: Config) -> None:
    log = EventLog(config)
    log.take([a_row(1)._replace(client=PROVISIONAL + "car", publisher=PROVISIONAL + "car")])
    log.close()
    (row,) = rows_of(config.events_folder)
    # As a publisher it is not its client: both count what they publish.
    assert (row.client, row.publisher) == ("car", "car (stand-in)")
    told = identity_properties(public_name(PROVISIONAL + "car"), 0, 1)
    assert b"car (stand-in)" in told
