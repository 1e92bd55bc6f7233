"""Packet ids in flight: whatever the order of acknowledgements, the core hears of those without a gap."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from roamcast.mqtt.codec.packet_ids import PACKET_ID_MAX
from roamcast.mqtt.server.in_flight import InFlight, PackedInFlight
from roamcast.protocol.notification import Burst
from roamcast.protocol.snapshot import state_hash

counts = st.lists(st.integers(1, 4), min_size=1, max_size=6)
starts = st.sampled_from([1, PACKET_ID_MAX - 3])


def burst(number: int, count: int) -> Burst:
    return Burst("p", 1, number, b"", 0.0, (b"",) * count, count, marks=b"\0" * count)


class Sent:
    """One session's packet ids, and which of them the client has not acknowledged."""

    def __init__(self, start: int) -> None:
        self.in_flight = InFlight(PackedInFlight(start))
        self.open: dict[int, int] = {}
        """Packet id to sequence."""
        self.sequence = 0

    def send(self, count: int) -> None:
        first = self.sequence + 1
        for packet_id, run in self.in_flight.send(burst(first, count), first, 1):
            for place in range(run):
                self.sequence += 1
                self.open[(packet_id - 1 + place) % PACKET_ID_MAX + 1] = self.sequence

    def acknowledge(self, packet_id: int) -> None:
        del self.open[packet_id]
        told = self.in_flight.acknowledge(packet_id, 1)
        gap = min(self.open.values(), default=self.sequence + 1)
        assert told in (0, gap - 1)
        assert (told == 0) == (self.told == gap - 1)
        self.told = told or self.told

    told = 0


@given(st.lists(counts, min_size=1, max_size=5), st.randoms(use_true_random=False), starts)
def test_acknowledgements_may_come_in_any_order(rounds: list[list[int]], chance: Random, start: int) -> None:
    sent = Sent(start)
    for sizes in rounds:
        for count in sizes:
            sent.send(count)
        ids = list(sent.open)
        chance.shuffle(ids)
        for packet_id in ids[: len(ids) // 2]:
            sent.acknowledge(packet_id)
            # A second time it is no answer to anything.
            assert sent.in_flight.acknowledge(packet_id, 1) == 0
    for packet_id in list(sent.open):
        sent.acknowledge(packet_id)
    assert sent.in_flight.count == 0
    assert sent.told == sent.sequence


def test_a_gap_does_not_make_later_acknowledgements_slow() -> None:
    """A client that owes its first acknowledgement: each later one is found without looking at the others."""
    in_flight = InFlight()
    for number in range(1, 2001):
        in_flight.send(burst(number, 1), number, 1)
    looked: list[int] = []

    class Counting(type(in_flight._runs[0])):  # type: ignore[misc]
        def holds(self, packet_id: int) -> bool:
            looked.append(packet_id)
            return bool(super().holds(packet_id))

    in_flight._runs = [
        Counting(one.packet_id, one.count, one.sequence, one.qos, "p", 1, one.number, 0)
        for one in in_flight._runs
    ]
    for packet_id in range(2, 2001):
        assert in_flight.acknowledge(packet_id, 1) == 0
    assert len(looked) <= 2 * 2000
    assert in_flight.acknowledge(1, 1) == 2000


@given(counts=counts, start=starts, qos=st.sampled_from([0, 1, 2]), acknowledged=st.integers(0, 5))
def test_the_state_does_not_depend_on_how_a_delivery_was_divided(
    counts: list[int], start: int, qos: int, acknowledged: int
) -> None:
    """Topics of a burst are sent together where their plans are known: a replay knows others."""
    together, singly = InFlight(PackedInFlight(start)), InFlight(PackedInFlight(start))
    for in_flight, parts in ((together, counts), (singly, [1] * sum(counts))):
        # Something else is in flight, or messages that nobody acknowledges would not be noted.
        in_flight.send(Burst("other", 1, 1, b"", 0.0, (b"",), 1, marks=b"\0"), 1, 1)
        number = 1
        for count in parts:
            if qos:
                in_flight.send(burst(number, count), number + 1, qos)
            else:
                in_flight.pass_over(burst(number, count), number + 1)
            number += count
        in_flight.acknowledge_in_order(acknowledged)
    assert state_hash(together) == state_hash(singly)
