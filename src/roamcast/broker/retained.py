"""Retained messages: known at every broker, the last writer wins.

Writers are ordered by a hybrid of clock and counter, then by the id of their
broker, so all brokers come to the same choice. A deletion stays as a tombstone,
for long enough that nothing older can still be on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from roamcast.broker.topic_tree import TopicTree
from roamcast.filters.expression import And, Compare, Expression, Matches, names_of
from roamcast.filters.selector import parse
from roamcast.mqtt.server.delivering import is_expired
from roamcast.mqtt.server.marks import QOS, RETAIN, RETAINED, TOPIC
from roamcast.mqtt.server.outgoing import identified
from roamcast.mqtt.server.sessions import client_of
from roamcast.protocol.messages import Cause
from roamcast.protocol.notification import Area, Burst, Command, Message, encode_attributes
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

TOMBSTONE_S = 24 * 3600.0
TIDY_EVERY = 1024
ABOUT_TOPIC = frozenset({TOPIC})


class Retain(Message, frozen=True):
    """The retained message of a topic; without a body there is none any more."""

    topic: str
    time: float
    count: int
    """Tells writers at the same time apart, and keeps later ones later when a clock steps back."""
    broker: str
    published_at: float
    marks: bytes
    body: bytes | None
    publisher: str = ""
    """The client: it may subscribe to what others publish alone."""
    cause: ClassVar[Cause] = "publish"
    area: ClassVar[Area] = "data"

    @property
    def stamp(self) -> tuple[float, int, str]:
        return self.time, self.count, self.broker


class KeepThis(Command, frozen=True):
    """A client of this broker publishes something that is to be retained."""

    topic: str
    marks: bytes
    body: bytes
    publisher: str = ""


class Recall(Command, frozen=True):
    """A client of this broker has a new subscription: it gets what is retained."""

    client: str
    filter: str
    qos: int
    identifier: int | None
    """Of the subscription: whatever else the client subscribed to has nothing to do with it."""
    no_local: bool = False
    """Whether the client does not want what it published itself."""


class TellRetained(Command, frozen=True):
    """A link is new: everything that is retained here goes over it."""

    peer: str


class RetainedMessages:
    __state__ = State(
        "retained-messages",
        saved=(
            "refused", "_broker", "_messages_max", "_bytes_max", "_kept", "_clock", "_recalled", "_changes",
        ),
        derived=("_bytes", "_count", "_topics"),
    )  # fmt: skip

    def __init__(self, broker: BrokerCore) -> None:
        self.refused = 0
        """Messages that found no room."""
        self._broker = broker
        self._messages_max = 0
        self._bytes_max = 0
        self._kept: dict[str, Retain] = {}
        self._clock = (0.0, 0)
        self._recalled = 0
        self._changes = 0
        self._restore()

    def register_handlers(self) -> None:
        for kind, handler in (
            (KeepThis, self.on_keep_this),
            (Recall, self.on_recall),
            (TellRetained, self.on_tell),
        ):
            self._broker.obey(kind, handler)
        self._broker.serve(Retain, self.on_retain)

    def _restore(self) -> None:
        self._count = self._bytes = 0
        """Messages that are kept, and their bytes; tombstones have limits of their own."""
        self._topics = TopicTree()
        """Theirs."""
        for one in self._kept.values():
            self._enter(one, 1)

    def configure(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return self._count

    def counters(self) -> tuple[int, ...]:
        return self._count, self._bytes, self._changes

    def on_keep_this(self, command: KeepThis) -> None:
        broker = self._broker
        time, count = self._clock
        self._clock = (broker.now, 0) if broker.now > time else (time, count + 1)
        stamp, body = (*self._clock, broker.id), command.body or None
        kept = Retain(command.topic, *stamp, broker.now, command.marks, body, command.publisher)
        self.on_retain(broker.id, kept)

    def on_retain(self, sender: str, message: Retain) -> None:
        """Keep it if it is newer, and tell everyone who has not heard of it."""
        known = self._kept.get(message.topic)
        if known is not None and known.stamp >= message.stamp:
            return
        self._clock = max(self._clock, (message.time, message.count))
        if known is not None:
            self._enter(known, -1)
        kept = message
        if message.body is not None and not self._has_room(_size(message)):
            self.refused += 1
            kept = msgspec.structs.replace(message, body=None)  # What was there before is not true any more.
        self._kept[message.topic] = kept
        self._enter(kept, 1)
        self._tidy()
        for peer in self._broker.peers:
            if peer != sender:
                self._broker.send(peer, message)

    def _enter(self, message: Retain, sign: int) -> None:
        """Count a message in (1), or out (-1)."""
        if message.body is not None:
            self._count += sign
            self._bytes += sign * _size(message)
            (self._topics.add if sign > 0 else self._topics.discard)(message.topic)

    def _has_room(self, size: int) -> bool:
        return self._count < self._messages_max and self._bytes + size <= self._bytes_max

    def _tidy(self) -> None:
        """Forget tombstones that have done their work, and the oldest if there are too many."""
        self._changes += 1
        if self._changes % TIDY_EVERY:
            return
        old = self._broker.now - TOMBSTONE_S
        tombstones = [one for one in self._kept.values() if one.body is None]
        tombstones.sort(key=_stamp, reverse=True)
        size = 0
        for place, one in enumerate(tombstones):
            size += len(one.topic)
            if one.time < old or place >= self._messages_max or size > self._bytes_max:
                del self._kept[one.topic]

    def on_tell(self, command: TellRetained) -> None:
        for one in self._kept.values():
            self._broker.send(command.peer, one)

    def on_recall(self, command: Recall) -> None:
        broker = self._broker
        filter = broker.as_it_is(parse(command.filter), command.client)
        named = identified(command.identifier) if command.identifier is not None else b""
        sees_content = not names_of(filter.expression) <= ABOUT_TOPIC
        for topic in self._candidates(filter.expression):
            one = self._kept[topic]
            assert one.body is not None
            if command.no_local and one.publisher == client_of(command.client):
                continue
            attributes = encode_attributes({TOPIC: topic})
            self._recalled += 1
            burst = Burst(
                f"$retained/{broker.id}", 0, self._recalled, attributes, one.published_at, (one.body,), 1,
                _marks(one.marks[0], command.qos) + one.marks[1:] + named,
            )  # fmt: skip
            wanted = {TOPIC: topic}
            if sees_content and broker.front is not None:
                wanted = dict(broker.front.contents(burst)[0])  # type: ignore[arg-type]
            if filter.matches(wanted) and not is_expired(burst, broker.now):
                broker.enqueue(command.client, burst)

    def _candidates(self, expression: Expression) -> list[str]:
        """Topics that may match, in an order that is the same after a restart."""
        for part in expression.children if isinstance(expression, And) else (expression,):
            if isinstance(part, Compare) and part.name == TOPIC and part.operator == "=":
                known = self._kept.get(str(part.value))
                return [known.topic] if known is not None and known.body is not None else []
            if isinstance(part, Matches) and part.name == TOPIC and not part.negative:
                return sorted(self._topics.matching(part.pattern.levels))
        return sorted(self._topics.matching(("#",)))


def _size(message: Retain) -> int:
    return len(message.body or b"") + len(message.topic)


def _stamp(message: Retain) -> tuple[float, int, str]:
    return message.stamp


def _marks(published: int, qos_max: int) -> bytes:
    """The flags of something retained that is sent, from those with which it was published."""
    return bytes((published & ~(RETAIN | QOS) | min(published & QOS, qos_max) | RETAINED,))
