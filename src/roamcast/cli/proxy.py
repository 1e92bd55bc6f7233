"""`roamcast proxy`: roaming for the clients of a broker that you already run."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from roamcast.cli.broker import Check, ConfigFile, DataFolder, PrintConfig
from roamcast.cli.starting import parse_endpoint, parse_setting, print_usable
from roamcast.cli.usage import option, show_examples
from roamcast.errors import InputError


def register(app: typer.Typer) -> None:
    examples = show_examples(
        "roamcast proxy --print-config",
        "roamcast proxy --config site.toml --check",
        "roamcast proxy --site a --broker mosquitto=mqtt://127.0.0.1:1883 --listen 127.0.0.1:7110",
    )
    app.command(epilog=examples)(proxy)


def proxy(
    config: ConfigFile = None,
    site: str | None = option(None, "The id of this site."),
    broker: str | None = option(None, "Kind and URL of this site's broker.", metavar="KIND=URL"),
    listen: str | None = option(
        None, "Address to listen on for clients and other proxies.", metavar="HOST:PORT"
    ),
    mqtt_listen: str | None = option(
        None, "Address to listen on for standard MQTT clients.", metavar="HOST:PORT"
    ),
    proxies: list[str] | None = option(
        None, "The proxy of another site; replaces configured ones.", "--proxy", metavar="SITE=HOST:PORT"
    ),
    data: DataFolder = None,
    set_: list[str] | None = option(
        None, "Any setting, such as broker.kind=nats. Repeatable.", "--set", metavar="KEY=VALUE"
    ),
    print_config: PrintConfig = False,
    check: Check = False,
) -> None:
    """Run a mobility proxy beside a broker: subscriptions follow its clients between sites.

    Flags override environment variables (ROAMCAST_PROXY_SECTION_KEY), and these override the file.
    """
    from roamcast.proxy.config import PROXY

    if print_config:
        sys.stdout.write(PROXY.default_file())
        return
    flags: dict[str, Any] = dict(map(parse_setting, set_ or []))
    flags |= {key: value for key, value in {"site": site, "data": data}.items() if value is not None}
    flags |= read_flags(broker, listen, mqtt_listen, proxies or [])
    warnings: list[str] = []
    settings = PROXY.load(config, os.environ, flags, warnings.append)
    if check:
        print_usable(config, warnings)
        return
    from roamcast.proxy.main import serve

    serve(settings, warnings)


def read_flags(
    broker: str | None, listen: str | None, mqtt_listen: str | None, proxies: list[str]
) -> dict[str, Any]:
    """Flags that stand for several keys."""
    flags: dict[str, Any] = {}
    if broker is not None:
        kind, url = split_pair("--broker", broker, "KIND=URL", "mosquitto=mqtt://127.0.0.1:1883")
        flags |= {"broker.kind": kind, "broker.url": url}
    if listen is not None:
        host, port = parse_endpoint("--listen", listen)
        flags |= {"listener.address": host, "listener.port": str(port)}
    if mqtt_listen is not None:
        host, port = parse_endpoint("--mqtt-listen", mqtt_listen)
        flags |= {"mqtt.enabled": "true", "mqtt.address": host, "mqtt.port": str(port)}
    if proxies:
        pairs = [split_pair("--proxy", text, "SITE=HOST:PORT", "b=127.0.0.1:7111") for text in proxies]
        flags["proxy"] = [{"site": site, "address": address} for site, address in pairs]
    return flags


def split_pair(option: str, text: str, form: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InputError(f"{option} {text}: valid is {form}, as in {example}")
    return name, value
