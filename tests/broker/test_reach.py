"""Who reaches whom: trees that join, links that would close a cycle, brokers that are gone."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import networkx
import pytest
from tests.broker.reach_network import Network

from roamcast.broker.links.reach import Reach


def line(*brokers: str) -> Network:
    network = Network(list(brokers))
    for a, b in pairwise(brokers):
        network.shake_hands(a, b)
        network.deliver_all()
    return network


def test_two_brokers_join() -> None:
    network = line("a", "b")
    a, b = network.reaches["a"], network.reaches["b"]
    assert (a.peers, a.next_hops) == (["b"], {"b": "b"})
    assert (b.peers, b.next_hops) == (["a"], {"a": "a"})


def test_everyone_learns_of_a_tree_that_joins() -> None:
    network = Network(["a", "b", "c", "d", "e"])
    for pair in ("ab", "bc", "de", "ce"):
        assert network.shake_hands(*pair) == ""
        network.deliver_all()
    network.check_routes()
    assert network.reaches["a"].next_hops == dict.fromkeys("bcde", "b")
    assert network.reaches["d"].next_hops == dict.fromkeys("abce", "e")


def test_a_link_that_would_close_a_cycle_is_refused_with_the_way_that_exists() -> None:
    network = line("a", "b", "c")
    assert network.shake_hands("a", "c") == (
        "the link between a and c would close a cycle: a reaches c through b already"
    )
    network.deliver_all()
    assert not network.closed
    network.check_routes()


def test_a_link_that_is_down_changes_nothing() -> None:
    network = line("a", "b", "c")
    network.down.add(frozenset("ab"))
    network.shake_hands("a", "b")
    network.deliver_all()
    network.check_routes()
    assert network.reaches["a"].members == ["a", "b", "c"]


@pytest.mark.parametrize("seed", range(50))
def test_of_three_links_that_race_to_close_a_cycle_one_is_closed(seed: int) -> None:
    """None of the three ends can see it: each joins two brokers that reach nobody else yet."""
    network = Network(["a", "b", "c"], random.Random(seed))
    for pair in ("bc", "ca", "ab"):
        assert network.shake_hands(*pair) == ""
    network.deliver_all()
    network.check_routes()
    assert network.graph().number_of_edges() == 2
    assert len({frozenset(one[:2]) for one in network.closed}) == 1
    assert all("would close a cycle" in why for _, _, why in network.closed)


@pytest.mark.parametrize("seed", range(50))
def test_of_two_links_made_at_once_between_two_trees_one_is_closed(seed: int) -> None:
    network = Network(["a1", "a2", "a3", "b1", "b2", "b3"], random.Random(seed))
    for a, b in (("a1", "a2"), ("a2", "a3"), ("b1", "b2"), ("b2", "b3")):
        network.shake_hands(a, b)
        network.deliver_all()
    assert network.shake_hands("a1", "b3") == ""
    assert network.shake_hands("a3", "b1") == ""
    network.deliver_all()
    for pair in (("a1", "b3"), ("a3", "b1")):
        network.shake_hands(*pair)
    network.deliver_all()
    network.check_routes()
    assert network.graph().number_of_edges() == 5


def test_a_forgotten_broker_is_gone_for_everyone_and_those_behind_it_stay_known() -> None:
    network = line("a", "b", "c", "d", "e")
    network.dead.add("c")
    network.forget("a", "c")
    network.deliver_all()
    for broker in "ab":
        reach = network.reaches[broker]
        assert reach.members == ["a", "b", "d", "e"]
        assert reach.cut_off == ["d", "e"]
    assert "would close a cycle" in network.shake_hands("b", "d"), "d has not been told that c is gone"
    network.forget("e", "c")
    network.deliver_all()
    assert network.shake_hands("b", "d") == ""
    network.deliver_all()
    network.check_routes()
    assert [network.reaches[broker].cut_off for broker in "abde"] == [[]] * 4


def test_a_forgotten_coordinator_is_replaced_only_when_all_have_said_what_it_permitted() -> None:
    network = line("b", "a", "c", "d")
    network.reaches["1"], network.reaches["2"] = Reach("1"), Reach("2")
    network.shake_hands("d", "1")
    for way in (("d", "c"), ("c", "a"), ("a", "c"), ("c", "d")):
        network.deliver(way)
    assert network.reaches["d"].unfinished() == ["the link to 1 waits for the answer"]
    network.dead.add("a")
    network.forget("c", "a")
    network.shake_hands("c", "2")
    network.deliver(("c", "d"))
    network.deliver(("d", "c"))
    assert network.reaches["c"].unfinished() == ["the link to 2 waits for the permission of c"]
    network.forget("b", "a")
    network.deliver_all()
    network.check_routes()
    assert network.reaches["2"].next_hops == {"c": "c", "d": "c", "1": "c"}


def test_forgetting_who_does_not_answer_lets_others_join() -> None:
    network = line("b", "c")
    network.reaches["a"], network.reaches["a2"] = Reach("a"), Reach("a2")
    network.shake_hands("c", "a", only="c")
    network.deliver_all()
    network.dead.add("a")
    network.shake_hands("b", "a2")
    network.deliver_all()
    assert network.reaches["b"].unfinished() == ["the link to a2 waits for the permission of b"]
    network.forget("c", "a")
    network.deliver_all()
    assert network.reaches["c"].next_hops == {"a2": "b", "b": "b"}


def test_a_link_that_is_given_up_cuts_off_until_it_joins_again() -> None:
    network = line("a", "b", "c")
    network.perform("b", network.reaches["b"].drop("c", "moved"))
    network.deliver_all()
    assert network.reaches["a"].cut_off == ["c"]
    assert network.shake_hands("b", "c") == "begun anew"
    assert network.shake_hands("b", "c") == ""
    network.deliver_all()
    network.check_routes()


# --- at random ---


def run(seed: int, is_deadly: bool) -> tuple[Network, list[tuple[str, str]]]:
    """Random candidates for links, made at any time, cut, half made, and brokers restarted or dead."""
    rng = random.Random(seed)
    names = [f"b{index}" for index in range(rng.randrange(3, 9))]
    network = Network(names, rng)
    candidates = [pair for pair in combinations(names, 2) if rng.random() < 0.6] or [("b0", "b1")]
    for _ in range(rng.randrange(20, 150)):
        what = rng.random()
        pair = rng.choice(candidates)
        if what < 0.35:
            network.shake_hands(*pair, only=rng.choice(("", "", "", *pair)))
        elif what < 0.85:
            network.deliver_some(rng.randrange(1, 12))
        elif what < 0.9:
            network.down.add(frozenset(pair))
        elif what < 0.95:
            network.restart(rng.choice(names))
        elif is_deadly and what < 0.97 and len(network.dead) < len(names) - 2:
            network.dead.add(rng.choice(names))
        elif is_deadly and network.dead:
            at = rng.choice([name for name in names if name not in network.dead])
            network.forget(at, rng.choice(sorted(network.dead)))
    finish(network, candidates)
    return network, candidates


def finish(network: Network, candidates: list[tuple[str, str]]) -> None:
    """Everything that can come up does, and whoever is dead is forgotten everywhere."""
    network.down.clear()
    for name in network.reaches:
        for dead in sorted(network.dead):
            if name not in network.dead:
                network.forget(name, dead)
    for _ in range(6):
        network.deliver_all()
        for pair in candidates:
            network.shake_hands(*pair)
    network.deliver_all()


def trees(graph: networkx.Graph) -> list[list[str]]:
    return sorted(map(sorted, networkx.connected_components(graph)))


@pytest.mark.parametrize("is_deadly", [False, True])
@pytest.mark.parametrize("seed", range(200))
def test_there_is_never_a_cycle_and_in_the_end_all_that_can_join_have(seed: int, is_deadly: bool) -> None:
    network, candidates = run(seed, is_deadly)
    network.check_routes()
    possible = networkx.Graph(candidates)
    possible.add_nodes_from(network.reaches)
    possible.remove_nodes_from(network.dead)
    assert trees(network.graph()) == trees(possible)
