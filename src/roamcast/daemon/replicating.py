"""One replica of a site in its process: etcd, the stream between leader and followers, and the clock.

What is decided is decided by `replication.replica`; here it is performed. A process follows until it is
promoted, and then serves until it stops. A leader that stops, and a follower that was sent another state,
begin anew as the program does at its start: from what is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from roamcast import __version__
from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import REPLAY, Started, decode_entry
from roamcast.broker.making import make_machine
from roamcast.config.addresses import join_endpoint, split_endpoint
from roamcast.config.sections import Config
from roamcast.daemon.engine import Engine
from roamcast.errors import InputError
from roamcast.net.complaints import Complaints
from roamcast.net.doorway import Doorway
from roamcast.net.etcd import Etcd, EtcdFailed
from roamcast.net.handshake import Ended, LinkRefusal
from roamcast.net.replica_stream import ReplicaStream
from roamcast.net.strangers import Stranger, Strangers
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import freezing
from roamcast.replication.messages import (
    Acknowledged,
    AnyMessage,
    Campaign,
    Change,
    Joining,
    Look,
    Records,
    Released,
    Renew,
    Request,
    Resign,
    SnapshotPart,
    Unwelcome,
    Welcome,
)
from roamcast.replication.recent import RECENT_BYTES_MAX, Recent
from roamcast.replication.replica import Replica, Timing
from roamcast.replication.terms import Terms
from roamcast.storage.journal import Journal, JournalFailed
from roamcast.storage.replica_file import ReplicaState, read_state, write_state
from roamcast.storage.segments import SNAPSHOT_SUFFIX, numbered, read_snapshot

log = logging.getLogger("roamcast.replication")

STRANGERS_MAX = 16
RECORDS_BYTES = 128 * 1024
"""Entries that are sent together to a follower that catches up."""
PART_BYTES = 256 * 1024
RETRY_S = 0.2
REQUESTS_MAX = 8
"""Requests to etcd at once."""


class Replicating:
    """Implements `engine.ReleaseGate`."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        site: AnyMachine | None,
        state: ReplicaState,
        records: Callable[[list[Row]], None] | None,
        closes: list[Callable[[], None]],
    ) -> None:
        """`closes` is what to close before the process begins anew."""
        settings = config.replication
        self.config = config
        self.journal = journal
        self.site = site
        self._state = state
        self._records = records
        self._closes = closes
        self._data = Path(config.data)
        self._settings = settings
        self._timing = Timing(float(settings.lease_s), settings.patience_s)
        self._is_foreign = not state.disks and journal.last_sequence > 0
        """True if what is in the folder was never part of a replicated site."""
        state.disks.append(secrets.token_hex(8))
        write_state(self._data, state)
        self.replica = Replica(
            settings.name, state.disks, secrets.token_hex(8), Terms(state.terms), journal.last_sequence,
            self._timing, time.monotonic(),
        )  # fmt: skip
        self.replica.reference = settings.reference
        self.recent = Recent(journal.last_sequence)
        self.engine: Engine | None = None
        self.etcd_failure = ""
        """Why etcd gave no answer to the last request; "" if it did."""
        self.lag = 0
        """Of a follower: entries that its leader has and it has not applied."""
        self._etcd = Etcd(settings, config.network, config.id, self._timing.lease_s / 4)
        self._threads = ThreadPoolExecutor(REQUESTS_MAX, "etcd")
        self._news = asyncio.Event()
        self._promoted = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._requests: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(lambda: STRANGERS_MAX)
        self._doorway = Doorway(self._strangers, self._enter, lambda: self._timing.lease_s)
        self._complaints = Complaints()
        self._streams: dict[str, ReplicaStream] = {}
        """To each follower that gets every entry as it is written."""
        self._waiting: dict[str, ReplicaStream] = {}
        """To followers that wait for a snapshot."""
        self._leader: ReplicaStream | None = None
        """To the leader, where this replica follows."""
        self._snapshot: bytearray | None = None
        """What has come of a snapshot, …"""
        self._welcome: Welcome | None = None
        """… and what the leader said of it."""

    # --- from start to end ---

    async def start(self) -> None:
        settings = self._settings
        try:
            await self._doorway.open(settings.address, settings.port)
        except OSError as error:
            where = join_endpoint(settings.address, settings.port)
            raise InputError(f"replication {where}: cannot listen ({error.strerror or error})") from None
        port = self._doorway.ports[0]
        self.replica.address = settings.advertise or join_endpoint(settings.address, port)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._drive()), loop.create_task(self._follow())]
        for task in self._tasks:
            task.add_done_callback(_must_not_end)

    async def until_promoted(self) -> AnyMachine | None:
        """Follow; the copy of the site's machine, once it is the one that counts."""
        await self._promoted.wait()
        if self._leader is not None:
            self._leader.close("this replica leads now")
        log.warning(
            "replica %s leads the site %s with epoch %d, from entry %d; in sync: %s",
            self.replica.name, self.config.id, self.replica.epoch, self.replica.last,
            ", ".join(self.replica.view.in_sync),
        )  # fmt: skip
        return self.site

    async def until_released(self) -> None:
        """Everything that was written so far is on all disks of the in-sync set."""
        while self.releasable() < self.journal.last_sequence:
            self._released.clear()
            await self._released.wait()

    async def resign(self) -> None:
        """A leader stops in good order: another one need not wait for the end of the lease."""
        for task in self._tasks:
            task.remove_done_callback(_must_not_end)
            task.cancel()
        self._doorway.close()
        for stream in self._streams.values():
            stream.close("this replica stops")
        if self.replica.role == "leader":
            with suppress(EtcdFailed):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._etcd.resign)

    def begin_anew(self, why: str) -> NoReturn:
        """End this process, and begin it anew under its process id from what is on the disk."""
        log.warning("replica %s begins anew: %s", self._settings.name, why)
        for close in self._closes:
            with suppress(Exception):
                close()
        try:
            os.execve(sys.executable, sys.orig_argv, dict(os.environ))
        finally:
            os._exit(70)

    # --- etcd ---

    async def _drive(self) -> None:
        replica = self.replica
        while True:
            now = time.monotonic()
            for request in replica.advance(now):
                task = asyncio.get_running_loop().create_task(self._perform(request))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            self._look_at()
            deadline = replica.deadline() or now
            pause_s = min(max(deadline - time.monotonic(), 0.005), self._timing.patience_s / 4)
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    def _look_at(self) -> None:
        """Follow what the replica has decided."""
        replica = self.replica
        if replica.role == "stopped":
            self.begin_anew(replica.why)
        if replica.role == "leader":
            if not self._promoted.is_set():
                self._save()
                self._promoted.set()
            self._let_out()

    def _let_out(self) -> None:
        self._released.set()
        if self.engine is not None:
            self.engine.release()

    def _save(self) -> None:
        self._state.disks, self._state.terms = list(self.replica.disks), list(self.replica.terms.terms)
        write_state(self._data, self._state)

    async def _perform(self, request: Request) -> None:
        answer: Any = None
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request)
            self.etcd_failure = ""
        except EtcdFailed as error:
            self.etcd_failure = str(error)
            if self._complaints.is_due("etcd", str(error).partition(":")[0]):
                log.warning("%s", error)
        now, replica = time.monotonic(), self.replica
        match request:
            case Look():
                replica.on_view(now, answer)
            case Campaign():
                replica.on_campaigned(now, *(answer or (None, False)))
            case Renew():
                replica.on_renewed(now, answer)
            case Change():
                before = replica.view.in_sync
                replica.on_changed(now, *(answer or (None, False)))
                if replica.view.in_sync.keys() != before.keys():
                    log.warning("in sync are now: %s", ", ".join(replica.view.in_sync))
            case Resign():
                replica.on_resigned(now, answer)
        self._news.set()

    def _ask(self, request: Request) -> Any:
        """In a thread."""
        match request:
            case Look():
                return self._etcd.look()
            case Campaign(view, revision):
                return self._etcd.campaign(view, revision)
            case Renew():
                return self._etcd.renew()
            case Change(view, revision):
                return self._etcd.change(view, revision)
            case Resign():
                return self._etcd.resign()

    # --- the leader (see engine.ReleaseGate) ---

    def writing(self, entry: bytes) -> None:
        recent = self.recent
        recent.append(entry)
        self.replica.on_written(time.monotonic(), recent.last)
        if self._streams:
            message = Records(recent.last, [entry])
            for stream in list(self._streams.values()):
                if stream.connection.transport.get_write_buffer_size() > RECENT_BYTES_MAX:
                    stream.close("the follower is too slow")
                else:
                    stream.send_now(message)

    def releasable(self) -> int:
        now = time.monotonic()
        return self.replica.releasable(now) if self.replica.may_speak(now) else -1

    def failed(self, why: str) -> None:
        self.begin_anew(why)

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        """Another replica connects."""
        stream = self._new_stream(is_dialer=False)
        try:
            if await self._doorway.hand_over(one, stranger, stream.connection) is None:
                return
            await stream.open(self._timing.lease_s)
        except (LinkRefusal, Ended, TimeoutError) as error:
            if self._complaints.is_due(stranger.host, str(error)):
                log.warning("no replica at %s: %s", stranger.address, error)
            return
        finally:
            self._strangers.settle(stranger)
        stream.on_messages = lambda messages: self._on_follower_said(stream, messages)
        stream.on_lost = lambda: self._on_follower_lost(stream)
        stream.sign_of_life = lambda: Released(self.replica.released, self._settled())
        stream.begin(self._timing.lease_s / 10, self._timing.lease_s)

    def _new_stream(self, is_dialer: bool) -> ReplicaStream:
        return ReplicaStream(is_dialer, self._settings.name, self.replica.boot, self._settings.secret)

    def _settled(self) -> dict[str, int]:
        ends = self.site.links.ends if self.site is not None else {}
        return {peer: end.settled for peer, end in ends.items()}

    def _on_follower_said(self, stream: ReplicaStream, messages: list[AnyMessage]) -> None:
        for message in messages:
            if isinstance(message, Joining):
                self._on_joining(stream, message)
            elif isinstance(message, Acknowledged) and self._streams.get(stream.peer) is stream:
                self.replica.on_acknowledged(stream.peer, message.sequence)
        self._let_out()

    def _on_follower_lost(self, stream: ReplicaStream) -> None:
        self._waiting.pop(stream.peer, None)
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self.replica.on_left(stream.peer)
            log.warning("follower %s is away: %s", stream.peer, stream.connection.why)

    def _on_joining(self, stream: ReplicaStream, joining: Joining) -> None:
        why = "" if joining.name == stream.peer else "another name than it has proved"
        why = why or self.replica.on_joining(joining)
        if not why and (joining.name in self._streams or joining.name in self._waiting):
            why = f"{joining.name} is connected already"
        if not why and joining.replay != REPLAY:
            why = f"version {joining.version} replays entries by other rules than {__version__}"
        if why or self.engine is None:
            stream.send(Unwelcome(why or "the leader has just been promoted"))
            return
        terms, last = self.replica.terms, self.recent.last
        entries = None
        if terms.includes(last, joining.epoch, joining.last):
            entries = self.recent.after(joining.last)
        if entries is None:
            self._waiting[joining.name] = stream
            self._send_snapshots()
            return
        self._streams[joining.name] = stream
        stream.send(Welcome(self.replica.epoch, terms.terms, joining.last))
        self.replica.on_joined(time.monotonic(), joining.name, joining.disk, joining.last)
        self._send_entries(stream, joining.last + 1, entries)
        log.info("follower %s has joined and is sent %d entries", joining.name, len(entries))

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
        """Send the last snapshot to those who wait for one, if the entries behind it are in memory."""
        if not self._waiting or self.engine is None:
            return
        found = numbered(self.journal.folder, SNAPSHOT_SUFFIX)
        newest = max(found, default=None)
        if newest is None or self.recent.after(newest) is None:
            self.engine.on_snapshot = self._send_snapshots
            self.engine.take_snapshot()
            if not self.journal.is_writing_snapshot:
                for stream in list(self._waiting.values()):
                    stream.close("there is no snapshot for it now")
            return
        head, data = read_snapshot(found[newest])
        for name, stream in list(self._waiting.items()):
            log.info("follower %s is sent a snapshot of %d bytes", name, len(data))
            stream.send(Welcome(self.replica.epoch, self.replica.terms.terms, head.sequence, len(data)))
            for start in range(0, len(data), PART_BYTES):
                stream.send(SnapshotPart(bytes(data[start : start + PART_BYTES])))
        self._waiting.clear()

    def drop(self, name: str) -> None:
        """A follower was removed."""
        stream = self._streams.get(name)
        if stream is not None:
            stream.send(Unwelcome(f"{name} was removed"))
            stream.close("it was removed")

    # --- following ---

    async def _follow(self) -> None:
        """Be connected to whoever leads."""
        replica = self.replica
        while True:
            view = replica.view
            if replica.role == "follower" and view.address and view.boot != replica.boot:
                await self._follow_leader(view.address)
            await asyncio.sleep(RETRY_S / 4 if not view.leader else RETRY_S)

    async def _follow_leader(self, address: str) -> None:
        replica, timing = self.replica, self._timing
        stream = self._new_stream(is_dialer=True)
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
        self._leader, self._snapshot = stream, None
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
        if self.replica.role != "follower" or not stream.is_open:
            return
        entries: list[bytes] = []
        for message in messages:
            match message:
                case Records(first, some):
                    if first != self.replica.last + len(entries) + 1:
                        stream.close(f"entry {first} came after {self.replica.last + len(entries)}")
                        return
                    entries += some
                case Welcome():
                    self._on_welcome(stream, message)
                case SnapshotPart(data):
                    self._on_snapshot_part(data)
                case Unwelcome(why):
                    if self._complaints.is_due(stream.peer, why):
                        log.warning("%s does not take this replica: %s", stream.peer, why)
                    stream.close(why)
                case Released():
                    self._on_released(message)
        if entries:
            self._take(stream, entries)

    def _on_welcome(self, stream: ReplicaStream, welcome: Welcome) -> None:
        terms = self.replica.terms
        if welcome.epoch < terms.epoch:
            stream.close(f"it leads with epoch {welcome.epoch}, and {terms.epoch} has begun")
            return
        if welcome.snapshot_bytes < 0:
            self.replica.terms = Terms(welcome.terms)
            self._save()
            stream.send(Acknowledged(self.replica.last))
        elif self._is_foreign:
            why = f"{self.journal.folder} holds a broker that is no replica of {self.config.id}"
            if self._complaints.is_due("foreign", why):
                log.error("%s: start this replica with an empty data folder, then it is sent a copy", why)
            stream.close(why)
        else:
            self._snapshot, self._welcome = bytearray(), welcome

    def _on_snapshot_part(self, data: bytes) -> None:
        """Once the snapshot is whole, it replaces everything here."""
        snapshot, welcome = self._snapshot, self._welcome
        if snapshot is None or welcome is None:
            return
        snapshot += data
        if len(snapshot) < welcome.snapshot_bytes:
            return
        # What is here is not what an id in etcd stands for any more, and nobody knows who wrote it.
        self.replica.disks, self.replica.terms = [secrets.token_hex(8)], Terms()
        self._save()
        try:
            self.journal.begin_anew(welcome.last, bytes(snapshot))
        except JournalFailed as error:
            self.begin_anew(str(error))
        self.replica.terms = Terms(welcome.terms)
        self._save()
        self.begin_anew(f"the leader has sent a snapshot up to entry {welcome.last}")

    def _take(self, stream: ReplicaStream, entries: list[bytes]) -> None:
        """Write, sync, acknowledge; then step the own copy."""
        journal, replica = self.journal, self.replica
        try:
            for data in entries:
                journal.append(data)
            journal.commit()
        except JournalFailed as error:
            time.sleep(RETRY_S)
            self.begin_anew(str(error))
        replica.last = journal.last_sequence
        stream.send_now(Acknowledged(replica.last))
        for data in entries:
            self.recent.append(data)
            entry = decode_entry(data)
            if self.site is None:
                first = entry.inputs[0]
                assert isinstance(first, Started)
                self.site = make_machine(first.settings)
            effects = self.site.step(entry.now, entry.inputs)
            if effects.records and self._records is not None:
                self._records(effects.records)
        if journal.wants_snapshot and self.site is not None:
            site = self.site
            with suppress(JournalFailed):
                journal.begin_snapshot().write_in_child(lambda: freezing(site))
        journal.poll_snapshot()

    def _on_released(self, released: Released) -> None:
        self.lag = max(0, released.sequence - self.replica.last)
        if self.site is None:
            return
        for peer, number in released.settled.items():
            end = self.site.links.ends.get(peer)
            if end is not None:
                end.learn_settled(number)

    # --- for operators ---

    def status(self) -> dict[str, object]:
        replica = self.replica
        followers = {
            name: {
                "connected": one.is_joined,
                "in_sync": name in replica.view.in_sync,
                "lag": max(0, replica.last - max(one.acknowledged, 0)),
            }
            for name, one in replica.followers.items()
        }
        return {
            "replica": replica.name,
            "role": replica.role,
            "epoch": replica.epoch if replica.role == "leader" else replica.view.epoch,
            "leader": replica.view.leader,
            "in_sync": sorted(replica.view.in_sync),
            "is_in_sync": replica.role == "leader" or replica.is_in_sync,
            "last": replica.last,
            "lag": 0 if replica.role == "leader" else self.lag,
            "followers": followers,
            "removed": list(replica.view.barred),
            "etcd": self.etcd_failure or "ok",
        }


def metrics_of(replicating: Replicating) -> str:
    """What /metrics tells of replication."""
    status = replicating.status()
    lags = {name: one["lag"] for name, one in status["followers"].items()}  # type: ignore[attr-defined]
    lines = [
        "# HELP roamcast_replication_leader Whether this replica leads.",
        "# TYPE roamcast_replication_leader gauge",
        f"roamcast_replication_leader {int(status['role'] == 'leader')}",
        "# HELP roamcast_replication_epoch The epoch of the leader.",
        "# TYPE roamcast_replication_epoch gauge",
        f"roamcast_replication_epoch {status['epoch']}",
        "# HELP roamcast_replication_in_sync Replicas that have everything that was promised.",
        "# TYPE roamcast_replication_in_sync gauge",
        f"roamcast_replication_in_sync {len(replicating.replica.view.in_sync)}",
        "# HELP roamcast_replication_lag Entries that a follower has not acknowledged.",
        "# TYPE roamcast_replication_lag gauge",
        *(f'roamcast_replication_lag{{follower="{name}"}} {lag}' for name, lag in lags.items()),
    ]
    return "\n".join(lines) + "\n"


def load_state(config: Config, lost: int, is_empty: bool) -> ReplicaState:
    """What the replica remembers; it has no id any more if its journal has lost what it promised."""
    state = read_state(Path(config.data))
    if is_empty:
        return ReplicaState()
    if lost:
        state.disks = state.disks and [secrets.token_hex(8)]
    return state


def _must_not_end(task: asyncio.Task[None]) -> None:
    """An exception here would leave a replica that decides nothing any more."""
    if not task.cancelled():
        log.critical("the replica has failed", exc_info=task.exception())
        os._exit(70)
