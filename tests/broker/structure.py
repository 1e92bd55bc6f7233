"""What an object holds, as plain text: two are in the same state if they read the same.

Two snapshots (`protocol/snapshot.py`) of the same state may differ, because they tell one constant that is
known from two places from two that are equal. A node cannot see that, so here it does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from roamcast.filters.filter import Filter

PLAIN = (str, bytes, int, float, bool, type(None), Enum)


def dump(root: Any) -> list[str]:
    """One line for each value reached from here, with the way to it.

    Order counts, also in dicts, since it decides what a node does. What can change
    and is reached on two ways is shown once and then named, so that sharing counts, too.
    """
    names: dict[int, str] = {}
    kept: list[Any] = []
    lines: list[str] = []
    waiting: deque[tuple[str, Any]] = deque([("", root)])
    while waiting:
        path, value = waiting.popleft()
        if isinstance(value, PLAIN) or callable(value):
            lines.append(f"{path} = {'…' if callable(value) else repr(value)}")
            continue
        if isinstance(value, Filter):
            lines.append(f"{path} = {value.text}")
            continue
        if not is_constant(value):
            if id(value) in names:
                lines.append(f"{path} is {names[id(value)]}")
                continue
            names[id(value)] = path
            kept.append(value)  # So that no other object gets its id.
        lines.append(f"{path}: {type(value).__name__}")
        waiting.extend((f"{path}{name}", one) for name, one in parts_of(value))
    return lines


def is_constant(value: Any) -> bool:
    return isinstance(value, tuple) or (isinstance(value, msgspec.Struct) and value.__struct_config__.frozen)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for place, (key, one) in enumerate(value.items()):
            yield f"[{place}].key", key
            yield f"[{place}]", one
    elif isinstance(value, list | tuple | deque):
        for place, one in enumerate(value):
            yield f"[{place}]", one
    elif isinstance(value, set | frozenset):
        for place, text in enumerate(sorted("\n".join(dump(one)) for one in value)):
            yield f"[{place}]", text
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield f".{field.name}", getattr(value, field.name)
    else:
        yield from attributes_of(value)


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    if not found and not hasattr(value, "__dict__"):
        found[""] = repr(value)  # Something built in.
    for name in sorted(found):
        yield f".{name}", found[name]
