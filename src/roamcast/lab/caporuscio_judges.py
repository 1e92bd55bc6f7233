"""Judge claims C1, C2, C4 and C5 by the trips, with intervals of 95 % and never by a single difference. A
part of a claim holds, does not hold, or is undecided by these trips; the claim follows from its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from roamcast.lab.curves import Slope, plane
from roamcast.lab.experiment import Claim, Outcome
from roamcast.lab.rows import Row, distinct, grouped, mean_of, rounded, sums_of, where
from roamcast.models.intervals import Bounds, mean_interval, share_interval

FLOODING = ("mosquitto",)
NEARLY_ALL = 0.95
"""Minimum share of the notifications published while away that must arrive for C2."""
LITTLE = 0.10
"""If ping adds a smaller share than this to the duplicates, it counts as adding none."""

Parts = dict[str, bool | None]
Figures = dict[str, object]


def above_0(bounds: Bounds | Slope, little: float = 0.0) -> bool | None:
    """Return whether the bounds lie above 0; None if they include 0 and reach above `little`."""
    return True if bounds.low > 0 else False if bounds.high <= little else None


def rare(counted: int, total: int) -> float:
    """Return the largest share of trips that is consistent with this count: an event absent from a few trips
    may still be possible.
    """
    return round(share_interval(counted, total).high, 3) if total else 1.0


# --- C1 ---


def judge_none(claim: Claim, rows: Sequence[Row], notes: Sequence[str]) -> Outcome:
    figures: Figures = {}
    parts: Parts = {}
    for system in distinct(rows, "system"):
        found = where(rows, system=system, option="none")
        away, lost = sums_of(found, ("away", "lost_away")).values()
        arrived = sum(row["away"] > row["lost_away"] for row in found)
        figures[system] = {
            "trips": len(found), "published while away": away, "of these lost": lost,
            "trips on which one arrived": arrived,
            "share of such trips, upper bound of the estimate": rare(arrived, len(found)),
        }  # fmt: skip
        parts[f"{system}: {away - lost} arrived that were published while the client was away"] = away == lost
    return claim.judge(parts, figures, notes=notes)


# --- C2 ---


def judge_basic(claim: Claim, rows: Sequence[Row], notes: Sequence[str]) -> Outcome:
    figures: Figures = {}
    parts: Parts = {}
    for system in distinct(rows, "system"):
        found = [row for row in where(rows, system=system, option="basic") if row["away"]]
        away, lost = sums_of(found, ("away", "lost")).values()
        shares = [1 - row["lost"] / row["away"] for row in found]
        low, high = mean_interval(shares) if len(found) > 1 else (0.0, 1.0)
        figures[system] = {
            "trips": len(found), "published while away": away, "lost": lost,
            "lost on one trip, maximum": max((row["lost"] for row in found), default=0),
            "trips on which one is lost, upper bound": rare(
                sum(row["lost"] > 0 for row in found), len(found)
            ),
            "share of messages published while away that arrives": [round(low, 4), min(round(high, 4), 1)],
        }  # fmt: skip
        if system in FLOODING:
            parts[f"{system} floods and lost {lost}"] = lost == 0
        else:
            text = f"{system} lost {lost} of {away}: {low:.1%} or more arrive, {min(high, 1):.1%} or less"
            parts[text] = True if low >= NEARLY_ALL else False if high < NEARLY_ALL else None
    figures["share that has to arrive"] = NEARLY_ALL
    return claim.judge(parts, figures, notes=notes)


# --- C4 ---


def judge_duplicates(rows: Sequence[Row]) -> tuple[Figures, Parts]:
    """Judge whether duplicates grow with s times p, and whether ping adds to them on every system that
    propagates, and a smaller share on those that flood.
    """
    figures: Figures = {}
    parts: Parts = {}
    added: dict[str, Bounds] = {}
    for system in distinct(rows, "system"):
        of_system: Figures = {}
        for option in ("basic", "ping"):
            found = where(rows, system=system, option=option)
            slope = plane([{**row, "sp": row["s"] * row["p"]} for row in found], "duplicates", ["sp"])["sp"]
            low, high = 1000 * slope.low, 1000 * slope.high
            text = f"{system} {option}: {low:.2g} to {high:.2g} additional for 1000 s·p"
            parts[text] = above_0(slope)
            of_system |= {
                f"{option}: trips": len(found),
                f"{option}: duplicates": mean_duplicates(found),
                f"{option}: additional for 1000 s·p": [
                    round(1000 * slope.low, 3),
                    round(1000 * slope.high, 3),
                ],
            }
        added[system] = share_added(where(rows, system=system))
        figures[system] = {**of_system, "ping adds, share": rounded(added[system], 3)}
    for system, share in added.items():
        if system not in FLOODING:
            parts[f"ping adds {words(share)} on {system}"] = above_0(share, LITTLE)
    return figures, parts | compare_added(added)


def compare_added(added: Mapping[str, Bounds]) -> Parts:
    """Judge whether ping adds a smaller share on systems that flood."""
    parts: Parts = {}
    for flooding in [system for system in FLOODING if system in added]:
        for other in [system for system in added if system not in FLOODING]:
            here, there = added[flooding], added[other]
            text = f"ping adds {words(here)} on {flooding}, {words(there)} on {other}"
            parts[text] = True if here.high < there.low else False if here.low >= there.high else None
    return parts


def words(share: Bounds) -> str:
    return f"{share.low:+.0%} to {share.high:+.0%}"


def share_added(rows: Sequence[Row]) -> Bounds:
    """Return the increase of duplicates per move by ping, as a share of the duplicates without ping. Trips of
    the same kind and number ran at the same time and are compared in pairs, which cancels the machine's
    load.
    """
    basic, ping = (
        {(row["s"], row["p"], row["number"]): row["duplicates"] for row in where(rows, option=option)}
        for option in ("basic", "ping")
    )
    pairs = [(basic[kind], ping[kind]) for kind in basic if kind in ping]
    usual = fmean(before for before, _ in pairs) if pairs else 0.0
    if len(pairs) < 2 or not usual:
        return Bounds(-float("inf"), float("inf"))
    low, high = mean_interval([after - before for before, after in pairs])
    return Bounds(low / usual, high / usual)


def mean_duplicates(rows: Iterable[Row]) -> dict[str, float]:
    """Return the mean duplicates per move for each s and p, in order."""
    found = grouped(rows, "p", "s")
    return {
        f"s={s} p={p:g}": round(fmean(row["duplicates"] for row in found[p, s]), 2) for p, s in sorted(found)
    }


def explain_duplicates(rows: Sequence[Row]) -> tuple[Figures, str]:
    """Judge by trips over a narrow link whether ping's duplicates come from subscribe calls that return
    before the broker has the subscription, as in the paper's Siena.
    """
    kinds = {
        "mosquitto, confirmed": where(rows, system="mosquitto"),
        "nats, confirmed": where(rows, system="nats", hasty=False),
        "nats, not confirmed": where(rows, system="nats", hasty=True),
    }
    figures: Figures = {}
    for kind, found in kinds.items():
        if found:
            figures[kind] = {
                "trips": len(found),
                **{
                    f"{option}: {name}": mean_of(where(found, option=option), name, 2)
                    for name in ("duplicates", "lost") for option in ("basic", "ping")
                },
                "ping adds, share": rounded(share_added(found), 3),
            }  # fmt: skip
    here, there = (kinds[f"nats, {kind}"] for kind in ("confirmed", "not confirmed"))
    if not here or not there or share_added(here).high >= share_added(there).low:
        return figures, ""
    return figures, (
        "it depends on whether a subscription is confirmed, not on whether it is propagated: over a narrow "
        f"way to NATS ping adds {words(share_added(here))} if the client waits for confirmations, as ours "
        f"do, and {words(share_added(there))} if it does not, as Siena's"
    )


# --- C5 ---


def judge_slow(rows: Sequence[Row]) -> Parts:
    parts: Parts = {}
    for system in distinct(rows, "system"):
        for option in ("basic", "ping"):
            found = where(rows, system=system, option=option)
            slope = plane(found, "move_in_s", ["s"])["s"]
            text = f"{system} {option}: each subscription adds {slope.low:.3f} to {slope.high:.3f} s"
            parts[text] = above_0(slope)
    return parts
