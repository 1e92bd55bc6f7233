"""Failure of brokers (Gaddah, last part of section 3.2): suspicion, announcement, reconciliation.

Brokers are stepped directly. Whole networks under crashes and partitions are at the
end; a crash told as a story is tests/transcripts/proactive_recovery.txt.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec
import pytest
from tests.mobility.broken import registered
from tests.mobility.failing_network import LINK_S, FailingNetwork
from tests.mobility.test_proactive import graph_text

from roamcast.broker.plain_client import Client
from roamcast.errors import InputError
from roamcast.mobility import Host, Settings
from roamcast.mobility.proactive import Proactive, Stay
from roamcast.mobility.proactive_failure import Failures
from roamcast.mobility.proactive_messages import (
    Announcement,
    CopyTaken,
    HeldCopy,
    NeighbourList,
    Ping,
    StoredBefore,
)
from roamcast.mobility.proactive_state import Remote, uncovered
from roamcast.protocol.messages import Hello
from roamcast.protocol.snapshot import freeze, thaw
from roamcast.simulator.drawing import with_heartbeats
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.run import Run
from roamcast.simulator.story import Story, kinds_of, parse_story, violations_of

STAR = "j-a j-b j-c j-d"
"""j is in the middle and never fails; clients go from a to b and c."""

WATCHED = Settings(
    neighbour_graph=graph_text(a="b c"),
    neighbour_timeout_s=None,
    context_timeout_s=60.0,
    heartbeat_period_s=1.0,
    heartbeats_missed_max=2,
)
"""A neighbour is suspected at the third heartbeat after the last word of it."""

HEARTBEATS = ("Ping", "PingReply")
COUNTING = ("StoredBefore", "ServeFromCopy", "CopyTaken", "ContextMissing", "ActivateCopy")


class Uncounted(Proactive):
    """Its clients count no attaches, as those of MQTT: none is served ahead of its session or lent a copy."""

    name = "proactive_uncounted"

    def serve_ahead(self, hello: Hello, is_asked: bool) -> Mapping[str, int]:
        return hello.received

    def end_lent(self, stay: Stay, number: int, spared: Collection[str]) -> None:
        stay.lent = {}


def away(settings: Settings = WATCHED, protocol: type[Proactive] = Proactive) -> FailingNetwork:
    """s has subscribed at a and left at 10; b and c store for it. p publishes from d."""
    network = FailingNetwork(STAR, settings, protocol)
    network.attach("s", "a")
    network.attach("p", "d")
    network.subscribe("s", "x > 0")
    network.run(10.0)
    network.leave("s")
    network.run(10.5)
    return network


def come_home(network: FailingNetwork, broker: str) -> None:
    """s attaches, everything comes to rest, and nothing is left over."""
    network.attach("s", broker)
    network.run()
    assert network.unfinished() == []
    for name in network.brokers:
        assert_nothing_left(network.at(name))


def assert_nothing_left(protocol: Proactive) -> None:
    """Nobody forwards or waits for anything."""
    assert (protocol.fed, protocol.activations) == ({}, {})
    assert (protocol.failures.entrusted, protocol.failures.awaited) == ({}, {})
    assert {*protocol.stores.values()} == {stay.store for stay in protocol.current.values()}


def state_of(network: FailingNetwork, broker: str) -> str:
    """Of the copy of the context of s."""
    copy = network.at(broker).copies.get("s")
    return "absent" if copy is None else "passive" if copy.store is None else "active"


# --- detection ---


def test_heartbeats_are_exchanged_while_neighbours_store_and_end_with_that() -> None:
    network = away()
    network.run(13.5)
    assert network.kinds(12.5) == ["a Ping b", "a Ping c", "b PingReply a", "c PingReply a"]
    network.attach("s", "a")
    network.run()
    assert network.kinds(15.0) == []
    assert network.unfinished() == []


def test_there_are_no_heartbeats_before_a_client_is_away_nor_after_it_timed_out() -> None:
    network = away()
    assert [one for one in network.kinds(0.0) if one.split()[1] in HEARTBEATS] == []
    network.run(200.0)
    assert network.kinds(70.5, "DeleteCopy") == []
    assert [broker.deadline() for broker in network.brokers.values()] == [None] * 5


def test_without_a_period_nobody_is_watched() -> None:
    network = away(msgspec.structs.replace(WATCHED, heartbeat_period_s=None))
    network.fail("b", keep=False)
    network.run(60.0)
    assert network.kinds(10.5) == []
    assert not network.at("a").failures.suspects


def test_a_neighbour_that_is_not_heard_is_suspected_and_the_others_get_the_list() -> None:
    network = away()
    network.fail("b", keep=False)
    network.run(13.5)
    assert network.at("a").failures.suspects.keys() == {"b"}
    assert network.at("a").neighbours() == ["c"]
    lists = [(to, one.neighbours) for _, _, to, one in network.said if isinstance(one, NeighbourList)]
    assert lists == [("c", ("c",))]
    network.run(60.0)
    assert set(network.kinds(14.0)) == {"a Ping c", "c PingReply a"}


def test_a_neighbour_that_answers_in_time_is_not_suspected() -> None:
    network = away()
    network.run(11.5)
    network.fail("b", keep=False)
    network.run(12.8)
    network.recover("b")
    network.run(30.0)
    assert network.at("a").figures["suspected"] == 0


def test_a_suspect_is_left_out_of_new_transfers() -> None:
    network = away(protocol=Uncounted)
    network.fail("b", keep=False)
    network.run(14.0)
    network.attach("s", "a")
    network.attach("t", "a")
    network.subscribe("t", "x = 0")
    network.run(15.0)
    network.leave("t")
    network.run(16.0)
    assert network.kinds(14.0, *HEARTBEATS) == ["a DeactivateCopy c", "a PassiveCopy c", "a ActivateCopy c",
                                                "c CopyActivated a", "a ForwardStored c"]  # fmt: skip


def test_a_client_at_a_suspect_is_served_reactively() -> None:
    """b was cut off, and s comes there before a has heard of b again."""
    network = away(protocol=Uncounted)
    network.publish("p", 1)
    network.run(11.5)
    network.fail("b")
    network.run(15.0)
    network.publish("p", 2)
    network.run(16.0)
    network.recover("b")
    network.attach("s", "b")
    network.run(16.025)
    assert "a ActivateCopy b" in network.kinds(16.0)
    come_home(network, "b")
    assert network.got["s"] == ["p/1", "p/2"]
    assert (network.at("b").figures["miss"], network.at("b").figures["hit"]) == (1, 0)


# --- announcement ---


def test_a_broker_that_was_not_running_announces_itself() -> None:
    """Its timer comes far too late: that is how it knows."""
    network = away()
    network.fail("b", keep=False)
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    assert network.kinds(20.0, *HEARTBEATS)[:2] == ["b Announcement a", "a NeighbourList b"]
    assert network.at("a").neighbours() == ["b", "c"]
    assert network.at("a").figures["recovered"] == 1


def test_a_broker_that_was_cut_off_is_told_and_announces_itself() -> None:
    """It was running, so it does not know: each hears the other again, and says that it had given it up."""
    network = away()
    network.run(11.5)
    network.cut_off("b")
    network.run(14.5)
    assert network.at("a").failures.suspects.keys() == {"b"}
    assert network.at("b").failures.suspects.keys() == {"a"}
    network.recover("b")
    network.run(14.8)
    said = network.kinds(14.5, "NeighbourList", "PingReply")
    assert sorted(said[:2]) == ["a Ping b", "b Ping a"]
    assert sorted(said[2:]) == [*["a Announcement b"] * 2, *["b Announcement a"] * 2]
    assert not network.at("a").failures.suspects
    assert not network.at("b").failures.suspects
    assert state_of(network, "b") == "active"


def test_a_broker_that_lost_its_memory_is_found_out_by_a_ping() -> None:
    network = away()
    network.fail("b", keep=False)
    network.recover_without_memory("b")
    network.run(11.5)
    assert network.kinds(11.0, *HEARTBEATS) == [
        "b Announcement a", "a ActivateCopy b", "a Announcement b", "b CopyActivated a", "a ForwardStored b",
    ]  # fmt: skip
    network.publish("p", 1)
    network.run(12.0)
    come_home(network, "b")
    assert network.got["s"] == ["p/1"]


# --- reconciliation ---


def test_a_missing_copy_is_made() -> None:
    network = away()
    network.fail("b", keep=False)
    network.run(14.0)
    network.attach("t", "a")
    network.subscribe("t", "x = 0")
    network.run(20.0)
    assert "t" not in network.at("b").copies
    network.recover("b")
    network.run(20.5)
    assert "a PassiveCopy b" in network.kinds(20.0)
    assert network.at("b").copies["t"].subscriptions.keys() == {"x = 0"}


def test_a_stale_copy_is_deleted() -> None:
    """s was at c meanwhile, and is gone from a: what b stores, nobody will ask for."""
    network = away()
    network.fail("b", keep=False)
    network.run(14.0)
    network.attach("s", "c")
    network.run(20.0)
    assert state_of(network, "b") == "active"
    network.recover("b")
    network.run(20.5)
    assert "a DeleteCopy b" in network.kinds(20.0)
    assert state_of(network, "b") == "absent"


def test_a_copy_of_a_client_that_came_back_is_deactivated() -> None:
    network = away()
    network.fail("b", keep=False)
    network.run(14.0)
    network.attach("s", "a")
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    assert network.kinds(20.0, "NeighbourList", "Announcement") == ["a DeactivateCopy b"]
    assert state_of(network, "b") == "passive"


def test_a_copy_with_an_old_context_is_made_anew() -> None:
    network = away()
    network.fail("b", keep=False)
    network.run(14.0)
    network.attach("s", "a")
    network.subscribe("s", "y = 1")
    network.run(15.0)
    network.leave("s")
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    assert state_of(network, "b") == "active"
    assert network.at("b").copies["s"].subscriptions.keys() == {"x > 0", "y = 1"}


def test_a_copy_of_a_client_that_timed_out_is_deleted() -> None:
    network = away()
    network.fail("b", keep=False)
    network.run(75.0)
    network.recover("b")
    network.run(75.5)
    assert "a DeleteCopy b" in network.kinds(75.0)
    assert state_of(network, "b") == "absent"


def test_a_copy_that_was_complete_all_the_time_is_counted_on_again() -> None:
    """Nothing of what was meant for b is lost, and s did not come back: nothing has to be transferred."""
    network = away()
    network.publish("p", 1)
    network.run(11.5)
    network.fail("b")
    network.run(15.0)
    network.publish("p", 2)
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    assert [one for one in network.kinds(20.0) if "ActivateCopy" in one] == []
    come_home(network, "b")
    assert network.got["s"] == ["p/1", "p/2"]
    assert network.at("b").figures["hit"] == 1


def test_a_copy_of_an_earlier_absence_is_not() -> None:
    """s was back meanwhile, has what b stores, and is away again when b is back."""
    network = away()
    network.publish("p", 1)
    network.run(11.5)
    network.fail("b")
    network.run(15.0)
    network.attach("s", "a")
    network.run(16.0)
    network.leave("s")
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    assert "a ActivateCopy b" in network.kinds(20.0)
    network.publish("p", 2)
    network.run(21.0)
    come_home(network, "b")
    assert network.got["s"] == ["p/1", "p/2"]


def test_what_a_copy_stores_from_its_recovery_on_is_completed_at_the_move() -> None:
    """b was activated anew after p/1, which a sends ahead of the session."""
    network = away()
    network.fail("b", keep=False)
    network.publish("p", 1)
    network.run(15.0)
    network.attach("s", "a")
    network.run(16.0)
    network.leave("s")
    network.publish("p", 2)
    network.run(20.0)
    network.recover("b")
    network.run(20.5)
    network.publish("p", 3)
    network.run(21.0)
    come_home(network, "b")
    assert network.got["s"] == ["p/1", "p/2", "p/3"]
    assert [len(one.bursts) for _, _, _, one in network.said if isinstance(one, StoredBefore)] == [1]


def test_a_holder_that_is_back_is_reconciled_too() -> None:
    """a was down: b and c tell what they hold for it, and store on."""
    network = away()
    network.run(11.5)
    network.fail("a")
    network.run(15.0)
    assert [broker for broker in "bc" if "a" in network.at(broker).failures.suspects] == ["b", "c"]
    network.publish("p", 1)
    network.run(20.0)
    network.recover("a")
    network.run(20.5)
    assert [broker for broker in "bc" if network.at(broker).failures.suspects] == []
    assert state_of(network, "b") == state_of(network, "c") == "active"
    come_home(network, "c")
    assert network.got["s"] == ["p/1"]


# --- copies of a failed broker delete themselves ---


def expired() -> FailingNetwork:
    """a is down for so long that b and c gave up what they stored for its client, which is at b now.

    When a is back, the first that it finds is that b asks for the session.
    """
    network = away()
    network.publish("p", 1)
    network.run(11.5)
    network.fail("a")
    network.run(15.0)
    network.publish("p", 2)
    network.run(75.0)
    assert state_of(network, "b") == state_of(network, "c") == "absent"
    assert network.at("b").figures["expired"] == 1
    assert not any(queue for _, queue in network.at("b").stored())
    network.attach("s", "b")
    network.run(76.0)
    network.recover("a")
    return network


def test_copies_from_a_failed_broker_delete_themselves_and_nothing_is_lost() -> None:
    network = expired()
    network.run(77.0)
    about_s = [one for one in network.kinds(76.0) if one.split()[1] in COUNTING]
    assert about_s == ["a StoredBefore b", "b ContextMissing a", "a ActivateCopy b"]
    come_home(network, "b")
    assert network.got["s"] == ["p/1", "p/2"]


def test_a_client_that_leaves_before_the_missing_context_came_loses_nothing() -> None:
    network = expired()
    while not network.at("b").failures.awaited:
        network.run(network.now + LINK_S)
    network.leave("s")
    come_home(network, "d")
    assert network.got["s"] == ["p/1", "p/2"]


def test_a_copy_of_a_client_on_its_way_is_kept() -> None:
    """a has let go of what it stored for s, because b has it; then a fails before the session is there.

    b stores for t, too, and gives that up.
    """
    network = away()
    network.attach("t", "a")
    network.subscribe("t", "x = 1")
    network.run(10.7)
    network.leave("t")
    network.publish("p", 1)
    network.run(11.5)
    network.fail("a")
    copy = network.at("b").copies["s"]
    assert copy.store is not None
    network.say("a", "b", StoredBefore("s", 0, (), copy.store.activation))
    network.run(100.0)
    assert "t" not in network.at("b").copies
    assert network.at("b").copies["s"] is copy
    # Nor is it listed as one that a could have deleted.
    network.say("a", "b", Ping(given_up=True))
    assert [one.copies for _, _, to, one in network.said if isinstance(one, Announcement)] == [{}]


# --- without a journal ---


def test_what_a_neighbour_without_memory_stored_the_holder_has_as_well() -> None:
    """s comes to b before any heartbeat has told a that b has lost everything."""
    network = away()
    network.publish("p", 1)
    network.run(10.9)
    network.fail("b", keep=False)
    network.recover_without_memory("b")
    come_home(network, "b")
    assert "b ContextMissing a" in network.kinds(10.9)
    assert network.got["s"] == ["p/1"]


def test_what_a_holder_without_memory_alone_held_is_lost() -> None:
    """Its sessions are gone, and with them what was stored: s is a new client wherever it comes."""
    network = away(protocol=Uncounted)
    network.publish("p", 1)
    network.run(11.5)
    network.fail("a", keep=False)
    network.recover_without_memory("a")
    network.attach("s", "b")
    network.run(12.0)
    session = network.brokers["b"].sessions["s"]
    assert (session.subscriptions, session.last_broker) == ({}, "")
    # Its requests are numbered on from those that only a knew of: it would have to start afresh, too.
    network.subscribe("s", "x > 1")
    assert network.clients["s"].unaccepted == 1
    network.run()
    assert network.got["s"] == []
    # What the neighbours stored for the lost session goes with their copies.
    assert not any(queue for broker in "bc" for _, queue in network.at(broker).stored())
    assert network.unfinished() == []


def test_a_copy_of_a_lost_session_is_not_taken_for_one_of_the_new() -> None:
    """The attach numbers of s begin anew at d, below those of what b stores for the lost session."""
    graph = graph_text(a="b", d="b")
    network = away(msgspec.structs.replace(WATCHED, neighbour_graph=graph, neighbours_directed=True))
    network.attach("s", "a")
    network.leave("s")
    network.publish("p", 1)
    network.run(10.6)
    network.fail("a", keep=False)
    network.recover_without_memory("a")
    network.clients["s"] = Client("s")
    network.attach("s", "d")
    network.subscribe("s", "x > 1")
    network.run(10.7)
    network.leave("s")
    network.publish("p", 2)
    network.run(10.9)
    assert network.at("b").copies["s"].subscriptions.keys() == {"x > 0"}
    come_home(network, "b")
    assert network.got["s"] == ["p/2"]


def test_a_network_with_suspects_can_be_frozen() -> None:
    """Thawed, it goes on as it would have."""
    frozen, plain = away(), away()
    for network in (frozen, plain):
        network.publish("p", 1)
        network.run(11.5)
        network.fail("b")
        network.run(15.0)
        if network is frozen:
            network.brokers = {name: thaw(freeze(one)) for name, one in network.brokers.items()}
        network.recover("b")
        network.run(15.5)
        come_home(network, "b")
    assert frozen.said == plain.said
    assert frozen.got["s"] == ["p/1"]


def test_a_session_that_is_over_takes_its_copies_along() -> None:
    """Whether its broker is watched or not, and even where it had been given up."""
    network = away()
    network.fail("b", keep=False)
    network.run(14.0)
    network.end_session("s", "a")
    network.run(15.0)
    assert state_of(network, "c") == "absent"
    network.recover("b")
    network.run()
    assert [state_of(network, broker) for broker in "abc"] == ["absent"] * 3
    assert all(not network.at(broker).stores for broker in "abc")
    assert not network.brokers["a"].sessions
    assert network.unfinished() == []


# --- settings ---


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"heartbeat_period_s": 0.0}, "heartbeat_period_s 0.0: valid is a time above 0"),
        ({"heartbeat_period_s": float("nan")}, "heartbeat_period_s nan"),
        ({"heartbeats_missed_max": 0}, "heartbeats_missed_max 0: valid is a number from 1 on"),
        ({"context_timeout_s": None}, "without context_timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, float | None], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Proactive.check(msgspec.structs.replace(WATCHED, **changes))
    Proactive.check(WATCHED)


# --- whole networks, with a journal and links that survive ---


def check_rest(run: Run) -> Counter[str]:
    """Nothing is violated, and nobody waits for anything; what happened in all brokers."""
    assert [str(one) for one in run.result.violations] == []
    total: Counter[str] = Counter()
    for broker in run.network.brokers.values():
        protocol = broker.protocol
        assert isinstance(protocol, Proactive)
        assert_nothing_left(protocol)
        assert all(copy.store is None for copy in protocol.copies.values())
        total += protocol.figures
    return total


def watched_story(protocol: str, seed: int, faults: tuple[str, ...]) -> Story:
    """The fuzzer's story with heartbeats, which it draws only for every second one."""
    return with_heartbeats(draw_story(protocol, seed, faults), random.Random(f"heartbeats/{seed}"))


@pytest.mark.parametrize("faults", [(), ("crash", "partition")])
def test_nothing_is_lost_or_repeated_whoever_is_suspected(faults: tuple[str, ...]) -> None:
    with registered(Uncounted) as name:
        total = sum((check_rest(watched_story(name, seed, faults).run()) for seed in range(45)), Counter())
    assert min(total[one] for one in ("suspected", "recovered", "expired", "missing", "hit", "miss")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("faults", [(), ("crash",), ("partition",), ("crash", "partition", "loss")])
def test_nothing_is_lost_or_repeated_over_many_seeds(faults: tuple[str, ...]) -> None:
    for seed in range(300):
        check_rest(watched_story("proactive", seed, faults).run())


# --- every rule is needed ---


class CountsOnOldCopies(Failures):
    """A copy that was active when its broker was given up serves the client's next absence as well."""

    def is_the_same(self, stay: Stay, known: Remote, held: HeldCopy) -> bool:
        return stay.is_active and known.activation == held.activation


class CountsOnCopiesWithHoles(Failures):
    """A copy counts as complete though its holder stopped forwarding to it."""

    def suspect(self, broker: str) -> None:
        for stay in self.protocol.current.values():
            remote = stay.copies.get(broker)
            if remote is not None:
                stay.store.readers.pop(remote.activation, None)
                self.protocol.activations.pop(remote.activation, None)
                remote.complete = True
        super().suspect(broker)


class BelievesInOldContexts(Failures):
    """What the client subscribed to meanwhile is not compared."""

    def reconcile(self, stay: Stay, broker: str, held: HeldCopy | None) -> None:
        if held is not None:
            held = msgspec.structs.replace(held, subscriptions=uncovered(stay.session.subscriptions))
        super().reconcile(stay, broker, held)


class LetsGoTooEarly(Failures):
    """The holder does not wait until the copy that it counts on has said that it is there."""

    def entrust(self, stay: Stay, destination: str, number: int) -> int:
        activation = super().entrust(stay, destination, number)
        self.on_copy_taken(destination, CopyTaken(stay.session.client, activation))
        return activation


class GivesUpData(Failures):
    """With a broker that is suspected, clients that are there are given up."""

    def suspect(self, broker: str) -> None:
        super().suspect(broker)
        for store in self.protocol.stores.values():
            for activation, reader in list(store.readers.items()):
                if reader.broker == broker:
                    del store.readers[activation], self.protocol.activations[activation]


WATCHED_LINES = """
brokers a-b
protocol proactive
heartbeat_period_s 1
heartbeats_missed_max 1
context_timeout_s 20
neighbour_graph {"brokers": {"a": {"b": {"probability": 1}}}}
at 0 s attach a
at 0 p attach a
at 1 s subscribe x > 0
"""
"""Clients go from a to b, which is suspected when it has not answered for one second."""

BREAKAGES: dict[type[Failures], tuple[str, str]] = {
    # b stores p/1, which s gets from a while b is down. s is away again when b is back.
    CountsOnOldCopies: (
        "duplicate",
        """
        at 2 s leave
        at 2.5 p publish {"x": 1}
        at 3 b crash
        at 8 s attach a
        at 8.5 s leave
        at 9 b restart
        at 12 s attach b
        """,
    ),
    # The activation is on its way to b when the link fails; p/1 comes after a has given b up.
    CountsOnCopiesWithHoles: (
        "lost",
        """
        at 2 s leave
        at 2.005 a cut b
        at 6 p publish {"x": 1}
        at 9 a heal b
        at 12 s attach b
        """,
    ),
    # s subscribes to more while b is down.
    BelievesInOldContexts: (
        "lost",
        """
        at 2 s leave
        at 3 b crash
        at 7 s attach a
        at 8 s subscribe y = 1
        at 9 b restart
        at 11 s leave
        at 13 p publish {"y": 1}
        at 14 s attach b
        """,
    ),
    # The link fails just when the session goes to b, for longer than b stores for clients of a.
    LetsGoTooEarly: (
        "lost",
        """
        at 2 s leave
        at 3 p publish {"x": 1}
        at 4 s attach b
        at 4.035 a cut b
        at 40 a heal b
        """,
    ),
    # The link fails just when s has come to b, before a had noticed its leaving; a watches b because of t.
    GivesUpData: (
        "in flight at the end",
        """
        notice 1
        at 0 t attach a
        at 1 t subscribe x = 0
        at 1.5 t leave
        at 3 s attach b
        at 3.035 a cut b
        at 5 p publish {"x": 1}
        at 9 a heal b
        """,
    ),
}
"""The kind of violation, and what happens beside `WATCHED_LINES`."""


def with_failures(failures: type[Failures]) -> type[Proactive]:
    class Broken(Uncounted):
        name = f"proactive_{failures.__name__}"

        def __init__(self, host: Host, settings: Settings) -> None:
            super().__init__(host, settings)
            self.failures = failures(self)

    return Broken


@pytest.mark.parametrize("broken", BREAKAGES)
def test_without_one_rule_a_short_story_breaks_the_promise(broken: type[Failures]) -> None:
    kind, text = BREAKAGES[broken]
    story = parse_story(WATCHED_LINES + text)
    check_rest(story.run())
    with registered(with_failures(broken)) as name:
        violations = violations_of(replace(story, settings=replace(story.settings, protocol=name)))
    assert kind in kinds_of(violations), violations


@pytest.mark.slow
@pytest.mark.parametrize("broken", [CountsOnCopiesWithHoles, BelievesInOldContexts, GivesUpData])
def test_the_fuzzer_finds_it_too(broken: type[Failures]) -> None:
    with registered(with_failures(broken)) as name:
        stories = (watched_story(name, seed, ("crash", "partition")) for seed in range(300))
        assert any(violations_of(story) for story in stories)
