"""The brokers that are compared, each set as its users would set it for speed without loss."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from roamcast.bench.processes import HOST, BenchFailed, Process, free_port, roamcast_command

AMQTT_MAIN = "import sys; from amqtt.scripts.broker_script import main; sys.exit(main())"


@dataclass(frozen=True)
class Kind:
    """A broker with its settings."""

    name: str
    settings: str
    make: Callable[[Kind, Path, frozenset[int]], Process]
    missing: Callable[[], str | None]
    """Why it cannot be started here; None if it can."""

    def start(self, folder: Path, cores: frozenset[int]) -> Process:
        folder.mkdir(parents=True)
        process = self.make(self, folder, cores)
        process.start()
        try:
            process.wait_listening()
        except BenchFailed:
            process.kill()
            raise
        return process


def _start_roamcast(sync: str) -> Callable[[Kind, Path, frozenset[int]], Process]:
    def make(kind: Kind, folder: Path, cores: frozenset[int]) -> Process:
        port = free_port()
        command = roamcast_command(
            "broker", "--id", "bench", "--listen", f"{HOST}:{port}", "--data", str(folder / "data"),
            "--set", f"journal.sync={sync}", "--set", "log.level=warning",
        )  # fmt: skip
        return Process(kind.name, command, port, folder / "log", cores)

    return make


def _start_mosquitto(kind: Kind, folder: Path, cores: frozenset[int]) -> Process:
    port = free_port()
    settings = folder / "mosquitto.conf"
    settings.write_text(
        dedent(f"""\
            listener {port} {HOST}
            allow_anonymous true
            persistence false
            max_inflight_messages 0
            max_queued_messages 0
            set_tcp_nodelay true
            log_type error
        """)
    )
    command = [_mosquitto() or "mosquitto", "-c", str(settings)]
    return Process(kind.name, command, port, folder / "log", cores)


def _start_amqtt(kind: Kind, folder: Path, cores: frozenset[int]) -> Process:
    port = free_port()
    settings = folder / "amqtt.yaml"
    settings.write_text(
        dedent(f"""\
            listeners:
              default:
                type: tcp
                bind: {HOST}:{port}
                max_connections: 20000
            plugins:
              amqtt.plugins.authentication.AnonymousAuthPlugin:
                allow_anonymous: true
        """)
    )
    command = [sys.executable, "-W", "ignore", "-c", AMQTT_MAIN, "-c", str(settings)]
    return Process(kind.name, command, port, folder / "log", cores)


def _mosquitto() -> str | None:
    # Debian puts it where an ordinary user's PATH does not look.
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _is_here() -> str | None:
    return None


def _without_mosquitto() -> str | None:
    return None if _mosquitto() else "mosquitto is not installed (Debian: apt install mosquitto)"


def _without_amqtt() -> str | None:
    return None if importlib.util.find_spec("amqtt") else "amqtt is not installed (pip install amqtt)"


ROAMCAST = {
    sync: Kind(
        f"roamcast {sync}",
        f"journal on disk, sync = {sync}, records as counters (no event log), uvloop",
        _start_roamcast(sync),
        _is_here,
    )
    for sync in ("process", "group")
}
OTHERS = {
    "mosquitto": Kind(
        "mosquitto",
        "anonymous, no persistence (no journal), max_inflight_messages 0 and max_queued_messages 0"
        " (unlimited), set_tcp_nodelay true",
        _start_mosquitto,
        _without_mosquitto,
    ),
    "amqtt": Kind(
        "amqtt",
        "anonymous, no other plugin, no persistence (no journal), max_connections 20000",
        _start_amqtt,
        _without_amqtt,
    ),
}
