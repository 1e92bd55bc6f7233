"""What a follower's event log tells of entries that nobody has released yet."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from roamcast.daemon.replica_following import Following
from roamcast.net.replica_stream import ReplicaStream
from roamcast.replication.messages import Records, Released, Welcome
from roamcast.replication.terms import Terms


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def following(told: list[str]) -> Following:
    """A follower that has started again with entries 4 to 6."""
    replica = SimpleNamespace(role="follower", terms=Terms(), last=6)
    host: Any = SimpleNamespace(
        journal=SimpleNamespace(), replica=replica, records=told.extend, save=lambda: None
    )
    rows: Any = deque((number, [f"row of entry {number}"]) for number in (4, 5, 6))
    return Following(host, None, False, rows)


def test_rows_wait_for_a_leader_that_has_the_same_entries(following: Following, told: list[str]) -> None:
    stream = cast(ReplicaStream, SimpleNamespace(is_open=True, send=lambda message: None))
    following._on_leader_said(stream, [Released(5)])
    assert told == []
    following._on_leader_said(stream, [Welcome(2, [], 9, snapshot_bytes=100), Released(9)])
    assert told == []
    following._on_leader_said(stream, [Welcome(2, [], 6), Released(5)])
    assert told == ["row of entry 4", "row of entry 5"]


def test_a_report_waits_for_entries_that_were_read_together_with_it(following: Following) -> None:
    learned: list[int] = []
    host: Any = following._host
    host.journal = SimpleNamespace(
        append=lambda data: None, commit=lambda: None, last_sequence=8, is_unmarked=False,
        wants_snapshot=False, poll_snapshot=lambda: None,
    )  # fmt: skip
    copy: Any = SimpleNamespace(
        take=lambda entries: None, behind=2, learn_settled=lambda settled, last: learned.append(last)
    )
    following.copy, following._stepping = copy, cast(asyncio.Handle, object())
    stream = cast(ReplicaStream, SimpleNamespace(is_open=True, send=print, send_now=print))
    following._on_leader_said(stream, [Welcome(2, [], 6), Records(7, [b"7", b"8"]), Released(6)])
    assert learned == [8]
