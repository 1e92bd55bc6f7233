"""A replay comes to the state that there was, and says so if it does not.

Worlds and simulated networks compare the hashes of recovered and live machines at every crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from tests.broker.mobile_world import MobileWorld
from tests.broker.world import World

from roamcast.broker import machine_base
from roamcast.broker.fronts import MqttFront
from roamcast.broker.inputs import (
    LinkDown,
    LinkFrames,
    Started,
    StateChecked,
    Tick,
    decode_entry,
    encode_entry,
)
from roamcast.broker.links import frames
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.machine_base import StateDiverged
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.server.in_flight import InFlight
from roamcast.protocol.notification import Burst
from roamcast.protocol.snapshot import freeze, hash_of, state_hash, thaw
from roamcast.protocol.snapshot_form import STATE_CLASSES
from roamcast.simulator.checkers import Result
from roamcast.simulator.fuzz import Kind
from roamcast.simulator.mqtt_network import MqttNetwork
from roamcast.simulator.mqtt_run import run_mqtt


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the state after every third turn, and few sessions at once."""
    monkeypatch.setattr(machine_base, "CHECK_EVERY", 3)
    monkeypatch.setattr(machine_base, "SESSIONS_CHECKED", 2)


def simulated(protocol: str, seed: int) -> tuple[MqttNetwork, Result]:
    """A network in which clients did all that MQTT clients do while brokers crashed."""
    story = Kind(("crash",), front="mqtt").draw(protocol, seed)
    networks: list[MqttNetwork] = []
    actions = tuple(story.with_homecoming())
    result = run_mqtt(story.topology, story.settings, actions, prepare=networks.append)
    return networks[0], result


def checks_in(journal: Sequence[bytes]) -> list[StateChecked]:
    inputs = [item for data in journal for item in decode_entry(data).inputs]
    return [item for item in inputs if isinstance(item, StateChecked)]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6, 7, 8])
def test_replays_come_to_the_state_there_was(seed: int) -> None:
    network, result = simulated("multi_hop_handoff", seed)
    assert result.violations == []
    assert result.crashes
    assert any(checks_in(journal.entries) for journal in network._journals.values())


@pytest.mark.usefixtures("often")
def test_replays_of_brokers_that_move_come_to_the_state_there_was() -> None:
    world = MobileWorld(1, 3, [(0, 1), (1, 2)])
    world.bring_in("c", "b0", "a/#", 1)
    for id in ("b1", "b2", "b0"):
        world.crash(id)
        world.attach("c", id)
        world.tell("c", "a/1", 1)
    for id in world.ids:
        world.check_replay(id)
        assert checks_in(world.journals[id])


def test_a_link_that_bad_frames_end_is_down_at_the_same_moment_in_a_replay() -> None:
    """What the broker is about to tell its peers depends on when the link went down."""
    world = World(3, 3, [(0, 1), (1, 2)])
    world.bring_in("c", "b2")
    world.drop(world.clients["c"].connection, "c")
    world.attach("c", "b1")  # Its session is being sought.
    site, peer = world.sites["b1"], world.sites["b2"].links.ends["b1"]
    gap = frames.batch(peer.incarnation, 0, peer.sent + 2, b"a message behind one that is missing")
    for inputs in ([LinkFrames("b2", gap)], [LinkDown("b2")]):
        world.now += 0.004
        effects = site.step(world.now, inputs)
        world.journals["b1"].append(encode_entry(world.now, effects.durable))
    assert not site.links.ends["b2"].is_up
    assert state_hash(world.recover("b1")) == state_hash(site)


# --- what is planted is found ---


def test_chance_in_the_state_is_found_at_the_next_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = count(1)
    connected = MqttFront.connected

    def connected_by_chance(self: MqttFront, *arguments: Any) -> None:
        connected(self, *arguments)
        self.keeper.publish("luck", b"\1", str(next(drawn)).encode())  # Nobody wants it, but it is counted.
        self._present[f"luck {next(drawn)}"] = True

    monkeypatch.setattr(MqttFront, "connected", connected_by_chance)
    world = World(1, 2, [(0, 1)])
    world.bring_in("c", "b0")
    with pytest.raises(AssertionError, match="b0 was replayed to another state"):
        world.crash("b0")


@pytest.mark.usefixtures("often")
def test_a_replay_that_differs_is_stopped_by_a_check_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2, 2, [(0, 1)])
    for name in ("c", "d"):
        world.bring_in(name, "b0", "a/#", 1)
    for _ in range(5):
        world.tell("c", "a/1", 1)
    assert isinstance(world.recover("b0"), BrokerMachine)
    send = InFlight.send_together

    def send_differently(self: InFlight, burst: Burst, sequence: int, qos: int) -> int:
        self._next += 1
        return send(self, burst, sequence, qos)

    monkeypatch.setattr(InFlight, "send_together", send_differently)
    with pytest.raises(StateDiverged, match=r"^the replayed state differs .* journalled in: sessions$"):
        world.recover("b0")


def test_a_check_names_each_part_that_differs() -> None:
    machine = BrokerMachine(MachineSettings("b"))
    machine.step(1.0, [Started(MachineSettings("b"))])
    sums = machine._sums() | {"links": 0, "counters": 1}
    with pytest.raises(StateDiverged, match=r"journalled in: links, counters$"):
        machine.step(2.0, [Tick(), StateChecked(sums)])


def test_a_check_costs_nothing_between_checks() -> None:
    machine = BrokerMachine(MachineSettings("b"))
    machine.step(1.0, [Started(MachineSettings("b"))])
    found = [machine.step(2.0 + turn, [Tick()]).durable for turn in range(machine_base.CHECK_EVERY)]
    assert [type(item).__name__ for item in found[-2]] == ["Tick", "StateChecked"]
    assert all(items == [Tick()] for items in (*found[:-2], found[-1]))


# --- snapshots ---


def test_everything_derived_is_there_again_after_thawing() -> None:
    network, _ = simulated("multi_hop_handoff", 3)
    for site in network.machines.values():
        data = freeze(site)
        found = thaw(data)
        assert state_hash(found) == hash_of(data) == state_hash(site)
        waiting, seen = [found], {id(found)}
        while waiting:
            value = waiting.pop()
            parts = list(value.values()) if isinstance(value, dict) else []
            parts += list(value) if isinstance(value, list | tuple) else []
            if "__state__" in type(value).__dict__:
                for name in STATE_CLASSES.of(type(value)).declared:
                    assert hasattr(value, name), f"{type(value).__name__}.{name}"
                    parts.append(getattr(value, name))
            waiting += [one for one in parts if id(one) not in seen]
            seen.update(map(id, parts))
