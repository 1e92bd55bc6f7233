"""`roamcast broker`: a broker for MQTT clients that roam."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from roamcast.cli import operate
from roamcast.cli.starting import start_broker
from roamcast.cli.usage import CommandGroup, option, show_examples

MOVING = "roamcast broker --id a --mobility mft --discover lo --data site-a"
QUICK = "roamcast broker --id a --listen 127.0.0.1:1883 --peer b=127.0.0.1:7001 --data site-a"

# Options of every command that runs a server.
ConfigFile = Annotated[Path | None, typer.Option(help="The configuration, a TOML file.")]
DataFolder = Annotated[str | None, typer.Option(help="Folder for everything that must survive a restart.")]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the default configuration, commented, and exit.")
]
Check = Annotated[
    bool, typer.Option("--check", help="Check the configuration and exit: code 0 if it is valid.")
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
    """A group that is also a command: without a subcommand it runs a broker."""

    needs_command = False


def broker(
    context: typer.Context,
    config: ConfigFile = None,
    id: str | None = option(None, "This broker's id."),
    listen: list[str] | None = option(
        None,
        "Address to listen on for clients (tcp or ws); replaces configured listeners. Repeatable.",
        metavar="[KIND://]HOST:PORT",
    ),
    peer: list[str] | None = option(
        None,
        "A neighbouring broker; without an address it connects by itself. Replaces configured "
        "peers. Repeatable.",
        metavar="ID[=HOST:PORT]",
    ),
    peer_listen: str | None = option(None, "Address to listen on for peers.", metavar="HOST:PORT"),
    discover: str | None = option(
        None,
        "Look for other brokers on this interface (lo, wlan0) by multicast; for --mobility mft.",
        metavar="INTERFACE[:PORT]",
    ),
    data: DataFolder = None,
    workers: int | None = option(
        None, "Number of processes that serve clients behind the same address.", metavar="N"
    ),
    mobility: str | None = option(None, "The mobility protocol."),
    set_: list[str] | None = option(
        None, "Any setting, such as mqtt.receive_maximum=64. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
    print_config: PrintConfig = False,
    check: Check = False,
) -> None:
    """Run a broker. Flags override environment variables (ROAMCAST_SECTION_KEY), and these override the
    file."""
    if context.invoked_subcommand is not None:
        return
    code = start_broker(
        config=config, id=id, listen=listen, peer=peer, peer_listen=peer_listen, discover=discover, data=data,
        workers=None if workers is None else str(workers), mobility=mobility, set_=set_,
        print_config=print_config, check=check,
    )  # fmt: skip
    if code:
        raise typer.Exit(code)
