"""Whose input made a turn raise, found out on a copy of the state before it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from roamcast.broker.inputs import (
    ClientConnected,
    ClientFrames,
    ConnectionLost,
    Entry,
    LinkFrames,
    MachineEffects,
    MachineInput,
    RulesChanged,
    Started,
    Tick,
    decode_entry,
    encode_entry,
)
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.daemon.culprits import judge, with_beginnings
from roamcast.mqtt.codec.packets import Connect, Publish
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import AccessRules, Identity
from roamcast.protocol.effects import Input
from roamcast.protocol.snapshot import freeze
from roamcast.protocol.snapshot_form import STATEFUL, Catalogue
from roamcast.state import State
from roamcast.storage.kept_out import Who


class Touchy(BrokerMachine):
    """Raises on packets with `poison`, on timers if told so, and when `half` has come from two clients."""

    __state__ = State("touchy", saved=("fears_time",))

    fears_time = False

    def step(self, now: float, inputs: Iterable[MachineInput | Input]) -> MachineEffects:
        inputs = list(inputs)
        effects = super().step(now, inputs)
        halves = 0
        for one in inputs:
            if isinstance(one, LinkFrames) and b"poison" in one.data:
                raise KeyError("poison of a peer")
            if isinstance(one, Tick) and self.fears_time:
                raise RuntimeError("time")
            if isinstance(one, ClientFrames) and one.connection in self.endpoint.connections:
                taken = self.endpoint.connections[one.connection].taken
                halves += b"half" in taken
                if b"poison" in taken:
                    raise KeyError("poison")
        if halves > 1:
            raise ValueError("two halves")
        return effects


@pytest.fixture
def machine() -> Touchy:
    made = Touchy(MachineSettings("a"))
    arrivals = [
        ClientConnected(i, Connect(5, name), Identity(name, "", "")) for i, name in enumerate("xyz", start=1)
    ]
    made.step(1.0, [Started(made.settings), RulesChanged(AccessRules()), *arrivals])
    return made


def said(connection: int, payload: bytes) -> ClientFrames:
    return ClientFrames(connection, write(Publish("t", payload, 1, packet_id=1), 5))


def turn(*inputs: MachineInput | Input) -> Entry:
    return decode_entry(encode_entry(2.0, list(inputs)))


X, Y, Z = (Who("client", name) for name in "xyz")


HERE = Catalogue((f"{__name__}.", *(f"roamcast.{place}." for place in STATEFUL)))


def test_one_culprit_among_honest_clients(machine: Touchy) -> None:
    before = freeze(machine, HERE)
    verdict = judge(machine, turn(said(1, b"good"), said(2, b"poison"), said(3, b"good"), ConnectionLost(3)))
    assert (verdict.culprits, verdict.suspects) == ([Y], [])
    assert freeze(machine, HERE) == before


def test_a_client_that_came_in_the_same_turn(machine: Touchy) -> None:
    late = ClientConnected(9, Connect(5, "late"), Identity("late", "", ""))
    assert judge(machine, turn(late, said(9, b"poison"))).culprits == [Who("client", "late")]


def test_two_culprits_and_a_peer_in_one_turn(machine: Touchy) -> None:
    entry = turn(said(1, b"poison"), said(2, b"good"), said(3, b"poison"), LinkFrames("e", b"poison"))
    assert judge(machine, entry).culprits == [Who("peer", "e"), X, Z]


def test_where_no_single_input_raises_all_are_suspects(machine: Touchy) -> None:
    verdict = judge(machine, turn(said(1, b"half"), said(3, b"half"), Tick()))
    assert (verdict.culprits, verdict.suspects, verdict.is_found) == ([], [X, Z], False)


def test_a_timer_is_nobodys_fault(machine: Touchy) -> None:
    machine.fears_time = True
    verdict = judge(machine, turn(said(1, b"good"), Tick()))
    assert (verdict.culprits, verdict.suspects, verdict.is_found) == ([], [], True)


def test_a_packet_whose_beginning_came_in_an_earlier_turn(machine: Touchy) -> None:
    packet = said(2, b"poison").data
    pieces = [packet[:-9], packet[-9:-8], packet[-8:-4], packet[-4:]]
    inputs: list[MachineInput] = [ClientFrames(2, piece) for piece in pieces]
    recovered = Touchy(machine.settings)
    arrivals = [ClientConnected(2, Connect(5, "y"), Identity("y", "", ""))]
    recovered.step(1.0, [Started(machine.settings), RulesChanged(AccessRules()), *arrivals])
    machine.step(2.0, inputs[:1])
    machine.step(2.0, inputs[1:2])
    with pytest.raises(KeyError):
        machine.step(2.0, inputs[2:])
    whole = with_beginnings(machine, inputs[2:])
    assert b"".join(one.data for one in whole if isinstance(one, ClientFrames)) == packet
    assert judge(recovered, turn(*inputs[2:])).culprits == []
    assert judge(recovered, turn(*whole)).culprits == [Y]
