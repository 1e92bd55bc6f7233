"""Quotas of owners at a broker: sessions, and memory of their subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

from roamcast.mqtt.server.access import ANONYMOUS

SHARE_OF_ONE_OWNER = 2
"""One owner may hold 1/N of the broker's limit, so that others have room."""


class OwnerHoldings:
    """Counts per owner; anonymous clients are many, so they are exempt from the limit of an owner."""

    def __init__(self, sessions: Iterable[tuple[str, int]] = ()) -> None:
        """`sessions`: owner and memory of subscriptions of each session."""
        self.subscription_bytes = 0
        self._sessions: dict[str, int] = {}
        self._subscription_bytes: dict[str, int] = {}
        for owner, size_bytes in sessions:
            self.count_session(owner, size_bytes, +1)

    def count_session(self, owner: str, subscription_bytes: int, change: int) -> None:
        """Count a session that arrives (+1) or leaves (-1), with its subscriptions."""
        _add(self._sessions, owner, change)
        self.count_subscriptions(owner, change * subscription_bytes)

    def count_subscriptions(self, owner: str, change_bytes: int) -> None:
        self.subscription_bytes += change_bytes
        _add(self._subscription_bytes, owner, change_bytes)

    def has_too_many_sessions(self, owner: str, per_owner: int, in_all: int) -> bool:
        most = min(per_owner, max(1, in_all // SHARE_OF_ONE_OWNER))
        return _is_one(owner) and self._sessions.get(owner, 0) > most

    def has_room_for(self, owner: str, size_bytes: int, in_all: int) -> bool:
        """True if the owner may have a subscription of this size."""
        of_owner = self._subscription_bytes.get(owner, 0) + size_bytes
        is_within_share = not _is_one(owner) or of_owner <= in_all // SHARE_OF_ONE_OWNER
        return is_within_share and self.subscription_bytes + size_bytes <= in_all


def _is_one(owner: str) -> bool:
    return owner not in ("", ANONYMOUS)


def _add(table: dict[str, int], owner: str, change: int) -> None:
    count = table.get(owner, 0) + change
    if count:
        table[owner] = count
    else:
        table.pop(owner, None)
