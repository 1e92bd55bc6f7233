"""A backbone of slow brokers (Amozarrain 5.2, future work). Claim R24.

Half of the stations are slow, the others as fast as in the thesis's figures, and everyone knows its speed.
Stable trees, which do not ask for it, are compared with trees that prefer slow leaders and parents, in which
subscribers join the slowest broker that they hear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from roamcast.lab.amozarrain_radio import (
    DURATION_QUICK_S,
    DURATION_S,
    MFT,
    PUBLISHING_QUICK_S,
    PUBLISHING_S,
    SPEED,
    is_above,
    shown,
)  # fmt: skip
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, register
from roamcast.lab.rows import Row, distinct, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility.moving.election import TreeRule, settings_of
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.mft_program import MftBroker, MftClient
from roamcast.simulator.radio.scenario import RadioScenario

R24 = Claim(
    "R24", "order",
    "where half of the nodes move at 0.5 m/s and half at 8 m/s, a backbone of slow brokers, which clients "
    "prefer, has fewer migrations of its brokers and of clients than stable trees that do not know speeds",
    "a backbone of slower nodes where links are more stable, and fewer migrations inside it (section 5.2)",
)  # fmt: skip

RULES: tuple[TreeRule, ...] = ("stable", "backbone")
SLOW = 0.5
MEASURES = {"slow_brokers": "migrations of a slow broker", "clients": "migrations of a client"}


@dataclass(frozen=True)
class BackboneJob(Job):
    rule: TreeRule
    brokers: int
    seed: int
    duration_s: float
    publishing_s: float

    @property
    def name(self) -> str:
        return f"{self.rule} C{self.brokers} seed={self.seed}"

    @property
    def repetition(self) -> int:
        return self.seed

    @property
    def cost(self) -> float:
        return self.brokers**2 * self.duration_s


def measure(job: BackboneJob) -> Row:
    plain = RadioScenario(
        job.brokers, SPEED, MFT, job.seed, job.duration_s,
        election=settings_of(job.rule, 1.0, 0.25), slow_speed=SLOW,
        links=LinkSettings(clients_prefer_slow=job.rule == "backbone"),
    )  # fmt: skip
    run = replace(plain, publishing=replace(plain.publishing, until_s=job.publishing_s)).run()
    brokers = [one for one in run.programs if isinstance(one, MftBroker)]
    clients = [one for one in run.programs if isinstance(one, MftClient)]
    is_slow = {one: plain.speed_of(one.station.number) == SLOW for one in brokers}
    return {
        "rule": job.rule,
        "brokers": job.brokers,
        "seed": job.seed,
        "slow_brokers": fmean(one.migrations for one in brokers if is_slow[one]),
        "fast_brokers": fmean(one.migrations for one in brokers if not is_slow[one]),
        "clients": fmean(one.migrations for one in clients),
        "delivered": run.figures()["delivered"],
    }


def experiment(quick: bool, sweep: Sweep) -> Findings:
    lengths = (DURATION_QUICK_S, PUBLISHING_QUICK_S) if quick else (DURATION_S, PUBLISHING_S)
    sizes, seeds = ((16,), 5) if quick else ((16, 32), 10)
    jobs = [
        BackboneJob(rule, size, seed, *lengths)
        for rule in RULES
        for size in sizes
        for seed in range(1, seeds + 1)
    ]
    rows = sweep.run(measure, jobs)
    return Findings([judge(rows)], {"backbone": rows}, {})


def judge(rows: Sequence[Row]) -> Outcome:
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    figures: dict[str, object] = {}
    for size in sorted(distinct(rows, "brokers")):
        for name, label in MEASURES.items():
            stable, backbone = (
                {row["seed"]: row[name] for row in where(rows, rule=rule, brokers=size)} for rule in RULES
            )
            figures[f"C{size}, {label}"] = {
                "stable": shown(list(stable.values()), 2),
                "backbone": shown(list(backbone.values()), 2),
            }
            fewer = [stable[seed] - backbone[seed] for seed in stable]
            parts[f"C{size}: {label}, fewer with a backbone by {shown(fewer, 2)}"] = is_above(fewer)
    return R24.judge(parts, figures)


register(Experiment("amozarrain-backbone", "Amozarrain 5.2: a backbone of slow brokers", (R24,), experiment))
