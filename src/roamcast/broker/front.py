"""What a broker asks of its access side, where that keeps more for a client than the core knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from roamcast.filters.filter import Attributes
from roamcast.protocol.notification import Burst


class Front(Protocol):
    """The access side. Its part of a session travels as the session's capsule, which nobody else reads."""

    @property
    def outside(self) -> frozenset[str]:
        """The attributes that are not in the bodies of bursts."""

    def contents(self, burst: Burst) -> Sequence[Attributes]:
        """The attributes of each notification, those in its body too."""

    def pack(self, client: str) -> bytes:
        """The session departs: its capsule. Nothing of the client is kept here."""

    def copy(self, client: str) -> bytes:
        """The capsule of a session that stays here, for copies that may serve its client elsewhere; empty if
        that must wait for the session."""

    def serve_ahead(self, client: str, capsule: bytes, bursts: Sequence[Burst]) -> bool:
        """Serve a client that is connected here from a copy, whose session is still elsewhere, if that can do
        no harm: these bursts, and what was acknowledged of them, may turn out to be old."""

    def lasts_s(self, client: str) -> int:
        """Seconds that the session of a client which a copy serves outlasts its connection."""

    def keep_for(self, client: str, seconds: int) -> None:
        """Keep a session that waits to depart for so long from now on: a copy has told its client so."""

    def give_up(self, client: str) -> None:
        """The session of a client that was served from a copy does not come."""

    def can_unpack(self, client: str, capsule: bytes) -> bool:
        """Whether a capsule that came from elsewhere can be read."""

    def arrived(self, client: str, capsule: bytes, owner: str, reads_on: bool = False) -> None:
        """A session is here now; with an empty capsule it is a new one. With `reads_on`, whatever was sent
        from a copy and acknowledged to it counts, if the copy is as the session is."""

    def left_over(self, client: str, burst: Burst) -> None:
        """The session is ending, and its client did not get this."""

    def takes_part(self, client: str, group: str, filter: str) -> bool:
        """Whether the session here holds this shared subscription."""

    def outlasts_connection(self, client: str) -> bool:
        """Whether the session here stays when its client's connection ends."""

    def not_located(self, client: str) -> None:
        """Brokers that cannot be asked are thought not to hold the session: it may be stood in for."""

    def ended(self, client: str) -> None:
        """The session is over."""
