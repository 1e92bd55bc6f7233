"""Publishes of a client: packet ids and acknowledgements, kept across connections.

Publishes are sent in order, whatever their QoS. Unacknowledged ones are sent again on the next connection, in
the same order and with the same packet ids, wherever the session is by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import msgspec

from roamcast.mqtt.codec import properties
from roamcast.mqtt.codec.bursts import FrameWriter
from roamcast.mqtt.codec.fields import write_string, write_variable
from roamcast.mqtt.codec.packet_ids import PACKET_ID_MAX, consecutive, encode_id, following
from roamcast.mqtt.codec.packets import Connack, Publish, PublishProperties
from roamcast.mqtt.codec.reasons import Reason

PUBREL = b"\x62\x02"
DUP = 0x08
WRITERS_KEPT_MAX = 1024
SESSION_LOST = "the session was gone: whether it was received is not known"


class Acknowledged(NamedTuple):
    """Result of one publish, or of a part of a burst: reasons from 0x80 on mean that it was refused."""

    token: int
    reason: Reason = Reason.SUCCESS
    text: str = ""
    publishes: int = 1


class Waiting(msgspec.Struct):
    """Payloads with the same topic and options that have not been sent."""

    token: int
    publish: Publish
    """Topic and options that the publishes share; its payload is ignored."""
    payloads: Sequence[bytes]
    sent: int = 0


class Unacknowledged(msgspec.Struct, gc=False):
    token: int
    publish: Publish
    payload: bytes
    is_released: bool = False
    """QoS 2: PUBREC has arrived; the broker has the message, which must never be sent again."""


class Outgoing:
    def __init__(self, version: int, first_packet_id: int = 1) -> None:
        self._version = version
        self._waiting: deque[Waiting] = deque()
        self._in_flight: dict[int, Unacknowledged] = {}
        """Publishes by packet id, in the order of first sending."""
        self._again: deque[int] = deque()
        """Packet ids in flight on an earlier connection, to be sent again on this one."""
        self._reserved: dict[int, None] = {}
        """Packet ids of other requests."""
        self._next = first_packet_id
        self._room = 0
        """How many more publishes may be in flight."""
        self._server = Connack()
        self._unsure: set[int] | None = None
        """Packet ids used so far in a session that another process began under the same client id."""
        self._writers: dict[tuple[str, int, bool, PublishProperties | None], FrameWriter] = {}

    def __len__(self) -> int:
        """Number of unacknowledged publishes, sent or not."""
        return sum(len(one.payloads) - one.sent for one in self._waiting) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Number of publishes in flight."""
        return len(self._in_flight)

    def add(self, token: int, publish: Publish, payloads: Sequence[bytes]) -> None:
        """Publish these as soon as the broker's limits allow."""
        self._waiting.append(Waiting(token, publish, payloads))

    # --- packet ids ---

    def take_id(self) -> int:
        """Return an unused packet id, or 0 if there is none."""
        for _ in range(PACKET_ID_MAX):
            packet_id, self._next = self._next, following(self._next)
            if packet_id not in self._in_flight and packet_id not in self._reserved:
                return packet_id
        return 0

    def reserve_id(self) -> int:
        """Reserve a packet id for a request other than a publish, until `free_id`."""
        packet_id = self.take_id()
        self._reserved[packet_id] = None
        return packet_id

    def free_id(self, packet_id: int) -> None:
        self._reserved.pop(packet_id, None)

    # --- connections ---

    def cut(self) -> None:
        """Handle the end of the connection."""
        self._room = 0

    def resume(self, server: Connack, is_first: bool, window_max: int) -> list[Acknowledged]:
        """Resume on a new connection; returns results of publishes whose session is gone."""
        self._server = server
        self._room = min(server.receive_maximum, window_max)
        settled = [] if server.session_present else self._begin_anew()
        if is_first and server.session_present:
            self._unsure = set()
        self._again = deque(self._in_flight)
        return settled

    def _begin_anew(self) -> list[Acknowledged]:
        """Begin with a broker that lost the session: publishes that may be repeated are published again."""
        self._unsure = None
        settled: list[Acknowledged] = []
        again: list[Waiting] = []
        for one in self._in_flight.values():
            if one.is_released:
                settled.append(Acknowledged(one.token))
            elif one.publish.qos == 2:
                settled.append(Acknowledged(one.token, Reason.UNSPECIFIED_ERROR, SESSION_LOST))
            else:
                again.append(Waiting(one.token, one.publish, (one.payload,)))
        self._in_flight.clear()
        self._waiting.extendleft(reversed(again))
        return settled

    # --- sending ---

    def send(self, out: list[bytes]) -> list[Acknowledged]:
        """Write what the broker's limits allow; returns settled publishes: QoS 0, and those that cannot be
        sent."""
        while self._again and self._room:
            self._send_again(self._again.popleft(), out)
        if self._again:
            return []
        settled: list[Acknowledged] = []
        while self._waiting:
            one = self._waiting[0]
            left = len(one.payloads) - one.sent
            count = left if one.publish.qos == 0 else min(left, self._room)
            reason = self._objection(one.publish)
            if reason:
                settled.append(Acknowledged(one.token, reason, publishes=left))
            elif not count:
                break
            elif not self._can_write_together(one, count):
                if not self._write_next(one, out, settled):
                    break
                continue
            else:
                self._write_together(one, count, out, settled)
                if count < left:
                    break
            self._waiting.popleft()
        return settled

    def _can_write_together(self, one: Waiting, count: int) -> bool:
        """True if the next publishes can be written together, with consecutive packet ids and no
        exception."""
        limit = self._server.maximum_packet_size
        if count == 1 or (self._unsure is not None and one.publish.qos == 2):
            return False
        if limit is not None:
            longest = max(one.payloads, key=len)
            if len(self._writer(one.publish).write_one(longest, 1)) > limit:
                return False
        if one.publish.qos == 0:
            return True
        ids = consecutive(self._next, count)
        return self._in_flight.keys().isdisjoint(ids) and self._reserved.keys().isdisjoint(ids)

    def _write_together(
        self, one: Waiting, count: int, out: list[bytes], settled: list[Acknowledged]
    ) -> None:
        payloads = one.payloads
        if one.sent or count < len(payloads):
            payloads = payloads[one.sent : one.sent + count]
        one.sent += count
        if one.publish.qos == 0:
            settled.append(Acknowledged(one.token, publishes=count))
            for start in range(0, count, PACKET_ID_MAX):
                out.append(self._writer(one.publish).write(payloads[start : start + PACKET_ID_MAX]))
            return
        first, self._next = self._next, following(self._next, count)
        self._room -= count
        entries = map(Unacknowledged, repeat(one.token), repeat(one.publish), payloads)
        self._in_flight.update(zip(consecutive(first, count), entries, strict=False))
        out.append(self._writer(one.publish).write(payloads, first))

    def _write_next(self, one: Waiting, out: list[bytes], settled: list[Acknowledged]) -> bool:
        """Write the next publish alone; False if there is no packet id for it."""
        packet_id = self.take_id() if one.publish.qos else 0
        if one.publish.qos and not packet_id:
            return False
        settled += self._write(one.token, one.publish, one.payloads[one.sent], packet_id, out)
        one.sent += 1
        if one.sent == len(one.payloads):
            self._waiting.popleft()
        return True

    def _objection(self, publish: Publish) -> Reason:
        if publish.qos > self._server.maximum_qos:
            return Reason.QOS_NOT_SUPPORTED
        if publish.retain and not self._server.retain_available:
            return Reason.RETAIN_NOT_SUPPORTED
        return Reason.SUCCESS

    def _write(
        self, token: int, publish: Publish, payload: bytes, packet_id: int, out: list[bytes]
    ) -> list[Acknowledged]:
        frame = self._writer(publish).write_one(payload, packet_id or 1)
        limit = self._server.maximum_packet_size
        if limit is not None and len(frame) > limit:
            return [Acknowledged(token, Reason.PACKET_TOO_LARGE, f"the broker takes at most {limit} bytes")]
        if not packet_id:
            out.append(frame)
            return [Acknowledged(token)]
        self._room -= 1
        self._in_flight[packet_id] = Unacknowledged(token, publish, payload)
        if self._unsure is not None and publish.qos == 2 and packet_id not in self._unsure:
            # If that process left this id unreleased, the broker would take our publish for the old one and
            # only answer it.
            self._unsure.add(packet_id)
            out.append(PUBREL + encode_id(packet_id))
        out.append(frame)
        return []

    def _send_again(self, packet_id: int, out: list[bytes]) -> None:
        one = self._in_flight.get(packet_id)
        if one is None:
            return
        if one.publish.qos > self._server.maximum_qos and not one.is_released:
            return  # The publish waits for a broker that accepts it.
        self._room -= 1
        if one.is_released:
            out.append(PUBREL + encode_id(packet_id))
        else:
            frame = self._writer(one.publish).write_one(one.payload, packet_id)
            out.append(bytes((frame[0] | DUP,)) + frame[1:])

    def check(self, publish: Publish) -> None:
        """Raise InputError if the publish cannot be encoded."""
        self._writer(publish)

    def _writer(self, publish: Publish) -> FrameWriter:
        key = (publish.topic, publish.qos, publish.retain, publish.properties)
        writer = self._writers.get(key)
        if writer is None:
            block = properties.encode(publish.properties, properties.PUBLISH)
            described = write_variable(len(block)) + block if self._version == 5 else b""
            if len(self._writers) >= WRITERS_KEPT_MAX:
                self._writers.clear()
            name = write_string(publish.topic)[2:]
            writer = self._writers[key] = FrameWriter(name, publish.qos, publish.retain, described)
        return writer

    # --- acknowledgements ---

    def on_all(self, ids: Sequence[int], qos: int, reason: Reason) -> list[Acknowledged]:
        """Handle PUBACKs of QoS 1 or PUBCOMPs of QoS 2 without errors; those of one burst are one answer."""
        in_flight, is_released = self._in_flight, qos == 2
        counts: dict[int, int] = {}
        for packet_id in ids:
            one = in_flight.get(packet_id)
            if one is not None and one.publish.qos == qos and one.is_released == is_released:
                del in_flight[packet_id]
                counts[one.token] = counts.get(one.token, 0) + 1
        self._room += sum(counts.values())
        return [Acknowledged(token, reason, publishes=count) for token, count in counts.items()]

    def on_pubrecs(self, ids: Sequence[int]) -> bool:
        """Handle PUBRECs without a reason; returns whether all are known, so that the answer is PUBREL."""
        known = [one for one in map(self._in_flight.get, ids) if one is not None and one.publish.qos == 2]
        if len(known) < len(ids):
            return False
        for one in known:
            one.is_released = True
        return True

    def on_last(self, packet_id: int, qos: int, reason: Reason, text: str = "") -> Acknowledged | None:
        """Handle a PUBACK of QoS 1 or a PUBCOMP of QoS 2."""
        one = self._in_flight.get(packet_id)
        if one is None or one.publish.qos != qos or one.is_released != (qos == 2):
            return None
        return self._settle(packet_id, reason, text)

    def on_pubrec(self, packet_id: int, reason: Reason, text: str = "") -> Acknowledged | None:
        one = self._in_flight.get(packet_id)
        if one is None or one.publish.qos != 2:
            return None
        if reason.failed:
            return self._settle(packet_id, reason, text)
        one.is_released = True
        return None

    def is_known(self, packet_id: int) -> bool:
        return packet_id in self._in_flight

    def token_of(self, packet_id: int) -> int:
        """Return the token of the publish in flight with this packet id."""
        return self._in_flight[packet_id].token

    def _settle(self, packet_id: int, reason: Reason, text: str) -> Acknowledged:
        self._room += 1
        return Acknowledged(self._in_flight.pop(packet_id).token, reason, text)
