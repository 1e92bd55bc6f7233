"""Stores of `proactive.py` that begin with holes, and how they are completed. No document has this.

Where a virtual subscriber is not known yet, a notification goes to the old broker only. So the store at the
new broker acknowledges its activation behind its subscriptions, and until that arrives the old broker
forwards what it receives. Links do not overtake, and whatever has to go to both brokers branches off on the
way between them; there the acknowledgement passes behind the subscriptions and behind all that missed them.
For the same reason nothing that the old broker had before the activation comes to the new one after it, and
what came to both is told by the last forwarded number, one for each publisher. (The published rule has one
for all, which is enough for one publisher: see `proactive:one_counter`.)

A client may leave while its store is still being completed: then the store passes on to the next store what
it still receives.
"""

from __future__ import annotations

from roamcast.mobility.base import STREAM, MobilityProtocol, newer_part
from roamcast.mobility.proactive_messages import ActivateCopy, CopyActivated, ForwardStored, Subscriptions
from roamcast.mobility.proactive_state import Copy, Reader, Remote, Stay, Store
from roamcast.mobility.shared_buffer import SharedBuffer
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session


class Stores(MobilityProtocol):
    """What a broker stores for clients, its own and those of others."""

    buffer: SharedBuffer
    current: dict[str, Stay]
    """Sessions that are here."""
    copies: dict[str, Copy]
    """Contexts of sessions that are elsewhere."""
    stores: dict[int, Store]
    """All stores at this broker, by serial number."""
    fed: dict[tuple[str, int], Store]
    """Incomplete stores, by the broker that forwards to them and the number of the activation."""
    activations: dict[int, Store]
    """Unfinished activations at other brokers: activation number to the store that forwards to the copy."""
    _serial: int

    def open_store(
        self, client: str, base: int, source: str = "", activation: int = 0, stream: str = STREAM
    ) -> Store:
        self._serial += 1
        queue = DeliveryQueue(stream, base, self.buffer)
        store = self.stores[self._serial] = Store(client, self._serial, queue, source, activation)
        if activation:
            self.fed[source, activation] = store
        return store

    def end(self, store: Store) -> None:
        del self.stores[store.owner[1]]
        self.fed.pop((store.source, store.activation), None)
        store.queue.drain()
        self.unsubscribe_all(store.owner, store.subscriptions)

    def append(self, store: Store, burst: Burst) -> None:
        self.keep(store.queue, store.client, burst)
        for activation, reader in store.readers.items():
            self.host.send(reader.broker, ForwardStored(store.client, activation, (burst,), last=False))
        if self.host.is_read(store.client, store.queue):
            self.host.pump(store.client)

    # --- at the broker that forwards ---

    def send_activation(
        self,
        store: Store,
        broker: str,
        number: int,
        context: Subscriptions | None,
        late: bool,
        session: Session | None = None,
    ) -> int:
        """Have a copy store; the session tells the copy whose it is and who may read it."""
        self._serial += 1
        activation, queue = self._serial, store.queue
        store.readers[activation] = Reader(broker, number)
        self.activations[activation] = store
        bursts = tuple(queue.bursts()) if late else ()
        base = queue.base if late else queue.base + len(queue)
        moves, owner = (session.moves, session.owner) if session is not None else (-1, "")
        self.host.send(
            broker,
            ActivateCopy(
                store.client, number, activation, base, context, bursts, late, moves, owner, queue.stream
            ),
        )
        return activation

    def forget_reader(self, store: Store, remote: Remote) -> None:
        store.readers.pop(remote.activation, None)
        self.activations.pop(remote.activation, None)
        remote.activation, remote.complete = 0, False

    def on_copy_activated(self, sender: str, message: CopyActivated) -> None:
        store = self.activations.get(message.activation)
        if store is not None:
            store.readers[message.activation].acknowledged = True
            self.serve_readers(store)

    def serve_readers(self, store: Store) -> None:
        """Tell the readers that have acknowledged that they are complete: they miss nothing more."""
        if not store.complete:
            return
        stay = self.current.get(store.client)
        for activation, reader in list(store.readers.items()):
            if reader.acknowledged:
                del store.readers[activation], self.activations[activation]
                self.host.send(reader.broker, ForwardStored(store.client, activation, (), last=True))
                if stay is not None and stay.store is store:
                    stay.copies[reader.broker].complete = True
        if store.departed and not store.readers and not store.is_entrusted:
            self.end(store)

    # --- at the broker whose store has holes ---

    def subscribe_store(self, store: Store, context: Subscriptions) -> None:
        """Subscribe the virtual subscriber; the acknowledgement must travel behind these subscriptions."""
        store.subscriptions = dict(context)
        self.subscribe_all(store.owner, context)
        if self.host.is_reachable(store.source):
            self.host.send(store.source, CopyActivated(store.client, store.activation))
        else:
            self.complete(store)  # The sender is gone since it asked for this, and forwards nothing more.

    def on_forward_stored(self, sender: str, message: ForwardStored) -> None:
        store = self.fed.get((sender, message.activation))
        if store is None:
            return
        for burst in message.bursts:
            if not burst.is_picked:
                store.forwarded[self.counter_of(burst)] = (burst.incarnation, burst.last)
            self.append(store, burst)
        if message.last:
            self.complete(store)

    def complete(self, store: Store) -> None:
        del self.fed[store.source, store.activation]
        store.complete = True
        early, store.early = store.early, []
        for burst in early:
            rest = self.not_forwarded(store, burst)
            if rest is not None:
                self.append(store, rest)
        store.forwarded = {}
        self.serve_readers(store)

    def not_forwarded(self, store: Store, burst: Burst) -> Burst | None:
        """Return the part of a burst that was not forwarded; the rest went to both brokers."""
        return newer_part(burst, store.forwarded.get(self.counter_of(burst)))

    def counter_of(self, burst: Burst) -> str:
        """Return which notifications share one counter."""
        return burst.publisher
