"""Scenarios: settled before anything is published, everyone home at the end, refusals in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roamcast.errors import InputError
from roamcast.protocol.effects import AttachTo, LeaveFor, PublishThis
from roamcast.protocol.records import Row
from roamcast.simulator.links import Delay
from roamcast.simulator.network import NetworkSettings
from roamcast.simulator.scenario import Scenario

SMALL = Scenario(
    topology="grid:3",
    clients=30,
    mobile=0.5,
    connect_s=5.0,
    disconnect_s=5.0,
    publish_every_s=5.0,
    duration_s=60.0,
)


def varied() -> list[Scenario]:
    slow = replace(SMALL.network, link_delay=Delay(0.1, 0.5), access_delay=Delay(0.0, 0.3), seed=2)
    told = replace(SMALL.network, advertisements=True, seed=3)
    durable = NetworkSettings(protocol="durable", seed=4)
    return [
        SMALL,
        replace(SMALL, network=slow, movement="NBR", proclaimed=0.5),
        replace(SMALL, network=told, movement="RND", workload="nested", selectivity=0.2),
        replace(SMALL, topology="line:4", workload="ranges", network=durable),
    ]


@pytest.mark.parametrize("scenario", varied(), ids=lambda one: f"{one.movement}-{one.workload}")
def test_every_subscription_is_settled_before_anything_is_published(scenario: Scenario) -> None:
    rows: list[Row] = []
    run = scenario.run(rows.extend)
    assert run.result.violations == []
    settled = [row for row in rows if row.kind == "subscribed" and row.reason == "settled"]
    published = [row for row in rows if row.kind == "published"]
    assert len(settled) == scenario.clients
    assert max(row.time for row in settled) < min(row.time for row in published)
    # About one for each client in each period.
    assert len(published) == pytest.approx(scenario.clients * 60 / 5, rel=0.2)
    # All of the group or range are owed it, for everyone is subscribed from the first to the last.
    assert run.result.expected > 0


@pytest.mark.parametrize("scenario", varied(), ids=lambda one: f"{one.movement}-{one.workload}")
def test_everyone_is_attached_at_the_end(scenario: Scenario) -> None:
    run = scenario.run()
    network = run.network
    assert run.result.handoffs > 50
    for client in network.clients.values():
        assert client.welcomed
        assert network.is_attached(client.id)
        assert client.id in network.brokers[client.broker].attachments
        assert [id for id, broker in network.brokers.items() if client.id in broker.sessions] == [
            client.broker
        ]
    assert len(network.clients) == scenario.clients


def test_actions_are_in_order_of_time_and_every_leave_is_followed_by_an_attach() -> None:
    for scenario in varied():
        actions = list(scenario.actions(scenario.make_topology()))
        assert [at for at, _, _ in actions] == sorted(at for at, _, _ in actions)
        for client in {client for _, client, _ in actions}:
            moves = [
                item for _, who, item in actions if who == client and isinstance(item, AttachTo | LeaveFor)
            ]
            kinds = [type(item) for item in moves]
            assert kinds == [AttachTo, *[LeaveFor, AttachTo] * (len(kinds) // 2)]


def test_moves_and_publications_are_the_same_for_every_protocol() -> None:
    def actions(protocol: str) -> list[Any]:
        scenario = replace(SMALL, network=replace(SMALL.network, protocol=protocol))
        return list(scenario.actions(scenario.make_topology()))

    assert actions("none") == actions("sub_unsub") == actions("durable")
    other = replace(SMALL, network=replace(SMALL.network, seed=9))
    assert list(other.actions(other.make_topology())) != actions("none")


def test_only_as_many_move_as_asked() -> None:
    for share in (0.0, 0.1, 1.0):
        scenario = replace(SMALL, mobile=share)
        moving = {
            client
            for _, client, item in scenario.actions(scenario.make_topology())
            if isinstance(item, LeaveFor)
        }
        assert len(moving) <= round(share * 30)
        assert len(moving) >= round(share * 30) * 0.8


def test_payloads_have_the_size_asked_for() -> None:
    scenario = replace(SMALL, payload_bytes=123)
    bodies = {
        len(item.bodies[0])
        for _, _, item in scenario.actions(scenario.make_topology())
        if isinstance(item, PublishThis)
    }
    assert bodies == {123}


def test_visits_from_a_file_are_followed(tmp_path: Path) -> None:
    file = tmp_path / "visits.csv"
    file.write_text("client,broker,attach_s,leave_s\nc01,b00,0,10\nc01,b01,20,\n")
    scenario = replace(SMALL, topology="line:2", movement=f"file:{file}")
    rows: list[Row] = []
    run = scenario.run(rows.extend)
    moved = [(row.broker, row.reason) for row in rows if row.kind == "moved" and row.client == "c01"]
    assert moved == [("b00", None), ("b00", "left"), ("b01", "b00")]
    assert run.result.handoffs == 1
    file.write_text("client,broker,attach_s,leave_s\nstranger,b00,0,10\n")
    with pytest.raises(InputError, match="'stranger' is not one of c00 … c29"):
        scenario.run()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": 0}, "clients 0: valid is 1 to 1000000"),
        ({"mobile": 1.5}, "mobile 1.5: valid is a number from 0 to 1"),
        ({"duration_s": 0.0}, "duration 0.0: valid is a time above 0"),
        ({"duration_s": float("inf")}, "duration inf"),
        ({"duration_s": float("nan")}, "duration nan"),
        ({"payload_bytes": -1}, "payload -1: valid is 0 to 1000000"),
        ({"topology": "ring:3"}, "topology 'ring:3'"),
        ({"workload": "silence"}, "workload 'silence'"),
        ({"movement": "flying"}, "flying"),
        ({"network": NetworkSettings(protocol="teleport")}, "protocol 'teleport'"),
        ({"network": NetworkSettings(routing="gossip")}, "routing strategy 'gossip'"),
        ({"network": NetworkSettings(routing="flooding", advertisements=True)}, "flooding"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_run_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refusal:
        replace(SMALL, **change).run()
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
