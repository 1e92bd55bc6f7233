"""Torn tails are cut, damage is refused: every byte and every bit of small journals.

The rule (recovery.py): what is behind the last whole record is cut if no whole record comes after
it and the watermark is not beyond it; anything else that is broken is refused, with the file and the offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.journals import (
    commit_entries,
    entry,
    open_journal,
    recovered_numbers,
    segments,
    snapshots,
)

from roamcast.errors import InputError
from roamcast.storage.journal import Sync
from roamcast.storage.recovery import Recovered
from roamcast.storage.repair import GIVEN_UP_SUFFIX, LOG_NAME, find_loss, repair
from roamcast.storage.segments import (
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    WATERMARK_AT,
    WAYS_OUT,
    JournalDamaged,
)

BATCHES = [[10, 3], [5], [30], [2, 2, 2]]


def ends_of(batches: list[list[int]]) -> list[int]:
    """Where each record ends in the segment."""
    end, ends = HEADER_BYTES, []
    for batch in batches:
        end += RECORD_HEAD_BYTES + sum(4 + max(size, 2) for size in batch)
        ends.append(end)
    return ends


def entries_in(records: int) -> list[int]:
    return list(range(1, sum(map(len, BATCHES[:records])) + 1))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The one segment of a journal with these records; it was not stopped cleanly."""
    journal, _ = open_journal(tmp_path / "j")
    commit_entries(journal, BATCHES)
    journal.close()
    (path,) = segments(tmp_path / "j")
    return path


def test_the_records_are_where_this_test_believes(written: Path) -> None:
    data = written.read_bytes()
    ends = ends_of(BATCHES)
    assert not any(data[ends[-1] :])
    marker = data[HEADER_BYTES : HEADER_BYTES + 4]
    assert [data[end : end + 4] == marker for end in ends] == [True, True, True, False]


def watermarks(data: bytes) -> bytes:
    return data[WATERMARK_AT[0] : WATERMARK_AT[1] + 64]


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """As `written`, but the process was killed before the watermark moved over the last commit."""
    journal, _ = open_journal(tmp_path / "j")
    commit_entries(journal, BATCHES[:-1])
    (path,) = segments(tmp_path / "j")
    before = watermarks(path.read_bytes())
    commit_entries(journal, BATCHES[-1:])
    journal.close()
    with path.open("r+b") as file:
        file.seek(WATERMARK_AT[0])
        file.write(before)
    return path


def test_a_torn_commit_is_cut_at_every_byte(torn: Path) -> None:
    data, ends = torn.read_bytes(), ends_of(BATCHES)
    for size in range(ends[-2], ends[-1] + RECORD_HEAD_BYTES + 1):
        for rest in (b"", bytes(len(data) - size)):
            torn.write_bytes(data[:size] + rest)
            journal, recovered = open_journal(torn.parent)
            whole = sum(end <= size for end in ends)
            assert recovered_numbers(recovered) == entries_in(whole), size
            if not rest and whole < len(BATCHES):
                assert recovered.cut_bytes == size - ends[-2]
                assert len(recovered.notes) == (size > ends[-2])
            # It goes on from there as if nothing had been.
            journal.append(entry(journal.last_sequence + 1))
            journal.close()
            journal, recovered = open_journal(torn.parent)
            assert len(recovered_numbers(recovered)) == len(entries_in(whole)) + 1
            assert recovered.cut_bytes == 0
            journal.close()


@pytest.mark.parametrize("rest", ["cut", "zeroed"])
def test_what_was_acknowledged_is_missed_at_every_byte(written: Path, rest: str) -> None:
    data, ends = written.read_bytes(), ends_of(BATCHES)
    last = entries_in(len(BATCHES))[-1]
    for size in range(HEADER_BYTES, ends[-1]):
        written.write_bytes(data[:size] + (bytes(len(data) - size) if rest == "zeroed" else b""))
        if written.read_bytes() == data:
            continue  # The bytes that were zeroed were zeros before.
        whole = sum(end <= size for end in ends)
        with pytest.raises(JournalDamaged) as refused:
            open_journal(written.parent)
        first = entries_in(whole)[-1] + 1 if whole else 1
        at = [HEADER_BYTES, *ends][whole]
        assert str(refused.value) == (
            f"{written}: damaged at offset {at}: entries {first} to {last} were acknowledged and are missing;"
            f" the file was cut or overwritten; {WAYS_OUT}"
        )
    written.write_bytes(data[: ends[-1]])
    assert recovered_numbers(open_journal(written.parent)[1]) == entries_in(len(BATCHES))


@pytest.mark.parametrize("sync", ["process", "group"])
def test_a_power_loss_may_take_what_was_not_synced(
    tmp_path: Path, sync: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = open_journal(tmp_path, sync=sync)
    commit_entries(journal, BATCHES)
    journal.close()
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[: ends_of(BATCHES)[1]])
    monkeypatch.setattr("roamcast.storage.segments.current_boot", lambda: 7)
    monkeypatch.setattr("roamcast.storage.journal.current_boot", lambda: 7)
    if sync == "group":
        with pytest.raises(JournalDamaged, match="entries 4 to 7 were acknowledged and are missing"):
            open_journal(tmp_path, sync=sync)
        return
    journal, recovered = open_journal(tmp_path, sync=sync)
    assert recovered_numbers(recovered) == entries_in(2)
    assert "4 entries after 3 were acknowledged and are lost" in recovered.notes[0]
    journal.append(entry(4))
    journal.close()
    journal, recovered = open_journal(tmp_path, sync=sync)
    assert (recovered_numbers(recovered), recovered.notes) == ([1, 2, 3, 4], [])
    journal.close()


def test_every_flipped_bit_of_a_watermark_leaves_the_other_one(written: Path) -> None:
    data = written.read_bytes()
    for place in WATERMARK_AT:
        for bit in range(29 * 8):
            flipped = bytearray(data)
            flipped[place + bit // 8] ^= 1 << bit % 8
            written.write_bytes(flipped)
            journal, recovered = open_journal(written.parent)
            assert recovered_numbers(recovered) == entries_in(len(BATCHES))
            journal.close()
    flipped = bytearray(data)
    for place in WATERMARK_AT:
        flipped[place + 5] ^= 1
    written.write_bytes(flipped)
    with pytest.raises(JournalDamaged, match="no whole watermark"):
        open_journal(written.parent)


def test_a_head_that_is_not_whole_is_refused(written: Path) -> None:
    data = written.read_bytes()
    for size in (0, 1, 50, 97):
        written.write_bytes(data[:size])
        with pytest.raises(JournalDamaged, match=rf"{written}: damaged at offset {size}: it ends within"):
            open_journal(written.parent)


def test_every_flipped_bit_of_a_record_is_refused(written: Path) -> None:
    data, ends = written.read_bytes(), ends_of(BATCHES)
    starts = [HEADER_BYTES, *ends]
    for offset in range(HEADER_BYTES, ends[-1]):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        written.write_bytes(flipped)
        record = sum(end <= offset for end in ends)
        with pytest.raises(JournalDamaged) as refused:
            open_journal(written.parent)
        assert f"{written}: damaged at offset {starts[record]}: entr" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_every_flipped_bit_behind_the_last_record_is_cut(written: Path) -> None:
    data, end = written.read_bytes(), ends_of(BATCHES)[-1]
    for offset in range(end, end + RECORD_HEAD_BYTES):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << offset % 8
        written.write_bytes(flipped)
        journal, recovered = open_journal(written.parent)
        assert recovered_numbers(recovered) == entries_in(len(BATCHES))
        assert f"at offset {end} are no whole record and are cut" in recovered.notes[0]
        journal.close()


def test_every_flipped_bit_of_a_head_is_refused(written: Path) -> None:
    data = written.read_bytes()
    for bit in range(98 * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        written.write_bytes(flipped)
        with pytest.raises(JournalDamaged, match=str(written)):
            open_journal(written.parent)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_commit_that_was_torn_in_any_way_is_there_or_not(data: st.DataObject) -> None:
    """Blocks of the last commit reach the disk in any order, over whatever was there before."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        journal, _ = open_journal(folder)
        promised = data.draw(st.lists(st.lists(st.integers(12, 2_000), min_size=1, max_size=4), max_size=4))
        if data.draw(st.booleans(), label="recycled"):
            commit_entries(journal, [[9_000]] * 10)
            journal.write_snapshot(b"")
            commit_entries(journal, [[9_000]] * 10)
            journal.write_snapshot(b"")
        first = journal.last_sequence + 1
        commit_entries(journal, promised)
        path, expected = segments(folder)[-1], journal.last_sequence
        before = path.read_bytes()
        last = data.draw(st.lists(st.integers(12, 5_000), min_size=1, max_size=3))
        commit_entries(journal, [last])
        after, appended = path.read_bytes(), journal.last_sequence
        journal.close()
        torn = bytearray(after)
        # The watermark is written behind the commit: where that was torn, there is only the older one.
        torn[:HEADER_BYTES] = before[:HEADER_BYTES]
        for block in range(HEADER_BYTES, len(after), 512):
            if before[block : block + 512] != after[block : block + 512] and data.draw(st.booleans()):
                torn[block : block + 512] = before[block : block + 512]
        path.write_bytes(torn)
        journal, recovered = open_journal(folder)
        end = ends_of([*promised, last])[-1]
        whole = torn[HEADER_BYTES:end] == after[HEADER_BYTES:end]
        assert recovered_numbers(recovered) == list(range(first, (appended if whole else expected) + 1))
        journal.close()


@given(st.binary(max_size=300), st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_garbage_gives_one_clear_line(garbage: bytes, place: int) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        journal, _ = open_journal(folder)
        commit_entries(journal, BATCHES)
        journal.close()
        path = segments(folder)[0]
        content = bytearray(path.read_bytes()[: ends_of(BATCHES)[-1] + RECORD_HEAD_BYTES])
        offset = place % len(content)
        content[offset : offset + len(garbage)] = garbage
        path.write_bytes(content)
        journal_or_line = open_or_refuse(folder)
        if isinstance(journal_or_line, str):
            assert "\n" not in journal_or_line
        else:
            assert recovered_numbers(journal_or_line) == entries_in(4)[: journal_or_line.entry_count]


def open_or_refuse(folder: Path) -> Recovered | str:
    """What is recovered, or the line with which it is refused; any other exception is a failure."""
    try:
        journal, recovered = open_journal(folder)
    except InputError as error:
        return str(error)
    journal.close()
    return recovered


# --- several files ---


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A folder with several segments and no snapshot."""
    journal, _ = open_journal(tmp_path / "j")
    commit_entries(journal, [[9_000]] * 30)
    journal.close()
    assert len(segments(tmp_path / "j")) == 5
    return tmp_path / "j"


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def test_a_break_at_the_end_of_a_segment_is_damage_if_another_follows(long: Path) -> None:
    path = segments(long)[2]
    record = RECORD_HEAD_BYTES + 4 + 9_000
    flip(path, HEADER_BYTES + 5 * record + 100)
    with pytest.raises(JournalDamaged) as refused:
        open_journal(long)
    assert str(refused.value) == (
        f"{path}: damaged at offset {HEADER_BYTES + 5 * record}: entry 18 is broken or missing,"
        f" but entries from 19 on follow in the next segment; {WAYS_OUT}"
    )


def test_what_is_behind_the_last_record_of_a_full_segment_does_not_matter(long: Path) -> None:
    path = segments(long)[2]
    flip(path, HEADER_BYTES + 6 * (RECORD_HEAD_BYTES + 4 + 9_000) + 30)
    journal, recovered = open_journal(long)
    assert recovered_numbers(recovered) == list(range(1, 31))
    journal.close()


def remove_the_last(folder: Path) -> None:
    segments(folder)[-1].unlink()


def remove_the_first(folder: Path) -> None:
    segments(folder)[0].unlink()


def remove_one_within(folder: Path) -> None:
    segments(folder)[2].unlink()


def rename_one(folder: Path) -> None:
    path = segments(folder)[-1]
    path.rename(path.with_name("segment-000000000009.journal"))


def put_another_in_its_place(folder: Path) -> None:
    paths = segments(folder)
    shutil.copy(paths[1], paths[2])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (remove_the_first, "entry 1 should follow, but the oldest segment begins with entry 7"),
        (remove_the_last, "segment 5 is missing"),
        (remove_one_within, "segment 3 is missing"),
        (rename_one, "holds segment 5; it was renamed"),
        (put_another_in_its_place, "holds segment 2; it was renamed"),
    ],
)
def test_segments_that_are_not_as_they_were_are_refused(
    long: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(long)
    with pytest.raises(JournalDamaged, match=said):
        open_journal(long)


# --- snapshots ---


@pytest.fixture
def with_snapshots(tmp_path: Path) -> Path:
    """A crash came between a snapshot's commit and the removal of what it makes unnecessary."""
    folder = tmp_path / "j"
    journal, _ = open_journal(folder)
    commit_entries(journal, [[9_000]] * 10)
    journal.write_snapshot(b"state after 10")
    commit_entries(journal, [[9_000]] * 10)
    ticket = journal.begin_snapshot()
    commit_entries(journal, [[10]] * 3)
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    ticket.write(b"state after 20")
    ticket.commit()
    journal.close()
    for path in [*segments(kept), *snapshots(kept)]:
        if not (folder / path.name).exists():
            shutil.copy(path, folder)
    return folder


def test_of_two_snapshots_the_newer_one_counts(with_snapshots: Path) -> None:
    assert len(segments(with_snapshots)) > 1
    journal, recovered = open_journal(with_snapshots)
    assert (recovered.snapshot, recovered_numbers(recovered)) == (b"state after 20", [21, 22, 23])
    assert recovered.notes == []
    journal.close()
    # What is not needed any more is gone.
    assert (len(segments(with_snapshots)), len(snapshots(with_snapshots))) == (1, 1)


def test_an_older_snapshot_serves_where_its_segments_are_still_there(with_snapshots: Path) -> None:
    newer = snapshots(with_snapshots)[-1]
    content = newer.read_bytes()
    for bit in range(0, len(content) * 8, 5):
        flip_bit = bytearray(content)
        flip_bit[bit // 8] ^= 1 << bit % 8
        newer.write_bytes(flip_bit)
        journal, recovered = open_journal(with_snapshots)
        assert recovered.snapshot == b"state after 10"
        assert recovered_numbers(recovered) == list(range(11, 24))
        assert recovered.notes[0].startswith(str(newer))
        journal.close()
    for size in range(0, len(content), 7):
        newer.write_bytes(content[:size])
        journal, recovered = open_journal(with_snapshots)
        assert recovered.snapshot == b"state after 10"
        journal.close()


def test_an_older_snapshot_does_not_serve_without_its_segments(with_snapshots: Path) -> None:
    segments(with_snapshots)[0].unlink()
    flip(snapshots(with_snapshots)[-1], 100)
    with pytest.raises(JournalDamaged) as refused:
        open_journal(with_snapshots)
    assert str(refused.value).startswith(f"{snapshots(with_snapshots)[-1]}: damaged: its checksum is wrong;")
    assert "restore the folder from a copy" in str(refused.value)
    # The newer one alone would have done.
    flip(snapshots(with_snapshots)[-1], 100)
    open_journal(with_snapshots)[0].close()


def test_the_only_snapshot_damaged_is_refused(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10]])
    journal.write_snapshot(b"state")
    journal.close()
    flip(snapshots(tmp_path)[0], 94)
    with pytest.raises(JournalDamaged, match="its checksum is wrong; an older state cannot serve instead"):
        open_journal(tmp_path)
    snapshots(tmp_path)[0].unlink()
    with pytest.raises(JournalDamaged, match="entry 1 should follow, but the oldest segment begins with"):
        open_journal(tmp_path)


def test_a_snapshot_without_the_segment_after_it_is_refused(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path)
    commit_entries(journal, [[10]])
    journal.write_snapshot(b"state")
    journal.close()
    segments(tmp_path)[0].unlink()
    with pytest.raises(JournalDamaged, match="entry 2 should follow, but there is no segment"):
        open_journal(tmp_path)


def test_the_segments_must_reach_the_snapshot_that_is_damaged(with_snapshots: Path) -> None:
    """Entries that only the damaged snapshot included would be lost without a word."""
    for path in segments(with_snapshots)[-1:]:
        path.unlink()
    flip(snapshots(with_snapshots)[-1], 100)
    with pytest.raises(JournalDamaged, match="segment 5 is missing"):
        open_journal(with_snapshots)


# --- repair ---


def test_a_journal_that_is_whole_needs_no_repair(long: Path) -> None:
    assert repair(long) is None
    assert not (long / LOG_NAME).exists()


def test_a_repair_keeps_what_is_before_the_damage(long: Path) -> None:
    flip(segments(long)[2], HEADER_BYTES + 5 * (RECORD_HEAD_BYTES + 4 + 9_000) + 100)
    loss = find_loss(long)
    assert loss is not None
    assert (loss.last_kept, loss.last_known, loss.entries) == (17, 30, 13)
    assert loss.segments == [path.name for path in segments(long)[3:]]
    assert repair(long) == loss
    assert len(list(long.glob(f"*{GIVEN_UP_SUFFIX}"))) == 2
    assert "entries 18 to 30 given up; " in (long / LOG_NAME).read_text()
    assert find_loss(long) is None
    journal, recovered = open_journal(long)
    assert recovered_numbers(recovered) == list(range(1, 18))
    commit_entries(journal, [[9_000]] * 20)
    journal.close()
    journal, recovered = open_journal(long)
    assert recovered_numbers(recovered) == list(range(1, 38))
    journal.close()


@pytest.mark.parametrize("spoil", [remove_the_last, remove_one_within])
def test_a_repair_goes_on_without_segments_that_are_gone(long: Path, spoil: Callable[[Path], None]) -> None:
    spoil(long)
    loss = repair(long)
    assert loss is not None
    journal, recovered = open_journal(long)
    assert recovered_numbers(recovered) == list(range(1, loss.last_kept + 1))
    journal.close()


def test_a_repair_at_every_byte_that_was_cut(written: Path) -> None:
    data, ends = written.read_bytes(), ends_of(BATCHES)
    for size in range(HEADER_BYTES, ends[-1]):
        written.write_bytes(data[:size])
        loss = repair(written.parent)
        kept = entries_in(sum(end <= size for end in ends))
        assert loss is not None
        assert loss.entries == len(entries_in(len(BATCHES))) - len(kept)
        journal, recovered = open_journal(written.parent)
        assert recovered_numbers(recovered) == kept
        journal.close()


def test_a_repair_needs_a_journal_that_nobody_has_open(long: Path) -> None:
    journal, _ = open_journal(long)
    with pytest.raises(InputError, match="in use by process"):
        repair(long)
    journal.close()


def test_what_cannot_be_repaired_is_said(long: Path) -> None:
    remove_the_first(long)
    with pytest.raises(InputError, match="entry 1 is gone: restore the folder from a copy"):
        repair(long)
