"""Connections that do not say who they are: how many there may be, for how long, and who gives way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roamcast.net.hosts import host_objection
from roamcast.net.strangers import Stranger, Strangers


class Hall:
    """Strangers of whom it is noted who has left."""

    def __init__(self, room: int, per_address: int | None = None) -> None:
        self.now = 0.0
        self.left: list[str] = []
        self.strangers = Strangers(lambda: room, lambda host: per_address, clock=lambda: self.now)

    def come(self, name: str, host: str = "192.0.2.1") -> Stranger:
        stranger = self.strangers.enter(host, name, self._leaving(name))
        assert stranger is not None
        return stranger

    def _leaving(self, name: str) -> Callable[[str], None]:
        return lambda why: self.left.append(name)


def test_a_flood_of_silent_ones_takes_no_place_from_those_who_talk() -> None:
    hall = Hall(room=4)
    for name in ("talks", "talks, too"):
        hall.strangers.spoke(hall.come(name))
    for number in range(10):
        hall.come(f"silent {number}")
    assert hall.left == [f"silent {number}" for number in range(8)], "the oldest first"
    assert (len(hall.strangers), hall.strangers.given_way) == (4, 8)


def test_a_flood_of_talkers_takes_no_place_from_a_newcomer_that_is_about_to_speak() -> None:
    hall = Hall(room=4)
    for number in range(3):
        hall.strangers.spoke(hall.come(f"flood {number}"))
    newcomer = hall.come("newcomer")
    for number in range(3, 6):
        hall.strangers.spoke(hall.come(f"flood {number}"))
    assert hall.left == ["flood 0", "flood 1", "flood 2"]
    hall.strangers.spoke(newcomer)
    newcomer.is_asking = True
    for number in range(6, 20):
        hall.strangers.spoke(hall.come(f"flood {number}"))
    assert "newcomer" not in hall.left


def test_whoever_has_asked_stays_and_a_newcomer_is_refused_when_all_have() -> None:
    hall = Hall(room=2)
    for name in ("a", "b"):
        stranger = hall.come(name)
        hall.strangers.spoke(stranger)
        stranger.is_asking = True
    assert hall.strangers.enter("192.0.2.9", "c", lambda why: None) is None
    assert hall.left == []
    stranger.is_asking = False
    hall.come("d")
    assert hall.left == ["b"]


def test_the_address_with_the_most_strangers_gives_way() -> None:
    hall = Hall(room=4)
    hall.come("honest", "192.0.2.1")
    for number in range(20):
        hall.come(f"flood {number}", "192.0.2.2")
    assert "honest" not in hall.left
    assert len(hall.left) == 17


@pytest.mark.parametrize("hosts", [("192.0.2.1", "192.0.2.1"), ("2001:db8::1", "2001:db8::2")])
def test_an_address_has_its_own_limit_and_a_network_of_ipv6_is_one_address(hosts: tuple[str, str]) -> None:
    hall = Hall(room=100, per_address=2)
    for number in range(4):
        hall.come(str(number), hosts[number % 2])
    hall.come("other", "192.0.2.77")
    assert hall.left == ["0", "1"]


def test_time_is_limited_except_for_those_who_wait_for_an_answer() -> None:
    hall = Hall(room=10)
    asking, _ = hall.come("asking"), hall.come("slow")
    asking.is_asking = True
    hall.now = 5.0
    hall.come("new")
    hall.now = 11.0
    hall.strangers.expire(10.0)
    assert (hall.left, len(hall.strangers), hall.strangers.expired) == (["slow"], 2, 1)
    hall.strangers.settle(asking)
    hall.strangers.settle(asking)
    assert len(hall.strangers) == 1


@pytest.mark.parametrize(
    ("given", "address", "allowed", "is_allowed"),
    [
        ("localhost", "127.0.0.1", (), True),
        ("LOCALHOST:8080", "127.0.0.1", (), True),
        ("[::1]:9883", "127.0.0.1", (), True),
        ("127.0.0.1:9883", "0.0.0.0", (), True),
        ("192.0.2.7:80", "192.0.2.7", (), True),
        ("192.0.2.8", "192.0.2.7", (), False),
        ("192.0.2.8", "0.0.0.0", (), True),
        ("[2001:db8::1]:80", "::", (), True),
        ("evil.example", "127.0.0.1", (), False),
        ("evil.example:9883", "0.0.0.0", (), False),
        ("localhost.evil.example", "127.0.0.1", (), False),
        ("127.0.0.1.evil.example", "127.0.0.1", (), False),
        ("", "127.0.0.1", (), False),
        ("broker.example.org:80", "0.0.0.0", ("broker.example.org",), True),
        ("Broker.Example.Org.", "0.0.0.0", ("broker.example.org",), True),
        ("anything", "0.0.0.0", ("*",), True),
    ],
)
def test_only_names_of_this_machine_are_hosts(
    given: str, address: str, allowed: tuple[str, ...], is_allowed: bool
) -> None:
    why = host_objection(given, address, allowed, "metrics.hosts")
    assert (why == "") == is_allowed
    assert is_allowed or "metrics.hosts" in why
