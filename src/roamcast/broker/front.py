"""Interface between the core and an access side that stores more data of a client than the core knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roamcast.filters.filter import Attributes
from roamcast.protocol.notification import Burst


class Front(Protocol):
    """The access side. Its part of a session travels as the session's capsule, which nobody else reads."""

    @property
    def outside(self) -> frozenset[str]:
        """Attributes that are outside the bodies of bursts."""

    def contents(self, burst: Burst) -> Sequence[Attributes]:
        """Return the attributes of each notification, including those in its body."""

    def pack(self, client: str) -> bytes:
        """Return the capsule of a departing session, and forget the client."""

    def copy(self, client: str) -> bytes:
        """Return the capsule of a session that stays here, for copies that may serve its client elsewhere;
        empty if copies must not."""

    def serve_ahead(self, client: str, capsule: bytes, bursts: Sequence[Burst]) -> bool:
        """Serve a connected client from a copy while its session is elsewhere, if outdated bursts and
        acknowledgements can do no harm; returns whether it does."""

    def lasts_s(self, client: str) -> int:
        """Return how many seconds the session of a client served from a copy outlasts its connection."""

    def keep_for(self, client: str, seconds: int) -> None:
        """Keep a departing session for at least `seconds` from now on: a copy has promised this to its
        client."""

    def give_up(self, client: str) -> None:
        """Give up a client that was served from a copy: its session does not come."""

    def can_unpack(self, client: str, capsule: bytes) -> bool:
        """True if a capsule from elsewhere can be read."""

    def arrived(self, client: str, capsule: bytes, owner: str, reads_on: bool = False) -> bool:
        """Take a session that is here now; an empty capsule means a new one. With `reads_on`, deliveries from
        a copy and their acknowledgements count, if the copy matches the session. Return True if a stand-in is
        about to be merged into it (`SessionsMerged`)."""

    def left_over(self, client: str, burst: Burst) -> None:
        """Handle a burst that the client of an ending session did not get."""

    def takes_part(self, client: str, group: str, filter: str) -> bool:
        """True if the session here holds this shared subscription."""

    def outlasts_connection(self, client: str) -> bool:
        """True if the session here outlasts its client's connection."""

    def not_located(self, client: str) -> None:
        """No broker that can be asked holds the session: a stand-in session may serve the client."""

    def stand_in_of(self, client: str) -> str | None:
        """Return the owner of a stand-in here that is to be merged into the client's session; None if there
        is none."""

    def ended(self, client: str) -> None:
        """Forget an ended session."""
