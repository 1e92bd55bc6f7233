"""What a broker remembers under `proactive.py`: sessions that are here, copies of others, and stores."""

from __future__ import annotations

from collections.abc import Mapping

from roamcast.filters.filter import Filter
from roamcast.filters.selector import parse
from roamcast.mobility.proactive_messages import Subscriptions
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.state import State


class Reader:
    """A store at another broker that this store forwards to."""

    __state__ = State("proactive-reader", saved=("broker", "number", "acknowledged"))

    def __init__(self, broker: str, number: int) -> None:
        self.broker = broker
        self.number = number
        """Attach number under which the reader's store was activated."""
        self.acknowledged = False


class Store:
    """Notifications that a broker stores for a client, of a stay or an active copy, and its readers."""

    __state__ = State(
        "proactive-store",
        saved=(
            "owner", "queue", "subscriptions", "source", "activation", "complete", "early", "forwarded",
            "readers", "departed", "is_entrusted",
        ),
    )  # fmt: skip

    def __init__(self, client: str, serial: int, queue: DeliveryQueue, source: str, activation: int) -> None:
        self.owner = (client, serial)
        self.queue = queue
        self.subscriptions: Subscriptions = {}
        self.source = source
        self.activation = activation
        """Number that the source gave its activation; the source forwards to this store until it is
        complete."""
        self.complete = source == ""
        self.early: list[Burst] = []
        """Notifications received before the store was complete; they follow what is forwarded."""
        self.forwarded: dict[str, tuple[int, int]] = {}
        """Publisher to the incarnation and number last forwarded: up to these, `early` has duplicates."""
        self.readers: dict[int, Reader] = {}
        """Readers by the number of the activation."""
        self.departed = False
        """True if nothing at this broker needs the store: it ends when all readers are served."""
        self.is_entrusted = False
        """True while a copy elsewhere is relied on instead, but has not been confirmed."""

    @property
    def client(self) -> str:
        return self.owner[0]


class Remote:
    """A copy at a neighbour, as its holder knows it."""

    __state__ = State(
        "proactive-remote",
        saved=("is_known", "activation", "complete", "active_from", "active_base"),
    )  # fmt: skip

    def __init__(self, is_known: bool) -> None:
        self.is_known = is_known
        """True if the copy has the current context."""
        self.activation = 0
        self.complete = False
        """True if the copy is active, acknowledged, and has everything: it needs no store any more."""
        self.active_from = 0
        self.active_base = 0
        """Where in the holder's queue the copy's store begins, as a position and as a sequence."""


class Stay:
    """A session that is at this broker."""

    __state__ = State(
        "proactive-stay",
        saved=(
            "session", "store", "copies", "changing", "is_away", "is_active", "is_timed_out", "counted_on",
            "lent",
        ),
    )  # fmt: skip

    def __init__(self, session: Session, store: Store) -> None:
        self.session = session
        self.store = store
        self.copies: dict[str, Remote] = {}
        self.changing = 0
        """Number of the client's own changes that have not settled."""
        self.is_away = False
        self.is_active = False
        """True while copies are active."""
        self.is_timed_out = False
        self.counted_on: Remote | None = None
        """The copy that serves the client when it departs, if any."""
        self.lent: dict[str, int] = {}
        """Brokers whose copies have been active since the client left, with the client's count of attaches at
        that time. One of them may already be serving the client."""


class Copy:
    """A context kept for a client of another broker."""

    __state__ = State(
        "proactive-copy",
        saved=(
            "holder", "number", "subscriptions", "store", "late", "is_expected", "moves", "moves_served",
            "client_owner", "is_served",
        ),
    )  # fmt: skip

    def __init__(
        self,
        holder: str,
        number: int,
        subscriptions: Subscriptions,
        store: Store | None,
        late: bool,
        moves: int = -1,
        client_owner: str = "",
    ) -> None:
        self.holder = holder
        """Broker that last sent a message about the copy."""
        self.number = number
        """Attach number in that message: the control attribute."""
        self.subscriptions = subscriptions
        self.store = store
        """None while the copy is passive."""
        self.late = late
        self.is_expected = late
        """True if the client's session is on its way here."""
        self.moves = moves
        """The client's own count of attaches when the copy was activated."""
        self.moves_served = moves
        """The client's own count of attaches when it last read from the copy."""
        self.client_owner = client_owner
        self.is_served = False
        """True if the client reads, or has read, from this copy ahead of its session."""

    def is_kept_from(self, moves: int) -> bool:
        """True if a holder that knows of `moves` attaches must leave the copy alone, because the copy serves
        the client."""
        return self.is_served and moves <= self.moves

    def is_of(self, holder: str, activation: int) -> bool:
        """True if this activation made the copy active, and not one for a session that was lost."""
        return self.store is not None and (self.store.source, self.store.activation) == (holder, activation)


def uncovered(subscriptions: Mapping[str, float]) -> Subscriptions:
    """Return the subscriptions that no older one covers."""
    chosen: dict[Filter, float] = {}
    for text, issued_at in sorted(subscriptions.items(), key=lambda one: (one[1], one[0])):
        filter = parse(text)
        if not any(other.covers(filter) for other in chosen):
            chosen[filter] = issued_at
    return {filter.text: issued_at for filter, issued_at in chosen.items()}
