"""What is committed is there again; snapshots replace entries; one folder has one owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.storage.journals import (
    SEGMENT_BYTES,
    commit_entries,
    entry,
    open_journal,
    recovered_numbers,
    segments,
    snapshots,
)

from roamcast.errors import InputError
from roamcast.storage.journal import Journal, JournalFailed, Sync
from roamcast.storage.recovery import entries_after
from roamcast.storage.segments import SEGMENT_SUFFIX, numbered, read_segment_head, read_watermark

BOTH: list[Sync] = ["process", "group"]


@pytest.mark.parametrize("sync", BOTH)
def test_what_was_committed_is_recovered_in_order(tmp_path: Path, sync: Sync) -> None:
    journal, recovered = open_journal(tmp_path / "new" / "j", sync=sync)
    assert (recovered.first_start, recovered.snapshot, list(recovered.entries)) == (True, None, [])
    commit_entries(journal, [[10, 20], [5], [], [0x4000] * 3, [100]])
    assert journal.last_sequence == 7
    assert (journal.commits, journal.syncs) == (4, 4 if sync == "group" else 0)
    journal.close()
    journal, recovered = open_journal(tmp_path / "new" / "j", sync=sync)
    assert not recovered.first_start
    assert recovered.entry_count == 7
    expected = [entry(1, 10), entry(2, 20), entry(3, 5), *(entry(one, 0x4000) for one in (4, 5, 6))]
    assert list(recovered.entries) == [*expected, entry(7, 100)]
    assert (recovered.cut_bytes, recovered.notes) == (0, [])
    assert journal.last_sequence == 7
    journal.close()


@pytest.mark.parametrize("sync", BOTH)
def test_it_goes_on_over_many_segments_and_restarts(tmp_path: Path, sync: Sync) -> None:
    for start in range(0, 60, 20):
        journal, recovered = open_journal(tmp_path, sync=sync)
        assert recovered_numbers(recovered) == list(range(1, start + 1))
        commit_entries(journal, [[9_000]] * 20)
        journal.close()
    assert len(segments(tmp_path)) > 5


@pytest.mark.parametrize("sync", BOTH)
def test_entries_after_a_number_are_read_while_the_journal_is_in_use(tmp_path: Path, sync: Sync) -> None:
    journal, _ = open_journal(tmp_path, sync=sync)
    commit_entries(journal, [[9_000], [20, 30], [9_000]] * 5)
    assert len(segments(tmp_path)) > 1
    size = {1: 9_000, 2: 20, 3: 30, 0: 9_000}
    everything = [entry(number, size[number % 4]) for number in range(1, 21)]
    for number in range(20):
        assert entries_after(tmp_path, number, 20, 1 << 20) == everything[number:]
    assert entries_after(tmp_path, 20, 20, 0) == []
    assert entries_after(tmp_path, 0, 20, 50_000) is None
    assert entries_after(tmp_path, 21, 20, 1 << 20) is None
    journal.write_snapshot(b"all")
    commit_entries(journal, [[40]])
    assert entries_after(tmp_path, 20, 21, 1 << 20) == [entry(21, 40)]
    assert entries_after(tmp_path, 19, 21, 1 << 20) is None
    journal.close()


def test_nothing_appended_is_nothing_written(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, sync="group")
    journal.commit()
    assert (journal.commits, journal.syncs, journal.bytes_written) == (0, 0, 0)
    journal.append(b"")
    assert journal.pending_bytes == 4
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert list(recovered.entries) == [b""]
    journal.close()


def test_an_entry_larger_than_a_segment_has_room(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10], [5 * SEGMENT_BYTES], [10], [10]])
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert list(recovered.entries) == [entry(1, 10), entry(2, 5 * SEGMENT_BYTES), entry(3, 10), entry(4, 10)]
    journal.write_snapshot(b"all")
    journal.close()
    # Its file was too large to be a spare.
    assert {path.stat().st_size for path in tmp_path.glob("*.spare")} <= {SEGMENT_BYTES}


def test_a_snapshot_replaces_the_entries_before_it(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, sync="group")
    commit_entries(journal, [[9_000]] * 30)
    before = len(segments(tmp_path))
    assert before > 3
    journal.write_snapshot(b"state after 30")
    assert len(segments(tmp_path)) == 1
    commit_entries(journal, [[10, 10]])
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert recovered.snapshot == b"state after 30"
    assert recovered.snapshot_version == "1"
    assert recovered_numbers(recovered) == [31, 32]
    assert not recovered.first_start
    journal.write_snapshot(b"state after 32")
    journal.close()
    assert [path.name for path in snapshots(tmp_path)] == ["snapshot-000000000000000032.snapshot"]
    journal, recovered = open_journal(tmp_path)
    assert (recovered.snapshot, list(recovered.entries)) == (b"state after 32", [])
    journal.close()


def test_segments_are_used_again_and_their_old_entries_are_not_seen(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, sync="group", snapshot_after_bytes=3 * SEGMENT_BYTES)
    for turn in range(8):
        commit_entries(journal, [[9_000]] * 20)
        journal.write_snapshot(b"%d" % turn)
    files = {path.stat().st_ino for path in tmp_path.iterdir()}
    commit_entries(journal, [[100]])
    journal.write_snapshot(b"8")
    commit_entries(journal, [[100]])
    assert len({path.stat().st_ino for path in tmp_path.iterdir()} - files) <= 1, "only the snapshot is new"
    (active,) = segments(tmp_path)
    assert active.read_bytes().count(b"x" * 8_000) > 3, "it was not zeroed, and need not be"
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert recovered_numbers(recovered) == [162]
    assert recovered.cut_bytes == 0
    journal.close()


def wants_snapshot(journal: Journal) -> bool:
    """As a function, or a type checker would take the answer for one that does not change."""
    return journal.wants_snapshot


def test_a_snapshot_is_wanted_after_so_many_bytes(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, snapshot_after_bytes=100_000)
    assert not wants_snapshot(journal)
    commit_entries(journal, [[50_000]])
    assert not wants_snapshot(journal)
    commit_entries(journal, [[50_000]])
    assert wants_snapshot(journal)
    ticket = journal.begin_snapshot()
    assert not wants_snapshot(journal), "one is under way"
    commit_entries(journal, [[50_000]])
    # A large one makes the next one wait until as much has been written.
    ticket.write(bytes(300_000))
    ticket.commit()
    assert journal.snapshot_bytes == 300_000
    for _ in range(4):
        commit_entries(journal, [[50_000]])
        assert not wants_snapshot(journal)
    commit_entries(journal, [[50_000]])
    assert wants_snapshot(journal)
    journal.close()
    journal, recovered = open_journal(tmp_path, snapshot_after_bytes=100_000)
    assert (len(recovered.snapshot or b""), recovered_numbers(recovered)) == (300_000, [3, 4, 5, 6, 7, 8])
    assert wants_snapshot(journal)
    journal.close()


def test_a_snapshot_given_up_changes_nothing(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, snapshot_after_bytes=10_000, snapshot_retry_s=0.0)
    commit_entries(journal, [[9_000]] * 10)
    ticket = journal.begin_snapshot()
    ticket.write(b"never")
    ticket.abandon()
    assert not list(tmp_path.glob("*.tmp"))
    commit_entries(journal, [[100]])
    assert journal.wants_snapshot
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert (recovered.snapshot, recovered_numbers(recovered)) == (None, list(range(1, 12)))
    journal.close()


def test_a_snapshot_without_any_entry_is_kept(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    journal.write_snapshot(b"configured")
    journal.write_snapshot(b"configured anew")
    journal.close()
    journal, recovered = open_journal(tmp_path)
    assert (recovered.snapshot, recovered.first_start) == (b"configured anew", False)
    journal.close()


# --- limits, versions, locks ---


def test_a_journal_that_gets_no_snapshot_stops_at_its_limit(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, snapshot_after_bytes=50_000, journal_bytes_max=200_000)
    with pytest.raises(JournalFailed, match="at most 200000 are allowed: nothing is acknowledged until"):
        commit_entries(journal, [[9_000]] * 100)
    promised = journal.last_sequence
    assert 20 <= promised <= 24
    with pytest.raises(JournalFailed):
        journal.try_again()
    journal.close()
    # A restart does not make room.
    journal, recovered = open_journal(tmp_path, snapshot_after_bytes=50_000, journal_bytes_max=200_000)
    assert recovered_numbers(recovered) == list(range(1, promised + 1))
    with pytest.raises(JournalFailed):
        journal.append(b"one more")
    assert journal.wants_snapshot
    journal.write_snapshot(b"state")
    journal.try_again()
    assert journal.failed is None
    commit_entries(journal, [[10]])
    journal.close()


def test_another_replay_number_starts_only_after_a_clean_stop(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, version="1.0", replay=1)
    commit_entries(journal, [[10]])
    journal.close()
    refusal = (
        r"entries of version 1\.0 \(replay 1\), which 1\.1 \(replay 2\) cannot replay: start version 1\.0 "
        r"once with .* and stop it cleanly, it leaves a snapshot; then start 1\.1"
    )
    with pytest.raises(InputError, match=refusal):
        open_journal(tmp_path, version="1.1", replay=2)
    journal, _ = open_journal(tmp_path, version="1.0", replay=1)
    journal.write_snapshot(b"state")
    journal.close()
    journal, recovered = open_journal(tmp_path, version="1.1", replay=2)
    assert (recovered.snapshot, recovered.snapshot_version, recovered.sequence) == (b"state", "1.0", 1)
    commit_entries(journal, [[10]])
    journal.close()
    with pytest.raises(InputError, match=r"entries of version 1\.1 \(replay 2\), which 1\.0"):
        open_journal(tmp_path, version="1.0", replay=1)


def test_another_version_with_the_same_replay_number_goes_on(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path, version="1.0")
    commit_entries(journal, [[10]])
    journal.close()
    journal, recovered = open_journal(tmp_path, version="1.1")
    assert recovered.entry_count == 1
    commit_entries(journal, [[10]])
    journal.close()
    heads = [read_segment_head(path) for path in numbered(tmp_path, SEGMENT_SUFFIX).values()]
    assert [(head.version, head.replay) for head in heads] == [("1.0", 1), ("1.1", 1)]


def test_one_folder_has_one_owner(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    with pytest.raises(InputError, match=f"in use by process {os.getpid()}; stop that, or name another"):
        open_journal(tmp_path)
    journal.close()
    journal.close()
    open_journal(tmp_path)[0].close()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "j"
    folder.mkdir(mode=0o755)
    journal, _ = open_journal(folder, sync="group")
    commit_entries(journal, [[9_000]] * 10)
    journal.write_snapshot(b"state")
    journal.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="cannot be used"):
            open_journal(folder)


def test_what_cannot_be_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "j" / "segment-000000000001.journal").mkdir(parents=True)
    with pytest.raises(InputError, match=r"\(Is a directory, .*/segment-000000000001.journal\)"):
        open_journal(tmp_path / "j")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sync": "often"}, "'often': valid are process, group"),
        ({"version": ""}, "expected 1 to 64 bytes"),
        ({"version": "v" * 65}, "expected 1 to 64 bytes"),
        ({"segment_bytes": 100}, "at least 65536"),
        ({"snapshot_after_bytes": 0}, "expected 1 to"),
        ({"snapshot_after_bytes": 11, "journal_bytes_max": 10}, "expected 1 to 10"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        open_journal(tmp_path, **settings)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_takes_in_part_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = open_journal(tmp_path)
    write = os.pwrite
    taken: list[int] = []

    def in_part(file: int, data: bytes, offset: int) -> int:
        taken.append(len(data))
        return write(file, data[: 10 if len(taken) == 1 else None], offset)

    monkeypatch.setattr(os, "pwrite", in_part)
    commit_entries(journal, [[500]])
    monkeypatch.undo()
    commit_entries(journal, [[500], [20, 20], [300]])
    journal.close()
    assert len(taken) == 2
    journal, recovered = open_journal(tmp_path)
    assert recovered_numbers(recovered) == [1, 2, 3, 4, 5]
    journal.close()


@pytest.mark.parametrize("sync", BOTH)
def test_the_watermark_may_follow_a_little_later(tmp_path: Path, sync: Sync) -> None:
    journal, _ = open_journal(tmp_path / "j", sync=sync)
    journal.mark_after_s = 3600.0
    ends = []
    for number in (1, 2, 3):
        journal.write(entry(number))
        (path,) = segments(tmp_path / "j")
        ends.append(read_watermark(path).next - 1)
    assert ends == [1, 1, 1]
    assert journal.is_unmarked
    journal.mark()
    assert read_watermark(path).next - 1 == 3
    journal.write(entry(4))
    assert read_watermark(path).next - 1 == 3
    journal.close()
    assert read_watermark(path).next - 1 == 4


def test_the_watermark_of_a_segment_is_moved_before_the_next_one_begins(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path / "j")
    journal.mark_after_s = 3600.0
    journal.write(entry(1))
    journal.write(entry(2))
    (first,) = segments(tmp_path / "j")
    journal.begin_snapshot().abandon()  # It begins a segment.
    mark = read_watermark(first)
    assert (mark.next, mark.is_continued) == (3, True)
    journal.close()
