"""Explains what happened to one notification on its way to one client, from the event logs of all brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roamcast.protocol.records import Row

FULL_KINDS = frozenset({"forwarded", "queued", "sent", "acknowledged"})


class Identity(NamedTuple):
    publisher: str
    number: int
    incarnation: int | None = None
    """Incarnation of the publisher; None: the last one that published at least this number."""

    def is_in(self, row: Row) -> bool:
        return _is_about(row, self) and (row.incarnation or 0) == self.incarnation


class Step(NamedTuple):
    """One event."""

    time: float
    node: str
    what: str


class Explanation(NamedTuple):
    steps: list[Step]
    outcome: str
    """The outcome as one line of text."""


def explain(rows: Iterable[Row], client: str, wanted: Identity) -> Explanation:
    """Explain a notification from rows in any order; names as in the logs."""
    wanted, ordered = rows_of(rows, wanted)
    telling = _Telling(client, wanted)
    for row in ordered:
        telling.read(row)
    return Explanation(telling.steps, telling.outcome())


def rows_of(rows: Iterable[Row], wanted: Identity) -> tuple[Identity, list[Row]]:
    """Return the notification with its incarnation, and the rows in the order of time."""
    # A log may hold a row twice, if it was copied; a row is told apart by node and sequence.
    once = {(row.node, row.sequence): row for row in rows if row.sequence is not None}
    if wanted.incarnation is None:
        last = max((row.incarnation or 0 for row in once.values() if _is_about(row, wanted)), default=0)
        wanted = wanted._replace(incarnation=last)
    return wanted, sorted(once.values(), key=lambda row: (row.time, row.node, row.sequence))


def _is_about(row: Row, wanted: Identity) -> bool:
    """Return whether the row is about this number, in any incarnation."""
    if row.publisher != wanted.publisher or row.number is None:
        return False
    return row.number <= wanted.number < row.number + (row.notifications or 1)


class _Telling:
    def __init__(self, client: str, wanted: Identity) -> None:
        self.client = client
        self.wanted = wanted
        self.steps: list[Step] = []
        self._happened: set[str] = set()
        self._is_full = False
        self._dropped = ""

    def read(self, row: Row) -> None:
        self._is_full = self._is_full or row.kind in FULL_KINDS
        if row.client == self.client:
            self._read_of_client(row)
        is_ours = self.wanted.is_in(row)
        if is_ours and row.kind == "published":
            self._tell(row, f"published by {row.publisher} ({_bytes(row)})")
        elif is_ours and row.kind == "forwarded":
            self._tell(row, f"forwarded over the link to {row.peer}")
        elif is_ours and row.client == self.client and row.kind == "acknowledged":
            self._tell(row, "acknowledged by the client")
        elif is_ours and row.client == self.client and row.kind in ("queued", "sent", "delivered", "dropped"):
            why = f": {row.reason}" if row.reason else ""
            self._tell(row, f"{row.kind}{'' if row.kind == 'delivered' else ' at the client’s broker'}{why}")
            self._dropped = (row.reason or "no reason given") if row.kind == "dropped" else self._dropped

    def _read_of_client(self, row: Row) -> None:
        if "published" not in self._happened:
            return
        if row.kind in ("attached", "detached"):
            self._tell(row, f"the client {row.kind}{f' ({row.reason})' if row.reason else ''}")
        elif row.kind == "handoff_finished":
            self._tell(row, f"the client’s session has come from {row.peer}")

    def _tell(self, row: Row, what: str) -> None:
        self._happened.add(row.kind)
        self.steps.append(Step(row.time, row.node, what))

    def outcome(self) -> str:
        happened = self._happened
        if "delivered" in happened or "acknowledged" in happened:
            return "the client has received it"
        if "dropped" in happened:
            return f"it was dropped for this client: {self._dropped}"
        if "sent" in happened:
            return "it was sent to the client, which has not acknowledged it"
        if "published" not in happened:
            return "no log contains it: it was not published, or its logs are missing"
        if not self._is_full:
            return 'it was published; these logs contain no hops; hops need events.level = "full"'
        return "it was published, and nothing was sent to this client: not subscribed, or still on its way"


def _bytes(row: Row) -> str:
    count = row.notifications or 1
    if count == 1:
        return f"{row.size_bytes or 0} bytes"
    return f"in a burst of {count}, {row.size_bytes or 0} bytes"
