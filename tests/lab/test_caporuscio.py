"""The lab over real foreign brokers: what is counted, how it is judged, and one trip for real."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roamcast.bench.foreign_brokers import missing
from roamcast.bench.processes import BenchFailed
from roamcast.lab import caporuscio
from roamcast.lab import caporuscio_figures as pictures
from roamcast.lab.caporuscio import C1, C2, fits, ping_trips, short, table3
from roamcast.lab.caporuscio_judges import (
    explain_duplicates,
    judge_basic,
    judge_duplicates,
    judge_none,
    judge_slow,
)
from roamcast.lab.caporuscio_runs import Trip, batches, filters_of
from roamcast.lab.caporuscio_size import sizes
from roamcast.lab.report import drawn
from roamcast.lab.sweep import Sweep
from roamcast.mqtt.codec.topics import matches

TRIP = Trip("mosquitto", "ping", 10, 2.0)


def row(**values: Any) -> dict[str, Any]:
    usual = {
        "system": "nats", "option": "basic", "link": "wired", "s": 1, "p": 2.0, "number": 1, "published": 30,
        "away": 20, "lost": 0, "lost_away": 0, "duplicates": 0, "move_in_s": 0.5, "hasty": False,
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
    found = judge_none(C1, [row(option="none", lost=20, lost_away=20)] * 10, [])
    assert found.holds is True
    # Ten trips without an arrival do not show that there is never one, only that it is rare.
    assert found.figures["nats"]["share of such trips, upper bound of the estimate"] == 0.308  # type: ignore[index]
    outcome = judge_none(C1, [row(option="none", lost=19, lost_away=19)], ["rabbits are not installed"])
    assert outcome.holds is False
    assert (
        outcome.note
        == "nats: 1 arrived that were published while the client was away; rabbits are not installed"
    )


@pytest.mark.parametrize(
    ("system", "lost", "holds"),
    [
        ("nats", (0, 0, 1, 0, 0), True), ("nats", (2, 3, 2, 3), False), ("nats", (0, 0, 3, 0), None),
        ("nats", (0,), None), ("mosquitto", (0, 0), True), ("mosquitto", (0, 1), False),
    ],
)  # fmt: skip
def test_the_basic_service_may_lose_little_and_on_flooding_systems_nothing(
    system: str, lost: tuple[int, ...], holds: bool | None
) -> None:
    assert judge_basic(C2, [row(system=system, lost=count) for count in lost], []).holds is holds


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


def duplicated(
    system: str, basic: tuple[int, int], ping: tuple[int, int], **more: Any
) -> list[dict[str, Any]]:
    """Duplicates with one and with ten subscriptions, on ten trips each, all but one of which are alike."""
    return [
        row(
            system=system,
            option=option,
            s=s,
            p=100.0,
            number=number,
            duplicates=count + (number == 9),
            **more,
        )
        for option, counts in (("basic", basic), ("ping", ping))
        for s, count in zip((1, 10), counts, strict=True)
        for number in range(10)
    ]


@pytest.mark.parametrize(
    ("flooding", "propagating", "holds"),
    [
        (((1, 9), (1, 10)), ((1, 9), (5, 14)), True),
        (((1, 9), (5, 14)), ((1, 9), (1, 10)), False),  # more where messages are flooded
        (((1, 9), (1, 10)), ((9, 9), (14, 14)), None),  # whether they grow cannot be told
        (((1, 9), (1, 10)), ((9, 1), (14, 6)), False),  # they shrink
        (((1, 9), (1, 9)), ((1, 90), (1, 90)), False),  # ping adds nothing anywhere
    ],
)
def test_duplicates_must_grow_and_ping_add_less_where_messages_are_flooded(
    flooding: tuple[tuple[int, int], tuple[int, int]],
    propagating: tuple[tuple[int, int], tuple[int, int]],
    holds: bool | None,
) -> None:
    figures, parts = judge_duplicates(duplicated("mosquitto", *flooding) + duplicated("nats", *propagating))
    assert caporuscio.C4.judge(parts, figures).holds is holds, parts


def test_where_the_duplicates_of_ping_come_from_is_said_only_if_it_was_seen() -> None:
    confirmed = duplicated("nats", (5, 50), (5, 51))
    hasty = duplicated("nats", (0, 1), (3, 30), hasty=True)
    figures, why = explain_duplicates(confirmed + hasty)
    assert why.startswith("it depends on whether a subscription is confirmed")
    assert list(figures) == ["nats, confirmed", "nats, not confirmed"]
    assert explain_duplicates(confirmed + duplicated("nats", (5, 50), (5, 51), hasty=True))[1] == ""
    assert explain_duplicates([]) == ({}, "")


@pytest.mark.parametrize(
    ("delays_s", "holds"),
    [((1.0, 1.2, 5.0, 5.5), True), ((5.0, 5.5, 1.0, 1.2), False), ((1.0, 5.0, 2.0, 4.9), None)],
)
def test_a_delay_grows_only_if_the_interval_of_its_slope_says_so(
    delays_s: tuple[float, ...], holds: bool | None
) -> None:
    rows = [
        row(option=option, s=s, move_in_s=delay_s)
        for option in ("basic", "ping")
        for s, delay_s in zip((1, 1, 10, 10), delays_s, strict=True)
    ]
    assert caporuscio.C5.judge(judge_slow(rows), {}).holds is holds


def test_table_3_has_means_over_trips() -> None:
    rows = [
        row(option=option, move_in_s=s, duplicates=d)
        for option in ("basic", "ping")
        for s, d in ((1, 2), (2, 5))
    ]
    assert table3(rows) == [
        {
            "system": "nats", "s": 1, "trips": 4, "delay basic ms": 1500, "delay ping ms": 1500,
            "delay basic ms, from to": [-4853, 7853], "delay ping ms, from to": [-4853, 7853],
            "losses basic": 0, "losses ping": 0, "duplicates basic": 3.5, "duplicates ping": 3.5,
        }
    ]  # fmt: skip


def traced_row(**values: Any) -> dict[str, Any]:
    """A trip whose publications all arrive a tenth of a second later, but for one."""
    trace = [[at_s, at_s + 0.1 if at_s != 5 else None] for at_s in range(15)]
    return row(trace=trace, left_s=3.0, move_out_s=1.0, attached_s=13.0, **values)


def test_the_trip_that_is_drawn_is_near_to_the_paper_and_neither_the_slowest_nor_the_fastest() -> None:
    rows = [
        traced_row(s=s, p=p, move_in_s=took_s)
        for s, p in ((1, 2.0), (10, 1.0), (10, 10.0))
        for took_s in (9.0, 1.0, 2.0)
    ]
    found = pictures.traced(rows)
    assert found is not None
    assert (found["s"], found["p"], found["move_in_s"]) == (10, 1.0, 2.0)
    assert pictures.traced([]) is None


def test_every_panel_says_what_it_shows() -> None:
    rows = [
        traced_row(system=system, option=option, link=link)
        for system in ("nats", "activemq")
        for option in ("none", "basic", "ping")
        for link in ("wired", "gprs")
    ]
    figure = drawn(pictures.traces(rows, "wired", ("none", "basic")))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    lost = "0 of 30 lost\ns = 1, p = 2 per second"
    assert titles == [
        f"{name}, {option}: {lost}"
        for option in ("no service", "basic service") for name in ("NATS", "ActiveMQ")
    ]  # fmt: skip
    assert {axes.get_xlabel() for axes in figure.axes} == {"published, time in s"}
    assert [len(legend.get_texts()) for legend in figure.legends] == [3]
    assert len(drawn(pictures.slow_traces(rows)).axes) == 2


def test_where_nothing_is_installed_nothing_is_drawn() -> None:
    for chart in (pictures.slow_traces, pictures.duplicates, pictures.causes, pictures.delays):
        assert drawn(chart([])).axes == []


def test_pictures_of_duplicates_show_all_that_was_measured() -> None:
    narrow = duplicated("nats", (5, 50), (5, 51)) + duplicated("nats", (0, 1), (3, 90), hasty=True)
    figure = drawn(pictures.causes([{**one, "lost": one["duplicates"]} for one in narrow]))
    # One scale for all columns of a line, which reaches to the highest point and its interval.
    assert {axes.get_ylim()[0] for axes in figure.axes} == {0.0}
    assert all(axes.get_ylim()[1] > 90 for axes in figure.axes)
    assert len(drawn(pictures.duplicates(narrow)).axes) == 1


def test_an_adapter_is_smaller_than_the_core_and_alone_knows_its_broker() -> None:
    found = sizes()
    assert {"mosquitto", "nats", "activemq", "roamcast"} <= set(found.adapters)
    assert max(found.adapters.values()) < found.core
    assert found.leaks == []


def test_trips_of_a_system_that_take_as_long_go_at_once_as_far_as_the_machine_can_serve_them() -> None:
    trips = [replace(TRIP, number=number) for number in range(3)]
    slow = replace(TRIP, link="gprs", subscriptions=100)
    busy = replace(TRIP, subscriptions=100, per_s=19.0)
    others = [replace(TRIP, system="nats"), slow, busy, replace(busy, number=2)]
    ports = {"mosquitto": {"hub": 1}, "nats": {"hub": 2}}
    found = batches([*trips, *others], ports, Path("here"), 2)
    assert {batch.trips for batch in found} == {
        (slow,), (trips[0], trips[1]), (busy, trips[2]), (replace(busy, number=2),), (others[0],),
    }  # fmt: skip
    assert {batch.ports for batch in found} == {(("hub", 1),), (("hub", 2),)}
    assert len({(batch.system, batch.number) for batch in found}) == len(found)


def test_trips_that_are_compared_go_together() -> None:
    trips = [
        replace(TRIP, option=option, number=number)
        for option in ("basic", "ping") for number in (1, 2)
    ]  # fmt: skip
    found = batches(trips, {"mosquitto": {}}, Path("here"), 2)
    assert [[trip.option for trip in batch.trips] for batch in found] == [["basic", "ping"]] * 2


def test_a_system_that_does_not_start_is_a_failure_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise BenchFailed("the port is taken")

    monkeypatch.setattr(caporuscio, "foreign_network", fail)
    sweep = Sweep(1)
    assert caporuscio.travel(sweep, ([TRIP], 1)) == []
    assert list(map(str, sweep.failures)) == ["all trips over mosquitto: the port is taken"]


@pytest.mark.slow
@pytest.mark.skipif(missing("mosquitto") is not None, reason=missing("mosquitto") or "")
def test_trips_over_real_brokers() -> None:
    wired = short(replace(TRIP, per_s=20.0, subscriptions=3))
    trips = [
        replace(wired, option="none"),
        wired,
        replace(wired, link="gprs", subscriptions=2),
        replace(wired, is_unique=True, number=2),
    ]
    sweep = Sweep(1)
    rows = caporuscio.travel(sweep, (trips[:2], 4), (trips[2:], 4))
    assert sweep.failures == []
    without, quick, slow, unique = rows
    # About forty, but a machine that is late publishes them later.
    assert without["lost_away"] == without["away"] > 5
    for found in (quick, slow, unique):
        assert found["lost"] == found["lost_copies"] == 0
        assert found["away"] > 5
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


# --- R10 ---


def test_r10_fails_if_something_is_kept_that_was_excluded() -> None:
    row = {
        "system": "nats",
        "nearest": "a",
        "away kept": 20,
        "away excluded": 0,
        "after kept": 1,
        "after excluded": 1,
    }
    assert caporuscio.judge_r10([row]).holds is True
    for change in ({"nearest": "b"}, {"away kept": 19}, {"away excluded": 1}, {"after excluded": 0}):
        assert caporuscio.judge_r10([row | change]).holds is False
