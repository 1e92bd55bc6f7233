"""What trips say about claims C1, C2, C4 and C5: by intervals of 95 %, never by one difference.

A part of a claim is so, is not so, or cannot be told from these trips; and so is the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from roamcast.lab.curves import plane
from roamcast.lab.sweep import Row
from roamcast.models.intervals import Bounds, mean_interval, share_interval

FLOODING = ("mosquitto",)
NEARLY_ALL = 0.95
"""The share of what was published while away that has to arrive for C2."""
LITTLE = 0.10
"""Ping that adds a smaller share than this to the duplicates adds nothing to speak of."""

Parts = dict[str, bool | None]
Figures = dict[str, object]


def verdict(parts: Mapping[str, bool | None]) -> bool | None:
    """Nothing holds of which a part does not; and what cannot be told of a part cannot be told of all."""
    found = list(parts.values())
    if False in found:
        return False
    return True if found and None not in found else None


def note_of(parts: Mapping[str, bool | None], *reasons: str) -> str:
    """Why it is not simply so."""
    wrong = [text for text, is_so in parts.items() if is_so is False]
    unknown = [f"cannot be told: {text}" for text, is_so in parts.items() if is_so is None]
    return "; ".join([*wrong, *unknown, *filter(None, reasons)])


def of(rows: Iterable[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def systems_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["system"] for row in rows))


def rare(counted: int, total: int) -> float:
    """The largest share of trips that agrees with so many of these: none of a few does not mean never."""
    return round(share_interval(counted, total).high, 3) if total else 1.0


# --- C1 ---


def judge_none(rows: Sequence[Row]) -> tuple[Figures, Parts]:
    figures: Figures = {}
    parts: Parts = {}
    for system in systems_of(rows):
        found = of(rows, system=system, option="none")
        away, lost = (sum(row[name] for row in found) for name in ("away", "lost_away"))
        arrived = sum(row["away"] > row["lost_away"] for row in found)
        figures[system] = {
            "trips": len(found), "published while away": away, "of these lost": lost,
            "trips on which one arrived": arrived,
            "trips on which one arrives, at most": rare(arrived, len(found)),
        }  # fmt: skip
        parts[f"{system}: {away - lost} published while away arrived"] = away == lost
    return figures, parts


# --- C2 ---


def judge_basic(rows: Sequence[Row]) -> tuple[Figures, Parts]:
    figures: Figures = {}
    parts: Parts = {}
    for system in systems_of(rows):
        found = [row for row in of(rows, system=system, option="basic") if row["away"]]
        away, lost = sum(row["away"] for row in found), sum(row["lost"] for row in found)
        shares = [1 - row["lost"] / row["away"] for row in found]
        low, high = mean_interval(shares) if len(found) > 1 else (0.0, 1.0)
        figures[system] = {
            "trips": len(found), "published while away": away, "lost": lost,
            "lost on one trip, at most": max((row["lost"] for row in found), default=0),
            "trips on which one is lost, at most": rare(sum(row["lost"] > 0 for row in found), len(found)),
            "share that arrives, of what is published while away": [round(low, 4), min(round(high, 4), 1)],
        }  # fmt: skip
        if system in FLOODING:
            parts[f"{system} floods and lost {lost}"] = lost == 0
        else:
            text = f"{system} lost {lost} of {away}: {low:.1%} or more arrive, {min(high, 1):.1%} or less"
            parts[text] = True if low >= NEARLY_ALL else False if high < NEARLY_ALL else None
    figures["share that has to arrive"] = NEARLY_ALL
    return figures, parts


# --- C4 ---


def judge_duplicates(rows: Sequence[Row]) -> tuple[Figures, Parts]:
    """They grow with s times p; ping adds to them on every system that propagates, and a smaller share on
    those that flood."""
    figures: Figures = {}
    parts: Parts = {}
    added: dict[str, Bounds] = {}
    for system in systems_of(rows):
        figures[system] = {}
        for option in ("basic", "ping"):
            found = of(rows, system=system, option=option)
            slope = plane([{**row, "sp": row["s"] * row["p"]} for row in found], "duplicates", ["sp"])["sp"]
            text = f"{system} {option}: {1000 * slope.low:.2g} to {1000 * slope.high:.2g} more for 1000 s·p"
            parts[text] = True if slope.low > 0 else False if slope.high <= 0 else None
            figures[system] |= {  # type: ignore[operator]
                f"{option}: trips": len(found),
                f"{option}: duplicates": mean_duplicates(found),
                f"{option}: more for 1000 s·p": [round(1000 * slope.low, 3), round(1000 * slope.high, 3)],
            }
        added[system] = share_added(of(rows, system=system))
        figures[system] |= {"ping adds, share": [round(bound, 3) for bound in added[system]]}  # type: ignore[operator]
    for system in added:
        if system not in FLOODING:
            parts[f"ping adds {words(added[system])} on {system}"] = adds(added[system])
    return figures, parts | compare_added(added)


def adds(share: Bounds) -> bool | None:
    if share.low > 0:
        return True
    return False if share.high < LITTLE else None


def compare_added(added: Mapping[str, Bounds]) -> Parts:
    """Whether ping adds a smaller share where messages are flooded."""
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
    """By how much ping raises the duplicates per move, as a share of those without it.

    By pairs: trips of one kind and number went at the same time, so the machine's load is not in it.
    """
    basic, ping = (
        {(row["s"], row["p"], row["number"]): row["duplicates"] for row in of(rows, option=option)}
        for option in ("basic", "ping")
    )
    pairs = [(basic[kind], ping[kind]) for kind in basic if kind in ping]
    usual = fmean(before for before, _ in pairs) if pairs else 0.0
    if len(pairs) < 2 or not usual:
        return Bounds(-float("inf"), float("inf"))
    low, high = mean_interval([after - before for before, after in pairs])
    return Bounds(low / usual, high / usual)


def mean_duplicates(rows: Iterable[Row]) -> dict[str, float]:
    """Per move, by s and p, in their order."""
    found: dict[tuple[int, float], list[int]] = {}
    for row in rows:
        found.setdefault((row["s"], row["p"]), []).append(row["duplicates"])
    ordered = sorted(found, key=lambda one: (one[1], one[0]))
    return {f"s={s} p={p:g}": round(fmean(found[s, p]), 2) for s, p in ordered}


def explain_duplicates(rows: Sequence[Row]) -> tuple[Figures, str]:
    """Trips with a narrow way to the broker: whether ping's duplicates come from subscriptions that return
    before the broker has them, as those of the paper's Siena do."""
    kinds = {
        "mosquitto, confirmed": of(rows, system="mosquitto"),
        "nats, confirmed": of(rows, system="nats", hasty=False),
        "nats, not confirmed": of(rows, system="nats", hasty=True),
    }
    figures: Figures = {}
    for kind, found in kinds.items():
        if found:
            figures[kind] = {
                "trips": len(found),
                **{
                    f"{option}: {name}": round(fmean(row[name] for row in of(found, option=option)), 2)
                    for name in ("duplicates", "lost") for option in ("basic", "ping")
                },
                "ping adds, share": [round(bound, 3) for bound in share_added(found)],
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
    for system in systems_of(rows):
        for option in ("basic", "ping"):
            found = of(rows, system=system, option=option)
            slope = plane(found, "move_in_s", ["s"])["s"]
            text = f"{system} {option}: each subscription adds {slope.low:.3f} to {slope.high:.3f} s"
            parts[text] = True if slope.low > 0 else False if slope.high <= 0 else None
    return parts
