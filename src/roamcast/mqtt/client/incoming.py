"""What a client receives: each notification is handed to the application once, and acknowledged then.

What waits here has not been acknowledged, so the broker still has it: a process that ends, or a client that
takes only the first few, loses nothing. The receive maximum bounds it. A broker that exceeds it (Mosquitto
2.0 does, slightly) is tolerated: then the number of packet ids is the limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from roamcast.mqtt.codec.packet_ids import encode_id
from roamcast.mqtt.codec.packets import Pubcomp, Publish
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.user_properties import said_with
from roamcast.mqtt.codec.writing import write

PUBACK = b"\x40\x02"
PUBREC = b"\x50\x02"


class Incoming:
    def __init__(self, version: int) -> None:
        self._version = version
        self._waiting: deque[tuple[Publish, int]] = deque()
        """Waiting notifications, with the session each came in."""
        self._queued: dict[int, bool] = {}
        """Packet ids of waiting notifications, and whether they came on the current connection."""
        self._received: dict[int, None] = {}
        """QoS 2: taken by the application, and not yet released by the broker."""
        self._owed: dict[int, None] = {}
        """QoS 1: taken by the application on an earlier connection; acknowledged when they arrive on the
        current one."""
        self._numbered: dict[int, None] = {}
        """Packet ids of notifications from a copy: void after the next CONNACK."""
        self._session = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def unreleased(self) -> int:
        """QoS 2 messages that were taken, and that the broker has not released."""
        return len(self._received)

    def has_taken(self, packet_id: int) -> bool:
        """True if the QoS 2 message with this id was taken, and the broker has not released it."""
        return packet_id in self._received

    def first(self, limit: int) -> list[Publish]:
        """Return the oldest waiting notifications without taking them."""
        return [publish for publish, _ in islice(self._waiting, limit)]

    def cut(self) -> None:
        """Handle the end of the connection: waiting notifications will be sent again on the next one, and may
        be acknowledged only then. A broker that has not sent one could not match the answer."""
        self._queued = dict.fromkeys(self._queued, False)

    def begin_anew(self) -> None:
        """Forget packet ids of a lost session; waiting notifications remain."""
        self._session += 1
        self._queued.clear()
        self._received.clear()
        self._owed.clear()
        self._numbered.clear()

    def forget_numbered(self) -> None:
        """Forget the packet ids of a copy: the broker has been told what was taken, sends the rest again, and
        may reuse the ids."""
        numbered, self._numbered = self._numbered, {}
        for packet_id in numbered:
            for kept in (self._queued, self._received, self._owed):
                kept.pop(packet_id, None)
        if self._waiting:
            left = [one for one in self._waiting if one[1] != self._session or not said_with(one[0])]
            self._waiting = deque(left)

    def on_publish(self, publish: Publish, out: list[bytes]) -> None:
        packet_id = publish.packet_id
        if packet_id and said_with(publish):
            self._numbered[packet_id] = None
        elif self._numbered:
            self._numbered.pop(packet_id, None)
        if not packet_id:
            self._waiting.append((publish, self._session))
        elif packet_id in self._received:
            out.append(PUBREC + encode_id(packet_id))
        elif packet_id in self._owed:
            del self._owed[packet_id]
            out.append(PUBACK + encode_id(packet_id))
        elif packet_id in self._queued:
            self._queued[packet_id] = True
        else:
            self._queued[packet_id] = True
            self._waiting.append((publish, self._session))

    def on_pubrels(self, ids: Sequence[int]) -> bool:
        """Handle PUBRELs of taken messages; returns whether all are known, so that the answer is PUBCOMP
        without a reason."""
        if not self._received.keys() >= set(ids):
            return False
        for packet_id in ids:
            self._received.pop(packet_id, None)
        return True

    def on_pubrel(self, packet_id: int, out: list[bytes]) -> None:
        known = packet_id in self._received
        self._received.pop(packet_id, None)
        reason = Reason.SUCCESS if known else Reason.PACKET_IDENTIFIER_NOT_FOUND
        out.append(write(Pubcomp(packet_id, reason), self._version))

    def take(self, out: list[bytes]) -> Publish:
        """Take out the next notification."""
        publish, session = self._waiting.popleft()
        packet_id = publish.packet_id
        if not packet_id or session != self._session:
            return publish
        is_here = self._queued.pop(packet_id)
        if publish.qos == 2:
            self._received[packet_id] = None
        if is_here:
            out.append((PUBREC if publish.qos == 2 else PUBACK) + encode_id(packet_id))
        elif publish.qos == 1:
            self._owed[packet_id] = None
        return publish

    def drop_newest(self) -> bool:
        """Drop the newest notification if it has QoS 0."""
        if not self._waiting or self._waiting[-1][0].qos:
            return False
        self._waiting.pop()
        return True
