"""Starts a broker from the flags of `roamcast broker`, without loading other commands.

A broker runs for months and keeps what was loaded at its start; the library behind the other commands takes 8
MB and a tenth of a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roamcast.errors import InputError, did_you_mean

KINDS = ("tcp", "tls", "ws", "wss")

SINGLE = ("--config", "--id", "--peer-listen", "--discover", "--data", "--workers", "--mobility")
REPEATED = ("--listen", "--peer", "--set")


def plain_flags(words: Sequence[str]) -> dict[str, Any] | None:
    """Flags of a plain `roamcast broker` command line; None for any other, valid or not."""
    found: dict[str, Any] = {}
    given = iter(words)
    for word in given:
        name, equals, value = word.partition("=")
        if not equals:
            value = next(given, "")
        if not value or (not equals and value.startswith("-")):
            return None
        field = name.removeprefix("--").replace("-", "_")
        if name in SINGLE:
            found[field] = Path(value) if name == "--config" else value
        elif name in REPEATED:
            found.setdefault("set_" if name == "--set" else field, []).append(value)
        else:
            return None
    return found


def run_plain(flags: dict[str, Any]) -> int:
    """Start a broker with flags that `plain_flags` has read."""
    from roamcast.plugins import load_protocols

    load_protocols()
    return start_broker(**flags)


def start_broker(
    *,
    config: Path | None = None,
    id: str | None = None,
    listen: list[str] | None = None,
    peer: list[str] | None = None,
    peer_listen: str | None = None,
    discover: str | None = None,
    data: str | None = None,
    workers: str | None = None,
    mobility: str | None = None,
    set_: list[str] | None = None,
    print_config: bool = False,
    check: bool = False,
) -> int:
    """Run a broker until it is stopped, or print or check its configuration; return the exit code."""
    from roamcast.daemon.config import BROKER

    if print_config:
        sys.stdout.write(BROKER.default_file())
        return 0
    flags: dict[str, Any] = {}
    if listen:
        flags["listener"] = [parse_listener(text) for text in listen]
    if peer:
        flags["peer"] = [parse_peer(text) for text in peer]
    flags |= dict(map(parse_setting, set_ or []))
    flags |= {
        key: value
        for key, value in {"id": id, "data": data, "workers": workers, "mobility.protocol": mobility}.items()
        if value is not None
    }
    if peer_listen:
        flags |= parse_peer_listener(peer_listen)
    if discover:
        flags |= discovering(discover, is_listening=bool(peer_listen or config))
    warnings: list[str] = []
    settings = BROKER.load(config, os.environ, flags, warnings.append)
    if check:
        print_usable(config, warnings)
        return 0
    from roamcast.daemon.workers import leaving, this_worker

    worker = this_worker()
    if worker is None and (settings.workers > 1 or leaving(Path(settings.data), settings.workers)):
        from roamcast.daemon.supervising import supervise

        return supervise(settings, warnings)
    from roamcast.daemon.main import serve

    serve(settings, lambda warn: BROKER.load(config, os.environ, flags, warn), warnings, worker)
    return 0


def print_usable(path: Path | None, warnings: list[str]) -> None:
    """Print the result of --check for a valid configuration."""
    for line in warnings:
        print(f"roamcast: warning: {line}", file=sys.stderr)
    print(f"{path or 'the configuration'} is valid")


def parse_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {text}: valid is KEY=VALUE, as in mqtt.receive_maximum=64")
    return key.strip(), value


def parse_listener(text: str) -> dict[str, Any]:
    kind, scheme, endpoint = text.rpartition("://")
    if scheme and kind not in KINDS:
        raise InputError(f"--listen {text}: {did_you_mean(kind, KINDS) or 'valid kinds are tcp and ws'}")
    if kind in ("tls", "wss"):
        raise InputError(f"--listen {text}: {kind} needs certificates; write a [[listener]] into a file")
    host, port = parse_endpoint("--listen", endpoint)
    return {"address": host, "port": port, "kind": kind or "tcp"}


def parse_peer(text: str) -> dict[str, Any]:
    id, equals, address = text.partition("=")
    if not equals:
        return {"id": id}
    parse_endpoint("--peer", address)
    return {"id": id, "address": address}


def parse_peer_listener(text: str) -> dict[str, Any]:
    host, port = parse_endpoint("--peer-listen", text)
    return {"link.address": host, "link.port": port}


def discovering(text: str, is_listening: bool) -> dict[str, Any]:
    """Settings of --discover: also a link listener, unless other flags configure it."""
    from roamcast.config.addresses import is_loopback

    interface, colon, port = text.partition(":")
    keys: dict[str, Any] = {"discovery.enabled": "true", "discovery.interface": interface}
    if colon:
        keys["discovery.port"] = port
    if not is_listening:
        is_local = interface == "lo" or is_loopback(interface)
        keys |= {"link.port": "0", "link.address": "127.0.0.1" if is_local else "0.0.0.0"}
    return keys


def parse_endpoint(option: str, text: str) -> tuple[str, int]:
    from roamcast.config.addresses import split_endpoint

    try:
        return split_endpoint(text)
    except InputError as error:
        raise InputError(f"{option} {error}") from None
