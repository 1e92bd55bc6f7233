"""Entries whose filter depends on a client's own state: the location-dependent filter table.

(Fiege et al., appendix B.1.) An entry is kept as it is, with its variables; the matching table gets an
instance of it, a plain filter. For a local owner the instance is exact. For a peer it is wide enough for
every place where the client may be when a notification sent now arrives. That depends on the distance to the
client, so each router on the way makes its own instance. When the client moves, instances are exchanged, and
nothing else of the routing tables changes.

| Fiege et al., figs. 12 and 13 | here |
| --- | --- |
| 12, lines 1 to 6: a subscription of a client, with step 0 | `add`, exact for a local owner |
| 12, lines 8 to 13: the client moves from x to y | `locate`, `_exchange` |
| 12, lines 15 to 19, and 13, lines 19 to 22: an unsubscription | `remove` |
| 13, lines 1 to 7: a subscription from a neighbour | `learn`, `add` |
| 13, lines 2 and 10: dist := dist + δ | `learn`, and `measure` when δ changes |
| 13, lines 3 and 12: step := ⌈dist / Δ⌉ | `_make`; the rule is `Rule.steps` in `location/ploc.py` |
| 13, lines 9 to 17: news of a move from a neighbour | `learn`, `_exchange` |

The router decides what neighbours are told. The filter travels with the news (the figures leave it out), one
message serves all filters (the figures send inside the loop), and it is sent only where it changes something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import msgspec

from roamcast.filters.filter import Filter
from roamcast.filters.own import owner_of, widest
from roamcast.protocol.whereabouts import Whereabouts
from roamcast.routing.matching import Interface, MatchingTable
from roamcast.state import State


class Instances(Protocol):
    """Makes instances of filters, by rules of change that the core does not know."""

    def instance(self, filter: Filter, whereabouts: Whereabouts, exact: bool) -> Filter:
        """Return the plain filter: for the client's current state, or for any that it may have by now."""

    def is_same(self, filters: Iterable[Filter], old: Whereabouts, new: Whereabouts) -> bool:
        """True if the wide instances of these filters are the same here and at every broker beyond."""


class Wide:
    """Rule for unknown variables: every value is possible."""

    __state__ = State("wide")

    def instance(self, filter: Filter, whereabouts: Whereabouts, exact: bool) -> Filter:
        return widest(filter)

    def is_same(self, filters: Iterable[Filter], old: Whereabouts, new: Whereabouts) -> bool:
        return True


class Dependents:
    __state__ = State(
        "dependents",
        saved=("_table", "_instances", "_known", "_heard", "_here", "_entries", "_made", "_uses", "_unused"),
    )  # fmt: skip

    def __init__(self, table: MatchingTable, instances: Instances) -> None:
        self._table = table
        self._instances = instances
        self._known: dict[str, Whereabouts] = {}
        self._heard: dict[str, tuple[str, float]] = {}
        """Client to the peer that reported it, and the distance of that peer from the client."""
        self._here: dict[str, None] = {}
        """Clients whose session is here, where the state is authoritative."""
        self._entries: dict[str, dict[Filter, dict[Interface, int]]] = {}
        """Client to its filters, with their interfaces, reference-counted."""
        self._made: dict[tuple[Filter, bool], Filter] = {}
        """Instances in the table, by filter and whether for local owners."""
        self._uses: Counter[str] = Counter()
        self._unused: dict[str, None] = {}

    def __bool__(self) -> bool:
        """True if any entry depends on a client."""
        return bool(self._known)

    # --- entries ---

    def add(self, filter: Filter, interface: Interface) -> None:
        interfaces = self._entries.setdefault(owner_of(filter), {}).setdefault(filter, {})
        interfaces[interface] = interfaces.get(interface, 0) + 1
        if interfaces[interface] == 1:
            self._table.add(self._instance(filter, interface), interface)

    def remove(self, filter: Filter, interface: Interface) -> None:
        client = owner_of(filter)
        filters = self._entries[client]
        interfaces = filters[filter]
        interfaces[interface] -= 1
        if interfaces[interface]:
            return
        self._table.remove(self._instance(filter, interface), interface)
        del interfaces[interface]
        if not interfaces:
            del filters[filter]
            for exact in (True, False):
                self._made.pop((filter, exact), None)
        if not filters:
            del self._entries[client]

    def _instance(self, filter: Filter, interface: Interface) -> Filter:
        exact = not isinstance(interface, str)
        made = self._made.get((filter, exact))
        if made is None:
            made = self._made[filter, exact] = self._make(filter, exact)
        return made

    def _make(self, filter: Filter, exact: bool) -> Filter:
        whereabouts = self._known.get(owner_of(filter))
        return widest(filter) if whereabouts is None else self._instances.instance(filter, whereabouts, exact)

    def local(self, filter: Filter) -> Filter:
        """Return what a filter of a local owner matches at present."""
        return self._made.get((filter, True), filter)

    # --- whereabouts ---

    def known(self, client: str) -> Whereabouts | None:
        return self._known.get(client)

    def heard_from(self, client: str) -> str | None:
        """Return the peer that reported the client; None if none did."""
        heard = self._heard.get(client)
        return None if heard is None else heard[0]

    def locate(self, whereabouts: Whereabouts) -> bool:
        """Set the state of a client whose session is here; returns whether brokers beyond must be told."""
        client = whereabouts.client
        if client not in self._here:
            self._here[client] = None
            self.use(client, +1)
        self._heard.pop(client, None)
        return self._exchange(whereabouts)

    def depart(self, client: str) -> None:
        """Note that the client's session is no longer here."""
        if client in self._here:
            del self._here[client]
            self.use(client, -1)

    def learn(self, whereabouts: Whereabouts, peer: str, round_trip_s: float) -> bool:
        """Apply a peer's news, unless outdated; returns whether brokers beyond must be told."""
        client = whereabouts.client
        known = self._known.get(client)
        distance_s = whereabouts.distance_s + round_trip_s
        if known is not None:
            if client in self._here or whereabouts.number < known.number:
                return False
            if whereabouts.number == known.number and distance_s <= known.distance_s:
                # The same news on another way; messages sent on the longer way may still arrive.
                return False
        # Brokers behind the former peer are further away now, though this broker may not be.
        is_elsewhere = self.heard_from(client) != peer
        self._heard[client] = (peer, whereabouts.distance_s)
        changes = self._exchange(msgspec.structs.replace(whereabouts, distance_s=distance_s))
        return changes or is_elsewhere

    def hear_of(self, whereabouts: Whereabouts) -> bool:
        """Apply news of a client that does not move now: its distance is unchanged."""
        known = self._known.get(whereabouts.client)
        if known is not None and whereabouts.number <= known.number:
            return False
        distance_s = 0.0 if known is None else known.distance_s
        return self._exchange(msgspec.structs.replace(whereabouts, distance_s=distance_s))

    def measure(self, peer: str, round_trip_s: float) -> list[str]:
        """Set the round trip to a peer; returns the clients behind it that this affects."""
        changed = []
        for client, (heard_from, distance_s) in list(self._heard.items()):
            known = self._known[client]
            moved = msgspec.structs.replace(known, distance_s=distance_s + round_trip_s)
            if heard_from == peer and moved != known and self._exchange(moved):
                changed.append(client)
        return changed

    def _exchange(self, new: Whereabouts) -> bool:
        """Replace the instances by those for the new state."""
        client = new.client
        old = self._known.get(client)
        filters = self._entries.get(client, {})
        self._known[client] = new
        is_same = old is not None and self._instances.is_same(filters, old, new)
        for filter, interfaces in filters.items():
            self._exchange_instance(filter, interfaces, exact=True)
            if not is_same:
                self._exchange_instance(filter, interfaces, exact=False)
        return not is_same

    def _exchange_instance(self, filter: Filter, interfaces: dict[Interface, int], exact: bool) -> None:
        old = self._made.get((filter, exact))
        if old is None:
            return
        new = self._made[filter, exact] = self._make(filter, exact)
        if new is not old:
            for interface in interfaces:
                if isinstance(interface, str) is not exact:
                    # Added before the other is removed: a route in both is never missing.
                    self._table.add(new, interface)
                    self._table.remove(old, interface)

    # --- when state can be forgotten ---

    def use(self, client: str, change: int) -> None:
        """Count the uses of a client's state here."""
        self._uses[client] += change
        if not self._uses[client]:
            del self._uses[client]
            self._unused[client] = None

    def forget_unused(self) -> None:
        """Forget unused state; called after a change is complete, because state given up may be needed again
        until then."""
        if self._unused:
            for client in self._unused:
                if client not in self._uses:
                    self._known.pop(client, None)
                    self._heard.pop(client, None)
            self._unused = {}
