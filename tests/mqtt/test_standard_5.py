"""MQTT 5.0: what the standard forbids is refused with the code it names, what it allows is taken.

Statements are named as in its appendix B, sections where it has no number for a rule.
"""

from __future__ import annotations

import pytest
from tests.mqtt.wire import block, connect, frame, publish, read, subscribe, text

from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packets import (
    AcknowledgementProperties,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    PublishProperties,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionEntry,
    Unsuback,
    Unsubscribe,
    Will,
)
from roamcast.mqtt.codec.reading import cut, parse_connect
from roamcast.mqtt.codec.reasons import Reason, connack_3_1_1
from roamcast.mqtt.codec.writing import refusal, write

MALFORMED, ERROR = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
NAME_INVALID, FILTER_INVALID = Reason.TOPIC_NAME_INVALID, Reason.TOPIC_FILTER_INVALID
USER = b"\x26" + text("a") + text("b")
WILL = b"\0" + text("will") + text("gone")

FORBIDDEN_TO_CLIENTS: list[tuple[str, bytes, Reason]] = [
    # 1.5: data representation
    ("1.5.4-1 surrogate", connect(text(b"\xed\xa0\x80")), MALFORMED),
    ("1.5.4-1 overlong", connect(text(b"\xc0\xaf")), MALFORMED),
    ("1.5.4-1 beyond U+10FFFF", connect(text(b"\xf4\x90\x80\x80")), MALFORMED),
    ("1.5.4-1 cut off", publish(b"a\xc3"), MALFORMED),
    ("1.5.4-2 null in client id", connect(text(b"a\0b")), MALFORMED),
    ("1.5.4-2 null in topic", publish(b"a\0"), MALFORMED),
    ("1.5.4-2 null in filter", subscribe(text(b"a\0") + b"\0"), MALFORMED),
    ("1.5.5-1 property length", publish(properties=b"\x80\0"), MALFORMED),
    ("1.5.5 property length of five bytes", publish(properties=b"\x80\x80\x80\x80\1"), MALFORMED),
    ("1.5.5-1 subscription identifier", subscribe(properties=block(b"\x0b\x81\0")), MALFORMED),
    ("1.5.7-1 key", publish(properties=block(b"\x26" + text(b"\xff") + text("b"))), MALFORMED),
    ("1.5.7-1 value", publish(properties=block(b"\x26" + text("a") + text(b"\0"))), MALFORMED),
    ("1.5.7 no value", publish(properties=block(b"\x26" + text("a"))), MALFORMED),
    # 2.1: fixed header
    ("2.1.2 type 0", frame(0x00), MALFORMED),
    *(
        (f"2.1.3-1 first byte 0x{first:02X}", frame(first, b"\0\1"), MALFORMED)
        for first in (0x11, 0x41, 0x52, 0x60, 0x63, 0x6A, 0x74, 0x80, 0x8A, 0xA0, 0xA3, 0xC1, 0xE8, 0xF1)
    ),
    ("2.1.3 second half of CONNECT", connect(first=0x12), MALFORMED),
    *(
        (f"2.1.2 direction of type {first >> 4}", frame(first, b"\0\0\0"), ERROR)
        for first in (0x20, 0x90, 0xB0, 0xD0)
    ),
    # 2.2: packet identifiers and properties
    ("2.2.1-3 PUBLISH", publish(first=0x32, packet_id=b"\0\0"), ERROR),
    ("2.2.1-3 SUBSCRIBE", subscribe(packet_id=b"\0\0"), ERROR),
    ("2.2.1-3 UNSUBSCRIBE", frame(0xA2, b"\0\0\0", text("a")), ERROR),
    ("2.2.1 PUBACK", frame(0x40, b"\0\0"), ERROR),
    ("2.2.1 PUBREL", frame(0x62, b"\0\0"), ERROR),
    ("2.2.1-3 no room", frame(0x32, text("a"), b"\1"), MALFORMED),
    ("2.2.2-1 no property length", frame(0x30, text("a")), MALFORMED),
    ("2.2.2.1 too long", frame(0x30, text("a"), b"\x03\x01\0"), MALFORMED),
    ("2.2.2.2 unknown", publish(properties=block(b"\x04\0")), MALFORMED),
    ("2.2.2.2 unknown of two bytes", publish(properties=block(b"\x81\1\0")), MALFORMED),
    ("2.2.2.2 of another packet", publish(properties=block(b"\x21\0\1")), MALFORMED),
    ("2.2.2.2 will delay in CONNECT", connect(properties=block(b"\x18\0\0\0\1")), MALFORMED),
    ("2.2.2.2 alias in will", connect(text(""), block(b"\x23\0\1"), text("w"), b"\0\0", flags=6), MALFORMED),
    ("2.2.2.2 in UNSUBSCRIBE", frame(0xA2, b"\0\1", block(b"\x0b\1"), text("a")), MALFORMED),
    ("2.2.2.2 in PUBACK", frame(0x40, b"\0\1\0", block(b"\x01\0")), MALFORMED),
    ("2.2.2.2 cut off", publish(properties=block(b"\x02\0\0\0")), MALFORMED),
    ("2.2.2.2 string past the block", publish(properties=block(b"\x03\0\5a")), MALFORMED),
    ("2.2.2.2 only an identifier", publish(properties=block(b"\x01")), MALFORMED),
    # 3.1: CONNECT
    ("3.1.2-3 reserved flag", connect(flags=0x03), MALFORMED),
    ("3.1.2-9 no will in the payload", connect(text("id"), flags=0x06), MALFORMED),
    ("3.1.2-9 no will payload", connect(text("id"), b"\0", text("w"), flags=0x06), MALFORMED),
    ("3.1.2-11 will QoS without a will", connect(flags=0x0A), ERROR),
    ("3.1.2-12 will QoS 3", connect(text("id"), WILL, flags=0x1E), MALFORMED),
    ("3.1.2-13 will retain without a will", connect(flags=0x22), ERROR),
    ("3.1.2-16 user name without its flag", connect(text("id"), text("me")), MALFORMED),
    ("3.1.2-17 no user name", connect(text("id"), flags=0x82), MALFORMED),
    ("3.1.2-18 password without its flag", connect(text("id"), text("me"), text("x"), flags=0x82), MALFORMED),
    ("3.1.2-19 no password", connect(text("id"), flags=0x42), MALFORMED),
    ("3.1.2.11.2 session expiry twice", connect(properties=block(b"\x11\0\0\0\1" * 2)), ERROR),
    ("3.1.2.11.3 receive maximum 0", connect(properties=block(b"\x21\0\0")), ERROR),
    ("3.1.2.11.3 receive maximum twice", connect(properties=block(b"\x21\0\1" * 2)), ERROR),
    ("3.1.2.11.4 maximum packet size 0", connect(properties=block(b"\x27\0\0\0\0")), ERROR),
    ("3.1.2.11.5 topic alias maximum twice", connect(properties=block(b"\x22\0\1" * 2)), ERROR),
    ("3.1.2.11.6 request response information 2", connect(properties=block(b"\x19\2")), ERROR),
    ("3.1.2.11.7 request problem information 2", connect(properties=block(b"\x17\2")), ERROR),
    ("3.1.2.11.10 data without a method", connect(properties=block(b"\x16" + text("x"))), ERROR),
    ("3.1.3-3 no client id", frame(0x10, text("MQTT"), b"\5\2\0\0\0"), MALFORMED),
    ("3.1.3-4 client id", connect(text(b"\xff")), MALFORMED),
    ("3.1.3-11 will topic", connect(text("id"), b"\0", text(b"\xff\xfe"), text(""), flags=6), MALFORMED),
    ("4.7.0-1 will topic", connect(text("id"), b"\0", text("a/+"), text(""), flags=6), NAME_INVALID),
    ("4.7.3-1 will topic", connect(text("id"), b"\0", text(""), text(""), flags=6), ERROR),
    ("3.1.3-12 user name", connect(text("id"), text(b"\xff\xfe"), flags=0x82), MALFORMED),
    ("3.1.4-1 more than a CONNECT", connect(text("id"), b"x"), MALFORMED),
    ("3.1.4-1 less than a CONNECT", frame(0x10, text("MQTT")), MALFORMED),
    ("3.1.4-1 nothing", frame(0x10), MALFORMED),
    # 3.3: PUBLISH
    ("3.3.1-2 duplicate of QoS 0", publish(first=0x38), MALFORMED),
    ("3.3.1-4 QoS 3", publish(first=0x36, packet_id=b"\0\1"), MALFORMED),
    ("3.3.1-4 QoS 3, duplicate", publish(first=0x3E, packet_id=b"\0\1"), MALFORMED),
    ("3.3.2-1 no topic", frame(0x30), MALFORMED),
    ("3.3.2-1 half a length", frame(0x30, b"\0"), MALFORMED),
    ("3.3.2-1 topic cut off", frame(0x30, b"\0\5abc"), MALFORMED),
    ("3.3.2-1 not UTF-8", publish(b"\xff"), MALFORMED),
    ("3.3.2-2 +", publish("a/+"), NAME_INVALID),
    ("3.3.2-2 #", publish("#"), NAME_INVALID),
    ("3.3.2.1 neither topic nor alias", publish(""), ERROR),
    ("3.3.2.3.2 payload format twice", publish(properties=block(b"\1\1" * 2)), ERROR),
    ("3.3.2.3.3 message expiry twice", publish(properties=block(b"\2\0\0\0\1" * 2)), ERROR),
    ("3.3.2-8 topic alias 0", publish(properties=block(b"\x23\0\0")), Reason.TOPIC_ALIAS_INVALID),
    ("3.3.2.3.4 topic alias twice", publish(properties=block(b"\x23\0\1" * 2)), ERROR),
    ("3.3.2-13 response topic", publish(properties=block(b"\x08" + text(b"\xff"))), MALFORMED),
    ("3.3.2-14 response topic", publish(properties=block(b"\x08" + text("a/#"))), ERROR),
    ("4.7.3-1 response topic", publish(properties=block(b"\x08" + text(""))), ERROR),
    ("3.3.2.3.5 response topic twice", publish(properties=block((b"\x08" + text("a")) * 2)), ERROR),
    ("3.3.2.3.6 correlation data twice", publish(properties=block((b"\x09" + text("a")) * 2)), ERROR),
    ("3.3.2-19 content type", publish(properties=block(b"\x03" + text(b"\xff"))), MALFORMED),
    ("3.3.2.3.9 content type twice", publish(properties=block((b"\x03" + text("a")) * 2)), ERROR),
    ("3.3.4-6 subscription identifier", publish(properties=block(b"\x0b\1")), ERROR),
    ("3.3.2.3.8 subscription identifier 0", publish(properties=block(b"\x0b\0")), ERROR),
    # 3.4 to 3.7: acknowledgements
    ("3.4.2-1 reason", frame(0x40, b"\0\1\x92"), ERROR),
    ("3.4.2.2.2 reason string twice", frame(0x40, b"\0\1\0", block((b"\x1f" + text("a")) * 2)), ERROR),
    ("3.4.2 cut off", frame(0x40, b"\0"), MALFORMED),
    ("3.4.2 too long", frame(0x40, b"\0\1\0\0x"), MALFORMED),
    ("3.5.2-1 reason", frame(0x50, b"\0\1\x01"), ERROR),
    ("3.6.2-1 reason", frame(0x62, b"\0\1\x10"), ERROR),
    ("3.7.2-1 reason", frame(0x70, b"\0\1\x80"), ERROR),
    # 3.8: SUBSCRIBE
    ("3.8.3-1 filter", subscribe(text(b"\xff") + b"\0"), MALFORMED),
    ("3.8.3-2 nothing", frame(0x82, b"\0\1\0"), ERROR),
    ("3.8.3 no options", subscribe(text("a")), MALFORMED),
    ("3.8.3 filter cut off", subscribe(b"\0\5ab"), MALFORMED),
    ("3.8.3 no packet id", frame(0x82), MALFORMED),
    ("3.8.3-4 no local, shared", subscribe(text("$share/g/a") + b"\4"), ERROR),
    ("3.8.3-5 reserved 0x40", subscribe(text("a") + b"\x40"), MALFORMED),
    ("3.8.3-5 reserved 0x80", subscribe(text("a") + b"\x80"), MALFORMED),
    ("3.8.3.1 QoS 3", subscribe(text("a") + b"\3"), ERROR),
    ("3.8.3.1 retain handling 3", subscribe(text("a") + b"\x30"), ERROR),
    ("3.8.3 second entry", subscribe(text("a") + b"\0", text("b/#/c") + b"\0"), FILTER_INVALID),
    ("3.8.2.1.2 identifier 0", subscribe(properties=block(b"\x0b\0")), ERROR),
    ("3.8.2.1.2 identifier twice", subscribe(properties=block(b"\x0b\1" * 2)), ERROR),
    ("3.8.2.1.2 identifier too large", subscribe(properties=block(b"\x0b\x80\x80\x80\x80\1")), MALFORMED),
    ("4.7.1-1 # is not last", subscribe(text("a/#/b") + b"\0"), FILTER_INVALID),
    ("4.7.1-1 # within a level", subscribe(text("a/b#") + b"\0"), FILTER_INVALID),
    ("4.7.1-2 + within a level", subscribe(text("a+") + b"\0"), FILTER_INVALID),
    ("4.7.3-1 empty", subscribe(text("") + b"\0"), FILTER_INVALID),
    ("4.8.2 wrong filter", subscribe(text("$share/g/a+") + b"\0"), FILTER_INVALID),
    # 3.10: UNSUBSCRIBE
    ("3.10.3-1 filter", frame(0xA2, b"\0\1\0", text(b"\xff")), MALFORMED),
    ("3.10.3-2 nothing", frame(0xA2, b"\0\1\0"), ERROR),
    ("4.7.1-1 in UNSUBSCRIBE", frame(0xA2, b"\0\1\0", text("#/a")), FILTER_INVALID),
    # 3.12, 3.14, 3.15
    ("3.12 PINGREQ with a body", frame(0xC0, b"\0"), MALFORMED),
    ("3.14.2-1 not from a client", frame(0xE0, b"\x8e"), ERROR),
    ("3.14.2-1 no such code", frame(0xE0, b"\x05"), ERROR),
    ("3.14.2 too long", frame(0xE0, b"\0\0\0"), MALFORMED),
    ("3.14.2.2.2 session expiry twice", frame(0xE0, b"\0", block(b"\x11\0\0\0\1" * 2)), ERROR),
    ("3.14.2.2.5 server reference", frame(0xE0, b"\0", block(b"\x1c" + text("x"))), ERROR),
    ("3.15.2-1 success from a client", frame(0xF0, b"\0", block(b"\x15" + text("m"))), ERROR),
    ("3.15.2-1 nothing from a client", frame(0xF0), ERROR),
    ("3.15.2-1 no such code", frame(0xF0, b"\x1a", block(b"\x15" + text("m"))), ERROR),
    ("3.15.2.2.2 no method", frame(0xF0, b"\x18\0"), ERROR),
    ("3.15.2.2.2 method twice", frame(0xF0, b"\x18", block((b"\x15" + text("m")) * 2)), ERROR),
    ("3.15.2 no properties", frame(0xF0, b"\x18"), MALFORMED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"), [pytest.param(*rest, id=name) for name, *rest in FORBIDDEN_TO_CLIENTS]
)
def test_what_a_client_may_not_send(data: bytes, reason: Reason) -> None:
    with pytest.raises(PacketError) as refused:
        read(data)
    assert refused.value.reason == reason, refused.value.text
    assert refused.value.text.isprintable()


FORBIDDEN_TO_SERVERS: list[tuple[str, bytes, Reason]] = [
    *(
        (f"2.1.2 direction of type {first >> 4}", frame(first, b"\0\1\0"), ERROR)
        for first in (0x10, 0x82, 0xA2, 0xC0)
    ),
    ("3.2.2-1 reserved flags", frame(0x20, b"\2\0\0"), MALFORMED),
    ("3.2.2-6 refused and present", frame(0x20, b"\1\x87\0"), ERROR),
    ("3.2.2-8 no such code", frame(0x20, b"\0\x8b\0"), ERROR),
    ("3.2.2 return code of 3.1.1", frame(0x20, b"\0\1\0"), ERROR),
    ("3.2.2 no properties", frame(0x20, b"\0\0"), MALFORMED),
    ("3.2.2 too long", frame(0x20, b"\0\0\0\0"), MALFORMED),
    ("3.2.2.3.3 receive maximum 0", frame(0x20, b"\0\0", block(b"\x21\0\0")), ERROR),
    ("3.2.2.3.4 maximum QoS 2", frame(0x20, b"\0\0", block(b"\x24\2")), ERROR),
    ("3.2.2.3.4 maximum QoS twice", frame(0x20, b"\0\0", block(b"\x24\1" * 2)), ERROR),
    ("3.2.2.3.5 retain available 2", frame(0x20, b"\0\0", block(b"\x25\2")), ERROR),
    ("3.2.2.3.6 maximum packet size 0", frame(0x20, b"\0\0", block(b"\x27\0\0\0\0")), ERROR),
    ("2.2.2.2 request problem information", frame(0x20, b"\0\0", block(b"\x17\1")), MALFORMED),
    ("3.3.2-8 topic alias 0", publish("", properties=block(b"\x23\0\0")), Reason.TOPIC_ALIAS_INVALID),
    ("3.3.2.3.8 identifier 0", publish(properties=block(b"\x0b\1\x0b\0")), ERROR),
    ("3.9.3-2 no such code", frame(0x90, b"\0\1\0\x03"), ERROR),
    ("3.9.3 none", frame(0x90, b"\0\1\0"), ERROR),
    ("3.11.3-2 no such code", frame(0xB0, b"\0\1\0\x01"), ERROR),
    ("3.11.3 none", frame(0xB0, b"\0\1\0"), ERROR),
    ("3.13 PINGRESP with a body", frame(0xD0, b"\0"), MALFORMED),
    ("3.14.2-1 only from a client", frame(0xE0, b"\x04"), ERROR),
    ("3.14.2-2 session expiry", frame(0xE0, b"\0", block(b"\x11\0\0\0\1")), ERROR),
    ("3.15.2-1 only from a client", frame(0xF0, b"\x19", block(b"\x15" + text("m"))), ERROR),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "reason"), [pytest.param(*rest, id=name) for name, *rest in FORBIDDEN_TO_SERVERS]
)
def test_what_a_server_may_not_send(data: bytes, reason: Reason) -> None:
    with pytest.raises(PacketError) as refused:
        read(data, from_client=False)
    assert refused.value.reason == reason, refused.value.text


ALLOWED_TO_CLIENTS: list[tuple[str, bytes, Packet]] = [
    ("1.5.4-3 byte order mark", publish(b"\xef\xbb\xbfa"), Publish("\ufeffa", b"payload")),
    ("2.2.1-2 no packet id with QoS 0", publish("a"), Publish("a", b"payload")),
    ("2.2.2-1 no properties", connect(), Connect(5, "id", True, 60)),
    ("3.1.2.9 password without a user name", connect(text("id"), text("x"), flags=0x42),
     Connect(5, "id", True, 60, None, b"x")),
    ("3.1.3-1 order of the payload", connect(text("id"), WILL, text("me"), text(b"\0\xff"), flags=0xEC),
     Connect(5, "id", False, 60, "me", b"\0\xff", Will("will", b"gone", 1, True))),
    ("3.1.3-6 empty client id", connect(text(""), flags=0), Connect(5, "", False, 60)),
    ("3.1.3.2 will properties",
     connect(text("id"), block(b"\x18\0\0\0\7", b"\1\1", b"\2\0\0\0\5"), text("w"), text(""), flags=6),
     Connect(5, "id", True, 60, will=Will("w", b"", delay=7, properties=PublishProperties(1, 5)))),
    ("3.1.2.11.8 user properties repeat", connect(properties=block(USER, USER)),
     Connect(5, "id", True, 60, user_properties=(("a", "b"), ("a", "b")))),
    ("3.1.2.11 all", connect(properties=block(
        b"\x11\xff\xff\xff\xff", b"\x21\0\1", b"\x27\0\0\0\1", b"\x22\0\2", b"\x19\1", b"\x17\0",
        b"\x15" + text("m"), b"\x16" + text("d"))),
     Connect(5, "id", True, 60, None, None, None, 2**32 - 1, 1, 1, 2, True, False, (), "m", b"d")),
    ("3.3.1-4 QoS 2, duplicate, retained", publish(first=0x3D, packet_id=b"\1\2"),
     Publish("a", b"payload", 2, True, True, 258)),
    ("3.3.2.3.4 alias for an empty topic", publish("", properties=block(b"\x23\0\7")),
     Publish("", b"payload", properties=PublishProperties(topic_alias=7))),
    ("3.3.3 no payload", frame(0x30, text("a"), b"\0"), Publish("a")),
    ("4.7.3 a topic of spaces, slashes and dollars", publish("/ /$/"), Publish("/ /$/", b"payload")),
    ("3.4.2 without a reason", frame(0x40, b"\0\1"), Puback(1)),
    ("3.4.2.1 without properties", frame(0x40, b"\0\1\x10"), Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)),
    ("3.4.2.2 empty properties", frame(0x40, b"\0\1\0\0"), Puback(1)),
    ("3.6.2 with all", frame(0x62, b"\0\1\x92", block(b"\x1f" + text("why"), USER)),
     Pubrel(1, Reason.PACKET_IDENTIFIER_NOT_FOUND, AcknowledgementProperties("why", (("a", "b"),)))),
    ("3.7.2", frame(0x70, b"\xff\xff\x92"), Pubcomp(65_535, Reason.PACKET_IDENTIFIER_NOT_FOUND)),
    ("3.8.3.1 options", subscribe(text("a/+/#") + b"\x2d", text("$share/g/+/a") + b"\x1a"),
     Subscribe(1, (SubscriptionEntry("a/+/#", 1, True, True, 2),
                   SubscriptionEntry("$share/g/+/a", 2, False, True, 1)))),
    ("3.8.2.1.2 identifier", subscribe(properties=block(b"\x0b\xff\xff\xff\x7f")),
     Subscribe(1, (SubscriptionEntry("a"),), 268_435_455)),
    ("4.7.1 + beside #", subscribe(text("+/#") + b"\0", text("/+//") + b"\0"),
     Subscribe(1, (SubscriptionEntry("+/#"), SubscriptionEntry("/+//")))),
    ("4.8.2-1 what is wrong with a share name is for the answer", subscribe(text("$share//a") + b"\0"),
     Subscribe(1, (SubscriptionEntry("$share//a", 0),))),
    ("4.8.2 $share without a slash is a filter", subscribe(text("$share") + b"\4"),
     Subscribe(1, (SubscriptionEntry("$share", 0, True),))),
    ("content tail behind a wildcard", subscribe(text("a/+?x>1") + b"\0", text("a/#?y=+") + b"\0"),
     Subscribe(1, (SubscriptionEntry("a/+?x>1"), SubscriptionEntry("a/#?y=+")))),
    ("3.10.3", frame(0xA2, b"\0\1", block(USER), text("a"), text("$share/g/#")),
     Unsubscribe(1, ("a", "$share/g/#"), (("a", "b"),))),
    ("3.14.2.1 empty", frame(0xE0), Disconnect()),
    ("3.14.2.2 reason only", frame(0xE0, b"\x04"), Disconnect(Reason.DISCONNECT_WITH_WILL_MESSAGE)),
    ("3.14.2.2.2 session expiry", frame(0xE0, b"\0", block(b"\x11\0\0\0\0")), Disconnect(session_expiry=0)),
    ("3.15.2", frame(0xF0, b"\x19", block(b"\x15" + text("m"))), Auth(Reason.RE_AUTHENTICATE, "m")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "packet"), [pytest.param(*rest, id=name) for name, *rest in ALLOWED_TO_CLIENTS]
)
def test_what_a_client_may_send(data: bytes, packet: Packet) -> None:
    assert read(data) == packet


ALLOWED_TO_SERVERS: list[tuple[str, bytes, Packet]] = [
    ("3.2.2", frame(0x20, b"\1\0\0"), Connack(True)),
    ("3.2.2.3", frame(0x20, b"\0\0", block(b"\x24\1", b"\x25\0", b"\x2a\0", b"\x12" + text("given"))),
     Connack(maximum_qos=1, retain_available=False, shared_subscription_available=False,
             assigned_client_id="given")),
    ("3.2.2.2", frame(0x20, b"\0\x9f\0"), Connack(reason=Reason.CONNECTION_RATE_EXCEEDED)),
    ("3.3.2.3.8 several identifiers", publish(properties=block(b"\x0b\1", b"\x0b\x80\1")),
     Publish("a", b"payload", properties=PublishProperties(subscription_identifiers=(1, 128)))),
    ("3.9.3", frame(0x90, b"\0\1\0\0\2\x8f"),
     Suback(1, (Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_2, Reason.TOPIC_FILTER_INVALID))),
    ("3.11.3", frame(0xB0, b"\0\1\0\x11"), Unsuback(1, (Reason.NO_SUBSCRIPTION_EXISTED,))),
    ("3.14.2", frame(0xE0, b"\x9d", block(b"\x1c" + text("there"))),
     Disconnect(Reason.SERVER_MOVED, server_reference="there")),
    ("3.15.2.1 success needs no bytes", frame(0xF0), Auth()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "packet"), [pytest.param(*rest, id=name) for name, *rest in ALLOWED_TO_SERVERS]
)
def test_what_a_server_may_send(data: bytes, packet: Packet) -> None:
    assert read(data, from_client=False) == packet


# --- the remaining length -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\x80\x01", 128),
        (b"\xff\x7f", 16_383),
        (b"\x80\x80\x01", 16_384),
        (b"\xff\xff\x7f", 2_097_151),
        (b"\x80\x80\x80\x01", 2_097_152),
        (b"\xff\xff\xff\x7f", 268_435_455),
    ],
)
def test_the_values_of_table_1_1(length: bytes, value: int) -> None:
    size = 1 + len(length) + value
    for seen in range(1 + len(length)):
        assert cut((b"\x30" + length)[:seen], 0, size) is None
    if value <= 16_384:
        assert cut(b"x\x30" + length + b"a" * value, 1, size) == (0x30, 2 + len(length), 1 + size)
    with pytest.raises(PacketError) as refused:
        cut(b"\x30" + length, 0, size - 1)
    assert refused.value.reason == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    "length", [b"\x80\x80\x80\x80", b"\xff\xff\xff\xff\x7f", b"\x80\x00", b"\xff\x80\x00"]
)
def test_a_remaining_length_that_can_never_be_right(length: bytes) -> None:
    """[MQTT-1.5.5-1] and section 1.5.5: at most four bytes, and no more than needed."""
    with pytest.raises(PacketError) as refused:
        cut(b"\xc0" + length, 0, 1 << 30)
    assert refused.value.reason == Reason.MALFORMED_PACKET


# --- how a refused CONNECT is answered --------------------------------------------------------------------


def refused(data: bytes) -> PacketError:
    found = cut(data, 0, 1 << 20)
    assert found is not None
    with pytest.raises(PacketError) as error:
        parse_connect(data[found[1] :])
    return error.value


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        pytest.param(connect(name="MQIsdp", version=3), b"\x20\x02\0\x01", id="MQTT 3.1"),
        pytest.param(connect(version=3), b"\x20\x02\0\x01", id="level 3"),
        pytest.param(connect(name="hj", version=4), b"\x20\x02\0\x01", id="3.1.2-1 name, level 4"),
        pytest.param(connect(name="hj"), b"\x20\x03\0\x84\0", id="3.1.2-1 name, level 5"),
        pytest.param(connect(version=6), b"\x20\x03\0\x84\0", id="3.1.2-2 level 6"),
        pytest.param(connect(version=0x84), b"\x20\x03\0\x84\0", id="3.1.2-2 bridge"),
        pytest.param(connect(version=0), b"\x20\x02\0\x01", id="level 0"),
        pytest.param(frame(0x10, text("MQTT")), b"", id="no level"),
        pytest.param(connect(flags=3), b"\x20\x03\0\x81\0", id="malformed"),
        pytest.param(connect(properties=block(b"\x21\0\0")), b"\x20\x03\0\x82\0", id="protocol error"),
        pytest.param(connect(flags=3, version=4), b"", id="3.1.1 malformed"),
        pytest.param(connect(text(""), version=4, flags=0), b"\x20\x02\0\x02", id="3.1.1 empty client id"),
    ],
)
def test_a_refused_connect_is_answered_in_its_version(data: bytes, answer: bytes) -> None:
    assert refusal(refused(data)) == answer


@pytest.mark.parametrize("name", ["MQTT", "MQIsdp", "hj"])
@pytest.mark.parametrize("level", [0, 1, 2, 3, 6, 83, 84, 255])
def test_an_unsupported_protocol_is_named(name: str, level: int) -> None:
    error = refused(connect(name=name, version=level))
    assert error.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
    assert error.version == level
    assert repr(name) in error.text


def test_a_refusal_says_why() -> None:
    error = refused(connect(properties=block(b"\x21\0\0")))
    assert str(error) == "CONNECT: a receive maximum of 0 is not allowed (protocol error, 0x82)"


def test_every_reason_has_a_return_code_in_3_1_1() -> None:
    assert {reason.name: connack_3_1_1(reason) for reason in Reason if connack_3_1_1(reason) != 3} == {
        "SUCCESS": 0,
        "UNSUPPORTED_PROTOCOL_VERSION": 1,
        "CLIENT_IDENTIFIER_NOT_VALID": 2,
        "BAD_USER_NAME_OR_PASSWORD": 4,
        "NOT_AUTHORIZED": 5,
        "BANNED": 5,
        "BAD_AUTHENTICATION_METHOD": 5,
    }


# --- what is written ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packet", "data"),
    [
        (Connack(True), frame(0x20, b"\1\0\0")),
        (Connack(receive_maximum=20), frame(0x20, b"\0\0", block(b"\x21\0\x14"))),
        (Puback(1), frame(0x40, b"\0\1")),
        (Puback(1, Reason.NO_MATCHING_SUBSCRIBERS), frame(0x40, b"\0\1\x10")),
        (Pubrel(1), frame(0x62, b"\0\1")),
        (Suback(1, (Reason.GRANTED_QOS_1,)), frame(0x90, b"\0\1\0\1")),
        (Unsuback(1, (Reason.SUCCESS,)), frame(0xB0, b"\0\1\0\0")),
        (Disconnect(), frame(0xE0)),
        (Disconnect(Reason.SESSION_TAKEN_OVER), frame(0xE0, b"\x8e")),
        (Disconnect(session_expiry=0), frame(0xE0, b"\0", block(b"\x11\0\0\0\0"))),
        (Auth(), frame(0xF0)),
    ],
)
def test_packets_are_written_as_short_as_the_standard_allows(packet: Packet, data: bytes) -> None:
    assert write(packet, 5) == data
