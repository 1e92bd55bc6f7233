"""Phoenix: entries turn round hop by hop, what is stored is replayed, and order comes from timestamps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest
from tests.mobility.seeds import first_failing_seed

from roamcast.broker.core import BrokerCore, CoreSettings
from roamcast.errors import InputError
from roamcast.mobility import MobilityProtocol
from roamcast.mobility.phoenix import MIG, NXT, REP, Local, Luggage, Phoenix, Timestamp
from roamcast.protocol.messages import Grant, Message, Relayed
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.session import Session
from roamcast.routing.router import Owner
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.story import parse_story, verdict

# --- 2.4, as stories ---

MIGRATION = """
brokers b1-b2 b2-b3 b2-b4
protocol phoenix
at 0.0 s attach b1
at 0.0 p attach b4
at 0.1 s subscribe TRUE
at 1.0 s leave
at 1.1 p publish {"x": 1}
at 1.2 p publish {"x": 2}
at 2.0 s attach b3
at 2.02 p publish {"x": 3}
at 3.0 p publish {"x": 4}
"""


def test_what_is_stored_comes_with_the_session_and_the_rest_behind_mig() -> None:
    seen: list[str] = []

    def trace(now: float, sender: str, receiver: str, message: Message) -> None:
        inner = message.message if isinstance(message, Relayed) else message
        if isinstance(inner, Grant | MIG | REP | NXT) or (isinstance(inner, Burst) and now > 2):
            seen.append(f"{sender} {receiver} {type(inner).__name__} {inner.weight}")

    run = parse_story(MIGRATION).run(trace=trace)
    assert seen == [
        "b1 b2 Grant 2", "b4 b2 Burst 1", "b2 b3 Grant 2", "b2 b1 Burst 1",
        "b3 b2 MIG 1", "b2 b1 MIG 1",
        "b1 b2 REP 1", "b1 b2 NXT 1", "b2 b3 REP 1", "b2 b3 NXT 1",
        "b4 b2 Burst 1", "b2 b3 Burst 1",
    ]  # fmt: skip
    assert (run.result.delivered, run.result.violations) == (4, [])
    # Entries point to where MIG came from, and nobody was told anything else.
    interfaces = {
        id: [one for _, one in broker.router.table.entries()] for id, broker in run.network.brokers.items()
    }
    assert interfaces == {"b1": ["b2"], "b2": ["b3"], "b3": [("s",)], "b4": ["b2"]}


RETURN = """
brokers a-b
protocol {protocol}
at 0.0 p attach b
at 0.0 s attach a
at 0.1 s subscribe TRUE
at 1.0 s leave
at 2.0 s attach a
at 3.0 s leave
at 4.0 p publish {{}}
at 5.0 s attach a
"""

SAME_TIME = """
brokers a-b
protocol {protocol}
window 1
at 0.0 p attach a
at 0.0 s attach a
at 0.1 s subscribe TRUE
at 1.0 s leave
at 1.1 p publish {{"x": 1}}
at 1.2 p publish {{"x": 2}}
at 2.0 s attach b
at 2.09 s attach a
"""

CROSSING = """
brokers a-b
protocol {protocol}
at 0.0 s attach a
at 0.0 p attach a
at 0.0 other attach b
at 0.1 s subscribe TRUE
at 0.1 other subscribe TRUE
at 1.0 s attach b
at 1.025 p publish {{}}
"""

REPLAYED_LATE = """
brokers a-b
protocol {protocol}
at 0.0 s attach a
at 0.0 p attach b
at 0.1 s subscribe TRUE
at 1.0 s leave
at 2.0 s attach b
at 2.015 p publish {{"x": 1}}
at 2.03 p publish {{"x": 2}}
"""


@pytest.mark.parametrize(
    ("story", "anomaly"),
    [
        (RETURN, "lost (not_local)"),
        (SAME_TIME, "lost (timestamp)"),
        (CROSSING, "duplicate (move_in)"),
        (REPLAYED_LATE, "out of order (replayed)"),
    ],
)
def test_what_goes_wrong_as_published_and_no_longer(story: str, anomaly: str) -> None:
    published = verdict(parse_story(story.format(protocol="phoenix:published")))
    assert published.excused == {anomaly: 1}
    assert not published.violations
    corrected = verdict(parse_story(story.format(protocol="phoenix")))
    assert (corrected.excused, corrected.violations) == ({}, [])


def test_advertisements_are_refused() -> None:
    """MIG follows subscriptions, so every broker has to know them."""
    with pytest.raises(InputError, match="phoenix does not work with advertisements: leave them off"):
        BrokerCore("b0", Phoenix, CoreSettings(advertisements=True))


def test_acknowledged_events_leave_the_log_in_part() -> None:
    queue = DeliveryQueue("session")
    local = Local(7, queue, (6, 0), {})
    event = Burst("p", 0, 11, b"", 0.0, (b"",) * 5, 5)
    queue.append(event)
    local.append((6, 5), event)
    queue.acknowledge(2)
    local.forget_acknowledged()
    assert local.ts_last[1] == 2
    assert [(ts, one.number, one.count) for ts, one in local.log] == [((6, 5), 13, 3)]
    queue.acknowledge(5)
    local.forget_acknowledged()
    assert local.log == deque()
    assert local.ts_last == (6, 5)


# --- seeds ---


def test_what_a_full_buffer_gives_up_is_lost_and_nothing_else() -> None:
    for seed in range(6):
        story = draw_story("phoenix", seed)
        result = verdict(replace(story, settings=replace(story.settings, buffer_bytes=200)))
        assert result.violations == []


class Observed(Phoenix):
    """Counts what the fuzzer reaches."""

    name = "phoenix_observed"
    seen: ClassVar[Counter[str]] = Counter()

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        self.seen["gone before its session came"] += not self.host.is_attached(session.client)
        super().on_attach(session, came_from, received)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        local = self.local.get(session.client)
        self.seen["left before all was replayed"] += local is not None and not local.is_complete
        super().on_depart(session, destination, received)
        self.seen["left with marks of what came last"] += local is not None and bool(local.newest)

    def replay_early(self, target: str, message: MIG, local: Local) -> None:
        self.seen["replayed what was not yet in order"] += bool(local.early)
        super().replay_early(target, message, local)

    def on_rep(self, sender: str, message: REP) -> None:
        towards = self.towards.get(message.subscriber)
        self.seen["passed on to a neighbour"] += towards is not None
        super().on_rep(sender, message)

    def take(self, subscriber: str, local: Local, event: Burst) -> None:
        self.seen["taken for the subscriber twice"] += local.duplicates_in(event) > 0
        super().take(subscriber, local, event)


@pytest.mark.slow  # 9 s
def test_the_fuzzer_reaches_interrupted_migrations() -> None:
    Observed.seen.clear()
    assert first_failing_seed(Observed, 60) is None
    assert len(Observed.seen) == 6
    assert [what for what in Observed.seen if not Observed.seen[what]] == []


def test_as_published_it_fails_in_four_ways_and_no_other() -> None:
    report = fuzz("phoenix:published", range(20))
    assert report.violations == 0
    assert set(report.excused) == {
        "lost (timestamp)", "lost (not_local)", "duplicate (move_in)", "out of order (replayed)",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["phoenix", "phoenix:published"])
def test_the_promise_holds_over_many_seeds(protocol: str) -> None:
    assert fuzz(protocol, range(1000)).violations == 0


# --- planted breakages: each is one rule left out ---


class TakesDuplicates(Phoenix):
    """The last number of each publisher is not looked at."""

    name = "phoenix_takes_duplicates"

    def take(self, subscriber: str, local: Local, event: Burst) -> None:
        local.newest.clear()
        super().take(subscriber, local, event)


class ForgetsTheMarks(Phoenix):
    """What of each publisher came last does not travel with the session."""

    name = "phoenix_forgets_the_marks"

    def begin_stay(self, session: Session, luggage: Luggage) -> None:
        super().begin_stay(session, msgspec.structs.replace(luggage, newest={}))


class HoldsNothingBack(Phoenix):
    """Events are delivered as they come."""

    name = "phoenix_holds_nothing_back"

    def enqueue(self, subscriber: str, local: Local, ts: Timestamp, event: Burst) -> None:
        local.append(ts, event)
        self.keep(local.queue, subscriber, event)
        self.host.pump(subscriber)


class Restamps(Phoenix):
    """What is replayed gets a timestamp of the new stay (algorithm 2.3, line 22)."""

    name = "phoenix_restamps"

    def on_rep(self, sender: str, message: REP) -> None:
        if message.subscriber in self.local:
            self.on_notification((message.subscriber,), sender, message.event)
        else:
            super().on_rep(sender, message)


class LeavesTheLastEntry(Phoenix):
    """Only neighbours turn the entries round: the last broker goes on storing."""

    name = "phoenix_leaves_the_last"

    def replay(self, target: str, message: MIG, local: Local) -> None:
        super().replay(target, message, local)
        self.local[message.subscriber] = local


class StoresForTheAbsentOnly(Phoenix):
    """An event that arrives for a subscriber that is there is sent, and not stored."""

    name = "phoenix_stores_for_the_absent"

    def on_notification(self, owner: Owner, source: str, burst: Burst) -> None:
        super().on_notification(owner, source, burst)
        local = self.local[owner[0]]
        if self.host.is_attached(owner[0]) and local.is_complete:
            local.queue.acknowledge(local.queue.sent)


BREAKAGES: tuple[type[MobilityProtocol], ...] = (
    *(TakesDuplicates, HoldsNothingBack, Restamps, LeavesTheLastEntry),
    *(StoresForTheAbsentOnly,),
)


@pytest.mark.parametrize("protocol", BREAKAGES, ids=lambda one: one.name)
def test_a_planted_breakage_is_caught(protocol: type[MobilityProtocol]) -> None:
    assert first_failing_seed(protocol, 300) is not None, protocol.__doc__


@pytest.mark.slow
def test_a_rarer_breakage_is_caught_too() -> None:
    assert first_failing_seed(ForgetsTheMarks, 300) is not None
