"""Connections and sessions of a broker: clients attach and detach, sessions arrive and depart.

(The part of `Broker` that decides whose a connection is, and when a session may leave.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roamcast.broker.endings import Endings
from roamcast.broker.figures import Figures
from roamcast.broker.front import Front
from roamcast.broker.locate import Locator
from roamcast.broker.places import Places
from roamcast.broker.requests import Requests
from roamcast.broker.reunion import Reunion
from roamcast.filters.selector import parse
from roamcast.mobility.base import MobilityProtocol
from roamcast.protocol.effects import Attached, Effects
from roamcast.protocol.messages import (
    ATTACHED_AGAIN,
    ATTACHED_ELSEWHERE,
    NOT_THE_OWNER,
    AttachRefused,
    AttachRequest,
    ClientMessage,
    Hello,
    Message,
    Welcome,
)
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Router
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import CoreSettings

class Attachment:
    """A client's connection to this broker."""

    __slots__ = ("at", "connection", "hello", "queue", "window")

    __state__ = State("attachment")

    def __init__(self, connection: int, hello: Hello, window: int, at: float) -> None:
        self.connection = connection
        self.hello = hello
        self.at = at
        self.window = window
        """Notifications sent and not yet acknowledged, at most."""
        self.queue: DeliveryQueue | None = None


class SessionsHost:
    id: str
    now: float
    settings: CoreSettings
    front: Front | None
    router: Router
    protocol: MobilityProtocol
    places: Places
    locator: Locator
    requests: Requests
    endings: Endings
    reunion: Reunion
    figures: Figures
    sessions: dict[str, Session]
    next_incarnation: int
    sessions_begun: int
    attachments: dict[str, Attachment]
    _next_hops: Mapping[str, str]
    _out: Effects
    _departing: dict[str, AttachRequest]
    _in_handoff: dict[str, str]

    if TYPE_CHECKING:

        def send(self, broker: str, message: Message) -> None: ...
        def tell(self, client: str, message: ClientMessage) -> None: ...
        def record(self, kind: str, **fields: Any) -> None: ...
        def enqueue(self, client: str, burst: Burst) -> bool: ...

    # --- connections ---

    def _on_attached(self, item: Attached) -> None:
        client, hello = item.client, item.hello
        if not self._is_owner(hello):
            self._out.closes.append((client, item.connection, NOT_THE_OWNER))
            return
        if self._is_overtaken(hello):
            self._out.closes.append((client, item.connection, ATTACHED_AGAIN))
            return
        if client in self.endings.waiting:
            self._give_up_waiting(client, ATTACHED_AGAIN)
        elif client in self.attachments:
            self._close(client, ATTACHED_AGAIN)
        attachment = self.new_attachment(item.connection, hello)
        if client in self.endings.waiting:
            self.endings.waiting[client] = attachment
            return
        self.attachments[client] = attachment
        session = self.sessions.get(client)
        if session is None and not hello.fresh:
            self.record("handoff_started", client=client, broker=self.id, peer=hello.last_broker or None)
        if session is not None:
            overtaken = self._departing.pop(client, None)
            if overtaken is not None and overtaken.connection:
                self._refuse(overtaken)
            session.number += 1
            session.moves = max(session.moves, hello.moves)
            if hello.clean:
                self._end(session)
            else:
                self._welcome(session, self.id, hello.received)
        elif client in self.locator.pending:
            return
        elif hello.fresh:
            self.begin_session(Session(client, owner=hello.owner))
        else:
            self.locator.ask(item.connection, hello)

    def _is_owner(self, hello: Hello) -> bool:
        """Whether what is known here of this client belongs to whoever says hello."""
        session, attachment = self.sessions.get(hello.client), self.attachments.get(hello.client)
        if session is not None:
            return session.owner == hello.owner
        return attachment is None or attachment.hello.owner == hello.owner

    def _is_overtaken(self, hello: Hello) -> bool:
        """Whether a later attach of the same client is known here: this connection is an old one."""
        client, moves = hello.client, hello.moves
        if moves < 0:
            return False  # It does not count them.
        attachment = self.attachments.get(client)
        if attachment is not None and moves < attachment.hello.moves:
            return True
        known = (self._departing.get(client), self.sessions.get(client))
        return any(one is not None and moves < one.moves for one in known)

    def new_attachment(self, connection: int, hello: Hello) -> Attachment:
        return Attachment(connection, hello, hello.window or self.settings.window, self.now)

    def new_incarnation(self, least: int = 0) -> int:
        """For a publisher that begins to count at 1. Nobody remembers sessions that are over, so it is the
        time in microseconds; and, because clocks differ, never less than what brokers know to be over."""
        return max(least, self.next_incarnation, int(self.now * 1_000_000))

    def begin_session(self, former: Session) -> None:
        """A new session; what its client publishes is numbered on from the former one."""
        fresh = Session(
            former.client, former.number, former.moves, former.served, former.incarnation, former.published,
            former.accepted, owner=former.owner,
        )  # fmt: skip
        self.locator.arrived(fresh, "")

    def end_replaced(self, session: Session) -> None:
        """Its client has another session, which stays."""
        client = session.client
        if self.endings.replace(client):
            return
        if client in self.attachments:
            self._close(client, "attached elsewhere")
        asking = self._departing.pop(client, None)
        self._end(session)
        self.endings.replace(client)
        if asking is not None:
            self.endings.ask(asking)

    def _end(self, session: Session, came_from: str = "") -> None:
        """What is left of the session goes; if its client is attached, it gets a new one then."""
        self.endings.begin(session)
        self._in_handoff.setdefault(session.client, came_from or self.id)
        self.protocol.on_attach(session, came_from or self.id, {})

    def _on_merged(self, source: str, target: str) -> None:
        """Subscriptions first, so that nothing is missed; what comes by both ways is repeated."""
        former, session = self.sessions.get(source), self.sessions.get(target)
        if former is None or session is None or source in self.attachments:
            return  # It has moved on already; what was to go over waits here.
        for text in former.subscriptions:
            self.requests.subscribe_too(session, text)
        for client, queue in list(self.protocol.stored()):
            if client == source:
                for burst in queue.bursts():
                    self.enqueue(target, burst)
        self._end(former)

    def session_ended(self, client: str) -> None:
        self.places.session_gone(client)
        if self.front is not None:
            self.front.ended(client)

    def _give_up_waiting(self, client: str, reason: str) -> None:
        waiting = self.endings.waiting[client]
        if waiting is not None:
            self._out.closes.append((client, waiting.connection, reason))
            self.endings.waiting[client] = None

    def _close(self, client: str, reason: str) -> None:
        """End a connection from this side."""
        self._out.closes.append((client, self.attachments[client].connection, reason))
        self._detach(client, reason)

    def _detach(self, client: str, reason: str) -> None:
        del self.attachments[client]
        session = self.sessions.get(client)
        self.record("detached", client=client, broker=self.id, reason=reason)
        if session is not None:
            self.protocol.on_detach(session)

    # --- sessions come and go (called by the locator) ---

    @property
    def peers(self) -> list[str]:
        return self.router.peers

    def is_reachable(self, broker: str) -> bool:
        return broker == self.id or broker in self._next_hops

    def session_arrived(self, session: Session, came_from: str, received: dict[str, int]) -> None:
        attachment = self.attachments.get(session.client)
        if came_from == "":
            session.number += 1
            session.begun = (self.now, self.id)
            self.sessions_begun += 1
            session.life = self.sessions_begun
            if not session.published:
                session.incarnation = self.new_incarnation(session.incarnation)
        if attachment is not None:
            session.moves = max(session.moves, attachment.hello.moves)
            received = attachment.hello.received
            if attachment.hello.clean and came_from:
                # Its client wants a new one. What it may publish was withdrawn where it came from.
                session.advertisements = {}
                if self.front is not None:
                    self.front.arrived(session.client, session.capsule)
                self._end(session, came_from)
                self.reunion.session_came(session.client)
                return
        if self.front is not None:
            self.front.arrived(session.client, session.capsule)
        # An advertisement may settle at once; what was deferred waits for the handoff all the same.
        self._in_handoff[session.client] = came_from
        self.requests.advertise_again(session)
        self._welcome(session, came_from, received)
        self.requests.take_held(session)
        if came_from:
            self.reunion.session_came(session.client)
            if not self.is_reachable(came_from) and session.client in self.sessions:
                self.reunion.claim([session.client])

    def _welcome(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client = session.client
        attachment = self.attachments.get(client)
        if attachment is not None:
            self.tell(client, Welcome(session.number, session.accepted))
            self.record(
                "attached", client=client, broker=self.id, number=session.number, reason=came_from or None
            )
        self._in_handoff[client] = came_from
        self.places.session_came(session, came_from)
        self.protocol.on_attach(session, came_from, received)
        self.places.session_is_here(client)
        if attachment is None and client in self.sessions:
            # It left before its session came: that is an attach and a detach at once.
            self.protocol.on_detach(session)

    def session_requested(self, request: AttachRequest) -> None:
        if request.broker == self.id:
            return  # It went ahead of its own request: a proclaimed move.
        if self.endings.ask(request) or self.reunion.holds_back(request):
            return
        session = self.sessions[request.client]
        if (request.broker, request.connection) in session.served:
            return  # A second copy, by way of where the session was before.
        if session.owner != request.owner:
            self._refuse(request, NOT_THE_OWNER)
            return
        if 0 <= request.moves <= session.moves:
            self._refuse(request)
            return
        if request.client in self.attachments:
            self._close(request.client, ATTACHED_ELSEWHERE)
        if self.requests.is_settling(request.client):
            self._let_wait(request)
        else:
            self._depart(session, request)

    def _let_wait(self, request: AttachRequest) -> None:
        """The session departs when it has settled; of several that ask for it, the newest gets it."""
        waiting = self._departing.setdefault(request.client, request)
        if (waiting.broker, waiting.connection) == (request.broker, request.connection):
            return  # The first to wait, or a second copy of it.
        newer, older = (request, waiting) if request.moves >= waiting.moves else (waiting, request)
        self._departing[request.client] = newer
        self._refuse(older)

    def _refuse(self, request: AttachRequest, reason: str = ATTACHED_ELSEWHERE) -> None:
        self.send(request.broker, AttachRefused(request.client, request.connection, reason))

    def _depart(self, session: Session, request: AttachRequest) -> None:
        session.moves = max(session.moves, request.moves)
        session.number += 1
        if request.connection:
            session.serve(request.broker, request.connection)
        self.unadvertise(session)
        if self.front is not None:
            session.capsule = self.front.pack(session.client)
        self._in_handoff.pop(session.client, None)
        self.places.before_departure(session)
        self.protocol.on_depart(session, request.broker, request.received)
        self.places.session_gone(session.client)

    def unadvertise(self, session: Session) -> None:
        for text in session.advertisements:
            self.router.unadvertise(parse(text))

    def hand_over(self, session: Session, destination: str) -> None:
        self.locator.hand_over(session, destination)

    def release(self, session: Session, destination: str) -> None:
        self.locator.release(session, destination)

    def adopt(self, session: Session) -> None:
        self.locator.adopt(session)

    def take_back(self, session: Session) -> None:
        self.locator.take_back(session)

    def attach_refused(self, request: AttachRequest, reason: str) -> None:
        """Our request was stale, or not allowed. If the client has come again since, ask again for that."""
        attachment = self.attachments.get(request.client)
        if attachment is not None and attachment.connection != request.connection:
            self.locator.ask(attachment.connection, attachment.hello)
            return
        # Whatever the client asked for here was not accepted: it will ask again where it is now.
        self.requests.forget_held(request.client)
        self.figures.handoff("refused")
        if attachment is not None:
            self._close(request.client, reason)

    def handoff_finished(self, client: str) -> None:
        came_from = self._in_handoff.pop(client, None)
        if came_from is None:
            return
        if came_from not in ("", self.id):
            attachment = self.attachments.get(client)
            took_s = self.now - attachment.at if attachment is not None else None
            self.figures.handoff("finished", took_s)
            self.record("handoff_finished", client=client, broker=self.id, peer=came_from)
        self.requests.carry_on(client)

    def is_in_handoff(self, client: str) -> bool:
        return client in self._in_handoff

    def let_depart(self, client: str) -> None:
        """Serve whoever waits for a session that had first to settle."""
        if client in self.endings.waiting and client not in self._in_handoff:
            self.endings.finish(client)
        elif client in self._departing:
            self.session_requested(self._departing.pop(client))
