"""`roamcast broker`: a broker for MQTT clients that roam."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from roamcast.cli import operate
from roamcast.cli.usage import CommandGroup, show_examples
from roamcast.errors import InputError, did_you_mean

MOVING = "roamcast broker --id a --mobility mft --discover lo --data site-a"
QUICK = "roamcast broker --id a --listen 127.0.0.1:1883 --peer b=127.0.0.1:7001 --data site-a"
KINDS = ("tcp", "tls", "ws", "wss")

# Options of every command that runs a server.
ConfigFile = Annotated[Path | None, typer.Option(help="The configuration, a TOML file.")]
DataFolder = Annotated[str | None, typer.Option(help="The folder for what must survive a restart.")]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the default configuration, commented, and exit.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Check the configuration and exit: 0 if it can be used.")
]


def register(app: typer.Typer) -> None:
    examples = show_examples(
        "roamcast broker --print-config", "roamcast broker --config site.toml --check", QUICK, MOVING
    )
    group = typer.Typer(
        cls=BrokerGroup, add_completion=False, rich_markup_mode=None, invoke_without_command=True,
        epilog=examples, context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip
    group.callback()(broker)
    app.add_typer(group, name="broker")
    operate.register(app, group)


class BrokerGroup(CommandGroup):
    """A group that is a command too: without one of its own commands it runs a broker."""

    needs_command = False


def broker(
    context: typer.Context,
    config: ConfigFile = None,
    id: Annotated[str | None, typer.Option(help="This broker's id.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND://]HOST:PORT",
            help="Where clients connect, kind tcp or ws; replaces configured listeners. Repeatable.",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID[=HOST:PORT]",
            help="A neighbouring broker, which connects by itself if it has no address; replaces configured "
            "ones. Repeatable.",
        ),
    ] = None,
    peer_listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where peers connect.")] = None,
    discover: Annotated[
        str | None,
        typer.Option(
            metavar="INTERFACE[:PORT]",
            help="Look for other brokers on this interface (lo, wlan0) by multicast; for --mobility mft.",
        ),
    ] = None,
    data: DataFolder = None,
    mobility: Annotated[str | None, typer.Option(help="The mobility protocol.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key: mqtt.receive_maximum=64. Repeatable."),
    ] = None,
    print_config: PrintConfig = False,
    check: Check = False,
) -> None:
    """Run a broker. Flags win over environment variables (ROAMCAST_SECTION_KEY), and these over the file."""
    if context.invoked_subcommand is not None:
        return
    from roamcast.daemon.config import BROKER

    if print_config:
        sys.stdout.write(BROKER.default_file())
        return
    flags: dict[str, Any] = {}
    if listen:
        flags["listener"] = [parse_listener(text) for text in listen]
    if peer:
        flags["peer"] = [parse_peer(text) for text in peer]
    flags |= dict(map(parse_setting, set_ or []))
    flags |= {
        key: value
        for key, value in {"id": id, "data": data, "mobility.protocol": mobility}.items()
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
        return
    from roamcast.daemon.main import serve

    serve(settings, lambda warn: BROKER.load(config, os.environ, flags, warn), warnings)


def print_usable(path: Path | None, warnings: list[str]) -> None:
    """What --check prints where the configuration can be used."""
    for line in warnings:
        print(f"roamcast: warning: {line}", file=sys.stderr)
    print(f"{path or 'the configuration'} can be used")


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
    """The keys for a broker that looks for others; peers can connect there unless something else is said."""
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
