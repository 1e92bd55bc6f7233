"""Durable subscriptions without mobility support (Gaddah 1.2.3 and chapter 5).

Each broker that the client has ever visited keeps its subscriptions and stores what matches while the client
is not there. At its first visit to a broker, a client misses the notifications published while it was away. A
broker that it visits again delivers all it stored, though the client may have received it from others.
Notifications stored at brokers that it never visits again stay there.

| Gaddah 1.2.3 and 5.2 | here |
| --- | --- |
| a subscription stays at each broker that was visited | `on_attach` |
| the broker stores for a durable subscriber that is not connected | `on_detach` |
| a return to a broker brings what it has stored | `on_attach` |
"""

from __future__ import annotations

from collections.abc import Mapping

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility.base import Host, MobilityProtocol, Promise, Settings, register
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Token
from roamcast.state import State

ELSEWHERE = frozenset({"another_broker"})


class DurableSubscriptions(MobilityProtocol):
    name = "durable"
    summary = "each visited broker stores: losses at first visits, duplicates on return, messages left behind"
    promise = Promise(
        lost=frozenset({"remainder", "overflow"}),
        duplicate=ELSEWHERE,
        reordered=ELSEWHERE,
        stale=ELSEWHERE,
        remainder=True,
    )

    __state__ = State("durable-subscriptions", saved=("durable",))

    def __init__(self, host: Host, settings: Settings) -> None:
        super().__init__(host, settings)
        self.durable: dict[str, dict[str, None]] = {}
        """Client to the filters (as text) that this broker keeps for it."""

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        client, host = session.client, self.host
        queue = self.queues.get(client)
        if queue is None:
            queue = self.queues[client] = DeliveryQueue(host.id, received.get(host.id, 0), host.buffer)
        queue.rewind(received.get(host.id, 0))
        kept = self.durable.setdefault(client, {})
        for text, issued_at in session.subscriptions.items():
            if text not in kept:
                kept[text] = None
                host.subscribe((client,), parse(text), issued_at)
        # The client ended these at another broker, which did not tell this one.
        ended = [text for text in kept if text not in session.subscriptions]
        self.unsubscribe_all((client,), ended)
        for text in ended:
            del kept[text]
        host.deliver_from(client, queue)
        host.handoff_finished(client)

    def on_detach(self, session: Session) -> None:
        """Keep the durable subscriptions, and store what they match."""

    def on_end(self, session: Session) -> None:
        """Forget what this broker keeps; other visited brokers are not told."""
        self.unsubscribe_all((session.client,), self.durable.pop(session.client, {}), "subscribe")
        self.queues.pop(session.client, None)

    def on_subscribe(self, session: Session, filter: Filter, token: Token) -> None:
        self.durable[session.client][filter.text] = None
        super().on_subscribe(session, filter, token)

    def on_unsubscribe(self, session: Session, filter: Filter, token: Token) -> None:
        del self.durable[session.client][filter.text]
        super().on_unsubscribe(session, filter, token)


register(DurableSubscriptions)
