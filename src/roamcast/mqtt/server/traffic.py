"""What an endpoint counts for those who watch it, and what it has to say about its clients.

Nothing depends on it, and no snapshot holds it. Counting is by the burst.
"""

from __future__ import annotations

from typing import NamedTuple


class Note(NamedTuple):
    """A client has come or gone, or was denied something; for the log."""

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
        """Notifications that were too old or too large for their client."""
        self.repeated = 0
        """Notifications sent once more, because the connection ended before they were acknowledged."""
        self.denied = dict.fromkeys(DENIED_ACTIONS, 0)
        """What access rules kept from clients: notifications, or single requests."""
        self.welcomed = 0
        self.unavailable = 0
        """Clients refused because a broker that may hold their session could not be asked."""
