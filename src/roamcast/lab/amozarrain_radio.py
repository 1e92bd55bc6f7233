"""Amozarrain 2021, section 4.5: MFT-PubSub and AODV over the air. Claims A7 to A10.

The setting is table 4.2 and section 4.5.2: 0.005 stations in a square metre, two publishers that publish once
a second for 500 s of 700, random waypoint, a CC2420 at 0 dBm. Each choice that the thesis leaves open is made
in one place: the radio and its medium access in `simulator.radio.parameters`, AODV in
`simulator.radio.aodv.AodvSettings`, the election in `overlay.election.ElectionSettings`, sizes of messages in
`simulator.radio.mft_links` and `aodv_messages`. Hello and heartbeat are both sent once a second.

A notification counts for MFT-PubSub's rate if a broker on its way knew the subscriber (section 4.5.3); for
AODV all count. Messages are what a protocol hands to the antenna, including hellos and heartbeats, without
retransmitted frames and acknowledgements.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from roamcast.lab.charts import Chart, Panel, Pen, bars, curves, in_words, named, runs_of
from roamcast.lab.curves import Curves, means_of, power
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST
from roamcast.lab.rows import Row, distinct, mean_of, rounded, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.mobility.moving.election import ElectionSettings
from roamcast.models.intervals import bounds_of, mean_interval
from roamcast.simulator.radio.mft_links import LinkSettings
from roamcast.simulator.radio.parameters import CASTALIA_CSMA
from roamcast.simulator.radio.scenario import RadioProtocol, RadioScenario
from roamcast.simulator.radio.workload import SIDES_M, SPEEDS, Configuration, Publishing

A7, A8, A9, A10 = map(claim, ("A7", "A8", "A9", "A10"))

MFT: RadioProtocol = "mft"
AODV: RadioProtocol = "aodv"
SIZES = tuple(SIDES_M)
SPEED = 8.0
"""Speed in figures 4.5a and 4.6 to 4.8, in m/s."""
SIZE = 16
"""Number of brokers in figure 4.5b."""
LARGEST = 32
DURATION_S, PUBLISHING_S = 700.0, 500.0
DURATION_QUICK_S, PUBLISHING_QUICK_S = 70.0, 50.0
SEEDS, SEEDS_AODV_LARGEST = 10, 3
SEEDS_QUICK = {2: 8, 4: 6, 8: 6, 16: 6, 32: 3}
"""Number of seeds by network size: runs of small networks are short."""
SPEEDS_QUICK = (2.0, 8.0, 10.0)
TEXT, CASTALIA, IEEE = "the thesis's", "with its CSMA alone", "ours"
AS_IN_THE_TEXT = LinkSettings(refused=False, relinks=False, clients_follow=True, clients_beat=True)
SETTINGS: dict[str, dict[str, Any]] = {
    TEXT: {
        "parameters": CASTALIA_CSMA, "election": ElectionSettings(patience_s=0.0), "links": AS_IN_THE_TEXT,
    },
    CASTALIA: {"parameters": CASTALIA_CSMA},
    IEEE: {},
}  # fmt: skip
"""Settings by name. In the thesis's own setting, its simulator's CSMA acknowledges nothing, the first
heartbeat of a round wins, clients follow it and send heartbeats too, no message is refused, and nobody is
asked to connect again. Only the CSMA affects AODV. Our setting uses the medium access of the radio's
standard, with acknowledgements.
"""


LEVEL_MAX = 0.01
"""A rate does not fall if it rises by more than this from one size to the next; seeds differ by less."""
EXPLODES_MIN = 5.0
"""Minimum growth from C2 to C32 that counts as an explosion; the number of nodes grows by a factor of 11."""
BARELY_MAX = 1.5
""""Barely changes": the costliest size costs at most half more than the cheapest."""
LINEAR_POWERS = (0.9, 1.1)

PENS: dict[str, Pen] = {MFT: Pen("MFT-PubSub", ARRIVED, "o"), AODV: Pen("AODV", LOST, "s")}
SHADES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c", "#041f4a")
SPEED_PENS = {
    f"{speed:g} m/s": Pen(f"{speed:g} m/s", shade, marker)
    for speed, shade, marker in zip(SPEEDS, SHADES, "os^Dv", strict=True)
}


@dataclass(frozen=True)
class RadioJob(Job):
    protocol: RadioProtocol
    brokers: int
    speed: float
    seed: int
    duration_s: float = DURATION_S
    publishing_s: float = PUBLISHING_S
    setting: str = IEEE

    @property
    def cost(self) -> float:
        return self.brokers**2 * self.duration_s * (2.5 if self.protocol == AODV else 1.0)


def measure(job: RadioJob) -> Row:
    """Run one job and return its figures."""
    scenario = RadioScenario(
        job.brokers, job.speed, job.protocol, job.seed, duration_s=job.duration_s,
        publishing=Publishing(until_s=job.publishing_s), **SETTINGS[job.setting],
    )  # fmt: skip
    return {"setting": job.setting, **figures_of(scenario)}


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
    """Return the jobs; quick ones are shorter, at three speeds, with AODV in the largest network at one speed
    only.
    """
    lengths = (DURATION_QUICK_S, PUBLISHING_QUICK_S) if quick else (DURATION_S, PUBLISHING_S)
    made = []
    speeds = SPEEDS_QUICK if quick else SPEEDS
    for setting, protocol, size, speed in itertools.product(SETTINGS, (MFT, AODV), SIZES, speeds):
        is_longest = (protocol, size) == (AODV, LARGEST)
        if not (quick and is_longest and speed != SPEED) and (setting, protocol) != (TEXT, AODV):
            seeds = SEEDS_QUICK[size] if quick else SEEDS_AODV_LARGEST if is_longest else SEEDS
            made += [RadioJob(protocol, size, speed, seed, *lengths, setting) for seed in range(1, seeds + 1)]
    return made


@checks("amozarrain-radio", "Amozarrain, figures 4.4 to 4.8: over the air", A7, A8, A9, A10)
def experiment(quick: bool, sweep: Sweep) -> Findings:
    return findings_of(sweep.run(measure, jobs(quick)))


def findings_of(rows: Sequence[Row]) -> Findings:
    """Judge every claim in each setting."""
    found = {name: findings_with(name, of_it) for name in SETTINGS if (of_it := rows_in(rows, name))}
    claims = zip(*(one.outcomes for one in found.values()), strict=True)
    short = {TEXT: "thesis", CASTALIA: "csma", IEEE: "ours"}
    return Findings(
        [
            claim(outcomes[0].claim).in_settings(dict(zip(found, outcomes, strict=True)))
            for outcomes in claims
        ],
        {f"{name}_{short[at]}": table for at, one in found.items() for name, table in one.tables.items()},
        {f"{name}_{short[at]}": draw for at, one in found.items() for name, draw in one.figures.items()},
    )


def rows_in(rows: Sequence[Row], setting: str) -> list[Row]:
    aodv = where(rows, setting=CASTALIA if setting == TEXT else setting, protocol=AODV)
    mft = where(rows, setting=setting, protocol=MFT)
    return [*mft, *aodv] if mft and aodv else []


def findings_with(setting: str, rows: Sequence[Row]) -> Findings:
    at_speed = where(rows, speed=SPEED)
    labelled = [{**row, "speed": f"{row['speed']:g} m/s"} for row in rows]
    rates: dict[str, Curves] = {
        protocol: Curves(where(labelled, protocol=protocol), "speed", "brokers", "delivery_rate")
        for protocol in (MFT, AODV)
    }
    at_size = Curves(where(rows, brokers=SIZE), "protocol", "speed", "delivered")
    by_size = {
        column: Curves(at_speed, "protocol", "brokers", column)
        for column in ("delivered", "delay_mean_s", "hops_mean", "hops_max", "messages_per_node")
    }
    tables = {
        "runs": list(rows),
        **{f"fig44_{name}": found.table() for name, found in rates.items()},
        "fig45a_delivered": by_size["delivered"].table(),
        "fig45b_delivered": at_size.table(),
        "fig46_delay": by_size["delay_mean_s"].table(),
        "fig47_hops": by_size["hops_mean"].table(),
        "fig48_messages": by_size["messages_per_node"].table(),
    }
    outcomes = [judge_a7(rows), judge_a8(rows), judge_a9(at_speed), judge_a10(at_speed)]
    length_s = max(row["duration_s"] for row in rows)
    made = charts(rates, by_size, at_size, at_speed, length_s)
    about = f"setting {setting}"
    return Findings(
        outcomes, tables, {name: replace(one, about=f"{about}; {one.about}") for name, one in made.items()}
    )


def charts(
    rates: Mapping[str, Curves], by_size: Mapping[str, Curves], at_size: Curves, at_speed: Sequence[Row],
    length_s: float,
) -> dict[str, Chart]:  # fmt: skip
    sizes = {x: f"C{x:g}" for x in sorted({x for curve in by_size["delivered"].values() for x in curve.xs})}
    across = {"xscale": "log", "xlabel": "configuration (brokers)"}

    def panel(column: str, label: str, said: Mapping[str, object], title: str = "",
              legend: dict[str, str] | None = None) -> Panel:  # fmt: skip
        drawn = curves(by_size[column], PENS)
        return Panel(drawn, {**across, "ylabel": label, **said}, title, sizes, legend)

    def chart(title: str, runs: str, *panels: Panel, share: Literal["none", "all"] = "none") -> Chart:
        about = f"{runs}, of {length_s:g} s each; setting of Amozarrain 2021, section 4.5.2"
        return Chart(title, about, panels, share=share)

    from_0, logarithmic = {"ylim": (0, None)}, {"yscale": "log"}
    rated = {**across, "ylabel": "delivered of what was owed, %", "ylim": (0, 104)}
    sent, hops = "messages sent by a node in a run", "hops of a delivered notification"
    count = "notifications delivered in a run"
    runs = runs_of(by_size["delivered"])
    return {
        "fig44_delivery_rate": chart(
            "Delivery rate against the size of the network, figure 4.4",
            runs_of({f"{name} {speed}": one for name in rates for speed, one in rates[name].items()}),
            *(
                Panel(curves(found, SPEED_PENS, scale=100), rated, PENS[name].label, sizes,
                      {"loc": "lower left"} if name == MFT else None)
                for name, found in rates.items()
            ),
            share="all",
        ),
        "fig45_delivered": chart(
            "Notifications delivered, figure 4.5", runs,
            panel("delivered", count, from_0, "(a) at 8 m/s", {}),
            Panel(curves(at_size, PENS), {"xlabel": "speed, m/s", "ylabel": count, **from_0}, "(b) C16"),
        ),
        "fig46_delay": chart(
            "End-to-end delay at 8 m/s, figure 4.6", runs_of(by_size["delay_mean_s"]),
            panel("delay_mean_s", "published to delivered, mean, s", logarithmic, legend={}),
        ),
        "fig47_hops": chart(
            "Hops at 8 m/s, figure 4.7", runs_of(by_size["hops_mean"]),
            panel("hops_mean", hops, from_0, "(a) mean of a run", {"loc": "lower right"}),
            panel("hops_max", hops, from_0, "(b) most in a run"),
        ),
        "fig48_messages": chart(
            "Messages sent at 8 m/s, figure 4.8", runs,
            panel("messages_per_node", sent, logarithmic, legend={}),
        ),
        "load": load_chart(where(at_speed, protocol=MFT), chart, sent),
    }  # fmt: skip


def load_chart(rows: Sequence[Row], chart: Callable[..., Chart], sent: str) -> Chart:
    """Draw the messages sent under MFT-PubSub, by role and by distance from the leader."""
    sizes = sorted(distinct(rows, "brokers"))
    roles = {
        f"{role}s": [mean_of(where(rows, brokers=size), f"messages_per_{role}") or 0.0 for size in sizes]
        for role in ROLES
    }
    by_hops = {
        f"C{size}": [mean_of(where(rows, brokers=size), f"load_at_{hops}_hops") or 0.0 for hops in range(4)]
        for size in sizes
        if size >= 8
    }
    return chart(
        "Messages sent under MFT-PubSub at 8 m/s, by role and by distance",
        in_words(max((len(where(rows, brokers=size)) for size in sizes), default=0)).partition(" with")[0],
        Panel(bars(roles, (ARRIVED, "#2e7d4f", LOST)),
              {"xlabel": "configuration (brokers)", "ylabel": sent},
              ticks=named([f"C{size}" for size in sizes]), legend={}, grid="y"),
        Panel(bars(by_hops, ("#9ecae1", "#3182bd", "#08306b")),
              {"xlabel": "hops from the leader", "ylabel": "messages sent by a broker in a second"},
              ticks=named(["leader", "1", "2", "3 or more"]), legend={"loc": "best"}, grid="y"),
    )  # fmt: skip


def differences(
    rows: Sequence[Row], y: str, of: Mapping[str, object], against: Mapping[str, object]
) -> list[float]:
    """Return the differences in `y` between rows that match `of` and rows that match `against`, paired by all
    other columns.
    """
    keys = [key for key in ("protocol", "rule", "brokers", "speed", "seed") if key not in of]

    def like(wanted: Mapping[str, Any]) -> dict[tuple[object, ...], float]:
        return {
            tuple(row.get(key) for key in keys): row[y] for row in where(rows, **wanted) if row[y] is not None
        }

    left, right = like(of), like(against)
    return [left[key] - right[key] for key in left if key in right]


def is_above(values: Sequence[float]) -> bool | None:
    """Return whether the differences are above 0; None if the scatter between seeds is too large to tell."""
    if len(values) < 2:
        return None
    low, high = mean_interval(values)
    return None if low <= 0.0 < high else low > 0.0


def shown(values: Sequence[float], digits: int = 4) -> list[float]:
    """Return the mean, and the bounds of its 95 % interval if there are several values."""
    return rounded([fmean(values), *(bounds_of(values) if len(values) > 1 else ())], digits) if values else []


# --- A7: figure 4.4 ---


def judge_a7(rows: Sequence[Row]) -> Outcome:
    curves = Curves(rows, "protocol", "brokers", "delivery_rate")
    slow, fast = min(row["speed"] for row in rows), max(row["speed"] for row in rows)
    mft = where(rows, protocol=MFT)
    gains = {
        f"C{size}": differences(where(mft, brokers=size), "delivery_rate", {"speed": fast}, {"speed": slow})
        for size in SIZES
    }
    pooled = [gain for size in SIZES[2:] for gain in gains[f"C{size}"]]
    parts: dict[str, bool | None] = {
        f"{protocol}'s rate does not fall with size": curves[protocol].falls(LEVEL_MAX)
        for protocol in (MFT, AODV)
    }
    parts["MFT-PubSub's rate does not improve with speed in C8 to C32"] = is_above(pooled)
    figures = {
        "sizes": [f"C{size:g}" for size in curves[MFT].xs],
        "rate, mean over speeds": means_of(curves, 4),
        f"mft, rate at {fast:g} m/s minus rate at {slow:g} m/s (mean, low, high)": {
            name: shown(values) for name, values in gains.items()
        },
        "the same, C8 to C32 together": shown(pooled),
    }
    return A7.judge(parts, figures)


# --- A8: figure 4.5 ---


def judge_a8(rows: Sequence[Row]) -> Outcome:
    at_size, largest = where(rows, brokers=SIZE), where(rows, brokers=LARGEST, speed=SPEED)
    mft, aodv = {"protocol": MFT}, {"protocol": AODV}
    mft_more = {
        f"{speed:g} m/s": differences(where(at_size, speed=speed), "delivered", mft, aodv)
        for speed in sorted(distinct(at_size, "speed"))
    }
    aodv_more = differences(largest, "delivered", aodv, mft)
    parts = {
        f"C{SIZE} at {speed}: MFT-PubSub does not deliver more": is_above(values)
        for speed, values in mft_more.items()
    }
    parts[f"C{LARGEST} at {SPEED:g} m/s: AODV does not deliver more"] = is_above(aodv_more)
    figures = {
        f"C{SIZE}, delivered": {
            name: [round(mean) for mean in curve.means]
            for name, curve in Curves(at_size, "protocol", "speed", "delivered").items()
        },
        f"C{SIZE}, MFT-PubSub minus AODV (mean, low, high)": {
            speed: shown(values, 1) for speed, values in mft_more.items()
        },
        f"C{LARGEST} at {SPEED:g} m/s, delivered": {
            name: round(curve.means[0])
            for name, curve in Curves(largest, "protocol", "brokers", "delivered").items()
        },
        f"C{LARGEST} at {SPEED:g} m/s, AODV minus MFT-PubSub (mean, low, high)": shown(aodv_more, 1),
    }
    return A8.judge(parts, figures, why=WHY_AODV_DELIVERS_LESS if is_above(aodv_more) is False else "")


# --- A9: figure 4.8 ---


def judge_a9(rows: Sequence[Row]) -> Outcome:
    mft = where(rows, protocol=MFT)
    per_node = Curves(rows, "protocol", "brokers", "messages_per_node")
    total = Curves(mft, "protocol", "nodes", "messages")[MFT]
    smallest = where(rows, brokers=SIZES[0])
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
    kinds = sorted({key for row in mft for key in row if key.startswith("sent_")})
    figures = {
        "sizes": [f"C{size:g}" for size in per_node[MFT].xs],
        "messages per node": {name: [round(mean) for mean in one.means] for name, one in per_node.items()},
        "C2, MFT-PubSub minus AODV (mean, low, high)": shown(mft_more, 1),
        "AODV, C32 / C2": explodes,
        "MFT-PubSub, costliest / cheapest size": per_node[MFT].spread,
        "MFT-PubSub, exponent of its total over the number of nodes": exponent,
        "MFT-PubSub, messages of each kind per node at C2 and C32": {
            kind.removeprefix("sent_"): [
                per_node_of(where(mft, brokers=size), kind) for size in (SIZES[0], LARGEST)
            ]
            for kind in kinds
        },
    }
    notes = [WHY_AODV_SENDS_MORE] if parts["C2: AODV does not send fewer"] is False else []
    if per_node[MFT].spread > BARELY_MAX:
        notes.append(WHY_MFT_GROWS)
    return A9.judge(parts, figures, notes=notes)


WHY_AODV_DELIVERS_LESS = (
    "frames are acknowledged here, so MFT-PubSub knows which notifications have not arrived, and stores "
    "them; with the CSMA of the thesis, which acknowledges nothing, AODV delivers more (R3)"
)
WHY_AODV_SENDS_MORE = (
    "all stations send hellos, but only brokers forward heartbeats, both once a second: the thesis gives "
    "neither period, and they decide this order (R4)"
)
WHY_MFT_GROWS = (
    "where timestamps differ, brokers are told (BSUB), so both the migrations and the messages of each grow "
    "with the number of brokers, with the rules as published as well (R5)"
)


def per_node_of(rows: Sequence[Row], column: str) -> float:
    return round(fmean(row.get(column, 0) / row["nodes"] for row in rows), 1) if rows else 0.0


# --- A10: who sends them ---


ROLES = ("broker", "publisher", "subscriber")


def judge_a10(rows: Sequence[Row]) -> Outcome:
    mft = where(rows, protocol=MFT)
    sizes = sorted(distinct(mft, "brokers"))
    large = {f"C{size}": where(mft, brokers=size) for size in sizes if size >= 8}
    more = {
        f"{name}: {who}": [
            row[of] - row["load_far"] for row in found if None not in (row[of], row["load_far"])
        ]
        for name, found in large.items()
        for who, of in (("the leader sends", "load_at_0_hops"), ("its neighbours send", "load_at_1_hops"))
    }
    by_role = {role: Curves(mft, "protocol", "brokers", f"messages_per_{role}")[MFT].means for role in ROLES}
    parts = {f"{name} no more than brokers farther away": is_above(values) for name, values in more.items()}
    parts["brokers do not send more than clients"] = all(
        broker > max(clients) for broker, *clients in zip(*by_role.values(), strict=True)
    )
    figures = {
        "sizes": [f"C{size}" for size in sizes],
        "messages per node by role": {
            role: [round(mean) for mean in means] for role, means in by_role.items()
        },
        "messages a second of a broker 0, 1, 2, 3 and more hops from its leader": {
            name: [mean_of(found, f"load_at_{hops}_hops", 2) for hops in range(4)]
            for name, found in large.items()
        },
        "more than 2 hops away and farther (mean, low, high)": {
            name: shown(values, 2) for name, values in more.items()
        },
    }
    return A10.judge(parts, figures)
