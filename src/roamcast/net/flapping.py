"""Limits how often a client moves between brokers: a handoff costs every broker on its path."""

from __future__ import annotations

from collections import OrderedDict

PERIOD_S = 60.0
CLIENTS_KEPT_MAX = 65_536
"""Number of clients whose handoffs are counted; past it the one that moved longest ago is forgotten."""


class Flapping:
    """Counts the handoffs of each client. The quota refills evenly over a minute."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Handoffs of each client that still count, and when that number was computed."""

    def pause_s(self, client: str, per_minute: int, now_s: float) -> float:
        """Return the seconds until the client may move here again; 0.0 counts a handoff that begins now."""
        used, at_s = self._used.get(client, (0.0, now_s))
        used = max(0.0, used - (now_s - at_s) * per_minute / PERIOD_S)
        over = used + 1 - per_minute
        if over > 0:
            return over * PERIOD_S / per_minute
        self._used[client] = used + 1, now_s
        self._used.move_to_end(client)
        if len(self._used) > CLIENTS_KEPT_MAX:
            self._used.popitem(last=False)
        return 0.0
