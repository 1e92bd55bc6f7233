"""Multi-hop handoff: every stage at which a client may leave again is reached, and every rule is needed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
from tests.mobility.broken import registered

from roamcast.broker.handoffs import Handoffs
from roamcast.mobility.base import STREAM
from roamcast.mobility.multi_hop_handoff import (
    DeliverTQ,
    Events,
    Hold,
    MultiHopHandoff,
    Pass,
    Pull,
    Reference,
    SubMigration,
    SubMigrationAck,
    _take,
)
from roamcast.protocol.messages import AttachRequest, Message, Relayed
from roamcast.protocol.notification import Burst
from roamcast.protocol.session import Session
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.network import Network
from roamcast.simulator.story import parse_story, violations_of

# --- the stages of an interrupted handoff ---

STAGES = (
    "an attach was lost on the air",
    "left before the token arrived",
    "left with IN partly pulled",
    "left with OWN not swept",
    "temporary queues reached a stay that was over",
    "left with deliveries unacknowledged",
    "the next handoff crossed an old pass",
    "returned to the holder",
    "an attach was refused as stale",
    "the leaving was not noticed",
)


class Observed(MultiHopHandoff):
    """Counts at which stage of a handoff the client leaves again."""

    name = "observed"
    seen: ClassVar[Counter[str]] = Counter()

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        if came_from == self.host.id:
            self.seen["returned to the holder"] += 1
        elif not self.host.is_attached(session.client):
            self.seen["left before the token arrived"] += 1
        if session.moves >= session.number:
            self.seen["an attach was lost on the air"] += 1
        super().on_attach(session, came_from, received)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        hold = self.holds[session.client]
        self.seen["left with IN partly pulled"] += bool(hold.granted or hold.segments)
        self.seen["left with OWN not swept"] += hold.own is not None and not hold.swept
        self.seen["left with deliveries unacknowledged"] += received.get(STREAM, 0) < hold.queue.sent
        super().on_depart(session, destination, received)

    def begin_pass(self, session: Session, next_hop: str, swept: tuple[Burst, ...] | None) -> None:
        crossing = any(client == session.client for client, _ in self.passes)
        self.seen["the next handoff crossed an old pass"] += crossing
        super().begin_pass(session, next_hop, swept)

    def on_deliver_tq(self, sender: str, message: DeliverTQ) -> None:
        over = (message.client, message.number, "own") in self.segments
        self.seen["temporary queues reached a stay that was over"] += over
        super().on_deliver_tq(sender, message)


def test_the_fuzzer_reaches_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse, request = Handoffs.refuse, Handoffs.session_requested

    def counting_refuse(self: Handoffs, stale: AttachRequest) -> None:
        Observed.seen["an attach was refused as stale"] += 1
        refuse(self, stale)

    def counting_request(self: Handoffs, asked: AttachRequest) -> None:
        Observed.seen["the leaving was not noticed"] += asked.client in self._clients.attachments
        request(self, asked)

    monkeypatch.setattr(Handoffs, "refuse", counting_refuse)
    monkeypatch.setattr(Handoffs, "session_requested", counting_request)
    Observed.seen.clear()
    with registered(Observed):
        report = fuzz(Observed.name, range(40))
    assert report.violations == 0
    assert {stage: Observed.seen[stage] > 0 for stage in STAGES} == dict.fromkeys(STAGES, True)


# --- planted breakages: each is one rule left out ---


class NoBarrier(MultiHopHandoff):
    """A broker on the path does not wait for its own acknowledgement."""

    name = "mhh_no_barrier"

    def try_deliver_tq(self, client: str, number: int, passed: Pass) -> None:
        if passed.swept is not None and not passed.delivered:
            passed.delivered = True
            bursts = (*passed.swept, *passed.temporary_queue)
            self.host.send(passed.next_hop, DeliverTQ(client, number, bursts))
        if passed.acknowledged and passed.delivered:
            del self.passes[client, number]


class LateTemporaryQueue(MultiHopHandoff):
    """The temporary queues are put behind what arrived at the new broker."""

    name = "mhh_late_tq"

    def on_deliver_tq(self, sender: str, message: DeliverTQ) -> None:
        hold = self.holds.get(message.client)
        if hold is not None and hold.stay == message.number and hold.own is not None:
            hold.own += message.bursts
            message = DeliverTQ(message.client, message.number, ())
        super().on_deliver_tq(sender, message)


class ForgetsTheAir(MultiHopHandoff):
    """What was sent counts as received."""

    name = "mhh_forgets_the_air"

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        super().on_depart(session, destination, {STREAM: self.holds[session.client].queue.sent})


class OwnFirst(MultiHopHandoff):
    """A departing stay names its own queue before what it had still to read."""

    name = "mhh_own_first"

    def leave_behind(self, client: str, hold: Hold) -> list[Reference]:
        return list(reversed(super().leave_behind(client, hold)))


class LiveTooEarly(MultiHopHandoff):
    """The new broker does not wait for the temporary queues."""

    name = "mhh_live_too_early"

    def go_on(self, client: str, hold: Hold) -> None:
        hold.swept = True
        super().go_on(client, hold)


class ListensToEveryone(MultiHopHandoff):
    """The temporary queue takes what comes from any side, not only from the next hop."""

    name = "mhh_listens_to_everyone"

    def on_notification(self, owner: tuple[object, ...], source: str, burst: Burst) -> None:
        if len(owner) == 3:
            source = self.passes[str(owner[0]), int(str(owner[1]))].next_hop
        super().on_notification(owner, source, burst)


class NeverAcknowledges(MultiHopHandoff):
    """The acknowledgement of a migration is taken for granted as soon as it is sent."""

    name = "mhh_no_acknowledgement"

    def begin_pass(self, session: Session, next_hop: str, swept: tuple[Burst, ...] | None) -> None:
        super().begin_pass(session, next_hop, swept)
        passed = self.passes[session.client, session.number]
        passed.temporary_queue = _Void()


class _Void(list[Burst]):
    def append(self, burst: Burst) -> None:
        """Forget it."""


BREAKAGES = {
    NoBarrier: 2,
    LateTemporaryQueue: 2,
    ForgetsTheAir: 1,
    OwnFirst: 2,
    LiveTooEarly: 1,
    ListensToEveryone: 1,
    NeverAcknowledges: 1,
}
"""Each breakage and a seed that catches it."""


@pytest.mark.parametrize("broken", BREAKAGES, ids=lambda broken: broken.name)
def test_a_planted_breakage_is_caught(broken: type[MultiHopHandoff]) -> None:
    with registered(broken):
        assert violations_of(draw_story(broken.name, BREAKAGES[broken]))


# --- 4.3: the PQlist ---


def pq_list(network: Network, client: str) -> list[tuple[str, str]]:
    """The queues of a client in the order in which they will be read: (broker, in or own)."""
    protocols = {id: broker.protocol for id, broker in network.brokers.items()}

    def expand(references: list[Reference]) -> Iterator[tuple[str, str]]:
        for broker, stay, kind in references:
            protocol = protocols[broker]
            assert isinstance(protocol, MultiHopHandoff)
            yield broker, kind
            yield from expand(protocol.segments[client, stay, kind].segments)

    for id, protocol in protocols.items():
        assert isinstance(protocol, MultiHopHandoff)
        if client in protocol.holds:
            hold = protocol.holds[client]
            own = [(id, "own")] if hold.own is not None else []
            return [(id, "in"), *expand(hold.segments), *own]
    raise AssertionError(f"nobody holds {client}")


FREQUENT_MOVES = """
brokers bo-bm bm-bn bn-b2
protocol multi_hop_handoff
window 1
at 0.0 c1 attach bo
at 0.0 p attach bm
at 1.0 c1 subscribe TRUE
at 2.0 c1 leave
""" + "".join(f"at {3 + number * 0.001:.3f} p publish {{}}\n" for number in range(200))


def pq_list_after(moves: str) -> list[tuple[str, str]]:
    story = parse_story(FREQUENT_MOVES + moves)
    network = Network(story.topology, story.settings, lambda rows: None)
    network.run(story.actions)
    return pq_list(network, "c1")


def test_the_pq_lists_of_section_4_3() -> None:
    # PQ1 is at the old broker. At the new one PQ3 takes what immigrates and PQ2 what arrives; the client
    # leaves when PQ3 has some of it.
    once = "at 10.0 c1 attach bn\nat 10.4 c1 leave\nat 10.2 p publish {}\n"
    assert pq_list_after(once) == [("bn", "in"), ("bo", "in"), ("bn", "own")]
    # Then it attaches at b2, which creates PQ5 and PQ4, and leaves again during the migration.
    twice = once + "at 20.0 c1 attach b2\nat 20.08 c1 leave\nat 20.2 p publish {}\n"
    assert pq_list_after(twice) == [("b2", "in"), ("bn", "in"), ("bo", "in"), ("bn", "own"), ("b2", "own")]


# --- costs ---


def test_only_the_path_is_touched_and_bulk_is_not_dragged_along() -> None:
    story = parse_story(FREQUENT_MOVES + "at 10.0 c1 attach bn\nat 10.4 c1 leave\nat 20.0 c1 attach b2\n")
    sent: Counter[type[Message]] = Counter()

    def count(now: float, sender: str, receiver: str, message: Message) -> None:
        sent[type(message)] += 1

    result = story.run(trace=count).result
    assert not result.violations
    assert result.lost == 0
    # Two hops from bo to bn, one from bn to b2.
    assert sent[SubMigration] == sent[SubMigrationAck] == sent[DeliverTQ] == 3
    assert sent[Events] > 0


def pulls_of_a_long_queue(setting: str) -> int:
    """How often a client is asked for that comes back to two thousand notifications."""
    text = f"brokers bo-bm bm-bn\nprotocol multi_hop_handoff\n{setting}\nat 0.0 c1 attach bo\n"
    text += "at 0.0 p attach bm\nat 1.0 c1 subscribe TRUE\nat 2.0 c1 leave\n"
    text += "".join(f"at {3 + number * 0.001:.3f} p publish 10 {{}}\n" for number in range(200))
    sent: Counter[type[Message]] = Counter()
    result = (
        parse_story(text + "at 10.0 c1 attach bn\n")
        .run(
            trace=lambda now, sender, receiver, message: sent.update(
                [type(message.message if isinstance(message, Relayed) else message)]
            )
        )
        .result
    )
    assert (result.violations, result.lost) == ([], 0)
    return sent[Pull]


def test_more_is_fetched_at_once_for_a_client_that_reads_fast_where_that_is_allowed() -> None:
    few, many = pulls_of_a_long_queue("fetch_max 1024"), pulls_of_a_long_queue("fetch_max 64")
    assert many >= 2 * 2_000 // 64
    assert few < many / 4


def test_what_is_fetched_travels_in_messages_of_limited_size() -> None:
    large, small = burst_of(3, 50_000), burst_of(1_000, 10)
    waiting = deque([large, small, large])
    taken = [[one.count for one in _take(waiting, 5_000)] for _ in range(4)]
    assert taken == [[1], [1], [1, 1_000], [1]]
    assert [(one.number, one.count) for one in waiting] == [(2, 2)]


def burst_of(count: int, size: int) -> Burst:
    return Burst("p", 0, 1, b"", 0.0, (bytes(size),) * count, count)


@pytest.mark.slow
def test_no_violation_in_a_thousand_seeds() -> None:
    assert fuzz("multi_hop_handoff", range(1000)).violations == 0
