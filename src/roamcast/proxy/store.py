"""The buffers on disk: what a proxy has acknowledged survives `kill -9`, or a power loss if so configured."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from roamcast import __version__
from roamcast.proxy.buffers import Buffers, Entry, decode_entry, encode_entry
from roamcast.storage.journal import Journal, Sync

log = logging.getLogger("roamcast.proxy")


class Store:
    """The journal of a proxy, and the buffers recovered from it."""

    def __init__(self, folder: Path, sync: Sync = "process", bytes_max: int = 4 << 30) -> None:
        self._journal, recovered = Journal.open(
            folder, sync=sync, version=__version__, journal_bytes_max=bytes_max
        )
        try:
            for note in recovered.notes:
                log.warning("%s", note)
            self.buffers = Buffers() if recovered.snapshot is None else Buffers.thaw(recovered.snapshot)
            for data in recovered.entries:
                self.buffers.apply(decode_entry(data))
        except BaseException:
            self._journal.close()
            raise

    def write(self, entries: Iterable[Entry]) -> None:
        """Write entries; they are durable when this returns. JournalFailed if they cannot be written."""
        for entry in entries:
            self._journal.append(encode_entry(entry))
        self._journal.commit()

    def tend(self) -> None:
        """Keep the journal short; called regularly."""
        outcome = self._journal.poll_snapshot()
        if outcome is not None and outcome.error is not None:
            log.warning("no snapshot of the buffers: %s", outcome.error)
        if self._journal.wants_snapshot:
            self._journal.begin_snapshot().write_in_child(self.buffers.freeze)

    def abandon(self) -> None:
        """Release the folder without a snapshot: a step failed, and the buffers may be inconsistent."""
        self._journal.close()

    def close(self) -> None:
        """Stop cleanly with a snapshot, from which any version of the code can start."""
        try:
            if self._journal.failed is None:
                self._journal.write_snapshot(self.buffers.freeze())
        finally:
            self._journal.close()
