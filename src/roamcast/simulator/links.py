"""Links of the simulated network: delays, bandwidth, and the order that links keep."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roamcast.errors import InputError


@dataclass(frozen=True)
class Delay:
    """A delay in seconds: fixed, or drawn uniformly between two bounds."""

    low_s: float
    high_s: float

    @classmethod
    def parse(cls, text: str) -> Delay:
        """Parse a delay: `0.010` or `0.001..0.030`."""
        low, _, high = text.partition("..")
        try:
            delay = cls(float(low), float(high or low))
        except ValueError:
            raise InputError(f"delay {text!r}: valid are seconds (0.01) or a range (0.001..0.03)") from None
        if not 0 <= delay.low_s <= delay.high_s < float("inf"):
            raise InputError(f"delay {text!r}: valid is 0 <= low <= high, in seconds")
        return delay

    @property
    def is_fixed(self) -> bool:
        return self.low_s == self.high_s

    def __str__(self) -> str:
        return f"{self.low_s:g}" if self.is_fixed else f"{self.low_s:g}..{self.high_s:g}"


LOSSES_MAX = 4
"""Maximum number of lost transmissions of one message in a row, so that the delay stays bounded."""

RETRANSMIT_DELAYS = 2
"""Timeout of a retransmission, as a multiple of the longest delay."""


def longest_s(delay: Delay, loss: float) -> float:
    """Longest time that one message takes over a link."""
    return delay.high_s * (1 + (LOSSES_MAX * RETRANSMIT_DELAYS if loss else 0))


class Link:
    """One direction of a link: FIFO, loses nothing while it is up."""

    __slots__ = ("_busy_until_s", "_delay", "_last_s", "_random", "bits_per_s", "delay_s")

    def __init__(self, delay: Delay, rng: random.Random, bits_per_s: float | None = None) -> None:
        self.delay_s = delay.low_s if delay.is_fixed and bits_per_s is None else None
        """The delay, if it is constant: then messages keep their order without further work."""
        self.bits_per_s = bits_per_s
        self._delay = delay
        self._random = rng.random
        self._busy_until_s = 0.0
        self._last_s = 0.0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        """Return when a message sent now arrives; never before one sent earlier."""
        delay = self._delay
        start_s = now_s
        if self.bits_per_s is not None:
            # The sender is busy until the last bit of earlier messages is out.
            start_s = max(now_s, self._busy_until_s) + 8 * size_bytes / self.bits_per_s
            self._busy_until_s = start_s
        arrival_s = start_s + delay.low_s + (delay.high_s - delay.low_s) * self._random()
        self._last_s = max(arrival_s, self._last_s)
        return self._last_s


class LossyLink(Link):
    """A link that loses and repeats transmissions: messages arrive late, but in order."""

    __slots__ = ("_loss", "_retransmit_s", "retransmissions")

    def __init__(self, delay: Delay, rng: random.Random, loss: float) -> None:
        super().__init__(delay, rng)
        self._loss = loss
        self._retransmit_s = RETRANSMIT_DELAYS * delay.high_s
        self.retransmissions = 0

    def arrival_s(self, now_s: float, size_bytes: int) -> float:
        lost = 0
        while lost < LOSSES_MAX and self._random() < self._loss:
            lost += 1
        self.retransmissions += lost
        return super().arrival_s(now_s + lost * self._retransmit_s, size_bytes)
