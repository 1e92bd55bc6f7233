"""Runs attacks one after the other, each against its own broker process, and judges the effects."""

from __future__ import annotations

import datetime
import ipaddress
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roamcast.bench.attack.base import PASSWORD, USERS, Attack, Door, Target
from roamcast.bench.attack.honest import HonestPair, Probes
from roamcast.bench.attack.table import ATTACKS
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port, roamcast_command, wait_until
from roamcast.bench.report import Report, silent
from roamcast.daemon.config import BROKER
from roamcast.net.users import hash_password

SECONDS = 5.0
PING_MS_MAX = 100.0
MEMORY_FACTOR = 1.5
OWN_BYTES = 64 << 20
"""Allowed memory of a broker in addition to its quotas: connections, buffers of one turn, caches."""
GROWTH_BYTES_MAX = 1 << 30
"""Growth of the broker's memory at which an attack is stopped, to protect this machine."""
CALM_S = 0.5
AFTER_S = 1.0
"""Time that the honest clients continue after an attack."""
DRAIN_S = 15.0
JOIN_S = 30.0
NICENESS = 10
"""Niceness of attackers, so that honest clients on the same cores can measure."""
SAID_MAX = 3
FIRST, SECOND = "a", "b"
"""Ids of the broker under attack, and of the second one."""


@dataclass
class Site:
    """The broker under attack, and a second one if an attack needs it."""

    attack: Attack
    folder: Path
    settings: Sequence[str]
    config: Path | None
    ports: dict[Door, int] = field(default_factory=dict)
    brokers: list[Process] = field(default_factory=list)

    def start(self) -> None:
        clients: list[Door] = ["tcp", "ws"]
        if self.attack.door == "tls":
            clients.append("tls")
        doors: tuple[Door, ...] = ("http", "link", *clients)
        self.ports = {door: free_port() for door in doors}
        keys = self._common_keys()
        keys |= {
            "id": FIRST, "link.address": HOST, "link.port": str(self.ports["link"]),
            "metrics.enabled": "true", "metrics.address": HOST, "metrics.port": str(self.ports["http"]),
        }  # fmt: skip
        for number, door in enumerate(clients):
            keys |= self._listener(number, self.ports[door]) | {f"listener.{number}.kind": door}
        if "tls" in clients:
            keys["listener.2.certificate"], keys["listener.2.key"] = write_certificate(self.folder)
        self._run(FIRST, keys)
        if self.attack.needs_peer and not self.attack.is_peer_late:
            self.join()

    def _common_keys(self) -> dict[str, str]:
        keys = dict(setting.split("=", 1) for setting in (*self.settings, *self.attack.settings))
        if self.attack.needs_users:
            users = self.folder / "users"
            users.touch(0o600)
            users.write_text("".join(f"{name}:{hash_password(PASSWORD)}\n" for name in USERS))
            keys["access.users"] = str(users)
        return keys

    def _listener(self, number: int, port: int) -> dict[str, str]:
        place = f"listener.{number}"
        anonymous = str(not self.attack.needs_users).lower()
        return {f"{place}.address": HOST, f"{place}.port": str(port), f"{place}.anonymous": anonymous}

    def join(self) -> float:
        """Start the second broker; return the seconds until its link to the first is up."""
        port, link = free_port(), self.ports["link"]
        keys = self._common_keys() | self._listener(0, port)
        keys |= {"id": SECOND, "peer.0.id": FIRST, "peer.0.address": f"{HOST}:{link}"}
        second = self._run(SECOND, keys)
        began = time.monotonic()
        if not wait_until(
            lambda: f"the link to {FIRST} is up" in second.log.read_text(errors="replace"), JOIN_S
        ):
            return float("inf")
        return time.monotonic() - began

    def _run(self, name: str, keys: dict[str, str]) -> Process:
        command = ["broker", *(("--config", str(self.config)) if self.config else ())]
        keys["data"] = str(self.folder / name)
        for key, value in keys.items():
            command += ["--set", f"{key}={value}"]
        port = int(keys["listener.0.port"])
        program = roamcast_command(*command)
        if self.attack.files_max is not None:
            program = ["sh", "-c", f'ulimit -n {self.attack.files_max} && exec "$@"', "sh", *program]
        process = Process(name, program, port, self.folder / f"{name}.log")
        self.brokers.append(process.serve())
        return process

    @property
    def quota_bytes(self) -> int:
        """Return the sum of the quotas that this attack may fill."""
        keys = self._common_keys()
        keys.pop("access.users", None)
        quotas = BROKER.load(self.config, {}, keys).quotas
        return sum(getattr(quotas, name) for name in self.attack.quotas)

    def stop(self) -> None:
        for process in self.brokers:
            process.kill()


def write_certificate(folder: Path) -> tuple[str, str]:
    """Write a self-signed certificate for this machine, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, key_file = folder / "certificate.pem", folder / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.touch(0o600)
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return str(pem), str(key_file)


def run(
    names: Sequence[str] = (),
    *,
    seconds: float = SECONDS,
    sync: str = "process",
    config: Path | None = None,
    settings: Sequence[str] = (),
    seed: int = 1,
    progress: Report = silent,
) -> dict[str, Any]:
    """Run these attacks, or all; return a row for each."""
    attacks = [ATTACKS[name] for name in names or ATTACKS]
    skipped = {attack.name: why for attack in attacks if (why := missing(attack))}
    attacks = [attack for attack in attacks if attack.name not in skipped]
    cases = []
    progress(0, len(attacks))
    for number, attack in enumerate(attacks, start=1):
        with tempfile.TemporaryDirectory(prefix="roamcast-attack-") as folder:
            site = Site(attack, Path(folder), (f"journal.sync={sync}", *settings), config)
            try:
                site.start()
                cases.append(_attack(site, seconds, seed))
            finally:
                site.stop()
        progress(number, len(attacks))
    return {
        "seconds": seconds, "sync": sync, "ping_ms_max": PING_MS_MAX, "memory_factor": MEMORY_FACTOR,
        "holds": all(case["holds"] for case in cases), "cases": cases, "skipped": skipped,
    }  # fmt: skip


def missing(attack: Attack) -> str:
    """Return why this attack cannot run here; "" if it can."""
    if attack.door == "tls":
        try:
            import cryptography  # noqa: F401
        except ImportError:
            return "cryptography is not installed (pip install cryptography)"
    return ""


def _attack(site: Site, seconds: float, seed: int) -> dict[str, Any]:
    attack, broker = site.attack, site.brokers[0]
    if attack.prepare is not None:
        attack.prepare(Target(site.ports, 600.0, seed))
    listening = site.brokers[-1] if len(site.brokers) > 1 else broker
    pair = HonestPair(broker.port, listening.port, attack.needs_users)
    probes = Probes(site.ports, attack.door, attack.needs_users)
    memory = _Memory(broker)
    pair.run(CALM_S, memory.look)
    memory.begin()
    said_before = len(_complaints(broker))
    waited_before_s = _waited_s(broker)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    attacker = multiprocessing.get_context("spawn").Process(
        target=_attacking, args=(theirs, attack.name, site.ports, seconds, seed), daemon=True
    )
    joined_s = None
    attacker.start()
    try:
        if not _wait_begun(ours, pair, memory):
            raise BenchFailed(f"the attacker of {attack.name} did not start")
        probes.start()
        if attack.is_peer_late:
            pair.run(min(1.0, seconds / 4), memory.look)
            joined_s = site.join()
        memory.on_excess = attacker.terminate
        pair.run(seconds + AFTER_S, memory.look)
        pair.drain(DRAIN_S)
        attacker.join(DRAIN_S)
    finally:
        attacker.kill()
        attacker.join()
    probes.stop()
    pair.close()
    counts = ours.recv() if ours.poll() else {"ended early": 1}
    case = {
        "attack": attack.name, "what": attack.what, **pair.summary(), **probes.summary(),
        **memory.summary(site.quota_bytes), "is_running": broker.is_running, "did": counts,
        "broker_waited_ms": 1000 * (_waited_s(broker) - waited_before_s),
        "said": _complaints(broker)[said_before:][:SAID_MAX],
    }  # fmt: skip
    if joined_s is not None:
        case["joined_s"] = joined_s
    case["why"] = reasons(case)
    case["holds"] = not case["why"]
    return case


def reasons(case: dict[str, Any]) -> list[str]:
    """Return the criteria that the attack violated."""
    checks = {
        "the broker ended": case["is_running"],
        "messages were lost": not case["lost"] and not case["unanswered"],
        "an honest client was disconnected": not case["reconnects"],
        f"a ping took longer than {PING_MS_MAX:.0f} ms": case["ping_worst_ms"] < PING_MS_MAX,
        "memory is above the quota": case["memory_mb_peak"] <= case["memory_mb_max"],
        "a new client did not get in": not case["connect_failed"],
        "/healthz did not answer": not case["healthz_failed"],
        "a broker could not join": case.get("joined_s", 0.0) < JOIN_S / 2,
    }
    return [why for why, is_well in checks.items() if not is_well]


class _Memory:
    """Samples the broker's resident memory while the honest clients run."""

    def __init__(self, broker: Process) -> None:
        self._broker = broker
        self.before = self.peak = 0
        self.on_excess: Any = None
        """Called when the broker's memory has grown too much."""

    def begin(self) -> None:
        self.before = self.peak = self._broker.resident_bytes()

    def look(self) -> None:
        if self._broker.is_running:
            self.peak = max(self.peak, self._broker.resident_bytes())
        if self.before and self.peak - self.before > GROWTH_BYTES_MAX and self.on_excess is not None:
            self.on_excess()

    def summary(self, quota_bytes: int) -> dict[str, Any]:
        allowed = self.before + MEMORY_FACTOR * quota_bytes + OWN_BYTES
        return {
            "memory_mb_before": self.before / 1e6,
            "memory_mb_peak": self.peak / 1e6,
            "memory_mb_max": allowed / 1e6,
            "quota_mb": quota_bytes / 1e6,
        }


def _wait_begun(ours: Connection, pair: HonestPair, memory: _Memory) -> bool:
    """Wait until the attacker has started; the honest clients continue meanwhile."""
    end = time.monotonic() + JOIN_S
    while time.monotonic() < end:
        if ours.poll():
            return bool(ours.recv())
        pair.run(0.05, memory.look)
    return False


def _attacking(connection: Connection, name: str, ports: dict[Door, int], seconds: float, seed: int) -> None:
    """Run in the attacker's process."""
    os.nice(NICENESS)
    connection.send(True)
    attack = ATTACKS[name]
    target = Target(ports, seconds, seed, SECOND, USERS[-1] if attack.needs_users else "")
    attack.run(target)
    connection.send(dict(target.counts))


_TOLD = "refus|too many|more than|malformed|protocol error|quota|invalid|not allowed|did not come in"
_COMPLAINT = re.compile(
    rf"^\S+ \S+ (?:WARNING|ERROR|CRITICAL) (.*)$|^\S+ \S+ INFO (.*(?:{_TOLD}).*)$", re.IGNORECASE
)


def _waited_s(broker: Process) -> float:
    """Return the seconds in which the broker waited for a core, because the machine was busy."""
    if not broker.is_running:
        return 0.0
    return int(Path(f"/proc/{broker.pid}/schedstat").read_text().split()[1]) / 1e9


def _complaints(broker: Process) -> list[str]:
    """Return the broker's warnings about clients, each once."""
    found: dict[str, None] = {}
    for line in broker.log.read_text(errors="replace").splitlines():
        match = _COMPLAINT.match(line)
        if match:
            found[match[1] or match[2]] = None
    return list(found)
