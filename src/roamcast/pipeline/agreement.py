"""Compares an audit's counts for every run with those of an independent observer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from roamcast.pipeline.audit_sql import COUNTS


@dataclass(frozen=True)
class Disagreement:
    run: str
    what: str
    audit: int
    other: int


def counts_by_run(out: Path) -> dict[str, Counter[str]]:
    """Return the counts of each run from the tables of an audit."""
    counts: dict[str, Counter[str]] = {}
    streams = pq.read_table(out / "streams").group_by("run").aggregate([(name, "sum") for name in COUNTS])
    for row in streams.to_pylist():
        counts[row["run"]] = Counter({name: row[f"{name}_sum"] for name in COUNTS})
    publishers = pq.read_table(out / "publishers.parquet")
    for row in publishers.group_by("run").aggregate([("published", "sum")]).to_pylist():
        counts.setdefault(row["run"], Counter())["published"] = row["published_sum"]
    for run in pq.read_table(out / "handoffs.parquet", columns=["run"]).column("run").to_pylist():
        counts.setdefault(run, Counter())["handoffs"] += 1
    return counts


def disagreements(out: Path, verdicts: Mapping[str, Mapping[str, int]]) -> list[Disagreement]:
    """Return the differences between the audit and these verdicts (run to name to count), including
    missing runs."""
    counts = counts_by_run(out)
    # Whoever saw the run would not know of what was never published.
    known = {run: {"invented": 0, **verdict} for run, verdict in verdicts.items()}
    strange = {run: dict.fromkeys(of_run, 0) for run, of_run in counts.items() if run not in known}
    return [
        Disagreement(run, what, counts.get(run, Counter())[what], count)
        for run, verdict in {**known, **strange}.items()
        for what, count in verdict.items()
        if counts.get(run, Counter())[what] != count
    ]
