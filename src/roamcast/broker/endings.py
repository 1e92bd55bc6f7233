"""Ending a session: because its client wants a new one, has been away for too long, or has another.

A session may still be owed what is stored elsewhere, and its subscriptions are
known to others. So it ends like one whose client reads very fast: everything
left is fetched and thrown away, whatever the protocol, and when the handoff is
over and all has settled, the subscriptions are taken back. Who asks for the
session meanwhile waits, and then learns that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from roamcast.broker.session import ClientHere, Event, Holding
from roamcast.protocol.messages import Drain, Hello, HolderUnknown
from roamcast.protocol.session import Session
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore


COPIES = "\0copies"
"""Stands among the changes of a session that have to settle: nothing else is called so."""


class CopiesGone(NamedTuple):
    """The token of a session whose copies are withdrawn."""

    client: str
    number: int
    """The attach number of the session then."""


class Endings:
    __state__ = State("endings", saved=("_broker",))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def begin(self, here: ClientHere, came_from: str = "") -> None:
        """No client reads from the session any more; if its client is attached, it gets a new one then."""
        broker, session = self._broker, here.session
        assert session is not None
        claim = broker.handoffs.unclaim(here)
        if claim is not None:
            here.wait(claim)
        if not here.is_ending:
            broker.clients.end(here, broker.id, broker.handoffs.new_attachment(0, Hello(here.client)))
        self._withdraw_copies(here, session)
        broker.protocol.on_attach(session, came_from or broker.id, {})

    def begin_after_copies(self, here: ClientHere) -> None:
        """The client has been away for too long; but a copy may have served it since. Then its broker asks
        for the session before no copy is left, and gets it."""
        assert here.session is not None
        is_begun = COPIES in (here.unsettled or ())
        if not is_begun and not self._withdraw_copies(here, here.session):
            self.begin(here)

    def _withdraw_copies(self, here: ClientHere, session: Session) -> bool:
        """See to it that nobody is served from a copy of a session that is over; False if there is no copy.

        The question follows the order to drop copies, over every link, so its answer comes behind whatever
        was done before that.
        """
        if not session.is_copied:
            return False
        broker, session.is_copied = self._broker, False
        broker.protocol.end_copies(session)
        broker.requests.begin_settling(here, COPIES)
        broker.router.settle("handoff", CopiesGone(here.client, session.number), flush=True)
        return True

    def on_copies_gone(self, token: CopiesGone) -> None:
        """No copy is left, and nobody was served from one, unless a request for the session waits here."""
        broker, here = self._broker, self._broker.clients.here[token.client]
        broker.requests.end_settling(here, COPIES)
        session = here.session
        is_away = here.holding is Holding.HELD and here.attachment is None
        if session is not None and session.number == token.number and is_away:
            self.begin(here)
        else:
            broker.requests.carry_on(here)

    def begin_replaced(self, here: ClientHere) -> None:
        """The client has another session, which stays: no new one begins here."""
        if not here.is_ending:
            if here.attachment is not None:
                self._broker.handoffs.close(here, "attached elsewhere")
            self.begin(here)
        if here.holding is Holding.ENDING:
            here.on(Event.REPLACED)

    def on_merged(self, source: str, target: str) -> None:
        """Subscriptions first, so that nothing is missed; what comes by both ways is repeated."""
        broker, here = self._broker, self._broker.clients.here.get(source)
        session = broker.sessions.get(target)
        if here is None or here.session is None or session is None or source in broker.attachments:
            return  # It has moved on already; what was to go over waits here.
        for text in here.session.subscriptions:
            broker.requests.subscribe_too(session, text)
        for client, queue in list(broker.protocol.stored()):
            if client == source:
                for burst in queue.bursts():
                    broker.enqueue(target, burst)
        self.begin(here)

    def drain(self, client: str) -> None:
        """Something is queued for it."""
        broker = self._broker
        if not any(isinstance(one, Drain) and one.client == client for one in broker.loopback):
            broker.tell_self(Drain(client))

    def on_drain(self, command: Drain) -> None:
        broker, client = self._broker, command.client
        reader = broker.attachments.get(client)
        if reader is None or reader.connection or reader.queue is None:
            return
        queue = reader.queue
        for sequence, burst in queue.take(len(queue) + 1):
            broker.dropped(client, burst, "session ended")
            if broker.front is not None:
                broker.front.left_over(client, burst)
            queue.acknowledge(sequence + burst.count - 1)
        broker.protocol.on_acknowledged(client)

    def finish(self, here: ClientHere) -> None:
        """No handoff is under way and nothing has to settle: the session is over."""
        broker, client, session = self._broker, here.client, here.session
        assert session is not None
        queue = broker.attachments[client].queue
        if broker.front is not None and queue is not None:
            for burst in queue.bursts():
                broker.front.left_over(client, burst)
        broker.handoffs.unadvertise(session)
        broker.protocol.on_end(session)
        is_replaced = here.holding is Holding.REPLACED
        broker.clients.over(here)
        broker.record("detached", client=client, broker=broker.id, reason="session ended")
        broker.next_incarnation = max(broker.next_incarnation, session.incarnation + 1)
        broker.places.session_gone(here)
        broker.directory.changed(client)
        if broker.front is not None:
            broker.front.ended(client)
        broker.reunion.session_over(here)
        if here.attachment is not None and not is_replaced:
            broker.handoffs.begin_session(session)  # Those who wait are served by this one.
            return
        waiting = here.take_waiting()
        if here.attachment is not None:
            broker.locator.ask(here, here.attachment.connection, here.attachment.hello)
        else:
            here.held = None
        for request in waiting:
            broker.send(request.broker, HolderUnknown(client, request.connection))
        broker.clients.forget_unused(here)
