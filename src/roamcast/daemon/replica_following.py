"""A follower's side of the stream: it writes, syncs and acknowledges entries, and steps its own copy.

Clients of the leader wait for the acknowledgement; nobody waits for the copy. So received entries are written
first, and the copy steps one entry in each round of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from roamcast import __version__
from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import REPLAY, Entry, Started
from roamcast.broker.making import make_machine
from roamcast.broker.site_copy import SiteCopy
from roamcast.config.addresses import split_endpoint
from roamcast.daemon.engine import MARK_S
from roamcast.daemon.settings import site_settings
from roamcast.errors import InputError
from roamcast.net.complaints import Complaints
from roamcast.net.handshake import Ended, LinkRefusal
from roamcast.net.replica_stream import ReplicaStream
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import freezing
from roamcast.replication.messages import (
    Acknowledged,
    AnyMessage,
    Joining,
    Records,
    Released,
    SnapshotPart,
    Unwelcome,
    Welcome,
)
from roamcast.replication.terms import Terms
from roamcast.storage.journal import JournalFailed

if TYPE_CHECKING:
    from roamcast.daemon.replicating import Replicating

log = logging.getLogger("roamcast.replication")

RETRY_S = 0.2
BEHIND_MAX = 500
"""Maximum number of entries that the copy is behind the journal: a promotion may have to wait for these."""


class Following:
    """The stream to the leader."""

    def __init__(
        self,
        host: Replicating,
        site: AnyMachine | None,
        is_foreign: bool,
        rows: deque[tuple[int, list[Row]]],
    ) -> None:
        """`site` has replayed the journal; `is_foreign`: the data in the folder was never part of a
        replicated site; `rows`: those of replayed entries."""
        self._host = host
        self.copy = SiteCopy(site, host.replica.last, self._make)
        if site is not None:
            site.endpoint.encoder.is_mute = True
        self._is_foreign = is_foreign
        self._released = 0
        """Last entry whose effects the leader has released, as far as it has reported."""
        self._rows = rows
        """Rows that the copy recorded, by entry, until the entry's effects are known to be released. A leader
        that was lost before that may be succeeded by one without its last entries."""
        self._stepping: asyncio.Handle | None = None
        self._marking: asyncio.TimerHandle | None = None
        host.journal.mark_after_s = MARK_S
        self._leader: ReplicaStream | None = None
        self._snapshot: bytearray | None = None
        """The parts of a snapshot received so far."""
        self._welcome: Welcome | None = None
        """The leader's message that announced this snapshot."""
        self._is_copy = False
        """True if the leader's journal begins with the local one."""
        self._complaints = Complaints()

    @property
    def lag(self) -> int:
        """Entries that the leader has and this replica has not applied."""
        return max(0, self._released - self._host.replica.last) + self.copy.behind

    def close(self, why: str) -> None:
        if self._leader is not None:
            self._leader.close(why)

    async def run(self) -> None:
        """Stay connected to the current leader."""
        replica = self._host.replica
        while True:
            view = replica.view
            if replica.role == "follower" and view.address and view.boot != replica.boot:
                await self._follow_leader(view.address)
            await asyncio.sleep(RETRY_S / 4 if not view.leader else RETRY_S)

    async def _follow_leader(self, address: str) -> None:
        replica, timing = self._host.replica, self._host.timing
        stream = self._host.new_stream(is_dialer=True)
        host, port = split_endpoint(address)
        try:
            async with asyncio.timeout(timing.lease_s):
                await asyncio.get_running_loop().create_connection(lambda: stream.connection, host, port)
            await stream.open(timing.lease_s)
        except (OSError, TimeoutError, LinkRefusal, Ended) as error:
            if self._complaints.is_due(address, str(error)):
                log.warning("the leader at %s is out of reach: %s", address, error or "no answer")
            return
        if replica.role != "follower":
            stream.close("this replica leads now")
            return
        self._leader, self._snapshot, self._is_copy = stream, None, False
        stream.on_messages = lambda messages: self._on_leader_said(stream, messages)
        stream.sign_of_life = lambda: Acknowledged(replica.last)
        stream.begin(timing.lease_s / 10, timing.lease_s)
        terms, last = replica.terms, replica.last
        stream.send(
            Joining(replica.name, replica.disk, terms.epoch_of(last), last, terms.epoch, REPLAY, __version__)
        )
        await stream.connection.ended.wait()
        self._leader = None

    def _on_leader_said(self, stream: ReplicaStream, messages: list[AnyMessage]) -> None:
        if self._host.replica.role != "follower" or not stream.is_open:
            return
        entries: list[bytes] = []
        for message in messages:
            match message:
                case Records(first, some):
                    if first != self._host.replica.last + len(entries) + 1:
                        stream.close(f"entry {first} came after {self._host.replica.last + len(entries)}")
                        return
                    entries += some
                case Welcome():
                    self._on_welcome(stream, message)
                case SnapshotPart(data):
                    self._on_snapshot_part(data)
                case Unwelcome(why):
                    if self._complaints.is_due(stream.peer, why):
                        log.warning("%s refuses this replica: %s", stream.peer, why)
                    stream.close(why)
                case Released(released, settled) if self._is_copy:
                    self._released = released
                    self.tell_rows(released)
                    self.copy.learn_settled(settled, self._host.replica.last + len(entries))
        if entries:
            self._take(stream, entries)

    def _on_welcome(self, stream: ReplicaStream, welcome: Welcome) -> None:
        terms = self._host.replica.terms
        if welcome.epoch < terms.epoch:
            stream.close(f"it leads with epoch {welcome.epoch}, and {terms.epoch} has begun")
            return
        if welcome.snapshot_bytes < 0:
            self._is_copy = True
            self._host.replica.terms = Terms(welcome.terms)
            self._host.save()
            stream.send(Acknowledged(self._host.replica.last))
        elif self._is_foreign:
            why = f"{self._host.journal.folder} holds a broker that is no replica of {self._host.config.id}"
            if self._complaints.is_due("foreign", why):
                log.error("%s: start this replica with an empty data folder, then it is sent a copy", why)
            stream.close(why)
        else:
            self._snapshot, self._welcome = bytearray(), welcome

    def _on_snapshot_part(self, data: bytes) -> None:
        """Collect parts of a snapshot. The complete snapshot replaces all local data."""
        snapshot, welcome = self._snapshot, self._welcome
        if snapshot is None or welcome is None:
            return
        snapshot += data
        if len(snapshot) < welcome.snapshot_bytes:
            return
        # The local data no longer belongs to an id in etcd, and its origin is unknown.
        self._host.replica.disks, self._host.replica.terms = [secrets.token_hex(8)], Terms()
        self._host.save()
        try:
            self._host.journal.begin_anew(welcome.last, bytes(snapshot))
        except JournalFailed as error:
            self._host.begin_anew(str(error))
        self._host.replica.terms = Terms(welcome.terms)
        self._host.save()
        self._host.begin_anew(f"the leader has sent a snapshot up to entry {welcome.last}")

    def _take(self, stream: ReplicaStream, entries: list[bytes]) -> None:
        """Write, sync and acknowledge entries; the local copy steps them later."""
        journal, replica = self._host.journal, self._host.replica
        try:
            if len(entries) == 1:
                journal.write(entries[0])
            else:
                for data in entries:
                    journal.append(data)
                journal.commit()
        except JournalFailed as error:
            time.sleep(RETRY_S)
            self._host.begin_anew(str(error))
        replica.last = journal.last_sequence
        stream.send_now(Acknowledged(replica.last))
        self.copy.take(entries)
        if journal.is_unmarked and self._marking is None:
            self._marking = asyncio.get_running_loop().call_later(MARK_S, self._mark)
        if journal.wants_snapshot:
            self._write_snapshot()
        elif self._stepping is None:
            self._stepping = asyncio.get_running_loop().call_soon(self._go_on)
        journal.poll_snapshot()

    def _mark(self) -> None:
        self._marking = None
        self._host.journal.mark()

    def _go_on(self) -> None:
        self.catch_up(max(1, self.copy.behind - BEHIND_MAX))
        self._stepping = asyncio.get_running_loop().call_soon(self._go_on) if self.copy.behind else None

    def catch_up(self, entries: int | None = None) -> None:
        """Let the copy step written entries; all of them if no number is given."""
        copy = self.copy
        for _ in range(copy.behind if entries is None else min(entries, copy.behind)):
            try:
                number, rows = copy.step()
            except Exception as error:
                # The leader has stepped this entry, so the copy differs from what the journal says.
                log.exception("the copy of the site has failed")
                self._host.begin_anew(f"the copy of the site has failed: {error}")
            if rows and self._host.records is not None:
                self._rows.append((number, rows))

    def _make(self, entry: Entry) -> AnyMachine:
        first = entry.inputs[0]
        assert isinstance(first, Started)
        site = make_machine(first.settings)
        try:
            site.check_start(site_settings(self._host.config))
        except InputError as error:
            self._host.begin_anew(str(error))
        site.endpoint.encoder.is_mute = True
        return site

    def tell_rows(self, released: int) -> None:
        """Write the rows recorded up to this entry to the event log."""
        while self._rows and self._rows[0][0] <= released and self._host.records is not None:
            self._host.records(self._rows.popleft()[1])

    def _write_snapshot(self) -> None:
        self.catch_up()
        site = self.copy.machine
        if site is not None:
            with suppress(JournalFailed):
                self._host.journal.begin_snapshot().write_in_child(lambda: freezing(site))
