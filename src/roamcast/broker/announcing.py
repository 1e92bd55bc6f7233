"""What a broker says about itself ($SYS): to those who are attached here, and to nobody else.

The last value of each topic is kept for those who subscribe later, but not in the state: after a restart
there are new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from roamcast.broker.front import Front
from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mqtt.server.marks import PLAIN, RETAINED, TOPIC
from roamcast.mqtt.server.outgoing import identified
from roamcast.protocol.messages import Cause, Deliver, Fleeting
from roamcast.protocol.notification import Message, encode_attributes
from roamcast.state import State


class AnnouncingHost(Protocol):
    """The broker that announces."""

    @property
    def now(self) -> float: ...
    @property
    def front(self) -> Front | None: ...
    def serve(self, kind: type[Message], handler: Callable[[str, Any], None]) -> None: ...
    def as_it_is(self, filter: Filter, client: str) -> Filter: ...
    def tell(self, client: str, message: Message) -> None: ...


class RecallAnnounced(Message, frozen=True):
    """A client of this broker has a new subscription: it gets what was announced last."""

    client: str
    filter: str
    identifier: int | None
    """Of the subscription."""
    cause: ClassVar[Cause] = "publish"


class Announcements:
    __state__ = State("announcements", saved=("_broker",), derived=("_last",))

    def __init__(self, broker: AnnouncingHost) -> None:
        self._broker = broker
        self._restore()

    def register_handlers(self) -> None:
        self._broker.serve(RecallAnnounced, self.on_recall)

    def _restore(self) -> None:
        self._last: dict[str, bytes] = {}

    def announce(self, topic: str, payload: bytes, now: float) -> Fleeting:
        """The burst that carries the new value."""
        self._last[topic] = payload
        return _burst(topic, payload, now, PLAIN[0])

    def on_recall(self, sender: str, message: RecallAnnounced) -> None:
        broker = self._broker
        filter = broker.as_it_is(parse(message.filter), message.client)
        named = identified(message.identifier) if message.identifier is not None else b""
        for topic, payload in self._last.items():
            burst = _burst(topic, payload, broker.now, PLAIN[RETAINED] + named)
            wanted = broker.front.contents(burst)[0] if broker.front is not None else {TOPIC: topic}
            if filter.matches(wanted):
                broker.tell(message.client, Deliver("", 0, burst))


def _burst(topic: str, payload: bytes, now: float, marks: bytes) -> Fleeting:
    return Fleeting("", 0, 0, encode_attributes({TOPIC: topic}), now, (payload,), 1, marks)
