"""Session state of a well-behaved MQTT 5 client: bytes in, bytes out.

It repeats unacknowledged messages, keeps the packet ids of received QoS 2 messages, and tells the ledger
exactly what it knows.
"""

from __future__ import annotations

from collections import deque

from roamcast.bench.ledger import Ledger, Message
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.packets import Packet
from roamcast.mqtt.codec.reading import cut, parse
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

PACKET_MAX = 1 << 20
IN_FLIGHT_MAX = 8
EXPIRY_S = 1_000_000
PACKET_IDS = 65_535


class RoamingSession:
    def __init__(self, id: str, ledger: Ledger, subscriptions: dict[str, int]) -> None:
        self.id = id
        self.is_welcome = False
        self.refused: Reason | None = None
        """Reason why the last connection was refused or closed."""
        self.welcomes = 0
        self.is_subscribed = False
        self._ledger = ledger
        self._subscriptions = subscriptions
        self._backlog: deque[Message] = deque()
        self._unacknowledged: dict[int, Message] = {}
        self._released: dict[int, Message] = {}
        """QoS 2 publishes that the broker has received and not completed."""
        self._taken: dict[int, None] = {}
        """Packet ids of QoS 2 messages that were received and not released."""
        self._next_id = 1
        self._read = b""
        self._out: list[Packet] = []

    @property
    def is_idle(self) -> bool:
        """Return whether all its publishes are acknowledged."""
        return not (self._backlog or self._unacknowledged or self._released)

    def connect(self) -> bytes:
        """Return the first bytes of a new connection."""
        self._read, self.is_welcome, self.refused = b"", False, None
        return write(packets.Connect(5, self.id, clean_start=False, session_expiry=EXPIRY_S), 5)

    def publish(self, topic: str, qos: int) -> bytes:
        """Publish now or when there is a connection; return the bytes to send now."""
        self._backlog.append(self._ledger.publish(self.id, topic, qos))
        if self.is_welcome:
            self._send_backlog()
        return self._taken_out()

    def receive(self, data: bytes) -> bytes:
        """Process received bytes; return the bytes to answer."""
        self._read += data
        while (whole := cut(self._read, 0, PACKET_MAX)) is not None:
            first, start, end = whole
            packet = parse(first, self._read[start:end], 5, from_client=False)
            self._read = self._read[end:]
            self._on_packet(packet)
        if self.is_welcome:
            self._send_backlog()
        return self._taken_out()

    def _taken_out(self) -> bytes:
        out, self._out = self._out, []
        return b"".join(write(packet, 5) for packet in out)

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case packets.Connack():
                self._on_connack(packet)
            case packets.Publish():
                self._on_publish(packet)
            case packets.Puback(packet_id):
                message = self._unacknowledged.pop(packet_id, None)
                if message is not None:
                    message.is_acknowledged = packet.reason < Reason.UNSPECIFIED_ERROR
            case packets.Pubrec(packet_id):
                self._on_pubrec(packet_id, packet.reason)
            case packets.Pubcomp(packet_id):
                self._released.pop(packet_id, None)
            case packets.Pubrel(packet_id):
                self._taken.pop(packet_id, None)
                self._out.append(packets.Pubcomp(packet_id))
            case packets.Suback():
                self.is_subscribed = all(reason <= 2 for reason in packet.reasons)
            case packets.Disconnect():
                self.refused = packet.reason

    def _on_connack(self, packet: packets.Connack) -> None:
        if packet.reason:
            self.refused = packet.reason
            return
        if not packet.session_present:
            if self.welcomes:
                self._ledger.lost_sessions.append(self.id)
            self._taken.clear()
            self.is_subscribed = False
        self.welcomes += 1
        self.is_welcome = True
        if not self.is_subscribed:
            entries = tuple(
                packets.SubscriptionEntry(topic, qos) for topic, qos in self._subscriptions.items()
            )
            self._out.append(packets.Subscribe(self._take_id(), entries))
        for packet_id, message in self._unacknowledged.items():
            self._send(message, packet_id, again=True)
        self._out += map(packets.Pubrel, self._released)

    def _on_publish(self, packet: packets.Publish) -> None:
        payload = packet.payload.decode(errors="replace")
        if packet.qos == 2:
            if packet.packet_id not in self._taken:
                self._taken[packet.packet_id] = None
                self._ledger.received[self.id].append(payload)
            self._out.append(packets.Pubrec(packet.packet_id))
            return
        self._ledger.received[self.id].append(payload)
        if packet.qos:
            self._out.append(packets.Puback(packet.packet_id))

    def _on_pubrec(self, packet_id: int, reason: Reason) -> None:
        message = self._unacknowledged.pop(packet_id, None)
        if reason >= Reason.UNSPECIFIED_ERROR:
            return
        if message is not None:
            message.is_acknowledged = True
            self._released[packet_id] = message
        self._out.append(packets.Pubrel(packet_id))

    def _send_backlog(self) -> None:
        while self._backlog and len(self._unacknowledged) + len(self._released) < IN_FLIGHT_MAX:
            message = self._backlog.popleft()
            packet_id = self._take_id()
            self._unacknowledged[packet_id] = message
            self._send(message, packet_id)

    def _send(self, message: Message, packet_id: int, again: bool = False) -> None:
        payload = message.payload.encode()
        self._out.append(packets.Publish(message.topic, payload, message.qos, dup=again, packet_id=packet_id))

    def _take_id(self) -> int:
        while self._next_id in self._unacknowledged or self._next_id in self._released:
            self._next_id = self._next_id % PACKET_IDS + 1
        taken = self._next_id
        self._next_id = self._next_id % PACKET_IDS + 1
        return taken
