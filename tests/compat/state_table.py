"""Declared states and journal entries as tables: what snapshots and journals hold, and what may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec

import roamcast
from roamcast.broker.inputs import REPLAY, Entry
from roamcast.errors import InputError
from roamcast.protocol.snapshot import read_form
from roamcast.protocol.snapshot_form import STATE_CLASSES
from roamcast.protocol.snapshot_reader import defaults_of
from roamcast.state import State


class Component(msgspec.Struct, forbid_unknown_fields=True):
    """One declared state."""

    version: int
    oldest: int
    """The oldest version that a tagged build wrote: lifts must reach back to it."""
    saved: list[str]
    unhashed: list[str] = []


class Value(msgspec.Struct, forbid_unknown_fields=True):
    """A struct or a named tuple that occurs in states, or a struct in journal entries."""

    fields: dict[str, str]
    """Name to type, which ends in " = default" if the field has a default."""
    by_place: bool = False
    """Whether fields are told apart by their place, so that new ones must come last."""


class States(msgspec.Struct, forbid_unknown_fields=True):
    released: bool
    """Whether a tagged build has written snapshots. From then on every new version needs a lift."""
    components: dict[str, Component]
    values: dict[str, dict[str, bool]] = {}
    """Structs, named tuples and dataclasses that occur in states: their fields, and which have a default."""


class Inputs(msgspec.Struct, forbid_unknown_fields=True):
    released: bool
    """Whether a tagged build has written journals. Until then entries may change."""
    replay: int
    """Within one replay number entries stay readable."""
    entries: dict[str, Value]


ROOMS = ("filters", "protocol", "routing", "mobility", "mqtt", "broker")


def import_rooms() -> None:
    """A class can be found once its module is imported."""
    for room in ROOMS:
        for module in walk_packages([f"{roamcast.__path__[0]}/{room}"], f"roamcast.{room}."):
            import_module(module.name)


def current_states(shipped: States, observed: Iterable[str] = ()) -> States:
    """What this build declares; of values those that were shipped, and those that were observed in states."""
    import_rooms()
    found: dict[str, Component] = {}
    for cls in STATE_CLASSES:
        for one in STATE_CLASSES.of(cls).states:
            known = shipped.components.get(one.name)
            oldest = known.oldest if shipped.released and known is not None else one.version
            fields = one.saved or _remaining_fields(cls, one)
            found[one.name] = Component(one.version, oldest, list(fields), list(one.unhashed))
    values = {name: _value_of(name) for name in sorted({*shipped.values, *observed}) if name not in found}
    return States(
        shipped.released,
        dict(sorted(found.items())),
        {name: fields for name, fields in values.items() if fields is not None},
    )


def _value_of(name: str) -> dict[str, bool] | None:
    try:
        fields = STATE_CLASSES.named(name)
    except InputError:
        return None
    defaults = defaults_of(fields.cls)
    return {field: field in defaults for field in fields.saved}


def names_in(snapshot: bytes) -> list[str]:
    """What occurs in a snapshot."""
    return [shape.name for shape in read_form(snapshot)[1].shapes]


def _remaining_fields(cls: type, state: State) -> tuple[str, ...]:
    """Slots, or the fields of a struct, where a declaration leaves them out."""
    owner = next(base for base in cls.__mro__ if base.__dict__.get("__state__") is state)
    fields = STATE_CLASSES.of(owner)
    inherited = {name for one in fields.states[:-1] for name in (*one.saved, *one.unhashed)}
    inherited.update(name for one in owner.__mro__[1:] for name in one.__dict__.get("__slots__", ()))
    return tuple(name for name in fields.saved if name not in inherited)


def lifts_of(name: str) -> dict[int, Any]:
    states = [one for cls in STATE_CLASSES for one in STATE_CLASSES.of(cls).states if one.name == name]
    return dict(states[0].lifts) if states else {}


def state_violations(shipped: States, current: States) -> Iterator[str]:
    """What breaks snapshots that exist, and what to do about it."""
    for name, old in shipped.components.items():
        new = current.components.get(name)
        if new is None:
            if shipped.released:
                yield f"{name}: snapshots hold it: keep a class of this name"
            continue
        is_same = (old.saved, old.unhashed) == (new.saved, new.unhashed)
        if new.version < old.version:
            yield f"{name}: its version fell from {old.version} to {new.version}; it only ever rises"
        elif not is_same and new.version == old.version:
            lift = f", and add a lift, lifts={{{old.version}: …}}" if shipped.released else ""
            yield f"{name}: its saved fields changed: set version={old.version + 1} in its State{lift}"
        if shipped.released:
            for version in range(old.oldest, new.version):
                if version not in lifts_of(name):
                    yield f"{name}: there is no lift from version {version}, which released builds wrote"
    for name, fields in shipped.values.items():
        known = current.values.get(name)
        if known is None:
            yield f"{name}: snapshots hold it: keep the name, with State({name!r}) if its class was renamed"
            continue
        for field in fields:
            if field not in known and not lifts_of(name):
                yield f"{name}.{field}: snapshots hold it: keep it, or declare a State with a lift"
        for field, has_default in known.items():
            if field not in fields and not has_default:
                yield f"{name}.{field}: it is new and needs a default"


# --- journal entries ---


def current_inputs(shipped: Inputs) -> Inputs:
    found: dict[str, Value] = {}
    _collect(msgspec.inspect.type_info(Entry), found)
    return Inputs(shipped.released, REPLAY, dict(sorted(found.items())))


def _collect(info: Any, found: dict[str, Value]) -> None:
    if isinstance(info, msgspec.inspect.StructType):
        name = str(info.tag or info.cls.__name__)
        if name not in found:
            found[name] = Value({}, info.array_like)
            for field in info.fields:
                default = "" if field.required else " = default"
                found[name].fields[field.encode_name] = _text(field.type) + default
                _collect(field.type, found)
        return
    for part in _parts_of(info):
        _collect(part, found)


def _parts_of(info: Any) -> list[Any]:
    if isinstance(info, msgspec.inspect.UnionType):
        return list(info.types)
    names = ("item_type", "key_type", "value_type")
    found = [getattr(info, name) for name in names if hasattr(info, name)]
    return [*found, *getattr(info, "item_types", ())]


def _text(info: Any) -> str:
    if isinstance(info, msgspec.inspect.StructType):
        return str(info.tag or info.cls.__name__)
    if isinstance(info, msgspec.inspect.LiteralType):
        return f"one of {', '.join(map(repr, info.values))}"
    if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.EnumType):
        return str(getattr(info.cls, "__name__", info.cls))
    parts = [_text(part) for part in _parts_of(info)]
    if isinstance(info, msgspec.inspect.UnionType):
        return " | ".join(sorted(parts))
    kind = type(info).__name__.removesuffix("Type").lower()
    return f"{kind}[{', '.join(parts)}]" if parts else kind


def input_violations(shipped: Inputs, current: Inputs) -> Iterator[str]:
    """What breaks journals of builds with the same replay number, and what to do about it."""
    if not shipped.released or shipped.replay != current.replay:
        return
    cure = f"or raise REPLAY in broker/inputs.py to {shipped.replay + 1}"
    for name, old in shipped.entries.items():
        new = current.entries.get(name)
        if new is None:
            yield f"{name}: journals hold it: keep it, with tag={name!r} if its class was renamed; {cure}"
            continue
        for field, kind in old.fields.items():
            if field not in new.fields:
                yield f"{name}.{field}: journals hold it: keep it; {cure}"
            elif new.fields[field].removesuffix(" = default") != kind.removesuffix(" = default"):
                yield f"{name}.{field}: its type changed from {kind} to {new.fields[field]}: keep it; {cure}"
        places = list(new.fields)[: len(old.fields)]
        if (old.by_place or new.by_place) and (places != list(old.fields) or old.by_place != new.by_place):
            yield f"{name}: its fields are told by their places: add new ones at the end; {cure}"
        for field, kind in new.fields.items():
            if field not in old.fields and not kind.endswith(" = default"):
                yield f"{name}.{field}: it is new and needs a default; {cure}"
