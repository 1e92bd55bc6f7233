"""Where a client is: the values of the variables that its filters refer to, as exchanged by brokers.

A client's location is the first such variable (`myloc`); any other part of its own state works the
same way. Only the holder of the client's session changes them, and numbers each change, so that the
newer of two reports is known.
"""

from __future__ import annotations

import msgspec

from roamcast.filters.expression import Value


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The value of one variable."""

    value: Value | None = None
    """None if unknown."""
    coming: Value | None = None
    """The next value, which takes effect when all brokers that must know it do."""
    stay_s: float = 0.0
    """Minimum time that the variable keeps a value before a step."""


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """The holder's measurements of how fast a variable changes."""

    changed_at: float
    stays_s: tuple[float, ...] = ()
    """Durations of its last values."""
    is_late: bool = False
    """True if the last change took effect later than the client reported it, so that the next one seems
    early."""


class InZone(msgspec.Struct, frozen=True, array_like=True):
    """Presence of a client in a zone."""

    since: float
    is_told: bool = True
    """True if the entry was published, which happens after the dwell time."""


class Whereabouts(msgspec.Struct, frozen=True, array_like=True):
    """A broker's knowledge of a client's variables."""

    client: str
    number: int
    places: dict[str, Place]
    distance_s: float = 0.0
    """Time in seconds for news from the client's broker to arrive here, plus the time for a notification to
    travel back."""
