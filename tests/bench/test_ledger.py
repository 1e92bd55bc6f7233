"""The audit must see whatever was lost, repeated or swapped, and nothing where all is well."""

import pytest

from roamcast.bench.ledger import Audit, Ledger, audit


@pytest.fixture
def ledger() -> Ledger:
    """Two publishers, one with QoS 1 and one with QoS 2, and a subscriber who got everything."""
    ledger = Ledger(subscriptions={"s": {"t": 2}, "other": {"u": 2}})
    for publisher, qos in (("p", 1), ("q", 2)):
        for _ in range(4):
            message = ledger.publish(publisher, "t", qos)
            message.is_acknowledged = True
            ledger.received["s"].append(message.payload)
    return ledger


def broken(found: Audit) -> dict[str, int]:
    kinds = ("lost", "unexpected", "duplicated_qos_2", "out_of_order", "lost_sessions")
    return {kind: getattr(found, kind) for kind in kinds if getattr(found, kind)}


def test_all_is_well(ledger: Ledger) -> None:
    found = audit(ledger)
    assert (found.published, found.acknowledged, found.expected, found.delivered) == (8, 8, 8, 8)
    assert broken(found) == {}
    assert found.is_kept


def test_a_lost_one(ledger: Ledger) -> None:
    ledger.received["s"].remove("p/2")
    found = audit(ledger)
    assert broken(found) == {"lost": 1}
    assert not found.is_kept
    assert found.examples == ["s did not get p/2 (QoS 1, t)"]


def test_an_unknown_one_is_never_lost_and_may_be_recovered(ledger: Ledger) -> None:
    ledger.published["p/2"].is_acknowledged = ledger.published["p/3"].is_acknowledged = False
    ledger.received["s"].remove("p/2")
    found = audit(ledger)
    assert found.is_kept
    assert (found.unknown, found.recovered, found.expected) == (2, 1, 6)


def test_a_repeated_one_is_allowed_with_qos_1_only(ledger: Ledger) -> None:
    ledger.received["s"].append("p/1")
    found = audit(ledger)
    assert found.is_kept
    assert found.duplicates == 1
    ledger.received["s"].append("q/1")
    assert broken(audit(ledger)) == {"duplicated_qos_2": 1}


def test_the_lower_qos_counts(ledger: Ledger) -> None:
    ledger.subscriptions["s"]["t"] = 1
    ledger.received["s"].append("q/1")
    found = audit(ledger)
    assert found.is_kept
    assert found.duplicates == 1


def test_a_swapped_one(ledger: Ledger) -> None:
    got = ledger.received["s"]
    got[5], got[6] = got[6], got[5]
    assert broken(audit(ledger)) == {"out_of_order": 1}


def test_one_for_somebody_else_and_one_of_nobody(ledger: Ledger) -> None:
    ledger.received["other"] += ["p/1", "nonsense"]
    assert broken(audit(ledger)) == {"unexpected": 2}


def test_a_lost_session(ledger: Ledger) -> None:
    ledger.lost_sessions.append("s")
    assert broken(audit(ledger)) == {"lost_sessions": 1}


def test_examples_are_few_of_each_subscriber(ledger: Ledger) -> None:
    ledger.subscriptions["late"] = {"t": 1}
    ledger.received["s"].clear()
    found = audit(ledger)
    assert found.lost == 16
    assert [text.partition(" ")[0] for text in found.examples] == ["s"] * 3 + ["late"] * 3
