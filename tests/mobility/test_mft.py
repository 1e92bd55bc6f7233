"""MFT-PubSub under the fuzzer: its promise is kept, and single-line breakages of it are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from roamcast.filters.selector import parse
from roamcast.lab.amozarrain import A4, A5, COMPLEX, SIMPLE, judge_migration
from roamcast.lab.experiment import Claim
from roamcast.mobility.moving.mft import Bmig, Bquery, Bsub, Mft, Stamp
from roamcast.mobility.moving.mft_published import MftPublished
from roamcast.mobility.moving.mobile import (
    LOCAL,
    MOBILE_PROTOCOLS,
    Known,
    Mig,
    MobileProtocol,
    MobileSettings,
    Outcome,
    Rep,
    Sub,
    Uns,
)
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Row
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.story import parse_story, verdict

ALL = ("crash", "partition", "loss")


@pytest.mark.parametrize("seed", range(4))
def test_the_promise_is_kept(seed: int) -> None:
    assert verdict(draw_story("mft", seed, ALL)).violations == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_the_promise_is_kept_over_many_seeds(first: int) -> None:
    for seed in range(first, first + 20):
        assert verdict(draw_story("mft", seed, ALL)).violations == [], f"seed {seed}"


def test_a_device_may_be_broker_subscriber_and_publisher_and_its_own_name_gives_unicast() -> None:
    story = parse_story(
        """
        brokers a-b b-c
        protocol mft
        at 0 a attach a
        at 0 b attach b
        at 0 c attach c
        at 1 a subscribe to = 'a'
        at 1 b subscribe to = 'b'
        at 1 c subscribe to = 'c'
        at 2 a publish {"to": "c"}
        at 3 c relink b a
        at 4 a publish {"to": "c"}
        at 4 c publish {"to": "b"}
        """
    )
    got: list[tuple[str | None, str | None, int | None]] = []

    def observe(rows: list[Row]) -> None:
        got.extend((row.client, row.publisher, row.number) for row in rows if row.kind == "delivered")

    result = story.judge(observe)
    assert got == [("c", "a", 1), ("c", "a", 2), ("b", "c", 1)]
    assert not result.violations


@pytest.mark.parametrize("how", ["crash", "crash amnesia"])
def test_a_journal_keeps_what_amnesia_loses(how: str) -> None:
    """s is away, and b is the only one that has what was published for it."""
    story = parse_story(
        f"""
        brokers a-b
        protocol mft
        at 0 s attach b
        at 0 p attach a
        at 1 s subscribe x = 1
        at 2 s leave
        at 3 p publish {{"x": 1}}
        at 4 b {how}
        at 5 b restart
        at 6 s attach a
        """
    )
    result = story.judge()
    assert not result.violations
    assert result.lost == (1 if "amnesia" in how else 0)
    assert result.excused == ({"lost (amnesia)": 1} if "amnesia" in how else {})


def test_the_last_broker_remembers_only_so_much() -> None:
    machine = Mft("a", MobileSettings(seen_max=2))
    machine.receive("s", Mig("s"), is_subscriber=True)
    machine.known["s"] = Known(LOCAL)
    first, *more = (Burst("p", 0, number, b"\x80") for number in range(1, 4))
    assert machine.receive("z", Rep("s", (first,))).to_subscribers
    again = machine.receive("z", Rep("s", (first,)))
    assert (again.to_subscribers, again.duplicates) == ([], 1)
    machine.receive("z", Rep("s", tuple(more)))
    assert machine.receive("z", Rep("s", (first,))).to_subscribers == [("s", first)]


# --- as published ---


@pytest.mark.parametrize(("claim", "story"), [(A4, SIMPLE), (A5, COMPLEX)])
def test_the_published_rules_send_the_messages_of_the_document(claim: Claim, story: str) -> None:
    assert judge_migration(claim, story, "mft:published").holds


@pytest.mark.parametrize("faults", [(), ALL])
def test_the_published_rules_break_the_promise(faults: tuple[str, ...]) -> None:
    seed = 10 if faults else 34
    assert verdict(draw_story("mft:published", seed, faults)).violations
    assert not verdict(draw_story("mft", seed, faults)).violations


def published(*peers: str) -> MftPublished:
    machine = MftPublished("a")
    for peer in peers:
        machine.receive(peer, Bmig(()))
    return machine


def test_as_published_a_message_is_newer_than_itself() -> None:
    """Algorithm 4.1: line 1 compares h, line 2 stores h + 1."""
    sub = Sub(parse("x = 1"), "s", 1, 2)
    onward = [("c", Sub(parse("x = 1"), "s", 1, 3))]
    machine, mended = published("b", "c"), Mft("a")
    assert [machine.receive("b", sub).sends for _ in range(2)] == [onward, onward]
    for peer in ("b", "c"):
        mended.receive(peer, Bmig(()))
    assert [mended.receive("b", sub).sends for _ in range(2)] == [onward, []]


def test_as_published_the_old_timestamp_is_passed_on() -> None:
    """Algorithm 4.3, line 7: b knows more of s than a does; c hears of what a knew, and turns by the hops."""
    machine = published("b", "c")
    machine.receive("c", Sub(parse("x = 1"), "s", 1, 1))
    sends = machine.receive("b", Bmig((Stamp("s", 5, 1),))).sends
    assert ("b", Bquery("s", 1, 2)) in sends
    assert ("c", Bmig((Stamp("s", 1, 1),), (), 1)) in sends


# --- breakages, one line each ---


class IgnoresWhatIsOld(Mft):
    """As published: whoever knows more than MIG says nothing."""

    def _accept(self, way: str, message: Sub | Uns | Mig) -> bool:
        known = self._of(message.subscriber)
        return message.timestamp > known.timestamp and super()._accept(way, message)


class BelievesEveryone(Mft):
    """Two claims that cross are both believed."""

    def _has_crossed(self, way: str, subscriber: str, heard: int) -> bool:
        return False


class StoresNothing(Mft):
    """What has no way on is dropped."""

    def _enqueue(self, subscriber: str, burst: Burst) -> None:
        if self.known[subscriber].way == LOCAL:
            super()._enqueue(subscriber, burst)


class KeepsOldWays(Mft):
    """Both ends of a new link may believe that the subscriber is behind the other."""

    def _not_behind(self, way: str, subscriber: str) -> None:
        pass


class ForgetsEventsDuringAQuestion(Mft):
    def _settle_question(self, subscriber: str) -> None:
        self._asked.pop(subscriber, None)


class TellsNobody(Mft):
    """The broker of a subscriber does not contradict who claims it."""

    def _answer(self, way: str, message: Bsub) -> None:
        pass


class LosesWhatComesBack(Mft):
    """What a lost link had not delivered is forgotten."""

    def link_down(self, peer: str, unacknowledged: Sequence[Message] = ()) -> Outcome:
        return super().link_down(peer, ())


class TakesChangesWithGaps(Mft):
    """A change is taken though the one before it was missed."""

    def _accept(self, way: str, message: Sub | Uns | Mig) -> bool:
        self._of(message.subscriber).since = message.since
        return super()._accept(way, message)


class SendsNoTable(Mft):
    """Who is asked says nothing."""

    def _on_bquery(self, way: str, message: Bquery) -> None:
        pass


class StopsAtTheFirst(Mft):
    """BMIG is not passed on."""

    def _on_bmig(self, way: str, message: Bmig) -> None:
        before = len(self._out.sends)
        super()._on_bmig(way, message)
        kept = [one for one in self._out.sends[before:] if not isinstance(one[1], Bmig)]
        self._out.sends[before:] = kept


@contextmanager
def registered(protocol: type[MobileProtocol]) -> Iterator[str]:
    before = dict(MOBILE_PROTOCOLS)
    MOBILE_PROTOCOLS["broken"] = protocol
    try:
        yield "broken"
    finally:
        MOBILE_PROTOCOLS.clear()
        MOBILE_PROTOCOLS.update(before)


BROKEN: dict[type[MobileProtocol], int] = {
    StoresNothing: 0,
    BelievesEveryone: 0,
    LosesWhatComesBack: 0,
    SendsNoTable: 1,
    StopsAtTheFirst: 1,
    TakesChangesWithGaps: 2,
    TellsNobody: 3,
    KeepsOldWays: 7,
    ForgetsEventsDuringAQuestion: 7,
    IgnoresWhatIsOld: 25,
}
"""With the first seed that finds each."""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_breakages_are_caught(broken: type[MobileProtocol]) -> None:
    with registered(broken) as name:
        assert verdict(draw_story(name, BROKEN[broken], ALL)).violations
