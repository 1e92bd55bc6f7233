"""Loads the configuration of a broker or proxy: all sources, secrets, checks.

Later sources win: defaults, file, environment, flags. A key `mqtt.packet_bytes_max` of a broker is set by
the variable ROAMCAST_MQTT_PACKET_BYTES_MAX, the port of the first listener by ROAMCAST_LISTENER_0_PORT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from roamcast.config.private_files import check_private, read_secret
from roamcast.config.reading import SettingsReader
from roamcast.config.schema import Key, keys_of
from roamcast.config.writing import default_file
from roamcast.errors import InputError, did_you_mean

SECRET_CHARACTERS_MIN = 16

Table = TypeVar("Table", bound=msgspec.Struct)
Warn = Callable[[str], None]


class Program(Generic[Table]):
    """A configured program: its keys, and its checks that involve several keys."""

    def __init__(
        self,
        kind: type[Table],
        prefix: str,
        check: Callable[[Table, Warn], None],
        examples: Mapping[str, msgspec.Struct],
        *,
        flag_names: Mapping[str, str] | None = None,
        other_variables: Collection[str] = (),
    ) -> None:
        """`examples`: entries for lists that are empty by default; `flag_names`: keys with a flag of their
        own, --set sets any other key; `other_variables`: variables with a meaning for other programs."""
        self.kind, self._prefix, self._check, self._examples = kind, prefix, check, examples
        self._flag_names, self._other_variables = flag_names or {}, other_variables
        self._secrets = {key.name: key for key in keys_of(kind) if key.field.is_a("secret")}

    def default_file(self) -> str:
        """Return the default configuration with comments."""
        return default_file(self.kind, self._examples)

    def load(
        self,
        path: Path | None,
        environment: Mapping[str, str],
        flags: Mapping[str, Any],
        warn: Warn = lambda line: None,
    ) -> Table:
        """Return the configuration from file, environment and flags; raise InputError with one line.

        Flags map keys to texts (parsed as the key's type requires), or to lists of tables. Allowed but unwise
        settings are reported to `warn`, one line each.
        """
        reader = SettingsReader(self.kind, self._prefix)
        if path is not None:
            reader.read_file(path)
            self._check_inline_secrets(path, reader.raw)
        for name in reader.read_environment(environment):
            if name not in self._other_variables:
                # Not refused: cluster managers set variables of their own there, named after services.
                hint = did_you_mean(name, reader.variables) or "no key has this name"
                warn(f"environment variable {name} is not used; {hint}")
        for name, value in flags.items():
            if name in self._secrets:
                variable = self._secrets[name].variable(self._prefix)
                raise InputError(
                    f"--set {name}: every user of this machine can see a command line; "
                    f"set {name}_file, or the environment variable {variable}"
                )
            reader.assign(name, value, self._flag_names.get(name) or f"--set {name}")
        config = reader.build(self.kind)
        try:
            for key in self._secrets.values():
                config = with_secret(config, key, environment)
            self._check(config, warn)
        except InputError as error:
            raise InputError(f"{path}: {error}" if path is not None else str(error)) from None
        return config

    def _check_inline_secrets(self, path: Path, raw: Mapping[str, Any]) -> None:
        """Refuse a file that contains a secret and that everybody can read."""
        for key in self._secrets.values():
            section, name = key.path
            if isinstance(raw.get(section), dict) and raw[section].get(name):
                try:
                    check_private(str(path), key.name)
                except InputError as error:
                    raise InputError(f"{error}, or move the secret into {key.name}_file") from None


def with_secret(config: Table, key: Key, environment: Mapping[str, str]) -> Table:
    """Fill in a secret from the file or variable that the keys beside it name."""
    section, name = key.path
    table = getattr(config, section)
    places = (name, f"{name}_file", f"{name}_variable")
    given = {f"{section}.{one}": getattr(table, one) for one in places if getattr(table, one, "")}
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} exclude each other; keep one")
    for place, value in given.items():
        if place.endswith("_file"):
            value = read_secret(value, place)
        elif place.endswith("_variable"):
            if not environment.get(value):
                raise InputError(f"{place} = {value}: there is no such variable")
            value = environment[value]
        table = msgspec.structs.replace(table, **{name: value})
    return msgspec.structs.replace(config, **{section: table})


def check_secret(key: str, secret: str) -> None:
    if secret and len(secret) < SECRET_CHARACTERS_MIN:
        raise InputError(f"{key} is too short; valid is {SECRET_CHARACTERS_MIN} characters or more")
