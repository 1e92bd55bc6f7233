"""Roam: served at once where the client was expected, a multi-hop handoff elsewhere, always exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest
from tests.mobility.seeds import first_failing_seed

from roamcast.broker.contract import AnyMachine
from roamcast.broker.core import CoreSettings
from roamcast.broker.inputs import SettingsChanged, Started
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.settings import MachineSettings
from roamcast.errors import InputError
from roamcast.mobility import MobilityProtocol, Settings, prediction
from roamcast.mobility.multi_hop_handoff import FIRST_CREDIT, Hold, Reference, SubMigration
from roamcast.mobility.prediction import Predictor, why_unusable
from roamcast.mobility.proactive import Proactive
from roamcast.mobility.roam import HEAD_MAX, CopyServed, DropCopy, FeedCopy, Roam, Spread, StoreCopy
from roamcast.protocol.messages import Hello
from roamcast.protocol.notification import Burst
from roamcast.protocol.queues import DeliveryQueue
from roamcast.protocol.records import Row
from roamcast.protocol.session import Session
from roamcast.protocol.snapshot import freeze, state_hash, thaw
from roamcast.simulator.fuzz import draw_story, fuzz
from roamcast.simulator.run import Run
from roamcast.simulator.story import Story, parse_story, verdict

# --- stories ---

EXPECTED = """
brokers a-b b-c
protocol roam
link 0.1
at 0 d attach b
at 0 m attach b
at 0 p attach c
at 0.1 m subscribe TRUE
at 1.0 d attach a
at 3.0 m leave
at 4.0 p publish {"x": 1}
at 5.0 m attach a
at 6.0 p publish {"x": 2}
"""


def times_of(story: str) -> dict[int, float]:
    """When the client got the notifications, by number."""
    times: dict[int, float] = {}

    def on_rows(rows: list[Row]) -> None:
        times.update({row.number or 0: row.time for row in rows if row.kind == "delivered"})

    result = parse_story(story).judge(on_rows)
    assert (result.violations, result.lost) == ([], 0)
    return times


def figures_of(run: Run) -> Counter[str]:
    total: Counter[str] = Counter()
    for broker in run.network.brokers.values():
        assert isinstance(broker.protocol, Roam)
        total.update(broker.protocol.figures)
    return total


def test_a_client_that_was_expected_waits_for_the_access_link_alone() -> None:
    assert times_of(EXPECTED)[1] == pytest.approx(5.04)
    # By a handoff the first notification takes a round trip of 0.2 s longer.
    assert times_of(EXPECTED.replace("protocol roam", "protocol multi_hop_handoff"))[1] == pytest.approx(5.24)
    assert times_of(EXPECTED.replace("m attach a", "m attach c"))[1] == pytest.approx(5.24)


def test_a_copy_takes_the_place_of_the_queue_that_was_left_behind() -> None:
    run = parse_story(EXPECTED).run()
    assert figures_of(run) == {"hit": 1, "miss": 1, "served": 1, "copies": 1}
    protocols = [broker.protocol for broker in run.network.brokers.values()]
    assert not any(one.segments or one.copies or one.spreads for one in protocols if isinstance(one, Roam))


def test_a_client_that_left_unnoticed_finds_a_copy_where_copies_begin_early() -> None:
    story = EXPECTED.replace("at 3.0 m leave\n", "").replace("at 4.0 p", "at 4.79 p")
    story = story.replace("at 6.0", "at 4.955").replace("link 0.1", "link 0.1\ncopies_after_s 2\nnotice 60")
    run = parse_story(story).run()
    assert figures_of(run)["served"] == 1
    assert (run.result.violations, run.result.lost) == ([], 0)


def test_what_is_too_large_is_not_copied() -> None:
    story = EXPECTED.replace("link 0.1", "link 0.1\ncopy_bytes_max 1")
    assert figures_of(parse_story(story).run()) == {"miss": 2}


def test_a_client_for_whom_nothing_waits_has_no_copies() -> None:
    story = EXPECTED.replace('at 4.0 p publish {"x": 1}\n', "")
    assert figures_of(parse_story(story).run()) == {"miss": 2}


def test_a_copy_has_the_head_of_a_long_queue_and_the_rest_is_pulled() -> None:
    waiting = "".join(f'at 4.{number:02} p publish {{"x": 1}}\n' for number in range(10, 40))
    story = EXPECTED.replace("at 5", waiting + "at 5", 1)
    times = [round(time, 2) for time in times_of(story).values()]
    assert times[: HEAD_MAX + FIRST_CREDIT] == [5.04] * HEAD_MAX + [5.24] * FIRST_CREDIT
    assert times[-2] < 5.5
    run = parse_story(story).run()
    assert (run.result.violations, run.result.lost, figures_of(run)["hit"]) == ([], 0, 1)
    assert not any(one.segments for one in protocols_of(run))


def protocols_of(run: Run) -> list[Roam]:
    protocols = [broker.protocol for broker in run.network.brokers.values()]
    return [one for one in protocols if isinstance(one, Roam)]


WIDE = """
brokers h-m m-n n-a h-z
protocol roam
copies_max 1
link 0.1
at 0 c attach h
at 0 p attach z
at 1 c subscribe x > 0
at 2 c leave
at 3 p publish {"x": 1}
at 5 c attach m
at 6 p publish {"x": 2}
"""


def wide(story: str) -> Story:
    """Nobody knows where clients of h go: to a or to z, so copies are kept on the way, too."""
    told, graph = parse_story(story), model({"h": {"a": 0.6, "z": 0.4}}, {})
    mobility = msgspec.structs.replace(told.settings.mobility, neighbour_graph=graph)
    return replace(told, settings=replace(told.settings, mobility=mobility))


def test_where_prediction_is_weak_brokers_on_the_way_keep_copies_too() -> None:
    rows: list[Row] = []
    run = wide(WIDE).run(rows.extend)
    got = [row.time for row in rows if row.kind == "delivered"]
    assert run.result.violations == []
    assert got[0] == pytest.approx(5.04)
    assert figures_of(run) == {"copies": 3, "served": 1, "hit": 1, "recalled": 1}
    assert not any(one.copies or one.segments for one in protocols_of(run))


@pytest.mark.parametrize("destination", ["n", "a", "z", "h"])
def test_no_copy_is_left_wherever_the_client_appears(destination: str) -> None:
    run = wide(WIDE.replace("c attach m", f"c attach {destination}")).run()
    assert (run.result.violations, run.result.lost) == ([], 0)
    assert not any(one.copies or one.segments for one in protocols_of(run))


def test_no_copies_without_room_for_them() -> None:
    story = EXPECTED.replace("link 0.1", "link 0.1\ncopies_max 0")
    assert figures_of(parse_story(story).run()) == {"miss": 2}
    with pytest.raises(InputError, match="copies_max -1: valid is 0 or more"):
        Roam.check(Settings(copies_max=-1))


def test_a_client_that_is_away_for_too_long_has_no_copies() -> None:
    story = EXPECTED.replace("link 0.1", "link 0.1\ncopies_for_s 1.5")
    assert figures_of(parse_story(story).run()) == {"miss": 2, "copies": 1, "recalled": 1}


# --- prediction ---


def model(first: Mapping[str, Mapping[str, float]], ways: object = None) -> str:
    """`ways`: at a broker, behind others, how many went where."""
    rows = {here: {one: {"probability": p} for one, p in row.items()} for here, row in first.items()}
    return json.dumps({"brokers": rows, "contexts": ways or {}})


def test_the_way_decides_where_it_was_learned() -> None:
    ways = {"b": [{"after": ["a"], "next": {"c": 20}}, {"after": ["d", "a"], "next": {"e": 5}}]}
    learned = model({"b": {"a": 0.7, "c": 0.3}}, ways)
    predictor = Predictor("b", learned)
    assert predictor.predict(()) == ["a", "c"]
    assert predictor.predict(("a",)) == ["c", "a"]
    assert predictor.predict(("x", "a")) == ["c", "a"], "a way that nobody took says nothing"
    assert predictor.predict(("d", "a")) == ["e", "c", "a"]
    assert predictor.predict(("elsewhere",)) == ["a", "c"]
    assert Predictor("other", learned).predict(("a",)) == []
    assert sum(predictor.chances(("d", "a")).values()) == pytest.approx(1)


def test_a_model_says_when_clients_leave() -> None:
    text = json.dumps({"brokers": {"b": {}}, "stays": {"b": [[60, 0.25], [120, 0.5], [600, 0.75]]}})
    predictor = Predictor("b", text)
    assert predictor.leaves_within(0, 120) == pytest.approx(0.5)
    assert predictor.leaves_within(60, 60) == pytest.approx(1 / 3), "of those who are still there"
    assert predictor.leaves_within(0, 30) == Predictor("c", text).leaves_within(0, 120) == 0


def test_no_more_brokers_than_make_up_the_probability() -> None:
    predictor = Predictor("b", model({"b": {"a": 0.7, "c": 0.2, "d": 0.1}}))
    assert predictor.predict((), 0.7) == ["a"]
    assert predictor.predict((), 0.8) == ["a", "c"]


def test_a_model_is_used_only_by_brokers_it_is_of_and_while_it_is_new() -> None:
    text = model({"b": {"a": 0.7}}, {})
    made = json.dumps({**json.loads(text), "about": {"made_at_s": 1000.0}})
    assert why_unusable(text, "a", 1e9, 1.0) == "", "who says nothing about its age is believed"
    assert why_unusable(made, "b", 1000.0 + 86_400, 100_000.0) == ""
    assert why_unusable(made, "b", 1e9, None) == ""
    assert why_unusable(made, "b", 1000.0 + 864_000, 100.0) == "the model was made 10 days ago"
    assert why_unusable(made, "x", 1000.0, 100.0) == "the model is of other brokers: x is not one of them"
    assert "expected JSON" in why_unusable("{", "b", 0.0, None)
    assert "$.contexts" in why_unusable(model({"b": {}}, {"a": 1}), "b", 0.0, None)


def test_moves_correct_what_was_learned() -> None:
    predictor = Predictor("b", model({"b": {"a": 1.0}}))
    for _ in range(60):
        predictor.learn((), "c")
    assert predictor.predict(()) == ["c", "a"]
    for _ in range(2):
        predictor.learn(("c",), "a")
    assert predictor.predict(("c",)) == ["a", "c"], "few came that way, and all went there"
    assert predictor.predict(("d",)) == ["c", "a"]


def test_another_model_takes_the_place_of_the_first_and_what_was_learned_stays() -> None:
    ways = {"b": [{"after": ["x"], "next": {"a": 40}}]}
    predictor = Predictor("b", model({"b": {"a": 0.9, "c": 0.1}}, ways))
    for _ in range(60):
        predictor.learn(("x",), "d")
    assert predictor.predict(("x",)) == ["d", "a", "c"]
    predictor.take("b", model({"b": {"c": 1.0}}))
    assert predictor.predict(("x",)) == ["d", "c"], "nothing is left of the first"
    assert predictor.predict(()) == ["c", "d"]
    predictor.take("b", "")
    assert predictor.predict(("x",)) == predictor.predict(()) == ["d"]


@pytest.mark.parametrize("protocol", ["roam", "proactive"])
def test_a_broker_starts_with_the_model_of_now(protocol: str) -> None:
    def settings(text: str) -> MachineSettings:
        core = CoreSettings(clock_error_s=None, protocol=Settings(neighbour_graph=text))
        return MachineSettings("b", protocol=protocol, broker=core)

    def likely(machine: AnyMachine) -> list[str]:
        assert isinstance(machine, BrokerMachine)
        chosen = machine.broker.protocol
        assert isinstance(chosen, Roam | Proactive)
        return chosen.predictor.predict(())

    first = BrokerMachine(settings(model({"b": {"a": 1.0}})))
    first.step(1.0, [Started(first.settings)])
    assert likely(first) == ["a"]
    frozen = freeze(first)
    inputs = [Started(settings(model({"b": {"c": 1.0}})))]
    restored = thaw(frozen, verify=True)
    for machine in (first, restored):
        machine.step(2.0, inputs)
        assert likely(machine) == likely(thaw(freeze(machine), verify=True)) == ["c"]
    assert state_hash(first) == state_hash(restored)
    first.step(3.0, [SettingsChanged(settings(""))])
    assert likely(first) == []


@pytest.mark.parametrize("protocol", ["roam", "proactive", "sub_unsub"])
def test_a_broker_starts_with_the_settings_of_now(protocol: str) -> None:
    def settings(chosen: Settings) -> MachineSettings:
        return MachineSettings(
            "b", protocol=protocol, broker=CoreSettings(clock_error_s=None, protocol=chosen)
        )

    before = settings(Settings(delay_bound_s=1.0))
    now = settings(Settings(delay_bound_s=2.0, copies_max=3, neighbours_max=4))
    changed, fresh = BrokerMachine(before), BrokerMachine(now)
    changed.step(1.0, [Started(before)])
    changed.step(2.0, [Started(now)])
    fresh.step(1.0, [Started(now)])
    fresh.step(2.0, [Started(now)])
    assert state_hash(changed) == state_hash(fresh)


def test_what_an_earlier_version_has_learned_stays() -> None:
    fields = {"_first": {"a": 2.0}, "_ways": {"x": {"c": 2.0}}, "_stays": []}
    Predictor.__state__.lifts[2](fields)
    predictor = Predictor("b")
    for name, value in fields.items():
        setattr(predictor, name, value)
    assert set(fields) == set(Predictor.__state__.names)
    assert (predictor.predict(()), predictor.predict(("x",))) == (["a"], ["c", "a"])


def test_ways_that_nobody_takes_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "WAYS_MAX", 2)
    predictor = Predictor("b")
    for before in ("x", "y", "x", "z"):
        predictor.learn((before,), before * 2)
    assert predictor.predict(("x",))[0] == "xx"
    assert set(predictor.chances(("y",))) == {"xx", "yy", "zz"}, "of first order, all is still there"
    assert predictor.chances(("y",)) == predictor.chances(())


@pytest.mark.parametrize(
    "ways",
    [{"a": 1}, {"b": [{"after": ["a"], "next": {"c": 0}}]}, {"b": [{"before": ["a"], "next": {"c": 1}}]}],
)
def test_a_model_that_is_none_is_refused(ways: object) -> None:
    for protocol in (Roam, Proactive):
        with pytest.raises(InputError, match=r"neighbour graph: .*\$\.contexts"):
            protocol.check(Settings(neighbour_graph=model({}, ways)))


# --- seeds ---


class Observed(Roam):
    """Counts what the fuzzer reaches."""

    name = "roam_observed"
    seen: ClassVar[Counter[str]] = Counter()

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        client, copy = hello.client, self.copies.get(hello.client)
        is_earlier = copy is not None and hello.moves > copy.moves + 1
        self.seen["came back to a copy of an earlier stay"] += is_earlier
        received = super().serve_ahead(hello, is_asked)
        is_served = copy is not None and self.host.is_read(client, copy.queue)
        self.seen["served before the session came"] += is_served
        return received

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        copy = self.copy_of(message)
        is_read = copy is not None and self.host.is_read(message.client, copy.queue)
        self.seen["fed while it was read"] += is_read
        super().on_feed_copy(sender, message)

    def on_drop_copy(self, sender: str, message: DropCopy) -> None:
        copy = self.copy_of(message)
        is_read = copy is not None and self.host.is_read(message.client, copy.queue)
        self.seen["dropped while it was read"] += is_read
        super().on_drop_copy(sender, message)

    def on_copy_served(self, sender: str, message: CopyServed) -> None:
        self.seen["took the place of a queue"] += (message.client, message.number, "in") in self.segments
        super().on_copy_served(sender, message)


def test_the_fuzzer_reaches_copies_in_every_state() -> None:
    Observed.seen.clear()
    assert first_failing_seed(Observed, 60) is None
    assert len(Observed.seen) == 5
    assert [what for what in Observed.seen if not Observed.seen[what]] == []


def test_what_a_full_buffer_gives_up_is_lost_and_nothing_else() -> None:
    for seed in range(6):
        story = draw_story("roam", seed)
        result = verdict(replace(story, settings=replace(story.settings, buffer_bytes=200)))
        assert result.violations == []


@pytest.mark.slow
def test_the_promise_holds_over_many_seeds() -> None:
    report = fuzz("roam", range(1000))
    assert (report.violations, report.lost, report.duplicates, report.out_of_order) == (0, 0, 0, 0)


# --- planted breakages: each is one rule left out ---


class FeedsNothing(Roam):
    """A copy stays as it began."""

    name = "roam_feeds_nothing"

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        super().on_feed_copy(sender, msgspec.structs.replace(message, bursts=()))


class FeedsTwice(Roam):
    """What is fed is stored twice."""

    name = "roam_feeds_twice"

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        super().on_feed_copy(sender, msgspec.structs.replace(message, bursts=message.bursts * 2))


class BeginsEmpty(Roam):
    """A copy begins without what is queued."""

    name = "roam_begins_empty"

    def on_store_copy(self, sender: str, message: StoreCopy) -> None:
        super().on_store_copy(sender, msgspec.structs.replace(message, bursts=()))


class ReadsBoth(Roam):
    """What was left behind is read, too, though the copy has it."""

    name = "roam_reads_both"

    def receive_token(self, message: SubMigration, sender: str) -> bool:
        reads_on = super().receive_token(message, sender)
        hold = self.holds[message.session.client]
        if message.segments and message.segments[0][2] == "copy" and not hold.segments:
            hold.segments = list(message.segments[1:])
        return reads_on

    def on_copy_served(self, sender: str, message: CopyServed) -> None:
        """The queue stays."""


class KeepsTheQueue(Roam):
    """The former holder does not forget what the copy has."""

    name = "roam_keeps_the_queue"

    def on_copy_served(self, sender: str, message: CopyServed) -> None:
        """Nothing goes."""


class KeepsCopies(Roam):
    """Copies are never dropped."""

    name = "roam_keeps_copies"

    def on_drop_copy(self, sender: str, message: DropCopy) -> None:
        """Nothing goes."""


class CountsOnCopies(Roam):
    """The list says that a copy has everything, wherever the client appears."""

    name = "roam_counts_on_copies"

    def to_be_read(self, client: str, hold: Hold, destination: str) -> list[Reference]:
        super().to_be_read(client, hold, destination)
        return [(destination, hold.stay, "copy")]


class SpreadsTooEarly(Roam):
    """Copies begin before everything of earlier stays has come."""

    name = "roam_spreads_too_early"

    def spread(self, session: Session) -> None:
        hold = self.holds[session.client]
        own, hold.own = hold.own, None
        super().spread(session)
        hold.own = own

    def is_aligned(self, queue: DeliveryQueue, spread: Spread) -> bool:
        return True


class ForgetsTheAir(Roam):
    """What was sent from a copy counts as received."""

    name = "roam_forgets_the_air"

    def receive_token(self, message: SubMigration, sender: str) -> bool:
        copy = self.copies.get(message.session.client)
        if copy is not None:
            copy.queue.acknowledge(copy.queue.sent)
        return super().receive_token(message, sender)


class FeedsInFront(Roam):
    """What is fed comes before what is stored."""

    name = "roam_feeds_in_front"

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        copy = self.copy_of(message)
        if copy is not None and copy.queue.waiting and message.bursts:
            last = copy.queue.waiting.pop()
            copy.queue.appended -= last.count
            message = msgspec.structs.replace(message, bursts=(*message.bursts, last))
        super().on_feed_copy(sender, message)


class TrimsTheUnread(Roam):
    """A copy forgets what its holder has queued, though the client has not acknowledged it."""

    name = "roam_trims_the_unread"

    def on_feed_copy(self, sender: str, message: FeedCopy) -> None:
        copy = self.copy_of(message)
        if copy is not None:
            message = msgspec.structs.replace(message, base=copy.queue.base + len(copy.queue))
        super().on_feed_copy(sender, message)


class CountsWithoutFeeding(Roam):
    """A holder counts as copied what it does not send, so that a copy has holes."""

    name = "roam_counts_without_feeding"

    def send_feed(self, client: str, spread: Spread, bursts: tuple[Burst, ...], capsule: bytes = b"") -> None:
        super().send_feed(client, spread, tuple(burst for burst in bursts if burst.number % 5), capsule)


BREAKAGES: tuple[type[MobilityProtocol], ...] = (
    *(FeedsNothing, FeedsTwice, BeginsEmpty, ReadsBoth, KeepsTheQueue, KeepsCopies, CountsOnCopies),
    *(SpreadsTooEarly, ForgetsTheAir, FeedsInFront, TrimsTheUnread, CountsWithoutFeeding),
)


@pytest.mark.parametrize("protocol", BREAKAGES, ids=lambda one: one.name)
def test_a_planted_breakage_is_caught(protocol: type[MobilityProtocol]) -> None:
    assert first_failing_seed(protocol, 300) is not None, protocol.__doc__


def test_every_message_names_who_speaks_of_whom() -> None:
    for kind in (StoreCopy, FeedCopy, DropCopy):
        assert {"client", "holder", "number"} <= set(kind.__struct_fields__)
    assert {"client", "number"} <= set(CopyServed.__struct_fields__)
