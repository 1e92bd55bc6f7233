"""A client reports its location over MQTT, with a publish to a control topic.

The payload is a JSON object with the variables that have changed, such as
`{"location": "lobby"}`, or just the name of the location. A position on the earth is
`{"lat": 43.263, "lon": -2.935}`, a GeoJSON point, or `43.263,-2.935`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.filters.expression import Value

CONTROL = b"$roamcast/"
"""Prefix of topics that no access rule allows: publishes there are for the broker itself."""
MOVE_TOPIC = CONTROL + b"move"
LOCATION = "location"

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def read_move(payload: bytes) -> dict[str, Value]:
    """Read a client's report of its own state; InputError if invalid."""
    try:
        text = payload.decode()
        values: dict[str, Value] = {LOCATION: text} if text else {}
        if text.startswith("{"):
            values = _read_values(_decode(payload))
    except (UnicodeDecodeError, RecursionError, msgspec.MsgspecError):
        values = {}
    if not values:
        raise InputError(
            'a move: valid is the name of a location, or a JSON object as {"location": "lobby"} or '
            '{"lat": 43.263, "lon": -2.935}'
        )
    return values


def _read_values(said: dict[str, Any]) -> dict[str, Value]:
    """Return the values; None if any is invalid."""
    # Imported late: command-line clients load this module for every message.
    from roamcast.filters.geography import POSITION_NAMES, read_position

    place = read_position(said)
    if place is not None:
        said = {LOCATION: place, **{name: one for name, one in said.items() if name not in POSITION_NAMES}}
    values: dict[str, Value] = {}
    for name, one in said.items():
        value = read_position(one) if isinstance(one, dict) else one
        if not isinstance(value, str | bool | int | float):
            return {}
        values[name] = value
    return values


def write_move(values: dict[str, Value]) -> bytes:
    return msgspec.json.encode(values)
