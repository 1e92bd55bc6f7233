"""Delivery queues against a naive model: a plain list of notifications per queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from roamcast.protocol.notification import Burst, encode_attributes
from roamcast.protocol.queues import Buffer, DeliveryQueue

QUEUES = 3
ATTRIBUTES = (encode_attributes({}), encode_attributes({"x": 1}), encode_attributes({"name": "a longer one"}))


class One(NamedTuple):
    """One notification, as the model keeps it."""

    arrival: int
    publisher: str
    number: int
    attributes: bytes
    body: bytes

    @property
    def size(self) -> int:
        return len(self.attributes) + len(self.body)


@dataclass
class NaiveQueue:
    base: int = 0
    flight: int = 0
    held: list[One] = field(default_factory=list)


def spread(burst: Burst) -> list[tuple[str, int, bytes, bytes]]:
    """A burst, one notification at a time."""
    assert len(burst.bodies) == burst.count > 0
    return [
        (burst.publisher, burst.number + place, burst.attributes, body)
        for place, body in enumerate(burst.bodies)
    ]


def spread_all(bursts: list[Burst]) -> list[tuple[str, int, bytes, bytes]]:
    return [one for burst in bursts for one in spread(burst)]


class QueuesLikeLists(RuleBasedStateMachine):
    """Queues that share one buffer do what lists would do."""

    @initialize(limit=st.none() | st.integers(0, 80), base=st.integers(0, 3))
    def begin(self, limit: int | None, base: int) -> None:
        self.buffer = Buffer(limit)
        self.queues = [DeliveryQueue(f"s{place}", base, self.buffer) for place in range(QUEUES)]
        self.naive = [NaiveQueue(base) for _ in range(QUEUES)]
        self.arrivals = 0
        self.published = 0

    def put(self, place: int, burst: Burst) -> None:
        evicted = self.queues[place].append(burst)
        self.arrivals += 1
        self.naive[place].held += [One(self.arrivals, *one) for one in spread(burst)]
        for gave, gone in evicted:
            self.check_evicted(self.queues.index(gave), gone)

    def check_evicted(self, place: int, gone: Burst) -> None:
        """Only when the room is short, and the oldest over all queues."""
        limit = self.buffer.limit_bytes
        assert limit is not None
        assert self.naive_used() > limit
        naive = self.naive[place]
        oldest = min(one.arrival for queue in self.naive for one in queue.held)
        front, naive.held = naive.held[: gone.count], naive.held[gone.count :]
        assert [one[1:] for one in front] == spread(gone)
        assert {one.arrival for one in front} == {oldest}
        # Its sequences are skipped, so that those behind it keep theirs.
        naive.flight -= min(gone.count, naive.flight)
        naive.base += gone.count
        assert naive.flight >= 0

    def naive_used(self) -> int:
        return sum(one.size for queue in self.naive for one in queue.held)

    @rule(
        place=st.integers(0, QUEUES - 1),
        attributes=st.sampled_from(ATTRIBUTES),
        bodies=st.lists(st.binary(max_size=8), min_size=1, max_size=6),
    )
    def append(self, place: int, attributes: bytes, bodies: list[bytes]) -> None:
        number, self.published = self.published + 1, self.published + len(bodies)
        self.put(place, Burst("p", 0, number, attributes, 0.0, tuple(bodies), len(bodies)))

    @rule(place=st.integers(0, QUEUES - 1), window=st.integers(0, 7))
    def take(self, place: int, window: int) -> None:
        naive = self.naive[place]
        taken = self.queues[place].take(window)
        count = max(0, min(window - naive.flight, len(naive.held) - naive.flight))
        expected = [one[1:] for one in naive.held[naive.flight : naive.flight + count]]
        assert spread_all([burst for _, burst in taken]) == expected
        sequence = naive.base + naive.flight + 1
        for first, burst in taken:
            assert first == sequence
            sequence += burst.count
        naive.flight += count

    @rule(place=st.integers(0, QUEUES - 1), ahead=st.integers(-3, 12))
    def acknowledge(self, place: int, ahead: int) -> None:
        naive = self.naive[place]
        count = max(0, min(ahead, len(naive.held)))
        assert self.queues[place].acknowledge(naive.base + ahead) == count
        self.forget(naive, count)

    @rule(place=st.integers(0, QUEUES - 1), ahead=st.integers(-3, 12))
    def rewind(self, place: int, ahead: int) -> None:
        naive = self.naive[place]
        self.queues[place].rewind(naive.base + ahead)
        self.forget(naive, max(0, min(ahead, len(naive.held))))
        naive.flight = 0

    def forget(self, naive: NaiveQueue, count: int) -> None:
        naive.held = naive.held[count:]
        naive.base += count
        naive.flight = max(naive.flight - count, 0)

    @rule(place=st.integers(0, QUEUES - 1), there=st.integers(0, QUEUES - 1))
    def drain(self, place: int, there: int) -> None:
        """A queue is transferred: what it held comes at the end of another."""
        naive = self.naive[place]
        bursts = self.queues[place].drain()
        assert spread_all(bursts) == [one[1:] for one in naive.held]
        naive.held, naive.flight = [], 0
        self.look()
        for burst in bursts:
            self.put(there, burst)

    @invariant()
    def look(self) -> None:
        for queue, naive in zip(self.queues, self.naive, strict=True):
            assert spread_all(queue.bursts()) == [one[1:] for one in naive.held]
            assert len(queue) == len(naive.held)
            assert bool(queue) == bool(naive.held)
            assert (queue.base, queue.sent) == (naive.base, naive.base + naive.flight)
        if self.buffer.limit_bytes is not None:
            assert self.buffer.used_bytes == self.naive_used() <= self.buffer.limit_bytes


QueuesLikeLists.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestQueuesLikeLists = QueuesLikeLists.TestCase


def burst(number: int, count: int = 1, size: int = 10) -> Burst:
    return Burst("p", 0, number, b"", 0.0, (bytes(size),) * count, count)


def test_the_oldest_over_all_queues_gives_way() -> None:
    buffer = Buffer(30)
    first, second = DeliveryQueue("a", buffer=buffer), DeliveryQueue("b", buffer=buffer)
    assert first.append(burst(1)) == second.append(burst(2)) == first.append(burst(3)) == []
    assert second.append(burst(4)) == [(first, burst(1))]
    assert first.extend([burst(5), burst(6)]) == [(second, burst(2)), (first, burst(3))]


def test_what_is_larger_than_the_buffer_goes_at_once() -> None:
    queue = DeliveryQueue("a", buffer=Buffer(25))
    assert queue.append(burst(1)) == []
    assert queue.append(burst(2, size=26)) == [(queue, burst(1)), (queue, burst(2, size=26))]
    assert not queue


def test_acknowledged_bursts_are_not_given_up_again() -> None:
    buffer = Buffer(20)
    first, second = DeliveryQueue("a", buffer=buffer), DeliveryQueue("b", buffer=buffer)
    first.append(burst(1))
    second.append(burst(2))
    first.take(9)
    first.acknowledge(1)
    assert first.append(burst(3)) == []
    assert first.append(burst(4)) == [(second, burst(2))]


def test_sequences_of_what_was_given_up_in_flight_are_skipped() -> None:
    queue = DeliveryQueue("a", buffer=Buffer(20))
    queue.append(burst(1))
    queue.append(burst(2))
    assert queue.take(9) == [(1, burst(1)), (2, burst(2))]
    queue.append(burst(3))
    queue.rewind(0)
    assert queue.take(9) == [(2, burst(2)), (3, burst(3))]


def test_the_buffer_remembers_no_more_than_it_holds() -> None:
    """However much has come and gone below the limit, also behind one that stays."""
    buffer = Buffer(1_000)
    stuck, busy = DeliveryQueue("a", buffer=buffer), DeliveryQueue("b", buffer=buffer)
    stuck.append(burst(1))
    for number in range(2, 5_000):
        busy.append(burst(number))
        busy.take(9)
        busy.acknowledge(number - 1)
    assert buffer.used_bytes == 10
    assert len(buffer._arrivals) < 500
