"""A broker's configuration: from a TOML file, the environment and flags to one checked value.

Later sources win: defaults, file, environment, flags. A key `mqtt.packet_bytes_max` is set by the
variable ROAMCAST_MQTT_PACKET_BYTES_MAX, the port of the first listener by ROAMCAST_LISTENER_0_PORT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from roamcast.config.reading import SettingsReader
from roamcast.config.schema import keys_of
from roamcast.config.sections import (
    Access,
    Config,
    Discovery,
    Events,
    Journal,
    Link,
    Listener,
    Location,
    Log,
    Metrics,
    Mobility,
    Mqtt,
    Peer,
    Quotas,
    StateSection,
)
from roamcast.config.writing import default_file, reference_table
from roamcast.daemon.config_checks import check
from roamcast.errors import InputError, did_you_mean
from roamcast.mqtt.server.access import Rule
from roamcast.net.private_files import check_private, read_secret

PREFIX = "ROAMCAST"

OTHER_VARIABLES = {"ROAMCAST_DEBUG", "ROAMCAST_REGENERATE"}
"""Variables that mean something to other parts of Roamcast."""

FLAGS = {
    "id": "--id",
    "data": "--data",
    "listener": "--listen",
    "peer": "--peer",
    "link.address": "--peer-listen",
    "link.port": "--peer-listen",
    "mobility.protocol": "--mobility",
    "discovery.enabled": "--discover",
    "discovery.interface": "--discover",
    "discovery.port": "--discover",
}
"""Keys that have a flag of their own; any other is set by --set."""

SECRETS = {key.name: key for key in keys_of(Config) if key.field.is_a("secret")}

EXAMPLES: dict[str, msgspec.Struct] = {
    "peer": Peer(id="b", address="127.0.0.1:7001"),
    "access.rule": Rule(verdict="allow", topic="cars/%c/#", user="user:*"),
    "location.state": StateSection(name="budget", fall=10.0, lowest=0.0, highest=100.0),
}


def load(
    path: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any],
    warn: Callable[[str], None] = lambda line: None,
) -> Config:
    """The configuration that all sources give together, or InputError: one line with what is wrong.

    Flags are keys with texts (read as the key's type asks), or with lists of tables. What is allowed
    but unwise is told to `warn`, a line each.
    """
    reader = SettingsReader(Config, PREFIX)
    if path is not None:
        reader.read_file(path)
        check_inline_secrets(path, reader.raw)
    for name in reader.read_environment(environment):
        if name not in OTHER_VARIABLES:
            # Not refused: cluster managers put variables of their own there, named after services.
            hint = did_you_mean(name, reader.variables) or "no key has this name"
            warn(f"environment variable {name} is not used; {hint}")
    for key, value in flags.items():
        if key in SECRETS:
            raise InputError(
                f"--set {key}: every user of this machine can see a command line; "
                f"set {key}_file, or the environment variable {SECRETS[key].variable(PREFIX)}"
            )
        reader.assign(key, value, FLAGS.get(key) or f"--set {key}")
    config = reader.build(Config)
    try:
        config = with_secrets(config, environment)
        check(config, warn)
    except InputError as error:
        raise InputError(f"{path}: {error}" if path is not None else str(error)) from None
    return config


def check_inline_secrets(path: Path, raw: Mapping[str, Any]) -> None:
    """A file that contains a secret must be kept like one."""
    for key in SECRETS.values():
        section, name = key.path
        if isinstance(raw.get(section), dict) and raw[section].get(name):
            try:
                check_private(str(path), key.name)
            except InputError as error:
                raise InputError(f"{error}, or move the secret into {key.name}_file") from None


def with_secrets(config: Config, environment: Mapping[str, str]) -> Config:
    """The same with the secrets filled in that are kept elsewhere."""
    link, events = config.link, config.events
    given = [
        f"link.{name}" for name in ("secret", "secret_file", "secret_variable") if getattr(link, name)
    ]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are given; keep one")
    if link.secret_file:
        link = msgspec.structs.replace(link, secret=read_secret(link.secret_file, "link.secret_file"))
    elif link.secret_variable:
        secret = environment.get(link.secret_variable, "")
        if not secret:
            raise InputError(f"link.secret_variable = {link.secret_variable}: there is no such variable")
        link = msgspec.structs.replace(link, secret=secret)
    if events.pseudonym_key and events.pseudonym_key_file:
        raise InputError("events.pseudonym_key and events.pseudonym_key_file are given; keep one")
    if events.pseudonym_key_file:
        key = read_secret(events.pseudonym_key_file, "events.pseudonym_key_file")
        events = msgspec.structs.replace(events, pseudonym_key=key)
    return msgspec.structs.replace(config, link=link, events=events)


def print_config() -> str:
    """The default configuration, commented."""
    return default_file(Config, EXAMPLES)


def reference() -> str:
    """Every key, as Markdown."""
    return reference_table(Config)


__all__ = [
    "Access",
    "Config",
    "Discovery",
    "Events",
    "Journal",
    "Link",
    "Listener",
    "Location",
    "Log",
    "Metrics",
    "Mobility",
    "Mqtt",
    "Peer",
    "Quotas",
    "load",
    "print_config",
    "reference",
]
