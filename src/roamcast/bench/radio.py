"""Duration of a run over the air: the largest network of Amozarrain 2021, under both protocols.

The thesis reports minutes for MFT-PubSub and 6 to 16 hours for AODV in Castalia (section 4.5.2).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from roamcast.bench.report import Report, silent
from roamcast.bench.sim import Stopwatch
from roamcast.simulator.radio.scenario import RadioProtocol, RadioScenario
from roamcast.simulator.radio.workload import Publishing

TARGETS_S: dict[RadioProtocol, float] = {"mft": 60.0, "aodv": 180.0}
"""Target seconds on one core, in the full setting of the thesis."""
DURATION_S = 700.0
PUBLISHING_SHARE = 5 / 7


def run(
    brokers: int = 32,
    speed: float = 8.0,
    duration_s: float = DURATION_S,
    protocols: Sequence[RadioProtocol] = ("mft", "aodv"),
    seed: int = 1,
    progress: Report = silent,
) -> dict[str, object]:
    """Measure one run of each protocol."""
    cases = []
    for done, protocol in enumerate(protocols):
        progress(done, len(protocols))
        cases.append(measure(brokers, speed, duration_s, protocol, seed))
    return {
        "cases": cases,
        "configuration": f"C{brokers}",
        "speed": speed,
        "duration_s": duration_s,
        "seed": seed,
        "python": sys.version.split()[0],
    }


def measure(
    brokers: int, speed: float, duration_s: float, protocol: RadioProtocol, seed: int
) -> dict[str, object]:
    publishing = Publishing(until_s=PUBLISHING_SHARE * duration_s)
    clock = Stopwatch()
    scenario = RadioScenario(brokers, speed, protocol, seed, duration_s=duration_s, publishing=publishing)
    result = scenario.run()
    core_s, wall_s = clock.read()
    figures = result.figures()
    is_asked = (brokers, duration_s) == (32, DURATION_S)
    return {
        "protocol": protocol,
        "nodes": result.configuration.stations,
        "core_s": core_s,
        "wall_s": wall_s,
        "target_s": TARGETS_S[protocol] if is_asked else None,
        "holds": core_s < TARGETS_S[protocol] if is_asked else None,
        "simulated_s_per_core_s": duration_s / core_s,
        "events": figures["events"],
        "frames": figures["frames"],
        "frames_per_core_s": figures["frames"] / core_s,
        "messages": figures["messages"],
        "delivered": figures["delivered"],
    }
