"""Histories of brokers, and sessions that wait for peers that were never met."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from tests.broker.world import World

from roamcast.broker.history import STARTS_TOLD, History, Seen, ToldHistory
from roamcast.broker.inputs import HistoryAccepted, LinkFrames, LinkRefused, LinkUp, Tick
from roamcast.broker.links.frames import position
from roamcast.broker.settings import MachineSettings

# --- the rule ---


def told_by(*lives: int) -> tuple[History, ToldHistory]:
    """A broker a that was started so many times, and journalled so many turns each time."""
    history = History("a")
    for start, turns in enumerate(lives, 1):
        history.begin(start)
        history.position += turns
    return history, history.told()


def test_a_broker_that_goes_on_is_linked() -> None:
    a, told = told_by(10, 5)
    b = History("b")
    assert b.doubt("a", told, is_linked=False) == ""
    b.link("a", told)
    b.progress("a", 17)
    a.position = 17
    assert b.doubt("a", a.told(), is_linked=False) == ""
    a.begin(3)
    assert b.doubt("a", a.told(), is_linked=False) == ""
    assert a.epoch == 3


@pytest.mark.parametrize(
    ("lives", "why"),
    [
        ((10, 4), "has an older history"),  # Its start ended too soon.
        ((10, 4, 100), "has an older history"),  # It has gone on from there, and further.
        ((10,), "has an older history"),
        ((10, 5, 100), ""),
    ],
)
def test_an_old_backup_does_not_catch_up(lives: tuple[int, ...], why: str) -> None:
    b = History("b")
    b.link("a", told_by(10, 5)[1])
    doubt = b.doubt("a", told_by(*lives)[1], is_linked=False)
    assert (why in doubt) if why else not doubt
    assert "\n" not in doubt


def test_each_case_says_what_to_do() -> None:
    b = History("b")
    b.link("a", told_by(10, 5)[1])
    other = ToldHistory(99, 1, (), 0)
    assert "started with an empty folder" in b.doubt("a", other, is_linked=False)
    assert "'roamcast broker accept-history a' at b" in b.doubt("a", other, is_linked=False)
    assert "runs twice" in b.doubt("a", told_by(10, 5)[1], is_linked=True)
    assert "stop one of the two" in b.doubt("a", told_by(10, 5)[1], is_linked=True)
    # Who does not say has none: that is not the history that was known.
    assert "empty folder" in b.doubt("a", ToldHistory(), is_linked=False)


def test_a_copy_is_refused_once_the_other_one_was_linked() -> None:
    b, (original, told) = History("b"), told_by(10, 5)
    b.link("a", told)
    copy = History("a")
    copy.first, copy.epoch, copy.starts, copy.position = 1, 2, list(original.starts), 15
    copy.begin(77)
    b.link("a", copy.told())
    for _ in range(3):
        assert "another copy of it" in b.doubt("a", original.told(), is_linked=False)
        original.begin(78)
        original.position += 1000


def test_an_operator_accepts_one_history_and_no_other() -> None:
    b = History("b")
    b.link("a", told_by(10, 5)[1])
    backup = told_by(10, 4, 1)[1]
    b.accept("a", Seen.of(backup))
    assert b.doubt("a", backup, is_linked=False) == ""
    assert b.doubt("a", told_by(10, 5)[1], is_linked=False) != ""
    b.forget(["a"])
    assert b.doubt("a", ToldHistory(5, 1, (), 0), is_linked=False) == ""


def test_a_peer_that_missed_many_starts_goes_by_the_position() -> None:
    b, (a, told) = History("b"), told_by(10)
    b.link("a", told)
    for start in range(2, STARTS_TOLD + 5):
        a.begin(start)
        a.position += 1
    assert len(a.told().starts) == STARTS_TOLD
    assert b.doubt("a", a.told(), is_linked=False) == ""
    b.progress("a", 1000)
    assert b.doubt("a", a.told(), is_linked=False) != ""


# --- machines ---


class Lined(World):
    """b0, b1 and b2 in a line. Links are made by the test; all but b0 have their peers configured."""

    peers: ClassVar[dict[str, tuple[str, ...]]] = {"b0": (), "b1": ("b0", "b2"), "b2": ("b1",)}

    def __init__(self) -> None:
        super().__init__(1, 3, [])

    def settings(self, id: str) -> MachineSettings:
        return MachineSettings(id, peers=self.peers[id], meet_timeout_s=50.0)

    def arrive(self, name: str, broker: str) -> bool:
        """Attach, and whether the client is served once nothing moves any more."""
        self.attach(name, broker)
        self.settle()
        return self.clients[name].is_welcome

    def link(self, one: str, other: str) -> None:
        self.connect_link(one, other)
        self.links.append((one, other))
        self.settle()


def test_a_client_that_moves_before_the_first_link_waits_for_its_session() -> None:
    world = Lined()
    assert world.arrive("car", "b0")
    world.subscribe("car", "t", 2)
    world.settle()
    world.link("b1", "b2")
    # b2 has met all its peers; b1 has not, and may not answer for b0.
    assert not world.arrive("car", "b2")
    world.bring_in("sensor", "b0")
    world.tell("sensor", "t", 2)
    world.link("b0", "b1")
    assert world.clients["car"].is_welcome
    assert world.clients["car"].presents == [False, True]
    assert len(world.clients["car"].received) == 1


def test_a_first_peer_that_never_comes_is_waited_for_until_an_operator_decides() -> None:
    world = Lined()
    world.link("b1", "b2")
    assert not world.arrive("car", "b2")
    world.tick(1000.0)
    world.settle()
    assert world.clients["car"].presents == []
    world.order("b1", HistoryAccepted("b1"))
    assert world.arrive("car", "b2")
    assert world.clients["car"].presents == [False]


class Hasty(Lined):
    def settings(self, id: str) -> MachineSettings:
        return msgspec.structs.replace(super().settings(id), serves_unmet=True)


def test_a_peer_that_never_comes_need_not_be_waited_for_for_ever() -> None:
    world = Hasty()
    world.link("b1", "b2")
    assert not world.arrive("car", "b2")
    site = world.sites["b1"]
    deadline = site.deadline()
    assert deadline is not None
    world.now = max(world.now, deadline)
    world.order("b1", Tick())
    assert world.clients["car"].presents == [False]
    # Once it comes after all, both are one network.
    world.link("b0", "b1")
    assert world.arrive("car", "b0")
    assert world.clients["car"].presents == [False, True]


def test_who_has_met_nobody_waits_until_an_operator_decides() -> None:
    world = Lined()
    assert "has met none of its peers" in world.sites["b2"].history.refusal
    assert world.sites["b2"].deadline() is None
    assert not world.arrive("car", "b2")
    world.order("b2", HistoryAccepted("b2"))
    assert world.sites["b2"].history.refusal == ""
    assert world.clients["car"].presents == [False]


def test_a_broker_that_is_refused_disconnects_its_clients_until_it_is_accepted() -> None:
    world = Lined()
    world.link("b1", "b2")
    world.link("b0", "b1")
    assert world.arrive("car", "b1")
    connection = world.clients["car"].connection
    world.cut_link("b1", "b2")
    site = world.sites["b1"]
    world.now += 0.001
    effects = site.step(world.now, [LinkRefused("b2", "it is older", is_fence=True)])
    assert effects.durable == [LinkRefused("b2", "it is older", is_fence=True)]
    assert effects.closes == [connection]
    assert effects.writes[connection][-1][2] == 0x89
    assert [peer for peer, _ in effects.link_closes] == ["b0"]
    assert site.refusal("b0", world.sites["b0"].offer("b1")).startswith("b1 makes no link: b2 refuses")
    assert site.refusal("b2", world.sites["b2"].offer("b1")) == ""
    offer = world.sites["b2"].offer("b1")
    site.step(world.now, [LinkUp("b2", offer, 0)])
    assert site.history.refusal == ""


def test_a_position_that_is_noted_does_not_count() -> None:
    world = Lined()
    world.link("b1", "b2")
    site, before = world.sites["b1"], world.sites["b1"].history.position
    frames = [LinkFrames("b2", position(number)) for number in (100, 50, 101)]
    for frame in frames:
        world.step("b1", [frame])
    assert site.history.known["b2"].position == 101
    assert site.history.position == before
    # It is there again after a crash.
    world.crash("b1")
    assert world.sites["b1"].history.known["b2"].position == 101
    assert msgspec.msgpack.encode(world.sites["b1"].offer("b2"))
