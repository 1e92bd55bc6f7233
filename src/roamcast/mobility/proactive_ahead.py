"""Clients of `proactive.py` that read at a neighbour before their session arrives. No document has this.

A copy that has everything serves the client at once, and control is transferred behind that. Each store has
an order of its own, so what a client reads there is numbered in a separate stream, and the request for the
session names the copy. If the client moves on first, only that copy knows what it still lacks: the next
holder of the session fetches the rest from that copy (`SendServed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from roamcast.mobility.proactive_failure import Failures
from roamcast.mobility.proactive_messages import DeleteCopy, SendServed, StoredAside
from roamcast.mobility.proactive_state import Stay
from roamcast.mobility.proactive_stores import Stores
from roamcast.protocol.messages import Hello
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue

SERVES = "#"
"""Follows a broker's id in an attach request: the copy at that broker serves the client."""


class ReadingAhead(Stores):
    figures: Counter[str]
    failures: Failures

    # --- where the client is ---

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        """Deliver from an active copy at once, while the session is fetched behind it.

        This requires that the copy has everything the client has not received: the copy is complete, the
        client received all that came before it, and has attached nowhere else since. The order of the copy
        differs from the holder's, so it numbers a separate stream. The request for the session tells the
        holder that the copy serves.
        """
        copy = self.copies.get(hello.client)
        if copy is None or copy.store is None or copy.late or not copy.store.complete:
            return hello.received
        queue = copy.store.queue
        is_next = hello.moves == copy.moves_served + 1 and copy.client_owner == hello.owner
        if copy.moves < 0 or not is_next:
            return hello.received
        if not copy.is_served:
            if is_asked or hello.received.get(queue.stream, 0) < queue.base:
                return hello.received
            self.figures["served_ahead"] += 1
            copy.is_served = copy.is_expected = True
            first, second = self.streams_of(self.host.id)
            queue.stream = second if queue.stream == first else first
        copy.moves_served = hello.moves
        queue.rewind(hello.received.get(queue.stream, 0))
        self.host.read_ahead(hello.client, queue)
        return {**hello.received, self.host.id + SERVES: 1}

    def streams_of(self, broker: str) -> tuple[str, str]:
        """Return the two stream names of copies at a broker, used in turn; sequences only grow, so two are
        enough."""
        return f"{broker}#0", f"{broker}#1"

    def on_stored_aside(self, sender: str, message: StoredAside) -> None:
        copy = self.copies.get(message.client)
        if copy is not None and copy.store is not None:
            for burst in message.bursts:
                self.append(copy.store, burst)

    # --- at the holder of the session ---

    def read_elsewhere(self, stay: Stay, received: Mapping[str, int]) -> str:
        """Return the broker whose copy serves or has served the client; "" if there is none."""
        for broker in stay.lent:
            if self.host.is_reachable(broker) and (
                broker + SERVES in received
                or self.read_there(stay, broker, received)[0] > self.lent_from(stay, broker)
            ):
                return broker
        return ""

    def lent_from(self, stay: Stay, broker: str) -> int:
        """Return the sequence at which the copy at that broker began: whoever read there has received more.

        The client may have read another copy at the same broker earlier.
        """
        remote, base = stay.copies.get(broker), stay.store.queue.base
        return max(base, remote.active_base) if remote is not None else base

    def read_there(self, stay: Stay, broker: str, received: Mapping[str, int]) -> tuple[int, str]:
        """Return how far the client has read the copy at that broker since it left, and the stream it
        read."""
        queue = stay.store.queue
        names = [name for name in self.streams_of(broker) if name != queue.stream]
        return max((received.get(name, 0), name) for name in names)

    def serve_reader(self, stay: Stay, destination: str) -> None:
        """Leave the client to the copy at the destination; send only what was picked for this client."""
        self.forget_copy(stay, destination)
        picked = _picked(stay.store.queue)
        if picked:
            self.host.send(destination, StoredAside(stay.session.client, picked))

    # --- the client has moved on: the copy sends the rest ---

    def follow_reader(self, stay: Stay, received: Mapping[str, int]) -> None:
        """Fetch what the client misses from the copy elsewhere that it has read from."""
        session, former = stay.session, stay.store
        source = self.read_elsewhere(stay, received)
        if source:
            base, stream = self.read_there(stay, source, received)
            self.send_served(stay, source, self.host.id, session.number, received)
            stay.store = self.failures.await_context(session.client, session.number, base, stream, source)
            former.departed = True
            self.serve_readers(former)
        self.end_lent(stay, session.number, (source,))

    def send_served(
        self, stay: Stay, source: str, destination: str, number: int, received: Mapping[str, int]
    ) -> None:
        """Have the copy that served the client send the rest; only this copy knows what the client has
        received."""
        self.figures["served_elsewhere"] += 1
        self.forget_copy(stay, source)
        last, _ = self.read_there(stay, source, received)
        picked = _picked(stay.store.queue)
        self.host.send(source, SendServed(stay.session.client, destination, number, last, picked))

    def on_send_served(self, sender: str, message: SendServed) -> None:
        copy = self.copies.get(message.client)
        if copy is None or copy.store is None or not copy.is_served:
            return
        del self.copies[message.client]
        store = copy.store
        store.queue.rewind(message.received)
        for burst in message.bursts:
            self.append(store, burst)
        store.departed = True
        self.send_activation(store, message.destination, message.number, copy.subscriptions, late=True)

    def end_lent(self, stay: Stay, number: int, spared: Collection[str]) -> None:
        """Delete copies that the holder no longer tracks; the client has attached since they were lent."""
        session = stay.session
        for broker in stay.lent:
            if broker not in stay.copies and broker not in spared and self.host.is_reachable(broker):
                self.host.send(broker, DeleteCopy(session.client, number, session.moves))
        stay.lent = {}

    def forget_copy(self, stay: Stay, broker: str) -> None:
        remote = stay.copies.pop(broker, None)
        if remote is not None:
            self.forget_reader(stay.store, remote)


def _picked(queue: DeliveryQueue) -> tuple[Burst, ...]:
    """Return the notifications picked for this client alone; they reached the holder and no copy."""
    return tuple(burst for burst in queue.bursts() if burst.is_picked)
