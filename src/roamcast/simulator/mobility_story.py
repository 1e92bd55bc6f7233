"""Lines of a story with settings of its protocol: `heartbeat_period_s 0.5`, `cache_ttl_s none`."""

from __future__ import annotations

import msgspec

from roamcast.errors import InputError
from roamcast.mobility import Settings

FIELDS = {field.name: field for field in msgspec.structs.fields(Settings) if field.name != "delay_bound_s"}
"""Settings by name; the bound on the delay comes from the network, and has no line in a story."""

NONE_WORD = "none"


def format_mobility_lines(settings: Settings) -> list[str]:
    """Write the settings that differ from the defaults."""
    values = {name: getattr(settings, name) for name in FIELDS}
    return [
        f"{name} {NONE_WORD if value is None else value}"
        for name, value in values.items()
        if value != FIELDS[name].default
    ]


def parse_mobility_line(settings: Settings, name: str, text: str) -> Settings:
    try:
        value = msgspec.convert(None if text == NONE_WORD else text, FIELDS[name].type, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"{name} {text!r}: {error}") from None
    return msgspec.structs.replace(settings, **{name: value})


def as_always(settings: Settings, name: str) -> Settings:
    """Yield variants of the settings with one of them at its default, for shrinking a story."""
    return msgspec.structs.replace(settings, **{name: FIELDS[name].default})
