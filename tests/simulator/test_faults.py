"""Faults: drawn from seeds, told in stories, left out where nothing is promised, and mistakes are found."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mobility.broken import registered
from tests.mobility.test_promises import explain
from tests.simulator.test_outages import using
from tests.simulator.test_story import rounded

from roamcast.broker.inputs import decode_entry
from roamcast.broker.machine import BrokerMachine
from roamcast.broker.requests import Requests
from roamcast.broker.session import Settling
from roamcast.errors import InputError
from roamcast.mobility import PROTOCOLS, find_protocol
from roamcast.mobility.base import Host, Settings
from roamcast.mobility.multi_hop_handoff import MultiHopHandoff
from roamcast.mobility.sub_unsub import SubUnsub
from roamcast.protocol.messages import ClientPublish, Request
from roamcast.protocol.session import Session
from roamcast.protocol.snapshot import freeze
from roamcast.simulator.access import PlainAccess
from roamcast.simulator.faults import (
    NATURAL,
    Crash,
    Cut,
    Fault,
    Heal,
    Restart,
    Snapshot,
    why_left_out,
)
from roamcast.simulator.fuzz import draw_story, fuzz, shrunk_failure
from roamcast.simulator.network import Network
from roamcast.simulator.story import format_story, kinds_of, parse_story, verdict, violations_of

ALL = NATURAL
PROMISING = [
    name
    for name, protocol in sorted(PROTOCOLS.items())
    if ":" not in name and protocol.assumes <= {"honest_peers"}
]
"""Those that keep what they promise under every fault that comes about by itself."""

# --- stories ---


def faults_of(protocol: str, seed: int, *kinds: str) -> list[Fault]:
    return [item for _, _, item in draw_story(protocol, seed, kinds).actions if isinstance(item, Fault)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PROTOCOLS)), st.integers(0, 10**6), st.sets(st.sampled_from(ALL), min_size=1))
def test_drawn_faults_are_read_as_they_were_written(protocol: str, seed: int, kinds: set[str]) -> None:
    story = draw_story(protocol, seed, sorted(kinds))
    text = format_story(story)
    again = parse_story(text)
    assert format_story(again) == text
    assert again.settings == story.settings
    assert list(again.actions) == rounded(story)


def test_a_story_with_faults_that_is_read_again_runs_the_same() -> None:
    for seed in (1, 6, 9):
        first = parse_story(format_story(draw_story("durable", seed, ALL)))
        second = parse_story(format_story(first))
        assert first.run().result == second.run().result


def test_each_kind_that_is_asked_for_is_drawn_on_top_of_the_same_story() -> None:
    for seed in range(30):
        plain = draw_story("none", seed)
        crashes, cuts = faults_of("none", seed, "crash"), faults_of("none", seed, "partition")
        assert Counter(map(type, crashes)).keys() - {Snapshot} == {Crash, Restart}
        assert Counter(map(type, cuts)).keys() == {Cut, Heal}
        assert faults_of("none", seed, "loss") == []
        assert draw_story("none", seed, ("loss",)).settings.loss > 0
        assert plain.settings.loss == 0
        together = draw_story("none", seed, ALL)
        assert set(plain.actions) <= set(together.actions)
        assert together == draw_story("none", seed, ALL)


def test_with_faults_brokers_that_can_watch_each_other_sometimes_do() -> None:
    drawn = [draw_story("proactive", seed, ALL).settings.mobility.heartbeat_period_s for seed in range(100)]
    assert 30 < drawn.count(None) < 70
    for seed in range(20):
        assert draw_story("proactive", seed).settings.mobility == Settings()
        assert draw_story("multi_hop_handoff", seed, ALL).settings.mobility == Settings()


def test_some_crashes_come_behind_the_journal_and_some_clients_go_elsewhere() -> None:
    unsent: Counter[bool] = Counter()
    elsewhere = 0
    for seed in range(40):
        story, plain = draw_story("none", seed, ("crash",)), draw_story("none", seed)
        unsent.update(item.unsent for _, _, item in story.actions if isinstance(item, Crash))
        more = [item for _, _, item in story.actions if not isinstance(item, Fault)]
        elsewhere += len(more) - len(plain.actions)
    assert min(unsent[True], unsent[False]) > 20
    assert elsewhere > 10


def test_whatever_is_down_at_the_end_comes_back() -> None:
    text = "brokers b0-b1 b1-b2\nat 0 c attach b0\nat 1 b0 crash\nat 2 b1 cut b0\n"
    story = parse_story(text + "at 2 b1 cut b2\nat 3 b2 heal b1\n")
    repairs = list(story.with_homecoming())[len(story.actions) :]
    assert repairs == [(4.0, "b0", Restart()), (4.0, "b1", Heal("b0"))]
    assert violations_of(story) == []


def test_shrinking_leaves_out_the_faults_that_do_not_matter() -> None:
    """Only a crash matters to a network that forgets what it had sent."""
    with using(ForgetsWhatWasSent):
        seed = first_failing_seed("multi_hop_handoff")
        story = draw_story("multi_hop_handoff", seed, ALL)
        failure = shrunk_failure(seed, story, violations_of(story))
        short = parse_story(failure.story)
        left = [item for _, _, item in short.actions if isinstance(item, Fault)]
        assert any(isinstance(item, Crash) for item in left)
        assert len(left) < sum(isinstance(item, Fault) for _, _, item in story.actions)
        assert short.settings.loss == 0
        assert len(short.actions) < 15
        assert violations_of(short) == failure.violations != []
    assert violations_of(short) == []


# --- what is promised under which faults ---


def test_who_relies_on_a_bound_is_left_out_where_there_is_none() -> None:
    assert why_left_out(find_protocol("sub_unsub"), ("crash", "loss")) == (
        "sub_unsub relies on a bound on the overlay's delay, which crash breaks"
    )
    assert why_left_out(find_protocol("sub_unsub"), ALL) == (
        "sub_unsub relies on a bound on the overlay's delay, which crash, partition and history break"
    )
    assert why_left_out(find_protocol("sub_unsub"), ("loss",)) is None
    for protocol in ("multi_hop_handoff", "relocation", "proactive", "phoenix", "home_broker", "reactive"):
        assert why_left_out(find_protocol(protocol), NATURAL) is None
        assert protocol in PROMISING


@pytest.mark.parametrize("protocol", PROMISING)
def test_the_promise_is_kept_under_all_faults(protocol: str) -> None:
    report = fuzz(protocol, range(16), faults=ALL)
    assert report.violations == 0, explain(report)
    assert report.crashes > 10
    assert report.links_down > 30
    assert report.deliveries > 3_000


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["crash", "partition", "loss", "crash,partition,loss"])
@pytest.mark.parametrize("protocol", [*PROMISING, "reactive:merged"])
def test_the_promise_is_kept_under_faults_over_many_seeds(protocol: str, kinds: str) -> None:
    report = fuzz(protocol, range(300), faults=kinds.split(","))
    assert report.violations == 0, explain(report)


def test_sub_unsub_keeps_its_promise_where_delays_are_bounded() -> None:
    report = fuzz("sub_unsub", range(60), faults=("loss",))
    assert report.violations == 0, explain(report)


@pytest.mark.slow  # 9 s each
@pytest.mark.parametrize("kind", ["crash", "partition"])
def test_sub_unsub_breaks_its_promise_without_the_bound_and_keeps_it_with_a_true_one(kind: str) -> None:
    """So what it declares to assume is what it needs, and nothing else."""

    class Patient(SubUnsub):
        """Its bound is longer than all that is ever down."""

        name = "patient"

        def __init__(self, host: Host, settings: Settings) -> None:
            super().__init__(host, settings)
            self.bound_s += 1_000.0
            self.marks_kept_s = 16_000.0

    broken = draw_story("sub_unsub", first_failing_seed("sub_unsub", kind), (kind,))
    assert kinds_of(violations_of(broken)) == {"lost"}
    with registered(Patient):
        report = fuzz(Patient.name, range(40), faults=(kind,))
        assert report.violations == 0, explain(report)


# --- the stages of a handoff at which a broker may crash ---

STAGES = (
    "a client is attached and nothing is under way",
    "has asked for a session",
    "has let a session go that has not arrived",
    "on the path, not acknowledged",
    "on the path, earlier temporary queues still to come",
    "holds the token, temporary queues still to come",
    "holds the token, with stored notifications to pull",
    "has segments left behind",
    "has a segment that waits for temporary queues",
    "a subscription is not settled",
    "a client is welcome elsewhere and its going was not noticed",
)


class Staged(Network):
    """Counts what a broker was about when it crashed."""

    seen: Counter[str]

    def _crash(self, broker: str, reason: str | None = None) -> None:
        node = self.brokers[broker]
        handoffs = node.protocol
        assert isinstance(handoffs, MultiHopHandoff)
        passes, holds = handoffs.passes.values(), handoffs.holds.values()
        segments, connections = handoffs.segments.values(), node.connections()
        clients = node.clients.here.values()
        found = (
            bool(connections) and not node.unfinished(),
            any(here.request for here in clients),
            any(here.departed for here in clients),
            any(not one.acknowledged for one in passes),
            any(one.swept is None for one in passes),
            any(one.own is not None and not one.swept for one in holds),
            any(one.segments for one in holds),
            bool(segments),
            any(not one.complete for one in segments),
            any(here.settling is Settling.SETTLING for here in clients),
            any(self.clients[client].broker not in ("", broker) for client, _ in connections),
        )
        self.seen.update(stage for stage, is_so in zip(STAGES, found, strict=True) if is_so)
        super()._crash(broker, reason)


def test_the_fuzzer_crashes_brokers_at_every_stage_of_a_handoff() -> None:
    seen: Counter[str] = Counter()
    with using(type("One", (Staged,), {"seen": seen})):
        for seed in range(80):
            draw_story("multi_hop_handoff", seed, ("crash",)).run()
    assert {stage: seen[stage] > 0 for stage in STAGES} == dict.fromkeys(STAGES, True), seen


# --- planted mistakes: each is one promise of the driver left out ---


class ForgetsLastEntry(Network):
    """The journal ends one entry too early."""

    def _recover(self, broker: str) -> BrokerMachine:
        del self._journals[broker].entries[-1:]
        return super()._recover(broker)


class AsksForItAgain(Network):
    """After a restart every link says that it has not got the last message."""

    def _recover(self, broker: str) -> BrokerMachine:
        machine = super()._recover(broker)
        for end in machine.links.ends.values():
            end.received -= min(end.received, 1)
        return machine


class ForgetsWhatWasSent(Network):
    """After a restart a link carries nothing of what the peer had not got."""

    def _recover(self, broker: str) -> BrokerMachine:
        machine = super()._recover(broker)
        for end in machine.links.ends.values():
            end.take(apart=True)
            end._written.clear()
            end._unwritten.clear()
        return machine


class LosesWhatIsUnderWay(Network):
    """A link forgets what was on it when it went down."""

    def _take_down(self, broker: str, peer: str, why: str) -> None:
        super()._take_down(broker, peer, why)
        for one, other in ((broker, peer), (peer, broker)):
            self.machines[one].links.ends[other]._written.clear()


class TurnsRoundWhatWaited(Network):
    """What waited for a link comes last in, first out."""

    def _bring_up(self, broker: str, peer: str, why: str) -> None:
        for one, other in ((broker, peer), (peer, broker)):
            end = self.machines[one].links.ends[other]
            end._close_apart()
            end._unwritten.reverse()
        super()._bring_up(broker, peer, why)


class NumbersConnectionsAnew(Network):
    """After a restart connections have numbers that there were before."""

    def _restart(self, broker: str) -> None:
        assert isinstance(self.access, PlainAccess)
        self.access._connections_made = 0
        super()._restart(broker)


class ForgetsSubscriptions(Network):
    """Some of what others want is not in the journal."""

    def _recover(self, broker: str) -> BrokerMachine:
        machine = super()._recover(broker)
        table = machine.broker.router.table
        for filter, interface in table.entries()[:1]:
            table.remove(filter, interface)
        return machine


class ForgetsQueues(Network):
    """A snapshot has no entries of the journal after it any more, nor those that were not in it."""

    def _take_snapshot(self, broker: str) -> None:
        entries = self._journals[broker].entries[:-3]
        super()._take_snapshot(broker)
        machine = self._make_machine(broker)
        for data in entries:
            entry = decode_entry(data)
            machine.step(entry.now, entry.inputs)
        self._journals[broker].snapshot = freeze(machine)


def first_failing_seed(protocol: str, *kinds: str, seeds: int = 50) -> int:
    found = (seed for seed in range(seeds) if verdict(draw_story(protocol, seed, kinds or ALL)).violations)
    return next(found)


MISTAKES: list[tuple[type[Network], str]] = [
    (ForgetsLastEntry, "crash"),
    (AsksForItAgain, "crash"),
    (ForgetsWhatWasSent, "crash"),
    (LosesWhatIsUnderWay, "crash"),
    (LosesWhatIsUnderWay, "partition"),
    (TurnsRoundWhatWaited, "crash"),
    (TurnsRoundWhatWaited, "partition"),
    (NumbersConnectionsAnew, "crash"),
    (ForgetsSubscriptions, "crash"),
    (ForgetsQueues, "crash"),
]


@pytest.mark.parametrize(("network", "kind"), MISTAKES, ids=lambda one: getattr(one, "__name__", one))
def test_a_mistake_of_the_driver_is_found(network: type[Network], kind: str) -> None:
    with using(network):
        seed = first_failing_seed("multi_hop_handoff", kind)
        assert violations_of(draw_story("multi_hop_handoff", seed, (kind,)))
    assert violations_of(draw_story("multi_hop_handoff", seed, (kind,))) == []


def test_a_broker_that_takes_a_publication_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends again what it did not hear to be accepted, because that was lost with a crash."""

    def accept(self: Requests, session: Session, request: Request) -> None:
        if isinstance(request, ClientPublish):
            session.accepted = request.request - 1
        taken(self, session, request)

    taken = Requests._accept
    monkeypatch.setattr(Requests, "_accept", accept)
    seed = first_failing_seed("multi_hop_handoff", "crash")
    assert "published twice" in kinds_of(violations_of(draw_story("multi_hop_handoff", seed, ("crash",))))


def test_a_link_that_changes_its_way_loses_and_repeats_nothing() -> None:
    """What was on the old way is sent again."""
    report = fuzz("multi_hop_handoff", range(12), faults=("detour", "loss"))
    assert not report.failures
    assert report.links_down > 10
    text = "brokers b0-b1\nat 0 c attach b0\nat 1 b0 detour b1 3\nat 2 b1 detour b0 1\n"
    assert violations_of(parse_story(text)) == []
    assert "detour b1 3" in format_story(parse_story(text))
    with pytest.raises(InputError, match="detour factor 'far': Expected `float`"):
        parse_story("brokers b0-b1\nat 1 b0 detour b1 far\n")
