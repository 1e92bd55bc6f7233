"""Replicated sites in the simulator: nothing that was promised is lost, and breakages are noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roamcast.broker.contract import AnyMachine
from roamcast.broker.site_copy import SiteCopy
from roamcast.replication.messages import Acknowledged, Campaign, Change
from roamcast.replication.replica import Follower, Replica
from roamcast.replication.terms import Terms
from roamcast.simulator.fuzz import draw_story
from roamcast.simulator.replicas import Etcd, Node, Stream
from roamcast.simulator.replicated_site import Site
from roamcast.simulator.story import parse_story, violations_of

STORIES = sorted((Path(__file__).parent / "replication_stories").glob("*.txt"))
Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 200


def violations(seed: int) -> list[str]:
    story = draw_story("multi_hop_handoff", seed, ("replication",))
    return [str(one) for one in story.judge().violations]


@pytest.mark.parametrize("first", [0, 10])
def test_no_seed_has_a_violation(first: int) -> None:
    assert {seed: found for seed in range(first, first + 10) if (found := violations(seed))} == {}


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_that_once_broke_a_promise_keeps_it(path: Path) -> None:
    assert violations_of(parse_story(path.read_text(), path.name)) == []


def test_rows_of_a_leader_that_had_released_nothing_are_not_seen() -> None:
    """The times of the text of a story are too coarse for this one."""
    story = draw_story("multi_hop_handoff", 20961, ("detour", "replication"))
    assert story.judge().violations == []


# --- breakages ---


def effects_leave_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "releasable", lambda self, now: self.last)


def a_lagging_follower_is_promoted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "is_in_sync", property(lambda self: True))


def the_lease_is_too_long(patch: pytest.MonkeyPatch) -> None:
    """As by a clock that stands still while the process does."""
    patch.setattr(Replica, "lease_from", lambda self, sent: sent + 20 * self.timing.lease_s)


def whoever_is_left_out_is_not_asked_at_once(patch: pytest.MonkeyPatch) -> None:
    """The wanted set counts before etcd has it."""

    def required(self: Replica) -> dict[str, None]:
        view = self.in_doubt[-1] if self.in_doubt else self.view
        return {name: None for name in view.in_sync if name != self.name}

    patch.setattr(Replica, "required", property(required))


def followers_acknowledge_before_they_sync(patch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: Site, node: Node, stream: Stream) -> None:
        self._send(stream, False, Acknowledged(node.disk.last))

    patch.setattr(Site, "_acknowledge", acknowledge)


def changes_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    ask = Etcd.ask

    def ask_without(self: Etcd, now: float, boot: str, request: object, lease_s: float) -> object:
        if isinstance(request, Change | Campaign):
            request = type(request)(request.view, self.look(now).revision)
        if isinstance(request, Change):
            boot = self.view.boot
        return ask(self, now, boot, request, lease_s)  # type: ignore[arg-type]

    patch.setattr(Etcd, "ask", ask_without)


def epochs_of_entries_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Terms, "includes", lambda self, last, epoch, sequence: sequence <= last)


def disks_are_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "is_in_sync", property(lambda self: self.name in self.view.in_sync))


def a_new_leader_forgets_its_followers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "required", property(lambda self: {}))


def whoever_joins_counts_as_caught_up(patch: pytest.MonkeyPatch) -> None:
    on_joined = Replica.on_joined

    def joined(self: Replica, now: float, name: str, disk: str, sequence: int) -> None:
        on_joined(self, now, name, disk, self.last)

    patch.setattr(Replica, "on_joined", joined)


def whoever_catches_up_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    def is_to_enter(self: Replica, now: float, follower: Follower) -> bool:
        return follower.is_joined and follower.name not in self.view.in_sync

    patch.setattr(Replica, "_is_to_enter", is_to_enter)


def a_copy_that_is_behind_learns_at_once_what_peers_have(patch: pytest.MonkeyPatch) -> None:
    learn = SiteCopy.learn_settled

    def learn_at_once(self: SiteCopy[AnyMachine], settled: dict[str, int], last: int) -> None:
        learn(self, settled, 0)

    patch.setattr(SiteCopy, "learn_settled", learn_at_once)


BREAKAGES: list[Plant] = [
    effects_leave_at_once,
    a_lagging_follower_is_promoted,
    the_lease_is_too_long,
    whoever_is_left_out_is_not_asked_at_once,
    followers_acknowledge_before_they_sync,
    changes_are_not_compared,
    epochs_of_entries_are_ignored,
    disks_are_not_told_apart,
    a_new_leader_forgets_its_followers,
    whoever_joins_counts_as_caught_up,
    whoever_catches_up_is_in_sync,
    a_copy_that_is_behind_learns_at_once_what_peers_have,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BREAKAGES, ids=lambda plant: plant.__name__)
def test_a_breakage_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(_breaks(seed) for seed in range(SEEDS))


def _breaks(seed: int) -> bool:
    """A breakage may also make a machine refuse what it is asked."""
    try:
        return bool(violations(seed))
    except Exception:
        return True
