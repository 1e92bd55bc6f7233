"""Limits of a queue: what is given up, and what the numbers say afterwards."""

import random

import pytest

from roamcast.protocol.notification import HELD_BYTES, Burst
from roamcast.protocol.queues import Buffer, DeliveryQueue, QueueLimits


def burst(number: int, size: int = 10) -> Burst:
    return Burst("p", 0, number, b"", 0.0, (b"x" * size,), 1)


def filled(limits: QueueLimits, count: int) -> tuple[DeliveryQueue, list[int]]:
    queue, dropped = DeliveryQueue("s", buffer=Buffer(limits=limits)), []
    for number in range(1, count + 1):
        dropped += [one.number for _, one in queue.append(burst(number))]
    return queue, dropped


@pytest.mark.parametrize(
    ("drops_newest", "kept", "dropped"), [(False, [3, 4, 5], [1, 2]), (True, [1, 2, 3], [4, 5])]
)
def test_a_full_queue_gives_up_the_oldest_or_the_newest(
    drops_newest: bool, kept: list[int], dropped: list[int]
) -> None:
    for limits in (QueueLimits(3, 1 << 20, drops_newest), QueueLimits(100, 3 * burst(1).held, drops_newest)):
        queue, gone = filled(limits, 5)
        assert [one.number for one in queue.bursts()] == kept
        assert gone == dropped
        assert (len(queue), queue.size_bytes) == (3, 3 * burst(1).held)


def test_a_queue_that_may_have_less_in_flight_sends_one_at_a_time() -> None:
    buffer = Buffer(limits=QueueLimits(100, 1 << 20))
    queue = DeliveryQueue("s", buffer=buffer)
    assert [queue.pass_through(burst(number), 10) for number in (1, 2)] == [1, 2]
    queue.limit(QueueLimits(100, 1 << 20, in_flight_bytes_max=1))
    assert queue.pass_through(burst(3), 10) == 0
    queue.append(burst(3))
    assert (queue.take(10), queue.size_bytes) == ([], 3 * burst(1).held)
    queue.acknowledge(2)
    assert [sequence for sequence, _ in queue.take(10)] == [3]
    assert buffer.taken_bytes == 3 * burst(1).held
    one, other = burst(4), DeliveryQueue("t", buffer=buffer)
    queue.append(one)
    assert other.pass_through(one, 10) == 1
    assert buffer.taken_bytes == 4 * burst(1).held + HELD_BYTES


@pytest.mark.parametrize("in_flight_bytes_max", [1_000, 3_000, 1_000_000])
def test_bytes_are_counted_whatever_is_sent_acknowledged_and_sent_again(in_flight_bytes_max: int) -> None:
    for seed in range(30):
        rng, number = random.Random(seed), 0
        limits = QueueLimits(1_000_000, 1 << 30, in_flight_bytes_max=in_flight_bytes_max)
        queue = DeliveryQueue("s", buffer=Buffer(limits=limits))
        for _ in range(60):
            what = rng.random()
            if what < 0.5:
                bodies = tuple(bytes(rng.randint(1, 90)) for _ in range(rng.randint(1, 4)))
                one = Burst("p", 1, number + 1, b"a", 0.0, bodies, len(bodies))
                number += len(bodies)
                if not queue.pass_through(one, 10):
                    queue.append(one)
            elif what < 0.9 and queue.sent > queue.base:
                queue.acknowledge(rng.randint(queue.base + 1, queue.sent))
            elif what > 0.95:
                queue.rewind(queue.base)
            queue.take(10)
            assert queue.size_bytes == sum(one.held for one in queue.bursts())
            assert len(queue.in_flight) == 1 or queue.in_flight_bytes <= in_flight_bytes_max
            assert not queue.waiting or len(queue) > 10 or queue.size_bytes > in_flight_bytes_max


def test_what_was_sent_is_not_given_up() -> None:
    queue, _ = filled(QueueLimits(3, 1 << 20), 2)
    assert [sequence for sequence, _ in queue.take(10)] == [1, 2]
    for number in range(3, 7):
        queue.append(burst(number))
    assert [one.number for one in queue.bursts()] == [1, 2, 6]
    queue.acknowledge(2)
    assert [(sequence, one.number) for sequence, one in queue.take(10)] == [(3, 6)]
    queue.acknowledge(3)
    assert (len(queue), queue.size_bytes) == (0, 0)
