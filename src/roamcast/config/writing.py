"""Writes a configuration: the commented default file, and the reference table of all keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any

import msgspec

from roamcast.config.schema import ENTRY, NONE_WORD, Field, describe, fields_of, keys_of

WIDTH = 100


def default_file(kind: type[msgspec.Struct], examples: Mapping[str, msgspec.Struct]) -> str:
    """Return a TOML file with all defaults and comments; entries of empty lists are examples."""
    return "\n".join(_table(kind, (), kind(), examples)).strip("\n") + "\n"


def _table(
    kind: type[msgspec.Struct],
    path: tuple[str, ...],
    value: msgspec.Struct,
    examples: Mapping[str, msgspec.Struct],
) -> Iterator[str]:
    fields = fields_of(kind).values()
    for field in fields:
        if field.is_value:
            yield from _key(field, getattr(value, field.attribute))
    for field in fields:
        inner, below = getattr(value, field.attribute), (*path, field.name)
        name = ".".join(below)
        if field.table is not None:
            yield from ["", *_comment(cleandoc(field.table.__doc__ or "")), f"[{name}]"]
            yield from _table(field.table, below, inner, examples)
        elif field.entry is not None:
            yield from ["", *_comment(cleandoc(field.entry.__doc__ or ""))]
            for entry in inner:
                yield f"[[{name}]]"
                yield from _table(field.entry, below, entry, examples)
            if not inner:
                lines = [f"[[{name}]]", *_table(field.entry, below, examples[name], examples)]
                # Examples must have no effect, so they are commented out with their comments.
                yield from (f"#{line}" if line else "#" for line in lines)


def _key(field: Field, value: Any) -> Iterator[str]:
    yield ""
    yield from _comment(f"{field.doc} Valid: {describe(field.valid)}.")
    yield f"{field.name} = {toml_value(value)}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def toml_value(value: Any) -> str:
    """Return a value in TOML; large numbers have groups of three digits."""
    if value is None:
        return f'"{NONE_WORD}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are valid in TOML.
        return msgspec.json.encode(value).decode()
    return f"[{', '.join(map(toml_value, value))}]"


def reference_table(kind: type[msgspec.Struct]) -> str:
    """Return Markdown tables with a row for every key, one table for each section."""
    lines: list[str] = []
    section: tuple[str, ...] | None = None
    for key in keys_of(kind):
        if key.path[:-1] != section:
            section = key.path[:-1]
            name = ".".join(part for part in section if part != ENTRY)
            heading = f"`[[{name}]]`" if section[-1:] == (ENTRY,) else f"`[{name}]`" if name else "Top level"
            summary = " ".join(cleandoc(key.owner.__doc__ or "").split())
            lines += ["", f"### {heading}", "", summary, "", "| key | valid | default | what it does |"]
            lines += ["| --- | --- | --- | --- |"]
        default = "must be given" if key.field.required else f"`{toml_value(key.field.default)}`"
        cells = [f"`{key.path[-1]}`", describe(key.field.valid), default, key.field.doc]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines).strip("\n") + "\n"
