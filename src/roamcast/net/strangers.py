"""Connections that have not identified themselves yet ("strangers"): limited in number and time.

Silent connections must not keep out honest clients. So a new connection is accepted as long as another one
can be closed. That one belongs to the address with the most strangers. It is the oldest of its silent
connections, or the oldest of those that send without identifying themselves, whichever kind is more numerous.
So a flood of one kind does not displace connections of the other kind. A connection whose authentication is
in progress stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic

from roamcast.net.complaints import Complaints
from roamcast.net.passwords import network_of

log = logging.getLogger("roamcast.strangers")

Leave = Callable[[str], None]
"""Closes a connection, for this reason."""


class Stranger:
    """One connection, from its first moment until it has identified itself."""

    __slots__ = ("address", "host", "is_asking", "is_handed", "leave", "network", "since_s")

    def __init__(self, host: str, address: str, since_s: float, leave: Leave) -> None:
        self.host, self.address, self.network = host, address, network_of(host)
        self.since_s = since_s
        self.leave = leave
        self.is_handed = False
        """True if another process has handed the connection over."""
        self.is_asking = False
        """True while its identity is being checked."""


SETTLED = Stranger("", "", 0.0, lambda why: None)
"""Stands for all that have identified themselves."""


class _Network:
    """The strangers of one address, in order of arrival."""

    __slots__ = ("silent", "talking")

    def __init__(self) -> None:
        self.silent: dict[Stranger, None] = {}
        """Strangers that have not sent a byte."""
        self.talking: dict[Stranger, None] = {}

    def __len__(self) -> int:
        return len(self.silent) + len(self.talking)

    def first_to_go(self) -> Stranger | None:
        silent = next(iter(self.silent), None)
        if silent is not None and len(self.silent) >= len(self.talking):
            return silent
        return next((one for one in self.talking if not one.is_asking), silent)


class Strangers:
    """All strangers of one or more listeners."""

    def __init__(
        self,
        room: Callable[[], int],
        per_address: Callable[[str], int | None] = lambda host: None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`room` returns the maximum in total, `per_address` the maximum for this address."""
        self._room = room
        self._per_address = per_address
        self._clock = clock
        self._all: dict[Stranger, None] = {}
        self._networks: dict[str, _Network] = {}
        self._complaints = Complaints()
        self.given_way = 0
        """Number of strangers closed to make room for others."""
        self.expired = 0
        """Number of strangers closed because they took too long."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def room(self) -> int:
        """Maximum number in total."""
        return self._room()

    def enter(self, host: str, address: str, leave: Leave) -> Stranger | None:
        """Add a connection; return None if there is no room, because no other can be closed."""
        stranger = Stranger(host, address, self._clock(), leave)
        network = self._networks.get(stranger.network)
        most = self._per_address(host)
        if most is not None and network is not None and len(network) >= most:
            if not self._send_away(stranger.network, f"there are {most} from this address"):
                return None
        elif len(self._all) >= (most := self.room):
            heaviest_first = sorted(self._networks, key=lambda name: -len(self._networks[name]))
            if not any(self._send_away(name, f"there are {most} in all") for name in heaviest_first):
                return None
        self._all[stranger] = None
        network = self._networks.get(stranger.network)  # Another one if the last of its strangers was closed.
        if network is None:
            network = self._networks[stranger.network] = _Network()
        network.silent[stranger] = None
        return stranger

    def spoke(self, stranger: Stranger) -> None:
        """Note that a connection has sent its first byte."""
        if stranger in self._all:
            network = self._networks[stranger.network]
            if network.silent.pop(stranger, stranger) is None:
                network.talking[stranger] = None

    def rename(self, stranger: Stranger, host: str) -> None:
        """Change the host of a connection to the one that its load balancer named."""
        if stranger not in self._all:
            return
        self._leave_network(stranger)
        stranger.host, stranger.network = host, network_of(host)
        self._networks.setdefault(stranger.network, _Network()).talking[stranger] = None

    def settle(self, stranger: Stranger) -> None:
        """Remove a connection that has identified itself or has ended."""
        if stranger in self._all:
            del self._all[stranger]
            self._leave_network(stranger)

    def _leave_network(self, stranger: Stranger) -> None:
        network = self._networks[stranger.network]
        network.silent.pop(stranger, None)
        network.talking.pop(stranger, None)
        if not (network.silent or network.talking):
            del self._networks[stranger.network]

    def expire(self, after_s: float) -> None:
        """Close connections that have taken longer than this."""
        for stranger in list(self._overdue(self._clock() - after_s)):
            self.expired += 1
            self.settle(stranger)
            stranger.leave(f"it did not identify itself within {after_s:g} s")

    def _overdue(self, before_s: float) -> Iterator[Stranger]:
        for stranger in self._all:
            if stranger.since_s > before_s:
                return
            if not stranger.is_asking:
                yield stranger

    def _send_away(self, network: str, why: str) -> bool:
        """Close one stranger of this address; return False if there is none to close."""
        stranger = self._networks[network].first_to_go()
        if stranger is None:
            return False
        self.given_way += 1
        self.settle(stranger)
        if self._complaints.is_due(network, "gives way"):
            log.warning("%s: closing unidentified connections for new ones: %s", network, why)
        stranger.leave(f"closed for a new connection before it identified itself: {why}")
        return True
