"""Subscribe at the new broker, then unsubscribe at the old (Wang et al., section 2).

When a client reattaches, its subscriptions are issued at the new broker, which holds back what arrives.
The old broker keeps its subscriptions for a while, so that both together miss nothing; then it cancels
them and transfers what it stored. The new broker merges the two queues without the duplicates and begins
to deliver.

| Wang et al., section 2 | here |
| --- | --- |
| events for a client that is away are stored at its last broker | `on_detach`, `on_notification` |
| it subscribes again at the new broker, which buffers what arrives | `on_attach`, `begin_stay` |
| the subscription at the old broker is kept for a while | `on_depart` |
| after a pre-defined period the old one is cancelled | `on_deadline` |
| what was not delivered is transferred to the new broker | `try_transfer` |
| the queues are merged, duplicates deleted, and what is left delivered in order | `on_transfer`, `store` |

How long is "a while"? A broker that has not yet heard of the new subscription sends to the old broker only.
That broker hears of the new subscription at most one longest delay after the attach, and its last
notification reaches the old broker at most one longest delay later. So the old broker waits twice the longest
delay, not once as published (`sub_unsub:published`).

Each time a session stays at a broker it has a queue of its own there, because
the client may be back before the old broker has transferred the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import ClassVar

from roamcast.errors import InputError
from roamcast.mobility.base import STREAM, Host, MobilityProtocol, Promise, Settings, newer_part, register
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State

MARKS_KEPT_BOUNDS = 16
"""How long the last number of a publisher is remembered and passed on, in longest delays."""

Mark = tuple[int, int, float]
"""Last notification of one publisher: incarnation, number, and time of arrival."""


class Transfer(Message, frozen=True):
    """The old broker's queue, for the stay that the attach number names.

    `base` is how far the client has acknowledged, `marks` the last notification of
    each recent publisher that was delivered or is in the queue: whatever the new
    broker has up to these is a duplicate.
    """

    client: str
    number: int
    base: int
    bursts: tuple[Burst, ...]
    marks: dict[str, Mark]
    cause: ClassVar[Cause] = "transfer"


class Stay:
    """One stay of a session at this broker, from its arrival to the transfer of its queue."""

    __slots__ = (
        "departed_at", "destination", "filters", "marks", "merged", "next_number", "number", "queue",
        "recent", "waited",
    )  # fmt: skip

    __state__ = State("sub-unsub-stay")

    def __init__(self, number: int, queue: DeliveryQueue, merged: bool) -> None:
        self.number = number
        self.queue = queue
        self.merged = merged
        """True when the queue of the previous stay has arrived, or there was none."""
        self.marks: dict[str, Mark] = {}
        """Marks that came with the transfer: notifications up to these were delivered or queued."""
        self.recent: deque[tuple[float, Burst]] = deque()
        """Notifications queued here within the time for which marks are kept."""
        self.filters: list[str] = []
        self.destination = ""
        self.next_number = 0
        self.departed_at = 0.0
        self.waited = False


class SubUnsub(MobilityProtocol):
    name = "sub_unsub"
    summary = "exactly once and in order, given a true bound on the overlay's delay"
    promise = Promise(lost=frozenset({"overflow"}))
    assumes = frozenset({"bounded_delay"})
    waits_bounds: ClassVar[int] = 2

    __state__ = State("sub-unsub", saved=("bound_s", "marks_kept_s", "stays", "current"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.check(settings)
        self.take_settings(settings)
        self.stays: dict[tuple[str, int], Stay] = {}
        self.current: dict[str, Stay] = {}

    def take_settings(self, settings: Settings) -> None:
        self.bound_s = settings.delay_bound_s or 0.0
        self.marks_kept_s = MARKS_KEPT_BOUNDS * self.bound_s

    @classmethod
    def check(cls, settings: Settings) -> None:
        if settings.delay_bound_s is None:
            raise InputError("protocol sub_unsub needs a bound on the overlay's delay: set delay_bound_s")

    # --- the client reconnects: subscribe at the new broker, keep the subscription at the old ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        if came_from == self.host.id:
            stay = self.current[client]
        else:
            stay = self.begin_stay(session, merged=came_from == "")
            self.subscribe_all((client, stay.number), session.subscriptions)
        if stay.merged:
            self.begin_delivery(client, stay.queue, received.get(STREAM, 0))

    def begin_stay(self, session: Session, merged: bool) -> Stay:
        stay = Stay(session.number, DeliveryQueue(STREAM, buffer=self.host.buffer), merged)
        self.stays[session.client, stay.number] = self.current[session.client] = stay
        return stay

    def on_detach(self, session: Session) -> None:
        """Keep storing at the last visited broker: the stay goes on."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        stay = self.current.pop(session.client)
        if stay.merged:
            stay.queue.rewind(received.get(STREAM, 0))
        stay.filters = list(session.subscriptions)
        stay.destination, stay.next_number, stay.departed_at = destination, session.number, self.host.now
        self.host.set_timer(self.host.now + self.waits_bounds * self.bound_s, (session.client, stay.number))
        self.host.hand_over(session, destination)

    def on_end(self, session: Session) -> None:
        super().on_end(session)
        del self.stays[session.client, self.current.pop(session.client).number]

    # --- after the pre-defined period: unsubscribe at the old broker, transfer, merge ---

    def on_deadline(self, token: Token) -> None:
        client, number = token
        stay = self.stays[client, number]
        stay.waited = True
        self.try_transfer(client, stay)

    def try_transfer(self, client: str, stay: Stay) -> None:
        """Transfer once the wait is over and the queue of the previous stay has come."""
        if not (stay.waited and stay.merged):
            return
        self.unsubscribe_all((client, stay.number), stay.filters)
        marks = self.recent_marks(stay)
        base = stay.queue.base
        bursts = tuple(stay.queue.drain())
        self.host.send(stay.destination, Transfer(client, stay.next_number, base, bursts, marks))
        del self.stays[client, stay.number]

    def recent_marks(self, stay: Stay) -> dict[str, Mark]:
        """Return the marks to pass on; duplicates of older notifications can no longer be under way."""
        recent_s = stay.departed_at - self.marks_kept_s
        marks = {publisher: mark for publisher, mark in stay.marks.items() if mark[2] >= recent_s}
        for at, burst in stay.recent:
            if at >= recent_s:
                marks[burst.publisher] = (burst.incarnation, burst.last, at)
        return marks

    def on_transfer(self, sender: str, message: Transfer) -> None:
        client = message.client
        stay = self.stays[client, message.number]
        own = stay.queue.drain()
        stay.queue = DeliveryQueue(STREAM, message.base, self.host.buffer)
        stay.marks = dict(message.marks)
        stay.merged = True
        for burst in message.bursts:
            stay.marks[burst.publisher] = (burst.incarnation, burst.last, self.host.now)
            self.keep(stay.queue, client, burst)
        for burst in own:
            self.store(client, stay, burst)
        if self.current.get(client) is stay:
            self.begin_delivery(client, stay.queue, message.base)
        self.try_transfer(client, stay)

    # --- notifications ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client: str = owner[0]
        stay = self.stays.get(owner)
        if stay is None:
            return
        if stay.merged:
            self.store(client, stay, burst)
        else:
            self.keep(stay.queue, client, burst)

    def store(self, client: str, stay: Stay, burst: Burst) -> None:
        """Deliver or queue what the client has not received; the rest came by way of both brokers."""
        mark = stay.marks.get(burst.publisher)
        newer = newer_part(burst, mark[:2]) if mark is not None else burst
        if newer is None:
            return
        now, recent = self.host.now, stay.recent
        recent.append((now, newer))
        if not stay.destination:
            oldest_s = now - self.marks_kept_s
            while recent[0][0] < oldest_s:
                recent.popleft()
        if self.current.get(client) is stay:
            self.host.pass_to(client, stay.queue, newer)
        else:
            self.keep(stay.queue, client, newer)

    # --- the client's own requests ---

    def owner_of(self, session: Session) -> Owner:
        return (session.client, self.current[session.client].number)

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for (client, _), stay in self.stays.items():
            yield client, stay.queue


class SubUnsubPublished(SubUnsub):
    name = "sub_unsub:published"
    is_as_published = True
    summary = "as published: the old broker waits one longest delay, and may miss messages on their way"
    waits_bounds = 1

    __state__ = State("sub-unsub-published")


register(SubUnsub)
register(SubUnsubPublished)
