"""The event log of a broker: rows go to a thread that turns them into Parquet files.

The highest sequence in the last file says which rows are on disk. Rows up to it are skipped, so that a replay
writes only the rows that a crash had lost. Logs are movement traces of people: names become keyed pseudonyms,
attributes and filters are left out unless configured, and old files are deleted.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from roamcast.config.sections import Config, Events
from roamcast.errors import InputError
from roamcast.mqtt.server.sessions import client_of, public_name
from roamcast.protocol.records import Row
from roamcast.records.parquet import LogWriter, highest_sequences, log_files
from roamcast.records.pseudonyms import pseudonyms

log = logging.getLogger("roamcast.events")

ROWS_WAITING_MAX = 2_000_000
ROWS_PER_BATCH = 4_000
DAY_S = 86_400.0
SYNC_WITHIN_S = 5.0


class EventLog:
    """Call `take` with the rows of each turn; `close` at the end."""

    def __init__(self, config: Config) -> None:
        events: Events = config.events
        self.written = 0
        """Rows in files that are closed."""
        self.lost = 0
        """Rows that could not be written, or that the queue had no room for."""
        self._folder = config.events_folder
        self._prefix = f"events-{config.id}"
        self._pseudonym = pseudonyms(events.pseudonym_key) if events.pseudonym_key else None
        self._attributes = events.attributes
        self._retention_s = events.retention_days * DAY_S if events.retention_days is not None else None
        self._file_s = events.file_s
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"events.folder {self._folder}: {error.strerror}") from None
        for path in self._folder.glob(f".{self._prefix}-*.unfinished"):
            path.unlink()  # A crash left this file; its rows are in the journal, or lost.
        self._writer: LogWriter | None = LogWriter(self._folder, config.network, continued=self._prefix)
        self._run = config.network
        self._on_disk = self._highest(config.id)
        self._waiting: list[Row] = []
        self._queued_rows = 0
        self._batches: queue.SimpleQueue[list[Row] | threading.Event | None] = queue.SimpleQueue()
        """Rows to write; an event to set when all rows before it are in closed files; None at the end."""
        self._failed = False
        self._open_rows = 0
        """Rows in the file that is not closed yet."""
        self._thread = threading.Thread(target=self._write_all, name="event log", daemon=True)
        self._thread.start()

    def _highest(self, node: str) -> int:
        for path in reversed(log_files(self._folder, self._prefix)):
            try:
                return highest_sequences(path).get(node, 0)
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"{path}: cannot be read ({error}); move it away") from None
        return 0

    # --- in the loop ---

    def take(self, rows: list[Row]) -> None:
        self._waiting += self.missing(rows)
        if len(self._waiting) >= ROWS_PER_BATCH:
            self.flush()

    def missing(self, rows: list[Row]) -> list[Row]:
        """Return those of replayed rows that are not on the disk."""
        if not rows or rows[0].sequence > self._on_disk:
            return rows
        return [row for row in rows if row.sequence > self._on_disk]

    def replayed(self) -> None:
        """Treat every row from now on as new, even if the journal was started anew and counts from the
        beginning."""
        self._on_disk = 0

    def flush(self) -> None:
        """Pass waiting rows to the thread."""
        rows, self._waiting = self._waiting, []
        if self._queued_rows > ROWS_WAITING_MAX:
            self.lost += len(rows)
        elif rows:
            self._queued_rows += len(rows)
            self._batches.put(rows)

    def sync(self) -> None:
        """Wait until every row so far is in a closed file: a snapshot removes the journal entries of these
        rows."""
        self.flush()
        done = threading.Event()
        self._batches.put(done)
        if not done.wait(SYNC_WITHIN_S):
            log.warning("writing the event log takes long; a crash now may lose some of its rows")

    def close(self) -> None:
        """Write everything and close the last file."""
        self.flush()
        self._batches.put(None)
        self._thread.join()

    # --- in the thread ---

    def _write_all(self) -> None:
        roll_at = time.monotonic() + self._file_s
        while True:
            try:
                rows = self._batches.get(timeout=max(0.01, roll_at - time.monotonic()))
            except queue.Empty:
                rows = []
            if isinstance(rows, threading.Event):
                self._try(self._roll)
                rows.set()
                continue
            if rows:
                self._open_rows += len(rows)
                self._try(lambda rows=rows: self._write(rows))  # type: ignore[misc]
                self._queued_rows -= len(rows)
            if rows is None or time.monotonic() >= roll_at:
                self._try(self._roll)
                roll_at = time.monotonic() + self._file_s
            if rows is None:
                return

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, pa.ArrowException, InputError) as error:
            self.lost += self._open_rows
            self._open_rows = 0
            self._writer = None
            if not self._failed:
                log.warning("the event log cannot be written, rows are lost: %s", error)
            self._failed = True

    def _write(self, rows: list[Row]) -> None:
        if self._writer is None:
            # Rows that the last file could not store are lost; this row begins a new file.
            self._writer = LogWriter(self._folder, self._run, continued=self._prefix)
        self._writer.write([self._private(row) for row in rows])

    def _private(self, row: Row) -> Row:
        if not self._attributes and (row.attributes is not None or row.filter is not None):
            row = row._replace(attributes=None, filter=None)
        if row.client is not None or row.publisher is not None:
            row = row._replace(
                client=client_of(row.client) if row.client else row.client,
                publisher=public_name(row.publisher) if row.publisher else row.publisher,
            )
        name = self._pseudonym
        if name is not None and (row.client or row.publisher):
            row = row._replace(
                client=name(row.client) if row.client else row.client,
                publisher=name(row.publisher) if row.publisher else row.publisher,
            )
        return row

    def _roll(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.written += self._open_rows
            self._open_rows = 0
            if self._failed:
                log.info("the event log can be written again")
            self._failed = False
        self._delete_old()

    def _delete_old(self) -> None:
        if self._retention_s is None:
            return
        oldest = time.time() - self._retention_s
        # The last file stays: it says which rows have been written.
        for path in log_files(self._folder, self._prefix)[:-1]:
            if path.stat().st_mtime < oldest:
                path.unlink()
