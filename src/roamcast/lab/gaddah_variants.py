"""What decides G7, G8 and G10: the thesis's setting with one choice changed at a time. Claims R26 to R28.

Each variant is a choice that the thesis leaves open, or that its words allow. Runs have the movement RND and
as many subscribers as the claims name: few (10), many (100) and most (200).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from roamcast.lab.experiment import Claim, Experiment, Findings, Outcome, register
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

MOST = 2 * MANY
LOSS = (REACTIVE, DURABLE, PROACTIVE)
THROUGHPUT = (PROACTIVE, REACTIVE, DURABLE)


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
BOTH = "own queues, caching aside"
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
"""Caching aside: brokers cache and transfer beside their deliveries, as with a thread of their own for it, so
that only the publisher, who waits for persistence, is slowed down."""


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

R26 = Claim(
    "R26", "order",
    "G8, the order of losses, is decided by whose the 1 MB is: reactive > durable > pro-active with 100 "
    "subscribers or more, and pro-active's falling, if each virtual subscriber has a queue of its own; no "
    "other choice tried gives it",
    "1 MB for each broker (4.4.1), and pro-active's loss far below durable's (table 5.3)",
)  # fmt: skip
R27 = Claim(
    "R27", "order",
    "G7, the order of handoffs from 50 subscribers up, is decided by whether deliveries wait for caching: "
    "reactive far above pro-active above durable, if caching goes on aside; not in the setting as it is",
    "durable 0.049 s at 200 subscribers: its handoffs hardly wait for anything (table 5.1)",
)  # fmt: skip
R28 = Claim(
    "R28", "order",
    "G10, the order of throughput at 100 subscribers or more: the variants in which pro-active > reactive > "
    "durable are those in which durable's caching slows the publisher down; it does not where the publisher "
    "waits for its own broker",
    "pro-active > reactive > durable (table 5.2)",
)  # fmt: skip


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
    """Which parts of the claims hold in a variant; the thesis's order from `MANY` subscribers up."""
    loss, rate, handoff = (
        over(rows, "subscribers", y) for y in ("loss_percent", "useful_per_s", "handoff_mean_s")
    )
    many = [x for x in loss[PROACTIVE].xs if x >= MANY]
    far = all(handoff[REACTIVE].at(x) >= FAR_MIN * handoff[PROACTIVE].at(x) for x in many)
    return {
        "loss: order": is_order(loss, LOSS, many),
        "loss: pro-active's falls": loss[PROACTIVE].growth < 0,
        "handoff: order": far and is_order(handoff, (PROACTIVE, DURABLE), many),
        "throughput: order": is_order(rate, THROUGHPUT, many),
    }


def names_where(held: dict[str, dict[str, bool]], *parts: str) -> list[str]:
    return [name for name, found in held.items() if all(found[part] for part in parts)]


def judge_r26(held: dict[str, dict[str, bool]]) -> Outcome:
    both = names_where(held, "loss: order", "loss: pro-active's falls")
    wanted = [OWN_QUEUES, BOTH]
    parts = {
        f"{OWN_QUEUES} does not give it": OWN_QUEUES in both,
        f"it holds in others, too: {', '.join(sorted(set(both) - set(wanted)))}": set(both) <= set(wanted),
    }
    figures = {"the order holds": names_where(held, "loss: order"),
               "pro-active's falls": names_where(held, "loss: pro-active's falls")}  # fmt: skip
    return R26.judge(parts, figures)


def judge_r27(held: dict[str, dict[str, bool]]) -> Outcome:
    found = names_where(held, "handoff: order")
    parts = {f"{ASIDE}: not": ASIDE in found, "as set it holds": AS_SET not in found}
    return R27.judge(parts, {"the order holds": found})


def judge_r28(held: dict[str, dict[str, bool]]) -> Outcome:
    found = names_where(held, "throughput: order")
    parts = {
        "no variant has it": bool(found),
        "it holds where the publisher waits for its own broker": "the publisher waits for its own broker"
        not in found,
    }
    return R28.judge(parts, {"the order holds": found})


register(Experiment("gaddah-variants", "Gaddah: what decides G7, G8 and G10", (R26, R27, R28), experiment))
