"""The first approach to brokers that move (Amozarrain chapter 3): every migration forces those below it.

A broker that migrates answers only for the subscribers that are connected to itself. Its new parent sends it
the whole routing table (BTAB), which replaces its own but for these; then it makes its neighbours migrate too
(FMIG), and so on down the tree. The age of an entry is unknown. So a subscriber that left while the network
was partitioned comes back with the tables of the other part, and stays as a phantom (section 3.5); `mft`
solves this.

| Amozarrain chapter 3 | here |
| --- | --- |
| 3.1, lines 1 to 10: SUB, UNS | `_on_sub`, `_on_uns` |
| 3.1, lines 11 to 21: PUB | `_on_pub` |
| 3.2, lines 1 to 13: MIG, FILTERS | `_on_mig` |
| 3.2, lines 14 to 21: sendQueuedMessages | `_flush` |
| 3.2, lines 22 to 27: REP | `_on_rep` |
| a broker migrates | `_migrate` |
| 3.3, lines 1 to 12: BMIG | `_on_bmig` |
| 3.3, lines 13 to 25: BTAB | `_on_btab` |
| 3.3, lines 26, 27: FMIG | `_on_fmig` |

Implemented as published, except for evident mistakes: a local subscriber is one whose interface is itself,
also in algorithm 3.3 (its C_i was given up in section 3.3); a queue is sent in order (3.2, line 18, puts the
first event behind the others); and the two differences of 3.3, lines 18 to 21, are those to what was there
before.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from roamcast.filters.filter import Filter
from roamcast.mobility.moving.mobile import (
    LOCAL,
    Filters,
    Known,
    Mig,
    MobileProtocol,
    Sub,
    Uns,
    register_mobile,
)
from roamcast.protocol.messages import Cause, Message
from roamcast.state import State


class BmigOfLocals(Message, frozen=True):
    """BMIG: these subscribers have moved together with their broker."""

    subscribers: tuple[str, ...]
    broker: str
    cause: ClassVar[Cause] = "handoff"


class Btab(Message, frozen=True):
    """Routing table of the sender: subscriber and filter of each entry."""

    table: tuple[tuple[str, Filter], ...]
    cause: ClassVar[Cause] = "handoff"

    @property
    def weight(self) -> int:
        return len(self.table) or 1


class Fmig(Message, frozen=True):
    """Asks the receiver to migrate to the sender."""

    cause: ClassVar[Cause] = "handoff"


@register_mobile
class RecursiveMigration(MobileProtocol):
    name = "recursive_migration"
    summary = "a migration forces those below it; tables are sent whole; subscribers may stay as phantoms"
    keeps_promises = False

    __state__ = State("recursive-migration")

    def _restore(self) -> None:
        super()._restore()
        self._handlers |= {BmigOfLocals: self._on_bmig, Btab: self._on_btab, Fmig: self._on_fmig}

    def _locals(self) -> tuple[str, ...]:
        return tuple(one for one, known in self.known.items() if known.way == LOCAL and known.filters)

    # --- algorithm 3.1 ---

    def _on_sub(self, way: str, message: Sub) -> None:
        known = self.known.setdefault(message.subscriber, Known(way))
        if message.filter.text not in known.filters:
            self._set_filters(message.subscriber, [*known.filters.values(), message.filter])
            self._point(message.subscriber, way)
        self._send_others(way, message)

    def _on_uns(self, way: str, message: Uns) -> None:
        self._remove(message.subscriber, message.filter)
        self._send_others(way, message)

    def _remove(self, subscriber: str, filter: Filter) -> None:
        known = self.known.get(subscriber)
        if known is not None:
            kept = [one for one in known.filters.values() if one != filter]
            self._set_filters(subscriber, kept)
            if not kept:
                del self.known[subscriber]

    # --- algorithm 3.2 ---

    def _on_mig(self, way: str, message: Mig) -> None:
        subscriber = message.subscriber
        known = self.known.get(subscriber)
        if way == LOCAL:
            self._attach(message)
            filters = tuple(known.filters.values()) if known is not None else ()
            self._out.to_subscribers.append((subscriber, Filters(filters)))
        if known is None:
            return
        if message.broker != self.id and known.way and known.way != way and known.way in self.peers:
            self._out.sends.append((known.way, msgspec.structs.replace(message, had=())))
        self._point(subscriber, way)

    # --- algorithm 3.3 ---

    def _migrate(self, old: str | None, new: str) -> None:
        self._out.sends.append((new, self._bmig()))

    def _bmig(self) -> BmigOfLocals:
        return BmigOfLocals(self._locals(), self.id)

    def _on_bmig(self, way: str, message: BmigOfLocals) -> None:
        is_first = way == message.broker
        if is_first:
            self.peers[way] = None
        old_ways: dict[str, None] = {}
        for subscriber in message.subscribers:
            known = self.known.setdefault(subscriber, Known(way))
            if known.way and known.way != way and known.way in self.peers:
                old_ways[known.way] = None
            self._point(subscriber, way)
        if is_first:
            self._out.sends.append((way, self._btab()))
        self._out.sends += [(old_way, message) for old_way in old_ways]

    def _btab(self) -> Btab:
        return Btab(
            tuple(
                (subscriber, filter)
                for subscriber, known in self.known.items()
                for filter in known.filters.values()
            )
        )

    def _on_btab(self, way: str, message: Btab) -> None:
        theirs: dict[str, dict[str, Filter]] = {}
        self._filters_changed()
        for subscriber, filter in message.table:
            theirs.setdefault(subscriber, {})[filter.text] = filter
        local = self._locals()
        for subscriber in [one for one in self.known if one not in local and one not in theirs]:
            if subscriber not in self.queues:
                del self.known[subscriber]
            else:
                self.known[subscriber].filters = {}
        for subscriber, filters in theirs.items():
            if subscriber not in local:
                self.known.setdefault(subscriber, Known(way))
                self._set_filters(subscriber, filters.values())
                self._point(subscriber, way)
        for subscriber in local:
            mine, known_there = self.known[subscriber].filters, theirs.get(subscriber, {})
            missing = [filter for text, filter in mine.items() if text not in known_there]
            extra = [filter for text, filter in known_there.items() if text not in mine]
            self._out.sends += [(way, Sub(filter, subscriber)) for filter in missing]
            self._out.sends += [(way, Uns(filter, subscriber)) for filter in extra]
        self._out.sends += [(peer, Fmig()) for peer in self.peers if peer != way]

    def _on_fmig(self, way: str, message: Fmig) -> None:
        self._out.sends.append((way, self._bmig()))
