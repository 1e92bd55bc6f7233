"""The radio model compared with publications on that radio, and why random walk is not used. Claims R1, R2.

Reception over distance is measured by stations that broadcast on the simulated channel, one at a time, and
compared with the formulas: log-distance path loss, log-normal shadowing, and the error formula of IEEE
802.15.4 above the CC2420's sensitivity. Zuniga and Krishnamachari (2004) call the distances at which links
are good or bad by chance the transitional region. Its edges follow from the formulas: at the near edge a link
is good even if shadowing is two deviations worse than the mean; at the far edge a link is usable only if
shadowing is two deviations better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes

from roamcast.lab.charts import Chart, Panel, Pen, curves
from roamcast.lab.curves import Curves
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, AWAY, INK, LOST, QUIET
from roamcast.lab.rows import Row, distinct, mean_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.models.intervals import mean_interval
from roamcast.simulator.radio.channel import EVERYONE, Channel
from roamcast.simulator.radio.movement import Movement, RandomWalk, RandomWaypoint
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.reception import (
    Floats,
    Shadowing,
    expected_reception,
    milliwatts,
    packet_success,
)
from roamcast.simulator.radio.workload import SIDES_M

R1, R2 = map(claim, ("R1", "R2"))

PARAMETERS = RadioParameters()
FRAME_BYTES = 51
"""Frame size of a notification with 32 bytes of content."""
BIN_M = 5.0
SIDE_M = 110.0
STATIONS = 60


FLAT = replace(PARAMETERS, shadowing_db=0.0, asymmetry_db=0.0)

AGREE_MAX = 0.03
"""The largest difference allowed between measured and expected reception, over all distances."""
CONNECTED_MIN, DISCONNECTED_MAX = 0.95, 0.05


FRAMES = 10
"""Frames sent by each station at each place. More places give more information than more frames, since a link
is either good or bad.
"""


@dataclass(frozen=True)
class ReceptionJob(Job):
    seed: int
    placements: int

    @property
    def cost(self) -> float:
        return float(self.placements)


def measure_reception(job: ReceptionJob) -> Row:
    """Measure, by distance, the number of links and the share of frames that they received."""
    rng = np.random.default_rng([job.seed, 7])
    bins = int(SIDE_M / BIN_M)
    totals = {name: np.zeros(bins) for name in ("links", "received", "mixed", "expected")}
    for _ in range(job.placements):
        positions = rng.uniform(0.0, SIDE_M, (STATIONS, 2))
        share = received_share(Channel(PARAMETERS, positions, Shadowing(PARAMETERS, SIDE_M, rng), rng))
        distance_m = np.linalg.norm(positions[:, None] - positions[None, :], axis=2)
        links = (distance_m > 0.0) & (distance_m < bins * BIN_M)
        index = (distance_m[links] / BIN_M).astype(int)
        values = share[links]
        mixed = (values > 0.1) & (values < 0.9)
        expected = np.interp(distance_m[links], DISTANCES_M, EXPECTED)
        for total, weights in zip(totals.values(), (None, values, mixed, expected), strict=True):
            total += np.bincount(index, weights, minlength=bins)
    return {"seed": job.seed} | {
        f"{name}_{index}": float(values[index]) for name, values in totals.items() for index in range(bins)
    }


def received_share(channel: Channel) -> Floats:
    """Let each station broadcast `FRAMES` frames in turn; return the share that each other station
    received.
    """
    received = np.zeros((STATIONS, STATIONS))
    air_s, now = PARAMETERS.air_s(FRAME_BYTES), 0.0
    for sender in range(STATIONS):
        for _ in range(FRAMES):
            frame = channel.begin(now, sender, EVERYONE, air_s)
            now += air_s
            received[sender, channel.end(now, frame)] += 1
    return received / FRAMES


DISTANCES_M = np.linspace(0.5, 160.0, 320)
EXPECTED = [expected_reception(PARAMETERS, float(one), FRAME_BYTES) for one in DISTANCES_M]


@dataclass(frozen=True)
class CoverageJob(Job):
    model: str
    speed: float
    seed: int
    duration_s: float = 700.0

    @property
    def cost(self) -> float:
        return self.duration_s / 100.0


MODELS: dict[str, type[RandomWaypoint] | type[RandomWalk]] = {
    "random walk": RandomWalk,
    "random waypoint": RandomWaypoint,
}


def measure_coverage(job: CoverageJob) -> Row:
    """Measure the share of the area that a station visits, and the number of stations within 20 m of it."""
    side_m, stations = SIDES_M[32], 66
    rng = np.random.default_rng([job.seed, 11])
    movement: Movement = MODELS[job.model](stations, side_m, job.speed, rng)
    across = int(side_m / BIN_M)
    visited = np.zeros((stations, across * across), dtype=bool)
    path_m = []
    started = movement.positions_m.copy()
    for _ in range(int(job.duration_s)):
        movement.advance(1.0)
        cell = np.minimum((movement.positions_m / BIN_M).astype(int), across - 1)
        visited[np.arange(stations), cell[:, 0] * across + cell[:, 1]] = True
        path_m.append(float(np.linalg.norm(movement.positions_m - started, axis=1).mean()))
    return {
        "model": job.model,
        "speed": job.speed,
        "seed": job.seed,
        "covered": float(visited.mean()),
        "from_start_m": float(np.mean(path_m[len(path_m) // 2 :])),
    }


@checks("radio-reception", "The radio model, and random walk", R1, R2)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    each = seeds(3 if quick else 10)
    reception = sweep.run(measure_reception, [ReceptionJob(seed, 12 if quick else 60) for seed in each])
    speeds = (2.0, 10.0) if quick else (2.0, 4.0, 6.0, 8.0, 10.0)
    coverage = sweep.run(measure_coverage, grid(CoverageJob, model=MODELS, speed=speeds, seed=each))
    curve = reception_curve(reception)
    return Findings(
        [judge_r1(curve), judge_r2(coverage)],
        {"reception": curve, "coverage": coverage},
        {"radio_reception": reception_chart(curve), "random_walk": coverage_chart(coverage)},
    )


def reception_chart(rows: Sequence[Row]) -> Chart:
    begin_m, end_m = edges_m()
    xs = [row["distance_m"] for row in rows]
    measured, low, high, expected, flat = (
        [row[name] for row in rows] for name in ("received", "low", "high", "expected", "without_shadowing")
    )

    def draw(axes: Axes) -> None:
        axes.axvspan(begin_m, end_m, color=AWAY, zorder=0)
        for at_m, region in ((begin_m / 2, "connected"), ((begin_m + end_m) / 2, "transitional region"),
                             ((end_m + 124.0) / 2, "disconnected")):  # fmt: skip
            axes.text(at_m, 1.06, region, ha="center", fontsize=9, color=INK)
        axes.plot(xs, expected, color=INK, label="expected: path loss, shadowing, 802.15.4")
        axes.errorbar(
            xs, measured, yerr=[np.subtract(measured, low), np.subtract(high, measured)], fmt="o",
            color=ARRIVED, markersize=5, capsize=3, label="measured on the simulated channel",
        )  # fmt: skip
        axes.plot(xs, flat, color=QUIET, linestyle="--", label="expected without shadowing")

    said = {
        "xlabel": "distance, m",
        "ylabel": "share of frames received",
        "ylim": (0, 1.12),
        "xlim": (0, 124),
    }
    return Chart(
        "Packet reception over distance, CC2420 at 0 dBm", "frames of 51 bytes, without interference",
        [Panel(draw, said, legend={"loc": "center right", "fontsize": 9})],
    )  # fmt: skip


def coverage_chart(rows: Sequence[Row]) -> Chart:
    pens = {"random walk": Pen("random walk", LOST, "s"), "random waypoint": Pen("random waypoint", ARRIVED)}
    said = {"xlabel": "speed, m/s", "ylim": (0, None)}
    covered, away = (Curves(rows, "model", "speed", y) for y in ("covered", "from_start_m"))
    return Chart(
        "Why random walk was dropped", "C32, 110 m square, cells of 5 m",
        [
            Panel(curves(covered, pens, scale=100),
                  {**said, "ylabel": "area that a station has been in after 700 s, %"}, legend={}),
            Panel(curves(away, pens), {**said, "ylabel": "distance from where it started, m"}),
        ],
    )  # fmt: skip


def reception_curve(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each range of distance."""
    curve = []
    for index in range(int(SIDE_M / BIN_M)):
        links = sum(row[f"links_{index}"] for row in rows)
        if not links:
            continue
        used = [row for row in rows if row[f"links_{index}"]]
        shares = [row[f"received_{index}"] / row[f"links_{index}"] for row in used]
        low, high = mean_interval(shares) if len(shares) > 1 else (math.nan, math.nan)
        curve.append(
            {
                "distance_m": (index + 0.5) * BIN_M,
                "links": links,
                "received": sum(row[f"received_{index}"] for row in rows) / links,
                "low": low,
                "high": high,
                "expected": sum(row[f"expected_{index}"] for row in rows) / links,
                "without_shadowing": expected_reception(FLAT, (index + 0.5) * BIN_M, FRAME_BYTES),
                "mixed_links": sum(row[f"mixed_{index}"] for row in rows) / links,
            }
        )
    return curve


def edges_m() -> tuple[float, float]:
    """Return both edges of the transitional region: two deviations of shadowing to either side."""
    deviation_db = math.hypot(PARAMETERS.shadowing_db, PARAMETERS.asymmetry_db / 2.0)
    budget_db = PARAMETERS.power_dbm - PARAMETERS.sensitivity_dbm - PARAMETERS.path_loss_at_1m_db
    per_decade_db = 10.0 * PARAMETERS.path_loss_exponent
    begin, end = (10.0 ** ((budget_db + sign * 2.0 * deviation_db) / per_decade_db) for sign in (-1, 1))
    return begin, end


def judge_r1(curve: Sequence[Row]) -> Outcome:
    begin_m, end_m = edges_m()
    worst = max(abs(row["received"] - row["expected"]) for row in curve)
    connected = [row["received"] for row in curve if row["distance_m"] + BIN_M / 2 <= begin_m]
    disconnected = [row["received"] for row in curve if row["distance_m"] - BIN_M / 2 >= end_m]
    sensitivity_loss = 1.0 - packet_success(
        milliwatts(PARAMETERS.sensitivity_dbm - PARAMETERS.noise_floor_dbm), 26
    )
    parts = {
        f"measured and expected reception differ by more than {AGREE_MAX:g}": worst <= AGREE_MAX,
        "the connected region loses frames": bool(connected) and min(connected) >= CONNECTED_MIN,
        "the disconnected region receives frames": bool(disconnected)
        and max(disconnected) <= DISCONNECTED_MAX,
        "at the sensitivity more than 1 % is lost": sensitivity_loss <= 0.01,
    }
    figures = {
        "largest difference between measured and expected reception": worst,
        "transitional region by the formulas, m": [round(begin_m, 1), round(end_m, 1)],
        "least reception in the connected region": min(connected, default=None),
        "most reception in the disconnected region": max(disconnected, default=None),
        "lost at the sensitivity, packets of 20 bytes": sensitivity_loss,
        "links neither good nor bad (10 to 90 %), maximum": max(row["mixed_links"] for row in curve),
    }
    return R1.judge(parts, figures)


def judge_r2(rows: Sequence[Row]) -> Outcome:
    covered, away = (
        {
            model: {
                f"{speed:g} m/s": mean_of(where(rows, model=model, speed=speed), column, 3) or 0.0
                for speed in sorted(distinct(rows, "speed"))
            }
            for model in MODELS
        }
        for column in ("covered", "from_start_m")
    )
    walk, waypoint = (covered[model] for model in ("random walk", "random waypoint"))
    parts = {
        f"at {speed} random waypoint does not cover more": waypoint[speed] > walk[speed] for speed in walk
    }
    figures = {
        "share of the area that a station has been in after 700 s": covered,
        "mean distance from where it started, second half, m": away,
    }
    return R2.judge(parts, figures)
