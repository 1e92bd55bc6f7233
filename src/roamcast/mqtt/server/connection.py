"""One MQTT connection: turns a client's bytes into requests to the broker.

Consecutive PUBLISH packets with the same topic, flags and properties become one
request with many bodies, and runs of acknowledgements one acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from roamcast.mqtt.codec.bursts import Frames as Burst
from roamcast.mqtt.codec.bursts import acknowledged, cut_bursts, last_frame, written_acknowledgements
from roamcast.mqtt.codec.errors import PacketError
from roamcast.mqtt.codec.packet_ids import consecutive, encode_id
from roamcast.mqtt.codec.packets import (
    AcknowledgementProperties,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubrec,
    Suback,
)
from roamcast.mqtt.codec.properties import split_publish
from roamcast.mqtt.codec.reading import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PINGREQ,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Limits,
    cut,
    needed,
    parse,
)
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import read_has
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import ClientAccess, Identity
from roamcast.mqtt.server.marks import PLAIN, RETAIN
from roamcast.mqtt.server.publishing import Described, resolve
from roamcast.mqtt.server.sessions import PROVISIONAL, MqttSession
from roamcast.mqtt.server.traffic import Traffic
from roamcast.protocol.effects import Input, Submitted
from roamcast.protocol.messages import Acknowledge, ClientPublish
from roamcast.state import State

PUBACK, PUBREC, PUBCOMP = 0x40, 0x50, 0x70
PUBACK_START = 0x4002
"""A PUBACK without its packet id."""
encode_two: Callable[[int, int], bytes] = Struct(">HH").pack
QOS_0, QOS_1 = 0x30, 0x32
"""First bytes of a PUBLISH that is neither retained nor a duplicate."""
LARGEST_PACKET = 1 << 28
UNLIMITED = 1 << 30
TOPICS_KEPT_MAX = 2048
TOPICS_BYTES_KEPT_MAX = 256 * 1024
"""Bytes of topics remembered for one connection."""
EXPLANATION_LENGTH_MAX = 1000
NO_CHUNKS: list[bytes] = []
"""Shared by all connections without an incomplete packet, and never filled."""
LARGE = frozenset({PUBLISH, SUBSCRIBE, UNSUBSCRIBE})
"""Kinds of packets that may have the largest size."""
LABOUR = {SUBSCRIBE: 32, UNSUBSCRIBE: 32}
"""Kinds of packets to their cost, in packets of other kinds; each byte adds one."""
RETAIN_LABOUR = 4
"""Cost of a retained PUBLISH, in units of a plain one."""

Answer = TypeVar("Answer", bound=Puback | Pubrec | Suback)


class Refusal(NamedTuple):
    """The reason why a PUBLISH was refused."""

    reason: Reason
    text: str = ""


Refusals = Sequence[Refusal | None]
"""One entry per PUBLISH, None where accepted; empty if all were accepted."""

TAKEN_AHEAD = frozenset({PUBACK >> 4, PINGREQ})
"""Kinds of packets that are handled before the session arrives, as QoS 0 publishes are, even while other
packets wait for it."""
ANSWERS_QOS_2 = frozenset({PUBREC >> 4, PUBCOMP >> 4})
DENIED, TAKEN = Refusal(Reason.NOT_AUTHORIZED), Refusal(Reason.SUCCESS)


class PacketTaker(Protocol):
    """The endpoint, as a connection uses it."""

    inputs: list[Input]
    packet_max: int
    small_max: int
    """Size limit of acknowledgements, pings and other small packets."""
    limits: Limits
    packets_max: int
    """Bursts and single packets taken from one connection in this turn, so that others need not wait."""
    unread: dict[int, None]
    """Connections with whole packets left for the next turn."""
    ahead: dict[int, None]
    """Connections of clients that read ahead of their sessions: their other requests wait."""
    unfinished: Mapping[int, object]
    """Connections with a packet that takes several turns: no later packet is taken before it is finished."""
    received_max: int
    waiting_max: int
    alias_max: int
    retains: bool
    traffic: Traffic

    def attributes_of(self, connection: MqttConnection, topic: bytes) -> bytes | None:
        """Return the attributes of publishes under this topic; None if the client may not publish there."""

    def on_control(self, connection: MqttConnection, topic: bytes, payloads: list[bytes]) -> Refusals:
        """Handle a publish for the broker itself, or one that the client may not make."""

    def described(self, block: bytes) -> Described:
        """Return the checked properties of a PUBLISH."""

    def permitted(
        self, connection: MqttConnection, topic: bytes, bodies: list[bytes], marks: bytes
    ) -> list[bytes]:
        """Return the bodies that content rules allow."""

    def on_retain(self, connection: MqttConnection, topic: bytes, marks: bytes, body: bytes) -> None:
        """Handle a PUBLISH that is to be retained."""

    def on_packet(self, connection: MqttConnection, packet: Packet) -> None:
        """Handle any packet except PUBLISH and PUBACK."""


class MqttConnection:
    __slots__ = (
        "_chunks", "_have", "_held", "_need", "_topics_bytes", "access", "aliases", "asked", "client",
        "connect", "guarded", "has", "id", "identity", "is_durable", "is_open", "is_provisional", "is_slow",
        "out", "own_names", "published", "qos_max", "request", "sent_aliases", "session", "taken", "topics",
        "version", "waiting",
    )  # fmt: skip

    __state__ = State(
        "mqtt-connection",
        derived=(
            "_chunks", "_have", "_held", "_need", "_topics_bytes", "access", "asked", "guarded", "has",
            "is_durable", "is_slow", "out", "own_names", "published", "sent_aliases", "taken", "topics",
        ),
    )  # fmt: skip
    """An incomplete packet is not journalled either: a replay receives it whole."""

    def __init__(
        self, id: int, connect: Connect, identity: Identity, access: ClientAccess, qos_max: int = 2
    ) -> None:
        self.id = id
        self.connect = connect
        self.identity = identity
        self.client = identity.client
        self.access = access
        self.qos_max = qos_max
        self.is_provisional = False
        """True if the client is served from a stand-in for a session that cannot be reached."""
        self.version = connect.version
        self.session: MqttSession | None = None
        """Set when the session is here and CONNACK has been sent."""
        self.request = 0
        """The last request submitted to the core."""
        self.is_open = True
        self.aliases: dict[int, bytes] = {}
        self.waiting: list[bytes] = []
        """Whole packets that arrived before the session."""
        self._restore()

    def _restore(self) -> None:
        self.own_names = (self.identity.client, PROVISIONAL + self.identity.client)
        """The names under which this client publishes."""
        self.has = read_has(self.connect.user_properties) if self.version == 5 else None
        """What the client reports as received; None if it does not report that."""
        self.out: list[bytes] = []
        """Output of this turn."""
        self.is_durable = False
        """True if the input of this turn must be journalled before any answer."""
        self.topics: dict[bytes, bytes | None] = {}
        """Encoded topic to the attributes of its publishes; None if forbidden."""
        self._topics_bytes = 0
        self.guarded: dict[bytes, None] = {}
        """Topics whose access depends on the content."""
        self.is_slow = False
        """True if the client does not read its output; QoS 0 is left out then."""
        self.asked = 0
        """Number of requested changes: of subscriptions, or of the client's own state."""
        self.published = 0
        """Notifications received over this connection."""
        self.sent_aliases: dict[bytes, int] | None = None
        """Attributes to the topic alias under which the client knows the topic, if it allows aliases."""
        self.taken = b""
        """Last input, including earlier pieces."""
        self._chunks = NO_CHUNKS
        self._held = 0
        """Number of packets in `waiting`."""
        self._have = 0
        self._need = 0

    @property
    def received(self) -> dict[str, int]:
        """Stream to the sequence that the client has received."""
        has = self.has
        return {has.stream: has.sequence} if has and has.sequence and not self.connect.clean_start else {}

    # --- bytes ---

    def read(self, endpoint: PacketTaker, data: bytes) -> bytes:
        """Take input; returns the whole packets that it completed. PacketError ends the connection."""
        if self._have:
            # Pieces of a long packet are collected: joining them each time would be quadratic.
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need or self.id in endpoint.unread:
                return b""
            data = b"".join(self._chunks)
            self._chunks, self._have, self._need = NO_CHUNKS, 0, 0
        self.taken = data
        position = 0
        is_ahead = self.id in endpoint.ahead
        if self.session is not None and data and not is_ahead:
            # Nearly always a PUBLISH, a PUBACK or both, where messages arrive singly.
            if data[0] == PUBACK:
                position = self._pubacks(endpoint, data, 0)
                if position == len(data):
                    return data
            if data[position] & 0xF0 == QOS_0:
                single = last_frame(data, position, endpoint.packet_max, self.version)
                if single is not None:
                    self._publish_single(endpoint, *single)
                    return data
        if is_ahead:
            position = self._take_ahead(endpoint, data)
        else:
            position = (
                self._hold(endpoint, data) if self.session is None else self._take(endpoint, data, position)
            )
        if position == len(data):
            return data
        rest = data[position:]
        self._chunks, self._have, self._need = [rest], len(rest), needed(rest)
        return data[:position]

    def put_off(self, endpoint: PacketTaker, data: bytes) -> None:
        """Keep input for the next turn."""
        endpoint.unread[self.id] = None
        if data:
            self._chunks = self._chunks or []
            self._chunks.append(data)
            self._have += len(data)
            self._need = self._need or 1

    def promises_nothing(self, data: bytes) -> bool:
        """True if these are whole packets, all of them pings or plain QoS 0 publishes."""
        if self.session is None or self.session.copied_from or self._have or not data:
            return False
        position = 0
        while position < len(data):
            first = data[position]
            if first not in (PINGREQ << 4, QOS_0):
                return False
            try:
                whole = cut(data, position, LARGEST_PACKET)
            except PacketError:
                return False
            if whole is None:
                return False
            _, start, position = whole
            if first == QOS_0 and self.version == 5:
                # Properties may contain a topic alias, which must be remembered.
                after_topic = start + 2 + int.from_bytes(data[start : start + 2], "big")
                if data[after_topic : after_topic + 1] != b"\0":
                    return False
        return True

    def read_waiting(self, endpoint: PacketTaker) -> None:
        """Handle the packets that arrived before the session."""
        waiting, self.waiting = b"".join(self.waiting), []
        # All of these are journalled already, and must be handled now.
        packets_max, endpoint.packets_max = endpoint.packets_max, UNLIMITED
        position = self._take(endpoint, waiting)
        endpoint.packets_max = packets_max
        if position < len(waiting):
            self.waiting = [waiting[position:]]  # Packets behind one that is unfinished.
        if self._have and self._have >= self._need:
            endpoint.unread[self.id] = None

    def take_back_answers(self) -> None:
        """Take back the answers of this turn, except a CONNACK: no other packet may precede it."""
        del self.out[1 if self.out and self.out[0][0] >> 4 == CONNACK else 0 :]

    def last_words(self) -> Disconnect | None:
        """Return the DISCONNECT that waits for the session, if any."""
        waiting, position = b"".join(self.waiting), 0
        with suppress(PacketError):
            while position < len(waiting):
                whole = cut(waiting, position, LARGEST_PACKET)
                if whole is None:
                    break
                first, start, position = whole
                packet = (
                    parse(first, waiting[start:position], self.version) if first >> 4 == DISCONNECT else None
                )
                if isinstance(packet, Disconnect):
                    return packet
        return None

    def _hold(self, endpoint: PacketTaker, data: bytes) -> int:
        """Hold whole packets until the session arrives; limited, since they are then handled at once."""
        position = 0
        while self._held < endpoint.packets_max:
            is_large = position < len(data) and data[position] >> 4 in LARGE
            whole = cut(data, position, endpoint.packet_max if is_large else endpoint.small_max)
            if whole is None:
                break
            position = whole[2]
            kind = whole[0] >> 4
            self._held += LABOUR[kind] + whole[2] - whole[1] if kind in LABOUR else 1
        if position:
            self.is_durable = True
            self.waiting.append(data[:position])
        if sum(map(len, self.waiting)) + len(data) - position > endpoint.waiting_max + endpoint.packet_max:
            raise PacketError(Reason.QUOTA_EXCEEDED, "too much was sent before the session was there")
        return position

    def _take_ahead(self, endpoint: PacketTaker, data: bytes) -> int:
        """Handle packets that need no session, or only a copy of it; hold the rest until the session
        arrives."""
        position = 0
        while position < len(data):
            is_large = data[position] >> 4 in LARGE
            whole = cut(data, position, endpoint.packet_max if is_large else endpoint.small_max)
            if whole is None:
                break
            first, start, end = whole
            body = data[start:end]
            if first & ~1 == QOS_0 and self._can_go_ahead(endpoint, body):
                parse(first, body, self.version, limits=endpoint.limits)
                topic, _, at, stop, payload_at = split_publish(body, 0, self.version)
                self._publish(endpoint, first, topic, body[at:stop], 0, [body[payload_at:]])
            elif self._is_taken_ahead(first >> 4):
                self.is_durable = self.is_durable or first >> 4 != PINGREQ
                endpoint.on_packet(self, parse(first, body, self.version, limits=endpoint.limits))
            elif not self._hold(endpoint, data[position:end]):
                break
            position = end
            if not self.is_open:
                return len(data)
        return position

    def _is_taken_ahead(self, kind: int) -> bool:
        if kind in ANSWERS_QOS_2:
            # A client that reports what it has received can ignore these answers if they turn out void.
            return self.has is not None
        return kind in TAKEN_AHEAD or (kind == DISCONNECT and not self.waiting)

    def _can_go_ahead(self, endpoint: PacketTaker, body: bytes) -> bool:
        """True if a QoS 0 publish depends on no held packet, by an alias or by order."""
        if any(kept[0] & ~1 == QOS_0 for kept in self.waiting):
            return False
        _, _, start, stop, _ = split_publish(body, 0, self.version)
        return not (self.waiting and stop > start and endpoint.described(body[start:stop]).alias)

    def _take(self, endpoint: PacketTaker, data: bytes, position: int = 0) -> int:
        size, packet_max, version = len(data), endpoint.packet_max, self.version
        left = endpoint.packets_max
        while position < size and self.is_open:
            if left <= 0:
                endpoint.unread[self.id] = None
                break
            kind = data[position] >> 4
            if kind == 3:
                single = last_frame(data, position, packet_max, version)
                if single is not None:
                    self._publish_single(endpoint, *single)
                    return size
                weight = RETAIN_LABOUR if data[position] & 1 else 1
                bursts, end = cut_bursts(data, position, packet_max, version, left // weight or 1)
                if bursts:
                    left -= len(bursts) * weight
                    self._publish_bursts(endpoint, bursts)
                    position = end
                    continue
            elif kind == 4:
                end = self._pubacks(endpoint, data, position)
                if end > position:
                    position = end
                    continue
            whole = cut(data, position, packet_max if kind in LARGE else endpoint.small_max)
            if whole is None:
                break
            first, start, position = whole
            body = data[start:position]
            left -= LABOUR[kind] + len(body) if kind in LABOUR else 1
            packet = parse(first, body, version, limits=endpoint.limits)
            if kind == 3:
                # Too large, or with too many properties, for `cut_bursts`.
                topic, packet_id, start, stop, at = split_publish(body, first >> 1 & 3, version)
                self._publish(endpoint, first, topic, body[start:stop], packet_id, [body[at:]])
            else:
                # An AUTH changes no state, and is not journalled.
                self.is_durable = self.is_durable or kind not in (PINGREQ, AUTH)
                endpoint.on_packet(self, packet)
                if self.id in endpoint.unfinished:
                    endpoint.unread[self.id] = None
                    break
        return position

    # --- PUBLISH ---

    def _publish_bursts(self, endpoint: PacketTaker, bursts: list[Burst]) -> None:
        """Handle PUBLISH packets; those without properties that differ only in topic stay together."""
        start, count = 0, len(bursts)
        while start < count:
            first, block, end = bursts[start][0], bursts[start][2], start + 1
            if first in (QOS_0, QOS_1) and not block:
                while end < count and bursts[end][0] == first and not bursts[end][2]:
                    end += 1
            run = bursts[start:end]
            if len(run) == 1 or not self._publish_varied(endpoint, first, run):
                # One by one to the end: retrying the rest together would never end if all are forbidden.
                for burst in run:
                    self._publish(endpoint, *burst)
            start = end

    def _publish_varied(self, endpoint: PacketTaker, first: int, bursts: list[Burst]) -> bool:
        """Publish several topics at once; False if one of them needs a closer check."""
        varied: list[bytes] = []
        bodies: list[bytes] = []
        qos = 1 if first == QOS_1 else 0
        if qos > self.qos_max:
            return False
        topics, guarded = self.topics, self.guarded
        for _, topic, _, _, payloads in bursts:
            # This must not depend on the cache: a replay starts with an empty one and must send the same.
            attributes = topics.get(topic) or self._attributes(endpoint, topic)
            if attributes is None or (guarded and topic in guarded):
                return False
            if len(payloads) == 1:
                varied.append(attributes)
                bodies.append(payloads[0])
            else:
                varied += [attributes] * len(payloads)
                bodies += payloads
        request = 0
        if qos:
            self.is_durable = True
            request = self.request + 1
            self.request += len(bodies)
        endpoint.traffic.received[qos] += len(bodies)
        self.published += len(bodies)
        common = b""
        if varied.count(varied[0]) == len(varied):  # Only the packet ids were not consecutive.
            common, varied = varied[0], []
        publish = ClientPublish(request, common, tuple(bodies), PLAIN[qos], tuple(varied))
        endpoint.inputs.append(Submitted(self.client, self.id, publish))
        if qos:
            self._answer_bursts(bursts)
        return True

    def _answer_bursts(self, bursts: list[Burst]) -> None:
        """Send PUBACKs; runs of packet ids across several topics are answered at once."""
        start, expected, out = bursts[0][3], bursts[0][3], self.out
        for _, _, _, packet_id, payloads in bursts:
            if packet_id != expected:
                out.append(written_acknowledgements(PUBACK, start, expected - start))
                start = expected = packet_id
            expected += len(payloads)
        out.append(written_acknowledgements(PUBACK, start, expected - start))

    def _publish_single(self, endpoint: PacketTaker, topic: bytes, packet_id: int, payload: bytes) -> None:
        """Publish one plain PUBLISH of QoS 0 or 1: the fast path of `_publish`."""
        attributes = self.topics.get(topic)
        if attributes is None or self.guarded or (packet_id and not self.qos_max):
            self._publish(endpoint, QOS_1 if packet_id else QOS_0, topic, b"", packet_id, [payload])
            return
        self.published += 1
        if packet_id:
            self.is_durable = True
            self.request += 1
            self.out.append(encode_two(PUBACK_START, packet_id))
            endpoint.traffic.received[1] += 1
            publish = ClientPublish(self.request, attributes, (payload,), PLAIN[1])
        else:
            endpoint.traffic.received[0] += 1
            publish = ClientPublish(0, attributes, (payload,), PLAIN[0])
        endpoint.inputs.append(Submitted(self.client, self.id, publish))

    def _publish(
        self,
        endpoint: PacketTaker,
        first: int,
        topic: bytes,
        block: bytes,
        packet_id: int,
        payloads: list[bytes],
    ) -> None:
        """Handle PUBLISH packets of one kind, with consecutive packet ids."""
        if not block and topic:
            # Nearly all packets.
            if first == QOS_0:
                self._submit(endpoint, topic, payloads, PLAIN[0], 0)
                return
            if first == QOS_1 and self.qos_max:
                self.is_durable = True
                refusals = self._submit(endpoint, topic, payloads, PLAIN[1], 1)
                self._answer(PUBACK, packet_id, len(payloads), refusals)
                return
        qos = first >> 1 & 3
        flags = qos | RETAIN if first & 1 else qos
        marks = PLAIN[flags]
        if block:
            more, block, alias = endpoint.described(block)
            marks = bytes((flags | more,)) + block
            if alias:
                self.is_durable = True
                topic = resolve(alias, topic, endpoint.alias_max, self.aliases)
        if not topic:
            raise PacketError(Reason.PROTOCOL_ERROR, "a topic name is empty")
        if qos:
            self.is_durable = True
            if qos > self.qos_max:
                raise PacketError(Reason.QOS_NOT_SUPPORTED, f"QoS {qos}: at most {self.qos_max}")
        if first & 1 and not endpoint.retains:
            raise PacketError(Reason.RETAIN_NOT_SUPPORTED, "retained messages are switched off")
        if qos == 2:
            self._take_twice(endpoint, topic, marks, packet_id, payloads)
            return
        refusals = self._submit(endpoint, topic, payloads, marks, qos)
        if qos:
            self._answer(PUBACK, packet_id, len(payloads), refusals)

    def _take_twice(
        self, endpoint: PacketTaker, topic: bytes, marks: bytes, packet_id: int, payloads: list[bytes]
    ) -> None:
        """Handle QoS 2: duplicates are only answered."""
        session = self.session
        assert session is not None
        received, ids = session.received, consecutive(packet_id, len(payloads))
        fresh = [(one, payload) for one, payload in zip(ids, payloads, strict=True) if one not in received]
        # MQTT 3.1.1 has no receive maximum: there the number of packet ids is the limit.
        if len(received) + len(fresh) > endpoint.received_max and self.version == 5:
            raise PacketError(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more QoS 2 publishes than were agreed")
        refusals = self._submit(endpoint, topic, [payload for _, payload in fresh], marks, 2) if fresh else ()
        refused = {
            one: refusal
            for (one, _), refusal in zip(fresh, refusals, strict=bool(refusals))
            if refusal is not None
        }
        received.update((one, None) for one, _ in fresh if one not in refused or self.version == 4)
        answers = [refused.get(one) for one in ids] if refused else ()
        self._answer(PUBREC, packet_id, len(payloads), answers)

    def _answer(self, first: int, packet_id: int, count: int, refusals: Refusals) -> None:
        """Send PUBACK or PUBREC; only MQTT 5 can report a refusal and its reason."""
        if not refusals or self.version == 4:
            self.out.append(written_acknowledgements(first, packet_id, count))
            return
        kind = Puback if first == PUBACK else Pubrec
        for one, refusal in zip(consecutive(packet_id, count), refusals, strict=True):
            reason, text = refusal or TAKEN
            self.out.append(write(self.explained(kind(one, reason), text), 5))

    def takes(self, packet: Packet) -> bool:
        """True if the packet does not exceed the client's maximum packet size."""
        size_max = self.connect.maximum_packet_size
        return size_max is None or len(write(packet, self.version)) <= size_max

    def check_takes(self, answer: Packet) -> None:
        """Raise PacketError if the answer is too large for the client: its request could never be
        answered."""
        if not self.takes(answer):
            what = type(answer).__name__.upper()
            raise PacketError(
                Reason.PACKET_TOO_LARGE, f"the {what} would exceed the client's maximum packet size"
            )

    def explained(self, answer: Answer, text: str) -> Answer:
        """Add a text if the client understands and requests one, and has room for it."""
        if not text or self.version == 4 or not self.connect.request_problem_information:
            return answer
        told = AcknowledgementProperties(reason_string=text[:EXPLANATION_LENGTH_MAX])
        longer = replace(answer, properties=told)
        return longer if self.takes(longer) else answer

    def _attributes(self, endpoint: PacketTaker, topic: bytes) -> bytes | None:
        """Return the attributes of a notification with this topic; None if the client may not publish
        there."""
        try:
            return self.topics[topic]
        except KeyError:
            self._topics_bytes += len(topic)
            if len(self.topics) >= TOPICS_KEPT_MAX or self._topics_bytes > TOPICS_BYTES_KEPT_MAX:
                self.topics.clear()
                self.guarded.clear()
                self._topics_bytes = len(topic)
            attributes = self.topics[topic] = endpoint.attributes_of(self, topic)
            return attributes

    def _submit(
        self, endpoint: PacketTaker, topic: bytes, payloads: list[bytes], marks: bytes, qos: int
    ) -> Refusals:
        """Submit notifications to the core, if the client may publish them."""
        attributes = self.topics.get(topic) or self._attributes(endpoint, topic)
        if attributes is None:
            return endpoint.on_control(self, topic, payloads)
        if self.guarded and topic in self.guarded:
            count = len(payloads)
            payloads = endpoint.permitted(self, topic, payloads, marks)
            if not payloads:
                return [DENIED] * count
        endpoint.traffic.received[qos] += len(payloads)
        request = 0
        if qos:
            request = self.request + 1
            self.request += len(payloads)
        self.published += len(payloads)
        publish = ClientPublish(request, attributes, tuple(payloads), marks)
        endpoint.inputs.append(Submitted(self.client, self.id, publish))
        if marks[0] & RETAIN:
            self.is_durable = True
            endpoint.on_retain(self, topic, marks, payloads[-1])
        return ()

    # --- PUBACK ---

    def _pubacks(self, endpoint: PacketTaker, data: bytes, position: int) -> int:
        """Handle PUBACKs in the order of sending; returns where they end."""
        session = self.session
        assert session is not None
        in_flight = session.in_flight
        sequence = in_flight.acknowledge_last(data, position)
        if sequence:
            self.is_durable = True
            endpoint.inputs.append(Submitted(self.client, self.id, Acknowledge(session.stream, sequence)))
            return position + 4
        expected = in_flight.expected
        if not expected or data[position + 2 : position + 4] != encode_id(expected):
            return position
        run = in_flight.expected_run((len(data) - position) // 4)
        count = acknowledged(data, position, PUBACK, expected, run)
        if count:
            self.is_durable = True
            self.acknowledged(endpoint, in_flight.acknowledge_in_order(count))
        return position + 4 * count

    def acknowledged(self, endpoint: PacketTaker, sequence: int) -> None:
        """Acknowledge everything up to this sequence; nothing if it is 0."""
        if sequence and self.session is not None:
            inputs, stream = endpoint.inputs, self.session.stream
            last = inputs[-1] if inputs else None
            if type(last) is Submitted and last.connection == self.id:
                message = last.message
                if type(message) is Acknowledge and message.stream == stream:
                    inputs.pop()  # The new one includes it.
            inputs.append(Submitted(self.client, self.id, Acknowledge(stream, sequence)))
