"""Clients attach and detach, sessions arrive and depart: connection ownership, and when a session may
leave."""

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
"""Key in an attach request: seconds that the session of a client served from a copy outlasts its
connection."""


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
                # Whether the session outlasts its connection may have changed.
                broker.directory.changed(here.client)
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
        """Return why the client cannot attach: the session is somebody else's, or the connection is old."""
        known = here.session or (here.attachment and here.attachment.hello)
        if known and not self._is_same(known.owner, hello.owner):
            return NOT_THE_OWNER
        if hello.moves >= 0:  # Clients with negative `moves` do not count their attaches.
            attached = here.attachment.hello if here.attachment is not None else None
            known_moves = (one.moves for one in (attached, here.claim, here.session) if one is not None)
            if any(hello.moves < moves for moves in known_moves):
                return ATTACHED_AGAIN
        return ""

    def new_attachment(self, connection: int, hello: Hello) -> Attachment:
        broker = self._broker
        return Attachment(connection, hello, hello.window or broker.settings.window, broker.now)

    def close(self, here: ClientHere, reason: str) -> None:
        """Close a connection from this side."""
        assert here.attachment is not None
        self._broker.close(here.client, here.attachment.connection, reason)
        self.detach(here, reason)

    def detach(self, here: ClientHere, reason: str) -> None:
        self._clients.detach(here)
        if here.is_ending:
            return  # The connection only waited for a new session.
        broker = self._broker
        broker.record("detached", client=here.client, broker=broker.id, reason=reason)
        if here.session is not None:
            broker.protocol.on_detach(here.session)

    # --- sessions come ---

    def begin_session(self, former: Session) -> None:
        """Begin a new session; its publish numbers continue those of the former one."""
        fresh = Session(
            former.client, former.number, former.moves, former.served, former.incarnation, former.published,
            former.accepted, owner=former.owner,
            places_number=former.places_number + bool(former.places_number),
        )  # fmt: skip
        self._broker.locator.arrived(fresh, "")

    def session_arrived(
        self, here: ClientHere, session: Session, received: Mapping[str, int], reads_on: bool
    ) -> bool:
        """Take a session; return True if a stand-in is about to be merged into it."""
        broker, attachment, came_from = self._broker, here.attachment, here.came_from
        is_merging = False
        if came_from == "":
            session.number += 1
            session.begun = (broker.now, broker.id)
            broker.sessions_begun += 1
            session.life = broker.sessions_begun
            if not session.published:
                session.incarnation = broker.new_incarnation(session.incarnation)
        if broker.front is not None:
            is_merging = broker.front.arrived(session.client, session.capsule, session.owner, reads_on)
        if attachment is not None:
            session.moves = max(session.moves, attachment.hello.moves)
            received = attachment.hello.received
        if here.is_ending or (attachment is not None and attachment.hello.clean and came_from):
            # The client wants a new session; its advertisements were withdrawn at the former broker.
            session.advertisements = {}
            broker.endings.begin(here, came_from)
            broker.reunion.session_came(here)
            return is_merging
        broker.requests.advertise_again(here, session)
        self._welcome(here, session, received)
        broker.requests.take_held(here, session)
        if came_from:
            broker.reunion.session_came(here)
            if not broker.is_reachable(came_from) and here.session is not None:
                broker.reunion.claim([session.client])
        return is_merging

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
            # A client that cannot report what it received continues only with the copy it began to read.
            self.close(here, READ_IN_VAIN)
        if not is_attached and here.session is not None:
            # The client left before its session came: an attach and a detach at once.
            broker.protocol.on_detach(session)

    def attach_refused(self, here: ClientHere, request: AttachRequest, reason: str) -> None:
        """Handle the refusal of this broker's request as stale or not allowed; ask again if the client has
        attached again."""
        attachment = here.attachment
        if self._broker.front is not None:
            self._broker.front.give_up(here.client)
        if attachment is not None and attachment.connection != request.connection:
            self._broker.locator.ask(here, attachment.connection, attachment.hello)
            return
        # The client's requests here were not accepted: it will repeat them at its new broker.
        here.held = None
        self._broker.figures.handoff("refused")
        if attachment is not None:
            self.close(here, reason)
        elif reason == NOT_THE_OWNER:
            # The front may serve the client from another session until the answer arrives.
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
        """Handle another broker's request for a session held here."""
        here, broker = self._clients.here[request.client], self._broker
        session = here.session
        assert session is not None
        if request.broker == broker.id:
            return  # The session went ahead of its own request: a proclaimed move.
        if here.is_ending:
            here.wait(request)
        elif broker.reunion.holds_back(request):
            return
        elif (request.broker, request.connection) in session.served:
            return  # A duplicate, by way of the session's former broker.
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
        """Hand the session to another broker of this organisation, as if that broker had asked for it."""
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
        """Let the session depart when it has settled; of several requests, the newest gets it."""
        earlier = here.claim
        if earlier is not None:
            if (earlier.broker, earlier.connection) == (request.broker, request.connection):
                return  # A duplicate.
            if request.moves < earlier.moves:
                request, earlier = earlier, request
            lasts_s, front = earlier.received.get(LASTS, 0), self._broker.front
            if lasts_s > 0 and front is not None:
                front.keep_for(here.client, lasts_s)  # A copy served the client, which has left again.
            self.refuse(earlier)
        here.on(Event.CLAIMED)
        here.claim = request

    def unclaim(self, here: ClientHere) -> AttachRequest | None:
        """Return the request that waited for the session to settle, which no longer waits."""
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
        """End a settled session that was ending, or hand it to the broker that waits for it."""
        if here.is_ending:
            if here.handoff is Handoff.FINISHED:
                self._broker.endings.finish(here)
            return
        claim = self.unclaim(here)
        if claim is not None:
            self.session_requested(claim)
