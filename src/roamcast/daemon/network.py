"""The whole network as this broker knows it while somebody looks: the reports of all brokers, merged.

Nothing here is part of the broker's state. All of it is deleted when nobody looks any more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from roamcast.daemon.reports import AlertRow, BrokerRow, ClientRow, LinkRow, Percentiles, Report, percentiles

SILENT_S = 4.0
"""Seconds without a report after which a broker counts as down."""
HANDOFFS_KEPT = 4096
RECENT_S = 60.0
"""Age in seconds of the oldest handoff that the network's percentiles include."""
CLOCK_ERROR_S = 2.0
"""Allowed clock difference between brokers: a handoff from longer before the watch began is not new."""
CLIENTS_MAX = 500_000
"""Maximum number of clients of all brokers together; further ones are not shown."""


class Seen(msgspec.Struct):
    """The last report of one broker."""

    broker: BrokerRow
    links: list[LinkRow]
    alerts: list[AlertRow]
    number: int
    at_s: float
    is_complete: bool


class Handoff(msgspec.Struct, frozen=True):
    client: str
    came_from: str
    to: str
    at: float
    duration_ms: float
    moved: int


class Network:
    def __init__(self, id: str) -> None:
        self.id = id
        self.forget()

    def forget(self) -> None:
        self.brokers: dict[str, Seen] = {}
        self.clients: dict[str, tuple[str, ClientRow]] = {}
        """For each client: its broker, and what that broker reported."""
        self.handoffs: deque[Handoff] = deque(maxlen=HANDOFFS_KEPT)
        self.new_handoffs: list[Handoff] = []
        """Handoffs since the last `take_handoffs` that finished while somebody looked."""
        self._looked_at = time.time()
        self._last_handoff: dict[str, float] = {}
        """When the last reported handoff of each broker finished."""
        self.changed: dict[str, None] = {}
        """Clients that changed since `take_changes`."""
        self._down_since: dict[str, float] = {}

    def take(self, origin: str, report: Report) -> bool:
        """Add a broker's report; return False if an earlier report was lost."""
        before = self.brokers.get(origin)
        is_next = report.is_first or (before is not None and report.number == before.number + 1)
        if report.is_first:
            for client in [one for one, (broker, _) in self.clients.items() if broker == origin]:
                del self.clients[client]
                self.changed[client] = None
            self.handoffs = deque((one for one in self.handoffs if one.to != origin), HANDOFFS_KEPT)
        for row in report.clients:
            if row.id in self.clients or len(self.clients) < CLIENTS_MAX:
                self.clients[row.id] = origin, row
                self.changed[row.id] = None
        for client in report.gone:
            # The broker where the client is now may have reported first.
            if client in self.clients and self.clients[client][0] == origin:
                del self.clients[client]
                self.changed[client] = None
        last = self._last_handoff.get(origin, 0.0)
        for one in report.handoffs:
            handoff = Handoff(one.client, one.came_from, origin, one.at, one.duration_ms, one.moved)
            self.handoffs.append(handoff)
            is_new = one.at > max(last, self._looked_at - CLOCK_ERROR_S)
            if is_new and len(self.new_handoffs) < HANDOFFS_KEPT:
                self.new_handoffs.append(handoff)
            self._last_handoff[origin] = max(one.at, self._last_handoff.get(origin, 0.0))
        was_complete = before is not None and before.is_complete and not report.is_first
        is_complete = is_next and (was_complete or not report.has_more)
        now_s = time.monotonic()
        self.brokers[origin] = Seen(
            report.broker, report.links, report.alerts, report.number, now_s, is_complete
        )
        return is_next

    def take_changes(self) -> dict[str, None]:
        changed, self.changed = self.changed, {}
        return changed

    def take_handoffs(self) -> list[Handoff]:
        new, self.new_handoffs = self.new_handoffs, []
        return new

    # --- as the API tells it ---

    def is_up(self, broker: str) -> bool:
        seen = self.brokers.get(broker)
        return seen is not None and time.monotonic() - seen.at_s < SILENT_S

    def told(self, members: Mapping[str, bool]) -> dict[str, object]:
        """Return the network: its brokers, links, figures and alerts. `members` are the other brokers."""
        names = sorted({self.id, *members, *self.brokers})
        links = self.links()
        return {
            "served_by": self.id,
            "time": time.time(),
            "brokers": [self.broker(name) for name in names],
            "links": links,
            "figures": self.figures(),
            "alerts": self._alerts(names, links),
        }

    def broker(self, name: str) -> dict[str, object]:
        seen = self.brokers.get(name)
        if seen is None:
            return {"id": name, "up": False, **EMPTY}
        row = seen.broker
        return {
            "id": name,
            "up": self.is_up(name),
            "lat": row.latitude,
            "lon": row.longitude,
            "version": row.version,
            "uptime_s": row.uptime_s,
            "connections": row.connections,
            "sessions": row.sessions,
            "attached": row.attached,
            "subscriptions": row.subscriptions,
            "queued": row.queued,
            "queued_bytes": row.queued_bytes,
            "memory_bytes": row.memory_bytes,
            "cpu": row.cpu,
            "journal": row.journal,
            "role": row.role,
            "site": row.site,
            "lag": row.lag,
            "rates": {
                "received_per_s": row.received_per_s,
                "delivered_per_s": row.delivered_per_s,
                "handoffs_per_s": row.handoffs_per_s,
            },
            "latency_ms": _told(row.latency_ms),
            "handoff_ms": _told(row.handoff_ms),
        }

    def links(self) -> list[dict[str, object]]:
        """List each link once: it is up if all ends that report say so."""
        found: dict[tuple[str, str], list[tuple[str, LinkRow]]] = {}
        for name, seen in self.brokers.items():
            for link in seen.links:
                first, second = sorted((name, link.peer))
                found.setdefault((first, second), []).append((name, link))
        links: list[dict[str, object]] = []
        for (first, second), ends in sorted(found.items()):
            heard = [end for end in ends if self.is_up(end[0])] or ends
            is_up = all(link.is_up for _, link in heard)
            why = "; ".join(
                f"{name}: {link.why or 'not connected'}" for name, link in heard if not link.is_up
            )
            kept = sum(link.kept_bytes for _, link in ends)
            links.append({"a": first, "b": second, "up": is_up, "why": why, "kept_bytes": kept})
        return links

    def figures(self) -> dict[str, object]:
        rows = [seen.broker for seen in self.brokers.values()]
        given_up: dict[str, int] = {}
        for row in rows:
            for reason, count in row.given_up.items():
                given_up[reason] = given_up.get(reason, 0) + count
        delivered, queued = sum(row.delivered for row in rows), sum(row.queued for row in rows)
        lost = sum(given_up.values())
        live = [seen.broker for name, seen in self.brokers.items() if self.is_up(name)]
        recent = time.time() - RECENT_S
        # Nobody waited for sessions that moved while their client was away, for example when a broker was
        # drained.
        durations = [one.duration_ms for one in self.handoffs if one.at >= recent and one.duration_ms]
        return {
            "owed": delivered + queued + lost,
            "delivered": delivered,
            "queued": queued,
            "lost": lost,
            "given_up": given_up,
            "repeated": sum(row.repeated for row in rows),
            "received_per_s": round(sum(row.received_per_s for row in live), 1),
            "delivered_per_s": round(sum(row.delivered_per_s for row in live), 1),
            "handoffs_per_s": round(sum(row.handoffs_per_s for row in live), 1),
            "handoff_ms": _told(percentiles(durations)),
        }

    def _alerts(self, names: list[str], links: list[dict[str, object]]) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        down: dict[str, tuple[str, str, str]] = {}
        for name in names:
            if not self.is_up(name):
                down[f"broker {name}"] = ("error", "broker_down", f"broker {name} does not answer")
        for link in links:
            if not link["up"]:
                what = f"link {link['a']}-{link['b']}"
                down[what] = ("warning", "link_down", f"{what} is down: {link['why']}")
        self._down_since = {what: self._down_since.get(what, time.time()) for what in down}
        for what, (level, kind, text) in down.items():
            found.append({"level": level, "kind": kind, "text": text, "since": self._down_since[what]})
        for name, seen in self.brokers.items():
            found += [
                {
                    "level": one.level,
                    "kind": one.kind,
                    "text": f"broker {name}: {one.text}",
                    "since": one.since,
                }
                for one in seen.alerts
            ]
        return found

    def client(self, client: str) -> dict[str, object] | None:
        found = self.clients.get(client)
        if found is None:
            return None
        broker, row = found
        return {
            "id": row.id,
            "broker": broker,
            "attached": row.attached,
            "queued": row.queued,
            "lat": row.latitude,
            "lon": row.longitude,
            "predicted": row.predicted,
        }

    def last_handoffs(self, limit: int) -> Iterator[Handoff]:
        """List the last handoffs, the newest first."""
        yield from sorted(self.handoffs, key=lambda one: -one.at)[:limit]


def handoff_told(one: Handoff) -> dict[str, object]:
    return {
        "client": one.client,
        "from": one.came_from,
        "to": one.to,
        "at": one.at,
        "duration_ms": one.duration_ms,
        "moved": one.moved,
    }


def _told(value: Percentiles | None) -> dict[str, float] | None:
    return None if value is None else {"p50": value.p50, "p99": value.p99}


EMPTY: dict[str, object] = {
    "lat": None, "lon": None, "version": "", "uptime_s": 0, "connections": 0, "sessions": 0, "attached": 0,
    "subscriptions": 0, "queued": 0, "queued_bytes": 0, "memory_bytes": 0, "cpu": 0, "journal": "unknown",
    "role": "single", "site": "", "lag": 0, "latency_ms": None, "handoff_ms": None,
    "rates": {"received_per_s": 0, "delivered_per_s": 0, "handoffs_per_s": 0},
}  # fmt: skip
"""The figures of a broker that has never reported."""
