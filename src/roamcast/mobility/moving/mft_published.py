"""MFT-PubSub to the letter (Amozarrain chapter 4, algorithms 4.1 to 4.4, on 3.1 and 3.2).

Each method names the lines that it implements. Newer means a higher timestamp, or the same and fewer hops.
Rules that break something, each with a story in tests/transcripts (`mft_published_…`) or a test:

- 4.1, lines 1, 7 and 13, compare h, and lines 2, 8 and 14 store h + 1: a message is newer than itself. A
  broker that receives it again, after a migration, forwards it to everyone again (test_mft.py).
- 4.1, lines 1, 7 and 13: older messages are ignored. A broker that knows more does not answer, and the others
  stay wrong (`return`).
- 4.1, line 3: a filter that is known keeps its way. A subscriber's filters may lead to different places
  (`two_ways`).
- 4.2, line 4, and 4.3, line 25, go through the routing table. Nobody is told of a subscriber that has left,
  and it stays as a phantom (`phantom`).
- 4.3, line 7, sends the old timestamp on. The next broker cannot tell that it has missed something, and
  turns the way round by its hops (test_mft.py).

Followed by the text and not by the letter: 4.3, lines 12 and 16, say h, the hops of BMIG itself; the text
says the hops that are claimed for s. Not followed, as evident mistakes: 3.2, line 18, reverses a queue; and
REP is not sent back at once to its sender (`MobileProtocol._on_rep`), or it would go back and forth forever.
"""

from __future__ import annotations

from typing import Any

import msgspec

from roamcast.mobility.moving.mft import Bmig, Bquery, Bsub, Stamp
from roamcast.mobility.moving.mobile import (
    LOCAL,
    Filters,
    Known,
    Mig,
    MobileProtocol,
    MobileSettings,
    Sub,
    Uns,
    register_mobile,
)
from roamcast.protocol.notification import Burst
from roamcast.state import State


def _lift_1(fields: dict[str, Any]) -> None:
    """Version 1 had no way per row: `_restore` gives each row the way of its subscriber."""
    fields["rows"] = {}


@register_mobile
class MftPublished(MobileProtocol):
    name = "mft:published"
    summary = "as published: old messages are ignored, hops break ties, nothing is stored before an answer"

    __state__ = State("mft-published", 2, saved=("rows",), lifts={1: _lift_1})

    def __init__(self, id: str, settings: MobileSettings | None = None) -> None:
        self.rows: dict[tuple[str, str], str] = {}
        """The document's R: the way of each subscriber and filter. `known` has the filters, T, and one of the
        ways."""
        super().__init__(id, settings)

    def _restore(self) -> None:
        super()._restore()
        self._handlers |= {Bmig: self._on_bmig, Bsub: self._on_bsub, Bquery: self._on_bquery}
        for subscriber, known in self.known.items():
            for text in known.filters:
                self.rows.setdefault((subscriber, text), known.way or LOCAL)

    def _of(self, subscriber: str) -> Known:
        """Return T of the subscriber; unknown subscribers have timestamp 0."""
        return self.known.setdefault(subscriber, Known(None))

    def _is_newer(self, subscriber: str, timestamp: int, hops: int) -> bool:
        """(t, h) > T(s)."""
        known = self._of(subscriber)
        return (timestamp, -hops) > (known.timestamp, -known.hops)

    def _ways(self, subscriber: str) -> list[str]:
        """Every y with (-, y, s) in R."""
        return list(dict.fromkeys(way for (whose, _), way in self.rows.items() if whose == subscriber))

    def _replace(self, subscriber: str, way: str) -> None:
        """Replace (-, -, s) with (-, z, s) in R."""
        for row in [row for row in self.rows if row[0] == subscriber]:
            self.rows[row] = way
        self._point(subscriber, way)

    # --- algorithm 4.1: what subscribers say ---

    def _on_sub(self, way: str, message: Sub) -> None:
        subscriber, filter = message.subscriber, message.filter
        if self._is_newer(subscriber, message.timestamp, message.hops):  # 1
            known = self.known[subscriber]
            known.timestamp, known.hops = message.timestamp, message.hops + 1  # 2
            if filter.text not in known.filters:  # 3, 4
                self._set_filters(subscriber, [*known.filters.values(), filter])
                self.rows[subscriber, filter.text] = way
                self._point(subscriber, way)
            self._send_others(way, msgspec.structs.replace(message, hops=message.hops + 1))  # 5, 6

    def _on_uns(self, way: str, message: Uns) -> None:
        subscriber, filter = message.subscriber, message.filter
        if self._is_newer(subscriber, message.timestamp, message.hops):  # 7
            known = self.known[subscriber]
            known.timestamp, known.hops = message.timestamp, message.hops + 1  # 8
            self.rows.pop((subscriber, filter.text), None)  # 9, 10
            self._set_filters(subscriber, [one for one in known.filters.values() if one != filter])
            self._send_others(way, msgspec.structs.replace(message, hops=message.hops + 1))  # 11, 12

    def _on_mig(self, way: str, message: Mig) -> None:
        subscriber = message.subscriber
        if way == LOCAL:
            self._attach(message)
        if not self._is_newer(subscriber, message.timestamp, message.hops):  # 13
            return
        known = self.known[subscriber]
        known.timestamp, known.hops = message.timestamp, message.hops + 1  # 14
        if way == LOCAL:  # 15 to 19
            self._out.to_subscribers.append((subscriber, Filters(tuple(known.filters.values()))))
        if message.broker != self.id:  # 20 to 23
            onward = [one for one in self._ways(subscriber) if one in self.peers and one != way]
            sent = msgspec.structs.replace(message, hops=message.hops + 1, had=())
            self._out.sends += [(one, sent) for one in onward[:1]]
        self._replace(subscriber, way)  # 24 to 26

    # --- algorithm 4.2: this broker migrates ---

    def _migrate(self, old: str | None, new: str) -> None:
        children: dict[Stamp, None] = {}
        others: dict[Stamp, None] = {}
        for (subscriber, text), way in list(self.rows.items()):  # 4
            known = self.known[subscriber]
            stamp = Stamp(subscriber, known.timestamp, known.hops)
            if way == old:  # 5 to 7
                others[stamp] = None
                self.rows[subscriber, text] = new
                self._point(subscriber, new)
            else:  # 8, 9
                children[stamp] = None
        self._out.sends.append((new, Bmig(tuple(children), tuple(others))))  # 10; 11 and 12 follow

    # --- algorithm 4.3: another broker has migrated ---

    def _on_bmig(self, way: str, message: Bmig) -> None:
        if message.hops == 0:
            self.peers[way] = None
        believed: list[Stamp] = []  # 2
        for stamp in message.children:  # 3
            known = self._of(stamp.subscriber)
            if stamp.timestamp > known.timestamp:  # 4 to 7
                self._out.sends.append((way, Bquery(stamp.subscriber, known.timestamp, known.hops)))
                believed.append(Stamp(stamp.subscriber, known.timestamp, stamp.hops))
            elif stamp.timestamp < known.timestamp or stamp.hops > known.hops:  # 8 to 10, 16 to 18
                self._send_subscriptions(stamp.subscriber, way)
            else:  # 11 to 15
                believed.append(stamp)
                known.hops = message.hops + stamp.hops + 1
        for stamp in message.others:  # 19
            known = self._of(stamp.subscriber)
            if stamp.timestamp > known.timestamp:  # 20, 21
                self._out.sends.append((way, Bquery(stamp.subscriber, known.timestamp, known.hops)))
            elif stamp.timestamp < known.timestamp:  # 22, 23
                self._send_subscriptions(stamp.subscriber, way)
        if message.hops == 0:  # 24 to 26
            named = {stamp.subscriber for stamp in (*message.children, *message.others)}
            for subscriber in dict.fromkeys(whose for whose, _ in self.rows if whose not in named):
                self._send_subscriptions(subscriber, way)
        onward: dict[str, None] = {}  # 27
        for stamp in believed:  # 28 to 31
            ways = self._ways(stamp.subscriber)
            onward |= dict.fromkeys(one for one in ways if one in self.peers and one != way)
            self._replace(stamp.subscriber, way)
        again = Bmig(tuple(believed), (), message.hops + 1)
        self._out.sends += [(one, again) for one in onward]  # 32, 33; 34 and 35 follow

    # --- algorithm 4.4: repairing what differs ---

    def _on_bsub(self, way: str, message: Bsub) -> None:
        subscriber = message.subscriber
        if not self._is_newer(subscriber, message.timestamp, message.hops):  # 1
            return
        known = self.known[subscriber]
        self.rows = {row: one for row, one in self.rows.items() if row[0] != subscriber}  # 2, 3
        self._set_filters(subscriber, message.filters)
        self.rows |= {(subscriber, text): way for text in known.filters}  # 4, 5
        known.timestamp, known.hops = message.timestamp, message.hops + message.distance + 1  # 6
        self._point(subscriber, way)
        self._send_others(way, msgspec.structs.replace(message, distance=message.distance + 1))  # 7 to 9

    def _on_bquery(self, way: str, message: Bquery) -> None:
        known = self._of(message.subscriber)
        if (message.timestamp, -message.hops) < (known.timestamp, -known.hops):  # 10, 11
            self._send_subscriptions(message.subscriber, way)

    def _send_subscriptions(self, subscriber: str, way: str) -> None:
        known = self.known[subscriber]
        filters = tuple(known.filters.values())  # 13 to 15
        self._out.sends.append((way, Bsub(subscriber, filters, known.timestamp, known.hops)))  # 16

    # --- algorithm 3.1: PUB, by the way of each filter that matches ---

    def _on_pub(self, way: str, burst: Burst) -> None:
        attributes = self.attributes_of(burst)
        peers: dict[str, None] = {}
        for subscriber in self.matching(burst):
            filters = self.known[subscriber].filters
            for text in [text for text, filter in filters.items() if filter.matches(attributes)]:  # 13 to 15
                towards = self.rows[subscriber, text]
                if towards == LOCAL:
                    self._deliver(subscriber, burst)
                elif towards not in self.peers:  # 17 to 19
                    self._enqueue(subscriber, burst)
                elif towards != way:  # 20, 21
                    peers[towards] = None
        self._out.sends += [(peer, burst) for peer in peers]
