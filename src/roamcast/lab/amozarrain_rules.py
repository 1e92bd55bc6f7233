"""Two rules side by side over the radio, seed by seed (Amozarrain, chapters 3 and 5). Claims R21, R22, R24.

- The first approach (chapter 3) beside MFT-PubSub: stations, election and links are the same, and only the
  brokers' rules differ. The thesis describes both with message sequences and measures only MFT-PubSub.
- A backbone of slow brokers (5.2, future work): half of the stations are slow, and each knows its speed.
  Stable trees, which ignore speed, are compared with trees that prefer slow leaders and parents and in
  which subscribers join the slowest broker that they hear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from roamcast.lab.amozarrain_radio import (
    DURATION_QUICK_S,
    DURATION_S,
    MFT,
    PUBLISHING_QUICK_S,
    PUBLISHING_S,
    SPEED,
    differences,
    figures_of,
    is_above,
    shown,
)  # fmt: skip
from roamcast.lab.experiment import Claim, Findings, Outcome, checks, claim
from roamcast.lab.rows import Row, distinct, values_of, where
from roamcast.lab.sweep import Job, Sweep, grid, seeds
from roamcast.mobility import find_mobile_protocol
from roamcast.mobility.moving.election import TreeRule, settings_of
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.mft_program import MftBroker, MftClient
from roamcast.simulator.radio.scenario import RadioScenario
from roamcast.simulator.radio.workload import Publishing

R21, R22, R24 = map(claim, ("R21", "R22", "R24"))

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
            election=settings_of("backbone" if self.rule == "backbone" else "stable", 1.0, 0.25),
            slow_speed=SLOW,
            links=LinkSettings(clients_prefer_slow=self.rule == "backbone"),
        )  # fmt: skip


def jobs(rules: Sequence[str], sizes: Sequence[int], quick: bool) -> list[RuleJob]:
    one, each = partial(RuleJob, is_quick=quick), seeds(SEEDS_QUICK if quick else SEEDS)
    return grid(one, rule=rules, brokers=sizes, seed=each)


def judge(claim: Claim, rows: Sequence[Row]) -> Outcome:
    """Judge whether the second rule has more of each measure (fewer, with sign -1) in every size, seed by
    seed.
    """
    rules, measures, sign = JUDGED[claim]
    parts: dict[str, bool | None] = {} if rows else {"there are no runs": None}
    figures: dict[str, object] = {}
    for size in sorted(distinct(rows, "brokers")):
        found = where(rows, brokers=size)
        for name, label in measures.items():
            figures[f"C{size}, {label}"] = {
                rule: shown(values_of(where(found, rule=rule), name), 3) for rule in rules
            }
            more = differences(found, name, {"rule": rules[1]}, {"rule": rules[0]})
            better = [sign * one for one in more]
            said = f"C{size}: {label}, how much better {rules[1]} is: {shown(better, 3)}"
            parts[said] = is_above(better)
    return claim.judge(parts, figures, why=claim.why)


# --- the first approach ---

APPROACHES = ("recursive_migration", "mft")
CONTROL = ("bmig", "bquery", "bsub", "bmigoflocals", "btab", "fmig", "sub", "uns")


def measure_approach(job: RuleJob) -> Row:
    figures = figures_of(job.scenario())
    control = sum(figures.get(f"sent_{kind}", 0) for kind in CONTROL)
    return {**figures, "rule": job.rule, "per_migration": control / max(figures["migrations"], 1)}


@checks("amozarrain-first-approach", "Amozarrain, chapter 3 over the radio", R21, R22)
def first_approach(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(measure_approach, jobs(APPROACHES, (8, 16) if quick else (8, 16, 32), quick))
    return Findings([judge(R21, rows), judge(R22, rows)], {"first_approach": rows})


# --- a backbone of slow brokers ---

TREES: tuple[TreeRule, ...] = ("stable", "backbone")
SLOW = 0.5


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


@checks("amozarrain-backbone", "Amozarrain 5.2: a backbone of slow brokers", R24)
def backbone(quick: bool, sweep: Sweep) -> Findings:
    rows = sweep.run(measure_backbone, jobs(TREES, (16,) if quick else (16, 32), quick))
    return Findings([judge(R24, rows)], {"backbone": rows})


JUDGED: Mapping[Claim, tuple[Sequence[str], Mapping[str, str], int]] = {
    R21: (APPROACHES, {"delivery_rate": "delivery rate"}, +1),
    R22: (APPROACHES, {"per_migration": "messages for a migration"}, -1),
    R24: (TREES, {"slow_brokers": "migrations of a slow broker", "clients": "migrations of a client"}, -1),
}
"""By claim: the two rules, what is measured, and the sign of what is better."""
