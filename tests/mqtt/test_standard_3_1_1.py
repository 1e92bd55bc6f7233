"""MQTT 3.1.1: what the standard forbids is refused, what it allows is taken.

Statements are named as in its appendix B. There are no reason codes in 3.1.1:
the connection is closed, and a code only says why.
"""

from __future__ import annotations

import pytest
from tests.mqtt.wire import connect, frame, read, text

from roamcast.errors import InputError
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionEntry,
    Unsuback,
    Unsubscribe,
    Will,
)
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

MALFORMED, ERROR = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
FILTER_INVALID = Reason.TOPIC_FILTER_INVALID


def connect_4(*payload: bytes, flags: int = 0x02) -> bytes:
    return connect(*payload, version=4, flags=flags)


FORBIDDEN_TO_CLIENTS: list[tuple[str, bytes, Reason]] = [
    ("1.5.3-1 ill-formed", frame(0x30, text(b"\xff")), MALFORMED),
    ("1.5.3-1 surrogate", frame(0x30, text(b"\xed\xbf\xbf")), MALFORMED),
    ("1.5.3-2 null", frame(0x30, text(b"a\0")), MALFORMED),
    *(
        (f"2.2.2-2 first byte 0x{first:02X}", frame(first, b"\0\1"), MALFORMED)
        for first in (0x18, 0x4F, 0x50 | 2, 0x60, 0x71, 0x80, 0xA0, 0xC8, 0xE1)
    ),
    ("2.2.1 type 0", frame(0x00), MALFORMED),
    ("2.2.1 type 15", frame(0xF0), MALFORMED),
    ("2.3.1-1 PUBLISH", frame(0x34, text("a"), b"\0\0"), ERROR),
    ("2.3.1-1 SUBSCRIBE", frame(0x82, b"\0\0", text("a"), b"\0"), ERROR),
    ("2.3.1-1 UNSUBSCRIBE", frame(0xA2, b"\0\0", text("a")), ERROR),
    ("3.1.2-3 reserved flag", connect_4(flags=0x03), MALFORMED),
    ("3.1.2-9 no will", connect_4(text("id"), flags=0x06), MALFORMED),
    ("3.1.2-13 will QoS without a will", connect_4(flags=0x12), ERROR),
    ("3.1.2-14 will QoS 3", connect_4(text("id"), text("w"), text(""), flags=0x1E), MALFORMED),
    ("3.1.2-15 will retain without a will", connect_4(flags=0x22), ERROR),
    ("3.1.2-18 user name without its flag", connect_4(text("id"), text("me")), MALFORMED),
    ("3.1.2-19 no user name", connect_4(text("id"), flags=0x82), MALFORMED),
    ("3.1.2-20 password without flag", connect_4(text("id"), text("me"), text("x"), flags=0x82), MALFORMED),
    ("3.1.2-21 no password", connect_4(text("id"), text("me"), flags=0xC2), MALFORMED),
    ("3.1.2-22 password without a user name", connect_4(text("id"), text("x"), flags=0x42), ERROR),
    ("3.1.3-3 no client id", frame(0x10, text("MQTT"), b"\4\2\0\0"), MALFORMED),
    ("3.1.3-4 client id", connect_4(text(b"\xff")), MALFORMED),
    ("3.1.3-8 empty client id", connect_4(text(""), flags=0), Reason.CLIENT_IDENTIFIER_NOT_VALID),
    ("3.1.3-10 will topic", connect_4(text("id"), text(b"\xff"), text(""), flags=6), MALFORMED),
    ("3.1.3-11 user name", connect_4(text("id"), text(b"\xff"), flags=0x82), MALFORMED),
    ("3.1.4-1 too long", connect_4(text("id"), b"\0"), MALFORMED),
    ("3.3.1-2 duplicate of QoS 0", frame(0x38, text("a")), MALFORMED),
    ("3.3.1-4 QoS 3", frame(0x36, text("a"), b"\0\1"), MALFORMED),
    ("3.3.2-1 no topic", frame(0x30), MALFORMED),
    ("3.3.2-2 wildcard", frame(0x30, text("a/#")), Reason.TOPIC_NAME_INVALID),
    ("4.7.3-1 empty topic", frame(0x30, text("")), ERROR),
    ("3.4 PUBACK with a reason", frame(0x40, b"\0\1\0"), MALFORMED),
    ("3.6 PUBREL too short", frame(0x62, b"\0"), MALFORMED),
    ("3.8.3-1 filter", frame(0x82, b"\0\1", text(b"\xff"), b"\0"), MALFORMED),
    ("3.8.3-3 nothing", frame(0x82, b"\0\1"), ERROR),
    ("3.8.3-4 QoS 3", frame(0x82, b"\0\1", text("a"), b"\3"), MALFORMED),
    ("3.8.3-4 reserved bit 2", frame(0x82, b"\0\1", text("a"), b"\4"), MALFORMED),
    ("3.8.3-4 reserved bit 7", frame(0x82, b"\0\1", text("a"), b"\x80"), MALFORMED),
    ("4.7.1-2 # is not last", frame(0x82, b"\0\1", text("#/a"), b"\0"), FILTER_INVALID),
    ("4.7.1-3 + within a level", frame(0x82, b"\0\1", text("a/b+"), b"\0"), FILTER_INVALID),
    ("3.10.3-2 nothing", frame(0xA2, b"\0\1"), ERROR),
    ("3.12 body", frame(0xC0, b"\0"), MALFORMED),
    ("3.14.1 body", frame(0xE0, b"\0"), MALFORMED),
    ("2.2.1 CONNACK from a client", frame(0x20, b"\0\0"), ERROR),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"), [pytest.param(*rest, id=name) for name, *rest in FORBIDDEN_TO_CLIENTS]
)
def test_what_a_client_may_not_send(data: bytes, reason: Reason) -> None:
    with pytest.raises(PacketError) as refused:
        read(data, 4)
    assert refused.value.reason == reason, refused.value.text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(frame(0x20, b"\2\0"), MALFORMED, id="3.2.2.1 reserved flags"),
        pytest.param(frame(0x20, b"\1\5"), ERROR, id="3.2.2-4 refused and present"),
        pytest.param(frame(0x20, b"\0\6"), ERROR, id="3.2.2.3 no such code"),
        pytest.param(frame(0x20, b"\0\0\0"), MALFORMED, id="3.2.2 too long"),
        pytest.param(frame(0x90, b"\0\1\x87"), ERROR, id="3.9.3-2 no such code"),
        pytest.param(frame(0xB0, b"\0\1\0"), MALFORMED, id="3.11 too long"),
        pytest.param(frame(0xE0), ERROR, id="3.14 from a server"),
        pytest.param(frame(0x82, b"\0\1", text("a"), b"\0"), ERROR, id="3.8 from a server"),
    ],
)
def test_what_a_server_may_not_send(data: bytes, reason: Reason) -> None:
    with pytest.raises(PacketError) as refused:
        read(data, 4, from_client=False)
    assert refused.value.reason == reason, refused.value.text


# Each packet and its bytes; the second column says who sends it.
PACKETS: list[tuple[Packet, str, bytes]] = [
    (Connect(4, "id", True, 60), "client", connect_4()),
    (Connect(4, "", True, 60), "client", connect_4(text(""))),
    (Connect(4, "id", False, 60, "me", b"\0\xff", Will("w", b"gone", 2, True)), "client",
     connect_4(text("id"), text("w"), text("gone"), text("me"), text(b"\0\xff"), flags=0xF4)),
    (Connack(True), "server", frame(0x20, b"\1\0")),
    (Connack(False, Reason.SERVER_UNAVAILABLE), "server", frame(0x20, b"\0\3")),
    (Publish("a/b", b"payload"), "client", frame(0x30, text("a/b"), b"payload")),
    (Publish("a/b", b"", 2, True, True, 258), "server", frame(0x3D, text("a/b"), b"\1\2")),
    (Puback(1), "client", frame(0x40, b"\0\1")),
    (Pubrec(1), "server", frame(0x50, b"\0\1")),
    (Pubrel(1), "client", frame(0x62, b"\0\1")),
    (Pubcomp(1), "server", frame(0x70, b"\0\1")),
    (Subscribe(1, (SubscriptionEntry("a/+", 2), SubscriptionEntry("$share/any"))), "client",
     frame(0x82, b"\0\1", text("a/+"), b"\2", text("$share/any"), b"\0")),
    (Suback(1, (Reason.GRANTED_QOS_2, Reason.UNSPECIFIED_ERROR)), "server", frame(0x90, b"\0\1\2\x80")),
    (Unsubscribe(1, ("a/+", "b")), "client", frame(0xA2, b"\0\1", text("a/+"), text("b"))),
    (Unsuback(1), "server", frame(0xB0, b"\0\1")),
    (Pingreq(), "client", frame(0xC0)),
    (Pingresp(), "server", frame(0xD0)),
    (Disconnect(), "client", frame(0xE0)),
]  # fmt: skip


@pytest.mark.parametrize(("packet", "sender", "data"), PACKETS)
def test_each_packet_has_its_bytes(packet: Packet, sender: str, data: bytes) -> None:
    assert write(packet, 4) == data
    assert read(data, 4, from_client=sender == "client") == packet


@pytest.mark.parametrize(
    ("packet", "data"),
    [
        (Connack(reason=Reason.QUOTA_EXCEEDED), frame(0x20, b"\0\3")),
        (Connack(reason=Reason.BANNED, reason_string="why"), frame(0x20, b"\0\5")),
        (Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), frame(0x40, b"\0\1")),
        (Publish("a", b"x", properties=PublishProperties(content_type="y")), frame(0x30, text("a"), b"x")),
        (
            Subscribe(1, (SubscriptionEntry("a", 1, True, True, 2),), 5),
            frame(0x82, b"\0\1", text("a"), b"\1"),
        ),
        (Suback(1, (Reason.NOT_AUTHORIZED,)), frame(0x90, b"\0\1\x80")),
        (Unsuback(1, (Reason.NO_SUBSCRIPTION_EXISTED,)), frame(0xB0, b"\0\1")),
        (Disconnect(Reason.UNSPECIFIED_ERROR), frame(0xE0)),
    ],
)
def test_what_3_1_1_cannot_say_is_left_out(packet: Packet, data: bytes) -> None:
    assert write(packet, 4) == data


LONG = "x" * 65_536


@pytest.mark.parametrize(
    ("packet", "version", "message"),
    [
        (Auth(), 4, "has no AUTH"),
        (Connect(4, "id", password=b"x"), 4, "no password without a user name"),
        (Connect(4, "id"), 5, "cannot be written as level 5"),
        (Connect(5, "id", keep_alive=65_536), 5, "0 to 65535 are valid"),
        (Connect(5, "id", session_expiry=2**32), 5, "0 to 4294967295 are valid"),
        (Connect(5, "id", will=Will("a", b"", 3)), 5, "0, 1 and 2 are valid"),
        (Publish("a", qos=3, packet_id=1), 4, "0, 1 and 2 are valid"),
        (Publish("a", qos=1), 4, "1 to 65535 are valid"),
        (Publish(LONG), 4, "at most 65535"),
        (Publish("a\0"), 5, "null character"),
        (Publish("\ud800"), 5, "no UTF-8 form"),
        (Publish("a", properties=PublishProperties(subscription_identifiers=(2**28,))), 5, "variable byte"),
        (Publish("a", properties=PublishProperties(correlation_data=LONG.encode())), 5, "at most 65535"),
        (Puback(0), 4, "1 to 65535 are valid"),
        (Subscribe(1, ()), 4, "at least one topic filter"),
        (Subscribe(1, (SubscriptionEntry("a", retain_handling=3),)), 5, "0, 1 and 2 are valid"),
        (Unsubscribe(1, ()), 4, "at least one topic filter"),
    ],
)
def test_what_cannot_be_written_is_bad_input(packet: Packet, version: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(packet, version)
