"""The rows of the event log: the only contract between writers and readers of a run.

Every driver writes only these rows, and the pipeline reads only them. The schema is
versioned: a reader refuses a newer one and reads older ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

SCHEMA_VERSION = 2
"""Since version 2, `acknowledged` names the notifications, and clients write their reasons (see below)."""

KINDS = (
    "started", "crashed", "link_up", "link_down",
    "attached", "detached", "moved", "located", "handoff_started", "handoff_finished",
    "subscribed", "unsubscribed", "advertised", "unadvertised",
    "published", "forwarded", "control", "queued", "sent", "delivered", "acknowledged", "dropped",
)  # fmt: skip
"""Kinds of rows. `delivered` is written by the client's side, the others by brokers, except `moved` (a client
went to a broker, or away from one), which clients write alone, and `attached`, which both do: the broker when
the session is there, the client when it hears of it. `crashed` and `started` are written by the process that
runs the broker: a broker cannot report that it is down. `subscribed` and its like carry the reason "issued"
or "settled", or `HELD`. `located`: from now on the client's own state (its location) is what `attributes`
say: "step" (at once) or "late" (when all knew); or why it was refused.
"""

FREQUENT_KINDS = frozenset({"forwarded", "control", "queued", "sent"})
"""Kinds that are left out when a run keeps counters only: no verdict depends on them."""

REPEATED, RETAINED, SHARED = "repeated", "retained", "shared"
"""Reasons of a `delivered` row that is exempt from the promise to deliver once and in order: the broker
marked the notification as sent before (QoS 1), it was retained, or the client is a member of a group."""
UNPROMISED, NO_LOCAL = "QoS 0", "no local"
"""Reasons of a `subscribed` row written by a client, besides `SHARED`: notifications that the subscription
excludes, and that may be missing."""

HELD = "held"
"""Reason of a `subscribed` row that a broker writes when it starts, for subscriptions that settled before:
the log may have begun since."""

LIFE_MARK = "@"
"""Separates client and start time in the name of a node: each process of a client is a node, because it
numbers its rows from 1."""


def life_of(client: str, started_ms: int) -> str:
    """Return the node name of a client's process. Names of later processes sort behind."""
    return f"{client}{LIFE_MARK}{started_ms:014d}"


_BURST = ("publisher", "incarnation", "number", "notifications")
_CHANGE = ("client", "filter", "reason")
_PLACE = ("client", "broker")

NEEDED: dict[str, tuple[str, ...]] = {
    "started": (),
    "crashed": (),
    "link_up": ("peer",),
    "link_down": ("peer",),
    "attached": _PLACE,
    "detached": _PLACE,
    "moved": _PLACE,
    "located": ("client",),
    "handoff_started": _PLACE,
    "handoff_finished": _PLACE,
    "subscribed": _CHANGE,
    "unsubscribed": _CHANGE,
    "advertised": _CHANGE,
    "unadvertised": _CHANGE,
    "published": (*_PLACE, *_BURST, "attributes"),
    "forwarded": ("peer", *_BURST, "hops"),
    "control": ("peer", "message", "cause", "hops"),
    "queued": ("client", *_BURST),
    "sent": ("client", *_BURST),
    "delivered": ("client", *_BURST),
    "acknowledged": ("client", "number", "notifications"),
    "dropped": ("reason",),
}
"""Kind to its required fields; a reader puts rows without them aside."""

NOTIFICATIONS_MAX = 1_000_000
"""Maximum of notifications that one row represents."""
NUMBER_BITS = 40
"""Bits of a notification's number: about 10**12 per publisher and incarnation."""

Level = Literal["none", "counters", "full"]
"""What a node records: nothing, what is needed to check deliveries, or every hop, too."""


class Row(NamedTuple):
    """One row, except the name of the run, which belongs to the whole log."""

    sequence: int
    """Position within the node's own log; with the node it identifies the row."""
    time: float
    """Seconds: virtual time in the simulator, Unix time elsewhere."""
    node: str
    kind: str
    client: str | None = None
    broker: str | None = None
    peer: str | None = None
    publisher: str | None = None
    incarnation: int | None = None
    number: int | None = None
    """Number of the notification, or of the first one of a burst."""
    notifications: int | None = None
    """Number of notifications that the row represents."""
    message: str | None = None
    """Type of the message, for `control` and `forwarded`."""
    cause: str | None = None
    hops: int | None = None
    """Number of hops that the row represents."""
    size_bytes: int | None = None
    filter: str | None = None
    attributes: bytes | None = None
    """Canonical msgpack map."""
    reason: str | None = None
    published_at: float | None = None


new_row = tuple.__new__
"""Makes a Row of all its fields, three times faster than the constructor of the class."""

COLUMNS: dict[str, str] = {
    "run": "string",
    "sequence": "int64",
    "time": "float64",
    "node": "string",
    "kind": "string",
    "client": "string",
    "broker": "string",
    "peer": "string",
    "publisher": "string",
    "incarnation": "int64",
    "number": "int64",
    "notifications": "int32",
    "message": "string",
    "cause": "string",
    "hops": "int32",
    "size_bytes": "int64",
    "filter": "string",
    "attributes": "binary",
    "reason": "string",
    "published_at": "float64",
}
"""Column to type, in the order of the file: `run`, then the fields of `Row`."""
