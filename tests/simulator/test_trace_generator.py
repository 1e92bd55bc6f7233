"""Synthetic traces, and replaying a trace."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.simulator.movement import Visit, from_file, part_of
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.trace_generator import TraceSettings, generate_trace, write_trace

SMALL = TraceSettings(side=3, clients=12, duration_s=7_200.0, stay_s=600.0, pass_s=60.0, seed=3)


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = dict(generate_trace(SMALL))
    assert write_trace(tmp_path / "trace.csv", made.items()) == sum(map(len, made.values()))
    read = from_file(tmp_path / "trace.csv")
    assert list(read) == list(made)
    for client, visits in made.items():
        assert [one.broker for one in read[client]] == [one.broker for one in visits]
        assert [one.attach_s for one in read[client]] == pytest.approx([v.attach_s for v in visits], abs=1e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"]


def test_clients_walk_from_a_broker_to_the_one_beside_it() -> None:
    for _, visits in generate_trace(SMALL):
        places = [divmod(int(visit.broker[1:]), SMALL.side) for visit in visits]
        for (y, x), (next_y, next_x) in pairwise(places):
            assert abs(y - next_y) + abs(x - next_x) == 1


def test_one_seed_makes_one_trace_and_more_clients_change_nobody() -> None:
    assert list(generate_trace(SMALL)) == list(generate_trace(SMALL))
    assert list(generate_trace(SMALL)) != list(generate_trace(replace(SMALL, seed=4)))
    more = dict(generate_trace(replace(SMALL, clients=20)))
    assert more["c05"] == dict(generate_trace(SMALL))["c05"]


@pytest.mark.parametrize(
    "wrong", [{"side": 1}, {"clients": 0}, {"duration_s": 0.0}, {"pass_s": float("nan")}, {"wrong_turn": 1.0}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="valid is"):
        list(generate_trace(replace(SMALL, **wrong)))  # type: ignore[arg-type]


def test_a_part_of_a_trace_begins_at_zero_and_has_no_end_where_it_is_cut() -> None:
    visits = [Visit("a", 0.0, 10.0), Visit("b", 12.0, 20.0), Visit("c", 21.0, 40.0)]
    assert part_of(visits, 15.0, 30.0) == [Visit("b", 0.0, 5.0), Visit("c", 6.0, None)]
    assert part_of(visits, 10.5, 11.0) == []


def test_a_trace_is_replayed_by_the_clients_that_are_in_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    write_trace(trace, ((f"bus-{client}", visits) for client, visits in generate_trace(SMALL)))
    scenario = Scenario(
        topology="grid:3", clients=100, movement=f"trace:{trace}", trace_from_s=3_600.0, duration_s=3_600.0,
        publish_every_s=300.0, network=NetworkSettings(protocol="proactive"),
    )  # fmt: skip
    moved: list[tuple[str, str]] = []
    run = scenario.run(
        lambda rows: moved.extend((row.client or "", row.broker or "") for row in rows if row.kind == "moved")
    )
    expected = {
        client: [visit.broker for visit in part_of(visits, 3_600.0, 7_200.0)]
        for client, visits in from_file(trace).items()
    }
    assert run.result.delivered == run.result.expected > 0
    assert run.result.handoffs == sum(len(brokers) - 1 for brokers in expected.values()) > 50
    client = sorted(expected)[0]
    seen = [broker for who, broker in moved if who == client]
    assert [one for i, one in enumerate(seen) if i == 0 or seen[i - 1] != one] == expected[client]


def test_a_part_in_which_nobody_is_there_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    write_trace(trace, [("a", [Visit("b00", 0.0, 10.0)])])
    scenario = Scenario(topology="grid:2", movement=f"trace:{trace}", trace_from_s=50.0, duration_s=10.0)
    with pytest.raises(InputError, match="no client is attached in the replayed part"):
        scenario.run()
