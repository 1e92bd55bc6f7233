"""Which choices decide G7, G8 and G10: the thesis's setting with one choice changed at a time. Claims R26 to
R28.

Each variant changes a choice that the thesis leaves open or allows. Runs have the movement RND and the
numbers of subscribers that the claims name: few (10), many (100) and most (200). The claims were written
after quick runs of one seed: they describe those results, and full runs have yet to confirm them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.gaddah import (
    DURABLE,
    FAR_MIN,
    FEW,
    FULL,
    MANY,
    PROACTIVE,
    PROTOCOLS,
    QUICK,
    REACTIVE,
    is_order,
    order,
    over,
)
from roamcast.lab.gaddah_testbed import THESIS, BuildingJob, Choices, simulate
from roamcast.lab.rows import Row, mean_of, where
from roamcast.lab.sweep import Sweep

R26, R27, R28 = map(claim, ("R26", "R27", "R28"))

MOST = 2 * MANY


AS_IT_IS = Choices()


@dataclass(frozen=True)
class VariantJob(BuildingJob):
    variant: str = ""
    chosen: Choices = AS_IT_IS

    @property
    def choices(self) -> Choices:
        return self.chosen


AS_SET = "as set"
OWN_QUEUES = "a queue of 1 MB for each virtual subscriber"
ASIDE = "caching aside"
BOTH = "own queues and caching aside"
VARIANTS: dict[str, VariantJob] = {
    AS_SET: VariantJob("", costs=THESIS),
    OWN_QUEUES: VariantJob("", costs=THESIS, chosen=Choices(own_queues=True)),
    ASIDE: VariantJob("", costs=THESIS, chosen=Choices(stores_aside=True)),
    BOTH: VariantJob("", costs=THESIS, chosen=Choices(own_queues=True, stores_aside=True)),
    "two neighbours at most": VariantJob("", costs=THESIS, chosen=Choices(neighbours_max=2)),
    "messages of 2,000 bytes": VariantJob("", costs=replace(THESIS, message_bytes=2_000)),
    "reactive stores once": VariantJob("", costs=replace(THESIS, reactive_shares=True)),
    "the publisher waits for its own broker": VariantJob("", costs=replace(THESIS, waits_for_all=False)),
}
"""Variants by name. "Caching aside": brokers cache and transfer beside their deliveries, as in a thread of
its own, so that only the publisher, which waits for persistence, is slowed down.
"""


def jobs(quick: bool) -> list[VariantJob]:
    size, populations = (QUICK, (FEW, MANY)) if quick else (FULL, (FEW, MANY, MOST))
    return [
        replace(
            variant, variant=name, protocol=protocol, subscribers=subscribers, seed=seed,
            warm_up_s=max(size.warm_up_s, 6000 / subscribers), window_s=size.window_s,
        )
        for name, variant in VARIANTS.items()
        for protocol in PROTOCOLS
        for subscribers in populations
        for seed in range(1, (1 if quick else 3) + 1)
    ]  # fmt: skip


def measure(job: VariantJob) -> Row:
    row = simulate(job)
    return {name: row[name] for name in ("variant", "protocol", "subscribers", "seed", *MEASURED)}


MEASURED = (
    "loss_percent", "duplicate_percent", "useful_per_s", "handoff_mean_s", "published_per_s", "miss_percent",
)  # fmt: skip

HALF, FIFTH = 0.5, 0.8


@checks("gaddah-variants", "Gaddah: what decides G7, G8 and G10", R26, R27, R28)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    table = [
        {"variant": name, "subscribers": subscribers, **verdicts_at(where(rows, variant=name), subscribers)}
        for name in VARIANTS
        for subscribers in sorted({row["subscribers"] for row in rows})
    ]
    held = {name: held_by(where(rows, variant=name)) for name in VARIANTS}
    return Findings([judge_r26(held), judge_r27(held), judge_r28(held)], {"variants": table})


def verdicts_at(rows: Sequence[Row], subscribers: int) -> Row:
    found: Row = {}
    for y in ("loss_percent", "useful_per_s", "handoff_mean_s"):
        curves = over(rows, "subscribers", y)
        found[f"{y}, order"] = order(curves, subscribers)
        found |= {
            f"{y}, {name}": mean_of(where(rows, protocol=name, subscribers=subscribers), y, 4)
            for name in PROTOCOLS
        }
    return found


def held_by(rows: Sequence[Row]) -> dict[str, bool]:
    """Return what holds in a variant, from `MANY` subscribers up."""
    loss, rate, handoff = (
        over(rows, "subscribers", y) for y in ("loss_percent", "useful_per_s", "handoff_mean_s")
    )
    many = [x for x in loss[PROACTIVE].xs if x >= MANY]
    far = all(handoff[REACTIVE].at(x) >= FAR_MIN * handoff[PROACTIVE].at(x) for x in many)
    return {
        LOWEST: all(
            loss[PROACTIVE].at(x) < min(loss[DURABLE].at(x), loss[REACTIVE].at(x))
            and loss[PROACTIVE].at(x) <= HALF * loss[PROACTIVE].at(FEW)
            for x in many
        ),
        REACTIVE_MOST: loss[REACTIVE].at(MANY) > loss[DURABLE].at(MANY),
        HANDOFF: far and is_order(handoff, (PROACTIVE, DURABLE), many),
        DURABLE_LAST: is_order(rate, (PROACTIVE, REACTIVE, DURABLE), many)
        and all(rate[DURABLE].at(x) <= FIFTH * rate[REACTIVE].at(x) for x in many),
    }


LOWEST, REACTIVE_MOST = "pro-active loses least, and its loss halves", "reactive loses more than durable"
HANDOFF, DURABLE_LAST = "the order of handoffs", "durable is last, by at least a fifth"
Held = Mapping[str, Mapping[str, bool]]


def names_where(held: Held, part: str) -> list[str]:
    return [name for name, found in held.items() if found[part]]


def only_in(held: Held, part: str, wanted: Sequence[str]) -> dict[str, bool | None]:
    found = names_where(held, part)
    others = [name for name in found if name not in wanted]
    return {
        f"{part}: not in every one of: {', '.join(wanted)}": set(wanted) <= set(found),
        f"{part}: in others, too: {', '.join(others)}": not others,
    }


def judge_r26(held: Held) -> Outcome:
    most = names_where(held, REACTIVE_MOST)
    parts = only_in(held, LOWEST, (OWN_QUEUES, BOTH))
    parts[f"reactive loses more than durable in: {', '.join(most)}"] = not most
    return R26.judge(parts, {LOWEST: names_where(held, LOWEST), REACTIVE_MOST: most})


def judge_r27(held: Held) -> Outcome:
    found = names_where(held, HANDOFF)
    parts = {f"not with {ASIDE}": ASIDE in found, "in the unchanged setting": AS_SET not in found}
    return R27.judge(parts, {HANDOFF: found})


def judge_r28(held: Held) -> Outcome:
    found = names_where(held, DURABLE_LAST)
    return R28.judge(only_in(held, DURABLE_LAST, (ASIDE, BOTH)), {DURABLE_LAST: found})
