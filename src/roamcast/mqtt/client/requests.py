"""A client's SUBSCRIBEs and UNSUBSCRIBEs: asked again on each connection until they are answered.

Granted subscriptions are kept, so that they can be requested again after the session was lost.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from roamcast.mqtt.client.outgoing import Outgoing
from roamcast.mqtt.codec.packets import Suback, Subscribe, Unsuback, Unsubscribe
from roamcast.mqtt.codec.reasons import Reason
from roamcast.mqtt.codec.writing import write

Request = Subscribe | Unsubscribe

OF_ITS_OWN = 0
"""Token of subscriptions that the client machine repeats by itself."""


class Granted(NamedTuple):
    """The answer to a SUBSCRIBE or UNSUBSCRIBE: a reason for each topic filter."""

    token: int
    filters: tuple[str, ...]
    reasons: tuple[Reason, ...]
    text: str = ""
    packet_id: int = 0


class Requests:
    def __init__(self, ids: Outgoing) -> None:
        self._ids = ids
        self._waiting: list[tuple[int, Request]] = []
        """Token and packet of requests that have not been sent."""
        self._asked: dict[int, tuple[int, Request]] = {}
        """Requests by packet id, in order."""
        self._held: dict[str, Subscribe] = {}
        """Granted subscriptions by topic filter, each as a SUBSCRIBE of its own."""

    def ask(self, token: int, packet: Request) -> None:
        self._waiting.append((token, packet))

    def send(self, out: list[bytes], version: int) -> None:
        for token, packet in self._waiting:
            packet_id = self._ids.reserve_id()
            self._asked[packet_id] = (token, packet)
            out.append(write(replace(packet, packet_id=packet_id), version))
        self._waiting.clear()

    def cut(self) -> None:
        """Prepare to repeat unanswered requests after the connection is gone."""
        for packet_id in self._asked:
            self._ids.free_id(packet_id)
        self._waiting = [one for one in self._asked.values() if one[0] != OF_ITS_OWN] + self._waiting
        self._asked.clear()

    def resume(self, session_present: bool) -> None:
        if not session_present:
            self._waiting = [(OF_ITS_OWN, packet) for packet in self._held.values()] + self._waiting

    def on_answer(self, packet: Suback | Unsuback, text: str) -> Granted | None:
        token, request = self._asked.pop(packet.packet_id, (OF_ITS_OWN, None))
        self._ids.free_id(packet.packet_id)
        if request is None:
            return None
        if isinstance(request, Unsubscribe):
            for name in request.filters:
                self._held.pop(name, None)
            return Granted(token, request.filters, packet.reasons, text, packet.packet_id)
        for entry, reason in zip(request.entries, packet.reasons, strict=False):
            if not reason.failed:
                self._held[entry.filter] = replace(request, entries=(entry,))
            else:
                self._held.pop(entry.filter, None)
        filters = tuple(one.filter for one in request.entries)
        return Granted(token, filters, packet.reasons, text, packet.packet_id)
