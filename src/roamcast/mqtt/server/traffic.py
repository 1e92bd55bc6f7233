"""Counters of an endpoint for observers, and notes about its clients.

No behaviour depends on them, and snapshots do not contain them. Counting is
per burst.
"""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """Log note: a client connected, disconnected, or was denied something."""

    kind: str
    """"connected", "disconnected", "refused", "ended" or "denied"."""
    connection: int
    client: str
    reason: str = ""


DENIED_ACTIONS = ("connect", "publish", "subscribe", "receive", "will")


class Traffic:
    """Counters since the process began; lists are indexed by QoS."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        """Notes that were not taken yet."""
        self.reset()

    def reset(self) -> None:
        self.received = [0, 0, 0]
        self.sent = [0, 0, 0]
        self.left_out = [0, 0, 0]
        """Notifications left out because they were too old or too large for their client."""
        self.repeated = 0
        """Notifications sent again, because the connection ended before they were acknowledged."""
        self.denied = dict.fromkeys(DENIED_ACTIONS, 0)
        """Notifications or requests denied by access rules."""
        self.welcomed = 0
        self.unavailable = 0
        """Clients refused because a broker that may hold their session could not be asked."""
