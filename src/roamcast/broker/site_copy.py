"""A follower's copy of a site: it steps entries some time after they were written and acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import Entry, decode_entry
from roamcast.protocol.records import Row

AMachine = TypeVar("AMachine", bound=AnyMachine)


class SiteCopy(Generic[AMachine]):
    def __init__(self, machine: AMachine | None, last: int, make: Callable[[Entry], AMachine]) -> None:
        """`machine` has stepped all entries up to `last`; None: there were none, and `make` makes it."""
        self.machine = machine
        self._make = make
        self._stepped = last
        self._behind: deque[bytes] = deque()
        """Entries that are written but not yet stepped."""
        self._settled: tuple[int, Mapping[str, int]] | None = None
        """What peers have acknowledged, and the entry that must be stepped before."""

    @property
    def behind(self) -> int:
        """Number of entries that are not stepped yet."""
        return len(self._behind)

    def take(self, entries: Iterable[bytes]) -> None:
        self._behind += entries

    def learn_settled(self, settled: Mapping[str, int], last: int) -> None:
        """Delete what peers have acknowledged, as reported by the leader when its last entry was `last`.

        A copy that is behind must wait: until then its links may have been connected again, by peers that
        reported less.
        """
        if self._settled is None:
            self._settled = last, settled
            self._settle()

    def _settle(self) -> None:
        if self._settled is None or self._stepped < self._settled[0] or self.machine is None:
            return
        for peer, number in self._settled[1].items():
            end = self.machine.links.ends.get(peer)
            if end is not None:
                end.learn_settled(number)
        self._settled = None

    def step(self) -> tuple[int, list[Row]]:
        """Step the next entry; return its number, and the rows that it recorded."""
        entry = decode_entry(self._behind.popleft())
        if self.machine is None:
            self.machine = self._make(entry)
        rows = self.machine.step(entry.now, entry.inputs).records
        self._stepped += 1
        if self._settled is not None:
            self._settle()
        return self._stepped, rows
