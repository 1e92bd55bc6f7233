"""Medium access, on a real channel and in virtual time; stations on a line without shadowing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from roamcast.simulator.radio.movement import Still
from roamcast.simulator.radio.network import RadioNetwork, Station
from roamcast.simulator.radio.parameters import CASTALIA_CSMA, RadioParameters

PARAMETERS = RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)


class Notebook:
    """A program that sends what it is given at the start, and writes down what happens."""

    def __init__(self, station: Station, *to_send: tuple[int, Any, int]) -> None:
        self.station = station
        self.to_send = to_send
        self.refused: list[Any] = []
        self.received: list[tuple[float, int, Any]] = []
        self.sent: list[tuple[int, Any]] = []
        self.failed: list[tuple[int, Any]] = []
        self.accepted: list[bool] = []

    def on_start(self) -> None:
        self.accepted = [self.station.unicast(one[0], "note", *one[1:]) for one in self.to_send]

    def accepts(self, sender: int, message: Any) -> bool:
        return message not in self.refused

    def on_received(self, sender: int, message: Any) -> None:
        self.received.append((self.station.now, sender, message))

    def on_sent(self, destination: int, message: Any) -> None:
        self.sent.append((destination, message))

    def on_send_failed(self, destination: int, message: Any) -> None:
        self.failed.append((destination, message))


def run(
    places_m: list[float],
    to_send: dict[int, list[tuple[int, Any, int]]],
    parameters: RadioParameters = PARAMETERS,
    seed: int = 1,
    until_s: float = 5.0,
) -> list[Notebook]:
    positions = np.array([[place, 0.0] for place in places_m])
    network = RadioNetwork(parameters, Still(positions), max(places_m) + 1.0, seed)
    programs = [Notebook(station, *to_send.get(station.number, [])) for station in network.stations]
    network.run(programs, until_s)
    return programs


def messages(program: Notebook) -> list[Any]:
    return [message for _, _, message in program.received]


def test_a_unicast_arrives_once_and_is_acknowledged() -> None:
    sender, receiver = run([0.0, 10.0], {0: [(1, "m", 30)]})
    assert messages(receiver) == ["m"]
    assert sender.sent == [(1, "m")]
    assert sender.failed == []
    assert sender.station.access.counts.frames == 1
    assert receiver.station.access.counts.acknowledgements == 1


def test_it_takes_as_long_as_its_bits_and_at_most_the_first_back_off() -> None:
    _, receiver = run([0.0, 10.0], {0: [(1, "m", 30)]})
    ((at, _, _),) = receiver.received
    on_the_air_s = 8 * (6 + 11 + 30) / 250_000
    least_s = on_the_air_s + PARAMETERS.sensing_s + PARAMETERS.turnaround_s
    assert least_s <= at <= least_s + 7 * PARAMETERS.backoff_unit_s


def test_who_is_out_of_reach_is_tried_four_times_and_then_reported() -> None:
    sender, receiver = run([0.0, 60.0], {0: [(1, "m", 30)]})
    assert receiver.received == []
    assert sender.failed == [(1, "m")]
    assert sender.station.access.counts.frames == 4


def test_a_broadcast_is_sent_once_and_nobody_acknowledges() -> None:
    programs = run([0.0, 10.0, 20.0, 60.0], {0: [(-1, "m", 30)]})
    assert [messages(program) for program in programs] == [[], ["m"], ["m"], []]
    assert sum(program.station.access.counts.acknowledgements for program in programs) == 0


def test_a_lost_acknowledgement_makes_no_second_message() -> None:
    # The way back is worse than the way there: every acknowledgement is below the sensitivity.
    positions = np.array([[0.0, 0.0], [40.0, 0.0]])
    network = RadioNetwork(PARAMETERS, Still(positions), 41.0, 1)
    network.channel._rows[1][0] = 0.0
    sender, receiver = (Notebook(station) for station in network.stations)
    sender.to_send = ((1, "m", 30),)
    network.run([sender, receiver], 0.09)
    assert messages(receiver) == ["m"]
    assert receiver.station.access.counts.acknowledgements == 4
    assert sender.failed == [(1, "m")]


def test_a_long_message_takes_several_frames_and_arrives_once() -> None:
    sender, receiver = run([0.0, 10.0], {0: [(1, "long", 300), (1, "short", 10)]})
    assert messages(receiver) == ["long", "short"]
    assert sender.station.access.counts.frames == 4
    # 116 bytes fit beside a header: 116, 116, 68, and 10.
    assert sender.station.access.counts.bytes == 4 * 17 + 300 + 10


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    _, receiver = run([0.0, 10.0], {0: [(1, number, 30) for number in range(20)]})
    assert messages(receiver) == list(range(20))


def test_a_full_queue_takes_no_more() -> None:
    sender, receiver = run([0.0, 10.0], {0: [(1, number, 30) for number in range(40)]})
    assert sender.accepted == [True] * 32 + [False] * 8
    assert messages(receiver) == list(range(32))
    assert sender.station.access.counts.overflow == 8


def test_listening_keeps_neighbours_from_colliding() -> None:
    everyone = {number: [(-1, number, 60)] * 10 for number in range(6)}
    places = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    polite = run(places, everyone)
    deaf = run(places, everyone, replace(PARAMETERS, clear_channel_dbm=100.0))
    arrived = [sum(len(program.received) for program in programs) for programs in (polite, deaf)]
    assert arrived[0] > 1.5 * arrived[1]


def test_a_channel_that_is_never_free_is_reported() -> None:
    sender, receiver = run([0.0, 10.0], {0: [(1, "m", 30)]}, replace(PARAMETERS, clear_channel_dbm=-1000.0))
    assert messages(receiver) == ["m"]  # With nobody sending there is no power at all.
    crowd = {number: [(-1, number, 100)] * 32 for number in range(12)}
    programs = run([float(number) for number in range(12)], crowd)
    busy = sum(program.station.access.counts.busy for program in programs)
    assert busy > 0
    assert sum(len(program.failed) for program in programs) == busy
    assert receiver.failed == sender.failed == []


@pytest.mark.parametrize("seed", [1, 2])
def test_one_seed_decides_everything(seed: int) -> None:
    everyone = {number: [(-1, number, 60)] * 10 for number in range(6)}
    places = [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    shadowed = RadioParameters()
    one, same = (run(places, everyone, shadowed, seed) for _ in range(2))
    other = run(places, everyone, shadowed, seed + 10)
    assert [program.received for program in one] == [program.received for program in same]
    assert [program.received for program in one] != [program.received for program in other]


def test_without_acknowledgements_nothing_is_repeated_and_nobody_learns_what_was_lost() -> None:
    parameters = replace(CASTALIA_CSMA, shadowing_db=0.0, asymmetry_db=0.0)
    near, middle, far = run([0.0, 10.0, 500.0], {0: [(1, "one", 300), (2, "two", 20)]}, parameters)
    assert [(sender, message) for _, sender, message in middle.received] == [(0, "one")]
    assert far.received == []
    assert near.sent == [(1, "one"), (2, "two")]
    assert near.failed == []
    assert near.station.access.counts.frames == 3 + 1
    assert middle.station.access.counts.acknowledgements == 0
