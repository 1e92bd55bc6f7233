"""Fiege et al. 2003 (REBECA), logical mobility: sections 3.3 and 5, appendix B. Claims F3 to F6.

The tables are read from the routing tables of brokers, which run the algorithm in a simulated network. Where
the paper gives a rule for the number of steps (one-way delays, rounded down in table 4 and up in figure 13),
that rule is used. The rule that keeps the promise (F6) takes round trips and rounds up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from roamcast.lab.charts import Chart, Panel
from roamcast.lab.experiment import Findings, Outcome, checks, claim
from roamcast.lab.figures import ARRIVED, LOST, QUIET
from roamcast.lab.rows import Row, rounded, sums_of, where
from roamcast.lab.sweep import Job, Sweep
from roamcast.protocol import records
from roamcast.protocol.effects import AttachTo, MoveTo, PublishThis
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.routing.location.ploc import Rule
from roamcast.simulator.checkers import Identity
from roamcast.simulator.fuzz import fuzz
from roamcast.simulator.location_fuzz import ANY
from roamcast.simulator.network import Network
from roamcast.simulator.story import Story, parse_story

F3, F6 = map(claim, ("F3", "F6"))

# --- tables 1 to 4 (sections 5.2 and 5.3) ---


GRAPH = "graph a-b a-c b-d c-d"
LOCATIONS = "abcd"
BROKERS = ("B1", "B2", "B3", "B4")
"""Brokers of figure 6, and one more at the producer's end: the filter F_i is what B_(i+1) lets through."""

NETWORK = f"""
brokers B1-B2 B2-B3 B3-B4
protocol none
{GRAPH}
at 0 C attach B1
at 1 C subscribe location IN myloc
at 10 C move {{}}
"""

Sets = dict[int, tuple[str, ...]]

TABLE_1: Sets = {
    0: ("a", "b", "c", "d"),
    1: ("abc", "abd", "acd", "bcd"),
    2: ("abcd", "abcd", "abcd", "abcd"),
    3: ("abcd", "abcd", "abcd", "abcd"),
}
"""Table 1 as printed: t to the sets for x = a, b, c, d. Tables 3 and 4 have the same form."""
TABLE_2: Sets = {
    0: ("abcd", "abcd", "abc", "a"),
    1: ("abcd", "abcd", "abd", "b"),
    2: ("abcd", "abcd", "bcd", "d"),
}
"""Table 2 as printed: time to F_3, F_2, F_1, F_0."""
TABLE_3_SUB_UNSUB = {0: tuple("abcd"), 1: tuple("abcd"), 2: tuple("abcd"), 3: ("abcd",) * 4}
TABLE_3_FLOODING = {0: tuple("abcd"), 1: ("abcd",) * 4, 2: ("abcd",) * 4, 3: ("abcd",) * 4}
TABLE_4 = {0: tuple("abcd"), 1: TABLE_1[1], 2: TABLE_1[1], 3: ("abcd",) * 4}

STAY_MS = 100
DELAYS_MS = (120, 50, 50)
"""Delays of figure 8 that affect the table; the fourth, 20 ms, adds no row."""


def let_through(network: Network, broker: str) -> str:
    """Return the locations that a broker lets through towards the client, joined to one word."""
    for filter, interface in network.brokers[broker].router.table.entries():
        if broker == BROKERS[0] or isinstance(interface, str):
            return "".join(one for one in LOCATIONS if filter.matches({"location": one}))
    return ""


def told(settings: str, moves: Sequence[str], start: str = "a") -> list[tuple[str, ...]]:
    """Return what each broker lets through after each of the moves, F_0 first."""
    story = parse_story(NETWORK.format(start) + settings)
    found = []
    for count in range(len(moves) + 1):
        later = [(20.0 + 10 * number, "C", MoveTo({"location": one})) for number, one in enumerate(moves)]
        run = Story(story.topology, story.settings, (*story.actions, *later[:count])).simulate()
        found.append(tuple(let_through(run.network, broker) for broker in BROKERS))
    return found


def table(settings: str, find: Callable[[str, str], tuple[str, ...]]) -> Sets:
    """Return, by distance from the client in steps, what is let through for x = a, b, c, d."""
    columns = [find(settings, start) for start in LOCATIONS]
    return {t: tuple(column[t] for column in columns) for t in range(len(BROKERS))}


def filters_at(settings: str, start: str) -> tuple[str, ...]:
    """Return the filters of the routing tables."""
    return told(settings, (), start)[0]


def crossing(settings: str, start: str) -> tuple[str, ...]:
    """Let a producer at the third broker publish for every location; return what the client receives, what
    crosses the link to its broker and the link before, and what the producer's broker receives.
    """
    story = parse_story(NETWORK.format(start) + settings)
    publishes = [
        (30.0 + number, "P", PublishThis(encode_attributes({"location": one})))
        for number, one in enumerate(LOCATIONS)
    ]
    seen: dict[str, list[str]] = {place: [] for place in ("delivered", "B2 B1", "B3 B2", "published")}

    def on_rows(rows: list[records.Row]) -> None:
        for row in rows:
            if row.kind in seen:
                seen[row.kind].append(LOCATIONS[(row.number or 1) - 1])

    def on_message(now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Burst) and f"{sender} {receiver}" in seen:
            seen[f"{sender} {receiver}"].append(LOCATIONS[message.number - 1])

    actions = (*story.actions, (0.0, "P", AttachTo(BROKERS[2], 0)), *publishes)
    Story(story.topology, story.settings, tuple(sorted(actions, key=lambda one: one[0]))).run(
        on_rows, on_message
    )
    return tuple("".join(sorted(found)) for found in seen.values())


@checks("fiege-tables", "Fiege et al., section 5: tables 1 to 4", F3)
def tables(quick: bool, sweep: Sweep) -> Findings:
    """Compare the tables: one stay per link, so that each link adds one step; then the limits, and the times
    of figure 8.
    """
    each_a_step = "link 1\nstay 1\nsteps published"
    links = "\n".join(
        f"link {one}-{other} {delay / 1000}"
        for (one, other), delay in zip(pairwise(BROKERS), DELAYS_MS, strict=True)
    )
    timed = f"{links}\nstay {STAY_MS / 1000}"
    found: dict[str, Any] = {
        "table 1": table(each_a_step, filters_at),
        "table 2": {time: tuple(reversed(row)) for time, row in enumerate(told(each_a_step, "bd"))},
        # Its last row is the producer's own broker, which has no filter: so what is sent is looked at.
        "table 3, sub-unsub": table("link 0.1\nstay inf", crossing),
        "table 3, flooding": table("link 0.1\nstay 0", crossing),
        "table 4": table(f"{timed}\nsteps table_4", filters_at),
    }
    return Findings([judge_f3(found)], {name: as_rows(rows) for name, rows in found.items()})


def as_rows(rows: Sets) -> list[Row]:
    return [{"t": t, **{str(place): one for place, one in enumerate(sets)}} for t, sets in rows.items()]


PRINTED: dict[str, Sets] = {
    "table 1": TABLE_1,
    "table 2": TABLE_2,
    "table 3, sub-unsub": TABLE_3_SUB_UNSUB,
    "table 3, flooding": TABLE_3_FLOODING,
    "table 4": TABLE_4,
}


def steps_for_times() -> dict[str, list[float]]:
    """Return the steps at the three brokers of table 4 under each rule."""
    sums_ms = [sum(DELAYS_MS[: count + 1]) for count in range(len(DELAYS_MS))]
    rules = {
        "rounded down, one way (table 4)": Rule("one_way", "down"),
        "rounded up, one way (figure 13)": Rule("one_way", "up"),
        "rounded up, round trip (here)": Rule(),
    }
    return {name: [rule.steps(2 * one, STAY_MS) for one in sums_ms] for name, rule in rules.items()}


def judge_f3(found: dict[str, Sets]) -> Outcome:
    parts = {f"{name} is {found[name]}": found[name] == printed for name, printed in PRINTED.items()}
    steps = steps_for_times()
    parts["table 4 is not 1, 1, 2 steps"] = steps["rounded down, one way (table 4)"] == [1, 1, 2]
    parts["figure 13 does not give 2, 2, 3 steps"] = steps["rounded up, one way (figure 13)"] == [2, 2, 3]
    printed = sum(found[name] == expected for name, expected in PRINTED.items())
    return F3.judge(parts, {"tables as printed": printed, **steps}, notes=[F3.why])


# --- the promise (section 3.3, figure 4), and what the naive solution misses (figure 3) ---


SEEDS_PER_JOB = 10
FIRST_SEED = 100
"""Stories from this seed on include some of the rare clients that move too fast."""
DELAY_S = 0.1
"""t_d: one-way delay from the producer's broker to the client's."""
START_S, STEPS = 20.0, 24
STAYS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Durations of a stay, in units of t_d."""


@dataclass(frozen=True)
class SeedsJob(Job):
    first: int


def try_seeds(job: SeedsJob) -> Row:
    report = fuzz(ANY, range(job.first, job.first + SEEDS_PER_JOB), feature="location")
    return {
        "first_seed": job.first,
        "seeds": report.seeds,
        "notifications": report.notifications,
        "deliveries": report.deliveries,
        "epochs": report.located,
        "handoffs": report.handoffs,
        "blacked_out": report.blacked_out,
        "violations": report.violations,
        "failing_seeds": " ".join(str(failure.seed) for failure in report.failures),
    }


@dataclass(frozen=True)
class BlackoutJob(Job):
    """Job for a client that stays a multiple of t_d at each location, with the naive solution or the
    algorithm.
    """

    solution: str
    stay: float


def walk(job: BlackoutJob) -> Row:
    """Let the client walk round a ring of locations, while notifications are published for all of them."""
    stay_s = job.stay * DELAY_S
    expected = "inf" if job.solution == "sub/unsub" else str(stay_s)
    every_s = DELAY_S / 20
    lines = [
        "brokers near-far", "protocol none", f"link {DELAY_S}", "access 0", "graph a-b b-c c-d d-e e-f f-a",
        f"stay {expected}", "at 0 C attach near", "at 0 P attach far", "at 1 C subscribe location IN myloc",
        "at 5 C move a",
    ]  # fmt: skip
    lines += [f"at {START_S + number * stay_s} C move {'bcdefa'[number % 6]}" for number in range(STEPS)]
    # Never just when the client moves: which of the two comes first would be anybody's guess.
    times_s = (
        START_S - 1 + every_s * (number + 0.37) for number in range(int(((STEPS + 1) * stay_s + 1) / every_s))
    )
    lines += [f'at {at} P publish {{"location": "{one}"}}' for at in times_s for one in "abcdef"]
    deliveries = {}
    for routing in ("identity", "flooding"):
        run = parse_story("\n".join([*lines, f"routing {routing}"])).simulate()
        assert run.location is not None
        deliveries[routing] = run.location.deliveries["C"]
    return {
        "solution": job.solution,
        "stay_delays": job.stay,
        **shares(deliveries["identity"], deliveries["flooding"], stay_s),
    }


def shares(got: Mapping[Identity, float], owed: Mapping[Identity, float], stay_s: float) -> Row:
    """Return the share of flooding's deliveries that arrives, and the mean time without deliveries after a
    move.
    """
    due = [one for one, at in owed.items() if START_S <= at < START_S + STEPS * stay_s]
    had = [one for one in due if one in got]
    arrivals = sorted(got[one] for one in had)
    silences = []
    for number in range(STEPS):
        moved_at = START_S + number * stay_s
        after = [at for at in arrivals if moved_at <= at < moved_at + stay_s]
        silences.append((after[0] if after else moved_at + stay_s) - moved_at)
    return {
        "owed": len(due),
        "delivered": len(had),
        "share": len(had) / len(due),
        "silence_delays": fmean(silences) / DELAY_S,
    }


@checks("fiege-logical", "Fiege et al., section 3.3: as if flooding", F6)
def logical(quick: bool, sweep: Sweep) -> Findings:
    seeds = 40 if quick else 1000
    firsts = range(FIRST_SEED, FIRST_SEED + seeds, SEEDS_PER_JOB)
    rows = sweep.run(try_seeds, [SeedsJob(first) for first in firsts])
    solutions = ("sub/unsub", "adaptive")
    walks = sweep.run(walk, [BlackoutJob(solution, stay) for solution in solutions for stay in STAYS])
    return Findings(
        [judge_f6(rows, walks)], {"location_seeds": rows, "blackout": walks}, {"blackout": blackout(walks)}
    )


def blackout(walks: Sequence[Row]) -> Chart:
    """Draw figure 3 as measured: the share of flooding's deliveries against the duration of a stay."""
    longest = max(row["stay_delays"] for row in walks)

    def draw(axes: Axes) -> None:
        for solution, colour, label in (
            ("sub/unsub", LOST, "unsubscribe and subscribe at each move"),
            ("adaptive", ARRIVED, "the algorithm of section 5"),
        ):
            points = [(row["stay_delays"], row["share"]) for row in where(walks, solution=solution)]
            axes.plot(*zip(*points, strict=True), color=colour, marker="o", label=label, linestyle="none")
        stays = [2 + (longest - 2) * step / 100 for step in range(101)]
        axes.plot(
            [0, *stays], [0, *(1 - 2 / stay for stay in stays)], color=QUIET, linestyle="--", linewidth=1,
            label="1 - 2 t_d / stay: silence for two delays",
        )  # fmt: skip
        axes.axvline(2, color=QUIET, linewidth=0.8, linestyle=":")
        axes.annotate(
            "at shorter stays\nit gets nothing", (2, 0.75), (-6, 0), textcoords="offset points",
            ha="right", va="center", fontsize=9,
        )  # fmt: skip
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))

    said = {
        "xlabel": "stay at each location, in one-way delays t_d to the producer",
        "ylabel": "delivered, of what flooding delivers", "xlim": (0, longest * 1.02), "ylim": (-0.03, 1.05),
    }  # fmt: skip
    panel = Panel(draw, said, legend={"fontsize": 9, "loc": "lower right"})
    about = f"t_d is {DELAY_S * 1000:.0f} ms; 24 moves for each point"
    return Chart("What a client misses that moves from location to location", about, [panel])


def judge_f6(rows: Sequence[Row], walks: Sequence[Row]) -> Outcome:
    """Judge F6, and figure 3: after each move, sub/unsub delivers nothing for two delays."""
    if not rows or not walks:
        return F6.open("runs are missing")
    counted = ("seeds", "notifications", "deliveries", "epochs", "handoffs", "blacked_out", "violations")
    totals = sums_of(rows, counted)
    naive, adaptive = (where(walks, solution=solution) for solution in ("sub/unsub", "adaptive"))
    wrong = [row for row in naive if abs(row["silence_delays"] - min(2.0, row["stay_delays"])) > 0.1]
    starved = [row["stay_delays"] for row in naive if row["delivered"] == 0]
    parts = {
        f"{totals['violations']} violations": totals["violations"] == 0,
        "no client moved too fast": totals["blacked_out"] > 0,
        "sub/unsub is silent for other times than two delays": not wrong,
        "sub/unsub does not starve at stays below two delays": starved
        == [row["stay_delays"] for row in naive if row["stay_delays"] <= 2],
        "the algorithm misses notifications": all(row["delivered"] == row["owed"] for row in adaptive),
    }
    figures = {
        **totals,
        "silence of sub/unsub after a move, in t_d": rounded((row["silence_delays"] for row in naive), 2),
        "stays, in t_d": [row["stay_delays"] for row in naive],
        "share of sub/unsub": rounded((row["share"] for row in naive), 3),
        "share of the algorithm": rounded((row["share"] for row in adaptive), 3),
    }
    return F6.judge(parts, figures)
