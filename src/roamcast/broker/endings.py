"""Ending a session: because its client wants a new one, has been away for too long, or has another.

A session may still be owed what is stored elsewhere, and its subscriptions are
known to others. So it ends like one whose client reads very fast: everything
left is fetched and thrown away, whatever the protocol, and when the handoff is
over and all has settled, the subscriptions are taken back. Who asks for the
session meanwhile waits, and then learns that there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roamcast.protocol.messages import AttachRequest, Drain, Hello, HolderUnknown
from roamcast.protocol.session import Session
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.broker.core import BrokerCore
    from roamcast.broker.sessions import Attachment


class Endings:
    __state__ = State("endings", saved=("_broker", "waiting", "_asked", "_replaced"))

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker
        self.waiting: dict[str, Attachment | None] = {}
        """Clients whose session ends here, and the connection that waits for a new one."""
        self._asked: dict[str, list[AttachRequest]] = {}
        self._replaced: dict[str, None] = {}
        """Those of them that have another session already, elsewhere."""

    def begin(self, session: Session) -> None:
        """The session is here, and no client reads from it any more."""
        client, broker = session.client, self._broker
        self.waiting[client] = broker.attachments.pop(client, None)
        broker.attachments[client] = broker.new_attachment(0, Hello(client))
        self._asked[client] = []

    def replace(self, client: str) -> bool:
        """If its session ends, no new one begins here then: there is one elsewhere."""
        if client not in self.waiting:
            return False
        self._replaced[client] = None
        return True

    def has_successor(self, client: str) -> bool:
        """Whether a new session will begin here when the present one is over."""
        return self.waiting.get(client) is not None and client not in self._replaced

    def ask(self, request: AttachRequest) -> bool:
        """Another broker wants a session; whether it ends here and the request has to wait."""
        if request.client not in self.waiting:
            return False
        self._asked[request.client].append(request)
        return True

    def drain(self, client: str) -> None:
        """Something is queued for it."""
        broker = self._broker
        if not any(isinstance(one, Drain) and one.client == client for one in broker.loopback):
            broker.tell_self(Drain(client))

    def on_drain(self, command: Drain) -> None:
        broker, client = self._broker, command.client
        attachment = broker.attachments.get(client)
        if client not in self.waiting or attachment is None or attachment.queue is None:
            return
        queue = attachment.queue
        for sequence, burst in queue.take(len(queue) + 1):
            broker.dropped(client, burst, "session ended")
            if broker.front is not None:
                broker.front.left_over(client, burst)
            queue.acknowledge(sequence + burst.count - 1)
        broker.protocol.on_acknowledged(client)

    def finish(self, client: str) -> None:
        """No handoff is under way and nothing has to settle: the session is over."""
        broker = self._broker
        session = broker.sessions[client]
        attachment = self.waiting.pop(client)
        queue = broker.attachments.pop(client).queue
        if broker.front is not None and queue is not None:
            for burst in queue.bursts():
                broker.front.left_over(client, burst)
        broker.unadvertise(session)
        broker.protocol.on_end(session)
        del broker.sessions[client]
        broker.record("detached", client=client, broker=broker.id, reason="session ended")
        broker.next_incarnation = max(broker.next_incarnation, session.incarnation + 1)
        broker.session_ended(client)
        broker.reunion.session_over(client)
        is_replaced = client in self._replaced
        self._replaced.pop(client, None)
        if attachment is not None:
            broker.attachments[client] = attachment
            if is_replaced:
                broker.locator.ask(attachment.connection, attachment.hello)
            else:
                broker.begin_session(session)
        for request in self._asked.pop(client):
            if attachment is not None and not is_replaced:
                broker.locator.take(request)
            else:
                broker.send(request.broker, HolderUnknown(client, request.connection))
