"""Messages between AODV nodes (RFC 3561, section 5), and their airtime."""

from __future__ import annotations

from typing import Any, NamedTuple


class AodvHello(NamedTuple):
    """Hello message (6.9): an RREP about its sender, for neighbours only."""

    sequence: int

    @property
    def payload_bytes(self) -> int:
        return 20


class Rreq(NamedTuple):
    """Request for a route to `destination`, broadcast and forwarded."""

    number: int
    """Identifies the request together with `origin`."""
    destination: int
    destination_sequence: int | None
    """A route older than this is useless; None if none was ever known."""
    origin: int
    origin_sequence: int
    hops: int
    ttl: int

    @property
    def payload_bytes(self) -> int:
        return 24


class Rrep(NamedTuple):
    """Reply that there is a route to `destination`; sent back to `origin`."""

    destination: int
    destination_sequence: int
    origin: int
    hops: int
    lifetime_s: float

    @property
    def payload_bytes(self) -> int:
        return 20


class Rerr(NamedTuple):
    """Error: these destinations, with sequence numbers, cannot be reached through the sender any more."""

    unreachable: tuple[tuple[int, int], ...]

    @property
    def payload_bytes(self) -> int:
        return 4 + 8 * len(self.unreachable)


class Data(NamedTuple):
    """A data packet."""

    origin: int
    destination: int
    hops: int
    content: Any
    content_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Size of origin, destination, hops left and an identification, as in the shortest of headers."""
        return 8 + self.content_bytes


AodvMessage = AodvHello | Rreq | Rrep | Rerr | Data
