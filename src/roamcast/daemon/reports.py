"""Messages between brokers for operators: figures, links, changed clients, finished handoffs.

A report travels as news (`broker/news.py`), once a second while somebody looks at the network. Fields are
added at the end, with defaults: brokers of different versions read each other's reports.
"""

from __future__ import annotations

from typing import Any

import msgspec

from roamcast.errors import InputError

CLIENT_BYTES_MAX = 1024
"""Longer client ids are cut to this size in reports."""


class Percentiles(msgspec.Struct, frozen=True, array_like=True):
    p50: float
    p99: float


class ClientRow(msgspec.Struct, frozen=True, array_like=True):
    """One session, at the broker that holds it."""

    id: str
    attached: bool
    queued: int
    latitude: float | None = None
    longitude: float | None = None
    predicted: tuple[str, ...] = ()


class LinkRow(msgspec.Struct, frozen=True, array_like=True):
    """One end of a link."""

    peer: str
    is_up: bool
    why: str = ""
    kept_bytes: int = 0


class HandoffRow(msgspec.Struct, frozen=True, array_like=True):
    """A client whose session came to the broker that reports."""

    client: str
    came_from: str
    at: float
    duration_ms: float
    moved: int


class AlertRow(msgspec.Struct, frozen=True, array_like=True):
    """A condition of the reporting broker that an operator should know."""

    level: str
    kind: str
    text: str
    since: float


class BrokerRow(msgspec.Struct, frozen=True, array_like=True):
    """A broker's own figures; counts are since its process began."""

    version: str
    uptime_s: float
    latitude: float | None
    longitude: float | None
    connections: int
    sessions: int
    attached: int
    queued: int
    queued_bytes: int
    memory_bytes: int
    cpu: float
    """CPU use since the last report, as a share of one core."""
    journal: str
    received: int
    delivered: int
    repeated: int
    given_up: dict[str, int]
    """Notifications given up, by reason."""
    received_per_s: float
    delivered_per_s: float
    handoffs_per_s: float
    handoff_ms: Percentiles | None
    latency_ms: Percentiles | None = None
    role: str = "single"
    """"leader" where the site has replicas: followers do not report."""
    lag: int = 0
    """Number of journal entries that the slowest follower has not acknowledged."""
    subscriptions: int = 0
    site: str = ""
    """The site of which this broker is a worker."""


class Watch(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """An operator watches the network from the origin, for this many more seconds."""

    generation: int
    """A new number asks every broker to report all its clients."""
    seconds: float


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    number: int
    """Rises by one, so that a gap is noticed."""
    broker: BrokerRow
    links: list[LinkRow]
    clients: list[ClientRow]
    gone: list[str]
    handoffs: list[HandoffRow]
    alerts: list[AlertRow]
    is_first: bool = False
    """True for the first report: earlier reports no longer count."""
    has_more: bool = False
    """More clients follow in the next report."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A question or an order for one broker."""

    number: int
    command: str
    arguments: dict[str, str]


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The answer."""

    number: int
    values: dict[str, Any]
    error: str = ""
    has_moved: bool = False
    """True if the session is not at that broker any more."""


Body = Watch | Report | Ask | Told

_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)


def encode_body(body: Body) -> bytes:
    return _encode(body)


def decode_body(data: bytes) -> Body:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"news that cannot be read: {error}") from None


def percentiles(values: list[float]) -> Percentiles | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return Percentiles(round(ordered[last // 2], 3), round(ordered[round(last * 0.99)], 3))
