"""Sessions of MQTT clients where brokers move: the site sends for them what MFT subscribers send themselves.

A subscriber of the document counts timestamps and knows what it is subscribed to. A standard client does
neither, so its broker does both:

- **Timestamps** are the clock in milliseconds, or one more than the highest that is known here for the
  client, if that is higher; a suffix identifies the broker, so that no two brokers choose the same. Within a
  tree, clock differences do not matter: if the client's former broker knows a later timestamp, it answers,
  and the new broker repeats its claim with a later one. Between partitions the later clock wins; if clocks
  differ by more than the time between two attaches in two partitions, the older attach wins when these meet.
  Then the connection is closed as taken over, and the client's next attach, which knows that timestamp, wins.
- **Subscriptions** come from what the brokers know (see `noted_filters`). Where two partitions meet with
  different subscriptions, the last change of each subscription counts: `Missed` tells the client's broker,
  wherever that is, and that broker tells all others.
- **A client unknown here** may be new, or known to a broker that has not answered yet. So CONNACK waits for a
  wave over the tree, or first for a tree to form, up to a time limit: then the client is served as a new one.
  If its session is found later, when partitions meet, the two sessions merge, unless the client asked for a
  clean start, which ends everything before it.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from roamcast.broker.figures import FinishedHandoff
from roamcast.broker.moving.core import MobileCore, Visit
from roamcast.broker.moving.noted_filters import (
    began_of,
    merged,
    misses,
    noted,
    owners_of,
    read_all,
    subscriptions_in,
    withdrawn,
)
from roamcast.filters.filter import Filter
from roamcast.mobility.moving.mft import Bsub
from roamcast.mobility.moving.mobile import LOCAL, Known, Mig, Sub
from roamcast.mqtt.server.endpoint import Endpoint
from roamcast.mqtt.server.in_flight import PackedInFlight
from roamcast.mqtt.server.sessions import MqttSession, NamedCapsule
from roamcast.protocol.effects import Attached, CommandGiven, Detached, Input, Said, SessionOver, Submitted
from roamcast.protocol.messages import (
    ATTACHED_ELSEWHERE,
    NOT_THE_OWNER,
    Acknowledge,
    Cause,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    Hello,
    Message,
    SubscriptionSettled,
    Welcome,
)
from roamcast.state import State

INSISTS_S = 5.0
"""Seconds after an attach within which the broker answers a rival claim by repeating its own."""


class Missed(Message, frozen=True):
    """Subscriptions known elsewhere, on the way to the client's broker, which lacks them."""

    subscriber: str
    filters: tuple[Filter, ...]
    cause: ClassVar[Cause] = "handoff"


class Arriving(msgspec.Struct):
    """A client whose CONNACK waits for what other brokers may know of it."""

    connection: int
    hello: Hello
    until: float
    since: float


class MobileSessions:
    __state__ = State(
        "mobile-sessions",
        saved=("core", "endpoint", "_arriving", "_missed", "_wait_s", "_alone_at"),
    )

    def __init__(self, core: MobileCore, endpoint: Endpoint) -> None:
        self.core = core
        self.endpoint = endpoint
        self._arriving: dict[str, Arriving] = {}
        self._missed: dict[str, Missed] = {}
        """Messages that could not be sent on yet."""
        self._wait_s = 0.0
        self._alone_at = 0.0
        """Time from which clients are served without waiting for a tree."""

    def register_handlers(self) -> None:
        self.core.serve(Missed, self.on_missed)

    def configure(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def started(self) -> None:
        self._alone_at = self.core.now + self._wait_s

    # --- time ---

    def next_time(self) -> float | None:
        return min((one.until for one in self._arriving.values()), default=None)

    def on_time(self) -> None:
        for client, one in list(self._arriving.items()):
            if one.until <= self.core.now:
                self._begin(client, one)

    # --- calls of the endpoint ---

    def take(self, item: Input) -> None:
        match item:
            case Submitted(client, connection, message):
                visit = self.core.visits.get(client)
                if visit is not None and visit.connection == connection:
                    self._on_submitted(client, visit, message)
            case Attached(client, connection, hello):
                self._on_attached(client, connection, hello)
            case Detached(client, connection):
                self._on_detached(client, connection)
            case SessionOver(client):
                known = self._known(client)
                if client not in self.core.visits and (known is None or known.way == LOCAL):
                    # Not by the clock: if the client is in another part of the network, the clock there may
                    # be newer.
                    self._end(client, known.timestamp + 1 if known is not None else 0)
            case CommandGiven(command):
                self.core.carry_out(command)

    def _on_submitted(self, client: str, visit: Visit, message: Said) -> None:
        if isinstance(message, ClientPublish):
            self.core.publish(client, visit, message)
        elif isinstance(message, Acknowledge):
            self.core.acknowledge(client, visit, message)
        elif isinstance(message, ClientSubscribe | ClientUnsubscribe):
            self.synchronise(client)
            purpose = ("settled", client, visit.connection, message.request)
            self.core.waves.begin(purpose, list(self.core.machine.peers))

    def finish(self) -> None:
        """Apply the consequences of all messages that were taken."""
        for what, client, connection, *more in self.core.waves.take_done():
            visit, arriving = self.core.visits.get(client), self._arriving.get(client)
            # Without a peer, a wave ended only because its link is lost: another link may come in time.
            is_told = what == "arrival" and bool(self.core.machine.peers)
            if what == "settled" and visit is not None and visit.connection == connection:
                self.core.tell(client, SubscriptionSettled(more[0]))
            elif is_told and arriving is not None and arriving.connection == connection:
                self._begin(client, arriving)
        self._pass_on_missed()

    # --- coming and going ---

    def _on_attached(self, client: str, connection: int, hello: Hello) -> None:
        core, now = self.core, self.core.now
        if any(owner != hello.owner for owner in owners_of(core.filters_of(client))):
            core.close(client, connection, NOT_THE_OWNER)
            return
        one = Arriving(connection, hello, now + self._wait_s, now)
        if hello.clean:
            self._end(client, self._next_stamp(client))
        is_known = client in self.endpoint.sessions or bool(core.filters_of(client))
        peers = list(core.machine.peers)
        if hello.clean or hello.fresh or is_known or not (peers or now < self._alone_at):
            self._begin(client, one)
            return
        self._arriving[client] = one
        if peers:
            core.waves.begin(("arrival", client, connection), peers)

    def tree_has_grown(self) -> None:
        """Start waves for waiting clients when the first link appears."""
        peers = list(self.core.machine.peers)
        if len(peers) == 1:
            for client, one in self._arriving.items():
                self.core.waves.begin(("arrival", client, one.connection), peers)

    def _begin(self, client: str, arriving: Arriving) -> None:
        """Serve the client from now on."""
        self._arriving.pop(client, None)
        core, hello = self.core, arriving.hello
        known = self._known(client)
        if client not in self.endpoint.sessions:
            self.endpoint.arrived(client, self._capsule(client), hello.owner)
        visit = Visit(arriving.connection, hello.owner, hello.window, core.stamp())
        visit.is_clean, visit.insists_until = hello.clean, core.now + INSISTS_S
        visit.began = visit.stamp if hello.clean else began_of(core.filters_of(client))
        core.visits[client] = visit
        visit.subscriptions = dict(self.endpoint.sessions[client].subscriptions)
        core.tell(client, Welcome(1, 0))
        core.record("attached", client=client, broker=core.id)
        if known is not None and known.filters:
            if known.way != LOCAL:
                took_s = core.now - arriving.since
                core.figures.finish(FinishedHandoff(client, known.way or "", core.now, took_s, 0))
            self._claim(client, visit)

    def _capsule(self, client: str) -> bytes:
        """Return the MQTT side of a session as the network knows it; empty if unknown."""
        found = subscriptions_in(self.core.filters_of(client))
        if not found:
            return b""
        return MqttSession(client, NamedCapsule(0, list(found.values()), PackedInFlight(), [])).pack()

    def _on_detached(self, client: str, connection: int) -> None:
        arriving, visit = self._arriving.get(client), self.core.visits.get(client)
        if arriving is not None and arriving.connection == connection:
            del self._arriving[client]
        if visit is not None and visit.connection == connection:
            self.synchronise(client)
            self.core.leave(client)
            self.core.record("detached", client=client, broker=self.core.id)
            self._review(client)

    def _end(self, client: str, stamp: int) -> None:
        """End the session at every broker that knows it."""
        if self.core.filters_of(client):
            self.core.say(client, Bsub(client, (), stamp, 0))
        self._missed.pop(client, None)
        if client in self.endpoint.sessions:
            self.endpoint.ended(client)

    # --- messages sent on behalf of a client ---

    def _known(self, client: str) -> Known | None:
        return self.core.machine.known.get(client)

    def _next_stamp(self, client: str) -> int:
        known = self._known(client)
        stamp = self.core.stamp(after=known.timestamp if known is not None else 0)
        visit = self.core.visits.get(client)
        if visit is not None:
            visit.stamp = stamp
        return stamp

    def _claim(self, client: str, visit: Visit) -> None:
        """Announce that the client is here."""
        known = self.core.machine.known[client]
        self.core.say(client, Mig(client, "", self._next_stamp(client), 0, known.since))

    def _attach(self, client: str) -> None:
        """Attach the client at this broker only: with this timestamp no other broker is told."""
        if client not in self.core.machine.attached:
            self.core.say(client, Mig(client))

    def synchronise(self, client: str) -> None:
        """Tell the machine which of the client's subscriptions changed."""
        visit, session = self.core.visits.get(client), self.endpoint.sessions.get(client)
        if visit is None or session is None or session.subscriptions == visit.subscriptions:
            return
        former, visit.subscriptions = visit.subscriptions, dict(session.subscriptions)
        for kind, ones, others in (
            ("subscribed", visit.subscriptions, former),
            ("unsubscribed", former, visit.subscriptions),
        ):
            for name in [name for name in ones if name not in others]:
                self.core.record(kind, client=client, filter=ones[name].filter, reason="issued")
        self._say_subscriptions(client, visit)

    def _say_subscriptions(self, client: str, visit: Visit) -> None:
        had, stamp = read_all(self.core.filters_of(client)), self._next_stamp(client)
        new = [
            noted(one, visit.owner, stamp, visit.began)
            for name, one in visit.subscriptions.items()
            if name not in had or had[name].subscription != one
        ]
        new += [
            withdrawn(name, visit.owner, stamp, visit.began)
            for name, one in had.items()
            if one.subscription is not None and name not in visit.subscriptions
        ]
        if not new:
            return
        self._attach(client)
        if len(new) == 1 and not had.keys() & read_all(new).keys():
            since = self.core.machine.known[client].since
            self.core.say(client, Sub(new[0], client, stamp, 0, since))
        else:
            self._say_all(client, merged([one.filter for one in had.values()], new))

    def _say_all(self, client: str, filters: tuple[Filter, ...]) -> None:
        self.core.say(client, Bsub(client, filters, self._next_stamp(client), 0))

    # --- messages of others about a client ---

    def receive(self, peer: str, message: Message) -> None:
        """Handle a message over the tree, and its consequences for the client it concerns."""
        subscriber = getattr(message, "subscriber", "")
        if isinstance(message, Bsub):
            self._look_for_missed(message)
        self.core.receive(peer, message)
        if subscriber:
            # Without subscriptions this is no answer: the session was ended elsewhere.
            self._review(subscriber, is_answer=isinstance(message, Bsub) and bool(message.filters))

    def _look_for_missed(self, message: Bsub) -> None:
        """Find subscriptions known here that a better informed sender lacks. A message without any ends the
        session."""
        known = self._known(message.subscriber)
        is_newer = known is not None and message.timestamp > known.timestamp and bool(message.filters)
        filters = tuple(self.core.filters_of(message.subscriber))
        if is_newer and misses(message.filters, filters):
            self.on_missed("", Missed(message.subscriber, filters))

    def on_missed(self, peer: str, message: Missed) -> None:
        known = self._missed.get(message.subscriber)
        filters = merged(known.filters if known is not None else (), message.filters)
        self._missed[message.subscriber] = Missed(message.subscriber, filters)

    def give_back(self, messages: list[Message]) -> None:
        """Take back messages from a link that is lost."""
        for message in messages:
            if isinstance(message, Missed):
                self.on_missed("", message)

    def _pass_on_missed(self) -> None:
        for client, message in list(self._missed.items()):
            known, filters = self._known(client), self.core.filters_of(client)
            if known is None or not misses(filters, message.filters):
                del self._missed[client]
            elif known.way == LOCAL:
                del self._missed[client]
                found = merged(filters, message.filters) if filters else ()
                self._load(client, found)
                self._say_all(client, found)
            elif known.way in self.core.machine.peers:
                del self._missed[client]
                self.core.links.send(known.way, message)

    def _review(self, client: str, is_answer: bool = False) -> None:
        """Reconcile a client with what is known of it: insist if it is connected here, else drop its local
        session.

        A MIG tells that the client has attached elsewhere since. A BSUB may also be the answer of a broker
        that knows a later timestamp from before.
        """
        known = self._known(client)
        if known is None:
            return
        visit, arriving = self.core.visits.get(client), self._arriving.get(client)
        if arriving is not None and known.filters:
            if any(owner != arriving.hello.owner for owner in owners_of(known.filters.values())):
                del self._arriving[client]
                self.core.close(client, arriving.connection, NOT_THE_OWNER)
            else:
                self._begin(client, arriving)
        elif known.way == LOCAL or (not known.filters and not known.timestamp):
            return
        elif visit is None:
            if client in self.endpoint.sessions:
                self.endpoint.pack(client)
        elif known.timestamp <= visit.stamp:
            self._insist(client, visit, known)
        elif is_answer and self.core.now < visit.insists_until:
            visit.insists_until = 0.0
            self._insist(client, visit, known)
        elif not visit.is_leaving:
            visit.is_leaving = True
            self.core.close(client, visit.connection, ATTACHED_ELSEWHERE)

    def _insist(self, client: str, visit: Visit, known: Known) -> None:
        """Repeat the claim that the client is here, with a newer timestamp."""
        if visit.is_clean:
            self._attach(client)
            stamp = self._next_stamp(client)
            mine = tuple(noted(one, visit.owner, stamp, visit.began) for one in visit.subscriptions.values())
            self._say_all(client, mine)
        else:
            self._load(client, tuple(known.filters.values()))
            self._claim(client, visit)

    def _load(self, client: str, filters: tuple[Filter, ...]) -> None:
        """Replace the MQTT session's subscriptions by those that the network knows."""
        session, visit = self.endpoint.sessions.get(client), self.core.visits.get(client)
        if session is None:
            return
        wanted = subscriptions_in(filters)
        for name in [name for name in session.subscriptions if name not in wanted]:
            session.unsubscribe(name)
        for subscription in wanted.values():
            session.subscribe(subscription)
        if visit is not None:
            visit.subscriptions = dict(session.subscriptions)
