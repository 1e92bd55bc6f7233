"""Records that are put into a segment's memory are in its file; where that cannot be, they are written."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from tests.storage.journals import SEGMENT_BYTES, commit_entries, open_journal, recovered_numbers, segments

from roamcast.storage import mapping
from roamcast.storage.mapping import FILE_SYSTEMS, READY_BYTES, MappedSegment, file_system_of


@pytest.fixture
def file(tmp_path: Path) -> int:
    file = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 3 * READY_BYTES)
    return file


def needs_mapping(folder: Path) -> None:
    found = file_system_of(folder)
    if found not in FILE_SYSTEMS:
        pytest.skip(f"temporary files are on {found or 'an unknown file system'}, which is not mapped")


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where files are written to."""
    written: list[int] = []
    write = os.pwrite

    def pwrite(file: int, data: bytes, offset: int) -> int:
        written.append(offset)
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return written


def test_what_is_put_there_is_in_the_file(file: int, tmp_path: Path) -> None:
    needs_mapping(tmp_path)
    segment = MappedSegment(file)
    wanted = bytearray(3 * READY_BYTES)
    # Over the ends of what is ready, from behind to before it, and up to the last byte.
    for offset in (0, 100, READY_BYTES - 5, 2 * READY_BYTES + 1, 50, 3 * READY_BYTES - 10):
        record = b"%010d" % offset
        assert segment.put(record, offset)
        wanted[offset : offset + 10] = record
    assert os.pread(file, len(wanted), 0) == wanted
    assert not segment.put(bytes(10), 3 * READY_BYTES - 9)
    assert os.fstat(file).st_size == len(wanted)
    segment.close()


def test_a_system_that_makes_no_pages_ready_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_mapping(tmp_path)
    monkeypatch.setattr(mapping, "MADV_POPULATE_WRITE", 9_999)
    written = count_writes(monkeypatch)
    journal, _ = open_journal(tmp_path, sync="process")
    written.clear()
    commit_entries(journal, [[100]] * 5)
    assert len(written) == 10  # The records and their watermarks.
    journal.close()
    assert recovered_numbers(open_journal(tmp_path)[1]) == [1, 2, 3, 4, 5]


def test_single_entries_are_put_into_memory_over_many_segments_and_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_mapping(tmp_path)
    written = count_writes(monkeypatch)
    count = 0
    for _ in range(3):
        journal, recovered = open_journal(tmp_path, sync="process")
        assert recovered_numbers(recovered) == list(range(1, count + 1))
        written.clear()
        commit_entries(journal, [[1_000]] * 150)
        count += 150
        # The head of each segment is written, and what comes to lie on a half or on an end.
        assert len(written) < 30
        journal.close()
    assert len(segments(tmp_path)) > 3 * 150 * 1_000 // SEGMENT_BYTES - 1


def test_the_file_system_of_a_folder_is_known_or_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system_of(Path("/proc")) == "proc"
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    assert any(file_system_of(tmp_path) in line.partition(" - ")[2].split()[:1] for line in mounts)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert file_system_of(tmp_path) == ""


def test_a_page_is_what_the_system_says() -> None:
    assert READY_BYTES % mmap.PAGESIZE == 0
