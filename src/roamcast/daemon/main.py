"""Starting the broker daemon: recover what the journal holds, then serve."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from roamcast import __version__
from roamcast.broker.contract import AnyMachine
from roamcast.broker.inputs import REPLAY, Started, decode_entry
from roamcast.broker.machine_base import StateDiverged
from roamcast.broker.making import make_machine
from roamcast.config.sections import Config
from roamcast.daemon.failing import cannot_replay, settle
from roamcast.daemon.memory import collect_seldom, keep_freed_memory_small
from roamcast.daemon.server import Server
from roamcast.daemon.settings import site_settings
from roamcast.daemon.workers import Worker, end_with, worker_config
from roamcast.errors import InputError
from roamcast.net import logs
from roamcast.protocol.records import Row
from roamcast.protocol.snapshot import thawed, verify_hash
from roamcast.storage.journal import Journal
from roamcast.storage.recovery import Recovered, find_recoverable
from roamcast.storage.restarting import FailStop
from roamcast.storage.segments import JournalDamaged
from roamcast.storage.snapshots import Child

if TYPE_CHECKING:
    from roamcast.daemon.event_log import EventLog
    from roamcast.daemon.replicating import Replicating

log = logging.getLogger("roamcast")

VERIFIED_HERE_BYTES = 4 << 20
"""A larger snapshot is verified in another process: verifying takes as long as reading it."""
VERIFY_POLL_S = 0.05
EXIT_INPUT = 2
"""The exit code of the command line for invalid input: starting with this folder fails until someone acts."""

Warn = Callable[[str], None]
"""Takes a line about a setting that is valid but probably unwanted."""


def serve(
    config: Config,
    read: Callable[[Warn], Config],
    warnings: Iterable[str] = (),
    worker: Worker | None = None,
) -> None:
    """Run a broker until it is told to stop; `read` reads its configuration again.

    `worker` says which worker of a site this is; `config` is the site's configuration.
    """
    logs.set_up(config.log)
    if worker is not None:
        end_with(worker.supervisor)
    for line in warnings if worker is None else ():
        log.warning("%s", line)

    def reread() -> Config:
        if worker is None:
            return read(log.warning)
        return worker_config(read(log.warning if worker.number == 1 else lambda line: None), worker)

    keep_freed_memory_small()
    uvloop.run(_serve(config if worker is None else worker_config(config, worker), reread, worker))


async def _serve(config: Config, reread: Callable[[], Config], worker: Worker | None) -> None:
    fail_stop = FailStop(Path(config.data))
    if config.replication.name:
        set_aside_damaged(config.journal_folder)
    journal, recovered = Journal.open(
        config.journal_folder,
        sync=config.journal.sync,
        version=__version__,
        replay=REPLAY,
        segment_bytes=config.journal.segment_bytes,
        snapshot_after_bytes=config.journal.snapshot_after_bytes,
        journal_bytes_max=config.journal.bytes_max,
        snapshot_retry_s=config.journal.snapshot_retry_s,
    )
    events: EventLog | None = None
    verified: asyncio.Task[None] | None = None
    try:
        if config.events.level != "none":
            # Arrow takes 40 MB and 0.2 s, and a broker without an event log does not use it.
            from roamcast.daemon.event_log import EventLog

            events = EventLog(config)
        for note in recovered.notes:
            log.warning("%s", note)
        unreleased: deque[tuple[int, list[Row]]] = deque()
        """Rows of a replica's entries: it does not know yet whether their effects were released."""

        def tell(number: int, rows: list[Row]) -> None:
            if events is not None and config.replication.name:
                unreleased.append((number, events.missing(rows)))
            elif events is not None:
                events.take(rows)

        site = recover(config, recovered, tell)
        if recovered.verifying is not None:
            verified = asyncio.create_task(_end_if_wrong(recovered.verifying, config.journal_folder))
        if events is not None:
            events.replayed()
        fail_stop.closes = [journal.close] if events is None else [journal.close, events.close]
        replicating: Replicating | None = None
        if config.replication.name:
            from roamcast.daemon.following import follow
            from roamcast.daemon.replicating import Replicating, load_state

            if site is not None:
                site.check_start(site_settings(config))
            state = load_state(config, recovered.lost, is_empty=journal.last_sequence == 0)
            take = events.take if events is not None else None
            replicating = Replicating(config, journal, site, state, take, unreleased, fail_stop.closes)
            collect_seldom()  # A follower steps the same inputs as its leader.
            if not await follow(replicating):
                return
            site = replicating.site
        site = site or make_machine(site_settings(config))
        settle(fail_stop, site)
        collect_seldom()
        await Server(config, site, journal, reread, fail_stop, events, replicating, worker).run()
    finally:
        if verified is not None and recovered.verifying is not None and verified.cancel():
            recovered.verifying.kill()
        journal.close()
        if events is not None:
            events.close()


def set_aside_damaged(folder: Path) -> None:
    """Keep a damaged journal under another name: a replica without one is sent a copy by its leader."""
    if not folder.is_dir():
        return
    try:
        find_recoverable(folder)
    except JournalDamaged as error:
        number = 1
        while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
            number += 1
        folder.rename(aside)
        log.error("%s; it is kept as %s, and this replica waits for a copy from its leader", error, aside)


def recover(
    config: Config, recovered: Recovered, tell: Callable[[int, list[Row]], None]
) -> AnyMachine | None:
    """Return the machine recovered from the snapshot and the entries after it; None at the very first
    start.

    `tell` gets the rows recorded for each entry, and its number."""
    machine: AnyMachine | None = None
    where = f"journal {config.journal_folder}"
    if recovered.snapshot is not None:
        try:
            machine, is_comparable = thawed(recovered.snapshot)
            if is_comparable:
                _verify(machine, recovered)
        except InputError as error:
            raise InputError(f"{where}: {error}; version {recovered.snapshot_version} wrote it") from None
        recovered.snapshot = None  # The garbage is as large as the state itself.
    for number, data in enumerate(recovered.entries, recovered.sequence + 1):
        entry = decode_entry(data)
        if machine is None:
            first = entry.inputs[0]
            if not isinstance(first, Started):
                raise InputError(f"{where}: its first entry is not the start of a broker")
            machine = make_machine(first.settings)
        machine.endpoint.encoder.is_mute = True
        try:
            effects = machine.step(entry.now, entry.inputs)
        except StateDiverged as error:
            raise InputError(
                f"{where}: entry {number}: {error}; keep a copy of the folder for a report, and start the"
                " version that wrote it, or restore a backup"
            ) from None
        except Exception as error:
            raise cannot_replay(config, error, data) from None
        if effects.records:
            tell(number, effects.records)
    if machine is not None:
        machine.endpoint.encoder.is_mute = False
    return machine


def _verify(machine: AnyMachine | None, recovered: Recovered) -> None:
    """Compare the state with the frozen one: for a large state in another process, concurrently."""
    data = recovered.snapshot or b""
    if len(data) <= VERIFIED_HERE_BYTES:
        verify_hash(machine, data)
    else:
        recovered.verifying = Child(lambda: verify_hash(machine, data))


async def _end_if_wrong(verifying: Child, where: Path) -> None:
    """End the process if the state differs from the frozen one: its acknowledgements could be wrong."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(verifying.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(verifying.fileno())
    while (error := verifying.poll()) is None:
        await asyncio.sleep(VERIFY_POLL_S)
    if error:
        log.critical("journal %s: %s; keep a copy of the folder for a report: the process ends", where, error)
        os._exit(EXIT_INPUT)
