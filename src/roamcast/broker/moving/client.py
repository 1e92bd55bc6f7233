"""A client of brokers that move, with the same contract as any other client.

It repeats notifications that no broker has accepted, with the same numbers, and acknowledges what it
receives. Its records, not a broker's, show what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mobility.moving.mobile_subscriber import MobileSubscriber
from roamcast.protocol.effects import (
    AttachTo,
    ClientEffects,
    Input,
    LeaveFor,
    PublishThis,
    Said,
    SubscribeTo,
    Told,
    UnsubscribeFrom,
)
from roamcast.protocol.messages import Accepted, Acknowledge, Deliver, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Row


class MobileClient:
    """Its effects go to the broker it is attached to: `sends` names that broker."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.subscriber = MobileSubscriber(id)
        self._last_broker = ""
        self._unaccepted: list[Burst] = []
        self._sequence = 0
        self._now = 0.0
        self._out = ClientEffects()

    def step(self, now: float, inputs: Iterable[Input]) -> ClientEffects:
        self._now, self._out = now, ClientEffects()
        for item in inputs:
            self._on_input(item)
        return self._out

    def deadline(self) -> float | None:
        return None

    @property
    def unaccepted(self) -> int:
        return len(self._unaccepted)

    def _on_input(self, item: Input) -> None:
        one = self.subscriber
        match item:
            case AttachTo(broker, _):
                self._leave()
                one.disconnect(self._unaccepted)
                self._unaccepted = []
                self._record("moved", broker, reason=self._last_broker or None)
                self._last_broker = broker
                self._send(one.connect(broker))
            case LeaveFor():
                self._leave()
            case PublishThis(attributes, bodies):
                self._send(one.publish(attributes, bodies, self._now))
            case SubscribeTo(text):
                self._send(one.subscribe(parse(text)))
            case UnsubscribeFrom(text):
                self._send(one.unsubscribe(parse(text)))
            case Told(_, message):
                self._on_message(message)
            case _:
                raise InputError(f"a client of brokers that move does not know {type(item).__name__}")

    def _leave(self) -> None:
        if self.subscriber.broker:
            self._record("moved", self.subscriber.broker, reason="left")
            self.subscriber.disconnect(self._unaccepted)
            self._unaccepted = []

    def _on_message(self, message: Said) -> None:
        match message:
            case Accepted(request):
                self._unaccepted = [burst for burst in self._unaccepted if burst.last > request]
            case Deliver(stream, sequence, burst):
                self.subscriber.receive(burst)
                self._record_delivered(burst)
                self._out.sends.append((self.subscriber.broker, Acknowledge(stream, sequence)))
            case Message():
                self._send(self.subscriber.receive(message))

    def _send(self, messages: list[Message]) -> None:
        for message in messages:
            if isinstance(message, Burst):
                self._unaccepted.append(message)
            self._out.sends.append((self.subscriber.broker, message))

    def _record(self, kind: str, broker: str, reason: str | None) -> None:
        self._sequence += 1
        row = Row(self._sequence, self._now, self.id, kind, client=self.id, broker=broker, reason=reason)
        self._out.records.append(row)

    def _record_delivered(self, burst: Burst) -> None:
        self._sequence += 1
        self._out.records.append(
            Row(
                self._sequence, self._now, self.id, "delivered", client=self.id,
                broker=self.subscriber.broker, publisher=burst.publisher, incarnation=burst.incarnation,
                number=burst.number, notifications=burst.count, attributes=burst.attributes,
                published_at=burst.published_at,
            )
        )  # fmt: skip
