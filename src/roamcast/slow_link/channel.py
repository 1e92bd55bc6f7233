"""Model of a slow link: pure arithmetic, without a clock or a socket.

A link has a channel in each direction, shared by all its connections. A channel sends one packet after the
other at the rate of its timeslots. The link retransmits a corrupted packet itself, so nothing is lost: this
packet and all later ones are delayed (Caporuscio et al. section 4.1, table 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from roamcast.errors import InputError, did_you_mean

HEADER_BYTES = 40
"""Bytes that TCP and IP add to each packet."""
PACKET_BYTES = 1_460
"""Maximum payload of a packet."""
RETRIES_MAX = 100
"""Maximum number of retransmissions of a packet; after these it arrives."""


@dataclass(frozen=True)
class Direction:
    """One direction of a link."""

    slot_bps: float
    """Bits per second in one timeslot."""
    slots_min: int = 1
    slots_max: int = 1
    """Maximum number of available timeslots; the number is drawn anew every `slots_s` seconds."""
    delay_s: float = 0.0
    """Seconds from the end of sending to arrival."""
    error: float = 0.0
    """Probability that a packet is corrupted."""
    retry_min_s: float = 0.0
    retry_max_s: float = 0.0
    """Longest time until a corrupted packet is sent again; drawn uniformly from the two bounds."""
    slots_s: float = 1.0


@dataclass(frozen=True)
class Profile:
    """A kind of link: from the mobile host to the network, and back."""

    up: Direction
    down: Direction
    about: str

    def changed(
        self,
        *,
        up_bps: float | None = None,
        down_bps: float | None = None,
        delay_s: float | None = None,
        error: float | None = None,
    ) -> Profile:
        """Return the profile with these changes; a given rate is that of the whole direction."""
        changes = {"delay_s": delay_s, "error": error}
        return replace(
            self, up=_changed(self.up, up_bps, changes), down=_changed(self.down, down_bps, changes)
        )


def _changed(direction: Direction, bps: float | None, changes: Mapping[str, float | None]) -> Direction:
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if bps is not None:
        given |= {"slot_bps": bps, "slots_min": 1, "slots_max": 1}
    return replace(direction, **given)


def _same(bps_up: float, bps_down: float, delay_s: float, error: float, about: str) -> Profile:
    up = Direction(bps_up, delay_s=delay_s, error=error, retry_min_s=0.03, retry_max_s=0.05)
    return Profile(up, replace(up, slot_bps=bps_down), about)


_GPRS = Direction(13_400.0, 1, 2, error=1e-3, retry_min_s=0.03, retry_max_s=0.05)

PROFILES = {
    "gprs": Profile(_GPRS, replace(_GPRS, slots_max=3), "GPRS class 6, coding scheme CS-2, as in table 2"),
    "gprs-far": Profile(
        replace(_GPRS, delay_s=0.3),
        replace(_GPRS, slots_max=3, delay_s=0.3),
        "the same with 300 ms in each direction, which the table leaves out",
    ),
    "edge": _same(100_000, 200_000, 0.15, 1e-3, "EDGE: 100 and 200 kbit/s, 150 ms each way"),
    "umts": _same(384_000, 2_000_000, 0.05, 1e-3, "UMTS: 384 kbit/s and 2 Mbit/s, 50 ms each way"),
    "lte": _same(10_000_000, 30_000_000, 0.02, 1e-4, "LTE: 10 and 30 Mbit/s, 20 ms each way"),
    "wifi-weak": _same(1_000_000, 1_000_000, 0.005, 0.1, "a weak Wi-Fi: 1 Mbit/s, every tenth packet breaks"),
    "satellite": _same(1_000_000, 5_000_000, 0.3, 1e-3, "by satellite: 1 and 5 Mbit/s, 300 ms each way"),
}


def find_profile(name: str) -> Profile:
    if name not in PROFILES:
        known = did_you_mean(name, PROFILES) or f"there are: {', '.join(PROFILES)}"
        raise InputError(f"there is no link profile {name!r}; {known}")
    return PROFILES[name]


class Channel:
    """Runtime state of one direction. `random` returns numbers from 0 up to 1."""

    def __init__(self, direction: Direction, random: Callable[[], float]) -> None:
        self.direction = direction
        self._random = random
        self._free_at = 0.0
        self._slots = direction.slots_min
        self._slots_until = float("-inf")
        self.packets = 0
        self.retries = 0

    def send(self, now: float, size: int) -> float:
        """Return when the last byte arrives, if these bytes are given to the link now."""
        whole, rest = divmod(size, PACKET_BYTES)
        for part in [PACKET_BYTES] * whole + ([rest] if rest or not size else []):
            self._send_packet(now, part + HEADER_BYTES)
        return self._free_at + self.direction.delay_s

    def _send_packet(self, now: float, size: int) -> None:
        direction = self.direction
        at = max(now, self._free_at)
        self.packets += 1
        at = self._sent_at(at, size * 8)
        for _ in range(RETRIES_MAX):
            if self._random() >= direction.error:
                break
            self.retries += 1
            at += direction.retry_min_s + self._random() * (direction.retry_max_s - direction.retry_min_s)
        self._free_at = at

    def _sent_at(self, at: float, bits: float) -> float:
        """Return when the last bit has left; the rate may change meanwhile, otherwise slow periods would last
        longer.
        """
        while True:
            rate_bps = self._rate_bps(at)
            end = at + bits / rate_bps
            if end <= self._slots_until:
                return end
            bits -= (self._slots_until - at) * rate_bps
            at = self._slots_until

    def _rate_bps(self, at: float) -> float:
        direction = self.direction
        if at >= self._slots_until:
            choices = direction.slots_max - direction.slots_min + 1
            self._slots = direction.slots_min + int(self._random() * choices)
            self._slots_until = at + direction.slots_s
        return direction.slot_bps * self._slots
