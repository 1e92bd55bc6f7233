"""Changes of the set of filters forwarded to a peer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from roamcast.protocol.messages import Entry


class Change(NamedTuple):
    """Filters to add and remove at the peer; additions first."""

    subscribe: tuple[Entry, ...] = ()
    unsubscribe: tuple[Entry, ...] = ()


NO_CHANGE = Change()


class Aggregate(Protocol):
    """The filters collected for one peer, and the reduced set forwarded to it."""

    def add(self, entry: Entry) -> Change: ...
    def remove(self, entry: Entry) -> Change: ...
    def forwarded(self) -> list[Entry]: ...
    @property
    def is_empty(self) -> bool: ...
