"""The path of a notification to a client as an OpenTelemetry trace, built from the event logs of all brokers.

The logs tell which brokers a notification reached and over which links, when the client's session came from
which broker, and when the client acknowledged. So parents are known, not guessed:

- `publish` is the root, or the child of what the publisher names in the user property `traceparent`;
- a hop over a link is a child of whatever brought the notification to the sender;
- a handoff is a child of whatever brought the notification to the broker that the session came from;
- a delivery is a child of whatever brought the notification to the client's broker.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from roamcast.protocol.notification import decode_attributes
from roamcast.protocol.records import Row
from roamcast.records.explaining import Identity, rows_of

TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1
"""Flag in `traceparent` by which a publisher states that it records its own spans."""
TO_CLIENTS = frozenset({"queued", "sent", "acknowledged"})
"""Kinds of rows that name the receiver of a notification."""
PRODUCER, CONSUMER, INTERNAL = 4, 5, 1
"""Kinds of spans with their numbers in OTLP."""


class Span(NamedTuple):
    name: str
    node: str
    start: float
    end: float
    key: tuple[str, ...]
    parent: tuple[str, ...] | None
    kind: int = INTERNAL


class Trace(NamedTuple):
    identity: Identity
    spans: list[Span]
    trace_id: str
    parent_id: str
    """Parent of the root: the publisher's span, or "" if it named none."""

    def id_of(self, key: tuple[str, ...]) -> str:
        return _digest(self.trace_id, *key)[:16]


def sampled(read: Callable[[], Iterable[Row]]) -> Iterator[Trace]:
    """Yield a trace for each notification that its publisher sampled, with all clients that it was for.

    The rows are read twice, because few of them are about what was sampled.
    """
    found: dict[Identity, list[Row]] = {}
    for row in read():
        if row.kind == "published" and row.publisher is not None and _context_of(row)[2] & SAMPLED:
            found.update((identity, []) for identity in _identities(row))
    handoffs: dict[str, list[Row]] = {}
    for row in read() if found else ():
        if row.client is not None and row.kind in ("handoff_started", "handoff_finished"):
            handoffs.setdefault(row.client, []).append(row)
        elif row.publisher is not None and row.number is not None:
            for identity in _identities(row):
                if identity in found:
                    found[identity].append(row)
    for identity, about in found.items():
        yield _with_all_clients(identity, about, handoffs)


def _identities(row: Row) -> Iterator[Identity]:
    first, publisher = row.number or 0, row.publisher or ""
    for number in range(first, first + (row.notifications or 1)):
        yield Identity(publisher, number, row.incarnation or 0)


def _with_all_clients(identity: Identity, rows: list[Row], handoffs: Mapping[str, list[Row]]) -> Trace:
    clients = dict.fromkeys(row.client for row in rows if row.kind in TO_CLIENTS and row.client is not None)
    traces = [trace_of([*rows, *handoffs.get(client, ())], client, identity) for client in clients or ("",)]
    spans = {span.key: span for trace in traces for span in trace.spans}
    return traces[0]._replace(spans=list(spans.values()))


def trace_of(rows: Iterable[Row], client: str, wanted: Identity) -> Trace:
    """Build a trace from rows in any order; names as in the logs."""
    identity, ordered = rows_of(rows, wanted)
    building = _Building(client, identity)
    for row in ordered:
        building.read(row)
    return building.trace()


class _Building:
    def __init__(self, client: str, identity: Identity) -> None:
        self._client = client
        self._identity = identity
        self._spans: list[Span] = []
        self._brought: dict[str, tuple[str, ...]] = {}
        """By broker: the span that brought the notification to it."""
        self._handoffs: dict[str, float] = {}
        """Unfinished handoffs to brokers, with their start."""
        self._sent: dict[str, float] = {}
        self._is_over = False
        """True once the client has acknowledged: later events are ignored."""
        self._context = ("", "", 0)

    def read(self, row: Row) -> None:
        is_ours = self._identity.is_in(row)
        if is_ours and row.kind == "published":
            self._context = _context_of(row)
            name = f"publish {row.publisher}"
            self._spans.append(Span(name, row.node, row.time, row.time, ("publish",), None, PRODUCER))
            self._brought[row.node] = ("publish",)
        elif is_ours and row.kind == "forwarded" and row.peer is not None:
            key = "link", row.node, row.peer
            self._add(f"link {row.node} to {row.peer}", row.node, row.time, row.time, key)
            self._brought.setdefault(row.peer, key)
        elif row.client == self._client and self._brought:
            self._read_of_client(row, is_ours)

    def _read_of_client(self, row: Row, is_ours: bool) -> None:
        node = row.node
        if row.kind == "handoff_started":
            self._handoffs[node] = row.time
        elif row.kind == "handoff_finished" and row.peer is not None:
            key = "handoff", row.peer, node, str(row.sequence)
            began = self._handoffs.pop(node, row.time)
            if row.peer in self._brought and not self._is_over:
                self._add(f"handoff {row.peer} to {node}", row.peer, began, row.time, key, at=node)
                self._brought[node] = key
        elif is_ours and row.kind == "sent":
            self._sent.setdefault(node, row.time)
        elif is_ours and row.kind == "acknowledged" and node in self._brought:
            began = self._sent.pop(node, row.time)
            last = "deliver", node, self._client
            self._add(f"deliver {self._client}", node, began, row.time, last, kind=CONSUMER)
            self._is_over = True

    def _add(
        self, name: str, source: str, start: float, end: float, key: tuple[str, ...], *,
        at: str = "", kind: int = INTERNAL,
    ) -> None:  # fmt: skip
        """Add a span whose parent brought the notification to the source."""
        parent = self._brought.get(source, ("publish",))
        self._spans.append(Span(name, at or source, start, end, key, parent, kind))

    def trace(self) -> Trace:
        identity = self._identity
        made = _digest(identity.publisher, str(identity.incarnation), str(identity.number))[:32]
        trace_id, parent, _ = self._context
        return Trace(identity, self._spans, trace_id or made, parent)


def _context_of(row: Row) -> tuple[str, str, int]:
    """Return trace, span and flags that the publisher named; logs contain them with `events.attributes =
    true`.
    """
    given = decode_attributes(row.attributes).get("traceparent") if row.attributes else None
    found = TRACEPARENT.fullmatch(given) if isinstance(given, str) else None
    return (found[1], found[2], int(found[3], 16)) if found is not None else ("", "", 0)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def as_otlp(trace: Trace) -> dict[str, Any]:
    """Return OTLP as JSON, as collectors accept it at /v1/traces, or as lines of a file."""
    nodes = dict.fromkeys(span.node for span in trace.spans)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", f"roamcast {node}")]},
                "scopeSpans": [
                    {
                        "scope": {"name": "roamcast"},
                        "spans": [_otlp(trace, span) for span in trace.spans if span.node == node],
                    }
                ],
            }
            for node in nodes
        ]
    }


def _otlp(trace: Trace, span: Span) -> dict[str, Any]:
    identity = trace.identity
    told = {
        "messaging.system": "roamcast",
        "roamcast.broker": span.node,
        "roamcast.publisher": identity.publisher,
        "roamcast.number": str(identity.number),
    }
    return {
        "traceId": trace.trace_id,
        "spanId": trace.id_of(span.key),
        "parentSpanId": trace.id_of(span.parent) if span.parent is not None else trace.parent_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(round(span.start * 1e9)),
        "endTimeUnixNano": str(round(max(span.end, span.start) * 1e9)),
        "attributes": [_attribute(name, value) for name, value in told.items()],
    }


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}
