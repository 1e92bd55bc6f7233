"""What can be configured, told by the types themselves.

A configuration is a tree of msgspec Structs. A field is a key; its type and bounds say what is valid,
the docstring under it says what it is for. From these alone come error lines, the commented default
file, and the reference in the docs, so none of them can fall behind.
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
"""How a file says that there is no limit or no value: TOML has no word of its own for it."""

ENTRY = "N"
"""Stands for the number of an entry in the name of a key that belongs to a list of tables."""

PathText = Annotated[str, msgspec.Meta(description="a path", extra={"path": True})]
"""A file or folder; what is relative is meant relative to the configuration file."""


SecretText = Annotated[str, msgspec.Meta(description="a text", extra={"secret": True})]
"""What no log and no error line may show."""

HIDDEN = "(hidden)"


class Section(msgspec.Struct, frozen=True):
    """One table of a configuration, which does not show its secrets."""

    def __repr__(self) -> str:
        values = {field.attribute: field.shown(self) for field in fields_of(type(self)).values()}
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in values.items())})"


class Field(NamedTuple):
    """One key of a table."""

    name: str
    """As files spell it."""
    attribute: str
    valid: Type
    annotation: Any
    """The type as it was written."""
    default: Any
    """`msgspec.NODEFAULT` for a key that must be given."""
    owner: type[msgspec.Struct]
    """The table that the key is in."""

    @property
    def doc(self) -> str:
        """What the key is for."""
        return docs_of(self.owner)[self.attribute]

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    @property
    def table(self) -> type[msgspec.Struct] | None:
        """The kind of table behind the key, if it is one."""
        return self.valid.cls if isinstance(self.valid, StructType) else None

    @property
    def entry(self) -> type[msgspec.Struct] | None:
        """The kind of the entries, if the key is a list of tables."""
        if isinstance(self.valid, VarTupleType) and isinstance(self.valid.item_type, StructType):
            return self.valid.item_type.cls
        return None

    @property
    def is_value(self) -> bool:
        return self.table is None and self.entry is None

    def is_a(self, mark: str) -> bool:
        """Whether the type, or that of the entries of a list, is marked as a "path" or a "secret"."""
        valid = self.valid.item_type if isinstance(self.valid, VarTupleType) else self.valid
        return isinstance(valid, Metadata) and mark in (valid.extra or {})

    def shown(self, owner: msgspec.Struct) -> str:
        value = getattr(owner, self.attribute)
        return HIDDEN if value and self.is_a("secret") else repr(value)


def shown_table(table: msgspec.Struct) -> dict[str, Any]:
    """The values of a table, by the names that files use, without its secrets."""
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
    """The full names of keys with different values in two tables of one kind."""
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
        """The environment variable that sets it."""
        return "_".join([prefix, *self.path]).upper()


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, Field]:
    """The keys of a table, by the names that files use."""
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
    """Every key below a table, in the order in which they are written down."""
    fields = fields_of(kind).values()
    # A table's own keys come first: in TOML, whatever follows the head of another table belongs to that.
    yield from (Key((*path, field.name), field, kind) for field in fields if field.is_value)
    for field in fields:
        if field.table is not None:
            yield from keys_of(field.table, (*path, field.name))
        elif field.entry is not None:
            yield from keys_of(field.entry, (*path, field.name, ENTRY))


@cache
def docs_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What each field is for: the docstrings under the fields, also those of a parent."""
    docs = dict.fromkeys((info.name for info in msgspec.structs.fields(kind)), "")
    for part in reversed(kind.__mro__):
        if issubclass(part, msgspec.Struct) and part is not msgspec.Struct:
            docs.update(_written_docs(part))
    return docs


def _written_docs(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    # Only where they are shown: reading the source takes longer than all other code of a configuration.
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
    """What would be valid, for a person."""
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
            # "none" comes last, as the exception that it is.
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
    """A value of a file as the type it must have; ValueError if it is none."""
    if value == NONE_WORD and allows_none(field.valid):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a number that can be compared")
    try:
        return msgspec.convert(value, field.annotation)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def convert_text(text: str, field: Field) -> Any:
    """The same for text that came without quotes: from a variable or from a command line."""
    return convert(_read(text, field.valid), field)


def _read(text: str, kind: Type) -> Any:
    """A text as the simplest value that the type may take; what cannot be read stays text."""
    match kind:
        case Metadata(type=inner):
            return _read(text, inner)
        case UnionType(types=types):
            # Where a text or a list of them may stand, only a comma makes a list.
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
