"""Amozarrain 2021, exact claims: routing tables of chapter 2, migrations of chapters 3 and 4. A1 to A6.

Figure 2.1 is a network of three brokers with b1 in the middle. Figures 3.1 and 3.2, which are also 4.1 and
4.2, are about seven brokers: b1 at the top, b2 and b3 below it, b4 and b5 below b2, b6 and b7 below b3, and a
subscriber at each. A message list of the document is reproduced if each link carries the same messages, in
the same order, with the same contents.
"""

from __future__ import annotations

from collections.abc import Sequence

from roamcast.filters.filter import Filter
from roamcast.lab.experiment import Claim, Findings, Outcome, checks, claim
from roamcast.lab.sweep import Sweep
from roamcast.mobility.moving.mft import Bmig, Bquery, Bsub, Stamp
from roamcast.mobility.moving.mobile import Rep
from roamcast.mobility.moving.recursive_migration import BmigOfLocals, Btab, Fmig
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst
from roamcast.simulator.checkers import Result
from roamcast.simulator.mobile_network import MobileNetwork
from roamcast.simulator.mobile_run import run_mobile
from roamcast.simulator.story import parse_story

A1, A2, A3, A4, A5, A6 = map(claim, ("A1", "A2", "A3", "A4", "A5", "A6"))

# --- A1: the tables of figure 2.1 ---

FIGURE_2_1 = """
brokers b1-b2 b1-b3
at 0.0 s1 attach b1
at 0.0 s2 attach b2
at 0.0 s4 attach b2
at 0.0 s3 attach b3
at 0.0 s5 attach b3
at 0.0 s6 attach b3
at 1.0 s1 subscribe f = 1
at 1.0 s2 subscribe f = 1
at 1.0 s2 subscribe f = 2
at 1.0 s3 subscribe f = 3
at 1.0 s4 subscribe f = 4
at 1.0 s4 subscribe f = 6
at 1.0 s5 subscribe f = 1
at 1.0 s6 subscribe f = 6
"""
TABLE_2_2, TABLE_2_3 = A1.paper.split("; ")
"""Routing table of b1 in figure 2.1: filter and interface, with the entry of s4 for f6 corrected; the second
one with the subscriber that each entry belongs to.
"""


@checks("amozarrain-tables", "Routing tables of figure 2.1", A1)
def tables(quick: bool, sweep: Sweep) -> Findings:
    """Compare table 2.2 with simple routing, and table 2.3 with the tables of protocols that are based on
    Phoenix.
    """
    simple = parse_story(f"protocol none\nrouting simple\n{FIGURE_2_1}").run().network.brokers["b1"]
    without = ", ".join(
        sorted(
            f"{_name(filter)} {interface if isinstance(interface, str) else interface[0]}"
            for filter, interface in simple.router.table.entries()
        )
    )
    machine = play(FIGURE_2_1, "recursive_migration")[1].brokers["b1"].machine
    of_whom = ", ".join(
        sorted(
            f"{_name(filter)} {known.way or subscriber} {subscriber}"
            for subscriber, known in machine.known.items()
            for filter in known.filters.values()
        )
    )
    parts = {
        "table 2.2 is another": without == TABLE_2_2,
        "table 2.3 is another": of_whom == TABLE_2_3,
    }
    figures = {"table 2.2": without, "table 2.3": of_whom}
    return Findings([A1.judge(parts, figures)], {"tables": [{"claim": "A1", **figures}]})


def _name(filter: Filter) -> str:
    """Return `f3` for f = 3 or x = 3."""
    return f"f{filter.text.rpartition(' ')[2]}"


# --- A2 to A5: the migrations ---

NETWORK = "brokers b1-b2 b1-b3 b2-b4 b2-b5 b3-b6 b3-b7\n" + "".join(
    f"at 0 s{n} attach b{n}\nat {n} s{n} subscribe x = {n}\n" for n in range(1, 8)
)
BEGINS_S = 10.0
SIMPLE = NETWORK + "at 10 b3 relink b1 b2\n"
COMPLEX = NETWORK + "at 10 b3 cut b1\nat 10 b6 relink b3 b5\nat 11 b3 heal b2\n"
PUBLISHED = 'at 0 p attach b1\nat 10.5 p publish {"x": 6}\n' + "".join(
    f'at 11.0{n:02} p publish {{"x": 6}}\n' for n in range(0, 60, 3)
)
"""Actions that keep publishing for s6 during the complex migration."""


def told(sender: str, message: Message) -> str:
    """Return a message in the document's notation."""
    match message:
        case BmigOfLocals(subscribers, broker):
            return f"BMIG [{' '.join(subscribers)}] {broker}"
        case Btab():
            return f"BTAB R{sender.removeprefix('b')}"
        case Fmig():
            return "FMIG"
        case Bmig(children, others, hops):
            return " ".join(["BMIG C", *map(_stamp, children), "O", *map(_stamp, others), f"h {hops}"])
        case Bsub(subscriber, filters, timestamp, hops, distance):
            names = " ".join(map(_name, filters))
            return f"BSUB {subscriber} [{names}] ({timestamp},{hops}) {distance}"
        case Bquery(subscriber):
            return f"BQUERY {subscriber}"
    return type(message).__name__


def _stamp(stamp: Stamp) -> str:
    return f"({stamp.subscriber},{stamp.timestamp},{stamp.hops})"


def play(text: str, protocol: str) -> tuple[Result, MobileNetwork, list[tuple[str, str, str]]]:
    """Run a story; return its migration messages as (sender, receiver, content)."""
    story = parse_story(f"protocol {protocol}\n{text}")
    messages: list[tuple[str, str, str]] = []

    def trace(now: float, sender: str, receiver: str, message: Message) -> None:
        if now >= BEGINS_S and not isinstance(message, Burst | Rep):
            messages.append((sender, receiver, told(sender, message)))

    result, network = run_mobile(story.topology, story.settings, story.with_homecoming(), None, trace)
    return result, network, messages


def by_link(messages: Sequence[tuple[str, str, str]]) -> dict[tuple[str, str], list[str]]:
    """Return the messages of each link, in order."""
    links: dict[tuple[str, str], list[str]] = {}
    for sender, receiver, what in messages:
        links.setdefault((sender, receiver), []).append(what)
    return links


def expected_messages(text: str) -> list[tuple[str, str, str]]:
    found = []
    for line in text.split(", "):
        link, _, what = line.partition(" ")
        sender, _, receiver = link.partition("→")
        found.append((sender, receiver, what))
    return found


def judge_migration(claim: Claim, story: str, protocol: str, more: str = "") -> Outcome:
    _, network, messages = play(story, protocol)
    expected = expected_messages(claim.paper)
    parts = {
        "the messages differ": by_link(messages) == by_link(expected),
        "not every route leads to its subscriber": not wrong_ways(network),
    }
    figures: dict[str, object] = {
        "messages": ", ".join(f"{sender}→{receiver} {what}" for sender, receiver, what in messages),
        "count": len(messages),
        "count in the document": len(expected),
    }
    if more:
        result, _, _ = play(story + more, protocol)
        figures |= {
            "published meanwhile": result.published,
            "delivered": result.delivered,
            "lost": result.lost,
        }
        parts["something was lost"] = result.lost == 0 and result.violations_total == 0
        parts["nothing was published"] = result.published > 0
    return claim.judge(parts, figures)


def wrong_ways(network: MobileNetwork) -> list[str]:
    """Return the brokers from which the next hops do not lead to the subscriber."""
    wrong = []
    for id in network.brokers:
        for number in range(1, 8):
            at, hops = id, 0
            while (way := network.brokers[at].machine.known[f"s{number}"].way) and hops < 10:
                at, hops = way, hops + 1
            if at != f"b{number}":
                wrong.append(f"s{number} from {id}")
    return wrong


@checks("amozarrain-migrations", "Brokers migrate: figures 3.1, 3.2, 4.1 and 4.2", A2, A3, A4, A5)
def migrations(quick: bool, sweep: Sweep) -> Findings:
    first, mft = "recursive_migration", "mft"
    outcomes = [
        judge_migration(A2, SIMPLE, first),
        judge_migration(A3, COMPLEX, first),
        judge_migration(A4, SIMPLE, mft),
        judge_migration(A5, COMPLEX, mft, PUBLISHED),
    ]
    rows = [{"claim": one.claim, "holds": one.holds, "count": one.figures["count"]} for one in outcomes]
    return Findings(outcomes, {"migrations": rows})


# --- A6: phantoms ---

LEAVES = """
brokers b1-b2 b2-b3
at 0 s attach {place}
at 1 s subscribe x = 1
at 10 b2 cut b1
at 11 s unsubscribe x = 1
at 12 b2 heal b1
"""


@checks("amozarrain-phantoms", "Subscribers that left while a part was away", A6)
def phantoms(quick: bool, sweep: Sweep) -> Findings:
    """Let s leave in either of the two parts, and list the brokers that still know it after the merge."""
    found: dict[str, list[str]] = {}
    for protocol in ("recursive_migration", "mft"):
        for place in ("b1", "b3"):
            _, network, _ = play(LEAVES.format(place=place), protocol)
            have = [id for id, broker in network.brokers.items() if "s" in broker.machine.routes()]
            found[f"{protocol}, s at {place}"] = have
    parts = {
        "a phantom under MFT": not found["mft, s at b1"] and not found["mft, s at b3"],
        "no phantom under the first approach": len(found["recursive_migration, s at b3"]) == 3,
    }
    figures = {name: " ".join(have) or "nobody" for name, have in found.items()}
    return Findings([A6.judge(parts, figures)], {"phantoms": [{"claim": "A6", **figures}]})
