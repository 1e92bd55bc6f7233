"""/metrics for Prometheus."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from http import HTTPStatus

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from roamcast import __version__
from roamcast.broker.figures import HANDOFF_BOUNDS_S
from roamcast.daemon.figures import BrokerFigures
from roamcast.daemon.health import memory_bytes
from roamcast.daemon.http import Answer

LONG_S = 0.02
"""CPU time of a page from which on it is shown again for a while: it grows with what the broker stores, and
anyone who reaches the port may ask."""
SHOWN_AGAIN = 9
"""For how many times as long as it took, so that pages take a tenth of a core at most."""


class Metrics(Collector):
    """A collector with a registry of its own."""

    def __init__(self, figures: BrokerFigures) -> None:
        self._figures = figures
        self._page = b""
        self._until_s = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def page(self) -> Answer:
        if time.monotonic() >= self._until_s:
            began_s = time.thread_time()
            self._page = generate_latest(self._registry)
            took_s = time.thread_time() - began_s
            self._until_s = time.monotonic() + SHOWN_AGAIN * took_s if took_s > LONG_S else 0.0
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, self._page)

    def describe(self) -> list[Metric]:
        return []  # Registering names must not read the broker's state, which may not exist yet.

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "roamcast", "This broker.", {"broker": self._figures.engine.site.id, "version": __version__}
        )
        yield from self._messages()
        yield from self._clients()
        yield from self._handoffs()
        yield from self._journal()
        yield from self._links()
        yield from self._tree()
        yield from self._fail_stops()
        yield from process_metrics()

    def _messages(self) -> Iterator[Metric]:
        figures, traffic = self._figures, self._figures.engine.site.endpoint.traffic
        for name, text, counts in (
            ("received", "Messages published by clients of this broker.", traffic.received),
            ("sent", "Messages sent to clients of this broker.", traffic.sent),
        ):
            counter = CounterMetricFamily(f"roamcast_messages_{name}", text, labels=["qos"])
            for qos, count in enumerate(counts):
                counter.add_metric([str(qos)], count)
            yield counter
        queues = figures.queues()
        queued = GaugeMetricFamily(
            "roamcast_messages_queued", "Messages held for clients, by QoS of publishing.", labels=["qos"]
        )
        for qos, count in enumerate(queues.notifications):
            queued.add_metric([str(qos)], count)
        yield queued
        yield gauge("roamcast_queued_bytes", "Bytes of messages held for clients.", queues.size_bytes)
        dropped = CounterMetricFamily(
            "roamcast_messages_dropped", "Messages dropped, by reason.", labels=["qos", "reason"]
        )
        for (reason, qos), count in sorted(figures.dropped().items()):
            dropped.add_metric([str(qos), reason], count)
        yield dropped

    def _clients(self) -> Iterator[Metric]:
        figures, site = self._figures, self._figures.engine.site
        yield gauge("roamcast_connections", "Open connections of clients.", figures.connections())
        handed = "Connections given to the worker that has the client's session."
        yield counter("roamcast_connections_handed_over", handed, figures.handed_over())
        strangers = figures.strangers
        yield gauge(
            "roamcast_strangers", "Connections that have not identified themselves yet.", len(strangers)
        )
        gone = CounterMetricFamily(
            "roamcast_strangers_gone",
            "Unidentified connections that were closed, by reason.",
            labels=["reason"],
        )
        gone.add_metric(["gave way"], strangers.given_way)
        gone.add_metric(["too slow"], strangers.expired)
        yield gone
        waiting = "Unsent bytes for clients that read slowly; shared bytes count once."
        yield gauge("roamcast_buffered_bytes", waiting, figures.buffered.size_bytes)
        yield gauge("roamcast_sessions", "Sessions held here.", site.session_count)
        yield gauge(
            "roamcast_sessions_attached", "Sessions held here whose client is connected.", figures.attached()
        )
        yield gauge("roamcast_subscriptions", "Subscriptions of sessions held here.", figures.subscriptions())
        yield gauge("roamcast_retained_messages", "Retained messages.", site.retained_count)
        refused = "Retained messages refused for lack of room."
        yield counter("roamcast_retained_refused", refused, site.retained_refused)
        yield counter(
            "roamcast_connects",
            "Accepted connections of clients (CONNACK sent).",
            site.endpoint.traffic.welcomed,
        )
        denied = CounterMetricFamily(
            "roamcast_denied",
            "Publishes, deliveries and subscriptions denied by access rules.",
            labels=["action"],
        )
        for action, count in site.endpoint.traffic.denied.items():
            denied.add_metric([action], count)
        yield denied
        refused_clients = CounterMetricFamily(
            "roamcast_clients_refused", "Refused clients, by reason.", labels=["reason"]
        )
        for reason, count in sorted(figures.refused().items()):
            refused_clients.add_metric([reason], count)
        yield refused_clients
        received, sent = figures.client_bytes()
        yield counter("roamcast_client_received_bytes", "Bytes received from clients.", received)
        yield counter("roamcast_client_sent_bytes", "Bytes sent to clients.", sent)
        yield counter("roamcast_failed_logins", "Failed logins.", figures.failed_logins())
        made = "Reports to operators, made while one watches the network."
        yield counter("roamcast_reports", made, figures.reports())
        pages, dropped = figures.pages()
        yield gauge("roamcast_http_streams", "Open pages of the live view.", pages)
        yield counter(
            "roamcast_http_streams_dropped", "Pages of the live view closed because they were slow.", dropped
        )
        yield counter("roamcast_turns", "Turns of the broker.", figures.engine.turns)
        yield gauge("roamcast_uptime_seconds", "Seconds since the process began.", figures.uptime_s)
        if figures.events is not None:
            yield counter("roamcast_events", "Rows written to the event log.", figures.events.written)
            yield counter("roamcast_events_lost", "Rows that could not be written.", figures.events.lost)

    def _handoffs(self) -> Iterator[Metric]:
        site = self._figures.engine.site
        counted = CounterMetricFamily(
            "roamcast_handoffs", "Finished handoffs to this broker, by result.", labels=["protocol", "result"]
        )
        for result, count in sorted(self._figures.handoffs().items()):
            counted.add_metric([site.settings.protocol, result], count)
        yield counted
        buckets, total = [], 0
        bounds = [*map(str, HANDOFF_BOUNDS_S), "+Inf"]
        for bound, count in zip(bounds, site.figures.handoff_classes, strict=True):
            total += count
            buckets.append((bound, float(total)))
        yield HistogramMetricFamily(
            "roamcast_handoff_seconds",
            "Seconds from an attach here until all that was owed to the client has arrived.",
            buckets=buckets,
            sum_value=site.figures.handoff_total_s,
        )

    def _journal(self) -> Iterator[Metric]:
        engine, journal = self._figures.engine, self._figures.engine.journal
        yield gauge("roamcast_journal_promises", "1 if the journal can be written.", engine.is_promising)
        is_accepted = not engine.site.history.refusal
        yield gauge("roamcast_history_accepted", "0 while peers refuse this broker's history.", is_accepted)
        yield gauge("roamcast_epoch", "Number of starts of this broker.", engine.site.history.epoch)
        if journal is None:
            return
        yield counter("roamcast_journal_commits", "Commits of the journal.", journal.commits)
        yield counter("roamcast_journal_bytes", "Bytes written to the journal.", journal.bytes_written)
        yield SummaryMetricFamily(
            "roamcast_journal_sync_seconds",
            "Seconds spent in syncs of the journal.",
            journal.syncs,
            journal.sync_total_s,
        )
        snapshots = CounterMetricFamily("roamcast_snapshots", "Snapshots, by result.", labels=["result"])
        for result, count in engine.snapshots.items():
            snapshots.add_metric([result], count)
        yield snapshots
        yield gauge("roamcast_snapshot_bytes", "Size of the last snapshot.", journal.snapshot_bytes)

    def _links(self) -> Iterator[Metric]:
        is_up = GaugeMetricFamily("roamcast_link_up", "1 if the link is up.", labels=["peer"])
        kept = GaugeMetricFamily(
            "roamcast_link_kept_bytes", "Bytes buffered until the peer has journalled them.", labels=["peer"]
        )
        lost = CounterMetricFamily(
            "roamcast_link_dropped", "QoS 0 messages dropped because the link was full.", labels=["peer"]
        )
        refused = CounterMetricFamily(
            "roamcast_link_refused", "Messages of the peer refused at the border.", labels=["peer", "reason"]
        )
        over = GaugeMetricFamily(
            "roamcast_link_detour", "1 while another broker carries the link.", labels=["peer", "relay"]
        )
        for link in self._figures.links():
            if link.over:
                over.add_metric([link.peer, link.over], 1)
            for reason, count in link.refused.items():
                refused.add_metric([link.peer, reason], count)
            is_up.add_metric([link.peer], link.is_up)
            kept.add_metric([link.peer], link.kept_bytes)
            lost.add_metric([link.peer], link.dropped_fleeting)
        yield from (is_up, over, kept, lost, refused)
        relay = self._figures.relay
        yield gauge("roamcast_relay_links", "Links of other brokers carried by this one.", len(relay.links))
        yield gauge(
            "roamcast_relay_waiting",
            "Brokers that wait here to be connected with another one.",
            relay.waiting,
        )
        yield counter(
            "roamcast_relay_bytes", "Bytes carried for links of other brokers.", relay.carried_bytes
        )

    def _fail_stops(self) -> Iterator[Metric]:
        kept_out = self._figures.kept_out
        yield counter(
            "roamcast_fail_stops",
            "Turns that raised an exception, since the data folder was created.",
            kept_out.fail_stops,
        )
        out = GaugeMetricFamily(
            "roamcast_kept_out", "Clients or peers kept out after fail-stops.", labels=["kind"]
        )
        kinds = [who.kind for who in kept_out.now()]
        for kind in ("client", "peer"):
            out.add_metric([kind], kinds.count(kind))
        yield out

    def _tree(self) -> Iterator[Metric]:
        """Metrics of the tree, only where brokers move."""
        tree, changes = self._figures.engine.site.tree, self._figures.trees.changes
        if tree is None:
            return
        yield InfoMetricFamily(
            "roamcast_tree",
            "The leader of the tree, and the parent of this broker.",
            {"leader": tree.leader, "parent": tree.parent},
        )
        is_leader = tree.leader == self._figures.engine.site.id
        yield gauge("roamcast_tree_is_leader", "1 if this broker leads.", is_leader)
        yield gauge("roamcast_tree_hops", "Hops to the leader.", tree.hops)
        yield gauge("roamcast_tree_children", "Children of this broker.", len(tree.children))
        changed = CounterMetricFamily(
            "roamcast_tree_changes", "Changes of leader, parent or children by the election.", labels=["what"]
        )
        for what, count in changes.items():
            changed.add_metric([what], count)
        yield changed


def process_metrics() -> Iterator[Metric]:
    """Metrics of the process, with Prometheus's usual names."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = "User and system CPU time spent in seconds."
    yield counter("process_cpu_seconds", cpu, used.ru_utime + used.ru_stime)
    yield gauge("process_resident_memory_bytes", "Resident memory size in bytes.", memory_bytes())
    if os.path.isdir("/proc/self/fd"):
        open_files = len(os.listdir("/proc/self/fd"))
        yield gauge("process_open_fds", "Number of open file descriptors.", open_files)
    yield gauge("process_max_fds", "Highest number of them.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)
