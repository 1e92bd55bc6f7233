"""Checking passwords: right, wrong, unknown, remembered, too often and too many; nobody else waits."""

import asyncio
import statistics
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from roamcast.config.sections import Access
from roamcast.net import passwords
from roamcast.net.passwords import Outcome, Verifier, network_of
from roamcast.net.users import hasher

HERE, THERE = "192.0.2.1", "192.0.2.2"
RIGHT, WRONG = b"open sesame", b"open barley"
USERS = {"alice": hasher().hash(RIGHT), "bob": hasher().hash(b"builder")}
SETTINGS = Access(failures_max=3, backoff_s=10.0, backoff_max_s=100.0)

Result = TypeVar("Result")


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def new_verifier(clock: Clock | None = None, **settings: Any) -> Verifier:
    return Verifier(USERS, msgspec.structs.replace(SETTINGS, **settings), clock or Clock())


async def tries(verifier: Verifier, *passwords: bytes, user: str = "alice", address: str = HERE) -> list[str]:
    """One after the other."""
    return [(await verifier.verify(user, password, address)).name for password in passwords]


def test_a_password_is_right_or_wrong() -> None:
    verifier = new_verifier()
    assert run(tries(verifier, RIGHT, WRONG, b"")) == ["ACCEPTED", "REFUSED", "REFUSED"]
    assert run(tries(verifier, RIGHT, b"builder", user="bob")) == ["REFUSED", "ACCEPTED"]
    assert run(tries(verifier, RIGHT, user="")) == ["REFUSED"]
    assert run(tries(verifier, RIGHT, user="eve\ud800")) == ["REFUSED"]


def test_what_was_proved_is_remembered_for_a_while() -> None:
    clock = Clock()
    verifier = new_verifier(clock, verified_s=60.0)
    assert run(tries(verifier, RIGHT, RIGHT, RIGHT)) == ["ACCEPTED"] * 3
    assert verifier.checks == 1
    clock.now_s += 61
    assert run(tries(verifier, RIGHT)) == ["ACCEPTED"]
    assert verifier.checks == 2


def test_what_is_remembered_is_no_password() -> None:
    verifier = new_verifier()
    run(tries(verifier, RIGHT))
    assert len(verifier._verified) == 1
    assert RIGHT not in b"".join(verifier._verified)


def test_the_memory_is_bounded_and_can_be_turned_off() -> None:
    verifier = new_verifier(verified_max=1)
    run(tries(verifier, RIGHT))
    run(tries(verifier, b"builder", user="bob"))
    assert len(verifier._verified) == 1
    run(tries(verifier, RIGHT))
    assert verifier.checks == 3
    forgetful = new_verifier(verified_max=0)
    assert run(tries(forgetful, RIGHT, RIGHT)) == ["ACCEPTED"] * 2
    assert forgetful.checks == 2


def test_a_changed_password_or_a_removed_user_ends_what_was_proved() -> None:
    verifier = new_verifier()
    assert run(tries(verifier, RIGHT)) == ["ACCEPTED"]
    verifier.reconfigure({**USERS, "alice": hasher().hash(WRONG)}, SETTINGS)
    assert run(tries(verifier, RIGHT, WRONG)) == ["REFUSED", "ACCEPTED"]
    verifier.reconfigure({"bob": USERS["bob"]}, SETTINGS)
    assert run(tries(verifier, WRONG)) == ["REFUSED"]


def test_a_password_that_changes_while_it_is_checked_is_not_accepted() -> None:
    async def story() -> Outcome:
        verifier = new_verifier()
        checking = asyncio.ensure_future(verifier.verify("alice", RIGHT, HERE))
        await asyncio.sleep(0)
        verifier.reconfigure({"alice": hasher().hash(WRONG)}, SETTINGS)
        return await checking

    assert run(story()) is Outcome.REFUSED


def test_settings_can_change_while_it_runs() -> None:
    async def story() -> list[str]:
        verifier = new_verifier()
        checking = asyncio.ensure_future(verifier.verify("alice", RIGHT, HERE))
        await asyncio.sleep(0)
        verifier.reconfigure(USERS, msgspec.structs.replace(SETTINGS, verifications_max=1, failures_max=1))
        first = await checking
        assert verifier._threads._max_workers == 1
        return [first.name, *await tries(verifier, WRONG, WRONG, address=THERE)]

    assert run(story()) == ["ACCEPTED", "REFUSED", "WAIT"]


# Guessing.


def test_who_fails_too_often_waits_longer_and_longer() -> None:
    clock = Clock()
    verifier = new_verifier(clock)
    assert run(tries(verifier, *[WRONG] * 4)) == ["REFUSED"] * 3 + ["WAIT"]
    assert run(tries(verifier, RIGHT)) == ["WAIT"], "a right guess is not told either"
    clock.now_s += 10
    assert run(tries(verifier, WRONG, WRONG)) == ["REFUSED", "WAIT"]
    clock.now_s += 19
    assert run(tries(verifier, WRONG)) == ["WAIT"]
    clock.now_s += 1
    assert run(tries(verifier, RIGHT)) == ["ACCEPTED"]
    assert run(tries(verifier, *[WRONG] * 4)) == ["REFUSED"] * 3 + ["WAIT"], "and starts afresh"


def test_the_wait_has_an_end_and_old_failures_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "is_password", lambda stored, password: False)
    clock = Clock()
    verifier = new_verifier(clock)
    for _ in range(80):
        run(tries(verifier, WRONG))
        clock.now_s += 100
    clock.now_s += 1
    assert run(tries(verifier, *[WRONG] * 4)) == ["REFUSED"] * 3 + ["WAIT"]


def test_others_do_not_wait_with_a_guesser() -> None:
    verifier = new_verifier()
    run(tries(verifier, *[WRONG] * 4))
    assert run(tries(verifier, RIGHT, address=THERE)) == ["ACCEPTED"]
    assert run(tries(verifier, b"builder", user="bob")) == ["ACCEPTED"], "who shares the address"
    assert run(tries(verifier, RIGHT)) == ["ACCEPTED"], "who was known before"


def test_unknown_users_are_counted_like_known_ones() -> None:
    assert run(tries(new_verifier(), *[WRONG] * 4, user="eve")) == ["REFUSED"] * 3 + ["WAIT"]


def test_trying_many_names_is_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "FAILURES_BY_ANY_USER", 2)
    verifier = new_verifier()
    outcomes = [run(tries(verifier, WRONG, user=f"user-{number}"))[0] for number in range(7)]
    assert outcomes == ["REFUSED"] * 6 + ["WAIT"]
    assert run(tries(verifier, WRONG, user="user-8", address=THERE)) == ["REFUSED"]


def test_an_honest_user_behind_the_address_of_a_guesser_comes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    verifier = new_verifier(clock, verified_max=0, failures_max=3, backoff_s=1.0)
    assert run(tries(verifier, RIGHT)) == ["ACCEPTED"]

    def right_of_bob(stored: str, password: bytes) -> bool:
        return (stored, password) == (USERS["bob"], b"builder")

    monkeypatch.setattr(passwords, "is_password", right_of_bob)
    outcomes = [run(tries(verifier, WRONG, user=f"user-{number}"))[0] for number in range(300)]
    assert outcomes.count("REFUSED") == 3 * passwords.FAILURES_BY_ANY_USER
    assert run(tries(verifier, b"builder", user="bob")) == ["WAIT"]
    clock.now_s += 0.5
    assert run(tries(verifier, b"builder", user="bob")) == ["ACCEPTED"], "a few a second"
    assert run(tries(verifier, WRONG, user="eve")) == ["WAIT"], "between all of them"
    assert run(tries(verifier, WRONG)) == ["REFUSED"], "who logged in from there before is looked at"


def test_tries_at_once_are_limited_like_tries_in_a_row() -> None:
    async def story() -> list[Outcome]:
        verifier = new_verifier()
        guesses = [b"guess %d" % number for number in range(20)]
        return await asyncio.gather(*(verifier.verify("alice", guess, HERE) for guess in guesses))

    outcomes = run(story())
    assert outcomes.count(Outcome.REFUSED) == 3
    assert outcomes.count(Outcome.WAIT) == 17


def test_memories_of_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "ADDRESSES_KEPT_MAX", 4)
    monkeypatch.setattr(passwords, "is_password", lambda stored, password: False)
    verifier = new_verifier()
    for number in range(10):
        run(tries(verifier, WRONG, user="x" * 60_000, address=f"10.0.0.{number}"))
    back_off = verifier.back_off
    assert len(back_off._by_user._known) == len(back_off._by_address._known) == 4
    assert max(map(len, back_off._by_user._known)) < 200
    assert not back_off._checking


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("a unix socket", "a unix socket"),
    ],
)
def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


def test_an_unknown_user_takes_as_long_as_a_known_one() -> None:
    async def times_s(user: str) -> list[float]:
        verifier = new_verifier(failures_max=100)
        measured = []
        for number in range(9):
            started = time.perf_counter()
            assert await verifier.verify(user, b"%d" % number, HERE) is Outcome.REFUSED
            measured.append(time.perf_counter() - started)
        return measured

    known = statistics.median(run(times_s("alice")))
    unknown = statistics.median(run(times_s("eve")))
    # A look into a dict would take a thousandth; anything in between is the machine's noise.
    assert known / 4 < unknown < known * 4


def test_the_decoy_is_like_the_hashes_of_the_users() -> None:
    from argon2 import PasswordHasher, extract_parameters

    strong = PasswordHasher(time_cost=1, memory_cost=1024, parallelism=2).hash(b"x")
    verifier = Verifier({"alice": strong}, SETTINGS)
    assert extract_parameters(verifier._decoy) == extract_parameters(strong)
    later = Verifier({}, SETTINGS)
    assert run(later.verify("eve", b"x", HERE)) is Outcome.REFUSED
    later.reconfigure(USERS, SETTINGS)
    assert extract_parameters(later._decoy) == extract_parameters(USERS["alice"])


# Many at once.


def test_a_storm_of_reconnects_is_checked_once() -> None:
    async def story() -> tuple[list[Outcome], int]:
        verifier = new_verifier()
        outcomes = await asyncio.gather(*(verifier.verify("alice", RIGHT, HERE) for _ in range(500)))
        return outcomes, verifier.checks

    outcomes, checks = run(story())
    assert set(outcomes) == {Outcome.ACCEPTED}
    assert checks == 1


def test_who_goes_away_does_not_take_the_answer_from_others() -> None:
    async def story() -> Outcome:
        verifier = new_verifier()
        first, second = (asyncio.ensure_future(verifier.verify("alice", RIGHT, HERE)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert run(story()) is Outcome.ACCEPTED


def test_too_many_at_once_are_told_to_come_again() -> None:
    async def story() -> list[Outcome]:
        verifier = new_verifier(verifications_max=1, verifications_waiting_max=2)
        users = [f"user-{number}" for number in range(6)]
        return await asyncio.gather(*(verifier.verify(user, WRONG, HERE) for user in users))

    assert [outcome.name for outcome in run(story())] == ["REFUSED"] * 3 + ["BUSY"] * 3


def test_the_event_loop_goes_on_while_passwords_are_checked() -> None:
    async def story() -> int:
        verifier = new_verifier()
        checking = asyncio.gather(*(verifier.verify(f"user-{n}", WRONG, HERE) for n in range(6)))
        turns = 0
        while not checking.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert set(checking.result()) == {Outcome.REFUSED}
        verifier.close()
        return turns

    # Six checks take some hundred milliseconds; had they run on the loop, it would have turned a few times.
    assert run(story()) > 20
