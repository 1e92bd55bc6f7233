"""The leader's side of the streams between replicas: followers join, and are sent every entry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from roamcast import __version__
from roamcast.broker.inputs import REPLAY
from roamcast.daemon.clock import since_boot
from roamcast.net.replica_stream import ReplicaStream
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
from roamcast.storage.recovery import entries_after
from roamcast.storage.segments import SNAPSHOT_SUFFIX, JournalDamaged, numbered, read_snapshot

if TYPE_CHECKING:
    from roamcast.daemon.replicating import Replicating

log = logging.getLogger("roamcast.replication")

RECORDS_BYTES = 128 * 1024
"""Bytes of entries sent together to a follower that catches up."""
PART_BYTES = 256 * 1024
CATCH_UP_BYTES_MAX = 64 << 20
"""A follower that needs more bytes of entries is sent a snapshot. One that leaves more of them unread is too
slow."""


class Leading:
    """The streams to the followers."""

    def __init__(self, host: Replicating) -> None:
        self._host = host
        self._streams: dict[str, ReplicaStream] = {}
        """Streams to followers that get every entry as it is written."""
        self._waiting: dict[str, ReplicaStream] = {}
        """Streams to followers that wait for a snapshot."""

    def close(self, why: str) -> None:
        for stream in list(self._streams.values()):
            stream.close(why)

    def take(self, stream: ReplicaStream) -> None:
        """Accept a connection of another replica that has proved its identity."""
        host, lease_s = self._host, self._host.timing.lease_s
        stream.on_messages = lambda messages: self._on_follower_said(stream, messages)
        stream.on_lost = lambda: self._on_follower_lost(stream)
        stream.sign_of_life = lambda: Released(host.replica.released, self._settled())
        stream.begin(lease_s / 10, lease_s)

    def writing(self, entry: bytes) -> None:
        """Send an entry before this process writes it, so that both happen in parallel."""
        number = self._host.journal.last_sequence + 1
        self._host.replica.on_written(since_boot(), number)
        for stream in list(self._streams.values()):
            if stream.connection.transport.get_write_buffer_size() > CATCH_UP_BYTES_MAX:
                stream.close("the follower is too slow")
            else:
                stream.send_entry_now(number, entry)

    def _settled(self) -> dict[str, int]:
        engine = self._host.engine
        ends = engine.site.links.ends if engine is not None else {}
        return {peer: end.settled for peer, end in ends.items()}

    def _on_follower_said(self, stream: ReplicaStream, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Joining):
                self._on_joining(stream, message)
            elif isinstance(message, Acknowledged) and self._streams.get(stream.peer) is stream:
                self._host.replica.on_acknowledged(stream.peer, message.sequence)
        self._host.let_out()

    def _on_follower_lost(self, stream: ReplicaStream) -> None:
        self._waiting.pop(stream.peer, None)
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._host.replica.on_left(stream.peer)
            log.warning("follower %s is away: %s", stream.peer, stream.connection.why)

    def _on_joining(self, stream: ReplicaStream, joining: Joining) -> None:
        why = "" if joining.name == stream.peer else "another name than it has proved"
        why = why or self._host.replica.on_joining(joining)
        if not why and (joining.name in self._streams or joining.name in self._waiting):
            why = f"{joining.name} is connected already"
        if not why and joining.replay != REPLAY:
            why = f"version {joining.version} replays entries by other rules than {__version__}"
        if why or self._host.engine is None:
            stream.send(Unwelcome(why or "the leader has just been promoted"))
            return
        terms, last = self._host.replica.terms, self._host.journal.last_sequence
        entries = None
        if terms.includes(last, joining.epoch, joining.last):
            entries = self._entries_after(joining.last)
        if entries is None:
            self._waiting[joining.name] = stream
            self._send_snapshots()
            return
        self._streams[joining.name] = stream
        stream.send(Welcome(self._host.replica.epoch, terms.terms, joining.last))
        self._host.replica.on_joined(since_boot(), joining.name, joining.disk, joining.last)
        self._send_entries(stream, joining.last + 1, entries)
        log.info("follower %s has joined and is sent %d entries", joining.name, len(entries))

    def _entries_after(self, sequence: int) -> list[bytes] | None:
        """Return the entries after this one; None if a snapshot must replace them."""
        journal = self._host.journal
        try:
            return entries_after(journal.folder, sequence, journal.last_sequence, CATCH_UP_BYTES_MAX)
        except JournalDamaged as error:
            log.warning("%s", error)
            return None

    def _send_entries(self, stream: ReplicaStream, first: int, entries: list[bytes]) -> None:
        batch: list[bytes] = []
        size = 0
        for number, entry in enumerate(entries, first):
            batch.append(entry)
            size += len(entry)
            if size >= RECORDS_BYTES or number == first + len(entries) - 1:
                stream.send(Records(number - len(batch) + 1, batch))
                batch, size = [], 0

    def _send_snapshots(self) -> None:
        """Send the last snapshot to waiting followers, if the entries after it are few."""
        if not self._waiting or self._host.engine is None:
            return
        found = numbered(self._host.journal.folder, SNAPSHOT_SUFFIX)
        newest = max(found, default=None)
        if newest is None or self._entries_after(newest) is None:
            self._host.engine.on_snapshot = self._send_snapshots
            self._host.engine.take_snapshot()
            if not self._host.journal.is_writing_snapshot:
                for stream in list(self._waiting.values()):
                    stream.close("there is no snapshot for it now")
            return
        head, data = read_snapshot(found[newest])
        for name, stream in list(self._waiting.items()):
            log.info("follower %s is sent a snapshot of %d bytes", name, len(data))
            stream.send(
                Welcome(self._host.replica.epoch, self._host.replica.terms.terms, head.sequence, len(data))
            )
            for start in range(0, len(data), PART_BYTES):
                stream.send(SnapshotPart(bytes(data[start : start + PART_BYTES])))
        self._waiting.clear()

    def drop(self, name: str) -> None:
        """Close the stream to a follower that was removed."""
        stream = self._streams.get(name)
        if stream is not None:
            stream.send(Unwelcome(f"{name} was removed"))
            stream.close("it was removed")
