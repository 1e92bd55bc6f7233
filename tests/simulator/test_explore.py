"""The exhaustive search: the protocols that carry the product hold in every order, and mistakes are found."""

import pytest

from roamcast.cli import build_app, run
from roamcast.cli.sim import EXIT_VIOLATIONS
from roamcast.mobility.multi_hop_handoff import MultiHopHandoff
from roamcast.mobility.roam import Roam
from roamcast.simulator.explore import Explorer, Outcome, World
from roamcast.simulator.small_worlds import PROTOCOLS, script, small_worlds


def named(protocol: str, name: str) -> World:
    return next(world for world in small_worlds(protocol) if world.name == name)


def searched(protocol: str, name: str) -> Outcome:
    return Explorer(named(protocol, name)).search()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_small_world_holds_in_every_order(protocol: str) -> None:
    outcome = searched(protocol, "an expected move")
    assert (outcome.violation, outcome.is_complete) == ("", True)
    assert outcome.states > 300
    assert outcome.ends >= 1
    assert outcome.depth >= 15


LARGE = [(protocol, world.name) for protocol in PROTOCOLS for world in small_worlds(protocol)[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "name"), LARGE)
def test_every_world_holds_in_every_order(protocol: str, name: str) -> None:
    outcome = searched(protocol, name)
    assert not outcome.violation, outcome.schedule
    assert outcome.is_complete


def test_what_is_searched_does_not_depend_on_chance() -> None:
    first, again = (searched("multi_hop_handoff", "an unexpected move") for _ in range(2))
    assert (first.states, first.steps, first.depth) == (again.states, again.steps, again.depth)


def test_a_search_can_be_cut_short() -> None:
    outcome = Explorer(named("roam", "an expected move")).search(states_max=50)
    assert (outcome.states, outcome.is_complete) == (50, False)


def test_scripts() -> None:
    assert script("- @c -b !") == (("leave", ""), ("attach", "c"), ("leave", "b"), ("publish", ""))


# --- planted mistakes ---


def test_a_barrier_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiHopHandoff, "on_deliver_tq", lambda self, sender, message: None)
    outcome = searched("multi_hop_handoff", "an expected move")
    assert outcome.violation
    assert outcome.schedule


def test_a_copy_that_is_not_fed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roam, "on_feed_copy", lambda self, sender, message: None)
    assert searched("roam", "two publishes").violation


def test_a_session_that_is_sent_and_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old broker goes on as if it still had the queue."""
    monkeypatch.setattr(Roam, "on_copy_served", lambda self, sender, message: None)
    assert searched("roam", "an expected move").violation


def test_the_rules_as_published_are_found_wanting(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fuzz", "--exhaustive", "--protocol", "multi_hop_handoff:unacknowledged"]
    assert run(build_app(), arguments) == EXIT_VIOLATIONS
    shown = capsys.readouterr().out
    assert "multi_hop_handoff:unacknowledged, an expected move: s has received 0 of 1 notifications" in shown
    assert "no two brokers hold the session of one client" in shown


def test_nothing_is_drawn_where_everything_is_visited(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(build_app(), ["fuzz", "--exhaustive", "--seeds", "0:5"]) == 2
    assert "--seeds and --exhaustive exclude each other" in capsys.readouterr().err
