"""Pro-active context distribution: hits, misses, races, timeouts, and what each rule is needed for.

The main case of figure 3.1 and the loss under the published rule are transcripts
(tests/transcripts/proactive_….txt).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from tests.mobility.broken import registered

from roamcast.errors import InputError
from roamcast.mobility import Settings
from roamcast.mobility.proactive import Proactive, Stay, Store
from roamcast.mobility.proactive_messages import CopyActivated, Subscriptions
from roamcast.mobility.shared_buffer import SharedBuffer
from roamcast.protocol.messages import Hello, Message, Relayed
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.records import Row
from roamcast.protocol.session import Session
from roamcast.routing.router import Token
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.network import Network, NetworkSettings
from roamcast.simulator.run import Run
from roamcast.simulator.scenario import Scenario
from roamcast.simulator.story import Story, kinds_of, parse_story, violations_of
from roamcast.simulator.topology import Topology


def graph_text(**rows: str) -> str:
    """A neighbour graph: `a="b c"` says that clients go from a to b and c."""
    brokers = {broker: {one: {"probability": 0.5} for one in row.split()} for broker, row in rows.items()}
    return json.dumps({"brokers": brokers})


def complete_graph(topology: Topology) -> str:
    return graph_text(**{one: " ".join(x for x in topology.brokers if x != one) for one in topology.brokers})


def told(text: str, protocol: str = "proactive", **settings: object) -> Story:
    """A story with settings that a story's text cannot tell."""
    story = parse_story(text)
    mobility = Settings(**settings)  # type: ignore[arg-type]
    return replace(story, settings=replace(story.settings, protocol=protocol, mobility=mobility))


def protocols(network: Network) -> Iterator[Proactive]:
    for broker in network.brokers.values():
        assert isinstance(broker.protocol, Proactive)
        yield broker.protocol


def figures_of(run: Run) -> Counter[str]:
    return sum((protocol.figures for protocol in protocols(run.network)), Counter())


def check_rest(run: Run) -> None:
    """Nothing is violated, and nothing is left over: every copy has a holder that knows of it."""
    assert [str(one) for one in run.result.violations] == []
    held: list[tuple[str, str]] = []
    known: list[tuple[str, str]] = []
    for protocol in protocols(run.network):
        assert (protocol.fed, protocol.activations) == ({}, {})
        assert {*protocol.stores.values()} == {stay.store for stay in protocol.current.values()}
        assert all(copy.store is None for copy in protocol.copies.values())
        held += [(protocol.host.id, client) for client in protocol.copies]
        known += [(broker, client) for client, stay in protocol.current.items() for broker in stay.copies]
    assert sorted(held) == sorted(known)


class Messages:
    """The messages of a run on the way from one broker to another, whichever way they take."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, str, Message]] = []

    def __call__(self, now: float, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, Relayed):
            if sender != message.source:
                return
            sender, receiver, message = message.source, message.destination, message.message
        self.seen.append((now, sender, receiver, message))

    def between(self, since: float, until: float) -> list[str]:
        """Those that say what happens to copies."""
        left_out = ("CopyActivated", "ForwardStored", "NeighbourList")
        return [
            f"{sender} {type(message).__name__} {receiver}"
            for now, sender, receiver, message in self.seen
            if since <= now < until
            and type(message).__module__ == "roamcast.mobility.proactive_messages"
            and type(message).__name__ not in left_out
        ]


# --- served ahead of the session ---


def test_a_client_reads_at_an_active_neighbour_before_its_session_is_there() -> None:
    run = told(
        "brokers a-b b-c c-d\nlink 0.5\nat 0 s attach a\nat 0 p attach d\nat 1 s subscribe x > 0\n"
        'at 10 s leave\nat 20 p publish {"x": 1}\nat 30 s attach d\nat 30.1 p publish {"x": 2}\n',
        neighbour_graph=graph_text(a="d"),
    )
    rows: list[Row] = []
    check_rest(run.run(rows.extend))
    got = {row.number: row.time for row in rows if row.kind == "delivered"}
    assert got == {1: pytest.approx(30.04), 2: pytest.approx(30.14)}  # The session takes 3 s.


@pytest.mark.slow  # 10 s
def test_clients_read_ahead_over_seeds() -> None:
    total = run_seeds(range(40), {"neighbour_graph": "complete"})
    assert total["served_ahead"] > 100


# --- over seeds ---


def run_seeds(seeds: range, settings: dict[str, object], buffer_bytes: int | None = None) -> Counter[str]:
    """Run the fuzzer's stories with other settings; the neighbour graph "complete" is made for each."""
    total: Counter[str] = Counter()
    for seed in seeds:
        story = draw_story("proactive", seed)
        chosen = dict(settings)
        if chosen.get("neighbour_graph") == "complete":
            chosen["neighbour_graph"] = complete_graph(story.topology)
        mobility = Settings(**chosen)  # type: ignore[arg-type]
        network = replace(story.settings, mobility=mobility, buffer_bytes=buffer_bytes)
        run = replace(story, settings=network).run()
        check_rest(run)
        total += figures_of(run)
        total["lost"] += run.result.lost
    return total


VARIANTS: dict[str, dict[str, object]] = {
    "learned": {},
    "complete": {"neighbour_graph": "complete", "neighbours_max": None},
    "one neighbour": {"neighbours_max": 1},
    "directed": {"neighbours_directed": True},
    "timeouts": {"context_timeout_s": 0.05, "neighbour_timeout_s": 0.5},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_exactly_once_whatever_the_graph_is(variant: str) -> None:
    total = run_seeds(range(12), VARIANTS[variant])
    assert total["lost"] == 0
    assert total["hit"] > 0
    assert total["miss"] > 50
    if variant == "learned":
        assert total["hit_activating"] > 0
        assert total["served_nearer"] > 0
        assert total["covered"] > 0
    assert (total["timeout"] > 50) == (variant == "timeouts")


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_exactly_once_over_many_seeds(variant: str) -> None:
    assert run_seeds(range(1000, 1150), VARIANTS[variant])["lost"] == 0


def test_a_full_buffer_loses_and_says_so() -> None:
    total = run_seeds(range(10), VARIANTS["complete"], buffer_bytes=60)
    assert total["lost"] > 0
    assert total["hit"] > 0


@pytest.mark.slow
def test_zero_violations_in_a_thousand_seeds() -> None:
    report = fuzz("proactive", range(1000))
    assert report.violations == 0, [failure.story for failure in report.failures]


# --- single cases ---

AWAY = """
brokers a-b b-c c-d
at 0 s attach b
at 0 p attach d
at 1 s subscribe x > 0
at 2 s leave
at 3 p publish {"x": 1}
"""


def test_case_3_a_client_that_comes_back_finds_everything_and_the_copies_rest() -> None:
    messages = Messages()
    story = told(AWAY + 'at 4 s attach b\nat 5 p publish {"x": 2}\n', neighbour_graph=graph_text(b="a c"))
    check_rest(story.run(trace=messages))
    assert messages.between(2, 3) == ["b ActivateCopy a", "b ActivateCopy c"]
    assert messages.between(4, 5) == ["b DeactivateCopy a", "b DeactivateCopy c"]
    assert messages.between(5, 9) == []


def test_case_4_copies_that_the_new_broker_needs_are_kept() -> None:
    """b hands off to c, whose neighbours are b and d: d keeps its copy, a does not."""
    messages = Messages()
    # The stranger makes the edge of c and d change, so that b has the list of c.
    stranger = "at 1.5 t attach c\nat 1.6 t attach d\n"
    graph = graph_text(b="a c d", c="b")
    run = told(AWAY + stranger + "at 4 s attach c\n", neighbour_graph=graph).run(trace=messages)
    check_rest(run)
    assert figures_of(run)["hit"] == 1
    assert messages.between(4, 5) == ["b DeactivateCopy d", "b DeleteCopy a", "c PassiveCopy b"]


def test_case_6_changes_reach_the_copies() -> None:
    messages = Messages()
    more = "at 4 s attach b\nat 5 s subscribe x = 0\nat 6 s unsubscribe x = 0\nat 7 s unsubscribe x > 0\n"
    check_rest(told(AWAY + more, neighbour_graph=graph_text(b="a")).run(trace=messages))
    assert messages.between(5, 6) == ["b PassiveCopy a"]
    assert messages.between(6, 7) == ["b PassiveCopy a"]
    assert messages.between(7, 8) == ["b DeleteCopy a"]


def test_case_8_after_the_timeout_neighbours_give_up_and_the_last_broker_does_not() -> None:
    messages = Messages()
    story = told(
        AWAY + 'at 5 p publish {"x": 2}\nat 6 s attach c\n',
        neighbour_graph=graph_text(b="a c"),
        context_timeout_s=2.0,
    )
    run = story.run(trace=messages)
    check_rest(run)
    assert messages.between(4, 5) == ["b DeleteCopy a", "b DeleteCopy c"]
    assert messages.between(6, 7)[0] == "b ActivateCopy c"
    assert (figures_of(run)["timeout"], figures_of(run)["miss"]) == (1, 1)
    assert (run.result.delivered, run.result.lost) == (2, 0)


def test_a_timeout_that_comes_too_late_does_nothing() -> None:
    """The race of section 3.2: the client is elsewhere, and away again, when its old broker's time is up."""
    story = told(
        AWAY + 'at 3.5 s attach c\nat 3.8 s leave\nat 4.5 p publish {"x": 2}\nat 5 s attach b\n',
        neighbour_graph=graph_text(b="a c"),
        context_timeout_s=2.0,
    )
    run = story.run()
    check_rest(run)
    # The timers of b (set at 2, at the last attach) and c (at 3.8) come up, and find the client attached.
    assert (figures_of(run)["timeout"], figures_of(run)["hit"]) == (0, 2)


def test_a_client_faster_than_the_notice_of_its_leaving_is_served_reactively() -> None:
    messages = Messages()
    text = "notice 1.0" + AWAY.replace("at 2 s leave", "at 3.03 s attach c")
    run = told(text, neighbour_graph=graph_text(b="a c")).run(trace=messages)
    check_rest(run)
    assert messages.between(3, 4)[0] == "b ActivateCopy c"
    assert (figures_of(run)["miss"], run.result.delivered) == (1, 1)


def test_a_store_on_the_way_serves_a_broker_that_is_no_neighbour() -> None:
    """s goes from a to d, and b on the way has everything but what s had not received when it left."""
    messages = Messages()
    story = told(
        """
        brokers a-b b-c c-d
        window 1
        at 0 s attach a
        at 0 p attach c
        at 1 s subscribe x > 0
        at 1.99 p publish {"x": 1}
        at 1.99 p publish {"x": 2}
        at 2.035 s leave
        at 3 p publish {"x": 3}
        at 4 s attach d
        """,
        neighbour_graph=graph_text(a="b"),
    )
    run = story.run(trace=messages)
    check_rest(run)
    assert messages.between(4, 4.2)[:3] == ["a ServeFromCopy b", "b ActivateCopy d", "d PassiveCopy a"]
    assert (run.result.delivered, figures_of(run)["served_nearer"]) == (3, 1)


def test_a_hit_transfers_only_what_was_stored_before_the_client_left() -> None:
    messages = Messages()
    text = """
        brokers a-b
        at 0 s attach a
        at 0 p attach b
        at 1 s subscribe x > 0
        at 2 p publish {"x": 1}
        at 2.035 s leave
        at 3 p publish {"x": 2}
        at 4 s attach b
        """
    run = told(text, neighbour_graph=graph_text(a="b")).run(trace=messages)
    check_rest(run)
    assert messages.between(4, 4.035) == ["a StoredBefore b"]
    assert run.traffic.hops["transfer"] == 1
    assert run.result.delivered == 2


def test_an_older_subscription_that_covers_saves_the_propagation() -> None:
    network = Network(parse_story(AWAY).topology, NetworkSettings(protocol="proactive"), lambda rows: None)
    protocol = next(protocols(network))
    assert protocol.context({"x > 0": 1.0, "x > 5": 2.0, "y = 1": 3.0}) == {"x > 0": 1.0, "y = 1": 3.0}
    assert (protocol.figures["covered"], protocol.figures["propagated"]) == (1, 2)
    # What was published between the two is owed to the older, narrower one alone.
    assert protocol.context({"x > 0": 2.0, "x > 5": 1.0}) == {"x > 5": 1.0, "x > 0": 2.0}


def test_a_graph_that_cannot_be_read_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="neighbour graph"):
        told(AWAY, neighbour_graph="{}").run()


# --- the neighbour graph is learned ---


def test_the_share_of_misses_begins_near_one_and_goes_to_zero() -> None:
    """Eq. 3.5 in Gaddah's building, where clients go to neighbours (claim G13)."""
    scenario = Scenario(
        topology="building", clients=20, mobile=1.0, movement="NBR", connect_s=20.0, disconnect_s=12.0,
        selectivity=0.2, duration_s=600.0, network=NetworkSettings(protocol="proactive", seed=3),
    )  # fmt: skip
    run = scenario.run()
    check_rest(run)
    graphs = {protocol.host.id: protocol.graph for protocol in protocols(run.network)}

    def share(until_s: float, interval_s: float) -> float:
        shares = [graph.false_negative(until_s, interval_s) for graph in graphs.values()]
        known = [one for one in shares if one is not None]
        return sum(known) / len(known)

    assert share(15, 15) > 0.7
    assert share(60, 30) < 0.2
    assert share(600, 300) == 0.0
    topology = scenario.make_topology()
    for broker, graph in graphs.items():
        assert set(topology.neighbours[broker]) <= set(graph.neighbours(600.0))
    figures = figures_of(run)
    assert figures["hit"] > 20 * figures["miss"]


# --- the shared buffer ---


def burst(number: int, publisher: str = "p") -> Burst:
    return Burst(publisher, 0, number, b"", 0.0, (b"0123456789",))


def test_what_several_wait_for_takes_room_once() -> None:
    buffer = SharedBuffer(25)
    first, second = DeliveryQueue("s", 0, buffer), DeliveryQueue("s", 0, buffer)
    for number in (1, 2):
        assert first.append(burst(number)) == []
        assert second.append(burst(number)) == []
    assert buffer.used_bytes == 20
    # The third has no room: the oldest goes, from all who wait for it.
    assert first.append(burst(3)) == [(first, burst(1)), (second, burst(1))]
    assert first.drain() == [burst(2), burst(3)]
    assert buffer.used_bytes == 10
    second.drain()
    assert buffer.used_bytes == 0


def stored_bytes(protocol: Proactive) -> tuple[int, int]:
    """What a broker stores: bytes if each client had its own, and bytes with everything stored once."""
    shared = SharedBuffer(1 << 30)
    queues = [queue for _, queue in protocol.stored()]
    copies = [DeliveryQueue("s", 0, shared) for _ in queues]
    for queue, copy in zip(queues, copies, strict=True):
        copy.extend(queue.bursts())
    return sum(burst.size for queue in queues for burst in queue.bursts()), shared.used_bytes


def test_a_neighbour_stores_once_for_all_who_are_away() -> None:
    more = AWAY + "at 0 t attach b\nat 1 t subscribe x = 1\nat 2 t leave\n"
    story = told(more, neighbour_graph=graph_text(b="c"), context_timeout_s=None)
    network = Network(story.topology, story.settings, lambda rows: None)
    network.run(sorted(story.actions, key=lambda action: action[0]))  # Nobody comes home.
    stored = {protocol.host.id: stored_bytes(protocol) for protocol in protocols(network)}
    size = stored["b"][1]
    assert size > 0
    assert stored == {"a": (0, 0), "b": (2 * size, size), "c": (2 * size, size), "d": (0, 0)}


def test_notifications_are_counted_one_by_one_where_bursts_are_cut() -> None:
    whole = Burst("p", 0, 1, b"", 0.0, (b"01234", b"56789"), 2)
    buffer = SharedBuffer(100)
    first, second = DeliveryQueue("s", 0, buffer), DeliveryQueue("s", 0, buffer)
    first.append(whole)
    second.append(whole.tail(1))
    assert buffer.used_bytes == 10
    first.acknowledge(1)
    assert buffer.used_bytes == 5
    first.drain()
    assert buffer.used_bytes == 5


# --- every rule is needed ---


class NoControl(Proactive):
    """A copy obeys whoever speaks (section 3.2 without the control attribute)."""

    name = "proactive_no_control"

    def is_controlled(self, client: str, number: int, moves: int | None = None) -> bool:
        return True


class KeepsDuplicates(Proactive):
    """What came to both brokers is not told by the last number."""

    name = "proactive_duplicates"

    def not_forwarded(self, store: Store, burst: Burst) -> Burst | None:
        return burst


class ForwardsNothing(Proactive):
    """What reaches the old broker during the activation stays there."""

    name = "proactive_no_forward"

    def append(self, store: Store, burst: Burst) -> None:
        readers, store.readers = store.readers, {}
        super().append(store, burst)
        store.readers = readers


class AcknowledgesFirst(Proactive):
    """The acknowledgement travels ahead of the subscriptions."""

    name = "proactive_hasty_copy"

    def subscribe_store(self, store: Store, context: Subscriptions) -> None:
        self.host.send(store.source, CopyActivated(store.client, store.activation))
        source, store.source = store.source, self.host.id
        super().subscribe_store(store, context)
        store.source = source

    def on_copy_activated(self, sender: str, message: CopyActivated) -> None:
        if sender != self.host.id:
            super().on_copy_activated(sender, message)


class ForgetsWhatWasBefore(Proactive):
    """Only what the copies store is delivered after a move."""

    name = "proactive_no_before"

    def stored_before(self, stay: Stay) -> tuple[Burst, ...]:
        return ()


class PassesOnTooEarly(Proactive):
    """A store that is not complete tells the next one that it has everything."""

    name = "proactive_no_chain"

    def serve_readers(self, store: Store) -> None:
        complete, store.complete = store.complete, True
        super().serve_readers(store)
        store.complete = complete


class AnyAnswerWillDo(Proactive):
    """An acknowledgement is taken for the activation of now, whichever it answers."""

    name = "proactive_any_answer"

    def on_copy_activated(self, sender: str, message: CopyActivated) -> None:
        for activation, store in self.activations.items():
            if store.client == message.client and store.readers[activation].broker == sender:
                super().on_copy_activated(sender, CopyActivated(message.client, activation))
                return


class DoesNotWaitForChanges(Proactive):
    """Copies are activated though an unsubscription has not settled."""

    name = "proactive_hasty_change"

    def begin_change(self, session: Session) -> Store:
        store = super().begin_change(session)
        self.current[session.client].changing = 0
        return store

    def on_settled(self, token: Token) -> None:
        self.current[token[0]].changing = 1
        super().on_settled(token)


class ServesTwice(Proactive):
    """Nobody asks which copy has served the client ahead of its session."""

    name = "proactive_serves_twice"

    def read_elsewhere(self, stay: Stay, received: Mapping[str, int]) -> str:
        return ""


class ServesAnyStay(Proactive):
    """A copy serves the client though that was elsewhere since the copy was activated."""

    name = "proactive_serves_any"

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        copy = self.copies.get(hello.client)
        if copy is not None:
            copy.moves_served = hello.moves - 1
        return super().serve_ahead(hello, is_asked)


MOVES_ON = """
brokers a-b b-c
at 0 s attach a
at 0 p attach c
at 1 s subscribe x > 0
at 2 s leave
"""

BREAKAGES: dict[type[Proactive], tuple[str, str, dict[str, str]]] = {
    # s leaves b before its session is there: c is activated by b before a's request to rest arrives.
    NoControl: (
        "lost",
        MOVES_ON
        + 'at 3 s attach b\nat 3.035 s leave\nat 4 p publish {"x": 1}\nat 5 s attach c\n'
        # A stranger makes an edge of b change, so that a has the list of b.
        + "at 1.5 t attach b\nat 1.6 t attach c\n",
        {"a": "b c", "b": "a"},
    ),
    # p/1 reaches b after b was activated, and a before a has heard of that.
    KeepsDuplicates: (
        "duplicate",
        "brokers j-a j-b j-c\nrouting flooding\nat 0 s attach a\nat 0 p attach c\nat 1 s subscribe x > 0\n"
        'at 3 s attach b\nat 3.03 p publish {"x": 1}\n',
        {},
    ),
    # p/1 passes b just before b is activated, and reaches a just after s has departed from there.
    ForwardsNothing: ("lost", MOVES_ON + 'at 3 s attach b\nat 3 p publish {"x": 1}\n', {}),
    # Some of q's are published at b when the acknowledgement of c has passed and its subscription has not.
    AcknowledgesFirst: (
        "lost",
        "link 0.0..0.05\nseed 2\n"
        + MOVES_ON
        + "at 1 q attach b\n"
        + "".join(f'at {3 + 0.002 * i:.3f} q publish {{"x": 1}}\n' for i in range(1, 100))
        + "at 3 s attach c\n",
        {},
    ),
    # p/1 was on its way to s when it left.
    ForgetsWhatWasBefore: (
        "lost", MOVES_ON + 'at 1.955 p publish {"x": 1}\nat 3 s attach b\n', {"a": "b"},
    ),
    # s is at d before e has heard of its activation from a; p/1 comes from a by way of e.
    PassesOnTooEarly: (
        "lost",
        "brokers a-b b-c c-d d-e\nlink 0.1\nat 0 s attach a\nat 0 p attach a\nat 1 s subscribe x > 0\n"
        'at 3 s attach e\nat 3.1 s attach d\nat 3.98 p publish {"x": 1}\n',
        {},
    ),
    # s is back and away again: the acknowledgement of the first activation arrives after the second.
    AnyAnswerWillDo: (
        "lost",
        "brokers a-b b-c c-d\nlink 0.1\nat 0 s attach a\nat 0 p attach a\nat 1 s subscribe x > 0\n"
        'at 2 s leave\nat 2.4 s attach a\nat 2.45 s leave\nat 3.015 p publish {"x": 1}\nat 4 s attach d\n',
        {"a": "d"},
    ),
    # p/1 was published before s ended the subscription, and arrives after the copy was activated.
    DoesNotWaitForChanges: (
        "lost",
        "brokers p1-p2 p2-p3 p3-o o-n\nlink 0.1\nat 0 s attach o\nat 0 p attach p1\nat 1 s subscribe x = 1\n"
        'at 1 s subscribe x = 2\nat 10.09 p publish {"x": 1}\nat 10.1 s unsubscribe x = 1\nat 10.13 s leave\n'
        "at 12 s attach n\n",
        {"o": "n"},
    ),
    # s reads p/1 from the copy at b while a is down, and is back before a has heard of that.
    ServesTwice: (
        "duplicate",
        "brokers a-b a-c\nlink 0.03\nat 0 s attach a\nat 0 p attach c\nat 1 s subscribe x > 0\nat 2 s leave\n"
        'at 3 p publish {"x": 1}\nat 4 a crash\nat 4.5 s attach b\nat 6 s attach a\n'
        'at 7 p publish {"x": 2}\n',
        {"a": "b"},
    ),
    # s has read p/1 at b, and comes to c before c has heard that its own copy is of no use any more.
    ServesAnyStay: (
        "duplicate",
        "brokers a-b a-c\nlink 0.5\nat 0 s attach a\nat 0 p attach a\nat 1 s subscribe x > 0\nat 5 s leave\n"
        'at 8 p publish {"x": 1}\nat 10 s attach b\nat 10.2 s attach c\n',
        {"a": "b c"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BREAKAGES)
def test_without_one_rule_a_short_story_breaks_the_promise(broken: type[Proactive]) -> None:
    kind, text, rows = BREAKAGES[broken]
    graph = graph_text(**rows) if rows else ""
    check_rest(told(text, neighbour_graph=graph).run())
    with registered(broken):
        violations = violations_of(told(text, broken.name, neighbour_graph=graph))
    assert kind in kinds_of(violations), violations


NEED_MORE = (DoesNotWaitForChanges, ServesTwice)
"""What the stories of the fuzzer without faults hardly ever have."""


@pytest.mark.slow
@pytest.mark.parametrize("broken", [one for one in BREAKAGES if one not in NEED_MORE])
def test_the_fuzzer_finds_it_too(broken: type[Proactive]) -> None:
    with registered(broken):
        assert any(violations_of(draw_story(broken.name, seed)) for seed in range(300))


def test_the_published_rule_breaks_within_a_few_seeds() -> None:
    assert any(violations_of(draw_story("proactive:one_counter", seed)) for seed in range(50))
