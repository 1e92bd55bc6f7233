"""A mobility protocol in one file: the old broker stores while the client is away, and everything stored
travels with the session. What is published while the subscriptions move is lost, and the promise says so.

    ROAMCAST_PROTOCOLS=carry.py roamcast fuzz --protocol carry --seeds 0:100
"""

from __future__ import annotations

from collections.abc import Mapping

from roamcast.mobility.base import STREAM, MobilityProtocol, Promise, register
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.state import State


class Carry(MobilityProtocol):
    name = "carry"
    summary = "what is stored travels with the session; loses what is published within one delay of a move"
    promise = Promise(lost=frozenset({"away", "overflow"}))

    __state__ = State("carry")

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client, host = session.client, self.host
        if came_from != host.id:
            queue = self.queues[client] = DeliveryQueue(STREAM, int(session.luggage or b"0"), host.buffer)
            for burst in session.owed:
                self.keep(queue, client, burst)
            session.owed = ()
            self.subscribe_all((client,), session.subscriptions)
        self.begin_delivery(client, self.queues[client], received.get(STREAM, 0))

    def on_detach(self, session: Session) -> None:
        """The subscriptions stay, and the queue grows."""

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        queue = self.queues.pop(session.client)
        queue.rewind(received.get(STREAM, 0))
        session.luggage, session.owed = str(queue.base).encode(), tuple(queue.drain())
        self.unsubscribe_all((session.client,), session.subscriptions)
        self.host.hand_over(session, destination)


register(Carry)
