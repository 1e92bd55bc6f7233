"""The messages between brokers as a table: what their encodings look like, and what may be changed of it."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Literal

import msgspec

import roamcast
from roamcast.protocol.codec import message_types, tag_of
from roamcast.protocol.notification import Message

ROOMS = ("protocol", "routing", "mobility", "broker")


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """A message, or a value within messages."""

    fields: dict[str, str]
    """Name to type, in the order of the wire; the type ends in " = default" if the field has one."""
    since: int = 1
    """The version of the link protocol that first had it."""
    optional: bool = False


class Table(msgspec.Struct, forbid_unknown_fields=True):
    released: int
    """The highest version that a tagged build speaks; 0 while there is none. A tagged build raises it."""
    messages: dict[str, Shape]
    """By tag."""
    parts: dict[str, Shape]
    """Values within messages, by class: what is said of fields is true of theirs, too."""


def import_all_messages() -> None:
    """A type of message exists once its module is imported."""
    for room in ROOMS:
        for module in walk_packages([f"{roamcast.__path__[0]}/{room}"], f"roamcast.{room}."):
            import_module(module.name)


def current_table(released: int) -> Table:
    """What this build sends. Messages that tests have made are left out."""
    import_all_messages()
    kinds = [one for one in message_types() if one.__module__.startswith("roamcast.")]
    parts = {part.__name__: part for kind in kinds for part in _parts_of(kind)}
    return Table(
        released,
        {tag_of(kind): Shape(_fields_of(kind), kind.first_version, kind.is_optional) for kind in kinds},
        {name: Shape(_fields_of(parts[name])) for name in sorted(parts)},
    )


def _fields_of(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {
        field.name: _name_of(hint) + ("" if field.required else " = default")
        for field, hint in _hints_of(kind)
    }


def _hints_of(kind: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, Any]]:
    hints = typing.get_type_hints(kind)
    yield from ((field, hints[field.name]) for field in msgspec.structs.fields(kind))


def _parts_of(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """The structures within a message that are no messages themselves."""
    waiting = [hint for _, hint in _hints_of(kind)]
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and not issubclass(hint, Message):
            yield hint
            yield from _parts_of(hint)


def _name_of(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " | ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_name_of, inner))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_name_of, inner))}]"
    return "..." if hint is Ellipsis else "None" if hint is type(None) else str(hint.__name__)


# --- what may be changed ---


def violations(shipped: Table, current: Table) -> list[str]:
    """What builds that are in use would not understand, each with what to do instead."""
    found = []
    for tag, shape in shipped.messages.items():
        now = current.messages.get(tag)
        if now is None:
            found.append(
                f"message {tag!r} is gone: peers still send it. Keep it; if its class got another name, "
                f'declare tag="{tag}"'
            )
            continue
        if (now.since, now.optional) != (shape.since, shape.optional):
            found.append(f"message {tag!r}: first_version and is_optional stay as they were shipped")
        found += _field_violations(f"message {tag!r}", shape, now)
    for name, shape in shipped.parts.items():
        if name in current.parts:
            found += _field_violations(f"{name}, a part of messages,", shape, current.parts[name])
    for tag, shape in current.messages.items():
        if tag not in shipped.messages and shape.since <= shipped.released:
            found.append(
                f"message {tag!r} is new, but peers of version {shape.since} do not know it. Give it the "
                f"first_version {shipped.released + 1} and raise VERSION_MAX to that"
            )
    return found


def _field_violations(what: str, shipped: Shape, current: Shape) -> Iterator[str]:
    allowed = "Fields stay where they are; new ones come last and have defaults"
    before, after = list(shipped.fields.items()), list(current.fields.items())
    for place, (name, kind) in enumerate(before):
        if name not in current.fields:
            yield f"{what} has lost the field {name!r}. {allowed}; one that is not used any more stays unused"
        elif place >= len(after) or after[place][0] != name:
            yield f"{what}: the field {name!r} was number {place + 1}, and is not any more. {allowed}"
        elif current.fields[name] not in (kind, f"{kind} = default"):
            yield f"{what}: the field {name!r} was `{kind}` and is `{current.fields[name]}`. {allowed}"
    for name, kind in after:
        if name not in shipped.fields and not kind.endswith(" = default"):
            yield f"{what}: the new field {name!r} has no default, which older peers need. {allowed}"
