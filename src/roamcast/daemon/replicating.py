"""One replica of a site in its process: etcd, the clock, and its status for operators.

`replication.replica` decides; this module acts. A process follows until it is promoted, and then serves until
it stops. A leader that stops, and a follower that was sent another state, restart as a new process does: from
the data on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from roamcast.broker.contract import AnyMachine
from roamcast.config.addresses import join_endpoint
from roamcast.config.sections import Config
from roamcast.daemon.clock import since_boot
from roamcast.daemon.engine import Engine
from roamcast.daemon.figures import FollowerFigures
from roamcast.daemon.replica_following import Following
from roamcast.daemon.replica_leading import Leading
from roamcast.errors import InputError
from roamcast.net.complaints import Complaints
from roamcast.net.doorway import Doorway
from roamcast.net.etcd import Etcd, EtcdFailed
from roamcast.net.handshake import Ended, LinkRefusal
from roamcast.net.replica_stream import ReplicaStream
from roamcast.net.strangers import Stranger, Strangers
from roamcast.protocol.records import Row
from roamcast.replication.messages import (
    Campaign,
    Change,
    Look,
    Renew,
    Request,
    Resign,
)
from roamcast.replication.replica import Replica, Timing
from roamcast.replication.terms import Terms
from roamcast.storage.journal import Journal
from roamcast.storage.replica_file import ReplicaState, read_state, write_state

log = logging.getLogger("roamcast.replication")

STRANGERS_MAX = 16
REQUESTS_MAX = 8
"""Maximum number of concurrent requests to etcd."""


class Replicating:
    """Implements `engine.ReleaseGate`."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        site: AnyMachine | None,
        state: ReplicaState,
        records: Callable[[list[Row]], None] | None,
        rows: deque[tuple[int, list[Row]]],
        closes: list[Callable[[], None]],
    ) -> None:
        """`rows` are those of replayed entries, `closes` is what to close before the process restarts."""
        settings = config.replication
        self.config = config
        self.journal = journal
        self._state = state
        self.records = records
        self._closes = closes
        self._data = Path(config.data)
        self._settings = settings
        self.timing = Timing(float(settings.lease_s), settings.patience_s)
        is_foreign = not state.disks and journal.last_sequence > 0
        state.disks.append(secrets.token_hex(8))
        write_state(self._data, state)
        self.replica = Replica(
            settings.name, state.disks, secrets.token_hex(8), Terms(state.terms), journal.last_sequence,
            self.timing, since_boot(),
        )  # fmt: skip
        self.replica.reference = settings.reference
        self.engine: Engine | None = None
        self.etcd_failure = ""
        """Why the last request to etcd failed; "" if it succeeded."""
        self._etcd = Etcd(settings, config.network, config.id, self.timing.lease_s / 4)
        self._threads = ThreadPoolExecutor(REQUESTS_MAX, "etcd")
        self._news = asyncio.Event()
        self._promoted = asyncio.Event()
        self._released = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._requests: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(lambda: STRANGERS_MAX)
        self._doorway = Doorway(self._strangers, self._enter, lambda: self.timing.lease_s)
        self._complaints = Complaints()
        self.leading = Leading(self)
        self.following = Following(self, site, is_foreign, rows)

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
        self._tasks = [loop.create_task(self._drive()), loop.create_task(self.following.run())]
        for task in self._tasks:
            task.add_done_callback(_must_not_end)

    async def until_promoted(self) -> AnyMachine | None:
        """Follow until promoted; return the copy of the site's machine, which is then the valid one."""
        await self._promoted.wait()
        self.following.close("this replica leads now")
        self.following.catch_up()
        site = self.site
        if site is not None:
            site.endpoint.encoder.is_mute = False
        log.warning(
            "replica %s leads the site %s with epoch %d, from entry %d; in sync: %s",
            self.replica.name, self.config.id, self.replica.epoch, self.replica.last,
            ", ".join(self.replica.view.in_sync),
        )  # fmt: skip
        return site

    @property
    def site(self) -> AnyMachine | None:
        """This replica's copy of the site."""
        return self.following.copy.machine

    async def until_released(self) -> None:
        """Wait until everything written so far is on all disks of the in-sync set."""
        while self.releasable() < self.journal.last_sequence:
            self._released.clear()
            await self._released.wait()
        self.following.tell_rows(self.journal.last_sequence)

    async def step_down(self, successor: str) -> None:
        """Begin to step down for another leader; InputError if it is none or does not answer."""
        why = self.replica.step_down(successor)
        while self.replica.asked_to_lead and not why:
            self._released.clear()
            await self._released.wait()
        if why or not self.replica.steps_down:
            raise InputError(why or f"{successor} does not answer, and so it cannot lead")

    async def resign(self) -> None:
        """Give up leadership in an orderly stop, so that the next leader need not wait for the end of the
        lease."""
        for task in self._tasks:
            task.remove_done_callback(_must_not_end)
            task.cancel()
        self._doorway.close()
        self.following.close("this replica stops")
        self.leading.close("this replica stops")
        if self.replica.role == "leader":
            with suppress(EtcdFailed):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._etcd.resign)

    def begin_anew(self, why: str) -> NoReturn:
        """Restart the program under the same process id from the data on the disk."""
        log.warning("replica %s restarts: %s", self._settings.name, why)
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
            now = since_boot()
            for request in replica.advance(now):
                task = asyncio.get_running_loop().create_task(self._perform(request))
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)
            self._look_at()
            deadline = replica.deadline() or now
            pause_s = min(max(deadline - since_boot(), 0.005), self.timing.patience_s / 4)
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    def _look_at(self) -> None:
        """Carry out the replica's decisions."""
        replica = self.replica
        if replica.role == "stopped":
            self.begin_anew(replica.why)
        if replica.role == "leader":
            if not self._promoted.is_set():
                self.save()
                self._promoted.set()
            self.let_out()

    def let_out(self) -> None:
        self._released.set()
        if self.engine is not None:
            self.engine.release()

    def save(self) -> None:
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
        now, replica = since_boot(), self.replica
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
                    log.warning("in-sync replicas are now: %s", ", ".join(replica.view.in_sync))
            case Resign():
                replica.on_resigned(now, answer)
        self._news.set()

    def _ask(self, request: Request) -> Any:
        """Send a request to etcd in a thread."""
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
        self.leading.writing(entry)

    def releasable(self) -> int:
        now = since_boot()
        return self.replica.releasable(now) if self.replica.may_speak(now) else -1

    def failed(self, why: str) -> None:
        self.begin_anew(why)

    async def _enter(self, one: socket.socket, stranger: Stranger) -> None:
        """Accept the connection of another replica."""
        stream = self.new_stream(is_dialer=False)
        try:
            if await self._doorway.hand_over(one, stranger, stream.connection) is None:
                return
            await stream.open(self.timing.lease_s)
        except (LinkRefusal, Ended, TimeoutError) as error:
            if self._complaints.is_due(stranger.host, str(error)):
                log.warning("no replica at %s: %s", stranger.address, error)
            return
        finally:
            self._strangers.settle(stranger)
        self.leading.take(stream)

    def new_stream(self, is_dialer: bool) -> ReplicaStream:
        return ReplicaStream(is_dialer, self._settings.name, self.replica.boot, self._settings.secret)

    # --- for operators ---

    def followers(self) -> dict[str, FollowerFigures]:
        """Return the followers that were connected since this replica leads, and are not removed."""
        replica = self.replica
        return {
            name: FollowerFigures(
                one.is_joined, name in replica.view.in_sync, max(0, replica.last - max(one.acknowledged, 0))
            )
            for name, one in replica.followers.items()
            if name not in replica.view.barred
        }

    def status(self) -> dict[str, object]:
        replica = self.replica
        return {
            "replica": replica.name,
            "role": replica.role,
            "epoch": replica.epoch if replica.role == "leader" else replica.view.epoch,
            "leader": replica.view.leader,
            "in_sync": sorted(replica.view.in_sync),
            "is_in_sync": replica.role == "leader" or replica.is_in_sync,
            "last": replica.last,
            "lag": 0 if replica.role == "leader" else self.following.lag,
            "followers": {name: msgspec.to_builtins(one) for name, one in self.followers().items()},
            "removed": list(replica.view.barred),
            "etcd": self.etcd_failure or "ok",
        }


def metrics_of(replicating: Replicating) -> str:
    """Return the metrics of replication."""
    status = replicating.status()
    lags = {name: one["lag"] for name, one in status["followers"].items()}  # type: ignore[attr-defined]
    lines = [
        "# HELP roamcast_replication_leader Whether this replica leads.",
        "# TYPE roamcast_replication_leader gauge",
        f"roamcast_replication_leader {int(status['role'] == 'leader')}",
        "# HELP roamcast_replication_epoch The epoch of the leader.",
        "# TYPE roamcast_replication_epoch gauge",
        f"roamcast_replication_epoch {status['epoch']}",
        "# HELP roamcast_replication_in_sync Replicas that have everything that the site has acknowledged.",
        "# TYPE roamcast_replication_in_sync gauge",
        f"roamcast_replication_in_sync {len(replicating.replica.view.in_sync)}",
        "# HELP roamcast_replication_lag Entries that a follower has not acknowledged.",
        "# TYPE roamcast_replication_lag gauge",
        *(f'roamcast_replication_lag{{follower="{name}"}} {lag}' for name, lag in lags.items()),
    ]
    return "\n".join(lines) + "\n"


def load_state(config: Config, lost: int, is_empty: bool) -> ReplicaState:
    """Load the replica's state; it has no id if its journal has lost acknowledged entries."""
    state = read_state(Path(config.data))
    if is_empty:
        return ReplicaState()
    if lost:
        state.disks = state.disks and [secrets.token_hex(8)]
    return state


def _must_not_end(task: asyncio.Task[None]) -> None:
    """Fail the process on an exception here: otherwise the replica would never decide anything again."""
    if not task.cancelled():
        log.critical("the replica has failed", exc_info=task.exception())
        os._exit(70)
