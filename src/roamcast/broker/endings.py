"""Ending a session: because its client wants a new one, has been away for too long, or another
session of the client stays.

A session may still be owed what is stored elsewhere, and its subscriptions are known to others. So the broker
acts as if the client read very fast: under every protocol, all remaining notifications are fetched and
discarded. When the handoff is over and all has settled, the subscriptions are withdrawn. Brokers that ask for
the session meanwhile wait, and then learn that there is none.
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
"""Key among the changes of a session that have to settle; no real change has this name."""


class CopiesGone(NamedTuple):
    """Token of a session whose copies are being withdrawn."""

    client: str
    number: int
    """Attach number of the session at that time."""


class Endings:
    __state__ = State("endings", saved=("_broker",))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def begin(self, here: ClientHere, came_from: str = "") -> None:
        """Detach the session from its client and end it; an attached client gets a new session afterwards."""
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
        """End the session of a client that has been away for too long. If a copy has served the client since,
        the copy's broker asks for the session before the copies are withdrawn, and gets it."""
        assert here.session is not None
        is_begun = COPIES in (here.unsettled or ())
        if not is_begun and not self._withdraw_copies(here, here.session):
            self.begin(here)

    def _withdraw_copies(self, here: ClientHere, session: Session) -> bool:
        """Withdraw all copies of a session that ends; False if there are none.

        A settling question follows the order to drop copies over every link, so its answer confirms that all
        were dropped.
        """
        if not session.is_copied:
            return False
        broker, session.is_copied = self._broker, False
        broker.protocol.end_copies(session)
        broker.requests.begin_settling(here, COPIES)
        broker.router.settle("handoff", CopiesGone(here.client, session.number), flush=True)
        return True

    def on_copies_gone(self, token: CopiesGone) -> None:
        """End the session: no copy is left and none served its client, unless a request for the session waits
        here."""
        broker, here = self._broker, self._broker.clients.here[token.client]
        broker.requests.end_settling(here, COPIES)
        session = here.session
        is_away = here.holding is Holding.HELD and here.attachment is None
        if session is not None and session.number == token.number and is_away:
            self.begin(here)
        else:
            broker.requests.carry_on(here)

    def begin_replaced(self, here: ClientHere) -> None:
        """End a session without a successor here: the client has another session, which stays."""
        if not here.is_ending:
            if here.attachment is not None:
                self._broker.handoffs.close(here, "attached elsewhere")
            self.begin(here)
        if here.holding is Holding.ENDING:
            here.on(Event.REPLACED)

    def on_merged(self, source: str, target: str) -> None:
        """Merge a session into another, and then let that go where it is wanted."""
        self._merge(source, target)
        self._broker.locator.serve_waiting(target)

    def _merge(self, source: str, target: str) -> None:
        """Merge subscriptions first, so that nothing is missed; overlaps are duplicated."""
        broker, here = self._broker, self._broker.clients.here.get(source)
        session = broker.sessions.get(target)
        if here is None or here.session is None or session is None or source in broker.attachments:
            return  # The session has moved on already; the rest waits here.
        for text in here.session.subscriptions:
            broker.requests.subscribe_too(session, text)
        for client, queue in list(broker.protocol.stored()):
            if client == source:
                for burst in queue.bursts():
                    broker.enqueue(target, burst)
        self.begin(here)

    def drain(self, client: str) -> None:
        """Schedule discarding of the queue of a session that ends."""
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
        """End the session: no handoff is under way and nothing has to settle."""
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
        used = max(session.incarnation, session.places_number)
        broker.next_incarnation = max(broker.next_incarnation, used + 1)
        broker.places.session_gone(here)
        broker.directory.changed(client)
        if broker.front is not None:
            broker.front.ended(client)
        broker.reunion.session_over(here)
        if here.attachment is not None and not is_replaced:
            broker.handoffs.begin_session(session)  # The new session serves the requests that wait.
            return
        waiting = here.take_waiting()
        if here.attachment is not None:
            broker.locator.ask(here, here.attachment.connection, here.attachment.hello)
        else:
            here.held = None
        for request in waiting:
            broker.send(request.broker, HolderUnknown(client, request.connection))
        broker.clients.forget_unused(here)
