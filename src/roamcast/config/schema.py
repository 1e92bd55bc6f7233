"""Describes what can be configured, from the types themselves.

A configuration is a tree of msgspec Structs. A field is a key; its type and bounds say what is valid, and the
docstring under it explains the key. Error lines, the commented default file and the reference in the docs are
generated from these, so all of them are up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

NONE_WORD = "none"
"""The word for "no limit" or "no value" in a file: TOML has no null."""

ENTRY = "N"
"""Stands for an index in the name of a key in a list of tables."""

PathText = Annotated[str, msgspec.Meta(description="a path", extra={"path": True})]
"""A file or folder; a relative path starts at the folder of the configuration file."""


SecretText = Annotated[str, msgspec.Meta(description="a text", extra={"secret": True})]
"""A text that must not appear in logs or error lines."""

HIDDEN = "(hidden)"


class Section(msgspec.Struct, frozen=True):
    """One table of a configuration; its representation hides secrets."""

    def __repr__(self) -> str:
        values = {field.attribute: field.shown(self) for field in fields_of(type(self)).values()}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in values.items())})"


class Field(NamedTuple):
    """One key of a table."""

    name: str
    """Name in files."""
    attribute: str
    valid: Type
    annotation: Any
    """The type as written in the source."""
    default: Any
    """`msgspec.NODEFAULT` for a key that must be given."""
    owner: type[msgspec.Struct]
    """The table that contains the key."""

    @property
    def doc(self) -> str:
        """Explanation of the key."""
        return docs_of(self.owner)[self.attribute]

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def table(self) -> type[msgspec.Struct] | None:
        """Type of the table behind the key, if it is a table."""
        return self.valid.cls if isinstance(self.valid, StructType) else None

    @property
    def entry(self) -> type[msgspec.Struct] | None:
        """Type of the entries, if the key is a list of tables."""
        if isinstance(self.valid, VarTupleType) and isinstance(self.valid.item_type, StructType):
            return self.valid.item_type.cls
        return None

    @property
    def is_value(self) -> bool:
        return self.table is None and self.entry is None

    def is_a(self, mark: str) -> bool:
        """Return whether the type, or the entry type of a list, is marked as a "path" or a "secret"."""
        valid = self.valid.item_type if isinstance(self.valid, VarTupleType) else self.valid
        return isinstance(valid, Metadata) and mark in (valid.extra or {})

    def shown(self, owner: msgspec.Struct) -> str:
        value = getattr(owner, self.attribute)
        return HIDDEN if value and self.is_a("secret") else repr(value)


def shown_table(table: msgspec.Struct) -> dict[str, Any]:
    """Return the values of a table by their names in files, without its secrets."""
    found: dict[str, Any] = {}
    for field in fields_of(type(table)).values():
        value = getattr(table, field.attribute)
        if field.table is not None:
            found[field.name] = shown_table(value)
        elif field.entry is not None:
            found[field.name] = [shown_table(one) for one in value]
        else:
            found[field.name] = HIDDEN if value and field.is_a("secret") else value
    return found


def differences(one: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Return the full names of keys whose values differ between two tables of one type."""
    for name, value in one.items():
        if isinstance(value, dict):
            yield from differences(value, other[name], f"{above}{name}.")
        elif value != other[name]:
            yield f"{above}{name}"


class Key(NamedTuple):
    """A key by its full name, such as `listener.N.port`."""

    path: tuple[str, ...]
    field: Field
    owner: type[msgspec.Struct]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def variable(self, prefix: str) -> str:
        """The environment variable that sets this key."""
        return "_".join([prefix, *self.path]).upper()


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """Return the keys of a table, by their names in files."""
    return {
        info.encode_name: Field(
            info.encode_name, info.name, type_info(info.type), info.type, _default_of(info), kind
        )
        for info in msgspec.structs.fields(kind)
    }


def _default_of(info: Any) -> Any:
    if info.default_factory is not msgspec.NODEFAULT:
        return info.default_factory()
    return info.default


def keys_of(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> Iterator[Key]:
    """Return all keys below a table, in the order of the file."""
    fields = fields_of(kind).values()
    # A table's own keys come first: in TOML, keys after the head of another table belong to that table.
    yield from (Key((*path, field.name), field, kind) for field in fields if field.is_value)
    for field in fields:
        if field.table is not None:
            yield from keys_of(field.table, (*path, field.name))
        elif field.entry is not None:
            yield from keys_of(field.entry, (*path, field.name, ENTRY))


@cache
def docs_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings under the fields, including those of a parent."""
    docs = dict.fromkeys((info.name for info in msgspec.structs.fields(kind)), "")
    for part in reversed(kind.__mro__):
        if issubclass(part, msgspec.Struct) and part is not msgspec.Struct:
            docs.update(_written_docs(part))
    return docs


def _written_docs(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    # Only where they are shown: reading the source takes longer than everything else in this module.
    import ast
    import inspect
    import textwrap

    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    for above, below in zip(body.body, body.body[1:], strict=False):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, " ".join(text.split())


# --- what is valid ---


def describe(kind: Type) -> str:
    """Describe the valid values for a person."""
    match kind:
        case Metadata(type=inner, extra_json_schema=words):
            return str((words or {}).get("description") or describe(inner))
        case BoolType():
            return "true or false"
        case IntType():
            return "an integer" + _range_of(kind)
        case FloatType():
            return "a number" + _range_of(kind)
        case StrType():
            return "a text"
        case LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case NoneType():
            return f'"{NONE_WORD}"'
        case VarTupleType(item_type=inner):
            return f"a list, each {describe(inner)}"
        case UnionType(types=types):
            # "none" comes last, because it is the exception.
            return " or ".join(map(describe, sorted(types, key=lambda one: isinstance(one, NoneType))))
    raise TypeError(f"a configuration cannot hold {kind}")


def _range_of(kind: IntType | FloatType) -> str:
    low, high = kind.ge, kind.le
    if kind.gt is not None:
        return f" above {_number(kind.gt)}" + (f", at most {_number(high)}" if high is not None else "")
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    return f", at least {_number(low)}" if low is not None else ""


def _number(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value}"


def convert(value: Any, field: Field) -> Any:
    """Convert a value of a file to this type; raise ValueError if it does not fit."""
    if value == NONE_WORD and allows_none(field.valid):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number that can be compared")
    try:
        return msgspec.convert(value, field.annotation)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def convert_text(text: str, field: Field) -> Any:
    """Convert unquoted text of a variable or a command line to this type; raise ValueError if it does not
    fit."""
    return convert(_read(text, field.valid), field)


def _read(text: str, kind: Type) -> Any:
    """Parse a text as the simplest value that the type accepts; otherwise return the text."""
    match kind:
        case Metadata(type=inner):
            return _read(text, inner)
        case UnionType(types=types):
            # Where a text or a list of texts is valid, only a comma makes a list.
            lists = "," in text or not any(isinstance(one, StrType) for one in types)
            readings = [_read(text, one) for one in types if lists or not isinstance(one, VarTupleType)]
            return next((value for value in readings if value != text), text)
        case BoolType():
            return {"true": True, "false": False}.get(text.lower(), text)
        case IntType():
            return _number_in(text, int)
        case FloatType():
            return _number_in(text, float)
        case VarTupleType(item_type=inner):
            return [_read(part.strip(), inner) for part in text.split(",") if part.strip()]
    return text


def _number_in(text: str, kind: type[int] | type[float]) -> int | float | str:
    try:
        return kind(text)
    except ValueError:
        return text


def allows_none(kind: Type) -> bool:
    return isinstance(kind, UnionType) and any(isinstance(one, NoneType) for one in kind.types)
