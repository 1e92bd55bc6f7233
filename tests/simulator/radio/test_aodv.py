"""Each rule of AODV by itself. Sections are those of RFC 3561; time stands still unless it is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roamcast.simulator.radio.aodv import Aodv, AodvSettings
from roamcast.simulator.radio.aodv_messages import AodvHello, AodvMessage, Data, Rerr, Rrep, Rreq

SETTINGS = AodvSettings()
EVERYONE = -1


CALLED = {
    "hello": "_say_hello", "repeat": "broadcast", "discovery": "_discovery_timed_out", "rreq": "_issue_rreq",
}  # fmt: skip
"""By kind of timer: what it calls."""


class Air:
    """A host that writes down what its machine wants."""

    def __init__(self, node: int = 0, settings: AodvSettings = SETTINGS) -> None:
        self.now = 100.0
        self.out: list[tuple[int, AodvMessage]] = []
        self.timers: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []
        self.delivered: list[Data] = []
        self.dropped: list[tuple[Data, str]] = []
        self.aodv = Aodv(node, self, settings)

    def broadcast(self, message: AodvMessage) -> None:
        self.out.append((EVERYONE, message))

    def unicast(self, neighbour: int, message: AodvMessage) -> None:
        self.out.append((neighbour, message))

    def set_timer(self, at: float, then: Callable[..., Any], *about: Any) -> None:
        self.timers.append((at, then, about))

    def jitter(self, up_to_s: float) -> float:
        return up_to_s / 2

    def deliver(self, data: Data) -> None:
        self.delivered.append(data)

    def given_up(self, data: Data, reason: str) -> None:
        self.dropped.append((data, reason))

    def hear(self, sender: int, message: AodvMessage) -> list[tuple[int, AodvMessage]]:
        """What the machine sends at once because of a message."""
        self.out.clear()
        self.aodv.on_received(sender, message)
        return list(self.out)

    def due(self, kind: str) -> list[tuple[int, AodvMessage]]:
        """Go to the next timer of this kind; what the machine sends because of it."""
        self.timers.sort(key=lambda timer: timer[0])
        index = next(i for i, (_, then, _) in enumerate(self.timers) if then.__name__ == CALLED[kind])
        self.now, then, about = self.timers.pop(index)
        self.out.clear()
        then(*about)
        return list(self.out)

    def knows(
        self, destination: int, via: int, hops: int, sequence: int = 5, lifetime_s: float = 10.0
    ) -> None:
        """Have it learn a route, by an answer to a request of its own."""
        self.aodv.on_received(via, Rrep(destination, sequence, self.aodv.node, hops - 1, lifetime_s))
        self.out.clear()


def rreq(
    number: int = 1, destination: int = 9, asked: int | None = None, hops: int = 0, ttl: int = 35
) -> Rreq:
    return Rreq(number, destination, asked, 7, 3, hops, ttl)


# --- asking ---


def test_without_a_route_the_network_is_asked_and_the_message_waits() -> None:
    air = Air()
    air.aodv.send(9, "m", 32)
    assert air.out == [(EVERYONE, Rreq(1, 9, None, 0, 1, 0, SETTINGS.net_diameter))]


def test_a_second_message_waits_for_the_same_answer() -> None:
    air = Air()
    air.aodv.send(9, "m", 32)
    air.aodv.send(9, "n", 32)
    assert len(air.out) == 1
    sent = air.hear(4, Rrep(9, 1, 0, 1, 6.0))
    assert [(to, data.content) for to, data in sent if isinstance(data, Data)] == [(4, "m"), (4, "n")]


def test_with_a_route_it_is_sent_at_once() -> None:
    air = Air()
    air.knows(9, via=4, hops=2)
    air.aodv.send(9, "m", 32)
    assert air.out == [(4, Data(0, 9, 0, "m", 32))]


def test_each_retry_waits_twice_as_long_and_then_it_is_given_up() -> None:
    air = Air()
    air.aodv.send(9, "m", 32)
    started, waits = air.now, []
    for _ in range(SETTINGS.rreq_retries):
        assert [type(message) for _, message in air.due("discovery")] == [Rreq]
        waits.append(air.now - started)
        started = air.now
    assert waits == pytest.approx([SETTINGS.net_traversal_s, 2 * SETTINGS.net_traversal_s])
    assert air.due("discovery") == []
    assert [(data.content, reason) for data, reason in air.dropped] == [("m", "no route")]


def test_a_request_asks_for_a_route_newer_than_the_one_that_broke() -> None:
    air = Air()
    air.knows(9, via=4, hops=2, sequence=5)
    air.hear(4, Rerr(((9, 6),)))
    air.aodv.send(9, "m", 32)
    ((_, asked),) = air.out
    assert isinstance(asked, Rreq)
    assert asked.destination_sequence == 6


def test_no_more_than_ten_requests_a_second() -> None:
    air = Air()
    for destination in range(20, 32):
        air.aodv.send(destination, "m", 32)
    assert len(air.out) == SETTINGS.rreq_per_s_max
    assert [type(message) for _, message in air.due("rreq")] == [Rreq]
    assert air.now == pytest.approx(101.0)


def test_too_many_that_wait_push_out_the_oldest() -> None:
    air = Air(settings=AodvSettings(buffered_max=2))
    for content in "abc":
        air.aodv.send(9, content, 32)
    assert [data.content for data, _ in air.dropped] == ["a"]


def test_an_expanding_ring_asks_further_and_further() -> None:
    air = Air(settings=AodvSettings(expanding_ring=True))
    air.aodv.send(9, "m", 32)
    rings = [air.out[0][1]]
    for _ in range(4):
        rings += [message for _, message in air.due("discovery")]
    assert [message.ttl for message in rings if isinstance(message, Rreq)] == [1, 3, 5, 7, 35]


# --- RREQ ---


def test_a_request_is_repeated_once_with_one_hop_more() -> None:
    air = Air()
    assert air.hear(4, rreq(hops=2, ttl=10)) == []
    assert air.due("repeat") == [(EVERYONE, rreq(hops=3, ttl=9))]
    air.timers.clear()
    assert air.hear(5, rreq(hops=2, ttl=10)) == []
    assert air.timers == []


def test_it_is_not_repeated_when_its_hops_are_used_up() -> None:
    air = Air()
    air.hear(4, rreq(ttl=1))
    assert air.timers == []


def test_one_does_not_answer_oneself() -> None:
    air = Air(node=7)
    assert air.hear(4, rreq()) == []
    assert air.timers == []


def test_it_teaches_the_way_back() -> None:
    air = Air()
    air.hear(4, rreq(hops=2))
    assert (air.aodv.routes[7].next_hop, air.aodv.routes[7].hops) == (4, 3)
    assert (air.aodv.routes[4].next_hop, air.aodv.routes[4].hops) == (4, 1)


def test_the_destination_answers_as_new_as_it_was_asked() -> None:
    air = Air(node=9)
    assert air.hear(4, rreq(asked=12)) == [(4, Rrep(9, 12, 7, 0, SETTINGS.my_route_timeout_s))]


def test_who_knows_a_way_answers_and_the_request_ends_there() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5, lifetime_s=8.0)
    ((to, answer),) = air.hear(4, rreq(asked=5))
    assert isinstance(answer, Rrep)
    assert (to, answer[:4]) == (4, (9, 5, 7, 2))
    assert answer.lifetime_s == pytest.approx(8.0)
    assert [then for _, then, _ in air.timers if then == air.broadcast] == []
    assert list(air.aodv.routes[9].precursors) == [4]


def test_who_knows_only_an_older_way_does_not_answer() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5)
    assert air.hear(4, rreq(asked=6)) == []
    assert len(air.due("repeat")) == 1


def test_who_passes_it_on_asks_for_the_newest_that_it_knows_of() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5)
    air.hear(5, Rerr(((9, 8),)))
    air.hear(4, rreq(asked=6))
    ((_, onward),) = air.due("repeat")
    assert isinstance(onward, Rreq)
    assert onward.destination_sequence == 8


# --- RREP ---


def test_an_answer_goes_back_the_way_of_the_request() -> None:
    air = Air()
    air.hear(4, rreq())
    assert air.hear(5, Rrep(9, 6, 7, 1, 6.0)) == [(4, Rrep(9, 6, 7, 2, 6.0))]
    assert (air.aodv.routes[9].next_hop, air.aodv.routes[9].hops) == (5, 2)
    assert list(air.aodv.routes[9].precursors) == [4]


def test_an_answer_without_a_way_back_ends_here() -> None:
    air = Air()
    assert air.hear(5, Rrep(9, 6, 7, 1, 6.0)) == []


@pytest.mark.parametrize(
    ("hops", "sequence", "is_taken"),
    [(1, 5, True), (3, 5, False), (3, 6, True), (1, 4, False)],
    ids=["as new and shorter", "as new and longer", "newer", "older"],
)
def test_which_of_two_routes_is_taken(hops: int, sequence: int, is_taken: bool) -> None:
    air = Air()
    air.knows(9, via=4, hops=2, sequence=5)
    air.knows(9, via=6, hops=hops, sequence=sequence)
    assert air.aodv.routes[9].next_hop == (6 if is_taken else 4)


# --- data ---


def test_data_for_this_node_is_delivered_with_its_hops() -> None:
    air = Air(node=9)
    air.hear(4, Data(7, 9, 1, "m", 32))
    assert air.delivered == [Data(7, 9, 2, "m", 32)]


def test_data_is_passed_on_and_keeps_its_route_alive() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, lifetime_s=1.0)
    assert air.hear(4, Data(7, 9, 0, "m", 32)) == [(5, Data(7, 9, 1, "m", 32))]
    assert air.aodv.routes[9].expires_at == pytest.approx(air.now + SETTINGS.active_route_timeout_s)


def test_data_that_meets_no_route_is_dropped_and_its_sender_told() -> None:
    air = Air()
    assert air.hear(4, Data(7, 9, 0, "m", 32)) == [(4, Rerr(((9, 0),)))]
    assert [reason for _, reason in air.dropped] == ["no route on the way"]


def test_data_does_not_go_round_for_ever() -> None:
    air = Air()
    air.knows(9, via=5, hops=2)
    assert air.hear(4, Data(7, 9, SETTINGS.net_diameter - 1, "m", 32)) == []
    assert [reason for _, reason in air.dropped] == ["too many hops"]


# --- broken links and time-outs ---


def test_a_message_that_nobody_acknowledged_breaks_the_link() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5)
    air.hear(4, rreq(asked=5))
    air.out.clear()
    air.aodv.on_send_failed(5, Data(7, 9, 1, "m", 32))
    assert air.out == [(4, Rerr(((9, 6),)))]
    assert [reason for _, reason in air.dropped] == ["link broken"]


def test_the_origin_asks_again_for_what_it_could_not_send() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5)
    air.aodv.on_send_failed(5, Data(0, 9, 0, "m", 32))
    assert [type(message) for _, message in air.out] == [Rreq]
    assert air.dropped == []


def test_with_several_precursors_the_error_is_broadcast() -> None:
    air = Air()
    air.knows(9, via=5, hops=2, sequence=5)
    air.hear(4, rreq(number=1, asked=5))
    air.hear(6, Rreq(1, 9, 5, 8, 2, 0, 35))
    assert air.hear(5, Rerr(((9, 6),))) == [(EVERYONE, Rerr(((9, 6),)))]


def test_an_error_from_somebody_else_than_the_next_hop_changes_nothing() -> None:
    air = Air()
    air.knows(9, via=5, hops=2)
    assert air.hear(6, Rerr(((9, 99),))) == []
    assert air.aodv.routes[9].valid


def test_no_more_than_ten_errors_a_second() -> None:
    air = Air()
    errors = [air.hear(4, Data(7, destination, 0, "m", 32)) for destination in range(20, 32)]
    assert [len(one) for one in errors] == [1] * SETTINGS.rerr_per_s_max + [0, 0]


def test_everyone_says_hello_and_a_neighbour_that_does_not_is_gone() -> None:
    air = Air()
    air.aodv.start()
    air.hear(5, AodvHello(3))
    air.knows(9, via=5, hops=2, lifetime_s=60.0)
    hellos = [air.due("hello") for _ in range(4)]
    assert all((EVERYONE, AodvHello(0)) in sent for sent in hellos)
    assert air.now - 100.0 > SETTINGS.neighbour_timeout_s
    assert not air.aodv.routes[9].valid


def test_a_hello_keeps_the_neighbour() -> None:
    air = Air()
    air.aodv.start()
    air.knows(9, via=5, hops=2, lifetime_s=60.0)
    for _ in range(4):
        air.hear(5, AodvHello(3))
        air.due("hello")
    assert air.aodv.routes[9].valid


def test_a_route_that_nobody_uses_times_out_and_its_users_are_told() -> None:
    air = Air()
    air.aodv.start()
    air.knows(9, via=5, hops=2, sequence=5, lifetime_s=1.2)
    air.hear(4, rreq(asked=5))
    errors = []
    for _ in range(3):
        air.hear(5, AodvHello(1))
        air.hear(4, AodvHello(1))
        errors += [message for _, message in air.due("hello") if isinstance(message, Rerr)]
    assert errors == [Rerr(((9, 6),))]
    assert not air.aodv.routes[9].valid


def test_a_dead_route_is_forgotten_after_a_while() -> None:
    air = Air()
    air.aodv.start()
    air.knows(9, via=5, hops=2, lifetime_s=1.0)
    while (
        air.now < 101.5 + SETTINGS.delete_period_s + SETTINGS.hello_interval_s + SETTINGS.neighbour_timeout_s
    ):
        air.due("hello")
    assert 9 not in air.aodv.routes
