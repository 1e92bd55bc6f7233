"""Messages and subscriptions by MQTT 5.0 and 3.1.1, at a real broker.

Statements of the standards are named by their numbers: [3.3.1-5] is MQTT-3.3.1-5 of MQTT 5.0.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import chain
from typing import Any

import pytest
from tests.daemon.broker_process import BrokerProcess, broker_fixture, wait_until
from tests.daemon.raw_client import Raw, payloads

from roamcast.mqtt.codec import packets
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
receive_maximum = 20
topic_alias_maximum = 5
[access]
default = "allow"
[[access.rule]]
verdict = "allow"
topic = "$s/#"
"""
)

USER = (("a", "2"), ("c", "3"), ("a", "2"))


# --- quality of service ---


@pytest.mark.parametrize("reading", [4, 5])
@pytest.mark.parametrize("writing", [4, 5])
def test_messages_arrive_with_the_lower_quality_of_service(
    broker: BrokerProcess, writing: int, reading: int
) -> None:
    """[3.8.4-8]"""
    with Raw(broker, "reader", version=reading) as reader, Raw(broker, "writer", version=writing) as writer:
        for granted in range(3):
            assert reader.subscribe("round/trip", qos=granted) == (Reason(granted),)
            for sent in range(3):
                assert writer.publish("round/trip", b"%d" % sent, sent) == Reason.SUCCESS
                (message,) = reader.take(1)
                assert (message.topic, message.payload) == ("round/trip", b"%d" % sent)
                assert (message.qos, message.dup, message.retain) == (min(sent, granted), False, False)
        assert reader.drain() == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_large_payloads_arrive_whole(broker: BrokerProcess, version: int, qos: int) -> None:
    payload = bytes(range(256)) * 1200
    with Raw(broker, "large", version=version) as client:
        client.subscribe("large")
        client.publish("large", payload, qos)
        client.publish("large", b"", qos)
        assert payloads(client.take(2)) == [payload, b""]


def test_the_same_packet_id_in_both_directions(broker: BrokerProcess) -> None:
    """Packet ids of client and server have nothing to do with each other (section 2.2.1)."""
    with Raw(broker, "echo") as client:
        client.subscribe("echo")
        client.acknowledges = False
        for packet_id in (1, 2, 3):
            client.send(packets.Publish("echo", b"x", 2, packet_id=packet_id))
        got = [client.receive() for _ in range(6)]
        mine = [one.packet_id for one in got if isinstance(one, packets.Publish)]
        assert sorted(one.packet_id for one in got if isinstance(one, packets.Pubrec)) == [1, 2, 3]
        for packet_id in mine:
            client.send(packets.Pubrec(packet_id))
            assert client.receive() == packets.Pubrel(packet_id)
            client.send(packets.Pubcomp(packet_id))
        for packet_id in (1, 2, 3):
            client.send(packets.Pubrel(packet_id))
            assert client.receive() == packets.Pubcomp(packet_id)


def test_a_repeated_publish_of_qos_2_is_delivered_once(broker: BrokerProcess) -> None:
    """[4.3.3-10]; after the PUBREL the same id is a new message [4.3.3-12]."""
    with Raw(broker, "twice") as client, Raw(broker, "reader") as reader:
        reader.subscribe("twice")
        for dup in (False, True, True):
            client.send(packets.Publish("twice", b"one", 2, dup=dup, packet_id=7))
            assert client.receive() == packets.Pubrec(7)
        client.send(packets.Pubrel(7))
        assert client.receive() == packets.Pubcomp(7)
        client.send(packets.Publish("twice", b"two", 2, packet_id=7))
        assert client.receive() == packets.Pubrec(7)
        assert payloads(reader.drain()) == [b"one", b"two"]


@pytest.mark.parametrize("version", [4, 5])
def test_answers_to_unknown_packet_ids(broker: BrokerProcess, version: int) -> None:
    unknown = Reason.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else Reason.SUCCESS
    with Raw(broker, "stray", version=version) as client:
        client.send(packets.Pubrel(99))
        assert client.receive() == packets.Pubcomp(99, unknown)
        client.send(packets.Pubrec(98))
        assert client.receive() == packets.Pubrel(98, unknown)
        client.send(packets.Puback(97))
        client.send(packets.Pubcomp(96))
        client.ping()


def test_a_pubcomp_before_its_pubrec(broker: BrokerProcess) -> None:
    """PUBCOMP answers a PUBREL (section 4.3.3), and there was none yet: what the client has is not known."""
    with Raw(broker, "hasty") as client, Raw(broker, "writer") as writer:
        client.subscribe("hasty")
        client.acknowledges = False
        writer.publish("hasty", b"x", 2)
        (message,) = client.take(1)
        client.send(packets.Pubcomp(message.packet_id))
        assert client.end() == Reason.PROTOCOL_ERROR


def test_order_of_one_publisher(broker: BrokerProcess) -> None:
    """[4.6.0-6]"""
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("order/#")
        for number in range(1, 101):
            writer.send(packets.Publish(f"order/{number % 3}", b"%d" % number, 1, packet_id=number))
        assert payloads(reader.take(100)) == [b"%d" % number for number in range(1, 101)]
        assert [writer.receive() for _ in range(100)] == [packets.Puback(number) for number in range(1, 101)]


def test_a_message_of_qos_2_may_be_refused_by_the_client(broker: BrokerProcess) -> None:
    """A PUBREC with a reason from 0x80 on ends the exchange (section 4.3.3)."""
    with Raw(broker, "choosy", receive_maximum=1) as client, Raw(broker, "writer") as writer:
        client.subscribe("choosy")
        client.acknowledges = False
        writer.publish("choosy", b"one", 2)
        writer.publish("choosy", b"two", 2)
        for payload in (b"one", b"two"):
            message = client.receive()
            assert isinstance(message, packets.Publish)
            assert message.payload == payload
            client.send(packets.Pubrec(message.packet_id, Reason.UNSPECIFIED_ERROR))
        client.ping()


# --- flow control ---


@pytest.mark.parametrize("qos", [1, 2])
def test_no_more_is_sent_than_the_client_can_take(broker: BrokerProcess, qos: int) -> None:
    """[3.3.4-9]: QoS 0 is not held back by it, the rest follows as it acknowledges."""
    with Raw(broker, "careful", receive_maximum=2) as reader, Raw(broker, "writer") as writer:
        reader.subscribe("flow")
        reader.acknowledges = False
        for number in range(5):
            writer.publish("flow", b"%d" % number, qos)
        writer.publish("flow", b"fleeting", 0)
        first = reader.drain()
        assert payloads(first) == [b"0", b"1", b"fleeting"]
        reader.acknowledges = True
        for message in first[:2]:
            reader.send((packets.Puback if qos == 1 else packets.Pubrec)(message.packet_id))
        assert payloads(reader.take(3)) == [b"2", b"3", b"4"]


def test_a_client_may_not_send_more_than_the_receive_maximum(broker: BrokerProcess) -> None:
    """[3.3.4-7], [3.3.4-8]"""
    with Raw(broker, "hasty") as client:
        assert client.connack.receive_maximum == 20
        for packet_id in range(1, 21):
            client.send(packets.Publish("hasty", b"", 2, packet_id=packet_id))
            assert client.receive() == packets.Pubrec(packet_id)
        client.send(packets.Publish("hasty", b"", 2, packet_id=21))
        assert client.end() == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_a_client_of_3_1_1_knows_no_receive_maximum(broker: BrokerProcess) -> None:
    with Raw(broker, "old", version=4) as client:
        for packet_id in range(1, 41):
            client.send(packets.Publish("old", b"", 2, packet_id=packet_id))
            assert client.receive() == packets.Pubrec(packet_id)
        client.ping()


def test_what_is_larger_than_the_client_takes_is_left_out(broker: BrokerProcess) -> None:
    """[3.1.2-24], [3.1.2-25]: it counts as sent."""
    with Raw(broker, "narrow", maximum_packet_size=60) as reader, Raw(broker, "writer") as writer:
        reader.subscribe("narrow")
        for qos in range(3):
            writer.publish("narrow", bytes(100), qos)
            writer.publish("narrow", b"short", qos)
        assert payloads(reader.drain()) == [b"short"] * 3


def test_no_answer_is_larger_than_the_client_takes(broker: BrokerProcess) -> None:
    """[3.1.2-24]: an answer is made shorter; one that cannot be is the end of the connection."""
    with Raw(broker, "narrow", maximum_packet_size=8, keep_alive=10) as client:
        assert client.connack == packets.Connack()
        assert client.subscribe("a", "b", "c") == (Reason.GRANTED_QOS_2,) * 3
        assert client.unsubscribe("a", "b", "c") == (Reason.SUCCESS,) * 3
        entries = tuple(packets.SubscriptionEntry(one) for one in "abcd")
        client.send(packets.Subscribe(9, entries))
        assert client.end() == Reason.PACKET_TOO_LARGE
    for size in (5, 30):
        with Raw(broker) as client:
            method = "SCRAM-SHA-1"
            connect = packets.Connect(5, "x", maximum_packet_size=size, authentication_method=method)
            client.send(connect)
            assert client.receive() == packets.Connack(reason=Reason.BAD_AUTHENTICATION_METHOD)
    for size, reason in ((5, Reason.PACKET_TOO_LARGE), (4, None)):
        with Raw(broker) as client:
            client.send(packets.Connect(5, "narrower", keep_alive=0, maximum_packet_size=size))
            assert client.end() == reason


def test_a_packet_of_the_largest_size_is_delivered(broker: BrokerProcess) -> None:
    topic = "exact"
    header = 2 + len(topic) + 2 + 1  # Topic, packet id, no properties.
    with Raw(broker, "exact", maximum_packet_size=102) as reader, Raw(broker, "writer") as writer:
        reader.subscribe(topic)
        writer.publish(topic, bytes(100 - header + 1))
        writer.publish(topic, bytes(100 - header))
        assert [len(one) for one in payloads(reader.drain())] == [100 - header]


# --- topic aliases ---


def test_aliases_of_the_client(broker: BrokerProcess) -> None:
    """[3.3.2-7] to [3.3.2-12]: learned, used, and given another meaning."""
    with Raw(broker, "alias") as client, Raw(broker, "reader") as reader:
        assert client.connack.topic_alias_maximum == 5
        reader.subscribe("alias/#")
        client.publish("alias/one", b"1", topic_alias=5)
        client.publish("", b"2", topic_alias=5)
        client.publish("", b"3", 0, topic_alias=5)
        client.publish("alias/two", b"4", 2, topic_alias=5)
        client.publish("", b"5", 2, topic_alias=5)
        got = reader.drain()
        assert [one.topic for one in got] == ["alias/one"] * 3 + ["alias/two"] * 2
        assert payloads(got) == [b"1", b"2", b"3", b"4", b"5"]
        assert all(one.properties is None for one in got)


@pytest.mark.parametrize(
    ("topic", "alias", "reason"),
    [
        ("t", 0, Reason.TOPIC_ALIAS_INVALID),
        ("t", 6, Reason.TOPIC_ALIAS_INVALID),
        ("t", 65_535, Reason.TOPIC_ALIAS_INVALID),
        ("", 3, Reason.PROTOCOL_ERROR),
    ],
)
def test_aliases_that_are_not_allowed(broker: BrokerProcess, topic: str, alias: int, reason: Reason) -> None:
    """[3.3.2-8], [3.3.2-9]"""
    with Raw(broker, "alias") as client:
        client.send(packets.Publish(topic, properties=packets.PublishProperties(topic_alias=alias)))
        assert client.end() == reason


def test_aliases_end_with_the_connection(broker: BrokerProcess) -> None:
    """[3.3.2-7], also where the session goes on."""
    with Raw(broker, "alias", expiry=100) as client:
        client.publish("alias/old", topic_alias=1)
    with Raw(broker, "alias", clean=False) as client:
        assert client.connack.session_present
        alias = packets.PublishProperties(topic_alias=1)
        client.send(packets.Publish("", b"", 1, packet_id=1, properties=alias))
        assert client.end() == Reason.PROTOCOL_ERROR


def test_aliases_of_the_server(broker: BrokerProcess) -> None:
    """[3.1.2-26], [3.1.2-27]: only where the client takes them, and no more than it takes."""
    with Raw(broker, "taker", topic_alias_maximum=2) as reader, Raw(broker, "writer") as writer:
        reader.subscribe("served/#")
        names: dict[int, str] = {}
        short = 0
        for topic in ("a", "b", "c", "a", "b", "c", "a"):
            for qos in range(3):
                writer.publish(f"served/{topic}", topic.encode(), qos)
        for message in reader.take(21):
            alias = message.properties.topic_alias if message.properties is not None else None
            assert alias is None or 1 <= alias <= 2
            if alias is not None and message.topic:
                names[alias] = message.topic
            short += not message.topic
            assert f"served/{message.payload.decode()}" == (message.topic or names[alias or 0])
        assert len(names) == 2
        assert short == 8 + 5, "nine of a and six of b, but not the first of each"


def test_no_aliases_for_a_client_that_takes_none(broker: BrokerProcess) -> None:
    """[3.1.2-27]"""
    with Raw(broker, "plain") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("plain")
        for _ in range(3):
            writer.publish("plain")
        assert all(one.topic == "plain" and one.properties is None for one in reader.take(3))


# --- what a message carries ---


def test_properties_travel_unaltered(broker: BrokerProcess) -> None:
    """[3.3.2-4], [3.3.2-15] to [3.3.2-20]: also the order of user properties and repeated ones."""
    described: dict[str, Any] = {
        "payload_format": 1,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\0\xff",
        "user_properties": USER,
    }
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("described")
        for qos in range(3):
            writer.publish("described", b"x", qos, **described)
            (message,) = reader.take(1)
            assert message.properties == packets.PublishProperties(**described)
    with Raw(broker, "old", version=4) as reader, Raw(broker, "writer") as writer:
        reader.subscribe("described")
        writer.publish("described", b"x", 1, **described)
        assert reader.take(1)[0].payload == b"x"


@pytest.mark.parametrize("value", [0, 1, 2, 233])
def test_the_payload_format_is_passed_on(broker: BrokerProcess, value: int) -> None:
    """[3.3.2-4]: unaltered, also where nobody has said what it means."""
    with Raw(broker, "formatted") as client:
        client.subscribe("formatted")
        client.publish("formatted", b"x", payload_format=value)
        (got,) = client.drain()
        assert got.properties is not None
        assert got.properties.payload_format == value


def test_a_request_and_its_response(broker: BrokerProcess) -> None:
    """Section 4.10."""
    with Raw(broker, "asking") as asking, Raw(broker, "answering") as answering:
        asking.subscribe("answers/asking")
        answering.subscribe("requests")
        asking.publish("requests", b"?", response_topic="answers/asking", correlation_data=b"42")
        asked = answering.take(1)[0].properties
        assert asked is not None
        assert asked.response_topic is not None
        answering.publish(asked.response_topic, b"!", correlation_data=asked.correlation_data)
        (answer,) = asking.take(1)
        assert answer.properties == packets.PublishProperties(correlation_data=b"42")


def test_what_has_expired_is_not_delivered_and_the_rest_says_what_is_left(broker: BrokerProcess) -> None:
    """[3.3.2-5], [3.3.2-6]"""
    with Raw(broker, "late", expiry=100) as reader:
        reader.subscribe("expiring")
    with Raw(broker, "writer") as writer:
        for qos in (1, 2):
            writer.publish("expiring", b"short", qos, message_expiry=1)
            writer.publish("expiring", b"long", qos, message_expiry=60)
        published = time.monotonic()
        wait_until(lambda: time.monotonic() > published + 2.1, lambda: "")
        with Raw(broker, "late", clean=False) as reader:
            got = reader.drain()
        assert payloads(got) == [b"long", b"long"]
        left = [one.properties.message_expiry for one in got if one.properties is not None]
        assert all(one is not None and 40 < one <= 58 for one in left)


# --- retained messages ---


def retained(broker: BrokerProcess, topic_filter: str, version: int = 5) -> dict[str, bytes]:
    """What somebody gets who subscribes now."""
    with Raw(broker, "later", version=version) as reader:
        reader.subscribe(topic_filter)
        got = reader.drain()
        assert all(one.retain for one in got), "[3.3.1-8]"
        return {one.topic: one.payload for one in got}


@pytest.mark.parametrize("version", [4, 5])
def test_retained_messages_are_set_replaced_and_deleted(broker: BrokerProcess, version: int) -> None:
    """[3.3.1-5] to [3.3.1-7]"""
    with Raw(broker, "writer", version=version) as writer:
        for qos in range(3):
            writer.publish(f"kept/{qos}", b"old", qos, retain=True)
            writer.publish(f"kept/{qos}", b"new", qos, retain=True)
        writer.publish("kept/0", b"not kept", 1)
        assert retained(broker, "kept/+", version) == {f"kept/{qos}": b"new" for qos in range(3)}
        assert retained(broker, "+/1", version) == {"kept/1": b"new"}
        assert retained(broker, "#", version).keys() >= {"kept/0"}
        for qos in range(3):
            writer.publish(f"kept/{qos}", b"", qos, retain=True)
        assert retained(broker, "kept/#", version) == {}


def test_a_retained_message_keeps_what_it_carries(broker: BrokerProcess) -> None:
    with Raw(broker, "writer") as writer, Raw(broker, "reader") as reader:
        for qos in range(3):
            writer.publish(f"carried/{qos}", b"x", qos, retain=True, user_properties=USER)
        reader.subscribe("carried/#")
        got = reader.drain()
        assert sorted(one.qos for one in got) == [0, 1, 2]
        assert all(one.properties == packets.PublishProperties(user_properties=USER) for one in got)
        for qos in range(3):
            writer.publish(f"carried/{qos}", retain=True)


def test_retained_messages_expire(broker: BrokerProcess) -> None:
    """[3.3.2-5], and the rest of the time is told [3.3.2-6]."""
    with Raw(broker, "writer") as writer:
        writer.publish("fading", b"x", retain=True, message_expiry=2)
        assert retained(broker, "fading") == {"fading": b"x"}
        wait_until(lambda: retained(broker, "fading") == {}, lambda: "it does not expire")


def test_retain_handling(broker: BrokerProcess) -> None:
    """[3.3.1-9] to [3.3.1-11]"""
    with Raw(broker, "writer") as writer:
        writer.publish("handled", b"x", retain=True)
    with Raw(broker, "reader") as reader:
        for handling, sent in ((2, 0), (0, 1), (0, 1), (1, 0), (2, 0)):
            reader.subscribe("handled", retain_handling=handling)
            assert len(reader.drain()) == sent, handling
        reader.unsubscribe("handled")
        reader.subscribe("handled", retain_handling=1)
        assert len(reader.drain()) == 1
        reader.publish("handled", retain=True)


def test_retain_as_published(broker: BrokerProcess) -> None:
    """[3.3.1-12], [3.3.1-13]"""
    with Raw(broker, "writer") as writer, Raw(broker, "reader") as reader:
        for asked in (False, True):
            reader.subscribe("published", retain_as_published=asked)
            writer.publish("published", b"x", retain=True)
            writer.publish("published", b"x", retain=False)
            assert [one.retain for one in reader.take(2)] == [asked, False]
            writer.publish("published", b"", retain=True)
            assert reader.take(1)[0].payload == b""


def test_a_retained_message_goes_by_the_subscription_that_asked_for_it(broker: BrokerProcess) -> None:
    """[3.8.4-8]: another subscription of the client, with another QoS, has nothing to do with it."""
    with Raw(broker, "reader") as reader:
        reader.publish("asked/for", b"x", 2, retain=True)
        reader.subscribe("asked/#", qos=2, identifier=1, retain_handling=2)
        reader.subscribe("asked/+", qos=1, identifier=2)
        (message,) = reader.drain()
        assert message.qos == 1
        assert message.properties == packets.PublishProperties(subscription_identifiers=(2,))
        reader.publish("asked/for", retain=True)


# --- subscriptions ---


def test_overlapping_subscriptions(broker: BrokerProcess) -> None:
    """[3.3.4-2] to [3.3.4-5]: one copy, with the highest QoS and all identifiers."""
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("over/#", qos=2, identifier=268_435_455)
        reader.subscribe("over/+", qos=1, identifier=1)
        reader.subscribe("over/other", qos=0, identifier=9)
        reader.subscribe("over/lap", qos=0)
        writer.publish("over/lap", b"x", 2)
        (message,) = reader.drain()
        assert message.qos == 2
        assert message.properties is not None
        assert sorted(message.properties.subscription_identifiers) == [1, 268_435_455]


def test_a_subscription_is_replaced_by_one_to_the_same_filter(broker: BrokerProcess) -> None:
    """[3.8.4-3]"""
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("again", qos=2, identifier=1)
        reader.subscribe("again", qos=1, identifier=2)
        writer.publish("again", b"x", 2)
        (message,) = reader.drain()
        assert message.qos == 1
        assert message.properties == packets.PublishProperties(subscription_identifiers=(2,))


def test_no_local(broker: BrokerProcess) -> None:
    """[3.8.3-3]"""
    with Raw(broker, "selfish") as one, Raw(broker, "other") as other:
        for client in (one, other):
            client.subscribe("local", no_local=True)
        for qos in range(3):
            one.publish("local", b"x", qos)
        assert one.drain() == []
        assert len(other.drain()) == 3
        one.subscribe("+", no_local=False)
        one.publish("local", b"x", 1)
        assert len(one.drain()) == 1


def test_no_local_holds_back_what_is_retained_too(broker: BrokerProcess) -> None:
    """[3.8.3-3]: a retained message is a message of whoever published it."""
    with Raw(broker, "keeper") as keeper, Raw(broker, "other") as other:
        keeper.publish("kept/own", b"own", retain=True)
        other.publish("kept/foreign", b"foreign", retain=True)
        keeper.subscribe("kept/+", no_local=True)
        assert payloads(keeper.drain()) == [b"foreign"]
        keeper.subscribe("kept/+")
        assert sorted(payloads(keeper.drain())) == [b"foreign", b"own"]
        for topic in ("kept/own", "kept/foreign"):
            keeper.publish(topic, b"", retain=True)


def test_wildcards(broker: BrokerProcess) -> None:
    """Section 4.7."""
    topics = ("s", "s/", "s/p", "s/p/q", "/s", "s//q", "$s/p", "S/p")
    wanted = {
        "s/#": {"s", "s/", "s/p", "s/p/q", "s//q"},
        "s/+": {"s/", "s/p"},
        "s/+/q": {"s/p/q", "s//q"},
        "+/+": {"s/", "s/p", "/s", "S/p"},
        "/+": {"/s"},
        "+": {"s"},
        "#": set(topics) - {"$s/p"},
        "+/p": {"s/p", "S/p"},
        "$s/#": {"$s/p"},
        "$s/+": {"$s/p"},
        "S/p": {"S/p"},
    }
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        for topic_filter, expected in wanted.items():
            reader.subscribe(topic_filter)
            for topic in topics:
                writer.publish(topic)
            assert {one.topic for one in reader.drain()} == expected, topic_filter
            reader.unsubscribe(topic_filter)


def test_unsubscribing(broker: BrokerProcess) -> None:
    """[3.10.4-1] to [3.10.4-6]"""
    with Raw(broker, "reader") as reader, Raw(broker, "writer") as writer:
        reader.subscribe("un/one", "un/two")
        none = Reason.NO_SUBSCRIPTION_EXISTED
        assert reader.unsubscribe("un/one", "un/+", "un/one") == (Reason.SUCCESS, none, none)
        writer.publish("un/one")
        writer.publish("un/two")
        assert [one.topic for one in reader.drain()] == ["un/two"]
    with Raw(broker, "old", version=4) as reader:
        assert reader.unsubscribe("never/there") == ()


def test_several_filters_in_one_packet_are_answered_one_by_one(broker: BrokerProcess) -> None:
    """[3.8.4-5], [3.8.4-6]"""
    deep = "/".join("x" * 300)
    for version, refused in ((5, Reason.TOPIC_FILTER_INVALID), (4, Reason.UNSPECIFIED_ERROR)):
        with Raw(broker, "many", version=version) as client:
            answer = client.subscribe("many/1", deep, "many/2", qos=1)
            assert answer == (Reason.GRANTED_QOS_1, refused, Reason.GRANTED_QOS_1)


def test_names_in_every_script(broker: BrokerProcess) -> None:
    """Section 1.5.4: no normalisation, the byte order mark is a character, only U+0000 is forbidden."""
    topics = ("Δ/é", "Δ/e\u0301", "\ufeff", "\U0001f68b/\u0001", "a b", "\uffff")
    with Raw(broker, "reader \ufeff") as reader, Raw(broker, "writer") as writer:
        for topic in topics:
            reader.subscribe(topic)
            writer.publish(topic, topic.encode())
            assert [one.topic for one in reader.drain()] == [topic]


# --- shared subscriptions ---


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_is_spread_over_its_members(broker: BrokerProcess, qos: int) -> None:
    with ExitStack() as stack:
        members = [stack.enter_context(Raw(broker, f"member{n}")) for n in range(3)]
        alone = stack.enter_context(Raw(broker, "alone"))
        writer = stack.enter_context(Raw(broker, "writer"))
        for member in members:
            member.subscribe("$share/group/spread/+")
        alone.subscribe("$share/other/spread/+")
        expected = [b"%d" % number for number in range(60)]
        for number, payload in enumerate(expected):
            writer.publish(f"spread/{number % 4}", payload, qos)
        got = [payloads(member.drain()) for member in members]
        assert sorted(chain.from_iterable(got)) == sorted(expected)
        assert [len(one) for one in got] == [20, 20, 20]
        assert sorted(payloads(alone.drain())) == sorted(expected)
        assert members[0].unsubscribe("$share/group/spread/+") == (Reason.SUCCESS,)
        for payload in expected:
            writer.publish("spread/1", payload, qos)
        assert members[0].drain() == []
        rest = [payload for member in members[1:] for payload in payloads(member.drain())]
        assert sorted(rest) == sorted(expected)


def test_a_share_name_that_cannot_be_is_refused_alone(broker: BrokerProcess) -> None:
    """[4.8.2-1] [4.8.2-2]: what else the packet asks for is granted."""
    wrong = ("$share/gr+oup/a", "$share/gr#oup/a", "$share/group", "$share//a", "$share/group/")
    with Raw(broker, "naming") as client:
        answers = client.subscribe(*wrong, "named", qos=1)
        assert answers == (*[Reason.TOPIC_FILTER_INVALID] * len(wrong), Reason.GRANTED_QOS_1)
        client.publish("named", b"x")
        assert payloads(client.drain()) == [b"x"]
        assert client.unsubscribe(wrong[0], "named") == (Reason.NO_SUBSCRIPTION_EXISTED, Reason.SUCCESS)


def test_equal_messages_are_spread_over_a_group_too(broker: BrokerProcess) -> None:
    with Raw(broker, "one") as one, Raw(broker, "two") as two:
        for member in (one, two):
            member.subscribe("$share/even/tick")
        for _ in range(4):
            one.publish("tick", b"", 0)
        assert (len(one.drain()), len(two.drain())) == (2, 2)


def test_a_shared_subscription_goes_on_when_a_member_leaves(broker: BrokerProcess) -> None:
    with Raw(broker, "staying") as staying, Raw(broker, "writer") as writer:
        with Raw(broker, "leaving") as leaving:
            for member in (staying, leaving):
                member.subscribe("$share/shrinking/work")
            leaving.leave()
        for number in range(20):
            writer.publish("work", b"%d" % number)
        assert len(staying.drain()) == 20


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_does_not_acknowledge_before_its_session_ends(broker: BrokerProcess, qos: int) -> None:
    """Section 4.8.2: with QoS 1 another member gets it, unless answered; with QoS 2 nobody [4.8.2-5]."""
    with Raw(broker, "heir") as heir, Raw(broker, "writer") as writer:
        with Raw(broker, "dying") as dying:
            dying.acknowledges = False
            dying.subscribe("$share/bequest/work", qos=qos)
            for number in range(4):
                writer.publish("work", b"%d" % number, qos)
            got = dying.take(4)
            dying.send(
                packets.Puback(got[2].packet_id, Reason.UNSPECIFIED_ERROR)
                if qos == 1
                else packets.Pubrec(got[2].packet_id, Reason.UNSPECIFIED_ERROR)
            )
            heir.subscribe("$share/bequest/work")
        expected = [b"0", b"1", b"3"] if qos == 1 else []
        assert payloads(heir.take(len(expected))) == expected
        assert heir.drain() == []


def test_a_fleeting_message_goes_to_a_member_that_is_there(broker: BrokerProcess) -> None:
    """Section 4.8.2: what is not kept for those who are away would be lost with them."""
    with Raw(broker, "here") as here, Raw(broker, "writer") as writer:
        here.subscribe("$share/half/fleeting")
        with Raw(broker, "away", expiry=100) as away:
            away.subscribe("$share/half/fleeting")
            away.leave()
        for number in range(20):
            writer.publish("fleeting", b"%d" % number, 0)
        assert len(here.drain()) == 20
        Raw(broker, "away").close()


def test_retained_messages_are_not_for_shared_subscriptions(broker: BrokerProcess) -> None:
    """Section 4.8.2."""
    with Raw(broker, "sharing") as client:
        client.publish("sharing", b"x", retain=True)
        client.subscribe("$share/group/sharing")
        assert client.drain() == []
        client.publish("sharing", b"", retain=True)


def test_a_shared_and_a_plain_subscription_of_one_client(broker: BrokerProcess) -> None:
    """Each gets its own copy, with its own identifier and QoS (section 4.8.2)."""
    with Raw(broker, "both") as client, Raw(broker, "writer") as writer:
        client.subscribe("both", qos=1, identifier=1)
        client.subscribe("$share/group/both", qos=2, identifier=2)
        writer.publish("both", b"x", 2)
        got = client.drain()
        found = sorted(
            (one.properties.subscription_identifiers, one.qos) for one in got if one.properties is not None
        )
        assert found == [((1,), 1), ((2,), 2)]


# --- content filters ---


def test_content_filters(broker: BrokerProcess) -> None:
    with Raw(broker, "tail") as tail, Raw(broker, "where") as where, Raw(broker, "writer") as writer:
        assert tail.subscribe("content/+?level>5&kind=tram") == (Reason.GRANTED_QOS_2,)
        assert where.subscribe("content/#", where="level <= 5 or kind = 'bus'") == (Reason.GRANTED_QOS_2,)
        assert where.subscribe("content/#", where="level <=") == (Reason.TOPIC_FILTER_INVALID,)
        for level, kind in ((3, "tram"), (7, "tram"), (9, "bus")):
            properties = (("level", str(level)), ("kind", kind))
            writer.publish("content/x", b"%d" % level, user_properties=properties)
        body = b'{"level": 8, "kind": "tram"}'
        writer.publish("content/x", body, content_type="application/json")
        assert payloads(tail.drain()) == [b"7", body]
        assert payloads(where.drain()) == [b"3", b"9"]
        assert tail.unsubscribe("content/+?level>5&kind=tram") == (Reason.SUCCESS,)


# --- many ---


def test_a_hundred_clients_at_once(broker: BrokerProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(broker, f"crowd{n}", version=4 + n % 2)) for n in range(100)]
        for client in clients:
            client.subscribe("crowd/#", qos=1)
        for number, client in enumerate(clients):
            client.send(packets.Publish(f"crowd/{number}", b"x", 1, packet_id=9))
        for client in clients:
            assert client.expect(packets.Puback).packet_id == 9
        for client in clients:
            assert {one.topic for one in client.take(100)} == {f"crowd/{n}" for n in range(100)}
