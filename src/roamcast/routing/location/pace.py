"""How long a client stays at a location, learnt from its own moves.

The paper takes the average. A promise needs the shortest stay instead: a client
that stays one second on average stays less about every other time. It is rounded
down to one of four values per doubling, so that it hardly ever changes: a change
has to be told to every broker.
"""

from __future__ import annotations

import math
from typing import Literal

from roamcast.protocol.whereabouts import Pace

STAYS_KEPT = 8
PER_DOUBLING = 4
ROUNDING = 1e-9

Estimate = Literal["shortest", "mean"]


def changed(pace: Pace | None, now: float, is_late: bool) -> Pace:
    """Note that a variable changes now; `is_late` if the client reported it earlier."""
    if pace is None:
        return Pace(now, (), is_late)
    stays_s = pace.stays_s
    if not (is_late or pace.is_late):  # A late change says nothing about the client's pace.
        stay_s = max(now - pace.changed_at, 0.0)  # Brokers' clocks may differ.
        stays_s = (*stays_s, stay_s)[-STAYS_KEPT:]
    return Pace(now, stays_s, is_late)


def stay_s(pace: Pace | None, first_s: float, estimate: Estimate = "shortest") -> float:
    """Return the minimum time that the client keeps a value; `first_s` until it has changed twice."""
    if pace is None or not pace.stays_s:
        return first_s
    stays = pace.stays_s
    return _rounded_down(min(stays) if estimate == "shortest" else sum(stays) / len(stays))


def _rounded_down(time_s: float) -> float:
    if time_s <= 0:
        return 0.0
    return float(2.0 ** (math.floor(math.log2(time_s) * PER_DOUBLING + ROUNDING) / PER_DOUBLING))
