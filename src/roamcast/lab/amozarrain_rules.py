"""Two rules side by side over the radio, seed by seed (Amozarrain, chapters 3 and 5). Claims R21, R22, R24.

- The first approach (chapter 3) beside MFT-PubSub: stations, election and links are the same, and only the
  brokers' rules differ. The thesis describes both with message sequences and measures only MFT-PubSub.
- A backbone of slow brokers (5.2, future work): half of the stations are slow, and each knows its speed.
  Stable trees, which ignore speed, are compared with trees that prefer slow leaders and parents and in
  which subscribers join the slowest broker that they hear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

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
from roamcast.mobility.moving.election import TreeRule, settings_of
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.mft_program import MftBroker, MftClient
from roamcast.simulator.radio.scenario import RadioScenario
from roamcast.simulator.radio.workload import Publishing

SEEDS, SEEDS_QUICK = 10, 5


@dataclass(frozen=True)
class RuleJob(Job):
    rule: str
    brokers: int
    seed: int
    is_quick: bool = False

    @property
    def cost(self) -> float:
        return self.brokers**2 * (DURATION_QUICK_S if self.is_quick else DURATION_S)

    def scenario(self) -> RadioScenario:
        duration_s = DURATION_QUICK_S if self.is_quick else DURATION_S
        publishing = Publishing(until_s=PUBLISHING_QUICK_S if self.is_quick else PUBLISHING_S)
        if self.rule in APPROACHES:
            rules = find_mobile_protocol(self.rule)
            return RadioScenario(
                self.brokers, SPEED, MFT, self.seed, duration_s, publishing=publishing, rules=rules
            )
        return RadioScenario(
            self.brokers, SPEED, MFT, self.seed, duration_s, publishing=publishing,
            election=settings_of(TREES[self.rule], 1.0, 0.25), slow_speed=SLOW,
            links=LinkSettings(clients_prefer_slow=self.rule == "backbone"),
        )  # fmt: skip


def run_jobs(
    sweep: Sweep,
    measure: Callable[[RuleJob], Row],
    rules: Sequence[str],
    sizes: Sequence[int],
    quick: bool,
) -> list[Row]:
    seeds = range(1, (SEEDS_QUICK if quick else SEEDS) + 1)
    return sweep.run(
        measure, [RuleJob(rule, size, seed, quick) for rule in rules for size in sizes for seed in seeds]
    )


def judge(
    claim: Claim,
    rows: Sequence[Row],
    rules: Sequence[str],
    measures: Mapping[str, str],
    sign: int,
    why: str = "",
) -> Outcome:
    """Judge whether the second rule has more of each measure (fewer, with sign -1) in every size, seed by
    seed.
    """
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    figures: dict[str, object] = {}
    for size in sorted(distinct(rows, "brokers")):
        for name, label in measures.items():
            first, second = (
                {row["seed"]: row[name] for row in where(rows, rule=rule, brokers=size)} for rule in rules
            )
            figures[f"C{size}, {label}"] = {
                rule: shown(list(values.values()), 3)
                for rule, values in zip(rules, (first, second), strict=True)
            }
            better = [sign * (second[seed] - first[seed]) for seed in second if seed in first]
            said = f"C{size}: {label}, how much better {rules[1]} is: {shown(better, 3)}"
            parts[said] = is_above(better)
    return claim.judge(parts, figures, why=why)


# --- the first approach ---

R21 = Claim(
    "R21", "order",
    "over the radio, at 8 m/s, MFT-PubSub delivers a larger share of what is owed than the first "
    "approach, in which the age of an entry is unknown (section 3.5)",
    "the first approach leaves inconsistent tables after partitions; MFT-PubSub repairs them",
)  # fmt: skip
R22 = Claim(
    "R22", "order",
    "over the radio, at 8 m/s, MFT-PubSub sends fewer messages for each migration than the first "
    "approach, in which a migration forces all brokers below to migrate (sections 3.4 and 4.2)",
    "13 messages against 2 for the simple migration (sections 3.4 and 4.4)",
)  # fmt: skip
WHY_MORE = (
    "the sequences of the thesis assume that tables agree; over the radio they seldom do, and each "
    "difference is repaired by a BSUB to every broker, while a migration seldom forces others"
)
APPROACHES = ("recursive_migration", "mft")
CONTROL = ("bmig", "bquery", "bsub", "bmigoflocals", "btab", "fmig", "sub", "uns")


def measure_approach(job: RuleJob) -> Row:
    figures = figures_of(job.scenario())
    control = sum(figures.get(f"sent_{kind}", 0) for kind in CONTROL)
    return {**figures, "rule": job.rule, "per_migration": control / max(figures["migrations"], 1)}


def first_approach(quick: bool, sweep: Sweep) -> Findings:
    rows = run_jobs(sweep, measure_approach, APPROACHES, (8, 16) if quick else (8, 16, 32), quick)
    return Findings([judge_r21(rows), judge_r22(rows)], {"first_approach": rows}, {})


def judge_r21(rows: Sequence[Row]) -> Outcome:
    return judge(R21, rows, APPROACHES, {"delivery_rate": "delivery rate"}, +1)


def judge_r22(rows: Sequence[Row]) -> Outcome:
    return judge(R22, rows, APPROACHES, {"per_migration": "messages for a migration"}, -1, WHY_MORE)


# --- a backbone of slow brokers ---

R24 = Claim(
    "R24", "order",
    "where half of the nodes move at 0.5 m/s and half at 8 m/s, a backbone of slow brokers, which clients "
    "prefer, has fewer migrations of its brokers and of clients than stable trees that do not know speeds",
    "a backbone of slower nodes where links are more stable, and fewer migrations inside it (section 5.2)",
)  # fmt: skip
TREES: dict[str, TreeRule] = {"stable": "stable", "backbone": "backbone"}
SLOW = 0.5
MIGRATIONS = {"slow_brokers": "migrations of a slow broker", "clients": "migrations of a client"}


def measure_backbone(job: RuleJob) -> Row:
    scenario = job.scenario()
    run = scenario.run()
    brokers = [one for one in run.programs if isinstance(one, MftBroker)]
    clients = [one for one in run.programs if isinstance(one, MftClient)]
    is_slow = {one: scenario.speed_of(one.station.number) == SLOW for one in brokers}
    return {
        "rule": job.rule,
        "brokers": job.brokers,
        "seed": job.seed,
        "slow_brokers": fmean(one.migrations for one in brokers if is_slow[one]),
        "fast_brokers": fmean(one.migrations for one in brokers if not is_slow[one]),
        "clients": fmean(one.migrations for one in clients),
        "delivered": run.figures()["delivered"],
    }


def backbone(quick: bool, sweep: Sweep) -> Findings:
    rows = run_jobs(sweep, measure_backbone, tuple(TREES), (16,) if quick else (16, 32), quick)
    return Findings([judge_r24(rows)], {"backbone": rows}, {})


def judge_r24(rows: Sequence[Row]) -> Outcome:
    return judge(R24, rows, tuple(TREES), MIGRATIONS, -1)


register(Experiment("amozarrain-backbone", "Amozarrain 5.2: a backbone of slow brokers", (R24,), backbone))
register(
    Experiment(
        "amozarrain-first-approach", "Amozarrain, chapter 3 over the radio", (R21, R22), first_approach
    )
)
