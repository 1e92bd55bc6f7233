"""Sessions, wills, keep-alive and takeover by MQTT 5.0 and 3.1.1, at a real broker.

Statements of the standards are named by their numbers: [3.1.4-3] is MQTT-3.1.4-3 of MQTT 5.0.
"""

from __future__ import annotations

import threading
import time

import pytest
from tests.daemon.broker_process import DEADLINE_S, BrokerProcess, broker_fixture, wait_until
from tests.daemon.raw_client import Raw, payloads

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import PublishProperties, Will
from roamcast.mqtt.codec.reasons import Reason

broker = broker_fixture(
    """
id = "conforming"
data = "data"
[[listener]]
port = 0
[journal]
sync = "process"
[mqtt]
keep_alive_max_s = 30
session_expiry_max_s = 4294967295
[access]
default = "allow"
[[access.rule]]
verdict = "deny"
topic = "forbidden/#"
[[access.rule]]
verdict = "deny"
topic = "silent/#"
action = "publish"
"""
)


def is_present(broker: BrokerProcess, client: str, version: int = 5, expiry: int | None = None) -> bool:
    """Whether there is a session, without ending it."""
    with Raw(broker, client, expiry, clean=False, version=version) as raw:
        return raw.connack.session_present


# --- session expiry ---


def test_a_session_ends_with_its_connection_unless_the_client_asks_for_more(broker: BrokerProcess) -> None:
    """[3.1.2-23]; both absence and 0 mean that."""
    for expiry in (None, 0):
        Raw(broker, "brief", expiry).leave()
        assert not is_present(broker, "brief")


def test_a_session_outlives_its_connection_for_as_long_as_asked(broker: BrokerProcess) -> None:
    with Raw(broker, "lasting", 2) as client:
        client.subscribe("lasting")
        client.leave()
    assert is_present(broker, "lasting", expiry=2)
    left = time.monotonic()
    wait_until(lambda: time.monotonic() > left + 3.2, lambda: "")
    assert not is_present(broker, "lasting")


def test_a_session_that_never_expires(broker: BrokerProcess) -> None:
    with Raw(broker, "eternal", 0xFFFF_FFFF) as client:
        assert client.connack.session_expiry is None
        client.leave()
    assert is_present(broker, "eternal", expiry=0xFFFF_FFFF)
    Raw(broker, "eternal").leave()


def test_the_client_changes_the_expiry_when_it_leaves(broker: BrokerProcess) -> None:
    """Section 3.14.2.2.2."""
    Raw(broker, "changing", 1).leave(expiry=1000)
    left = time.monotonic()
    wait_until(lambda: time.monotonic() > left + 2.2, lambda: "")
    with Raw(broker, "changing", 1000, clean=False) as client:
        assert client.connack.session_present
        client.leave(expiry=0)
    assert not is_present(broker, "changing")


def test_a_session_without_expiry_cannot_get_one_at_the_end(broker: BrokerProcess) -> None:
    """[3.1.2-23], section 3.14.2.2.2: a protocol error, so the will is published."""
    with Raw(broker, "watcher") as watcher, Raw(broker, "late", 0, will=Will("late/will", b"x")) as client:
        watcher.subscribe("late/will")
        client.send(packets.Disconnect(session_expiry=5))
        assert client.end() == Reason.PROTOCOL_ERROR
        assert payloads(watcher.take(1)) == [b"x"]


def test_a_clean_start_begins_anew(broker: BrokerProcess) -> None:
    """[3.1.2-4] to [3.1.2-6], [3.2.2-2], [3.2.2-3]"""
    with Raw(broker, "anew", 100) as client:
        assert not client.connack.session_present
        client.subscribe("anew")
        client.leave()
    with Raw(broker, "anew", 100, clean=False) as client:
        assert client.connack.session_present
        client.leave()
    with Raw(broker, "writer") as writer:
        writer.publish("anew", b"for the old session")
    with Raw(broker, "anew", 100) as client:
        assert not client.connack.session_present
        client.publish("anew", b"nobody subscribes")
        assert client.drain() == []


def test_sessions_of_3_1_1(broker: BrokerProcess) -> None:
    """MQTT 3.1.1 [3.1.2-4] to [3.1.2-6]: clean session decides about the beginning and the end."""
    Raw(broker, "old", version=4).leave()
    assert not is_present(broker, "old", version=4)
    assert is_present(broker, "old", version=4)
    Raw(broker, "old", version=4).leave()
    assert not is_present(broker, "old", version=5)


def test_a_session_is_taken_on_by_another_version(broker: BrokerProcess) -> None:
    with Raw(broker, "upgraded", clean=False, version=4) as old:
        old.subscribe("upgraded")
    with Raw(broker, "writer") as writer:
        writer.publish("upgraded", b"x", 2, user_properties=(("a", "b"),))
    with Raw(broker, "upgraded", clean=False, version=5) as new:
        assert new.connack.session_present
        (message,) = new.take(1)
        assert message.properties == PublishProperties(user_properties=(("a", "b"),))


# --- what waits ---


@pytest.mark.parametrize("version", [4, 5])
def test_messages_wait_for_a_client_that_is_away(broker: BrokerProcess, version: int) -> None:
    with Raw(broker, "away", 100 if version == 5 else None, clean=False, version=version) as client:
        client.subscribe("away/#")
        client.leave()
    with Raw(broker, "writer") as writer:
        for number in range(20):
            writer.publish(f"away/{number % 3}", b"%d" % number, 1 + number % 2)
    with Raw(broker, "away", clean=False, version=version) as client:
        got = client.drain()
        assert payloads(got) == [b"%d" % number for number in range(20)]
        assert [one.qos for one in got] == [1 + number % 2 for number in range(20)]
        assert not any(one.dup for one in got), "they were never sent before"
    Raw(broker, "away").leave()


@pytest.mark.parametrize("version", [4, 5])
def test_what_was_not_acknowledged_is_sent_again(broker: BrokerProcess, version: int) -> None:
    """[4.4.0-1], [3.3.1-1]: with the same packet ids, marked as duplicates; PUBREL for what was received."""
    expiry = 100 if version == 5 else None
    with Raw(broker, "torn", expiry, clean=False, version=version) as client:
        client.subscribe("torn")
        client.acknowledges = False
        client.publish("torn", b"one", 1)
        client.publish("torn", b"two", 2)
        client.send(packets.Publish("torn", b"three", 2, packet_id=77))
        client.expect(packets.Pubrec)
        first = client.take(3)
        assert [one.dup for one in first] == [False] * 3
        client.send(packets.Pubrec(first[1].packet_id))
        assert client.expect(packets.Pubrel).packet_id == first[1].packet_id
    with Raw(broker, "torn", expiry, clean=False, version=version) as client:
        client.acknowledges = False
        again = [client.receive() for _ in range(3)]
        assert again[1] == packets.Pubrel(first[1].packet_id)
        for mine, place in ((again[0], 0), (again[2], 2)):
            assert isinstance(mine, packets.Publish)
            assert (mine.packet_id, mine.payload, mine.dup) == (
                first[place].packet_id,
                first[place].payload,
                True,
            )
        client.send(packets.Pubcomp(first[1].packet_id))
        # What the client had not released is known here too: sent again, it is no second message.
        client.send(packets.Publish("torn", b"three", 2, dup=True, packet_id=77))
        assert client.expect(packets.Pubrec).packet_id == 77
        client.send(packets.Pubrel(77))
        assert client.expect(packets.Pubcomp) == packets.Pubcomp(77)
        assert client.drain() == []
    Raw(broker, "torn").leave()


def test_what_is_sent_again_fits_the_new_connection(broker: BrokerProcess) -> None:
    """[3.1.2-24] also holds for what was in flight before."""
    with Raw(broker, "shrunk", 100) as client:
        client.subscribe("shrunk")
        client.acknowledges = False
        client.publish("shrunk", bytes(500))
        client.publish("shrunk", b"small")
        client.take(2)
    with Raw(broker, "shrunk", clean=False, maximum_packet_size=100) as client:
        assert payloads(client.drain()) == [b"small"]
        client.publish("shrunk", b"more")
        assert payloads(client.drain()) == [b"more"]


def test_what_was_unsubscribed_from_stays_so(broker: BrokerProcess) -> None:
    with Raw(broker, "parted", 100) as client:
        client.subscribe("parted/1", "parted/2")
        client.unsubscribe("parted/1")
    with Raw(broker, "writer") as writer:
        writer.publish("parted/1")
        writer.publish("parted/2")
    with Raw(broker, "parted", clean=False) as client:
        assert [one.topic for one in client.drain()] == ["parted/2"]


# --- takeover ---


def test_another_connection_of_the_same_client_takes_over(broker: BrokerProcess) -> None:
    """[3.1.4-3]"""
    with Raw(broker, "twin", 100) as first:
        first.subscribe("twin")
        with Raw(broker, "twin", 100, clean=False) as second:
            assert second.connack.session_present
            assert first.end() == Reason.SESSION_TAKEN_OVER
            second.publish("twin", b"x")
            assert payloads(second.take(1)) == [b"x"]
            with Raw(broker, "twin", version=4) as third:
                assert not third.connack.session_present
                assert second.end() == Reason.SESSION_TAKEN_OVER
                with Raw(broker, "twin", version=4):
                    assert third.end() is None


# --- wills ---


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_is_published_when_a_client_goes_without_a_word(broker: BrokerProcess, version: int) -> None:
    """[3.1.2-8]"""
    with Raw(broker, "heir", version=version) as heir:
        heir.subscribe("wills/+")
        for qos in range(3):
            will = Will(f"wills/{qos}", b"gone", qos)
            Raw(broker, "mortal", version=version, will=will).close()
            (message,) = heir.take(1)
            assert (message.topic, message.payload, message.qos) == (f"wills/{qos}", b"gone", qos)
            assert not message.retain
        Raw(broker, "mortal", version=version, will=Will("wills/x", b"")).close()
        assert payloads(heir.take(1)) == [b""]


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_is_not_published_after_a_goodbye(broker: BrokerProcess, version: int) -> None:
    """[3.1.2-10], [3.14.4-3]"""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/kept")
        Raw(broker, "mortal", version=version, will=Will("wills/kept", b"x")).leave()
        assert heir.drain() == []


@pytest.mark.parametrize("reason", [Reason.DISCONNECT_WITH_WILL_MESSAGE, Reason.UNSPECIFIED_ERROR])
def test_a_will_is_published_after_a_goodbye_that_is_not_normal(
    broker: BrokerProcess, reason: Reason
) -> None:
    """[3.14.4-3]: only 0x00 discards it."""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/with")
        Raw(broker, "mortal", will=Will("wills/with", b"x")).leave(reason)
        assert len(heir.take(1)) == 1


def test_a_will_is_published_when_the_client_breaks_the_rules(broker: BrokerProcess) -> None:
    with Raw(broker, "heir") as heir, Raw(broker, "mortal", will=Will("wills/rule", b"x")) as mortal:
        heir.subscribe("wills/rule")
        mortal.socket.sendall(b"\x00\x00")
        assert mortal.end() == Reason.MALFORMED_PACKET
        assert len(heir.take(1)) == 1


def test_a_will_carries_its_properties_and_may_be_retained(broker: BrokerProcess) -> None:
    """[3.1.2-14], [3.1.3-10]"""
    described = PublishProperties(1, None, "text/plain", "r", b"c", user_properties=(("b", "1"), ("a", "2")))
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/rich")
        will = Will("wills/rich", b"x", 1, retain=True, properties=described)
        Raw(broker, "mortal", will=will).close()
        (message,) = heir.take(1)
        assert (message.properties, message.retain) == (described, False)
        heir.subscribe("wills/rich")
        (message,) = heir.take(1)
        assert (message.properties, message.retain) == (described, True)
        heir.publish("wills/rich", b"", retain=True)


def test_a_will_waits_for_its_delay(broker: BrokerProcess) -> None:
    """[3.1.3-9], section 3.1.3.2.2"""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/delayed")
        Raw(broker, "mortal", 100, will=Will("wills/delayed", b"x", delay=1)).close()
        gone = time.monotonic()
        assert heir.drain() == []
        heir.take(1)
        assert time.monotonic() - gone >= 0.9


def test_a_will_waits_no_longer_than_its_session(broker: BrokerProcess) -> None:
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/session")
        for expiry in (None, 1):
            Raw(broker, "mortal", expiry, will=Will("wills/session", b"x", delay=1000)).close()
            heir.take(1)


def test_a_delayed_will_is_not_published_if_the_client_returns(broker: BrokerProcess) -> None:
    """[3.1.3-9]"""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/return")
        Raw(broker, "mortal", 100, will=Will("wills/return", b"x", delay=1)).close()
        with Raw(broker, "mortal", 100, clean=False):
            start = time.monotonic()
            wait_until(lambda: time.monotonic() > start + 1.6, lambda: "")
            assert heir.drain() == []


def test_a_delayed_will_is_published_when_its_session_ends_by_a_clean_start(broker: BrokerProcess) -> None:
    """Section 3.1.3.2.2: at the end of the session, whichever way it ends."""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/clean")
        Raw(broker, "mortal", 100, will=Will("wills/clean", b"x", delay=1000)).close()
        with Raw(broker, "mortal"):
            heir.take(1)
        with (
            Raw(broker, "mortal", 100, will=Will("wills/clean", b"y", delay=1000)) as mortal,
            Raw(broker, "mortal"),
        ):
            assert mortal.end() == Reason.SESSION_TAKEN_OVER
            assert payloads(heir.take(1)) == [b"y"]


def test_a_will_without_delay_is_published_at_a_takeover(broker: BrokerProcess) -> None:
    with Raw(broker, "heir") as heir, Raw(broker, "mortal", 100, will=Will("wills/taken", b"x")):
        heir.subscribe("wills/taken")
        with Raw(broker, "mortal", 100, clean=False):
            heir.take(1)


def test_a_will_is_bound_by_the_access_rules(broker: BrokerProcess) -> None:
    with Raw(broker, "heir") as heir:
        heir.subscribe("silent/#", "wills/allowed")
        Raw(broker, "mortal", will=Will("silent/will", b"x", 1, retain=True)).close()
        Raw(broker, "mortal", will=Will("wills/allowed", b"x")).close()
        assert [one.topic for one in heir.take(1)] == ["wills/allowed"]
        heir.subscribe("silent/#")
        assert heir.drain() == []


# --- what may not be done ---


def test_what_is_not_allowed_is_answered_with_a_reason(broker: BrokerProcess) -> None:
    with Raw(broker, "curious") as client:
        assert client.publish("forbidden/x", qos=1) == Reason.NOT_AUTHORIZED
        assert client.publish("forbidden/x", qos=2) == Reason.NOT_AUTHORIZED
        client.publish("forbidden/x", qos=0)
        assert client.subscribe("forbidden/x", "other/x") == (Reason.NOT_AUTHORIZED, Reason.GRANTED_QOS_2)
        client.publish("other/x")
        assert len(client.drain()) == 1
    with Raw(broker, "curious", version=4) as client:
        assert client.subscribe("forbidden/x", "other/x") == (
            Reason.UNSPECIFIED_ERROR,
            Reason.GRANTED_QOS_2,
        )
        assert client.publish("forbidden/x", qos=1) == Reason.SUCCESS
        assert client.publish("forbidden/x", qos=2) == Reason.SUCCESS


def test_the_topics_of_the_broker_are_not_for_clients_to_publish(broker: BrokerProcess) -> None:
    with Raw(broker, "spoofing") as client:
        client.subscribe("$SYS/#")
        assert client.publish("$SYS/broker/fake", b"fake") == Reason.NOT_AUTHORIZED
        assert b"fake" not in payloads(client.drain())


# --- keep-alive ---


@pytest.mark.parametrize("version", [4, 5])
def test_a_silent_client_is_dropped_and_its_will_published(broker: BrokerProcess, version: int) -> None:
    """[3.1.2-22]: within one and a half times the keep-alive, and what it takes to notice."""
    with Raw(broker, "heir") as heir:
        heir.subscribe("wills/silent")
        will = Will("wills/silent", b"x")
        with Raw(broker, "silent", version=version, keep_alive=1, will=will) as silent:
            start = time.monotonic()
            told = silent.end()
            assert 1.4 < time.monotonic() - start < 8
            assert told == (Reason.KEEP_ALIVE_TIMEOUT if version == 5 else None)
            heir.take(1)


def test_a_client_that_says_something_now_and_then_stays(broker: BrokerProcess) -> None:
    with Raw(broker, "lively", keep_alive=1) as client:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            client.ping()
            threading.Event().wait(0.3)
        client.ping()


def test_the_server_sets_the_keep_alive(broker: BrokerProcess) -> None:
    """[3.1.2-21], [3.2.2-21], [3.2.2-22]: only if it is another than the client's."""
    for asked, told in ((0, 30), (31, 30), (65_535, 30), (30, None), (1, None)):
        with Raw(broker, "patient", keep_alive=asked) as client:
            assert client.connack.server_keep_alive == told


# --- client ids ---


def test_a_client_without_an_id_gets_one(broker: BrokerProcess) -> None:
    """[3.1.3-6], [3.1.3-7], [3.2.2-16]"""
    ids = set()
    for clean in (True, False):
        with Raw(broker, "", clean=clean) as client:
            assert client.connack.assigned_client_id
            ids.add(client.connack.assigned_client_id)
            assert not client.connack.session_present
    assert len(ids) == 2
    with Raw(broker, "named") as client:
        assert client.connack.assigned_client_id is None


def test_an_assigned_id_can_be_used_again(broker: BrokerProcess) -> None:
    with Raw(broker, "", 100) as client:
        assigned = client.connack.assigned_client_id
        assert assigned is not None
    assert is_present(broker, assigned)


def test_clients_of_3_1_1_without_an_id(broker: BrokerProcess) -> None:
    """MQTT 3.1.1 [3.1.3-7], [3.1.3-8]"""
    with Raw(broker, "", version=4) as client:
        assert client.connack.reason == Reason.SUCCESS
        client.ping()
    with Raw(broker, "", clean=False, version=4) as client:
        assert client.connack.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID
        assert client.end() is None


def test_client_ids_of_all_kinds(broker: BrokerProcess) -> None:
    """[3.1.3-5] asks for 23 letters and digits; more is allowed, up to a limit."""
    for id in ("0123456789abcdefghijklmNOP", "with spaces/and #+$", "Ünïcødé \U0001f68b", "x" * 256):
        with Raw(broker, id) as client:
            assert client.connack.reason == Reason.SUCCESS
    with Raw(broker, "x" * 257) as client:
        assert client.connack.reason == Reason.CLIENT_IDENTIFIER_NOT_VALID


# --- real clients ---


@pytest.mark.parametrize("version", [4, 5])
def test_paho_in_both_versions(broker: BrokerProcess, version: int) -> None:
    paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
    enums = pytest.importorskip("paho.mqtt.enums", reason="paho-mqtt 2 is not installed")
    client = paho.Client(enums.CallbackAPIVersion.VERSION2, f"paho{version}", protocol=version)
    got: list[tuple[str, bytes, int]] = []
    ready = threading.Event()
    client.on_message = lambda _client, _data, one: got.append((one.topic, one.payload, one.qos))
    client.on_subscribe = lambda *_: ready.set()
    client.on_connect = lambda *_: client.subscribe("paho/#", 2)
    client.connect("127.0.0.1", broker.port, keepalive=20)
    client.loop_start()
    try:
        assert ready.wait(DEADLINE_S)
        for qos in range(3):
            client.publish(f"paho/{qos}", b"x" * qos, qos).wait_for_publish(DEADLINE_S)
        wait_until(lambda: len(got) >= 3, lambda: str(got))
        assert sorted(got) == [(f"paho/{qos}", b"x" * qos, qos) for qos in range(3)]
    finally:
        client.disconnect()
        client.loop_stop()
