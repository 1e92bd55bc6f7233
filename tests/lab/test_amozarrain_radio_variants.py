"""The judgements on rows that are made up, and that every variant can be run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from roamcast.lab import amozarrain_radio_variants as lab
from roamcast.lab.amozarrain_radio_variants import VARIANTS, VariantJob, findings_of, jobs, measure
from roamcast.lab.experiment import Outcome
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row
from roamcast.simulator.radio.workload import Publishing

REVERSED = {
    ("mft", "MFT: heartbeat every 0.25 s"): 250.0,
    ("mft", "MFT: clients beat as well"): 150.0,
    ("mft", "as in the text"): 150.0,
    ("aodv", "AODV: hello every 5 s"): 50.0,
}
"""Messages of a node at C2; otherwise MFT-PubSub sends 80, and AODV 110."""
UNCONFIRMED = ("Castalia's CSMA", "as in the text")


def row(job: VariantJob, **changes: Any) -> Row:
    """A run in which everything is as R3 to R5 say."""
    one = job.scenario
    is_mft = one.protocol == "mft"
    at_least = REVERSED.get((one.protocol, job.variant), 80.0 if is_mft else 110.0)
    growth = 3.0 if job.variant == "MFT: sent together" else 5.0
    per_node = (at_least if one.brokers == 2 else at_least * growth * one.brokers / 32) + 0.1 * one.seed
    delivered = (500 if job.variant in UNCONFIRMED else 2000) if is_mft else 1500
    made: Row = {
        "variant": job.variant,
        "protocol": one.protocol,
        "brokers": one.brokers,
        "nodes": 2 + 2 * one.brokers,
        "seed": one.seed,
        "duration_s": one.duration_s,
        "delivered": delivered + one.seed * (2 if is_mft else 3),
        "delivery_rate": 0.5,
        "migrations": 10,
        "messages_per_node": per_node,
        "frames": per_node * (2 + 2 * one.brokers),
        "sent_heartbeat" if is_mft else "sent_hello": 70 if is_mft else 500,
    }
    return made | changes


def outcomes(rows: list[Row]) -> dict[str, Outcome]:
    return {outcome.claim: outcome for outcome in findings_of(rows).outcomes}


@pytest.mark.parametrize("quick", [True, False])
def test_the_claims_hold_if_it_is_so(quick: bool) -> None:
    found = outcomes([row(job) for job in jobs(quick)])
    assert {name: (one.holds, one.note) for name, one in found.items()} == dict.fromkeys(
        ("R3", "R4", "R5"), (True, "")
    )


@pytest.mark.parametrize(
    ("claim", "variant", "where", "changes", "says"),
    [
        ("R3", "as set", ("mft", 32), {"delivered": 1}, "as set, 70 s: MFT-PubSub does not deliver more"),
        ("R3", "Castalia's CSMA", ("aodv", 32), {"delivered": 1}, "Castalia's CSMA, 70 s: AODV"),
        ("R4", "MFT: clients beat as well", ("mft", 2), {"messages_per_node": 1.0}, "clients beat as well"),
        ("R4", "as set", ("aodv", 2), {"messages_per_node": 1.0}, "as set: AODV sends fewer"),
        ("R5", "as set", ("mft", 32), {"messages_per_node": 90.0}, "barely change under: as set"),
        ("R5", "MFT: sent together", ("mft", 32), {"delivered": 1}, "sending together delivers less"),
    ],
)
def test_what_is_otherwise_is_said(
    claim: str, variant: str, where: tuple[str, int], changes: Row, says: str
) -> None:
    rows = [
        row(job, **(changes if (job.variant, job.scenario.protocol, job.scenario.brokers) == (variant, *where)
                    else {}))
        for job in jobs(quick=False)
    ]  # fmt: skip
    outcome = outcomes(rows)[claim]
    assert outcome.holds is False
    assert says in outcome.note


def test_figures_and_tables_name_every_variant() -> None:
    findings = findings_of([row(job) for job in jobs(quick=False)])
    assert {one["variant"] for one in findings.tables["variants"]} == {variant.name for variant in VARIANTS}
    for draw in findings.figures.values():
        assert drawn(draw)


def test_jobs_can_be_told_apart_and_have_the_length_that_they_say() -> None:
    every = jobs(quick=False)
    assert len({job.name for job in every}) == len({hash(job) for job in every}) == len(every)
    lengths = {(job.scenario.duration_s, job.scenario.publishing.until_s) for job in every}
    assert lengths == {(70.0, 50.0), (700.0, 500.0)}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_runs_and_delivers_something(variant: lab.Variant) -> None:
    for protocol in variant.of:
        scenario = lab.scenario(variant, protocol, 4, 1, 16.0, 12.0)
        figures = measure(VariantJob(variant.name, scenario))
        assert figures["delivered"] > 0
        assert figures["delivery_rate"] <= 1.0


@pytest.mark.slow
def test_a_variant_changes_what_happens() -> None:
    plain = lab.scenario(VARIANTS[0], "mft", 8, 1, 16.0, 12.0)
    before = measure(VariantJob("as set", plain))
    for variant in VARIANTS[1:]:
        if "mft" in variant.of and variant.name != "MFT: 6 missed heartbeats":
            after = measure(VariantJob("", lab.scenario(variant, "mft", 8, 1, 16.0, 12.0)))
            assert after["messages"] != before["messages"], variant.name
    each = replace(plain, publishing=Publishing(until_s=12.0, to_each=True)).run().figures()
    assert each["published"] == 8 * before["published"]
    assert each["owed"] <= each["published"]
