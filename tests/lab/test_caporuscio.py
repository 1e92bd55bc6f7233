"""The lab over real foreign brokers: what is counted, how it is judged, and one trip for real."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from roamcast.bench.foreign_brokers import missing
from roamcast.lab import caporuscio
from roamcast.lab.caporuscio import fits, judge_basic, judge_none, ping_trips, short, table3
from roamcast.lab.caporuscio_runs import Batch, Trip, batches, filters_of, measure
from roamcast.lab.caporuscio_size import sizes
from roamcast.lab.sweep import Sweep
from roamcast.mqtt.topics import matches

TRIP = Trip("mosquitto", "ping", 10, 2.0)


def row(**values: Any) -> dict[str, Any]:
    usual = {
        "system": "nats", "option": "basic", "link": "wired", "s": 1, "p": 2.0, "number": 1, "published": 30,
        "away": 20, "lost": 0, "lost_away": 0, "duplicates": 0, "move_in_s": 0.5,
    }  # fmt: skip
    return {**usual, **values}


def test_all_filters_of_a_trip_are_different_and_match() -> None:
    topic, filters, _ = filters_of("mosquitto", "t1", 100)
    assert len(set(filters)) == 100
    assert all(matches(filter, topic) for filter in filters)
    assert len(set(filters_of("activemq", "t1", 100)[1])) == 100


def test_the_slow_link_carries_what_is_let_over_it() -> None:
    slow = replace(TRIP, link="gprs")
    assert fits(replace(slow, system="nats", subscriptions=100))
    assert fits(slow)
    assert not fits(replace(slow, subscriptions=100))
    assert not fits(replace(slow, system="activemq"))


def test_without_the_service_all_must_be_lost() -> None:
    assert judge_none([row(option="none", lost=20, lost_away=20)], []).holds is True
    outcome = judge_none([row(option="none", lost=19, lost_away=19)], ["rabbits are not installed"])
    assert outcome.holds is False
    assert outcome.note == "nats: 1 published while away arrived; rabbits are not installed"


@pytest.mark.parametrize(
    ("system", "lost", "holds"),
    [("nats", 1, True), ("nats", 2, False), ("mosquitto", 0, True), ("mosquitto", 1, False)],
)
def test_the_basic_service_may_lose_little_and_on_flooding_systems_nothing(
    system: str, lost: int, holds: bool
) -> None:
    assert judge_basic([row(system=system, lost=lost)], []).holds is holds


def test_one_loss_in_many_trips_with_ping_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def travelled(lost: int) -> list[dict[str, Any]]:
        rows = [row(system=trip.system, lost_copies=0) for trip in ping_trips(True, ["mosquitto"])]
        rows[-1]["lost"] = lost
        return rows

    monkeypatch.setattr(caporuscio, "installed", lambda systems: (["mosquitto"], []))
    for lost, holds in ((0, True), (1, False)):
        monkeypatch.setattr(caporuscio, "travel", partial(given, travelled(lost)))
        assert caporuscio.run_ping(True, Sweep(1)).outcomes[0].holds is holds
    monkeypatch.setattr(caporuscio, "travel", partial(given, travelled(0)[1:]))
    assert caporuscio.run_ping(True, Sweep(1)).outcomes[0].holds is False


def given(rows: list[dict[str, Any]], *_: object, **__: object) -> list[dict[str, Any]]:
    return rows


def duplicated(basic: int, ping: int, system: str) -> list[dict[str, Any]]:
    """One duplicate with one subscription, and these many with ten."""
    return [
        row(system=system, option=option, s=s, p=100.0, duplicates=count)
        for option, most in (("basic", basic), ("ping", ping))
        for s, count in ((1, 1), (10, most))
    ]


@pytest.mark.parametrize(
    ("flooding", "propagating", "holds"),
    [((9, 10), (9, 14), True), ((9, 14), (9, 10), False), ((9, 10), (1, 14), False), ((9, 6), (9, 8), False)],
)
def test_duplicates_must_grow_and_ping_add_less_where_messages_are_flooded(
    flooding: tuple[int, int], propagating: tuple[int, int], holds: bool
) -> None:
    rows = duplicated(*flooding, "mosquitto") + duplicated(*propagating, "nats")
    assert caporuscio.judge_duplicates(rows, []).holds is holds


def test_table_3_has_means_over_trips() -> None:
    rows = [
        row(option=option, move_in_s=s, duplicates=d)
        for option in ("basic", "ping")
        for s, d in ((1, 2), (2, 5))
    ]
    assert table3(rows) == [
        {
            "system": "nats", "s": 1, "delay basic ms": 1500, "delay ping ms": 1500,
            "losses basic": 0, "losses ping": 0, "duplicates basic": 3.5, "duplicates ping": 3.5,
        }
    ]  # fmt: skip


def test_an_adapter_is_smaller_than_the_core_and_alone_knows_its_broker() -> None:
    found = sizes()
    assert {"mosquitto", "nats", "activemq", "roamcast"} <= set(found.adapters)
    assert max(found.adapters.values()) < found.core
    assert found.leaks == []


def test_trips_are_put_together_by_system() -> None:
    trips = [TRIP, replace(TRIP, system="nats"), replace(TRIP, number=2)]
    assert [batch.trips for batch in batches(trips)] == [(trips[0], trips[2]), (trips[1],)]


@pytest.mark.skipif(missing("mosquitto") is not None, reason=missing("mosquitto") or "")
def test_trips_over_real_brokers() -> None:
    wired = short(replace(TRIP, per_s=20.0, subscriptions=3))
    trips = [
        replace(wired, option="none"),
        wired,
        replace(wired, link="gprs"),
        replace(wired, is_unique=True),
    ]
    without, quick, slow, unique = measure(Batch("mosquitto", tuple(trips)))["trips"]
    assert without["lost_away"] == without["away"] > 30
    for found in (quick, slow, unique):
        assert found["lost"] == found["lost_copies"] == 0
        assert found["away"] > 30
        assert found["troubles"] == []
        assert [arrived > published for published, arrived in found["trace"]] == [True] * found["published"]
    assert slow["move_in_s"] > quick["move_in_s"]


@pytest.mark.slow
@pytest.mark.parametrize("id", ["traces", "ping", "duplicates", "gprs"])
def test_every_claim_can_be_checked_quickly(id: str) -> None:
    from roamcast.lab.catalogue import experiments
    from roamcast.lab.experiment import conduct

    (experiment,) = (one for one in experiments() if one.id == f"caporuscio-{id}")
    sweep = Sweep(1)
    findings = conduct(experiment, True, sweep)
    assert sweep.failures == []
    assert all(outcome.holds is not None for outcome in findings.outcomes)
    if id == "ping":
        assert findings.outcomes[0].holds
