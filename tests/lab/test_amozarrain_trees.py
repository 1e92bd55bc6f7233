"""The judgement on rows that are made up, and one short run of each kind."""

from __future__ import annotations

from typing import Any

import pytest

from roamcast.lab.amozarrain_trees import AIR, LINKS, MEASURED, RULES, TreeJob, findings_of, jobs, measure
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row

CHANGES = {"plain": 40.0, "stable": 5.0, "balanced": 8.0}
CHILDREN = {"plain": 6.0, "stable": 9.0, "balanced": 5.0}


def row(job: TreeJob, **changes: Any) -> Row:
    """A run in which everything is as R6 says."""
    return {
        "where": job.where,
        "rule": job.rule,
        "brokers": job.brokers,
        "speed": job.speed,
        "seed": job.seed,
        "case": f"{job.where}, C{job.brokers}, {job.speed:g} m/s",
        **dict.fromkeys(MEASURED, 1.0),
        "changes": CHANGES[job.rule] + 0.1 * job.seed,
        "tree_children_most": CHILDREN[job.rule] + 0.1 * job.seed,
        **changes,
    }


@pytest.mark.parametrize("quick", [True, False])
def test_the_claim_holds_if_it_is_so(quick: bool) -> None:
    (outcome,) = findings_of([row(job) for job in jobs(quick)]).outcomes
    assert (outcome.holds, outcome.note) == (True, "")


@pytest.mark.parametrize(
    ("rule", "changes", "says"),
    [
        ("balanced", {"tree_children_most": 20.0}, "do not have fewer children at most"),
        ("plain", {"changes": 1.0}, "do not change less than plain ones"),
        ("stable", {"changes": 30.0}, "do not change less than balanced ones"),
    ],
)
def test_what_is_otherwise_is_said(rule: str, changes: Row, says: str) -> None:
    rows = [row(job, **(changes if job.rule == rule else {})) for job in jobs(quick=False)]
    findings = findings_of(rows)
    (outcome,) = findings.outcomes
    assert outcome.holds is False
    assert f"over links: {'balanced' if rule != 'stable' else 'stable'} trees {says}" in outcome.note
    assert all(drawn(draw) for draw in findings.figures.values())


def test_over_links_a_plain_tree_never_rests_and_everything_arrives() -> None:
    made = {rule: measure(TreeJob(LINKS, rule, 20, 0.0, 1)) for rule in RULES}
    assert made["plain"]["changes"] > 5 * made["stable"]["changes"]
    assert all(one["delivery_rate"] == 1.0 and one["delivered"] == 10 * 35 for one in made.values())


def test_over_the_air_the_tree_is_looked_at() -> None:
    figures = measure(TreeJob(AIR, "balanced", 8, 8.0, 1))
    assert 0 < figures["tree_hops"] <= figures["tree_depth"] < 8
    assert figures["changes"] > 0
