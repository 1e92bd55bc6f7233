"""The compared brokers, each configured for speed without loss."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from roamcast.bench.foreign_brokers import find_program, missing
from roamcast.bench.processes import HOST, Process, free_port, roamcast_command

AMQTT_MAIN = "import sys; from amqtt.scripts.broker_script import main; sys.exit(main())"
MOSQUITTO = f"""\
listener PORT {HOST}
allow_anonymous true
persistence false
max_inflight_messages 0
max_queued_messages 0
set_tcp_nodelay true
log_type error
"""
AMQTT = f"""\
listeners:
  default:
    type: tcp
    bind: {HOST}:PORT
    max_connections: 20000
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""
NATS = f"""\
host: "{HOST}"
port: -1
server_name: bench
jetstream {{ store_dir: "DATA" }}
mqtt {{ host: "{HOST}", port: PORT }}
"""


@dataclass(frozen=True)
class Kind:
    """A broker with its settings."""

    name: str
    settings: str
    command: tuple[str, ...]
    """Command; PORT, DATA and FILE stand for the port, the data folder and the configuration file."""
    file: str = ""
    """Content of the configuration file."""
    target: float = 0.0
    """Required multiple of its throughput, in every case."""

    def missing(self) -> str | None:
        """Return why it cannot be started here; None if it can."""
        if self.name == "amqtt":
            return None if importlib.util.find_spec("amqtt") else "amqtt is not installed (pip install amqtt)"
        return missing(self.name) if self.name in OTHERS else None

    def start(self, folder: Path, cores: frozenset[int]) -> Process:
        folder.mkdir(parents=True)
        port, file = free_port(), folder / "configuration"
        places = {"PORT": str(port), "DATA": str(folder / "data"), "FILE": str(file)}
        file.write_text(self.file.replace("PORT", places["PORT"]).replace("DATA", places["DATA"]))
        command = list(self.command)
        for name, place in places.items():
            command = [word.replace(name, place) if word.endswith(name) else word for word in command]
        return Process(self.name, command, port, folder / "log", cores).serve()


def roamcast(sync: str, *settings: str) -> Kind:
    command = roamcast_command("broker", "--id", "bench", "--listen", f"{HOST}:PORT", "--data", "DATA")
    for setting in (f"journal.sync={sync}", "log.level=warning", *settings):
        command += ["--set", setting]
    about = f"journal on disk, sync = {sync}, records as counters (no event log), uvloop"
    return Kind(f"roamcast {sync}", about, tuple(command))


def before(source: Path, sync: str) -> Kind:
    """Return the Roamcast of another source tree, run with the same interpreter and libraries."""
    kind = roamcast(sync)
    command = ("env", f"PYTHONPATH={source.resolve()}", *kind.command)
    return replace(
        kind, name=f"before {sync}", settings=f"source tree {source}; {kind.settings}", command=command
    )


ROAMCAST = {sync: roamcast(sync) for sync in ("process", "group")}
OTHERS = {
    "mosquitto": Kind(
        "mosquitto",
        "anonymous, no persistence (no journal), max_inflight_messages 0 and max_queued_messages 0"
        " (unlimited), set_tcp_nodelay true",
        (find_program("mosquitto") or "mosquitto", "-c", "FILE"),
        MOSQUITTO,
    ),
    "amqtt": Kind(
        "amqtt",
        "anonymous, no other plugin, no persistence (no journal), max_connections 20000",
        (sys.executable, "-W", "ignore", "-c", AMQTT_MAIN, "-c", "FILE"),
        AMQTT,
        10.0,
    ),
    "nats": Kind(
        "nats",
        "its MQTT (3.1.1), JetStream in files, without a sync for each message",
        (find_program("nats-server") or "nats-server", "-c", "FILE"),
        NATS,
    ),
}
