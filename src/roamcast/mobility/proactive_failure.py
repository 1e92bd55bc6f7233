"""Failure and recovery of brokers under `proactive.py` (Gaddah, last part of section 3.2).

What the thesis says, in its order, and where it is here:

    detection        neighbours ping each other; who does not answer for some    on_tick, on_ping
                     time has failed
    after that       its edge leaves the neighbour list, the others get the      suspect
                     list, nothing is propagated to it, and it is not pinged
    announcement     a broker that is back tells its previous neighbours, and    announce
                     with that the copies it holds, listed by who controls them
    reconciliation   the receiver compares each with what it knows itself, and   on_announcement,
                     has it deleted, activated or deactivated; the edge is back  reconcile
    connected then   subscriptions of clients that were connected to the failed  (they have left:
                     broker and do not come back are deleted                      cases 2 and 8)
    orphans          copies propagated from a failed broker delete themselves    on_orphans
                     after some time
    fallback         a context that was not forwarded is fetched reactively      on_context_missing

Not in the thesis:

- Pings are exchanged only while a neighbour stores for a client that is away: then the neighbour and the
  holder rely on each other. A passive copy stores nothing: its activation shows whether it still exists. So
  pings end when every client is back or has timed out.
- Any message of a neighbour shows that it is there, not only the reply.
- A broker cannot always know that it was thought to have failed: it may have been
  cut off. It announces itself when its own timer comes far too late (it was not
  running), when a neighbour that had given it up hears from it again and says so,
  and when it is pinged by one for which it stores nothing (it has lost its memory).
- The announcement is answered with the receiver's own list, so that both sides are
  reconciled: either may have been the holder, or both.
- A copy that was complete when its broker was given up, and is still the same, is
  counted on again as it is.
- A client departs, its holder counts on the copy at the new broker, and that copy has
  just deleted itself: everything would be lost. So with heartbeats on, the holder
  keeps what it stored until the copy has said that it is there (`CopyTaken`). If it
  is not, the holder is asked for the context (`ContextMissing`, which section 3.2 has
  for an activation that finds nothing), and the handoff goes on as on an unknown edge.
- Data that a client waits for is never given up because a broker is suspected: only
  copies are, which somebody else has as well. So a wrong suspicion costs messages
  and loses nothing.

The second way of detection, a connection that cannot be established, is not used:
links keep what they carry until the other end is back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from roamcast.errors import InputError
from roamcast.mobility.base import Settings
from roamcast.mobility.proactive_messages import (
    ActivateCopy,
    Announcement,
    ContextMissing,
    CopyTaken,
    DeactivateCopy,
    DeleteCopy,
    HeldCopy,
    Ping,
    PingReply,
    ServeFromCopy,
    StoredBefore,
)
from roamcast.mobility.proactive_state import Remote, Stay, Store, uncovered
from roamcast.protocol.messages import Message
from roamcast.routing.router import Token
from roamcast.state import State

if TYPE_CHECKING:
    from roamcast.mobility.proactive import Proactive


class HeartbeatDue(NamedTuple):
    """A timer: the next heartbeat is due."""

    at: float


class Orphans(NamedTuple):
    """A timer: copies from a broker that was suspected for too long delete themselves."""

    broker: str
    since: float


class Suspicion:
    """A neighbour that seems to have failed."""

    __state__ = State("proactive-suspicion", saved=("since", "asked_at"))

    def __init__(self, since: float) -> None:
        self.since = since
        self.asked_at: float | None = None
        """Time when the neighbour was heard again and told that it had been given up."""


class Entrusted(NamedTuple):
    """Store of a departed client, kept until the copy that serves the client is known to exist."""

    store: Store
    destination: str
    number: int


class Failures:
    """One broker's knowledge of failed brokers, and its reactions to failures."""

    __state__ = State(
        "proactive-failures",
        saved=(
            "protocol", "host", "period_s", "missed_max", "orphans_after_s", "silent", "suspects",
            "out_of_sight", "entrusted", "awaited", "is_ticking",
        ),
        derived=("handlers",),
    )  # fmt: skip

    def __init__(self, protocol: Proactive) -> None:
        self.protocol = protocol
        self.host = protocol.host
        self.check(protocol.settings)
        self.period_s = protocol.settings.heartbeat_period_s
        self.missed_max = protocol.settings.heartbeats_missed_max
        self.orphans_after_s = protocol.settings.context_timeout_s
        self.silent: dict[str, int] = {}
        """Watched brokers: broker to the number of periods without any message from it."""
        self.suspects: dict[str, Suspicion] = {}
        self.out_of_sight: dict[tuple[str, str], Remote] = {}
        """Copies that were complete when their broker was given up, by broker and client."""
        self.entrusted: dict[int, Entrusted] = {}
        """Entrusted stores, by the number of the activation."""
        self.awaited: dict[tuple[str, int], Store] = {}
        """Stores of clients whose session arrived before their context, by client and attach number."""
        self.is_ticking = False
        self._restore()

    def _restore(self) -> None:
        self.handlers: dict[type[Message], Callable[[str, Any], None]] = {
            Ping: self.on_ping,
            PingReply: self.on_ping_reply,
            Announcement: self.on_announcement,
            CopyTaken: self.on_copy_taken,
            ContextMissing: self.on_context_missing,
        }

    def configure(self, settings: Settings) -> None:
        """Apply settings. A change does not switch heartbeats on or off, because existing stores and copies
        depend on that."""
        if (settings.heartbeat_period_s is None) == (self.period_s is None):
            self.period_s = settings.heartbeat_period_s
            self.missed_max = settings.heartbeats_missed_max
            self.orphans_after_s = settings.context_timeout_s

    @staticmethod
    def check(settings: Settings) -> None:
        period_s, missed_max = settings.heartbeat_period_s, settings.heartbeats_missed_max
        if period_s is None:
            return
        if not 0 < period_s < float("inf"):
            raise InputError(f"heartbeat_period_s {period_s}: valid is a time above 0, in seconds")
        if missed_max < 1:
            raise InputError(f"heartbeats_missed_max {missed_max}: valid is a number from 1 on")
        if settings.context_timeout_s is None:
            raise InputError(
                "heartbeat_period_s without context_timeout_s: heartbeats for a client that never "
                "comes back would never end; set how long neighbours store for a client that is away"
            )

    def on_message(self, sender: str, message: Message) -> bool:
        """Note that the sender is there; returns whether the message was fully handled here."""
        if sender in self.silent:
            self.silent[sender] = 0
        if sender in self.suspects:
            self.hear_suspect(sender, message)
        handler = self.handlers.get(type(message))
        if handler is not None:
            handler(sender, message)
        return handler is not None

    def on_deadline(self, token: Token) -> bool:
        """Handle a timer; returns whether it was one of this class."""
        if isinstance(token, HeartbeatDue):
            self.on_tick(token)
        elif isinstance(token, Orphans):
            self.on_orphans(token)
        else:
            return False
        return True

    # --- detection ---

    def watch(self) -> None:
        """Start heartbeats if brokers store for each other's clients."""
        if self.period_s is not None and not self.is_ticking:
            self.is_ticking = True
            at = self.host.now + self.period_s
            self.host.set_timer(at, HeartbeatDue(at))

    def on_tick(self, tick: HeartbeatDue) -> None:
        assert self.period_s is not None
        if self.host.now - tick.at > self.missed_max * self.period_s:
            # This broker itself was not running.
            self.silent = {}
            for broker in self.acquaintances():
                self.announce(broker, is_answer=False)
        storing = self.storing()
        watched = [one for one in storing | self.holding() if one not in self.suspects]
        self.silent = {broker: self.silent.get(broker, 0) for broker in watched}
        for broker in watched:
            # A broker that is not pinged from here speaks in its own period, which may end later.
            if self.silent[broker] >= self.missed_max + (broker not in storing):
                self.suspect(broker)
                continue
            self.silent[broker] += 1
            if broker in storing:
                self.host.send(broker, Ping())
        self.is_ticking = False
        if self.silent:
            self.watch()

    def storing(self) -> dict[str, None]:
        """Return the brokers that store for clients of this broker."""
        stays = self.protocol.current.values()
        return {broker: None for stay in stays for broker, one in stay.copies.items() if one.activation}

    def holding(self) -> dict[str, None]:
        """Return the brokers for whose clients this broker stores."""
        copies = self.protocol.copies.values()
        active = (copy for copy in copies if copy.store is not None and not copy.is_expected)
        return {copy.holder: None for copy in active}

    def on_ping(self, sender: str, message: Ping) -> None:
        if message.given_up or sender not in self.holding():
            self.announce(sender, is_answer=False)
        else:
            self.host.send(sender, PingReply())

    def on_ping_reply(self, sender: str, message: PingReply) -> None:
        """Nothing to do: arrival of the reply is the information."""

    # --- what follows ---

    def suspect(self, broker: str) -> None:
        protocol, now = self.protocol, self.host.now
        protocol.figures["suspected"] += 1
        del self.silent[broker]
        self.suspects[broker] = Suspicion(now)
        for client, stay in protocol.current.items():
            remote = stay.copies.pop(broker, None)
            if remote is not None and remote.complete:
                self.out_of_sight[broker, client] = remote
            elif remote is not None:
                protocol.forget_reader(stay.store, remote)
        protocol.tell_neighbours()
        assert self.orphans_after_s is not None
        self.host.set_timer(now + self.orphans_after_s, Orphans(broker, now))

    def on_orphans(self, token: Orphans) -> None:
        """Delete orphaned copies, which no holder could delete; a client on its way here still needs its
        copy."""
        suspicion, protocol = self.suspects.get(token.broker), self.protocol
        if suspicion is None or suspicion.since != token.since:
            return
        for client, copy in list(protocol.copies.items()):
            if copy.holder == token.broker and not copy.is_expected:
                protocol.figures["expired"] += 1
                protocol.drop_copy(client)

    def hear_suspect(self, broker: str, message: Message) -> None:
        """Tell a broker that was suspected and is heard again; it will announce itself."""
        assert self.period_s is not None
        suspicion, now = self.suspects[broker], self.host.now
        is_asked = suspicion.asked_at is not None and now - suspicion.asked_at < self.period_s
        if not is_asked and not isinstance(message, Announcement):
            suspicion.asked_at = now
            self.host.send(broker, Ping(given_up=True))

    # --- announcement ---

    def acquaintances(self) -> dict[str, None]:
        """Return all brokers that may rely on this one, or it on them, and those it gave up."""
        protocol = self.protocol
        neighbours = dict.fromkeys(protocol.graph.neighbours(self.host.now))
        storing = {broker: None for stay in protocol.current.values() for broker in stay.copies}
        holding = {copy.holder: None for copy in protocol.copies.values() if not copy.is_expected}
        return neighbours | storing | holding | dict.fromkeys(self.suspects)

    def announce(self, broker: str, is_answer: bool) -> None:
        held = {
            client: HeldCopy(copy.number, copy.store.activation if copy.store else 0, copy.subscriptions)
            for client, copy in self.protocol.copies.items()
            if copy.holder == broker and not copy.is_expected
        }
        self.host.send(broker, Announcement(held, is_answer))

    # --- reconciliation ---

    def on_announcement(self, sender: str, message: Announcement) -> None:
        protocol = self.protocol
        was_suspected = self.suspects.pop(sender, None) is not None
        for client, stay in protocol.current.items():
            self.reconcile(stay, sender, message.copies.get(client))
        self.out_of_sight = {key: one for key, one in self.out_of_sight.items() if key[0] != sender}
        for client, held in message.copies.items():
            if client not in protocol.current:
                self.host.send(sender, DeleteCopy(client, held.number))
        if was_suspected:
            protocol.figures["recovered"] += 1
            protocol.tell_neighbours()
        if not message.is_answer:
            self.announce(sender, is_answer=True)
        self.watch()

    def reconcile(self, stay: Stay, broker: str, held: HeldCopy | None) -> None:
        """Compare a copy with what its holder knows of it, and correct the copy."""
        protocol, session = self.protocol, stay.session
        known = stay.copies.pop(broker, None) or self.out_of_sight.pop((broker, session.client), None)
        if held is not None and held.number > session.number:
            # The copy is of a session that was lost with this broker's memory.
            self.host.send(broker, DeleteCopy(session.client, held.number))
            held = None
        is_known = held is not None and held.subscriptions == uncovered(session.subscriptions)
        if known is not None and held is not None and is_known and self.is_the_same(stay, known, held):
            stay.copies[broker] = known
        else:
            if known is not None:
                protocol.forget_reader(stay.store, known)
            if held is not None:
                stay.copies[broker] = Remote(is_known)
                self.correct(stay, broker, held)
        protocol.surround(stay)

    def is_the_same(self, stay: Stay, known: Remote, held: HeldCopy) -> bool:
        """True if the copy has been active since the client left; the client may have been back since."""
        is_activated = known.activation != 0 and known.activation == held.activation
        return stay.is_active and is_activated and held.number == stay.session.number

    def correct(self, stay: Stay, broker: str, held: HeldCopy) -> None:
        """Delete or deactivate a copy; creating and activating copies is left to `surround`."""
        client, number = stay.session.client, stay.session.number
        if stay.is_timed_out:
            self.protocol.delete(stay, [broker], number)
        elif held.activation and not stay.is_active:
            self.host.send(broker, DeactivateCopy(client, number, stay.session.moves))

    # --- relying on a copy that may be gone ---

    def entrust(self, stay: Stay, destination: str, number: int) -> int:
        """Keep the store of a departing client until the copy that serves it is known to be there.

        Returns the number that identifies the question about the copy; 0 if no question is needed, because
        only the holder deletes copies.
        """
        if self.period_s is None:
            return 0
        assert stay.counted_on is not None
        activation, store = stay.counted_on.activation, stay.store
        store.is_entrusted = True
        self.entrusted[activation] = Entrusted(store, destination, number)
        return activation

    def take(self, sender: str, message: StoredBefore | ServeFromCopy) -> Store | None:
        """Take the copy that the sender relies on; if the copy is missing here, tell the sender."""
        client, activation = message.client, message.activation
        copy = self.protocol.copies.get(client)
        if copy is None or copy.store is None or (activation and not copy.is_of(sender, activation)):
            self.protocol.drop_copy(client)
            self.ask_for_context(sender, client, activation)
            return None
        copy.is_expected = True
        if activation:
            self.host.send(sender, CopyTaken(client, activation))
        return copy.store

    def on_copy_taken(self, sender: str, message: CopyTaken) -> None:
        entrusted = self.entrusted.pop(message.activation, None)
        if entrusted is not None:
            entrusted.store.is_entrusted = False
            self.protocol.serve_readers(entrusted.store)

    def ask_for_context(self, sender: str, client: str, activation: int) -> None:
        if self.period_s is None:
            return  # Without heartbeats, copies never delete themselves: the sender has no copy here.
        self.protocol.figures["missing"] += 1
        self.host.send(sender, ContextMissing(client, activation))

    def on_context_missing(self, sender: str, message: ContextMissing) -> None:
        protocol, activation = self.protocol, message.activation
        entrusted = self.entrusted.pop(activation, None)
        store = entrusted.store if entrusted is not None else protocol.activations.get(activation)
        if store is None:
            return
        reader = store.readers.pop(activation, None)
        protocol.activations.pop(activation, None)
        stay = protocol.current.get(message.client)
        if entrusted is not None:
            store.is_entrusted = False
            self.send_context(store, entrusted.destination, entrusted.number)
        elif stay is not None and stay.store is store:
            stay.copies[sender] = Remote(is_known=False)
            protocol.surround(stay)
        elif reader is not None:
            self.send_context(store, reader.broker, reader.number)

    def send_context(self, store: Store, destination: str, number: int) -> None:
        """Send the context and all stored notifications to the destination, where the client is or was, as
        for an unknown edge."""
        context = self.protocol.context(store.subscriptions)
        self.protocol.send_activation(store, destination, number, context, late=True)

    def await_context(self, client: str, number: int, base: int, stream: str, source: str) -> Store:
        """Open a store for a session that arrived without a copy; the source is informed and sends the
        context."""
        store = self.protocol.open_store(client, base, source, stream=stream)
        self.awaited[client, number] = store
        return store

    def on_lost(self, brokers: Collection[str]) -> None:
        """Stop waiting for contexts of brokers that are gone; the session knows the subscriptions, too."""
        for key, store in list(self.awaited.items()):
            if store.source in brokers:
                del self.awaited[key]
                store.complete = True
                stay = self.protocol.current.get(store.client)
                if stay is not None and stay.store is store:
                    self.protocol.subscribe_rest(stay)
                    self.protocol.try_finish(stay)

    def fill(self, sender: str, message: ActivateCopy) -> bool:
        """Fill the store that waited for this context; returns whether one did."""
        protocol, context = self.protocol, message.subscriptions
        store = self.awaited.pop((message.client, message.number), None) if context is not None else None
        if store is None or context is None:
            return False
        store.source, store.activation = sender, message.activation
        protocol.fed[sender, message.activation] = store
        for burst in message.bursts:
            protocol.append(store, burst)
        protocol.subscribe_store(store, context)
        stay = protocol.current.get(message.client)
        if stay is not None and stay.store is store:
            protocol.subscribe_rest(stay)
        return True
