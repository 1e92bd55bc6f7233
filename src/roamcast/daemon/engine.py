"""The turns of a daemon: gather what happened, step the site once, journal, then let the effects out.

Everything that arrives in one round of the event loop is one turn. What a turn
promises is in the journal before anything of it can be seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from roamcast.core.records import Row
from roamcast.core.snapshot import freeze
from roamcast.daemon.journal import Journal, JournalFailed
from roamcast.site.inputs import SiteInput, Tick, encode_entry
from roamcast.site.site import Site

log = logging.getLogger("roamcast")

JOURNAL_RETRY_S = 1.0


class Output(Protocol):
    """Where the effects of a turn go."""

    def write(self, connection: int, data: bytes) -> None: ...
    def close(self, connection: int) -> None: ...
    def write_link(self, peer: str) -> None:
        """The link to this peer has something to write."""

    def close_link(self, peer: str, why: str) -> None: ...


class Engine:
    def __init__(
        self,
        site: Site,
        journal: Journal | None,
        output: Output,
        records: Callable[[list[Row]], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.site = site
        self.journal = journal
        self.turns = 0
        self.is_promising = True
        """False while the journal cannot be written: then nothing is answered that would promise."""
        self._output = output
        self._records = records
        self._clock = clock
        self._now = 0.0
        self._pending: list[SiteInput] = []
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._loop = asyncio.get_running_loop()

    def push(self, item: SiteInput) -> None:
        """Something happened; it is dealt with in the next turn."""
        self._pending.append(item)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.turn)

    def turn(self) -> None:
        self._is_scheduled = False
        if not self.is_promising:
            return
        inputs, self._pending = self._pending, []
        # A clock may be set back; the site's time never goes back.
        now = self._now = max(self._clock(), self._now)
        site, journal, output = self.site, self.journal, self._output
        effects = site.step(now, inputs)
        self.turns += 1
        if effects.durable:
            if journal is not None:
                try:
                    journal.append(encode_entry(now, effects.durable))
                    journal.commit()
                except JournalFailed as error:
                    self._stop_promising(error)
                    return
            site.journalled()
        for connection, parts in effects.writes.items():
            output.write(connection, parts[0] if len(parts) == 1 else b"".join(parts))
        for connection in effects.closes:
            output.close(connection)
        for peer, why in effects.link_closes:
            output.close_link(peer, why)
        for peer, end in site.links.ends.items():
            if end.has_more:
                output.write_link(peer)
        if effects.records and self._records is not None:
            self._records(effects.records)
        self._set_timer()
        if journal is not None and journal.wants_snapshot:
            self._snapshot(journal)

    def _snapshot(self, journal: Journal) -> None:
        """Write the state down, in a copy of this process, so that nobody has to wait."""
        try:
            ticket = journal.begin_snapshot()
            ticket.write_in_child(lambda: freeze(self.site))
        except JournalFailed as error:
            log.warning("%s", error)
            return
        child = ticket.child
        if child is not None:
            self._loop.add_reader(child.fileno(), self._on_snapshot, journal, child.fileno())

    def _on_snapshot(self, journal: Journal, file: int) -> None:
        self._loop.remove_reader(file)
        outcome = journal.poll_snapshot()
        if outcome is None:
            self._loop.call_later(0.1, journal.poll_snapshot)
        elif outcome.error is not None:
            log.warning("no snapshot: %s", outcome.error)

    def stop(self) -> None:
        """Finish what is pending and leave a snapshot, so that the next start has nothing to replay."""
        self.turn()
        if self._timer is not None:
            self._timer.cancel()
        if self.journal is not None and self.is_promising:
            try:
                self.journal.write_snapshot(freeze(self.site))
            except JournalFailed as error:
                log.warning("%s", error)

    def _stop_promising(self, error: JournalFailed) -> None:
        """The site is ahead of the journal now: nothing of that turn may be seen before it is written."""
        raise error

    def _set_timer(self) -> None:
        deadline = self.site.deadline()
        if deadline == self._deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._deadline = deadline
        if deadline is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._deadline = None
        self.push(Tick())
