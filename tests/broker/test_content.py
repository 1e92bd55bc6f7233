"""Content filters from PUBLISH to PUBLISH: who gets which notification, and in which order."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import pytest
from tests.mqtt.wire import read_all

from roamcast.broker.inputs import ClientConnected, ClientFrames, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.filters.filter import Value
from roamcast.filters.selector import parse_subscription
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity

JSON = packets.PublishProperties(content_type="application/json")


class Broker:
    """A site without sockets; clients are named by their connection."""

    def __init__(self) -> None:
        self.site = BrokerMachine(MachineSettings("a"))
        self.site.step(1.0, [Started(self.site.settings)])
        self.received: dict[int, list[Packet]] = {}

    def connect(self, connection: int) -> None:
        name = f"client {connection}"
        self.received[connection] = []
        connect = packets.Connect(client_id=name, version=5)
        self._keep(self.site.step(1.0, [ClientConnected(connection, connect, Identity(name))]).writes)

    def send(self, connection: int, *sent: Packet) -> None:
        data = b"".join(write(packet, 5) for packet in sent)
        self._keep(self.site.step(2.0, [ClientFrames(connection, data)]).writes)

    def subscribe(self, connection: int, *filters: str, qos: int = 0, where: str | None = None) -> None:
        entries = tuple(packets.SubscriptionEntry(filter, qos) for filter in filters)
        properties = () if where is None else (("where", where),)
        self.send(connection, packets.Subscribe(7, entries, user_properties=properties))
        answer = self.received[connection].pop()
        assert isinstance(answer, packets.Suback)
        assert all(reason < Reason.UNSPECIFIED_ERROR for reason in answer.reasons)

    def payloads(self, connection: int) -> list[bytes]:
        """What came since the last time."""
        came = [one.payload for one in self.received[connection] if isinstance(one, packets.Publish)]
        self.received[connection].clear()
        return came

    def _keep(self, writes: Mapping[int, list[bytes]]) -> None:
        for connection, parts in writes.items():
            self.received[connection] += read_all(b"".join(parts))


def publish(fields: object, topic: str = "t", qos: int = 0, packet_id: int = 0) -> packets.Publish:
    return packets.Publish(topic, json.dumps(fields).encode(), qos, packet_id=packet_id, properties=JSON)


def drawn_filter(draw: random.Random) -> str:
    lows = {name: draw.randrange(8) for name in draw.sample("uvw", draw.randint(1, 3))}
    return "t?" + "&".join(f"{name}>={low}&{name}<={low + 5}" for name, low in lows.items())


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_everyone_gets_what_its_filters_match_in_order(seed: int, qos: int) -> None:
    draw = random.Random(seed)
    broker = Broker()
    broker.connect(100)
    filters = {client: [drawn_filter(draw) for _ in range(20)] for client in range(1, 6)}
    for client, own in filters.items():
        broker.connect(client)
        broker.subscribe(client, *own, qos=qos)
    values = (*range(12), 2.5, "7", True, None)
    sent = [
        publish({name: draw.choice(values) for name in "uvw"}, qos=qos, packet_id=number * qos)
        for number in range(1, 300)
    ]
    for at in range(0, len(sent), 60):
        broker.send(100, *sent[at : at + 60])
    for client, own in filters.items():
        asked = [parse_subscription(text) for text in own]
        due = [
            one.payload
            for one in sent
            if any(filter.matches({**_fields(one), "topic": "t"}) for filter in asked)
        ]
        assert broker.payloads(client) == due
        assert 0 < len(due) < len(sent)


def _fields(one: packets.Publish) -> dict[str, Value]:
    return {name: value for name, value in json.loads(one.payload).items() if value is not None}


def test_payloads_that_are_no_objects_disturb_nobody() -> None:
    broker = Broker()
    for connection in (1, 2):
        broker.connect(connection)
    broker.subscribe(1, "t?u>5")
    odd = [
        packets.Publish("t", payload, properties=JSON)
        for payload in (b"", b"[1]", b"{", b'{"u":6},{"u":7}', b"\xff", b'"u"', b'{"u":null}', b'{"u":[9]}')
    ]
    broker.send(2, publish({"u": 6}), *odd, publish({"u": 7}), publish({"u": 8, "topic": "other"}))
    assert broker.payloads(1) == [b'{"u": 6}', b'{"u": 7}', b'{"u": 8, "topic": "other"}']


def test_one_topic_filter_is_one_subscription_whatever_its_selector() -> None:
    """MQTT 5.0 section 3.8.4: the same topic filter replaces; conditions behind `?` are a part of it."""
    broker = Broker()
    for connection in (1, 2):
        broker.connect(connection)
    broker.subscribe(1, "t", where="u < 3")
    broker.subscribe(1, "t", where="u > 6")
    notifications = [publish({"u": value}) for value in range(10)]
    broker.send(2, *notifications)
    assert broker.payloads(1) == [one.payload for one in notifications[7:]]
    broker.subscribe(1, "t?u<3")
    broker.send(2, *notifications)
    assert broker.payloads(1) == [one.payload for one in notifications[:3] + notifications[7:]]
    broker.send(1, packets.Unsubscribe(8, ("t",)))
    broker.send(2, *notifications)
    assert broker.payloads(1) == [one.payload for one in notifications[:3]]
