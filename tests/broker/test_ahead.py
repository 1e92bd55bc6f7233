"""A copy of a session serves a standard MQTT client before the session is there; an old one does no harm.

Links are held back here: what crosses none of them takes no round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from tests.broker.world import World

from roamcast.broker.core import CoreSettings
from roamcast.broker.inputs import ClientFrames, ConnectionLost, Tick
from roamcast.broker.session import Holding, Reading
from roamcast.broker.settings import MachineSettings
from roamcast.mobility import roam
from roamcast.mobility.base import Settings
from roamcast.mobility.roam import DropCopy, FeedCopy, StoreCopy
from roamcast.mqtt.codec import packets
from roamcast.mqtt.codec.user_properties import HAS
from roamcast.mqtt.codec.writing import write
from roamcast.mqtt.server.access import Identity
from roamcast.simulator.drawing import everyone_next

STAR = [(0, 1), (0, 2), (0, 3)]
HEAD = 4
"""Notifications that each copy may have, so that there is more than one to serve."""


@pytest.fixture(autouse=True)
def copies_have_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roam, "head_max", lambda copies: HEAD)


Way = tuple[str, str]


class CopyWorld(World):
    """Broker b0 in the middle of a star; clients are expected everywhere. `held` ways carry nothing."""

    def __init__(self) -> None:
        self.held: dict[Way, None] = {}
        super().__init__(1, 4, STAR)

    def settings(self, id: str) -> MachineSettings:
        graph = everyone_next([f"b{number}" for number in range(4)])
        core = CoreSettings(clock_error_s=None, protocol=Settings(neighbour_graph=graph))
        return MachineSettings(id, protocol="roam", broker=core)

    def moves(self) -> list[Callable[[], None]]:
        kept = {way: self.wires[way] for way in self.held}
        for way in kept:
            self.wires[way] = []
        found = super().moves()
        for way, waiting in kept.items():
            self.wires[way] = waiting
        return found

    def hold(self, *ways: Way) -> None:
        """Nothing crosses these ways from now on; without any, nothing crosses a link."""
        both = [way for link in self.links for way in (link, link[::-1])]
        self.held = dict.fromkeys(ways or both)

    def go_on(self) -> None:
        self.held = {}
        self.settle()

    def leave(self, name: str, with_goodbye: bool = True) -> None:
        """The broker hears of it at once."""
        client = self.clients[name]
        if with_goodbye:
            self._send(client, packets.Disconnect())
            self.settle()
        self.drop(client.connection, name, tell=True)

    def came(self, name: str) -> list[str]:
        return [payload for payload, _, _ in self.clients[name].received]

    def holder(self, name: str) -> str:
        return next(id for id in self.ids if name in self.sites[id].broker.sessions)

    def reading(self, name: str, broker: str) -> Reading | None:
        here = self.sites[broker].broker.clients.here.get(name)
        return here.reading if here is not None else None


def away(qos: int = 1, count: int = 3, **options: object) -> CopyWorld:
    """A subscriber was at b1 and has left; messages wait for it, and all other brokers have copies."""
    world = CopyWorld()
    world.attach("writer", "b0")
    world.attach("reader", "b1")
    world.clients["reader"].options.update(options)
    world.settle()
    world.subscribe("reader", "news", qos)
    world.settle()
    world.leave("reader")
    for _ in range(count):
        world.publish("writer", "news", 1)
    world.settle()
    return world


def known_at(world: CopyWorld) -> Iterable[str]:
    return (id for id in world.ids if "reader" in world.sites[id].endpoint.sessions)


def told(count: int, first: int = 1) -> list[str]:
    return [f"writer:{number}:news" for number in range(first, first + count)]


def test_a_copy_answers_and_delivers_before_anything_crosses_a_link() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    reader = world.clients["reader"]
    assert reader.presents == [False, True]
    assert reader.received == [(payload, 1, True) for payload in told(3)], "they may come again, and say so"
    assert world.reading("reader", "b2") is Reading.COPY
    assert world.holder("reader") == "b1"
    world.go_on()
    assert world.holder("reader") == "b2"
    assert world.reading("reader", "b2") is Reading.SESSION
    world.tell("writer", "news", 1)
    assert reader.received[3:] == [("writer:4:news", 1, False)]
    assert reader.connection, "the client was not disturbed"


def test_what_was_acknowledged_at_a_copy_does_not_come_again() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    world.leave("reader")
    world.go_on()
    for broker in ("b3", "b2", "b0"):
        world.bring_in("reader", broker)
    assert world.came("reader") == told(3)


def test_an_old_copy_repeats_and_loses_nothing() -> None:
    world = away()
    world.hold(("b0", "b3"))
    world.bring_in("reader", "b2")
    assert world.came("reader") == told(3)
    world.leave("reader")
    world.publish("writer", "news", 1)
    world.hold()
    world.settle()
    world.bring_in("reader", "b3")
    reader = world.clients["reader"]
    assert world.came("reader") == told(3) + told(3)
    assert all(is_again for _, _, is_again in reader.received[3:])
    world.go_on()
    assert not reader.connection, "the copy was old: the client has to connect again"
    world.bring_in("reader", "b3")
    assert world.came("reader") == told(3) + told(3) + told(1, first=4)


def test_two_copies_that_serve_one_after_the_other_lose_nothing() -> None:
    world = away()
    world.hold()
    for broker in ("b2", "b3"):
        world.bring_in("reader", broker)
    reader = world.clients["reader"]
    assert reader.presents == [False, True, True]
    assert world.came("reader") == told(3) + told(3)
    world.go_on()
    for _ in range(3):
        if not reader.connection:
            world.attach("reader", "b3")
        world.settle()
    world.tell("writer", "news", 1)
    assert world.came("reader")[-1] == "writer:4:news"
    assert world.holder("reader") == "b3"


@pytest.mark.parametrize("qos", [0, 2])
def test_what_must_not_come_twice_waits_for_the_session(qos: int) -> None:
    world = away(qos)
    writer = world.clients["writer"]
    world.tell("writer", "news", 2)
    world.hold()
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False]
    world.go_on()
    assert world.clients["reader"].presents == [False, True]
    assert world.came("reader") == writer.sent


def test_an_unfinished_publish_of_qos_2_waits_for_the_session() -> None:
    world = away(count=0)
    world.bring_in("reader", "b1")
    reader = world.clients["reader"]
    begun = write(packets.Publish("other", b"once", 2, packet_id=7), 5)
    world.step("b1", [ClientFrames(reader.connection, begun)])
    world.leave("reader", with_goodbye=False)
    world.settle()
    world.hold()
    world.bring_in("reader", "b2")
    assert reader.presents == [False, True]


def test_what_is_fed_while_a_client_reads_waits_for_the_session() -> None:
    world = away(count=1)
    world.bring_in("reader", "b1", "twice-is-wrong", 2)
    world.leave("reader")
    world.tell("writer", "news", 1)
    world.hold(("b2", "b0"))
    world.attach("reader", "b2")
    world.tell("writer", "twice-is-wrong", 2)
    fed = "writer:3:twice-is-wrong"
    assert [burst.bodies for burst in world.sites["b2"].broker.protocol.copies["reader"].aside] == [
        (fed.encode(),)
    ]
    assert fed not in world.came("reader")
    world.go_on()
    assert world.came("reader").count(fed) == 1


def test_a_client_that_left_before_its_session_came_is_kept_for_as_long_as_it_said_last() -> None:
    world = away()
    world.hold()
    world.clients["reader"].options["session_expiry"] = 5
    world.bring_in("reader", "b2")
    world.leave("reader")
    world.go_on()
    assert list(known_at(world)) == ["b2"]
    world.tick(6.0)
    world.settle()
    assert not list(known_at(world))


# --- a client that says in CONNECT what it has ---


def say(world: CopyWorld, last: str = "") -> None:
    """The reader names its last connection, and what it has."""
    tolds = [site.endpoint.sessions["reader"].told for site in world.sites.values()
             if "reader" in site.endpoint.sessions]  # fmt: skip
    text = f"{tolds[0]} {last}".strip() if tolds else ""
    world.clients["reader"].options["user_properties"] = ((HAS, text),)


def away_with_qos_2(count: int = 3) -> CopyWorld:
    world = CopyWorld()
    world.attach("writer", "b0")
    world.attach("reader", "b1")
    world.clients["reader"].options["user_properties"] = ((HAS, ""),)
    world.settle()
    world.bring_in("reader", "b1", "news", 2)
    world.leave("reader")
    for _ in range(count):
        world.publish("writer", "news", 2)
    world.settle()
    return world


def test_who_says_what_it_has_reads_qos_2_from_a_copy() -> None:
    world = away_with_qos_2()
    world.hold()
    say(world)
    world.bring_in("reader", "b2")
    assert world.came("reader") == told(3)
    assert world.clients["reader"].received[0][1:] == (2, False)
    world.go_on()
    world.tell("writer", "news", 2)
    assert world.came("reader") == told(4)
    assert world.clients["reader"].connection, "the client was not disturbed"


@pytest.mark.parametrize("text", ["", "nonsense", "1-1 session 3", "a b c d", "x session -1"])
def test_who_names_another_connection_waits_for_the_session(text: str) -> None:
    world = away_with_qos_2()
    world.clients["reader"].options["user_properties"] = ((HAS, text),)
    world.hold()
    world.bring_in("reader", "b2")
    assert world.came("reader") == []


def test_what_a_client_says_it_has_does_not_come_again() -> None:
    world = away_with_qos_2()
    world.hold()
    say(world)
    world.bring_in("reader", "b2")
    assert world.came("reader") == told(3)
    say(world, "session 2")
    world.hold(("b0", "b2"), ("b2", "b0"))  # Neither the request nor the acknowledgements get through.
    world.bring_in("reader", "b3")
    assert world.came("reader") == [*told(3), *told(1, first=3)]


def test_a_copy_is_fed_and_dropped_by_its_holder_alone() -> None:
    world = away()
    copies = world.sites["b0"].broker.protocol
    for message in (
        StoreCopy("other", "b1", 1, ("b0",), 0, "", 0, ()),
        FeedCopy("reader", "b1", 1, ("b0",), 0, ()),
        DropCopy("reader", "b1", 1, ("b0",)),
    ):
        assert copies.expects("b1", message)
        assert not copies.expects("b2", message)


def test_a_client_that_is_not_the_owner_gets_nothing() -> None:
    world = away()
    world.clients["reader"].identity = Identity("reader", "mallory", "b2/user:mallory")
    world.hold()
    world.bring_in("reader", "b2")
    assert world.came("reader") == []
    assert world.clients["reader"].presents == [False]


def test_nobody_is_served_while_the_link_to_the_holder_is_known_to_be_down() -> None:
    world = away()
    world.cut_link("b0", "b2")
    world.hold()
    world.attach("reader", "b2")
    for _ in range(100):
        world.run(1)
    assert world.came("reader") == []
    assert world.clients["reader"].presents == [False]


def test_a_clean_start_is_answered_when_no_copy_is_left() -> None:
    world = away()
    world.hold(("b0", "b3"))
    world.bring_in("reader", "b2", clean=True)
    reader = world.clients["reader"]
    assert reader.presents == [False], "b3 may serve the session that is to end"
    world.go_on()
    assert reader.presents == [False, False]
    assert all("reader" not in world.sites[id].broker.protocol.copies for id in world.ids)
    world.leave("reader")
    world.settle()
    world.hold()
    world.bring_in("reader", "b3")
    assert reader.presents == [False, False], "there is no copy of a session without subscriptions"


def test_a_clean_start_waits_for_a_copy_behind_a_link_that_is_down() -> None:
    world = away()
    world.cut_link("b0", "b3")
    world.attach("reader", "b2", clean=True)
    world.run(1_000)
    assert world.clients["reader"].presents == [False]
    world.go_on()
    assert world.clients["reader"].presents == [False, False]


def test_a_session_does_not_expire_under_a_client_that_a_copy_serves() -> None:
    world = away(session_expiry=100)
    world.bring_in("reader", "b1")
    world.leave("reader")
    world.settle()
    world.hold()
    world.now += 99.5
    world.bring_in("reader", "b2")
    world.now += 1.0
    world.step("b1", [Tick()])
    world.go_on()
    world.attach("reader", "b2")
    world.tell("writer", "news", 1)
    assert world.clients["reader"].presents[1:] == [True, True, True]
    assert world.came("reader") == told(4)


def expired() -> CopyWorld:
    world = away(session_expiry=100)
    world.bring_in("reader", "b1")
    world.leave("reader")
    world.settle()
    world.now += 101.0
    return world


def test_a_copy_does_not_serve_a_session_whose_time_is_over() -> None:
    world = expired()
    world.hold()
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False, True]


def test_a_session_whose_time_is_over_ends_with_all_its_copies() -> None:
    world = expired()
    world.order("b1", Tick())
    assert all("reader" not in world.sites[id].broker.protocol.copies for id in world.ids)
    assert not list(known_at(world))
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False, True, False]


def test_what_a_client_asks_for_meanwhile_waits_for_its_session() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    reader = world.clients["reader"]
    world.subscribe("reader", "more", 1)
    world.publish("reader", "other", 1)
    world.tell("reader", "other", 2)
    assert reader.acknowledged == set()
    assert reader.settled == {"news"}
    world.go_on()
    assert reader.acknowledged == set(reader.sent)
    assert reader.settled == {"news", "more"}


def test_a_goodbye_behind_what_waits_is_heard() -> None:
    world = away(will=packets.Will("news", b"it is gone", 1))
    watcher = "watcher"
    world.bring_in(watcher, "b2", "news", 1)
    world.hold()
    world.bring_in("reader", "b2")
    reader = world.clients["reader"]
    assert reader.presents == [False, True]
    world.publish("reader", "other", 1)
    world._send(reader, packets.Disconnect())
    connection = reader.connection
    world.settle()
    world.step("b2", [ConnectionLost(connection)])
    world.go_on()
    assert "it is gone" not in world.came(watcher)


def test_a_will_that_is_delayed_waits_for_the_session() -> None:
    world = away(will=packets.Will("news", b"it is gone", 1, delay=60))
    world.hold()
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False]


def test_a_broker_that_crashes_behind_its_connack_goes_on_from_its_journal() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    assert world.came("reader") == told(3)
    world.crash("b2")
    world.go_on()
    assert world.holder("reader") == "b2"
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False, True, True]
    assert world.came("reader") == told(3)


def test_a_client_does_not_wait_for_ever_for_a_session_that_does_not_come() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    world.tick(11.0)
    world.settle()
    reader = world.clients["reader"]
    assert not reader.connection
    world.bring_in("reader", "b2")
    assert reader.presents == [False, True], "a copy serves a client once, and then its session has to come"
    world.go_on()
    assert reader.presents == [False, True, True]
    assert world.sites["b2"].broker.clients.here["reader"].holding is Holding.HELD
    assert world.came("reader") == told(3)


def test_nothing_is_left_of_a_client_that_was_refused() -> None:
    world = away()
    world.hold()
    world.bring_in("reader", "b2")
    world.bring_in("reader", "b3")
    world.go_on()
    for _ in range(3):
        if not world.clients["reader"].connection:
            world.attach("reader", "b3")
        world.settle()
    assert list(known_at(world)) == ["b3"]


def test_a_capsule_that_cannot_be_read_serves_nobody() -> None:
    world = away()
    world.sites["b2"].broker.protocol.copies["reader"].capsule = b"nonsense"
    world.hold()
    world.bring_in("reader", "b2")
    assert world.clients["reader"].presents == [False]
    world.go_on()
    assert world.clients["reader"].presents == [False, True]
    assert world.came("reader") == told(3)


def test_qos_0_keeps_its_order_retained_or_not() -> None:
    world = away()
    world.bring_in("watcher", "b2", "other", 0)
    world.hold()
    world.bring_in("reader", "b2")
    reader = world.clients["reader"]
    for number, retain in enumerate((True, False, True)):
        world._send(reader, packets.Publish("other", b"%d" % number, 0, retain))
    world.settle()
    assert world.came("watcher") == ["0", "1", "2"], "they need no session"
