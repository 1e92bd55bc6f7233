"""What decides A8 and A9: the same runs with other choices where the thesis leaves one open. Claims R3 to R5.

A variant changes one setting of the radio or of one protocol; the last variant changes every setting in which
the thesis differs from ours. Each is compared with the other protocol under the same radio and publishing.
Runs are as short as the quick ones of `amozarrain_radio`; what decides A8 is run in the thesis's length as
well, because what MFT-PubSub has stored arrives in the 200 s in which nobody publishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from roamcast.lab.amozarrain_radio import (
    AODV,
    AS_IN_THE_TEXT,
    BARELY_MAX,
    DURATION_QUICK_S,
    DURATION_S,
    LARGEST,
    MFT,
    PENS,
    PUBLISHING_QUICK_S,
    PUBLISHING_S,
    SIZES,
    SPEED,
    differences,
    figures_of,
    is_above,
    shown,
)  # fmt: skip
from roamcast.lab.charts import Chart, Panel
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.rows import Row, distinct, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.mobility.moving.mft_published import MftPublished
from roamcast.simulator.radio.aodv import AodvSettings
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.parameters import CASTALIA_CSMA, RadioParameters
from roamcast.simulator.radio.scenario import RadioProtocol, RadioScenario
from roamcast.simulator.radio.workload import Publishing

R3, R4, R5 = map(claim, ("R3", "R4", "R5"))

SMALLEST = SIZES[0]
SEEDS = {SMALLEST: 10, LARGEST: 4}
"""Number of seeds by size: runs of the smallest network are short."""
SEEDS_QUICK = {SMALLEST: 10, LARGEST: 3}
SEEDS_LONG = 3


@dataclass(frozen=True)
class Variant:
    name: str
    of: tuple[RadioProtocol, ...]
    """Protocols that the change affects; the other protocol's runs are taken from the variant `against`."""
    changes: Mapping[str, Any] = field(hash=False)
    against: str = "as set"
    """Variant from which the unaffected protocol's runs are taken."""
    quick: bool = False
    long: bool = False
    """True to run the variant in full length at C32, too."""

    def runs(self, protocol: RadioProtocol) -> str:
        """Return the variant from which this protocol's runs are taken."""
        return self.name if protocol in self.of else self.against


BOTH: tuple[RadioProtocol, ...] = (MFT, AODV)


def _publishing(**changes: Any) -> dict[str, Publishing]:
    return {"publishing": Publishing(**changes)}


def _aodv(**changes: Any) -> dict[str, AodvSettings]:
    return {"aodv": AodvSettings(**changes)}


def _election(**changes: Any) -> dict[str, ElectionSettings]:
    return {"election": ElectionSettings(**changes)}


VARIANTS = (
    Variant("as set", BOTH, {}, quick=True, long=True),
    Variant("Castalia's CSMA", BOTH, {"parameters": CASTALIA_CSMA}, "Castalia's CSMA", quick=True, long=True),
    Variant("no shadowing", BOTH, {"parameters": RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)},
            "no shadowing"),
    Variant("content of 8 bytes", BOTH, _publishing(content_bytes=8), "content of 8 bytes"),
    Variant("content of 100 bytes", BOTH, _publishing(content_bytes=100), "content of 100 bytes"),
    Variant("publishing every 5 s", BOTH, _publishing(every_s=5.0), "publishing every 5 s"),
    Variant("AODV: hello every 2 s", (AODV,), _aodv(hello_interval_s=2.0)),
    Variant("AODV: hello every 5 s", (AODV,), _aodv(hello_interval_s=5.0), quick=True),
    Variant("AODV: broken links by silence only", (AODV,), _aodv(link_feedback=False)),
    Variant("AODV: one waits for a route", (AODV,), _aodv(buffered_max=1)),
    Variant("AODV: no retry of RREQ", (AODV,), _aodv(rreq_retries=0)),
    Variant("AODV: 5 retries of RREQ", (AODV,), _aodv(rreq_retries=5)),
    Variant("AODV: RREQ without limit", (AODV,), _aodv(rreq_per_s_max=1000)),
    Variant("AODV: 2 RREQ a second", (AODV,), _aodv(rreq_per_s_max=2), long=True),
    Variant("AODV: expanding rings", (AODV,), _aodv(expanding_ring=True)),
    Variant("MFT: heartbeat every 0.25 s", (MFT,), _election(period_s=0.25, patience_s=0.0625), quick=True),
    Variant("MFT: heartbeat every 5 s", (MFT,), _election(period_s=5.0, patience_s=0.25)),
    Variant("MFT: 6 missed heartbeats", (MFT,), _election(missed_max=6)),
    Variant("MFT: margin of 3 hops", (MFT,), _election(margin_hops=3)),
    Variant("MFT: the first heartbeat wins", (MFT,),
            _election(patience_s=0.0) | {"links": LinkSettings(clients_follow=True)}),
    Variant("MFT: clients beat as well", (MFT,), {"links": LinkSettings(clients_beat=True)}, quick=True),
    Variant("MFT: nothing refused", (MFT,), {"links": LinkSettings(refused=False)}),
    Variant("MFT: nobody asked to connect again", (MFT,), {"links": LinkSettings(relinks=False)}),
    Variant("MFT: links given up after 3 tries", (MFT,), {"links": LinkSettings(tries=3)}),
    Variant("MFT: published to each", (MFT,), _publishing(to_each=True)),
    Variant("MFT: sent together", (MFT,), {"links": LinkSettings(grouped=True)}, quick=True, long=True),
    Variant("MFT: rules as published", (MFT,), {"rules": MftPublished}),
    Variant("as in the text", (MFT,),
            {"parameters": CASTALIA_CSMA, **_election(patience_s=0.0), "links": AS_IN_THE_TEXT},
            "Castalia's CSMA", quick=True, long=True),
    Variant("as in the text, rules as published", (MFT,),
            {"parameters": CASTALIA_CSMA, **_election(patience_s=0.0), "links": AS_IN_THE_TEXT,
             "rules": MftPublished}, "Castalia's CSMA", long=True),
)  # fmt: skip
BY_NAME = {variant.name: variant for variant in VARIANTS}


@dataclass(frozen=True)
class VariantJob(Job):
    variant: str
    scenario: RadioScenario

    @property
    def name(self) -> str:
        one = self.scenario
        return f"{self.variant}: {one.protocol} C{one.brokers} {one.duration_s:g} s seed={one.seed}"

    @property
    def repetition(self) -> int:
        return self.scenario.seed

    @property
    def cost(self) -> float:
        one = self.scenario
        return one.brokers**2 * one.duration_s * (2.5 if one.protocol == AODV else 1.0)


def measure(job: VariantJob) -> Row:
    return {"variant": job.variant, **figures_of(job.scenario)}


def jobs(quick: bool) -> list[VariantJob]:
    short, long = (DURATION_QUICK_S, PUBLISHING_QUICK_S), (DURATION_S, PUBLISHING_S)
    seeds = SEEDS_QUICK if quick else SEEDS
    chosen = [(one, seeds, short) for one in VARIANTS if one.quick or not quick]
    if not quick:
        chosen += [(one, {LARGEST: SEEDS_LONG}, long) for one in VARIANTS if one.long]
    return [
        VariantJob(one.name, scenario(one, protocol, size, seed, *lengths))
        for one, sizes, lengths in chosen
        for protocol in one.of
        for size, seeds in sizes.items()
        for seed in range(1, seeds + 1)
    ]


def scenario(
    variant: Variant,
    protocol: RadioProtocol,
    brokers: int,
    seed: int,
    duration_s: float = DURATION_QUICK_S,
    publishing_s: float = PUBLISHING_QUICK_S,
) -> RadioScenario:
    plain = RadioScenario(brokers, SPEED, protocol, seed, duration_s=duration_s)
    changed = replace(plain, **variant.changes)
    return replace(changed, publishing=replace(changed.publishing, until_s=publishing_s))


@checks("amozarrain-radio-variants", "What decides A8 and A9: other choices, over the air", R3, R4, R5)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    table = [comparison for variant in VARIANTS for comparison in compare(rows, variant)]
    outcomes = [judge_r3(rows), judge_r4(rows), judge_r5(rows)]
    tables = {"runs": list(rows), "variants": table, "counting": counted(rows)}
    lengths_s = sorted(distinct(table, "duration_s"))
    shortest = where(table, duration_s=lengths_s[0])
    delivered = {
        f"runs of {length_s:g} s": pairs(where(table, duration_s=length_s), "c32_delivered")
        for length_s in lengths_s
    }
    messages = {
        f"C{size}, runs of {lengths_s[0]:g} s": pairs(shortest, f"c{size}_messages_per_node")
        for size in (SMALLEST, LARGEST)
    }
    return Findings(
        outcomes,
        tables,
        {
            "delivered": chart(
                "Who delivers more at C32: MFT-PubSub or AODV",
                "notifications delivered in a run at C32, 8 m/s", delivered,
            ),
            "messages": chart(
                "Who sends more: MFT-PubSub or AODV", "messages sent by a node, 8 m/s", messages
            ),
        },
    )  # fmt: skip


def chart(title: str, label: str, panels: Mapping[str, Callable[[Axes], None]]) -> Chart:
    about = "means over seeds; one choice at a time, the other protocol under the same radio and publishing"
    said = {"xlabel": label, "xlim": (0, None)}
    shown = [Panel(draw, said, name) for name, draw in panels.items()]
    return Chart(title, about, shown, size=(5.2 + 4.3 * len(shown), 8.4), has_key=True)


def pairs(rows: Sequence[Row], column: str) -> Callable[[Axes], None]:
    """Draw one line per variant, from one protocol's value to the other's."""

    def draw(axes: Axes) -> None:
        for at, row in enumerate(rows):
            ends = [row[key] for protocol in PENS if (key := f"{protocol}_{column}") in row]
            axes.plot(ends, [at] * len(ends), color="#b9c3cb", linewidth=1.2, zorder=1)
        for protocol, pen in PENS.items():
            found = [(row[key], at) for at, row in enumerate(rows) if (key := f"{protocol}_{column}") in row]
            xs, places = zip(*found, strict=True) if found else ((), ())
            axes.scatter(xs, places, color=pen.colour, marker=pen.marker, label=pen.label, zorder=2)
        axes.set_yticks(range(len(rows)), [row["variant"] for row in rows], fontsize=8.5)
        axes.invert_yaxis()

    return draw


# --- one variant against the other protocol ---


def runs_of(
    rows: Sequence[Row],
    variant: Variant,
    protocol: RadioProtocol,
    brokers: int,
    duration_s: float,
    y: str | Callable[[Row], float],
) -> dict[int, float]:
    """Return the value of `y` for each seed."""
    found = where(
        rows, variant=variant.runs(protocol), protocol=protocol, brokers=brokers, duration_s=duration_s
    )
    return {row["seed"]: y(row) if callable(y) else float(row[y]) for row in found}


def aodv_more(
    rows: Sequence[Row], variant: Variant, brokers: int, duration_s: float, y: str | Callable[[Row], float]
) -> list[float]:
    """Return AODV's values minus those of MFT-PubSub, seed by seed."""
    mft, aodv = (runs_of(rows, variant, protocol, brokers, duration_s, y) for protocol in BOTH)
    return [aodv[seed] - mft[seed] for seed in aodv if seed in mft]


def compare(rows: Sequence[Row], variant: Variant) -> list[Row]:
    """Return one row per run length: each protocol's figures, and whether the thesis's orders hold."""
    compared = []
    for duration_s in sorted(distinct(where(rows, variant=variant.name), "duration_s")):
        made: Row = {"variant": variant.name, "duration_s": duration_s}
        for protocol, size in product(BOTH, SIZES):
            for y in ("delivered", "delivery_rate", "messages_per_node", "migrations"):
                if values := runs_of(rows, variant, protocol, size, duration_s, y).values():
                    made[f"{protocol}_c{size}_{y}"] = round(fmean(values), 3)
        for size, y in ((LARGEST, "delivered"), (SMALLEST, "messages_per_node")):
            made[f"aodv_more_c{size}_{y}"] = shown(aodv_more(rows, variant, size, duration_s, y), 1)
        made["mft_growth"] = _ratio(
            made, f"mft_c{LARGEST}_messages_per_node", f"mft_c{SMALLEST}_messages_per_node"
        )
        compared.append(made)
    return compared


def _ratio(row: Row, above: str, below: str) -> float | None:
    return round(row[above] / row[below], 2) if above in row and below in row else None


# --- R3: A8 at C32 ---


def judge_r3(rows: Sequence[Row]) -> Outcome:
    lengths = sorted(distinct(rows, "duration_s"))
    expected = {"as set": False, "Castalia's CSMA": True, "as in the text": True}
    parts: dict[str, bool | None] = {}
    for duration_s, (name, is_more) in product(lengths, expected.items()):
        more = aodv_more(rows, BY_NAME[name], LARGEST, duration_s, "delivered")
        who = "AODV" if is_more else "MFT-PubSub"
        parts[f"{name}, {duration_s:g} s: {who} does not deliver more"] = is_above(
            more if is_more else [-one for one in more]
        )
    figures: dict[str, object] = {
        f"C{LARGEST}, {duration_s:g} s, AODV minus MFT-PubSub (mean, low, high)": {
            variant.name: shown(values, 1)
            for variant in VARIANTS
            if (values := aodv_more(rows, variant, LARGEST, duration_s, "delivered"))
        }
        for duration_s in lengths
    }
    figures[f"C{LARGEST}, {lengths[-1]:g} s, rate of what was owed"] = {
        f"{name}, {protocol}": round(fmean(found), 3)
        for name, protocol in product(expected, BOTH)
        if (found := runs_of(rows, BY_NAME[name], protocol, LARGEST, lengths[-1], "delivery_rate").values())
    }
    return R3.judge(parts, figures)


# --- R4: A9 at C2 ---

REVERSED_BY = (
    "AODV: hello every 5 s",
    "MFT: heartbeat every 0.25 s",
    "MFT: clients beat as well",
    "as in the text",
)


def judge_r4(rows: Sequence[Row]) -> Outcome:
    duration_s = min(row["duration_s"] for row in rows)
    gaps = {
        variant.name: aodv_more(rows, variant, SMALLEST, duration_s, "messages_per_node")
        for variant in VARIANTS
    }
    parts: dict[str, bool | None] = {
        f"{name}: AODV does not send fewer": is_above([-one for one in gaps[name]]) for name in REVERSED_BY
    }
    parts["as set: AODV sends fewer"] = is_above(gaps["as set"])
    bare = aodv_more(rows, BY_NAME["as set"], SMALLEST, duration_s, COUNTING[BARE])
    parts["without hellos and heartbeats AODV does not send fewer"] = is_above([-one for one in bare])
    figures = {
        f"C{SMALLEST}, messages per node, AODV minus MFT-PubSub (mean, low, high)": {
            name: shown(values, 1) for name, values in gaps.items() if values
        },
        "the same as set, by what counts as a message": {
            row["what counts"]: row["aodv_more"] for row in counted(rows)
        },
    }
    return R4.judge(parts, figures)


BARE = "without hellos and heartbeats"
STEADY = "hellos, heartbeats and events alone"
"""Messages that would remain without migrations, broken routes and stored events."""
COUNTING: dict[str, Callable[[Row], float]] = {
    "messages": lambda row: row["messages_per_node"],
    BARE: lambda row: row["messages_per_node"] - _kinds(row, "hello", "heartbeat"),
    "without events": lambda row: row["messages_per_node"] - _kinds(row, "data", "pub", "rep"),
    "neither": lambda row: row["messages_per_node"] - _kinds(row, "hello", "heartbeat", "data", "pub", "rep"),
    STEADY: lambda row: _kinds(row, "hello", "heartbeat", "data", "pub"),
    "frames, repeated ones too": lambda row: row["frames"] / row["nodes"],
}


def _kinds(row: Row, *kinds: str) -> float:
    return float(sum(row.get(f"sent_{kind}", 0) or 0 for kind in kinds)) / float(row["nodes"])


def counted(rows: Sequence[Row]) -> list[Row]:
    """Return the numbers of messages of each protocol in C2 and C32 in our setting, for each way of
    counting."""
    duration_s = min(row["duration_s"] for row in rows)
    as_set = BY_NAME["as set"]
    made = []
    for name, rule in COUNTING.items():
        one: Row = {"what counts": name}
        for protocol, size in product(BOTH, (SMALLEST, LARGEST)):
            values = runs_of(rows, as_set, protocol, size, duration_s, rule).values()
            one[f"{protocol}_c{size}"] = round(fmean(values), 1) if values else None
        one["aodv_more"] = shown(aodv_more(rows, as_set, SMALLEST, duration_s, rule), 1)
        one["mft_growth"] = _ratio(one, f"mft_c{LARGEST}", f"mft_c{SMALLEST}")
        made.append(one)
    return made


# --- R5: growth of MFT-PubSub's messages ---

SAVED_MIN = 0.25


def judge_r5(rows: Sequence[Row]) -> Outcome:
    duration_s = min(row["duration_s"] for row in rows)
    growth = {
        variant.name: (table[0]["mft_growth"], _exponent(table[0]))
        for variant in VARIANTS
        if MFT in variant.of and (table := compare(rows, variant)) and table[0]["mft_growth"] is not None
    }
    runs = where(rows, protocol=MFT, brokers=LARGEST, duration_s=duration_s)
    apart, together = {"variant": "as set"}, {"variant": "MFT: sent together"}
    more = differences(runs, "delivered", together, apart)
    sent, grouped = (
        {row["seed"]: row["messages_per_node"] for row in where(runs, **one)} for one in (apart, together)
    )
    saved = [1.0 - grouped[seed] / sent[seed] for seed in grouped if seed in sent]
    barely = [name for name, (ratio, _) in growth.items() if ratio <= BARELY_MAX]
    steady = next(row["mft_growth"] for row in counted(rows) if row["what counts"] == STEADY)
    parts: dict[str, bool | None] = {
        f"without what migrations cost they change by more than {BARELY_MAX:g}": steady is not None
        and steady <= BARELY_MAX,
        f"they barely change under: {', '.join(barely)}": not barely,
        f"sending together saves less than {SAVED_MIN:.0%}": bool(saved) and fmean(saved) >= SAVED_MIN,
        "sending together delivers less": None if not more else fmean(more) >= 0,
    }
    figures = {
        "messages per node, C32 / C2, and the power of the number of nodes in all": {
            name: list(found) for name, found in growth.items()
        },
        "the same without the cost of migrations, C32 / C2": steady,
        "C32, sent together: share of messages saved (mean, low, high)": shown(saved, 3),
        "C32, sent together: delivered more (mean, low, high)": shown(more, 1),
    }
    return R5.judge(parts, figures)


def _exponent(row: Row) -> float | None:
    """Return the exponent of the growth from C2 (6 stations) to C32 (66 stations)."""
    growth = row["mft_growth"]
    return round(1.0 + math.log(growth) / math.log(66 / 6), 2) if growth else None
