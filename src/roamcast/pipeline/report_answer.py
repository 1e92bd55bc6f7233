"""Answers a reader's first questions: was anything lost, for which clients, since when, and why.

Answers come from the tables of an audit (`clients.parquet` and `findings/`), or from the figures of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

WRONG = {
    "lost": "lost",
    "duplicates": "repeated",
    "out_of_order": "out of order",
    "unexpected": "unexpected",
    "invented": "invented",
}
"""Columns of an audit, with the words for them."""
UNIX_S = 1e8
"""Times below this are virtual: seconds since the run began."""
REASONS_MAX = 3

Findings = list[Mapping[str, Any]]


@dataclass
class Answer:
    """Verdict on one run, or on one client in it."""

    name: str
    owed: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    """Counts by column of an audit."""
    clients: int | None = None
    affected: int = 0
    """Number of clients with an error; known only if `clients` is."""
    since: str = ""
    why: str = ""

    @property
    def is_good(self) -> bool:
        return not any(self.wrong.values())


def answers_of_audit(clients: pa.Table, findings: Findings) -> list[Answer]:
    """Return one answer for each run, by name."""
    by_run: dict[str, Answer] = {}
    for row in clients.to_pylist():
        answer = by_run.setdefault(row["run"], Answer(row["run"], clients=0))
        wrong = _wrong(row)
        answer.owed += row["expected"]
        answer.wrong.update(wrong)
        answer.clients = (answer.clients or 0) + 1
        answer.affected += any(wrong.values())
    found = _grouped(findings, ("run",))
    for run, answer in by_run.items():
        answer.since, answer.why = since_and_why(found.get((run,), []))
    return [by_run[run] for run in sorted(by_run)]


def worst_clients(clients: pa.Table, findings: Findings, most: int) -> tuple[list[Answer], int]:
    """Return the clients with most errors, the worst first, and the total number of affected clients."""
    if clients.num_rows == 0:
        return [], 0
    total = None
    for column in WRONG:
        if column in clients.column_names:
            counts = clients.column(column)
            total = counts if total is None else pc.add(total, counts)
    marked = clients.append_column("wrong", total).filter(pc.greater(total, 0))
    order = [("wrong", "descending"), ("run", "ascending"), ("client", "ascending")]
    found = _grouped(findings, ("run", "client"))
    answers = []
    for row in marked.sort_by(order).slice(0, most).to_pylist():
        since, why = since_and_why(found.get((row["run"], row["client"]), []))
        answers.append(
            Answer(f"{row['client']} in {row['run']}", row["expected"], _wrong(row), since=since, why=why)
        )
    return answers, marked.num_rows


def answers_of_figures(name: str, figures: Mapping[str, Any]) -> Iterator[Answer]:
    """Return verdicts from the figures of a run, or of several runs by name."""
    if isinstance(figures.get("expected"), int) and "lost" in figures:
        yield Answer(
            str(figures.get("protocol") or name), figures["expected"], _wrong(figures), why=_excuses(figures)
        )
        return
    for key, value in figures.items():
        if isinstance(value, dict) and isinstance(value.get("expected"), int) and "lost" in value:
            yield Answer(str(key), value["expected"], _wrong(value), why=_excuses(value))
        elif isinstance(value, dict) and key == "protocols":
            yield from answers_of_figures(name, value)


def _wrong(row: Mapping[str, Any]) -> Counter[str]:
    return Counter({column: int(row.get(column) or 0) for column in WRONG})


def _excuses(figures: Mapping[str, Any]) -> str:
    excused = figures.get("excused")
    return (
        ", ".join(f"{count:,} {why}" for why, count in excused.items()) if isinstance(excused, dict) else ""
    )


def _grouped(findings: Findings, keys: tuple[str, ...]) -> dict[tuple[str, ...], Findings]:
    groups: dict[tuple[str, ...], Findings] = {}
    for finding in findings:
        groups.setdefault(tuple(finding[key] for key in keys), []).append(finding)
    return groups


def since_and_why(findings: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Say when the first affected notification was published, and name the most common reasons."""
    findings = list(findings)
    times = [one.get("published_at") or one.get("time") for one in findings]
    known = [float(time) for time in times if time is not None]
    reasons = Counter(reason_of(one) for one in findings)
    told = [f"{count:,} {reason}" for reason, count in reasons.most_common(REASONS_MAX)]
    return moment(min(known)) if known else "", "; ".join(told)


def reason_of(finding: Mapping[str, Any]) -> str:
    kind = str(finding.get("kind") or "wrong").replace("_", " ")
    word = "repeated" if kind.startswith("duplicate") else kind
    if finding.get("dropped_because"):
        return f"{word}: dropped ({finding['dropped_because']})"
    if finding.get("was_away"):
        return f"{word}, published while the client was away"
    return f"{word} around a handoff" if finding.get("handoff") else f"{word}: no row says why"


def moment(time: float) -> str:
    """Format a time; virtual time is counted from the beginning of the run."""
    if time < UNIX_S:
        return f"{time:,.1f}\N{NO-BREAK SPACE}s"
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def sentence(answers: list[Answer]) -> str:
    """Return the answer as a sentence."""
    owed = sum(answer.owed for answer in answers)
    runs = f"{len(answers)} runs" if len(answers) > 1 else f"run {answers[0].name}"
    bad = [answer for answer in answers if not answer.is_good]
    if not bad:
        return f"Nothing was lost, repeated or out of order: {owed:,} deliveries were owed in {runs}."
    total: Counter[str] = Counter()
    for answer in bad:
        total.update(answer.wrong)
    counts = [f"{total[column]:,} {word}" for column, word in WRONG.items() if total[column]]
    listed = counts[0] if len(counts) == 1 else f"{', '.join(counts[:-1])} and {counts[-1]}"
    if len(answers) == 1:
        return f"Of {owed:,} deliveries that were owed in {runs}, {listed}."
    names = ", ".join(answer.name for answer in bad[:6]) + (" and others" if len(bad) > 6 else "")
    return (
        f"In {len(answers) - len(bad)} of {runs} everything arrived once and in order; {listed} in {names}."
    )
