"""Clients attach and detach, sessions arrive and depart: whose connection it is, when a session may leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from roamcast.broker.figures import FinishedHandoff
from roamcast.broker.session import Attachment, ClientHere, Event, Handoff, Holding, Reading, Search, Settling
from roamcast.filters.selector import parse
from roamcast.protocol.effects import Attached
from roamcast.protocol.messages import (
    ATTACHED_AGAIN,
    ATTACHED_ELSEWHERE,
    NOT_THE_OWNER,
    READ_IN_VAIN,
    AttachRefused,
    AttachRequest,
    Hello,
    Welcome,
)
from roamcast.protocol.owners import is_same
from roamcast.protocol.session import Session
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore

LASTS = "#lasts"
"""In what a request says of a client that a copy serves: for how many seconds its session outlasts it."""


class Handoffs:
    __state__ = State("handoffs", saved=("_broker", "_clients"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self._clients = broker.clients

    # --- connections ---

    def on_attached(self, item: Attached) -> None:
        broker, hello = self._broker, item.hello
        here = self._clients.of(item.client)
        refusal = self._refusal(here, hello)
        if refusal:
            broker.close(item.client, item.connection, refusal)
            self._clients.forget_unused(here)
            return
        if here.attachment is not None:
            self.close(here, ATTACHED_AGAIN)
        self._clients.attach(here, self.new_attachment(item.connection, hello))
        session = here.session
        if here.is_ending:
            return
        if session is not None:
            overtaken = self.unclaim(here)
            if overtaken is not None and overtaken.connection:
                self.refuse(overtaken)
            session.number += 1
            session.owner = hello.owner
            session.moves = max(session.moves, hello.moves)
            if hello.clean:
                broker.endings.begin(here)
            else:
                here.on(Event.WELCOMED)
                broker.directory.changed(here.client)  # It may last now, or last no longer.
                here.came_from = broker.id
                self._welcome(here, session, hello.received)
            return
        if not hello.fresh:
            last = hello.last_broker or None
            broker.record("handoff_started", client=here.client, broker=broker.id, peer=last)
        if hello.fresh and here.search is Search.IDLE:
            self.begin_session(Session(item.client, owner=hello.owner))
            return
        is_asked = here.search is not Search.IDLE
        received = hello.received if hello.clean else broker.protocol.serve_ahead(hello, is_asked)
        if here.reading is Reading.COPY and broker.front is not None:
            received = {**received, LASTS: broker.front.lasts_s(here.client)}
        if not is_asked:
            broker.locator.ask(here, item.connection, hello, received)
        else:
            broker.locator.attached_again(here)

    def _refusal(self, here: ClientHere, hello: Hello) -> str:
        """Why whoever says hello cannot attach: somebody else's session, or an old connection."""
        known = here.session or (here.attachment and here.attachment.hello)
        if known and not self._is_same(known.owner, hello.owner):
            return NOT_THE_OWNER
        if hello.moves >= 0:  # Otherwise it does not count its attaches.
            attached = here.attachment.hello if here.attachment is not None else None
            known_moves = (one.moves for one in (attached, here.claim, here.session) if one is not None)
            if any(hello.moves < moves for moves in known_moves):
                return ATTACHED_AGAIN
        return ""

    def new_attachment(self, connection: int, hello: Hello) -> Attachment:
        broker = self._broker
        return Attachment(connection, hello, hello.window or broker.settings.window, broker.now)

    def close(self, here: ClientHere, reason: str) -> None:
        """End a connection from this side."""
        assert here.attachment is not None
        self._broker.close(here.client, here.attachment.connection, reason)
        self.detach(here, reason)

    def detach(self, here: ClientHere, reason: str) -> None:
        self._clients.detach(here)
        if here.is_ending:
            return  # It only waited for a new session.
        broker = self._broker
        broker.record("detached", client=here.client, broker=broker.id, reason=reason)
        if here.session is not None:
            broker.protocol.on_detach(here.session)

    # --- sessions come ---

    def begin_session(self, former: Session) -> None:
        """A new session; what its client publishes is numbered on from the former one."""
        fresh = Session(
            former.client, former.number, former.moves, former.served, former.incarnation, former.published,
            former.accepted, owner=former.owner,
        )  # fmt: skip
        self._broker.locator.arrived(fresh, "")

    def session_arrived(
        self, here: ClientHere, session: Session, received: Mapping[str, int], reads_on: bool
    ) -> None:
        broker, attachment, came_from = self._broker, here.attachment, here.came_from
        if came_from == "":
            session.number += 1
            session.begun = (broker.now, broker.id)
            broker.sessions_begun += 1
            session.life = broker.sessions_begun
            if not session.published:
                session.incarnation = broker.new_incarnation(session.incarnation)
        if broker.front is not None:
            broker.front.arrived(session.client, session.capsule, session.owner, reads_on)
        if attachment is not None:
            session.moves = max(session.moves, attachment.hello.moves)
            received = attachment.hello.received
        if here.is_ending or (attachment is not None and attachment.hello.clean and came_from):
            # Its client wants a new one. What it may publish was withdrawn where it came from.
            session.advertisements = {}
            broker.endings.begin(here, came_from)
            broker.reunion.session_came(here)
            return
        broker.requests.advertise_again(here, session)
        self._welcome(here, session, received)
        broker.requests.take_held(here, session)
        if came_from:
            broker.reunion.session_came(here)
            if not broker.is_reachable(came_from) and here.session is not None:
                broker.reunion.claim([session.client])

    def _welcome(self, here: ClientHere, session: Session, received: Mapping[str, int]) -> None:
        broker, client, came_from, is_attached = (
            self._broker, here.client, here.came_from, here.attachment is not None,
        )  # fmt: skip
        read_ahead = here.attachment.queue if here.attachment is not None else None
        if is_attached:
            named_next = broker.protocol.named_next(session)
            broker.tell(client, Welcome(session.number, session.accepted, named_next, session.copied))
            broker.record(
                "attached", client=client, broker=broker.id, number=session.number, reason=came_from or None
            )
        broker.places.session_came(here, session)
        broker.protocol.on_attach(session, came_from, received)
        broker.places.session_is_here(here)
        is_read_on = read_ahead is None or here.attachment is None or here.attachment.queue is read_ahead
        if broker.front is not None and not is_read_on:
            # A client that cannot say what it has received goes on only with what it has begun to read.
            self.close(here, READ_IN_VAIN)
        if not is_attached and here.session is not None:
            # It left before its session came: that is an attach and a detach at once.
            broker.protocol.on_detach(session)

    def attach_refused(self, here: ClientHere, request: AttachRequest, reason: str) -> None:
        """Our request was stale, or not allowed. If the client has come again since, ask again for that."""
        attachment = here.attachment
        if self._broker.front is not None:
            self._broker.front.give_up(here.client)
        if attachment is not None and attachment.connection != request.connection:
            self._broker.locator.ask(here, attachment.connection, attachment.hello)
            return
        # Whatever the client asked for here was not accepted: it will ask again where it is now.
        here.held = None
        self._broker.figures.handoff("refused")
        if attachment is not None:
            self.close(here, reason)
        elif reason == NOT_THE_OWNER:
            # The front may serve whoever asked from another session until the answer is there.
            self._broker.close(here.client, request.connection, reason)

    def handoff_finished(self, client: str) -> None:
        here, broker = self._clients.here.get(client), self._broker
        if here is None or here.handoff is Handoff.FINISHED:
            return
        came_from = here.finish_handoff()
        if came_from not in ("", broker.id):
            attachment = here.attachment
            took_s = broker.now - attachment.at if attachment is not None else None
            queue = attachment.queue if attachment is not None else None
            moved = queue.appended if queue is not None else 0
            broker.figures.finish(FinishedHandoff(client, came_from, broker.now, took_s, moved))
            broker.record("handoff_finished", client=client, broker=broker.id, peer=came_from)
        broker.requests.carry_on(here)

    # --- sessions go ---

    def session_requested(self, request: AttachRequest) -> None:
        """Another broker asks for a session held here."""
        here, broker = self._clients.here[request.client], self._broker
        session = here.session
        assert session is not None
        if request.broker == broker.id:
            return  # It went ahead of its own request: a proclaimed move.
        if here.is_ending:
            here.wait(request)
        elif broker.reunion.holds_back(request):
            return
        elif (request.broker, request.connection) in session.served:
            return  # A second copy, by way of where the session was before.
        elif not self._is_same(session.owner, request.owner):
            self.refuse(request, NOT_THE_OWNER)
        elif 0 <= request.moves <= session.moves:
            self.refuse(request)
        else:
            if here.attachment is not None:
                self.close(here, ATTACHED_ELSEWHERE)
            if here.settling is Settling.SETTLING:
                self._let_wait(here, request)
            else:
                self._depart(here, session, request)

    def _is_same(self, owner: str, other: str) -> bool:
        return owner == other or is_same(owner, other, self._broker.id, self._broker.settings.realm)

    def send_ahead(self, here: ClientHere, destination: str, received: Mapping[str, int]) -> None:
        """The session goes to another broker of this organisation, as if that had asked for it."""
        session, broker = here.session, self._broker
        is_other = destination != broker.id and broker.is_reachable(destination)
        if session is not None and is_other and not broker.is_guest(destination):
            request = AttachRequest(here.client, destination, 0, -1, dict(received), owner=session.owner)
            self.session_requested(request)

    def send_home(self, client: str, number: int) -> None:
        here, broker = self._clients.here.get(client), self._broker
        if here is None or here.holding is not Holding.HELD or here.attachment is not None:
            return
        if here.session is not None and here.session.number == number:
            self.send_ahead(here, broker.protocol.named_next(here.session), {})

    def _let_wait(self, here: ClientHere, request: AttachRequest) -> None:
        """The session departs when it has settled; of several that ask for it, the newest gets it."""
        earlier = here.claim
        if earlier is not None:
            if (earlier.broker, earlier.connection) == (request.broker, request.connection):
                return  # A second copy.
            if request.moves < earlier.moves:
                request, earlier = earlier, request
            lasts_s, front = earlier.received.get(LASTS, 0), self._broker.front
            if lasts_s > 0 and front is not None:
                front.keep_for(here.client, lasts_s)  # A copy has answered the client, which is gone again.
            self.refuse(earlier)
        here.on(Event.CLAIMED)
        here.claim = request

    def unclaim(self, here: ClientHere) -> AttachRequest | None:
        """The request that waited for the session to settle waits no longer."""
        claim, here.claim = here.claim, None
        if claim is not None:
            here.on(Event.UNCLAIMED)
        return claim

    def refuse(self, request: AttachRequest, reason: str = ATTACHED_ELSEWHERE) -> None:
        self._broker.send(request.broker, AttachRefused(request.client, request.connection, reason))

    def _depart(self, here: ClientHere, session: Session, request: AttachRequest) -> None:
        broker = self._broker
        session.moves = max(session.moves, request.moves)
        session.number += 1
        if request.connection:
            session.owner = request.owner
            session.serve(request.broker, request.connection)
        self.unadvertise(session)
        if broker.front is not None:
            session.capsule = broker.front.pack(session.client)
        if here.handoff is Handoff.UNDER_WAY:
            here.finish_handoff()
        broker.places.before_departure(here, session)
        broker.protocol.on_depart(session, request.broker, request.received)
        broker.places.session_gone(here)

    def unadvertise(self, session: Session) -> None:
        for text in session.advertisements:
            self._broker.router.unadvertise(parse(text))

    def let_go(self, here: ClientHere) -> None:
        """All has settled: a session that was ending is over, one that another broker waits for departs."""
        if here.is_ending:
            if here.handoff is Handoff.FINISHED:
                self._broker.endings.finish(here)
            return
        claim = self.unclaim(here)
        if claim is not None:
            self.session_requested(claim)
