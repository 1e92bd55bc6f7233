"""What may not be sent, by MQTT 5.0 and 3.1.1: the right reason, a closed connection, others served on."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.daemon.broker_process import BrokerProcess, broker_fixture
from tests.daemon.raw_client import Raw, payloads

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Publish, PublishProperties, Will
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

broker = broker_fixture(
    """
id = "strict"
data = "data"
[[listener]]
port = 0
[journal]
sync = "process"
[mqtt]
packet_bytes_max = 100000
qos_max = 1
retained = false
shared_subscriptions = false
"""
)

MALFORMED, ERROR = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
FILTER, NAME, LARGE = Reason.TOPIC_FILTER_INVALID, Reason.TOPIC_NAME_INVALID, Reason.PACKET_TOO_LARGE


@pytest.fixture(autouse=True)
def bystander(broker: BrokerProcess) -> Iterator[None]:
    """Somebody who is there all the time, and is served before and after."""
    with Raw(broker, "bystander") as client:
        client.subscribe("bystander")
        yield
        client.publish("bystander", b"still here")
        assert payloads(client.drain()) == [b"still here"]


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("!H", len(raw)) + raw


def frame(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


# --- behind the CONNECT ---

OF_BOTH = {
    "packet type 0": (b"\x00\x00", MALFORMED),
    "a second CONNECT [3.1.0-2]": (write(packets.Connect(5, "again"), 5), ERROR),
    "a CONNACK": (frame(0x20, b"\0\0"), ERROR),
    "a SUBACK": (frame(0x90, b"\0\1\0"), ERROR),
    "a PINGRESP": (frame(0xD0, b""), ERROR),
    "flags of a PINGREQ [2.1.3-1]": (b"\xc1\x00", MALFORMED),
    "flags of a SUBSCRIBE [3.8.1-1]": (frame(0x80, b"\0\1\0" + text("a") + b"\0"), MALFORMED),
    "flags of an UNSUBSCRIBE [3.10.1-1]": (frame(0xA0, b"\0\1\0" + text("a")), MALFORMED),
    "flags of a PUBREL [3.6.1-1]": (frame(0x60, b"\0\1"), MALFORMED),
    "flags of a DISCONNECT [3.14.1-1]": (b"\xe1\x00", MALFORMED),
    "a PINGREQ with a body": (frame(0xC0, b"x"), MALFORMED),
    "a length of five bytes": (b"\x30\xff\xff\xff\xff\x01", MALFORMED),
    "too large": (b"\x30\xff\xff\xff\x7f", LARGE),
    "QoS 3 [3.3.1-4]": (frame(0x36, text("a") + b"\0\1\0"), MALFORMED),
    "a duplicate of QoS 0 [3.3.1-2]": (frame(0x38, text("a") + b"\0"), MALFORMED),
    "a PUBLISH without a body": (b"\x30\x00", MALFORMED),
    "a topic longer than its packet": (frame(0x30, b"\0\xffabc"), MALFORMED),
    "a PUBLISH without its packet id": (frame(0x32, text("a")), MALFORMED),
    "packet id 0 [2.2.1-3]": (frame(0x32, text("a") + b"\0\0\0"), ERROR),
    "a wildcard in a topic [3.3.2-2]": (frame(0x30, text("a/+") + b"\0"), NAME),
    "a hash in a topic": (frame(0x30, text("#") + b"\0"), NAME),
    "a null in a topic [1.5.4-2]": (frame(0x30, text("a\0b") + b"\0"), MALFORMED),
    "a surrogate in a topic [1.5.4-1]": (frame(0x30, text(b"\xed\xa0\x80") + b"\0"), MALFORMED),
    "an overlong form in a topic": (frame(0x30, text(b"\xc0\xaf") + b"\0"), MALFORMED),
    "half a character": (frame(0x30, text(b"a\xc3") + b"\0"), MALFORMED),
    "an empty topic": (frame(0x30, text("") + b"\0"), ERROR),
    "a SUBSCRIBE to nothing [3.8.3-2]": (frame(0x82, b"\0\1\0"), ERROR),
    "packet id 0 in a SUBSCRIBE": (frame(0x82, b"\0\0\0" + text("a") + b"\0"), ERROR),
    "a SUBSCRIBE without options": (frame(0x82, b"\0\1\0" + text("a")), MALFORMED),
    "an UNSUBSCRIBE from nothing [3.10.3-2]": (frame(0xA2, b"\0\1\0"), ERROR),
    "an acknowledgement of id 0": (frame(0x40, b"\0\0"), ERROR),
    "an acknowledgement of one byte": (frame(0x40, b"\1"), MALFORMED),
}
OF_5 = {
    "reserved subscription options [3.8.3-5]": (frame(0x82, b"\0\1\0" + text("a") + b"\xc0"), MALFORMED),
    "a subscription of QoS 3": (frame(0x82, b"\0\1\0" + text("a") + b"\x03"), ERROR),
    "retain handling 3": (frame(0x82, b"\0\1\0" + text("a") + b"\x30"), ERROR),
    "no local on a shared subscription [3.8.3-4]": (
        frame(0x82, b"\0\1\0" + text("$share/g/a") + b"\x04"),
        ERROR,
    ),
    "subscription identifier 0": (frame(0x82, b"\0\1\2\x0b\0" + text("a") + b"\0"), ERROR),
    "two subscription identifiers": (frame(0x82, b"\0\1\4\x0b\1\x0b\2" + text("a") + b"\0"), ERROR),
    "a hash in the middle [4.7.1-1]": (frame(0x82, b"\0\1\0" + text("a/#/b") + b"\0"), FILTER),
    "a hash behind something": (frame(0x82, b"\0\1\0" + text("a#") + b"\0"), FILTER),
    "a plus beside something [4.7.1-2]": (frame(0x82, b"\0\1\0" + text("a+/b") + b"\0"), FILTER),
    "an empty filter [4.7.3-1]": (frame(0x82, b"\0\1\0" + text("") + b"\0"), FILTER),
    "a wrong filter of a group [4.7.1-2]": (frame(0x82, b"\0\1\0" + text("$share/g/a+") + b"\0"), FILTER),
    "a subscription identifier in a PUBLISH [3.3.4-6]": (frame(0x30, text("a") + b"\2\x0b\1"), ERROR),
    "an unknown property": (frame(0x30, text("a") + b"\2\x7f\1"), MALFORMED),
    "a property of another packet": (frame(0x30, text("a") + b"\3\x21\0\1"), MALFORMED),
    "a property that is there twice": (frame(0x30, text("a") + b"\4\x01\1\x01\1"), ERROR),
    "properties longer than the packet": (frame(0x30, text("a") + b"\x50\1"), MALFORMED),
    "a wildcard in a response topic [3.3.2-14]": (frame(0x30, text("a") + b"\x06\x08" + text("a/#")), ERROR),
    "QoS 2 where there is none [3.2.2-11]": (
        write(Publish("a", qos=2, packet_id=1), 5),
        Reason.QOS_NOT_SUPPORTED,
    ),
    "retain where there is none [3.2.2-14]": (
        write(Publish("a", retain=True), 5),
        Reason.RETAIN_NOT_SUPPORTED,
    ),
    "an AUTH out of the blue": (b"\xf0\x00", ERROR),
    "an unknown reason in a PUBACK": (frame(0x40, b"\0\1\x42\0"), ERROR),
    "an unknown reason in a DISCONNECT": (frame(0xE0, b"\x42\0"), ERROR),
    "a server's reason in a DISCONNECT": (frame(0xE0, b"\x8e\0"), ERROR),
    "a user property cut off": (frame(0x30, text("a") + b"\4\x26\0\1x"), MALFORMED),
}


@pytest.mark.parametrize("what", [*OF_BOTH, *OF_5])
def test_what_ends_a_connection(broker: BrokerProcess, what: str) -> None:
    data, reason = (OF_BOTH | OF_5)[what]
    with Raw(broker, "rude") as rude:
        rude.ping()
        rude.socket.sendall(data)
        assert rude.end() == reason


OF_4 = {
    "options of 5.0": frame(0x82, b"\0\1" + text("a") + b"\x04"),
    "a subscription of QoS 3": frame(0x82, b"\0\1" + text("a") + b"\x03"),
    "a DISCONNECT with a reason": frame(0xE0, b"\x00"),
    "a PUBACK with a reason": frame(0x40, b"\0\1\0"),
    "an AUTH": b"\xf0\x00",
    "a hash in the middle": frame(0x82, b"\0\1" + text("a/#/b") + b"\0"),
    "an empty filter": frame(0x82, b"\0\1" + text("") + b"\0"),
}


@pytest.mark.parametrize("what", [*(name for name in OF_BOTH if "SUBSCRIBE" not in name), *OF_4])
def test_what_ends_a_connection_of_3_1_1_without_a_word(broker: BrokerProcess, what: str) -> None:
    """MQTT 3.1.1 [4.8.0-1]: there is no DISCONNECT from a server."""
    data = OF_4[what] if what in OF_4 else OF_BOTH[what][0]
    with Raw(broker, "rude", version=4) as rude:
        rude.ping()
        rude.socket.sendall(data)
        assert rude.end() is None


def test_what_is_not_supported_is_said_in_the_connack(broker: BrokerProcess) -> None:
    with Raw(broker, "asking") as client:
        assert client.connack.maximum_qos == 1
        assert not client.connack.retain_available
        assert not client.connack.shared_subscription_available
        assert client.connack.maximum_packet_size == 100_000
        answer = client.subscribe("$share/g/a", "b", qos=2)
        assert answer == (Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, Reason.GRANTED_QOS_1)


def test_a_refused_publish_reaches_nobody(broker: BrokerProcess) -> None:
    with Raw(broker, "reader") as reader, Raw(broker, "rude") as rude:
        reader.subscribe("refused")
        rude.send(Publish("refused", b"x", retain=True))
        assert rude.end() == Reason.RETAIN_NOT_SUPPORTED
        assert reader.drain() == []


@pytest.mark.parametrize(
    ("will", "reason"),
    [
        (Will("a", b"", qos=2), Reason.QOS_NOT_SUPPORTED),
        (Will("a", b"", retain=True), Reason.RETAIN_NOT_SUPPORTED),
        (Will("a/#", b""), Reason.TOPIC_NAME_INVALID),
    ],
)
def test_wills_that_are_not_supported(broker: BrokerProcess, will: Will, reason: Reason) -> None:
    """[3.2.2-12], [3.2.2-13]"""
    with Raw(broker, "willing", will=will) as client:
        assert client.connack.reason == reason
        assert client.end() is None


@pytest.mark.parametrize("kind", [packets.Pubrec, packets.Pubcomp])
def test_acknowledgements_of_the_wrong_kind(
    broker: BrokerProcess, kind: type[packets.Pubrec | packets.Pubcomp]
) -> None:
    """Section 4.3.2: only a PUBACK answers QoS 1."""
    with Raw(broker, "confused") as client:
        client.subscribe("confused", qos=1)
        client.acknowledges = False
        client.publish("confused", b"x")
        (message,) = client.take(1)
        client.send(kind(message.packet_id))
        assert client.end() == ERROR


# --- in place of the CONNECT ---


def connect(
    name: str = "MQTT", level: int = 5, flags: int = 2, rest: bytes = b"", properties: bytes = b"\0"
) -> bytes:
    body = text(name) + bytes((level, flags)) + b"\0\x3c" + (properties if level >= 5 else b"")
    return frame(0x10, body + (rest or text("first")))


FIRST = {
    "an unknown level [3.1.2-2]": (connect(level=6), 5, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    "MQTT 3.1": (connect("MQIsdp", 3), 4, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    "another name [3.1.2-1]": (connect("hj"), 5, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    "another name in 3.1.1": (connect("hj", 4), 4, Reason.UNSUPPORTED_PROTOCOL_VERSION),
    "the reserved flag [3.1.2-3]": (connect(flags=3), 5, MALFORMED),
    "a will of QoS 3 [3.1.2-12]": (connect(flags=0x1E), 5, MALFORMED),
    "the QoS of no will [3.1.2-11]": (connect(flags=0x0A), 5, ERROR),
    "retaining no will [3.1.2-13]": (connect(flags=0x22), 5, ERROR),
    "a client id that is not UTF-8": (connect(rest=text(b"\xff")), 5, MALFORMED),
    "a null in the client id": (connect(rest=text("a\0")), 5, MALFORMED),
    "no client id [3.1.3-3]": (frame(0x10, text("MQTT") + b"\5\2\0\x3c\0"), 5, MALFORMED),
    "bytes behind the end": (connect(rest=text("a") + b"x"), 5, MALFORMED),
    "receive maximum 0": (connect(properties=b"\3\x21\0\0"), 5, ERROR),
    "maximum packet size 0": (connect(properties=b"\5\x27\0\0\0\0"), 5, ERROR),
    "session expiry twice": (connect(properties=b"\x0a\x11\0\0\0\1\x11\0\0\0\1"), 5, ERROR),
    "a flag of 2": (connect(properties=b"\2\x17\2"), 5, ERROR),
    "authentication data alone": (connect(properties=b"\4\x16\0\1x"), 5, ERROR),
    "an unknown authentication method [4.12.0-1]": (
        connect(properties=b"\4\x15\0\1x"),
        5,
        Reason.BAD_AUTHENTICATION_METHOD,
    ),
}


@pytest.mark.parametrize("what", FIRST)
def test_what_is_not_accepted_as_a_connect(broker: BrokerProcess, what: str) -> None:
    data, version, reason = FIRST[what]
    with Raw(broker, version=version) as client:
        client.socket.sendall(data)
        assert client.end() == reason


SILENT = {
    "a PINGREQ first [3.1.0-1]": b"\xc0\x00",
    "a PUBLISH first": write(Publish("a", b"x"), 4),
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "noise": bytes(range(255, 200, -1)),
    "reserved flags of 3.1.1": connect(level=4, flags=3),
    "flags of the header": b"\x11" + connect()[1:],
    "a password without a user in 3.1.1 [3.1.2-22]": connect(level=4, flags=0x42, rest=text("a") + text("p")),
    "too large": b"\x10\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("what", SILENT)
def test_what_is_closed_without_a_word(broker: BrokerProcess, what: str) -> None:
    with Raw(broker) as client:
        client.socket.sendall(SILENT[what])
        assert client.end() is None


# --- pieces and floods ---


def test_packets_may_come_byte_by_byte(broker: BrokerProcess) -> None:
    with Raw(broker) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in (
            packets.Connect(5, "slow"),
            packets.Subscribe(1, (packets.SubscriptionEntry("slow", 1),)),
            Publish("slow", b"x" * 200, 1, packet_id=2),
        ):
            for byte in write(packet, 5):
                client.socket.sendall(bytes((byte,)))
        client.expect(packets.Connack)
        # A SUBACK may wait until other brokers know the subscription.
        kinds = {type(client.receive()).__name__ for _ in range(3)}
        assert kinds == {"Suback", "Puback", "Publish"}


def test_packets_may_come_all_at_once_before_the_connack(broker: BrokerProcess) -> None:
    """[3.1.4-5] allows it; everything is answered in order behind the CONNACK [3.2.0-1]."""
    with Raw(broker) as client:
        all_at_once = (
            packets.Connect(5, "eager"),
            packets.Subscribe(1, (packets.SubscriptionEntry("eager", 1),)),
            packets.Pingreq(),
            Publish("eager", b"x", 1, packet_id=2),
        )
        client.socket.sendall(b"".join(write(one, 5) for one in all_at_once))
        assert isinstance(client.receive(), packets.Connack)
        kinds = {type(client.receive()).__name__ for _ in range(4)}
        assert kinds == {"Suback", "Pingresp", "Puback", "Publish"}


def test_nothing_behind_a_disconnect_counts(broker: BrokerProcess) -> None:
    """[3.14.4-1]"""
    with Raw(broker, "reader") as reader, Raw(broker, "talker") as talker:
        reader.subscribe("behind")
        talker.socket.sendall(
            write(Publish("behind", b"before"), 5)
            + write(packets.Disconnect(), 5)
            + write(Publish("behind", b"after"), 5)
        )
        assert talker.end() is None
        assert payloads(reader.drain()) == [b"before"]


def test_an_endless_packet_ends_when_its_length_is_known(broker: BrokerProcess) -> None:
    """Also if the client goes on sending, the reason reaches it."""
    with Raw(broker, "endless") as client:
        client.socket.sendall(b"\x30\xff\xff\xff\x7f")
        with suppress(ConnectionError):
            for _ in range(50):
                client.socket.sendall(bytes(20_000))
        assert client.end() == LARGE


def test_what_came_before_a_bad_packet_counts(broker: BrokerProcess) -> None:
    with Raw(broker, "reader") as reader, Raw(broker, "rude") as rude:
        reader.subscribe("good")
        rude.socket.sendall(write(Publish("good", b"x", 1, packet_id=1), 5) + b"\x00\x00")
        assert rude.receive() == packets.Puback(1)
        assert rude.end() == MALFORMED
        assert payloads(reader.drain()) == [b"x"]


def test_a_packet_that_never_ends_leaves_nothing_behind(broker: BrokerProcess) -> None:
    with Raw(broker, "reader") as reader:
        reader.subscribe("cut/off")
        with Raw(broker, "rude") as rude:
            rude.socket.sendall(write(Publish("cut/off", b"x" * 1000), 5)[:-1])
            rude.socket.shutdown(socket.SHUT_WR)
            assert rude.end() is None
        assert reader.drain() == []


def test_reasons_are_told_in_words_as_far_as_they_fit(broker: BrokerProcess) -> None:
    """[3.14.2-3]: not where the packet would become larger than the client takes."""
    for limit, told in ((None, True), (20, False)):
        with Raw(broker, "rude", maximum_packet_size=limit) as rude:
            rude.socket.sendall(b"\x00\x00")
            answer = rude.receive()
            assert isinstance(answer, packets.Disconnect)
            assert (answer.reason_string is not None) is told


def test_an_alias_does_not_hide_a_bad_topic(broker: BrokerProcess) -> None:
    with Raw(broker, "rude") as rude:
        rude.send(Publish("a", b"", 1, packet_id=1, properties=PublishProperties(topic_alias=1)))
        rude.expect(packets.Puback)
        rude.socket.sendall(frame(0x30, text("a/#") + b"\3\x23\0\1"))
        assert rude.end() == NAME
