"""The journal among processes: killed, forked, out of room, and with disks that fail."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest
from tests.storage.journals import commit_entries, entry, open_journal, recovered_numbers, segments, snapshots

import roamcast.storage.snapshots
from roamcast.storage.journal import Journal, JournalFailed, Sync
from roamcast.storage.snapshots import SnapshotOutcome

HERE = Path(__file__).parent
DEADLINE_S = 30.0

# --- kill -9 ---


@contextmanager
def writer(folder: Path, sync: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / "journal_writer.py"), str(folder), sync]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sync", ["process", "group"])
def test_what_was_reported_is_recovered_after_kill_9(tmp_path: Path, sync: str) -> None:
    rng = random.Random(7)
    reported, snapshots_taken = 0, 0
    for _ in range(6):
        with writer(tmp_path, sync) as process:
            assert process.stdout is not None
            recovered = int(process.stdout.readline().removeprefix("recovered "))
            assert recovered >= reported, "committed entries are gone"
            for _ in range(rng.randint(1, 400)):
                process.stdout.readline()
            process.kill()
            # What it said before it was killed counts, too.
            lines = process.stdout.read().splitlines()
        reported = max([recovered, *(int(line.split()[1]) for line in lines if line.startswith("committed"))])
        snapshots_taken += len(snapshots(tmp_path))
    assert reported > 500
    assert snapshots_taken > 2


# --- snapshots by a child ---


def outcome_of(journal: Journal) -> SnapshotOutcome:
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        outcome = journal.poll_snapshot()
        if outcome is not None:
            return outcome
        time.sleep(0.001)
    raise AssertionError("the child did not end")


def state_once(path: Path) -> bytes:
    """What a child gives for its state when the file is there; it works until then."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return b"state"


def test_a_child_writes_the_state_as_it_was(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path / "j")
    commit_entries(journal, [[9_000]] * 10)
    state = {"last": 10}
    go = tmp_path / "go"

    def freeze() -> bytes:
        return state_once(go) + f" after {state['last']}".encode()

    ticket = journal.begin_snapshot()
    ticket.write_in_child(freeze)
    assert ticket.child is not None
    # The parent goes on meanwhile.
    commit_entries(journal, [[100]] * 5)
    state["last"] = 15
    assert journal.poll_snapshot() is None
    assert not select([ticket.child], [], [], 0)[0]
    go.touch()
    assert select([ticket.child], [], [], DEADLINE_S)[0], "its end can be waited for"
    outcome = outcome_of(journal)
    assert (outcome.sequence, outcome.error) == (10, None)
    assert outcome.size_bytes > len("state after 10")
    assert journal.poll_snapshot() is None
    assert len(segments(tmp_path / "j")) == 1
    journal.close()
    journal, recovered = open_journal(tmp_path / "j")
    assert recovered.snapshot == b"state after 10"
    assert recovered_numbers(recovered) == [11, 12, 13, 14, 15]
    journal.close()


def test_a_child_that_fails_is_told_of_and_harms_nothing(tmp_path: Path) -> None:
    def cannot() -> bytes:
        raise ValueError("a lambda at\nbroker.router")

    journal, _ = open_journal(tmp_path, snapshot_after_bytes=1_000, snapshot_retry_s=0.0)
    commit_entries(journal, [[9_000]] * 10)
    journal.begin_snapshot().write_in_child(cannot)
    assert outcome_of(journal).error == "ValueError: a lambda at broker.router"
    assert journal.failed is None
    assert journal.wants_snapshot, "it is tried again"
    ticket = journal.begin_snapshot()
    ticket.write_in_child(lambda: state_once(tmp_path / "never"))
    assert ticket.child is not None
    os.kill(ticket.child.pid, signal.SIGKILL)
    assert outcome_of(journal).error == "the process that wrote it ended with -9"
    commit_entries(journal, [[10]])
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert (recovered.snapshot, recovered.entry_count) == (None, 11)
    journal.close()


def test_a_child_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roamcast.storage.snapshots, "CHILD_S_MAX", 0.05)
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10]])
    journal.begin_snapshot().write_in_child(lambda: state_once(tmp_path / "never"))
    assert outcome_of(journal).error == "it took longer than 0.05 s"
    journal.close()


def test_after_a_failure_it_is_tried_again_later_not_at_once(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, snapshot_after_bytes=1_000, snapshot_retry_s=3600.0)
    commit_entries(journal, [[9_000]])
    wanted = journal.wants_snapshot
    journal.begin_snapshot().abandon()
    assert (wanted, journal.wants_snapshot) == (True, False)
    journal.close()


def test_closing_ends_the_child(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10]])
    ticket = journal.begin_snapshot()
    ticket.write_in_child(lambda: state_once(tmp_path / "never"))
    assert ticket.child is not None
    pid = ticket.child.pid
    journal.write_snapshot(b"clean stop")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert (recovered.snapshot, recovered.entry_count) == (b"clean stop", 0)
    journal.close()


def test_a_connection_closed_meanwhile_is_closed(tmp_path: Path) -> None:
    """A child that kept the sockets it was copied with would keep the peer waiting."""
    journal, _ = open_journal(tmp_path / "j")
    commit_entries(journal, [[10]])
    here, there = socket.socketpair()
    there.settimeout(DEADLINE_S)
    with here, there:
        go = tmp_path / "go"
        journal.begin_snapshot().write_in_child(lambda: state_once(go))
        here.close()
        assert there.recv(1) == b""
        assert journal.poll_snapshot() is None, "the child was still there"
        go.touch()
    assert outcome_of(journal).error is None
    journal.close()


# --- disks that are full, and disks that fail ---


@pytest.mark.parametrize("sync", ["process", "group"])
def test_a_full_disk_is_told_of_and_what_was_promised_stays(tmp_path: Path, sync: str) -> None:
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    namespace = ["unshare", "-rm", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("needs a small file system of its own: `unshare -rm` with mount is not allowed here")
    run = f"{mount} && exec '{sys.executable}' '{HERE / 'disk_full.py'}' '{tmp_path}' {sync}"
    done = subprocess.run([*namespace, run], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    segment = "/j/segment-000000000002.journal: cannot be written (No space left on device)"
    lines = re.sub(r"0+2\d\.snapshot", "N.snapshot", done.stdout.replace(str(tmp_path), "")).splitlines()
    assert lines[:-1] == [
        f"commit: {segment}",
        f"append: {segment}",
        f"commit again: {segment}",
        f"try again: {segment}",
        "after room was made: None 0",
        "snapshot: /j/snapshot-N.snapshot: cannot write the snapshot (No space left on device)",
        "after a snapshot did not fit: None",
    ]
    assert lines[-1].startswith("recovered: True ")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Make the next calls of a system call fail as a broken disk would."""

    def fail(name: str, times: int) -> None:
        real = getattr(os, name)
        left = times

        def call(*arguments: object) -> object:
            nonlocal left
            if left > 0:
                left -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        monkeypatch.setattr(os, name, call)

    return fail


@pytest.mark.parametrize(("call", "sync"), [("pwrite", "process"), ("fdatasync", "group")])
def test_a_write_that_failed_is_written_again_elsewhere(
    tmp_path: Path, failing: Callable[[str, int], None], call: str, sync: Sync
) -> None:
    journal, _ = open_journal(tmp_path, sync=sync)
    commit_entries(journal, [[100], [100]])
    journal.append(entry(3))
    journal.append(entry(4))
    failing(call, 2)
    with pytest.raises(
        JournalFailed, match=r"segment-0+1\.journal: cannot be written \(Input/output error\)"
    ):
        journal.commit()
    assert journal.last_sequence == 2
    with pytest.raises(JournalFailed):
        journal.append(b"refused")
    with pytest.raises(JournalFailed):
        journal.try_again()
    journal.try_again()
    assert (journal.failed, journal.last_sequence) == (None, 4)
    commit_entries(journal, [[100]])
    journal.close()
    journal, recovered = open_journal(tmp_path, sync=sync)
    assert recovered_numbers(recovered) == [1, 2, 3, 4, 5]
    assert recovered.cut_bytes == 0
    journal.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EOPNOTSUPP])
def test_a_record_is_synced_while_it_is_written_where_the_file_system_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    journal, _ = open_journal(tmp_path, sync="group")
    journal.mark_after_s = 3600.0
    syncs: list[int] = []
    sync = os.fdatasync

    def count(file: int) -> None:
        syncs.append(file)
        sync(file)

    monkeypatch.setattr(os, "fdatasync", count)
    for one in (1, 2, 3):
        journal.write(entry(one))
    before = len(syncs)
    journal.write(entry(4))
    assert len(syncs) == before

    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", refuse)
    if number == errno.EIO:
        with pytest.raises(JournalFailed, match="Input/output error"):
            journal.write(entry(5))
        journal.try_again()
    else:
        journal.write(entry(5))
    assert len(syncs) > before
    journal.mark()
    before = len(syncs)
    journal.write(entry(6))  # The watermark is in the file's first block.
    assert len(syncs) > before
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert recovered_numbers(recovered) == [1, 2, 3, 4, 5, 6]
    journal.close()


def test_what_a_failed_commit_left_may_be_recovered_but_only_once(
    tmp_path: Path, failing: Callable[[str, int], None]
) -> None:
    """The record was whole on the disk when its sync failed, and the process ended there."""
    journal, _ = open_journal(tmp_path, sync="group")
    commit_entries(journal, [[100]])
    journal.append(entry(2))
    failing("fdatasync", 1)
    with pytest.raises(JournalFailed):
        journal.commit()
    journal.close()
    journal, recovered = open_journal(tmp_path, sync="group")
    assert recovered_numbers(recovered) == [1, 2]
    journal.close()


def test_a_snapshot_that_gets_no_segment_leaves_the_journal_working(
    tmp_path: Path, failing: Callable[[str, int], None]
) -> None:
    journal, _ = open_journal(tmp_path, sync="group")
    commit_entries(journal, [[100]])
    failing("fsync", 1)
    with pytest.raises(JournalFailed, match="no new segment"):
        journal.begin_snapshot()
    assert journal.failed is None
    commit_entries(journal, [[100]])
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert recovered_numbers(recovered) == [1, 2]
    journal.close()
