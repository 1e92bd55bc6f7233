"""Journal folders as a broker leaves them, written byte for byte the same every time, and read as it does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from roamcast import __version__
from roamcast.broker.inputs import REPLAY
from roamcast.config.sections import Config
from roamcast.daemon.main import recover
from roamcast.storage import journal as journals
from roamcast.storage.journal import SEGMENT_BYTES_MIN, Journal
from roamcast.storage.recovery import Recovered


def open_journal(folder: Path) -> tuple[Journal, Recovered]:
    return Journal.open(
        folder, sync="process", version=__version__, replay=REPLAY, segment_bytes=SEGMENT_BYTES_MIN
    )


def write_journal(folder: Path, snapshot: bytes, entries: Sequence[bytes]) -> None:
    """A snapshot, and the entries after it."""
    markers = count(1)
    with patch.object(journals, "new_marker", lambda: next(markers)):
        journal, _ = open_journal(folder)
        ticket = journal.begin_snapshot()
        ticket.write(snapshot)
        ticket.commit()
        for entry in entries:
            journal.write(entry)
        journal.close()
    for path in folder.iterdir():
        if path.suffix not in (".snapshot", ".journal"):
            path.unlink()


def read_machine(folder: Path) -> Any:
    """The machine that a broker has when it has read its journal."""
    journal, recovered = open_journal(folder)
    try:
        return recover(Config(data=str(folder.parent)), recovered, lambda number, rows: None)
    finally:
        journal.close()
