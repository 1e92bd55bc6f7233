"""From a TOML file, the environment and flags to one checked configuration.

Later sources win: defaults, then the file, then variables of the environment, then flags. An error is one
line with the source, the key and the valid values.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from roamcast.config.schema import ENTRY, HIDDEN, Field, convert, convert_text, describe, fields_of, keys_of
from roamcast.errors import InputError, did_you_mean, nearest

FILE_BYTES_MAX = 4_194_304

Table = TypeVar("Table", bound=msgspec.Struct)
Place = tuple[str | int, ...]
"""Position of a value: names of keys, and indexes in lists of tables."""


class SettingsReader:
    """Collects the values of each source, and remembers which source set each value."""

    def __init__(self, kind: type[msgspec.Struct], prefix: str) -> None:
        self.kind = kind
        self.prefix = prefix
        self.raw: dict[str, Any] = {}
        self.file = ""
        self.folder: Path | None = None
        self.sources: dict[Place, str] = {}
        self.variables = {key.variable(prefix): key for key in keys_of(kind)}

    # --- sources ---

    def read_file(self, path: Path) -> None:
        self.file, self.folder = str(path), path.parent
        try:
            with path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
            if len(content) > FILE_BYTES_MAX:
                raise InputError(f"{path}: larger than {FILE_BYTES_MAX} bytes; this is no configuration")
            self.raw = tomllib.loads(content.decode("utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); name a TOML file") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start + 1} is not UTF-8; TOML files are") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path}: not TOML: {error}") from None

    def read_environment(self, environment: Mapping[str, str]) -> list[str]:
        """Apply environment variables; return those with our prefix and no key, each with a hint."""
        strangers = []
        for name in sorted(environment):
            if not name.startswith(f"{self.prefix}_"):
                continue
            key = self.variables.get(re.sub(r"_\d+(?=_)", f"_{ENTRY}", name))
            if key is None:
                strangers.append(name)
                continue
            numbers = iter(re.findall(r"_(\d+)(?=_)", name))
            place = [next(numbers) if part == ENTRY else part for part in key.path]
            self.assign(".".join(place), environment[name], f"environment variable {name}")
        return strangers

    def assign(self, key: str, value: Any, source: str) -> None:
        """Set one key; a text is parsed as the key's type requires, other values are taken as they are."""
        place = self._place(key, source)
        *parents, last = place
        table: Any = self.raw
        kind = self.kind
        for number, part in enumerate(parents):
            table, kind = self._enter(table, kind, part, (key, source, parents[: number + 1]))
        assert isinstance(last, str)
        field = fields_of(kind)[last]
        if isinstance(value, str):
            try:
                value = convert_text(value, field)
            except ValueError:
                raise InputError(f"{source}: {value!r} is not valid; {_valid(field)}") from None
        table[last] = value
        self.sources[place] = source

    def _place(self, key: str, source: str) -> Place:
        """Return the key as names and indexes, if there is such a key."""
        parts = key.split(".")
        generic = ".".join(ENTRY if part.isdecimal() else part for part in parts)
        known = [one.name for one in keys_of(self.kind)]
        lists = {name for name, field in fields_of(self.kind).items() if field.entry is not None}
        if generic not in known and generic not in lists:
            hint = did_you_mean(generic, known) or "the reference lists all keys"
            raise InputError(f"{source}: there is no key {key!r}; {hint}")
        return tuple(int(part) if part.isdecimal() else part for part in parts)

    def _enter(
        self, table: Any, kind: type[msgspec.Struct], part: str | int, said: tuple[str, str, list[str | int]]
    ) -> tuple[Any, type[msgspec.Struct]]:
        """Take one step towards a key: into a table, a list of tables, or an entry of a list."""
        key, source, place = said
        if isinstance(part, int):
            if not isinstance(table, list):
                raise InputError(f"{source}: {_dotted(place[:-1])} is not a list of tables")
            if part > len(table):
                raise InputError(f"{source}: there are {len(table)} entries; the next number is {len(table)}")
            if part == len(table):
                table.append({})
            return table[part], kind
        field = fields_of(kind)[part]
        if field.entry is not None:
            # One key of an entry is changed: the others keep their defaults.
            if part not in table:
                table[part] = [msgspec.to_builtins(entry) for entry in field.default]
            return table[part], field.entry
        assert field.table is not None, key
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"{self.file}: {_dotted(place)} = {_shown(inner)}: valid is a table")
        return inner, field.table

    # --- the result ---

    def build(self, kind: type[Table]) -> Table:
        assert kind is self.kind
        return self._table(kind, self.raw, ())

    def _table(self, kind: type[Table], raw: Any, place: Place) -> Table:
        if not isinstance(raw, dict):
            raise InputError(f"{self._source(place)}: {_dotted(place)} = {_shown(raw)}: valid is a table")
        fields = fields_of(kind)
        for name in raw:
            if name not in fields:
                problem = self._unknown(name, place, list(fields))
                raise InputError(f"{self._source((*place, name))}: {problem}")
        values = {}
        for name, field in fields.items():
            if name in raw:
                values[field.attribute] = self._value(field, raw[name], (*place, name))
            elif field.required:
                missing = _dotted((*place, name))
                raise InputError(f"{self._source(place)}: {missing} is missing; {_valid(field)}")
            elif field.is_a("path"):
                values[field.attribute] = self._rebased(field.default)
        return kind(**values)

    def _value(self, field: Field, value: Any, place: Place) -> Any:
        if field.table is not None:
            return self._table(field.table, value, place)
        if field.entry is not None:
            if not isinstance(value, list):
                shown = f"{_dotted(place)} = {_shown(value)}"
                raise InputError(
                    f"{self._source(place)}: {shown}: valid is a list of tables, [[{_dotted(place)}]]"
                )
            return tuple(self._table(field.entry, one, (*place, i)) for i, one in enumerate(value))
        try:
            result = convert(value, field)
        except ValueError:
            shown = HIDDEN if field.is_a("secret") else _shown(value)
            raise InputError(f"{self._source(place)}: {_dotted(place)} = {shown}: {_valid(field)}") from None
        return self._rebased(result) if field.is_a("path") and place not in self.sources else result

    def _rebased(self, path: Any) -> Any:
        """Return a path, or a list of paths, from the file relative to the current folder."""
        if isinstance(path, tuple):
            return tuple(map(self._rebased, path))
        return str(self.folder / path) if self.folder is not None and path else path

    def _source(self, place: Place) -> str:
        """Return the source that last set this value or a table around it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self.sources:
                return self.sources[place[:length]]
        return self.file or "the configuration"

    def _unknown(self, name: str, place: Place, valid: list[str]) -> str:
        where = f"[{_dotted(place)}]" if place else "the top level"
        text = f"{where} has no key {name!r}"
        near = nearest(name, valid)
        if near is not None:
            return f"{text}; did you mean {near!r}?"
        elsewhere = [key.name for key in keys_of(self.kind) if key.path[-1] == name]
        if elsewhere:
            return f"{text}; there is {elsewhere[0]!r}"
        return f"{text}; valid are {', '.join(valid)}"


def _valid(field: Field) -> str:
    return f"valid is {describe(field.valid)}"


def _dotted(place: Place | list[str | int]) -> str:
    return ".".join(map(str, place))


def _shown(value: Any) -> str:
    """Return a value as it was written, shortened if it is long."""
    text = {True: "true", False: "false"}.get(value, "") if isinstance(value, bool) else ""
    text = text or (f'"{value}"' if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
