"""Workers: several processes that serve clients of one site behind the same listeners.

Each worker is a broker of the overlay, and the machine does not know about workers. Worker 1 has the id and
the folder that the site would have with one process, the links to other sites, the control channel and the
HTTP listener. Workers 2, 3, … have the ids ID.2, ID.3, …, folders inside the site's, and one link each: to
worker 1. So the number of workers can change at every start.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import msgspec

from roamcast.config.sections import Config, Link, Listener, Metrics, Peer, PeerRight, Quotas, Relay
from roamcast.errors import InputError
from roamcast.mobility import MOBILE_PROTOCOLS
from roamcast.net.unix_sockets import SCHEME

VARIABLE = "_ROAMCAST_WORKER"
"""Names the environment variable that tells a worker its number, also when it restarts after a fail-stop."""
PR_SET_PDEATHSIG = 1
RECONNECT_MAX_S = 0.5
"""Short, because worker 1 is on the same machine and available as soon as its process runs."""
ALL_RIGHTS: tuple[PeerRight, ...] = ("data", "subscriptions", "sessions", "groups", "forget", "operate")


class Worker(msgspec.Struct, frozen=True):
    """Which worker a process is."""

    number: int
    count: int
    """Number of workers that serve clients. A worker with a higher number hands its sessions to the others.
    """
    ports: tuple[int, ...]
    """The ports of the listeners, which all workers share."""
    supervisor: int
    """Process id of the supervisor that started this worker."""

    @property
    def is_leaving(self) -> bool:
        return self.number > self.count

    def variable(self) -> dict[str, str]:
        """Return the value of the environment variable for this worker."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def this_worker() -> Worker | None:
    """Return which worker this process is; None if it is a single broker."""
    told = os.environ.get(VARIABLE)
    return None if told is None else msgspec.json.decode(told, type=Worker)


def end_with(supervisor: int) -> None:
    """Stop the worker when its supervisor ends, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor:
        raise SystemExit(0)  # The supervisor ended before it could be watched.


def tell_ready() -> None:
    """Tell the supervisor that this worker serves clients."""
    with suppress(OSError):
        os.write(1, b"ready\n")


# --- where things are ---


def worker_id(site: str, number: int) -> str:
    return site if number == 1 else f"{site}.{number}"


def worker_folder(data: Path, number: int) -> Path:
    return data if number == 1 else data / f"worker-{number}"


def secret_file(data: Path) -> Path:
    """Path of the secret that the workers share: created anew at every start of the site."""
    return data / "workers.secret"


def link_socket(data: Path) -> Path:
    """Path of the socket where worker 1 listens for the others."""
    return data / "workers.socket"


def leaving(data: Path, count: int) -> list[int]:
    """List workers of an earlier start that may still hold sessions and do not serve now."""
    return sorted(number for number in _numbered(data, r"worker-(\d+)") if number > max(1, count))


def gone(data: Path) -> list[int]:
    """List workers that have left but may still be known to the others."""
    return _numbered(data, r"worker-(\d+)\.gone")


def gone_folder(data: Path, number: int) -> Path:
    return data / f"worker-{number}.gone"


def _numbered(data: Path, pattern: str) -> list[int]:
    found = [re.fullmatch(pattern, path.name) for path in data.glob("worker-*") if path.is_dir()]
    return [int(one[1]) for one in found if one is not None]


def siblings(config: Config) -> dict[str, Path]:
    """Map the workers other than worker 1 to their folders."""
    data = Path(config.data)
    numbers = [*range(2, config.workers + 1), *leaving(data, config.workers)]
    return {worker_id(config.id, number): worker_folder(data, number) for number in numbers}


def site_id(config: Config, worker: Worker) -> str:
    """Return the site of a worker, from the worker's configuration."""
    return config.id if worker.number == 1 else config.peers[0].id


def handover_sockets(config: Config, worker: Worker) -> dict[str, Path]:
    """Map each serving worker to the socket where it accepts handed-over connections; `config` is that of one
    worker."""
    site = site_id(config, worker)
    data = Path(config.data) if worker.number == 1 else Path(config.data).parent
    numbers = range(1, worker.count + 1)
    return {worker_id(site, number): worker_folder(data, number) / "handover" for number in numbers}


def serves(config: Config, id: str) -> bool:
    """True if this is one of the site's present workers."""
    return id in [worker_id(config.id, number) for number in range(1, config.workers + 1)]


# --- what a worker is told ---


def check_workers(config: Config) -> None:
    """Refuse settings that workers do not support."""
    if config.workers == 1:
        return
    where = f"workers = {config.workers}"
    last = worker_id(config.id, config.workers)
    if len(last) > 64:
        raise InputError(f"{where}: the id of the last worker would be {last}; valid are 64 characters")
    if config.replication.name:
        raise InputError(
            f"{where}: a replicated site has one process; set workers = 1, or leave out replication.name"
        )
    if config.mobility.protocol in MOBILE_PROTOCOLS:
        raise InputError(
            f"{where}: a broker with mobility.protocol = {config.mobility.protocol} has one process"
        )
    if config.journal.folder:
        raise InputError(f"{where}: each worker has its journal in its own folder; leave out journal.folder")
    for number, peer in enumerate(config.peers):
        if re.fullmatch(rf"{re.escape(config.id)}\.\d+", peer.id):
            raise InputError(f"peer.{number}.id = {peer.id}: workers of {config.id} have such ids; rename it")
    has_users = config.access.has_logins or any(one.client_ca for one in config.listeners)
    if has_users and not config.access.realm:
        raise InputError(
            f"{where}: each worker would have users of its own; set access.realm, as in "
            f'access.realm = "{config.id}"'
        )


def worker_config(config: Config, worker: Worker) -> Config:
    """Derive the configuration of one worker from that of the site."""
    config = msgspec.structs.replace(
        config,
        listeners=() if worker.is_leaving else tuple(_opened(config.listeners, worker.ports)),
        quotas=_share(config.quotas, config.mqtt.packet_bytes_max, worker.count),
        steering=msgspec.structs.replace(
            config.steering, clients_max=_part(config.steering.clients_max, worker.count)
        ),
        access=msgspec.structs.replace(config.access, realm_brokers=_realm_brokers(config)),
    )
    return _first(config) if worker.number == 1 else _other(config, worker)


def _first(config: Config) -> Config:
    secret = (str(secret_file(Path(config.data))),)
    others = (Peer(id=id, secret_files=secret, may=ALL_RIGHTS) for id in siblings(config))
    return msgspec.structs.replace(config, peers=(*config.peers, *others))


def _other(config: Config, worker: Worker) -> Config:
    site, link, number = Path(config.data), config.link, worker.number
    first = Peer(
        id=config.id,
        address=f"{SCHEME}{link_socket(site)}",
        secret_files=(str(secret_file(site)),),
        may=ALL_RIGHTS,
    )
    return msgspec.structs.replace(
        config,
        id=worker_id(config.id, number),
        data=str(worker_folder(site, number)),
        peers=(first,),
        link=Link(
            unlisted="refuse",
            reconnect_min_s=min(link.reconnect_min_s, RECONNECT_MAX_S),
            reconnect_max_s=min(link.reconnect_max_s, RECONNECT_MAX_S),
            heartbeat_s=link.heartbeat_s,
            timeout_s=link.timeout_s,
            unacknowledged_bytes_max=link.unacknowledged_bytes_max,
        ),
        detours=(),
        relay=Relay(),
        metrics=Metrics(),
        journal=msgspec.structs.replace(config.journal, folder=""),
        events=msgspec.structs.replace(config.events, folder=str(config.events_folder)),
    )


def _opened(listeners: tuple[Listener, ...], ports: tuple[int, ...]) -> list[Listener]:
    """Return the listeners with their actual ports."""
    return [
        msgspec.structs.replace(one, port=ports[number]) if not one.port and number < len(ports) else one
        for number, one in enumerate(listeners)
    ]


def _realm_brokers(config: Config) -> tuple[str, ...]:
    own = (config.id, f"{config.id}.*") if config.access.realm else ()
    return (*config.access.realm_brokers, *own)


SHARED = (
    "connections_max", "connections_per_address_max", "connecting_max", "connecting_per_address_max",
    "sessions_max", "sessions_per_user_max", "wills_bytes_max", "buffered_bytes_max",
)  # fmt: skip
"""Quotas of the site that are divided among the workers. Other quotas apply to one client, or to data that
every worker keeps: retained messages."""


def _share(quotas: Quotas, packet_bytes_max: int, count: int) -> Quotas:
    parts = {name: _part(getattr(quotas, name), count) for name in SHARED}
    parts["buffered_bytes_max"] = max(parts["buffered_bytes_max"] or 0, packet_bytes_max)
    return msgspec.structs.replace(quotas, **parts)


def _part(of_site: int | None, count: int) -> int | None:
    return None if of_site is None else -(-of_site // count)
