"""The buffers on disk: what a proxy has acknowledged survives `kill -9`, or a power loss if asked to."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from roamcast import __version__
from roamcast.proxy.buffers import Buffers, Entry, decode_entry, encode_entry
from roamcast.storage.journal import Journal, Sync

log = logging.getLogger("roamcast.proxy")


class Store:
    """The journal of a proxy, and the buffers that it gave when it was opened."""

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
        """When this returns they are promised; JournalFailed if they cannot be."""
        for entry in entries:
            self._journal.append(encode_entry(entry))
        self._journal.commit()

    def tend(self) -> None:
        """Now and then: keep the journal short."""
        outcome = self._journal.poll_snapshot()
        if outcome is not None and outcome.error is not None:
            log.warning("no snapshot of the buffers: %s", outcome.error)
        if self._journal.wants_snapshot:
            self._journal.begin_snapshot().write_in_child(self.buffers.freeze)

    def abandon(self) -> None:
        """Give the folder free without a snapshot: a step has failed halfway in the buffers."""
        self._journal.close()

    def close(self) -> None:
        """A clean stop leaves a snapshot, which any version of the code can start from."""
        try:
            if self._journal.failed is None:
                self._journal.write_snapshot(self.buffers.freeze())
        finally:
            self._journal.close()
