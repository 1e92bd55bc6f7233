"""The client's side: what a well-behaved client library does, as a state machine.

The client numbers its requests and repeats those that no broker has accepted. It
counts received notifications per stream and acknowledges cumulatively. Its
records, not a broker's, show what was delivered.
"""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.filters.filter import Value
from roamcast.filters.selector import parse
from roamcast.protocol.effects import (
    AdvertiseThat,
    AttachTo,
    ClientEffects,
    Input,
    LeaveFor,
    MoveTo,
    PublishThis,
    Said,
    SubscribeTo,
    Told,
    UnadvertiseThat,
    UnsubscribeFrom,
)
from roamcast.protocol.messages import (
    Accepted,
    Acknowledge,
    Advertise,
    ClientMessage,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    Deliver,
    Hello,
    Leave,
    Move,
    Request,
    RequestRefused,
    SubscriptionSettled,
    Unadvertise,
    Welcome,
)
from roamcast.protocol.records import Row, new_row


class Client:
    """One client. Its effects go to the broker it is attached to: `sends` names that broker."""

    __slots__ = (
        "_last_broker", "_named_next", "_names_last_broker", "_now", "_out", "_requests", "_sequence",
        "_unaccepted", "broker", "id", "moves", "received", "refused", "settled", "welcomed",
    )  # fmt: skip

    def __init__(self, id: str, names_last_broker: bool = True) -> None:
        self.id = id
        self.broker = ""
        """Broker where the client is attached or attaching; "" while away."""
        self.welcomed = False
        self.moves = -1
        self.received: dict[str, int] = {}
        self.settled: set[int] = set()
        """Requests for subscriptions that have settled."""
        self.refused: dict[int, str] = {}
        """Requests that could not be carried out, and why."""
        self._names_last_broker = names_last_broker
        self._last_broker = ""
        self._named_next = ""
        """Broker to name at the next attach: the last one, unless that broker named another."""
        self._requests = 0
        self._unaccepted: list[Request] = []
        self._sequence = 0
        self._now = 0.0
        self._out = ClientEffects()

    def step(self, now: float, inputs: Iterable[Input]) -> ClientEffects:
        self._now = now
        self._out = out = ClientEffects()
        for item in inputs:
            if type(item) is Told:
                if type(item.message) is Deliver:
                    out.sends.append((self.broker, self.take(now, item.message, out.records)))
                else:
                    self._on_message(item.message)
            else:
                self._on_application(item)
        return out

    def deadline(self) -> float | None:
        """A client of this kind sets no timers."""
        return None

    # --- what the application wants ---

    def _on_application(self, item: Input) -> None:
        match item:
            case AttachTo(broker, _):
                self._attach(broker)
            case LeaveFor(destination):
                self._leave(destination)
            case PublishThis(attributes, bodies):
                self._request(ClientPublish(self._next_request(len(bodies)), attributes, bodies))
            case SubscribeTo(text):
                self._request(ClientSubscribe(self._next_request(), parse(text)))
            case UnsubscribeFrom(text):
                self._request(ClientUnsubscribe(self._next_request(), parse(text)))
            case AdvertiseThat(text):
                self._request(Advertise(self._next_request(), parse(text)))
            case UnadvertiseThat(text):
                self._request(Unadvertise(self._next_request(), parse(text)))
            case MoveTo(values):
                self._request(Move(self._next_request(), dict(values)))

    def _attach(self, broker: str) -> None:
        self.moves += 1
        self.broker, self.welcomed = broker, False
        self._send(
            Hello(
                self.id,
                self.moves,
                dict(self.received),
                self._named_next if self._names_last_broker else "",
                fresh=self.moves == 0,
            )
        )
        self._record("moved", reason=self._last_broker or None)
        if self._named_next == self._last_broker:
            self._named_next = broker
        self._last_broker = broker
        self._gather_moves()
        # Requests may follow at once: the broker holds them until the session arrives.
        for request in self._unaccepted:
            self._send(request)

    def _gather_moves(self) -> None:
        """Keep only the last of the moves that no broker has taken; the others are superseded."""
        last: dict[str, Value] = {}
        for request in self._unaccepted:
            if isinstance(request, Move):
                last.update(request.values)
        if last:
            self._unaccepted = [
                Move(request.request, last, late=True) if isinstance(request, Move) else request
                for request in self._unaccepted
            ]

    def _leave(self, destination: str) -> None:
        if not self.broker:
            return
        if destination:
            self._send(Leave(destination, dict(self.received)))
        self._record("moved", reason="left")
        self.broker, self.welcomed = "", False

    def _next_request(self, count: int = 1) -> int:
        """The number of the next request; a publish takes one for each notification."""
        first = self._requests + 1
        self._requests += count
        return first

    def _request(self, request: Request) -> None:
        self._unaccepted.append(request)
        if self.broker:
            self._send(request)

    # --- what the broker says ---

    def take(self, now: float, message: Deliver, records: list[Row]) -> Acknowledge:
        """`step` for a delivery, the most frequent input: adds rows and returns the acknowledgement."""
        burst, stream, sequence = message.burst, message.stream, message.sequence
        received = self.received.get(stream, 0)
        end = sequence + burst.count - 1
        if end <= received:
            # Sent again, because the first acknowledgement was lost.
            return Acknowledge(stream, received)
        if sequence <= received:
            burst = burst.tail(received - sequence + 1)
        self.received[stream] = end
        self._sequence += 1
        # Positional, because there is one record per delivery.
        records.append(
            new_row(
                Row,
                (
                    self._sequence, now, self.id, "delivered", self.id, self.broker, None,
                    burst.publisher, burst.incarnation, burst.number, burst.count, None, None, None,
                    burst.size, None, burst.attributes, None, burst.published_at,
                ),
            )
        )  # fmt: skip
        return Acknowledge(stream, end)

    def _on_message(self, message: Said) -> None:
        match message:
            case Welcome(number, accepted, named_next):
                self.welcomed = True
                self._named_next = named_next
                self._forget_accepted(accepted)
                self._record("attached", number=number)
            case Accepted(request):
                self._forget_accepted(request)
            case SubscriptionSettled(request):
                self.settled.add(request)
            case RequestRefused(request, reason):
                self.refused[request] = reason

    def _forget_accepted(self, accepted: int) -> None:
        self._unaccepted = [one for one in self._unaccepted if one.request > accepted]

    @property
    def unaccepted(self) -> int:
        """Requests that no broker has taken yet."""
        return len(self._unaccepted)

    def _send(self, message: ClientMessage) -> None:
        self._out.sends.append((self.broker, message))

    def _record(self, kind: str, reason: str | None = None, number: int | None = None) -> None:
        self._sequence += 1
        self._out.records.append(
            Row(
                self._sequence, self._now, self.id, kind,
                client=self.id, broker=self.broker, number=number, reason=reason,
            )
        )  # fmt: skip
