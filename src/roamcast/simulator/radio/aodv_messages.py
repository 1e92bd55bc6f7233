"""What AODV nodes say to each other (RFC 3561, section 5), and how long it is on the air."""

from __future__ import annotations

from typing import Any, NamedTuple


class AodvHello(NamedTuple):
    """I am here (6.9): an RREP about its sender, to be heard by neighbours only."""

    sequence: int

    @property
    def payload_bytes(self) -> int:
        return 20


class Rreq(NamedTuple):
    """Who knows a way to `destination`? Broadcast on and on."""

    number: int
    """With `origin`, what tells this request from others."""
    destination: int
    destination_sequence: int | None
    """A way older than this is of no use; None: none was ever known."""
    origin: int
    origin_sequence: int
    hops: int
    ttl: int

    @property
    def payload_bytes(self) -> int:
        return 24


class Rrep(NamedTuple):
    """There is a way to `destination`; this goes back to `origin`."""

    destination: int
    destination_sequence: int
    origin: int
    hops: int
    lifetime_s: float

    @property
    def payload_bytes(self) -> int:
        return 20


class Rerr(NamedTuple):
    """These destinations, with sequence numbers, cannot be reached through the sender any more."""

    unreachable: tuple[tuple[int, int], ...]

    @property
    def payload_bytes(self) -> int:
        return 4 + 8 * len(self.unreachable)


class Data(NamedTuple):
    """What all this is for."""

    origin: int
    destination: int
    hops: int
    content: Any
    content_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Origin, destination, hops left and an identification, as in the shortest of headers."""
        return 8 + self.content_bytes


AodvMessage = AodvHello | Rreq | Rrep | Rerr | Data
