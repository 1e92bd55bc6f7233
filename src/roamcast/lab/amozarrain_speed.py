"""What decides A7's second half and A10: MFT-PubSub alone, one choice changed at a time. Claims R30, R31.

A7 says that MFT-PubSub's delivery rate improves with speed. The text gives the reason: undeliverable
notifications are stored, and the faster nodes are, the sooner a subscriber passes by (4.5.3). A10 says that
brokers closer to the leader have a higher load; the leader and its neighbours are judged apart. Each variant
begins with all that the text says or implies (`AS_IN_THE_TEXT`), or with our own setting, and changes one
thing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from roamcast.lab.amozarrain_radio import (
    DURATION_QUICK_S,
    DURATION_S,
    IEEE,
    MFT,
    PUBLISHING_QUICK_S,
    PUBLISHING_S,
    SETTINGS,
    TEXT,
    differences,
    is_above,
    shown,
)
from roamcast.lab.amozarrain_radio_variants import VariantJob, measure
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.rows import Row, values_of, where
from roamcast.lab.sweep import Sweep
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.parameters import CASTALIA_CSMA, RadioParameters
from roamcast.simulator.radio.scenario import RadioScenario
from roamcast.simulator.radio.workload import Publishing

R30, R31 = map(claim, ("R30", "R31"))

SIZE = 16
SLOW, FAST = 2.0, 10.0
SEEDS, SEEDS_QUICK = 10, 4
EXPONENT_SHORT = 3.0
"""Path loss exponent at which frames are heard to about 20 m instead of 45. The network falls into parts, and
notifications published in one part are stored for subscribers in another.
"""


def _text(**changes: Any) -> dict[str, Any]:
    return {**SETTINGS[TEXT], **changes}


TEXT_LINKS: LinkSettings = SETTINGS[TEXT]["links"]
VARIANTS: Mapping[str, dict[str, Any]] = {
    "as in the text": _text(),
    "text, frames acknowledged": _text(parameters=RadioParameters()),
    "text, patient election": _text(election=ElectionSettings()),
    "text, clients stay with their broker": _text(links=replace(TEXT_LINKS, clients_follow=False)),
    "text, clients are asked to connect again": _text(links=replace(TEXT_LINKS, relinks=True)),
    "text, publishing every 5 s": _text(publishing=Publishing(every_s=5.0)),
    "text, short range": _text(parameters=replace(CASTALIA_CSMA, path_loss_exponent=EXPONENT_SHORT)),
    "text, acknowledged, short range": _text(parameters=RadioParameters(path_loss_exponent=EXPONENT_SHORT)),
    "ours": dict(SETTINGS[IEEE]),
    "ours, short range": {"parameters": RadioParameters(path_loss_exponent=EXPONENT_SHORT)},
    "ours without acknowledgements": {"parameters": CASTALIA_CSMA},
}
UNSTORED = "as in the text, without what is stored at the end"
"""Another way to count (4.5.3): "this metric does not take into account messages that are stored"."""


def jobs(quick: bool) -> list[VariantJob]:
    duration_s, until_s = (DURATION_QUICK_S, PUBLISHING_QUICK_S) if quick else (DURATION_S, PUBLISHING_S)
    made = []
    for name, changes in VARIANTS.items():
        for speed in (SLOW, FAST):
            for seed in range(1, (SEEDS_QUICK if quick else SEEDS) + 1):
                plain = RadioScenario(SIZE, speed, MFT, seed, duration_s=duration_s)
                changed = replace(plain, **changes)
                publishing = replace(changed.publishing, until_s=until_s)
                made.append(VariantJob(name, replace(changed, publishing=publishing)))
    return made


@checks("amozarrain-speed", "What decides A7 and A10: speed and load, over the air", R30, R31)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    table = [compared(name, where(rows, variant=name)) for name in VARIANTS]
    stored = compared(UNSTORED, where(rows, variant="as in the text"), "delivery_rate_unstored")
    return Findings([judge_r30([*table, stored]), judge_r31(table)], {"speed": [*table, stored]})


def compared(name: str, rows: Sequence[Row], rate: str = "delivery_rate") -> Row:
    """Return the delivery rate of a variant at both speeds, and the messages sent by distance from the
    leader.
    """
    gain = differences(rows, rate, {"speed": FAST}, {"speed": SLOW})
    more = {
        hops: [row[f"load_at_{hops}_hops"] - row["load_far"] for row in rows
               if None not in (row[f"load_at_{hops}_hops"], row["load_far"])]
        for hops in (0, 1)
    }  # fmt: skip
    return {
        "variant": name,
        "rate at 2 m/s": shown(values_of(where(rows, speed=SLOW), rate), 3),
        "rate at 10 m/s": shown(values_of(where(rows, speed=FAST), rate), 3),
        "more at 10 m/s": shown(gain, 3),
        "improves": is_above(gain),
        "stored at the end": shown(values_of(rows, "stored"), 1),
        "the leader sends more by": shown(more[0], 2),
        "leader": is_above(more[0]),
        "its neighbours send more by": shown(more[1], 2),
        "neighbours": is_above(more[1]),
    }


def judge_r30(table: Sequence[Row]) -> Outcome:
    improve = [row["variant"] for row in table if row["improves"]]
    figures = {row["variant"]: row["more at 10 m/s"] for row in table}
    said = f"it does in: {', '.join(improve)}" if improve else ""
    return R30.judge(
        {f"none of {len(table)} variants improves with speed": bool(improve)}, figures, notes=[said]
    )


def judge_r31(table: Sequence[Row]) -> Outcome:
    more = [row["variant"] for row in table if row["neighbours"]]
    not_more = [row["variant"] for row in table if row["neighbours"] is not True]
    parts = {
        "the leader does not always send the most": all(row["leader"] for row in table),
        "its neighbours send more in no variant": bool(more),
        "its neighbours send more in all variants": bool(not_more),
    }
    figures = {row["variant"]: row["its neighbours send more by"] for row in table}
    said = f"its neighbours send more in: {', '.join(more)}" if more else ""
    return R31.judge(parts, figures, notes=[said])
