"""What a client publishes: packet ids and acknowledgements, kept from connection to connection.

It leaves in the order in which it was published, whatever its QoS. What no broker has acknowledged is sent
again on the next connection, in the same order and with the same packet ids, wherever the session is by then.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from roamcast.mqtt import properties
from roamcast.mqtt.bursts import FrameWriter
from roamcast.mqtt.fields import write_string, write_variable
from roamcast.mqtt.packet_ids import ENCODED, PACKET_ID_MAX, following
from roamcast.mqtt.packets import Connack, Publish, PublishProperties
from roamcast.mqtt.reasons import Reason

PUBREL = b"\x62\x02"
DUP = 0x08
WRITERS_KEPT_MAX = 1024
SESSION_LOST = "the session was gone: whether it was received is not known"


class Acknowledged(NamedTuple):
    """What became of a publish: a reason from 0x80 on means that it was refused."""

    token: int
    reason: Reason = Reason.SUCCESS
    text: str = ""


class Unacknowledged(msgspec.Struct):
    token: int
    publish: Publish
    is_released: bool = False
    """QoS 2: PUBREC has come; the broker has it and must never see it again."""


class Outgoing:
    def __init__(self, version: int, first_packet_id: int = 1) -> None:
        self._version = version
        self.waiting: deque[tuple[int, Publish]] = deque()
        """Published and not on its way yet."""
        self._in_flight: dict[int, Unacknowledged] = {}
        """By packet id, in the order in which they were first sent."""
        self._again: deque[int] = deque()
        """Packet ids that were in flight on an earlier connection and have to be on this one."""
        self._reserved: dict[int, None] = {}
        """Packet ids of other requests."""
        self._next = first_packet_id
        self._room = 0
        self._server = Connack()
        self._unsure: set[int] | None = None
        """Packet ids used so far in a session that was begun by another process under the same name."""
        self._writers: dict[tuple[str, int, bool, PublishProperties | None], FrameWriter] = {}

    def __len__(self) -> int:
        """How many are not acknowledged, on their way or not."""
        return len(self.waiting) + len(self._in_flight)

    # --- packet ids ---

    def take_id(self) -> int:
        """A packet id that nothing uses, or 0 if there is none."""
        for _ in range(PACKET_ID_MAX):
            packet_id, self._next = self._next, following(self._next)
            if packet_id not in self._in_flight and packet_id not in self._reserved:
                return packet_id
        return 0

    def reserve_id(self) -> int:
        """A packet id for another request than a publish, until `free_id`."""
        packet_id = self.take_id()
        self._reserved[packet_id] = None
        return packet_id

    def free_id(self, packet_id: int) -> None:
        self._reserved.pop(packet_id, None)

    # --- connections ---

    def cut(self) -> None:
        """The connection is gone."""
        self._room = 0

    def resume(self, server: Connack, is_first: bool, window_max: int) -> list[Acknowledged]:
        """There is a connection; gives what became of publishes whose session is gone."""
        self._server = server
        self._room = min(server.receive_maximum, window_max)
        settled = [] if server.session_present else self._begin_anew()
        if is_first and server.session_present:
            self._unsure = set()
        self._again = deque(self._in_flight)
        return settled

    def _begin_anew(self) -> list[Acknowledged]:
        """The broker knows nothing any more: what may be repeated is published again."""
        self._unsure = None
        settled: list[Acknowledged] = []
        again: list[tuple[int, Publish]] = []
        for one in self._in_flight.values():
            if one.is_released:
                settled.append(Acknowledged(one.token))
            elif one.publish.qos == 2:
                settled.append(Acknowledged(one.token, Reason.UNSPECIFIED_ERROR, SESSION_LOST))
            else:
                again.append((one.token, one.publish))
        self._in_flight.clear()
        self.waiting.extendleft(reversed(again))
        return settled

    # --- sending ---

    def send(self, out: list[bytes]) -> list[Acknowledged]:
        """Write what the broker lets us; gives what is settled by that: QoS 0, and what cannot be sent."""
        while self._again and self._room:
            self._send_again(self._again.popleft(), out)
        if self._again:
            return []
        settled: list[Acknowledged] = []
        waiting = self.waiting
        while waiting:
            token, publish = waiting[0]
            reason = self._objection(publish)
            if reason:
                waiting.popleft()
                settled.append(Acknowledged(token, reason))
            elif publish.qos == 0:
                waiting.popleft()
                settled += self._write(token, publish, 0, out)
            else:
                packet_id = self.take_id() if self._room else 0
                if not packet_id:
                    break
                waiting.popleft()
                settled += self._write(token, publish, packet_id, out)
        return settled

    def _objection(self, publish: Publish) -> Reason:
        if publish.qos > self._server.maximum_qos:
            return Reason.QOS_NOT_SUPPORTED
        if publish.retain and not self._server.retain_available:
            return Reason.RETAIN_NOT_SUPPORTED
        return Reason.SUCCESS

    def _write(self, token: int, publish: Publish, packet_id: int, out: list[bytes]) -> list[Acknowledged]:
        frame = self._frame(publish, packet_id or 1)
        limit = self._server.maximum_packet_size
        if limit is not None and len(frame) > limit:
            return [Acknowledged(token, Reason.PACKET_TOO_LARGE, f"the broker takes at most {limit} bytes")]
        if not packet_id:
            out.append(frame)
            return [Acknowledged(token)]
        self._room -= 1
        self._in_flight[packet_id] = Unacknowledged(token, publish)
        if self._unsure is not None and publish.qos == 2 and packet_id not in self._unsure:
            # Should that other process have left this id unreleased, the broker would take our
            # publish for the old one and only answer it.
            self._unsure.add(packet_id)
            out.append(PUBREL + ENCODED[packet_id - 1])
        out.append(frame)
        return []

    def _send_again(self, packet_id: int, out: list[bytes]) -> None:
        one = self._in_flight.get(packet_id)
        if one is None:
            return
        self._room -= 1
        if one.is_released:
            out.append(PUBREL + ENCODED[packet_id - 1])
        else:
            frame = self._frame(one.publish, packet_id)
            out.append(bytes((frame[0] | DUP,)) + frame[1:])

    def check(self, publish: Publish) -> None:
        """Whether it can be written at all: InputError if not."""
        self._writer(publish)

    def _frame(self, publish: Publish, packet_id: int) -> bytes:
        return self._writer(publish).write((publish.payload,), packet_id)

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

    def on_puback(self, packet_id: int, reason: Reason, text: str = "") -> Acknowledged | None:
        one = self._in_flight.get(packet_id)
        if one is None or one.publish.qos != 1:
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

    def on_pubcomp(self, packet_id: int) -> Acknowledged | None:
        one = self._in_flight.get(packet_id)
        if one is None or not one.is_released:
            return None
        # A broker that did not know the id has nothing left to release: it is the end of it either way.
        return self._settle(packet_id, Reason.SUCCESS, "")

    def _settle(self, packet_id: int, reason: Reason, text: str) -> Acknowledged:
        self._room += 1
        return Acknowledged(self._in_flight.pop(packet_id).token, reason, text)
