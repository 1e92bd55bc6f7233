"""A real client over a real socket: what paho writes is read, and what is written paho reads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roamcast.mqtt.codec.packets import (
    AcknowledgementProperties,
    Connack,
    Connect,
    Disconnect,
    Packet,
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
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

paho = pytest.importorskip("paho.mqtt.client", reason="paho-mqtt is not installed")
from paho.mqtt.enums import CallbackAPIVersion  # noqa: E402
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402
from paho.mqtt.subscribeoptions import SubscribeOptions  # noqa: E402

PATIENCE_SECONDS = 20
USER = (("kind", "tram"), ("kind", "bus"))

GREETING = PublishProperties(1, 60, "text/plain", "answers/here", b"\0\1", (1, 200), user_properties=USER)


class Server:
    """Answers one client by the book, and remembers what it sent."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.received: list[Packet] = []
        self.failed: BaseException | None = None
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(PATIENCE_SECONDS)
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        self._listening.close()
        assert not self._thread.is_alive()
        assert self.failed is None, self.failed

    def _serve(self) -> None:
        try:
            connection, _ = self._listening.accept()
            with connection:
                connection.settimeout(PATIENCE_SECONDS)
                self._converse(connection)
        except BaseException as error:  # Told by close(), in the thread of the test.
            self.failed = error

    def _converse(self, connection: socket.socket) -> None:
        buffer, start = b"", 0
        while True:
            found = cut(buffer, start, 1 << 20)
            if found is None:
                data = connection.recv(4096)
                if not data:
                    return
                buffer += data
                continue
            first, body, start = found
            packet = parse(first, buffer[body:start], self.version)
            self.received.append(packet)
            for answer in self._answers(packet):
                connection.sendall(write(answer, self.version))

    def _answers(self, packet: Packet) -> Iterator[Packet]:
        about = AcknowledgementProperties("because", USER) if self.version == 5 else None
        match packet:
            case Connect():
                yield Connack(assigned_client_id="given", receive_maximum=10, user_properties=USER)
            case Subscribe(packet_id, entries):
                yield Suback(packet_id, tuple(Reason(entry.qos) for entry in entries), about)
                for qos in (0, 1, 2):
                    greeting = GREETING if self.version == 5 else None
                    yield Publish("hello", b"qos %d" % qos, qos, True, False, qos and 100 + qos, greeting)
            case Publish(qos=1, packet_id=packet_id):
                yield Puback(packet_id, Reason.NO_MATCHING_SUBSCRIBERS, about)
            case Publish(qos=2, packet_id=packet_id):
                yield Pubrec(packet_id)
            case Pubrec(packet_id):
                yield Pubrel(packet_id)
            case Pubrel(packet_id):
                yield Pubcomp(packet_id)
            case Unsubscribe(packet_id, filters):
                yield Unsuback(packet_id, (Reason.NO_SUBSCRIPTION_EXISTED,) * len(filters), about)


class Client:
    """A paho client on its own thread; each callback's arguments are kept under its name."""

    def __init__(self, version: int) -> None:
        protocol = paho.MQTTv5 if version == 5 else paho.MQTTv311
        self.client = paho.Client(CallbackAPIVersion.VERSION2, "tram-7", protocol=protocol)
        self.seen: dict[str, list[tuple[Any, ...]]] = {}
        self._changed = threading.Condition()
        for name in ("connect", "subscribe", "publish", "message", "unsubscribe", "disconnect"):
            setattr(self.client, f"on_{name}", self._keeper(name))

    def _keeper(self, name: str) -> Callable[..., None]:
        def keep(*arguments: Any) -> None:
            with self._changed:
                self.seen.setdefault(name, []).append(arguments[2:])
                self._changed.notify_all()

        return keep

    def wait(self, name: str, count: int = 1) -> list[tuple[Any, ...]]:
        with self._changed:
            found = self._changed.wait_for(lambda: len(self.seen.get(name, ())) >= count, PATIENCE_SECONDS)
        assert found, f"{name} was seen {len(self.seen.get(name, ()))} times, not {count}: {self.seen}"
        return self.seen[name]


def described(kind: int, **values: Any) -> Properties:
    properties = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


def message_properties(kind: int, **more: Any) -> Properties:
    return described(
        kind,
        PayloadFormatIndicator=1,
        MessageExpiryInterval=60,
        ContentType="text/plain",
        ResponseTopic="answers/here",
        CorrelationData=b"\0\1",
        UserProperty=list(USER),
        **more,
    )


def converse(version: int) -> tuple[Server, Client]:
    """Connect, subscribe, receive three messages, publish three, unsubscribe, disconnect."""
    server, it = Server(version), Client(version)
    client, five = it.client, version == 5
    client.username_pw_set("me", "secret")
    will = message_properties(PacketTypes.WILLMESSAGE, WillDelayInterval=5) if five else None
    client.will_set("last/words", b"gone", 2, True, will)
    connecting = described(
        PacketTypes.CONNECT,
        SessionExpiryInterval=3600,
        ReceiveMaximum=7,
        MaximumPacketSize=100_000,
        TopicAliasMaximum=3,
        RequestResponseInformation=1,
        RequestProblemInformation=0,
        UserProperty=list(USER),
    )
    client.connect("127.0.0.1", server.port, 30, **({"properties": connecting} if five else {}))
    client.loop_start()
    it.wait("connect")
    if five:
        options = SubscribeOptions(2, noLocal=True, retainAsPublished=True, retainHandling=1)
        subscribing = described(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=200, UserProperty=list(USER))
        client.subscribe([("a/+", options), ("b/#", SubscribeOptions(1))], properties=subscribing)
    else:
        client.subscribe([("a/+", 2), ("b/#", 1)])
    it.wait("message", 3)
    for qos in (0, 1, 2):
        about = message_properties(PacketTypes.PUBLISH, TopicAlias=1) if five else None
        client.publish("a/b", b"payload", qos, True, about)
    it.wait("publish", 3)
    client.unsubscribe(["a/+", "b/#"])
    it.wait("unsubscribe")
    if five:
        client.disconnect(properties=described(PacketTypes.DISCONNECT, SessionExpiryInterval=0))
    else:
        client.disconnect()
    it.wait("disconnect")
    client.loop_stop()
    server.close()
    return server, it


def test_mqtt_5_with_a_real_client() -> None:
    server, it = converse(5)
    message = PublishProperties(1, 60, "text/plain", "answers/here", b"\0\1", user_properties=USER)
    aliased = PublishProperties(
        1, 60, "text/plain", "answers/here", b"\0\1", topic_alias=1, user_properties=USER
    )
    connect, subscribe, *between, unsubscribe, disconnect = server.received
    will = Will("last/words", b"gone", 2, True, 5, message)
    assert connect == Connect(
        5, "tram-7", True, 30, "me", b"secret", will, 3600, 7, 100_000, 3, True, False, USER
    )
    entries = (SubscriptionEntry("a/+", 2, True, True, 1), SubscriptionEntry("b/#", 1))
    assert isinstance(subscribe, Subscribe)
    assert subscribe == Subscribe(subscribe.packet_id, entries, 200, USER)
    published = [packet for packet in between if isinstance(packet, Publish)]
    assert published == [
        Publish("a/b", b"payload", qos, True, False, published[qos].packet_id, aliased) for qos in (0, 1, 2)
    ]
    answers = [packet for packet in between if not isinstance(packet, Publish)]
    assert answers == [Puback(101), Pubrec(102), Pubcomp(102), Pubrel(published[2].packet_id)]
    assert isinstance(unsubscribe, Unsubscribe)
    assert unsubscribe == Unsubscribe(unsubscribe.packet_id, ("a/+", "b/#"))
    assert disconnect == Disconnect(session_expiry=0)

    ((flags, reason, about),) = it.seen["connect"]
    assert (flags.session_present, reason.value) == (False, 0)
    assert (about.AssignedClientIdentifier, about.ReceiveMaximum) == ("given", 10)
    ((_, reasons, about),) = it.seen["subscribe"]
    assert [reason.value for reason in reasons] == [2, 1]
    assert (about.ReasonString, about.UserProperty) == ("because", list(USER))
    for qos, (received,) in enumerate(it.seen["message"]):
        assert (received.topic, received.payload, received.qos) == ("hello", b"qos %d" % qos, qos)
        assert received.retain
        about = received.properties
        assert (about.PayloadFormatIndicator, about.MessageExpiryInterval) == (1, 60)
        assert (about.ContentType, about.ResponseTopic) == ("text/plain", "answers/here")
        assert (about.CorrelationData, about.SubscriptionIdentifier) == (b"\0\1", [1, 200])
        assert about.UserProperty == list(USER)
    assert [reason.value for _, reason, _ in it.seen["publish"]] == [0, 0x10, 0]
    ((_, reasons, _),) = it.seen["unsubscribe"]
    assert [reason.value for reason in reasons] == [0x11, 0x11]


def test_mqtt_3_1_1_with_a_real_client() -> None:
    server, it = converse(4)
    connect, subscribe, *between, unsubscribe, disconnect = server.received
    assert connect == Connect(4, "tram-7", True, 30, "me", b"secret", Will("last/words", b"gone", 2, True))
    assert isinstance(subscribe, Subscribe)
    assert subscribe.entries == (SubscriptionEntry("a/+", 2), SubscriptionEntry("b/#", 1))
    published = [packet for packet in between if isinstance(packet, Publish)]
    assert [(packet.topic, packet.payload, packet.qos, packet.retain) for packet in published] == [
        ("a/b", b"payload", qos, True) for qos in (0, 1, 2)
    ]
    answers = [packet for packet in between if not isinstance(packet, Publish)]
    assert answers == [Puback(101), Pubrec(102), Pubcomp(102), Pubrel(published[2].packet_id)]
    assert isinstance(unsubscribe, Unsubscribe)
    assert unsubscribe.filters == ("a/+", "b/#")
    assert disconnect == Disconnect()
    assert [(message.topic, message.qos) for (message,) in it.seen["message"]] == [
        ("hello", qos) for qos in (0, 1, 2)
    ]
    assert [reason.value for reason in it.seen["subscribe"][0][1]] == [2, 1]


@pytest.mark.parametrize(
    ("reason", "code"), [(Reason.BAD_USER_NAME_OR_PASSWORD, 0x86), (Reason.SERVER_MOVED, 0x9D)]
)
def test_a_client_understands_why_it_was_refused(
    reason: Reason, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "_answers", lambda self, packet: [Connack(reason=reason)])
    server, it = Server(5), Client(5)
    it.client.connect("127.0.0.1", server.port)
    it.client.loop_start()
    ((_, refused, _),) = it.wait("connect")
    assert refused.value == code
    it.client.disconnect()
    it.client.loop_stop()
    server.close()
