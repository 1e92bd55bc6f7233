"""An MQTT client over a plain socket, which can also do what no library would."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Protocol, Self, TypeVar

from tests.daemon.broker_process import DEADLINE_S

from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet, Publish, PublishProperties
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

P = TypeVar("P", bound=Packet)


class Listening(Protocol):
    port: int


class Raw:
    """One connection. What is published to it waits in `inbox`; it is acknowledged unless told otherwise."""

    def __init__(
        self,
        broker: Listening,
        client: str | None = None,
        expiry: int | None = None,
        clean: bool = True,
        version: int = 5,
        **more: Any,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S)
        self.version = version
        self.acknowledges = True
        self.inbox: list[Publish] = []
        self._rest = b""
        self._next_id = 0
        if client is not None:
            connect = packets.Connect(version, client, clean_start=clean, session_expiry=expiry, **more)
            self.send(connect)
            self.connack = self.expect(packets.Connack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go without a word."""
        self.socket.close()

    def leave(self, reason: Reason = Reason.SUCCESS, expiry: int | None = None) -> None:
        """Say goodbye, and wait until the broker has closed."""
        self.send(packets.Disconnect(reason, expiry))
        assert self.end() is None
        self.close()

    # --- single packets ---

    def send(self, packet: Packet) -> None:
        self.socket.sendall(write(packet, self.version))

    def receive(self) -> Packet:
        """The next packet, whatever it is."""
        packet = self._receive()
        assert packet is not None, "the broker closed the connection"
        return packet

    def _receive(self) -> Packet | None:
        while (whole := cut(self._rest, 0, 1 << 28)) is None:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._rest, "the broker closed within a packet"
                return None
            self._rest += data
        first, start, end = whole
        packet = parse(first, self._rest[start:end], self.version, from_client=False)
        self._rest = self._rest[end:]
        return packet

    def _attend(self, packet: Packet) -> bool:
        """Do what a client does with messages; False for all other packets."""
        if isinstance(packet, Publish):
            self.inbox.append(packet)
            if packet.qos and self.acknowledges:
                kind = packets.Puback if packet.qos == 1 else packets.Pubrec
                self.send(kind(packet.packet_id))
            return True
        if isinstance(packet, packets.Pubrel) and self.acknowledges:
            self.send(packets.Pubcomp(packet.packet_id))
            return True
        return False

    def expect(self, kind: type[P]) -> P:
        """The next packet that has not to do with messages to this client."""
        while self._attend(packet := self.receive()):
            pass
        assert isinstance(packet, kind), packet
        return packet

    def end(self) -> Reason | None:
        """The connection ends now: the reason that the broker gave, if it gave one."""
        reason = None
        while (packet := self._receive()) is not None:
            if not self._attend(packet):
                assert isinstance(packet, packets.Disconnect | packets.Connack), packet
                assert reason is None, "something came behind the end"
                reason = packet.reason
        return reason

    # --- what clients do ---

    def take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def ping(self) -> None:
        """Wait until the broker has dealt with everything sent before."""
        self.send(packets.Pingreq())
        self.expect(packets.Pingresp)

    def subscribe(
        self,
        *filters: str,
        qos: int = 2,
        identifier: int | None = None,
        where: str | None = None,
        **options: Any,
    ) -> tuple[Reason, ...]:
        entries = tuple(packets.SubscriptionEntry(one, qos, **options) for one in filters)
        asked = (("where", where),) if where is not None else ()
        packet_id = self.take_id()
        self.send(packets.Subscribe(packet_id, entries, identifier, asked))
        suback = self.expect(packets.Suback)
        assert suback.packet_id == packet_id
        return suback.reasons

    def unsubscribe(self, *filters: str) -> tuple[Reason, ...]:
        self.send(packets.Unsubscribe(self.take_id(), filters))
        return self.expect(packets.Unsuback).reasons

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 1, retain: bool = False, **described: Any
    ) -> Reason:
        """Publish and wait until it is acknowledged; with QoS 0 until a PINGREQ behind it is answered."""
        properties = PublishProperties(**described) if described else None
        packet_id = self.take_id() if qos else 0
        self.send(Publish(topic, payload, qos, retain, packet_id=packet_id, properties=properties))
        if qos == 0:
            self.ping()
            return Reason.SUCCESS
        if qos == 1:
            puback = self.expect(packets.Puback)
            assert puback.packet_id == packet_id
            return puback.reason
        pubrec = self.expect(packets.Pubrec)
        if pubrec.reason.failed:
            return pubrec.reason
        self.send(packets.Pubrel(packet_id))
        assert self.expect(packets.Pubcomp) == packets.Pubcomp(packet_id)
        return pubrec.reason

    def take(self, count: int) -> list[Publish]:
        """The next messages, so many."""
        while len(self.inbox) < count:
            packet = self.receive()
            assert self._attend(packet), packet
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        return taken

    def drain(self) -> list[Publish]:
        """All messages that the broker has sent by now."""
        self.ping()
        taken, self.inbox = self.inbox, []
        return taken


def payloads(messages: Iterable[Publish]) -> list[bytes]:
    return [one.payload for one in messages]
