"""A machine that writes nothing for clients, as at a follower, has the state of one that does."""

from __future__ import annotations

import pytest

from roamcast.broker.inputs import ClientConnected, ClientFrames, Started, decode_entry
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.mqtt.codec.packets import Connect, Publish, Subscribe, SubscriptionEntry
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.protocol.snapshot import state_hash, thaw
from roamcast.simulator.mqtt_draw import draw_mqtt_story
from roamcast.simulator.mqtt_network import MqttNetwork
from roamcast.simulator.mqtt_run import run_mqtt
from roamcast.simulator.network import Journal


def replayed(network: MqttNetwork, broker: str, journal: Journal, is_mute: bool) -> tuple[BrokerMachine, int]:
    """The machine of a journal, and the bytes that it would have written for clients."""
    machine = network._make_machine(broker) if journal.snapshot is None else thaw(journal.snapshot)
    assert isinstance(machine, BrokerMachine)
    machine.endpoint.encoder.is_mute = is_mute
    size = 0
    for data in journal.entries:
        entry = decode_entry(data)
        effects = machine.step(entry.now, entry.inputs)
        size += sum(len(part) for parts in effects.writes.values() for part in parts)
    return machine, size


@pytest.mark.parametrize("seed", range(6))
def test_replays_of_a_mute_machine_end_in_the_same_state(seed: int) -> None:
    topology, settings, actions = draw_mqtt_story("multi_hop_handoff", seed, ("crash",))
    networks: list[MqttNetwork] = []
    run_mqtt(topology, settings, actions, prepare=networks.append)
    (network,) = networks
    written = {True: 0, False: 0}
    for broker, journal in network._journals.items():
        hashes = set()
        for is_mute in (True, False):
            machine, size = replayed(network, broker, journal, is_mute)
            written[is_mute] += size
            hashes.add(state_hash(machine))
        assert len(hashes) == 1, broker
    assert written[True] < written[False]


@pytest.mark.parametrize("qos", [0, 1])
def test_several_topics_of_one_read_are_accounted_for_without_writing_them(qos: int) -> None:
    settings = MachineSettings("a")
    sent = b"".join(write(Publish(f"t/{n % 3}", b"x", qos, packet_id=n * qos), 5) for n in range(1, 61))
    hashes, sizes = set(), []
    for is_mute in (True, False):
        machine = BrokerMachine(settings)
        machine.endpoint.encoder.is_mute = is_mute
        machine.step(1.0, [Started(settings)])
        machine.step(1.0, [ClientConnected(1, Connect(5, "c", session_expiry=60), Identity("c"))])
        machine.step(1.0, [ClientFrames(1, write(Subscribe(1, (SubscriptionEntry("#", qos),)), 5))])
        for _ in range(2):  # The second time the way of each topic is known.
            effects = machine.step(2.0, [ClientFrames(1, sent)])
        hashes.add(state_hash(machine))
        sizes.append(
            sum(len(part) for parts in effects.writes.values() for part in parts if part[0] >> 4 == 3)
        )
    assert len(hashes) == 1
    assert sizes[0] == 0 < sizes[1]
