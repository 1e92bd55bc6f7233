"""Where a client is, as it says so over MQTT: a publish to a control topic.

The payload is a JSON object with the variables that have changed, such as
`{"location": "lobby"}`, or just the name of the location.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from roamcast.errors import InputError

if TYPE_CHECKING:
    from roamcast.filters.expression import Value

CONTROL = b"$roamcast/"
"""Topics that no access rule opens: what is published there is for the broker itself."""
MOVE_TOPIC = CONTROL + b"move"
LOCATION = "location"

_decode = msgspec.json.Decoder(dict[str, str | bool | int | float]).decode


def read_move(payload: bytes) -> dict[str, Value]:
    """What a client says of itself; InputError if it cannot be understood."""
    try:
        text = payload.decode()
        values: dict[str, Value] = {LOCATION: text} if text else {}
        if text.startswith("{"):
            values = _decode(payload)
    except (UnicodeDecodeError, msgspec.MsgspecError):
        values = {}
    if not values:
        raise InputError('a move: valid is the name of a location, or a JSON object as {"location": "lobby"}')
    return values


def write_move(values: dict[str, Value]) -> bytes:
    return msgspec.json.encode(values)
