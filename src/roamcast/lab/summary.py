"""The figures of one run, as plain data for JSON and tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from roamcast.errors import InputError
from roamcast.mobility import find_protocol
from roamcast.mobility.proactive import Proactive
from roamcast.simulator.network import Network
from roamcast.simulator.run import Run
from roamcast.simulator.scenario import Scenario


def summarise(scenario: Scenario, run: Run, wall_s: float, records: int = 0) -> dict[str, Any]:
    """Summarise a run; `records` is the number of rows written to its log."""
    result, traffic, settings = run.result, run.traffic, scenario.network
    delays_s = sorted(result.handoff_delays_s)
    return {
        "protocol": settings.protocol,
        "routing": settings.routing or find_protocol(settings.protocol).strategies[0],
        "topology": scenario.topology,
        "clients": scenario.clients,
        "seed": settings.seed,
        "published": result.published,
        "expected": result.expected,
        "delivered": result.delivered,
        "lost": result.lost,
        "duplicates": result.duplicates,
        "out_of_order": result.out_of_order,
        "unexpected": result.unexpected,
        "excused": dict(sorted(result.excused.items())),
        "violations": [str(violation) for violation in result.violations],
        "handoffs": result.handoffs,
        "handoffs_interrupted": result.handoffs_interrupted,
        "handoffs_nothing_waiting": result.handoffs_nothing_waiting,
        "handoff_delay_mean_s": fmean(delays_s) if delays_s else None,
        "handoff_delay_p50_s": percentile(delays_s, 0.50),
        "handoff_delay_p95_s": percentile(delays_s, 0.95),
        "overhead_hops_per_handoff": traffic.overhead_hops / result.handoffs if result.handoffs else None,
        "hops": traffic.total_hops,
        "hops_by_cause": dict(sorted(traffic.hops.items())),
        "access_hops": traffic.access_hops,
        "neighbours": neighbour_figures(run.network),
        "records": records,
        "wall_s": round(wall_s, 3),
        "hops_per_wall_s": round(traffic.total_hops / wall_s) if wall_s > 0 else None,
    }


NEIGHBOUR_FIGURES = ("hit", "hit_activating", "miss", "copies", "activated")


def neighbour_figures(network: Network) -> dict[str, int]:
    """Return the quality of the neighbour graph over all brokers; nothing under a protocol without one.

    It counts clients that arrived from another broker: whether their context was active here, was being
    activated, or was missing. It also counts copies of contexts to neighbours and their activations.
    """
    found: Counter[str] = Counter()
    for broker in network.brokers.values():
        if isinstance(broker.protocol, Proactive):
            found.update({name: broker.protocol.figures[name] for name in NEIGHBOUR_FIGURES})
    return dict(found)


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of the values does not exceed."""
    if not ordered:
        return None
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object to a file, indented for people; the write is atomic."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
