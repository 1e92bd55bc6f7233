"""Home broker (Wang et al., section 2, measured in section 5): Mobile IP's idea for publish/subscribe.

The broker where a client attaches first is its home broker: it maintains the client's subscriptions and its
queue forever. Any other broker is a foreign broker. When the client attaches there, the foreign broker
registers it with the home broker (`Register`), which forwards everything that arrives (`ForwardEvents`): all
of it travels by way of the home broker, the triangle. A client names its home broker when it attaches, as a
mobile node knows its home agent. The session is at home while the client is away, and comes to the foreign
broker with what is stored: one round trip until the client reads. When the client leaves, its session goes
home again. The foreign broker delivers, and stores nothing for clients that are gone: notifications on their
way from the home broker, waiting at the foreign broker or on the air may be lost. There are no duplicates
and no reordering, because the home broker sends each notification once, in order, to one place at a time.

| Wang et al., section 2 | here |
| --- | --- |
| the home broker maintains the subscriptions of the client | `make_home`, `on_change_at_home` |
| a foreign broker registers a client with the home broker | `on_attach`, `on_register` |
| the home broker forwards all events, stored and new | `on_register`, `on_notification` |
| the foreign broker delivers them | `on_forward_events` |
| an event in transit when the client moves away is lost | `on_detach`, `on_forward_events` |
| not in the paper: the home broker hears that the client has left | `deregister`, `on_deregister` |
| not in the paper: subscriptions change while the client is abroad | `change_at_home`, `on_change_settled` |
| not in the paper: a home broker that is gone for good | `on_lost`, `settle_down` |

The paper does not say when the home broker stores again. Read to the letter
(`home_broker:published`), only the next registration or the client's return ends
the forwarding, and whatever is published while it is away is lost, too:

    brokers a-b
    protocol home_broker:published
    at 0.0 c attach a
    at 0.1 c subscribe TRUE
    at 0.0 p attach a
    at 1.0 c attach b
    at 2.0 c leave
    at 9.0 p publish {}
    at 10.0 c attach b

So the foreign broker deregisters the client as soon as it notices that the client is gone (`Deregister`),
and only notifications under way until then are lost. For the same reason a client that left before its
session came is not registered at all; notifications that came with the session stay with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, NamedTuple

import msgspec

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility.base import (
    Host,
    MobilityProtocol,
    OwnToken,
    Promise,
    Settings,
    queue_of,
    register,
)
from roamcast.protocol.messages import Cause, Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner, Token
from roamcast.state import State

IN_TRANSIT = "in transit"
"""Reason of a foreign broker's drop: the client has left, and the home broker no longer has the
notification."""


class Register(Message, frozen=True):
    """Registers the client at the sender, under this attach number."""

    client: str
    number: int
    home: float = 0.0
    """When the session began at its home: distinguishes it from another session of the client."""
    subscriptions: dict[str, float] = msgspec.field(default_factory=dict)
    """Subscriptions, for a home broker that considered the session ended. The session has come back from a
    broker that is gone."""
    cause: ClassVar[Cause] = "handoff"


class Deregister(Message, frozen=True):
    """Ends the registration under this attach number: the client has left the sender."""

    client: str
    number: int
    home: float = 0.0
    cause: ClassVar[Cause] = "handoff"


class ForwardEvents(Message, frozen=True):
    """Notifications from the home broker to the foreign broker; the first answers the registration, even if
    empty."""

    client: str
    number: int
    bursts: tuple[Burst, ...]

    @property
    def cause(self) -> Cause:
        return "transfer" if self.bursts else "handoff"


class GoHome(Message, frozen=True):
    """Timer of a foreign broker: the session goes home unless another broker asks for it by then."""

    client: str
    number: int
    cause: ClassVar[Cause] = "handoff"


class LeaveHome(Message, frozen=True):
    """Tells the home broker that the session has ended."""

    client: str
    filters: tuple[Filter, ...]
    home: float = 0.0
    cause: ClassVar[Cause] = "subscribe"


class ChangeAtHome(Message, frozen=True):
    """Asks the home broker to carry out a subscription or unsubscription of its client at the sender."""

    client: str
    filter: Filter
    wanted: bool
    issued_at: float
    home: float = 0.0
    cause: ClassVar[Cause] = "subscribe"


class ChangeSettled(Message, frozen=True):
    """Reports to the foreign broker that a change has settled."""

    client: str
    filter: Filter
    cause: ClassVar[Cause] = "subscribe"


class Home:
    """State of one of the home broker's own clients."""

    __state__ = State("home", saved=("queue", "location", "number"))

    def __init__(self, queue: DeliveryQueue) -> None:
        self.queue = queue
        self.location = ""
        """Foreign broker where the client is registered; "" while the client is here or away."""
        self.number = 0
        """Attach number of that registration."""


class Visit:
    """State of an attached client at a foreign broker."""

    __state__ = State("home-broker-visit", saved=("session", "number", "queue"))

    def __init__(self, session: Session, queue: DeliveryQueue) -> None:
        self.session = session
        self.number = session.number
        """Attach number under which the client is registered at its home."""
        self.queue = queue


class HomeBroker(MobilityProtocol):
    name = "home_broker"
    assumes = frozenset({"honest_peers"})
    takes_back = True
    summary = "loses only what is in transit from the home broker when the client leaves; triangle routing"
    promise = Promise(lost=frozenset({"in_transit", "overflow"}))
    own_state = False

    __state__ = State("home-broker", saved=("homes", "visits", "changing", "ahead"))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.homes: dict[str, dict[float, Home]] = {}
        """By client and time when its session began here. A session wrongly considered lost leaves the client
        with two for a while, and both may be at home here."""
        self.visits: dict[str, Visit] = {}
        self.changing: dict[tuple[str, Filter], Token] = {}
        """Changes of visitors that their home brokers have not settled yet."""
        self.ahead: dict[str, Session] = {}
        """Sessions that came to a foreign broker after their clients had left, with undelivered
        notifications."""

    # --- the client attaches: at home, or at a foreign broker, which registers it ---

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client, host = session.client, self.host
        self.ahead.pop(client, None)
        if came_from == "" or not host.is_reachable(home_of(session).broker):
            # A former home of the client is gone for good, with all that was stored there.
            session.luggage = msgspec.msgpack.encode(HomeAt(host.id, host.now))
        home = self.home_here(session)
        if home is not None:
            self.come_home(session, home)
            self.begin_delivery(client, home.queue, received.get(host.id, 0))
        elif host.is_attached(client):
            queue = DeliveryQueue(host.id, received.get(host.id, 0), host.buffer)
            self.visits[client] = Visit(session, queue)
            self.take_owed(session, queue)
            host.deliver_from(client, queue)
            home_broker, begun_at = home_of(session)
            host.send(home_broker, Register(client, session.number, begun_at, dict(session.subscriptions)))
        else:
            # The session rests here until its client attaches, here or elsewhere; that may never happen.
            self.ahead[client] = session
            host.handoff_finished(client)

    def make_home(self, owner: Owner, subscriptions: Mapping[str, float]) -> Home:
        """Return the home of a session, created if missing."""
        client, begun_at = owner
        homes = self.homes.setdefault(client, {})
        if begun_at not in homes:
            homes[begun_at] = Home(DeliveryQueue(self.host.id, buffer=self.host.buffer))
            self.subscribe_all(owner, subscriptions)
        return homes[begun_at]

    def find_home(self, client: str, begun_at: float) -> Home | None:
        return self.homes.get(client, {}).get(begun_at)

    def come_home(self, session: Session, home: Home) -> None:
        """Store here from now on. Notifications that the client did not read at the foreign broker come
        first."""
        home.location = ""
        if session.owed:
            stored = home.queue.drain()
            self.take_owed(session, home.queue)
            for burst in stored:
                self.keep(home.queue, session.client, burst)

    def take_owed(self, session: Session, queue: DeliveryQueue) -> None:
        for burst in session.owed:
            self.keep(queue, session.client, burst)
        session.owed = ()

    def home_here(self, session: Session) -> Home | None:
        """Return this broker's home entry of the session, if it is the session's home."""
        if home_of(session).broker != self.host.id:
            return None
        # Missing if the session was considered ended; it came back from a broker that is gone.
        return self.make_home(owner_at_home(session), session.subscriptions)

    def on_register(self, sender: str, message: Register) -> None:
        home = self.make_home((message.client, message.home), message.subscriptions)
        home.location, home.number = sender, message.number
        self.host.send(sender, ForwardEvents(message.client, message.number, tuple(home.queue.drain())))

    def on_forward_events(self, sender: str, message: ForwardEvents) -> None:
        client = message.client
        visit = self.visits.get(client)
        if visit is None:
            self.give_up(client, message.bursts, IN_TRANSIT)
            return
        # These may be of an earlier visit. They are late but not too late: had the client received newer ones
        # elsewhere, its session would have come behind this message.
        for burst in message.bursts:
            self.keep(visit.queue, client, burst)
        self.host.pump(client)
        if message.number == visit.number:
            self.host.handoff_finished(client)

    # --- the client leaves ---

    def on_detach(self, session: Session) -> None:
        """At home, keep everything; a foreign broker drops its queue, deregisters, and sends the session
        home."""
        visit = self.visits.pop(session.client, None)
        if visit is not None:
            self.give_up(session.client, visit.queue.drain(), IN_TRANSIT)
            self.deregister(session, visit)
            self.host.send(self.host.id, GoHome(session.client, session.number))

    def on_go_home(self, sender: str, message: GoHome) -> None:
        self.host.send_home(message.client, message.number)

    def deregister(self, session: Session, visit: Visit) -> None:
        home_broker, begun_at = home_of(session)
        self.host.send(home_broker, Deregister(session.client, visit.number, begun_at))

    def on_deregister(self, sender: str, message: Deregister) -> None:
        home = self.find_home(message.client, message.home)
        if home is not None and (home.location, home.number) == (sender, message.number):
            home.location = ""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        home = self.home_here(session)
        if home is not None:
            home.queue.rewind(received.get(self.host.id, 0))
            session.owed = tuple(home.queue.drain())
        self.ahead.pop(session.client, None)
        self.host.hand_over(session, destination)

    def on_end(self, session: Session) -> None:
        """Have the home broker withdraw the subscriptions, wherever the session ends."""
        self.visits.pop(session.client, None)
        home_broker, begun_at = home_of(session)
        leave = LeaveHome(session.client, tuple(map(parse, session.subscriptions)), begun_at)
        if self.home_here(session) is not None:
            self.on_leave_home(self.host.id, leave)  # At once: the next session may begin here now.
        else:
            self.host.send(home_broker, leave)

    def on_leave_home(self, sender: str, message: LeaveHome) -> None:
        client, begun_at = message.client, message.home
        if self.find_home(client, begun_at) is None:
            return
        for filter in message.filters:
            self.host.unsubscribe((client, begun_at), filter, "subscribe")
        del self.homes[client][begun_at]
        if not self.homes[client]:
            del self.homes[client]

    # --- notifications reach the home broker, and no other ---

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        client, begun_at = owner
        home = self.find_home(client, begun_at)
        if home is None:
            return  # The session was lost with a broker that is gone.
        if home.location:
            self.host.send(home.location, ForwardEvents(client, home.number, (burst,)))
        else:
            self.host.pass_to(client, home.queue, burst)

    # --- the client's own requests: the home broker maintains the subscriptions ---

    def on_subscribe(self, session: Session, filter: Filter, token: Token) -> None:
        if self.home_here(session) is not None:
            self.host.subscribe(owner_at_home(session), filter, self.host.now, "subscribe", token)
        else:
            self.change_at_home(session, filter, token, wanted=True)

    def on_unsubscribe(self, session: Session, filter: Filter, token: Token) -> None:
        if self.home_here(session) is not None:
            self.host.unsubscribe(owner_at_home(session), filter, "subscribe", token)
        else:
            self.change_at_home(session, filter, token, wanted=False)

    def change_at_home(self, session: Session, filter: Filter, token: Token, wanted: bool) -> None:
        self.changing[session.client, filter] = token
        home_broker, begun_at = home_of(session)
        self.host.send(home_broker, ChangeAtHome(session.client, filter, wanted, self.host.now, begun_at))

    def on_change_at_home(self, sender: str, message: ChangeAtHome) -> None:
        owner, token = (message.client, message.home), OwnToken((sender, message.client, message.filter))
        if message.wanted:
            self.host.subscribe(owner, message.filter, message.issued_at, "subscribe", token)
        else:
            self.host.unsubscribe(owner, message.filter, "subscribe", token)

    def on_settled(self, token: Token) -> None:
        broker, client, filter = token
        self.host.send(broker, ChangeSettled(client, filter))

    def on_change_settled(self, sender: str, message: ChangeSettled) -> None:
        self.host.settled(self.changing.pop((message.client, message.filter)))

    # --- the rest ---

    def on_lost(self, peers: Collection[str], brokers: Collection[str]) -> None:
        for client, visit in list(self.visits.items()):
            if home_of(visit.session).broker in brokers:
                self.settle_down(client, visit)

    def settle_down(self, client: str, visit: Visit) -> None:
        """Make this broker the home of a visitor whose home is gone for good, with all that was stored
        there."""
        session = visit.session
        session.luggage = msgspec.msgpack.encode(HomeAt(self.host.id, self.host.now))
        changing = {filter: token for (of, filter), token in self.changing.items() if of == client}
        known = {text: at for text, at in session.subscriptions.items() if parse(text) not in changing}
        self.make_home(owner_at_home(session), known).queue = visit.queue
        del self.visits[client]
        for filter, token in changing.items():
            del self.changing[client, filter]
            if any(parse(text) == filter for text in session.subscriptions):
                self.on_subscribe(session, filter, token)
            else:
                self.host.settled(token)
        self.host.handoff_finished(client)

    def named_next(self, session: Session) -> str:
        return home_of(session).broker or self.host.id

    def trail_of(self, client: str) -> str:
        """Return the foreign broker where the client is registered."""
        return next((home.location for home in self.homes.get(client, {}).values() if home.location), "")

    def stored(self) -> Iterator[tuple[str, DeliveryQueue]]:
        for client, homes in self.homes.items():
            for home in homes.values():
                yield client, home.queue
        for client, visit in self.visits.items():
            yield client, visit.queue
        for client, session in self.ahead.items():
            yield client, queue_of(session.owed)


class HomeBrokerPublished(HomeBroker):
    name = "home_broker:published"
    is_as_published = True
    summary = "as published, without deregistration: also loses what is published while the client is away"

    __state__ = State("home-broker-published")

    def deregister(self, session: Session, visit: Visit) -> None:
        """Send nothing: the home broker learns of the departure by the next registration or return."""

    def come_home(self, session: Session, home: Home) -> None:
        """Keep forwarding: only the client's return ends that, not the session's."""
        location = home.location
        super().come_home(session, home)
        if not self.host.is_attached(session.client):
            home.location = location


class HomeAt(NamedTuple):
    """Home broker and time of the session's beginning; travels with the session."""

    broker: str
    begun_at: float


def home_of(session: Session) -> HomeAt:
    """Return the home of the session; empty while the session begins."""
    if not session.luggage:
        return HomeAt("", 0.0)
    return msgspec.msgpack.decode(session.luggage, type=HomeAt)


def owner_at_home(session: Session) -> Owner:
    """Return the owner of the session's subscriptions at the home broker."""
    return (session.client, home_of(session).begun_at)


register(HomeBroker)
register(HomeBrokerPublished)
