"""Any history of commits, snapshots, failures, stops and crashes: what was promised is always there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.journals import commit_entries, entry, open_journal, recovered_numbers, segments

from roamcast.storage.journal import Journal, JournalFailed, Sync

COMMITS = st.lists(st.lists(st.integers(20, 40_000), min_size=1, max_size=3), min_size=1, max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("commit"), COMMITS),
    st.tuples(st.sampled_from(["snapshot", "child", "stop", "crash", "give up a snapshot"]), st.none()),
    st.tuples(st.just("fail"), st.integers(1, 3)),
    st.tuples(st.just("tear"), st.integers(1, 200)),
)


class History:
    """A journal and what it has promised. The state is the number of the last entry."""

    def __init__(self, folder: Path, sync: Sync) -> None:
        self.folder = folder
        self.sync = sync
        self.journal = self.open(0)

    def open(self, promised: int) -> Journal:
        journal, recovered = open_journal(self.folder, sync=self.sync, snapshot_after_bytes=100_000)
        state = int(recovered.snapshot or b"0")
        assert recovered_numbers(recovered) == list(range(state + 1, promised + 1))
        assert journal.last_sequence == promised
        return journal

    def crash(self) -> None:
        """End without a word: only what the system has been given is there."""
        self.journal._spares.wait()
        os.close(self.journal._file)
        os.close(self.journal._lock)

    def happen(self, event: str, detail: object) -> None:
        journal = self.journal
        promised = journal.last_sequence
        if event == "commit":
            commit_entries(journal, detail)  # type: ignore[arg-type]
        elif event == "snapshot":
            journal.write_snapshot(b"%d" % promised)
        elif event == "child":
            journal.begin_snapshot().write_in_child(lambda: b"%d" % promised)
            commit_entries(journal, [[30]])
            while journal.poll_snapshot() is None:
                os.sched_yield()
        elif event == "give up a snapshot":
            journal.begin_snapshot().abandon()
        elif event == "fail":
            self.fail(int(str(detail)))
        else:
            if event == "stop":
                journal.close()
            else:
                self.crash()
            if event == "tear":
                self.tear(int(str(detail)))
            self.journal = self.open(promised)

    def fail(self, times: int) -> None:
        """A disk that does not take the next writes, and then does."""
        self.journal.append(entry(self.journal.last_sequence + 1))
        call = "fdatasync" if self.sync == "group" else "pwrite"
        with patch.object(os, call, side_effect=OSError(errno.EIO, "broken")):
            with pytest.raises(JournalFailed):
                self.journal.commit()
            for _ in range(times):
                with pytest.raises(JournalFailed):
                    self.journal.try_again()
        self.journal.try_again()

    def tear(self, size: int) -> None:
        """The crash came in the middle of a write."""
        path = segments(self.folder)[-1]
        content = bytearray(path.read_bytes())
        end = self.journal._offset
        content[end : end + size] = os.urandom(size)
        path.write_bytes(content)


@pytest.mark.parametrize("sync", ["process", "group"])
@given(events=st.lists(EVENTS, max_size=12))
@settings(max_examples=40, deadline=None)
def test_whatever_happens(sync: Sync, events: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as name:
        history = History(Path(name), sync)
        for event, detail in events:
            history.happen(event, detail)
        history.happen("stop", None)
        history.journal.close()
