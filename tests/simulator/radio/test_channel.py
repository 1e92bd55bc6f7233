"""The channel: stations on a line, without shadowing unless it is said."""

from dataclasses import replace

import numpy as np
import pytest

from roamcast.simulator.radio.channel import EVERYONE, Channel
from roamcast.simulator.radio.parameters import RadioParameters
from roamcast.simulator.radio.reception import Shadowing, packet_success

PARAMETERS = RadioParameters(shadowing_db=0.0, asymmetry_db=0.0)


def channel_of(*places_m: float, parameters: RadioParameters = PARAMETERS, seed: int = 1) -> Channel:
    positions = np.array([[place, 0.0] for place in places_m])
    rng = np.random.default_rng(seed)
    return Channel(parameters, positions, Shadowing(parameters, max(places_m) + 1.0, rng), rng)


def test_a_broadcast_reaches_those_in_range() -> None:
    channel = channel_of(0.0, 20.0, 40.0, 60.0)
    frame = channel.begin(0.0, 0, EVERYONE, 0.001)
    assert channel.end(0.001, frame) == [1, 2]


def test_a_unicast_reaches_its_destination_if_that_is_in_range() -> None:
    channel = channel_of(0.0, 20.0, 60.0)
    assert channel.end(0.001, channel.begin(0.0, 0, 1, 0.001)) == [1]
    assert channel.end(0.003, channel.begin(0.002, 0, 2, 0.001)) == []


def test_two_at_once_destroy_each_other_between_them() -> None:
    channel = channel_of(0.0, 20.0, 40.0)
    left = channel.begin(0.0, 0, EVERYONE, 0.004)
    right = channel.begin(0.001, 2, EVERYONE, 0.004)
    assert channel.end(0.004, left) == []
    assert channel.end(0.005, right) == []


def test_the_stronger_of_two_is_heard() -> None:
    channel = channel_of(0.0, 5.0, 40.0)
    near = channel.begin(0.0, 0, EVERYONE, 0.001)
    far = channel.begin(0.0, 2, EVERYONE, 0.001)
    assert channel.end(0.001, near) == [1]
    assert channel.end(0.001, far) == []


def test_interference_adds_up() -> None:
    # Each of two interferers alone leaves the frame whole; together they do not.
    places = (0.0, 20.0, 47.0, 47.0)
    alone = channel_of(*places)
    frames = [alone.begin(0.0, 0, 1, 0.004), alone.begin(0.0, 2, 3, 0.004)]
    assert alone.end(0.004, frames[0]) == [1]
    together = channel_of(*places)
    frames = [together.begin(0.0, 0, 1, 0.004), *(together.begin(0.0, n, EVERYONE, 0.004) for n in (2, 3))]
    assert together.end(0.004, frames[0]) == []


def test_another_frame_3_db_weaker_costs_one_packet_in_a_hundred() -> None:
    # The datasheet's co-channel rejection; 24 dB in a decade make it a factor of 1.334 in distance.
    channel = channel_of(0.0, 10.0, 10.0 + 10.0 * 10 ** (3 / 24))
    air_s = PARAMETERS.air_s(20)
    received = 0
    for number in range(3000):
        wanted, other = (channel.begin(float(number), sender, 1, air_s) for sender in (0, 2))
        received += bool(channel.end(number + air_s, wanted))
        channel.end(number + air_s, other)
    assert received / 3000 == pytest.approx(0.99, abs=0.006)


def test_nobody_hears_while_sending() -> None:
    channel = channel_of(0.0, 5.0, 1000.0)
    one = channel.begin(0.0, 0, 1, 0.001)
    other = channel.begin(0.0005, 1, EVERYONE, 0.001)
    assert channel.end(0.001, one) == []
    assert channel.end(0.0015, other) == []


@pytest.mark.parametrize("destination", [1, EVERYONE])
def test_reception_near_the_noise_is_that_of_the_formula(destination: int) -> None:
    # Without the cut-off at the sensitivity, at the distance where the ratio is about 0 dB.
    parameters = replace(PARAMETERS, sensitivity_dbm=-120.0, noise_floor_dbm=-95.0)
    channel = channel_of(0.0, 48.0, parameters=parameters)
    ratio = float(channel.power_mw[0, 1]) / 10**-9.5
    air_s = parameters.air_s(60)
    received = 0
    for number in range(2000):
        frame = channel.begin(float(number), 0, destination, air_s)
        received += bool(channel.end(number + air_s, frame))
    expected = packet_success(ratio, 66)
    assert 0.1 < expected < 0.9
    assert received / 2000 == pytest.approx(expected, abs=0.04)


def test_the_channel_is_busy_for_those_who_hear_it_and_for_the_sender() -> None:
    channel = channel_of(0.0, 20.0, 60.0)
    frame = channel.begin(0.0, 0, 1, 0.001)
    assert [channel.is_busy(station) for station in range(3)] == [True, True, False]
    channel.end(0.001, frame)
    assert not channel.is_busy(1)


def test_a_frame_keeps_the_power_with_which_it_began() -> None:
    channel = channel_of(0.0, 20.0)
    frame = channel.begin(0.0, 0, EVERYONE, 0.001)
    channel.move(np.array([[0.0, 0.0], [0.0, 20.9]]))
    assert channel.end(0.001, frame) == [1]
