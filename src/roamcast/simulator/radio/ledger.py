"""Records what was published, what was owed to whom, and what arrived, when and over how many hops.

Unlike `checkers.Result` it gives no verdict: brokers on the way determine what is owed, losses are a figure
and not an error, and each first arrival has a delay and a number of hops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

Notification = tuple[int, int]
"""Publisher, and number of the notification there."""


class Arrival(NamedTuple):
    delay_s: float
    hops: int


class Ledger:
    def __init__(self) -> None:
        self._published_at: dict[Notification, float] = {}
        self._possible = 0
        self._owed: dict[tuple[Notification, int], float] = {}
        """Time at which each notification became owed to each subscriber."""
        self._arrived: dict[tuple[Notification, int], Arrival] = {}
        self.duplicates = 0
        self.given_up: Counter[str] = Counter()
        """By reason: number of notifications dropped on the way; MFT-PubSub stores what it cannot send."""

    def published(self, notification: Notification, now: float, subscribers: int) -> None:
        """Record a publish, and the number of its subscribers."""
        self._published_at[notification] = now
        self._possible += subscribers

    def owed(self, notification: Notification, subscriber: int, since: float | None = None) -> None:
        """Record that it is routed, or to be routed, to this subscriber; owed since it was published, if no
        time is given.
        """
        self._owed.setdefault(
            (notification, subscriber), self._published_at[notification] if since is None else since
        )

    def arrived(self, notification: Notification, subscriber: int, now: float, hops: int) -> None:
        key = (notification, subscriber)
        if key in self._arrived:
            self.duplicates += 1
            return
        self.owed(notification, subscriber)
        self._arrived[key] = Arrival(now - self._owed[key], hops)

    def figures(self, stored: Iterable[tuple[Notification, int]] = ()) -> dict[str, float | int | None]:
        """Return the figures. `delivery_rate` is a share of what was owed; the share of all publications also
        counts subscribers that no broker knew.

        `stored` lists the notifications that brokers store at the end, with their receivers: these may still
        arrive.
        """
        arrivals = list(self._arrived.values())
        waiting = len({key for key in stored if key in self._owed} - self._arrived.keys())
        settled = len(self._owed) - waiting
        return {
            "published": len(self._published_at),
            "owed": len(self._owed),
            "delivered": len(arrivals),
            "delivery_rate": len(arrivals) / len(self._owed) if self._owed else None,
            "stored": waiting,
            "delivery_rate_unstored": len(arrivals) / settled if settled else None,
            "delivered_of_all": len(arrivals) / self._possible if self._possible else None,
            "duplicates": self.duplicates,
            "delay_mean_s": fmean(one.delay_s for one in arrivals) if arrivals else None,
            "hops_mean": fmean(one.hops for one in arrivals) if arrivals else None,
            "hops_max": max((one.hops for one in arrivals), default=None),
        }
