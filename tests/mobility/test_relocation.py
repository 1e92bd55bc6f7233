"""Relocation: figure 5 of the paper, its caches, every interruption, and that every rule is needed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest
from tests.mobility.broken import registered

from roamcast.errors import InputError
from roamcast.filters.selector import parse
from roamcast.mobility import Settings
from roamcast.mobility.relocation import Cache, Relocation, Replay, Resubscribe
from roamcast.protocol.effects import AdvertiseThat, UnadvertiseThat
from roamcast.protocol.messages import Message
from roamcast.protocol.notification import Burst
from roamcast.protocol.records import Row
from roamcast.protocol.session import Session
from roamcast.routing.router import Interface, Owner
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.network import Network
from roamcast.simulator.run import Run
from roamcast.simulator.story import Story, kinds_of, parse_story, verdict, violations_of

# --- figure 5 (F1, F2) ---

FIGURE_5 = """
brokers b1-b2 b2-b3 b3-b4 b4-b5 b5-b6 b4-b7 b5-b8
protocol relocation
advertisements True
at 0.0 C attach b6
at 0.0 P attach b7
at 0.1 P advertise x >= 0
at 1.0 C subscribe x > 1
at 2.0 C leave
at 2.1 P publish {"x": 2}
at 2.2 P publish {"x": 3}
at 3.0 C attach b1
at 3.05 P publish {"x": 4}
at 4.0 P publish {"x": 5}
"""

SECOND_PRODUCER = """
at 0.0 Q attach b8
at 0.1 Q advertise x >= 0
at 2.15 Q publish {"x": 6}
at 3.08 Q publish {"x": 7}
at 4.1 Q publish {"x": 8}
"""

FOUND = "b1 b2 Resubscribe, b2 b3 Resubscribe, b3 b4 Resubscribe, b4 b5 Fetch, b5 b6 Fetch"
REPLAYED = "b6 b5 Replay, b5 b4 Replay, b4 b3 Replay, b3 b2 Replay, b2 b1 Replay"


class Witness:
    """The messages of the protocol, and what each client got, in order."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.delivered: dict[str, list[str]] = {}
        self.dropped: dict[str, list[str]] = {}

    def on_message(self, now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Resubscribe | Replay):
            self.messages.append(f"{sender} {receiver} {type(message).__name__}")

    def on_rows(self, rows: list[Row]) -> None:
        for row in rows:
            numbers = range(row.number or 0, (row.number or 0) + (row.notifications or 0))
            names = [f"{row.publisher}/{number}" for number in numbers]
            if row.kind == "delivered":
                self.delivered.setdefault(row.client or "", []).extend(names)
            elif row.kind == "dropped":
                self.dropped.setdefault(row.reason or "", []).extend(names)


def play(story: Story) -> tuple[Run, Witness]:
    witness = Witness()
    run = story.run(witness.on_rows, witness.on_message)
    assert not run.result.violations
    return run, witness


def entries_of(network: Network, text: str) -> dict[str, list[Interface]]:
    """Broker to where its entries for this filter point; brokers without one are left out."""
    filter = parse(text)
    found = {
        broker.id: [interface for one, interface in broker.router.table.entries() if one == filter]
        for broker in network.brokers.values()
    }
    return {broker: interfaces for broker, interfaces in found.items() if interfaces}


def holds_nothing(network: Network, broker: str, client: str) -> bool:
    protocol = network.brokers[broker].protocol
    assert isinstance(protocol, Relocation)
    caches = [key for key in (*protocol.caches, *protocol.left) if key[0] == client]
    return not caches and client not in protocol.replays_due and client not in protocol.current


def test_figure_5_with_one_producer() -> None:
    run, witness = play(parse_story(FIGURE_5))
    assert ", ".join(witness.messages) == f"{FOUND}, {REPLAYED}"
    assert witness.delivered["C"] == ["P/1", "P/2", "P/3", "P/4"]
    assert entries_of(run.network, "x > 1") == {
        "b1": [("C", 2)], "b2": ["b1"], "b3": ["b2"], "b4": ["b3"], "b7": ["b4"],
    }  # fmt: skip
    assert holds_nothing(run.network, "b5", "C")
    assert holds_nothing(run.network, "b6", "C")


def test_figure_5_with_several_producers() -> None:
    run, witness = play(parse_story(FIGURE_5 + SECOND_PRODUCER))
    assert ", ".join(witness.messages) == f"{FOUND}, {REPLAYED}"
    assert [one for one in witness.delivered["C"] if one[0] == "P"] == ["P/1", "P/2", "P/3", "P/4"]
    assert [one for one in witness.delivered["C"] if one[0] == "Q"] == ["Q/1", "Q/2", "Q/3"]
    assert entries_of(run.network, "x > 1") == {
        "b1": [("C", 2)], "b2": ["b1"], "b3": ["b2"], "b4": ["b3"], "b7": ["b4"],
        "b5": ["b4"], "b8": ["b5"],
    }  # fmt: skip
    assert holds_nothing(run.network, "b5", "C")
    assert holds_nothing(run.network, "b6", "C")


def test_figure_5_without_advertisements_turns_every_entry_round() -> None:
    lines = (FIGURE_5 + SECOND_PRODUCER).splitlines()
    story = "\n".join(line for line in lines if "advertise" not in line)
    run, witness = play(parse_story(story))
    assert ", ".join(witness.messages) == (FOUND + ", " + REPLAYED).replace("Resubscribe", "Fetch")
    assert entries_of(run.network, "x > 1") == {
        "b1": [("C", 2)], "b2": ["b1"], "b3": ["b2"], "b4": ["b3"], "b5": ["b4"], "b6": ["b5"],
        "b7": ["b4"], "b8": ["b5"],
    }  # fmt: skip


def test_the_last_producer_leaves_and_the_old_broker_is_found_all_the_same() -> None:
    gone = FIGURE_5 + "at 2.5 P unadvertise x >= 0\nat 3.02 P advertise x >= 0\n"
    run, witness = play(parse_story(gone))
    assert witness.delivered["C"] == ["P/1", "P/2", "P/3", "P/4"]
    assert sorted(entries_of(run.network, "x > 1")) == ["b1", "b2", "b3", "b4", "b7"]


# --- A.1: the four situations ---

SITUATIONS = {
    "a new client": ("", 0),
    "it resumes at the same broker": ("at 2 c leave\nat 3 c attach a", 0),
    "it roams": ("at 2.5 c attach c", 4),
    "it is suspended, moves and resumes": ("at 2 c leave\nat 3 c attach c", 4),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_four_situations(situation: str) -> None:
    moves, messages = SITUATIONS[situation]
    story = f"""
    brokers a-b b-c
    protocol relocation
    at 0 c attach a
    at 0 p attach b
    at 1 c subscribe TRUE
    at 1.9 p publish {{"x": 1}}
    at 2.499 p publish {{"x": 2}}
    {moves}
    at 2.52 p publish {{"x": 3}}
    at 2.55 p publish {{"x": 4}}
    at 4 p publish {{"x": 5}}
    """
    _, witness = play(parse_story("\n".join(line.strip() for line in story.splitlines())))
    assert witness.delivered["c"] == ["p/1", "p/2", "p/3", "p/4", "p/5"]
    assert len(witness.messages) == messages


# --- the old broker is unknown ---


class Lost(Relocation):
    """Does not know on which way the session came: only entries can lead to the old broker."""

    name = "lost"

    def relocate(self, session: Session) -> None:
        came_from = session.last_broker
        session.last_broker = "nobody" if session.subscriptions else came_from
        super().relocate(session)
        session.last_broker = came_from


def test_the_old_broker_is_found_along_the_entries() -> None:
    with registered(Lost):
        stories = [draw_story("lost", seed) for seed in range(40)]
        stories = [replace(one, settings=replace(one.settings, names_last_broker=False)) for one in stories]
        results = [one.run().result for one in stories if not one.settings.advertisements]
    assert not any(one.violations for one in results)
    assert sum(one.handoffs for one in results) > 300


# --- producers that come and go ---

ADVERTISED = ("TRUE", "x >= 2", "x = 1", "kind = 'a'", "x < 3", "kind = 'b'")


def draw_story_with_advertisements(protocol: str, seed: int) -> Story:
    """As the fuzzer's, but publishers advertise different things, at different times, and stop."""
    rng = random.Random(f"advertisements/{seed}")
    story = draw_story(protocol, seed)
    actions = [action for action in story.actions if not isinstance(action[2], AdvertiseThat)]
    end_s = actions[-1][0]
    for client in sorted({client for _, client, _ in actions}):
        for text in rng.sample(ADVERTISED, rng.choice((0, 1, 1, 2))):
            actions.append((0.9, client, AdvertiseThat(parse(text).text)))
        for _ in range(rng.choice((0, 0, 2, 5))):
            change = rng.choice((AdvertiseThat, UnadvertiseThat))
            at_s = 10 + (end_s - 10) * rng.random()
            actions.append((at_s, client, change(parse(rng.choice(ADVERTISED)).text)))
    actions.sort(key=lambda action: action[0])
    return replace(story, settings=replace(story.settings, advertisements=True), actions=tuple(actions))


def check_seeds_with_advertisements(seeds: Iterable[int]) -> int:
    handoffs = 0
    for seed in seeds:
        run = draw_story_with_advertisements("relocation", seed).run()
        assert not run.result.violations, f"seed {seed}: {run.result.violations[0]}"
        check_at_rest(run.network)
        handoffs += run.result.handoffs
    return handoffs


def check_at_rest(network: Network) -> None:
    """Nothing is left of any relocation: one cache for each session, and each entry leads to it."""
    for broker in network.brokers.values():
        protocol = broker.protocol
        assert isinstance(protocol, Relocation)
        assert not protocol.left
        assert not protocol.replays_due
        assert list(protocol.current) == [client for client in protocol.current if client in broker.sessions]
        assert len(protocol.caches) == len(protocol.current) == len(broker.sessions)
        for client, session in broker.sessions.items():
            for text in session.subscriptions:
                check_entries_lead_to(network, broker.id, protocol.current[client].subscriber, text)


def check_entries_lead_to(network: Network, home: str, subscriber: str, text: str) -> None:
    for broker in network.brokers.values():
        direction = broker.router.direction([parse(text)], subscriber)
        if broker.id == home:
            assert isinstance(direction, tuple)
        else:
            assert direction in (None, broker.next_hop(home))


def test_producers_may_come_and_go() -> None:
    assert check_seeds_with_advertisements(range(40)) > 500


@pytest.mark.slow
def test_producers_may_come_and_go_over_many_seeds() -> None:
    assert check_seeds_with_advertisements(range(60, 700)) > 10_000


@pytest.mark.slow
def test_many_seeds() -> None:
    report = fuzz("relocation", range(1000))
    assert report.violations == 0
    assert report.lost == report.duplicates == report.out_of_order == 0
    assert report.handoffs > 10_000


# --- caches: a ring buffer and a time to live (F7) ---

AWAY = """
brokers a-b b-c
protocol relocation
at 0 c attach a
at 0 p attach b
at 1 c subscribe TRUE
at 2 c leave
at 3.0 p publish {"x": 1}
at 3.5 p publish {"x": 2}
at 4.0 p publish {"x": 3}
at 4.5 p publish {"x": 4}
at 5.0 p publish {"x": 5}
at 6.0 c attach HERE
at 7.0 p publish {"x": 6}
"""


@pytest.mark.parametrize("here", ["a", "b", "c"])
@pytest.mark.parametrize(
    ("settings", "missing", "reason"),
    [
        (Settings(), 0, ""),
        (Settings(cache_notifications=5), 0, ""),
        (Settings(cache_notifications=2), 3, "overflow"),
        (Settings(cache_notifications=1), 4, "overflow"),
        (Settings(cache_ttl_s=3.4), 0, ""),
        (Settings(cache_ttl_s=2.2), 2, "expired"),
        (Settings(cache_ttl_s=0.5), 5, "expired"),
    ],
)
def test_exactly_what_a_cache_cannot_hold_is_missing(
    here: str, settings: Settings, missing: int, reason: str
) -> None:
    story = parse_story(AWAY.replace("HERE", here))
    run, witness = play(replace(story, settings=replace(story.settings, mobility=settings)))
    assert witness.delivered["c"] == [f"p/{number}" for number in range(missing + 1, 7)]
    assert witness.dropped.get(reason, []) == [f"p/{number}" for number in range(1, missing + 1)]
    assert run.result.excused == ({f"lost ({reason})": missing} if missing else {})


def test_a_cache_gives_up_single_notifications_of_a_burst() -> None:
    story = parse_story(
        AWAY.replace("HERE", "c").replace('at 5.0 p publish {"x": 5}', 'at 5 p publish 4 {"x": 5}')
    )
    settings = replace(story.settings, mobility=Settings(cache_notifications=3))
    _, witness = play(replace(story, settings=settings))
    assert witness.delivered["c"] == ["p/6", "p/7", "p/8", "p/9"]
    assert witness.dropped["overflow"] == ["p/1", "p/2", "p/3", "p/4", "p/5"]


def test_whatever_is_missing_was_given_up_by_a_cache() -> None:
    excused: Counter[str] = Counter()
    for seed in range(40):
        story = draw_story("relocation", seed)
        ttl_s = (story.actions[-1][0] - 10) / 50
        mobility = Settings(cache_notifications=seed % 5 + 1, cache_ttl_s=ttl_s)
        run = replace(story, settings=replace(story.settings, mobility=mobility)).run()
        assert not run.result.violations, f"seed {seed}: {run.result.violations[0]}"
        excused.update(run.result.excused)
    assert set(excused) == {"lost (overflow)", "lost (expired)"}
    assert min(excused.values()) > 100


@pytest.mark.parametrize("settings", [Settings(cache_notifications=0), Settings(cache_ttl_s=0.0)])
def test_a_cache_that_can_hold_nothing_is_refused(settings: Settings) -> None:
    with pytest.raises(InputError, match=r"cache_.* 0.*: valid is"):
        Relocation.check(settings)


# --- interruptions ---

STAGES = (
    "left before the session came",
    "left before the replay came",
    "the fetch waited for a replay",
    "two relocations crossed a broker",
    "a copy was left out",
    "no entry showed the way",
    "the new broker was on the old path",
)


class Observed(Relocation):
    """Counts what happens in the middle of relocations."""

    name = "observed"
    seen: ClassVar[Counter[str]] = Counter()

    def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
        if came_from not in ("", self.host.id):
            self.seen["left before the session came"] += not self.host.is_attached(session.client)
        super().on_attach(session, came_from, received)

    def on_depart(self, session: Session, destination: str, received: Mapping[str, int]) -> None:
        self.seen["left before the replay came"] += self.current[session.client].blocked
        super().on_depart(session, destination, received)

    def turn(self, message: Resubscribe, target: str | Owner, replay_to: str) -> None:
        direction = self.host.direction(message.subscriptions, message.client, message.known_as)
        self.seen["no entry showed the way"] += direction is None
        self.seen["the new broker was on the old path"] += direction is not None and replay_to == self.host.id
        self.seen["two relocations crossed a broker"] += message.known_as in self.replays_due
        super().turn(message, target, replay_to)

    def try_replay(self, cache: Cache) -> None:
        self.seen["the fetch waited for a replay"] += cache.fetch is not None and cache.blocked
        super().try_replay(cache)

    def without_replayed(self, held_back: Iterable[Burst], replayed: Iterable[Burst]) -> Iterator[Burst]:
        held_back = list(held_back)
        kept = list(super().without_replayed(held_back, replayed))
        self.seen["a copy was left out"] += kept != held_back
        yield from kept


def test_every_stage_is_reached() -> None:
    with registered(Observed):
        Observed.seen.clear()
        for seed in range(30):
            run = draw_story("observed", seed).run()
            assert not run.result.violations
            check_at_rest(run.network)
    assert {stage: Observed.seen[stage] for stage in STAGES if Observed.seen[stage] < 5} == {}


BACK_TOO_SOON = """
brokers a-b b-c c-d d-e e-f
protocol watched
link 0.1
access 0.001
at 0 c attach f
at 0 p attach d
at 0 q attach a
at 1 c subscribe TRUE
at 3 c leave
at 3.2 p publish {"x": 1}
at 4.0 c attach a
at 5.15 c attach b
at 5.5 c attach a
"""


def test_a_client_is_back_before_the_replay_for_its_last_visit_has_come() -> None:
    """The fetch from b waits at a for the replay from f, and the fetch from a at b for that from a."""
    times = [3.3 + 0.05 * step for step in range(80)]
    publishes = [f'at {at:.2f} {who} publish {{"x": 2}}' for at in times for who in ("p", "q")]
    two_at_once = []

    class Watched(Relocation):
        name = "watched"

        def on_attach(self, session: Session, came_from: str, received: Mapping[str, int]) -> None:
            super().on_attach(session, came_from, received)
            two_at_once.append([number for client, number in self.caches if client == "c"])

    with registered(Watched):
        run, witness = play(parse_story(BACK_TOO_SOON + "\n".join(publishes)))
    check_at_rest(run.network)
    assert [2, 4] in two_at_once
    assert len(witness.delivered["c"]) == 161
    assert [one for one in witness.messages if one == "a b Replay"] == ["a b Replay"]


# --- every rule is needed: one mistake each, and a seed that finds it ---


class DeliversItsOwnFirst(Relocation):
    """What was held back comes before the replay."""

    name = "broken_order"

    def unblock(self, client: str, cache: Cache, message: Replay) -> None:
        held_back = cache.held_back.drain()
        super().unblock(client, cache, msgspec.structs.replace(message, bursts=(*held_back, *message.bursts)))


class AnswersAtOnce(Relocation):
    """A fetch is answered though the replay before it has not come; that one is then for nobody."""

    name = "broken_chain"

    def try_replay(self, cache: Cache) -> None:
        cache.blocked = False
        super().try_replay(cache)

    def on_replay(self, sender: str, message: Replay) -> None:
        due = self.replays_due[message.known_as][message.number]
        if due.replay_to != self.host.id or (message.client, message.number) in self.caches:
            super().on_replay(sender, message)
        else:
            self.pass_replay(sender, message, {})


class FollowsTheEntries(Relocation):
    """The replay goes where the entries point by now, and not to the cache that waits for it."""

    name = "broken_way_back"

    def on_replay(self, sender: str, message: Replay) -> None:
        due = self.replays_due[message.client]
        due[message.number] = due[max(due)]
        super().on_replay(sender, message)


class ForgetsTheRest(Relocation):
    """Where no entry leads, the message goes no further."""

    name = "broken_search"

    def turn(self, message: Resubscribe, target: str | Owner, replay_to: str) -> None:
        if self.host.direction(message.subscriptions, message.client, message.known_as) is not None:
            super().turn(message, target, replay_to)


class ForgetsWhatWasOnTheAir(Relocation):
    """What was in flight when the client left is not sent again."""

    name = "broken_rewind"

    def deliver(self, client: str, cache: Cache, received: int) -> None:
        self.host.deliver_from(client, cache.queue)
        if not cache.blocked:
            self.host.handoff_finished(client)


class KeepsItsCache(Relocation):
    """The old broker answers, but forgets nothing."""

    name = "broken_sign_off"

    def try_replay(self, cache: Cache) -> None:
        held = cache.queue.bursts()
        super().try_replay(cache)
        if cache.fetch is not None and not cache.blocked:
            self.caches[cache.fetch.client, cache.number] = cache
            cache.queue.extend(held)


BROKEN: tuple[tuple[type[Relocation], int], ...] = (
    (DeliversItsOwnFirst, 2),
    (AnswersAtOnce, 2),
    (FollowsTheEntries, 2),
    (ForgetsTheRest, 1),
    (ForgetsWhatWasOnTheAir, 3),
    (KeepsItsCache, 1),
)


@pytest.mark.parametrize(("protocol", "seed"), BROKEN, ids=lambda one: getattr(one, "name", ""))
def test_a_broken_rule_is_found(protocol: type[Relocation], seed: int) -> None:
    with registered(protocol):
        assert violations_of(draw_story(protocol.name, seed))
    assert not violations_of(draw_story("relocation", seed))


# --- as published ---

COPIES = """
brokers a-b
protocol {protocol}
at 0 c attach a
at 0 d attach b
at 0 p attach a
at 1 c subscribe TRUE
at 1 d subscribe TRUE
at 2 c attach b
at 2.025 p publish {{"x": 1}}
"""


def test_as_published_what_others_want_comes_twice() -> None:
    """The fetch has not reached a when p publishes: a stores it for c, and sends it to b for d."""
    result = verdict(parse_story(COPIES.format(protocol="relocation:repeating")))
    assert [str(one) for one in result.violations] == ["duplicate: c got p/1 again at 2.080000 from b"]
    assert not violations_of(parse_story(COPIES.format(protocol="relocation")))


RINGS = """
brokers a-b
protocol {protocol}
cache_notifications 2
at 0 c attach a
at 0 p attach a
at 1 c subscribe kind = 'quiet'
at 1 c subscribe kind = 'chatty'
at 2 c leave
at 3 p publish {{"kind": "quiet"}}
at 4 p publish {{"kind": "chatty"}}
at 5 p publish {{"kind": "chatty"}}
at 6 p publish {{"kind": "chatty"}}
at 7 c attach b
"""


def test_as_published_each_subscription_has_a_ring_of_its_own() -> None:
    """A chatty subscription pushes out its own notifications, and not those of a quiet one."""
    lost = {
        name: [str(one) for one in verdict(parse_story(RINGS.format(protocol=name))).excused.items()]
        for name in ("relocation", "relocation:published")
    }
    assert lost == {
        "relocation": ["('lost (overflow)', 2)"],
        "relocation:published": ["('lost (overflow)', 1)"],
    }


def test_as_published_what_two_subscriptions_have_is_repeated_and_reordered() -> None:
    violations = [
        one for seed in range(20) for one in violations_of(draw_story("relocation:published", seed))
    ]
    assert kinds_of(violations) == {"duplicate", "out of order"}


def test_as_published_nothing_else_goes_wrong() -> None:
    violations = [
        one for seed in range(20) for one in violations_of(draw_story("relocation:repeating", seed))
    ]
    assert kinds_of(violations) == {"duplicate"}
