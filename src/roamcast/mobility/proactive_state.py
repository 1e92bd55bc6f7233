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
    """A store elsewhere that this one forwards to."""

    __state__ = State("proactive-reader", saved=("broker", "number", "acknowledged"))

    def __init__(self, broker: str, number: int) -> None:
        self.broker = broker
        self.number = number
        """The attach number under which it was activated."""
        self.acknowledged = False


class Store:
    """What a broker stores for a client, and for whom it forwards: a stay's, or an active copy's."""

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
        """Who forwards to this store, and under which number of theirs, until it is complete."""
        self.complete = source == ""
        self.early: list[Burst] = []
        """What came here before the store was complete; it belongs after what is forwarded."""
        self.forwarded: dict[str, tuple[int, int]] = {}
        """Publisher to the incarnation and number last forwarded: up to these, `early` has duplicates."""
        self.readers: dict[int, Reader] = {}
        """By the number of the activation."""
        self.departed = False
        """Whether nobody here needs it any more: it ends when all readers are served."""
        self.is_entrusted = False
        """Whether a copy elsewhere is counted on instead, and has not said yet that it is there."""

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
        """Whether it has the context as it is now."""
        self.activation = 0
        self.complete = False
        """Active, acknowledged, and told everything: it needs nobody any more."""
        self.active_from = 0
        self.active_base = 0
        """Where in the holder's queue its store begins, as a position and as a sequence."""


class Stay:
    """The session is here."""

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
        """The client's own changes that have not settled."""
        self.is_away = False
        self.is_active = False
        """True while copies are active."""
        self.is_timed_out = False
        self.counted_on: Remote | None = None
        """The copy that serves the client when it departs, if one does."""
        self.lent: dict[str, int] = {}
        """Brokers whose copies were active since the client left, so that one of them may serve the client by
        now, and the client's count of attaches when it left."""


class Copy:
    """A context kept for another broker's client."""

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
        """The broker that spoke last of it…"""
        self.number = number
        """… and under which attach number: the control attribute."""
        self.subscriptions = subscriptions
        self.store = store
        """None while it is passive."""
        self.late = late
        self.is_expected = late
        """Whether the client's session is on its way here."""
        self.moves = moves
        """The client's own count of attaches when the copy was activated, and …"""
        self.moves_served = moves
        """… when it last read from the copy."""
        self.client_owner = client_owner
        self.is_served = False
        """Whether the client reads, or has read, from this copy ahead of its session."""

    def is_kept_from(self, moves: int) -> bool:
        """True if the copy serves the client, as far as a holder knows that counts this many attaches."""
        return self.is_served and moves <= self.moves

    def is_of(self, holder: str, activation: int) -> bool:
        """Whether it is active because of this activation, and not of one for a session that was lost."""
        return self.store is not None and (self.store.source, self.store.activation) == (holder, activation)


def uncovered(subscriptions: Mapping[str, float]) -> Subscriptions:
    """Those that no older one covers."""
    chosen: dict[Filter, float] = {}
    for text, issued_at in sorted(subscriptions.items(), key=lambda one: (one[1], one[0])):
        filter = parse(text)
        if not any(other.covers(filter) for other in chosen):
            chosen[filter] = issued_at
    return {filter.text: issued_at for filter, issued_at in chosen.items()}
