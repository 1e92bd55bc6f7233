"""What a broker that starts with an event log tells of the subscriptions that it holds."""

from __future__ import annotations

import msgspec
import pytest

from roamcast.broker.inputs import ClientConnected, ClientFrames, ConnectionLost, MachineInput, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec.packets import Connect, Subscribe, SubscriptionEntry, Unsubscribe
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.protocol.effects import Effects
from roamcast.protocol.records import HELD, Level
from roamcast.protocol.snapshot import freeze, state_hash, thaw


def settings(level: Level, protocol: str = "multi_hop_handoff") -> MachineSettings:
    given = MachineSettings("a", protocol=protocol)
    return msgspec.structs.replace(given, broker=msgspec.structs.replace(given.broker, records=level))


def with_subscriptions(level: Level, protocol: str = "multi_hop_handoff") -> BrokerMachine:
    """The car wants three topics and took one back, the bus has gone away, the guest for good."""
    machine = BrokerMachine(settings(level, protocol))
    machine.step(1.0, [Started(machine.settings)])
    for number, name in enumerate(("car", "bus", "guest"), 1):
        connect = Connect(5, name, False, session_expiry=3600 if name != "guest" else 0)
        entries = tuple(SubscriptionEntry(f"{name}/{topic}", 1) for topic in "xyz")
        packets = (Subscribe(7, entries), Unsubscribe(8, (f"{name}/y",)))
        data = b"".join(write(packet, 5) for packet in packets)
        machine.step(2.0, [ClientConnected(number, connect, Identity(name)), ClientFrames(number, data)])
    machine.step(3.0, [ConnectionLost(2), ConnectionLost(3)])
    return machine


def step(machine: BrokerMachine, *inputs: MachineInput) -> Effects:
    return machine.step(9.0, inputs)


def held(effects: Effects) -> list[tuple[str | None, str | None]]:
    rows = [row for row in effects.records if row.reason == HELD]
    assert {(row.kind, row.time, row.node, row.broker) for row in rows} <= {("subscribed", 9.0, "a", "a")}
    return [(row.client, row.filter) for row in rows]


@pytest.mark.parametrize("protocol", ["multi_hop_handoff", "roam", "reactive"])
@pytest.mark.parametrize("before", ["none", "counters"])
def test_a_start_with_a_log_tells_what_is_held(before: Level, protocol: str) -> None:
    machine = with_subscriptions(before, protocol)
    frozen = freeze(machine)
    first = step(machine, Started(settings("counters", protocol)))
    assert held(first) == [(name, f"topic = '{name}/{one}'") for name in ("car", "bus") for one in "xz"]
    replayed = thaw(frozen, verify=True)
    assert step(replayed, Started(settings("counters", protocol))).records == first.records
    assert state_hash(replayed) == state_hash(machine)


def test_nothing_is_told_without_a_log() -> None:
    machine = with_subscriptions("counters")
    assert not step(machine, Started(settings("none"))).records
