"""Power is lost, and the disk forgets what was not synced: nothing that was promised is missing."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.storage.forgetful_disk import ForgetfulDisk, PowerLost, lose_power
from tests.storage.journals import entry, open_journal

from roamcast.errors import InputError
from roamcast.storage.journal import Journal

SEEDS = 60
LIVES = 3


class History:
    """A journal through several losses of power, and what must be in it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.shadow = folder / "journal", folder / "shadow"
        self.folder.mkdir()
        self.disk = ForgetfulDisk(self.folder, self.shadow)
        self.rng = random.Random(seed)
        self.promised = 0
        self.written = 0
        """The last entry that was begun."""

    def live(self) -> None:
        """Open the journal, check it, and write until the power is lost."""
        self.disk.syncs_left = None
        self.disk.install()
        journal: Journal | None = None
        try:
            journal, recovered = open_journal(self.folder, sync="group", snapshot_after_bytes=64 << 10)
            journal.mark_after_s = 3600.0
            base = int(recovered.snapshot or b"0")
            numbers = [int(one.partition(b":")[0]) for one in recovered.entries]
            last = base + len(numbers)
            assert numbers == list(range(base + 1, last + 1))
            assert self.promised <= last <= self.written, (self.promised, last, self.written)
            assert not recovered.lost
            self.promised = self.written = last
            self.disk.syncs_left = self.rng.randrange(60)
            while True:
                self._write(journal)
        except PowerLost:
            pass
        finally:
            self.disk.remove()
            if journal is not None:
                _abandon(journal)
        lose_power(self.folder, self.shadow, self.rng)

    def _write(self, journal: Journal) -> None:
        if self.rng.random() < 0.1:
            journal.write_snapshot(b"%d" % self.promised)
            return
        if self.rng.random() < 0.5:
            self.written += 1
            journal.write(entry(self.written, self.rng.choice((12, 100, 700, 9_000))))
            self.promised = self.written
            return
        if self.rng.random() < 0.1:
            journal.mark()
        count = self.rng.choice((1, 1, 1, 3, 20))
        for number in range(self.promised + 1, self.promised + count + 1):
            self.written = number
            journal.append(entry(number, self.rng.choice((12, 100, 700, 9_000))))
        journal.commit()
        self.promised = self.written


def _abandon(journal: Journal) -> None:
    """Close its files, and write nothing more."""
    journal._spares.wait()
    journal._let_go()
    os.close(journal._lock)
    journal._lock = -1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_promised_survives(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(LIVES):
        history.live()


@pytest.mark.parametrize(
    ("forgotten", "instead"),
    [
        ("roamcast.storage.journal.Journal._sync", lambda self: None),
        ("roamcast.storage.snapshots.sync_folder", lambda folder: None),
        ("roamcast.storage.spares.sync_folder", lambda folder: None),
        ("os.RWF_DSYNC", 0),
    ],
)
def test_a_journal_that_does_not_sync_is_caught(
    tmp_path: Path, forgotten: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, instead)
    assert any(_breaks(tmp_path / f"{seed}", seed) for seed in range(SEEDS))


def _breaks(folder: Path, seed: int) -> bool:
    folder.mkdir()
    try:
        test_what_was_promised_survives(folder, seed)
    except (AssertionError, InputError):
        return True
    return False
