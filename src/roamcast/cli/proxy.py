"""`roamcast proxy`: roaming for the clients of a broker that you already run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from roamcast.cli.broker import parse_setting
from roamcast.cli.usage import show_examples


def register(app: typer.Typer) -> None:
    examples = show_examples(
        "roamcast proxy --print-config",
        "roamcast proxy --config site.toml --check",
        "roamcast proxy --set site=a --set broker.url=mqtt://127.0.0.1:1883 --set listener.port=7110",
    )
    app.command(epilog=examples)(proxy)


def proxy(
    config: Annotated[Path | None, typer.Option(help="The configuration, a TOML file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key: broker.kind=nats. Repeatable."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the default configuration, commented, and exit.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check the configuration and exit: 0 if it can be used.")
    ] = False,
) -> None:
    """Run a mobility proxy beside a broker: what its clients subscribed to follows them between sites.

    Flags win over environment variables (ROAMCAST_PROXY_SECTION_KEY), and these over the file.
    """
    from roamcast.proxy.config import load
    from roamcast.proxy.config import print_config as default_config

    if print_config:
        sys.stdout.write(default_config())
        return
    warnings: list[str] = []
    settings = load(config, os.environ, dict(map(parse_setting, set_ or [])), warnings.append)
    if check:
        for line in warnings:
            print(f"roamcast: warning: {line}", file=sys.stderr)
        print(f"{config or 'the configuration'} can be used")
        return
    from roamcast.proxy.main import serve

    serve(settings, warnings)
