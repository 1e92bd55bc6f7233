from __future__ import annotations

import random

import msgspec
import pytest
from tests.mobility.election_network import Edge, ElectionNetwork

from roamcast.errors import InputError
from roamcast.mobility.moving.election import Candidate, Election, ElectionEffect, ElectionSettings, Heartbeat

# Figure 2.4 of Amozarrain: five nodes, n1 leads.
FIGURE = [("n1", "n2"), ("n1", "n3"), ("n2", "n3"), ("n2", "n4"), ("n3", "n5"), ("n4", "n5")]
PLAIN = ElectionSettings(patience_s=0.0)


def drawn(seed: int, size: int = 12, more: int = 10) -> list[Edge]:
    """A connected graph with some cycles."""
    rng = random.Random(seed)
    names = [f"n{number:02}" for number in range(size)]
    edges = {(rng.choice(names[:at]), names[at]) for at in range(1, size)}
    while len(edges) < size - 1 + more:
        one, other = sorted(rng.sample(names, 2))
        edges.add((one, other))
    return sorted(edges)


def shaken(seed: int, make: type[Election] = Election, backbone: bool = False) -> list[str]:
    """What is wrong after brokers have crashed and come back, and links come and gone."""
    rng = random.Random(seed)
    edges = drawn(seed, rng.choice((4, 6, 12)), rng.choice((0, 0, 1, 3)))
    settings = ElectionSettings(
        patience_s=rng.choice((0.0, 0.25)),
        balanced=rng.random() < 0.3 and not backbone,
        backbone=backbone,
    )
    network = ElectionNetwork(edges, settings, seed, make)
    for number in range(rng.randint(1, 6)):
        network.run(rng.choice((0.01, 0.3, 5.0)))
        down = rng.sample(edges, min(len(edges), rng.choice((1, 2))))
        network.cut(*down)
        crashed = rng.choice(sorted(network.nodes)) if rng.random() < 0.4 else None
        if crashed is not None:
            network.stop(crashed)
        network.run(rng.choice((0.01, 0.3, 2.0, 8.0)))
        if crashed is not None:
            network.start(crashed, incarnation=number + 1)
        if rng.random() < 0.8:
            network.join(*down)
        else:
            edges = [edge for edge in edges if edge not in down]
        if not edges:
            break
    network.run(30.0)
    return network.wrongs()


def test_the_first_heartbeat_of_a_round_sets_the_parent_and_all_parents_are_a_tree() -> None:
    network = ElectionNetwork(FIGURE, PLAIN)
    network.run(5.0)
    assert network.wrongs() == []
    assert {name: node.parent for name, node in network.nodes.items()}["n1"] is None
    assert network.nodes["n2"].parent in ("n1", "n3")


def test_each_part_elects_its_own_leader_and_after_the_merge_the_lower_one_remains() -> None:
    network = ElectionNetwork(FIGURE)
    network.run(5.0)
    network.cut(("n2", "n4"), ("n3", "n5"))
    network.run(10.0)
    assert network.leaders() == {"n1": "n1", "n2": "n1", "n3": "n1", "n4": "n4", "n5": "n4"}
    network.join(("n3", "n5"))
    network.run(5.0)
    assert set(network.leaders().values()) == {"n1"}
    assert network.wrongs() == []


def test_who_comes_back_without_memory_is_not_taken_for_its_own_past() -> None:
    network = ElectionNetwork(FIGURE)
    network.run(20.0)
    network.stop("n1")
    network.run(10.0)
    assert set(network.leaders().values()) == {"n2"}
    network.start("n1", incarnation=1)
    network.run(5.0)
    assert set(network.leaders().values()) == {"n1"}
    assert network.wrongs() == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_one_tree_remains_and_there_never_was_a_cycle(seed: int) -> None:
    assert shaken(seed) == []


@pytest.mark.parametrize("seed", range(30))
def test_with_a_backbone_the_slowest_leads_and_there_never_was_a_cycle(seed: int) -> None:
    assert shaken(seed, backbone=True) == []


class ComparesItsOwnSpeed(Election):
    """A leader is judged by the speed of whoever passes its round on."""

    def on_heartbeat(self, now: float, sender: str, heartbeat: Heartbeat) -> list[ElectionEffect]:
        changed = msgspec.structs.replace(heartbeat, leader_speed=heartbeat.speed)
        return super().on_heartbeat(now, sender, changed)


def test_a_backbone_needs_the_speed_of_the_leader() -> None:
    assert any(shaken(seed, ComparesItsOwnSpeed, backbone=True) for seed in range(50))


def test_whose_parent_is_gone_takes_a_slow_one() -> None:
    """e hears of the round from b, c and d, which are equally far from the leader a; c is the slowest."""
    election = Election("e", ElectionSettings(backbone=True), speed=2.0)
    election.start(0.0)
    first = Heartbeat("a", (0, 1), 1, "a", 0, 1.5, 0.0)
    election.on_heartbeat(0.1, "b", first)
    assert election.parent == "b"
    for at, sender, speed in ((1.1, "d", 1.0), (1.15, "c", 0.5)):
        election.on_heartbeat(at, sender, Heartbeat("a", (0, 2), 1, "a", 0, speed, 0.0))
    assert election.parent == "b", "it waits for its parent"
    election.on_timer(1.4)
    assert election.parent == "c"


def test_patience_keeps_the_tree_as_it_is() -> None:
    """Heartbeats race at random; by the plain rule every race is a migration."""
    counts = {}
    for patience_s in (0.0, 0.25):
        network = ElectionNetwork(drawn(1, 20, 20), ElectionSettings(patience_s=patience_s))
        network.run(100.0)
        counts[patience_s] = network.migrations
    assert counts[0.25] <= 20 < 200 < counts[0.0]


def test_balanced_trees_spread_children() -> None:
    widest = {}
    for balanced in (False, True):
        # Everyone reaches the same three, which reach the leader.
        edges = [("a", hub) for hub in ("b", "c", "d")]
        edges += [(hub, f"n{number:02}") for hub in ("b", "c", "d") for number in range(9)]
        most = []
        for seed in range(5):
            network = ElectionNetwork(edges, ElectionSettings(balanced=balanced), seed)
            network.run(40.0)
            assert network.wrongs() == []
            most.append(max(len(network.nodes[hub].children) for hub in ("b", "c", "d")))
        widest[balanced] = sum(most) / len(most)
    assert widest[True] <= 4.5 < widest[False]


def test_a_lost_link_is_known_at_once_if_the_driver_says_so() -> None:
    node = Election("b")
    node.start(0.0)
    other = Election("a")
    (first,) = other.start(0.0)
    assert node.on_heartbeat(0.1, "a", first.heartbeat)[0].new == "a"  # type: ignore[union-attr]
    (change,) = node.on_link_lost(0.2, "a")
    assert (change.old, change.new) == ("a", None)  # type: ignore[union-attr]
    assert node.leader == "a"


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InputError, match="less patience"):
        Election("a", ElectionSettings(period_s=1.0, patience_s=1.0))


# --- mistakes that these tests find ---


class RemembersNoRound(Election):
    """A late heartbeat of a leader that is gone is taken for news."""

    def _remember(self, leader: str, round: tuple[int, int]) -> None:
        if leader == self.me:
            super()._remember(leader, round)


class TakesAnyCandidate(Election):
    """The parent of a round may be one that has not brought it."""

    def _best(self) -> Candidate:
        if self.parent is not None and self.settings.patience_s:
            return Candidate(self.parent, self._candidates[0].hops, 0)
        return super()._best()


class NeverGivesUpChildren(Election):
    def _lose_child(self, child: str) -> None:
        pass


@pytest.mark.parametrize("broken", [RemembersNoRound, TakesAnyCandidate, NeverGivesUpChildren])
def test_breakages_are_caught(broken: type[Election]) -> None:
    assert any(shaken(seed, broken) for seed in range(50))
