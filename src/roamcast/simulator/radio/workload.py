"""The networks of table 4.2 of Amozarrain 2021, and their publications."""

from __future__ import annotations

from dataclasses import dataclass

from roamcast.errors import InputError

PUBLISHERS = 2
SIDES_M = {2: 35.0, 4: 45.0, 8: 60.0, 16: 80.0, 32: 110.0}
"""By number of brokers, which is also that of subscribers: the side of the area."""
SPEEDS = (2.0, 4.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True)
class Publishing:
    every_s: float = 1.0
    until_s: float = 500.0
    content_bytes: int = 32
    """Our choice: the thesis gives no size."""
    to_each: bool = False
    """With MFT-PubSub: True to publish a notification for each subscriber, which subscribes to its own name,
    as AODV must (thesis, 4.5.1). Otherwise one notification serves all.
    """


@dataclass(frozen=True)
class Configuration:
    """C2 to C32: stations are numbered publishers first, then subscribers, then brokers."""

    brokers: int

    def __post_init__(self) -> None:
        if self.brokers not in SIDES_M:
            valid = ", ".join(f"C{size}" for size in SIDES_M)
            raise InputError(f"configuration C{self.brokers}: valid are {valid}")

    @property
    def name(self) -> str:
        return f"C{self.brokers}"

    @property
    def side_m(self) -> float:
        return SIDES_M[self.brokers]

    @property
    def stations(self) -> int:
        return PUBLISHERS + 2 * self.brokers

    @property
    def publisher_numbers(self) -> range:
        return range(PUBLISHERS)

    @property
    def subscriber_numbers(self) -> range:
        return range(PUBLISHERS, PUBLISHERS + self.brokers)

    @property
    def broker_numbers(self) -> range:
        return range(PUBLISHERS + self.brokers, self.stations)
