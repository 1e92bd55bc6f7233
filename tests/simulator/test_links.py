"""Links: order is kept, whatever the delays; bandwidth is shared by what is sent one after the other."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError
from roamcast.simulator.links import LOSSES_MAX, Delay, Link, LossyLink, longest_s

DELAYS = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda ends: Delay(min(ends), max(ends)))


@given(DELAYS, st.lists(st.floats(0, 0.5), max_size=20), st.none() | st.floats(1e3, 1e7), st.integers(0, 9))
def test_nothing_overtakes(delay: Delay, pauses_s: list[float], bits_per_s: float | None, seed: int) -> None:
    link = Link(delay, random.Random(seed), bits_per_s)
    sent_s = list(itertools.accumulate(pauses_s))
    arrived_s = [link.arrival_s(now_s, 100) for now_s in sent_s]
    assert arrived_s == sorted(arrived_s)
    for sent, arrived in zip(sent_s, arrived_s, strict=True):
        assert arrived >= sent + delay.low_s
        if bits_per_s is None:
            # Late only as much as something before it was.
            assert arrived <= sent + delay.high_s + 1e-9


def test_drawn_delays_fill_their_range() -> None:
    link = Link(Delay(0.1, 0.3), random.Random(1))
    delays_s = [link.arrival_s(now_s, 0) - now_s for now_s in map(float, range(1000))]
    assert 0.1 <= min(delays_s) < 0.102
    assert 0.298 < max(delays_s) <= 0.3
    assert sum(delays_s) / 1000 == pytest.approx(0.2, abs=0.01)


def test_a_slow_link_sends_one_after_the_other() -> None:
    link = Link(Delay(0.5, 0.5), random.Random(0), bits_per_s=800)
    # 100 bytes take one second to get out, and half a second to get there.
    assert link.arrival_s(10.0, 100) == pytest.approx(11.5)
    assert link.arrival_s(10.0, 50) == pytest.approx(12.0)
    assert link.arrival_s(11.0, 100) == pytest.approx(13.0)
    # By then the link is idle again.
    assert link.arrival_s(20.0, 100) == pytest.approx(21.5)


def test_a_drawn_delay_does_not_keep_the_sender_busy() -> None:
    """What is late on its way holds up those behind it, but not the sending of them."""
    link = Link(Delay(0.0, 1.0), random.Random(3), bits_per_s=8_000)
    arrived_s = [link.arrival_s(0.0, 1) for _ in range(1_000)]
    # A thousand times one millisecond to send, and at most one second under way.
    assert 1.0 <= arrived_s[-1] <= 2.0


@given(DELAYS, st.lists(st.floats(0, 0.5), max_size=20), st.floats(0.01, 0.99), st.integers(0, 9))
def test_what_is_lost_is_late_but_in_order_and_within_the_bound(
    delay: Delay, pauses_s: list[float], loss: float, seed: int
) -> None:
    link = LossyLink(delay, random.Random(seed), loss)
    sent_s = list(itertools.accumulate(pauses_s))
    arrived_s = [link.arrival_s(now_s, 100) for now_s in sent_s]
    assert arrived_s == sorted(arrived_s)
    for sent, arrived in zip(sent_s, arrived_s, strict=True):
        assert sent + delay.low_s <= arrived <= sent + longest_s(delay, loss) + 1e-9


def test_so_many_are_lost_as_the_share_says() -> None:
    link = LossyLink(Delay(1.0, 1.0), random.Random(4), 0.25)
    sent_s = [1_000.0 * place for place in range(4_000)]
    # The acknowledgement should be there after 2 s, so each loss costs so much.
    tries = [round((link.arrival_s(at, 100) - at - 1.0) / 2.0) for at in sent_s]
    assert sum(tries) == link.retransmissions
    assert 0.23 < sum(one > 0 for one in tries) / len(tries) < 0.27
    assert max(tries) == LOSSES_MAX
    assert longest_s(Delay(0.5, 2.0), 0.0) == 2.0


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("0", Delay(0, 0)),
        ("0.25", Delay(0.25, 0.25)),
        ("0..0.5", Delay(0, 0.5)),
        ("1e-3..2", Delay(0.001, 2)),
    ],
)
def test_delays_are_read_as_they_are_written(text: str, delay: Delay) -> None:
    assert Delay.parse(text) == delay
    assert Delay.parse(str(delay)) == delay


@pytest.mark.parametrize("text", ["", "soon", "..", "2..1", "-1", "-1..1", "inf", "nan", "0..inf", "1...2"])
def test_other_delays_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"delay .*: valid"):
        Delay.parse(text)
