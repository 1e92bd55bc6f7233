"""Proxies as real processes, beside real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from roamcast.bench.foreign_brokers import ForeignNetwork
from roamcast.bench.processes import HOST, Process, free_port, roamcast_command, wait_until
from roamcast.config.writing import toml_value

SECRET = "what the proxies of these tests share"
Given = ParamSpec("Given")


def within(
    seconds: float,
) -> Callable[[Callable[Given, Coroutine[Any, Any, None]]], Callable[Given, None]]:
    """A test that is a coroutine, and may take so long."""

    def decorated(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
        @wraps(test)
        def told(*args: Given.args, **kwargs: Given.kwargs) -> None:
            asyncio.run(asyncio.wait_for(test(*args, **kwargs), seconds))

        return told

    return decorated


class Proxies:
    """One proxy at each site of a network."""

    def __init__(
        self, network: ForeignNetwork, folder: Path, settings: Mapping[str, object], query: str
    ) -> None:
        self.ports = {site: free_port() for site in network.ports}
        self.mqtt_ports = {site: free_port() for site in network.ports}
        self.addresses = {site: f"{HOST}:{port}" for site, port in self.ports.items()}
        self.processes: dict[str, Process] = {}
        self.has_mqtt = network.kind == "mosquitto"
        self._query = query
        for site in self.ports:
            file = folder / f"{site}.toml"
            file.write_text(self._config(network, folder, site, settings))
            file.chmod(0o600)
            command = roamcast_command("proxy", "--config", str(file))
            self.processes[site] = Process(f"proxy {site}", command, self.ports[site], folder / f"{site}.log")

    def _config(
        self, network: ForeignNetwork, folder: Path, site: str, settings: Mapping[str, object]
    ) -> str:
        lines = [f'site = "{site}"', f'data = "{folder / site}-data"']
        lines += [f"{key} = {toml_value(value)}" for key, value in settings.items()]
        lines += ["[broker]", f'kind = "{network.kind}"', f'url = "{network.url(site)}{self._query}"']
        lines += ["[listener]", f"port = {self.ports[site]}", "[peers]", f'secret = "{SECRET}"']
        lines += ["[mqtt]", f"enabled = {toml_value(self.has_mqtt)}"]
        lines += [f"port = {self.mqtt_ports[site]}"]
        for other, address in self.addresses.items():
            if other != site:
                lines += ["[[proxy]]", f'site = "{other}"', f'address = "{address}"']
        return "\n".join(lines) + "\n"

    def start(self, site: str) -> None:
        """Start a proxy, and wait until it can be used: before it has reached its broker it refuses moves."""
        process = self.processes[site]
        process.start()
        process.wait_listening()
        signs = [
            f"connected to the broker of site {site}",
            *(["MQTT clients connect"] if self.has_mqtt else []),
        ]

        def is_usable() -> bool:
            said = process.log.read_text().rpartition("proxy listens on")[2]
            return all(sign in said for sign in signs)

        assert wait_until(is_usable, 60)


@contextmanager
def proxies_of(
    network: ForeignNetwork, folder: Path, settings: Mapping[str, object] | None = None, query: str = ""
) -> Iterator[Proxies]:
    """The proxies while the block runs; `query` is what the URLs of their brokers end with."""
    proxies = Proxies(network, folder, settings or {}, query)
    try:
        for site in proxies.ports:
            proxies.start(site)
        yield proxies
    finally:
        for process in proxies.processes.values():
            process.stop()
