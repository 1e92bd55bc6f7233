"""Status messages of a broker ($SYS), for clients attached here only.

The last value of each topic is kept for later subscribers, but not in the state: a restart produces new
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from roamcast.broker.front import Front
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.server.marks import PLAIN, RETAINED, TOPIC
from roamcast.mqtt.server.outgoing import identified
from roamcast.mqtt.server.sessions import Recall
from roamcast.protocol.messages import Deliver, Fleeting
from roamcast.protocol.notification import ClientMessage, Command, encode_attributes
from roamcast.state import State


class AnnouncingHost(Protocol):
    """What announcing needs of the broker."""

    @property
    def now(self) -> float: ...
    @property
    def front(self) -> Front | None: ...
    def obey(self, kind: type[Command], handler: Callable[[Any], None]) -> None: ...
    def as_it_is(self, filter: Filter, client: str) -> Filter: ...
    def tell(self, client: str, message: ClientMessage) -> None: ...
    def announce(self, burst: Fleeting) -> None: ...


class Announce(Command, frozen=True):
    """A status message of this broker."""

    burst: Fleeting


class RecallAnnounced(Command, frozen=True):
    """Send the last status messages to a client of this broker with new subscriptions."""

    client: str
    recalls: tuple[Recall, ...]


class Announcements:
    __state__ = State("announcements", saved=("_broker",), derived=("_last",))

    def __init__(self, broker: AnnouncingHost) -> None:
        self._broker = broker
        self._restore()

    def register_handlers(self) -> None:
        self._broker.obey(Announce, self.on_announce)
        self._broker.obey(RecallAnnounced, self.on_recall)

    def _restore(self) -> None:
        self._last: dict[str, bytes] = {}

    def announce(self, topic: str, payload: bytes, now: float) -> Announce:
        """Return the command that tells attached clients the new value."""
        self._last[topic] = payload
        return Announce(_burst(topic, payload, now, PLAIN[0]))

    def on_announce(self, command: Announce) -> None:
        self._broker.announce(command.burst)

    def on_recall(self, command: RecallAnnounced) -> None:
        for recall in command.recalls if self._last else ():
            if recall.name.startswith("$"):  # A leading wildcard does not match `$`.
                self._recall(command.client, recall)

    def _recall(self, client: str, recall: Recall) -> None:
        broker = self._broker
        filter = broker.as_it_is(parse(recall.filter), client)
        named = identified(recall.identifier) if recall.identifier is not None else b""
        for topic, payload in self._last.items():
            burst = _burst(topic, payload, broker.now, PLAIN[RETAINED] + named)
            wanted = broker.front.contents(burst)[0] if broker.front is not None else {TOPIC: topic}
            if filter.matches(wanted):
                broker.tell(client, Deliver("", 0, burst))


def _burst(topic: str, payload: bytes, now: float, marks: bytes) -> Fleeting:
    return Fleeting("", 0, 0, encode_attributes({TOPIC: topic}), now, (payload,), 1, marks)
