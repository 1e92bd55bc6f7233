"""Networks of foreign brokers in typical arrangements: three real servers on loopback, a hub and two ends.

Each arrangement is acyclic: Mosquitto with bridges, a NATS hub with leaf nodes, a network of ActiveMQ
brokers, and three Roamcast brokers. RabbitMQ exists as a single server, for its adapter.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from textwrap import dedent
from xml.sax.saxutils import quoteattr

from roamcast.bench.interrupts import interrupts_held_back
from roamcast.bench.processes import HOST, BenchFailed, Process, free_port, roamcast_command
from roamcast.proxy.adapter import Adapter, ForeignMessage, open_adapter

SITES = ("hub", "a", "b")
"""Sites; the hub is linked with the others."""
SETTLE_S = 60.0
ACTIVEMQ = Path("/usr/share/activemq")


@dataclass
class ForeignNetwork:
    """Three running servers of one kind."""

    kind: str
    processes: list[Process] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    def url(self, site: str, port: int | None = None) -> str:
        """Return the address of a site's broker; `port` is that of a relay in front of it."""
        return f"{SCHEMES[self.kind]}://{HOST}:{port or self.ports[site]}"

    def adapter(self, site: str, port: int | None = None) -> Adapter:
        return open_adapter(self.kind, self.url(site, port))

    def process(self, site: str) -> Process:
        return next(process for process in self.processes if process.name == f"{self.kind} {site}")

    def stop(self) -> None:
        for process in self.processes:  # All at once, so that nobody waits for one after the other.
            process.send(signal.SIGTERM)
        for process in reversed(self.processes):
            process.stop()


SCHEMES = {
    "mosquitto": "mqtt", "roamcast": "mqtt", "nats": "nats", "activemq": "stomp", "rabbitmq": "amqp",
}  # fmt: skip


@contextmanager
def foreign_network(kind: str, folder: Path, sites: Sequence[str] = SITES) -> Iterator[ForeignNetwork]:
    """Run the network during the block, with its files below this folder. Raises BenchFailed if it does not
    start.

    `sites` may be fewer: `("hub",)` is a single server.
    """
    reason = missing(kind)
    if reason is not None:
        raise BenchFailed(reason)
    network = ForeignNetwork(kind)
    try:
        network.ports = {site: free_port() for site in sites}
        for site in sites:
            (folder / site).mkdir(parents=True)
        STARTS[kind](network, folder)
        for process in network.processes:
            with interrupts_held_back():
                process.start()
        for process in network.processes:
            process.wait_listening()
        if len(sites) > 1:
            asyncio.run(settle(network))
        yield network
    finally:
        with interrupts_held_back():
            network.stop()


async def settle(network: ForeignNetwork) -> None:
    """Wait until a message published at any site arrives at every other one."""
    adapters = {site: network.adapter(site) for site in network.ports}
    opened: list[Adapter] = []
    try:
        for adapter in adapters.values():
            await adapter.open()
            opened.append(adapter)
        heard: set[tuple[str, str]] = set()
        for site, adapter in adapters.items():
            for source in adapters:
                topic = adapter.topic_of(["settle", source])
                await adapter.subscribe(f"settle-{site}", topic, partial(_note, heard, (source, site)))
        await _publish_until_heard(adapters, heard)
        for site, adapter in adapters.items():
            for source in adapters:
                await adapter.unsubscribe(f"settle-{site}", adapter.topic_of(["settle", source]))
    finally:
        for adapter in opened:
            await adapter.close()


def _note(heard: set[tuple[str, str]], what: tuple[str, str], message: ForeignMessage) -> None:
    heard.add(what)


async def _publish_until_heard(adapters: dict[str, Adapter], heard: set[tuple[str, str]]) -> None:
    wanted = {(source, site) for source in adapters for site in adapters}
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while missed := wanted - heard:
        if asyncio.get_running_loop().time() > deadline:
            raise BenchFailed(f"nothing comes from {' nor from '.join(f'{a} to {b}' for a, b in missed)}")
        for source in sorted({source for source, _ in missed}):
            await adapters[source].publish(ForeignMessage(adapters[source].topic_of(["settle", source]), b""))
        await asyncio.sleep(0.05)


def _add(
    network: ForeignNetwork,
    site: str,
    command: list[str],
    folder: Path,
    variables: dict[str, str] | None = None,
) -> None:
    network.processes.append(
        Process(
            f"{network.kind} {site}", command, network.ports[site], folder / site / "log",
            variables=variables or {},
        )
    )  # fmt: skip


def _settings(folder: Path, site: str, name: str, text: str) -> str:
    path = folder / site / name
    path.write_text(dedent(text))
    return str(path)


# --- Mosquitto ---


def _start_mosquitto(network: ForeignNetwork, folder: Path) -> None:
    for site, port in network.ports.items():
        bridge = ""
        if site != "hub":
            bridge = f"""
                connection {site}-hub
                address {HOST}:{network.ports["hub"]}
                topic # both 1
                bridge_protocol_version mqttv50
                remote_clientid {site}-hub
                local_clientid {site}-hub-local
                restart_timeout 1
                try_private true
                notifications false
                """
        settings = f"""
                listener {port} {HOST}
                allow_anonymous true
                persistence false
                max_inflight_messages 1000
                max_queued_messages 0
                set_tcp_nodelay true
                log_type error
                {bridge}"""
        path = _settings(folder, site, "mosquitto.conf", settings)
        _add(network, site, [find_program("mosquitto") or "", "-c", path], folder)


# --- NATS ---


def _start_nats(network: ForeignNetwork, folder: Path) -> None:
    leaves = free_port()
    for site, port in network.ports.items():
        if site == "hub":
            links = f'host: "{HOST}", port: {leaves}'
        else:
            links = f'remotes: [ {{ url: "nats-leaf://{HOST}:{leaves}" }} ], reconnect: 1'
        # A domain of its own for each server: so the streams of one do not become those of another.
        settings = f"""
                host: "{HOST}"
                port: {port}
                server_name: {site}
                jetstream {{ store_dir: "{folder / site}", domain: {site} }}
                leafnodes {{ {links} }}
                """
        path = _settings(folder, site, "nats.conf", settings)
        _add(network, site, [find_program("nats-server") or "", "-c", path], folder)


# --- ActiveMQ ---

_ACTIVEMQ_XML = """\
<beans xmlns="http://www.springframework.org/schema/beans"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.springframework.org/schema/beans
           http://www.springframework.org/schema/beans/spring-beans.xsd
           http://activemq.apache.org/schema/core
           http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="{site}" useJmx="false"
          persistent="false" schedulerSupport="false" dataDirectory={data}>
    <networkConnectors>{links}</networkConnectors>
    <transportConnectors>
      <transportConnector uri="tcp://{host}:{openwire}"/>
      <transportConnector uri="stomp://{host}:{stomp}"/>
    </transportConnectors>
  </broker>
</beans>
"""


def _start_activemq(network: ForeignNetwork, folder: Path) -> None:
    openwire = {site: free_port() for site in network.ports}
    jars = ":".join(f"{ACTIVEMQ / part}/*" for part in ("bin", "lib", "lib/optional"))
    for site, port in network.ports.items():
        links = ""
        if site != "hub":
            # Both ways over one connection, opened by the end that is further from the hub.
            to = quoteattr(f"static:(tcp://{HOST}:{openwire['hub']})?initialReconnectDelay=200")
            links = f'<networkConnector name="{site}-hub" uri={to} duplex="true" networkTTL="3"/>'
        xml = _ACTIVEMQ_XML.format(
            site=site, data=quoteattr(str(folder / site)), links=links, host=HOST,
            openwire=openwire[site], stomp=port,
        )  # fmt: skip
        path = folder / site / "activemq.xml"
        path.write_text(xml)
        command = [
            find_program("java") or "", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Xshare:auto", "-cp", jars, f"-Dactivemq.home={ACTIVEMQ}", f"-Dactivemq.base={folder / site}",
            "org.apache.activemq.console.Main", "start", f"xbean:file:{path}",
        ]  # fmt: skip
        _add(network, site, command, folder)


# --- RabbitMQ ---


def _start_rabbitmq(network: ForeignNetwork, folder: Path) -> None:
    names = free_port()
    programs = {"ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": HOST}
    epmd = Process("epmd", [find_program("epmd") or "", "-address", HOST, "-port", str(names)], names,
                   folder / "epmd.log")  # fmt: skip
    network.processes.append(epmd)
    for site, port in network.ports.items():
        base = folder / site
        settings = f"""
                listeners.tcp.1 = {HOST}:{port}
                loopback_users = none
                log.console.level = error
                """
        config = _settings(folder, site, "rabbitmq.conf", settings)
        (base / "plugins").write_text("[].\n")
        variables = {
            **programs,
            "HOME": str(base),
            "RABBITMQ_NODENAME": f"roamcast-{site}-{port}@localhost",
            "RABBITMQ_CONFIG_FILE": config.removesuffix(".conf"),
            "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_LOG_BASE": str(base / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +S 1:1",
            # Then the script becomes the server instead of starting it, and the server has our process id.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        _add(network, site, [str(_rabbitmq())], folder, variables)


def _rabbitmq() -> Path | None:
    """Start RabbitMQ's own script: Debian's wrapper changes to a user that may not read our folder."""
    found = sorted(Path("/usr/lib/rabbitmq").glob("lib/rabbitmq_server-*/sbin/rabbitmq-server"))
    return found[-1] if found else None


# --- Roamcast ---


def _start_roamcast(network: ForeignNetwork, folder: Path) -> None:
    links = {site: free_port() for site in network.ports}
    for site, port in network.ports.items():
        peers = ["--peer-listen", f"{HOST}:{links[site]}"]
        if site != "hub":
            peers += ["--peer", f"hub={HOST}:{links['hub']}"]
        command = roamcast_command(
            "broker", "--id", site, "--listen", f"{HOST}:{port}", "--data", str(folder / site / "data"),
            "--set", "log.level=warning", "--set", "journal.sync=process", *peers,
        )  # fmt: skip
        _add(network, site, command, folder)


STARTS = {
    "mosquitto": _start_mosquitto,
    "nats": _start_nats,
    "activemq": _start_activemq,
    "rabbitmq": _start_rabbitmq,
    "roamcast": _start_roamcast,
}


# --- what is installed ---


def find_program(name: str) -> str | None:
    # Debian puts servers where an ordinary user's PATH does not look.
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def missing(kind: str) -> str | None:
    """Return why networks of this kind cannot be started here; None if they can."""
    is_here = {
        "roamcast": True,
        "mosquitto": bool(find_program("mosquitto")),
        "nats": bool(find_program("nats-server")),
        "activemq": bool((ACTIVEMQ / "bin" / "activemq.jar").exists() and find_program("java")),
        "rabbitmq": bool(_rabbitmq() and find_program("epmd")),
    }[kind]
    package = {"nats": "nats-server", "rabbitmq": "rabbitmq-server"}.get(kind, kind)
    return None if is_here else f"{kind} is not installed (Debian: apt-get install {package})"
