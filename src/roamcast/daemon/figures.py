"""The figures of a running broker, read from its parts on request: nothing is counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from roamcast.daemon.engine import Engine
from roamcast.daemon.trees import Trees
from roamcast.mqtt.server.marks import QOS
from roamcast.net.buffered import Buffered
from roamcast.net.peers import Peers
from roamcast.net.strangers import Strangers
from roamcast.storage.kept_out import KeptOut

if TYPE_CHECKING:
    from roamcast.daemon.event_log import EventLog


class Queues(msgspec.Struct):
    """Notifications queued for clients of this broker."""

    notifications: list[int]
    """Number of notifications, by QoS of publishing."""
    size_bytes: int


class LinkFigures(msgspec.Struct, frozen=True):
    peer: str
    is_up: bool
    why: str
    kept_bytes: int
    """Bytes buffered for the peer, which has not journalled them yet."""
    dropped_fleeting: int
    refused: dict[str, int] = {}
    """Messages of the peer that were refused at the border, by reason (see `broker.links.border.REASONS`)."""
    over: str = ""
    """The broker that carries the link while the direct connection is cut."""


class FollowerFigures(msgspec.Struct, frozen=True):
    """A follower, as the leader of its site knows it."""

    connected: bool
    in_sync: bool
    lag: int
    """Number of journal entries that it has not acknowledged."""


class BrokerFigures:
    """All figures that /metrics, /healthz and $SYS show."""

    def __init__(
        self,
        engine: Engine,
        peers: Peers,
        trees: Trees,
        kept_out: KeptOut,
        events: EventLog | None = None,
    ) -> None:
        self.engine = engine
        self.kept_out = kept_out
        self.trees = trees
        self.events = events
        self.started_at = time.monotonic()
        self.connections: Callable[[], int] = lambda: 0
        self.handed_over: Callable[[], int] = lambda: 0
        self.site = ""
        """The site of which this broker is a worker."""
        self.strangers = Strangers(lambda: 0)
        self.buffered = Buffered()
        self.is_listening: Callable[[], bool] = lambda: False
        self.failed_logins: Callable[[], int] = lambda: 0
        self.reports: Callable[[], int] = lambda: 0
        """Reports to operators, created while an operator watches the network."""
        self.pages: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Number of open pages of the live view, and number of pages that were closed because they were slow.
        """
        self.followers: Callable[[], Mapping[str, FollowerFigures] | None] = lambda: None
        """The followers of a replicated site, by name; None if the site is not replicated."""
        self.refused: Callable[[], Mapping[str, int]] = dict
        """Number of refused clients, by reason."""
        self.client_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Bytes received from clients, and bytes sent to them."""
        self._peers = peers
        self.relay = peers.relay

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self.started_at

    def queues(self) -> Queues:
        found = Queues([0, 0, 0], 0)
        for burst in self.engine.site.stored():
            found.notifications[qos_of(burst.marks)] += burst.count
            found.size_bytes += burst.size
        return found

    def subscriptions(self) -> int:
        return self.engine.site.endpoint.sessions.subscription_count

    def attached(self) -> int:
        return sum(bool(one.connection) for one in self.engine.site.endpoint.sessions.awake())

    def dropped(self) -> dict[tuple[str, int], int]:
        """Dropped notifications, by reason and QoS."""
        site = self.engine.site
        found: dict[tuple[str, int], int] = {}
        for (reason, marks), count in site.figures.dropped.items():
            key = reason, qos_of(marks)
            found[key] = found.get(key, 0) + count
        for qos, count in enumerate(site.endpoint.traffic.left_out):
            found["too old or too large", qos] = count
        return found

    def handoffs(self) -> dict[str, int]:
        site = self.engine.site
        results = {"finished": 0, "refused": 0, "unavailable": site.endpoint.traffic.unavailable}
        return results | site.figures.handoffs

    def away(self) -> list[str]:
        """Brokers of the network that this broker cannot reach now: they may hold sessions that clients ask
        for here."""
        site = self.engine.site
        down = {link.peer for link in self.links() if not link.is_up}
        return sorted(down | {name for name, is_reached in site.members().items() if not is_reached})

    def links(self) -> list[LinkFigures]:
        """Figures of the links to all peers that are configured, connected, or were connected and not
        forgotten."""
        ends = self.engine.site.links.ends
        found = []
        for status in self._peers.statuses(ends):
            end = ends.get(status.peer)
            kept, lost = (end.kept_bytes, end.dropped_fleeting) if end is not None else (0, 0)
            kept_out = "" if status.is_up else self.kept_out.refusal("peer", status.peer)
            refused = dict(self.engine.site.refused(status.peer))
            why = kept_out or status.why
            found.append(LinkFigures(status.peer, status.is_up, why, kept, lost, refused, status.over))
        return found


def qos_of(marks: bytes) -> int:
    return min(marks[0] & QOS, 2) if marks else 0
