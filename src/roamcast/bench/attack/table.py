"""All attacks, in the order in which they run."""

from __future__ import annotations

import time

from roamcast.bench.attack import connecting, fuzzing, identities, peering, reading, storing, subscribing
from roamcast.bench.attack.base import Attack, Target


def nothing(target: Target) -> None:
    """Wait until the time is over: what the honest clients notice then is the machine's own noise."""
    while not target.is_over:
        time.sleep(0.05)


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("nothing", "no attack at all, for comparison", nothing),
        *connecting.ATTACKS,
        *subscribing.ATTACKS,
        *storing.ATTACKS,
        *reading.ATTACKS,
        *identities.ATTACKS,
        *peering.ATTACKS,
        *fuzzing.ATTACKS,
    )
}
