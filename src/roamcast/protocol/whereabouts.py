"""Where a client is: the values of the variables that its filters speak of, as brokers tell each other.

A client's location is the first such variable (`myloc`); any other part of its own
state works the same way. Only the holder of the client's session changes them, and
numbers each change, so that of two accounts the newer one is known.
"""

from __future__ import annotations

import msgspec

from roamcast.filters.expression import Value


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The value of one variable."""

    value: Value | None = None
    """None: not known."""
    coming: Value | None = None
    """The value that it takes as soon as every broker that must know does."""
    stay_s: float = 0.0
    """It keeps a value at least this long before it takes a step."""


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """What the holder remembers of how fast a variable changes."""

    changed_at: float
    stays_s: tuple[float, ...] = ()
    """How long it kept its last values."""
    is_late: bool = False
    """Whether it took its value later than the client said, so that the next change seems early."""


class InZone(msgspec.Struct, frozen=True, array_like=True):
    """That a client is in a zone."""

    since: float
    is_told: bool = True
    """Whether others have been told; not before it has been there for long enough."""


class Whereabouts(msgspec.Struct, frozen=True, array_like=True):
    """What a broker knows of a client's variables."""

    client: str
    number: int
    places: dict[str, Place]
    distance_s: float = 0.0
    """How long news from the client's broker takes to here, and a notification back."""
