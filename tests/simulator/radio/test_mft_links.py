"""Links over the air: order, what comes back, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from roamcast.mobility.moving.mobile import Mig, Rep
from roamcast.protocol.messages import Burst
from roamcast.simulator.radio.mft_links import (
    GROUP_MAX,
    Group,
    LinkSettings,
    Outbox,
    Relink,
    Wire,
    bytes_of,
    wires_of,
)
from roamcast.simulator.radio.movement import Still
from roamcast.simulator.radio.network import RadioNetwork, Station
from roamcast.simulator.radio.parameters import RadioParameters

PARAMETERS = RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)


def burst(number: int) -> Burst:
    return Burst("0001", 0, number, b"")


class End:
    """One end of a link."""

    def __init__(self, station: Station) -> None:
        self.outbox = Outbox(station, 32)
        self.received: list[Wire | Group] = []
        self.lost: list[Any] = []

    @property
    def wires(self) -> list[Wire]:
        return [wire for message in self.received for wire in wires_of(message)]

    def on_start(self) -> None:
        pass

    def accepts(self, sender: int, message: Wire | Group) -> bool:
        return self.outbox.is_current(sender, message)

    def on_received(self, sender: int, message: Wire | Group) -> None:
        self.received.append(message)

    def on_sent(self, destination: int, message: Wire | Group) -> None:
        self.outbox.sent(destination, message)

    def on_send_failed(self, destination: int, message: Wire | Group) -> None:
        if self.outbox.failed(destination, message):
            self.lost += self.outbox.give_up(destination)


def ends(apart_m: float = 10.0) -> tuple[RadioNetwork, End, End]:
    network = RadioNetwork(PARAMETERS, Still(np.array([[0.0, 0.0], [apart_m, 0.0]])), apart_m + 1.0, 1)
    one, other = (End(station) for station in network.stations)
    one.outbox.connect(1)
    other.outbox.links[0] = one.outbox.links[1]
    return network, one, other


def test_messages_arrive_in_order_however_many_there_are() -> None:
    network, one, other = ends()
    for number in range(100):
        one.outbox.send(1, burst(number))
    network.run([one, other], 5.0)
    assert [wire.message for wire in other.wires] == [burst(number) for number in range(100)]
    assert one.outbox.give_up(1) == []


def test_what_was_not_acknowledged_comes_back_in_order() -> None:
    network, one, other = ends(apart_m=60.0)
    for number in range(3):
        one.outbox.send(1, burst(number))
    one.outbox.send(1, Relink())
    network.run([one, other], 5.0)
    assert one.lost == [burst(0), burst(1), burst(2)]
    assert other.received == []


def test_what_comes_over_a_link_that_is_no_more_is_refused_and_comes_back() -> None:
    network, one, other = ends()
    other.outbox.give_up(0)
    one.outbox.send(1, burst(1))
    network.run([one, other], 5.0)
    assert other.received == []
    assert one.lost == [burst(1)]


def test_a_late_answer_about_an_old_link_does_not_end_the_new_one() -> None:
    _, one, _ = ends()
    one.outbox.send(1, burst(1))
    old = Wire(one.outbox.links[1], burst(1), 1)
    one.outbox.give_up(1)
    one.outbox.connect(1)
    one.outbox.send(1, burst(2))
    assert not one.outbox.failed(1, old)
    one.outbox.sent(1, old)
    assert one.outbox.give_up(1) == [burst(2)]


def test_stored_events_go_in_groups() -> None:
    network, one, other = ends()
    one.outbox.send(1, Rep("0005", tuple(burst(number) for number in range(GROUP_MAX + 3))))
    network.run([one, other], 5.0)
    groups = [wire.message.bursts for wire in other.wires if isinstance(wire.message, Rep)]
    assert [len(group) for group in groups] == [GROUP_MAX, 3]
    assert [event for group in groups for event in group] == [
        burst(number) for number in range(GROUP_MAX + 3)
    ]


def test_sizes_grow_with_what_is_in_a_message() -> None:
    assert bytes_of(burst(1), 32) == 40
    assert bytes_of(Rep("0005", (burst(1), burst(2))), 32) == 83
    assert bytes_of(Mig("0005"), 32) == 10


def test_what_waits_for_the_same_neighbour_goes_together_as_far_as_a_frame_holds_it() -> None:
    network, one, other = ends()
    one.outbox = Outbox(network.stations[0], 32, LinkSettings(grouped=True))
    one.outbox.links[1] = other.outbox.links[0]
    for number in range(6):
        one.outbox.send(1, burst(number))
    network.run([one, other], 5.0)
    together = [[wire.message for wire in wires_of(message)] for message in other.received]
    # The first left alone; of those of 40 bytes that wait behind it, two fit into 116.
    assert together == [[burst(0)], [burst(1), burst(2)], [burst(3), burst(4)], [burst(5)]]
    assert network.stations[0].sent == {"PUB": 2, "GROUP": 2}


def test_a_group_that_is_not_acknowledged_comes_back_as_what_it_holds() -> None:
    network, one, other = ends(apart_m=500.0)
    one.outbox = Outbox(network.stations[0], 32, LinkSettings(grouped=True))
    one.outbox.links[1] = other.outbox.links[0]
    for number in range(3):
        one.outbox.send(1, burst(number))
    assert one.outbox.give_up(1) == [burst(0), burst(1), burst(2)]


def test_a_message_is_tried_as_often_as_it_is_set_before_the_link_is_given_up() -> None:
    network, one, other = ends(apart_m=500.0)
    one.outbox = Outbox(network.stations[0], 32, LinkSettings(tries=3))
    one.outbox.links[1] = other.outbox.links[0]
    one.outbox.send(1, burst(1))
    network.run([one, other], 5.0)
    assert one.lost == [burst(1)]
    assert network.stations[0].sent == {"PUB": 3}
