"""What a slow link does to packets: arithmetic, checked by hand."""

import random
from collections.abc import Callable

import pytest

from roamcast.errors import InputError
from roamcast.slow_link.channel import HEADER_BYTES, PACKET_BYTES, PROFILES, Channel, Direction, find_profile


def numbers(*values: float) -> Callable[[], float]:
    rest = iter(values)
    return lambda: next(rest)


def test_a_packet_takes_its_bits_over_the_rate_and_then_the_delay() -> None:
    channel = Channel(Direction(8_000, delay_s=0.5), random.Random(1).random)
    assert channel.send(10.0, 960) == pytest.approx(10.0 + (960 + HEADER_BYTES) / 1_000 + 0.5)


def test_packets_wait_for_each_other() -> None:
    channel = Channel(Direction(8_000), random.Random(1).random)
    first = channel.send(0.0, 960)
    assert channel.send(0.0, 960) == pytest.approx(2 * first)
    # The link was idle meanwhile: it saves nothing up.
    assert channel.send(100.0, 960) == pytest.approx(100.0 + first)


def test_what_is_larger_than_a_packet_is_sent_as_several() -> None:
    channel = Channel(Direction(8_000), random.Random(1).random)
    arrival = channel.send(0.0, 2 * PACKET_BYTES + 1)
    assert channel.packets == 3
    assert arrival == pytest.approx((2 * PACKET_BYTES + 1 + 3 * HEADER_BYTES) / 1_000)


def test_a_broken_packet_comes_later_and_so_does_the_next() -> None:
    direction = Direction(8_000, error=0.5, retry_min_s=0.1, retry_max_s=0.3)
    # Timeslots, then: broken, half way between the two times, broken, the least, whole; the next is whole.
    channel = Channel(direction, numbers(0.0, 0.4, 0.5, 0.4, 0.0, 0.9, 0.0, 0.9))
    assert channel.send(0.0, 960) == pytest.approx(1.0 + 0.2 + 0.1)
    assert channel.retries == 2
    assert channel.send(0.0, 960) == pytest.approx(2.3)


def test_a_link_on_which_everything_breaks_still_delivers() -> None:
    channel = Channel(Direction(8_000, error=1.0, retry_min_s=0.1, retry_max_s=0.1), lambda: 0.0)
    assert channel.send(0.0, 960) == pytest.approx(1.0 + 100 * 0.1)


def test_timeslots_are_drawn_anew_every_second() -> None:
    channel = Channel(Direction(8_000, 1, 3), numbers(0.99, 0.5, 0.5, 0.0, 0.5))
    assert channel.send(0.0, 960) == pytest.approx(1 / 3)
    assert channel.send(0.5, 960) == pytest.approx(0.5 + 1 / 3)
    assert channel.send(2.0, 960) == pytest.approx(3.0)


def test_the_rate_changes_within_a_packet() -> None:
    # 12,000 bits: 8,000 in the first second, and the rest at three times the rate.
    channel = Channel(Direction(8_000, 1, 3), numbers(0.0, 0.99, 0.5))
    assert channel.send(0.0, PACKET_BYTES) == pytest.approx(1 + 4_000 / 24_000)


def test_gprs_has_the_rates_of_the_table() -> None:
    gprs = PROFILES["gprs"]
    rng = random.Random(1)
    for direction, slots in ((gprs.up, 2), (gprs.down, 3)):
        channel = Channel(direction, rng.random)
        arrival = channel.send(0.0, 5_000_000)
        rate_bps = (5_000_000 + channel.packets * HEADER_BYTES) * 8 / arrival
        assert rate_bps == pytest.approx(13_400 * (1 + slots) / 2, rel=0.03)


def test_an_unknown_profile_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'gprs'"):
        find_profile("grps")


def test_a_profile_can_be_changed() -> None:
    changed = find_profile("gprs").changed(up_bps=1_000, delay_s=2.0, error=0.0)
    assert (changed.up.slot_bps, changed.up.slots_max, changed.up.delay_s) == (1_000, 1, 2.0)
    assert (changed.down.slot_bps, changed.down.slots_max, changed.down.error) == (13_400, 3, 0.0)
