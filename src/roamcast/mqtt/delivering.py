"""Deliveries of the core on their way out: QoS, packet ids, what is sent again and what has expired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roamcast.core.messages import Deliver
from roamcast.core.notification import Burst
from roamcast.filters.filter import Attributes
from roamcast.mqtt.connection import Connection, Reader
from roamcast.mqtt.marks import EXPIRY, QOS, message_expiry
from roamcast.mqtt.outgoing import Encoder, runs_of
from roamcast.mqtt.sessions import MqttSession, Options

PUBREL = b"\x62\x02"


class Sender(Reader, Protocol):
    """What delivering needs of the endpoint."""

    now: float
    encoder: Encoder

    def contents(self, burst: Burst) -> Sequence[Attributes]: ...


def deliver(endpoint: Sender, connection: Connection, message: Deliver) -> int:
    """Write a delivery; returns how many notifications had to be left out (expired, or too large)."""
    session, burst = connection.session, message.burst
    assert session is not None
    sequence = message.sequence
    if sequence:
        session.stream = message.stream
        if session.in_flight.is_resending:
            burst, sequence = _send_again(endpoint, connection, session, burst, sequence)
            if not burst.count:
                return 0
    options = session.options(burst.attributes, burst.publisher == connection.client)
    limit = connection.connect.maximum_packet_size
    if options is not None and limit is None and not burst.marks[0] & EXPIRY:
        _send(endpoint, connection, session, burst, sequence, options)
        return 0
    return _send_singly(endpoint, connection, session, burst, sequence, options)


def _send(
    endpoint: Sender,
    connection: Connection,
    session: MqttSession,
    burst: Burst,
    sequence: int,
    options: Options,
) -> None:
    qos = min(burst.marks[0] & QOS, options.qos)
    encoder, version, out, now = endpoint.encoder, connection.version, connection.out, endpoint.now
    if qos > 0 and sequence:
        for packet_id, part in runs_of(burst, session.in_flight.send(burst, sequence, qos)):
            out.append(encoder.publishes(part, version, qos, options, packet_id, now))
        return
    if qos >= 0:
        out.append(encoder.publishes(burst, version, 0, options, 0, now))
    _pass_over(endpoint, connection, session, burst, sequence)


def _pass_over(
    endpoint: Sender, connection: Connection, session: MqttSession, burst: Burst, sequence: int
) -> None:
    """What the client will not acknowledge is acknowledged for it."""
    if sequence:
        connection.acknowledged(endpoint, session.in_flight.pass_over(burst, sequence))


def _send_singly(
    endpoint: Sender,
    connection: Connection,
    session: MqttSession,
    burst: Burst,
    sequence: int,
    options: Options | None,
) -> int:
    """One by one, because each has options, an expiry or a size of its own."""
    own, limit, left_out = burst.publisher == connection.client, connection.connect.maximum_packet_size, 0
    contents = endpoint.contents(burst) if options is None else [{}] * burst.count
    for position, attributes in enumerate(contents):
        single = burst.part(position, position + 1)
        chosen = options if options is not None else session.options_of(attributes, own)
        if is_expired(single, endpoint.now) or _is_too_large(endpoint, connection, single, chosen, limit):
            left_out += 1
            _pass_over(endpoint, connection, session, single, sequence)
        else:
            _send(endpoint, connection, session, single, sequence, chosen)
        sequence += 1 if sequence else 0
    return left_out


def is_expired(burst: Burst, now: float) -> bool:
    """Whether a burst has outlived its message expiry."""
    expiry_s = message_expiry(burst.marks)
    return expiry_s is not None and now - burst.published_at >= expiry_s


def _is_too_large(
    endpoint: Sender, connection: Connection, burst: Burst, options: Options, limit: int | None
) -> bool:
    if limit is None:
        return False
    qos = max(0, min(burst.marks[0] & QOS, options.qos))
    frame = endpoint.encoder.again(burst, connection.version, qos, options, 1 if qos else 0, endpoint.now)
    return len(frame) > limit


def _send_again(
    endpoint: Sender, connection: Connection, session: MqttSession, burst: Burst, sequence: int
) -> tuple[Burst, int]:
    """What was in flight when the last connection ended, with its packet ids; gives what is left."""
    in_flight, encoder, out = session.in_flight, endpoint.encoder, connection.out
    options = session.options(burst.attributes, False) or Options(2, False, ())
    sent = 0
    while sent < burst.count and in_flight.is_resending:
        single = burst.part(sent, sent + 1)
        known = in_flight.send_again(single, sequence + sent)
        if known is None:
            break
        packet_id, qos, has_it = known
        if not has_it:
            out.append(encoder.again(single, connection.version, qos, options, packet_id, endpoint.now))
        elif in_flight.is_released(packet_id):
            out.append(PUBREL + packet_id.to_bytes(2, "big"))
        sent += 1
    connection.acknowledged(endpoint, in_flight.settle_early())
    return burst.part(sent, burst.count), sequence + sent
