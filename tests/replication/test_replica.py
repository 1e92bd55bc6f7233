"""Decisions of one replica, answer by answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from roamcast.errors import InputError
from roamcast.replication.messages import Change, Look, Resign, SiteView
from roamcast.replication.replica import Replica, Timing
from roamcast.replication.terms import Terms
from roamcast.storage.replica_file import ReplicaState, write_state

TIMING = Timing(lease_s=3.0, patience_s=1.0)


@pytest.fixture
def leader() -> Replica:
    """A leader with entry 10 and an in-sync follower that has it, too."""
    replica = Replica("a", ["disk-a"], "boot", Terms(), 10, TIMING, 0.0)
    view = SiteView({"a": "disk-a", "b": "disk-b"}, 1, 5, "a", leader="a", boot="boot")
    replica.lead(view, 0.0)
    replica.on_joined(0.0, "b", "disk-b", 10)
    assert replica.releasable(0.0) == 10
    return replica


def test_a_follower_that_stands_still_delays_effects_once(leader: Replica) -> None:
    leader.on_written(0.1, 11)
    (change,) = [one for one in leader.advance(1.2) if isinstance(one, Change)]
    assert change.view.in_sync == {"a": "disk-a"}
    leader.on_changed(1.2, msgspec.structs.replace(change.view, revision=6), True)
    assert not any(isinstance(one, Change) for one in leader.advance(1.2))
    assert leader.releasable(1.2) == 11
    leader.on_acknowledged("b", 11)
    (change,) = [one for one in leader.advance(1.3) if isinstance(one, Change)]
    assert change.view.in_sync == {"a": "disk-a", "b": "disk-b"}


def test_an_older_view_does_not_settle_what_is_in_doubt(leader: Replica) -> None:
    """The answer to `Look` was read first, and comes after that of the change."""
    alone = msgspec.structs.replace(leader.view, in_sync={"a": "disk-a"}, revision=4)
    leader.on_written(0.1, 11)
    requests = [type(one) for one in leader.advance(1.2)]
    assert {Change, Look} <= set(requests)
    leader.on_view(1.2, alone)
    assert leader.view.revision == 5
    assert leader.releasable(1.2) == 10


def test_whoever_has_resigned_is_silent(leader: Replica) -> None:
    assert leader.step_down("b") == ""
    assert not any(isinstance(one, Change) for one in leader.advance(0.0)), "b may stand still"
    leader.on_acknowledged("b", 10)
    (change,) = [one for one in leader.advance(0.1) if isinstance(one, Change)]
    leader.on_changed(0.1, msgspec.structs.replace(change.view, revision=6), True)
    assert any(isinstance(one, Resign) for one in leader.advance(0.1))
    assert not leader.may_speak(0.1)


def test_whoever_does_not_answer_is_not_waited_for(leader: Replica) -> None:
    assert leader.step_down("b") == ""
    leader.on_left("b")
    leader.on_acknowledged("b", 10)
    assert not leader.steps_down
    assert leader.may_speak(0.1)


def test_a_state_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone/replica.json: cannot be written \(No such file"):
        write_state(tmp_path / "gone", ReplicaState())


def test_a_late_campaign_of_an_earlier_process_does_not_lock_out_its_disk() -> None:
    replica = Replica("a", ["first", "second", "own"], "boot", Terms([(1, 1)]), 10, TIMING, 0.0)
    view = SiteView({"a": "first"}, 1, 5, "a")
    assert replica.advance(0.0) == [Look()]
    replica.on_view(0.0, view)
    late = msgspec.structs.replace(view, in_sync={"a": "second"}, epoch=2, revision=6)
    assert Look() in replica.advance(1.0)
    replica.on_view(1.0, late)
    assert replica.is_in_sync
    assert replica.disks == ["second", "own"], "no request can put the first one back"
