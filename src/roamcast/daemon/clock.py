"""The broker's time: it advances with the monotonic clock, and approaches the system clock slowly.

Sessions, messages and wills expire by this time. A system clock that is set eight days ahead for a moment
must end none of them, so a step of that clock is detected and logged, and the broker's time runs at most a
tenth faster or slower until it agrees again.

At a restart the broker must know how long it was down. If the operating system was not rebooted, its time
since boot tells that, whatever the system clock says. After a reboot the system clock is believed for up to a
day, and for longer if the system says that the clock is synchronised (NTP); the broker's time approaches the
rest slowly.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from roamcast.storage.segments import current_boot

log = logging.getLogger("roamcast")

FILE_NAME = "clock"
FOLLOW_PACE = 0.1
"""Greatest deviation from real time while the broker's time approaches the system clock."""
STEP_S = 1.0
"""Jump in seconds from which the system clock counts as having been set."""
DOWN_S_MAX = 86_400.0
"""Longest downtime that is believed after a reboot if only the system clock says so."""
LOOK_EVERY_S = 0.01
"""Seconds between two readings of the system clock; in between, the monotonic clock counts."""
_TIME_ERROR = 5
"""What adjtimex returns while the system clock is not synchronised."""


since_boot: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since the operating system was started, also those in which it was suspended."""


def is_synchronised() -> bool:
    """True if the system says that its clock is synchronised."""
    buffer = ctypes.create_string_buffer(512)
    try:
        state: int = ctypes.CDLL(None).adjtimex(buffer)
    except (OSError, AttributeError):
        return False
    return 0 <= state != _TIME_ERROR


class Reading(msgspec.Struct, frozen=True):
    """The broker's time at a moment of the monotonic clock."""

    boot: int
    """Identifies the boot of the operating system that `steady` counts from."""
    steady: float
    now: float
    """The broker's time."""


class BrokerClock:
    """The broker's time, which never goes back. Call the object to read the time."""

    def __init__(
        self,
        now: float,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._now = self._told = now
        """The last time that was returned."""
        self._at = steady()
        self._ahead = wall() - self._at
        """Difference between the system clock and the monotonic clock."""

    def __call__(self) -> float:
        at = self._steady()
        passed = at - self._at
        if 0.0 < passed < LOOK_EVERY_S:
            self._told = told = self._now + passed
            return told
        return self._look(at, passed)

    def _look(self, at: float, passed: float) -> float:
        """Return the time, moved closer to the system clock."""
        wall = self._wall()
        ahead = wall - at
        if abs(ahead - self._ahead) > STEP_S:
            log.warning(
                "the system clock was set by %+.1f s: nothing expires because of that; the broker's time"
                " approaches it, at most %g %% faster or slower", ahead - self._ahead, FOLLOW_PACE * 100,
            )  # fmt: skip
        self._at, self._ahead = at, ahead
        most = FOLLOW_PACE * passed
        now = self._now + passed
        self._now = self._told = max(self._told, now + min(most, max(-most, wall - now)))
        return self._now

    def seconds_until(self, deadline: float) -> float:
        """Return how long to wait for a deadline. If the broker's time runs slow, the deadline is not reached
        by then."""
        left = max(0.0, deadline - self())
        return left / (1.0 + FOLLOW_PACE) if self._at + self._ahead > self._now + STEP_S else left

    def reading(self) -> Reading:
        at = self._steady()
        return Reading(current_boot(), at, self._look(at, at - self._at))


def resume_clock(last: float, data: Path) -> BrokerClock:
    """Return the clock of a broker whose journal ends at the time `last`; 0 if the journal is empty."""
    now = time_after(last, read_reading(data), Reading(current_boot(), since_boot(), time.time()))
    return BrokerClock(now)


def time_after(
    last: float, saved: Reading | None, system: Reading, is_sure: Callable[[], bool] = is_synchronised
) -> float:
    """Return the broker's time at its start; `system` is what the system's clocks say."""
    if not last:
        return system.now
    if saved is not None and saved.boot == system.boot:
        return max(last, saved.now + max(0.0, system.steady - saved.steady))
    down_s = system.now - last
    if down_s > DOWN_S_MAX and not is_sure():
        log.warning(
            "the system clock says that this broker was down for %.0f s, and nothing confirms that:"
            " %.0f s are believed, and the broker's time approaches the rest slowly", down_s, DOWN_S_MAX,
        )  # fmt: skip
        return last + DOWN_S_MAX
    return max(last, system.now)


def read_reading(data: Path) -> Reading | None:
    try:
        return msgspec.json.decode((data / FILE_NAME).read_bytes(), type=Reading)
    except (OSError, msgspec.MsgspecError):
        return None


def save_reading(data: Path, reading: Reading) -> None:
    """Save the time for the next start, which otherwise relies on the system clock."""
    temporary = data / f"{FILE_NAME}.tmp"
    try:
        temporary.write_bytes(msgspec.json.encode(reading))
        temporary.rename(data / FILE_NAME)
    except OSError as error:
        log.warning("%s: cannot be written (%s)", data / FILE_NAME, error.strerror or error)
