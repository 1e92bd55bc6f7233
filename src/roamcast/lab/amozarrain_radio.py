"""Amozarrain 2021, section 4.5: MFT-PubSub and AODV over the air. Claims A7 to A10.

The setting is table 4.2 and section 4.5.2: 0.005 stations in a square metre, two publishers that publish
once a second for 500 s of 700, random waypoint, a CC2420 at 0 dBm. What the thesis leaves open is chosen
once and stated in one place each: the radio and its medium access in `simulator.radio.parameters`, AODV in
`simulator.radio.aodv.AodvSettings`, the election in `overlay.election.ElectionSettings`, sizes of messages in
`simulator.radio.mft_links` and `aodv_messages`. Hello and heartbeat are both sent once a second.

A notification counts for MFT-PubSub's rate if a broker on its way knew the subscriber (section 4.5.3); for
AODV all count. Messages are what protocols hand to the antenna, hellos and heartbeats included, repeated
frames and acknowledgements not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from roamcast.lab import amozarrain_radio_figures as pictures
from roamcast.lab.curves import Curve, as_rows, curves_of, power
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, failed, register
from roamcast.lab.sweep import Row, Sweep
from roamcast.models.intervals import Bounds, mean_interval
from roamcast.simulator.radio.scenario import RadioProtocol, RadioScenario
from roamcast.simulator.radio.workload import SIDES_M, SPEEDS, Configuration, Publishing

MFT: RadioProtocol = "mft"
AODV: RadioProtocol = "aodv"
SIZES = tuple(SIDES_M)
SPEED = 8.0
"""Of figures 4.5a and 4.6 to 4.8."""
SIZE = 16
"""Of figure 4.5b."""
LARGEST = 32
DURATION_S, PUBLISHING_S = 700.0, 500.0
DURATION_QUICK_S, PUBLISHING_QUICK_S = 70.0, 50.0
SEEDS, SEEDS_AODV_LARGEST, SEEDS_QUICK = 10, 3, 4
SPEEDS_QUICK = (2.0, 8.0, 10.0)

A7 = Claim(
    "A7", "shape",
    "delivery rate falls with network size for both MFT-PubSub and AODV; MFT-PubSub's improves with speed "
    "(fig. 4.4)",
)  # fmt: skip
A8 = Claim(
    "A8", "order",
    "C16: MFT-PubSub delivers more messages than AODV at every speed (fig. 4.5b); C32 at 8 m/s: AODV "
    "delivers more (fig. 4.5a)",
)  # fmt: skip
A9 = Claim(
    "A9", "order",
    "messages sent per node at 8 m/s: AODV fewer at C2, then explodes with size; MFT-PubSub barely changes "
    "(fig. 4.8); its total is linear in nodes",
)  # fmt: skip
A10 = Claim("A10", "shape", "nodes near the leader carry more load; brokers send more than clients")

LEVEL_MAX = 0.01
"""A rate that rises by more than this from one size to the next does not fall; seeds scatter by less."""
EXPLODES_MIN = 5.0
"""From C2 to C32; the number of nodes grows by 11."""
BARELY_MAX = 1.5
"""Barely changes: the dearest size is at most half above the cheapest."""
LINEAR_POWERS = (0.9, 1.1)


@dataclass(frozen=True)
class RadioJob:
    protocol: RadioProtocol
    brokers: int
    speed: float
    seed: int
    duration_s: float = DURATION_S
    publishing_s: float = PUBLISHING_S

    @property
    def name(self) -> str:
        return f"{self.protocol} C{self.brokers} {self.speed:g} m/s seed={self.seed}"

    @property
    def cost(self) -> float:
        return self.brokers**2 * self.duration_s * (2.5 if self.protocol == AODV else 1.0)


def measure(job: RadioJob) -> Row:
    """One run, and its figures."""
    publishing = Publishing(until_s=job.publishing_s)
    return figures_of(
        RadioScenario(
            job.brokers,
            job.speed,
            job.protocol,
            job.seed,
            duration_s=job.duration_s,
            publishing=publishing,
        )
    )


def figures_of(scenario: RadioScenario) -> Row:
    started = time.process_time()
    run = scenario.run()
    return {
        "protocol": scenario.protocol,
        "brokers": scenario.brokers,
        "nodes": Configuration(scenario.brokers).stations,
        "speed": scenario.speed,
        "seed": scenario.seed,
        "duration_s": scenario.duration_s,
        **run.figures(),
        **{f"sent_{kind.lower()}": count for kind, count in run.sent_by_kind().items()},
        "cpu_s": round(time.process_time() - started, 3),
    }


def jobs(quick: bool) -> list[RadioJob]:
    """Quick: a shorter time, three speeds, and AODV in the largest network at one of them."""
    if quick:
        seeds, lengths = range(1, SEEDS_QUICK + 1), (DURATION_QUICK_S, PUBLISHING_QUICK_S)
        return [
            RadioJob(protocol, size, speed, seed, *lengths)
            for protocol, size, speed in itertools.product((MFT, AODV), SIZES, SPEEDS_QUICK)
            if not (protocol == AODV and size == LARGEST and speed != SPEED)
            for seed in seeds
        ]
    return [
        RadioJob(protocol, size, speed, seed)
        for protocol, size, speed in itertools.product((MFT, AODV), SIZES, SPEEDS)
        for seed in range(1, (SEEDS_AODV_LARGEST if (protocol, size) == (AODV, LARGEST) else SEEDS) + 1)
    ]


def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    at_speed = [row for row in rows if row["speed"] == SPEED]
    rates: dict[str, dict[str, Curve]] = {
        protocol: by_speed(rows, protocol, "brokers", "delivery_rate") for protocol in (MFT, AODV)
    }
    delivered = curves_of(at_speed, "protocol", "brokers", "delivered")
    at_size = curves_of([row for row in rows if row["brokers"] == SIZE], "protocol", "speed", "delivered")
    others = {
        column: curves_of(at_speed, "protocol", "brokers", column)
        for column in ("delay_mean_s", "hops_mean", "hops_max", "messages_per_node", "messages")
    }
    tables = {
        "runs": list(rows),
        **{f"fig44_{name}": as_rows(rates[name], "speed", "brokers", "delivery_rate") for name in rates},
        "fig45a_delivered": as_rows(delivered, "protocol", "brokers", "delivered"),
        "fig45b_delivered": as_rows(at_size, "protocol", "speed", "delivered"),
        "fig46_delay": as_rows(others["delay_mean_s"], "protocol", "brokers", "delay_mean_s"),
        "fig47_hops": as_rows(others["hops_mean"], "protocol", "brokers", "hops_mean"),
        "fig48_messages": as_rows(others["messages_per_node"], "protocol", "brokers", "messages_per_node"),
    }
    length_s = max(row["duration_s"] for row in rows)
    outcomes = [judge_a7(rows), judge_a8(rows), judge_a9(at_speed), judge_a10(at_speed)]
    return Findings(
        outcomes,
        tables,
        {
            "fig44_delivery_rate": lambda figure: pictures.draw_fig44(figure, rates, length_s),
            "fig45_delivered": lambda figure: pictures.draw_fig45(figure, delivered, at_size, length_s),
            "fig46_delay": lambda figure: pictures.draw_fig46(figure, others["delay_mean_s"], length_s),
            "fig47_hops": lambda figure: pictures.draw_fig47(
                figure, others["hops_mean"], others["hops_max"], length_s
            ),
            "fig48_messages": lambda figure: pictures.draw_fig48(
                figure, others["messages_per_node"], length_s
            ),
            "load": lambda figure: pictures.draw_load(figure, at_speed, length_s),
        },
    )


def by_speed(rows: Iterable[Row], protocol: str, x: str, y: str) -> dict[str, Curve]:
    """One curve for each speed."""
    labelled = [{**row, "case": f"{row['speed']:g} m/s"} for row in rows if row["protocol"] == protocol]
    return curves_of(labelled, "case", x, y)


def differences(
    rows: Iterable[Row], y: str, of: Mapping[str, object], against: Mapping[str, object]
) -> list[float]:
    """What the rows like `of` have more than those like `against` that have all else in common."""
    keys = [key for key in ("protocol", "brokers", "speed", "seed") if key not in of]

    def like(wanted: Mapping[str, object]) -> dict[tuple[object, ...], float]:
        chosen = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        return {tuple(row[key] for key in keys): row[y] for row in chosen if row[y] is not None}

    left, right = like(of), like(against)
    return [left[key] - right[key] for key in left if key in right]


def interval(values: Sequence[float]) -> Bounds | None:
    return mean_interval(values) if len(values) > 1 else None


def is_above(values: Sequence[float]) -> bool | None:
    """Whether differences lie above 0; None: seeds scatter more than that, so it cannot be said."""
    bounds = interval(values)
    if bounds is None or bounds.low <= 0.0 < bounds.high:
        return None
    return bounds.low > 0.0


def conclude(parts: Mapping[str, bool | None]) -> tuple[bool | None, str]:
    """Whether a claim holds whose parts these are, each named by what is wrong if it does not; and a note."""
    note = failed({text: holds is not False for text, holds in parts.items()})
    if open_parts := [text for text, holds in parts.items() if holds is None]:
        undecided = f"cannot be told from these seeds, whether {'; '.join(open_parts)}"
        note = f"{note}; {undecided}" if note else undecided
    if False in parts.values():
        return False, note
    return (None, note) if None in parts.values() else (True, note)


def shown(values: Sequence[float], digits: int = 4) -> list[float]:
    """Mean, and the bounds of its 95 % interval."""
    bounds = interval(values)
    return [round(one, digits) for one in (fmean(values), *(bounds or ()))] if values else []


# --- A7: figure 4.4 ---


def judge_a7(rows: Sequence[Row]) -> Outcome:
    curves = {
        protocol: curves_of([row for row in rows if row["protocol"] == protocol], "protocol", "brokers",
                            "delivery_rate")[protocol]
        for protocol in (MFT, AODV)
    }  # fmt: skip
    slow, fast = min(row["speed"] for row in rows), max(row["speed"] for row in rows)
    gains = {
        f"C{size}": differences(
            [row for row in rows if row["protocol"] == MFT and row["brokers"] == size],
            "delivery_rate", {"speed": fast}, {"speed": slow},
        )
        for size in SIZES
    }  # fmt: skip
    pooled = [gain for size in SIZES[2:] for gain in gains[f"C{size}"]]
    parts: dict[str, bool | None] = {
        f"{protocol}'s rate does not fall with size": falls(curve) for protocol, curve in curves.items()
    }
    parts["MFT-PubSub's rate does not improve with speed in C8 to C32"] = is_above(pooled)
    figures: dict[str, object] = {
        "sizes": [f"C{size:g}" for size in curves[MFT].xs],
        "rate, mean over speeds": {
            name: [round(mean, 4) for mean in one.means] for name, one in curves.items()
        },
        f"mft, rate at {fast:g} m/s less that at {slow:g} m/s (mean, low, high)": {
            name: shown(values) for name, values in gains.items()
        },
        "the same, C8 to C32 together": shown(pooled),
    }
    paper = "both are strongly affected by the network's size; MFT-PubSub even improves with speed"
    holds, note = conclude(parts)
    return A7.outcome(holds, paper=paper, figures=figures, note=note)


def falls(curve: Curve) -> bool:
    steps = itertools.pairwise(curve.means)
    return curve.growth < 0.0 and all(after <= before + LEVEL_MAX for before, after in steps)


# --- A8: figure 4.5 ---


def judge_a8(rows: Sequence[Row]) -> Outcome:
    at_size = [row for row in rows if row["brokers"] == SIZE]
    speeds = sorted({row["speed"] for row in at_size})
    mft, aodv = {"protocol": MFT}, {"protocol": AODV}
    mft_more = {
        speed: differences([row for row in at_size if row["speed"] == speed], "delivered", mft, aodv)
        for speed in speeds
    }  # fmt: skip
    largest = [row for row in rows if row["brokers"] == LARGEST and row["speed"] == SPEED]
    aodv_more = differences(largest, "delivered", aodv, mft)
    parts = {
        f"C{SIZE} at {speed:g} m/s: MFT-PubSub does not deliver more": is_above(values)
        for speed, values in mft_more.items()
    }
    parts[f"C{LARGEST} at {SPEED:g} m/s: AODV does not deliver more"] = is_above(aodv_more)
    figures: dict[str, object] = {
        f"C{SIZE}, delivered": {
            name: [round(mean) for mean in curve.means]
            for name, curve in curves_of(at_size, "protocol", "speed", "delivered").items()
        },
        f"C{SIZE}, MFT-PubSub's less AODV's (mean, low, high)": {
            f"{speed:g} m/s": shown(values, 1) for speed, values in mft_more.items()
        },
        f"C{LARGEST} at {SPEED:g} m/s, delivered": {
            name: round(curve.means[0])
            for name, curve in curves_of(largest, "protocol", "brokers", "delivered").items()
        },
        f"C{LARGEST} at {SPEED:g} m/s, AODV's less MFT-PubSub's (mean, low, high)": shown(aodv_more, 1),
    }
    holds, note = conclude(parts)
    if is_above(aodv_more) is False:
        note += f" ({WHY_AODV_DELIVERS_LESS})"
    paper = "C16: MFT-PubSub outperforms AODV at all speeds; C32 at 8 m/s: AODV has delivered more"
    return A8.outcome(holds, paper=paper, figures=figures, note=note)


WHY_AODV_DELIVERS_LESS = (
    "frames are acknowledged here, so MFT-PubSub knows what has not arrived, and stores it; with the CSMA of "
    "the thesis, which acknowledges nothing, AODV delivers more (R3)"
)


# --- A9: figure 4.8 ---


def judge_a9(rows: Sequence[Row]) -> Outcome:
    per_node = curves_of(rows, "protocol", "brokers", "messages_per_node")
    total = curves_of([row for row in rows if row["protocol"] == MFT], "protocol", "nodes", "messages")[MFT]
    smallest = [row for row in rows if row["brokers"] == SIZES[0]]
    mft_more = differences(smallest, "messages_per_node", {"protocol": MFT}, {"protocol": AODV})
    low, high = LINEAR_POWERS
    exponent = power(total.xs, total.means)
    explodes = per_node[AODV].means[-1] / per_node[AODV].means[0]
    parts: dict[str, bool | None] = {
        "C2: AODV does not send fewer": is_above(mft_more),
        f"AODV does not grow by {EXPLODES_MIN:g}": explodes >= EXPLODES_MIN,
        f"MFT-PubSub changes by more than {BARELY_MAX:g}": per_node[MFT].spread <= BARELY_MAX,
        "MFT-PubSub's total is not linear in nodes": low <= exponent <= high,
    }
    kinds = sorted({key for row in rows if row["protocol"] == MFT for key in row if key.startswith("sent_")})
    figures: dict[str, object] = {
        "sizes": [f"C{size:g}" for size in per_node[MFT].xs],
        "messages per node": {name: [round(mean) for mean in one.means] for name, one in per_node.items()},
        "C2, MFT-PubSub's less AODV's (mean, low, high)": shown(mft_more, 1),
        "AODV, C32 / C2": explodes,
        "MFT-PubSub, dearest / cheapest size": per_node[MFT].spread,
        "MFT-PubSub, power of the number of nodes in its total": exponent,
        "MFT-PubSub, messages of each kind per node at C2 and C32": {
            kind.removeprefix("sent_"): [
                round(_per_node(rows, size, kind), 1) for size in (SIZES[0], LARGEST)
            ]
            for kind in kinds
        },
    }
    holds, note = conclude(parts)
    notes = [note]
    if parts["C2: AODV does not send fewer"] is False:
        notes.append(WHY_AODV_SENDS_MORE)
    if not parts[f"MFT-PubSub changes by more than {BARELY_MAX:g}"]:
        notes.append(WHY_MFT_GROWS)
    paper = (
        "smallest: AODV fewer; then an explosion of AODV's; MFT-PubSub's barely change, its total is linear"
    )
    return A9.outcome(holds, paper=paper, figures=figures, note="; ".join(filter(None, notes)))


WHY_AODV_SENDS_MORE = (
    "everyone says hello, but only brokers pass heartbeats on, both once a second: the thesis gives neither "
    "period, and they decide this order (R4)"
)
WHY_MFT_GROWS = (
    "where timestamps differ, brokers are told (BSUB), so both the migrations and the messages of each grow "
    "with the number of brokers, with the rules as published as well (R5)"
)


def _per_node(rows: Iterable[Row], size: int, column: str) -> float:
    counts = [
        row.get(column, 0) / row["nodes"] for row in rows if row["protocol"] == MFT and row["brokers"] == size
    ]
    return fmean(counts) if counts else 0.0


# --- A10: who sends them ---


def judge_a10(rows: Sequence[Row]) -> Outcome:
    mft = [row for row in rows if row["protocol"] == MFT]
    large = [row for row in mft if row["brokers"] >= 8]
    nearer = {
        f"C{size}": [
            row["load_near"] - row["load_far"]
            for row in large
            if row["brokers"] == size and row["load_near"] is not None and row["load_far"] is not None
        ]
        for size in sorted({row["brokers"] for row in large})
    }
    roles = ("broker", "publisher", "subscriber")
    by_role = {
        role: curves_of(mft, "protocol", "brokers", f"messages_per_{role}")[MFT].means for role in roles
    }
    clients = zip(by_role["publisher"], by_role["subscriber"], strict=True)
    parts = {
        f"{name}: brokers near the leader do not send more than those far from it": is_above(values)
        for name, values in nearer.items()
    }
    parts["brokers do not send more than clients"] = all(
        broker > max(both) for broker, both in zip(by_role["broker"], clients, strict=True)
    )
    hops = [f"load_at_{hops}_hops" for hops in range(4)]
    figures: dict[str, object] = {
        "sizes": [f"C{size}" for size in sorted({row["brokers"] for row in mft})],
        "messages per node by role": {
            role: [round(mean) for mean in means] for role, means in by_role.items()
        },
        "messages a second of a broker 0, 1, 2, 3 and more hops from its leader": {
            name: [_mean(large, int(name[1:]), column) for column in hops] for name in nearer
        },
        "0 and 1 hops less 2 and more (mean, low, high)": {
            name: shown(values, 2) for name, values in nearer.items()
        },
    }
    paper = "most of the work is done by brokers; nodes closer to the leader have a higher load"
    holds, note = conclude(parts)
    return A10.outcome(holds, paper=paper, figures=figures, note=note)


def _mean(rows: Iterable[Row], size: int, column: str) -> float | None:
    values = [row[column] for row in rows if row["brokers"] == size and row[column] is not None]
    return round(fmean(values), 2) if values else None


register(
    Experiment(
        "amozarrain-radio", "Amozarrain, figures 4.4 to 4.8: over the air", (A7, A8, A9, A10), experiment
    )
)
