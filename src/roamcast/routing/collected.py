"""Entries that each interface has subscribed, reference-counted.

An absent client mostly has a few filters, once each. Its entries are stored as one text until other
operations need them: that takes a tenth of the memory of filters in a dictionary. The form depends only on
the entries, not on their history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from roamcast.filters.filter import Filter
from roamcast.filters.selector import read_again
from roamcast.protocol.messages import Entry
from roamcast.routing.matching import Interface, Owner
from roamcast.state import State

SHORT_MAX = 16
"""Maximum of entries stored as one text, because a change goes through all of them."""
END = "\0"
"""Separator behind each filter in such a text. No topic contains it; filters that contain it are not stored
as text."""

_NOTHING: Mapping[Entry, int] = {}


class Collected:
    """Entries by interface, in order of arrival."""

    __state__ = State("collected", saved=("_entries", "_short"), derived=("_owners",))

    def __init__(self) -> None:
        self._entries: dict[Interface, dict[Entry, int]] = {}
        self._short: dict[Owner, str] = {}
        """Entries stored as text, by local owner: a few filters with a count of one, whose subscriber is the
        owner's client."""
        self._restore()

    def _restore(self) -> None:
        self._owners: dict[Interface, Interface] = {one: one for one in (*self._entries, *self._short)}

    @classmethod
    def of_entries(cls, entries: dict[Interface, dict[Entry, int]]) -> Collected:
        """Create from the entries of an older snapshot. They are still being loaded, so the caller calls
        `shorten` afterwards."""
        self = cls()
        self._entries = entries
        return self

    def shorten(self) -> None:
        """Store all entries as text where possible; later changes do that for their own entries."""
        for interface in list(self._entries):
            self._shorten(interface)
        self._restore()

    def __len__(self) -> int:
        """Number of entries of all interfaces."""
        return sum(map(len, self._entries.values())) + sum(one.count(END) for one in self._short.values())

    def __iter__(self) -> Iterator[tuple[Interface, Iterable[Entry]]]:
        """Iterate over the interfaces with their entries."""
        yield from self._entries.items()
        for owner, short in self._short.items():
            yield owner, _read(owner, short)

    def of(self, interface: Interface) -> Mapping[Entry, int]:
        """Return an interface's entries with their counts."""
        short = self._short.get(interface)  # type: ignore[arg-type]
        if short is None:
            return self._entries.get(interface, _NOTHING)
        return dict.fromkeys(_read(interface, short), 1)

    def has(self, interface: Interface, entry: Entry) -> bool:
        short = self._short.get(interface)  # type: ignore[arg-type]
        if short is None:
            return entry in self._entries.get(interface, _NOTHING)
        return entry[1] == interface[0] and f"{END}{entry[0].text}{END}" in END + short

    def holder(self, filters: Iterable[Filter], subscriber: str) -> Interface | None:
        """Return the first interface with one of these filters for the subscriber."""
        entries = [(filter, subscriber) for filter in filters]
        for interface, collected in self._entries.items():
            if any(entry in collected for entry in entries):
                return interface
        for owner in self._short:
            if owner[0] == subscriber and any(self.has(owner, entry) for entry in entries):
                return owner
        return None

    def same(self, interface: Interface) -> Interface:
        """Return the stored object equal to this interface, if it has entries."""
        return self._owners.get(interface, interface)

    def add(self, interface: Interface, entry: Entry) -> int:
        """Add an entry; returns its count."""
        filter, subscriber = entry
        short = self._short.get(interface, "")  # type: ignore[arg-type]
        if short or interface not in self._entries:
            self._owners.setdefault(interface, interface)
            is_own = not isinstance(interface, str) and subscriber == interface[0] and END not in filter.text
            if is_own and short.count(END) < SHORT_MAX and not (short and self.has(interface, entry)):
                self._short[interface] = f"{short}{filter.text}{END}"  # type: ignore[index]
                return 1
            self._lengthen(interface)
        entries = self._entries[interface]
        count = entries[entry] = entries.get(entry, 0) + 1
        return count

    def remove(self, interface: Interface, entry: Entry) -> int:
        """Remove an entry; returns the remaining count. KeyError if there is none."""
        short = self._short.get(interface)  # type: ignore[arg-type]
        if short is not None:
            if not self.has(interface, entry):
                raise KeyError(entry)
            left = (END + short).replace(f"{END}{entry[0].text}{END}", END, 1)[1:]
            if left:
                self._short[interface] = left  # type: ignore[index]
            else:
                del self._short[interface]  # type: ignore[arg-type]
                del self._owners[interface]
            return 0
        entries = self._entries[interface]
        count = entries[entry] = entries[entry] - 1
        if not count:
            del entries[entry]
        if not entries:
            del self._entries[interface], self._owners[interface]
        else:
            self._shorten(interface)
        return count

    def _lengthen(self, interface: Interface) -> None:
        self._entries[interface] = dict(self.of(interface))
        self._short.pop(interface, None)  # type: ignore[arg-type]

    def _shorten(self, interface: Interface) -> None:
        """Store an interface's entries as text, if possible."""
        entries = self._entries[interface]
        if isinstance(interface, str) or len(entries) > SHORT_MAX:
            return
        client = interface[0]
        for (filter, subscriber), count in entries.items():
            if count != 1 or subscriber != client or END in filter.text:
                return
        self._short[interface] = "".join(f"{filter.text}{END}" for filter, _ in entries)
        del self._entries[interface]


def _read(interface: Interface, short: str) -> list[Entry]:
    return [(read_again(text), interface[0]) for text in short.split(END)[:-1]]
