"""A client's side of MQTT 3.1.1 and 5.0 as a machine: bytes in, bytes out, no clock and no socket.

One `ClientSession` lasts as long as the client, over any number of connections to any number of brokers:
it holds the client's session state as defined by the standard. Its driver opens connections, calls
`begin`, `receive`, `on_time` and `cut`, and writes what `take_out` gives after each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from roamcast.mqtt import scram
from roamcast.mqtt.client.incoming import Incoming
from roamcast.mqtt.client.outgoing import Acknowledged, Outgoing
from roamcast.mqtt.client.requests import Granted, Requests
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.bursts import Frames, cut_bursts
from roamcast.mqtt.codec.errors import PacketError, protocol_error
from roamcast.mqtt.codec.fields import VARIABLE_MAX
from roamcast.mqtt.codec.packet_ids import consecutive, encode_id
from roamcast.mqtt.codec.packets import Connack, Packet, Publish, PublishProperties
from roamcast.mqtt.codec.properties import publish_properties
from roamcast.mqtt.codec.reading import cut, needed, parse
from roamcast.mqtt.codec.reasons import IN_CLIENT_DISCONNECT, Reason
from roamcast.mqtt.codec.topics import decode_topic
from roamcast.mqtt.codec.user_properties import DESTINATION, HAS, Has, said_with, without
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.steering import NEXT_TOPIC

FRAME_MAX = VARIABLE_MAX + 5
"""Size of the largest possible packet."""
PING = b"\xc0\x00"
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
NO_SUBSCRIBERS = bytes((Reason.NO_MATCHING_SUBSCRIBERS,))
PING_AFTER = 0.75
"""Share of the keep-alive after which a ping is sent, if one direction was silent."""
PING_TIMEOUT = 0.5
"""Share of the keep-alive that a broker may take to answer."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a client, the same for every broker."""

    client_id: str
    version: packets.Version = 5
    clean: bool = True
    """Begin without the state of an earlier session of this client id."""
    session_expiry_s: int = 0
    keep_alive_s: int = 60
    username: str | None = None
    password: bytes | None = None
    scram: bool = False
    """Authenticate with SCRAM-SHA-256 (MQTT 5), which also authenticates the broker."""
    will: packets.Will | None = None
    receive_maximum: int = 1024
    in_flight_max: int = 1024
    """Maximum of own unacknowledged publishes; a broker may allow fewer."""
    packet_max: int | None = None
    """Maximum packet size accepted; a broker leaves out larger packets."""
    first_packet_id: int = 1
    user_properties: packets.UserProperties = ()
    says_what_it_has: bool = False
    """Report received messages in CONNECT to Roamcast brokers (MQTT 5): a copy of the session may then serve
    QoS 0 and 2, too."""
    steered: bool = False
    """Messages under `$roamcast/next` are for the client itself, not for its application."""


class Accepted(NamedTuple):
    """The broker has accepted the connection."""

    connack: Connack


class ConnectRefused(NamedTuple):
    """The broker has refused the connection, which is to be closed."""

    reason: Reason
    text: str
    reference: str = ""
    """Broker that the client is referred to, if any."""


class Ended(NamedTuple):
    """The connection has ended and is to be closed once everything is written."""

    reason: Reason
    text: str
    reference: str = ""
    """Broker that the client is referred to, if any."""


class Steered(NamedTuple):
    """The broker names a better broker."""

    payload: bytes


Event = Accepted | ConnectRefused | Ended | Acknowledged | Granted | Steered


class ClientSession:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self.version = settings.version
        self._packet_max = settings.packet_max or FRAME_MAX
        self.client_id = settings.client_id
        self.outgoing = Outgoing(settings.version, settings.first_packet_id)
        self.incoming = Incoming(settings.version)
        self.is_connected = False
        """True once the broker has accepted the current connection."""
        self.is_listening = True
        """True while the driver reads: while it does not, silence means nothing (see `listen`)."""
        self.keep_alive_s = float(settings.keep_alive_s)
        self._requests = Requests(self.outgoing)
        self._was_connected = False
        self._has = Has()
        self._is_over = True
        """True if further input of the connection is ignored."""
        self._exchange: scram.ClientExchange | None = None
        self._tokens = 0
        self._out: list[bytes] = []
        self._chunks: list[bytes] = []
        self._have = self._need = 0
        self._events: list[Event] = []
        self._sent_at = self._heard_at = 0.0
        self._pinged_at: float | None = None
        self._described: dict[bytes, PublishProperties | None] = {}

    # --- the connection ---

    def begin(self, now: float, nonce: bytes = b"") -> None:
        """Begin a connection with CONNECT. The nonce is random, and used only with `scram`."""
        settings = self.settings
        self.cut()
        self._exchange = None
        if settings.scram:
            self._exchange = scram.ClientExchange(settings.username or "", settings.password or b"", nonce)
        is_plain = self._exchange is None
        self._is_over = False
        is_5 = self.version == 5
        connect = packets.Connect(
            self.version,
            self.client_id,
            clean_start=settings.clean and not (is_5 and self._was_connected),
            keep_alive=settings.keep_alive_s,
            username=settings.username if is_plain else None,
            password=settings.password if is_plain else None,
            will=settings.will,
            authentication_method=None if is_plain else scram.METHOD,
            authentication_data=self._exchange.first() if self._exchange is not None else None,
            session_expiry=settings.session_expiry_s if is_5 and settings.session_expiry_s else None,
            receive_maximum=settings.receive_maximum if is_5 else packets.RECEIVE_MAXIMUM_DEFAULT,
            maximum_packet_size=settings.packet_max if is_5 else None,
            user_properties=settings.user_properties if is_5 else (),
        )
        if is_5 and settings.says_what_it_has:
            has = Has() if connect.clean_start else self._has
            told = (*settings.user_properties, (HAS, has.text()))
            connect = msgspec.structs.replace(connect, user_properties=told)
        self._sent_at = self._heard_at = now
        self._out.append(write(connect, self.version))

    def cut(self) -> None:
        """Handle the end of the connection."""
        self.is_connected, self._is_over, self._pinged_at = False, True, None
        self._chunks, self._have, self._need = [], 0, 0
        self._out.clear()
        self.outgoing.cut()
        self.incoming.cut()
        self._requests.cut()

    def leave(self, destination: str = "", session_expiry_s: int | None = None) -> None:
        """Send DISCONNECT, if connected, with the destination of the client (MQTT 5)."""
        proclaimed = ((DESTINATION, destination),) if destination else ()
        packet = packets.Disconnect(session_expiry=session_expiry_s, user_properties=proclaimed)
        if self.is_connected:
            self._out.append(write(packet, self.version))
        self.is_connected, self._is_over = False, True

    def take_out(self, now: float) -> bytes:
        """Return the output for the connection."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._sent_at = now
        return data

    # --- requests of the application ---

    def publish(self, publish: Publish) -> tuple[int, list[Event]]:
        """Publish a message; its packet id is ignored. Returns the token that its acknowledgement will
        carry."""
        token = self.new_token()
        return token, self.publish_burst(token, publish, (publish.payload,))

    def new_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def publish_burst(self, token: int, publish: Publish, payloads: Sequence[bytes]) -> list[Event]:
        """Publish payloads that share topic and options; several bursts may share a token."""
        self.outgoing.add(token, publish, payloads)
        self._send()
        return self._take_events()

    def subscribe(self, packet: packets.Subscribe) -> int:
        """Request subscriptions, now or on the next connection; returns the token of the answer."""
        return self._ask(packet)

    def unsubscribe(self, packet: packets.Unsubscribe) -> int:
        return self._ask(packet)

    def _ask(self, packet: packets.Subscribe | packets.Unsubscribe) -> int:
        token = self.new_token()
        self._requests.ask(token, packet)
        if self.is_connected:
            self._requests.send(self._out, self.version)
        return token

    def take(self) -> Publish:
        """Take the next notification, and acknowledge it."""
        publish = self.incoming.take(self._out)
        said = said_with(publish)
        if not said:
            return publish
        self._has = self._has.with_last(said)
        return without(publish, HAS)

    # --- time ---

    def deadline(self) -> float | None:
        """Return when `on_time` is to be called, or None."""
        if not self.is_connected or not self.keep_alive_s:
            return None
        if not self.is_listening:
            return self._sent_at + PING_AFTER * self.keep_alive_s
        if self._pinged_at is not None:
            return self._pinged_at + PING_TIMEOUT * self.keep_alive_s
        return min(self._sent_at, self._heard_at) + PING_AFTER * self.keep_alive_s

    def listen(self, now: float, is_listening: bool) -> None:
        """Note that the driver stops reading, or begins again."""
        self.is_listening, self._heard_at, self._pinged_at = is_listening, now, None

    def on_time(self, now: float) -> list[Event]:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return []
        if self._pinged_at is None or not self.is_listening:
            self._pinged_at = now
            self._out.append(PING)
            return []
        self.cut()
        return [Ended(Reason.KEEP_ALIVE_TIMEOUT, "the broker does not answer")]

    # --- packets of the broker ---

    def receive(self, now: float, data: bytes) -> list[Event]:
        """Take bytes of the connection."""
        self._heard_at, self._pinged_at = now, None
        if self._have:
            # Pieces of a long packet are collected: joining them each time would be quadratic.
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._chunks)
            self._have = 0
        position, size = 0, len(data)
        try:
            while position < size and not self._is_over:
                if self.is_connected and data[position] >> 4 == 3:
                    bursts, position = cut_bursts(data, position, self._packet_max, self.version)
                    for frames in bursts:
                        self._on_frames(frames)
                elif self.is_connected and data[position] in (PUBACK, PUBREC, PUBREL, PUBCOMP):
                    position = self._on_acknowledgements(data, position)
                whole = cut(data, position, self._packet_max) if position < size else None
                if whole is None:
                    break
                first, start, position = whole
                self._on_packet(parse(first, data[start:position], self.version, from_client=False))
        except PacketError as error:
            self._end(error)
            return self._take_events()
        rest = data[position:]
        self._chunks, self._have, self._need = [rest], len(rest), needed(rest) if rest else 0
        self._send()
        return self._take_events()

    def _end(self, error: PacketError) -> None:
        """End the connection because the broker violated the protocol."""
        self._events.append(Ended(error.reason, str(error)))
        if self.is_connected and self.version == 5 and error.reason in IN_CLIENT_DISCONNECT:
            self._out.append(write(packets.Disconnect(error.reason), 5))
        self.is_connected, self._is_over = False, True

    def _send(self) -> None:
        if self.is_connected:
            self._events += self.outgoing.send(self._out)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _on_frames(self, frames: Frames) -> None:
        first, raw_topic, block, packet_id, payloads = frames
        topic, qos = decode_topic(raw_topic), first >> 1 & 3
        if block not in self._described:
            if len(self._described) >= 1024:
                self._described.clear()
            self._described[block] = publish_properties(block, from_client=False)
        described = self._described[block]
        retain, dup = bool(first & 1), bool(first & 8)
        ids = consecutive(packet_id, len(payloads)) if packet_id else [0] * len(payloads)
        for one, payload in zip(ids, payloads, strict=True):
            self._on_publish(Publish(topic, payload, qos, retain, dup, one, described))

    def _on_publish(self, publish: Publish) -> None:
        if self.settings.steered and publish.topic == NEXT_TOPIC and not publish.qos:
            self._events.append(Steered(publish.payload))
        else:
            if publish.qos == 2 and self.incoming.has_taken(publish.packet_id):
                # A copy repeats what was taken on an earlier connection, with all that came before it.
                self._has = self._has.with_last(said_with(publish))
            self.incoming.on_publish(publish, self._out)

    def _on_acknowledgements(self, data: bytes, position: int) -> int:
        """Handle a run of acknowledgements of one kind without properties; returns where it ends."""
        first, size = data[position], len(data)
        stride = 2 + (data[position + 1] if position + 1 < size else 0)
        # Mosquitto always sends a reason: no matching subscribers.
        is_reason = stride == 5 and first in (PUBACK, PUBREC) and self.version == 5
        if stride != 4 and not (is_reason and data[position + 4 : position + 5] == NO_SUBSCRIBERS):
            return position
        whole = position + (size - position) // stride * stride
        alike = [data[position + at : whole : stride] for at in (0, 1, 4)[: stride - 2]]
        count = min(len(column) - len(column.lstrip(column[:1])) for column in alike)
        end = position + stride * count
        high, low = data[position + 2 : end : stride], data[position + 3 : end : stride]
        ids = [above << 8 | below for above, below in zip(high, low, strict=True)]
        if 0 in ids:
            return position  # Invalid packet id: `parse` raises the error.
        if first in (PUBACK, PUBCOMP):
            reason = Reason.NO_MATCHING_SUBSCRIBERS if is_reason else Reason.SUCCESS
            self._events += self.outgoing.on_all(ids, 1 if first == PUBACK else 2, reason)
        elif self.outgoing.on_pubrecs(ids) if first == PUBREC else self.incoming.on_pubrels(ids):
            answers = bytearray(bytes((PUBREL if first == PUBREC else PUBCOMP, 2, 0, 0)) * count)
            answers[2::4], answers[3::4] = high, low
            self._out.append(bytes(answers))
        else:
            return position
        return end

    def _on_packet(self, packet: Packet) -> None:
        if not self.is_connected:
            if isinstance(packet, packets.Auth) and self._exchange is not None:
                self._on_challenge(self._exchange, packet)
                return
            if not isinstance(packet, Connack):
                raise protocol_error(f"a {type(packet).__name__.upper()} came before the CONNACK")
            self._on_connack(packet)
            return
        match packet:
            case packets.Publish():
                self._on_publish(packet)
            case packets.Puback():
                self._note(self.outgoing.on_last(packet.packet_id, 1, packet.reason, _text(packet)))
            case packets.Pubrec():
                self._on_pubrec(packet)
            case packets.Pubrel():
                self.incoming.on_pubrel(packet.packet_id, self._out)
            case packets.Pubcomp():
                # A broker that did not know the id has nothing left to release: the exchange is finished,
                # too.
                self._note(self.outgoing.on_last(packet.packet_id, 2, Reason.SUCCESS))
            case packets.Suback() | packets.Unsuback():
                self._note(self._requests.on_answer(packet, _text(packet)))
            case packets.Pingresp():
                pass
            case packets.Disconnect():
                self.is_connected, self._is_over = False, True
                reference = packet.server_reference or ""
                self._events.append(Ended(packet.reason, packet.reason_string or "", reference))
            case _:
                raise protocol_error(f"a {type(packet).__name__.upper()} is not expected here")

    def _on_challenge(self, exchange: scram.ClientExchange, packet: packets.Auth) -> None:
        try:
            answer = exchange.answer(packet.authentication_data or b"")
        except scram.ScramError as error:
            raise protocol_error(f"{scram.METHOD}: {error}") from None
        reason = Reason.CONTINUE_AUTHENTICATION
        self._out.append(write(packets.Auth(reason, scram.METHOD, answer), self.version))

    def _note(self, event: Acknowledged | Granted | None) -> None:
        if event is not None:
            self._events.append(event)

    def _on_pubrec(self, packet: packets.Pubrec) -> None:
        self._note(self.outgoing.on_pubrec(packet.packet_id, packet.reason, _text(packet)))
        if not packet.reason.failed:
            if self.outgoing.is_known(packet.packet_id):
                self._out.append(bytes((PUBREL, 2)) + encode_id(packet.packet_id))
            else:
                unknown = packets.Pubrel(packet.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
                self._out.append(write(unknown, self.version))

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason:
            self._is_over = True
            reference = packet.server_reference or ""
            self._events.append(ConnectRefused(packet.reason, packet.reason_string or "", reference))
            return
        if self._exchange is not None and not self._exchange.is_server(packet.authentication_data or b""):
            raise protocol_error("the broker has not proved that it knows the password")
        is_first = not self._was_connected
        self.is_connected = self._was_connected = True
        self.client_id = packet.assigned_client_id or self.client_id
        keep_alive_s = packet.server_keep_alive
        self.keep_alive_s = float(self.settings.keep_alive_s if keep_alive_s is None else keep_alive_s)
        connection = dict(packet.user_properties).get(HAS, "")
        if not packet.session_present:
            self.incoming.begin_anew()
        elif connection:
            self.incoming.forget_numbered()
        is_same = packet.session_present and connection
        self._has = self._has._replace(connection=connection) if is_same else Has(connection)
        self._events.append(Accepted(packet))
        self._requests.resume(packet.session_present)
        self._requests.send(self._out, self.version)
        self._events += self.outgoing.resume(packet, is_first, self.settings.in_flight_max)


def _text(packet: packets.Puback | packets.Pubrec | packets.Suback | packets.Unsuback) -> str:
    return (packet.properties.reason_string or "") if packet.properties is not None else ""
