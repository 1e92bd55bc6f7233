"""The judgements on rows that are made up, and one short run of each protocol."""

from __future__ import annotations

from typing import Any

import pytest

from roamcast.lab import amozarrain_radio as lab
from roamcast.lab.amozarrain_radio import RadioJob, findings_of, jobs, measure
from roamcast.lab.experiment import Outcome
from roamcast.lab.report import drawn
from roamcast.lab.rows import Row


def row(protocol: str, brokers: int, speed: float, seed: int, **changes: Any) -> Row:
    """A run in which everything is as the thesis says."""
    is_mft = protocol == "mft"
    nodes = 2 + 2 * brokers
    per_node = 1000.0 + brokers + seed if is_mft else 500.0 * brokers + seed - 500.0
    delivered = 1000 * brokers * (0.9 if is_mft else 0.8) + (
        400 * brokers if (is_mft, brokers) == (0, 32) else 0
    )
    made: Row = {
        "protocol": protocol,
        "brokers": brokers,
        "nodes": nodes,
        "speed": speed,
        "seed": seed,
        "duration_s": 700.0,
        "delivery_rate": 1.0 - 0.01 * brokers + (0.005 * speed if is_mft else 0.0) + 0.001 * seed,
        "delivered": delivered + seed,
        "delay_mean_s": 0.5,
        "hops_mean": 2.0,
        "hops_max": 5,
        "messages_per_node": per_node,
        "messages": per_node * nodes,
        "messages_per_broker": 2000.0,
        "messages_per_publisher": 600.0,
        "messages_per_subscriber": 100.0,
        **{f"load_at_{hops}_hops": 4.0 - hops + 0.1 * seed if is_mft else None for hops in range(4)},
        "setting": lab.CASTALIA,
        "load_far": 1.0 if is_mft else None,
        "sent_pub": 100,
    }
    return made | changes


def rows() -> list[Row]:
    every = [(job.protocol, job.brokers, job.speed, job.seed) for job in jobs(quick=False) if job.seed <= 3]
    return [row(*one) for one in dict.fromkeys(every)]


def outcomes(changed: list[Row]) -> dict[str, Outcome]:
    return {outcome.claim: outcome for outcome in findings_of(changed).outcomes}


def test_what_the_thesis_says_holds_if_it_is_so() -> None:
    assert {name: outcome.holds for name, outcome in outcomes(rows()).items()} == dict.fromkeys(
        ("A7", "A8", "A9", "A10"), True
    )


@pytest.mark.parametrize(
    ("claim", "where", "changes", "says"),
    [
        ("A7", {"protocol": "aodv", "brokers": 32}, {"delivery_rate": 0.99}, "aodv's rate does not fall"),
        ("A7", {"protocol": "mft", "speed": 10.0}, {"delivery_rate": 0.2}, "does not improve with speed"),
        ("A8", {"protocol": "mft", "brokers": 16, "speed": 4.0}, {"delivered": 1}, "C16 at 4 m/s"),
        ("A8", {"protocol": "aodv", "brokers": 32, "speed": 8.0}, {"delivered": 1}, "C32 at 8 m/s"),
        ("A9", {"protocol": "aodv", "brokers": 2}, {"messages_per_node": 9999.0}, "C2: AODV"),
        ("A9", {"protocol": "aodv", "brokers": 32}, {"messages_per_node": 501.0}, "does not grow"),
        ("A9", {"protocol": "mft", "brokers": 32}, {"messages_per_node": 4000.0}, "changes by more"),
        ("A9", {"protocol": "mft", "brokers": 32}, {"messages": 4000 * 66.0}, "not linear"),
        ("A10", {"protocol": "mft", "brokers": 16}, {"load_far": 9.0}, "C16: the leader sends no more"),
        (
            "A10",
            {"protocol": "mft", "brokers": 32},
            {"load_at_1_hops": 1.0},
            "C32: its neighbours send no more",
        ),
        ("A10", {"protocol": "mft", "brokers": 4}, {"messages_per_subscriber": 3e3}, "more than clients"),
    ],
)
def test_what_is_otherwise_is_said(claim: str, where: Row, changes: Row, says: str) -> None:
    changed = [
        one | changes if all(one[key] == value for key, value in where.items()) else one for one in rows()
    ]
    found = outcomes(changed)
    assert found[claim].holds is False
    assert says in found[claim].note
    # The other claims about the same rows do not mind.
    assert [name for name, outcome in found.items() if outcome.holds is False] == [claim]


def test_a_difference_that_seeds_explain_is_none() -> None:
    noisy = [
        one | {"delivered": 10_000 + (-1) ** one["seed"] * 500 + (one["protocol"] == "mft")}
        if one["brokers"] == 16 and not (one["protocol"] == "aodv" and one["seed"] == 1)
        else one
        for one in rows()
    ]
    outcome = outcomes(noisy)["A8"]
    assert outcome.holds is None
    assert "undecided" in outcome.note


def test_every_figure_can_be_drawn() -> None:
    findings = findings_of(rows())
    assert list(findings.figures) == [
        f"{name}_csma"
        for name in (
            "fig44_delivery_rate",
            "fig45_delivered",
            "fig46_delay",
            "fig47_hops",
            "fig48_messages",
            "load",
        )
    ]
    for draw in findings.figures.values():
        assert drawn(draw).axes


def test_a_claim_holds_as_it_does_in_the_setting_of_the_thesis() -> None:
    ours = [{**one, "setting": lab.IEEE, "delivered": 1} for one in rows()]
    outcome = outcomes([*rows(), *ours])["A8"]
    assert outcome.holds is True
    assert outcome.by_setting == {lab.CASTALIA: "holds", lab.IEEE: "does not hold"}


def test_the_full_setting_is_that_of_the_thesis() -> None:
    full = jobs(quick=False)
    assert len([job for job in full if job.protocol == "mft"]) == 3 * 5 * 5 * 10
    assert len([job for job in full if job.protocol == "aodv"]) == 2 * (4 * 5 * 10 + 5 * 3)
    assert {(job.duration_s, job.publishing_s) for job in full} == {(700.0, 500.0)}


def test_a_run_gives_every_column_that_is_judged() -> None:
    measured = [
        measure(RadioJob(protocol, 4, speed, 1, duration_s=20.0, publishing_s=15.0))
        for protocol in (lab.MFT, lab.AODV)
        for speed in (8.0,)
    ]
    for one in measured:
        assert set(row(one["protocol"], 4, 8.0, 1)) - {"sent_pub"} <= set(one)
    assert measured[0]["sent_pub"] > 0
    assert measured[1]["sent_data"] > 0
