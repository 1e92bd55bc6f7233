"""The thesis's first approach (chapter 3) over the radio, beside MFT-PubSub. Claims R21 and R22.

The thesis tells both with message sequences and measures MFT-PubSub alone. Here recursive migration runs on
the same stations: the same election, links and ways of the nodes, and other rules of the brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roamcast.lab.amozarrain_radio import (
    DURATION_QUICK_S,
    DURATION_S,
    MFT,
    PUBLISHING_QUICK_S,
    PUBLISHING_S,
    SPEED,
    figures_of,
    is_above,
    shown,
)  # fmt: skip
from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, register
from roamcast.lab.rows import Row, distinct, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility import find_mobile_protocol
from roamcast.simulator.radio.scenario import RadioScenario

FIRST, SECOND = "recursive_migration", "mft"
SIZES, SIZES_QUICK = (8, 16, 32), (8, 16)
SEEDS, SEEDS_QUICK = 10, 5

R21 = Claim(
    "R21", "order",
    "over the radio, at 8 m/s, MFT-PubSub delivers a larger share of what is owed than the first approach, "
    "in which nobody knows how old an entry is (section 3.5)",
    "the first approach leaves inconsistent tables after partitions; MFT-PubSub repairs them",
)  # fmt: skip
R22 = Claim(
    "R22", "order",
    "over the radio, at 8 m/s, MFT-PubSub sends fewer messages for each migration than the first approach, "
    "whose migrations force those below them (sections 3.4 and 4.2)",
    "13 messages against 2 for the simple migration (sections 3.4 and 4.4)",
)  # fmt: skip
WHY_MORE = (
    "the sequences of the thesis are of tables that agree; over the radio they seldom do, and each "
    "difference is repaired by a BSUB that goes to every broker, while few migrations force others"
)

CONTROL = ("bmig", "bquery", "bsub", "bmigoflocals", "btab", "fmig", "sub", "uns")


@dataclass(frozen=True)
class ApproachJob(Job):
    rules: str
    brokers: int
    seed: int
    duration_s: float
    publishing_s: float

    @property
    def name(self) -> str:
        return f"{self.rules} C{self.brokers} seed={self.seed}"

    @property
    def repetition(self) -> int:
        return self.seed

    @property
    def cost(self) -> float:
        return self.brokers**2 * self.duration_s


def measure(job: ApproachJob) -> Row:
    plain = RadioScenario(
        job.brokers, SPEED, MFT, job.seed, job.duration_s, rules=find_mobile_protocol(job.rules)
    )
    figures = figures_of(replace(plain, publishing=replace(plain.publishing, until_s=job.publishing_s)))
    control = sum(figures.get(f"sent_{kind}", 0) for kind in CONTROL)
    return {**figures, "rules": job.rules, "per_migration": control / max(figures["migrations"], 1)}


def experiment(quick: bool, sweep: Sweep) -> Findings:
    lengths = (DURATION_QUICK_S, PUBLISHING_QUICK_S) if quick else (DURATION_S, PUBLISHING_S)
    jobs = [
        ApproachJob(rules, size, seed, *lengths)
        for rules in (FIRST, SECOND)
        for size in (SIZES_QUICK if quick else SIZES)
        for seed in range(1, (SEEDS_QUICK if quick else SEEDS) + 1)
    ]
    rows = sweep.run(measure, jobs)
    outcomes = [
        judge(R21, rows, "delivery_rate", +1),
        judge(R22, rows, "per_migration", -1, WHY_MORE),
    ]
    return Findings(outcomes, {"first_approach": rows}, {})


def judge(claim: Claim, rows: Sequence[Row], name: str, sign: int, why: str = "") -> Outcome:
    """Whether MFT-PubSub has more of it (or fewer, with -1) in every size, seed by seed."""
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    figures: dict[str, object] = {}
    for size in sorted(distinct(rows, "brokers")):
        first, second = (
            {row["seed"]: row[name] for row in where(rows, rules=rules, brokers=size)}
            for rules in (FIRST, SECOND)
        )
        more = [sign * (second[seed] - first[seed]) for seed in second]
        figures[f"C{size}, first approach"] = shown(list(first.values()), 3)
        figures[f"C{size}, MFT-PubSub"] = shown(list(second.values()), 3)
        parts[f"C{size}: {name.replace('_', ' ')}, how much better MFT-PubSub is: {shown(more, 3)}"] = (
            is_above(more)
        )
    return claim.judge(parts, figures, why=why)


register(
    Experiment("amozarrain-first-approach", "Amozarrain, chapter 3 over the radio", (R21, R22), experiment)
)
